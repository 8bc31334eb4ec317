"""Bringing copies up from slow tiers while the engine does other things.

Only the reading happens elsewhere; what it yields is put in its place by the owner of the memory, in `poll`. A cell in
flight is leased, so that nothing evicts or moves it before the flight is over.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future

from hypic.cache.memory import Cell, Memory
from hypic.cache.tiers.tier import Payload, TierError


class Prefetcher:
    """Reads in flight. Not thread-safe: it belongs to the engine that owns the memory."""

    def __init__(self, memory: Memory, executor: Executor, on_landed: Callable[[], None] = lambda: None) -> None:
        """on_landed: called in the executor's thread whenever a read is over."""
        self._memory, self._executor, self._on_landed = memory, executor, on_landed
        self._flights: dict[Cell, tuple[int, int, Future[Payload]]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._flights

    @property
    def landed(self) -> bool:
        """Whether `poll` has something to take in."""
        return any(future.done() for *_, future in self._flights.values())

    def start(self, cell: Cell) -> bool:
        """Begin to read a cell that is not ready to use. False where it is, or is on its way, or is gone."""
        tier = next((tier for tier in range(len(self._memory.tiers)) if cell.has(tier)), 0)
        if tier == 0 or cell in self._flights or cell.abandoned:
            return False
        self._memory.lease(cell)
        cell.flights += 1
        future = self._executor.submit(self._memory.tiers[tier].get, cell)
        self._flights[cell] = tier, cell.cuts, future
        future.add_done_callback(lambda _: self._on_landed())
        return True

    def poll(self, wait: bool = False) -> int:
        """Take in what has arrived, or everything that is in flight; returns how many became ready to use. What cannot
        be read loses that copy; what finds no room stays where it was."""
        landed = [cell for cell, (*_, future) in self._flights.items() if wait or future.done()]
        return sum(self._land(cell) for cell in landed)

    def _land(self, cell: Cell) -> bool:
        tier, cuts, future = self._flights.pop(cell)
        ready = False
        try:
            payload = future.result()
            whole = not cell.abandoned and cell.cuts == cuts  # what was cut meanwhile has become something else
            ready = whole and self._memory.bring(cell, payload)
        except TierError as error:
            if cell.has(tier) and cell.cuts == cuts:
                self._memory.fail(cell, tier, error)
        cell.flights -= 1
        self._memory.unlease(cell)
        if cell.tiers and not cell.leases:
            cell.owner.released(cell)
        return ready
