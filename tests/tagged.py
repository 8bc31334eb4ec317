"""Payloads that say what they are, and a brute-force reading of a prefix tree, for tests of the cache.

Every slot of a tagged payload carries the whole prefix that it was computed for, so a hit that returns anything else
is seen at once. `Flat` reads a tree node by node into a table of prefixes and answers by definition, not by walking.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from hypic.cache.memory import Memory
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tiers.tier import Named, Payload, TierError
from hypic.cache.tree.component import Shape
from hypic.cache.tree.growth import Offer, Span
from hypic.cache.tree.node import Node, token_bytes
from hypic.cache.tree.tree import Receipt, Tree

Prefix = tuple[int, ...]

ROOMY = 10**6
FULL_BYTES, WINDOW_BYTES, STATE_BYTES = 4, 3, 10
"""Of a token, a token and a state."""


@dataclass(frozen=True)
class SpanTag:
    """Values of tokens in a row: of each the prefix that ends with it."""

    kind: str
    slots: tuple[Prefix, ...]

    @property
    def nbytes(self) -> int:
        return len(self.slots) * (FULL_BYTES if self.kind == "full" else WINDOW_BYTES)

    def split(self, at_tokens: int) -> tuple["SpanTag", "SpanTag"]:
        assert 0 < at_tokens < len(self.slots)
        return SpanTag(self.kind, self.slots[:at_tokens]), SpanTag(self.kind, self.slots[at_tokens:])


@dataclass(frozen=True)
class StateTag:
    """The state after a prefix."""

    prefix: Prefix

    @property
    def nbytes(self) -> int:
        return STATE_BYTES


def buffer(tokens: Prefix) -> bytes:
    return token_bytes(np.array(tokens, np.int32))


def span(kind: str, tokens: Prefix, start: int = 0) -> Span:
    return Span(start, lambda a, b: SpanTag(kind, tuple(tokens[: i + 1] for i in range(a, b))))


def offer(tokens: Prefix, depths: list[int] | None = None, start: int = 0, live: int | None = 0) -> Offer:
    """Everything that a request which computed `tokens` has. live: from where its window values are alive."""
    states = {depth: (lambda depth=depth: StateTag(tokens[:depth])) for depth in depths or []}
    window = None if live is None else span("window", tokens, live)
    return Offer(span("full", tokens, start), window, states)


class FaultyTier(RamTier):
    """A tier whose transfers fail on demand."""

    failing_puts = False
    failing_gets = False
    failing_get = 0
    """Which of the gets from now on fails, counted from 1; 0 for none."""

    def put(self, cell: Named, payload: Payload) -> None:
        if self.failing_puts:
            raise TierError("put", "injected")
        super().put(cell, payload)

    def get(self, cell: Named) -> Payload:
        self.failing_get -= 1
        if self.failing_gets or self.failing_get == 0:
            raise TierError("get", "injected")
        return super().get(cell)


def prefix_of(node: Node) -> Prefix:
    """All tokens up to a node's end."""
    parts = [np.frombuffer(above.tokens, "<i4").tolist() for above in node.path()]
    return tuple(token for part in reversed(parts) for token in part)


class Flat:
    """A tree read into a table. tiers: bit mask of the tiers whose copies count."""

    def __init__(self, tree: Tree, namespace: bytes, tiers: int = -1) -> None:
        self.shape = tree.shape
        kinds = [component.kind for component in tree.trunk.components]
        self.held: dict[str, set[Prefix]] = {"full": set(), "window": set(), "state": set()}
        self.nodes: list[tuple[Node, Prefix]] = []
        root = tree.trunk.roots.get(namespace)
        for node in root.subtree() if root is not None else ():
            if node.parent is None:
                continue
            prefix = prefix_of(node)
            self.nodes.append((node, prefix))
            for kind, cell in zip(kinds, node.cells, strict=True):
                if cell is None or not cell.tiers & tiers:
                    continue
                ends = [node.end] if kind == "state" else range(node.start + 1, node.end + 1)
                self.held[kind] |= {prefix[:end] for end in ends}

    def legal(self, prefix: Prefix) -> bool:
        """Whether a hit may end after that prefix, by definition."""
        size = len(prefix)
        if not size or size % self.shape.page_tokens:
            return False
        full = all(prefix[:end] in self.held["full"] for end in range(1, size + 1))
        first = max(1, size - self.shape.window_tokens + 1)
        window = all(prefix[:end] in self.held["window"] for end in range(first, size + 1))
        state = prefix in self.held["state"]
        return full and (window or not self.shape.window_tokens) and (state or not self.shape.state)

    def deepest(self, tokens: Prefix) -> int:
        return next((end for end in range(len(tokens), 0, -1) if self.legal(tokens[:end])), 0)

    def useless(self, tree: Tree) -> Iterator[str]:
        """What no hit can reach and nobody holds."""
        legal = [prefix for prefix in self.held["full"] if self.legal(prefix)]
        for node, prefix in self.nodes:
            if any(cell is not None and cell.leases for below in node.subtree() for cell in below.cells):
                continue
            below = [other for other in legal if other[: node.start + 1] == prefix[: node.start + 1]]
            below = [other for other in below if other[: node.end] == prefix[: len(other)]]
            if not below:
                yield f"full {prefix}"
            if self.shape.state and prefix in self.held["state"] and prefix not in legal:
                yield f"state {prefix}"
            served = [other for other in below if len(other) - self.shape.window_tokens < node.end]
            if self.shape.window_tokens and prefix in self.held["window"] and not served:
                yield f"window {prefix}"


def check_contents(tree: Tree) -> None:
    """Every value is that of the prefix where it hangs, whole, and a state stands at exactly its depth."""
    for node in tree.trunk.nodes():
        prefix = prefix_of(node)
        for component in tree.trunk.components:
            cell = node.cells[component.index]
            for tier, place in enumerate(tree.memory.tiers):
                if cell is None or not cell.has(tier):
                    continue
                payload = RamTier.get(place, cell)  # type: ignore[arg-type]
                if isinstance(payload, StateTag):
                    assert payload.prefix == prefix
                else:
                    assert isinstance(payload, SpanTag)
                    assert payload.slots == tuple(prefix[:end] for end in range(node.start + 1, node.end + 1))


ALL = Shape(window_tokens=3, state=True)
WINDOW = Shape(window_tokens=3)
STATE = Shape(state=True)
SHAPES = [Shape(), WINDOW, STATE, ALL]
TEXT: Prefix = (1, 2, 3, 4, 5, 6, 7, 8)


def tree_of(shape: Shape, device: int = ROOMY, host: int | None = None, write: str = "back") -> Tree:
    lower = [] if host is None else [FaultyTier("host", host)]
    return Tree(Memory([RamTier("device", device), *lower], write=write), shape)  # type: ignore[arg-type]


def put(tree: Tree, tokens: Prefix, depths: tuple[int, ...] = (), start: int = 0, live: int = 0) -> int:
    return tree.insert(b"n", buffer(tokens), offer(tokens, [*depths, len(tokens)], start, live)).tokens


def hit(tree: Tree, tokens: Prefix) -> int:
    return tree.match(b"n", buffer(tokens)).tokens


def look(tree: Tree, tokens: Prefix) -> Receipt:
    receipt = tree.lookup(b"n", buffer(tokens))
    assert receipt is not None
    return receipt


def check(tree: Tree) -> None:
    tree.check()
    tree.memory.check(tree.cells())
    check_contents(tree)


def everything_goes(tree: Tree) -> None:
    for tier in (*reversed(range(len(tree.memory.tiers))), *reversed(range(len(tree.memory.tiers)))):
        tree.memory.evict(ROOMY * 10, tier)
    assert not list(tree.cells())
    assert all(tier.used_bytes == tier.copies() == 0 for tier in tree.memory.tiers)
    assert tree.memory.leases == 0


class Held(Executor):
    """Reads at once, acknowledges when asked."""

    def __init__(self) -> None:
        self.acks: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        result = fn(*args, **kwargs)
        self.acks.append(lambda: future.set_result(result))
        return future
