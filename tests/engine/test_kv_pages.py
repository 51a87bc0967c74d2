"""Pages: no leak, no double free, shared by content, given up when short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv_pages import DUMMY_PAGE, PageAllocator, PageTable, PrefixCache, prefix_keys


def test_the_dummy_page_is_never_handed_out():
    pages = PageAllocator(5, 16).allocate(4)
    assert pages is not None
    assert DUMMY_PAGE not in pages
    assert len(set(pages)) == 4


def test_allocation_is_all_or_nothing():
    allocator = PageAllocator(4, 16)
    assert allocator.allocate(4) is None
    assert allocator.n_free == 3
    assert allocator.allocate(0) == []


def test_a_shared_page_outlives_its_first_owner():
    allocator = PageAllocator(3, 16)
    (page,) = allocator.allocate(1) or []
    allocator.share(page)
    allocator.release([page])
    assert allocator.n_used == 1
    allocator.release([page])
    assert allocator.n_used == 0
    with pytest.raises(AssertionError, match="more often than taken"):
        allocator.release([page])
    with pytest.raises(AssertionError, match="cannot be shared"):
        allocator.share(page)


def test_a_table_reserves_whole_pages_and_gives_them_back():
    allocator = PageAllocator(4, 16)
    table = PageTable()
    assert table.reserve(17, allocator)
    assert table.reserve(32, allocator)
    assert len(table.pages) == 2
    assert not table.reserve(49 + 16, allocator)
    assert len(table.pages) == 2
    table.release(allocator)
    assert allocator.n_used == 0


def test_a_cached_prefix_is_shared_and_given_up_only_when_unused():
    allocator = PageAllocator(4, 16)
    cache = PrefixCache(allocator)
    owner = cache.allocate(2)
    assert owner is not None
    cache.insert(b"a", owner[0])
    cache.insert(b"ab", owner[1])
    shared = cache.match([b"a", b"ab", b"abc"])
    assert shared == owner
    cache.release(owner)
    assert cache.allocate(2) is None, "pages in use are not given up"
    cache.release(shared)
    assert cache.n_free == 3
    assert len(cache.allocate(3) or []) == 3
    assert cache.n_cached == 0


def test_the_end_of_a_chain_is_given_up_before_its_head():
    cache = PrefixCache(PageAllocator(3, 16))
    pages = cache.allocate(2)
    assert pages is not None
    cache.insert(b"head", pages[0])
    cache.insert(b"tail", pages[1])
    cache.release(pages)
    cache.release(cache.match([b"head", b"tail"]))
    assert cache.allocate(1) is not None
    assert cache.match([b"head", b"tail"]) == [pages[0]]


def _keys(ids, embeds=None, mask=None, positions=None, name="voice", n_rows=8):
    return prefix_keys(ids, embeds, mask, positions, prefix_key=name, n_rows=n_rows, page_size=4)


def test_keys_cover_every_column_embeds_positions_and_all_rows_before():
    ids = np.arange(16, dtype=np.int64).reshape(8, 2)
    base = _keys(ids)
    assert len(base) == 2
    assert len(_keys(ids, n_rows=7)) == 1
    for row in (0, 7):
        for column in (0, 1):
            other = ids.copy()
            other[row, column] += 100
            changed = [a != b for a, b in zip(base, _keys(other), strict=True)]
            assert changed == [row < 4, True]
    embeds = np.ones((8, 3), dtype=np.float16)
    mask = np.zeros(8, dtype=np.bool_)
    mask[5] = True
    with_embeds = _keys(ids, embeds, mask)
    louder = embeds.copy()
    louder[5] = 2
    assert _keys(ids, louder, mask)[1] != with_embeds[1]
    louder[6] = 3
    assert _keys(ids, louder, mask)[0] == with_embeds[0], "row 6 is not replaced by its embedding"
    assert _keys(ids, positions=np.arange(8, dtype=np.int64)) != base
    assert _keys(ids, name="other voice") != base


class PagesMachine(RuleBasedStateMachine):
    """Streams come, share prefixes, grow and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(9, 4)
        self.cache = PrefixCache(self.allocator)
        self.tables: list[PageTable] = []

    @rule(n_rows=st.integers(1, 24), chain=st.integers(0, 2), length=st.integers(0, 3))
    def open(self, n_rows, chain, length):
        table = PageTable()
        keys = [b"%d/%d" % (chain, depth) for depth in range(min(length, n_rows // 4))]
        table.adopt(self.cache.match(keys), 4)
        if not table.reserve(n_rows, self.cache):
            table.release(self.cache)
            return
        for key, page in zip(keys, table.pages, strict=False):
            self.cache.insert(key, page)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99))
    def close(self, which):
        self.tables.pop(which % len(self.tables)).release(self.cache)

    @rule()
    def forget(self):
        self.cache.clear()

    @invariant()
    def nothing_is_lost_or_owned_twice(self):
        self.allocator.check()
        self.cache.check()
        used = {page for table in self.tables for page in table.pages}
        assert len(used) <= self.allocator.n_used <= len(used) + self.cache.n_cached
        for table in self.tables:
            assert len(set(table.pages)) == len(table.pages)

    def teardown(self):
        for table in self.tables:
            table.release(self.cache)
        self.cache.clear()
        assert self.allocator.n_used == 0


TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=30)


@given(st.integers(1, 5), st.integers(0, 40))
def test_a_reservation_holds_exactly_the_rows_asked_for(page_size, n_rows):
    allocator = PageAllocator(50, page_size)
    table = PageTable()
    assert table.reserve(n_rows, allocator)
    assert 0 <= len(table.pages) * page_size - n_rows < page_size
