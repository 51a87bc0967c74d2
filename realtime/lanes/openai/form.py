"""The form of messages to OpenAI Realtime clients. Event loop only.

Events that such clients know are told in their words; all others are passed over. Audio becomes
`response.output_audio.delta`, base64 of up to 200 ms.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Final

from realtime.conversation import events as core
from realtime.events import BaseServerEvent, ErrorEvent, OutputAudioDone, OutputAudioStarted
from realtime.frames import AudioFrame
from realtime.lanes.openai.objects import (
    Json,
    item_object,
    part_object,
    response_object,
    session_object,
)
from realtime.wire_form import NewId

PACKETS_PER_MESSAGE: Final = 10
PLACE: Final = ("response_id", "item_id", "output_index", "content_index")
CALL: Final = ("response_id", "item_id", "output_index", "call_id")
OF_TRANSCRIPT: Final = ("item_id", "content_index")

FIELDS: Final[dict[type[BaseServerEvent], tuple[str, ...]]] = {
    core.SpeechStartedEvent: ("audio_start_ms", "item_id"),
    core.SpeechStoppedEvent: ("audio_end_ms", "item_id"),
    core.InputCommitted: ("item_id", "previous_item_id"),
    core.InputCleared: (),
    core.InputTimeout: ("audio_start_ms", "audio_end_ms", "item_id"),
    core.ItemTruncated: ("item_id", "content_index", "audio_end_ms"),
    core.ItemDeleted: ("item_id",),
    core.ItemAdded: ("previous_item_id",),
    core.ItemDone: ("previous_item_id",),
    core.ItemRetrieved: (),
    core.TranscriptionDelta: (*OF_TRANSCRIPT, "delta"),
    core.TranscriptionCompleted: (*OF_TRANSCRIPT, "transcript"),
    core.TranscriptionFailed: OF_TRANSCRIPT,
    core.OutputItemAdded: ("response_id", "output_index"),
    core.OutputItemDone: ("response_id", "output_index"),
    core.ContentPartAdded: PLACE,
    core.ContentPartDone: PLACE,
    core.TranscriptDeltaEvent: (*PLACE, "delta"),
    core.TranscriptDoneEvent: (*PLACE, "transcript"),
    core.TextDeltaEvent: (*PLACE, "delta"),
    core.TextDoneEvent: (*PLACE, "text"),
    core.ArgumentsDelta: (*CALL, "delta"),
    core.ArgumentsDone: (*CALL, "name", "arguments"),
    core.AnswerCreated: (),
    core.AnswerDone: (),
    core.ConversationCreated: (),
    core.ConversationUpdated: (),
    ErrorEvent: (),
}
"""Events that are told, and those of their fields that are told as they are."""

PARAMS: Final = {"session.options.speed": "session.audio.output.speed"}
"""Fields by the names that these clients gave them."""


@dataclass(slots=True)
class _Sound:
    """Where the audio of a response belongs, and whether it is over."""

    place: Json
    is_done: bool = False


class OpenAiForm:
    """Implements `realtime.wire_form.WireForm`. One for each session."""

    packets_per_message = PACKETS_PER_MESSAGE

    def __init__(self) -> None:
        self._sounds: dict[str, _Sound] = {}
        self._numbers: dict[int, str] = {}

    def event_messages(self, event: BaseServerEvent, new_id: NewId) -> list[str]:
        """The messages that tell an event."""
        told = [*self._about_audio(event)]
        fields = FIELDS.get(type(event))
        if fields is not None:
            known = {"type": event.model_dump(include={"type"})["type"]}
            told.append(known | event.model_dump(include=set(fields)) | _objects(event))
        if isinstance(event, core.AnswerCreated):
            # Nothing here is rationed by tokens or requests.
            told.append({"type": "rate_limits.updated", "rate_limits": []})
        return [json.dumps({"event_id": new_id(), **one}) for one in told]

    def audio_message(self, frame: AudioFrame, new_id: NewId) -> str:
        """The delta that carries audio."""
        place = self._sounds[self._numbers[frame.response_number]].place
        delta = base64.b64encode(frame.payload).decode("ascii")
        kind = "response.output_audio.delta"
        return json.dumps({"event_id": new_id(), "type": kind, **place, "delta": delta})

    def _about_audio(self, event: BaseServerEvent) -> list[Json]:
        """Keep account of where audio belongs; says that it is over before the words are."""
        match event:
            case core.ContentPartAdded(response_id=response_id) if event.part.type == "audio":
                self._sounds[response_id] = _Sound(event.model_dump(include=set(PLACE)))
            case OutputAudioStarted(response_id=response_id, response_number=number):
                self._numbers[number] = response_id
            case OutputAudioDone(response_id=response_id):
                return self._audio_done(response_id)
            case core.TranscriptDoneEvent(response_id=response_id):
                return self._audio_done(response_id)
            case core.AnswerDone(response=response):
                self._sounds.pop(response.id, None)
                self._numbers.pop(response.number, None)
        return []

    def _audio_done(self, response_id: str) -> list[Json]:
        sound = self._sounds.get(response_id)
        if sound is None or sound.is_done:
            return []
        sound.is_done = True
        return [{"type": "response.output_audio.done", **sound.place}]


def _objects(event: BaseServerEvent) -> Json:
    """Those fields of an event that have another shape for these clients."""
    match event:
        case core.ConversationCreated(session=session) | core.ConversationUpdated(session=session):
            return {"session": session_object(session)}
        case core.AnswerCreated(response=response) | core.AnswerDone(response=response):
            return {"response": response_object(response)}
        case (
            core.ItemAdded(item=item)
            | core.ItemDone(item=item)
            | core.ItemRetrieved(item=item)
            | core.OutputItemAdded(item=item)
            | core.OutputItemDone(item=item)
        ):
            return {"item": item_object(item)}
        case core.ContentPartAdded(part=part) | core.ContentPartDone(part=part):
            return {"part": part_object(part)}
        case core.TranscriptionCompleted(usage=usage):
            return {"usage": usage.model_dump()}
        case core.TranscriptionFailed(error=error):
            return {"error": error.model_dump(exclude={"event_id"})}
        case ErrorEvent(error=error):
            param = PARAMS.get(error.param or "", error.param)
            return {"error": error.model_dump() | {"param": param}}
    return {}
