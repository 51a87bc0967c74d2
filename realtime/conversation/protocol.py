"""The typed events of a conversation (`parley.v1` on `/v1/realtime`). Values only, no I/O.

Names and order are those of the OpenAI Realtime API; what is our own are the number and timing of a
response, `response.output_audio.*` (audio itself travels in binary frames, `realtime.frames`),
`output_audio.playout` and `output_audio_buffer.cleared`. Client events are strict; server events
may gain fields (`realtime.conversation.events`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from realtime.events import (
    MAX_ID_CHARACTERS,
    MAX_OPTIONS,
    BaseClientEvent,
    LenientModel,
    LimitsInfo,
    Metadata,
    Name,
    OptionValue,
    OutputAudioPlayout,
    ResponseCancel,
    WireModel,
)

MAX_PARTS: Final = 64
MAX_TOOLS: Final = 128
MAX_INSTRUCTIONS: Final = 20_000
MAX_OUTPUT_TOKENS: Final = 4096
MAX_GIVEN_ITEMS: Final = 500

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
Modality = Literal["audio", "text"]
Kept = dict[str, Any]
"""Settings that a lane's clients may set and see, and that the session does not act on."""
Eagerness = Literal["low", "medium", "high", "auto"]
Milliseconds = Annotated[int, Field(ge=0, le=60_000)]
PcmRate = Literal[8000, 16000, 22050, 24000, 32000, 44100, 48000]


# Settings.


class AudioFormat(WireModel):
    """Form of audio. `rate` is that of PCM16 samples, or the rate at which Opus is encoded.

    `audio/pcmu` and `audio/pcma` are G.711 at 8000 Hz.
    """

    type: Literal["audio/opus", "audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: PcmRate | None = None
    bitrate_bps: Annotated[int, Field(ge=6000, le=256_000)] | None = None
    complexity: Annotated[int, Field(ge=0, le=10)] | None = None


class ServerVad(WireModel):
    """Silence ends a turn."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0.05, le=0.95)] = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: Annotated[int, Field(ge=1000, le=600_000)] | None = None


class SemanticVad(WireModel):
    """Silence ends a turn, soon where the words sound finished, late where they do not."""

    type: Literal["semantic_vad"]
    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = Annotated[ServerVad | SemanticVad, Field(discriminator="type")]


class Transcribing(WireModel):
    """How user audio is transcribed; `language` null: it is guessed."""

    language: Annotated[str, Field(max_length=16)] | None = None


class InputPatch(WireModel):
    """Changes to what is heard. `turn_detection` null: push to talk. `transcription` null: none."""

    format: AudioFormat | None = None
    transcription: Transcribing | None = None
    turn_detection: TurnDetection | None = None


class SpokenPatch(WireModel):
    """Changes to what is spoken."""

    format: AudioFormat | None = None
    voice: Name | None = None


class AudioPatch(WireModel):
    """Changes to audio either way."""

    input: InputPatch = InputPatch()
    output: SpokenPatch = SpokenPatch()


class ToolInfo(WireModel):
    """A function of the client; `parameters` is its JSON schema."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w-]+$")]
    description: Annotated[str, Field(max_length=4096)] = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class ToolChoice(WireModel):
    """One tool by name."""

    type: Literal["function"]
    name: Annotated[str, Field(max_length=64)]


class AnswerPatch(WireModel):
    """Settings of answers: of all to come, or overrides for one. Absent fields stay."""

    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)] | None = None
    output_modalities: Annotated[list[Modality], Field(min_length=1, max_length=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"] | None = (
        None
    )
    tools: Annotated[list[ToolInfo], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    language: Name | None = None
    options: Annotated[dict[Name, OptionValue | None], Field(max_length=MAX_OPTIONS)] | None = None
    audio: AudioPatch = AudioPatch()


class ConversationPatch(AnswerPatch):
    """Changes to a session; null sets a field back to its default."""

    type: Literal["realtime"] = "realtime"
    model: Name | None = None


class InputInfo(LenientModel):
    """What is heard."""

    format: AudioFormat
    transcription: Transcribing | None
    turn_detection: ServerVad | SemanticVad | None


class SpokenInfo(LenientModel):
    """What is spoken."""

    format: AudioFormat
    voice: str | None


class SpokenAudioInfo(LenientModel):
    """The audio of a response."""

    output: SpokenInfo


class AudioInfo(LenientModel):
    """Audio either way."""

    input: InputInfo
    output: SpokenInfo


class ConversationInfo(LenientModel):
    """A session as it is in force."""

    type: Literal["realtime"] = "realtime"
    object: Literal["realtime.conversation.session"] = "realtime.conversation.session"
    id: str
    model: str
    instructions: str
    output_modalities: list[Modality]
    max_output_tokens: int | Literal["inf"]
    tools: list[ToolInfo]
    tool_choice: Literal["auto", "none", "required"] | ToolChoice
    language: str | None
    options: dict[str, OptionValue]
    audio: AudioInfo
    limits: LimitsInfo
    expires_at: int
    kept: Kept = Field(default_factory=dict, exclude=True)


# Items.


class PartWire(WireModel):
    """A content part. `audio`, from a client only: base64 of samples in the session's form."""

    type: Literal["input_text", "input_audio", "output_text", "output_audio", "text", "audio"]
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None


class ItemWire(WireModel):
    """An item, from a client or to it."""

    id: Id | None = None
    object: Literal["realtime.item"] = "realtime.item"
    type: Literal["message", "function_call", "function_call_output"]
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "user", "assistant"] | None = None
    content: Annotated[list[PartWire], Field(max_length=MAX_PARTS)] | None = None
    call_id: Id | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    arguments: str | None = None
    output: str | None = None


class ItemReference(WireModel):
    """An item of the conversation, by its id."""

    type: Literal["item_reference"]
    id: Id


GivenItem = Annotated[ItemWire | ItemReference, Field(discriminator="type")]


class OneAnswerPatch(AnswerPatch):
    """Overrides for one response.

    Args:
        conversation: `none`: aside; the conversation stays as it is, and other responses go on.
        input: what is answered instead of the conversation.
        metadata: strings of the client's own that come back with it.
    """

    conversation: Literal["auto", "none"] = "auto"
    input: Annotated[list[GivenItem], Field(max_length=MAX_GIVEN_ITEMS)] | None = None
    metadata: Metadata | None = None


# What a client sends.


class ConversationUpdate(BaseClientEvent):
    """Change the session's settings; the whole is refused if one field is bad."""

    type: Literal["session.update"] = "session.update"
    session: ConversationPatch


class KeptUpdate(ConversationUpdate):
    """The same, of a lane whose clients set more than is acted on: that is kept for them."""

    kept: Kept = Field(default_factory=dict)


class InputAudioAppend(BaseClientEvent):
    """Samples as base64, in the session's form (PCM16, where that is Opus)."""

    type: Literal["input_audio_buffer.append"] = "input_audio_buffer.append"
    audio: str


class InputAudioCommit(BaseClientEvent):
    """The audio so far is a turn."""

    type: Literal["input_audio_buffer.commit"] = "input_audio_buffer.commit"


class InputAudioClear(BaseClientEvent):
    """Forget the audio so far."""

    type: Literal["input_audio_buffer.clear"] = "input_audio_buffer.clear"


class ItemCreate(BaseClientEvent):
    """Put an item into the conversation."""

    type: Literal["conversation.item.create"] = "conversation.item.create"
    item: ItemWire
    previous_item_id: Id | None = None


class ItemRetrieve(BaseClientEvent):
    """Ask for an item as the server has it."""

    type: Literal["conversation.item.retrieve"] = "conversation.item.retrieve"
    item_id: Id


class ItemTruncate(BaseClientEvent):
    """Only so much of an answer was heard."""

    type: Literal["conversation.item.truncate"] = "conversation.item.truncate"
    item_id: Id
    content_index: Annotated[int, Field(ge=0)] = 0
    audio_end_ms: Annotated[float, Field(ge=0)]


class ItemDelete(BaseClientEvent):
    """Take an item out of the conversation."""

    type: Literal["conversation.item.delete"] = "conversation.item.delete"
    item_id: Id


class AnswerCreate(BaseClientEvent):
    """Answer now."""

    type: Literal["response.create"] = "response.create"
    response: OneAnswerPatch = OneAnswerPatch()


class KeptCreate(AnswerCreate):
    """The same, with what is kept for clients of a lane; see `KeptUpdate`."""

    kept: Kept = Field(default_factory=dict)


ConversationClientEvent = (
    ConversationUpdate
    | InputAudioAppend
    | InputAudioCommit
    | InputAudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | AnswerCreate
    | ResponseCancel
    | OutputAudioPlayout
)

CONVERSATION_CLIENT_EVENTS: Final[dict[str, type[ConversationClientEvent]]] = {
    "session.update": ConversationUpdate,
    "input_audio_buffer.append": InputAudioAppend,
    "input_audio_buffer.commit": InputAudioCommit,
    "input_audio_buffer.clear": InputAudioClear,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.truncate": ItemTruncate,
    "conversation.item.delete": ItemDelete,
    "response.create": AnswerCreate,
    "response.cancel": ResponseCancel,
    "output_audio.playout": OutputAudioPlayout,
}
