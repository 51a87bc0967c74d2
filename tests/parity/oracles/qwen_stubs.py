"""Empty stand-ins for sound libraries that `qwen-tts` imports and its models do not use."""

import sys
import types
from importlib.machinery import ModuleSpec

NAMES = (
    "accelerate",
    "librosa",
    "librosa.filters",
    "onnxruntime",
    "soundfile",
    "sox",
    "torchaudio",
    "torchaudio.compliance",
    "torchaudio.compliance.kaldi",
)


class Nothing(types.ModuleType):
    """A module in which every name is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def stub_sound_libraries() -> None:
    """Call before the first import of `qwen_tts`."""
    for name in NAMES:
        module = sys.modules[name] = Nothing(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
