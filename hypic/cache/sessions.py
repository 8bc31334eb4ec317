"""Sessions: conversations that are likely to go on, and what they would reuse. Under pressure it goes last.

A reference is a preference, not a pin: with nothing else left, what a session refers to is evicted like anything.
Closing a session drops its references and nothing else. Whether a cell may go at all is hypic.cache.memory's.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

MAX_TOMBSTONES = 4096
"""Closed sessions that are remembered, so that their late requests do not open them again."""

MAX_OPEN = 65_536
"""Open sessions; beyond it the one that was heard of longest ago is closed, since clients forget to."""


class Referable(Hashable, Protocol):
    """sessions: ids of the sessions that refer to it; the set is kept here. tiers: 0 once it is gone."""

    sessions: set[str]
    tiers: int


CellT = TypeVar("CellT", bound=Referable)


@dataclass(frozen=True)
class Ticket:
    """What a request of a session holds: it may register references only while this generation is open."""

    session_id: str
    generation: int


class Sessions(Generic[CellT]):
    """Open sessions and their references."""

    def __init__(
        self, requeue: Callable[[CellT], None], max_tombstones: int = MAX_TOMBSTONES, max_open: int = MAX_OPEN
    ) -> None:
        """requeue: called with every cell whose first reference came or whose last one went."""
        self._requeue = requeue
        self._max_tombstones, self._max_open = max_tombstones, max_open
        self._generations: OrderedDict[str, int] = OrderedDict()
        self._cells: dict[str, set[CellT]] = {}
        self._tombstones: OrderedDict[str, None] = OrderedDict()
        self._opened = 0

    def __len__(self) -> int:
        return len(self._generations)

    @property
    def tombstones(self) -> int:
        """How many closed sessions are remembered."""
        return len(self._tombstones)

    def open(self, session_id: str) -> Ticket:
        """Open a session, again if it was closed; an open one stays as it is."""
        self._tombstones.pop(session_id, None)
        if session_id not in self._generations:
            self._opened += 1
            self._generations[session_id] = self._opened
            self._cells[session_id] = set()
            if len(self._generations) > self._max_open:
                self.close(next(iter(self._generations)))
        self._generations.move_to_end(session_id)
        return Ticket(session_id, self._generations[session_id])

    def ticket(self, session_id: str) -> Ticket | None:
        """For a request that arrives: opens a session that was never heard of; None where it was closed."""
        return None if session_id in self._tombstones else self.open(session_id)

    def close(self, session_id: str) -> bool:
        """Drop a session's references. False where it was not open."""
        self._tombstones[session_id] = None
        self._tombstones.move_to_end(session_id)
        if len(self._tombstones) > self._max_tombstones:
            self._tombstones.popitem(last=False)
        if self._generations.pop(session_id, None) is None:
            return False
        for cell in self._cells.pop(session_id):
            self._unrefer(session_id, cell)
        return True

    def register(self, ticket: Ticket | None, cells: Iterable[CellT]) -> bool:
        """Refer to what the session's next request can reuse, in place of what was referred to before. False, and
        nothing is done, where the session was closed since the ticket was given out."""
        if ticket is None or self._generations.get(ticket.session_id) != ticket.generation:
            return False
        wanted, had = {cell for cell in cells if cell.tiers}, self._cells[ticket.session_id]
        for cell in had - wanted:
            self._unrefer(ticket.session_id, cell)
        self._cells[ticket.session_id] = wanted
        for cell in wanted - had:
            self._refer(ticket.session_id, cell)
        return True

    def inherit(self, heir: CellT, cell: CellT) -> None:
        """What `cell` stood for has shrunk to `heir`: its references pass on."""
        for session_id in list(cell.sessions):
            self._cells[session_id].add(heir)
            self._refer(session_id, heir)

    def dropped(self, cell: CellT) -> None:
        """A cell is gone: so are the references to it."""
        for session_id in cell.sessions:
            self._cells[session_id].discard(cell)
        cell.sessions.clear()

    def check(self) -> None:
        """Integrity: both sides of every reference agree, and only open sessions refer."""
        assert self._cells.keys() == self._generations.keys()
        assert len(self._tombstones) <= self._max_tombstones
        for session_id, cells in self._cells.items():
            assert all(session_id in cell.sessions for cell in cells), session_id

    def _refer(self, session_id: str, cell: CellT) -> None:
        cell.sessions.add(session_id)
        if len(cell.sessions) == 1:
            self._requeue(cell)

    def _unrefer(self, session_id: str, cell: CellT) -> None:
        cell.sessions.discard(session_id)
        if not cell.sessions:
            self._requeue(cell)
