"""Whose the cached segments are: what a tenant may see listed and may delete.

An entry is content-addressed and does not say whose it is; its key was made with the salt of its one owner,
who is known from the requests that named it. Entries that an earlier process left in a lower tier are listed once a
request has named them again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hypic.cache.entry import SegmentEntry
from hypic.cache.store import Store
from hypic.plan import PlanRow

Deletion = Literal["deleted", "missing", "in_use"]

_SPARE_NOTES = 1024
"""So many more notes than entries are kept before those of entries that are gone are dropped."""


@dataclass(frozen=True)
class StoredSegment:
    """A cached segment. label: what the last request called it. tiers: where copies of it are, first the fastest."""

    key: bytes
    label: str
    tokens: int
    nbytes: int
    tiers: tuple[str, ...]


@dataclass(frozen=True)
class _Note:
    salt: str
    label: str
    tokens: int


class Inventory:
    """Notes on the entries of one store. Not thread-safe: one engine owns it."""

    def __init__(self, store: Store[SegmentEntry]) -> None:
        self._store = store
        self._notes: dict[bytes, _Note] = {}

    def note(self, salt: str, rows: Iterable[PlanRow]) -> None:
        """A request of that salt names the segments of these rows."""
        for row in rows:
            if row.key:
                self._notes[bytes.fromhex(row.key)] = _Note(salt, row.label, row.tokens)
        if len(self._notes) > 2 * len(self._store) + _SPARE_NOTES:
            self._notes = {key: note for key, note in self._notes.items() if key in self._store}

    def page(self, salt: str, after: bytes, limit: int) -> list[StoredSegment]:
        """A tenant's entries in order of their keys, from the first one behind `after`."""
        keys = sorted(key for key, note in self._notes.items() if note.salt == salt and key > after)
        found: list[StoredSegment] = []
        for key in keys:
            cell = self._store.find(key)
            if cell is None or len(found) == limit:
                continue
            note = self._notes[key]
            tiers = [tier.name for number, tier in enumerate(self._store.memory.tiers) if cell.has(number)]
            found.append(StoredSegment(key, note.label, note.tokens, cell.nbytes, tuple(tiers)))
        return found

    def delete(self, salt: str, key: bytes) -> Deletion:
        """Drop a tenant's entry in all tiers. Another tenant's is missing, like one that is not there."""
        note = self._notes.get(key)
        if note is None or note.salt != salt or key not in self._store:
            return "missing"
        if not self._store.drop(key):
            return "in_use"
        del self._notes[key]
        return "deleted"
