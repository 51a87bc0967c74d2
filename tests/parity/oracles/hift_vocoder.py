"""CosyVoice's HiFT: small random weights of both forms in its layout, and the PCM of mel frames.

In float64, so that its sums of phases over an utterance are exact; with the noise and the first
phases that it is given, where it would draw.
"""

import sys
from pathlib import Path

import torch
from cosyvoice_stubs import stub_cosyvoice_libraries
from safetensors.torch import load_file, save_file

stub_cosyvoice_libraries()
from cosyvoice.hifigan.f0_predictor import ConvRNNF0Predictor  # noqa: E402
from cosyvoice.hifigan.generator import HiFTGenerator  # noqa: E402

N_MELS = 12
FORMS = {
    24_000: {
        "upsample_rates": [8, 5, 3],
        "upsample_kernel_sizes": [16, 11, 7],
        "source_resblock_kernel_sizes": [7, 7, 11],
        "source_resblock_dilation_sizes": [[1, 3, 5]] * 3,
    },
    22_050: {
        "upsample_rates": [8, 8],
        "upsample_kernel_sizes": [16, 16],
        "source_resblock_kernel_sizes": [7, 11],
        "source_resblock_dilation_sizes": [[1, 3, 5]] * 2,
    },
}


def make(rate_hz: int, n_mels: int = N_MELS) -> HiFTGenerator:
    """A vocoder whose pitch wanders between no voice and some 300 Hz."""
    torch.manual_seed(5)
    model = HiFTGenerator(
        in_channels=n_mels,
        base_channels=32,
        nb_harmonics=8,
        sampling_rate=rate_hz,
        f0_predictor=ConvRNNF0Predictor(in_channels=n_mels, cond_channels=16),
        **FORMS[rate_hz],
    ).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("alpha"):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith("original0") and not name.startswith("conv_post"):
                tensor.uniform_(0.4, 0.8)
            elif name.startswith("conv_post") and name.endswith("original0"):
                tensor.fill_(1.0)
            elif name.startswith("m_source"):
                tensor.normal_()
            elif name.startswith("source_downs"):
                tensor.normal_(std=0.05)
        model.f0_predictor.classifier.weight.normal_(std=600.0)
        model.f0_predictor.classifier.bias.fill_(20.0)
    return model


def patch(model: HiFTGenerator, noise: torch.Tensor, phases: torch.Tensor) -> None:
    """Given noise `(n, waves)` and first phases `(waves,)` in cycles in place of draws."""

    def randn_like(x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] == noise.shape[1]:
            return noise[: x.shape[1]].to(x).expand(len(x), -1, -1)
        if x.shape[1] == noise.shape[1]:
            return noise[: x.shape[2]].to(x).T.expand(len(x), -1, -1)
        return torch.zeros_like(x)  # The noise that is not used.

    class Given:
        def __init__(self, **limits: float) -> None:
            pass

        def sample(self, sample_shape: tuple[int, ...]) -> torch.Tensor:
            return (2 * torch.pi * phases.double()).view(1, -1, 1).repeat(sample_shape[0], 1, 1)

    import cosyvoice.hifigan.generator as module

    module.Uniform = Given
    torch.randn_like = randn_like
    model.double()
    model.stft_window = model.stft_window.double()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    outputs = {}
    for rate_hz in FORMS:
        model = make(rate_hz)
        tensors = {f"generator.{name}": tensor for name, tensor in model.state_dict().items()}
        torch.save(tensors, folder / f"hift_{rate_hz}.pt")
        torch.set_default_dtype(torch.float64)
        patch(model, inputs["noise"], inputs["phases"])
        for n_frames in inputs["lengths"].tolist():
            mel = inputs["mel"][:, :, :n_frames].double()
            with torch.no_grad():
                outputs[f"f0_{rate_hz}_{n_frames}"] = model.f0_predictor(mel).float()
                outputs[f"pcm_{rate_hz}_{n_frames}"] = model.inference(mel)[0].float()
        torch.set_default_dtype(torch.float32)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
