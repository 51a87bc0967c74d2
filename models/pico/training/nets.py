"""The networks as they are trained: language model and post-net (FORMAT.md has the formulas).

The run-time has its own versions with caches; tensor names are those of the shipped files.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the usual name)

from models.pico.training.common import ABSENT, N_CODES, STAY_ENDED, WINDOW

_EPS = 1e-5
_THETA = 1e4


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain `w`."""

    def __init__(self, width: int) -> None:
        """Start as the plain norm."""
        super().__init__()
        self.w = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x, (x.shape[-1],), self.w, _EPS)


def rotary_tables(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each (..., head_dim / 2), of integer `positions` (...)."""
    rate = _THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = positions.float().unsqueeze(-1) * rate
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn half-split pairs of x (B, heads, L, head_dim) by tables that broadcast to it."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """One pre-norm Transformer layer."""

    def __init__(self, width: int, n_heads: int, ff: int) -> None:
        """Make the layer; no biases."""
        super().__init__()
        self.n_heads = n_heads
        self.n1, self.n2 = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gu = nn.Linear(width, 2 * ff, bias=False)
        self.dn = nn.Linear(ff, width, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, each (B, heads, L, head_dim)."""
        batch, length, width = x.shape
        shape = (batch, length, self.n_heads, width // self.n_heads)
        q, k, v = (t.reshape(shape).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, dim=-1))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add attention (B, heads, L, head_dim) and the feed-forward part to x."""
        x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
        gate, up = self.gu(self.n2(x)).chunk(2, dim=-1)
        out: Tensor = x + self.dn(F.silu(gate) * up)
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Run the layer over whole sequences, causal."""
        q, k, v = self.project(x, cos, sin)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))


class SpeechLM(nn.Module):
    """Text units in, then one row a step: advance and codes out."""

    def __init__(
        self,
        *,
        vocab: int,
        n_books: int,
        width: int = 256,
        n_layers: int = 4,
        n_heads: int = 4,
        ff: int = 704,
    ) -> None:
        """Make the model with small random weights."""
        super().__init__()
        self.sizes = {"vocab": vocab, "S": n_books, "K": N_CODES, "d": width, "L": n_layers,
                      "heads": n_heads, "ff": ff}  # fmt: skip
        self.temb = nn.Embedding(vocab, width)
        self.wemb = nn.ModuleList(nn.Embedding(vocab, width) for _ in WINDOW)
        self.semb = nn.Embedding(STAY_ENDED + 1, width)
        self.cemb = nn.ModuleList(nn.Embedding(N_CODES + 1, width) for _ in range(n_books))
        self.blocks = nn.ModuleList(Block(width, n_heads, ff) for _ in range(n_layers))
        self.nf = RMSNorm(width)
        self.ahead = nn.Linear(width, 5, bias=False)
        self.heads = nn.ModuleList(nn.Linear(width, N_CODES, bias=False) for _ in range(n_books))
        self.head_dim = width // n_heads
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                scale = (2 * n_layers) ** -0.5 if name.endswith(("o.weight", "dn.weight")) else 1.0
                std = 0.02 if "emb" in name or "head" in name else width**-0.5
                nn.init.normal_(weight, std=std * scale)

    def layers(self) -> list[Block]:
        """Return the layers with their own type."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def audio_rows(self, window: Tensor, stay: Tensor, codes: Tensor) -> Tensor:
        """Embed audio rows: window (..., 5), stay (...), delayed codes (..., S) -> (..., d)."""
        x: Tensor = self.semb(stay)
        for j, table in enumerate(self.wemb):
            x = x + table(window[..., j])
        for i, table in enumerate(self.cemb):
            x = x + table(codes[..., i])
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Run embedded rows (B, L, d) at positions 0 .. L-1; return the normed output."""
        cos, sin = rotary_tables(torch.arange(x.shape[1]), self.head_dim)
        for block in self.blocks:
            x = block(x, cos, sin)
        out: Tensor = self.nf(x)
        return out


class PostBlock(nn.Module):
    """RMS norm, dilated convolution with some look-ahead, SiLU, 1x1, added."""

    def __init__(self, width: int, dilation: int, ahead: int) -> None:
        """Start as the identity."""
        super().__init__()
        self.n = nn.Parameter(torch.ones(width))
        self.a = nn.Conv1d(width, width, 3, dilation=dilation)
        self.b = nn.Conv1d(width, width, 1)
        self.pads = (2 * dilation - ahead, ahead)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)  # type: ignore[arg-type] # the layer has a bias

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run over x (B, T, width); mask (B, T, 1) is 0 after an utterance's end."""
        h = F.rms_norm(x, (x.shape[-1],), self.n, _EPS) * mask
        h = F.silu(self.a(F.pad(h.transpose(1, 2), self.pads)))
        out: Tensor = x + self.b(h).transpose(1, 2)
        return out


class PostNet(nn.Module):
    """Units, alignment and codes to latent coordinates; with no code it is the text-only guess."""

    C: Tensor
    sc: Tensor
    WIDTH, UNIT_DIM, STAY_DIM, DIMS = 256, 64, 16, 128
    DILATION, AHEAD = (1, 1, 1, 2), (1, 1, 0, 0)

    def __init__(self, *, vocab: int, n_books: int) -> None:
        """Make the net with empty code books."""
        super().__init__()
        self.uemb = nn.Embedding(vocab, self.UNIT_DIM)
        self.semb = nn.Embedding(STAY_ENDED + 1, self.STAY_DIM)
        self.register_buffer("C", torch.zeros(n_books, N_CODES + 1, self.DIMS))
        self.register_buffer("sc", torch.ones(()))
        n_in = len(WINDOW) * self.UNIT_DIM + self.STAY_DIM + self.DIMS + n_books
        self.inp = nn.Linear(n_in, self.WIDTH)
        self.blocks = nn.ModuleList(
            PostBlock(self.WIDTH, d, a) for d, a in zip(self.DILATION, self.AHEAD, strict=True)
        )
        self.nf = nn.Parameter(torch.ones(self.WIDTH))
        self.out = nn.Linear(self.WIDTH, self.DIMS)

    def centroids(self, codes: Tensor) -> Tensor:
        """Return the sum of code book entries (..., 128) of codes (..., S)."""
        books = range(codes.shape[-1])
        return torch.stack([self.C[i][codes[..., i]] for i in books]).sum(0)

    def forward(self, window: Tensor, stay: Tensor, codes: Tensor, mask: Tensor) -> Tensor:
        """Return latent coordinates (B, T, 128).

        Args:
            window: (B, T, 5) unit ids.
            stay: (B, T) stay ids.
            codes: (B, T, S), 1024 where absent.
            mask: (B, T, 1), 1.0 inside the utterance.
        """
        e = self.centroids(codes)
        present = (codes != ABSENT).to(e.dtype)
        units = self.uemb(window).flatten(-2)
        x = self.inp(torch.cat([units, self.semb(stay), e / self.sc, present], dim=-1))
        for block in self.blocks:
            x = block(x, mask)
        out: Tensor = e + self.sc * self.out(F.rms_norm(x, (self.WIDTH,), self.nf, _EPS))
        return out
