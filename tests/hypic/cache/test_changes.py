"""The log of a store's changes: replayed from anywhere that it still remembers, it gives what the store holds."""

from dataclasses import dataclass

import numpy as np

from hypic.cache.changes import Change, ChangeLog
from hypic.cache.memory import Memory
from hypic.cache.store import Store
from hypic.cache.tiers.ram import RamTier


@dataclass(frozen=True)
class Blob:
    key: bytes
    nbytes: int


def replay(held: dict[bytes, str], changes: tuple[Change, ...]) -> dict[bytes, str]:
    for change in changes:
        held[change.key] = change.tier
    return {key: tier for key, tier in held.items() if tier}


def test_replayed_changes_are_what_the_store_holds() -> None:
    """Over two tiers, so that entries move down, come back, and are lost."""
    rng = np.random.default_rng(0)
    store: Store[Blob] = Store(Memory([RamTier("device", 40), RamTier("host", 60)]))
    seen: dict[bytes, str] = {}
    sequence = 0
    for step in range(400):
        key = bytes([int(rng.integers(12))])
        choice = rng.integers(10)
        if choice < 5:
            store.insert(Blob(key, int(rng.integers(1, 15))))
        elif choice < 8:
            with store.leased(key):
                pass
        elif choice == 8 and key in store:
            store.drop(key)
        elif step % 50 == 0:
            store.clear()
        after, changes = store.changes.since(sequence)
        assert after == sequence
        sequence, seen = after + len(changes), replay(seen, changes)
        tiers = store.memory.tiers
        truth = {c.key: next(t.name for n, t in enumerate(tiers) if c.has(n)) for c in store.cells}
        assert seen == truth
        assert store.held() == (sequence, store.held()[1])
        assert {change.key: change.tier for change in store.held()[1]} == truth
    assert sequence > 100
    assert {change.tier for change in store.changes.since(0)[1]} == {"device", "host", ""}


def test_a_reader_that_comes_too_late_sees_the_gap() -> None:
    log = ChangeLog(kept=3)
    for number in range(5):
        log.note(Change(bytes([number]), "device", 1))
    after, changes = log.since(1)
    assert (after, [change.key for change in changes]) == (2, [b"\2", b"\3", b"\4"])
    assert log.since(4) == (4, changes[2:])
    assert log.since(5) == (5, ())
    assert log.since(99) == (5, ())
