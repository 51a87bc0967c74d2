"""What is shown while a model comes from the hub: its licences and size, then how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from models.hub import Wanted
from realtime.terminal.display import err


class FetchDisplay:
    """A bar on a terminal, a line elsewhere. Implements `models.hub.Watch`.

    Args:
        repository: that is looked for.
    """

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._progress = Progress(
            TextColumn("Fetching"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> FetchDisplay:
        """Say what is looked for: the hub may take its time to answer."""
        err.print(f"Looking for {escape(self._repository)} on the hub.", style="dim")
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._progress.stop()

    def found(self, wanted: Sequence[Wanted]) -> None:
        """Each repository's licence and size, before its weights come."""
        for one in wanted:
            licence = one.licence or "a licence that its card does not state"
            size = f"{_size(one.n_bytes)}, all in the cache"
            if one.n_missing_bytes:
                size = f"fetching {_size(one.n_missing_bytes)} of {_size(one.n_bytes)}"
            err.print(f"{escape(one.repository)}: under {escape(licence)}; {size}", soft_wrap=True)
        n_missing = sum(one.n_missing_bytes for one in wanted)
        self._progress.update(self._task, total=n_missing, visible=n_missing > 0)

    def fetched(self, n_bytes: int) -> None:
        """So much more is here."""
        self._progress.advance(self._task, n_bytes)


def _size(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
