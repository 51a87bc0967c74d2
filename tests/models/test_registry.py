"""Families are found by their exact name, described without weights, imported only when asked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from models import registry
from models.errors import WeightError
from models.registry import UnknownModelError
from models.toy.catalogue import TOYS
from models.toy.tone import ToneToy

PUBLISHED = (
    "orpheus",
    "csm",
    "zonos",
    "qwen3-tts",
    "opuslm",
    "opuslm-dialogue",
    "chatterbox",
    "chatterbox-multilingual",
    "chatterbox-turbo",
    "cosyvoice2",
    "bagpiper",
    "glm4-voice",
    "step-audio2",
)


def test_the_embedded_model_comes_first_and_all_toys_are_there():
    names = [info.name for info in registry.families()]
    assert names[0] == "pico"
    assert set(names[1:]) == {"smollm2-135m", *PUBLISHED, *TOYS}


def test_each_family_says_what_it_is():
    for info in registry.families():
        if info.fault:
            # Weights may be absent from a checkout or not installed; a toy has none to miss.
            assert info.name in ("pico", "smollm2-135m")
            continue
        assert info.tasks
        assert info.weights_licence
        assert info.weights_source
        assert info.runs_on
        assert info.tried
        assert bool(info.needs) == (info.name in PUBLISHED)
        if not info.needs:
            assert info.options == registry.read_spec(info.name).options


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_family_needs_a_folder(name: str):
    with pytest.raises(WeightError, match="package has no weights of it: name the folder of"):
        registry.load(name)


def test_a_family_without_its_files_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    def read_spec(folder: Path | None) -> None:
        raise WeightError("cannot read lm.json; restore the file")

    monkeypatch.setattr("models.pico.model.read_spec", read_spec)
    info = registry.families()[0]
    assert (info.name, info.fault) == ("pico", "cannot read lm.json; restore the file")


@pytest.mark.parametrize("name", list(TOYS))
def test_a_loaded_toy_has_the_spec_that_was_read(name: str):
    assert registry.load(name).spec == registry.read_spec(name)
    assert registry.read_spec(name).name == name


def test_a_loaded_model_is_of_the_named_family():
    assert isinstance(registry.load("toy-tone"), ToneToy)


@pytest.mark.parametrize("name", ["", "Toy-tone", "my-toy-tone-finetune", "toy-tone ", "tone"])
def test_only_an_exact_name_is_taken(name: str):
    known = ", ".join(["pico", "smollm2-135m", *PUBLISHED, "toy-tone"])
    with pytest.raises(UnknownModelError, match=f"there are: {known}"):
        registry.load(name)
    with pytest.raises(UnknownModelError):
        registry.read_spec(name)


def test_a_close_name_is_offered():
    with pytest.raises(UnknownModelError, match="did you mean 'toy-depth'"):
        registry.load("toy-dept")


def test_a_folder_of_no_known_family_is_refused(tmp_path: Path):
    with pytest.raises(WeightError, match=r"known here, which would be lm\.json; or Smol"):
        registry.load(tmp_path)


def test_a_folder_is_loaded_by_the_family_whose_file_it_has(tmp_path: Path):
    (tmp_path / "lm.json").write_text("{}", encoding="utf-8")
    with pytest.raises(WeightError, match=str(tmp_path)):
        registry.load(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"model_type": "csm"}, {}),
        ({"model_type": "qwen3_tts"}, {"speech_tokenizer": None}),
        (
            {"backbone": {}, "prefix_conditioner": {}},
            {
                "dac_44khz": "descript/dac_44khz",
                "speaker_embedding": "Zyphra/Zonos-v0.1-speaker-embedding",
            },
        ),
    ],
)
def test_configs_alone_say_what_else_is_read(config, parts, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = registry.needs(tmp_path)
    assert read.weights == ("model.safetensors",)
    assert {part.folder: part.repository for part in read.parts} == parts


def test_configs_of_no_family_and_of_an_embedded_one_say_nothing(tmp_path: Path):
    with pytest.raises(WeightError, match="no model that is known here"):
        registry.needs(tmp_path)
    (tmp_path / "lm.json").write_text("{}", encoding="utf-8")
    with pytest.raises(WeightError, match="comes with the package"):
        registry.needs(tmp_path)


@pytest.mark.parametrize(("yaml", "weights"), [("config", "flow.pt"), ("flow", "hift.pt")])
def test_a_detokenizer_alone_is_no_model(yaml, weights, tmp_path: Path):
    """Its YAML file has tags, which families of plain YAML cannot read: it was called damaged."""
    (tmp_path / f"{yaml}.yaml").write_text("flow: !new:cosyvoice.flow.Flow\n    size: 3\n")
    (tmp_path / weights).write_bytes(b"")
    with pytest.raises(WeightError, match="no model that is known here"):
        registry.load(tmp_path)


def test_the_registry_never_fetches():
    with pytest.raises(UnknownModelError, match="hub repository of weights"):
        registry.load("org/voice")


def test_no_family_is_imported_until_it_is_asked_for():
    code = (
        "import sys, models.registry as r;"
        "families = ('models.toy', 'models.pico', 'models.smollm');"
        "early = [m for m in sys.modules if m.startswith(families)];"
        "r.load('toy-tone');"
        "late = [m for m in sys.modules if m.startswith(families[1:])];"
        "sys.exit(bool(early or late))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
