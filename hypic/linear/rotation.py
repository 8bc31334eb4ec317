"""Moving the state of a segment whose keys are rotated (DESIGN 2.5; Ring and Bailing rotate linear keys).

A segment is built at position 0. Standing at position p, every key is R(p) times what it was, so its end
state is S_{C|p} = R(p) S_{C|0}, exactly, provided that T commutes with R: only a scalar T does for certain.
"""

import torch
from torch import Tensor

from hypic.linear.family import LinearFamily


def check_rotation(family: LinearFamily) -> None:
    """Raise ValueError unless states of `family` can be moved when its keys are rotated."""
    if not family.commutes_with_rotation:
        raise ValueError(
            f"family {family.name} has a {family.form} transition, which does not commute with the rotation "
            "of its keys, so segments cannot be reused at another position; expected a scalar transition, "
            "or keys without rotary embedding"
        )


def rotate_state(state: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """R(p)·S on the K axis: state `[..., K, V]`, cos and sin `[D/2]` of the D/2 angles at offset p, D <= K.

    The first D key channels are rotated. Channel i pairs with i + D/2, or, interleaved, 2i with 2i + 1.
    Computes in float32 or wider and returns the dtype of `state`.
    """
    half = cos.shape[-1]
    if cos.shape != sin.shape or cos.ndim != 1 or 2 * half > state.shape[-2]:
        raise ValueError(
            f"cos and sin must be [D/2] with D <= {state.shape[-2]}; found {tuple(cos.shape)}, {tuple(sin.shape)}"
        )
    wide = torch.promote_types(state.dtype, torch.float32)
    cos, sin = (x.to(wide).unsqueeze(-1) for x in (cos, sin))
    rotated = state.to(wide, copy=True)
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else _halves(half)
    x, y = rotated[..., first, :].clone(), rotated[..., second, :].clone()
    rotated[..., first, :] = x * cos - y * sin
    rotated[..., second, :] = y * cos + x * sin
    return rotated.to(state.dtype)


def _halves(half: int) -> tuple[slice, slice]:
    return slice(0, half), slice(half, 2 * half)
