"""What a model keeps of a prefix, as components that vote: FULL, WINDOW and STATE. A model is a set of them.

A component answers for its own kind of value only: whether a hit may end somewhere, which nodes a hit needs, and what
becomes of its value when a node is cut or met again. Walking, order and eviction are the tree's.

| hook of the contract       | here                                                          |
|----------------------------|---------------------------------------------------------------|
| match validator            | `validator`                                                   |
| finaliser                  | `needed`, read by the tree's acquire                          |
| split                      | `split`                                                       |
| insert overlap             | `wants`                                                       |
| commit                     | `cuts` (where a new leaf is divided) and `wants`              |
| acquire, release lock      | `needed`, and the receipt that remembers where it began       |
| evict start / next / end   | hypic.cache.memory: `evict`, of one kind and tier             |
| host eviction              | the same with another tier                                    |
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hypic.cache.tree.node import Node

Kind = Literal["full", "window", "state"]

Validator = Callable[[Node, int], bool]
"""(node, tokens of it that the prompt shares) -> whether a hit may end there. Called on every node of a walk, in
order, whatever the others say."""


class Component(Protocol):
    """index: of its cell in a node. spans: whether its value covers the node's tokens or stands at the node's end."""

    @property
    def kind(self) -> Kind: ...

    @property
    def index(self) -> int: ...

    @property
    def spans(self) -> bool: ...

    def validator(self, tiers: int) -> Validator:
        """For one walk. tiers: bit mask of the tiers whose copies count."""
        ...

    def needed(self, node: Node, end_tokens: int) -> Iterator[Node]:
        """Nodes whose value a hit that ends there needs, beyond what is kept anyway because others build on it."""
        ...

    def cuts(self, start_tokens: int, end_tokens: int, live_from_tokens: int) -> Sequence[int]:
        """Where to divide a new leaf. live_from_tokens: where the caller's values of this component begin."""
        ...


@dataclass(frozen=True)
class FullAttention:
    """Keys and values of every token of the path. What stands below a node keeps it, so one lease on the deepest node
    holds the whole path."""

    index: int = 0
    kind: Kind = "full"
    spans: bool = True

    def validator(self, tiers: int) -> Validator:
        def accept(node: Node, used_tokens: int) -> bool:
            cell = node.cells[0]
            return cell is not None and bool(cell.tiers & tiers)

        return accept

    def needed(self, node: Node, end_tokens: int) -> Iterator[Node]:
        yield node

    def cuts(self, start_tokens: int, end_tokens: int, live_from_tokens: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class SlidingWindow:
    """Keys and values of the last `window_tokens` tokens before a boundary; a node without them is a tombstone."""

    window_tokens: int
    page_tokens: int = 1
    index: int = 1
    kind: Kind = "window"
    spans: bool = True

    def validator(self, tiers: int) -> Validator:
        run: float = math.inf  # nothing precedes a root, so nothing is missing there

        def accept(node: Node, used_tokens: int) -> bool:
            nonlocal run
            cell = node.cells[self.index]
            run = run + used_tokens if cell is not None and cell.tiers & tiers else 0
            return run >= self.window_tokens

        return accept

    def needed(self, node: Node, end_tokens: int) -> Iterator[Node]:
        for above in node.path():
            if above.end <= end_tokens - self.window_tokens:
                return
            yield above

    def cuts(self, start_tokens: int, end_tokens: int, live_from_tokens: int) -> Sequence[int]:
        """Apart from the last window, so that a lock on the end pins no more than that; and where tombstones end."""
        reach = -(-self.window_tokens // self.page_tokens) * self.page_tokens
        live = -(-live_from_tokens // self.page_tokens) * self.page_tokens
        return [cut for cut in sorted({live, end_tokens - reach}) if start_tokens < cut < end_tokens]


@dataclass(frozen=True)
class RecurrentState:
    """The state after exactly the tokens up to a node's end: it belongs to the end, whatever span leads there."""

    index: int
    kind: Kind = "state"
    spans: bool = False

    def validator(self, tiers: int) -> Validator:
        def accept(node: Node, used_tokens: int) -> bool:
            cell = node.cells[self.index]
            return cell is not None and bool(cell.tiers & tiers) and used_tokens == node.end - node.start

        return accept

    def needed(self, node: Node, end_tokens: int) -> Iterator[Node]:
        yield node

    def cuts(self, start_tokens: int, end_tokens: int, live_from_tokens: int) -> Sequence[int]:
        return ()


@dataclass(frozen=True)
class Shape:
    """Which components a model has. page_tokens: prefixes are shared in multiples of it."""

    window_tokens: int = 0
    state: bool = False
    page_tokens: int = 1

    def __post_init__(self) -> None:
        if self.page_tokens < 1 or self.window_tokens < 0:
            raise ValueError(f"a page has at least one token and a window none or more, found {self}")

    def components(self) -> tuple[Component, ...]:
        found: list[Component] = [FullAttention()]
        if self.window_tokens:
            found.append(SlidingWindow(self.window_tokens, self.page_tokens, len(found)))
        if self.state:
            found.append(RecurrentState(len(found)))
        return tuple(found)
