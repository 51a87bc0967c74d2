"""Small random marks, whole, and in folders laid out as the published ones."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

from models.spec import FrameSpec
from models.watermark.perth import Encoder as PerthEncoder
from models.watermark.perth import Perth, PerthConfig
from models.watermark.silent_cipher import CipherConfig, Decoder, Encoder, SilentCipher
from models.watermark.stage import Stage

MESSAGE = bytes([212, 211, 146, 56, 201])
CIPHER = CipherConfig(
    rate_hz=44_100, n_fft=256, n_hop=128, n_band=64, n_encoder=3, n_decoder=4, period=21
)
CIPHER_HPARAMS = {
    "SR": 44_100,
    "N_FFT": 256,
    "HOP_LENGTH": 128,
    "message_band_size": 64,
    "message_dim": 5,
    "message_len": 21,
    "message_sdr": 47,
    "n_messages": 1,
    "enc_n_layers": 3,
    "dec_c_n_layers": 4,
    "ensure_negative_message": True,
    "ensure_constrained_message": False,
    "frame_level_normalization": False,
    "utterance_level_normalization": True,
    "no_normalization": False,
}
PERTH = PerthConfig(rate_hz=32_000, n_fft=128, n_hop=20, n_band=12, width=16, least=1e-9)
PERTH_HPARAMS = {
    "sample_rate": 32_000,
    "n_fft": 128,
    "window_size": 128,
    "hop_size": 20,
    "window_fn": "hann",
    "stft_magnitude_min": 1e-9,
    "max_wmark_freq": 3000,
    "hidden_size": 16,
}


def make_cipher(message: bytes = MESSAGE) -> SilentCipher:
    encoder, decoder = _cipher_parts()
    return SilentCipher(CIPHER, encoder, decoder, message)


def make_perth() -> Perth:
    return Perth(PERTH, _perth_encoder())


MARKS = {"cipher": make_cipher, "perth": make_perth}


def frame(rate_hz: int, samples: int) -> FrameSpec:
    return FrameSpec(
        n_codebooks=1,
        frame_rate_hz=rate_hz / samples,
        sample_rate_hz=rate_hz,
        samples_per_frame=samples,
    )


def start(stage: Stage, n_streams: int) -> dict[str, Tensor]:
    """The state of streams before their first chunk."""
    return {
        part.name: torch.zeros(n_streams, *part.shape, dtype=getattr(torch, part.dtype))
        for part in stage.states
    }


@torch.inference_mode()
def whole(stage: Stage, pcm: Tensor) -> Tensor:
    """Signals `(B, n)` with the mark, in one call."""
    n_samples = torch.full((len(pcm),), pcm.shape[1])
    is_last = torch.ones(len(pcm), dtype=torch.bool)
    marked, n_given, _ = stage(pcm, n_samples, start(stage, len(pcm)), is_last)
    assert torch.equal(n_given, n_samples)
    return marked[:, : pcm.shape[1]]


def make_cipher_folder(folder: Path) -> Path:
    """As sony/silentcipher has it; a part was saved by several GPUs at once."""
    encoder, decoder = _cipher_parts()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hparams.yaml").write_text(yaml.safe_dump(CIPHER_HPARAMS))
    torch.save(encoder.state_dict(), folder / "enc_c.ckpt")
    parallel = {f"module.{key}": tensor for key, tensor in decoder.state_dict().items()}
    torch.save(parallel, folder / "dec_c.ckpt")
    return folder


def make_perth_folder(folder: Path) -> Path:
    """As resemble-perth has it: with what finds the mark, and an older step beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hparams.yaml").write_text(yaml.safe_dump(PERTH_HPARAMS))
    held = {f"encoder.{key}": one for key, one in _perth_encoder().state_dict().items()}
    held["decoder.slow_layers.0.conv.bias"] = torch.zeros(16)
    held["ap.spectrogram.window"] = torch.hann_window(128)
    torch.save({"model": held, "step": 250}, folder / "perth_net_000250.pth.tar")
    torch.save({"model": {}, "step": 90}, folder / "perth_net_000090.pth.tar")
    return folder


def _cipher_parts() -> tuple[Encoder, Decoder]:
    torch.manual_seed(1)
    encoder, decoder = Encoder(CIPHER), Decoder(CIPHER)
    with torch.no_grad():
        for layer in (*encoder.modules(), *decoder.modules()):
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_(std=0.3)
                layer.running_var.uniform_(0.5, 2.0)
    return encoder, decoder


def _perth_encoder() -> PerthEncoder:
    torch.manual_seed(2)
    encoder = PerthEncoder(PERTH)
    with torch.no_grad():
        # Changes of a few dB, as trained ones make.
        encoder.layers[-1].conv.weight.mul_(0.2)
        encoder.layers[-1].conv.bias.mul_(0.2)
    return encoder
