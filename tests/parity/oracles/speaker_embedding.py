"""Chatterbox's CAM++ with random weights, as tensors and as ONNX, and vectors of recordings.

`bands_<n>`: Kaldi's filter bank of torchaudio. It is of the one size that its class has.
"""

import sys
from pathlib import Path

import torch
from audio_stubs import open_packages
from safetensors.torch import load_file, save_file

open_packages()
import torchaudio.compliance.kaldi as kaldi  # noqa: E402
from chatterbox.models.s3gen.xvector import CAMPPlus  # noqa: E402

folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = load_file(folder / "inputs.safetensors")
torch.manual_seed(4)
model = CAMPPlus(memory_efficient=False).eval()
with torch.no_grad():
    for name, tensor in model.state_dict().items():
        if name.endswith("running_mean"):
            tensor.normal_(std=0.2)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif "batchnorm" in name and tensor.is_floating_point():
            tensor.normal_(std=0.1).add_(1.0 if name.endswith("weight") else 0.0)
save_file(model.state_dict(), folder / "campplus.safetensors")
torch.onnx.export(
    model,
    (torch.zeros(1, 200, 80),),
    str(folder / "campplus.onnx"),
    input_names=["input"],
    output_names=["output"],
    dynamic_axes={"input": {0: "batch", 1: "frames"}},
    dynamo=False,
)
outputs = {}
for n_samples in inputs["lengths"].tolist():
    pcm = inputs["pcm"][:n_samples]
    outputs[f"bands_{n_samples}"] = kaldi.fbank(pcm[None], num_mel_bins=80)
    with torch.no_grad():
        outputs[f"vector_{n_samples}"] = model.inference([pcm])[0]
save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
