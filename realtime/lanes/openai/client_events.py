"""What clients of the OpenAI Realtime API may send: the eleven events, strictly. Values only.

Names and types are those of the published API; a field that it does not know is refused by name.
What the fields lead to is `realtime.lanes.openai.translate`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from realtime.conversation.protocol import (
    MAX_GIVEN_ITEMS,
    MAX_INSTRUCTIONS,
    MAX_OUTPUT_TOKENS,
    MAX_PARTS,
    MAX_TOOLS,
    Id,
    Milliseconds,
    ToolInfo,
)
from realtime.events import BaseClientEvent, Metadata, Name, WireModel

Text = Annotated[str, Field(max_length=MAX_INSTRUCTIONS)]
Word = Annotated[str, Field(max_length=256)]
Modalities = Annotated[list[Literal["audio", "text"]], Field(min_length=1, max_length=1)]
MaxTokens = Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]


# Settings.


class Pcm(WireModel):
    """PCM16, little endian, mono."""

    type: Literal["audio/pcm"]
    rate: Literal[24000] | None = None


class G711(WireModel):
    """A byte a sample at 8 kHz."""

    type: Literal["audio/pcmu", "audio/pcma"]


Format = Annotated[Pcm | G711, Field(discriminator="type")]


class NoiseReduction(WireModel):
    """Kept and shown; what hears here needs none."""

    type: Literal["near_field", "far_field"] | None = None
    strength: Annotated[float, Field(ge=0)] | None = None


class Transcription(WireModel):
    """How user audio is transcribed; `language` alone is acted on."""

    model: Word | None = None
    language: Annotated[str, Field(max_length=16)] | None = None
    languages: Annotated[list[Word], Field(max_length=64)] | None = None
    prompt: Text | None = None
    keywords: Annotated[list[Word], Field(max_length=1000)] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class ServerVadFields(WireModel):
    """Silence ends a turn."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    prefix_padding_ms: Milliseconds | None = None
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: Annotated[int, Field(ge=1000, le=600_000)] | None = None


class SemanticVadFields(WireModel):
    """So do words that sound finished."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


TurnDetectionFields = Annotated[ServerVadFields | SemanticVadFields, Field(discriminator="type")]


class Input(WireModel):
    """What is heard."""

    format: Format | None = None
    noise_reduction: NoiseReduction | None = None
    transcription: Transcription | None = None
    turn_detection: TurnDetectionFields | None = None


class VoiceId(WireModel):
    """A voice by its id."""

    id: Name


class ResponseOutput(WireModel):
    """What is spoken in one response."""

    format: Format | None = None
    voice: Name | VoiceId | None = None


class SessionOutput(ResponseOutput):
    """What is spoken."""

    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None


class SessionAudio(WireModel):
    """Audio either way."""

    input: Input | None = None
    output: SessionOutput | None = None


class ResponseAudioFields(WireModel):
    """Audio of one response."""

    output: ResponseOutput | None = None


class FunctionTool(WireModel):
    """A function of the client."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w-]+$")]
    description: Annotated[str, Field(max_length=4096)] | None = None
    parameters: dict[str, Any] | None = None

    def info(self) -> ToolInfo:
        """The tool as the session has it."""
        return ToolInfo(
            type="function",
            name=self.name,
            description=self.description or "",
            parameters=self.parameters or {},
        )


class McpTool(WireModel):
    """A tool that the server would call: refused by what translates."""

    model_config = ConfigDict(extra="allow")

    type: Literal["mcp"]


class FunctionChoice(WireModel):
    """One function by its name."""

    type: Literal["function"]
    name: Annotated[str, Field(max_length=64)]


class McpChoice(WireModel):
    """A tool that the server would call: refused by what translates."""

    model_config = ConfigDict(extra="allow")

    type: Literal["mcp"]


class Tracing(WireModel):
    """Kept and shown."""

    workflow_name: Word | None = None
    group_id: Word | None = None
    metadata: dict[str, Any] | None = None


class TokenLimits(WireModel):
    """Part of `RetentionRatio`."""

    post_instructions: Annotated[int, Field(ge=0)] | None = None


class RetentionRatio(WireModel):
    """Kept and shown: the text model has its own budget for what was said before."""

    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Field(ge=0, le=1)]
    token_limits: TokenLimits | None = None


class Reasoning(WireModel):
    """Kept and shown."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


Tools = Annotated[
    list[Annotated[FunctionTool | McpTool, Field(discriminator="type")]],
    Field(max_length=MAX_TOOLS),
]
Choice = (
    Literal["auto", "none", "required"]
    | Annotated[FunctionChoice | McpChoice, Field(discriminator="type")]
)


class Answering(WireModel):
    """What a session and one response have in common. `prompt` is refused unless it is null."""

    instructions: Text | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    prompt: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    parallel_tool_calls: bool | None = None


class Session(Answering):
    """Changes to a session; absent fields stay."""

    type: Literal["realtime"] = "realtime"
    model: Name | None = None
    audio: SessionAudio | None = None
    include: (
        Annotated[list[Literal["item.input_audio_transcription.logprobs"]], Field(max_length=8)]
        | None
    ) = None
    tracing: Literal["auto"] | Tracing | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio | None = None


# Items.


class ContentPart(WireModel):
    """A part of a message, of whatever kind; an image is refused by what translates."""

    type: Literal[
        "input_text", "input_audio", "input_image", "output_text", "output_audio", "text", "audio"
    ]
    text: str | None = None
    transcript: str | None = None
    audio: str | None = None
    image_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class ClientItem(WireModel):
    """A message, a function call or its result."""

    type: Literal["message", "function_call", "function_call_output"]
    id: Id | None = None
    object: Literal["realtime.item"] | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "user", "assistant"] | None = None
    content: Annotated[list[ContentPart], Field(max_length=MAX_PARTS)] | None = None
    call_id: Id | None = None
    name: Annotated[str, Field(max_length=64)] | None = None
    arguments: str | None = None
    output: str | None = None


class Reference(WireModel):
    """An item of the conversation."""

    type: Literal["item_reference"]
    id: Id


class Response(Answering):
    """One response."""

    audio: ResponseAudioFields | None = None
    conversation: Literal["auto", "none"] | None = None
    input: (
        Annotated[
            list[Annotated[ClientItem | Reference, Field(discriminator="type")]],
            Field(max_length=MAX_GIVEN_ITEMS),
        ]
        | None
    ) = None
    metadata: Metadata | None = None


# Events.


class SessionUpdateEvent(BaseClientEvent):
    """Change the session."""

    type: Literal["session.update"]
    session: Session


class AppendEvent(BaseClientEvent):
    """Audio as base64, in the session's input format."""

    type: Literal["input_audio_buffer.append"]
    audio: str


class CommitEvent(BaseClientEvent):
    """The audio so far is a turn."""

    type: Literal["input_audio_buffer.commit"]


class ClearEvent(BaseClientEvent):
    """Forget the audio so far."""

    type: Literal["input_audio_buffer.clear"]


class ClearOutputEvent(BaseClientEvent):
    """Of WebRTC alone: refused by what translates."""

    type: Literal["output_audio_buffer.clear"]


class ItemCreateEvent(BaseClientEvent):
    """Put an item into the conversation."""

    type: Literal["conversation.item.create"]
    item: ClientItem
    previous_item_id: Id | None = None


class ItemRetrieveEvent(BaseClientEvent):
    """Show an item."""

    type: Literal["conversation.item.retrieve"]
    item_id: Id


class ItemTruncateEvent(BaseClientEvent):
    """Only so much of an answer was heard."""

    type: Literal["conversation.item.truncate"]
    item_id: Id
    content_index: Annotated[int, Field(ge=0)]
    # JSON numbers are exact so far; what is beyond the end is clamped.
    audio_end_ms: Annotated[int, Field(ge=0, le=2**53)]


class ItemDeleteEvent(BaseClientEvent):
    """Take an item out."""

    type: Literal["conversation.item.delete"]
    item_id: Id


class ResponseCreateEvent(BaseClientEvent):
    """Answer now."""

    type: Literal["response.create"]
    response: Response | None = None


class ResponseCancelEvent(BaseClientEvent):
    """Stop answering."""

    type: Literal["response.cancel"]
    response_id: Id | None = None


OpenAiClientEvent = (
    SessionUpdateEvent
    | AppendEvent
    | CommitEvent
    | ClearEvent
    | ClearOutputEvent
    | ItemCreateEvent
    | ItemRetrieveEvent
    | ItemTruncateEvent
    | ItemDeleteEvent
    | ResponseCreateEvent
    | ResponseCancelEvent
)

OPENAI_CLIENT_EVENTS: Final[dict[str, type[OpenAiClientEvent]]] = {
    "session.update": SessionUpdateEvent,
    "input_audio_buffer.append": AppendEvent,
    "input_audio_buffer.commit": CommitEvent,
    "input_audio_buffer.clear": ClearEvent,
    "output_audio_buffer.clear": ClearOutputEvent,
    "conversation.item.create": ItemCreateEvent,
    "conversation.item.retrieve": ItemRetrieveEvent,
    "conversation.item.truncate": ItemTruncateEvent,
    "conversation.item.delete": ItemDeleteEvent,
    "response.create": ResponseCreateEvent,
    "response.cancel": ResponseCancelEvent,
}
