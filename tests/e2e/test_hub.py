"""A model of the hub, served by the real command from a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from loadtest.server_process import running_server
from tests.models.hub_server import Hub, running_hub
from tests.models.orpheus import tiny

pytestmark = pytest.mark.slow


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> dict[str, bytes]:
    files = files_in(tiny.make_checkpoint(tmp_path_factory.mktemp("orpheus")))
    return {name: held for name, held in files.items() if "puts.safetensors" not in name}


def test_a_model_and_its_detokenizer_are_fetched_and_served(checkpoint, tmp_path):
    codec = "snac_24khz/"
    hub = Hub(
        repositories={
            "tiny/orpheus": {n: held for n, held in checkpoint.items() if not n.startswith(codec)},
            "hubertsiuzdak/snac_24khz": {
                n.removeprefix(codec): held for n, held in checkpoint.items() if n.startswith(codec)
            },
        },
        licences={"tiny/orpheus": "apache-2.0"},
    )
    with running_hub(hub):
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        with running_server("--no-talk", "--model", "tiny/orpheus@main", env=environment) as url:
            base = url.replace("ws://", "http://").split("/v1/")[0]
            with urllib.request.urlopen(f"{base}/v1/models", timeout=60) as answer:
                (model,) = json.load(answer)["data"]
    assert model["id"] == "orpheus"
    assert set(hub.asked) == {
        "tiny/orpheus/config.json",
        "tiny/orpheus/generation_config.json",
        "tiny/orpheus/model.safetensors",
        "tiny/orpheus/tokenizer.json",
        "hubertsiuzdak/snac_24khz/config.json",
        "hubertsiuzdak/snac_24khz/pytorch_model.bin",
    }


def test_a_fault_is_one_line(tmp_path):
    with running_hub(Hub(repositories={})) as hub:
        command = ["serve", "--port", "0", "--no-talk", "--model", "tiny/nosuch"]
        ran = subprocess.run(
            [sys.executable, "-m", "realtime.cli", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)},
        )
    assert ran.returncode == 1
    looking, fault = ran.stderr.splitlines()
    assert looking == "Looking for tiny/nosuch on the hub."
    assert fault.startswith("parley: there is no folder tiny/nosuch here and no such repository")
