"""Transition operators as data: their three forms, shapes, identities and bytes.

Applying and merging them is `hypic.kernels.compose`.
"""

from typing import Literal

import torch
from torch import Tensor

TransitionForm = Literal["scalar", "diagonal", "dense"]


def transition_shape(form: TransitionForm, heads: int, key_dim: int) -> tuple[int, ...]:
    """Shape of one segment's transition at one layer: `[HV]`, `[HV, K]` or `[HV, K, K]`."""
    shapes = {"scalar": (heads,), "diagonal": (heads, key_dim), "dense": (heads, key_dim, key_dim)}
    if form not in shapes:
        raise ValueError(f"unknown transition form {form!r}, expected one of {sorted(shapes)}")
    return shapes[form]


def state_shape(heads: int, key_dim: int, value_dim: int) -> tuple[int, int, int]:
    """Shape of one state at one layer, `[HV, K, V]`."""
    return heads, key_dim, value_dim


def identity_transition(form: TransitionForm, heads: int, key_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The transition of no tokens at all, in `transition_shape`."""
    shape = transition_shape(form, heads, key_dim)
    if form == "dense":
        return torch.eye(key_dim, dtype=dtype).expand(shape).contiguous()
    return torch.ones(shape, dtype=dtype)


def held_bytes(tensor: Tensor) -> int:
    """Bytes that keeping this tensor keeps alive: its whole storage, also when it is a view of a part of
    it."""
    return tensor.untyped_storage().nbytes()


def pair_bytes(
    form: TransitionForm, heads: int, key_dim: int, value_dim: int, dtype: torch.dtype = torch.float32
) -> int:
    """Bytes of one segment's transition and end state at one layer, stored plainly in `dtype`."""
    elements = torch.Size(transition_shape(form, heads, key_dim)).numel()
    return (elements + heads * key_dim * value_dim) * dtype.itemsize
