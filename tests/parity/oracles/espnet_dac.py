"""`espnet` 202611: a small random DAC checkpoint in its layout, decoded and encoded."""

import sys
from pathlib import Path

import torch
import yaml
from espnet_stubs import stub_espnet_libraries
from safetensors.torch import load_file, save_file

stub_espnet_libraries()
from espnet2.gan_codec.dac.dac import DACGenerator  # noqa: E402

RATE_HZ = 16_000
GENERATOR = {
    "hidden_dim": 24,
    "codebook_dim": 24,
    "encdec_channels": 1,
    "encdec_n_filters": 4,
    "encdec_n_residual_layers": 3,
    "encdec_ratios": [8, 5, 4, 2],
    "encdec_activation": "Snake",
    "encdec_activation_params": {},
    "encdec_norm": "weight_norm",
    "encdec_norm_params": {},
    "encdec_kernel_size": 7,
    "encdec_residual_kernel_size": 7,
    "encdec_last_kernel_size": 7,
    "encdec_dilation_base": 2,
    "encdec_causal": False,
    "encdec_pad_mode": "reflect",
    "encdec_true_skip": False,
    "encdec_compress": 2,
    "encdec_lstm": 2,
    "decoder_trim_right_ratio": 1.0,
    "decoder_final_activation": None,
    "decoder_final_activation_params": None,
    "quantizer_n_q": 8,
    "quantizer_bins": 64,
    "quantizer_decay": 0.99,
    "quantizer_kmeans_init": False,
    "quantizer_kmeans_iters": 50,
    "quantizer_threshold_ema_dead_code": 2,
    "quantizer_target_bandwidth": [1.2, 2.4],
    "quantizer_dropout": True,
}


def make(folder: Path, *, code_dim: int) -> DACGenerator:
    """The checkpoint as training saves it: the generator beside a discriminator and a loss."""
    torch.manual_seed(8)
    settings = {**GENERATOR, "codebook_dim": code_dim}
    model = DACGenerator(sample_rate=RATE_HZ, **settings).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("_codebook.embed"):
                tensor.normal_(std=0.5)
            elif name.endswith("alpha"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith(("bias", "bias_ih_l0", "bias_hh_l0", "bias_ih_l1", "bias_hh_l1")):
                tensor.normal_(std=0.1)
            elif "lstm.weight" in name:
                tensor.normal_(std=0.5)
            elif name.endswith("original0"):
                tensor.uniform_(0.5, 1.0)
        last = model.decoder.model[-1].conv.conv.parametrizations.weight.original0
        last.fill_(2.0)
    held = {f"codec.generator.{name}": tensor for name, tensor in model.state_dict().items()}
    held["codec.discriminator.msmpmb_discriminator.weight"] = torch.zeros(2)
    held["codec.mel_loss.mel_loss.0.logmel.melmat"] = torch.zeros(2)
    folder.mkdir(exist_ok=True)
    torch.save(held, folder / "360epoch.pth")
    config = {
        "codec": "dac",
        "codec_conf": {"sampling_rate": RATE_HZ, "generator_params": settings},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make(folder / "codec", code_dim=24)
    narrow = make(folder / "narrow", code_dim=8)
    codes = inputs["codes"].permute(2, 0, 1)
    outputs = {}
    with torch.no_grad():
        for n_frames in inputs["lengths"].tolist():
            outputs[f"pcm{n_frames}"] = model.decode(codes[:, :, :n_frames])[:, 0]
        outputs["narrow"] = narrow.decode(codes)[:, 0]
        for n_samples in inputs["cuts"].tolist():
            pcm = inputs["pcm"][:, None, :n_samples]
            outputs[f"codes{n_samples}"] = model.encode(pcm).permute(1, 2, 0)
        outputs["narrow_codes"] = narrow.encode(inputs["pcm"][:, None]).permute(1, 2, 0)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
