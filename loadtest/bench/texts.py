"""What the benchmarks let the server say."""

from __future__ import annotations

from typing import Final

SENTENCE: Final = "The quick brown fox jumps over the lazy dog."

STORY: Final = (
    "On Monday morning the ferry left a little late, because the fog had not yet lifted from the "
    "harbour. A few passengers stood at the rail with paper cups of coffee and watched the gulls. "
    "When the engine slowed near the first island, somebody laughed and pointed at a seal that "
    "was looking back at them. The captain rang the bell twice, and everyone walked down to the "
    "lower deck to collect their bags. By noon the sky was clear, and the small town above the "
    "beach smelled of bread and warm stone."
)
"""About half a minute of speech."""

LONG_SENTENCE: Final = (
    "The quick brown fox jumps over the lazy dog and then runs along the river to the old stone "
    "bridge where the children of the village wait for the evening boat to bring their fathers home"
)
"""One unit of speech: longer texts are opened piece by piece, in time with the listener."""
