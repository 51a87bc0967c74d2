"""Results of costly encoders, kept by what they were made from. Any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class ContentCache(Generic[Result]):
    """The last results by key; the one that was not asked for longest goes first.

    Of several threads that ask for the same at once, one works and the others wait for it.

    Args:
        n_most: results kept.
    """

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._lock = threading.Lock()
        self._results: OrderedDict[str, Future[Result]] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, object]) -> ContentCache[Result]:
        """An empty one: a copied model makes its own results."""
        return ContentCache(self._n_most)

    def get(self, key: str, make: Callable[[], Result]) -> Result:
        """The result of `key`, made by `make` if it is not there. Raises: what `make` raises.

        A failure is not kept: the next caller tries again.
        """
        with self._lock:
            known = self._results.get(key)
            result = self._results.setdefault(key, Future())
            self._results.move_to_end(key)
            while len(self._results) > self._n_most:
                self._results.popitem(last=False)
        return self._made(key, make, result) if known is None else known.result()

    def _made(self, key: str, make: Callable[[], Result], result: Future[Result]) -> Result:
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                if self._results.get(key) is result:
                    del self._results[key]
            result.set_exception(error)
            raise
        result.set_result(made)
        return made
