"""Matrices in 8 bits with scales, and how far an approximation of a matrix can be from it.

    X ≈ diag(rows) · codes · diag(columns),   codes from -127 to 127

The two scales are balanced in turns, so that no row and no column is far below the range of its codes. Measured against
a scale per row or per column alone, and against float8 (e4m3) with either: least error on states and operators alike.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_LEVELS = 127
_ROUNDS = 2
"""Of balancing: a third lowers no error by more than a hundredth."""


@dataclass(frozen=True, eq=False)
class Scaled8:
    """Matrices `[..., R, C]`: int8 codes `[..., R, C]`, float32 scales rows `[..., R]` and columns `[..., C]`."""

    codes: Tensor
    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, matrices: Tensor) -> "Scaled8":
        """Round float32 matrices. Scales only shrink from the largest entry of each row on, so an entry is off by at
        most 1/254 of that: the error is at most `scaled8_error(C)` of the matrix, in Frobenius norms."""
        rest, rows, columns = (
            matrices,
            matrices.new_ones(matrices.shape[:-1]),
            matrices.new_ones(matrices[..., 0, :].shape),
        )
        for _ in range(_ROUNDS):
            largest = _nonzero(rest.abs().amax(-1))
            rows, rest = rows * largest, rest / largest.unsqueeze(-1)
            largest = _nonzero(rest.abs().amax(-2))
            columns, rest = columns * largest, rest / largest.unsqueeze(-2)
        codes = rest.mul(_LEVELS).round_().clamp_(-_LEVELS, _LEVELS).to(torch.int8)
        return cls(codes, rows / _LEVELS, columns)

    def __getitem__(self, chosen: Tensor | slice | int) -> "Scaled8":
        """Some of the matrices, by their first axis."""
        return Scaled8(self.codes[chosen], self.rows[chosen], self.columns[chosen])

    def decoded(self) -> Tensor:
        """The matrices in float32."""
        return self.codes.float().mul_(self.rows.unsqueeze(-1)).mul_(self.columns.unsqueeze(-2))


def scaled8_error(columns: int) -> float:
    """Bound of ‖X - X̂‖ / ‖X‖ of a matrix with so many columns, in Frobenius norms."""
    return math.sqrt(columns) / (2 * _LEVELS)


def within(errors: Tensor, tolerance: float) -> Tensor:
    """Which of the square matrices `[n, K, K]` surely have a spectral norm of at most `tolerance`: bool `[n]`.

    The Frobenius norm is above the spectral norm and settles most, that of the longest row is below and settles most of
    the others; `spectral_bound` is worked out for what is left.
    """
    held: Tensor = torch.linalg.matrix_norm(errors) <= tolerance
    unsettled = ~held & (torch.linalg.vector_norm(errors, dim=-1).amax(-1) <= tolerance)
    if bool(unsettled.any()):
        held[unsettled] = spectral_bound(errors[unsettled]) <= tolerance
    return held


def spectral_bound(matrices: Tensor) -> Tensor:
    """Upper bounds of the spectral norms of float32 `[n, K, K]`, at most K^(1/16) times too large: `[n]`. For norms
    from 1e-15 to 1e15, whose squares float32 holds.

    The Schatten norm, the sum of s^16 over the singular values s to the power of 1/16, from three products: it is above
    the spectral norm, while an iteration would come to it from below. The last factor is what rounding can take away:
    products are off by at most K·2^-24 of the squared Frobenius norm, that is K²·2^-24 of the squared spectral norm.
    """
    size = matrices.shape[-1]
    frobenius = torch.linalg.matrix_norm(matrices)
    scaled = matrices / _nonzero(frobenius)[:, None, None]
    power = scaled.mT @ scaled
    for _ in range(2):
        power = power @ power
    bound: Tensor = frobenius * torch.linalg.matrix_norm(power) ** 0.125 * (1 + size * size * 2**-24)
    return bound


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, torch.ones_like(scale))
