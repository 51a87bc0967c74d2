"""A mark from a folder of weights: the kind follows from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from models.errors import WeightError
from models.watermark.choice import PUBLISHED
from models.watermark.perth import SUFFIX, load_perth
from models.watermark.silent_cipher import DECODER, ENCODER, load_silent_cipher
from models.watermark.spectra import Mark

KNOWN: Final = (
    "SilentCipher: hparams.yaml, enc_c.ckpt, dec_c.ckpt, or sony/silentcipher of the hub; "
    "Perth: hparams.yaml, perth_net_*.pth.tar, as in the package resemble-perth"
)


def load_mark(folder: Path, message: bytes) -> Mark:
    """The mark of a folder, on the CPU.

    Args:
        folder: of weights.
        message: what is spelt by a mark that can spell.

    Raises:
        WeightError: there is no such folder, it holds no mark that is known, or a file does not
            fit.
    """
    if not folder.is_dir():
        raise WeightError(f"--watermark: there is no folder {folder}")
    for place in (folder, folder / PUBLISHED):
        if (place / ENCODER).is_file() or (place / DECODER).is_file():
            return load_silent_cipher(place, message)
    if any(folder.glob(f"*{SUFFIX}")):
        return load_perth(folder)
    raise WeightError(f"{folder} holds no watermark that is known here, which would be {KNOWN}")
