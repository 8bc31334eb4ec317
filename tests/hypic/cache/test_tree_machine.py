"""The prefix tree under random operations, for every set of components, pages, windows, tiers and failures, with a
segment store in the same memory and reads in flight.

After each operation the oracles O1 to O8, O10 and O12 of the project's notes hold: content, coverage, maximality,
conservation, what is held stays, receipts, idempotence, drain, progress, no dead weight.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tagged import FaultyTier, Flat, Prefix, SpanTag, StateTag, buffer, check_contents, offer, prefix_of

from hypic.cache.eviction import CostAware
from hypic.cache.memory import Memory
from hypic.cache.sessions import Ticket
from hypic.cache.store import Lease, Store
from hypic.cache.tiers.prefetch import Prefetcher
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tiers.tier import TierError
from hypic.cache.tree.component import Shape
from hypic.cache.tree.tree import Receipt, Tree

NAMESPACES = (b"a", b"b")
STEMS = ((0,) * 20, (0, 1) * 10, (0, 0, 0, 1, 1) * 4)
TOKENS = st.builds(
    lambda stem, kept, tail: (stem[:kept] + tuple(tail))[:20] or (0,),
    st.sampled_from(STEMS),
    st.integers(0, 20),
    st.lists(st.integers(0, 1), max_size=6),
)
"""Prompts that share beginnings of every length: of prompts drawn freely hardly two would meet."""


@dataclass(frozen=True)
class Item:
    """A segment in the store beside the tree."""

    key: bytes
    nbytes: int


class Delayed(Executor):
    """Does what it is given at once, and says so only when asked."""

    def __init__(self) -> None:
        self.acks: list[Callable[[], None]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            result = fn(*args, **kwargs)
            self.acks.append(lambda: future.set_result(result))
        except TierError as error:
            fault = error
            self.acks.append(lambda: future.set_exception(fault))
        return future


class TreeMachine(RuleBasedStateMachine):
    """One tree, its receipts and sessions."""

    shape: ClassVar[Shape]

    @initialize(
        device=st.sampled_from((400, 200, 100, 50, 400, 10, 0)),
        lower=st.lists(st.integers(0, 400), max_size=2),
        through=st.booleans(),
        cost_aware=st.booleans(),
    )
    def begin(self, device: int, lower: list[int], through: bool, cost_aware: bool) -> None:
        self.lower = [FaultyTier(f"tier {n + 1}", budget) for n, budget in enumerate(lower)]
        tiers = [RamTier("device", device), *self.lower]
        self.memory = Memory(tiers, CostAware() if cost_aware else None, "through" if through else "back")
        self.tree = Tree(self.memory, self.shape)
        self.receipts: list[tuple[Receipt, bytes, Prefix, set[str]]] = []
        self.tickets: list[Ticket] = []
        self.store: Store[Item] = Store(self.memory)
        self.leases: list[Lease[Item]] = []
        self.executor = Delayed()
        self.prefetcher = Prefetcher(self.memory, self.executor)

    def covered(self, receipt: Receipt, kinds: set[str]) -> dict[str, object]:
        values: dict[str, object] = {kind: dict(receipt.spans(kind)) for kind in kinds - {"state"}}  # type: ignore[arg-type]
        return values | ({"state": receipt.state()} if "state" in kinds else {})

    def check_hit(self, receipt: Receipt, tokens: Prefix, kinds: set[str]) -> None:
        hit = tokens[: receipt.tokens]
        for kind in kinds - {"state"}:
            slots = [slot for _, payload in receipt.spans(kind) for slot in payload.slots]  # type: ignore[union-attr,arg-type]
            within = [slot for slot in slots if len(slot) <= len(hit)]
            needed = len(hit) if kind == "full" else min(len(hit), self.shape.window_tokens)
            assert within[-needed:] == [hit[:end] for end in range(len(hit) - needed + 1, len(hit) + 1)]
        if "state" in kinds:
            assert receipt.state() == StateTag(hit)

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=TOKENS,
        depths=st.sets(st.integers(1, 20), max_size=4),
        behind_hit=st.booleans(),
        live=st.integers(0, 20),
        session=st.booleans(),
    )
    def insert(
        self, namespace: bytes, tokens: Prefix, depths: set[int], behind_hit: bool, live: int, session: bool
    ) -> None:
        receipt = self.tree.lookup(namespace, buffer(tokens)) if behind_hit else None
        start = receipt.tokens if receipt else 0
        kept = sorted(depth for depth in depths if depth <= len(tokens)) or [len(tokens)]
        grown = self.tree.insert(namespace, buffer(tokens), offer(tokens, kept, start, min(live, len(tokens))), receipt)
        if receipt:
            receipt.release()
        if grown.node:
            assert prefix_of(grown.node) == tokens[: grown.tokens]
            assert grown.tokens <= self.tree.match(namespace, buffer(tokens)).tokens
            if session and self.tickets:
                self.memory.sessions.register(self.tickets[-1], self.tree.region(grown.node))

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=TOKENS,
        keep=st.booleans(),
        ends=st.sets(st.integers(1, 20), max_size=8),
    )
    def lookup(self, namespace: bytes, tokens: Prefix, keep: bool, ends: set[int]) -> None:
        flat = Flat(self.tree, namespace)
        among = [end for end in ends if flat.legal(tokens[:end]) and end <= len(tokens)]
        assert self.tree.match(namespace, buffer(tokens), ends).tokens == max(among, default=0)
        expected = flat.deepest(tokens)
        for _ in range(2):
            match = self.tree.match(namespace, buffer(tokens))
            assert match.tokens == expected
        ready = Flat(self.tree, namespace, 1).deepest(tokens)
        receipt = self.tree.lookup(namespace, buffer(tokens))
        assert (receipt.tokens if receipt else 0) >= ready, "what is ready to use is never refused"
        if receipt is None:
            return
        assert receipt.tokens <= expected
        kinds = {component.kind for component in self.tree.trunk.components}
        self.check_hit(receipt, tokens, kinds)
        if keep and len(self.receipts) < 6:
            self.receipts.append((receipt, namespace, tokens, kinds))
        else:
            receipt.release()

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        tokens=TOKENS,
        depths=st.sets(st.integers(1, 20), max_size=4),
        cut=st.integers(0, 6),
        tail=st.lists(st.integers(0, 1), max_size=4),
        keep=st.booleans(),
    )
    def insert_and_ask(
        self, namespace: bytes, tokens: Prefix, depths: set[int], cut: int, tail: list[int], keep: bool
    ) -> None:
        """What was just remembered, asked for by a prompt that goes on, or turns off shortly before its end."""
        self.insert(namespace, tokens, depths | {len(tokens)}, True, 0, True)
        asked = (tokens[: max(0, len(tokens) - cut)] + tuple(tail))[:20] or (0,)
        self.lookup(namespace, asked, keep, depths)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.receipts.pop(data.draw(st.integers(0, len(self.receipts) - 1)))[0].release()

    @precondition(lambda self: self.receipts and self.shape.window_tokens)
    @rule(data=st.data())
    def release_window(self, data: st.DataObject) -> None:
        receipt, _, _, kinds = data.draw(st.sampled_from(self.receipts))
        receipt.release_early("window")
        kinds.discard("window")

    @rule(kind=st.sampled_from(["full", "window", "state", None]), needed=st.integers(1, 100), data=st.data())
    def evict(self, kind: str | None, needed: int, data: st.DataObject) -> None:
        tier = data.draw(st.integers(0, len(self.memory.tiers) - 1))
        if self.memory.evict(needed, tier, kind) < needed:
            for node in self.tree.trunk.nodes():
                for cell in node.cells:
                    if cell is None or not cell.has(tier) or (kind and cell.kind != kind):
                        continue
                    below = [other.full for other in node.subtree() if cell.kind == "full" and other is not node]
                    stuck = cell.leases or any(other.leases or other.tiers for other in below)
                    assert stuck, f"{cell.kind} at {node.end} could go"

    @rule(puts=st.sampled_from((False, False, True)), gets=st.sampled_from((False, False, True)))
    def fail(self, puts: bool, gets: bool) -> None:
        for tier in self.lower:
            tier.failing_puts, tier.failing_gets = puts, gets

    @rule(number=st.integers(0, 5), nbytes=st.integers(1, 100))
    def insert_segment(self, number: int, nbytes: int) -> None:
        self.store.insert(Item(bytes([number]), nbytes))

    @rule(number=st.integers(0, 5), keep=st.booleans())
    def lease_segment(self, number: int, keep: bool) -> None:
        lease = self.store.lease(bytes([number]))
        if lease is None:
            return
        assert lease.entry.key == bytes([number])
        self.leases.append(lease)
        if not keep or len(self.leases) > 2:
            self.leases.pop(0).release()

    @precondition(lambda self: len(self.memory.tiers) > 1)
    @rule(data=st.data())
    def prefetch(self, data: st.DataObject) -> None:
        low = [cell for cell in (*self.tree.cells(), *self.store.cells) if not cell.has(0)]
        if low:
            self.prefetcher.start(data.draw(st.sampled_from(low)))

    @rule(some=st.integers(0, 3))
    def acknowledge(self, some: int) -> None:
        for _ in range(min(some, len(self.executor.acks))):
            self.executor.acks.pop(0)()
        self.prefetcher.poll()

    @rule(name=st.sampled_from("xyz"))
    def open_session(self, name: str) -> None:
        self.tickets.append(self.memory.sessions.open(name))

    @rule(name=st.sampled_from("xyz"))
    def close_session(self, name: str) -> None:
        self.memory.sessions.close(name)
        assert all(name not in cell.sessions for cell in self.tree.cells())

    @rule(really=st.sampled_from((False, False, False, True)))
    def clear(self, really: bool) -> None:
        if really:
            self.tree.clear()

    @invariant()
    def the_books_agree(self) -> None:
        if hasattr(self, "tree"):
            self.tree.check()
            held = {cell for receipt, *_ in self.receipts for cell in receipt.cells()}
            flying = set(self.prefetcher._flights)
            self.memory.check({*self.tree.cells(), *held, *self.store.cells, *flying})
            self.store.check_counts(in_flight=len(flying & set(self.store.cells)))
            self.memory.sessions.check()
            check_contents(self.tree)

    @invariant()
    def held_values_stay(self) -> None:
        for receipt, _, tokens, kinds in getattr(self, "receipts", ()):
            self.check_hit(receipt, tokens, kinds)

    @invariant()
    def leases_are_those_of_live_receipts(self) -> None:
        """Counted anew from the prompts: a cut, an eviction or a release of another's never changes them."""
        if not hasattr(self, "tree"):
            return
        for namespace in NAMESPACES:
            for node, prefix in Flat(self.tree, namespace).nodes:
                over = [
                    (receipt, kinds)
                    for receipt, name, _, kinds in self.receipts
                    if name == namespace and prefix_of(receipt.node)[: node.end] == prefix
                ]
                for component in self.tree.trunk.components:
                    cell = node.cells[component.index]
                    count = sum(
                        component.kind in kinds
                        and (node.start >= r.first["window"] if component.kind == "window" else node is r.node)
                        for r, kinds in over
                    )
                    count += cell in self.prefetcher._flights
                    assert (cell.leases if cell else 0) == count, (component.kind, prefix)

    @invariant()
    def nothing_is_dead_weight(self) -> None:
        for namespace in NAMESPACES if hasattr(self, "tree") else ():
            assert not list(Flat(self.tree, namespace).useless(self.tree))

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for receipt, *_ in self.receipts:
            receipt.release()
        self.fail(False, False)
        for lease in self.leases:
            lease.release()
        for ack in self.executor.acks:
            ack()
        self.prefetcher.poll(wait=True)
        for tier in reversed(range(len(self.memory.tiers))):
            self.memory.evict(10**9, tier)
        for tier in reversed(range(len(self.memory.tiers))):
            self.memory.evict(10**9, tier)
        self.memory.evict(10**9, len(self.memory.tiers) - 1)
        left = [(tier.name, tier.used_bytes, tier.copies()) for tier in self.memory.tiers]
        assert not any(used or copies for _, used, copies in left), left
        assert not self.tree.trunk.roots
        assert self.memory.leases == 0
        assert len(self.store) == self.store.stats.used_bytes == self.store.stats.leases == 0


SHAPES = {
    "full": Shape(),
    "full, page 3": Shape(page_tokens=3),
    "window 1": Shape(window_tokens=1),
    "window 4": Shape(window_tokens=4),
    "window 4, page 3": Shape(window_tokens=4, page_tokens=3),
    "window 2, page 4": Shape(window_tokens=2, page_tokens=4),
    "state": Shape(state=True),
    "state, page 2": Shape(state=True, page_tokens=2),
    "all, window 3": Shape(window_tokens=3, state=True),
    "all, window 5, page 2": Shape(window_tokens=5, state=True, page_tokens=2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_tree(name: str) -> None:
    machine = type("Machine", (TreeMachine,), {"shape": SHAPES[name]}).TestCase
    machine.settings = settings(
        max_examples=60,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()


def test_tags_tell_a_wrong_value() -> None:
    """The oracle itself: a payload of another prefix is not equal."""
    assert SpanTag("full", ((1,), (1, 2))).split(1) == (SpanTag("full", ((1,),)), SpanTag("full", ((1, 2),)))
    assert StateTag((1,)) != StateTag((2,))
