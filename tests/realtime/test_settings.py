"""Settings merge field by field, or not at all."""

from hashlib import sha256

import pytest

from models.spec import OptionSpec
from realtime.config import GatewayConfig
from realtime.errors import ProtocolError
from realtime.events import OutputPatch, SessionPatch
from realtime.settings import (
    OutputSettings,
    SpeechSettings,
    asked_seed,
    max_seconds,
    merge_settings,
    model_options,
    output_in_force,
    session_info,
)
from tests.fakes import fake_spec

SPECS = {
    "fake": fake_spec(),
    "low": fake_spec(name="low", voices=("eve",), rate_hz=8000, frame_samples=80),
}
START = SpeechSettings(model="fake")


def merge(settings=START, **fields):
    return merge_settings(settings, SessionPatch(**fields), SPECS, prefix="session")


def error_of(settings=START, **fields):
    with pytest.raises(ProtocolError) as caught:
        merge(settings, **fields)
    return caught.value


def test_absent_fields_stay_and_null_sets_back():
    changed = merge(voice="bob", options={"speed": 2, "style": "loud"})
    again = merge(changed, language="de", options={"speed": None})
    assert again == SpeechSettings(
        model="fake", voice="bob", language="de", options={"style": "loud"}
    )
    assert merge(again, voice=None, language=None, options=None) == START


def test_output_merges_too():
    changed = merge(output=OutputPatch(codec="pcm16", sample_rate_hz=16000))
    assert changed.output == OutputSettings(codec="pcm16", sample_rate_hz=16000)
    assert merge(changed, output=OutputPatch(sample_rate_hz=None)).output.codec == "pcm16"
    assert merge(changed, output=None).output == OutputSettings()
    assert merge(changed, output=OutputPatch(pace="fast")).output.codec == "pcm16"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "gpt"}, "unknown_model", "session.model"),
        ({"voice": "zoe"}, "unknown_voice", "session.voice"),
        ({"language": "fr"}, "unsupported_language", "session.language"),
        ({"options": {"pitch": 1}}, "unknown_option", "session.options.pitch"),
        ({"options": {"speed": "fast"}}, "invalid_type", "session.options.speed"),
        ({"options": {"speed": True}}, "invalid_type", "session.options.speed"),
        ({"options": {"speed": 9}}, "invalid_value", "session.options.speed"),
        ({"options": {"style": "wild"}}, "invalid_value", "session.options.style"),
        ({"options": {"seed": 1.5}}, "invalid_type", "session.options.seed"),
        ({"options": {"seed": -1}}, "invalid_value", "session.options.seed"),
        ({"options": {"max_seconds": 0}}, "invalid_value", "session.options.max_seconds"),
        ({"options": {"max_seconds": 1e308}}, "invalid_value", "session.options.max_seconds"),
        ({"options": {"max_seconds": 10**400}}, "invalid_value", "session.options.max_seconds"),
        ({"options": {"speed": 10**400}}, "invalid_value", "session.options.speed"),
        (
            {"output": OutputPatch(sample_rate_hz=16000)},
            "invalid_value",
            "session.output.sample_rate_hz",
        ),
    ],
)
def test_a_bad_field_is_named(fields, code, param):
    error = error_of(**fields)
    assert (error.code, error.param) == (code, param)


def test_what_would_be_accepted_is_said():
    assert "ada" in error_of(voice="zoe").message
    assert "fake" in error_of(model="gpt").message


def test_a_voice_of_another_model_is_refused_with_the_model_that_lacks_it():
    assert error_of(SpeechSettings(model="fake", voice="bob"), model="low").code == "unknown_voice"
    assert merge(SpeechSettings(model="fake", voice="bob"), model="low", voice="eve").voice == "eve"


@pytest.mark.parametrize("asked", ["de", "DE", "de-AT", "de_DE"])
def test_a_language_is_known_by_its_main_part(asked):
    assert merge(language=asked).language == "de"


def test_options_of_the_gateway_do_not_reach_the_model():
    settings = merge(options={"seed": 7, "max_seconds": 3, "speed": 1.5})
    spec = SPECS["fake"]
    assert model_options(settings, spec) == {"speed": 1.5}
    assert (asked_seed(settings, spec), max_seconds(settings, spec)) == (7, 3.0)


def test_defaults_of_the_output_follow_the_model():
    config = GatewayConfig()
    opus = output_in_force(OutputSettings(), SPECS["low"], config)
    assert (opus.codec, opus.sample_rate_hz, opus.bitrate_bps) == ("opus", 24000, 32000)
    wide = fake_spec(rate_hz=44100, frame_samples=441)
    assert output_in_force(OutputSettings(), wide, config).sample_rate_hz == 48000
    pcm = output_in_force(OutputSettings(codec="pcm16"), SPECS["low"], config)
    assert (pcm.sample_rate_hz, pcm.bitrate_bps) == (8000, None)


def test_a_sound_file_is_told_back_by_its_digest():
    """A megabyte of base64 came back with every update of the session."""
    voice = OptionSpec(name="voice_file", kind="audio", default=None, description="")
    spec = fake_spec(options=(voice,))
    settings = SpeechSettings(model="fake", options={"voice_file": "UklGRg==", "seed": 3})
    shown = session_info("s", settings, spec, GatewayConfig()).options
    digest = sha256(b"UklGRg==").hexdigest()
    assert shown == {"voice_file": f"sha256:{digest}", "seed": 3}
