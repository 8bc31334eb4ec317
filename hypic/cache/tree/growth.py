"""Growing the prefix tree: a request's memory goes in boundary by boundary, each whole or not at all.

The caller offers sources and keeps what it has: only what the tree adopts is cut out and copied, so nothing is ever
owned twice and there is no duplicate range to free. What is offered again is taken only where it is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from hypic.cache.tiers.tier import Payload, SpanPayload
from hypic.cache.tree.component import Component
from hypic.cache.tree.node import TOKEN_BYTES, Node, TreeCell, common_tokens
from hypic.cache.tree.trunk import Trunk


@dataclass(frozen=True)
class Span:
    """Values of consecutive tokens from a position on. cut: (start, end) -> a payload of those tokens that owns its
    bytes."""

    start_tokens: int
    cut: Callable[[int, int], SpanPayload]


@dataclass(frozen=True)
class Offer:
    """What a request can give. full: from where its prefix hit ended, or before. window: from where its window values
    are still alive. states: depth in tokens -> the state after exactly so many."""

    full: Span
    window: Span | None = None
    states: Mapping[int, Callable[[], Payload]] = field(default_factory=dict)


@dataclass(frozen=True)
class Grown:
    """tokens: where a hit on the same prompt ends now at least, 0 where nothing could be kept. node: there."""

    tokens: int
    node: Node | None
    adopted_bytes: int = 0


class Growth:
    """One insertion."""

    def __init__(self, trunk: Trunk, tokens: bytes, offer: Offer, start: Node) -> None:
        """start: a node whose path the tokens begin with, for a walk that need not begin at the root."""
        self.trunk, self.tokens, self.offer = trunk, tokens, offer
        self.cursor = start
        self.adopted_bytes = 0
        self._changed: list[Node] = []
        self._made: list[TreeCell] = []
        self._held: TreeCell | None = None
        self._since = offer.full.start_tokens

    def run(self) -> Grown:
        """Insert every boundary on the grid, shallow ones first, until one finds no room."""
        reached: Node | None = None
        for depth in self._depths():
            if not self._extend(depth):
                break
            if self.trunk.legal(self.cursor):
                reached = self.cursor
            self._since = depth
        for cell in reversed(self._made):  # so that what is deep goes first, and a shorter hit is left
            if cell.tiers and not cell.abandoned:
                self.trunk.memory.touch(cell, uses=0)
        self._hold(None)
        for node in (*reversed(self._changed), self.cursor):  # what was added in vain goes again
            self.trunk.wither(node)
        if reached is None or not reached.alive or not self.trunk.legal(reached):
            return Grown(0, None, self.adopted_bytes)
        return Grown(reached.end, reached, self.adopted_bytes)

    def _depths(self) -> list[int]:
        page, end = self.trunk.shape.page_tokens, len(self.tokens) // TOKEN_BYTES
        if self.trunk.state is None:
            return [end // page * page] if end >= page else []
        wrong = [depth for depth in self.offer.states if not 0 < depth <= end]
        assert not wrong, f"states after {wrong} tokens of a prefix of {end}"
        return sorted(depth for depth in self.offer.states if depth % page == 0 and depth >= self.cursor.end)

    def _extend(self, depth: int) -> bool:
        """Move the cursor to a node that ends at that depth, making what is missing."""
        while self.cursor.end < depth:
            child = self.trunk.child(self.cursor, self.tokens)
            if child is None:
                return self._sprout(depth)
            page = self.trunk.shape.page_tokens
            same = min(common_tokens(child.tokens, self.tokens, child.start) // page * page, depth - child.start)
            if same < len(child):
                child = self.trunk.split(child, same)
            if child is None or not self._overlap(child, depth):
                return False
            self.cursor = child
        return self._attach_state(depth)

    def _overlap(self, node: Node, depth: int) -> bool:
        """Meet a node that is there: bring what is not ready to use back from the caller's copy, adopt window values
        where it has none. False where the path cannot be made ready, so that nothing can be built on it."""
        memory = self.trunk.memory
        if not node.full.has(0):
            self._hold(self.cursor)
            memory.lease(node.full)
            if node.start >= self.offer.full.start_tokens:
                memory.bring(node.full, self.offer.full.cut(node.start, node.end))
            else:
                memory.load(node.full)
            memory.unlease(node.full)
            if not node.alive or not node.full.has(0):
                return False
        self._adopt_window(node, depth)
        return True

    def _adopt_window(self, node: Node, depth: int) -> None:
        """Fill a tombstone as far as the caller's window values reach into it."""
        window, offered = self.trunk.window, self.offer.window
        if window is None or offered is None or node.cells[window.index] is not None:
            return
        page = self.trunk.shape.page_tokens
        live = max(node.start, -(-offered.start_tokens // page) * page)
        if live >= node.end or not self._window_serves(node, depth):
            return
        self._hold(node)
        if live > node.start and self.trunk.split(node, live - node.start) is None:
            return
        if self._adopt(node, window, offered.cut(node.start, node.end), node.full.seconds):
            self._changed.append(node)

    def _window_serves(self, node: Node, depth: int) -> bool:
        """With states hits end at the boundary alone, so only the window before it is of use."""
        window = self.trunk.window
        return window is not None and (self.trunk.state is None or node.end > depth - window.window_tokens)

    def _sprout(self, depth: int) -> bool:
        """Grow a leaf to that depth with everything that a hit there needs, or nothing."""
        parent = self.cursor
        if self.offer.full.start_tokens > parent.end:
            return False  # what the caller holds begins behind a gap
        self._hold(parent)
        made: list[Node] = []
        for start, end in self._pieces(parent.end, depth):
            text = self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]
            made.append(self.trunk.node(text, start, made[-1] if made else parent))
        whole = all(self._fill(node, depth) for node in made) and parent.alive
        if whole:
            for node in made:
                self.trunk.attach(node)
            self._hold(made[-1])
        else:
            for node in reversed(made):
                self.trunk.discard(node)
        for cell in [cell for node in made for cell in node.cells if cell is not None]:
            self.trunk.memory.unlease(cell)
        self._changed += made if whole else []
        return whole

    def _pieces(self, start: int, end: int) -> list[tuple[int, int]]:
        live = self.offer.window.start_tokens if self.offer.window else end
        cuts = {cut for component in self.trunk.components for cut in component.cuts(start, end, live)}
        points = [start, *sorted(cuts), end]
        return list(pairwise(points))

    def _fill(self, node: Node, depth: int) -> bool:
        """Hold the values of a new node, leased. False where one that a hit needs finds no room."""
        cost = self.trunk.cost
        payload: Payload
        for component in self.trunk.components:
            if component.kind == "full":
                seconds, payload = cost(node.start, node.end), self.offer.full.cut(node.start, node.end)
            elif component.kind == "state":
                if node.end != depth:
                    continue
                seconds, payload = cost(self._since, depth), self.offer.states[depth]()
            else:
                offered = self.offer.window
                if offered is None or offered.start_tokens > node.start or not self._window_serves(node, depth):
                    continue
                seconds, payload = cost(node.start, node.end), offered.cut(node.start, node.end)
            cell = self.trunk.cell(node, component, seconds)
            node.cells[component.index] = cell
            self.trunk.memory.lease(cell)
            if not self.trunk.memory.hold(cell, payload):
                return False
            self._took(cell)
        return True

    def _attach_state(self, depth: int) -> bool:
        """Give the node at the cursor its state, where it has none."""
        state = self.trunk.state
        if state is None or self.cursor.cells[state.index] is not None:
            return True
        self._hold(self.cursor)
        self._changed.append(self.cursor)  # without a window before it the state is of no use
        return self._adopt(self.cursor, state, self.offer.states[depth](), self.trunk.cost(self._since, depth))

    def _adopt(self, node: Node, component: Component, payload: Payload, seconds: float) -> bool:
        """Add a value to a node that is there and held."""
        cell = self.trunk.cell(node, component, seconds)
        if not self.trunk.memory.hold(cell, payload):
            return False
        node.cells[component.index] = cell
        self._took(cell)
        return True

    def _took(self, cell: TreeCell) -> None:
        self.adopted_bytes += cell.nbytes
        self._made.append(cell)

    def _hold(self, node: Node | None) -> None:
        """Keep the path to the cursor from being evicted while room is made."""
        before, self._held = self._held, None if node is None else node.cells[0]
        if self._held is not None:
            self.trunk.memory.lease(self._held)
        if before is not None:
            self.trunk.memory.unlease(before)
        if node is not None:
            self.cursor = node
