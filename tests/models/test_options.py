"""Options, voices and languages are checked by name, type and range; errors say what would do."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from models.errors import PlanError
from models.options import check_language, check_options, check_voice
from models.spec import (
    BackboneSpec,
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
)

SPEC = ModelSpec(
    name="model",
    tasks=("speak",),
    columns=(ColumnSpec(name="ids", role="semantic", ids=(0, 4), pad_id=0),),
    frame=FrameSpec(
        n_codebooks=1, frame_rate_hz=50.0, sample_rate_hz=16_000, samples_per_frame=320
    ),
    backbone=BackboneSpec(
        n_layers=1, n_query_heads=1, n_kv_heads=1, head_dim=2, hidden=2, max_positions=8
    ),
    phases=(PhaseSpec(name="audio", columns=(PhaseColumn(fill="sampled"),)),),
    codec=CodecSpec(chunk_frames=(1,)),
    state_size=1,
    voices=("amy", "ryan"),
    languages=("en", "de"),
    options=(
        OptionSpec(
            name="speed", kind="number", default=1.0, description="", minimum=0.5, maximum=2.0
        ),
        OptionSpec(name="frames", kind="integer", default=None, description="", minimum=0),
        OptionSpec(
            name="style", kind="string", default="calm", description="", choices=("calm", "lively")
        ),
        OptionSpec(name="whisper", kind="boolean", default=False, description=""),
        OptionSpec(name="hint", kind="string", default=None, description=""),
    ),
)
DEFAULTS = {"speed": 1.0, "style": "calm", "whisper": False}


def refused(options: dict[str, object]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        check_options(SPEC, options)
    return caught.value


def test_defaults_are_filled_in():
    assert check_options(SPEC, {}) == DEFAULTS


@pytest.mark.parametrize(
    "options",
    [
        {"speed": 2},
        {"speed": 0.5},
        {"frames": 0},
        {"frames": 12},
        {"style": "lively"},
        {"whisper": True},
        {"hint": ""},
        {"hint": "a | b"},
    ],
)
def test_good_values_are_taken_as_they_are(options: dict[str, object]):
    checked = check_options(SPEC, options)
    assert checked == {**DEFAULTS, **options}
    assert all(type(checked[name]) is type(value) for name, value in options.items())
    assert check_options(SPEC, checked) == checked


def test_an_unknown_option_is_named_with_its_close_match():
    error = refused({"sped": 1.0})
    assert (error.code, error.param) == ("unknown_option", "sped")
    assert "'sped'" in error.message
    assert "did you mean 'speed'?" in error.message
    assert "frames" in error.message


def test_a_recording_for_a_model_that_takes_none_is_refused_by_name():
    error = refused({"reference_audio": "UklGRg=="})
    assert (error.code, error.param) == ("unknown_option", "reference_audio")
    assert "UklGRg" not in error.message


def test_an_unknown_option_without_a_close_match_lists_what_there_is():
    error = refused({"zzzzzz": 1})
    assert error.code == "unknown_option"
    assert "did you mean" not in error.message
    assert "accepted: frames, hint, speed, style, whisper" in error.message


def test_a_model_without_options_says_so():
    with pytest.raises(PlanError, match="it takes none"):
        check_options(replace(SPEC, options=()), {"speed": 1.0})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("speed", "1.0", "a number"),
        ("speed", True, "a number"),
        ("speed", None, "a number"),
        ("frames", 3.0, "an integer"),
        ("frames", False, "an integer"),
        ("frames", [3], "an integer"),
        ("style", 1, "a string"),
        ("style", None, "a string"),
        ("whisper", 1, "a boolean"),
        ("whisper", "true", "a boolean"),
        ("hint", {"a": 1}, "a string"),
    ],
)
def test_a_wrong_type_is_named(name: str, value: object, kind: str):
    error = refused({name: value})
    assert (error.code, error.param) == ("invalid_type", name)
    assert repr(value) in error.message
    assert f"must be {kind}" in error.message


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("speed", 0.49, "must be at least 0.5"),
        ("speed", 3, "must be at most 2"),
        ("speed", math.nan, "must be a finite number"),
        ("speed", math.inf, "must be a finite number"),
        ("frames", -1, "must be at least 0"),
        ("style", "calmm", "did you mean 'calm'? accepted: calm, lively"),
        ("style", "", "accepted: calm, lively"),
    ],
)
def test_a_value_out_of_range_says_what_is_accepted(name: str, value: object, accepted: str):
    error = refused({name: value})
    assert (error.code, error.param) == ("invalid_value", name)
    assert repr(value) in error.message
    assert accepted in error.message


def test_a_huge_offending_value_does_not_fill_the_message():
    assert len(refused({"speed": "x" * 100_000}).message) < 300
    assert len(refused({"y" * 100_000: 1}).message) < 300


def test_voice_and_language_default_to_the_first():
    assert check_voice(SPEC, None) == "amy"
    assert check_voice(SPEC, "ryan") == "ryan"
    assert check_language(SPEC, None) == "en"
    assert check_language(SPEC, "de") == "de"


def test_a_model_without_voices_gives_none_and_takes_none():
    mute = replace(SPEC, voices=(), languages=())
    assert check_voice(mute, None) is None
    with pytest.raises(PlanError, match="it takes none"):
        check_voice(mute, "amy")


def test_unknown_voice_and_unsupported_language_are_named():
    with pytest.raises(PlanError) as voice:
        check_voice(SPEC, "Amy")
    assert (voice.value.code, voice.value.param) == ("unknown_voice", "voice")
    assert "'Amy'" in voice.value.message
    assert "did you mean 'amy'?" in voice.value.message
    with pytest.raises(PlanError) as language:
        check_language(SPEC, "xx")
    assert (language.value.code, language.value.param) == ("unsupported_language", "language")
    assert "accepted: de, en" in language.value.message


def test_a_voice_of_another_type_is_a_type_error():
    with pytest.raises(PlanError) as caught:
        check_voice(SPEC, 3)  # type: ignore[arg-type]  # what a client may send
    assert (caught.value.code, caught.value.param) == ("invalid_type", "voice")


def test_the_module_needs_no_torch():
    code = "import models.options, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
