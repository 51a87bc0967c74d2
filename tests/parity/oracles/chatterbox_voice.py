"""Chatterbox's voice encoder: small random weights of it, and its vectors of recordings.

The class is the reference's own; what it takes of librosa is composed here, from `transformers`'
mel filters, torch's Fourier transform, and the cutting of soft ends written out.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from audio_stubs import open_packages
from safetensors.torch import load_file, save_file
from stubs import stub_libraries

open_packages()
from transformers.audio_utils import mel_filter_bank  # noqa: E402

stub_libraries(("librosa", "scipy", "scipy.signal"))
from chatterbox.models.voice_encoder import voice_encoder as module  # noqa: E402


def mel(sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> np.ndarray:
    """As `librosa.filters.mel`."""
    filters = mel_filter_bank(
        n_fft // 2 + 1, n_mels, fmin, fmax, sr, norm="slaney", mel_scale="slaney"
    )
    return filters.T.astype(np.float32)


def stft(y: np.ndarray, n_fft: int, hop_length: int, win_length: int, **rest: object) -> np.ndarray:
    """As `librosa.stft`, centred and mirrored."""
    assert rest == {"center": True, "pad_mode": "reflect"}
    window = torch.hann_window(win_length)
    waves = torch.stft(
        torch.from_numpy(y), n_fft, hop_length, win_length, window, return_complex=True
    )
    return waves.numpy()


def trim(y: np.ndarray, top_db: float) -> tuple[np.ndarray, None]:
    """As `librosa.effects.trim`."""
    padded = np.pad(y, 1024)
    n = 1 + (len(padded) - 2048) // 512
    rms = np.array([np.sqrt(np.mean(padded[512 * k : 512 * k + 2048] ** 2)) for k in range(n)])
    decibels = 20 * np.log10(np.maximum(rms, 1e-5)) - 20 * np.log10(np.maximum(rms.max(), 1e-5))
    loud = np.flatnonzero(decibels > -top_db)
    return y[loud[0] * 512 : min(len(y), (loud[-1] + 1) * 512)], None


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    librosa = sys.modules["librosa"]
    librosa.filters = type("filters", (), {"mel": staticmethod(mel)})
    librosa.effects = type("effects", (), {"trim": staticmethod(trim)})
    librosa.stft = stft
    torch.manual_seed(23)
    model = module.VoiceEncoder().eval()
    with torch.no_grad():
        for tensor in model.lstm.parameters():
            tensor.normal_(std=0.15)
        model.proj.weight.normal_(std=0.2)
    save_file(model.state_dict(), folder / "ve.safetensors")
    outputs = {"none": torch.zeros(1)}
    for name, pcm in inputs.items():
        outputs[name] = torch.from_numpy(model.embeds_from_wavs([pcm.numpy()], 16_000)[0])
    save_file(outputs, folder / "outputs.safetensors")
