"""Operators on states: applying a segment's pair, and merging pairs (DESIGN 2.1).

A transition has one of three shapes per head, and its number of axes says which: `[H]` a scalar, `[H, K]` a
diagonal, `[H, K, K]` a matrix acting on the K axis of the state from the left. Where heads have forgotten everything,
`LiveHeads` names the others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LiveHeads:
    """Dense transitions of a layer in which the other heads' are zero. heads: int64 `[n]`, each at most once, in any
    order. matrices: `[n, K, K]`."""

    heads: Tensor
    matrices: Tensor

    def to(self, dtype: torch.dtype) -> "LiveHeads":
        """The same in another dtype."""
        return LiveHeads(self.heads, self.matrices.to(dtype))

    def dense(self, heads: int) -> Tensor:
        """All of so many heads, `[H, K, K]`: for kernels that take a matrix a head."""
        whole = self.matrices.new_zeros(heads, *self.matrices.shape[1:])
        return whole.index_copy_(0, self.heads, self.matrices)


Transition = Tensor | LiveHeads


def apply_transition(transition: Tensor, state: Tensor) -> Tensor:
    """T·S for a state `[..., H, K, V]` and a transition `[..., H]`, `[..., H, K]` or `[..., H, K, K]`."""
    form = transition.ndim - (state.ndim - 3)
    if form == 1:
        return transition[..., None, None] * state
    if form == 2:
        return transition[..., None] * state
    if form == 3:
        return transition @ state
    raise ValueError(
        f"a transition is [H], [H, K] or [H, K, K]; found {tuple(transition.shape)} for a state {tuple(state.shape)}"
    )


def compose(transition: Transition, state: Tensor, before: Tensor) -> Tensor:
    """The state after a segment entered with `before`: T·before + S. States are `[..., H, K, V]`, or `[H, K, V]` with
    `LiveHeads`, of which nothing is multiplied with zero."""
    if isinstance(transition, LiveHeads):
        at = transition.heads
        return state.index_copy(0, at, torch.baddbmm(state[at], transition.matrices, before[at]))
    if transition.ndim == state.ndim == 3:  # one pass over a large state instead of two
        return torch.baddbmm(state, transition, before)
    return apply_transition(transition, before) + state


def merge(later: tuple[Tensor, Tensor], earlier: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The pair of two segments in a row, (T2, S2)∘(T1, S1) = (T2·T1, T2·S1 + S2), as (transition, state)."""
    transition, state = later
    if transition.shape != earlier[0].shape:
        raise ValueError(f"cannot merge transitions of shapes {tuple(transition.shape)} and {tuple(earlier[0].shape)}")
    dense = transition.ndim >= 2 and transition.ndim == state.ndim
    product = transition @ earlier[0] if dense else transition * earlier[0]
    return product, compose(transition, state, earlier[1])
