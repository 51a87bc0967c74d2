"""Chatterbox's S3Gen, made small: its file, what it hears of a recording, and the sound of tokens.

The width of its encoder and its four upsampling layers are fixed in the class. The noise of the
flow, that of the vocoder's source, and its first phases are given, where it would draw; the vocoder
runs in float64, so that its sums of phases over an utterance are exact. The file is that of Turbo
where there is `is_mean`.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from audio_stubs import open_packages
from safetensors.torch import load_file, save_file
from stubs import stub_libraries

open_packages()
# It needs diffusers too, which is there for CosyVoice, and which looks for SciPy and would take a
# stand-in for it.
sys.path.append(str(Path(os.environ["PYTHONPATH"]).parent / "cosyvoice"))
import diffusers.models.attention  # noqa: E402
import diffusers.models.lora  # noqa: E402, F401
from transformers.audio_utils import mel_filter_bank  # noqa: E402

stub_libraries(("conformer", "librosa", "librosa.filters", "omegaconf", "scipy", "scipy.signal"))


def _mel(sr: int, n_fft: int, n_mels: int, fmin: float = 0, fmax: float | None = None) -> object:
    """As `librosa.filters.mel`."""
    bank = mel_filter_bank(
        n_fft // 2 + 1, n_mels, fmin, fmax or sr / 2, sr, norm="slaney", mel_scale="slaney"
    )
    return bank.T.astype(np.float32)


def _hann(name: str, size: int, fftbins: bool) -> object:
    """As `scipy.signal.get_window`, for the one window that is asked for."""
    assert name == "hann"
    return torch.hann_window(size, periodic=fftbins, dtype=torch.float64).numpy()


sys.modules["librosa.filters"].mel = _mel
sys.modules["conformer"].ConformerBlock = object
sys.modules["omegaconf"].DictConfig = dict
sys.modules["scipy.signal"].get_window = _hann

import chatterbox.models.s3gen.hifigan as hifigan  # noqa: E402
import chatterbox.models.s3gen.s3gen as module  # noqa: E402
from s3tokenizer.model_v2 import ModelConfig, S3TokenizerV2  # noqa: E402

N_F0 = 16
TOKENIZER = ModelConfig(n_audio_state=128, n_audio_head=2, n_audio_layer=1)


def _smaller(made: Callable, **sizes: object) -> Callable:
    return lambda **given: made(**{**given, **sizes})


def make(is_mean: bool) -> module.S3Token2Wav:
    """Every weight drawn; a pitch that wanders between no voice and some 300 Hz."""
    S3TokenizerV2.__init__.__defaults__ = (TOKENIZER,)
    module.UpsampleConformerEncoder = _smaller(
        module.UpsampleConformerEncoder, attention_heads=4, linear_units=64, num_blocks=1
    )
    module.ConditionalDecoder = _smaller(
        module.ConditionalDecoder, channels=[32], n_blocks=1, num_mid_blocks=1, num_heads=1
    )
    module.ConvRNNF0Predictor = partial(module.ConvRNNF0Predictor, cond_channels=N_F0)
    module.HiFTGenerator = _smaller(module.HiFTGenerator, base_channels=32)
    torch.manual_seed(31)
    model = module.S3Token2Wav(meanflow=is_mean).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            draw(name, tensor)
        for name, tensor in model.speaker_encoder.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(std=0.2)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
        model.mel2wav.f0_predictor.classifier.weight.normal_(std=600.0)
        model.mel2wav.f0_predictor.classifier.bias.fill_(20.0)
        spread(model.tokenizer)
    return model


def draw(name: str, tensor: torch.Tensor) -> None:
    """Values of a part that is not left as it was made."""
    if name.startswith("flow."):
        if name.endswith("bias"):
            tensor.normal_(std=0.1)
        elif "pos_bias" in name:
            tensor.normal_(std=0.5)
        elif tensor.dim() == 1:
            tensor.uniform_(0.5, 1.5)
        else:
            tensor.normal_(std=1.0 / tensor[0].numel() ** 0.5)
    elif name.startswith("mel2wav."):
        if name.endswith("alpha"):
            tensor.uniform_(0.5, 2.0)
        elif name.endswith("original0"):
            tensor.fill_(1.0) if "conv_post" in name else tensor.uniform_(0.4, 0.8)
        elif "m_source" in name:
            tensor.normal_()
        elif "source_downs" in name:
            tensor.normal_(std=0.05)


def spread(tokenizer: S3TokenizerV2) -> None:
    """Let its eight numbers take all of their three levels."""
    mel = torch.randn(1, 128, 400)
    rows = tokenizer.encoder(mel, torch.tensor([400]))[0][0]
    projection = tokenizer.quantizer._codebook.project_down
    projection.weight.div_((rows @ projection.weight.T).std(0).unsqueeze(1))
    projection.bias.copy_(-(rows @ projection.weight.T).mean(0))


def give_noise(noise: torch.Tensor, phases: torch.Tensor) -> None:
    """Noise `(n, waves)` of the vocoder's source and first phases `(waves,)` in place of draws."""

    def randn_like(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == noise.shape[1]:
            return noise[: x.shape[2]].to(x).T.expand(len(x), -1, -1)
        return torch.zeros_like(x)  # The noise that is not used.

    class Given:
        def __init__(self, **limits: float) -> None:
            pass

        def sample(self, sample_shape: tuple[int, ...]) -> torch.Tensor:
            return (2 * torch.pi * phases.double()).view(1, -1, 1).repeat(sample_shape[0], 1, 1)

    hifigan.Uniform = Given
    torch.randn_like = randn_like


def speak(model: module.S3Token2Wav, inputs: dict, ref: dict) -> dict:
    """Mel frames and PCM of tokens behind a reference."""
    tokens = inputs["tokens"]
    n_frames = 2 * (tokens.shape[1] + ref["prompt_token"].shape[1])
    noise = inputs["flow_noise"][None, :, :n_frames]
    torch.randn_like = lambda x: noise.expand_as(x)
    # What Turbo draws besides, for the frames behind the prompt's.
    torch.randn = lambda *shape, **rest: noise[:, :, n_frames - shape[2] :]
    mel = model.flow_inference(tokens, ref_dict=dict(ref), finalize=True)
    torch.set_default_dtype(torch.float64)
    give_noise(inputs["noise"], inputs["phases"])
    vocoder = model.mel2wav.double()
    vocoder.stft_window = vocoder.stft_window.double()
    pcm = vocoder.inference(mel.double())[0].clone()
    torch.set_default_dtype(torch.float32)
    pcm[:, : len(model.trim_fade)] *= model.trim_fade
    return {"mel": mel, "pcm": pcm.float()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    outputs = {}
    with torch.no_grad():
        is_mean = "is_mean" in inputs
        model = make(is_mean)
        path = folder / ("s3gen_meanflow.safetensors" if is_mean else "s3gen.safetensors")
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        save_file(state, path)
        # torchaudio's resampler cannot be loaded here: the recording comes at both rates.
        module.get_resampler = lambda *rates: lambda pcm: inputs["recording_16k"][None]
        heard = model.embed_ref(inputs["recording"], 24_000, device=torch.device("cpu"))
        outputs = {k: v for k, v in heard.items() if torch.is_tensor(v)}
        outputs |= speak(model, inputs, heard)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
