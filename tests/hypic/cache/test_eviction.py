"""Who goes first: the reference order of each policy, sessions last, no more than needed, and at a cost that does not
grow with what is cached."""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tagged import Prefix, buffer, offer

from hypic.cache.eviction import CostAware, EvictionQueue
from hypic.cache.memory import Memory
from hypic.cache.store import Store
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tree.component import Shape
from hypic.cache.tree.tree import Tree


@dataclass(eq=False)
class Thing:
    name: int
    nbytes: int = 1
    last_use_ticks: int = 0
    seconds: float = 0.0
    uses: int = 0


@dataclass(frozen=True)
class Item:
    key: bytes
    nbytes: int
    seconds: float = 0.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 20)), max_size=200))
@settings(derandomize=True, deadline=None)
def test_a_queue_is_a_sorted_list(operations: list[tuple[int, int]]) -> None:
    things, queue, model = [Thing(n) for n in range(10)], EvictionQueue[Thing](), {}
    for number, (name, worth) in enumerate(operations):
        if worth < 0:
            queue.remove(things[name])
            model.pop(name, None)
        else:
            queue.push(things[name], (False, float(worth), number))
            model[name] = (False, float(worth), number)
        head = queue.head()
        assert len(queue) == len(model)
        assert (head and (head[1].name, head[0])) == min(model.items(), key=lambda item: item[1], default=None)


def test_a_queue_forgets_stale_places() -> None:
    queue, thing = EvictionQueue[Thing](), Thing(0)
    for number in range(10_000):
        queue.push(thing, (False, float(number), number))
    assert len(queue._heap) < 100


def leaf(number: int, tokens: int = 4) -> Prefix:
    return (number, *range(1, tokens))


def fork_tree(leaves: int, shape: Shape | None = None) -> Tree:
    tree = Tree(Memory.of_bytes(10**9), shape or Shape())
    for number in range(leaves):
        tree.insert(b"n", buffer(leaf(number)), offer(leaf(number), [4]))
    return tree


def touch(tree: Tree, tokens: Prefix) -> None:
    receipt = tree.lookup(b"n", buffer(tokens))
    assert receipt is not None
    receipt.release()


def test_victims_of_a_tree_follow_their_last_use() -> None:
    tree, order = fork_tree(30), list(range(30))
    shuffle = random.Random(0)
    for _ in range(100):
        number = shuffle.choice(order)
        touch(tree, leaf(number))
        order.remove(number)
        order.append(number)
    while order:
        assert tree.memory.evict_one(0)
        gone = order.pop(0)
        assert tree.match(b"n", buffer(leaf(gone))).tokens == 0
        assert all(tree.match(b"n", buffer(leaf(number))).tokens == 4 for number in order)


@pytest.mark.parametrize("host", [0, 10**6])
def test_a_parent_goes_with_its_last_child_not_before_others(host: int) -> None:
    """What a leaf's last use says holds for its path: its parent does not go as if nobody had asked for it."""
    tree = Tree(Memory([RamTier("device", 10**6), RamTier("host", host)]))
    for tail in ((8, 8), (9, 9)):
        tree.insert(b"n", buffer((1, 2, *tail)), offer((1, 2, *tail)))
    tree.insert(b"n", buffer((5, 5)), offer((5, 5)))
    touch(tree, (1, 2, 8, 8))
    tree.memory.evict_one(0)
    tree.memory.evict_one(0)
    hits = [tree.match(b"n", buffer(text), tiers=1).tokens for text in ((1, 2, 8, 8), (1, 2, 9, 9), (5, 5))]
    assert hits == [4, 2, 0]
    tree.insert(b"n", buffer((6, 6)), offer((6, 6)))
    touch(tree, (1, 2, 8, 8))
    tree.memory.evict_one(0)
    tree.memory.evict_one(0)
    assert tree.match(b"n", buffer((1, 2)), tiers=1).tokens == 2, "used when its last child was"


def test_what_is_ready_to_use_goes_from_the_leaves_upwards() -> None:
    tree = Tree(Memory([RamTier("device", 1000), RamTier("host", 1000)]))
    for end in (2, 4, 6):
        tree.insert(b"n", buffer(tuple(range(end))), offer(tuple(range(end))))
    ready = []
    while tree.memory.evict_one(0):
        tree.check()
        ready.append(tree.match(b"n", buffer(tuple(range(6))), tiers=1).tokens)
        assert tree.match(b"n", buffer(tuple(range(6)))).tokens == 6
    assert ready == [4, 2, 0]


@pytest.mark.parametrize("needed", [1, 15, 16, 17, 64, 100, 10**6])
def test_progress_and_no_victim_too_many(needed: int) -> None:
    """Oracle O10: at least what was asked for, where it is there, and less than one victim more."""
    tree = fork_tree(20)
    victim = tree.memory.used_bytes // 20
    freed = tree.memory.evict(needed)
    assert min(needed, 20 * victim) <= freed < needed + victim
    assert tree.memory.stats.evicted == {"device": -(-min(needed, 20 * victim) // victim)}


def test_of_one_kind_alone() -> None:
    tree = fork_tree(4, Shape(window_tokens=2))
    before = {kind: sum(cell.nbytes for cell in tree.cells() if cell.kind == kind) for kind in ("full", "window")}
    touch(tree, leaf(0))
    freed = tree.memory.evict(1, kind="window")
    assert freed > 0
    assert tree.match(b"n", buffer(leaf(0))).tokens == 4
    assert sum(cell.nbytes for cell in tree.cells() if cell.kind == "window") < before["window"]
    assert tree.memory.evict(1, kind="state") == 0


def test_cost_aware_keeps_what_is_dear_per_byte_but_not_for_ever() -> None:
    memory = Memory.of_bytes(100, CostAware())
    store: Store[Item] = Store(memory, seconds_of=lambda item: item.seconds)
    store.insert(Item(b"dear", 50, 50.0))
    for number in range(100):
        store.insert(Item(b"cheap %d" % number, 50, 1.0))
        if number < 20:
            assert b"dear" in store
    assert b"dear" not in store, "never asked for, so what has gone since was worth more together"


def test_cost_aware_counts_uses() -> None:
    memory = Memory.of_bytes(100, CostAware())
    store: Store[Item] = Store(memory, seconds_of=lambda item: 1.0)
    store.insert(Item(b"often", 50))
    for _ in range(5):
        with store.leased(b"often") as found:
            assert found
    store.insert(Item(b"once", 50))
    store.insert(Item(b"new", 50))
    assert b"often" in store
    assert b"once" not in store


def test_cost_aware_weighs_by_the_byte_and_remembers() -> None:
    store: Store[Item] = Store(Memory.of_bytes(100, CostAware()), seconds_of=lambda item: 1.0)
    store.insert(Item(b"small", 20))
    store.insert(Item(b"large", 70))
    store.insert(Item(b"new", 30))
    assert b"small" in store
    assert b"large" not in store, "as many seconds saved by more bytes"
    for _ in range(9):
        store.lease(b"new").release()  # type: ignore[union-attr]
    store.insert(Item(b"all", 90))
    assert b"new" not in store
    store.insert(Item(b"new", 30))
    store.insert(Item(b"other", 70))
    store.insert(Item(b"more", 70))
    assert b"new" in store, "its earlier uses count"


def test_tree_and_store_share_one_budget_and_one_clock() -> None:
    memory = Memory.of_bytes(100)
    tree, store = Tree(memory), Store[Item](memory)
    tree.insert(b"n", buffer((1, 2, 3)), offer((1, 2, 3)))
    store.insert(Item(b"a", 40))
    touch(tree, (1, 2, 3))
    store.insert(Item(b"b", 40))
    assert b"a" in store
    store.insert(Item(b"c", 40))
    assert b"a" not in store, "the oldest of both"
    assert tree.match(b"n", buffer((1, 2, 3))).tokens == 3
    store.insert(Item(b"d", 60))
    assert (len(store), tree.match(b"n", buffer((1, 2, 3))).tokens) == (1, 3) or memory.used_bytes <= 100
    memory.check([*tree.cells(), *store.cells])


def lines_run(work: Callable[[], None]) -> int:
    """How many lines of Python some work runs, turns of loops included: what it costs, on a busy machine too."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., object]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def lines_to_evict_64(leaves: int) -> float:
    tree = fork_tree(leaves)

    def evict() -> None:
        freed = tree.memory.evict(64 * 4)
        assert 64 * 4 <= freed < 64 * 4 + 16

    return median(lines_run(evict) for _ in range(5))


def test_23_eviction_does_not_slow_down_with_what_is_cached() -> None:
    """sglang#38454: 70 ms an eviction with 41,000 leaves, 90 % of the throughput gone. Milliseconds:
    eval/cache_bench.py."""
    assert lines_to_evict_64(8000) < 1.1 * lines_to_evict_64(1000)


def test_leased_entries_do_not_slow_eviction_down() -> None:
    """The first store looked at every pinned entry for every victim."""

    def lines_an_insertion(pinned: int) -> float:
        store: Store[Item] = Store(pinned + 11)
        for number in range(pinned + 10):
            store.insert(Item(b"%d" % number, 1))
        leases = [store.lease(b"%d" % number) for number in range(pinned)]
        new = iter(range(100))
        lines = median(lines_run(lambda: insert(store, b"new %d" % next(new))) for _ in range(100))
        for lease in leases:
            assert lease is not None
            lease.release()
        store.check()
        return lines

    assert lines_an_insertion(5000) == lines_an_insertion(50)


def insert(store: Store[Item], key: bytes) -> None:
    assert store.insert(Item(key, 1))


def test_a_victim_moves_down_the_tiers_in_order() -> None:
    memory = Memory([RamTier("device", 100), RamTier("host", 100), RamTier("disk", 200)])
    store: Store[Item] = Store(memory)
    for number in range(8):
        store.insert(Item(b"%d" % number, 50))
    places = {number: [tier for tier in range(3) if cell.has(tier)] for number, cell in enumerate(store.cells)}
    assert places == {0: [2], 1: [2], 2: [2], 3: [2], 4: [1], 5: [1], 6: [0], 7: [0]}
    store.insert(Item(b"8", 50))
    assert store.why_missing(b"0") == "evicted"
    with store.leased(b"1") as found:
        assert found == Item(b"1", 50)
    store.check()


def test_what_its_owner_forgets_stays_under_its_readers() -> None:
    memory = Memory.of_bytes(100)
    store: Store[Item] = Store(memory)
    store.insert(Item(b"a", 40))
    lease = store.lease(b"a")
    assert lease is not None
    memory.forget(lease.cell)
    assert memory.used_bytes == 40
    assert memory.load(lease.cell) == lease.entry
    assert memory.evict(100) == 0
    memory.unlease(lease.cell)
    assert memory.used_bytes == memory.leases == 0
