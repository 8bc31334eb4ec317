"""Finding the prefixes again that an earlier process left in a tier that lasts.

Files name what they are: namespace, start, and hashes of the path before and after. Paths are linked by those hashes,
which are computed again from the tokens; what fits nowhere, or only where another stands already, is discarded.
"""

from typing import Any

from hypic.cache.tiers.tier import Lasting, Record
from hypic.cache.tree.node import TOKEN_BYTES, Node
from hypic.cache.tree.trunk import Trunk


def restore(trunk: Trunk, number: int, tier: Lasting) -> int:
    """Hang every copy that a tier has found into the tree; returns how many. number: of the tier in the memory."""
    kinds = {component.kind for component in trunk.components}
    found = [record for record in tier.found() if record.kind in {"full", "window", "state"}]
    ends: dict[bytes, Node] = {}
    restored = 0
    for record in sorted(found, key=lambda record: (record.kind != "full", _start(record))):
        node = None
        if record.kind in kinds:
            node = _grown(trunk, record, ends) if record.kind == "full" else ends.get(_bytes(record, "after"))
        if node is None or not _claim(trunk, number, tier, record, node):
            tier.discard(record)
            continue
        restored += 1
        if record.kind == "full":
            ends[_bytes(record, "after")] = node
    for node in reversed(list(trunk.nodes())):
        trunk.wither(node)
    return restored


def _grown(trunk: Trunk, record: Record, ends: dict[bytes, Node]) -> Node | None:
    """A new node for a span of tokens, not yet attached; None where it has no place."""
    start, tokens = _start(record), _bytes(record, "tokens")
    parent = trunk.root(_bytes(record, "namespace")) if start == 0 else ends.get(_bytes(record, "before"))
    page_bytes = trunk.shape.page_tokens * TOKEN_BYTES
    if parent is None or parent.end != start or not tokens or len(tokens) % page_bytes:
        return None
    node = trunk.node(tokens, start, parent)
    taken = tokens[:page_bytes] in parent.children
    return None if taken or trunk.digest(node) != record.meta["after"] else node


def _claim(trunk: Trunk, number: int, tier: Lasting, record: Record, node: Node) -> bool:
    component = next(component for component in trunk.components if component.kind == record.kind)
    begin = node.start if component.spans else node.end
    if node.cells[component.index] is not None or begin != _start(record):
        return False
    cell = trunk.cell(node, component, trunk.cost(node.start, node.end))
    node.cells[component.index] = cell
    nbytes = tier.claim(record, cell)
    if component.kind == "full":
        trunk.attach(node)
    trunk.memory.claim(cell, number, nbytes)
    return True


def _start(record: Record) -> int:
    value: Any = record.meta.get("start", -1)
    return int(value)


def _bytes(record: Record, name: str) -> bytes:
    value: Any = record.meta.get(name, b"")
    return bytes(value)
