# ruff: noqa: RUF001 -- phoneme letters look like Latin ones
"""Words whose sound depends on their neighbours: weak forms, heteronyms, lone letters.

Cheap rules over the words next to it, no parser. Pure, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from models.pico import units
from models.pico.lexicon import Lexicon
from models.pico.spelling import LETTERS
from models.text.tables import word_set

Ids = tuple[int, ...]
Sounds = Sequence[Ids]

_DETERMINERS: Final = word_set(
    """
    a an the this that these those my your his her its our their some any no each every another
    which whose both all many few several one two three four five six
    """
)
_VERB_CUES: Final = word_set(
    """
    to will would can could should must may might shall cannot don't didn't doesn't won't can't
    couldn't wouldn't shouldn't let's please i you we they who i'll you'll we'll they'll he'll
    she'll it'll i'd you'd we'd they'd never always often also usually
    """
)
_OBJECTS: Final = word_set("me him her them us it")
_SUBJECTS: Final = word_set("i you we they he she it who")
_PREPOSITIONS: Final = word_set("of in on for with by from at into about without under")
_BE: Final = word_set("is are was were be been being am i'm you're we're they're it's")
_HAVE: Final = word_set(
    """
    have has had having i've you've we've they've he'd she'd haven't hasn't hadn't
    """
)
_PAST_CUES: Final = word_set("yesterday ago last earlier already once")
_SEEN: Final = word_set(
    """
    music show shows stream streams streaming broadcast demo event events tv update updates
    concert chat coverage video audio performance session sessions data wire
    """
)
_METAL: Final = word_set("pipe pipes paint poisoning acid battery batteries levels exposure")
_WEAK_TO: Final = units.split_ipa("tə")
_TO_BEFORE_VOWEL: Final = units.split_ipa("tʊ")
_STRONG_TO: Final = units.split_ipa("tuː")
_THE: Final = units.split_ipa("ðə")
_THE_BEFORE_VOWEL: Final = units.split_ipa("ðɪ")
_ARTICLE: Final = units.split_ipa("ɐ")
_MARKS: Final = frozenset(units.PUNCTUATION)


def in_context(lexicon: Lexicon, tokens: Sequence[str], sounds: Sounds, place: int) -> Ids:
    """Units of the word at `place`.

    Args:
        lexicon: holds the variants of heteronyms.
        tokens: words and punctuation marks, as written.
        sounds: units of each token out of context (of marks: anything).
        place: which token.
    """
    token = tokens[place]
    word = token.lower()
    following = tokens[place + 1].lower() if place + 1 < len(tokens) else "."
    before = tokens[place - 1].lower() if place else "."
    if len(token) == 1:
        return _lone_letter(tokens, place, before, following)
    is_last = following in _MARKS
    vowel_follows = not is_last and units.is_vowel(sounds[place + 1][0])
    if word == "the":
        return _THE_BEFORE_VOWEL if vowel_follows else _THE
    if word == "to":
        if is_last:
            return _STRONG_TO
        return _TO_BEFORE_VOWEL if vowel_follows else _WEAK_TO
    variants = lexicon.variants.get(word)
    if not variants or sounds[place] != lexicon.find(word):
        return sounds[place]
    earlier = tokens[place - 2].lower() if place > 1 else "."
    kind = word_class(word, earlier, before, following)
    if is_last and "STRONG" in variants:
        kind = "STRONG"
    if word == "read" and not kind and before in _SUBJECTS and _is_past(tokens):
        kind = "PAST"
    return (lexicon.find_variant(word, kind) if kind else None) or sounds[place]


def word_class(word: str, earlier: str, before: str, following: str) -> str:
    """`VERB`, `NOUN`, `ADJ`, `PAST`, `METAL`, or empty where the default form will do."""
    special = _SPECIAL.get(word)
    if special:
        return special(before, following)
    if before in _HAVE:
        return ""
    if before in _VERB_CUES or (before in _MARKS and following in _DETERMINERS | _OBJECTS):
        return "VERB"
    if before == "not" and earlier in _VERB_CUES:
        return "VERB"
    is_noun = before in _DETERMINERS or before in _PREPOSITIONS
    is_noun = is_noun or (earlier in _DETERMINERS and before not in _BE | _VERB_CUES)
    if not is_noun:
        return ""
    if word.endswith("ate") and following not in _MARKS | _PREPOSITIONS | _BE:
        return "ADJ"
    return "NOUN"


def _live(before: str, following: str) -> str:
    if following in _SEEN or before in (
        "a",
        "the",
        "go",
        "goes",
        "going",
        "went",
        "via",
        "streamed",
    ):
        return "ADJ"
    return "ADJ" if before in _BE and following in _MARKS else "VERB"


def _lives(before: str, following: str) -> str:
    is_noun = before in _DETERMINERS | _PREPOSITIONS | {"people's", "save", "saves", "saved"}
    return "NOUN" if is_noun else "VERB"


def _used(before: str, following: str) -> str:
    is_tool = before in {"is", "are", "was", "were", "be", "been", "being", "it's"}
    return "PAST" if following == "to" and not is_tool else ""


def _close(before: str, following: str) -> str:
    if before in _VERB_CUES or before == "a" or (before in _MARKS and following in _DETERMINERS):
        return "VERB" if before != "a" else ""
    return "NOUN" if before == "the" and following in _MARKS | {"of"} else ""


def _default(before: str, following: str) -> str:
    return ""


def _read(before: str, following: str) -> str:
    return "PAST" if before in _HAVE | _BE | {"he", "she", "it"} else ""


def _lead(before: str, following: str) -> str:
    return "METAL" if following in _METAL else ""


def _wound(before: str, following: str) -> str:
    return "VERB" if following == "up" else ""


def _wind(before: str, following: str) -> str:
    return "VERB" if following in ("up", "down", "back") else ""


_SPECIAL: Final[dict[str, Callable[[str, str], str]]] = {
    "live": _live,
    "lives": _lives,
    "used": _used,
    "close": _close,
    "read": _read,
    "lead": _lead,
    "wound": _wound,
    "wind": _wind,
    "minute": _default,
    "learned": _default,
}


def _is_past(tokens: Sequence[str]) -> bool:
    """Whether a word of the text speaks of the past."""
    return any(token.lower() in _PAST_CUES for token in tokens)


def _lone_letter(tokens: Sequence[str], place: int, before: str, following: str) -> Ids:
    """`a` as the article, any other letter by its name; so is `a` beside another lone letter."""
    token = tokens[place]
    if token.lower() != "a":
        return LETTERS[token.lower()]
    is_word_next = len(following) > 1
    is_first = before in _MARKS
    if token == "A" and not (is_first and is_word_next):
        return LETTERS["a"]
    beside = any(len(one) == 1 and one.isalpha() and one != "i" for one in (before, following))
    return LETTERS["a"] if beside or not is_word_next else _ARTICLE
