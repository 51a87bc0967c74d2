"""Step-Audio 2's token2wav without its package's own imports, which want everything it can do."""

import os
import sys
from pathlib import Path

from cosyvoice_stubs import hann
from stubs import Nothing, stub_libraries

NAMES = ("onnxruntime", "scipy", "scipy.signal")


def stub_step_libraries() -> None:
    """Call before the first import of `stepaudio2`."""
    stub_libraries(NAMES)
    sys.modules["scipy.signal"].get_window = hann
    package = sys.modules["stepaudio2"] = Nothing("stepaudio2")
    package.__path__ = [str(Path(os.environ["PYTHONPATH"]) / "stepaudio2")]
