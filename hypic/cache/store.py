"""A byte-budgeted store of immutable entries: leases, least-recently-used eviction, and why something is missing.

The rules that make it safe: a hit is a lease; a leased entry, or one that another entry builds on, is never
evicted; entries are never changed, only dropped; nothing larger than the budget is taken in.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

_REMEMBERED_EVICTIONS = 65_536

MissReason = Literal["cold", "evicted"]


class Storable(Protocol):
    """What a store needs of an entry."""

    @property
    def key(self) -> bytes: ...

    @property
    def nbytes(self) -> int: ...


EntryT = TypeVar("EntryT", bound=Storable)


@dataclass(eq=False)
class Lease(Generic[EntryT]):
    """A promise that an entry stays. Release it exactly once."""

    entry: EntryT
    _store: "Store[EntryT]"
    _released: bool = False

    def release(self) -> None:
        assert not self._released, f"lease of {self.entry.key.hex()[:12]} released twice"
        self._released = True
        self._store._unpin(self.entry.key)


@dataclass
class StoreStats:
    """Counts since the start, and what is held now."""

    hits: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    inserted: int = 0
    evicted: int = 0
    rejected: int = 0
    entries: int = 0
    used_bytes: int = 0
    leases: int = 0


class Store(Generic[EntryT]):
    """Entries by key, least recently used first. Not thread-safe: one engine owns it."""

    def __init__(self, budget_bytes: int, parent_of: Callable[[EntryT], bytes] = lambda entry: b"") -> None:
        """parent_of: key of the entry that another builds on (it is kept as long), b"" for none."""
        self.budget_bytes = budget_bytes
        self.stats = StoreStats()
        self._entries: OrderedDict[bytes, EntryT] = OrderedDict()
        self._pins: dict[bytes, int] = {}
        self._parent_of = parent_of
        self._gone: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[EntryT]:
        return iter(self._entries.values())

    def lease(self, key: bytes, accept: Callable[[EntryT], bool] = lambda entry: True) -> Lease[EntryT] | None:
        """The entry of that key if `accept` agrees, held until released; None is a miss (see `why_missing`)."""
        entry = self._entries.get(key)
        if entry is None or not accept(entry):
            reason = self.why_missing(key)
            self.stats.misses[reason] = self.stats.misses.get(reason, 0) + 1
            return None
        self._entries.move_to_end(key)
        self._pin(key)
        self.stats.hits += 1
        self.stats.leases += 1
        return Lease(entry, self)

    @contextmanager
    def leased(self, key: bytes) -> Iterator[EntryT | None]:
        """`lease` for the length of a with block."""
        lease = self.lease(key)
        try:
            yield lease.entry if lease else None
        finally:
            if lease:
                lease.release()

    def peek(self, key: bytes) -> EntryT | None:
        """The entry without a lease and without counting as a use: for plans that are only printed."""
        return self._entries.get(key)

    def why_missing(self, key: bytes) -> MissReason:
        """ "evicted" where the key was held not long ago, else "cold"."""
        return "evicted" if key in self._gone else "cold"

    def insert(self, entry: EntryT) -> bool:
        """Take an entry in, making room. False where it is here already, builds on something that is not, or cannot
        fit beside what is leased; the caller keeps the entry and goes on with it."""
        parent = self._parent_of(entry)
        if entry.key in self._entries or (parent and parent not in self._entries):
            return False
        if parent:
            self._pin(parent)
        if not self._make_room(entry.nbytes):
            if parent:
                self._unpin_key(parent)
            self.stats.rejected += 1
            return False
        self._entries[entry.key] = entry
        self._gone.pop(entry.key, None)
        self.stats.inserted += 1
        self.stats.entries += 1
        self.stats.used_bytes += entry.nbytes
        return True

    def clear(self) -> int:
        """Drop everything that is not leased; returns how many entries went."""
        before = len(self._entries)
        while self._evict_one():
            pass
        return before - len(self._entries)

    def check(self) -> None:
        """Integrity: the books agree with what is held. Run when an engine goes idle, and in tests."""
        held = sum(entry.nbytes for entry in self._entries.values())
        assert held == self.stats.used_bytes <= self.budget_bytes, (held, self.stats, self.budget_bytes)
        assert all(count > 0 for count in self._pins.values()), self._pins
        children = sum(1 for entry in self._entries.values() if self._parent_of(entry))
        assert sum(self._pins.values()) == self.stats.leases + children, (self._pins, self.stats, children)
        assert all(key in self._entries for key in self._pins), "a pin on nothing"

    def _make_room(self, needed_bytes: int) -> bool:
        if needed_bytes > self.budget_bytes:
            return False
        while self.stats.used_bytes + needed_bytes > self.budget_bytes:
            if not self._evict_one():
                return False
        return True

    def _evict_one(self) -> bool:
        key = next((key for key in self._entries if key not in self._pins), None)
        if key is None:
            return False
        entry = self._entries.pop(key)
        self.stats.entries -= 1
        self.stats.evicted += 1
        self.stats.used_bytes -= entry.nbytes
        if parent := self._parent_of(entry):
            self._unpin_key(parent)
        self._gone[key] = None
        if len(self._gone) > _REMEMBERED_EVICTIONS:
            self._gone.popitem(last=False)
        return True

    def _pin(self, key: bytes) -> None:
        self._pins[key] = self._pins.get(key, 0) + 1

    def _unpin(self, key: bytes) -> None:
        self.stats.leases -= 1
        self._unpin_key(key)

    def _unpin_key(self, key: bytes) -> None:
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
