"""The Mamba2 mixer (arXiv 2405.21060) of Granite hybrid, Bamba, Falcon-H1 and Nemotron-H."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.conv import ConvWeight
from hypic.layers.mixer import LinearMemory
from hypic.layers.norm import GatedGroupRMSNorm
from hypic.linear.family import LinearInputs
from hypic.linear.mamba2 import FAMILY


@dataclass(frozen=True)
class Mamba2Shape:
    """Sizes of the mixer: H heads of V channels, G groups of heads that share B and C of K dimensions, convolution
    width c, and what else differs between models.

    norm: where the gate z comes in: y·silu(z) before the norm ("after_gate"), after it ("before_gate"), or without any
    norm ("none"). step_limits: of Δ, in prefill and decoding alike. scales: of z, x, B, C and Δ as projected.
    """

    hidden_size: int
    heads: int
    head_dim: int
    groups: int
    state_dim: int
    conv_width: int
    eps: float
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm: Literal["after_gate", "before_gate", "none"] = "after_gate"
    step_limits: tuple[float, float] = (0.0, float("inf"))
    scales: tuple[float, ...] | None = None

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def parts(self) -> tuple[int, ...]:
        """Widths of z, x, B, C and Δ in the input projection."""
        shared = self.groups * self.state_dim
        return self.width, self.width, shared, shared, self.heads


class Mamba2(nn.Module):
    """k is B, q is C, v is Δ·x, g is Δ·A; the skip term D·x never enters the state."""

    def __init__(self, layer: int, shape: Mamba2Shape) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape
        channels = sum(shape.parts[1:4])
        self.memory = LinearMemory(FAMILY, shape.heads, shape.state_dim, shape.head_dim, channels, shape.conv_width)
        self.in_proj = nn.Linear(shape.hidden_size, sum(shape.parts), bias=shape.in_bias)
        self.conv1d = ConvWeight(channels, shape.conv_width, shape.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(shape.heads))
        self.A_log = nn.Parameter(torch.empty(shape.heads))
        self.D = nn.Parameter(torch.empty(shape.heads))
        if shape.norm != "none":
            self.norm = GatedGroupRMSNorm(shape.width, shape.groups, shape.eps, shape.norm == "after_gate")
        self.out_proj = nn.Linear(shape.width, shape.hidden_size, bias=shape.out_bias)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary = None) -> Tensor:
        shape = self.shape
        z, mixed, dt = self._project(x)
        mixed = F.silu(batch.convolve(self.layer, mixed, self.conv1d.weight.squeeze(1), self.conv1d.bias))
        values, b, c = torch.split(mixed, list(shape.parts[1:4]), dim=-1)
        step = F.softplus(dt.float() + self.dt_bias.float()).clamp(*shape.step_limits)  # [T, H]
        values = values.float().view(-1, shape.heads, shape.head_dim)
        inputs = LinearInputs(
            q=c.view(-1, shape.groups, shape.state_dim),
            k=b.view(-1, shape.groups, shape.state_dim),
            v=values * step.unsqueeze(-1),
            g=-self.A_log.float().exp() * step,
        )
        output = batch.recur(self.layer, FAMILY, inputs) + self.D.float().unsqueeze(-1) * values
        return self.out_proj(self._gated(output.flatten(1), z).to(x.dtype))  # type: ignore[no-any-return]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[T, D]` to z `[T, H·V]`, x, B and C together `[T, C]`, and dt `[T, H]`."""
        parts = self.shape.parts
        projected = self.in_proj(x)
        if self.shape.scales is not None:
            sizes = torch.tensor(parts, device=x.device)
            scales = torch.tensor(self.shape.scales, dtype=x.dtype, device=x.device)
            projected = projected * scales.repeat_interleave(sizes, output_size=sum(parts))
        z, mixed, dt = projected.split([parts[0], sum(parts[1:4]), parts[4]], dim=-1)
        return z, mixed, dt

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        return y * F.silu(z.float()) if self.shape.norm == "none" else self.norm(y, z)
