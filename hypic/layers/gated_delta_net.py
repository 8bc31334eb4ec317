"""The gated delta net mixer of Qwen3-Next and Qwen3.5 (arXiv 2412.06464)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.conv import ConvWeight
from hypic.layers.mixer import LinearMemory
from hypic.layers.norm import GatedRMSNorm, l2_normalise
from hypic.linear.family import LinearInputs
from hypic.linear.gated_delta_net import FAMILY


@dataclass(frozen=True)
class DeltaNetShape:
    """Sizes of the mixer: H key heads of K dimensions, HV value heads of V, convolution width c.

    write_scale: of beta, 2 where the eigenvalues of a transition may be negative.
    """

    hidden_size: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    eps: float
    write_scale: float = 1.0

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


class GatedDeltaNet(nn.Module):
    """Projections as separate matrices (Qwen3.5). A model with another layout overrides `build_projections` and
    `project`."""

    def __init__(self, layer: int, shape: DeltaNetShape) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape
        self.memory = LinearMemory(
            FAMILY, shape.value_heads, shape.key_dim, shape.value_dim, shape.conv_channels, shape.conv_width
        )
        value_width = shape.value_heads * shape.value_dim
        self.dt_bias = nn.Parameter(torch.empty(shape.value_heads))
        self.A_log = nn.Parameter(torch.empty(shape.value_heads))
        self.norm = GatedRMSNorm(shape.value_dim, shape.eps)
        self.out_proj = nn.Linear(value_width, shape.hidden_size, bias=False)
        self.build_projections()

    def build_projections(self) -> None:
        """Create the input projections and the convolution under their checkpoint names."""
        shape = self.shape
        self.conv1d = ConvWeight(shape.conv_channels, shape.conv_width)
        self.in_proj_qkv = nn.Linear(shape.hidden_size, shape.conv_channels, bias=False)
        self.build_gates()

    def build_gates(self) -> None:
        """Create the projections of the output gate, the write strength and the decay."""
        hidden, shape = self.shape.hidden_size, self.shape
        self.in_proj_z = nn.Linear(hidden, shape.value_heads * shape.value_dim, bias=False)
        self.in_proj_b = nn.Linear(hidden, shape.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, shape.value_heads, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x `[T, D]` to qkv `[T, C]`, z `[T, HV, V]`, b `[T, HV]`, a `[T, HV]`."""
        z = self.in_proj_z(x).view(-1, self.shape.value_heads, self.shape.value_dim)
        return self.in_proj_qkv(x), z, self.in_proj_b(x), self.in_proj_a(x)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary = None) -> Tensor:
        shape = self.shape
        qkv, z, b, a = self.project(x)
        qkv = F.silu(batch.convolve(self.layer, qkv, self.conv1d.weight.squeeze(1), None))
        width = shape.key_heads * shape.key_dim
        q, k, v = torch.split(qkv, [width, width, shape.value_heads * shape.value_dim], dim=-1)
        q = l2_normalise(q.view(-1, shape.key_heads, shape.key_dim)) * shape.key_dim**-0.5
        inputs = LinearInputs(
            q=q,
            k=l2_normalise(k.view(-1, shape.key_heads, shape.key_dim)),
            v=v.view(-1, shape.value_heads, shape.value_dim),
            g=-self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias),
            beta=b.sigmoid() if shape.write_scale == 1.0 else b.sigmoid() * shape.write_scale,
        )
        output = batch.recur(self.layer, FAMILY, inputs).to(x.dtype)
        return self.out_proj(self.norm(output, z).flatten(1))  # type: ignore[no-any-return]
