"""The structure of the prefix tree: roots, nodes, cutting them in two, and dropping what no future hit can reach.

Invariants: every node but a root has its FULL somewhere; a node whose FULL is ready to use has a parent whose FULL is,
so that only leaves (of the tree, or of its part that is ready to use) are ever evicted; a state belongs to the very end
of its node; every leaf that nobody holds is a boundary where a hit can end. Finding and growing are left to
hypic.cache.tree.tree and growth.
"""

import hashlib
from collections.abc import Callable, Iterator

from hypic.cache.memory import Cell, Memory
from hypic.cache.tiers.tier import Record
from hypic.cache.tree.component import Component, RecurrentState, Shape, SlidingWindow
from hypic.cache.tree.node import TOKEN_BYTES, Node, TreeCell

Cost = Callable[[int, int], float]
"""(start, end) -> seconds to recompute those tokens behind what precedes them."""


class Trunk:
    """Nodes in a memory that may be shared with others; the owner of their cells."""

    def __init__(self, memory: Memory, shape: Shape, cost: Cost) -> None:
        self.memory, self.shape, self.cost = memory, shape, cost
        self.components: tuple[Component, ...] = shape.components()
        self.window = next((c for c in self.components if isinstance(c, SlidingWindow)), None)
        self.state = next((c for c in self.components if isinstance(c, RecurrentState)), None)
        self.roots: dict[bytes, Node] = {}

    def root(self, key: bytes) -> Node:
        """The root of a namespace. A new one is kept once something grows from it."""
        root = self.roots.get(key)
        if root is None:
            root = Node(b"", 0, 0, None, [None] * len(self.components), namespace=key)
            root.digest = hashlib.blake2b(b"tree" + key, digest_size=32)
        return root

    def child(self, node: Node, tokens: bytes) -> Node | None:
        """The child that begins with the page that follows in `tokens`."""
        offset = node.end * TOKEN_BYTES
        return node.children.get(tokens[offset : offset + self.shape.page_tokens * TOKEN_BYTES])

    def node(self, tokens: bytes, start: int, parent: Node) -> Node:
        """A node without values, not yet attached."""
        end = start + len(tokens) // TOKEN_BYTES
        return Node(tokens, start, end, parent, [None] * len(self.components), namespace=parent.namespace)

    def cell(self, node: Node, component: Component, seconds: float) -> TreeCell:
        return TreeCell(component.kind, self, seconds, node=node, index=component.index)

    def attach(self, node: Node) -> None:
        """Make a node with its FULL held the child of its parent."""
        assert node.parent is not None
        if node.parent.parent is None:  # new, or forgotten when its last child went
            self.roots[node.parent.namespace] = node.parent
        node.parent.children[self._key(node)] = node
        self.moved(node.full)

    def split(self, node: Node, at_tokens: int) -> Node | None:
        """Cut a node after that many tokens; returns the new upper part. The node stays the deeper part, with the
        state, the leases on what it keeps, and the children. None where a value that is not ready to use cannot be
        read: the node is then gone."""
        parent, cut = node.parent, at_tokens * TOKEN_BYTES
        assert parent is not None
        assert 0 < at_tokens < len(node), (at_tokens, len(node))
        assert at_tokens % self.shape.page_tokens == 0, (at_tokens, self.shape)
        upper = self.node(node.tokens[:cut], node.start, parent)
        upper.device_children, upper.on_device = int(node.on_device), node.on_device
        old_key = self._key(node)
        node.tokens, node.start, node.parent = node.tokens[cut:], upper.end, upper
        parent.children[old_key], upper.children[self._key(node)] = upper, node
        self.memory.lease(node.full)  # making room for the halves may evict others, whose loss must not prune this
        whole = all(
            self._split_cell(component, upper, node, at_tokens) for component in self.components if component.spans
        )
        self.memory.unlease(node.full)
        if not whole:
            self.remove(upper)
            return None
        for part in (upper, node):
            for cell in part.cells:
                if cell is not None:
                    self.memory.requeue(cell)
        return upper

    def remove(self, node: Node) -> None:
        """Drop a node and everything below it, and then what that leaves without use."""
        parent = node.parent
        self._detach(node)
        if parent is not None:
            self.wither(parent)

    def discard(self, node: Node) -> None:
        """Drop nodes that were never attached."""
        self._detach(node)

    def wither(self, node: Node) -> None:
        """Something at this node has gone: drop what no future hit can reach any more. What is leased stays until the
        lease is back, when this is called again."""
        todo = [node]
        while todo:
            at = todo.pop()
            if not at.alive or at.parent is None:
                continue
            if self.window:
                todo.extend(self._wither_windows(at))
            if at.alive and not at.children and not self.held(at) and not self.legal(at):
                todo.append(at.parent)
                self._detach(at)

    def legal(self, node: Node) -> bool:
        """Whether a hit can end at the node's end, with copies in any tier."""
        if self.state and node.cells[self.state.index] is None:
            return False
        return not self.window or self._run_tokens(node) >= self.window.window_tokens

    def held(self, node: Node) -> bool:
        """Whether anybody holds a lease on something of the node."""
        return any(cell is not None and cell.leases for cell in node.cells)

    def nodes(self) -> Iterator[Node]:
        """All nodes but roots, parents before children."""
        for root in self.roots.values():
            yield from (node for node in root.subtree() if node is not root)

    # What the memory asks and tells: see hypic.cache.memory.Owner.

    def evictable(self, cell: Cell, tier: int) -> bool:
        """FULL leaves tier 0 from the leaves upwards; everything else goes in any order."""
        node, index = _place(cell)
        return index != 0 or tier != 0 or not node.device_children

    def losable(self, cell: Cell) -> bool:
        node, index = _place(cell)
        return index != 0 or not node.children

    def foundation(self, cell: Cell) -> Cell | None:
        """FULL comes to tier 0 from the root downwards."""
        node, index = _place(cell)
        return None if index != 0 or node.parent is None else node.parent.cells[0]

    def moved(self, cell: Cell) -> None:
        node, index = _place(cell)
        if index == 0:
            self._count_device(node, cell.has(0))

    def lost(self, cell: Cell, reason: str) -> None:
        node, index = _place(cell)
        if index == 0:
            self.remove(node)
        else:
            node.cells[index] = None
            self.wither(node)

    def released(self, cell: Cell) -> None:
        self.wither(_place(cell)[0])

    def record(self, cell: Cell) -> Record:
        node, index = _place(cell)
        assert node.parent is not None
        before, after = self.digest(node.parent), self.digest(node)
        tokens = node.tokens if cell.kind == "full" else b""
        start = node.start if self.components[index].spans else node.end  # a state does not move when its span is cut
        meta = {"namespace": node.namespace, "start": start, "before": before, "after": after, "tokens": tokens}
        name = hashlib.blake2b(cell.kind.encode() + start.to_bytes(8, "little") + after, digest_size=32)
        return Record(name.digest(), cell.kind, meta)

    def digest(self, node: Node) -> bytes:
        """Names the namespace and all tokens up to a node's end, however the path is cut into nodes: 32 bytes."""
        return self._digest(node).digest()

    def _key(self, node: Node) -> bytes:
        return node.tokens[: self.shape.page_tokens * TOKEN_BYTES]

    def _digest(self, node: Node) -> "hashlib.blake2b":
        above = node
        missing: list[Node] = []
        while above.digest is None:
            missing.append(above)
            assert above.parent is not None
            above = above.parent
        digest = above.digest
        for below in reversed(missing):
            digest = digest.copy()
            digest.update(below.tokens)
            below.digest = digest
        return digest

    def _split_cell(self, component: Component, upper: Node, node: Node, at_tokens: int) -> bool:
        """The value of a component that covers the span goes to both parts, and so do the leases of those whose hits
        may need both. False where FULL could not be cut; a window that cannot becomes a tombstone."""
        cell = node.cells[component.index]
        if cell is None:
            return True
        left = self.cell(upper, component, cell.seconds * at_tokens / (at_tokens + len(node)))
        cell.seconds -= left.seconds
        upper.cells[component.index] = left
        if self.memory.split(cell, left, at_tokens):
            if component.kind == "window":
                for _ in range(cell.leases - cell.flights):
                    self.memory.lease(left)
            return True
        if component.kind == "full":
            return False
        for part, half in ((upper, left), (node, cell)):
            self.memory.forget(half)
            part.cells[component.index] = None
        return True

    def _detach(self, node: Node) -> None:
        """Unlink a subtree and forget its cells; leased ones live on until their lease is back."""
        parent = node.parent
        self._count_device(node, False)
        if parent is not None and parent.children.get(self._key(node)) is node:
            del parent.children[self._key(node)]
            self._bequeath(node)
            if parent.cells[0] is not None:
                self.memory.requeue(parent.cells[0])
            elif not parent.children:
                self.roots.pop(parent.namespace, None)
        for below in node.subtree():
            below.alive = False
            for cell in below.cells:
                if cell is not None:
                    self.memory.forget(cell)

    def _bequeath(self, node: Node) -> None:
        """What a node was worth, and the sessions that would come back to it, pass to its parent: whoever asks for the
        node's tokens again will use those of the parent."""
        assert node.parent is not None
        heir, cell = node.parent.cells[0], node.cells[0]
        if heir is None or cell is None:
            return
        heir.worth, heir.uses = max(heir.worth, cell.worth), max(heir.uses, cell.uses)
        heir.last_use_ticks = max(heir.last_use_ticks, cell.last_use_ticks)
        self.memory.sessions.inherit(heir, cell)

    def _count_device(self, node: Node, on_device: bool) -> None:
        if node.on_device == on_device or node.parent is None:
            return
        node.on_device = on_device
        parent = node.parent
        parent.device_children += 1 if on_device else -1
        if parent.cells[0] is not None:
            if not on_device:
                parent.cells[0].worth = max(parent.cells[0].worth, node.full.worth)
            self.memory.requeue(parent.cells[0])

    def _run_tokens(self, node: Node) -> float:
        """Tokens that end at the node's end and whose window values are all there; infinite where nothing is missing
        back to position 0, and cut off where more would not matter."""
        assert self.window is not None
        run = 0
        for above in node.path():
            if above.cells[self.window.index] is None:
                return run
            run += len(above)
            if run >= self.window.window_tokens:
                return run
        return float("inf")

    def _wither_windows(self, node: Node) -> list[Node]:
        """Drop states and window values near a node that serve no boundary; returns the leaves that may be dead."""
        assert self.window is not None
        reach = self.window.window_tokens
        near = [above for above in node.path() if above is not node and above.end > node.start - reach]
        stack = [node]
        while stack:
            below = stack.pop()
            near.append(below)
            stack.extend(child for child in below.children.values() if child.start < node.end + reach)
        if self.state:
            for at in near:
                if not self.legal(at):
                    self._drop_value(at, self.state.index)
        for at in near:
            if at.cells[self.window.index] is not None and not self._serves(at):
                self._drop_value(at, self.window.index)
        return [at for at in near if at is not node and not at.children and not self.legal(at) and not self.held(at)]

    def _serves(self, node: Node) -> bool:
        """Whether some boundary at or below a node needs its window value."""
        assert self.window is not None
        assert node.parent is not None
        reach = self.window.window_tokens
        above = self._run_tokens(node.parent) if node.parent.parent is not None else float("inf")
        stack: list[tuple[Node, float]] = [(node, above)]
        while stack:
            at, run = stack.pop()
            run += len(at)
            first = at.end if self.state else at.start + self.shape.page_tokens
            ends_here = not self.state or at.cells[self.state.index] is not None
            if run >= reach and ends_here and first - reach < node.end:
                return True
            if at.end - reach < node.end:
                below = (c for c in at.children.values() if c.cells[self.window.index] is not None)
                stack.extend((child, run) for child in below)
        return False

    def _drop_value(self, node: Node, index: int) -> None:
        """A state or a window value goes, unless somebody holds it; the node stays."""
        cell = node.cells[index]
        if cell is not None and not cell.leases:
            node.cells[index] = None
            self.memory.forget(cell)


def _place(cell: Cell) -> tuple[Node, int]:
    """The node of a cell, and the index of its component."""
    assert isinstance(cell, TreeCell)
    assert cell.node is not None
    return cell.node, cell.index
