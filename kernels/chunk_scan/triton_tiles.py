"""Tiles of packed tokens in Triton: loading and storing rows, products in full precision, and inverting I + L."""

import triton
import triton.language as tl
from torch import Tensor


def packed(x: Tensor) -> Tensor:
    """`[T, H, D]` whose rows are contiguous, whatever lies between them: what `load_rows` can read."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


@triton.jit
def load_rows(pointer, first, end, stride, width, C: tl.constexpr, BLOCK: tl.constexpr):
    """Rows first to end - 1 of `[T, stride]`, at most C of them, and `width` columns: `[C, BLOCK]`, the rest zero."""
    row, column = first + tl.arange(0, C), tl.arange(0, BLOCK)
    inside = (row < end)[:, None] & (column < width)[None, :]
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(
    pointer, value, first, end, stride, width, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The reverse of `load_rows`."""
    row, column = first + tl.arange(0, C), tl.arange(0, BLOCK)
    inside = (row < end)[:, None] & (column < width)[None, :]
    tl.store(pointer + row[:, None] * stride + column[None, :], value, mask=inside)


@triton.jit
def load_column(pointer, first, end, stride, C: tl.constexpr):
    """One value of each of those rows: `[C]`."""
    row = first + tl.arange(0, C)
    return tl.load(pointer + row * stride, mask=row < end, other=0.0)


@triton.jit
def precise_dot(a, b):
    """a @ b without rounding float32 to TF32: states are composed over thousands of tokens."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def unit_lower_inverse(strict, C: tl.constexpr):
    """(I + L)⁻¹ of a strictly lower triangular `[C, C]`, C a power of two.

    Inverses of diagonal blocks of 1, 2, 4, ... are joined in twos: [[A, 0], [B, D]]⁻¹ has -D⁻¹BA⁻¹ in its corner. As
    stable as substitution, where powers of L would grow without end.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    inverse = (row == column).to(strict.dtype)
    size = 1
    while size < C:
        corner = (row // size == column // size + 1) & (row // (2 * size) == column // (2 * size))
        inverse -= precise_dot(inverse, precise_dot(tl.where(corner, strict, 0.0), inverse))
        size *= 2
    return inverse
