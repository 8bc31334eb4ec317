"""Real faults of radix and hybrid caches, each as the test that would have seen it. Numbers: the list in the project's
notes on oracles; the issue or pull request that reported it is named where there is one.

Kinds 1, 6 and 7 cannot arise here by construction (payloads never change, and a request computes on its own copy);
they are tested all the same.
"""

from itertools import combinations

import pytest
from tagged import (
    ALL,
    ROOMY,
    SHAPES,
    STATE,
    TEXT,
    WINDOW,
    FaultyTier,
    Flat,
    Held,
    StateTag,
    buffer,
    check,
    everything_goes,
    hit,
    look,
    offer,
    put,
    tree_of,
)

from hypic.cache.tiers.prefetch import Prefetcher
from hypic.cache.tree.component import Shape


def test_01_a_held_value_is_never_swapped_or_freed() -> None:
    """sglang#29352: recovering a window replaced FULL values that a running request had locked."""
    tree = tree_of(WINDOW)
    put(tree, TEXT)
    receipt = look(tree, TEXT[:8])
    before = receipt.spans("full"), receipt.spans("window")
    tree.memory.evict(ROOMY)
    put(tree, (*TEXT, 9, 9))
    put(tree, TEXT, live=0)
    assert [a is b for (_, a), (_, b) in zip(before[0], receipt.spans("full"), strict=True)].count(False) == 0
    assert [slot for _, p in before[1] for slot in p.slots] == [  # type: ignore[attr-defined]
        slot
        for _, p in receipt.spans("window")
        for slot in p.slots  # type: ignore[attr-defined]
    ]
    receipt.release()
    check(tree)


def test_02_there_is_no_release_without_its_receipt() -> None:
    """sglang#27038: an internal unlock walked to the root and took the locks of others."""
    tree = tree_of(ALL, device=120, host=ROOMY)
    put(tree, TEXT)
    receipt = look(tree, TEXT)
    leases = tree.memory.leases
    assert tree.lookup(b"n", buffer((5, 5))) is None
    put(tree, (9,) * 40)  # no room beside what is held: internal locks are taken and given back
    assert tree.memory.leases == leases
    receipt.release()
    with pytest.raises(AssertionError, match="released twice"):
        receipt.release()
    with pytest.raises(AssertionError, match="more often than leased"):
        tree.memory.unlease(next(iter(tree.cells())))
    tree.memory.leases = 0


def test_03_early_release_leaves_the_other_holder_whole() -> None:
    """sglang#28161 and its residual: two holders, one gives its window back early, then all; the other's stay."""
    tree = tree_of(ALL)
    put(tree, TEXT)
    one, other = look(tree, TEXT), look(tree, TEXT)
    one.release_early("window")
    one.release_early("window")
    tree.memory.evict(ROOMY)
    one.release()
    tree.memory.evict(ROOMY)
    assert hit(tree, TEXT) == 8
    assert other.state() == StateTag(TEXT)
    assert len(other.spans("window")) == 1
    other.release()
    everything_goes(tree)


def test_03_what_is_still_held_outlives_its_use() -> None:
    """The window given back early and evicted: no hit can end there any more, but the keys are being read."""
    tree = tree_of(WINDOW)
    put(tree, TEXT)
    receipt = look(tree, TEXT)
    receipt.release_early("window")
    tree.memory.evict(ROOMY)
    assert hit(tree, TEXT) == 0
    assert (
        [slot for _, payload in receipt.spans() for slot in payload.slots]
        == [  # type: ignore[attr-defined]
            TEXT[:end] for end in range(1, 9)
        ]
    )
    check(tree)
    receipt.release()
    assert not list(tree.cells())


def test_04_a_lock_over_a_tombstone_is_not_released_on_anothers() -> None:
    """sglang#24972, #36848: locked as a tombstone, revived, locked by another; the first release took the second's."""
    tree = tree_of(WINDOW)
    put(tree, TEXT)
    tree.insert(b"n", buffer((*TEXT, 9, 9, 9, 9)), offer((*TEXT, 9, 9, 9, 9)))
    tree.memory.evict(1, kind="window")
    first = look(tree, (*TEXT, 9, 9, 9, 9))
    put(tree, TEXT)
    second = look(tree, TEXT)
    first.release()
    held = [cell for cell in second.cells() if cell.kind == "window"]
    assert held
    assert all(cell.leases == 1 for cell in held)
    tree.memory.evict(ROOMY)
    assert hit(tree, TEXT) == 8
    second.release()
    everything_goes(tree)


@pytest.mark.parametrize("fork", [None, 5, 6])
@pytest.mark.parametrize("cut", [2, 5, 6, 7])
def test_04_the_whole_window_is_held_and_stays_held_when_it_is_cut(cut: int, fork: int | None) -> None:
    """sglang#24972 in general: what a hit needs is what its receipt holds, in however many nodes, then or later."""
    tree = tree_of(Shape(window_tokens=4))
    put(tree, TEXT[:cut])
    put(tree, TEXT, start=cut)
    receipt = look(tree, TEXT)
    if fork:
        put(tree, (*TEXT[:fork], 99))
    tree.memory.evict(ROOMY)
    assert hit(tree, TEXT) == 8
    slots = [slot for _, payload in receipt.spans("window") for slot in payload.slots]  # type: ignore[attr-defined]
    assert slots[-4:] == [TEXT[:end] for end in range(5, 9)]
    receipt.release()
    everything_goes(tree)


@pytest.mark.parametrize("pressed", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_05_a_cut_during_a_flight_leaves_nothing_unpinned(at: int, pressed: bool) -> None:
    """sglang#38480: a split moved half of the bytes in flight out of protection."""
    tree = tree_of(Shape(), host=ROOMY)
    put(tree, TEXT)
    tree.memory.evict(ROOMY)
    executor = Held()
    prefetcher = Prefetcher(tree.memory, executor)
    assert prefetcher.start(next(iter(tree.cells())))
    fork = (*TEXT[:at], 99)
    tree.insert(b"n", buffer(fork), offer(fork))
    if pressed:
        tree.memory.evict(ROOMY, 0)
        tree.memory.evict(ROOMY, 1)
    assert hit(tree, TEXT) == 8, "all of what is in flight stays"
    executor.acks.pop()()
    prefetcher.poll()
    check(tree)
    everything_goes(tree)


@pytest.mark.parametrize("at", range(1, 8))
def test_05_a_cut_does_not_copy_the_lease_of_a_flight(at: int) -> None:
    """Found here by random operations: the upper half of a window kept, for ever, a lease that no flight gave back."""
    tree = tree_of(WINDOW, host=ROOMY)
    put(tree, TEXT)
    tree.memory.evict(ROOMY)
    executor = Held()
    prefetcher = Prefetcher(tree.memory, executor)
    started = [prefetcher.start(cell) for cell in list(tree.cells())]
    assert any(started)
    fork = (*TEXT[:at], 99)
    tree.insert(b"n", buffer(fork), offer(fork))
    for ack in executor.acks:
        ack()
    prefetcher.poll()
    assert tree.memory.leases == 0
    check(tree)
    everything_goes(tree)


def test_06_a_source_stays_itself_until_the_late_acknowledgement() -> None:
    """sglang#27444: a host page was recycled while it was still being read."""
    tree = tree_of(STATE, host=ROOMY)
    put(tree, TEXT, (4,))
    tree.memory.evict(ROOMY)
    executor = Held()
    prefetcher = Prefetcher(tree.memory, executor)
    cells = list(tree.cells())
    assert all(prefetcher.start(cell) for cell in cells)
    assert not prefetcher.start(cells[0]), "one flight each"
    for tier in (1, 0, 1):
        tree.memory.evict(ROOMY, tier)
    put(tree, (7, 7, 7), (1,))
    for ack in executor.acks:
        ack()
    assert prefetcher.poll() == len(cells)
    check(tree)
    assert look(tree, TEXT).state() == StateTag(TEXT)


def test_06_room_for_a_part_is_not_taken_from_what_it_builds_on() -> None:
    """Found here by random operations: bringing a child up evicted its parent, and the hit had a hole."""
    tree = tree_of(Shape(), host=ROOMY)
    put(tree, TEXT[:4])
    put(tree, TEXT, start=4)
    tree.memory.evict(ROOMY)
    parent, child = tree.cells()
    tree.memory.tiers[0].budget_bytes = max(parent.nbytes, child.nbytes)
    look(tree, TEXT[:4]).release()
    assert parent.has(0)
    receipt = look(tree, TEXT)
    assert receipt.tokens == 4, "there is room for one of the two: what is ready is served"
    assert [start for start, _ in receipt.spans("full")] == [0]
    receipt.release()
    check(tree)


def test_06_a_part_that_arrives_before_what_it_builds_on_waits_below() -> None:
    """Found here by random operations: a prefetched child was ready to use under a parent that was not."""
    tree = tree_of(Shape(), host=ROOMY)
    put(tree, TEXT[:4])
    put(tree, TEXT, start=4)
    tree.memory.evict(ROOMY)
    parent, child = tree.cells()
    executor = Held()
    prefetcher = Prefetcher(tree.memory, executor)
    assert prefetcher.start(child)
    executor.acks.pop()()
    assert prefetcher.poll() == 0
    check(tree)
    for cell in (parent, child):
        assert prefetcher.start(cell)
        executor.acks.pop()()
    assert prefetcher.poll() == 2
    check(tree)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_07_a_load_that_fails_gives_a_whole_hit_or_none(shape: Shape) -> None:
    """sglang#30986: a load-back aborted and the request decoded from an uninitialised state."""
    for failing in range(1, 6):
        tree = tree_of(shape, host=ROOMY)
        put(tree, TEXT, (2, 5))
        tree.memory.evict(ROOMY)
        host = tree.memory.tiers[1]
        assert isinstance(host, FaultyTier)
        host.failing_get = failing
        receipt = tree.lookup(b"n", buffer(TEXT))
        host.failing_get = 0
        if receipt:
            assert not shape.state or receipt.state() == StateTag(TEXT[: receipt.tokens])
            slots = [slot for _, payload in receipt.spans() for slot in payload.slots]  # type: ignore[attr-defined]
            assert slots[: receipt.tokens] == [TEXT[:end] for end in range(1, receipt.tokens + 1)]
            receipt.release()
        check(tree)
        everything_goes(tree)


@pytest.mark.parametrize("write", ["back", "through"])
def test_08_a_backup_that_fails_leaves_no_gap(write: str) -> None:
    """sglang#27108, #22062: demoted though the backup failed, the parent gone and the child backed up."""
    tree = tree_of(Shape(), host=ROOMY, write=write)
    host = tree.memory.tiers[1]
    assert isinstance(host, FaultyTier)
    put(tree, TEXT[:4])
    put(tree, TEXT)
    tree.memory.evict(1)
    host.failing_puts = True
    tree.memory.evict(ROOMY)
    check(tree)
    assert hit(tree, TEXT) in (4, 8)
    host.failing_puts = False
    everything_goes(tree)


def test_09_a_tombstone_frees_nothing() -> None:
    """sglang#27586: freeing the range of a tombstone freed a live slot of another."""
    tree = tree_of(WINDOW)
    put(tree, TEXT)
    window = tree.memory.evict(1, kind="window")
    assert window > 0
    used = tree.memory.used_bytes
    other = (9, 9, 9)
    put(tree, other)
    tree.memory.evict(ROOMY, kind="window")
    assert tree.memory.evict(ROOMY, kind="window") == 0
    assert tree.memory.used_bytes <= used + 3 * 4
    check(tree)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("live", [0, 2, 5])
def test_10_in_chunks_or_at_once_the_tree_is_the_same(shape: Shape, live: int) -> None:
    """sglang#29350, #36909: an unfinished insert forgot where the window's values begin and published dead ones."""
    depths = (3, 5, 8)
    once = tree_of(shape)
    put(once, TEXT, depths, live=live)
    for size in range(3):
        for cuts in combinations((3, 5), size):
            chunked = tree_of(shape)
            for end in (*cuts, 8):
                chunk = TEXT[:end]
                inside = [depth for depth in depths if depth <= end]
                chunked.insert(b"n", buffer(chunk), offer(chunk, inside, live=min(live, end)))
            held, expected = Flat(chunked, b"n"), Flat(once, b"n")
            for tokens in (TEXT[:end] for end in range(1, 9)):
                assert held.legal(tokens) >= expected.legal(tokens), (cuts, tokens)
            assert all(len(slot) > live for slot in held.held["window"] - {TEXT[:end] for end in range(1, live + 1)})
            check(chunked)
