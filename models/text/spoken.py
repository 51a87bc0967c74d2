# ruff: noqa: RUF001 -- signs of arithmetic are input here
"""Text as it is written to text as it is read, by language. Pure, any thread.

For any model: letters of all scripts, quotes and dashes stay, for a large model reads more from
them than from words alone. A model that needs plain words has `models.text.normalise` besides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from models.text.characters import plain_figures
from models.text.english import speak_english
from models.text.scripts import unspeakable_scripts

READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "en": speak_english,
    "english": speak_english,
}
"""Main part of a language's name -> what reads its figures and abbreviations.

Only where it is better than what a model does by itself: in languages that inflect, a figure's
words depend on those around it, and a rule that does not know them says it wrong.
"""
_SIGNS: Final = {"×": " times ", "≈": " about "}
_SIGN: Final = re.compile(r" ?([×≈]) ?")
_BEFORE_MARK: Final = re.compile(r"(?<=\w) +(?=[,.?!;:)\]%](?:\W|$))")
_AFTER_OPENER: Final = re.compile(r"(?<=[(\[“‘]) +(?=\w)")


def spoken_form(text: str, language: str | None) -> str:
    """`text` with its figures and abbreviations in words of `language`.

    Text in a language without rules, or in another script than the language is written in, comes
    back as it is: a model that speaks it reads its figures.

    Args:
        text: of one unit, without markup.
        language: name or tag (`en`, `en-GB`); None: unknown.
    """
    main = (language or "").casefold().replace("_", "-").partition("-")[0]
    reader = READERS.get(main)
    if reader is None or unspeakable_scripts(text):
        return text
    spoken = reader(_SIGN.sub(lambda found: _SIGNS[found[1]], plain_figures(text)))
    if spoken == text:
        return text
    spoken = _BEFORE_MARK.sub("", " ".join(spoken.split()))
    return _AFTER_OPENER.sub("", spoken)
