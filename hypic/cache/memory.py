"""One memory for everything cached: cells with copies in tiers, byte budgets, leases, a clock, and eviction.

Ownership: an owner (the prefix tree, the segment store) makes a cell for each thing that it caches and says what may
go; the memory alone decides where copies live, and tells the owner when a cell has lost its last copy. A leased cell
keeps the copy that is ready to use (tier 0) until the last lease is back; no copy is ever changed. Since a reader
holds the payload object itself, a copy that is dropped or moved cannot change under it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hypic.cache.books import MemoryStats, TierBook, TierUse, count
from hypic.cache.eviction import EvictionQueue, LeastRecentlyUsed, Policy, Rank
from hypic.cache.sessions import Sessions
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tiers.tier import Payload, Record, SpanPayload, Tier, TierError

WriteMode = Literal["through", "back"]


class Owner(Protocol):
    """Whose cells they are."""

    def evictable(self, cell: "Cell", tier: int) -> bool:
        """Whether that copy may leave its tier, leases aside. Called often: must be O(1)."""
        ...

    def losable(self, cell: "Cell") -> bool:
        """Whether the last copy may go, leases aside. Must be O(1)."""
        ...

    def foundation(self, cell: "Cell") -> "Cell | None":
        """What has to be in tier 0, and stay there, for the cell to come to tier 0; None for nothing."""
        ...

    def moved(self, cell: "Cell") -> None:
        """The cell has gained or lost a copy and has at least one."""
        ...

    def lost(self, cell: "Cell", reason: str) -> None:
        """The last copy is gone; the cell must not be used again. The owner may drop other cells in turn."""
        ...

    def released(self, cell: "Cell") -> None:
        """A prefetch has let go of the cell, which is still there: drop it if it was of no use but for that."""
        ...

    def record(self, cell: "Cell") -> Record:
        """The lasting identity of a cell."""
        ...


@dataclass(eq=False, slots=True)
class Cell:
    """One cached thing. kind: what eviction can be asked for by name. tiers: where copies are, as a bit mask.

    seconds: to recompute it. leases: of readers. flights: how many of them are reads in flight, which do not follow a
    cut. pins: of this memory while it moves copies. sessions: ids of sessions that refer to it. abandoned: dropped by
    its owner while leased or pinned; it goes with the last of those. fault: why a copy could not be read, the last time
    that happened. cuts: how often it was split; a copy read before is stale.
    """

    kind: str
    owner: Owner
    seconds: float = 0.0
    nbytes: int = 0
    last_use_ticks: int = 0
    uses: int = 0
    worth: float = 0.0
    leases: int = 0
    flights: int = 0
    pins: int = 0
    tiers: int = 0
    abandoned: bool = False
    fault: str = ""
    cuts: int = 0
    sessions: set[str] = field(default_factory=set)

    def record(self) -> Record:
        return self.owner.record(self)

    def has(self, tier: int) -> bool:
        return bool(self.tiers >> tier & 1)

    def only(self, tier: int) -> bool:
        """Whether that copy is the last one."""
        return self.tiers == 1 << tier

    @property
    def rank(self) -> Rank:
        return bool(self.sessions), self.worth, self.last_use_ticks


class Memory:
    """Tiers, first the one that is ready to use. Not thread-safe: one engine owns it."""

    def __init__(self, tiers: Sequence[Tier], policy: Policy | None = None, write: WriteMode = "back") -> None:
        """write: "through" copies to the lower tiers at once, "back" when a copy has to leave the tier above."""
        self.tiers = list(tiers)
        self.policy: Policy = policy or LeastRecentlyUsed()
        self.write = write
        self.stats = MemoryStats()
        self.clock_ticks = 0
        self.leases = 0
        self.leases_of: dict[str, int] = {}
        """How many leases of cells of each kind are out."""
        self.counts: dict[str, int] = {}
        """How many cells of each kind have a copy somewhere."""
        self._books = [TierBook() for _ in tiers]
        self.sessions: Sessions[Cell] = Sessions(self.requeue)
        self._queues: list[dict[str, EvictionQueue[Cell]]] = [{} for _ in tiers]

    @classmethod
    def of_bytes(cls, budget_bytes: int, policy: Policy | None = None) -> "Memory":
        """One tier in RAM."""
        return cls([RamTier("device", budget_bytes)], policy)

    @property
    def budget_bytes(self) -> int:
        """Of the tier that is ready to use."""
        return self.tiers[0].budget_bytes

    @property
    def used_bytes(self) -> int:
        return self.tiers[0].used_bytes

    def use(self) -> list[TierUse]:
        """What each tier holds, the one that is ready to use first."""
        return [book.use(tier) for book, tier in zip(self._books, self.tiers, strict=True)]

    def fastest(self, cell: Cell) -> str:
        """Name of the first tier that has a copy, "" for none."""
        return next((tier.name for number, tier in enumerate(self.tiers) if cell.has(number)), "")

    def hold(self, cell: Cell, payload: Payload) -> bool:
        """Take a cell in, making room. False where it cannot fit beside what is leased; nothing is kept then."""
        cell.nbytes = payload.nbytes
        if not self._put(0, cell, payload):
            count(self.stats.rejected, cell.kind)
            return False
        self.touch(cell)
        if self.write == "through":
            self._copy_down(cell, 0)
        self._moved(cell)
        return True

    def claim(self, cell: Cell, tier: int, nbytes: int) -> None:
        """Take in a cell whose only copy is in a tier that outlives processes."""
        cell.nbytes = nbytes
        self._count_copy(cell, tier, nbytes)
        cell.worth = self.policy.worth(cell)
        self._moved(cell)

    def touch(self, cell: Cell, uses: int = 1) -> None:
        """Count a use; with uses = 0 only make it the most recent."""
        self.clock_ticks += 1
        cell.last_use_ticks = self.clock_ticks
        cell.uses += uses
        cell.worth = self.policy.worth(cell)
        self.requeue(cell)

    def lease(self, cell: Cell) -> None:
        """Keep the copy in tier 0 until `unlease`; every lease is given back once."""
        self.leases += 1
        count(self.leases_of, cell.kind)
        cell.leases += 1
        self._unqueue(cell)

    def unlease(self, cell: Cell) -> None:
        assert cell.leases > 0, f"a {cell.kind} cell is released more often than leased"
        self.leases -= 1
        count(self.leases_of, cell.kind, -1)
        cell.leases -= 1
        self._settle(cell)

    def load(self, cell: Cell) -> Payload | None:
        """The payload, with a copy in tier 0; None where there is no room for one, or no copy can be read: then the
        cell is lost, at once or with its last lease."""
        if cell.has(0):
            return self.tiers[0].get(cell)
        self._pin(cell)  # making room must not take the copy that is being read
        payload = self.read(cell)
        held = payload is not None and self.bring(cell, payload)
        self._unpin(cell)
        return payload if held and not cell.abandoned else None

    def bring(self, cell: Cell, payload: Payload) -> bool:
        """Put a payload that was read, or computed again, into tier 0. False where there is no room, or where what it
        builds on is not there."""
        foundation = cell.owner.foundation(cell)
        if cell.has(0) or (foundation is not None and not foundation.has(0)):
            return cell.has(0)
        if foundation is not None:
            self._pin(foundation)  # making room for what stands on it must not take it away
        placed = self._put(0, cell, payload)
        if placed:
            self.stats.loaded += 1
            if not cell.abandoned:
                self._moved(cell)
        if foundation is not None:
            self._unpin(foundation)
        return placed

    def read(self, cell: Cell) -> Payload | None:
        """The payload from the first tier that has a readable copy, without moving it. Copies that cannot be read are
        dropped; None leaves a cell without copies."""
        for tier in [tier for tier in range(len(self.tiers)) if cell.has(tier)]:
            try:
                return self.tiers[tier].get(cell)
            except TierError as error:
                self.fail(cell, tier, error)
        return None

    def fail(self, cell: Cell, tier: int, error: TierError) -> None:
        """A copy could not be read: it is dropped, and why is remembered. For whoever holds the cell while reading."""
        count(self.stats.failed, error.reason)
        cell.fault = error.reason
        self._drop(tier, cell)

    def peek(self, cell: Cell) -> Payload | None:
        """The payload wherever it is, moving nothing and counting no use; None where no copy can be read."""
        self._pin(cell)
        payload = self.read(cell)
        self._unpin(cell)
        return payload

    def split(self, cell: Cell, left: Cell, at: int) -> bool:
        """Cut the payload in two: `left` takes what stands before `at`, the cell keeps the rest, each in the tiers
        where the whole was. False where no copy can be read, or the halves cannot be written: the caller then drops
        what has no copy left."""
        payload = self.read(cell)
        if payload is None:
            return False
        assert isinstance(payload, SpanPayload), f"a {cell.kind} payload cannot be cut"
        halves = payload.split(at)
        assert sum(half.nbytes for half in halves) == payload.nbytes, "a split must conserve bytes"
        places = [tier for tier in range(len(self.tiers)) if cell.has(tier)]
        for tier in places:
            self._drop(tier, cell)
        cell.cuts += 1
        left.worth, left.last_use_ticks, left.uses = cell.worth, cell.last_use_ticks, cell.uses
        left.pins, cell.pins = left.pins + 1, cell.pins + 1
        for tier in places:
            for part, half in zip((left, cell), halves, strict=True):
                part.nbytes = half.nbytes
                self._put(tier, part, half)
        for part in (left, cell):  # the caller queues both once they have their place
            part.pins -= 1
            if part.abandoned and not part.leases:
                self._drop_all(part)
        return bool(left.tiers and cell.tiers)

    def forget(self, cell: Cell) -> None:
        """Drop a cell on its owner's wish: at once, or with its last lease. The owner is not told."""
        cell.abandoned = True
        self._unqueue(cell)
        if not cell.leases and not cell.pins:
            self._drop_all(cell)

    def requeue(self, cell: Cell) -> None:
        """Ask the owner again which copies may go. To be called when what it would say has changed."""
        for tier, queues in enumerate(self._queues):
            queue = queues.get(cell.kind)
            free = cell.has(tier) and not (cell.leases or cell.pins or cell.abandoned)
            if free and cell.owner.evictable(cell, tier):
                if queue is None:
                    queue = queues[cell.kind] = EvictionQueue()
                queue.push(cell, cell.rank)
            elif queue is not None:
                queue.remove(cell)

    def make_room(self, tier: int, needed_bytes: int) -> bool:
        """Evict from a tier until that many bytes are free in it. False where they cannot be; nothing larger than the
        budget costs anything its place."""
        place = self.tiers[tier]
        if needed_bytes > place.budget_bytes:
            return False
        while place.used_bytes + needed_bytes > place.budget_bytes:
            if not self.evict_one(tier):
                return False
        return True

    def evict(self, needed_bytes: int, tier: int = 0, kind: str | None = None) -> int:
        """Free at least that many bytes of a tier if they can be; returns the bytes freed. With a kind, victims are
        of that kind alone (what depends on a victim goes with it)."""
        before = self.tiers[tier].used_bytes
        while before - self.tiers[tier].used_bytes < needed_bytes and self.evict_one(tier, kind):
            pass
        return before - self.tiers[tier].used_bytes

    def evict_one(self, tier: int, kind: str | None = None) -> bool:
        """One victim: the candidate of least rank. Its copy moves down a tier where there is one that takes it."""
        while (head := self._head(tier, kind)) is not None:
            (_, worth, _), cell = head
            if self.write == "back" and cell.only(tier):
                self._copy_down(cell, tier)
            if cell.only(tier) and not cell.abandoned and not cell.owner.losable(cell):
                self._queues[tier][cell.kind].remove(cell)  # back once what builds on it has gone
                continue
            if tier == 0:
                self.policy.gone(worth)
            count(self.stats.evicted, self.tiers[tier].name)
            self._evict(tier, cell)
            return True
        return False

    def check(self, cells: Iterable[Cell]) -> None:
        """Integrity, given all cells of all owners: the books agree with what is held."""
        everything = list(cells)
        assert len(set(everything)) == len(everything), "a cell is held twice"
        for tier, place in enumerate(self.tiers):
            here = [cell for cell in everything if cell.has(tier)]
            assert place.used_bytes <= place.budget_bytes, (place.name, place.used_bytes, place.budget_bytes)
            assert place.copies() == len(here) == sum(self._books[tier].entries.values()), (place.name, place.copies())
            assert sum(self._books[tier].nbytes.values()) <= place.used_bytes, (place.name, self._books[tier])
        assert (
            sum(cell.nbytes for cell in everything if cell.has(0))
            == self.used_bytes
            == sum(self._books[0].nbytes.values())
        )
        assert sum(cell.leases for cell in everything) == self.leases == sum(self.leases_of.values())
        assert sum(bool(cell.tiers) for cell in everything) == sum(self.counts.values())
        for cell in everything:
            assert cell.tiers or cell.leases, "a cell without a copy"
            assert not cell.pins, "the memory is at rest"
            for tier, queues in enumerate(self._queues):
                queued = cell in queues[cell.kind] if cell.kind in queues else False
                free = cell.has(tier) and not cell.leases and not cell.abandoned
                assert not queued or (free and cell.owner.evictable(cell, tier)), (cell, tier)
                wanted = free and cell.owner.evictable(cell, tier) and cell.owner.losable(cell)
                assert queued or not wanted, (cell, tier)

    def _put(self, tier: int, cell: Cell, payload: Payload) -> bool:
        place = self.tiers[tier]
        try:
            nbytes = place.cost_bytes(cell, payload)
            if not self.make_room(tier, nbytes):
                return False
            place.put(cell, payload)
        except TierError as error:
            count(self.stats.failed, error.reason)
            return False
        self._count_copy(cell, tier, nbytes)
        if tier == 0:
            cell.nbytes = payload.nbytes
        return True

    def _head(self, tier: int, kind: str | None) -> tuple[Rank, Cell] | None:
        queues = self._queues[tier]
        names = queues if kind is None else [kind]
        heads = [head for head in (queues[name].head() for name in names if name in queues) if head is not None]
        return min(heads, key=lambda head: head[0], default=None)

    def _copy_down(self, cell: Cell, tier: int) -> None:
        """Write to the tiers below: to all of them, or when writing back to the first that takes it. Optional: what
        fails is counted, and the copy above stays until this has returned."""
        if tier + 1 == len(self.tiers):
            return
        try:
            payload = self.tiers[tier].get(cell)
        except TierError as error:
            count(self.stats.failed, error.reason)
            return
        cell.pins += 1  # making room below must not take this very cell; it stays in its queue
        for below in range(tier + 1, len(self.tiers)):
            if not cell.has(below) and self._put(below, cell, payload) and self.write == "back":
                break
        cell.pins -= 1

    def _evict(self, tier: int, cell: Cell) -> None:
        if cell.abandoned:  # its owner dropped it while room was being made below
            self._drop_all(cell)
            return
        self._drop(tier, cell)
        if cell.tiers:
            self._moved(cell)
        else:
            self._lose(cell, "evicted")

    def _pin(self, cell: Cell) -> None:
        cell.pins += 1
        self._unqueue(cell)

    def _unpin(self, cell: Cell) -> None:
        cell.pins -= 1
        self._settle(cell)

    def _unqueue(self, cell: Cell) -> None:
        for queues in self._queues:
            if queue := queues.get(cell.kind):
                queue.remove(cell)

    def _settle(self, cell: Cell) -> None:
        """Once nobody holds it: it goes if it was dropped or has no copy left, else it may be evicted again."""
        if cell.leases or cell.pins:
            return
        if cell.abandoned:
            self._drop_all(cell)
        elif not cell.tiers:
            self._lose(cell, cell.fault or "dropped")
        else:
            self.requeue(cell)

    def _moved(self, cell: Cell) -> None:
        self.requeue(cell)
        cell.owner.moved(cell)

    def _drop(self, tier: int, cell: Cell) -> None:
        place = self.tiers[tier]
        before = place.used_bytes
        place.drop(cell)
        self._count_copy(cell, tier, place.used_bytes - before)
        if queue := self._queues[tier].get(cell.kind):
            queue.remove(cell)

    def _count_copy(self, cell: Cell, tier: int, nbytes: int) -> None:
        """A copy has come to a tier, or has gone from it: then nbytes is not above 0."""
        before, cell.tiers = cell.tiers, cell.tiers ^ 1 << tier
        self._books[tier].count(cell.kind, 1 if cell.has(tier) else -1, nbytes)
        if change := bool(cell.tiers) - bool(before):
            count(self.counts, cell.kind, change)

    def _drop_all(self, cell: Cell) -> None:
        for tier in range(len(self.tiers)):
            if cell.has(tier):
                self._drop(tier, cell)
        self.sessions.dropped(cell)

    def _lose(self, cell: Cell, reason: str) -> None:
        count(self.stats.lost, reason)
        count(self.stats.gone, cell.kind)
        cell.owner.lost(cell, reason)
        self.sessions.dropped(cell)
