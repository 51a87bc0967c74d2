"""A text model that writes what it was given: what is left of an answer is spoken by it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from realtime.agent.base import TextDelta
from realtime.agent.text_model import TextDone, TextEvent, TextFacts, TextRequest


class Recitation:
    """Implements `realtime.agent.text_model.TextModel`.

    Args:
        text: of every answer.
    """

    facts = TextFacts(name="recitation")

    def __init__(self, text: str) -> None:
        self._text = text

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextEvent]:
        """The text, whatever is asked."""
        yield TextDelta(text=self._text)
        yield TextDone(reason="stop")

    async def close(self) -> None:
        """Nothing is its own."""
