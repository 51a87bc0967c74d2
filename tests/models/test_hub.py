"""Models of the hub: what is fetched, in which order, where it is put, and what is said if not."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from models.errors import WeightError
from models.hub import HubError, HubName, Needs, Part, Wanted, fetch, hub_name
from tests.models.hub_server import COMMIT, OLD_FILE, Hub, running_hub

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""
CONFIG = b'{"family": "made-up"}'
MODEL = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "model.safetensors": b"W" * 5000,
    "README.md": b"read me",
    "modeling.py": b"raise SystemExit",
    "optimizer.pt": b"O" * 9000,
    "old/config.json": b"{}",
    "training.pkl": b"P",
}
CODEC = {"config.json": b"[]", "codec.pth": b"C" * 3000, "codec.safetensors": b"c" * 700}
HUB = Hub(
    repositories={"org/voice": MODEL, "other/codec": CODEC},
    licences={"org/voice": "apache-2.0"},
)
READ = {
    "config.json",
    "tokenizer.json",
    "codec/config.json",
    "model.safetensors",
    "codec/codec.pth",
}


def needs(folder: Path, within: str) -> Needs:
    """Of a made-up family: a codec, from elsewhere if need be, and perhaps a part of its own."""
    path = folder / "config.json"
    if not path.is_file() or json.loads(path.read_text()).get("family") != "made-up":
        raise WeightError(f"{folder} holds no model that is known here")
    weights = ("codec.pth",)
    parts = [Part(folder="codec", repository="other/codec", within=within, weights=weights)]
    if (folder / "with_tokens.txt").is_file():
        parts.append(Part(folder="tokens", weights=()))
    return Needs(parts=tuple(parts))


class Told:
    """Fetches, and writes down what it is told meanwhile.

    Args:
        home: where the hub's library keeps its cache.
        monkeypatch: of its settings, which it reads from the environment when it is imported.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.wanted: list[Wanted] = []
        self.n_bytes = 0
        self.within = ""
        monkeypatch.setattr(constants, "HF_HOME", str(home))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))

    def ask(self, url: str, *, is_offline: bool = False) -> None:
        """Of this hub, or of nobody."""
        form = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        self._patch.setattr(constants, "ENDPOINT", url)
        self._patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", form)
        self._patch.setattr(constants, "HF_HUB_OFFLINE", is_offline)

    def found(self, wanted: Sequence[Wanted]) -> None:
        self.wanted = list(wanted)

    def fetched(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes

    def fetch(self, model: str) -> dict[str, str]:
        """The files of the folder, read through its links."""
        name = hub_name(model)
        assert name is not None
        self.wanted, self.n_bytes = [], 0
        folder = fetch(name, partial(needs, within=self.within), self)
        paths = [path for path in folder.rglob("*") if not path.is_dir()]
        assert all(path.is_symlink() for path in paths), "links, not copies"
        return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}

    def fault(self, model: str) -> str:
        """What it says in place of fetching."""
        with pytest.raises(HubError) as raised:
            self.fetch(model)
        return str(raised.value)


@pytest.fixture
def hub():
    with running_hub(replace(HUB, asked=[])) as served:
        yield served


@pytest.fixture
def told(hub, tmp_path, monkeypatch):
    told = Told(tmp_path, monkeypatch)
    told.ask(hub.url)
    yield told
    close_session()


def test_only_a_name_with_one_slash_is_of_the_hub(tmp_path, monkeypatch):
    assert hub_name("org/voice") == HubName(repository="org/voice")
    assert hub_name("org/voice@v1") == HubName(repository="org/voice", revision="v1")
    assert hub_name("org/voice@refs/pr/3") == HubName(repository="org/voice", revision="refs/pr/3")
    for other in ("pico", "toy-tone", "./voice", "/data/voice", "a/b/c", "~/voice", "../x", ""):
        assert hub_name(other) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "voice").mkdir(parents=True)
    assert hub_name("org/voice") is None, "a folder here is meant first"


def test_nothing_is_imported_before_a_model_of_the_hub_is_named():
    code = "import sys, models.hub; sys.exit(bool({'torch', 'huggingface_hub'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_the_loader_reads_comes_and_nothing_else(hub, told):
    files = told.fetch("org/voice")
    assert set(files) == READ
    assert files["codec/codec.pth"] == "C" * 3000
    weights = ["org/voice/model.safetensors", "other/codec/codec.pth"]
    assert hub.asked[-2:] == weights, "after all configs"
    assert len(hub.asked) == len(READ)


def test_licence_and_size_are_told_and_progress_counts_the_bytes(told):
    told.fetch("org/voice")
    assert told.wanted == [
        Wanted(
            repository="org/voice",
            licence="apache-2.0",
            n_bytes=5000 + len(CONFIG) + 2,
            n_missing_bytes=5000,
        ),
        Wanted(repository="other/codec", licence="", n_bytes=3002, n_missing_bytes=3000),
    ]
    assert told.n_bytes == 8000


def test_a_second_start_fetches_nothing_online_or_off(hub, told):
    first = told.fetch("org/voice")
    hub.asked.clear()
    for url, is_offline in ((hub.url, False), (hub.url, True), (NOWHERE, False)):
        told.ask(url, is_offline=is_offline)
        assert told.fetch("org/voice") == first
        assert told.n_bytes == 0
    assert not hub.asked


def test_a_hub_that_is_down_is_done_without(hub, told):
    first = told.fetch("org/voice")
    hub.is_down = True
    assert told.fetch("org/voice") == first
    assert told.fault("other/voice") == (
        f"other/voice is not whole in the cache, and {hub.url} is out of reach"
    )


def test_a_named_revision_is_looked_for(hub, told):
    assert set(told.fetch("org/voice@v1")) == READ | {OLD_FILE}
    assert set(told.fetch("org/voice")) == READ
    assert told.fault("org/voice@v7") == "org/voice has no revision 'v7'"
    told.ask(hub.url, is_offline=True)
    assert set(told.fetch(f"org/voice@{COMMIT}")) == READ
    assert set(told.fetch("org/voice@v1")) == READ | {OLD_FILE}


def test_shards_come_as_an_index_names_them(hub, told):
    index = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()
    shards = {f"m-{n}.safetensors": b"S" for n in (1, 2, 3)}
    plain = {**MODEL, **shards, "model.safetensors.index.json": index}
    stated = json.dumps({"family": "made-up", "transformers_weights": "t.index.json"}).encode()
    named = {**MODEL, **shards, "config.json": stated, "t.index.json": index}
    hub.repositories = {**hub.repositories, "org/plain": plain, "org/named": named}
    for name, file in (("plain", "model.safetensors.index.json"), ("named", "t.index.json")):
        read = READ - {"model.safetensors"} | {"m-1.safetensors", "m-2.safetensors", file}
        assert set(told.fetch(f"org/{name}")) == read


def test_a_part_within_the_repository_is_taken_from_there(hub, told):
    own = {"codec/config.json": b"{}", "codec/codec.pth": b"own", "tokens/vocab.json": b"{}"}
    whole = {**MODEL, **own, "with_tokens.txt": b""}
    half = {**MODEL, "with_tokens.txt": b""}
    hub.repositories = {**hub.repositories, "org/whole": whole, "org/half": half}
    files = told.fetch("org/whole")
    assert files["codec/codec.pth"] == "own"
    assert set(files) == READ | {"with_tokens.txt", "tokens/vocab.json"}
    assert told.fault("org/half") == "org/half has no tokens, which its family reads"


def test_a_part_may_stand_deep_in_its_repository(hub, told):
    deep = {f"exp/train/{file}": held for file, held in CODEC.items()}
    hub.repositories = {**hub.repositories, "other/codec": {**deep, "config.json": b"not this"}}
    told.within = "exp/train"
    files = told.fetch("org/voice")
    assert set(files) == READ
    assert files["codec/config.json"] == "[]"


def test_an_unknown_family_costs_no_weights(hub, told):
    hub.repositories = {"org/other": {**MODEL, "config.json": b'{"family": "another"}'}}
    assert told.fault("org/other") == "org/other holds no model that is known here"
    assert hub.asked == ["org/other/config.json", "org/other/tokenizer.json"]


@pytest.mark.parametrize("lacking", ["model.safetensors", "codec.pth"])
def test_weights_that_are_not_there_are_named(hub, told, lacking):
    hub.repositories = {
        name: {file: held for file, held in files.items() if file != lacking}
        for name, files in hub.repositories.items()
    }
    assert told.fault("org/voice").endswith(f"has no {lacking}: no weights that are read here")


@pytest.mark.parametrize("file", ["../x.safetensors", "old/x.safetensors", "training.pkl"])
def test_an_index_cannot_lead_out_of_the_folder_or_to_code(hub, told, file):
    index = json.dumps({"weight_map": {"a": file}}).encode()
    files = {**MODEL, "model.safetensors.index.json": index, file: b"x"}
    hub.repositories = {**hub.repositories, "org/odd": files}
    assert "no weights that are read here" in told.fault("org/odd")
    assert f"org/odd/{file}" not in hub.asked


def test_what_cannot_be_had_says_why_and_what_to_do(hub, told):
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    assert told.fault("org/nosuch") == (
        f"there is no folder org/nosuch here and no such repository at {hub.url}; "
        f"if it is private, {log_in}"
    )
    hub.gated = frozenset({"org/voice"})
    page = f"{hub.url}/org/voice"
    assert told.fault("org/voice") == (
        f"org/voice is gated: accept its terms at {page}, then {log_in}"
    )
    assert told.fault("a--b/c") == "a--b/c cannot be a repository's name"


def test_without_a_net_or_a_cache_that_is_said(hub, told):
    told.ask(NOWHERE)
    assert told.fault("org/voice") == (
        f"org/voice is not whole in the cache, and {NOWHERE} is out of reach"
    )
    told.ask(hub.url, is_offline=True)
    assert told.fault("org/voice").endswith("and HF_HUB_OFFLINE forbids to ask for it")


def test_half_a_cache_is_not_taken_for_the_model(hub, told, tmp_path):
    hub.gated = frozenset({"other/codec"})
    assert "other/codec is gated" in told.fault("org/voice")
    told.ask(hub.url, is_offline=True)
    assert told.fault("org/voice").startswith("org/voice is not whole in the cache")
    hub.gated = frozenset()
    told.ask(hub.url)
    told.fetch("org/voice")
    shutil.rmtree(tmp_path / "hub" / "models--other--codec" / "snapshots")
    told.ask(hub.url, is_offline=True)
    assert told.fault("org/voice").startswith("other/codec is not whole in the cache")
    told.ask(hub.url)
    assert set(told.fetch("org/voice")) == READ, "and it is made whole again"


def test_the_folder_of_an_earlier_start_is_made_anew(told, tmp_path):
    told.fetch("org/voice")
    (link,) = tmp_path.glob("parley/org--voice/*/tokenizer.json")
    link.unlink()
    assert set(told.fetch("org/voice")) == READ
    assert len(list((tmp_path / "parley" / "org--voice").iterdir())) == 1, "nothing is left over"


def test_a_disk_that_is_too_small_is_found_before_the_weights_come(hub, told, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=7999))
    fault = told.fault("org/voice")
    assert "org/voice takes 0.0 GB more" in fault
    assert "make room, or set HF_HOME to a larger disk" in fault
    assert "org/voice/model.safetensors" not in hub.asked
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=8000))
    assert set(told.fetch("org/voice")) == READ


def test_a_disk_that_fills_meanwhile_is_named(told, monkeypatch):
    def no_room(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", no_room)
    assert told.fault("org/voice").endswith("is full: make room, or set HF_HOME")
