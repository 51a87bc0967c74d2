"""The delay pattern: column n of a row belongs to the frame `delays[n]` rows back. Pure functions.

    row   0   1   2   3   4   5        delays 0, 1, 2, 3; three frames; "." is blank
    c0   a0  a1  a2   E   .   .        E marks the end: it stands in the row of the frame that is
    c1    .  b0  b1  b2   .   .        not spoken, so the row number of E is the number of frames
    c2    .   .  c0  c1  c2   .
    c3    .   .   .  d0  d1  d2

Before its first frame (warm-up) and after the last one (drain) a column is blank, whatever was
sampled. The frame is complete when its most delayed column has come.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = 1 << 40
"""Row number of an end that has not come."""


def blank_outside(
    ids: Tensor, row: Tensor, end: Tensor, delays: Tensor, pad_id: int | Tensor
) -> Tensor:
    """`ids` (B, K) with blanks where a column's frame lies before the first or after the last.

    Args:
        ids: sampled row.
        row: `(B,)` number of the row within the audio.
        end: `(B,)` number of frames, or `NEVER`.
        delays: `(K,)` rows.
        pad_id: the blank, or that of each column `(K,)`.
    """
    frame = row.unsqueeze(1) - delays
    is_blank = (frame < 0) | (frame >= end.unsqueeze(1))
    return torch.where(is_blank, pad_id, ids)


def join_history(history: Tensor, ids: Tensor) -> Tensor:
    """Rows `(B, D + 1, K)`, oldest first, from flat history `(B, D * K)` and the newest row."""
    n_columns = ids.shape[1]
    return torch.cat([history.reshape(len(ids), -1, n_columns), ids.unsqueeze(1)], dim=1)


def completed_frame(rows: Tensor, delays: Tensor) -> Tensor:
    """The frame `(B, K)` that the newest of `rows` (B, D + 1, K) completes.

    Its column n came `D - delays[n]` rows ago, which is place `delays[n]` of the D + 1.
    """
    at = delays.view(1, 1, -1).expand(rows.shape[0], 1, -1)
    return rows.gather(1, at).squeeze(1)
