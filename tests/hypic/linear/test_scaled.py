"""8 bits with scales: the promised error; bounds that are above the norm, and not far."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.linear.scaled import Scaled8, scaled8_error, spectral_bound, within

bounded = settings(max_examples=60, deadline=None, derandomize=True)


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 20), columns=st.integers(1, 20), spread=st.floats(0, 12))
@bounded
def test_error_is_within_its_bound(seed: int, rows: int, columns: int, spread: float) -> None:
    """Also where rows and columns differ by many orders of magnitude, and where some are zero."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(3, rows, columns, generator=generator)
    for axis in (1, 2):
        size = [3, rows, columns]
        size[3 - axis] = 1
        matrix *= 10 ** (spread * (torch.rand(size, generator=generator) - 0.5))
    matrix[0, 0] = 0
    matrix[1, :, 0] = 0
    error = torch.linalg.matrix_norm(matrix.double() - Scaled8.of(matrix).decoded().double())
    assert (error <= scaled8_error(columns) * torch.linalg.matrix_norm(matrix.double()) * (1 + 1e-5)).all()
    assert (Scaled8.of(matrix).decoded()[matrix == 0] == 0).all()


def test_both_scales_beat_one() -> None:
    """A state whose key channels and value channels differ in size: a scale a row alone loses the small columns."""
    torch.manual_seed(0)
    matrix = torch.randn(64, 48) * torch.logspace(-2, 2, 64)[:, None] * torch.logspace(-1, 1, 48)
    largest = matrix.abs().amax(-1, keepdim=True) / 127
    error = (matrix - Scaled8.of(matrix).decoded()).norm()
    assert error < 0.75 * (matrix - (matrix / largest).round() * largest).norm()


@pytest.mark.parametrize("size", [1, 16, 128])
@pytest.mark.parametrize("rank", [1, 3, 128])
def test_spectral_bound_is_above_the_norm_and_near(size: int, rank: int) -> None:
    torch.manual_seed(size + rank)
    matrices = torch.randn(6, size, min(rank, size)) @ torch.randn(6, min(rank, size), size)
    matrices *= torch.logspace(-15, 15, 6)[:, None, None]
    norm, bound = torch.linalg.matrix_norm(matrices.double(), ord=2), spectral_bound(matrices).double()
    assert (norm <= bound).all()
    assert (bound <= norm * size ** (1 / 16) * 1.003).all()


def test_spectral_bound_of_nothing_and_of_equal_singular_values() -> None:
    bound = spectral_bound(torch.stack([torch.zeros(64, 64), 0.3 * torch.eye(64)]))
    assert bound[0] == 0
    assert 0.3 <= float(bound[1]) <= 0.3 * 64 ** (1 / 16) * 1.001, "the worst case of the bound"


def test_within_agrees_with_the_norm_where_that_is_clear() -> None:
    torch.manual_seed(1)
    errors = torch.randn(40, 32, 32) * torch.logspace(-6, 0, 40)[:, None, None]
    norm = torch.linalg.matrix_norm(errors.double(), ord=2)
    held = within(errors, 1e-3)
    assert (norm[held] <= 1e-3).all()
    assert (norm[~held] > 1e-3 / 32 ** (1 / 16) / 1.001).all()
    assert held.any()
    assert not held.all()
    assert len(within(errors[:0], 1e-3)) == 0
