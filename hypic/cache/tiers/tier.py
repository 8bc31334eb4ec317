"""What a tier is: a place with a byte budget that keeps payloads of cells. The first tier is what is ready to use.

On a machine without an accelerator the first two are both RAM: the device tier is then simply what is ready to use,
and the host tier what a model would have to copy first. Which cell lives where is decided in hypic.cache.memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Payload(Protocol):
    """Something cached: immutable, and owning exactly `nbytes` bytes."""

    @property
    def nbytes(self) -> int: ...


@runtime_checkable
class SpanPayload(Payload, Protocol):
    """A payload made of tokens in a row."""

    def split(self, at_tokens: int) -> tuple["SpanPayload", "SpanPayload"]:
        """What stands before and after: two payloads that own their bytes, together as many as the whole."""
        ...


class TierError(Exception):
    """A copy could not be written or read. reason: a short label for counters."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True)
class Record:
    """What a tier that outlives the process writes beside a payload: its key, and what its owner needs to find it a
    place again. kind: which owner. meta: msgpack-able values."""

    key: bytes
    kind: str
    meta: dict[str, object]


@dataclass(frozen=True)
class Fault:
    """A copy of an earlier process that could not be read. reason: as of a TierError."""

    key: bytes
    kind: str
    reason: str


class Named(Protocol):
    """What a tier needs of a cell. A tier keeps copies by the identity of the cell; `record` gives the lasting one."""

    def record(self) -> Record: ...


class Tier(Protocol):
    """Keeps copies in at most `budget_bytes`, true bytes. It never makes room itself: `put` beyond the budget is a
    fault of the caller. All methods may raise TierError; a failed `put` leaves nothing behind."""

    name: str
    budget_bytes: int

    @property
    def used_bytes(self) -> int: ...

    def cost_bytes(self, cell: Named, payload: Payload) -> int:
        """Bytes that `put` will take, or an upper bound of them."""
        ...

    def put(self, cell: Named, payload: Payload) -> None: ...

    def get(self, cell: Named) -> Payload: ...

    def drop(self, cell: Named) -> None:
        """Forget the copy, which must be here. Never raises."""
        ...

    def copies(self) -> int:
        """How many copies are kept."""
        ...


@runtime_checkable
class Lasting(Protocol):
    """A tier whose copies outlive the process."""

    def found(self) -> Iterator[Record]:
        """Records of the copies that were there when the tier was opened and that nobody has claimed."""
        ...

    def faults(self) -> Sequence[Fault]:
        """Copies that `found` has met and removed."""
        ...

    def claim(self, record: Record, cell: Named) -> int:
        """Take a found copy over for a cell; returns its bytes."""
        ...

    def discard(self, record: Record) -> None:
        """Remove a found copy that has no place any more."""
        ...
