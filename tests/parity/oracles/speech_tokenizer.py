"""s3tokenizer's second version: small random weights as tensors and as ONNX, rows, and tokens."""

import sys
from pathlib import Path

import torch
from audio_stubs import open_packages
from safetensors.torch import load_file, save_file
from tokenizer_onnx import save_onnx

open_packages()
from s3tokenizer.model_v2 import ModelConfig, S3TokenizerV2  # noqa: E402
from s3tokenizer.utils import log_mel_spectrogram  # noqa: E402

CONFIG = ModelConfig(n_mels=80, n_audio_state=128, n_audio_head=2, n_audio_layer=2)


def make(mel: torch.Tensor) -> S3TokenizerV2:
    """Weights that make tokens of all kinds of `mel`."""
    # With this seed no level is nearer than 8e-5 to where it is rounded, on either side.
    torch.manual_seed(8)
    model = S3TokenizerV2("speech_tokenizer_v2_25hz", CONFIG).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(std=0.3)
            if name.endswith("ln.weight"):
                parameter.add_(1.0)
        rows = model.encoder(mel[None], torch.tensor([mel.shape[1]]))[0][0]
        projection = model.quantizer._codebook.project_down
        levels = rows @ projection.weight.T
        projection.weight.div_(levels.std(0).unsqueeze(1))
        projection.bias.copy_(-(rows @ projection.weight.T).mean(0))
    return model


folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = load_file(folder / "inputs.safetensors")
model = make(log_mel_spectrogram(inputs["pcm"][:480_000], n_mels=CONFIG.n_mels))
state = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
save_file(state, folder / "tokenizer.safetensors")
save_onnx(state, folder / "speech_tokenizer_v2.onnx")
again = S3TokenizerV2("speech_tokenizer_v2_25hz", CONFIG)
again.init_from_onnx(str(folder / "speech_tokenizer_v2.onnx"))
assert all(torch.equal(x, state[key]) for key, x in again.state_dict().items())
outputs = {}
for n_samples in inputs["lengths"].tolist():
    mel = log_mel_spectrogram(inputs["pcm"][:n_samples], n_mels=CONFIG.n_mels)
    n_frames = torch.tensor([mel.shape[1]])
    with torch.no_grad():
        codes, n_codes = model.quantize(mel[None], n_frames)
        outputs[f"tokens_{n_samples}"] = codes[0, : n_codes[0]].long()
        if mel.shape[1] <= 3000:
            outputs[f"rows_{n_samples}"] = model.encoder(mel[None], n_frames)[0][0]
save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
