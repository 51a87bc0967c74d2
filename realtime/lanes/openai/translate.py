"""Events of OpenAI Realtime clients to those of a conversation. Pure, event loop thread.

Fields that the API has and nothing here acts on are kept, and shown again where the API shows them;
what cannot be honoured and would change what is meant is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from models.spec import ModelSpec
from realtime.conversation import protocol as core
from realtime.conversation.protocol import ConversationClientEvent, Kept
from realtime.errors import ProtocolError
from realtime.events import ResponseCancel, WireModel
from realtime.lanes.openai import client_events as client

OPENAI_VOICES: Final = frozenset(
    {
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable"),
        *("marin", "nova", "onyx", "sage", "shimmer", "verse"),
    }
)
"""Voices that clients send without being asked to: other names of the model's first voice."""
LOWEST_THRESHOLD: Final = 0.05
HIGHEST_THRESHOLD: Final = 0.95
KEPT_OF_ANSWERS: Final = ("reasoning", "parallel_tool_calls")
KEPT_OF_SESSIONS: Final = ("include", "tracing", "truncation")

Specs = Mapping[str, ModelSpec]


def core_event(event: client.OpenAiClientEvent, specs: Specs) -> ConversationClientEvent:
    """What an event means to a conversation.

    Args:
        event: of the client.
        specs: of the agents, by the names of their models.

    Raises:
        ProtocolError: it asks for something that is not there.
    """
    event_id = event.event_id
    match event:
        case client.SessionUpdateEvent(session=session):
            return session_update(session, specs, event_id)
        case client.AppendEvent(audio=audio):
            return core.InputAudioAppend(event_id=event_id, audio=audio)
        case client.CommitEvent():
            return core.InputAudioCommit(event_id=event_id)
        case client.ClearEvent():
            return core.InputAudioClear(event_id=event_id)
        case client.ItemCreateEvent(item=item, previous_item_id=previous):
            wire = _item(item, "item")
            return core.ItemCreate(event_id=event_id, item=wire, previous_item_id=previous)
        case client.ItemRetrieveEvent(item_id=item_id):
            return core.ItemRetrieve(event_id=event_id, item_id=item_id)
        case client.ItemTruncateEvent(item_id=item_id):
            return core.ItemTruncate(
                event_id=event_id,
                item_id=item_id,
                content_index=event.content_index,
                audio_end_ms=event.audio_end_ms,
            )
        case client.ItemDeleteEvent(item_id=item_id):
            return core.ItemDelete(event_id=event_id, item_id=item_id)
        case client.ResponseCreateEvent(response=response):
            return _answer_create(response or client.Response(), specs, event_id)
        case client.ResponseCancelEvent(response_id=response_id):
            return ResponseCancel(event_id=event_id, response_id=response_id)
        case client.ClearOutputEvent():
            message = "output_audio_buffer.clear is of WebRTC: stop your own player, and truncate"
            raise ProtocolError("unsupported_event", message, param="type")


def session_update(
    session: client.Session, specs: Specs, event_id: str | None = None
) -> core.KeptUpdate:
    """The change of a session. Raises: `ProtocolError`."""
    fields, kept = _answering(session, "session")
    kept |= _given(session, KEPT_OF_SESSIONS)
    # Other names are answered by the agent that answers already.
    if session.model in specs:
        fields["model"] = session.model
    audio = session.audio or client.SessionAudio()
    heard: dict[str, Any] = {}
    if audio.input is not None:
        heard = _input(audio.input, kept)
    spoken: dict[str, Any] = {}
    if audio.output is not None:
        spoken = _output(audio.output, specs, kept)
        if "speed" in audio.output.model_fields_set:
            kept["speed"] = audio.output.speed
            speed = None if audio.output.speed == 1 else audio.output.speed
            fields["options"] = {"speed": speed}
    patch = core.ConversationPatch(
        **fields,
        audio=core.AudioPatch(input=core.InputPatch(**heard), output=core.SpokenPatch(**spoken)),
    )
    return core.KeptUpdate(event_id=event_id, session=patch, kept=kept)


def _answer_create(
    response: client.Response, specs: Specs, event_id: str | None
) -> core.KeptCreate:
    fields, kept = _answering(response, "response")
    fields |= _given(response, ("metadata",))
    fields["conversation"] = response.conversation or "auto"
    if response.input is not None:
        fields["input"] = [
            _given_item(item, f"response.input.{place}")
            for place, item in enumerate(response.input)
        ]
    spoken: dict[str, Any] = {}
    if response.audio is not None and response.audio.output is not None:
        spoken = _output(response.audio.output, specs, kept)
    patch = core.OneAnswerPatch(**fields, audio=core.AudioPatch(output=core.SpokenPatch(**spoken)))
    return core.KeptCreate(event_id=event_id, response=patch, kept=kept)


def _answering(wanted: client.Answering, prefix: str) -> tuple[dict[str, Any], Kept]:
    """Fields that a session and a response have in common: those acted on, and those kept."""
    if wanted.prompt is not None:
        param = f"{prefix}.prompt"
        message = f"{param}: prompt templates are not kept here; send instructions"
        raise ProtocolError("unsupported_value", message, param=param)
    fields = _given(wanted, ("instructions", "output_modalities", "max_output_tokens"))
    if "tools" in wanted.model_fields_set:
        fields["tools"] = [
            _tool(tool, f"{prefix}.tools.{place}") for place, tool in enumerate(wanted.tools or ())
        ]
    if "tool_choice" in wanted.model_fields_set:
        fields["tool_choice"] = _tool_choice(wanted.tool_choice, prefix)
    return fields, _given(wanted, KEPT_OF_ANSWERS)


def _tool(tool: client.FunctionTool | client.McpTool, param: str) -> core.ToolInfo:
    if isinstance(tool, client.McpTool):
        raise _no_mcp(param)
    return tool.info()


def _tool_choice(choice: client.Choice | None, prefix: str) -> str | core.ToolChoice | None:
    if isinstance(choice, client.McpChoice):
        raise _no_mcp(f"{prefix}.tool_choice")
    if isinstance(choice, client.FunctionChoice):
        return core.ToolChoice(type="function", name=choice.name)
    return choice


def _no_mcp(param: str) -> ProtocolError:
    message = f"{param}: MCP tools are not called here; give functions"
    return ProtocolError("unsupported_value", message, param=f"{param}.type")


def _input(heard: client.Input, kept: Kept) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    given = heard.model_fields_set
    if "format" in given:
        fields["format"] = _format(heard.format)
    if "noise_reduction" in given:
        kept["noise_reduction"] = _plain(heard.noise_reduction)
    if "transcription" in given:
        asked = heard.transcription
        kept["transcription"] = _plain(asked)
        if asked is None:
            fields["transcription"] = None
        else:
            fields["transcription"] = core.Transcribing(**_given(asked, ("language",)))
    if "turn_detection" in given:
        fields["turn_detection"] = _turn_detection(heard.turn_detection)
    return fields


def _turn_detection(
    asked: client.ServerVadFields | client.SemanticVadFields | None,
) -> core.ServerVad | core.SemanticVad | None:
    if asked is None:
        return None
    fields = asked.model_dump(exclude_unset=True, exclude_none=True)
    if isinstance(asked, client.SemanticVadFields):
        return core.SemanticVad(**fields)
    if "threshold" in fields:
        # Beyond these nothing, or everything, is a voice.
        fields["threshold"] = min(max(fields["threshold"], LOWEST_THRESHOLD), HIGHEST_THRESHOLD)
    return core.ServerVad(**fields, **_given(asked, ("idle_timeout_ms",), only_null=True))


def _output(spoken: client.ResponseOutput, specs: Specs, kept: Kept) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if "format" in spoken.model_fields_set:
        fields["format"] = _format(spoken.format)
    if "voice" in spoken.model_fields_set:
        voice = spoken.voice
        kept["voice"] = _plain(voice)
        fields["voice"] = _own_voice(
            voice.id if isinstance(voice, client.VoiceId) else voice, specs
        )
    return fields


def _own_voice(voice: str | None, specs: Specs) -> str | None:
    """The model's name of a voice; None: its first one."""
    is_own = any(voice in spec.voices for spec in specs.values())
    return None if voice in OPENAI_VOICES and not is_own else voice


def _format(asked: client.Format | None) -> core.AudioFormat:
    if isinstance(asked, client.G711):
        return core.AudioFormat(type=asked.type)
    return core.AudioFormat(type="audio/pcm", rate=24000)


def _given_item(item: client.ClientItem | client.Reference, param: str) -> core.GivenItem:
    if isinstance(item, client.Reference):
        return core.ItemReference(type="item_reference", id=item.id)
    return _item(item, param)


def _item(item: client.ClientItem, param: str) -> core.ItemWire:
    fields = item.model_dump(exclude={"content", "object"})
    parts = None
    if item.content is not None:
        parts = [_part(part, f"{param}.content.{place}") for place, part in enumerate(item.content)]
    return core.ItemWire(**fields, content=parts)


def _part(part: client.ContentPart, param: str) -> core.PartWire:
    if part.type == "input_image":
        message = f"{param}: images are not seen here"
        raise ProtocolError("unsupported_content_type", message, param=f"{param}.type")
    return core.PartWire(
        type=part.type, text=part.text, transcript=part.transcript, audio=part.audio
    )


def _given(model: WireModel, names: tuple[str, ...], *, only_null: bool = False) -> dict[str, Any]:
    """Those of the fields that the client has sent, as JSON has them."""
    sent = {name: getattr(model, name) for name in names if name in model.model_fields_set}
    return {name: _plain(value) for name, value in sent.items() if value is None or not only_null}


def _plain(value: object) -> object:
    return value.model_dump(exclude_unset=True) if isinstance(value, WireModel) else value
