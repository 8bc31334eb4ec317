"""The prefix tree: what was computed for a prefix, found again by its tokens, and lent out under a receipt.

A match is a pure question. Only `acquire` promises anything: it makes ready what the hit needs, and holds it until the
receipt is released. A namespace (model, adapter, dtype, tenant, provenance: one framed key) is a root of its own, so
nothing is ever shared between two of them, and an exact request never walks through composed memory.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from hypic.cache.memory import Memory
from hypic.cache.tiers.tier import Lasting, Payload
from hypic.cache.tree.component import Component, Kind, Shape
from hypic.cache.tree.growth import Grown, Growth, Offer
from hypic.cache.tree.node import TOKEN_BYTES, Node, TreeCell, common_tokens
from hypic.cache.tree.restore import restore
from hypic.cache.tree.trunk import Cost, Trunk

ANY_TIER = -1
DEVICE = 1


@dataclass(frozen=True)
class Match:
    """Where a hit would end. node: the node that holds the last token, None where nothing matches. full_tokens: how
    far FULL alone goes; beyond `tokens` it is memory without a state or a window to go with it."""

    tokens: int
    node: Node | None
    full_tokens: int


@dataclass(eq=False)
class Receipt:
    """A hit that is held. Release it exactly once, on the tree that gave it.

    first: kind -> depth where the deepest node's path of leases begins. A cut changes nodes, never depths, so the same
    nodes are given back however often they were cut meanwhile.
    """

    tree: "Tree"
    node: Node
    tokens: int
    first: dict[Kind, int]
    released: bool = False

    def spans(self, kind: Kind = "full") -> list[tuple[int, Payload]]:
        """(start, payload) of the nodes that the hit covers, in order; all of the path for FULL, the window's for
        WINDOW. The last payload may go on beyond `tokens`."""
        component = self.tree.component(kind)
        nodes = self.node.path() if kind == "full" else self.tree.leased(self, component)
        found = [(node.start, self.tree.payload(node, component)) for node in nodes]
        return found[::-1]

    def state(self) -> Payload:
        """The state after the last token of the hit."""
        return self.tree.payload(self.node, self.tree.component("state"))

    def cells(self) -> Iterator[TreeCell]:
        """What is held, for a session to refer to."""
        for kind in self.first:
            component = self.tree.component(kind)
            cells = (node.cells[component.index] for node in self.tree.leased(self, component))
            yield from (cell for cell in cells if cell is not None)

    def release_early(self, kind: Kind) -> None:
        """Give one kind back before the rest, once it is not needed any more; what is back is not given back again."""
        assert not self.released
        assert kind != "full", "FULL is held to the end: everything stands on it"
        if kind in self.first:
            self.tree.give_back(self, kind)
            self.tree.trunk.wither(self.node)

    def release(self) -> None:
        assert not self.released, "a receipt is released twice"
        self.released = True
        for kind in list(self.first):
            self.tree.give_back(self, kind)
        self.tree.trunk.wither(self.node)


@dataclass
class TreeStats:
    """Counts since the start. stateless_tokens: of prompts whose FULL was there but no boundary to use it at."""

    lookups: int = 0
    hits: int = 0
    hit_tokens: int = 0
    stateless_tokens: int = 0


@dataclass(eq=False)
class Tree:
    """A prefix tree in a memory that others may share. Not thread-safe: one engine owns it."""

    memory: Memory
    shape: Shape = field(default_factory=Shape)
    cost: Cost = lambda start, end: (end - start) * 1e-4
    stats: TreeStats = field(default_factory=TreeStats)

    def __post_init__(self) -> None:
        self.trunk = Trunk(self.memory, self.shape, self.cost)

    def match(
        self, namespace: bytes, tokens: bytes, ends: Collection[int] | None = None, tiers: int = ANY_TIER
    ) -> Match:
        """The deepest boundary that every component accepts. tokens: `token_bytes` of the prompt, without what has to
        be computed anyway. ends: depths where a hit may end, None for all. tiers: whose copies count, a bit mask."""
        if ends is not None and self.trunk.state is None:
            return self._match_inside(namespace, tokens, ends, tiers)
        node = self.trunk.roots.get(namespace)
        validators = [component.validator(tiers) for component in self.trunk.components]
        best, best_tokens, full_tokens = None, 0, 0
        page, total = self.shape.page_tokens, len(tokens) // TOKEN_BYTES
        while node is not None and (node := self.trunk.child(node, tokens)) is not None:
            if tokens.startswith(node.tokens, node.start * TOKEN_BYTES):
                used = node.end - node.start
            else:
                used = common_tokens(node.tokens, tokens, node.start) // page * page
            accepted = True
            for validator in validators:  # all of them, every time: they count as they go
                accepted = validator(node, used) and accepted
            depth = node.start + used
            cell = node.cells[0]
            if cell is None or not cell.tiers & tiers:
                break
            full_tokens = depth
            if accepted and (ends is None or depth in ends):
                best, best_tokens = node, depth
            if depth < node.end or depth == total:
                break
        return Match(best_tokens, best, full_tokens)

    def _match_inside(self, namespace: bytes, tokens: bytes, ends: Collection[int], tiers: int) -> Match:
        """Without states a hit may end inside a node: ask again with the prompt cut off where one may."""
        whole = self.match(namespace, tokens, None, tiers)
        for end in sorted((end for end in ends if 0 < end <= whole.tokens), reverse=True):
            match = self.match(namespace, tokens[: end * TOKEN_BYTES], None, tiers)
            if match.tokens == end:
                return Match(end, match.node, whole.full_tokens)
        return Match(0, None, whole.full_tokens)

    def tier(self, match: Match) -> str:
        """Name of the slowest tier that a hit would read from, "" for none."""
        cells = [] if match.node is None else self._used(match.node, match.tokens)
        first = max(((cell.tiers & -cell.tiers).bit_length() - 1 for cell in cells), default=-1)
        return "" if first < 0 else self.memory.tiers[first].name

    def lookup(self, namespace: bytes, tokens: bytes, ends: Collection[int] | None = None) -> Receipt | None:
        """Match and acquire. Where something cannot be made ready the hit is the next shorter one that can; None where
        nothing is left. A miss is never an error."""
        self.stats.lookups += 1
        match = self.match(namespace, tokens, ends)
        receipt = self.acquire(match)
        while receipt is None and match.tokens:
            again = self.match(namespace, tokens, ends)
            if again.tokens < match.tokens:
                match, receipt = again, self.acquire(again)
                continue
            match = self.match(namespace, tokens, ends, DEVICE)  # nothing was lost: there is no room to make it ready
            receipt = self.acquire(match)
            break
        self.stats.stateless_tokens += match.full_tokens - match.tokens
        self.stats.hit_tokens += match.tokens
        self.stats.hits += receipt is not None
        return receipt

    def acquire(self, match: Match) -> Receipt | None:
        """Hold what a match promised, bringing it to tier 0. None where it has gone since, cannot be read, or finds no
        room; nothing is held then."""
        node = match.node
        if node is None or not node.alive:
            return None
        receipt = Receipt(self, node, match.tokens, {})
        for component in self.trunk.components:
            needed = list(component.needed(node, match.tokens))
            if any(at.cells[component.index] is None for at in needed):
                self._cancel(receipt)
                return None
            for at in needed:
                self.memory.lease(self._cell(at, component))
            receipt.first[component.kind] = needed[-1].start
        if not self._make_ready(receipt):
            self._cancel(receipt)
            return None
        for cell in receipt.cells():  # the deepest first, so that of one hit the shallow parts stay longest
            self.memory.touch(cell)
        return receipt

    def insert(self, namespace: bytes, tokens: bytes, offer: Offer, behind: Receipt | None = None) -> Grown:
        """Remember a prefix: what the offer holds up to the deepest boundary on the grid, copied where it is missing.
        Optional: with no room less is kept, or nothing. behind: a live receipt of a hit on these tokens, so that the
        path to it need not be walked again."""
        start = self.trunk.root(namespace)
        if behind is not None and behind.node.alive and behind.node.end == behind.tokens:
            assert not behind.released
            assert behind.node.namespace == namespace
            start = behind.node
        return Growth(self.trunk, tokens, offer, start).run()

    def region(self, node: Node) -> list[TreeCell]:
        """What a hit that ends at a node's end would use, for a session to refer to."""
        return self._used(node, node.end)

    def _used(self, node: Node, tokens: int) -> list[TreeCell]:
        return [
            cell
            for component in self.trunk.components
            for at in component.needed(node, tokens)
            if (cell := at.cells[component.index]) is not None
        ]

    def restore(self) -> int:
        """Find the prefixes that lasting tiers kept from an earlier process; returns how many values."""
        tiers = enumerate(self.memory.tiers)
        return sum(restore(self.trunk, number, tier) for number, tier in tiers if isinstance(tier, Lasting))

    def component(self, kind: Kind) -> Component:
        return next(component for component in self.trunk.components if component.kind == kind)

    def cells(self) -> Iterator[TreeCell]:
        """Every cell of the tree."""
        for node in self.trunk.nodes():
            yield from (cell for cell in node.cells if cell is not None)

    def clear(self) -> None:
        """Drop everything that nobody holds."""
        for root in list(self.trunk.roots.values()):
            for node in reversed(list(root.subtree())):
                if node.parent is not None and not node.children and not self.trunk.held(node):
                    self.trunk.remove(node)

    def check(self) -> None:
        """Integrity of the structure; the books of the memory are checked by `Memory.check` with all owners' cells."""
        page = self.shape.page_tokens
        for node in self.trunk.nodes():
            assert node.parent is not None
            assert node.end > node.start == node.parent.end, (node.start, node.end, node.parent.end)
            assert node.start % page == node.end % page == 0
            assert node.alive
            assert len(node.tokens) == len(node) * TOKEN_BYTES
            assert node.parent.children[node.tokens[: page * TOKEN_BYTES]] is node
            assert all(cell is None or (cell.node is node and not cell.abandoned) for cell in node.cells)
            assert node.on_device == node.full.has(0), "the parent counts wrongly"
            assert node.device_children == sum(child.full.has(0) for child in node.children.values())
            assert node.full.has(0) or not node.device_children, "a gap above what is ready to use"
            assert node.children or self.trunk.held(node) or self.trunk.legal(node), "no hit can reach this"

    def payload(self, node: Node, component: Component) -> Payload:
        """The copy that is ready to use, of something that is held."""
        return self.memory.tiers[0].get(self._cell(node, component))

    def leased(self, receipt: Receipt, component: Component) -> Iterator[Node]:
        """Nodes whose value of that kind a receipt holds, the deepest first."""
        for node in receipt.node.path():
            if node.start < receipt.first[component.kind]:
                return
            yield node
            if not component.spans or component.kind == "full":
                return

    def give_back(self, receipt: Receipt, kind: Kind) -> None:
        """Return the leases of one kind."""
        component = self.component(kind)
        cells = [self._cell(node, component) for node in self.leased(receipt, component)]
        del receipt.first[kind]
        for cell in cells:
            self.memory.unlease(cell)

    def _make_ready(self, receipt: Receipt) -> bool:
        """Bring to tier 0 whatever a receipt needs, FULL from the top so that there is no gap at any time."""
        missing: list[TreeCell] = []
        for node in receipt.node.path():
            if node.full.has(0):
                break
            missing.append(node.full)
            self.memory.lease(node.full)
        ready = all(self.memory.load(cell) is not None for cell in reversed(missing))
        for cell in missing:
            self.memory.unlease(cell)
        return ready and all(self.memory.load(cell) is not None for cell in list(receipt.cells()))

    def _cancel(self, receipt: Receipt) -> None:
        receipt.released = True
        for kind in list(receipt.first):
            self.give_back(receipt, kind)
        self.trunk.wither(receipt.node)

    def _cell(self, node: Node, component: Component) -> TreeCell:
        cell = node.cells[component.index]
        assert cell is not None, f"{component.kind} at depth {node.end} is not held"
        return cell
