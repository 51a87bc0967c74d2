"""Host side of a batch: index arrays of a decode step or of prompt pieces. Engine thread.

Everything the device needs to know about a step goes up as one integer array. Which row of a
batch belongs to whom is decided here and nowhere else: first one row for each stream, then one for
each guidance companion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.attention.base import Piece
from engine.stream import Stream
from engine.types import StreamId
from models.base import PromptPlan

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Streams that get a generated row, and their guidance companions.

    Args:
        slots: (B,) of the streams.
        pairs: (G,) places in `slots` of the guided streams; companions follow the streams.
        phases: phases that occur, ascending.
    """

    slots: Indices
    pairs: Indices
    phases: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """One decode step: a row of each of N = B + G sequences, which hold `n_before` (N,) rows."""

    rows: RowBatch
    sequences: Indices
    n_before: Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBatch:
    """Prompt pieces, one after another.

    Args:
        pieces: where each piece lies.
        ids: (N, K).
        positions: (N,).
        phases: (N,) in which each row was generated, -1 for rows of a plan.
        embeds: (N, H) on the host, or None where no piece has any.
        embed_mask: (N,) bool, with `embeds`.
        finished: streams whose whole prompt is complete: they get their first row. None if none.
        ends: (B + G,) last prompt rows of `finished`: of the streams, then of the companions.
    """

    pieces: tuple[Piece, ...]
    ids: Indices
    positions: Indices
    phases: Indices
    embeds: Tensor | None
    embed_mask: Mask | None
    finished: RowBatch | None
    ends: Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The rows that one sequence starts from, on the host.

    Args:
        ids: (T, K).
        positions: (T,).
        embeds: (T, H) or None.
        embed_mask: (T,) with `embeds`.
        fed_phases: phases (R,) of the last R rows: they were generated before the stream gave way,
            and are run again as they were fed.
    """

    ids: Indices
    positions: Indices
    embeds: Tensor | None = None
    embed_mask: Mask | None = None
    fed_phases: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def n_rows(self) -> int:
        """T."""
        return int(self.ids.shape[0])

    @property
    def n_given(self) -> int:
        """Rows of the plan, without those that were generated."""
        return self.n_rows - len(self.fed_phases)

    @property
    def next_position(self) -> int:
        """Position of the row after the plan's."""
        return int(self.positions[self.n_given - 1]) + 1

    @property
    def phases(self) -> Indices:
        """Phase (T,) in which each row was generated; -1 for the plan's."""
        return np.concatenate([np.full(self.n_given, -1), self.fed_phases])

    @property
    def position_shift(self) -> int:
        """Position of a generated row minus the number of rows before it."""
        return int(self.positions[-1]) + 1 - self.n_rows

    @classmethod
    def of(cls, plan: PromptPlan) -> Prompt:
        """The rows of a plan."""
        n_rows = len(plan.ids)
        positions, mask = np.arange(n_rows), None
        if plan.positions is not None:
            positions = plan.positions.numpy()
        if plan.embeds is not None:
            mask = np.ones(n_rows, dtype=bool)
        if plan.embeds is not None and plan.embed_mask is not None:
            mask = plan.embed_mask.numpy()
        return cls(ids=plan.ids.numpy(), positions=positions, embeds=plan.embeds, embed_mask=mask)

    @classmethod
    def zeros(cls, n_rows: int, n_columns: int) -> Prompt:
        """The all-zero prompt of a guidance companion."""
        ids = np.zeros((n_rows, n_columns), dtype=np.int64)
        return cls(ids=ids, positions=np.arange(n_rows))

    def followed_by(self, rows: Indices, phases: Indices) -> Prompt:
        """The plan's rows and, in place of any others, `rows` (R, K) fed after them in `phases`."""
        n_given = self.n_given
        embeds, mask = self.embeds, self.embed_mask
        if embeds is not None and mask is not None:
            embeds = torch.cat([embeds[:n_given], embeds.new_zeros((len(rows), embeds.shape[1]))])
            mask = np.concatenate([mask[:n_given], np.zeros(len(rows), dtype=bool)])
        after = self.next_position + np.arange(len(rows))
        return Prompt(
            ids=np.concatenate([self.ids[:n_given], rows]),
            positions=np.concatenate([self.positions[:n_given], after]),
            embeds=embeds,
            embed_mask=mask,
            fed_phases=phases,
        )


def rows_of(streams: Sequence[Stream]) -> RowBatch:
    """The row batch of these streams."""
    return RowBatch(
        slots=np.array([stream.slot for stream in streams], dtype=np.int64),
        pairs=np.array([i for i, stream in enumerate(streams) if stream.is_guided], dtype=np.int64),
        phases=tuple(sorted({stream.phase_idx for stream in streams})),
    )


def build_decode(streams: Sequence[Stream], n_slots: int) -> DecodeBatch:
    """One decode step of these streams; a guided one takes a second row for its companion."""
    rows = rows_of(streams)
    n_before = [stream.sequences[0].n_rows for stream in streams]
    n_before += [stream.sequences[1].n_rows for stream in streams if stream.is_guided]
    return DecodeBatch(
        rows=rows,
        sequences=np.concatenate([rows.slots, rows.slots[rows.pairs] + n_slots]),
        n_before=np.array(n_before, dtype=np.int64),
    )


def build_prefill(
    parts: Sequence[tuple[Stream, int, int]],
    prompts: Sequence[Prompt],
    n_slots: int,
) -> PrefillBatch:
    """Prompt pieces of `parts`: (stream, sequence index, rows), with the prompt of each.

    A stream that was decoding already (its companion came later) gets no row from its prefill.
    """
    pieces: list[Piece] = []
    last_row: dict[tuple[StreamId, int], int] = {}
    first_row = 0
    for stream, sequence_idx, n_rows in parts:
        pieces.append(
            Piece(
                sequence=stream.slot + n_slots * sequence_idx,
                first_row=first_row,
                n_rows=n_rows,
                n_before=stream.n_prefilled[sequence_idx],
            )
        )
        first_row += n_rows
        last_row[stream.stream_id, sequence_idx] = first_row - 1
    finished = _completed(parts)
    ends = [last_row[stream.stream_id, 0] for stream in finished]
    ends += [last_row[stream.stream_id, 1] for stream in finished if stream.is_guided]
    ids, positions, phases, embeds, embed_mask = _prompt_rows(pieces, prompts)
    return PrefillBatch(
        pieces=tuple(pieces),
        ids=ids,
        positions=positions,
        phases=phases,
        embeds=embeds,
        embed_mask=embed_mask,
        finished=rows_of(finished) if finished else None,
        ends=np.array(ends, dtype=np.int64),
    )


def _completed(parts: Sequence[tuple[Stream, int, int]]) -> list[Stream]:
    """Streams without a generated row whose every prompt is complete after these parts."""
    streams = {stream.stream_id: stream for stream, _, _ in parts}
    left = {stream_id: sum(stream.prefill_left) for stream_id, stream in streams.items()}
    for stream, _, n_rows in parts:
        left[stream.stream_id] -= n_rows
    return [
        stream
        for stream_id, stream in streams.items()
        if left[stream_id] == 0 and stream.n_rows == 0
    ]


def _prompt_rows(
    pieces: Sequence[Piece], prompts: Sequence[Prompt]
) -> tuple[Indices, Indices, Indices, Tensor | None, Mask | None]:
    """Ids, positions, phases, embeds and mask of all pieces, joined."""
    cut = [
        (prompt, slice(piece.n_before, piece.n_before + piece.n_rows))
        for piece, prompt in zip(pieces, prompts, strict=True)
    ]
    ids = np.concatenate([prompt.ids[span] for prompt, span in cut])
    positions = np.concatenate([prompt.positions[span] for prompt, span in cut])
    phases = np.concatenate([prompt.phases[span] for prompt, span in cut])
    given = [prompt.embeds for prompt in prompts if prompt.embeds is not None]
    if not given:
        return ids, positions, phases, None, None
    embeds = given[0].new_zeros((len(ids), given[0].shape[1]))
    mask = np.zeros(len(ids), dtype=bool)
    for piece, (prompt, span) in zip(pieces, cut, strict=True):
        if prompt.embeds is not None and prompt.embed_mask is not None:
            rows = slice(piece.first_row, piece.first_row + piece.n_rows)
            embeds[rows] = prompt.embeds[span]
            mask[rows] = prompt.embed_mask[span]
    return ids, positions, phases, embeds, mask
