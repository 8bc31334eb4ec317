"""Depthwise causal convolution over packed spans, each continuing from the inputs that precede it."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, span_offsets: tuple[int, ...], tails: Tensor
) -> tuple[Tensor, Tensor]:
    """Convolve P packed spans of T tokens in all.

    x: `[T, C]` inputs before the convolution. weight: `[C, c]`, bias: `[C]` or None. span_offsets: P+1
    ascending ints. tails: `[P, c-1, C]`, the c-1 inputs before each span (zeros at the start of a text).
    Returns the output `[T, C]` and the extended inputs `[T + P(c-1), C]`, span p with its tail starting at row
    span_offsets[p] + p(c-1): the tail for whatever follows is read from there. Raises ValueError where shapes disagree.
    """
    check_spans(x, weight, span_offsets, tails)
    width = weight.shape[-1]
    bounds = list(pairwise(span_offsets))
    extended = torch.cat(
        [part for tail, (start, end) in zip(tails, bounds, strict=True) for part in (tail, x[start:end])]
    )
    output = F.conv1d(extended.T.unsqueeze(0), weight.unsqueeze(1), bias, groups=x.shape[1])[0].T
    if len(bounds) > 1:  # rows that mix the end of one span with the tail of the next are no output
        lengths = torch.tensor([end - start for start, end in bounds])
        skipped = torch.arange(len(bounds)).repeat_interleave(lengths) * (width - 1)
        output = output[(torch.arange(x.shape[0]) + skipped).to(x.device)]
    return output, extended


def causal_conv_step(x: Tensor, weight: Tensor, bias: Tensor | None, tails: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each of N sequences: x `[N, C]`, tails `[N, c-1, C]`. Returns `[N, C]` and new tails. Raises
    ValueError where shapes disagree."""
    check_step(x, weight, tails)
    window = torch.cat([tails, x.unsqueeze(1)], dim=1)  # [N, c, C]
    output = torch.einsum("ncd,dc->nd", window, weight)
    return output if bias is None else output + bias, window[:, 1:]


def check_spans(x: Tensor, weight: Tensor, span_offsets: tuple[int, ...], tails: Tensor) -> None:
    """Raise ValueError unless the spans cover the T rows of x, and each has a tail of c-1 inputs."""
    if span_offsets[0] != 0 or span_offsets[-1] != x.shape[0] or any(a > b for a, b in pairwise(span_offsets)):
        raise ValueError(f"spans must ascend from 0 to the {x.shape[0]} rows of x, found {span_offsets}")
    expected = (len(span_offsets) - 1, weight.shape[-1] - 1, x.shape[1])
    if tails.shape != expected or weight.shape[0] != x.shape[1]:
        raise ValueError(
            f"tails must be {expected} and weight [{x.shape[1]}, c]; found {tuple(tails.shape)}, {tuple(weight.shape)}"
        )


def check_step(x: Tensor, weight: Tensor, tails: Tensor) -> None:
    """Raise ValueError unless there is a tail for each row of x."""
    expected = (x.shape[0], weight.shape[-1] - 1, x.shape[1])
    if tails.shape != expected or weight.shape[0] != x.shape[1]:
        raise ValueError(
            f"tails must be {expected} and weight [{x.shape[1]}, c]; found {tuple(tails.shape)}, {tuple(weight.shape)}"
        )
