"""Is the user finished, or thinking? The judge's ear and the words together. Sans-I/O.

Neither is enough. On 280 short sentences of two synthetic voices at several speeds (November 2026)
the judge took 14 % of the finished ones for unfinished, and of those broken off at "the", "and" or
"um" it took 63 % for finished. The words seldom leave a doubt, but come a little later.
"""

from __future__ import annotations

import re
from typing import Final, Literal

FINISHED: Final = 0.5
"""Completeness from which the judge counts a turn as finished."""

Ending = Literal["nothing", "whole", "open", "broken"]
"""How words end: there are none; as sentences do; it cannot be told; where no sentence ends."""

Finality = Literal["finished", "undecided", "unfinished"]
"""Whether a turn ends soon, by the usual silence, or after a long one."""

TRAILING: Final = ("...", "\u2026", ",", "-", "\u2013", "\u2014", ":")
"""How recognition writes what was left hanging."""
HESITATIONS: Final = frozenset({"um", "uh", "er", "erm", "hm", "hmm", "mm", "mmm", "ah"})
"""As words of their own: "mm-hmm" is a yes."""
_NEVER_LAST = (
    "a an the my your our their every",
    "and or but because if whether although unless than",
    "i'm i'd i'll i've you're you've we're we've they're it's that's what's where's who's there's",
)
NEVER_LAST: Final = HESITATIONS.union(*map(str.split, _NEVER_LAST))
_SELDOM_LAST = "to of for with from at by in on about into like is are was were would could should"
SELDOM_LAST: Final = frozenset(_SELDOM_LAST.split())
"""They end questions ("Where are you from?"), and now and then a statement."""

_WORD: Final = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


def ending_of(text: str, language: str | None) -> Ending:
    """How a transcript ends.

    Args:
        text: of the turn so far.
        language: spoken; the words are known of English only. None: taken for English.
    """
    words = _words(text)
    if not words:
        return "nothing"
    is_english = language is None or language.casefold().startswith("en")
    if text.rstrip().endswith(TRAILING) or (is_english and words[-1] in NEVER_LAST):
        return "broken"
    is_question = text.rstrip().endswith("?")
    return "open" if is_english and words[-1] in SELDOM_LAST and not is_question else "whole"


def says_nothing(text: str) -> bool:
    """Whether there is nothing in a transcript to answer: no words, or a mere "hm"."""
    return HESITATIONS.issuperset(_words(text))


def finality(completeness: float | None, ending: Ending | None) -> Finality:
    """What is known of a pause, put together.

    Args:
        completeness: as the judge hears it, 0 to 1; None: there is no judge.
        ending: of the words; None: they are still to come.
    """
    is_finished = completeness is not None and completeness >= FINISHED
    match ending:
        case "nothing":
            return "finished"
        case "broken":
            return "unfinished"
        case "whole":
            # Where the two disagree, silence decides as it does without them.
            return "finished" if is_finished else "undecided"
        case "open" if is_finished:
            return "finished"
        case _:
            # Before the words are there the judge may only ask for patience.
            is_unfinished = completeness is not None and not is_finished
            return "unfinished" if is_unfinished else "undecided"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold().replace("\u2019", "'"))
