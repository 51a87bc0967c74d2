"""The stream state of `pico`, the rules of its advance column, and how one row leads to the next.

The pointer into the text only moves forward, so speech cannot loop; `constrain` forbids leaving the
text and ending before its last unit, so it cannot be cut; it limits the stay at one unit, so it
cannot hang.

Time: call t of `advance` (row t is its result) brings `A_t` and the codes `c_{i, t-1-i}`. With them
step t - S is complete (S books): its frame holds the S codes, then the text window and the stay id,
which the post-net wants as well. The utterance ends when `A_T = 4`; the S - 1 rows after that only
finish the later books.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.base import Advance
from models.pico.config import END, MAX_ADVANCE, MAX_UNITS, STAY_CAP, STAY_ENDED, PicoConfig

MAX_PROMPT = MAX_UNITS + 2
_ROW, _END, _LAST, _HISTORY = 1, 2, 3, 4
_NOT_ENDED = 1 << 40


class Grammar(nn.Module):
    """Layout of columns, frames and state for one config, and the functions over them.

    Columns (K): advance, the text window, the stay id, the codes.
    Frame (Q): the codes, the text window, the stay id.
    State (S): phase, row t, end T, index of the last unit; then of the latest S calls, newest
    first, the pointers, the stays and the codes; then the prompt ids, with room for a window that
    sticks out on either side (id 0).
    """

    window_places: Tensor
    books: Tensor
    moves: Tensor

    def __init__(self, config: PicoConfig) -> None:
        super().__init__()
        n_books, n_window = config.n_books, len(config.window)
        self.n_books = n_books
        self.max_stay = config.max_stay
        self.absent = config.absent_code
        self.window_columns = slice(1, 1 + n_window)
        self.stay_column = 1 + n_window
        self.code_columns = slice(2 + n_window, 2 + n_window + n_books)
        self.n_columns = self.code_columns.stop
        self.frame_width = n_books + n_window + 1
        self._pointers = slice(_HISTORY, _HISTORY + n_books)
        self._stays = slice(self._pointers.stop, self._pointers.stop + n_books)
        self._codes = slice(self._stays.stop, self._stays.stop + n_books * n_books)
        self._first_id = self._codes.stop + max(0, -min(config.window))
        self.state_size = self._first_id + MAX_PROMPT + max(0, *config.window)
        self.register_buffer("window_places", self._first_id + torch.tensor(config.window))
        self.register_buffer("books", torch.arange(n_books))
        self.register_buffer("moves", torch.arange(END + 1))

    def start(self, prompt: Tensor) -> Tensor:
        """State `(S,)` before the first generated row, for prompt ids `(n,)` with bos and boa."""
        n = prompt.shape[0]
        assert 3 <= n <= MAX_PROMPT, "plan refuses empty and longer texts"
        state = torch.zeros(self.state_size, dtype=torch.int64)
        state[_END] = _NOT_ENDED
        state[_LAST] = n - 2
        state[self._stays] = -1
        state[self._codes] = self.absent
        state[self._first_id : self._first_id + n] = prompt
        return state

    def prompt_rows(self, prompt: Tensor) -> Tensor:
        """Prompt rows `(n, K)`: the unit id in the first window column, the rest unused."""
        rows = torch.zeros(prompt.shape[0], self.n_columns, dtype=torch.int64)
        rows[:, self.code_columns] = self.absent
        rows[:, self.window_columns.start] = prompt
        return rows

    def constrain(self, state: Tensor, advance_logits: Tensor) -> Tensor:
        """Fill -inf where the rules forbid an advance: `state` (B, S), `advance_logits` (B, 5)."""
        moves = self.moves
        room = (state[:, _LAST] - state[:, self._pointers.start]).unsqueeze(1)
        can_stay = (state[:, self._stays.start] < self.max_stay).unsqueeze(1)
        # A stream that has ended only drains: its draw is not used, but END is always possible.
        allowed = ((moves == 0) & can_stay) | ((moves == END) & (room == 0))
        allowed |= (moves > 0) & (moves <= MAX_ADVANCE) & (moves <= room)
        return advance_logits.masked_fill(~allowed, -torch.inf)

    def advance(self, state: Tensor, ids: Tensor) -> Advance:
        """Take sampled rows `ids` (B, K) and move `state` (B, S) on. Pure."""
        row, end = state[:, _ROW], state[:, _END]
        pointer, stay = state[:, self._pointers.start], state[:, self._stays.start]
        is_running = row < end
        ends_now = is_running & (ids[:, 0] == END)
        move = torch.where(is_running & ~ends_now, ids[:, 0], 0)
        end = torch.where(ends_now, row, end)
        pointer = pointer + move
        stay = torch.where(move > 0, 0, stay + 1)
        step = row - self.n_books
        codes = self._delayed_codes(row, end, ids[:, self.code_columns])
        window = self._window(state, pointer)
        stay_id = torch.where(row >= end, STAY_ENDED, stay.clamp(0, STAY_CAP))
        return Advance(
            rows=torch.cat([ids[:, :1], window, stay_id.unsqueeze(1), codes], dim=1),
            state=self._moved_on(state, row, end, pointer, stay, codes),
            frames=self._completed_frame(state, codes),
            emits=(step >= 0) & (step < end),
            text_ids=torch.full_like(row, -1),
            is_finished=row >= end + (self.n_books - 1),
            is_starved=torch.zeros_like(is_running),
        )

    def _delayed_codes(self, row: Tensor, end: Tensor, codes: Tensor) -> Tensor:
        """Codes `(B, S)` as sampled, or absent where their step is no step of the utterance."""
        step = row.unsqueeze(1) - 1 - self.books
        is_real = (step >= 0) & (step < end.unsqueeze(1))
        return torch.where(is_real, codes, self.absent)

    def _window(self, state: Tensor, pointer: Tensor) -> Tensor:
        """Text units `(B, W)` around pointers `(B,)`."""
        return state.gather(1, pointer.unsqueeze(1) + self.window_places)

    def _completed_frame(self, state: Tensor, codes: Tensor) -> Tensor:
        """The frame `(B, Q)` of step t - S, from the codes of this call and the history."""
        past = state[:, self._codes].view(-1, self.n_books, self.n_books)
        diagonal = [past[:, self.n_books - 2 - book, book] for book in range(self.n_books - 1)]
        oldest_pointer = state[:, self._pointers.stop - 1]
        oldest_stay = state[:, self._stays.stop - 1].clamp(0, STAY_CAP)
        return torch.cat(
            [
                torch.stack([*diagonal, codes[:, -1]], dim=1),
                self._window(state, oldest_pointer),
                oldest_stay.unsqueeze(1),
            ],
            dim=1,
        )

    def _moved_on(
        self,
        state: Tensor,
        row: Tensor,
        end: Tensor,
        pointer: Tensor,
        stay: Tensor,
        codes: Tensor,
    ) -> Tensor:
        """The next state, histories shifted by one."""
        return torch.cat(
            [
                state[:, :_ROW],
                torch.stack([row + 1, end, state[:, _LAST], pointer], dim=1),
                state[:, self._pointers.start : self._pointers.stop - 1],
                stay.unsqueeze(1),
                state[:, self._stays.start : self._stays.stop - 1],
                codes,
                state[:, self._codes.start : self._codes.stop - self.n_books],
                state[:, self._codes.stop :],
            ],
            dim=1,
        )
