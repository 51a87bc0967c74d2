"""How an answer's text is cut for speech, and which of it has been spoken. Pure, any thread.

The cutting itself is `realtime.speech.text_units`; here are the lengths that an answer wants, the
end at a whole sentence, and the way back from audio to text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from realtime.config import TextLimits
from realtime.speech.text_units import TextSegmenter, TextUnit, Unit, next_cut

ANSWER_TEXT: Final = TextLimits(min_sentence=8, first_clause=14, max_unit=240)
"""Shorter than for text that is read aloud: somebody waits for the first clause, which a small text
model writes in some 0.1 s; it plays for a second, in which the next one is made."""

LONGEST_SENTENCE: Final = 2000
"""What is longer is taken for a sentence: it is not held until it ends."""
_WHOLE_SENTENCES: Final = TextLimits(
    min_sentence=1, first_clause=LONGEST_SENTENCE, max_unit=LONGEST_SENTENCE
)
_SENTENCE_ENDS: Final = ".!?…。！？"  # noqa: RUF001 - the full-width marks are meant
_CLOSERS: Final = "\"')]”’»」』"  # noqa: RUF001 - the quotes are meant


class SentenceGate:
    """Ends an answer well: not in a sentence that a limit cuts, not in a circle.

    The first sentence passes at once; each later one when it is whole. `is_looping`: a sentence has
    come for the second time, as small models do; nothing passes from there on.
    """

    def __init__(self) -> None:
        self.is_looping = False
        self._text = ""
        self._n_passed = 0
        self._may_end = False
        self._said: set[str] = set()

    def push(self, text: str) -> str:
        """More text. Returns what may go on."""
        if self.is_looping:
            return ""
        self._text += text
        self._may_end |= _may_end(text) or len(self._text) > LONGEST_SENTENCE
        passed = ""
        while (place := self._sentence_end()) is not None:
            if not self._take(self._text[:place]):
                return passed
            passed += self._text[self._n_passed : place]
            self._text = self._text[place:]
            self._n_passed = max(0, self._n_passed - place)
            self._may_end = _may_end(self._text)
        # White space passes too: by it the next stage knows that the sentence before has ended.
        place = self._n_blank if self._said else len(self._text)
        passed += self._text[self._n_passed : place]
        self._n_passed = max(self._n_passed, place)
        return passed

    def finish(self, *, is_cut: bool) -> tuple[str, bool]:
        """No more text. Returns what may still go on, and whether all ends with a sentence."""
        rest = self._text[self._n_passed :]
        if not self._said:
            return rest, not is_cut or self._is_whole
        if self.is_looping or (is_cut and not self._is_whole) or not self._take(self._text):
            return "", True
        return rest, True

    def _take(self, sentence: str) -> bool:
        """Whether a sentence is new."""
        words = "".join(one for one in sentence.casefold() if one.isalnum())
        self.is_looping = bool(words) and words in self._said
        self._said.add(words)
        return not self.is_looping

    @property
    def _is_whole(self) -> bool:
        return self._text.rstrip().rstrip(_CLOSERS).endswith(tuple(_SENTENCE_ENDS))

    def _sentence_end(self) -> int | None:
        if not self._may_end:
            return None
        text = self._text[self._n_blank :]
        place = next_cut(text, _WHOLE_SENTENCES, is_first=False, is_final=False)
        return None if place is None else self._n_blank + place

    @property
    def _n_blank(self) -> int:
        return len(self._text) - len(self._text.lstrip())


def _may_end(text: str) -> bool:
    """Whether a sentence may end in `text`: most pieces of one need no look at all of it."""
    return any(one in text for one in _SENTENCE_ENDS + "\n")


class SpokenPlaces:
    """Where in an answer's text its speech has come to.

    Args:
        limits: with which the text is cut.
        sounds: tags that the model makes sounds of.
    """

    def __init__(self, limits: TextLimits, sounds: Iterable[str] = ()) -> None:
        self._cutter = TextSegmenter(limits, sounds)
        self._units: list[TextUnit] = []
        self._n_characters = 0
        self._is_ended = False

    @property
    def n_units(self) -> int:
        """Units that can be spoken."""
        return len(self._units)

    @property
    def n_characters(self) -> int:
        """Of the text."""
        return self._n_characters

    def push(self, text: str) -> None:
        """More text."""
        self._n_characters += len(text)
        self._add(self._cutter.push(text))

    def end(self) -> None:
        """No more text."""
        self._is_ended = True
        self._add(self._cutter.flush())

    def place_of(self, n_spoken: float) -> int:
        """The place in the text at which `n_spoken` characters of its units have been spoken."""
        for unit in self._units:
            if n_spoken < len(unit.text):
                return unit.place_of(max(0, int(n_spoken)))
            n_spoken -= len(unit.text)
        if not self._units:
            return 0
        # With the last word all has been spoken, the marks behind it too.
        return self._n_characters if self._is_ended else self._units[-1].end

    def _add(self, units: list[Unit]) -> None:
        self._units += [unit for unit in units if isinstance(unit, TextUnit)]
