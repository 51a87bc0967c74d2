"""CosyVoice's causal flow matching: small random weights in its layout, and what it solves."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from cosyvoice_stubs import stub_cosyvoice_libraries
from safetensors.torch import load_file, save_file

stub_cosyvoice_libraries()
from cosyvoice.flow.decoder import CausalConditionalDecoder  # noqa: E402
from cosyvoice.flow.flow_matching import CausalConditionalCFM  # noqa: E402

N_MELS = 80
SETTINGS = SimpleNamespace(
    sigma_min=1e-06,
    solver="euler",
    t_scheduler="cosine",
    training_cfg_rate=0.2,
    inference_cfg_rate=0.7,
    reg_loss_type="l1",
)


def make() -> CausalConditionalCFM:
    """The decoder, every weight drawn."""
    estimator = CausalConditionalDecoder(
        in_channels=4 * N_MELS,
        out_channels=N_MELS,
        channels=[32],
        dropout=0.0,
        attention_head_dim=8,
        n_blocks=2,
        num_mid_blocks=2,
        num_heads=2,
        act_fn="gelu",
        static_chunk_size=10,
    )
    model = CausalConditionalCFM(
        in_channels=3 * N_MELS,
        cfm_params=SETTINGS,
        n_spks=1,
        spk_emb_dim=N_MELS,
        estimator=estimator,
    ).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(std=0.1)
            elif tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(std=1.0 / tensor[0].numel() ** 0.5)
    return model


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make()
    torch.save(model.state_dict(), folder / "flow.pt")
    outputs = {"noise": model.rand_noise[0]}
    for row, n_frames in enumerate(inputs["n_valid"].tolist()):
        given = {
            "mu": inputs["mu"][row : row + 1, :, :n_frames],
            "mask": torch.ones(1, 1, n_frames),
            "spks": inputs["speaker"][row : row + 1],
            "cond": inputs["known"][row : row + 1, :, :n_frames],
        }
        for name, is_chunked in (("chunked", True), ("whole", False)):
            with torch.no_grad():
                mel, _ = model(n_timesteps=10, streaming=is_chunked, **given)
            outputs[f"{name}{row}"] = mel[0]
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
