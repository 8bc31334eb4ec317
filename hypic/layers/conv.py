"""The weights of a short causal convolution, under their names and in their shapes in checkpoints."""

import torch
from torch import nn


class ConvWeight(nn.Module):
    """The weight `[C, 1, c]` and, where there is one, the bias `[C]` of a depthwise convolution."""

    def __init__(self, channels: int, width: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
