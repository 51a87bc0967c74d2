"""Streamed text on its way to the device, and the streams that wait for it. Engine thread only."""

from __future__ import annotations

import torch

from engine.errors import StreamError
from engine.groups import StreamGroup
from engine.slot_state import SlotState
from engine.types import ExtendText, StreamId


class TextFeed:
    """Text of the streams of one loop.

    Args:
        slots: state on the device.
        capacity: text ids that a stream can hold.
    """

    def __init__(self, slots: SlotState, capacity: int) -> None:
        self._slots = slots
        self._capacity = capacity
        self._to_resume: dict[StreamId, StreamGroup] = {}

    def extend(self, group: StreamGroup, command: ExtendText) -> None:
        """Keep more text with its stream. Raises: `StreamError`, there is no room for it."""
        if group.n_text + len(command.ids) > self._capacity:
            message = f"streamed text is over the {self._capacity} ids that a stream can hold"
            raise StreamError("prompt_too_long", message)
        group.new_text += command.ids
        group.n_text += len(command.ids)
        group.is_text_final |= command.is_final

    def hand_over(self, group: StreamGroup) -> None:
        """Put text that came on the device, and let a stream that starved for it go on."""
        n_before = group.n_text - len(group.new_text)
        ids = torch.tensor(group.new_text, dtype=torch.int64)
        stream = group.stream
        self._slots.append_text(stream.slot, n_before, ids, is_final=group.is_text_final)
        group.new_text = []
        # Rows that were launched before do not see it; if one of them starves, that is old news.
        stream.n_blind_rows = stream.n_rows_in_flight
        if stream.is_starved and stream.n_rows_in_flight == stream.n_void_rows:
            self.resume(group)

    def resume(self, group: StreamGroup) -> None:
        """A stream has starved although there is text for it now."""
        self._to_resume[group.stream.stream_id] = group

    def take_resumed(self) -> list[StreamGroup]:
        """The streams that starved and have text now; each is given once."""
        resumed = [
            group
            for group in self._to_resume.values()
            # One that came back after it gave way has its rows run again first.
            if group.stream.is_prefilled and not group.stream.is_paused
        ]
        for group in resumed:
            self.forget(group.stream.stream_id)
        return resumed

    def forget(self, stream_id: StreamId) -> None:
        """A stream has ended, or goes on."""
        self._to_resume.pop(stream_id, None)
