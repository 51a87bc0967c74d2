"""A session's settings: merged field by field, checked against what the models state. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from models.errors import PlanError
from models.options import check_language, check_options, check_voice
from models.spec import ModelSpec, OptionSpec, OptionValue
from realtime.config import GatewayConfig
from realtime.errors import ProtocolError, printable
from realtime.events import LimitsInfo, OutputInfo, OutputPatch, Pace, SessionInfo, SessionPatch
from realtime.frames import G711_RATE_HZ, AudioCodec
from realtime.protocol import OPUS_RATES_HZ

MAX_SEED: Final = 2**63 - 1
MAX_ASKED_S: Final = 86_400.0
"""A day. Models count frames by it, which numbers without end do not allow."""
COMMON_OPTIONS: Final = (
    OptionSpec(
        name="seed",
        kind="integer",
        default=None,
        description="random draws of the response; the same seed gives the same speech",
        minimum=0,
        maximum=MAX_SEED,
    ),
    OptionSpec(
        name="max_seconds",
        kind="number",
        default=None,
        description="longest audio of the response; the rest is cut",
        minimum=0.02,
        maximum=MAX_ASKED_S,
    ),
)
"""Options of every model, obeyed by the gateway. A model's own option of that name goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """The form and the pace of the audio as asked; None takes the default."""

    codec: AudioCodec | None = None
    bitrate_bps: int | None = None
    complexity: int | None = None
    sample_rate_hz: int | None = None
    pace: Pace | None = None

    @property
    def is_paced(self) -> bool:
        """Whether somebody listens while it comes."""
        return self.pace != "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """What is spoken how. Values are checked: they fit the model."""

    model: str
    voice: str | None = None
    language: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    output: OutputSettings = OutputSettings()


def merge_settings(
    settings: SpeechSettings, patch: SessionPatch, specs: Mapping[str, ModelSpec], *, prefix: str
) -> SpeechSettings:
    """`settings` with the fields of `patch` that are there; null sets a field back.

    Args:
        settings: in force now; stays as it is.
        patch: what the client sent.
        specs: the models served, by name; the first is the default.
        prefix: where the patch stands in the message, for errors.

    Raises:
        ProtocolError: a field does not fit; nothing of the patch holds then.
    """
    given = patch.model_fields_set
    if "model" in given:
        settings = replace(settings, model=_model(patch.model, specs, f"{prefix}.model"))
    if "voice" in given:
        settings = replace(settings, voice=patch.voice)
    if "language" in given:
        settings = replace(settings, language=patch.language)
    if "options" in given:
        options = dict(settings.options) if patch.options is not None else {}
        for name, value in (patch.options or {}).items():
            if value is None:
                options.pop(name, None)
            else:
                options[name] = value
        settings = replace(settings, options=options)
    if "output" in given:
        settings = replace(settings, output=_merge_output(settings.output, patch.output))
    return _checked(settings, specs[settings.model], prefix)


def output_in_force(output: OutputSettings, spec: ModelSpec, config: GatewayConfig) -> OutputInfo:
    """The form of the audio with every default filled in."""
    codec = output.codec or "opus"
    pace = output.pace or "playback"
    model_rate_hz = spec.frame.sample_rate_hz
    if codec != "opus":
        rate_hz = output.sample_rate_hz or (model_rate_hz if codec == "pcm16" else G711_RATE_HZ)
        return OutputInfo(codec=codec, sample_rate_hz=rate_hz, pace=pace)
    opus_rate_hz = OPUS_RATES_HZ[0] if model_rate_hz <= OPUS_RATES_HZ[0] else OPUS_RATES_HZ[1]
    complexity = output.complexity
    return OutputInfo(
        codec=codec,
        sample_rate_hz=output.sample_rate_hz or opus_rate_hz,
        bitrate_bps=output.bitrate_bps or config.opus_bitrate_bps,
        complexity=config.opus_complexity if complexity is None else complexity,
        pace=pace,
    )


def session_info(
    session_id: str, settings: SpeechSettings, spec: ModelSpec, config: GatewayConfig
) -> SessionInfo:
    """A session as clients see it."""
    return SessionInfo(
        id=session_id,
        model=settings.model,
        voice=settings.voice or next(iter(spec.voices), None),
        language=settings.language or next(iter(spec.languages), None),
        options=_shown_options(settings.options, spec),
        output=output_in_force(settings.output, spec, config),
        limits=LimitsInfo(
            max_message_bytes=config.max_message_bytes,
            max_messages_per_s=config.max_messages_per_s,
            max_text_characters=config.max_text_characters,
            max_queued_responses=config.max_queued_responses,
            first_message_timeout_s=config.first_message_timeout_s,
            idle_timeout_s=config.idle_timeout_s,
        ),
    )


def _shown_options(options: Mapping[str, OptionValue], spec: ModelSpec) -> dict[str, OptionValue]:
    """Options as they are told back: of a sound file only what it is known by."""
    files = {option.name for option in spec.options if option.kind == "audio"}
    return {
        name: f"sha256:{sha256(str(value).encode()).hexdigest()}" if name in files else value
        for name, value in options.items()
    }


def options_of(spec: ModelSpec) -> tuple[OptionSpec, ...]:
    """Every option that a request for this model may hold."""
    own = {option.name for option in spec.options}
    return (*(option for option in COMMON_OPTIONS if option.name not in own), *spec.options)


def model_options(settings: SpeechSettings, spec: ModelSpec) -> dict[str, OptionValue]:
    """The options that the model itself takes."""
    own = {option.name for option in spec.options}
    return {name: value for name, value in settings.options.items() if name in own}


def asked_seed(settings: SpeechSettings, spec: ModelSpec) -> int | None:
    """The `seed` option; None where the client leaves it to chance or to the model."""
    seed = _common_option(settings, spec, "seed")
    return seed if isinstance(seed, int) else None


def max_seconds(settings: SpeechSettings, spec: ModelSpec) -> float | None:
    """The `max_seconds` option."""
    seconds = _common_option(settings, spec, "max_seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


def _common_option(settings: SpeechSettings, spec: ModelSpec, name: str) -> OptionValue | None:
    is_own = any(option.name == name for option in spec.options)
    return None if is_own else settings.options.get(name)


def _merge_output(output: OutputSettings, patch: OutputPatch | None) -> OutputSettings:
    if patch is None:
        return OutputSettings()
    return replace(output, **{name: getattr(patch, name) for name in patch.model_fields_set})


def _model(name: str | None, specs: Mapping[str, ModelSpec], param: str) -> str:
    if name is None:
        return next(iter(specs))
    if name not in specs:
        message = f"unknown model {printable(name)!r}; served: {', '.join(specs)}"
        raise ProtocolError("unknown_model", message, param=param)
    return name


def _checked(settings: SpeechSettings, spec: ModelSpec, prefix: str) -> SpeechSettings:
    try:
        check_voice(spec, settings.voice)
        if settings.language is not None:
            language = _main_language(settings.language, spec.languages)
            settings = replace(settings, language=check_language(spec, language))
        check_options(replace(spec, options=options_of(spec)), settings.options)
    except PlanError as error:
        is_option = error.param in settings.options
        path = f"options.{printable(error.param)}" if is_option else error.param
        raise ProtocolError(error.code, error.message, param=f"{prefix}.{path}") from None
    _check_rate(settings.output, f"{prefix}.output.sample_rate_hz")
    return settings


def _check_rate(output: OutputSettings, param: str) -> None:
    if output.sample_rate_hz is None or output.codec == "pcm16":
        return
    is_g711 = output.codec in ("pcmu", "pcma")
    rates_hz = (G711_RATE_HZ,) if is_g711 else OPUS_RATES_HZ
    if output.sample_rate_hz not in rates_hz:
        known = " or ".join(map(str, rates_hz))
        name = "G.711" if is_g711 else "Opus"
        message = f"{name} is encoded at {known} Hz, not {output.sample_rate_hz}"
        raise ProtocolError("invalid_value", message, param=param)


def _main_language(asked: str, languages: tuple[str, ...]) -> str:
    """The model's name of a language: exact, or by its main part (`en-GB` is spoken by `en`)."""
    by_name = {language.casefold(): language for language in languages}
    wanted = asked.casefold().replace("_", "-")
    return by_name.get(wanted) or by_name.get(wanted.partition("-")[0]) or asked
