"""Feed-forward layers: the gated MLP, and a mixture of such experts beside a shared one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), `[T, D]` to `[T, D]`."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)).mul_(self.up_proj(x)))  # type: ignore[no-any-return]


class TopKRouter(nn.Module):
    """Softmax over experts, then the k largest. Returns weights `[T, k]` in the dtype of x, and ids `[T, k]`."""

    def __init__(self, hidden_size: int, experts: int, top_k: int, renormalise: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden_size))
        self.top_k, self.renormalise = top_k, renormalise

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = F.linear(x, self.weight).softmax(-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen


class SigmoidRouter(nn.Module):
    """Sigmoid scores; a bias that balances load takes part in the choice but not in the weights (DeepSeek-V3, arXiv
    2412.19437, section 2.1.2). Groups of experts whose two best add up to less are left out first.

    Returns weights `[T, k]` in the dtype of x, and ids `[T, k]`.
    """

    def __init__(
        self, hidden_size: int, experts: int, top_k: int, groups: int, top_groups: int, renormalise: bool, scale: float
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden_size))
        self.e_score_correction_bias = nn.Parameter(torch.empty(experts))
        self.top_k, self.groups, self.top_groups = top_k, groups, top_groups
        self.renormalise, self.scale = renormalise, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = F.linear(x.float(), self.weight.float()).sigmoid()  # [T, E]
        ranked = scores + self.e_score_correction_bias.float()
        if self.groups > 1:
            grouped = ranked.view(len(ranked), self.groups, -1)
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.top_groups, dim=-1).indices
            left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, False)
            ranked = grouped.masked_fill(left_out.unsqueeze(-1), -torch.inf).flatten(-2)
        chosen = ranked.topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        if self.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return (weights * self.scale).to(x.dtype), chosen


class Experts(nn.Module):
    """Expert weights stacked as in Hugging Face checkpoints: gate_up `[E, 2I, D]`, down `[E, D, I]`."""

    def __init__(self, hidden_size: int, intermediate_size: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden_size, intermediate_size))

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x `[T, D]`, weights and chosen `[T, k]`. Tokens are sorted by expert, so each expert runs once."""
        order = chosen.flatten().argsort(stable=True)
        rows = order // chosen.shape[1]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.down_proj)).tolist()
        output = torch.zeros_like(x)
        start = 0
        for expert, count in enumerate(counts):
            if count:
                mine = order[start : start + count]
                result = self.run(x[rows[start : start + count]], expert)
                output.index_add_(0, rows[start : start + count], result * weights.flatten()[mine].unsqueeze(-1))
                start += count
        return output

    def run(self, x: Tensor, expert: int) -> Tensor:
        """One expert, `[T, D]` to `[T, D]`."""
        return F.linear(self.activated(x, expert), self.down_proj[expert])

    def activated(self, x: Tensor, expert: int) -> Tensor:
        """What the expert projects down, `[T, I]`."""
        gate, up = F.linear(x, self.gate_up_proj[expert]).chunk(2, dim=-1)
        return F.silu(gate) * up


class SparseMoE(nn.Module):
    """A mixture of experts and nothing beside it."""

    def __init__(self, gate: nn.Module, experts: Experts) -> None:
        super().__init__()
        self.gate, self.experts = gate, experts

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(x, *self.gate(x))  # type: ignore[no-any-return]


class SharedExpertsMoE(nn.Module):
    """A mixture of sigmoid-routed experts plus shared experts that every token passes (DeepSeek-V3 and its kin)."""

    def __init__(self, gate: SigmoidRouter, experts: Experts, shared_experts: nn.Module) -> None:
        super().__init__()
        self.gate, self.experts, self.shared_experts = gate, experts, shared_experts

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x)
        return self.experts(x, weights, chosen) + self.shared_experts(x)  # type: ignore[no-any-return]


class SharedExpertMoE(nn.Module):
    """A mixture of experts plus one shared expert behind a sigmoid gate (Qwen3-Next, Qwen3.5-MoE)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, shared_size: int, experts: int, top_k: int, renormalise: bool
    ) -> None:
        super().__init__()
        self.gate = TopKRouter(hidden_size, experts, top_k, renormalise)
        self.experts = Experts(hidden_size, intermediate_size, experts)
        self.shared_expert = GatedMLP(hidden_size, shared_size)
        self.shared_expert_gate = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shared = torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        weights, chosen = self.gate(x)
        return self.experts(x, weights, chosen) + shared  # type: ignore[no-any-return]
