"""Rotation against complex multiplication in float64."""

import pytest
import torch
from torch import Tensor

from hypic.kernels.rope.naive import rotate


def angles(tokens: int, half: int, start: int = 0) -> Tensor:
    frequencies = 1.0 / 10_000 ** (torch.arange(half, dtype=torch.float64) / half)
    return torch.arange(start, start + tokens, dtype=torch.float64)[:, None] * frequencies


def reference(x: Tensor, theta: Tensor) -> Tensor:
    half = theta.shape[1]
    turned = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = turned * torch.polar(torch.ones_like(theta), theta)[:, None, :]
    return torch.cat([turned.real, turned.imag, x[..., 2 * half :].double()], dim=-1)


@pytest.mark.parametrize("tokens", [1, 63, 65])
@pytest.mark.parametrize("half", [4, 8])
@pytest.mark.parametrize("leading", [(), (3,)])
def test_matches_complex_rotation(tokens: int, half: int, leading: tuple[int, ...]) -> None:
    x = torch.randn(*leading, tokens, 2, 16, generator=torch.Generator().manual_seed(0))
    theta = angles(tokens, half, start=7)
    output = rotate(x, theta.cos().float(), theta.sin().float())
    torch.testing.assert_close(output.double(), reference(x, theta), atol=1e-6, rtol=0)


def test_writes_where_told() -> None:
    theta = angles(5, 8)
    x, out = torch.randn(5, 2, 16), torch.full((2, 5, 2, 16), torch.nan)
    rotate(x, theta.cos().float(), theta.sin().float(), out=out[1])
    torch.testing.assert_close(out[1].double(), reference(x, theta), atol=1e-6, rtol=0)
    assert out[0].isnan().all()


def test_turning_in_two_steps_equals_turning_once() -> None:
    x = torch.randn(9, 1, 16)
    one, other, both = angles(9, 8), angles(9, 8, 100), angles(9, 8) + angles(9, 8, 100)
    twice = rotate(rotate(x, one.cos().float(), one.sin().float()), other.cos().float(), other.sin().float())
    once = rotate(x, both.cos().float(), both.sin().float())
    torch.testing.assert_close(twice, once, atol=2e-6, rtol=0)


def test_refuses_more_dimensions_than_there_are() -> None:
    with pytest.raises(ValueError, match="cos and sin must be"):
        rotate(torch.zeros(3, 1, 8), torch.zeros(3, 8), torch.zeros(3, 8))
