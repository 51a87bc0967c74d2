"""What the server says in a conversation. Values only, no I/O. See `conversation.protocol`."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from realtime.conversation.protocol import (
    ConversationInfo,
    ItemWire,
    Kept,
    Modality,
    PartWire,
    SpokenAudioInfo,
)
from realtime.events import (
    BaseServerEvent,
    ErrorDetail,
    ErrorEvent,
    LenientModel,
    OutputAudioDone,
    OutputAudioStarted,
    ResponseStatus,
    StatusDetails,
)


class ConversationCreated(BaseServerEvent):
    """First message of the server."""

    type: Literal["session.created"] = "session.created"
    session: ConversationInfo


class ConversationUpdated(BaseServerEvent):
    """Answer to `session.update`: the whole session in force."""

    type: Literal["session.updated"] = "session.updated"
    session: ConversationInfo


class SpeechStartedEvent(BaseServerEvent):
    """The user speaks; `item_id` is what the turn will be called."""

    type: Literal["input_audio_buffer.speech_started"] = "input_audio_buffer.speech_started"
    audio_start_ms: int
    item_id: str


class SpeechStoppedEvent(BaseServerEvent):
    """The user's turn is over."""

    type: Literal["input_audio_buffer.speech_stopped"] = "input_audio_buffer.speech_stopped"
    audio_end_ms: int
    item_id: str


class InputCommitted(BaseServerEvent):
    """Audio has become an item."""

    type: Literal["input_audio_buffer.committed"] = "input_audio_buffer.committed"
    item_id: str
    previous_item_id: str | None


class InputCleared(BaseServerEvent):
    """The audio so far is forgotten."""

    type: Literal["input_audio_buffer.cleared"] = "input_audio_buffer.cleared"


class InputTimeout(BaseServerEvent):
    """The user has said nothing for `idle_timeout_ms`; an answer to the silence follows."""

    type: Literal["input_audio_buffer.timeout_triggered"] = "input_audio_buffer.timeout_triggered"
    audio_start_ms: int
    audio_end_ms: int
    item_id: str


class OutputCleared(BaseServerEvent):
    """Stop playing this response now, and throw away what is left of it."""

    type: Literal["output_audio_buffer.cleared"] = "output_audio_buffer.cleared"
    response_id: str


class ItemAdded(BaseServerEvent):
    """An item is in the conversation."""

    type: Literal["conversation.item.added"] = "conversation.item.added"
    item: ItemWire
    previous_item_id: str | None


class ItemDone(BaseServerEvent):
    """An item is complete."""

    type: Literal["conversation.item.done"] = "conversation.item.done"
    item: ItemWire
    previous_item_id: str | None


class ItemRetrieved(BaseServerEvent):
    """An item as the server has it."""

    type: Literal["conversation.item.retrieved"] = "conversation.item.retrieved"
    item: ItemWire


class ItemTruncated(BaseServerEvent):
    """An answer counts up to here."""

    type: Literal["conversation.item.truncated"] = "conversation.item.truncated"
    item_id: str
    content_index: int
    audio_end_ms: int


class ItemDeleted(BaseServerEvent):
    """An item is gone."""

    type: Literal["conversation.item.deleted"] = "conversation.item.deleted"
    item_id: str


class TranscriptionDelta(BaseServerEvent):
    """More of what the user said."""

    type: Literal["conversation.item.input_audio_transcription.delta"] = (
        "conversation.item.input_audio_transcription.delta"
    )
    item_id: str
    content_index: int = 0
    delta: str


class TranscriptionUsage(LenientModel):
    """Seconds of audio transcribed."""

    type: Literal["duration"] = "duration"
    seconds: float


class TranscriptionCompleted(BaseServerEvent):
    """All of what the user said; empty where nobody spoke."""

    type: Literal["conversation.item.input_audio_transcription.completed"] = (
        "conversation.item.input_audio_transcription.completed"
    )
    item_id: str
    content_index: int = 0
    transcript: str
    usage: TranscriptionUsage


class TranscriptionFailed(BaseServerEvent):
    """The user's audio has no transcript."""

    type: Literal["conversation.item.input_audio_transcription.failed"] = (
        "conversation.item.input_audio_transcription.failed"
    )
    item_id: str
    content_index: int = 0
    error: ErrorDetail


class AnswerUsage(LenientModel):
    """What a response took."""

    total_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    n_frames: int = 0
    n_samples: int = 0
    audio_ms: float = 0.0


class AnswerTiming(LenientModel):
    """Where the time of a response went, in ms; None where a stage was not passed.

    Args:
        endpoint_ms: end of the user's speech to the end of the turn.
        transcript_ms: from there to the transcript.
        stage_ms: start of the reply to the first output of each of the agent's stages.
        first_audio_ms: start of the reply to its first audio.
        ttfa_ms: end of the turn (or the client's request) to the first frame on the socket.
    """

    endpoint_ms: float | None = None
    transcript_ms: float | None = None
    stage_ms: dict[str, float] = Field(default_factory=dict)
    first_audio_ms: float | None = None
    ttfa_ms: float | None = None


class AnswerInfo(LenientModel):
    """A response; usage and timing come with its end."""

    id: str
    object: Literal["realtime.response"] = "realtime.response"
    number: int
    status: ResponseStatus
    status_details: StatusDetails | None = None
    output: list[ItemWire] = Field(default_factory=list)
    conversation_id: str | None
    output_modalities: list[Modality]
    max_output_tokens: int | Literal["inf"] = "inf"
    audio: SpokenAudioInfo | None = None
    metadata: dict[str, str] | None = None
    kept: Kept = Field(default_factory=dict, exclude=True)
    usage: AnswerUsage | None = None
    timing: AnswerTiming | None = None


class AnswerCreated(BaseServerEvent):
    """A response begins."""

    type: Literal["response.created"] = "response.created"
    response: AnswerInfo


class AnswerDone(BaseServerEvent):
    """Last event of a response, on every path, once."""

    type: Literal["response.done"] = "response.done"
    response: AnswerInfo


class _OfItem(BaseServerEvent):
    response_id: str
    output_index: int


class OutputItemAdded(_OfItem):
    """A response makes an item."""

    type: Literal["response.output_item.added"] = "response.output_item.added"
    item: ItemWire


class OutputItemDone(_OfItem):
    """The item is complete."""

    type: Literal["response.output_item.done"] = "response.output_item.done"
    item: ItemWire


class _OfPart(_OfItem):
    item_id: str
    content_index: int = 0


class ContentPartAdded(_OfPart):
    """The item gets a part."""

    type: Literal["response.content_part.added"] = "response.content_part.added"
    part: PartWire


class ContentPartDone(_OfPart):
    """The part is complete."""

    type: Literal["response.content_part.done"] = "response.content_part.done"
    part: PartWire


class TranscriptDeltaEvent(_OfPart):
    """More of what is being spoken."""

    type: Literal["response.output_audio_transcript.delta"] = (
        "response.output_audio_transcript.delta"
    )
    delta: str


class TranscriptDoneEvent(_OfPart):
    """All of what was spoken."""

    type: Literal["response.output_audio_transcript.done"] = "response.output_audio_transcript.done"
    transcript: str


class TextDeltaEvent(_OfPart):
    """More text."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str


class TextDoneEvent(_OfPart):
    """All text."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str


class AudioMark(_OfPart):
    """When `audio_ms` of the response have been heard, `n_characters` of its text were spoken."""

    type: Literal["response.output_audio.mark"] = "response.output_audio.mark"
    audio_ms: float
    n_characters: int


class ArgumentsDelta(_OfItem):
    """More of a function call's arguments."""

    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    item_id: str
    call_id: str
    delta: str


class ArgumentsDone(_OfItem):
    """A function call is complete."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    item_id: str
    call_id: str
    name: str
    arguments: str


ConversationServerEvent = (
    ConversationCreated
    | ConversationUpdated
    | SpeechStartedEvent
    | SpeechStoppedEvent
    | InputCommitted
    | InputCleared
    | InputTimeout
    | OutputCleared
    | ItemAdded
    | ItemDone
    | ItemRetrieved
    | ItemTruncated
    | ItemDeleted
    | TranscriptionDelta
    | TranscriptionCompleted
    | TranscriptionFailed
    | AnswerCreated
    | AnswerDone
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | TranscriptDeltaEvent
    | TranscriptDoneEvent
    | TextDeltaEvent
    | TextDoneEvent
    | OutputAudioStarted
    | OutputAudioDone
    | AudioMark
    | ArgumentsDelta
    | ArgumentsDone
    | ErrorEvent
)

CONVERSATION_SERVER_EVENTS: Final[dict[str, type[ConversationServerEvent]]] = {
    str(event.model_fields["type"].default): event for event in ConversationServerEvent.__args__
}
