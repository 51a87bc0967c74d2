"""Checks one after another, each in a time of its own; what is left out is told with the reason.

A part is ended from outside when its budget is over (`parts`); here it ends by itself before that,
so that nothing goes unsaid.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from loadtest.gpu_check.telling import tell
from loadtest.gpu_check.where import Where

EACH_S: Final = 25.0
"""After which a check is given up, and fails."""
Found = dict[str, Any]
Check = Callable[[], Found]
IS_RIGHT: Final = "is_right"
"""What every check finds."""
LEFT_OUT: Final = "left_out"


class LeftOut(Exception):  # noqa: N818  no error: the message says why a check cannot be made here
    """A check that cannot be made on this machine."""


def check_all(checks: Mapping[str, Check], where: Where, each_s: float = EACH_S) -> None:
    """Make all checks that there is time for, and tell what each finds.

    Raises:
        SystemExit: one failed, or was left out for want of time; it names them.
    """
    tell(asked=list(checks))
    failed = []
    for name, check in checks.items():
        found = _made(check, where, each_s)
        tell(**{name: found})
        if not found.get(IS_RIGHT, True):
            failed.append(name)
    if failed:
        raise SystemExit(f"not as on the CPU, or not done: {', '.join(failed)}")


def _made(check: Check, where: Where, each_s: float) -> Found:
    left_s = where.left_s
    if left_s <= 0:
        return {LEFT_OUT: "the time of this part is over", IS_RIGHT: False}
    start_s = time.monotonic()
    try:
        with _limited(None if where.is_dry else min(each_s, left_s)):
            found = check()
    except LeftOut as reason:
        return {LEFT_OUT: str(reason)}
    # Whatever a check meets, the others are made.
    except Exception as error:  # noqa: BLE001
        found = {"fault": f"{type(error).__name__}: {error}"[:400], IS_RIGHT: False}
    return {**found, "seconds": round(time.monotonic() - start_s, 1)}


@contextmanager
def _limited(seconds: float | None) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread when it is over."""
    if seconds is None:
        yield
        return

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
