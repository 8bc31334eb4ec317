"""Real faults of radix and hybrid caches, each as the test that would have seen it. Numbers: the list in the project's
notes on oracles; the issue or pull request that reported it is named where there is one.

Kinds 1, 6 and 7 cannot arise here by construction (payloads never change, and a request computes on its own copy);
they are tested all the same.
"""

from concurrent.futures import Executor, Future
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from tagged import FaultyTier, Flat, Prefix, StateTag, buffer, check_contents, offer

from hypic.cache.memory import Memory
from hypic.cache.store import Store
from hypic.cache.tiers.prefetch import Prefetcher
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tree.component import Shape
from hypic.cache.tree.tree import Receipt, Tree
from hypic.segment import Namespace, Segment, prefix_keys

ROOMY = 10**6
ALL = Shape(window_tokens=3, state=True)
WINDOW = Shape(window_tokens=3)
STATE = Shape(state=True)
SHAPES = [Shape(), WINDOW, STATE, ALL]
TEXT: Prefix = (1, 2, 3, 4, 5, 6, 7, 8)


def tree_of(shape: Shape, device: int = ROOMY, host: int | None = None, write: str = "back") -> Tree:
    lower = [] if host is None else [FaultyTier("host", host)]
    return Tree(Memory([RamTier("device", device), *lower], write=write), shape)  # type: ignore[arg-type]


def put(tree: Tree, tokens: Prefix, depths: tuple[int, ...] = (), start: int = 0, live: int = 0) -> int:
    return tree.insert(b"n", buffer(tokens), offer(tokens, [*depths, len(tokens)], start, live)).tokens


def hit(tree: Tree, tokens: Prefix) -> int:
    return tree.match(b"n", buffer(tokens)).tokens


def look(tree: Tree, tokens: Prefix) -> Receipt:
    receipt = tree.lookup(b"n", buffer(tokens))
    assert receipt is not None
    return receipt


def check(tree: Tree) -> None:
    tree.check()
    tree.memory.check(tree.cells())
    check_contents(tree)


def everything_goes(tree: Tree) -> None:
    for tier in (*reversed(range(len(tree.memory.tiers))), *reversed(range(len(tree.memory.tiers)))):
        tree.memory.evict(ROOMY * 10, tier)
    assert not list(tree.cells())
    assert all(tier.used_bytes == tier.copies() == 0 for tier in tree.memory.tiers)
    assert tree.memory.leases == 0


class Held(Executor):
    """Reads at once, acknowledges when asked."""

    def __init__(self) -> None:
        self.acks: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        result = fn(*args, **kwargs)
        self.acks.append(lambda: future.set_result(result))
        return future


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


@pytest.mark.parametrize("at", range(1, 8))
def test_05_a_cut_during_a_flight_leaves_nothing_unpinned(at: int) -> None:
    """sglang#38480: a split moved half of the bytes in flight out of protection."""
    tree = tree_of(Shape(), host=ROOMY)
    put(tree, TEXT)
    tree.memory.evict(ROOMY)
    executor = Held()
    prefetcher = Prefetcher(tree.memory, executor)
    assert prefetcher.start(next(iter(tree.cells())))
    fork = (*TEXT[:at], 99)
    tree.insert(b"n", buffer(fork), offer(fork))
    tree.memory.evict(ROOMY, 0)
    tree.memory.evict(ROOMY, 1)
    assert hit(tree, TEXT) == 8, "all of what is in flight stays"
    executor.acks.pop()()
    prefetcher.poll()
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


@pytest.mark.parametrize("page", [1, 2, 3, 4])
@pytest.mark.parametrize("window", [0, 1, 2, 5])
@pytest.mark.parametrize("state", [False, True])
def test_11_what_was_inserted_is_found(page: int, window: int, state: bool) -> None:
    """sglang#34870, #29860, #40681: the rematch after an insert fell short; the next insert freed the tree's own."""
    for size in range(1, 13):
        tree = tree_of(Shape(window, state, page))
        tokens = tuple(range(size))
        for cut in (size, size - 1, size + 1):
            prompt = tuple(range(cut))
            if not prompt:
                continue
            grown = tree.insert(
                b"n", buffer(prompt), offer(prompt, [cut], live=max(0, cut // page * page - window - page + 1))
            )
            assert grown.tokens == (0 if state and cut % page else cut // page * page)
            assert hit(tree, prompt) >= grown.tokens
            check(tree)
        assert hit(tree, tokens) <= size


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_12_an_abort_after_any_step_returns_everything(shape: Shape) -> None:
    """sglang#12693, #16067, #21404, #39787: state slots leaked where admission failed after the match."""
    for steps in range(5):
        tree = tree_of(shape, host=200)
        put(tree, TEXT, (4,))
        prompt = (*TEXT, 9, 9)
        match = tree.match(b"n", buffer(prompt)) if steps > 0 else None
        receipt = tree.acquire(match) if steps > 1 and match else None
        if receipt and steps > 2 and shape.window_tokens:
            receipt.release_early("window")
        if receipt and steps > 3:
            tree.insert(b"n", buffer(prompt), offer(prompt, [10], receipt.tokens))
        if receipt:
            receipt.release()
        check(tree)
        everything_goes(tree)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_13_full_and_locked_is_less_reuse_never_an_error(shape: Shape) -> None:
    """sglang#40128, #36770: an optional donation asserted when there was no slot, and the scheduler died."""
    tree = tree_of(shape, device=80)
    put(tree, TEXT)
    receipt = tree.lookup(b"n", buffer(TEXT))
    for other in ((9, 9, 9, 9), (*TEXT, 9), TEXT, (1, 2, 9)):
        tree.insert(b"n", buffer(other), offer(other, [len(other)]))
        check(tree)
    if receipt:
        receipt.release()
    nothing = tree_of(shape, device=0)
    assert put(nothing, TEXT) == 0
    assert hit(nothing, TEXT) == 0


def test_14_a_state_stands_at_exactly_its_depth() -> None:
    """sglang#34808, #35412, #39115: a state up to 448 tokens ahead of its node, so tokens were applied twice."""
    for page in (1, 2, 3):
        tree = tree_of(Shape(state=True, page_tokens=page))
        for depth in range(1, 9):
            tree.insert(b"n", buffer(TEXT), offer(TEXT, [depth]))
            check(tree)
        for end in range(1, 9):
            match = tree.match(b"n", buffer(TEXT[:end]))
            assert match.tokens == end // page * page
    with pytest.raises(AssertionError, match="states after"):
        tree.insert(b"n", buffer(TEXT), offer((*TEXT, 9), [9]))


def test_16_what_was_written_down_is_served_again() -> None:
    """sglang#33713: KV backed up and resident, but never served, since the state had been dropped unbacked."""
    for shape in SHAPES:
        tree = tree_of(shape, host=ROOMY)
        put(tree, TEXT, (4,))
        tree.memory.evict(ROOMY)
        assert tree.memory.used_bytes == 0
        receipt = look(tree, TEXT)
        assert receipt.tokens == 8
        assert tree.memory.stats.loaded > 0
        receipt.release()
        check(tree)


@pytest.mark.parametrize("shape", [STATE, Shape(window_tokens=2, state=True)], ids=str)
def test_17_reuse_falls_gradually(shape: Shape) -> None:
    """sglang#35515, #38000: one tombstone, and tens of thousands of reusable tokens became none."""
    tree, text = tree_of(shape), tuple(range(20))
    put(tree, text, (4, 8, 12, 16))
    hits = [hit(tree, text)]
    while hits[-1]:
        assert tree.memory.evict_one(0)
        hits.append(hit(tree, text))
    assert all(0 <= a - b <= 4 for a, b in pairwise(hits)), hits


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_18_two_replicas_decide_alike(shape: Shape) -> None:
    """sglang#28429, #27489: ranks that saw the same requests held different pages. Sessions and ties included."""
    twins = [tree_of(shape, device=150, host=100) for _ in range(2)]
    for twin in twins:
        ticket = twin.memory.sessions.open("s")
        for number in range(40):
            text = tuple((number * k) % 3 for k in range(1, 9))
            grown = twin.insert(b"n", buffer(text), offer(text, [3, 8]))
            if grown.node and number % 5 == 0:
                twin.memory.sessions.register(ticket, twin.region(grown.node))
            if receipt := twin.lookup(b"n", buffer(text[: number % 8 + 1])):
                receipt.release()
        twin.memory.sessions.close("s")
        twin.memory.evict(40)
    assert Flat(twins[0], b"n").held == Flat(twins[1], b"n").held
    assert twins[0].memory.stats == twins[1].memory.stats


def test_19_namespaces_never_meet_on_any_tier(tmp_path: Path) -> None:
    """sglang#26747, #24638, vllm#44701: tenants and adapters shared pages in remote storage; joined names aliased."""
    question = Segment("question", TEXT[:1])  # type: ignore[arg-type]
    roots = [
        prefix_keys(Namespace("m", "t", "f", adapter, salt), (), "exact") or [f"{len(adapter)}{adapter}{salt}".encode()]
        for adapter, salt in (("a", "bc"), ("ab", "c"), ("", "abc"))
    ]
    assert question
    tree = tree_of(STATE, host=ROOMY)
    for (root,) in roots:
        assert tree.match(root, buffer(TEXT)).tokens == 0
        tree.insert(root, buffer(TEXT), offer(TEXT, [8]))
    names = {cell.record().key for cell in tree.cells()}
    assert len(names) == len(list(tree.cells())) == 6, "every copy has a name of its own wherever it is written"


@pytest.mark.parametrize("kind", ["window", "state"])
def test_20_a_hit_is_never_longer_than_any_component_allows(kind: str) -> None:
    """vllm#46453, #43090: the hit was the longest of the groups, and a state was read that did not exist."""
    tree = tree_of(ALL)
    put(tree, TEXT, (4, 6))
    while tree.memory.evict_one(0, kind):
        flat = Flat(tree, b"n")
        for end in range(1, 9):
            assert hit(tree, TEXT[:end]) == flat.deepest(TEXT[:end])
    assert hit(tree, TEXT) == 0


def test_21_memory_without_a_state_is_told_and_then_used() -> None:
    """vllm#45238: 0 of 64 hits, silently, because the checkpoint lay past the shared part."""
    tree, shared = tree_of(STATE), TEXT
    put(tree, (*shared, 90, 91))
    hits = []
    for number in range(4):
        prompt = (*shared, number, number)
        match = tree.match(b"n", buffer(prompt))
        hits.append(match.tokens)
        depths = [depth for depth in (match.full_tokens, len(prompt)) if depth > match.tokens]
        tree.insert(b"n", buffer(prompt), offer(prompt, depths))
    assert hits == [0, 8, 8, 8]
    tree.lookup(b"n", buffer((*shared[:5], 99)))
    assert tree.stats.stateless_tokens == 5


def test_30_two_cold_copies_leave_one() -> None:
    """vllm#7414: the same prefix computed twice at once; the second finds it there, and nothing is held twice."""
    for shape in SHAPES:
        tree = tree_of(shape)
        put(tree, TEXT, (4,))
        used, cells = tree.memory.used_bytes, len(list(tree.cells()))
        grown = tree.insert(b"n", buffer(TEXT), offer(TEXT, [4, 8]))
        assert (grown.tokens, grown.adopted_bytes) == (8, 0)
        assert (tree.memory.used_bytes, len(list(tree.cells()))) == (used, cells)


def test_what_a_match_promised_may_be_gone() -> None:
    """LMCache#4133: the lookup promised 768 tokens, 651 were left when they were loaded, and the engine died."""
    for shape in SHAPES:
        tree = tree_of(shape)
        put(tree, TEXT, (4,))
        match = tree.match(b"n", buffer(TEXT))
        tree.memory.evict(1)
        receipt = tree.acquire(match)
        assert receipt is None or receipt.tokens == 8
        if receipt:
            receipt.release()
        tree.memory.evict(ROOMY)
        assert tree.acquire(match) is None
        check(tree)


def test_an_entry_held_by_many_requests_counts_each() -> None:
    """LMCache#1756, #3381: pins leaked, or went negative and freed what was in use."""

    class Item:
        key, nbytes = b"k", 10

    store: Store[Item] = Store(10)
    store.insert(Item())
    leases = [store.lease(b"k") for _ in range(5)]
    for lease in leases:
        assert store.clear() == 0
        assert lease is not None
        lease.release()
    store.check()
    assert store.clear() == 1
