"""Text to the phoneme ids of Zonos, by the program `espeak-ng`. Worker threads.

Source: Zyphra/Zonos, `conditioning.py` (Apache-2.0): the symbols, their order, ids of the marks,
and punctuation that is kept between what is spoken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Final

from models.errors import PlanError

UNKNOWN: Final = 1
BEGIN: Final = 2
END: Final = 3
N_MARKS: Final = 4
PUNCTUATION: Final = ';:,.!?¡¿—…"«»“”() *~-/\\&'
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IPA: Final = (
    "ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃˈˌːˑʼʴʰʱʲʷˠˤ˞"
    "↓↑→↗↘'̩'ᵻ"
)
SYMBOLS: Final = (*PUNCTUATION, *_LETTERS, *_IPA)
N_IDS: Final = N_MARKS + len(SYMBOLS)
# A symbol that stands twice has the later id.
_IDS: Final = {symbol: idx for idx, symbol in enumerate(SYMBOLS, start=N_MARKS)}
_PIECES: Final = re.compile(f"([{re.escape(PUNCTUATION.replace(' ', ''))}]+)")
PROGRAM: Final = "espeak-ng"
PATIENCE_S: Final = 10.0

Phonemize = Callable[[str, str], str]
"""Text and the language's code to a line of phonemes."""


def phoneme_ids(text: str, language: str, phonemize: Phonemize) -> list[int]:
    """Ids of a text between its two marks. Raises: `PlanError`, from `phonemize`."""
    line = phonemize(text, language)
    return [BEGIN, *(_IDS.get(symbol, UNKNOWN) for symbol in line), END]


def espeak(text: str, language: str) -> str:
    """Phonemes in IPA with stress; punctuation stays where it was.

    Raises:
        PlanError: `phonemizer_missing`, `phonemizer_failed`.
    """
    pieces = []
    for piece in _PIECES.split(text):
        if _PIECES.fullmatch(piece) or not piece.strip():
            pieces.append(piece)
            continue
        lead = " " if piece[0].isspace() else ""
        tail = " " if piece[-1].isspace() else ""
        pieces.append(f"{lead}{_spoken(piece.strip(), language)}{tail}")
    return "".join(pieces).strip()


def _spoken(words: str, language: str) -> str:
    program = shutil.which(PROGRAM)
    if program is None:
        raise PlanError(
            "phonemizer_missing",
            f"zonos reads text by the program {PROGRAM}, which is not here; "
            "on Debian: sudo apt-get install espeak-ng",
        )
    done = subprocess.run(
        [program, "-q", "--ipa", "-v", language, "--stdin"],
        input=words,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise PlanError("phonemizer_failed", f"{PROGRAM} cannot read this: {reason}")
    return " ".join(done.stdout.split())
