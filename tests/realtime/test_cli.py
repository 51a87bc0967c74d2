"""The command line: what it accepts, what it says, and that a fault is one line."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.thread import EngineThread
from models.errors import WeightError
from realtime import cli, serving
from realtime.audio.files import read_audio
from realtime.client.speech import ConnectError, RefusedError
from realtime.config import GatewayConfig
from realtime.errors import OpusMissingError
from realtime.terminal import doctor
from realtime.terminal.doctor import Finding
from realtime.terminal.say import SayReport, SayRequest
from realtime.terminal.talk import TalkReport


def invoke(*args: str):
    return CliRunner().invoke(cli.app, list(args))


def run_main(monkeypatch, *args: str) -> int:
    """The exit code of `parley ...`."""
    monkeypatch.setattr(sys, "argv", ["parley", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def report(**changes: object) -> SayReport:
    fields = {
        "url": "ws://x", "model": "m", "voice": None, "codec": "opus", "sample_rate_hz": 24000,
        "ttfa_ms": 80.4, "audio_s": 2.5, "real_time_factor": 0.123, "n_packets": 125, "n_gaps": 0,
        "status": "completed", "file": None, "is_played": True, "note": "",
    }  # fmt: skip
    return SayReport(**{**fields, **changes})


@pytest.mark.parametrize("command", ["serve", "say", "talk", "models", "doctor"])
def test_every_command_explains_itself(command):
    assert command in invoke("--help").stdout
    shown = invoke(command, "--help")
    assert shown.exit_code == 0
    assert "--help" in shown.stdout


def test_help_teaches_by_example():
    assert 'parley say "Good morning." -o morning.wav' in invoke("--help").stdout
    assert "--option speed=0.8" in invoke("say", "--help").stdout


@pytest.mark.parametrize(
    "args",
    [
        ["say"],
        ["say", "x", "--option", "speed"],
        ["say", "x", "--codec", "mp3"],
        ["talk", "--out", "answer.wav"],
        ["talk", "--json"],
        ["serve", "--policy", "fair"],
        ["serve", "--threads", "0"],
        ["serve", "--queue-s", "-1"],
        ["serve", "--queue-s", "inf"],
        ["sing"],
    ],
)
def test_wrong_usage_is_exit_code_2(args):
    assert invoke(*args).exit_code == 2


def test_options_keep_their_types():
    pairs = ["speed=0.8", "seed=7", "warm=true", "style=calm", 'word="7"', "gap=", "eq=a=b"]
    assert cli._options(pairs) == {
        "speed": 0.8,
        "seed": 7,
        "warm": True,
        "style": "calm",
        "word": '"7"',
        "gap": "",
        "eq": "a=b",
    }


def test_a_file_is_sent_in_base64(tmp_path):
    path = tmp_path / "voice.wav"
    path.write_bytes(b"RIFF")
    assert cli._options([f"reference_audio=@{path}"]) == {"reference_audio": "UklGRg=="}
    result = invoke("say", "x", "--option", f"reference_audio=@{tmp_path / 'none.wav'}")
    assert result.exit_code == 2
    assert "cannot be read: No such file" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "error",
    [
        WeightError("weights are\nmissing; fetch them"),
        EngineConfigError("max_streams is 0, must be 1 or more"),
        OpusMissingError("no Opus library: pip install it"),
        RefusedError("unknown_voice", "no such voice; accepted: joe"),
    ],
)
def test_a_foreseen_fault_is_one_line_and_exit_code_1(monkeypatch, capsys, error):
    def fail(*_: object):
        raise error

    monkeypatch.setattr(cli, "_say", fail)
    assert run_main(monkeypatch, "say", "x") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"parley: {' '.join(str(error).split())}"]


def test_a_port_in_use_is_found_before_weights_are_loaded(monkeypatch, capsys):
    no_weights(monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run_main(monkeypatch, "serve", "--port", str(port)) == 1
    assert f"parley serve --port {port + 1}" in capsys.readouterr().err


def no_weights(monkeypatch) -> None:
    """Fail where a model would be loaded."""
    fail = pytest.fail
    monkeypatch.setattr(serving, "running_engines", lambda *_, **__: fail("weights were loaded"))


KEY = "a-key-of-16-or-more"


@pytest.mark.parametrize(
    ("args", "keys", "said"),
    [
        (["--host", "0.0.0.0"], "", "no API keys are set: give --api-keys FILE"),
        (["--api-keys", "{folder}/none"], "", "API keys cannot be read from {folder}/none"),
        ([], "short", "PARLEY_API_KEYS, key 1: a key has 16 to 256 characters"),
        (["--origin", "app.example"], "", "give scheme and host"),
        (["--tls-cert", "{folder}/cert.pem"], "", "TLS needs both files"),
        (["--tls-key", "{folder}/key.pem"], "", "TLS needs both files"),
        (
            ["--tls-cert", "{folder}/cert.pem", "--tls-key", "{folder}/key.pem"],
            "",
            "TLS certificate {folder}/cert.pem cannot be read",
        ),
        (["--idle-s", "0"], "", "idle_timeout_s is 0.0, must be above 0"),
    ],
)
def test_who_may_come_in_is_settled_before_weights_are_loaded(
    monkeypatch, capsys, tmp_path, args, keys, said
):
    no_weights(monkeypatch)
    monkeypatch.setenv("PARLEY_API_KEYS", keys)
    args = [arg.replace("{folder}", str(tmp_path)) for arg in args]
    assert run_main(monkeypatch, "serve", "--port", "0", *args) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said.replace("{folder}", str(tmp_path)) in line


def test_serve_hands_on_who_may_come_in(monkeypatch, tmp_path):
    """From the command line to the settings of the gateway."""
    files = tmp_path / "keys"
    files.write_text(f"{KEY}\n")
    files.chmod(0o600)
    seen = []

    @contextmanager
    def engines(*_, **__):
        yield SimpleNamespace(app=seen.append)

    monkeypatch.setattr(serving, "running_engines", engines)
    monkeypatch.setattr("realtime.server.run", lambda *_, **__: None)
    monkeypatch.setenv("PARLEY_API_KEYS", "another-key-of-the-environment")
    ran = invoke(
        "serve", "--port", "0", "--host", "0.0.0.0", "--api-keys", str(files), "--trust-proxy",
        "--origin", "https://App.example/", "--origin", "http://localhost:3000",
        "--max-sessions", "9", "--max-per-key", "3", "--max-per-address", "2",
        "--idle-s", "30", "--max-session-s", "600",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    (config,) = seen
    access = config.access
    assert access.keys.id_of(KEY.encode())
    assert access.keys.id_of(b"another-key-of-the-environment")
    assert access.origins == ("https://app.example", "http://localhost:3000")
    assert (access.trusts_proxy, access.is_insecure) == (True, False)
    assert (access.max_open_per_key, access.max_open_per_address) == (3, 2)
    assert (config.max_sessions, config.idle_timeout_s, config.max_session_s) == (9, 30.0, 600.0)


def test_serve_hands_on_how_many_speak_and_how_long_others_wait(monkeypatch):
    """From the command line to the settings of the engine, and of the gateway.

    A stream that waited for its place longer than 30 s was called lost, whatever the wait allowed.
    """
    seen, gateways = [], []

    @contextmanager
    def engines(_, config, *__, **___):
        seen.append(config)
        yield SimpleNamespace(app=gateways.append)

    monkeypatch.setattr(serving, "running_engines", engines)
    monkeypatch.setattr("realtime.server.run", lambda *_, **__: None)
    for args in (["--max-streams", "5", "--queue-s", "0.25"], [], ["--queue-s", "300"]):
        assert invoke("serve", "--port", "0", *args).exit_code == 0
    told, usual, patient = seen
    assert (told.max_streams, told.queue_timeout_s) == (5, 0.25)
    assert usual.queue_timeout_s == EngineConfig().queue_timeout_s
    assert patient.queue_timeout_s == 300
    assert [one.engine_silence_s for one in gateways] == [20.25, 30.0, 320.0]
    assert gateways[1].engine_silence_s == GatewayConfig().engine_silence_s


def test_the_version_and_the_short_help():
    assert invoke("--version").stdout.startswith("parley 0.")
    assert "First steps" in invoke("-h").stdout


def test_what_is_asked_for_by_name_is_not_left_out():
    """It would start, and converse with nobody."""
    ran = invoke("serve", "--port", "0", "--model", "toy-tone", "--whisper", "nosuch")
    assert ran.exit_code == 1
    assert "no Whisper model 'nosuch'" in str(ran.exception)


@pytest.mark.parametrize("command", [["say", "x"], ["talk", "--in", "{question}"]])
def test_a_server_that_wants_a_key_is_not_passed_over(monkeypatch, capsys, tmp_path, command):
    """The call would be answered by another server, started for it, as if nothing were wrong."""
    monkeypatch.setattr(cli, "running_engines", lambda *_, **__: pytest.fail("one was started"))
    question = tmp_path / "question.wav"
    question.touch()

    async def refused(*_: object) -> None:
        raise ConnectError("ws://x wants an API key; give it with PARLEY_API_KEY", 401)

    for name in ("say_through", "talk_by_file"):
        monkeypatch.setattr(cli, name, refused)
    args = [arg.replace("{question}", str(question)) for arg in command]
    assert run_main(monkeypatch, *args) == 1
    assert "wants an API key" in capsys.readouterr().err


def test_say_takes_the_key_from_the_environment(monkeypatch):
    seen = []

    def answer(*args: object) -> SayReport:
        seen.append(args[1])
        return report()

    monkeypatch.setenv("PARLEY_API_KEY", KEY)
    monkeypatch.setattr(cli, "_say", answer)
    invoke("say", "x")
    invoke("say", "x", "--api-key", "another")
    assert seen == [KEY, "another"]


def test_say_tells_the_figures(monkeypatch):
    def answer(url, api_key, request):
        assert request.options == {"speed": 2}
        return report(note="no sound device here", is_played=False)

    monkeypatch.setattr(cli, "_say", answer)
    shown = invoke("say", "x", "--option", "speed=2").stdout
    assert "First sound after 80 ms, 2.50 s of audio, real-time factor 0.12" in shown
    assert "no sound device" in shown


def test_say_starts_a_server_for_the_call(monkeypatch, tmp_path, free_port):
    """Nobody listens: the command loads the model, speaks through a socket, and stops it again."""
    monkeypatch.setattr(cli, "DEFAULT_URL", f"ws://127.0.0.1:{free_port}")
    path = tmp_path / "a.wav"
    said = invoke("say", "Hello there.", "--model", "toy-tone", "-o", str(path), "--json")
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert (told["model"], told["status"], told["codec"]) == ("toy-tone", "completed", "pcm16")
    pcm, rate_hz = read_audio(path)
    assert (rate_hz, len(pcm)) == (24000, 12 * 1920)  # the toy: 80 ms a character
    assert told["audio_s"] == len(pcm) / rate_hz


def test_a_file_that_was_not_written_is_exit_code_1(monkeypatch, tmp_path):
    note = "nothing in this text can be spoken"
    monkeypatch.setattr(cli, "_say", lambda *_: report(note=note, is_played=False))
    said = invoke("say", "...", "-o", str(tmp_path / "a.wav"))
    assert (said.exit_code, note in said.stdout) == (1, True)
    assert invoke("say", "...").exit_code == 0


def test_ctrl_c_during_the_warm_up_stops_the_engine(monkeypatch):
    """A thread that still ran torch when the interpreter ended aborted the process."""
    threads = []

    def interrupted(thread: EngineThread, timeout_s: float | None = None) -> bool:
        threads.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineThread, "wait_ready", interrupted)
    assert run_main(monkeypatch, "serve", "--model", "toy-tone", "--port", "0") == 130
    assert not threads[0].is_alive


def test_a_file_takes_pcm_fast_and_a_device_takes_opus_as_it_plays(tmp_path):
    def asked(**fields: object) -> tuple[str, str | None]:
        output = SayRequest(text="x", options={}, **fields).session().output
        return output.codec, output.pace

    assert asked() == ("opus", None)
    assert asked(target=tmp_path / "a.wav") == ("pcm16", "fast")
    assert asked(target=tmp_path / "a.wav", codec="opus") == ("opus", "fast")


def test_settings_that_are_not_given_are_not_sent():
    assert SayRequest(text="x", options={}).session().model_fields_set == {"output"}


@pytest.mark.parametrize(
    ("host", "port", "example"),
    [
        ("127.0.0.1", 8765, 'parley say "Hello."   Ctrl-C'),
        ("127.0.0.1", 9000, 'parley say "Hello." --url http://127.0.0.1:9000   Ctrl-C'),
        ("::1", 8765, 'parley say "Hello." --url http://[::1]:8765   Ctrl-C'),
    ],
)
def test_a_started_server_says_how_to_reach_it(capsys, host, port, example):
    engines = SimpleNamespace(thread=SimpleNamespace(handles=[]), talk=None, no_talk="")
    serving._announce(engines, GatewayConfig(host=host), port)
    assert example in capsys.readouterr().out


def test_models_are_listed_with_licences():
    listed = json.loads(invoke("models", "--json").stdout)
    assert listed[0]["name"] == "pico"
    assert {"voices", "options", "weights_licence"} <= listed[0].keys()
    shown = invoke("models").stdout
    assert "toy-tone" in shown
    assert "timing_temperature: " in shown, "names are not cut to a narrow terminal"
    assert "max_seconds: " in shown, "nor are the gateway's own options left out"


def test_each_model_tells_tasks_options_licence_and_what_was_tried():
    listed = {family["name"]: family for family in json.loads(invoke("models", "--json").stdout)}
    blocks = invoke("models").stdout
    for name, family in listed.items():
        assert family["tried"], name
        block = blocks[blocks.index(f"{name}  {family['runs_on']}") :]
        lines = [line for line in block.splitlines()[1:] if line.strip()]
        # The next model's rows come behind: the first of a name is its own.
        rows = {line.split()[0]: line for line in reversed(lines)}
        for row in ("tasks", "voices", "languages", "options", "weights", "from", "tried"):
            assert row in rows, f"{name}: {row}"
        for task in family["tasks"]:
            assert task in rows["tasks"]
        if family["needs"]:
            assert "no real weights" in family["tried"]
            assert "`--model ORG/NAME`" in rows["needs"]


def test_doctor_says_what_to_do_and_fails_on_a_fault(monkeypatch):
    def examine(**_: object):
        yield Finding(name="Opus", mark="fault", seen="no library", advice="pip install it")

    monkeypatch.setattr(doctor, "examine", examine)
    shown = invoke("doctor")
    assert shown.exit_code == 1
    assert "pip install it" in shown.stdout


def test_doctor_is_content_with_notes(monkeypatch):
    def examine(**_: object):
        yield Finding(name="Sound", mark="note", seen="no device", advice="write files")

    monkeypatch.setattr(doctor, "examine", examine)
    assert invoke("doctor", "--json").exit_code == 0


def test_doctor_asks_for_no_weights_that_come_from_elsewhere(monkeypatch):
    """Parley runs without them: their absence is no fault."""
    asked = []

    def examine(models, **_: object):
        asked.extend(name for name, _ in models)
        return iter(())

    monkeypatch.setattr(doctor, "examine", examine)
    assert invoke("doctor").exit_code == 0
    assert asked == ["pico", "smollm2-135m"]


def test_talk_finds_bad_files_before_anything_is_loaded(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli, "_talk", lambda *_: pytest.fail("a server was looked for"))
    question = tmp_path / "question.wav"
    assert run_main(monkeypatch, "talk", "--in", str(question)) == 1
    assert "no file" in capsys.readouterr().err
    question.touch()
    target = tmp_path / "answer.mp3"
    assert run_main(monkeypatch, "talk", "--in", str(question), "--out", str(target)) == 1
    assert "must end in one of" in capsys.readouterr().err


def test_talk_shows_both_sides_and_the_stages(monkeypatch, tmp_path):
    told = TalkReport(
        url="ws://x", model="m", question="Why?", answer="Because.", ttfa_ms=640.4,
        stages_ms={"endpoint": 288.0}, audio_s=1.5, status="completed", file=None,
    )  # fmt: skip
    monkeypatch.setattr(cli, "_talk", lambda *_: told)
    question = tmp_path / "question.wav"
    question.touch()
    shown = invoke("talk", "--in", str(question)).stdout
    assert "you: Why?\nparley: Because.\n" in shown
    assert "First sound 640 ms" in shown
    assert "endpoint 288" in shown
    assert json.loads(invoke("talk", "--in", str(question), "--json").stdout)["ttfa_ms"] == 640.4
