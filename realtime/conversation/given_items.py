"""What a client gives a response to answer instead of the conversation. Event loop only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from realtime.agent.base import (
    HEARD_RATE_HZ,
    Agent,
    ContextItem,
    StageFailed,
    TranscriptCompleted,
)
from realtime.conversation.input_audio import Piece, decode_whole
from realtime.conversation.item_wire import item_of
from realtime.conversation.items import Conversation, Item, context_of, is_last_silent
from realtime.conversation.protocol import GivenItem, ItemReference
from realtime.conversation.settings import ConversationSettings
from realtime.errors import ProtocolError
from realtime.speech.errors import ResponseFailedError
from realtime.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenItems:
    """Items that were checked, with what some of them sound like, by their places.

    Ids say nothing here: a client may give the same twice, or one of the conversation's.
    """

    items: tuple[Item, ...]
    audio: dict[int, Piece]

    async def context(
        self, agent: Agent, settings: ConversationSettings, workers: Workers
    ) -> tuple[ContextItem, ...] | None:
        """What the agent may know of them; None where they end with nothing that was said.

        Raises:
            ResponseFailedError: the agent cannot make out what was said.
        """
        for place, piece in self.audio.items():
            await _hear(self.items[place], piece, agent, settings, workers)
        return None if is_last_silent(self.items) else context_of(self.items)


def given_items(
    given: Sequence[GivenItem],
    conversation: Conversation,
    settings: ConversationSettings,
    max_characters: int,
) -> GivenItems:
    """Check what was given; references are looked up.

    Raises:
        ProtocolError: no such item, or one that is wrong.
    """
    items: list[Item] = []
    audio: dict[int, Piece] = {}
    for place, one in enumerate(given):
        prefix = f"response.input.{place}"
        if isinstance(one, ItemReference):
            items.append(_referred(one, conversation, prefix))
            continue
        try:
            item, payload = item_of(one, max_characters)
        except ProtocolError as fault:
            fault.param = prefix + (fault.param or "").removeprefix("item")
            raise
        items.append(item)
        if payload is not None:
            audio[place] = settings.formed(Piece(codec=None, payload=payload))
    return GivenItems(items=tuple(items), audio=audio)


def _referred(reference: ItemReference, conversation: Conversation, prefix: str) -> Item:
    try:
        # What an agent knows there is of the whole conversation.
        return replace(conversation.get(reference.id), memory=None)
    except ProtocolError as fault:
        fault.param = f"{prefix}.id"
        raise


async def _hear(
    item: Item, piece: Piece, agent: Agent, settings: ConversationSettings, workers: Workers
) -> None:
    part = next(part for part in item.parts if part.kind == "input_audio")
    pcm = await workers.run(decode_whole, piece)
    part.audio, part.audio_s = pcm, len(pcm) / HEARD_RATE_HZ
    if part.text is not None or not agent.can_transcribe:
        return
    transcribing = settings.transcription
    language = None if transcribing is None else transcribing.language
    transcription = agent.transcribe(pcm, language=language)
    try:
        while (event := await transcription.next_event()) is not None:
            if isinstance(event, TranscriptCompleted):
                part.text = event.text
            elif isinstance(event, StageFailed):
                raise ResponseFailedError(event.code, f"transcriber: {event.message}")
    finally:
        transcription.cancel()
