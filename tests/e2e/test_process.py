"""The server as a process: signals, faults at start, and what a stranger does first."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from loadtest.server_process import running_server
from realtime.client.speech import SpeechClient

PARLEY = [sys.executable, "-m", "realtime.cli"]
START_TIMEOUT_S = 180


def parley(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PARLEY, *args], capture_output=True, text=True, check=False, input=stdin, timeout=180
    )


def fault_line(answer: subprocess.CompletedProcess[str]) -> str:
    """The one line of a foreseen fault."""
    assert answer.returncode == 1, (answer.stdout, answer.stderr)
    lines = answer.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def get(url: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.status, answer.read()


def test_a_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = fault_line(parley("serve", "--model", "toy-tone", "--port", str(port)))
    assert f"port {port}" in line
    assert "parley serve --port" in line


def test_an_unknown_model_names_the_known_ones():
    line = fault_line(parley("serve", "--model", "pixo", "--port", "0"))
    assert "pico" in line


def test_a_folder_without_weights_is_one_line(tmp_path):
    assert "no model" in fault_line(parley("serve", "--model", str(tmp_path), "--port", "0"))


def test_no_opus_library_says_what_to_install():
    hide = (
        "import realtime.audio.opus as o; o.LIBRARIES = ('no_such_library',);"
        "import sys; sys.argv = ['parley', 'serve', '--model', 'toy-tone', '--port', '0'];"
        "from realtime.cli import main; main()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, check=False, timeout=180
    )
    line = fault_line(answer)
    assert "pip install" in line
    assert "libopus0" in line


def test_a_folder_that_is_not_there_is_said_before_anything_is_spoken():
    line = fault_line(parley("say", "x", "-o", "no/such/folder/a.wav"))
    assert "mkdir -p no/such/folder" in line


def test_nobody_at_the_url_is_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = fault_line(parley("say", "x", "--url", f"127.0.0.1:{port}"))
    assert "parley serve" in line


def test_a_refused_option_is_one_line_with_what_is_accepted(toy_url):
    assert "speed" in fault_line(parley("say", "x", "--url", toy_url, "--option", "sped=2"))
    assert "middle" in fault_line(parley("say", "x", "--url", toy_url, "--voice", "nobody"))


def test_standard_input_is_spoken(toy_url):
    answer = parley("say", "-", "--url", toy_url, "--json", stdin="From a pipe.")
    report = json.loads(answer.stdout)
    assert report["status"] == "completed"
    assert report["audio_s"] == pytest.approx(12 * 0.08)  # the toy: 80 ms a character


def test_a_cancelled_response_is_cut_exactly_and_the_next_one_is_whole(toy_url):
    """What was announced is what came, also where the server dropped packets that waited."""

    async def run():
        async with SpeechClient(toy_url) as client:
            first = await client.speak("A text of some length, to be cut. " * 20)
            n_samples = 0
            async for pcm in first:
                n_samples += len(pcm)
                if n_samples > 24_000 and not first.is_over:
                    await first.cancel()
            second = await client.speak("Twelve chars")
            return n_samples, first.result, len(await second.pcm()), second.result

    n_samples, first, n_second, second = asyncio.run(run())
    assert first.response.status == "cancelled"
    assert n_samples == first.n_samples == first.response.usage.n_samples
    assert first.audio_s < 20 * 34 * 0.08
    assert second.response.status == "completed"
    assert n_second == 12 * 1920


def test_the_documented_python_example_runs(toy_url):
    document = Path(__file__).parents[2] / "docs/protocol.md"
    example = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)[0]
    assert "ws://127.0.0.1:8765" in example
    answer = subprocess.run(
        [sys.executable, "-c", example.replace("ws://127.0.0.1:8765", toy_url)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert re.fullmatch(r"first sound after \d+ ms\n", answer.stdout)


NEEDS = re.compile(r"""(?:src|href)="([^"#]+)"|(?:from|import\(|addModule\()\s*["']([^"']+)["']""")
FROM_ELSEWHERE = re.compile(
    r"""(?:(?:src|href)=|from |import\(|fetch\(|addModule\(|url\()["']?(?:https?:)?//"""
)


def test_the_page_and_all_that_it_needs_come_from_the_server(toy_url):
    seen: dict[str, str] = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        status, body = get(f"{toy_url}{path}")
        assert status == 200, path
        seen[path] = body.decode(errors="ignore")
        assert not FROM_ELSEWHERE.search(seen[path]), path
        if path.endswith((".js", "/")):
            named = {one or other for one, other in NEEDS.findall(seen[path])}
            found = {urllib.parse.urljoin(path, name) for name in named if "." in name}
            waiting += sorted(found - seen.keys() - set(waiting))
    assert len(seen) > 4


def test_health_and_models(toy_url):
    assert get(f"{toy_url}/healthz")[0] == 200
    assert get(f"{toy_url}/readyz")[0] == 200
    listed = json.loads(get(f"{toy_url}/v1/models")[1])
    assert [model["id"] for model in listed["data"]] == ["toy-tone"]


def test_a_signal_lets_the_speech_end(toy_url):
    """SIGTERM in the middle of a response: all of it still comes, and the exit code is 0."""
    process = subprocess.Popen(
        [*PARLEY, "serve", "--no-talk", "--model", "toy-tone", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        url = re.search(r"http://\S+", line)[0]

        async def run():
            async with SpeechClient(url, is_decoding=False) as client:
                speech = await client.speak("A sentence of some length, twice. " * 2)
                frames = aiter(speech.frames())
                await anext(frames)
                process.send_signal(signal.SIGTERM)
                async for _ in frames:
                    pass
                return speech.result

        result = asyncio.run(run())
        assert result.response.status == "completed"
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_a_server_process_ends_with_its_context():
    with running_server("--no-talk", "--model", "toy-tone") as url:
        assert get(f"{url}/readyz")[0] == 200
    with pytest.raises(OSError, match="refused"):
        get(f"{url}/readyz")
