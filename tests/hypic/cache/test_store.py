"""The store under random operations: what is leased stays, the books agree, the victims are the oldest."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hypic.cache.store import Lease, Store

BUDGET = 100


@dataclass(frozen=True)
class Item:
    """The least that a store needs."""

    key: bytes
    nbytes: int
    parent: bytes = b""


class StoreMachine(RuleBasedStateMachine):
    """A store beside a model of it: a list in order of use, and counts of leases."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Store[Item] = Store(BUDGET, parent_of=lambda item: item.parent)
        self.order: list[Item] = []
        self.leases: list[Lease[Item]] = []
        self.building_on = b""
        self.count = 0

    def held(self) -> set[bytes]:
        return {lease.entry.key for lease in self.leases} | {item.parent for item in self.order} | {self.building_on}

    def evict_until(self, needed: int) -> bool:
        while sum(item.nbytes for item in self.order) + needed > BUDGET:
            victim = next((item for item in self.order if item.key not in self.held()), None)
            if victim is None:
                return False
            self.order.remove(victim)
        return True

    @rule(nbytes=st.integers(0, 120), child=st.booleans(), data=st.data())
    def insert(self, nbytes: int, child: bool, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.order)).key if child and self.order else b""
        self.count += 1
        item = Item(f"item {self.count}".encode(), nbytes, parent)
        self.building_on = parent  # it must survive making room for its child
        fits = nbytes <= BUDGET and self.evict_until(nbytes)
        self.building_on = b""
        assert self.store.insert(item) == fits
        if fits:
            self.order.append(item)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def insert_again(self, data: st.DataObject) -> None:
        assert not self.store.insert(data.draw(st.sampled_from(self.order)))

    @rule()
    def insert_behind_nothing(self) -> None:
        assert not self.store.insert(Item(b"orphan", 1, b"no such parent"))

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.order))
        lease = self.store.lease(item.key)
        assert lease is not None
        assert lease.entry is item
        self.leases.append(lease)
        self.order.remove(item)
        self.order.append(item)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.leases) - 1))
        self.leases.pop(index).release()

    @rule()
    def clear(self) -> None:
        self.store.clear()
        while victim := next((item for item in self.order if item.key not in self.held()), None):
            self.order.remove(victim)

    @invariant()
    def same_entries(self) -> None:
        """With the model choosing its victims by order of use, so does the store (oracle O9)."""
        assert set(self.store) == set(self.order)

    @invariant()
    def books_agree(self) -> None:
        self.store.check()
        assert self.store.stats.leases == len(self.leases)

    def teardown(self) -> None:
        for lease in self.leases:
            lease.release()
        self.store.clear()
        assert len(self.store) == self.store.stats.used_bytes == 0


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)


def test_lease_is_released_once() -> None:
    store: Store[Item] = Store(10)
    store.insert(Item(b"a", 1))
    lease = store.lease(b"a")
    assert lease is not None
    lease.release()
    with pytest.raises(AssertionError, match="released twice"):
        lease.release()
    store.check()


def test_a_miss_says_why() -> None:
    store: Store[Item] = Store(2)
    assert store.why_missing(b"a") == "cold"
    store.insert(Item(b"a", 2))
    store.insert(Item(b"b", 2))
    assert store.why_missing(b"a") == "evicted"
    assert store.lease(b"a") is None
    assert store.lease(b"c") is None
    assert store.stats.misses == {"evicted": 1, "cold": 1}


def test_a_wrong_entry_under_the_right_key_is_a_miss() -> None:
    """Two different token sequences under one hash: the second look says no, and nothing is leased."""
    store: Store[Item] = Store(10)
    store.insert(Item(b"a", 1))
    assert store.lease(b"a", accept=lambda item: False) is None
    assert store.stats.leases == 0
    store.check()
