"""Layers that compute from four-bit weights on a CPU, and a table of eight-bit ones.

Decoding one row reads every weight once, so its time is the size of the weights. The quants of the
file are kept as they are; only the scales are rounded to bfloat16, as the kernel wants them, and so
is the input. Measured on a Zen 5 core, one thread, one row of a 3072 x 576 matrix: float32 0.48 ms,
bfloat16 0.29 ms (0.16 ms packed by oneDNN), int8 0.13 ms, int4 0.07 ms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.errors import WeightError
from models.smollm.weights import BLOCK, Rows, unpack_q4_1, unpack_q8_0

_HALF_RANGE = 8
"""The kernel reads a quant q as q - 8."""


def has_int4_kernel() -> bool:
    """This machine runs the four-bit kernel fast: it is vectorised for AVX2 and AVX-512 alone."""
    has_op = hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
    return has_op and torch.backends.cpu.get_cpu_capability().startswith(("AVX2", "AVX512"))


class Int4Linear(nn.Module):
    """`x @ weight.T` from four-bit quants with a scale and a shift for each block of 32.

    Args:
        rows: `(n_outputs, ...)` in `q4_1`, or in `q8_0`: then each eight-bit quant is two of four
            bits, and the layer reads its input twice.

    Raises:
        WeightError: another encoding.
    """

    packed: Tensor
    scales: Tensor

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        match rows.encoding:
            case "q4_1":
                quants, scale, minimum = unpack_q4_1(rows.data)
                shift = minimum + _HALF_RANGE * scale
                self._n_reads = 1
            case "q8_0":
                quants, scale, shift = _halves(*unpack_q8_0(rows.data))
                self._n_reads = 2
            case "float32":
                raise WeightError("int4 layers need weights in q4_1 or q8_0, these are float32")
        self.shape = (quants.shape[0], quants.shape[1] * BLOCK // self._n_reads)
        packed = torch._convert_weight_to_int4pack_for_cpu(quants.flatten(1).int(), 1)
        # (blocks, n_outputs, 2), as the kernel reads them.
        scales = torch.cat([scale, shift], dim=-1).transpose(0, 1).contiguous().bfloat16()
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(N, n_inputs)` to `(N, n_outputs)` of the same dtype."""
        halved = x.bfloat16()
        if self._n_reads == 2:
            halved = torch.cat([halved, halved], dim=1)
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            halved, self.packed, BLOCK, self.scales
        )
        return out.to(x.dtype)


class Int8Table(nn.Module):
    """An embedding table from eight-bit quants with a scale for each block of 32.

    Args:
        rows: `(n_ids, ...)` in `q8_0`.
    """

    quants: Tensor
    scale: Tensor

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        quants, scale = unpack_q8_0(rows.data)
        self.register_buffer("quants", quants.contiguous(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows `(N, hidden)` float32 of `ids` (N,)."""
        return (self.quants[ids] * self.scale[ids]).flatten(1)


def _halves(quants: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split q of -128..127 into 16 * high + low, with high of -8..7 and low of 0..15.

    Both are given as the kernel reads them, the blocks of the high halves first.
    """
    wide = quants.int()
    high, low = (wide >> 4) + _HALF_RANGE, wide & 0x0F
    scales = torch.cat([16 * scale, scale], dim=1)
    shifts = torch.cat([torch.zeros_like(scale), _HALF_RANGE * scale], dim=1)
    return torch.cat([high, low], dim=1), scales, shifts
