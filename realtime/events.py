"""The typed events of `parley.v1`, speech lane. Values only: `realtime.protocol` is their JSON.

Client events are strict: JSON types as they are, no field that is not named. Server events are read
by clients and may gain fields.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from realtime.frames import AudioCodec

MAX_ID_CHARACTERS: Final = 128
MAX_NAME_CHARACTERS: Final = 256
MAX_OPTIONS: Final = 64
MAX_METADATA_KEYS: Final = 16
MAX_METADATA_CHARACTERS: Final = 512

OptionValue = str | int | float | bool
Pace = Literal["playback", "fast"]
"""As a listener needs it, or as fast as there is room (nobody listens yet: a file is written)."""
ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
ErrorType = Literal["invalid_request_error", "server_error", "rate_limit_error"]


class WireModel(BaseModel):
    """Strict JSON types, no field that is not named."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LenientModel(BaseModel):
    """Read by clients: a newer server may add fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_CHARACTERS)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=MAX_METADATA_KEYS)]


# What a client sends.


class OutputPatch(WireModel):
    """Changes to the form and the pace of the audio; null sets a field back to its default.

    `sample_rate_hz` is the rate of PCM16, or the rate at which Opus is encoded; G.711 has 8000.
    """

    codec: AudioCodec | None = None
    bitrate_bps: Annotated[int, Field(ge=6000, le=256_000)] | None = None
    complexity: Annotated[int, Field(ge=0, le=10)] | None = None
    sample_rate_hz: Literal[8000, 16000, 22050, 24000, 32000, 44100, 48000] | None = None
    pace: Pace | None = None


class SessionPatch(WireModel):
    """Changes to a session; absent fields stay, null sets a field back to its default."""

    model: Name | None = None
    voice: Name | None = None
    language: Name | None = None
    options: Annotated[dict[Name, OptionValue | None], Field(max_length=MAX_OPTIONS)] | None = None
    output: OutputPatch | None = None


class ResponsePatch(SessionPatch):
    """Overrides for one response, and strings of the client's own that come back with it."""

    metadata: Metadata | None = None


class BaseClientEvent(WireModel):
    """What every client event may carry: an id that errors echo."""

    event_id: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)] | None = None


class SessionUpdate(BaseClientEvent):
    """Change the session's settings; the whole is refused if one field is bad."""

    type: Literal["session.update"] = "session.update"
    session: SessionPatch


class ResponseCreate(BaseClientEvent):
    """Start a response with overrides, before its first text."""

    type: Literal["response.create"] = "response.create"
    response: ResponsePatch = ResponsePatch()


class InputTextAppend(BaseClientEvent):
    """More text, of any length; borders between pieces do not matter."""

    type: Literal["input_text.append"] = "input_text.append"
    text: str


class InputTextFlush(BaseClientEvent):
    """Speak what has come so far, without waiting for the end of a sentence."""

    type: Literal["input_text.flush"] = "input_text.flush"


class InputTextEnd(BaseClientEvent):
    """The response's text is complete; later text belongs to the next response."""

    type: Literal["input_text.end"] = "input_text.end"


class ResponseCancel(BaseClientEvent):
    """Stop a response: the one named, or the first that is not over."""

    type: Literal["response.cancel"] = "response.cancel"
    response_id: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)] | None = None


class OutputAudioPlayout(BaseClientEvent):
    """How much of a response's audio the listener has heard by now."""

    type: Literal["output_audio.playout"] = "output_audio.playout"
    response_id: Annotated[str, Field(max_length=MAX_ID_CHARACTERS)]
    heard_ms: Annotated[float, Field(ge=0)]


ClientEvent = (
    SessionUpdate
    | ResponseCreate
    | InputTextAppend
    | InputTextFlush
    | InputTextEnd
    | ResponseCancel
    | OutputAudioPlayout
)

CLIENT_EVENTS: Final[dict[str, type[ClientEvent]]] = {
    "session.update": SessionUpdate,
    "response.create": ResponseCreate,
    "input_text.append": InputTextAppend,
    "input_text.flush": InputTextFlush,
    "input_text.end": InputTextEnd,
    "response.cancel": ResponseCancel,
    "output_audio.playout": OutputAudioPlayout,
}


# What the server sends.


class OutputInfo(LenientModel):
    """The form and the pace of the audio as in force; bitrate and complexity are Opus's."""

    codec: AudioCodec
    sample_rate_hz: int
    bitrate_bps: int | None = None
    complexity: int | None = None
    pace: Pace = "playback"


class LimitsInfo(LenientModel):
    """What a client must stay within."""

    max_message_bytes: int
    max_messages_per_s: float
    max_text_characters: int
    max_queued_responses: int
    first_message_timeout_s: float
    idle_timeout_s: float


class SessionInfo(LenientModel):
    """A session as it is in force."""

    id: str
    model: str
    voice: str | None
    language: str | None
    options: dict[str, OptionValue]
    output: OutputInfo
    limits: LimitsInfo


class StatusError(LenientModel):
    """Why a response failed."""

    type: ErrorType = "server_error"
    code: str
    message: str


class StatusDetails(LenientModel):
    """Why a response did not complete. `retry_after_s` is set when the server is overloaded."""

    type: Literal["cancelled", "incomplete", "failed"]
    reason: str
    error: StatusError | None = None
    retry_after_s: float | None = None


class Usage(LenientModel):
    """What a response took: text in, codec frames generated, samples at the announced rate."""

    n_input_characters: int
    n_frames: int
    n_samples: int
    audio_ms: float


class Timing(LenientModel):
    """Server-side times of a response. `ttfa_ms`: first text to first audio frame sent."""

    ttfa_ms: float | None
    generation_ms: float


class ResponseInfo(LenientModel):
    """A response; usage and timing come with its end."""

    id: str
    number: int
    status: ResponseStatus
    status_details: StatusDetails | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    metadata: dict[str, str] | None = None


class ErrorDetail(LenientModel):
    """What was wrong; `event_id` is the client's own, of the message at fault."""

    type: ErrorType
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None


class BaseServerEvent(LenientModel):
    """What every server event carries; the id is given when it is sent."""

    event_id: str = ""


class SessionCreated(BaseServerEvent):
    """First message of the server."""

    type: Literal["session.created"] = "session.created"
    session: SessionInfo


class SessionUpdated(BaseServerEvent):
    """Answer to `session.update`: the whole session in force."""

    type: Literal["session.updated"] = "session.updated"
    session: SessionInfo


class ResponseCreated(BaseServerEvent):
    """A response exists; it may wait for earlier ones."""

    type: Literal["response.created"] = "response.created"
    response: ResponseInfo


class OutputAudioStarted(BaseServerEvent):
    """Binary frames follow.

    `sample_rate_hz` is the rate of every count of samples in this response, `pre_skip_samples` how
    many decoded samples a client must drop first (Opus; the announced count is without them).
    """

    type: Literal["response.output_audio.started"] = "response.output_audio.started"
    response_id: str
    response_number: int
    codec: AudioCodec
    sample_rate_hz: int
    packet_ms: int
    pre_skip_samples: int
    channels: int = 1


class OutputAudioDone(BaseServerEvent):
    """No more frames: keep exactly `n_samples` after the pre-skip, the rest is padding."""

    type: Literal["response.output_audio.done"] = "response.output_audio.done"
    response_id: str
    n_samples: int
    duration_ms: float
    n_packets: int


class ResponseDone(BaseServerEvent):
    """Last event of a response, on every path, once."""

    type: Literal["response.done"] = "response.done"
    response: ResponseInfo


class ErrorEvent(BaseServerEvent):
    """A message was refused, or something failed outside a response. The socket stays open."""

    type: Literal["error"] = "error"
    error: ErrorDetail


class UnknownEvent(BaseServerEvent):
    """An event of a newer server; clients pass over it."""

    type: str


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | ResponseCreated
    | OutputAudioStarted
    | OutputAudioDone
    | ResponseDone
    | ErrorEvent
)

SERVER_EVENTS: Final[dict[str, type[ServerEvent]]] = {
    "session.created": SessionCreated,
    "session.updated": SessionUpdated,
    "response.created": ResponseCreated,
    "response.output_audio.started": OutputAudioStarted,
    "response.output_audio.done": OutputAudioDone,
    "response.done": ResponseDone,
    "error": ErrorEvent,
}
