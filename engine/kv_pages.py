"""KV pages: allocation, sharing by reference count, and the cache of prompt prefixes. No torch.

A page is a fixed block of `page_size` KV rows of one sequence. This module knows page numbers only;
the tensors behind them are the runner's. Engine thread only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

DUMMY_PAGE = 0
"""Padding rows of a batch write here; the page is never handed out."""


def n_pages_for(n_rows: int, page_size: int) -> int:
    """Pages that hold `n_rows` rows."""
    return -(-n_rows // page_size)


class PageSource(Protocol):
    """Where a sequence takes its pages from: a `PageAllocator`, or a `PrefixCache` before it."""

    @property
    def page_size(self) -> int:
        """KV rows in a page."""
        ...

    def allocate(self, n: int) -> list[int] | None:
        """Take `n` pages, or none at all."""
        ...

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page."""
        ...


class PageAllocator:
    """A pool of pages with reference counts; a page is free when nobody refers to it.

    Args:
        n_pages: pages of the pool, the dummy page included.
        page_size: KV rows in a page.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        assert n_pages >= 2, "the dummy page and at least one real page"
        self.n_pages = n_pages
        self._page_size = page_size
        self._free = list(range(n_pages - 1, DUMMY_PAGE, -1))
        self._n_refs = [0] * n_pages

    @property
    def page_size(self) -> int:
        """KV rows in a page."""
        return self._page_size

    @property
    def n_free(self) -> int:
        """Pages that nobody refers to."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Pages that somebody refers to."""
        return self.n_pages - 1 - len(self._free)

    def n_refs(self, page: int) -> int:
        """References to a page."""
        return self._n_refs[page]

    def allocate(self, n: int) -> list[int] | None:
        """Take `n` pages with one reference each; None, and nothing taken, if fewer are free."""
        if n > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(n)]
        for page in pages:
            self._n_refs[page] = 1
        return pages

    def share(self, page: int) -> None:
        """Add a reference to a page that is in use."""
        assert self._n_refs[page] > 0, f"page {page} is free and cannot be shared"
        self._n_refs[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page."""
        for page in pages:
            assert self._n_refs[page] > 0, f"page {page} is released more often than taken"
            self._n_refs[page] -= 1
            if self._n_refs[page] == 0:
                self._free.append(page)

    def check(self) -> None:
        """Assert that free pages are exactly those without a reference."""
        unreferenced = [p for p in range(1, self.n_pages) if self._n_refs[p] == 0]
        assert sorted(self._free) == unreferenced, "a page is lost, or free twice"
        assert self._n_refs[DUMMY_PAGE] == 0, "the dummy page was handed out"


class PrefixCache:
    """Full pages of prompt prefixes, found by content; itself a page source that makes room.

    The cache holds one reference to each of its pages. When pages are short it gives up those that
    no stream uses, least recently used first.
    """

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator = allocator
        self._pages: OrderedDict[bytes, int] = OrderedDict()

    @property
    def page_size(self) -> int:
        """KV rows in a page."""
        return self._allocator.page_size

    @property
    def n_cached(self) -> int:
        """Pages that the cache refers to."""
        return len(self._pages)

    @property
    def n_free(self) -> int:
        """Pages that `allocate` can give: free ones, and cached ones that no stream uses."""
        unused = sum(self._allocator.n_refs(page) == 1 for page in self._pages.values())
        return self._allocator.n_free + unused

    def n_free_after(self, pages: Iterable[int]) -> int:
        """How many of `pages` `allocate` could give once a reference to each is dropped."""
        cached = set(self._pages.values())
        return sum(self._allocator.n_refs(page) == 1 + (page in cached) for page in pages)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Pages of the longest cached prefix; each comes with a reference for the caller."""
        found: list[bytes] = []
        for key in keys:
            if key not in self._pages:
                break
            found.append(key)
        # Deepest first, so that the head of a chain is used last and evicted last: without its head
        # the rest of a chain can never be found.
        for key in reversed(found):
            self._pages.move_to_end(key)
        pages = [self._pages[key] for key in found]
        for page in pages:
            self._allocator.share(page)
        return pages

    def insert(self, key: bytes, page: int) -> None:
        """Remember a filled page. A key that is known keeps its page."""
        if key in self._pages:
            return
        self._allocator.share(page)
        self._pages[key] = page

    def allocate(self, n: int) -> list[int] | None:
        """Take `n` pages, giving up unused cached ones if need be; all or nothing."""
        if n > self.n_free:
            return None
        self._evict(n - self._allocator.n_free)
        return self._allocator.allocate(n)

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page."""
        self._allocator.release(pages)

    def clear(self) -> None:
        """Forget everything."""
        self._allocator.release(self._pages.values())
        self._pages.clear()

    def check(self) -> None:
        """Assert that each cached page is referred to, and cached once."""
        pages = list(self._pages.values())
        assert len(set(pages)) == len(pages), "a page is cached under two keys"
        assert all(self._allocator.n_refs(page) >= 1 for page in pages), "a cached page is free"

    def _evict(self, n: int) -> None:
        unused = [key for key, page in self._pages.items() if self._allocator.n_refs(page) == 1]
        for key in unused[: max(n, 0)]:
            self._allocator.release([self._pages.pop(key)])


@dataclass(slots=True, kw_only=True)
class PageTable:
    """Pages of one KV sequence.

    Args:
        pages: in order of rows.
        n_rows: rows written so far.
    """

    pages: list[int] = field(default_factory=list)
    n_rows: int = 0

    def reserve(self, n_rows: int, source: PageSource) -> bool:
        """Make room for `n_rows` rows in all; False, and nothing taken, if pages are short."""
        pages = source.allocate(max(0, n_pages_for(n_rows, source.page_size) - len(self.pages)))
        if pages is None:
            return False
        self.pages += pages
        return True

    def adopt(self, pages: Sequence[int], page_size: int) -> None:
        """Start with filled pages that the caller holds references to (a cached prefix)."""
        assert not self.pages, "a prefix comes before all other rows"
        self.pages = list(pages)
        self.n_rows = len(pages) * page_size

    def release(self, source: PageSource) -> None:
        """Give all pages back."""
        source.release(self.pages)
        self.pages = []
        self.n_rows = 0


def prefix_keys(
    ids: npt.NDArray[np.int64],
    embeds: npt.NDArray[Any] | None,
    embed_mask: npt.NDArray[np.bool_] | None,
    positions: npt.NDArray[np.int64] | None,
    *,
    prefix_key: str,
    n_rows: int,
    page_size: int,
) -> list[bytes]:
    """Content keys of the full pages in the first `n_rows` rows of a prompt.

    The key of a page covers everything before it too, since KV depends on all earlier rows.

    Args:
        ids: `(T, K)`, all columns.
        embeds: `(T, H)`, any float dtype, or None.
        embed_mask: `(T,)`, with `embeds`.
        positions: `(T,)`, or None for 0..T-1.
        prefix_key: names the voice or system prompt.
        n_rows: leading rows that may be shared. Leave out the prompt's last row: it must be run to
            get the first logits.
        page_size: KV rows in a page.
    """
    keys: list[bytes] = []
    key = hashlib.blake2b(f"{prefix_key}\0{ids.shape[1]}".encode(), digest_size=16).digest()
    for start in range(0, n_rows - page_size + 1, page_size):
        rows = slice(start, start + page_size)
        block = hashlib.blake2b(key, digest_size=16)
        block.update(np.ascontiguousarray(ids[rows]).tobytes())
        if positions is not None:
            block.update(np.ascontiguousarray(positions[rows]).tobytes())
        if embeds is not None and embed_mask is not None:
            block.update(np.ascontiguousarray(embed_mask[rows]).tobytes())
            block.update(np.ascontiguousarray(embeds[rows][embed_mask[rows]]).tobytes())
        key = block.digest()
        keys.append(key)
    return keys
