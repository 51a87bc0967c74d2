"""What kinds of callers there are, and in which shares. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

SpeechPart = Literal["whole", "streamed", "cancel", "hang_up", "slow_reader"]
TalkPart = Literal["talk", "barge_in", "talk_hang_up", "talk_slow_reader"]
Part = SpeechPart | TalkPart
"""Callers of the speech lane:

whole         sends a text at once and hears it to the end.
streamed      sends it word by word, as a text model writes it.
cancel        cancels it once it has heard some.
hang_up       breaks the connection off in the middle.
slow_reader   stops reading for a while, with as much audio on the wire as there can be.

Callers of the conversation lane, with an open microphone; all think before they speak:

talk              asks questions and hears the answers to the end.
barge_in          speaks over an answer, once it has heard some.
talk_hang_up      breaks the connection off in an answer.
talk_slow_reader  stops reading in an answer.
"""
TALK_PARTS: Final[tuple[TalkPart, ...]] = get_args(TalkPart)
PARTS: Final[tuple[Part, ...]] = (*get_args(SpeechPart), *TALK_PARTS)

SPEECH: Final[Mapping[Part, float]] = {"whole": 1.0}
CONVERSATION: Final[Mapping[Part, float]] = {
    "talk": 0.6,
    "barge_in": 0.3,
    "talk_hang_up": 0.07,
    "talk_slow_reader": 0.03,
}
MIXED: Final[Mapping[Part, float]] = {
    "whole": 0.35,
    "streamed": 0.15,
    "cancel": 0.1,
    "hang_up": 0.07,
    "slow_reader": 0.03,
    "talk": 0.18,
    "barge_in": 0.08,
    "talk_hang_up": 0.03,
    "talk_slow_reader": 0.01,
}
SCENARIOS: Final[Mapping[str, Mapping[Part, float]]] = {
    "speech": SPEECH,
    "conversation": CONVERSATION,
    "mixed": MIXED,
}


class ScenarioError(ValueError):
    """Shares that make no scenario. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Shares of parts, which add up to 1, and how patient callers are.

    Args:
        name: as it was asked for.
        shares: by part.
        think_s: mean pause of a caller before it speaks; exponential.
        turns: most questions of a conversation; drawn evenly from 1 on.
        heard_s: a caller that cancels, leaves, stops reading or interrupts hears between these.
        word_s: between words of a streamed text.
        stall_s: how long a slow reader leaves everything unread.
    """

    name: str
    shares: Mapping[Part, float]
    think_s: float = 1.5
    turns: int = 3
    heard_s: tuple[float, float] = (0.3, 1.5)
    word_s: float = 0.01
    stall_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        if any(share < 0 for share in self.shares.values()):
            raise ScenarioError(f"shares must be 0 or more: {dict(self.shares)}")
        if not math.isclose(sum(self.shares.values()), 1.0, abs_tol=1e-6):
            raise ScenarioError(f"shares must add up to 1: {dict(self.shares)}")

    @property
    def has_talk(self) -> bool:
        """Whether anybody converses."""
        return any(self.shares.get(part, 0.0) > 0 for part in TALK_PARTS)

    def pick(self, at: float) -> Part:
        """The part at `at`, in [0, 1)."""
        for part, share in self.shares.items():
            if at < share:
                return part
            at -= share
        # Shares that add up to a hair under 1 end here.
        return [part for part, share in self.shares.items() if share > 0][-1]


def scenario_of(
    name: str, changes: Mapping[str, float] | None = None, stall_s: float = 30.0
) -> Scenario:
    """A scenario by name, with some shares changed; the others keep their proportion.

    Raises:
        ScenarioError: unknown name or part, or shares that leave no room.
    """
    if name not in SCENARIOS:
        raise ScenarioError(f"unknown scenario {name!r}; known: {', '.join(SCENARIOS)}")
    changed: dict[Part, float] = {}
    for given, share in (changes or {}).items():
        part = next((one for one in PARTS if one == given), None)
        if part is None:
            raise ScenarioError(f"unknown part {given!r}; known: {', '.join(PARTS)}")
        changed[part] = share
    kept = {part: share for part, share in SCENARIOS[name].items() if part not in changed}
    room, total = 1.0 - sum(changed.values()), sum(kept.values())
    if room < -1e-9 or (room > 1e-9 and not total):
        raise ScenarioError(f"the shares given must leave room for the rest: {changed}")
    scaled = {part: share * max(room, 0.0) / total for part, share in kept.items()} if total else {}
    return Scenario(name=name, shares={**scaled, **changed}, stall_s=stall_s)
