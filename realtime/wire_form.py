"""What events and audio look like on a socket: the form of a lane. Pure, event loop thread.

A session speaks in typed events and coded audio; its lane's form makes messages of them. The form
of the OpenAI Realtime API is `realtime.lanes.openai.form`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from realtime.events import BaseServerEvent
from realtime.frames import AudioFrame, encode_audio_frame
from realtime.protocol import encode_event

NewId = Callable[[], str]
"""Gives the id of the next event."""


class WireForm(Protocol):
    """Events and audio to messages.

    `packets_per_message`: how many packets of 20 ms may be joined in one message of audio.
    """

    @property
    def packets_per_message(self) -> int:
        """Packets that one message of audio may hold."""
        ...

    def event_messages(self, event: BaseServerEvent, new_id: NewId) -> Sequence[str]:
        """The messages that tell an event; none, where clients of this lane do not know it."""
        ...

    def audio_message(self, frame: AudioFrame, new_id: NewId) -> str | bytes:
        """The message that carries audio."""
        ...


class ParleyForm:
    """`parley.v1`: events as they are, audio as binary frames of one packet each."""

    packets_per_message = 1

    def event_messages(self, event: BaseServerEvent, new_id: NewId) -> Sequence[str]:
        """The event as JSON."""
        if not event.event_id:
            event = event.model_copy(update={"event_id": new_id()})
        return [encode_event(event)]

    def audio_message(self, frame: AudioFrame, new_id: NewId) -> str | bytes:
        """The binary frame; it has a number and no id."""
        return encode_audio_frame(frame)
