"""Step-Audio 2's estimator: small random weights in its layout, and what it makes of frames.

With `x` (B, n_in, n), `times` and `chunks`: `whole<t>` of all frames at once, and `streamed<t>` of
chunks that remember those before them.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from step_stubs import stub_step_libraries

stub_step_libraries()
from stepaudio2.cosyvoice2.flow.decoder_dit import DiT  # noqa: E402

N_MELS, SIZE, DEPTH, N_HEADS, HEAD_DIM = 16, 32, 3, 2, 8


def make() -> DiT:
    """The estimator, every weight drawn: as it is made, its gates are shut."""
    model = DiT(
        in_channels=4 * N_MELS,
        out_channels=N_MELS,
        mlp_ratio=4.0,
        depth=DEPTH,
        num_heads=N_HEADS,
        head_dim=HEAD_DIM,
        hidden_size=SIZE,
    ).eval()
    torch.manual_seed(9)
    draw(model)
    # The published sizes are written into them.
    n_most = 400
    model.att_cache_buffer = torch.zeros(DEPTH, 2, N_HEADS, n_most, 2 * HEAD_DIM)
    model.cnn_cache_buffer = torch.zeros(DEPTH, 2, 2 * SIZE, 2)
    return model


def draw(model: torch.nn.Module) -> None:
    """Every weight by chance."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(std=0.1)
            elif "pos_bias" in name:
                tensor.normal_(std=0.5)
            elif tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(std=1.0 / tensor[0].numel() ** 0.5)


@torch.no_grad()
def streamed(model: DiT, x: torch.Tensor, time: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Chunks one after another."""
    given, att, cnn = [], None, None
    for part in x.split(chunks, dim=2):
        noisy, mu, speaker, known = part.split(N_MELS, dim=1)
        out, cnn, att = model.forward_chunk(
            noisy, mu, time, speaker[:, :, 0], known, cnn_cache=cnn, att_cache=att
        )
        given.append(out)
        # They are views of buffers that the next call writes to.
        att, cnn = att.clone(), cnn.clone()
    return torch.cat(given, dim=2)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    inputs = load_file(folder / "inputs.safetensors")
    torch.set_num_threads(1)
    model = make()
    torch.save(model.state_dict(), folder / "dit.pt")
    x, chunks = inputs["x"], inputs["chunks"].tolist()
    outputs = {}
    for idx, time in enumerate(inputs["times"]):
        moment = time.expand(len(x))
        noisy, mu, speaker, known = x.split(N_MELS, dim=1)
        mask = torch.ones(len(x), 1, x.shape[2])
        with torch.no_grad():
            outputs[f"whole{idx}"] = model(noisy, mask, mu, moment, speaker[:, :, 0], known)
        outputs[f"streamed{idx}"] = streamed(model, x, moment, chunks)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
