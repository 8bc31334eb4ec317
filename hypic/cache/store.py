"""The segment store: immutable entries by key, position-free, in the memory that it shares with the prefix tree.

The rules that make it safe: a hit is a lease; a leased entry, or one that another entry builds on, is never evicted;
entries are whole or not there, and never changed; a copy that cannot be read is a miss with a reason. Budgets, tiers,
the clock and the choice of victims are hypic.cache.memory's.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, cast

from hypic.cache.changes import Change, ChangeLog
from hypic.cache.memory import Cell, Memory
from hypic.cache.tiers.tier import Lasting, Record

KIND = "segment"

_REMEMBERED_LOSSES = 65_536


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
    cell: Cell
    _store: "Store[EntryT]"
    _released: bool = False

    def release(self) -> None:
        assert not self._released, f"lease of {self.entry.key.hex()[:12]} released twice"
        self._released = True
        self._store._release(self.cell)


@dataclass
class StoreStats:
    """Counts since the start, and what is held now. misses: by reason. used_bytes: of what is ready to use."""

    hits: int = 0
    misses: dict[str, int] = field(default_factory=dict)
    inserted: int = 0
    evicted: int = 0
    rejected: int = 0
    entries: int = 0
    used_bytes: int = 0
    leases: int = 0


@dataclass(eq=False, slots=True)
class StoreCell(Cell):
    """The cell of an entry. counted_bytes: what it stands for in the store's statistics. builds_on: its parent's.
    noted_tier: where the log of changes says it is."""

    key: bytes = b""
    counted_bytes: int = 0
    builds_on: Cell | None = None
    noted_tier: str = ""


class Store(Generic[EntryT]):
    """Entries by key. Not thread-safe: one engine owns it."""

    def __init__(
        self,
        memory: Memory | int,
        parent_of: Callable[[EntryT], bytes] = lambda entry: b"",
        seconds_of: Callable[[EntryT], float] = lambda entry: entry.nbytes * 1e-9,
    ) -> None:
        """memory: shared, or the budget in bytes of one of its own. parent_of: key of the entry that another builds on
        (it is kept as long), b"" for none. seconds_of: what it would take to compute an entry again."""
        self.memory = Memory.of_bytes(memory) if isinstance(memory, int) else memory
        self.stats = StoreStats()
        self.changes = ChangeLog()
        self._cells: dict[bytes, StoreCell] = {}
        self._parent_of, self._seconds_of = parent_of, seconds_of
        self._gone: OrderedDict[bytes, tuple[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: bytes) -> bool:
        return key in self._cells

    def __iter__(self) -> Iterator[EntryT]:
        """Entries that are ready to use."""
        return (self._entry(cell) for cell in list(self._cells.values()) if cell.has(0))

    @property
    def budget_bytes(self) -> int:
        return self.memory.budget_bytes

    @property
    def cells(self) -> Iterable[StoreCell]:
        """Every cell of the store."""
        return self._cells.values()

    def lease(self, key: bytes, accept: Callable[[EntryT], bool] = lambda entry: True) -> Lease[EntryT] | None:
        """The entry of that key if `accept` agrees, ready to use and held until released; None is a miss (see
        `why_missing`)."""
        cell = self._cells.get(key)
        payload = None if cell is None else self.memory.load(cell)
        if cell is None or payload is None or not accept(cast(EntryT, payload)):
            self._miss(key)
            return None
        self.memory.lease(cell)
        self.memory.touch(cell)
        self.stats.hits += 1
        self.stats.leases += 1
        return Lease(cast(EntryT, payload), cell, self)

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
        cell = self._cells.get(key)
        return None if cell is None else cast(EntryT | None, self.memory.peek(cell))

    def why_missing(self, key: bytes) -> str:
        """ "cold", "evicted", or the fault of the last copy ("damaged", "truncated", ...) where it had one; "no_room"
        where the entry is there but cannot be made ready beside what is leased, or is of other tokens."""
        return "no_room" if key in self._cells else self._gone.get(key, ("cold", 0))[0]

    def insert(self, entry: EntryT) -> bool:
        """Take an entry in, making room. False where it is here already, builds on something that is not, or cannot
        fit beside what is leased; the caller keeps the entry and goes on with it."""
        parent_key = self._parent_of(entry)
        parent = self._cells.get(parent_key)
        if entry.key in self._cells or (parent_key and parent is None):
            return False
        cell = StoreCell(KIND, self, self._seconds_of(entry), key=entry.key)
        cell.uses = self._gone.get(entry.key, ("", 0))[1]  # what comes back is known to be asked for
        if parent is not None:
            self.memory.lease(parent)
            cell.builds_on = parent
        if not self.memory.hold(cell, entry):
            if parent is not None:
                self.memory.unlease(parent)
            self.stats.rejected += 1
            return False
        self._cells[entry.key] = cell
        self._gone.pop(entry.key, None)
        self.stats.inserted += 1
        self.stats.entries += 1
        return True

    def held(self) -> tuple[int, tuple[Change, ...]]:
        """(number of the last change, every entry with its fastest tier): where a reader of `changes` starts anew."""
        noted = [cell for cell in self._cells.values() if cell.noted_tier]
        return self.changes.sequence, tuple(Change(cell.key, cell.noted_tier, cell.nbytes) for cell in noted)

    def restore(self) -> int:
        """Find the entries that a lasting tier kept from an earlier process; returns how many."""
        count = 0
        for number, tier in enumerate(self.memory.tiers):
            if not isinstance(tier, Lasting):
                continue
            for record in [record for record in tier.found() if record.kind == KIND]:
                if record.key in self._cells:
                    tier.discard(record)
                    continue
                cell = StoreCell(KIND, self, key=record.key)
                nbytes = tier.claim(record, cell)
                cell.seconds = nbytes * 1e-9
                self._cells[record.key] = cell
                self.memory.claim(cell, number, nbytes)
                self.stats.entries += 1
                count += 1
            for fault in [fault for fault in tier.faults() if fault.kind == KIND]:
                self._remember_loss(fault.key, fault.reason, uses=0)
        return count

    def tier(self, key: bytes) -> str:
        """Name of the fastest tier that has an entry, "" for none."""
        cell = self._cells.get(key)
        return "" if cell is None else self.memory.fastest(cell)

    def find(self, key: bytes) -> StoreCell | None:
        """The cell of a key, without a use or a lease."""
        return self._cells.get(key)

    def drop(self, key: bytes) -> bool:
        """Drop an entry in all tiers; False while somebody holds it."""
        cell = self._cells[key]
        if cell.leases:
            return False
        self.memory.forget(cell)
        self.lost(cell, "evicted")
        return True

    def clear(self) -> int:
        """Drop everything that is not leased, in all tiers; returns how many entries went."""
        before = len(self._cells)
        while free := [cell for cell in self._cells.values() if not cell.leases]:
            for cell in free:
                self.memory.forget(cell)
                self.lost(cell, "evicted")
        return before - len(self._cells)

    def check(self) -> None:
        """Integrity of a store that has its memory for itself; with others, `Memory.check` takes all their cells."""
        self.memory.check(self._cells.values())
        assert self.stats.used_bytes == self.memory.used_bytes <= self.budget_bytes, (self.stats, self.budget_bytes)
        self.check_counts()

    def check_counts(self, in_flight: int = 0) -> None:
        """Integrity of the store's own books. in_flight: how many of its cells a prefetch holds."""
        here = [cell for cell in self._cells.values() if cell.has(0)]
        assert self.stats.used_bytes == sum(cell.nbytes for cell in here), self.stats
        assert self.stats.entries == len(self._cells), self.stats
        children = sum(1 for cell in self._cells.values() if cell.builds_on is not None)
        assert sum(cell.leases for cell in self._cells.values()) == self.stats.leases + children + in_flight

    # What the memory asks and tells: see hypic.cache.memory.Owner.

    def evictable(self, cell: Cell, tier: int) -> bool:
        """Entries are whole: all that could hinder is a lease."""
        return True

    def losable(self, cell: Cell) -> bool:
        return True

    def foundation(self, cell: Cell) -> Cell | None:
        return None

    def moved(self, cell: Cell) -> None:
        own = _own(cell)
        self._count(own, cell.nbytes if cell.has(0) else 0)
        self._note(own, next(tier.name for number, tier in enumerate(self.memory.tiers) if cell.has(number)))

    def lost(self, cell: Cell, reason: str) -> None:
        own = _own(cell)
        self._count(own, 0)
        self._note(own, "")
        del self._cells[own.key]
        self.stats.entries -= 1
        self.stats.evicted += 1
        self._remember_loss(own.key, "evicted" if reason == "dropped" else reason, cell.uses)
        if own.builds_on is not None:
            parent, own.builds_on = own.builds_on, None
            self.memory.unlease(parent)

    def released(self, cell: Cell) -> None:
        """An entry is of use as long as it is there."""

    def record(self, cell: Cell) -> Record:
        return Record(_own(cell).key, KIND, {})

    def _release(self, cell: Cell) -> None:
        self.stats.leases -= 1
        self.memory.unlease(cell)

    def _miss(self, key: bytes) -> None:
        reason = self.why_missing(key)
        self.stats.misses[reason] = self.stats.misses.get(reason, 0) + 1

    def _remember_loss(self, key: bytes, reason: str, uses: int) -> None:
        self._gone[key] = reason, uses
        if len(self._gone) > _REMEMBERED_LOSSES:
            self._gone.popitem(last=False)

    def _entry(self, cell: StoreCell) -> EntryT:
        return cast(EntryT, self.memory.tiers[0].get(cell))

    def _note(self, cell: StoreCell, tier: str) -> None:
        if tier != cell.noted_tier:
            cell.noted_tier = tier
            self.changes.note(Change(cell.key, tier, cell.nbytes))

    def _count(self, cell: StoreCell, nbytes: int) -> None:
        self.stats.used_bytes += nbytes - cell.counted_bytes
        cell.counted_bytes = nbytes


def _own(cell: Cell) -> StoreCell:
    assert isinstance(cell, StoreCell)
    return cell
