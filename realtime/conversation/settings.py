"""A conversation's settings: merged field by field, checked against the agent's spec. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel

from models.spec import ModelSpec
from realtime.agent.base import Tool
from realtime.config import GatewayConfig
from realtime.conversation.endpointing import EndpointSettings
from realtime.conversation.input_audio import Piece
from realtime.conversation.protocol import (
    AnswerPatch,
    AudioFormat,
    AudioInfo,
    ConversationInfo,
    ConversationPatch,
    InputInfo,
    InputPatch,
    Kept,
    SemanticVad,
    ServerVad,
    SpokenAudioInfo,
    SpokenInfo,
    SpokenPatch,
    ToolChoice,
    ToolInfo,
    Transcribing,
)
from realtime.conversation.turns import TurnSettings
from realtime.errors import ProtocolError
from realtime.events import OutputPatch, SessionPatch
from realtime.frames import G711_RATE_HZ, MEDIA_TYPES, AudioCodec
from realtime.settings import SpeechSettings, merge_settings, output_in_force, session_info

DEFAULT_INPUT_RATE_HZ: Final = 24000
DEFAULT_INPUT: Final = AudioFormat(type="audio/pcm", rate=DEFAULT_INPUT_RATE_HZ)
DEFAULT_TRANSCRIBING: Final = Transcribing()
CODECS: Final[dict[str, AudioCodec]] = {kind: codec for codec, kind in MEDIA_TYPES.items()}
UNFINISHED_MS: Final = {"low": 8000, "medium": 4000, "auto": 2000, "high": 1500}
"""Longest silence within a turn that does not sound finished, by eagerness."""
SPEECH_FIELDS: Final = {"voice": "audio.output.voice", "output": "audio.output.format"}
"""Where the speech settings stand in a conversation's patch, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """How a session listens and answers. Values are checked: they fit the agent.

    Args:
        speech: model (which names the agent), voice, language, options and form of the audio.
        turn_detection: None: push to talk.
        instructions: for the text model; empty takes the agent's own.
        wants_audio: answers are spoken.
        max_output_tokens: of an answer's text.
        tools: of the client.
        tool_choice: of them.
        input_format: its rate is that of PCM16 frames; Opus frames say so themselves.
        transcription: None: the client wants no transcripts.
        kept: for the lane's clients; nothing here acts on it.
    """

    speech: SpeechSettings
    turn_detection: ServerVad | SemanticVad | None
    instructions: str = ""
    wants_audio: bool = True
    max_output_tokens: int | None = None
    tools: tuple[ToolInfo, ...] = ()
    tool_choice: Literal["auto", "none", "required"] | ToolChoice = "auto"
    input_format: AudioFormat = DEFAULT_INPUT
    transcription: Transcribing | None = DEFAULT_TRANSCRIBING
    kept: Kept = field(default_factory=dict)

    def formed(self, piece: Piece) -> Piece:
        """A piece with its codec and its rate, where those are the session's."""
        codec = piece.codec or CODECS[self.input_format.type]
        if piece.codec is None and codec == "opus":
            codec = "pcm16"
        is_named = CODECS[self.input_format.type] == codec
        rate_hz = self.input_format.rate if is_named else None
        default_hz = G711_RATE_HZ if codec in ("pcmu", "pcma") else DEFAULT_INPUT_RATE_HZ
        return replace(piece, codec=codec, rate_hz=rate_hz or default_hz)

    @property
    def agent_tools(self) -> tuple[Tool, ...]:
        """The tools as an agent takes them."""
        return tuple(
            Tool(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in self.tools
        )

    @property
    def agent_tool_choice(self) -> str:
        """The choice as an agent takes it."""
        choice = self.tool_choice
        return choice.name if isinstance(choice, ToolChoice) else choice


def default_turn_detection(*, has_judge: bool) -> ServerVad | SemanticVad:
    """What ends a turn where the client has not said."""
    return SemanticVad(type="semantic_vad") if has_judge else ServerVad(type="server_vad")


def merge_conversation(
    settings: ConversationSettings,
    patch: AnswerPatch,
    specs: Mapping[str, ModelSpec],
    *,
    prefix: str,
) -> ConversationSettings:
    """`settings` with the fields of `patch` that are there; null sets a field back.

    Args:
        settings: in force now; stays as it is.
        patch: what the client sent.
        specs: of the agents, by name; the first is the default.
        prefix: where the patch stands in the message, for errors.

    Raises:
        ProtocolError: a field does not fit; nothing of the patch holds then.
    """
    speech = _merge_speech(settings.speech, patch, specs, prefix)
    changes: dict[str, Any] = {"speech": speech}
    given = patch.model_fields_set
    if "instructions" in given:
        changes["instructions"] = patch.instructions or ""
    if "output_modalities" in given:
        changes["wants_audio"] = patch.output_modalities in (None, ["audio"])
    if "max_output_tokens" in given:
        limit = patch.max_output_tokens
        changes["max_output_tokens"] = limit if isinstance(limit, int) else None
    if "tools" in given:
        changes["tools"] = tuple(patch.tools or ())
    if "tool_choice" in given:
        changes["tool_choice"] = patch.tool_choice or "auto"
    if patch.audio.input.model_fields_set:
        if not isinstance(patch, ConversationPatch):
            param = f"{prefix}.audio.input"
            message = f"{param} is of the session: change it by session.update"
            raise ProtocolError("invalid_value", message, param=param)
        changes |= _input_changes(settings, patch.audio.input)
    merged = replace(settings, **changes)
    _check_tool_choice(merged, prefix)
    return merged


def merge_kept(old: Kept, new: Kept) -> Kept:
    """`old` with the fields of `new`; objects are merged field by field."""
    merged = old | new
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = before | value
    return merged


def conversation_info(
    session_id: str,
    settings: ConversationSettings,
    spec: ModelSpec,
    config: GatewayConfig,
    *,
    expires_at: int,
) -> ConversationInfo:
    """A session as clients see it; `expires_at` in seconds since 1970."""
    spoken = session_info(session_id, settings.speech, spec, config)
    limits = {"max_message_bytes": config.max_audio_message_bytes}
    return ConversationInfo(
        id=session_id,
        model=settings.speech.model,
        instructions=settings.instructions,
        output_modalities=["audio" if settings.wants_audio else "text"],
        max_output_tokens=settings.max_output_tokens or "inf",
        tools=list(settings.tools),
        tool_choice=settings.tool_choice,
        language=spoken.language,
        options=spoken.options,
        audio=AudioInfo(
            input=InputInfo(
                format=settings.input_format,
                transcription=settings.transcription,
                turn_detection=settings.turn_detection,
            ),
            output=spoken_audio(settings, spec, config).output,
        ),
        limits=spoken.limits.model_copy(update=limits),
        expires_at=expires_at,
        kept=settings.kept,
    )


def spoken_audio(
    settings: ConversationSettings, spec: ModelSpec, config: GatewayConfig
) -> SpokenAudioInfo:
    """What is spoken, as clients see it."""
    output = output_in_force(settings.speech.output, spec, config)
    form = AudioFormat.model_construct(
        type=MEDIA_TYPES[output.codec],
        rate=output.sample_rate_hz,
        bitrate_bps=output.bitrate_bps,
        complexity=output.complexity,
    )
    voice = settings.speech.voice or next(iter(spec.voices), None)
    return SpokenAudioInfo(output=SpokenInfo(format=form, voice=voice))


def endpoint_settings(detection: ServerVad | SemanticVad | None) -> EndpointSettings:
    """When speech counts as such, under this kind of turn detection."""
    if isinstance(detection, ServerVad):
        return EndpointSettings(
            threshold=detection.threshold,
            prefix_ms=detection.prefix_padding_ms,
            silence_ms=detection.silence_duration_ms,
        )
    if isinstance(detection, SemanticVad):
        return EndpointSettings(unfinished_ms=UNFINISHED_MS[detection.eagerness])
    return EndpointSettings()


def turn_settings(detection: ServerVad | SemanticVad | None) -> TurnSettings:
    """Who may start and stop answers, under this kind of turn detection."""
    if detection is None:
        return TurnSettings(creates=False, interrupts=False)
    idle_ms = detection.idle_timeout_ms if isinstance(detection, ServerVad) else None
    return TurnSettings(
        creates=detection.create_response,
        interrupts=detection.interrupt_response,
        idle_s=None if idle_ms is None else idle_ms / 1000,
    )


def _merge_speech(
    speech: SpeechSettings, patch: AnswerPatch, specs: Mapping[str, ModelSpec], prefix: str
) -> SpeechSettings:
    fields: dict[str, Any] = {
        name: getattr(patch, name)
        for name in ("model", "language", "options")
        if name in patch.model_fields_set
    }
    output: SpokenPatch = patch.audio.output
    if "voice" in output.model_fields_set:
        fields["voice"] = output.voice
    if "format" in output.model_fields_set:
        fields["output"] = _output_patch(output.format)
    try:
        return merge_settings(speech, SessionPatch(**fields), specs, prefix=prefix)
    except ProtocolError as fault:
        name, _, rest = (fault.param or "").removeprefix(f"{prefix}.").partition(".")
        if name in SPEECH_FIELDS:
            rest = "rate" if rest == "sample_rate_hz" else rest
            fault.param = f"{prefix}.{SPEECH_FIELDS[name]}.{rest}".rstrip(".")
        raise


def _output_patch(wanted: AudioFormat | None) -> OutputPatch | None:
    if wanted is None:
        return None
    return OutputPatch(
        codec=CODECS[wanted.type],
        sample_rate_hz=wanted.rate,
        bitrate_bps=wanted.bitrate_bps,
        complexity=wanted.complexity,
    )


def _input_changes(settings: ConversationSettings, patch: InputPatch) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    given = patch.model_fields_set
    if "format" in given:
        changes["input_format"] = patch.format or DEFAULT_INPUT
    if "transcription" in given:
        changes["transcription"] = _merged(settings.transcription, patch.transcription)
    if "turn_detection" in given:
        changes["turn_detection"] = _merged(settings.turn_detection, patch.turn_detection)
    return changes


Model = TypeVar("Model", bound=BaseModel)


def _merged(old: BaseModel | None, new: Model | None) -> Model | None:
    """`new`, with the fields that it leaves out as in `old`, if that is of the same kind."""
    if new is None or type(old) is not type(new):
        return new
    return old.model_copy(update={name: getattr(new, name) for name in new.model_fields_set})


def _check_tool_choice(settings: ConversationSettings, prefix: str) -> None:
    choice = settings.tool_choice
    names = [tool.name for tool in settings.tools]
    if isinstance(choice, ToolChoice) and choice.name not in names:
        param = f"{prefix}.tool_choice.name"
        message = f"{param}: there is no tool of that name"
        raise ProtocolError("invalid_value", message, param=param)
