"""Prefixes of prompts in the prefix tree: keys and values of every token, states where sections end.

Exact and composed memory are namespaces of their own, so an exact request never reads composed memory. Composed memory
also depends on where sections were cut (each reused one has a seam): there the first token of every section is marked,
and a hit means that the prompt was cut alike as far as it goes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hypic.cache.entry import KvSpan, StateEnd
from hypic.cache.memory import Cell, Memory
from hypic.cache.store import StoreStats
from hypic.cache.tree.component import Shape
from hypic.cache.tree.growth import Offer, Span
from hypic.cache.tree.node import token_bytes
from hypic.cache.tree.tree import Receipt, Tree
from hypic.cache.tree.trunk import Cost
from hypic.segment import Namespace, Segment, TokenIds, prefix_keys
from hypic.sequence import SequenceCache

EXACT = "exact"


@dataclass(eq=False)
class PrefixMatch:
    """What is remembered of a prompt's beginning, held until released. sections: how many of the prompt it covers.
    exact: whether it is what a full recompute would give. tier: the slowest that part of it was found in."""

    sections: int
    tokens: int
    exact: bool
    receipt: Receipt | None
    tier: str = ""

    def load(self, cache: SequenceCache) -> None:
        """Copy it into the empty memory of a sequence."""
        assert cache.tokens == 0
        if self.receipt is None:
            return
        for start, payload in self.receipt.spans():
            assert isinstance(payload, KvSpan)
            place = slice(start, start + payload.keys.shape[1])
            cache.keys[:, place], cache.values[:, place] = payload.keys, payload.values
        state = self.receipt.state()
        assert isinstance(state, StateEnd)
        cache.states.copy_(state.states)
        cache.conv_tails.copy_(state.conv_tails)
        cache.tokens = self.tokens

    def release(self) -> None:
        """Give it back; doing so again does nothing, since NO_MATCH is everybody's."""
        if self.receipt is not None and not self.receipt.released:
            self.receipt.release()


NO_MATCH = PrefixMatch(0, 0, True, None)


class PrefixCache:
    """The prefix tree of one engine."""

    def __init__(self, memory: Memory | int, cost: Cost = lambda start, end: (end - start) * 1e-4) -> None:
        """memory: shared, or the budget in bytes of one of its own."""
        self.memory = Memory.of_bytes(memory) if isinstance(memory, int) else memory
        self.tree = Tree(self.memory, Shape(state=True), cost)
        self._published = 0

    def __len__(self) -> int:
        """How many boundaries are remembered."""
        return self.memory.counts.get("state", 0)

    @property
    def stats(self) -> StoreStats:
        """Counts since the start, and what is held now. entries: boundaries."""
        lookups, hits, memory = self.tree.stats.lookups, self.tree.stats.hits, self.memory
        kinds = [component.kind for component in self.tree.trunk.components]

        def of_kinds(counts: Mapping[str, int]) -> int:
            return sum(counts.get(kind, 0) for kind in kinds)

        return StoreStats(
            hits=hits,
            misses={"cold": lookups - hits} if lookups > hits else {},
            inserted=self._published,
            evicted=of_kinds(memory.stats.gone),
            rejected=of_kinds(memory.stats.rejected),
            entries=len(self),
            used_bytes=of_kinds(memory.use()[0].nbytes),
            leases=of_kinds(memory.leases_of),
        )

    def match(self, namespace: Namespace, segments: tuple[Segment, ...], provenances: tuple[str, ...]) -> PrefixMatch:
        """The longest remembered prefix among boundaries between sections, held. The last section is never matched, so
        something is always left to compute. provenances: which kinds of memory may be used, preferred ones first."""
        ends: list[int] = np.cumsum([len(segment) for segment in segments[:-1]], dtype=int).tolist()
        among = frozenset(ends)
        found: list[tuple[int, str, str]] = []
        texts = {provenance: _text(segments[:-1], provenance) for provenance in provenances}
        for provenance, text in texts.items():
            match = self.tree.match(_root(namespace, provenance), text, among)
            found.append((-match.tokens, provenance, self.tree.tier(match)))
        for tokens, provenance, tier in sorted(found, key=lambda one: one[0]):
            receipt = self.tree.lookup(_root(namespace, provenance), texts[provenance], among) if tokens else None
            if receipt is not None:
                sections = max(count for count, end in enumerate(ends, 1) if end == receipt.tokens)
                return PrefixMatch(sections, receipt.tokens, provenance == EXACT, receipt, tier)
        return NO_MATCH

    def publish(
        self,
        namespace: Namespace,
        segments: tuple[Segment, ...],
        provenance: str,
        cache: SequenceCache,
        states: Mapping[int, Callable[[], StateEnd]],
    ) -> list[Cell]:
        """Remember a sequence's memory up to the deepest of `states` (depth in tokens -> what stands there), as far as
        there is room; only what is new is copied. segments: the sections up to there. Returns what the next request
        can reuse."""

        def cut(start: int, end: int) -> KvSpan:
            return KvSpan(cache.keys[:, start:end].clone(), cache.values[:, start:end].clone())

        text = _text(segments, provenance)
        grown = self.tree.insert(_root(namespace, provenance), text, Offer(Span(0, cut), None, states))
        self._published += grown.adopted_bytes > 0
        return [] if grown.node is None else [*self.tree.region(grown.node)]

    def clear(self) -> int:
        """Drop what nobody holds; returns how many boundaries went."""
        before = len(self)
        self.tree.clear()
        return before - len(self)


def joined(segments: tuple[Segment, ...]) -> TokenIds:
    """Token ids of segments in a row."""
    return np.concatenate([np.empty(0, np.int32), *(segment.token_ids for segment in segments)])


def _text(segments: tuple[Segment, ...], provenance: str) -> bytes:
    """What the tree compares. No token id is negative, so ~id marks the beginning of a section."""
    tokens = joined(segments).astype(np.int32)
    if provenance != EXACT:
        lengths = np.array([len(segment) for segment in segments], dtype=int)
        starts = (np.cumsum(lengths) - lengths)[lengths > 0]
        tokens[starts] = ~tokens[starts]
    return token_bytes(tokens)


def _root(namespace: Namespace, provenance: str) -> bytes:
    """The framed key of everything but the tokens: that of a prefix of none."""
    return prefix_keys(namespace, (Segment("leading", np.empty(0, np.int32)),), provenance)[0]
