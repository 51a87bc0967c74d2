"""How a conversation begins before its client has said anything. Pure.

Three things have a say, each over the one before: what these clients take for granted, the model in
the URL, and the settings of the client secret that opened the socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from realtime.conversation.conversing import Conversing
from realtime.conversation.protocol import (
    AudioFormat,
    AudioPatch,
    ConversationPatch,
    ConversationUpdate,
    InputPatch,
    ServerVad,
    SpokenPatch,
)
from realtime.lanes.openai.client_events import Session
from realtime.lanes.openai.translate import Specs, session_update

PCM: Final = AudioFormat(type="audio/pcm", rate=24000)
OPENING_AUDIO: Final = AudioPatch(
    input=InputPatch(format=PCM, transcription=None, turn_detection=ServerVad(type="server_vad")),
    output=SpokenPatch(format=PCM),
)
"""What these clients take for granted before they have changed anything."""


def opening_of(
    model: str | None, secret: Mapping[str, Any] | None, conversing: Conversing
) -> tuple[ConversationUpdate, ...]:
    """The changes to the default settings, in order.

    Args:
        model: of the URL; a name that is not served takes the first.
        secret: see `secret_updates`.
        conversing: who can answer.
    """
    named = ConversationPatch(audio=OPENING_AUDIO)
    if model in conversing.agents:
        named = ConversationPatch(model=model, audio=OPENING_AUDIO)
    return (ConversationUpdate(session=named), *secret_updates(secret, conversing.specs))


def secret_updates(
    secret: Mapping[str, Any] | None, specs: Specs
) -> tuple[ConversationUpdate, ...]:
    """The settings of a client secret as a change.

    Args:
        secret: a session of the OpenAI API, as it was accepted when the secret was made.
        specs: of the agents, by the names of their models.

    Raises:
        ProtocolError: they ask for something that is not there.
    """
    if secret is None:
        return ()
    return (session_update(Session.model_validate(secret), specs),)
