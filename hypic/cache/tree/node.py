"""Nodes of the prefix tree, and comparing tokens without copying them.

Tokens are the bytes of int32 ids, 4 a token, little-endian: `bytes.startswith(span, start=offset)` is a memcmp at an
integer cursor into one buffer, so a walk copies no suffix and its cost is that of reading the prompt once.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

import numpy as np

from hypic.cache.memory import Cell
from hypic.segment import TokenIds

TOKEN_BYTES = 4


def token_bytes(token_ids: TokenIds) -> bytes:
    """int32 ids `[n]` as the buffer that trees compare."""
    return np.ascontiguousarray(token_ids, dtype="<i4").tobytes()


def common_tokens(span: bytes, tokens: bytes, at_tokens: int) -> int:
    """How many tokens `span` shares with `tokens` from a position on."""
    offset = at_tokens * TOKEN_BYTES
    if tokens.startswith(span, offset):
        return len(span) // TOKEN_BYTES
    count = min(len(span), len(tokens) - offset) // TOKEN_BYTES
    ours = np.frombuffer(span, "<i4", count)
    theirs = np.frombuffer(tokens, "<i4", count, offset)
    differing = np.flatnonzero(ours != theirs)
    return int(differing[0]) if len(differing) else count


@dataclass(eq=False, slots=True)
class TreeCell(Cell):
    """A cell that belongs to a node; index: of its component."""

    node: Optional["Node"] = None
    index: int = 0


@dataclass(eq=False, slots=True)
class Node:
    """A span of tokens [start, end) behind its parent, and what each component keeps of it.

    cells: by component; FULL's is never None except in a root, which spans nothing. device_children: how many children
    have their FULL ready to use; on_device: whether this one is counted in its parent's. namespace: of its root.
    """

    tokens: bytes
    start: int
    end: int
    parent: Optional["Node"]
    cells: list[TreeCell | None]
    children: dict[bytes, "Node"] = field(default_factory=dict)
    device_children: int = 0
    on_device: bool = False
    alive: bool = True
    digest: Optional["hashlib.blake2b"] = None
    namespace: bytes = b""

    def __len__(self) -> int:
        return self.end - self.start

    def __bool__(self) -> bool:
        return True  # a root spans nothing and is a node all the same

    @property
    def full(self) -> TreeCell:
        cell = self.cells[0]
        assert cell is not None, "a node without FULL is no node"
        return cell

    def path(self) -> Iterator["Node"]:
        """From this node upwards, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator["Node"]:
        """This node and everything below it, parents before children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
