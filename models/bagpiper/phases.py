"""The phase machine of `bagpiper`: what a drawn row means, and which ids a row may draw. Pure.

    choice -> text  -> turn -> choice -> audio -> end
    (6 is fed) (7 is fed ...) (3 is fed) (6 is fed) (8 is fed ...)

The reference leaves warm-up and drain of the delayed columns to the model, and loses what has not
come when it ends early. Here the pattern is kept by force unless asked otherwise: a column is blank
before its first code and after its last; the first blank of column 0, or an end, says how many
frames there are; the stream goes on until the last of them is complete.

Source: ESPnet 202611, `lm/parallel.py`, `inference` and `inference_segment` (Apache-2.0).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.bagpiper.config import AUDIO_MARK, BLANK, EOS, EOT, MARKS, BagpiperConfig
from models.bagpiper.facts import (
    AUDIO,
    CHOICE,
    END,
    N_MOST,
    N_ORDERED,
    ORDER,
    PAST,
    ROW,
    SEGMENT,
    TEXT,
    TURN,
)
from models.base import Advance
from models.layers.delay import NEVER, blank_outside, completed_frame, join_history


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """What drawn rows `(B, K)` mean if they are speech.

    Args:
        rows: codes and blanks, as they count.
        end: `(B,)` number of frames, or `NEVER`.
        emits: the row completes a frame.
        is_complete: no frame comes after this row.
        is_over: no row of the message comes after this one.
    """

    rows: Tensor
    end: Tensor
    emits: Tensor
    is_complete: Tensor
    is_over: Tensor


class PhaseMachine(nn.Module):
    """The functions `advance` and `constrain` of the model.

    Args:
        config: of the checkpoint.
        forces_delays: keep the delay pattern by force; False: as the reference.
    """

    delays: Tensor
    blanks: Tensor

    def __init__(self, config: BagpiperConfig, *, forces_delays: bool) -> None:
        super().__init__()
        self.forces_delays = forces_delays
        self.n_codes = config.codec.n_codes
        self.text, self.audio = config.text, config.audio
        self.max_delay = config.n_columns - 1
        self.register_buffer("delays", torch.arange(config.n_columns), persistent=False)
        blanks = torch.tensor([low for low, _ in config.code_ids])
        self.register_buffer("blanks", blanks, persistent=False)
        self._first_blank = config.code_ids[0][0]

    def advance(self, state: Tensor, ids: Tensor) -> Advance:
        """See `models.base.SpeechModel.advance`."""
        phase, row, segment, first = state[:, 0], state[:, ROW], state[:, SEGMENT], ids[:, 0]
        is_text, is_audio = phase == TEXT, phase == AUDIO
        is_end = (first == EOS) | (first == EOT)
        speech = self._speech(ids, row, state[:, END], is_end)
        is_over_text = is_text & (is_end | (row + 1 >= self.text.most_rows))
        # A message that ends in `EOT` is followed by another, and so is one that is not yet all.
        says_more = (first == EOT) & ~(is_audio & self.forces_delays)
        goes_on = says_more | (segment + 1 < state[:, N_ORDERED])
        goes_on = goes_on & (segment + 1 < state[:, N_MOST])
        is_over = is_over_text | (is_audio & speech.is_over)
        is_complete = is_over_text | (is_audio & speech.is_complete)

        rows = torch.where(is_audio.unsqueeze(1), speech.rows, ids)
        # The reference feeds the last row of a message without its other columns.
        is_lone = (is_over & is_audio).unsqueeze(1) & (self.delays > 0)
        head = torch.stack(
            [
                self._next_phase(phase, first, is_over),
                torch.where(is_text | is_audio, row + 1, 0),
                torch.where(is_audio, speech.end, NEVER),
                segment + is_over,
            ],
            dim=1,
        )
        past = join_history(state[:, PAST:], speech.rows)
        return Advance(
            rows=rows.masked_fill(is_lone, BLANK),
            state=torch.cat([head, state[:, N_ORDERED:PAST], past[:, 1:].flatten(1)], dim=1),
            frames=(completed_frame(past, self.delays) - self.blanks - 1).clamp(
                0, self.n_codes - 1
            ),
            emits=is_audio & speech.emits,
            text_ids=torch.where(is_text & ~is_end, first, -1),
            is_finished=is_complete & ~goes_on,
            is_starved=torch.zeros_like(is_end),
        )

    def constrain(self, state: Tensor, first: Tensor) -> Tensor:
        """Logits of column 0 `(B, n_ids)`, whose first id is `EOS`, without what cannot be now."""
        phase, row = state[:, 0], state[:, ROW]
        least = torch.where(phase == TEXT, self.text.least_rows, self.audio.least_rows)
        is_early = (row < least) & (phase != CHOICE)
        logits = first.clone()
        _forbid(logits, EOS, is_early)
        _forbid(logits, EOT, is_early)
        if self.forces_delays:
            # A blank here is the end of the speech, and the drain follows it.
            is_early = row < max(1, self.audio.least_rows - self.max_delay)
            _forbid(logits, self._first_blank, (phase == AUDIO) & is_early)
        segment = state[:, SEGMENT]
        place = segment.clamp(max=PAST - ORDER - 1).unsqueeze(1)
        wanted = state[:, ORDER:PAST].gather(1, place).squeeze(1)
        is_ordered = (phase == CHOICE) & (segment < state[:, N_ORDERED])
        for mark in MARKS.values():
            _forbid(logits, mark, is_ordered & (wanted != mark))
        return logits

    def _speech(self, ids: Tensor, row: Tensor, old_end: Tensor, is_end: Tensor) -> Speech:
        return (self._forced if self.forces_delays else self._drawn)(ids, row, old_end, is_end)

    def _drawn(self, ids: Tensor, row: Tensor, old_end: Tensor, is_end: Tensor) -> Speech:
        is_over = is_end | (row + 1 >= self.audio.most_rows)
        emits = (row >= self.max_delay) & ~is_end
        return Speech(rows=ids, end=old_end, emits=emits, is_complete=is_over, is_over=is_over)

    def _forced(self, ids: Tensor, row: Tensor, old_end: Tensor, is_end: Tensor) -> Speech:
        is_full = row + self.max_delay + 1 >= self.audio.most_rows
        is_last = is_end | is_full | (ids[:, 0] == self._first_blank)
        end = torch.where(is_last & (old_end == NEVER), row, old_end)
        frame_idx = row - self.max_delay
        is_over = frame_idx >= end
        rows = blank_outside(ids, row, end, self.delays, self.blanks)
        closing = torch.where(self.delays == 0, EOT, BLANK)
        return Speech(
            rows=torch.where(is_over.unsqueeze(1), closing, rows),
            end=end,
            emits=(frame_idx >= 0) & ~is_over,
            is_complete=frame_idx >= end - 1,
            is_over=is_over,
        )

    def _next_phase(self, phase: Tensor, first: Tensor, is_over: Tensor) -> Tensor:
        chosen = torch.where(first == AUDIO_MARK, AUDIO, TEXT)
        after = torch.where(phase == CHOICE, chosen, phase)
        after = torch.where(phase == TURN, CHOICE, after)
        return torch.where(is_over, TURN, after)


def _forbid(logits: Tensor, id_: int, where: Tensor) -> None:
    """Take an id out of new `logits`, whose first is that of `EOS`."""
    logits[:, id_ - EOS].masked_fill_(where, -torch.inf)
