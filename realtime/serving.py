"""`parley serve`: what can be set, and what is said at the start. `realtime.cli` has the rest.

`realtime.compose` joins the parts; what is wrong is found before weights are loaded.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.markup import escape

from engine.config import AttentionChoice, DtypeChoice, EngineConfig, Policy
from models.watermark.choice import CSM_MESSAGE, MESSAGE_BYTES
from realtime.access.addresses import is_loopback
from realtime.access.config import AccessConfig
from realtime.access.keys import KeyRing, keys_in, read_key_file
from realtime.access.origins import checked_origin
from realtime.access.tls import TlsFiles, server_context
from realtime.audio.opus import load_library
from realtime.client.connect import DEFAULT_URL
from realtime.compose import Engines, Placement, Watermarks, running_engines
from realtime.config import GatewayConfig
from realtime.errors import ConfigError, ServerStartError
from realtime.terminal import doctor as checks
from realtime.terminal.display import err, out

if TYPE_CHECKING:
    from realtime.agent.assemble import AgentConfig

DEFAULT_MODEL: Final = "pico"
DEFAULT_WHISPER: Final = "tiny.en"
KEYS_VARIABLE: Final = "PARLEY_API_KEYS"
MESSAGE_VARIABLE: Final = "PARLEY_WATERMARK_MESSAGE"
ENGINE_SILENCE_S: Final = 20.0
"""A stream has failed of which the engine says nothing for so long, and as long as it may wait."""
EPILOG: Final = """parley serve

parley serve --port 9000 --host 0.0.0.0 --api-keys keys.txt  [dim]for other machines too[/]

parley serve --model pico --max-streams 4  [dim]fewer at once, less memory[/]

parley serve --model canopylabs/orpheus-3b-0.1-ft  [dim]fetched from the hub, once[/]

parley serve --llm-url http://127.0.0.1:8000/v1 --llm-model my-model  [dim]a bigger mind[/]"""

_ACCESS: Final = "Who may come in (docs/security.md)"
_TALK: Final = "Conversation"
_DEVICE: Final = "Device"


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to serve: a name (see parley models), a folder, or org/name[@revision] of "
            "the hub. May be given several times."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8765,
    threads: Annotated[int, typer.Option(min=1, help="torch threads of the engine.")] = 1,
    max_streams: Annotated[int, typer.Option(min=1, help="Streams that speak at once.")] = 16,
    queue_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=3600.0,
            help="Longest wait for a place among them; then a stream is refused with a hint.",
        ),
    ] = 10.0,
    memory_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the memory that weights leave free, for streams. "
            "Default: 0.9 of a GPU's; a quarter of a CPU's, 4 GiB at most."
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="Device of the models: cpu, or cuda.", rich_help_panel=_DEVICE)
    ] = "cpu",
    detokenizer_device: Annotated[
        str | None,
        typer.Option(
            help="Another device, cuda:1 for one, where a copy of each model makes the sound.",
            rich_help_panel=_DEVICE,
        ),
    ] = None,
    dtype: Annotated[
        DtypeChoice,
        typer.Option(
            help="Precision of decoders and KV; auto: bfloat16 on a GPU.", rich_help_panel=_DEVICE
        ),
    ] = "auto",
    attention: Annotated[
        AttentionChoice,
        typer.Option(
            help="flashinfer for its kernels, torch for plain ones; auto: the kernels on a GPU, "
            "if the package is there.",
            rich_help_panel=_DEVICE,
        ),
    ] = "auto",
    graphs: Annotated[
        bool,
        typer.Option(help="Record steps as CUDA graphs, on a GPU.", rich_help_panel=_DEVICE),
    ] = True,
    compile_steps: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile steps instead: minutes at the start; needs g++.",
            rich_help_panel=_DEVICE,
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="File for a trace of the engine's work, to be read by Perfetto.",
            rich_help_panel=_DEVICE,
        ),
    ] = None,
    watermark: Annotated[
        list[str] | None,
        typer.Option(
            help="Mark what is spoken: folder of a mark's weights, or sony/silentcipher of the "
            "hub; MODEL=PLACE for one of several models. May be given several times "
            "(docs/watermarks.md)."
        ),
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sockets at once.")] = 256,
    policy: Annotated[
        Policy, typer.Option(help="latency: first sound soon, no gaps. throughput: most speech.")
    ] = "latency",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    talk: Annotated[
        bool | None,
        typer.Option(
            "--talk/--no-talk",
            help="Converse. Default: where what it needs is there.",
            rich_help_panel=_TALK,
        ),
    ] = None,
    whisper: Annotated[
        str | None,
        typer.Option(
            help="Speech to text: tiny.en (the default), base, a folder or a hub name.",
            rich_help_panel=_TALK,
        ),
    ] = None,
    stt_url: Annotated[
        str | None,
        typer.Option(
            help="OpenAI-compatible endpoint that transcribes instead.", rich_help_panel=_TALK
        ),
    ] = None,
    stt_model: Annotated[
        str, typer.Option(help="Model that it is asked for.", rich_help_panel=_TALK)
    ] = "whisper-1",
    llm_url: Annotated[
        str | None,
        typer.Option(
            help="OpenAI-compatible endpoint that writes the answers.", rich_help_panel=_TALK
        ),
    ] = None,
    llm_model: Annotated[
        str, typer.Option(help="Model that it is asked for.", rich_help_panel=_TALK)
    ] = "default",
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help=f"File of API keys, one a line. Or {KEYS_VARIABLE}.", rich_help_panel=_ACCESS
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let others in without keys, if --host is not this machine.",
            rich_help_panel=_ACCESS,
        ),
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Web site whose pages may use the server; may be given several times.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    trust_proxy: Annotated[
        bool,
        typer.Option(
            "--trust-proxy",
            help="Take the client's address from a proxy's X-Forwarded-For.",
            rich_help_panel=_ACCESS,
        ),
    ] = False,
    max_per_key: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests and sockets of one key at once.", rich_help_panel=_ACCESS
        ),
    ] = None,
    max_per_address: Annotated[
        int | None,
        typer.Option(min=1, help="The same of one address.", rich_help_panel=_ACCESS),
    ] = None,
    max_session_s: Annotated[
        float, typer.Option(help="Longest session, in seconds.", rich_help_panel=_ACCESS)
    ] = 3600.0,
    idle_s: Annotated[
        float,
        typer.Option(help="Seconds until a silent socket is closed.", rich_help_panel=_ACCESS),
    ] = 60.0,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate in PEM form.", rich_help_panel=_ACCESS)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its private key.", rich_help_panel=_ACCESS)
    ] = None,
) -> None:
    """Start the server; Ctrl-C lets what is being spoken end, then stops."""
    from realtime.server import run

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    access = AccessConfig(
        keys=_keys(api_keys),
        is_insecure=insecure,
        origins=tuple(checked_origin(one) for one in origin or ()),
        trusts_proxy=trust_proxy,
        tls=_tls(tls_cert, tls_key),
        max_open_per_key=max_per_key,
        max_open_per_address=max_per_address,
    )
    gateway = GatewayConfig(
        host=host,
        port=port,
        max_sessions=max_sessions,
        max_session_s=max_session_s,
        idle_timeout_s=idle_s,
        # Of a stream that waits for a place the engine says nothing.
        engine_silence_s=queue_s + ENGINE_SILENCE_S,
        access=access,
    )
    config = EngineConfig(
        max_streams=max_streams,
        policy=policy,
        max_queue=64,
        queue_timeout_s=queue_s,
        memory_fraction=memory_fraction,
        attention=attention,
        graphs="compile" if compile_steps else "auto" if graphs else "off",
    )
    placement = Placement(
        device=device, detokenizer_device=detokenizer_device, dtype=dtype, trace=trace
    )
    watermarks = Watermarks(asked=watermark or (), message=_message())
    load_library()
    _check_port(gateway)
    agents = None
    if talk is not False:
        agents = _agents(whisper or DEFAULT_WHISPER, stt_url, stt_model, llm_url, llm_model)
    # What was asked for by name is not left out in silence.
    must_talk = any((talk, whisper, stt_url, llm_url))
    with running_engines(
        model or [DEFAULT_MODEL],
        config,
        threads,
        agents,
        must_talk=must_talk,
        placement=placement,
        watermarks=watermarks,
    ) as engines:
        run(
            engines.app(gateway),
            on_ready=lambda bound: _announce(engines, gateway, bound),
            on_stopping=lambda: err.print("Something is being spoken: Ctrl-C again cuts it short."),
        )
    err.print("Stopped.")


# What is given.


def _keys(path: Path | None) -> KeyRing:
    """The keys of the file and of the environment. Raises: `ConfigError`."""
    of_file = [] if path is None else read_key_file(path)
    return KeyRing([*of_file, *keys_in(os.environ.get(KEYS_VARIABLE, ""), KEYS_VARIABLE)])


def _tls(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """The files, if they can be used. Raises: `ConfigError`."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both files: --tls-cert CERTIFICATE --tls-key KEY")
    files = TlsFiles(certificate=certificate, key=key)
    server_context(files)
    return files


def _message() -> bytes:
    """What marks spell. Raises: `ConfigError`: it is no message."""
    # From the environment: on a command line every user of the machine could read it.
    text = os.environ.get(MESSAGE_VARIABLE, CSM_MESSAGE)
    try:
        message = bytes.fromhex(text)
    except ValueError:
        message = b""
    if len(message) != MESSAGE_BYTES:
        raise ConfigError(f"{MESSAGE_VARIABLE} must be {2 * MESSAGE_BYTES} hexadecimal digits")
    return message


def _agents(
    whisper: str, stt_url: str | None, stt_model: str, llm_url: str | None, llm_model: str
) -> AgentConfig:
    from realtime.agent.assemble import AgentConfig
    from realtime.agent.endpoint import EndpointConfig

    # Keys come from the environment: on a command line every user of the machine could read them.
    key = os.environ.get("OPENAI_API_KEY")
    return AgentConfig(
        whisper=whisper,
        stt=EndpointConfig(url=stt_url, model=stt_model, api_key=key) if stt_url else None,
        llm=EndpointConfig(url=llm_url, model=llm_model, api_key=key) if llm_url else None,
    )


def _check_port(config: GatewayConfig) -> None:
    """A port in use is found before weights are loaded."""
    if config.port == 0:
        return
    finding = checks.check_port(config.host, config.port)
    if finding.mark != "ok":
        raise ServerStartError(f"port {config.port}: {finding.seen}; {finding.advice}")


# What is shown.


def _announce(engines: Engines, config: GatewayConfig, port: int) -> None:
    shown = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.access.tls is None else "https"
    address = f"{scheme}://{shown}:{port}"
    out.print(f"Parley is ready: [bold]{address}[/]")
    for handle in engines.thread.handles:
        spec = handle.spec
        out.print(f"  {spec.name}: weights under {escape(spec.weights_licence)}", soft_wrap=True)
        for line in handle.memory.lines():
            out.print(f"  {spec.name}: {escape(line)}", soft_wrap=True)
        if spec.watermark:
            out.print(f"  {spec.name}: marked by {escape(spec.watermark)}", soft_wrap=True)
    for name, licence in (engines.talk.licences if engines.talk else {}).items():
        out.print(f"  {name}: weights under {escape(licence)}", soft_wrap=True)
    if engines.no_talk:
        out.print(f"  No conversation: {escape(engines.no_talk)}", style="yellow", soft_wrap=True)
    if config.access.is_insecure and not config.access.keys:
        words = "Everybody who can reach it may come in: no API keys are set."
        out.print(f"  {words}", style="yellow", soft_wrap=True)
    if config.access.keys and config.access.tls is None and not is_loopback(config.host):
        words = "Keys are sent in the clear: give --tls-cert, or put a proxy with TLS before it."
        out.print(f"  {words}", style="yellow", soft_wrap=True)
    word = "Talk to it in a browser" if engines.talk else "Open it in a browser"
    where = "" if address.replace("http", "ws", 1) == DEFAULT_URL else f" --url {address}"
    words = f'  {word}, or: parley say "Hello."{where}   Ctrl-C stops.'
    out.print(words, style="dim", soft_wrap=True)
    out.file.flush()
