"""Stage `codec`: coordinates of latents in which squared error means what the vocoder hears.

No network: latents minus their mean, times the root of M = sum of W_k^T W_k over the taps of the
vocoder's first convolution, four frames stacked, and a principal component analysis.
"""

import numpy as np

from models.pico.training.common import FRAMES_PER_STEP, LATENT, WORK, console, save_npz
from models.pico.training.synth import shard_path

DIMS = 128
_RIDGE = 0.02
_N_SHARDS = 6


def weighting(conv_pre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the symmetric root of M (192, 192) and its inverse, from weights (256, 192, 7)."""
    m = np.einsum("oik,ojk->ij", conv_pre, conv_pre).astype(np.float64)
    values, vectors = np.linalg.eigh(m + _RIDGE * np.trace(m) / len(m) * np.eye(len(m)))
    root = (vectors * np.sqrt(values)) @ vectors.T
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    return root, inverse


def stack(latents: np.ndarray, shift: int = 0) -> np.ndarray:
    """Cut latents (n_frames, 192) into steps (n_steps, 768); the last frame fills the last step."""
    cut = latents[shift:]
    missing = -len(cut) % FRAMES_PER_STEP
    padded = np.concatenate([cut, np.repeat(cut[-1:], missing, axis=0)]) if missing else cut
    return padded.reshape(-1, FRAMES_PER_STEP * LATENT)


def encode(latents: np.ndarray, codec: dict[str, np.ndarray], shift: int = 0) -> np.ndarray:
    """Return coordinates (n_steps, 128) of latents (n_frames, 192)."""
    seen = (latents.astype(np.float32) - codec["zm"]) @ codec["L"]
    out: np.ndarray = (stack(seen, shift) - codec["mu"]) @ codec["P"]
    return out


def decode(coordinates: np.ndarray, codec: dict[str, np.ndarray]) -> np.ndarray:
    """Return latents (4 n_steps, 192) of coordinates (n_steps, 128)."""
    seen = (coordinates @ codec["P"].T + codec["mu"]).reshape(-1, LATENT)
    out: np.ndarray = seen @ codec["Li"] + codec["zm"]
    return out


def load() -> dict[str, np.ndarray]:
    """Load the fitted constants: zm, L, Li, mu, P (float32)."""
    with np.load(WORK / "codec.npz") as data:
        return dict(data)


def run() -> None:
    """Fit on the first shards of speech; write training-work/codec.npz."""
    # Here and not above: the rest of this file works without the `train` extra.
    from models.pico.training.teacher import vocoder_tensors

    latents = []
    root, inverse = weighting(vocoder_tensors()["conv_pre.weight"])
    for shard in range(_N_SHARDS):
        with np.load(shard_path(shard)) as data:
            latents.append(data["latents"].astype(np.float32))
    zm = np.concatenate(latents).mean(0)
    stacks = [stack((part - zm) @ root.astype(np.float32)) for part in latents]
    flat = np.concatenate(stacks).astype(np.float64)
    mu = flat.mean(0)
    values, vectors = np.linalg.eigh(np.cov(flat - mu, rowvar=False))
    kept = values[::-1].cumsum() / values.sum()
    save_npz(
        WORK / "codec.npz",
        zm=zm.astype(np.float32), L=root.astype(np.float32), Li=inverse.astype(np.float32),
        mu=mu.astype(np.float32), P=vectors[:, ::-1][:, :DIMS].astype(np.float32),
    )  # fmt: skip
    console.print(f"codec: {len(flat)} steps; variance in 16 / 32 / 64 / 128 dims "
                  f"{kept[15]:.4f} {kept[31]:.4f} {kept[63]:.4f} {kept[DIMS - 1]:.5f}")  # fmt: skip
