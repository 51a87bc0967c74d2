"""Small random Step-Audio 2 checkpoint folders, with token2wav and a voice."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from tests.models.audio.tiny import write_camplus_onnx, write_speech_tokenizer_onnx
from tests.parity.oracle import ask

VOICE_S, VOICE_RATE_HZ = 1.7, 22_050


def make_checkpoint(folder: Path) -> Path:
    """LM, what hears, token2wav, and the default voice."""
    ask("step_lm", folder)
    ask("step_token2wav", folder, apart="step")
    write_speech_tokenizer_onnx(folder / "token2wav" / "speech_tokenizer_v2_25hz.onnx")
    write_camplus_onnx(folder / "token2wav" / "campplus.onnx")
    (folder / "assets").mkdir()
    write_voice(folder / "assets" / "default_female.wav")
    return folder


def write_voice(path: Path, seed: int = 0) -> None:
    """A recording that is nowhere silent."""
    n_samples = round(VOICE_S * VOICE_RATE_HZ)
    pcm = 0.2 * np.random.default_rng(seed).standard_normal(n_samples)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(VOICE_RATE_HZ)
        file.writeframes((pcm.clip(-1, 1) * 32_767).astype("<i2").tobytes())
