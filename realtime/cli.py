"""The `parley` command: what is asked for and what is shown. `realtime.compose` joins the parts.

`parley serve`, which has most to set, is in `realtime.serving`.

Whatever goes wrong in a foreseen way is one line on standard error and an exit code above 0.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.markup import escape

from engine.config import EngineConfig
from engine.errors import EngineError
from models.errors import ModelError
from realtime.audio.files import AudioFileError, check_target
from realtime.audio.opus import load_library
from realtime.client.connect import REFUSALS
from realtime.client.speech import DEFAULT_URL, ClientError, ConnectError
from realtime.compose import Engines, running_engines
from realtime.config import GatewayConfig
from realtime.errors import GatewayError
from realtime.events import OptionValue
from realtime.frames import AudioCodec
from realtime.serving import DEFAULT_MODEL, EPILOG, serve
from realtime.terminal import doctor as checks
from realtime.terminal.display import (
    err,
    show_finding,
    show_models,
    show_report,
    show_talk,
    show_turn,
)
from realtime.terminal.say import SayReport, SayRequest
from realtime.terminal.say import say as say_through
from realtime.terminal.sound import NoSoundError
from realtime.terminal.talk import TalkReport, talk_by_file, talk_by_microphone

_Done = TypeVar("_Done")
_EXPECTED = (GatewayError, EngineError, ModelError, ClientError, AudioFileError, NoSoundError)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Real-time voice server: text in over a WebSocket, speech out while it is generated.",
    epilog="""[bold]First steps[/]

parley serve  [dim]then open http://127.0.0.1:8765 and type[/]

parley say "Good morning."  [dim]speak it[/]

parley say "Good morning." -o morning.wav  [dim]write it to a file[/]

parley talk --in question.wav --out answer.wav  [dim]ask by voice[/]

parley doctor  [dim]when something does not work[/]""",
)

Model = Annotated[str | None, typer.Option(help="Model that speaks; see: parley models")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="PARLEY_API_KEY",
        help="Key of the server. Better in the environment: others see a command line.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]


def main() -> None:
    """Entry point of the `parley` command."""
    try:
        app()
    except _EXPECTED as error:
        _fail(" ".join(str(error).split()) or type(error).__name__)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"parley {version('parley')}")
        raise typer.Exit


@app.callback()
def common(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Options of `parley` itself; `app` has the help."""


app.command(epilog=EPILOG)(serve)


@app.command(
    epilog="""parley say "The quick brown fox jumps over the lazy dog."

parley say "Slowly, please." --option speed=0.8 -o slow.opus

echo "From a pipe." | parley say -

parley say "On another machine." --url ws://192.0.2.7:8765 --json"""
)
def say(
    text: Annotated[str, typer.Argument(help="What to speak; - reads standard input.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write .wav, .flac, .opus or .ogg instead of playing."),
    ] = None,
    model: Model = None,
    voice: Annotated[str | None, typer.Option(help="One of the model's voices.")] = None,
    language: Annotated[str | None, typer.Option(help="One of the model's languages.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the model as name=value, a sound file as name=@file; may be given "
            "several times."
        ),
    ] = None,
    codec: Annotated[
        AudioCodec | None, typer.Option(help="On the wire; files take pcm16 by default.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help=f"Server to speak through. Else {DEFAULT_URL}, else one for this call."),
    ] = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Speak one text, through a running server or one started for the call."""
    request = SayRequest(
        text=sys.stdin.read() if text == "-" else text,
        model=model,
        voice=voice,
        language=language,
        options=_options(option or []),
        codec=codec,
        target=output,
    )
    if output is not None:
        check_target(output)
    report = _say(url, api_key, request)
    if as_json:
        typer.echo(report.to_json())
    else:
        show_report(report)
    if output is not None and report.file is None:
        raise typer.Exit(1)


@app.command(
    epilog="""parley talk  [dim]microphone and loudspeaker[/]

parley talk --in question.wav --out answer.wav

parley talk --in question.wav --url ws://192.0.2.7:8765 --json"""
)
def talk(
    source: Annotated[
        Path | None, typer.Option("--in", help="Ask what this file says, not the microphone.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="Write the answer: .wav, .flac, .opus or .ogg.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help=f"Server to talk with. Else {DEFAULT_URL}, else one for this call."),
    ] = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Talk with a running server or one started for the call."""
    if source is None:
        if target is not None or as_json:
            raise typer.BadParameter("--out and --json need a question", param_hint="--in")
        _talk(url, lambda at: talk_by_microphone(at, show_turn, api_key))
        return
    if target is not None:
        check_target(target)
    if not source.is_file():
        raise AudioFileError(f"no file {source}; give a recording of a question")
    report: TalkReport = _talk(url, lambda at: talk_by_file(at, source, target, api_key))
    if as_json:
        typer.echo(report.to_json())
    else:
        show_talk(report)
    if target is not None and report.file is None:
        raise typer.Exit(1)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models, their voices, options and licences."""
    from models.registry import families

    known = families()
    if as_json:
        typer.echo(json.dumps([asdict(family) for family in known], indent=2))
        return
    show_models(known)


@app.command()
def doctor(
    host: Annotated[str, typer.Option(help="Address that serve would take.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that serve would take.")] = 8765,
    as_json: AsJson = False,
) -> None:
    """Check what Parley needs on this machine, and say what to do. Exit code 1 if it cannot run."""
    findings = []
    weighty = [name for name in _own_models() if not name.startswith("toy-")]
    loads = [(name, lambda name=name: _weights_word(name)) for name in weighty]
    for finding in checks.examine(host=host, port=port, models=loads, hearing=_hearing_word):
        findings.append(finding)
        if not as_json:
            show_finding(finding)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    if any(finding.mark == "fault" for finding in findings):
        raise typer.Exit(1)


def _say(url: str | None, api_key: str | None, request: SayRequest) -> SayReport:
    """Through the server at `url`; without one, through the default's, else one of our own."""
    try:
        return asyncio.run(say_through(url or DEFAULT_URL, request, api_key))
    except ConnectError as error:
        if url is not None or error.status in REFUSALS:
            raise
    name = request.model or DEFAULT_MODEL
    err.print(f"No server at {DEFAULT_URL}: starting one for this call.", style="dim")
    load_library()
    # Outside of any event loop, which would keep Ctrl-C waiting until the model is loaded.
    with running_engines([name], EngineConfig(max_streams=2), threads=1) as engines:
        # It has no other that speaks, and calls it by its family where the request names a folder.
        own = replace(request, model=None)
        return asyncio.run(_through_own(engines, lambda at: say_through(at, own)))


def _talk(url: str | None, work: Callable[[str], Coroutine[Any, Any, _Done]]) -> _Done:
    """As `_say`, with a server that converses."""
    try:
        return asyncio.run(work(url or DEFAULT_URL))
    except ConnectError as error:
        if url is not None or error.status in REFUSALS:
            raise
    from realtime.agent.assemble import AgentConfig

    err.print(f"No server at {DEFAULT_URL}: starting one for this call.", style="dim")
    load_library()
    config = EngineConfig(max_streams=4)
    with running_engines([DEFAULT_MODEL], config, 1, AgentConfig(), must_talk=True) as engines:
        return asyncio.run(_through_own(engines, work))


async def _through_own(
    engines: Engines, work: Callable[[str], Coroutine[Any, Any, _Done]]
) -> _Done:
    from realtime.server import Server

    server = Server(engines.app(GatewayConfig(port=0)))
    port = await server.startup()
    try:
        return await work(f"ws://127.0.0.1:{port}")
    finally:
        await server.shutdown()


def _fail(message: str) -> NoReturn:
    err.print(f"[red]parley:[/] {escape(message)}", soft_wrap=True)
    raise SystemExit(1)


def _options(pairs: Sequence[str]) -> dict[str, OptionValue]:
    """`name=value` pairs; a value that is a JSON number or boolean is one, else it is text.

    `@file` is the file in base64.
    """
    options: dict[str, OptionValue] = {}
    for pair in pairs:
        name, found, text = pair.partition("=")
        if not found or not name:
            raise typer.BadParameter(f"{pair!r} is not name=value", param_hint="--option")
        if text.startswith("@"):
            options[name] = _in_base64(Path(text[1:]))
            continue
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        options[name] = value if isinstance(value, int | float | bool) else text
    return options


def _in_base64(path: Path) -> str:
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise typer.BadParameter(message, param_hint="--option") from None


def _own_models() -> list[str]:
    """Models that can be served by name; the others wait for a folder of their weights."""
    from models.registry import families

    return [family.name for family in families() if not family.needs]


def _weights_word(name: str) -> str:
    from models import registry

    spec = registry.load(name).spec
    return f"weights verified, {spec.weights_licence}"


def _hearing_word() -> str:
    from realtime.agent.assemble import AgentConfig, load_hearing

    return f"hears with {', '.join(load_hearing(AgentConfig()).licences)}"


if __name__ == "__main__":
    main()
