"""The Kimi delta attention mixer (KDA, arXiv 2510.26692) of Kimi-Linear and Ling 3: a decay for each key channel."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.conv import ConvWeight
from hypic.layers.mixer import LinearMemory
from hypic.layers.norm import RMSNorm, l2_normalise
from hypic.linear.family import LinearInputs
from hypic.linear.kda import FAMILY


@dataclass(frozen=True)
class KimiDeltaShape:
    """H heads of K = V dimensions, convolution width c.

    low_rank: forget and output gates pass through K dimensions. decay_floor: the log decay is this times a sigmoid,
    instead of a softplus without bound. rate_shape: of A_log in the checkpoint.
    """

    hidden_size: int
    heads: int
    head_dim: int
    conv_width: int
    eps: float
    low_rank: bool
    decay_floor: float | None
    rate_shape: tuple[int, ...]


class KimiDeltaAttention(nn.Module):
    """q, k and v are convolved together, though their convolutions stand apart in checkpoints."""

    def __init__(self, layer: int, shape: KimiDeltaShape) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape
        hidden, width = shape.hidden_size, shape.heads * shape.head_dim
        self.memory = LinearMemory(FAMILY, shape.heads, shape.head_dim, shape.head_dim, 3 * width, shape.conv_width)
        self.q_proj = nn.Linear(hidden, width, bias=False)
        self.k_proj = nn.Linear(hidden, width, bias=False)
        self.v_proj = nn.Linear(hidden, width, bias=False)
        self.conv1d = ConvWeight(3 * width, shape.conv_width)
        self.b_proj = nn.Linear(hidden, shape.heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(shape.rate_shape))
        self.dt_bias = nn.Parameter(torch.empty(width))
        for gate in ("f", "g"):
            if shape.low_rank:
                self.add_module(f"{gate}_a_proj", nn.Linear(hidden, shape.head_dim, bias=False))
                self.add_module(f"{gate}_b_proj", nn.Linear(shape.head_dim, width, bias=False))
            else:
                self.add_module(f"{gate}_proj", nn.Linear(hidden, width, bias=False))
        self.o_norm = RMSNorm(shape.head_dim, shape.eps)
        self.o_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary = None) -> Tensor:
        shape = self.shape
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        qkv = F.silu(batch.convolve(self.layer, qkv, self.conv1d.weight.squeeze(1), None))
        q, k, v = qkv.view(len(x), 3, shape.heads, shape.head_dim).unbind(1)
        inputs = LinearInputs(
            q=l2_normalise(q) * shape.head_dim**-0.5,
            k=l2_normalise(k),
            v=v,
            g=self._log_decay(x),
            beta=self.b_proj(x).sigmoid(),
        )
        output = self.o_norm(batch.recur(self.layer, FAMILY, inputs))
        gated = output * torch.sigmoid(self._gate("g", x).view_as(output).float())
        return self.o_proj(gated.flatten(1).to(x.dtype))  # type: ignore[no-any-return]

    def _gate(self, name: str, x: Tensor) -> Tensor:
        """x `[T, D]` to the forget or the output gate `[T, H·K]`."""
        if self.shape.low_rank:
            x = self.get_submodule(f"{name}_a_proj")(x)
            return self.get_submodule(f"{name}_b_proj")(x)  # type: ignore[no-any-return]
        return self.get_submodule(f"{name}_proj")(x)  # type: ignore[no-any-return]

    def _log_decay(self, x: Tensor) -> Tensor:
        """float32 `[T, H, K]`, at most 0."""
        raw = self._gate("f", x).float() + self.dt_bias.float()
        raw = raw.view(len(x), self.shape.heads, self.shape.head_dim)
        rate = self.A_log.float().exp().view(-1, 1)
        if self.shape.decay_floor is None:
            return -rate * F.softplus(raw)
        return self.shape.decay_floor * torch.sigmoid(rate * raw)
