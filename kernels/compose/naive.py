"""Operators on states: applying a segment's pair, and merging pairs (DESIGN 2.1).

A transition has one of three shapes per head, and its number of axes says which: `[H]` a scalar, `[H, K]` a
diagonal, `[H, K, K]` a matrix acting on the K axis of the state from the left.
"""

import torch
from torch import Tensor


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


def compose(transition: Tensor, state: Tensor, before: Tensor) -> Tensor:
    """The state after a segment entered with `before`: T·before + S. States are `[..., H, K, V]`."""
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
