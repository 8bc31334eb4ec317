"""Real faults of radix and hybrid caches, continued from test_faults: what was inserted is found, aborts, depths,
tiers, replicas, namespaces, and what users met."""

from itertools import pairwise

import numpy as np
import pytest
from tagged import (
    ALL,
    ROOMY,
    SHAPES,
    STATE,
    TEXT,
    Flat,
    buffer,
    check,
    everything_goes,
    hit,
    look,
    offer,
    put,
    tree_of,
)

from hypic.cache.store import Store
from hypic.cache.tree.component import Shape
from hypic.segment import Namespace, Segment, prefix_keys


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


def test_19_namespaces_never_meet_on_any_tier() -> None:
    """sglang#26747, #24638, vllm#44701: tenants and adapters shared pages in remote storage; joined names aliased."""
    none = (Segment("leading", np.empty(0, np.int32)),)
    owners = (("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""))
    tree = tree_of(STATE, host=ROOMY)
    for adapter, salt in owners:
        for provenance in ("exact", "composed"):
            (root,) = prefix_keys(Namespace("m", "t", "f", adapter, salt), none, provenance)
            assert tree.match(root, buffer(TEXT)).tokens == 0
            tree.insert(root, buffer(TEXT), offer(TEXT, [8]))
    names = {cell.record().key for cell in tree.cells()}
    assert len(names) == len(list(tree.cells())) == 16, "every copy has a name of its own wherever it is written"


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
