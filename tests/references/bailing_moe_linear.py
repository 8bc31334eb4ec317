"""Ring-linear-2.0 as published, written down plainly: what `bailing_moe_linear` must agree with.

Source: arXiv 2510.19338 and the configuration and tensor names of inclusionAI/Ring-mini-linear-2.0. One token after
the other in float64 where there is a recurrence, no cache: slow, and independent of the code under test.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from hypic.models.bailing_moe_linear import Config


class Norm(nn.Module):
    def __init__(self, dim: int, eps: float, groups: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps, self.groups = eps, groups

    def forward(self, x: Tensor) -> Tensor:
        parts = x.reshape(*x.shape[:-1], self.groups, -1)
        parts = parts / (parts.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return parts.reshape(x.shape) * self.weight


class MLP(nn.Module):
    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, width, bias=False), nn.Linear(dim, width, bias=False)
        self.down_proj = nn.Linear(width, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.randn(config.num_experts, config.hidden_size) * 0.02)
        self.expert_bias = nn.Parameter(torch.randn(config.num_experts) * 0.1)

    def forward(self, x: Tensor) -> dict[int, Tensor]:
        """Weights by expert for one token `[D]`."""
        c, scores = self.config, torch.sigmoid(self.weight @ x)
        ranked, size = scores + self.expert_bias, c.num_experts // c.n_group
        by_group = [ranked[g * size : (g + 1) * size].topk(2).values.sum() for g in range(c.n_group)]
        groups = torch.stack(by_group).topk(c.topk_group).indices.tolist()
        allowed = [expert for expert in range(c.num_experts) if expert // size in groups]
        chosen = sorted(allowed, key=lambda expert: -float(ranked[expert]))[: c.num_experts_per_tok]
        total = sum(scores[expert] for expert in chosen)
        return {expert: c.routed_scaling_factor * scores[expert] / total for expert in chosen}


class MoE(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gate = Gate(config)
        self.experts = nn.ModuleList(
            MLP(config.hidden_size, config.moe_intermediate_size) for _ in range(config.num_experts)
        )
        self.shared_experts = MLP(config.hidden_size, config.moe_intermediate_size * config.num_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        routed = [sum(weight * self.experts[e](row) for e, weight in self.gate(row).items()) for row in x]
        return torch.stack(routed) + self.shared_experts(x)


class Attention(nn.Module):
    def __init__(self, config: Any, index: int, linear: bool) -> None:
        super().__init__()
        self.config, self.index, self.linear = config, index, linear
        dim, heads, width = config.hidden_size, config.num_attention_heads, head_dim(config)
        kv_heads = heads if linear else config.num_key_value_heads
        self.split = [heads * width, kv_heads * width, kv_heads * width]
        self.query_key_value = nn.Linear(dim, sum(self.split), bias=False)
        self.query_layernorm = Norm(width, config.rms_norm_eps)
        self.key_layernorm = Norm(width, config.rms_norm_eps)
        self.dense = nn.Linear(heads * width, dim, bias=False)
        if linear:
            self.g_proj = nn.Linear(dim, heads * width, bias=False)
            self.g_norm = Norm(heads * width, config.rms_norm_eps, config.group_norm_size)

    def forward(self, x: Tensor) -> Tensor:
        heads, width = self.config.num_attention_heads, head_dim(self.config)
        q, k, v = (part.view(len(x), -1, width) for part in self.query_key_value(x).split(self.split, -1))
        q, k = self.rotate(self.query_layernorm(q)), self.rotate(self.key_layernorm(k))
        k, v = (part.repeat_interleave(heads // part.shape[1], 1) for part in (k, v))
        mixed = (self.recur(q, k, v) if self.linear else self.attend(q, k, v)).flatten(1).to(x.dtype)
        return self.dense(self.g_norm(mixed) * self.g_proj(x).sigmoid() if self.linear else mixed)

    def rotate(self, x: Tensor) -> Tensor:
        rope = self.config.rope_parameters
        rotated = int(head_dim(self.config) * rope["partial_rotary_factor"])
        angles = torch.outer(
            torch.arange(len(x)).float(), rope["rope_theta"] ** -(torch.arange(0, rotated, 2).float() / rotated)
        )[:, None]
        a, b = x[..., : rotated // 2], x[..., rotated // 2 : rotated]
        turned = [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()]
        return torch.cat([*turned, x[..., rotated:]], -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("thk,shk->hts", q, k) / head_dim(self.config) ** 0.5
        later = torch.ones(len(q), len(q)).triu(1).bool()
        return torch.einsum("hts,shv->thv", scores.masked_fill(later, -torch.inf).softmax(-1), v)

    def recur(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, layers = self.config.num_attention_heads, self.config.num_hidden_layers
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)  # a power of two of heads
        decay = torch.exp(-slopes * (1 - (self.index - 1) / (layers - 1) + 1e-5)).double()[:, None, None]
        state = torch.zeros(heads, q.shape[-1], v.shape[-1], dtype=torch.float64)
        outputs = []
        for query, key, value in zip(q.double(), k.double(), v.double(), strict=True):
            state = decay * state + key[:, :, None] * value[:, None, :]
            outputs.append((query[:, :, None] * state).sum(1) / head_dim(self.config) ** 0.5)
        return torch.stack(outputs)


def head_dim(config: Any) -> int:
    """`bailing_hybrid` calls its heads otherwise once it is read."""
    return getattr(config, "linear_head_dim", None) or config.head_dim


class Layer(nn.Module):
    full_attention: type[nn.Module] = Attention

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        grouped = config.num_hidden_layers - config.num_hidden_layers % config.layer_group_size
        full = (index + 1) % config.layer_group_size == 0 or index >= grouped
        self.attention = self.full_attention(config, index, False) if full else Attention(config, index, True)
        dense = index < config.first_k_dense_replace
        self.mlp = MLP(config.hidden_size, config.intermediate_size) if dense else MoE(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    layer: type[Layer] = Layer

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(self.layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class ForCausalLM(PreTrainedModel, GenerationMixin):
    """Reads one text, whole."""

    config_class = Config
    decoder: type[Decoder] = Decoder
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.word_embeddings.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.word_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> CausalLMOutput:
        x = self.model.word_embeddings(input_ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return CausalLMOutput(logits=self.lm_head(self.model.norm(x))[None])

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Any = None, **_: Any
    ) -> dict[str, Tensor]:
        return {"input_ids": input_ids}
