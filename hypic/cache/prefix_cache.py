"""Prefixes whose whole memory is kept at section boundaries, exact or composed.

Entries form chains: each holds the KV of its own span and the states at its end. A match is the longest chain that
ends at a boundary of the prompt. The prefix tree with voting components (DESIGN section 4) takes this file's place.
"""

from dataclasses import dataclass

import numpy as np

from hypic.cache.entry import PrefixEntry
from hypic.cache.store import Lease, Store
from hypic.segment import Namespace, Segment, TokenIds, prefix_keys

EXACT = "exact"


@dataclass(frozen=True)
class PrefixMatch:
    """A chain of leased entries from position 0. sections: how many sections of the prompt it covers."""

    sections: int
    tokens: int
    leases: tuple[Lease[PrefixEntry], ...]

    @property
    def key(self) -> bytes:
        """Key of the deepest entry, b"" where nothing matched."""
        return self.leases[-1].entry.key if self.leases else b""

    def release(self) -> None:
        for lease in self.leases:
            lease.release()


NO_MATCH = PrefixMatch(0, 0, ())


class PrefixCache:
    """Chains of `PrefixEntry` in a byte budget."""

    def __init__(self, budget_bytes: int) -> None:
        self.store: Store[PrefixEntry] = Store(budget_bytes, parent_of=lambda entry: entry.parent)

    def match(self, namespace: Namespace, segments: tuple[Segment, ...], provenances: tuple[str, ...]) -> PrefixMatch:
        """The longest remembered prefix among boundaries between sections. The last section is never matched, so
        something is always left to compute. provenances: which kinds of memory may be used."""
        tokens = joined(segments[:-1])
        ends = np.cumsum([len(segment) for segment in segments[:-1]]).tolist()
        keys = [prefix_keys(namespace, segments[:-1], provenance) for provenance in provenances]
        for sections in range(len(segments) - 1, 0, -1):
            for candidates in keys:
                chain = self._chain(candidates[sections - 1], tokens[: ends[sections - 1]])
                if chain is not None:
                    return PrefixMatch(sections, len(tokens[: ends[sections - 1]]), chain)
        return NO_MATCH

    def _chain(self, key: bytes, tokens: TokenIds) -> tuple[Lease[PrefixEntry], ...] | None:
        """Leases from position 0 to the entry of that key, or None. Token ids are compared again, span by span."""
        links: list[PrefixEntry] = []
        end = len(tokens)
        while key:
            entry = self.store.peek(key)
            start = end - len(entry.token_ids) if entry else -1
            if entry is None or start < 0 or not np.array_equal(entry.token_ids, tokens[start:end]):
                return None
            links.append(entry)
            key, end = entry.parent, start
        if end != 0:
            return None
        leases = [self.store.lease(entry.key) for entry in reversed(links)]
        return tuple(lease for lease in leases if lease is not None)


def joined(segments: tuple[Segment, ...]) -> TokenIds:
    """Token ids of segments in a row."""
    return np.concatenate([np.empty(0, np.int32), *(segment.token_ids for segment in segments)])
