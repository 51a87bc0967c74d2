"""Empty stand-ins for sound libraries that `qwen-tts` imports and its models do not use."""

from stubs import stub_libraries

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


def stub_sound_libraries() -> None:
    """Call before the first import of `qwen_tts`."""
    stub_libraries(NAMES)
