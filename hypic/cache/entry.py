"""What is cached: a segment at any position, and what is remembered after a prefix. Both never change once made."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hypic.linear.operators import Operators
from hypic.segment import TokenIds


@dataclass(frozen=True, eq=False)
class SegmentEntry:
    """A segment prefilled alone, from a zero state at position 0, whoever asked for it.

    token_ids: int32 `[n]`, all of it. seam_tokens: w; everything else covers the remainder, tokens w to n-1.
    operators: (T, S) of every linear layer, in the formats that the key names. conv_tails: `[L, c-1, C]`, its last
    inputs. keys (not rotated) and values: `[F, n-w, HK, D]`.
    """

    key: bytes
    token_ids: TokenIds
    seam_tokens: int
    operators: Operators
    conv_tails: Tensor
    keys: Tensor
    values: Tensor

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The arrays of the entry by name."""
        return self.operators.tensors | {"conv_tails": self.conv_tails, "keys": self.keys, "values": self.values}

    @property
    def nbytes(self) -> int:
        """True bytes held."""
        return sum(tensor.nbytes for tensor in self.tensors.values()) + self.token_ids.nbytes

    @property
    def remainder_tokens(self) -> int:
        return len(self.token_ids) - self.seam_tokens

    def matches(self, token_ids: TokenIds) -> bool:
        """Whether this is an entry of those very tokens: keys are compared by hash, tokens by value."""
        return np.array_equal(self.token_ids, token_ids)


@dataclass(frozen=True, eq=False)
class KvSpan:
    """Keys (rotated, since a prefix never moves) and values of a span of a prefix: `[F, s, HK, D]`."""

    keys: Tensor
    values: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        """True bytes held."""
        return self.keys.nbytes + self.values.nbytes

    def split(self, at_tokens: int) -> tuple["KvSpan", "KvSpan"]:
        """Both halves own their memory: a view would keep the whole alive when the other half goes."""
        left = KvSpan(self.keys[:, :at_tokens].clone(), self.values[:, :at_tokens].clone())
        return left, KvSpan(self.keys[:, at_tokens:].clone(), self.values[:, at_tokens:].clone())


@dataclass(frozen=True, eq=False)
class StateEnd:
    """What the linear layers remember after a prefix: states `[L, H, K, V]` and conv tails `[L, c-1, C]`."""

    states: Tensor
    conv_tails: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.states, self.conv_tails

    @property
    def nbytes(self) -> int:
        """True bytes held."""
        return self.states.nbytes + self.conv_tails.nbytes
