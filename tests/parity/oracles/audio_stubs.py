"""The references of what hears, without their packages' own imports.

torchaudio would load libraries built for CUDA, and Chatterbox wants everything it can do: their
folders are made known, so that single modules of them can be imported.
"""

import os
import sys
from pathlib import Path

from stubs import stub_libraries

PACKAGES = ("torchaudio", "chatterbox", "chatterbox.models", "chatterbox.models.s3gen")


def open_packages() -> None:
    """Call before the first import of `transformers`, which would load torchaudio."""
    stub_libraries(PACKAGES)
    for name in PACKAGES:
        sys.modules[name].__path__ = [str(Path(os.environ["PYTHONPATH"], *name.split(".")))]
