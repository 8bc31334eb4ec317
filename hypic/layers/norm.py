"""Normalisation layers. All compute in float32 and return the dtype they were given."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, `[..., D]`; the weight is stored around `offset`.

    Qwen3-Next and Qwen3.5 store weights around zero (offset 1), most others store them plainly (offset 0).
    """

    def __init__(self, dim: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float() + self.offset if self.offset else self.weight.float()
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.eps).to(x.dtype)


class GatedRMSNorm(nn.Module):
    """RMS norm followed by a SiLU gate: norm(x) · silu(gate), both `[..., D]`. Returns the dtype of gate."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        normed = F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(gate.dtype)
        return ((self.weight * normed).float() * F.silu(gate.float())).to(gate.dtype)


class GroupRMSNorm(nn.Module):
    """RMS norm of each of G equal groups of channels: `[T, D]` to float32 `[T, D]`."""

    def __init__(self, dim: int, groups: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.groups, self.eps = groups, eps

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.float().view(len(x), self.groups, -1)
        return F.rms_norm(grouped, grouped.shape[-1:], None, self.eps).flatten(-2) * self.weight.float()


class GatedGroupRMSNorm(GroupRMSNorm):
    """The same with a SiLU gate before it or after: x and gate `[T, D]`, to float32 `[T, D]` (Mamba2)."""

    def __init__(self, dim: int, groups: int, eps: float, gate_first: bool) -> None:
        super().__init__(dim, groups, eps)
        self.gate_first = gate_first

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        assert gate is not None, "this norm has a gate"
        gate = F.silu(gate.float())
        return super().forward(x.float() * gate) if self.gate_first else super().forward(x) * gate


def l2_normalise(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(Σx² + eps) over the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)
