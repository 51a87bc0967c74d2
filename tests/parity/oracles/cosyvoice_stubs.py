"""Stand-ins for libraries that CosyVoice's codec classes import and hardly use."""

import sys

import torch
from stubs import stub_libraries

NAMES = (
    "conformer",
    "matcha.utils",
    "matcha.utils.pylogger",
    "omegaconf",
    "scipy",
    "scipy.signal",
    "torchaudio",
)


def stub_cosyvoice_libraries() -> None:
    """Call before the first import of `cosyvoice`."""
    # These look whether SciPy is there, and would take a stand-in for it.
    import diffusers.models.attention
    import diffusers.models.lora  # noqa: F401
    import matcha

    stub_libraries(NAMES)
    matcha.utils = sys.modules["matcha.utils"]
    sys.modules["matcha.utils.pylogger"].get_pylogger = lambda name: None
    sys.modules["conformer"].ConformerBlock = object
    sys.modules["omegaconf"].DictConfig = dict
    sys.modules["scipy.signal"].get_window = hann


def hann(name: str, size: int, fftbins: bool) -> object:
    """What `scipy.signal.get_window` gives for the one window that is asked for."""
    assert name == "hann"
    return torch.hann_window(size, periodic=fftbins, dtype=torch.float64).numpy()
