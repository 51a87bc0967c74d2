"""What `POST /v1/audio/speech` asks for: its JSON, checked against the models. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from models.spec import ModelSpec, OptionSpec, OptionValue
from models.text.errors import TextError, check_text
from realtime.errors import ProtocolError, printable
from realtime.events import MAX_OPTIONS, Name, SessionPatch, WireModel
from realtime.gateway import Gateway
from realtime.lanes.http_errors import RefusedError
from realtime.protocol import parse_body
from realtime.settings import SpeechSettings, merge_settings, options_of
from realtime.voices import OPENAI_SPEECH_MODELS, own_voice

OPTION_FIELDS: Final = ("speed", "seed", "instructions")
"""Fields beside `options` that become options of the model."""

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
StreamFormat = Literal["audio", "sse"]


class VoiceReference(WireModel):
    """The other way of the OpenAI API to name a voice."""

    id: Name


class SpeechBody(WireModel):
    """The JSON body; null is the same as a field that is not there."""

    input: str
    model: Name | None = None
    voice: Name | VoiceReference | None = None
    instructions: str | None = None
    response_format: Format | None = None
    speed: float | None = None
    stream_format: StreamFormat | None = None
    language: Name | None = None
    options: Annotated[dict[Name, OptionValue | None], Field(max_length=MAX_OPTIONS)] | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOrder:
    """What is to be spoken how, and in what form it goes out."""

    text: str
    settings: SpeechSettings
    audio_format: Format
    is_event_stream: bool


def read_order(body: str, gateway: Gateway) -> SpeechOrder:
    """The order in a body.

    Raises:
        ProtocolError: a field does not fit; it is named.
        RefusedError: 404 for a model that is not here.
    """
    asked = parse_body(body, SpeechBody)
    _check_input(asked.input, gateway.config.max_text_characters)
    return SpeechOrder(
        text=asked.input,
        settings=_settings(asked, gateway),
        audio_format=asked.response_format or "mp3",
        is_event_stream=asked.stream_format == "sse",
    )


def own_model(asked: str | None, gateway: Gateway) -> str:
    """The model that speaks: the named one, or the first where the name is one of OpenAI's.

    Raises:
        RefusedError: 404.
    """
    speaking = gateway.speaking
    if asked in speaking:
        return asked
    if asked is None or asked in OPENAI_SPEECH_MODELS:
        return next(iter(speaking))
    message = f"no model {printable(asked)!r} speaks here; served: {', '.join(speaking)}"
    raise RefusedError(404, "model_not_found", message, param="model")


def _check_input(text: str, limit: int) -> None:
    if len(text) > limit:
        message = f"input takes at most {limit} characters, not {len(text)}"
        raise ProtocolError("text_too_long", message, param="input")
    try:
        check_text(text)
    except TextError as error:
        raise ProtocolError("invalid_text", str(error), param="input") from None


def _settings(asked: SpeechBody, gateway: Gateway) -> SpeechSettings:
    model = own_model(asked.model, gateway)
    spec = gateway.speaking[model]
    voice = asked.voice.id if isinstance(asked.voice, VoiceReference) else asked.voice
    patch = SessionPatch(
        voice=own_voice(voice, spec), language=asked.language, options=_options(asked, spec)
    )
    try:
        return merge_settings(SpeechSettings(model=model), patch, gateway.speaking, prefix="")
    except ProtocolError as fault:
        param = (fault.param or "").lstrip(".")
        name = param.removeprefix("options.")
        is_field = name in OPTION_FIELDS and name not in (asked.options or {})
        fault.param = name if is_field else param
        raise


def _options(asked: SpeechBody, spec: ModelSpec) -> dict[str, OptionValue | None]:
    """The options, those that have a field of their own included."""
    options: dict[str, OptionValue | None] = dict(asked.options or {})
    known = {option.name: option for option in options_of(spec)}
    for name in OPTION_FIELDS:
        value = getattr(asked, name)
        if value is None:
            continue
        if name in options:
            raise ProtocolError("invalid_value", f"{name} is given twice", param=f"options.{name}")
        if name == "speed":
            _check_speed(value, known.get(name), spec.name)
        # What a model cannot obey is left out where that is no surprise: its usual speed, and
        # instructions, which clients send to every model.
        if name in known:
            options[name] = value
    return options


def _check_speed(speed: float, option: OptionSpec | None, model: str) -> None:
    low = option.minimum if option and option.minimum is not None else 1.0
    high = option.maximum if option and option.maximum is not None else low
    if not low <= speed <= high:
        message = f"speed is {speed:g}, must be from {low:g} to {high:g} for {model}"
        raise ProtocolError("invalid_value", message, param="speed")
