"""Rotary position embedding (arXiv 2104.09864), on the leading dimensions of a head where it is partial."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotate vectors to their positions.

    x: `[..., T, H, D]`. cos, sin: float32 `[T, R/2]` with R <= D the rotated dimensions, in the half-split
    layout (dimension i pairs with i + R/2). out: where to write, same shape as x; allocated if None. The
    rotation is computed in float32 and rounded once to the dtype of `out`. Raises ValueError where shapes disagree.
    """
    check_shapes(x, cos, sin, out)
    half = cos.shape[-1]
    out = torch.empty_like(x) if out is None else out
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [T, 1, R/2]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]
    return out


def check_shapes(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None) -> None:
    """Raise ValueError unless cos and sin are `[T, R/2]` for the T and D of x, and out has the shape of x."""
    if 2 * cos.shape[-1] > x.shape[-1] or cos.shape[0] != x.shape[-3] or cos.ndim != 2 or sin.shape != cos.shape:
        raise ValueError(
            f"cos and sin must be [T, R/2] with T = {x.shape[-3]} and R <= {x.shape[-1]}; found {tuple(cos.shape)} "
            f"and {tuple(sin.shape)}"
        )
    if out is not None and out.shape != x.shape:
        raise ValueError(f"out must be {tuple(x.shape)}, found {tuple(out.shape)}")
