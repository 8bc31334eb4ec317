"""Packed spans with carried tails against one convolution over the whole text."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hypic.kernels.causal_conv.naive import causal_conv, causal_conv_step

CHANNELS, WIDTH = 6, 4


def whole(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    padded = F.pad(x.T.unsqueeze(0), (WIDTH - 1, 0))
    return F.conv1d(padded, weight.unsqueeze(1), bias, groups=CHANNELS)[0].T


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = ((tokens, CHANNELS), (CHANNELS, WIDTH), (CHANNELS,))
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return x, weight, bias


@pytest.mark.parametrize("cuts", [[], [1], [2, 3], [30], [1, 2, 3, 4, 60]])
def test_cut_text_equals_whole(cuts: list[int]) -> None:
    x, weight, bias = inputs(65)
    offsets = (0, *cuts, 65)
    before = F.pad(x, (0, 0, WIDTH - 1, 0))
    tails = torch.stack([before[at : at + WIDTH - 1] for at in offsets[:-1]])
    output, extended = causal_conv(x, weight, bias, offsets, tails)
    torch.testing.assert_close(output, whole(x, weight, bias))
    last = offsets[-1] + (len(offsets) - 1) * (WIDTH - 1)
    torch.testing.assert_close(extended[last - WIDTH + 1 : last], x[-(WIDTH - 1) :])


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_span_shorter_than_the_kernel_keeps_what_preceded_it(tokens: int) -> None:
    x, weight, _ = inputs(tokens)
    tail = torch.randn(1, WIDTH - 1, CHANNELS, dtype=torch.float64)
    output, extended = causal_conv(x, weight, None, (0, tokens), tail)
    text = torch.cat([tail[0], x])
    torch.testing.assert_close(extended, text)
    torch.testing.assert_close(output, whole(text, weight, None)[WIDTH - 1 :])


def test_steps_equal_prefill() -> None:
    x, weight, bias = inputs(63)
    tails = torch.zeros(1, WIDTH - 1, CHANNELS, dtype=torch.float64)
    expected, _ = causal_conv(x, weight, bias, (0, 63), tails)
    for token in range(63):
        output, tails = causal_conv_step(x[token : token + 1], weight, bias, tails)
        torch.testing.assert_close(output[0], expected[token])


def test_refuses_tails_of_another_shape() -> None:
    x, weight, _ = inputs(5)
    with pytest.raises(ValueError, match="tails must be"):
        causal_conv(x, weight, None, (0, 5), torch.zeros(1, WIDTH, CHANNELS, dtype=torch.float64))
