"""Apart: two independent requests a stream, merged by their caller.

They know nothing of each other: a row is run in the first step after it came, its logits go out to
the caller, who merges, masks and draws, and sends the row in again for both. Everything is in one
process: no logits are written for a socket, as they would be between a caller and a server.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from engine.attention import make_attention
from engine.attention.base import Piece
from loadtest.bench.guidance.model import (
    CODES,
    N_PROMPT,
    SCALE,
    Size,
    config_of,
    n_longest,
    prompt_of,
)
from models.bagpiper.config import AUDIO_MARK, EOS, TEXT_MARK
from models.bagpiper.model import BagpiperModel


@dataclass(frozen=True, slots=True)
class Sent:
    """A row `(8,)` that goes in for a request."""

    request: int
    row: Tensor


@dataclass(frozen=True, slots=True)
class Given:
    """Logits of all columns that go out for a request."""

    request: int
    logits: list[Tensor]


class Apart:
    """The same model behind a door that knows only single requests.

    Args:
        model: what all requests run.
        size: of the run.
        is_late: the second request of a caller is opened where the speech begins, and its prompt
            costs nothing, as if the engine had it from before; False: with the first.

    Request `2 n` is the conditional one of caller `n`, `2 n + 1` the other.
    """

    def __init__(self, model: BagpiperModel, size: Size, *, is_late: bool) -> None:
        self.model, self.size, self.is_late = model, size, is_late
        self.n_requests = 2 * size.n_pairs
        config, device = config_of(size), torch.device("cpu")
        self.attention = make_attention(model.spec, config, device, torch.float32)
        n_pages = n_longest(size)
        for request in range(self.n_requests):
            first = 1 + request * n_pages
            self.attention.bind(request, list(range(first, first + n_pages)))
        self.n_rows = np.zeros(self.n_requests, dtype=np.int64)
        self.inward: SimpleQueue[Sent | None] = SimpleQueue()
        self.outward: SimpleQueue[Given] = SimpleQueue()

    def frames_per_s(self) -> float:
        """Of each stream, over whole answers that begin together."""
        begin_s = time.perf_counter()
        self._prefill()
        server = threading.Thread(target=self._serve, daemon=True)
        server.start()
        self._call()
        total_s = time.perf_counter() - begin_s
        self.inward.put(None)
        server.join()
        return self.size.n_frames / total_s

    @torch.inference_mode()
    def _prefill(self) -> None:
        self.n_rows[:] = N_PROMPT
        opened = range(0, self.n_requests, 2 if self.is_late else 1)
        if self.is_late:
            self.n_rows[1::2] += self.size.n_rows_before
        ids = torch.cat([prompt_of(self.model, n) * (n % 2 == 0) for n in opened])
        pieces = [
            Piece(sequence=request, first_row=n * N_PROMPT, n_rows=N_PROMPT, n_before=0)
            for n, request in enumerate(opened)
        ]
        positions = torch.arange(N_PROMPT).repeat(len(opened))
        x = self.model.embed(ids, torch.full((len(ids),), -1))
        self.model.backbone(x, positions, self.attention.plan_prefill(pieces))

    @torch.inference_mode()
    def _serve(self) -> None:
        """Run whatever has come, in a thread of its own."""
        while (sent := self.inward.get()) is not None:
            batch = [sent]
            while not self.inward.empty():
                more = self.inward.get()
                if more is None:
                    return
                batch.append(more)
            sequences = np.array([one.request for one in batch])
            n_before = self.n_rows[sequences]
            attention = self.attention.plan_decode(sequences, n_before)
            rows = torch.stack([one.row for one in batch])
            x = self.model.embed(rows, torch.zeros_like(rows[:, 0]))
            hidden = self.model.backbone(x, torch.from_numpy(n_before), attention)
            self.n_rows[sequences] += 1
            logits = self.model.heads(hidden)
            for place, one in enumerate(batch):
                self.outward.put(Given(one.request, [column[place] for column in logits]))

    @torch.inference_mode()
    def _call(self) -> None:
        """Go on for each caller as soon as what it asked for has come."""
        generator = torch.Generator().manual_seed(0)
        halves: dict[int, Given] = {}
        n_fed = [0] * self.size.n_pairs
        for caller in range(self.size.n_pairs):
            self._send(caller, 0, self._lone(TEXT_MARK))
        while any(n < self.size.n_rows for n in n_fed):
            given = self.outward.get()
            caller = given.request // 2
            told = blind = given
            if self._has_two(n_fed[caller]):
                other = halves.pop(given.request ^ 1, None)
                if other is None:
                    halves[given.request] = given
                    continue
                told, blind = (given, other) if given.request % 2 == 0 else (other, given)
            n_fed[caller] += 1
            if n_fed[caller] < self.size.n_rows:
                row = self._next_row(n_fed[caller], told, blind, generator)
                self._send(caller, n_fed[caller], row)

    def _has_two(self, number: int) -> bool:
        """Whether a caller asks twice with its row of this number."""
        return not self.is_late or number >= self.size.n_rows_before

    def _send(self, caller: int, number: int, row: Tensor) -> None:
        self.inward.put(Sent(2 * caller, row))
        if self._has_two(number):
            is_speech = number >= self.size.n_rows_before
            self.inward.put(Sent(2 * caller + 1, row if is_speech else torch.zeros_like(row)))

    def _next_row(
        self, number: int, told: Given, blind: Given, generator: torch.Generator
    ) -> Tensor:
        if number == self.size.n_rows_before:
            return self._lone(AUDIO_MARK)
        config = self.model.config
        if number < self.size.n_rows_before:
            low, high = config.text_ids
            logits = told.logits[0][low - EOS : high - EOS].unsqueeze(0)
            return self._lone(low + int(_drawn(logits, config.text.top_k, generator)))
        width = CODES.n_codes + 1
        conditional, unconditional = (
            torch.stack([column[-width:] for column in one.logits]) for one in (told, blind)
        )
        merged = unconditional + SCALE * (conditional - unconditional)
        merged[:, 0] = -torch.inf
        lows = torch.tensor([low for low, _ in config.code_ids])
        return lows + _drawn(merged, config.audio.top_k, generator)

    def _lone(self, id_: int) -> Tensor:
        row = torch.zeros(self.model.config.n_columns, dtype=torch.int64)
        row[0] = id_
        return row


def _drawn(logits: Tensor, top_k: int, generator: torch.Generator) -> Tensor:
    """An index `(K,)` for each row of `logits` (K, V)."""
    values, places = logits.topk(top_k)
    drawn = torch.multinomial(values.softmax(dim=1), 1, generator=generator)
    return places.gather(1, drawn).squeeze(1)
