"""Zamba2 (`zamba2`): Mamba2 layers, some of which take in what a transformer block makes of the hidden states and the
embeddings. A few such blocks serve all these layers in turn, each time with adapters of its own."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import Decoder
from hypic.layers.mamba2 import Mamba2, Mamba2Shape
from hypic.layers.mixer import AttentionMemory, Layer, Mixer, Rotations
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("zamba2",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "n_mamba_heads": 6,
    "mamba_ngroups": 2,
    "mamba_d_state": 24,
    "chunk_size": 16,
    "num_mem_blocks": 2,
    "adapter_rank": 8,
    "use_shared_attention_adapter": True,
    "use_mem_rope": True,
    "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

_NAMES = Names(((r"\.final_layernorm\.", ".norm."),))
_GATED_NORM_EPS = 1e-5  # of the norm inside Mamba2, which the config does not set


class Adapters(nn.ModuleList):
    """A low-rank detour for each use of a shared block; uses that are another block's have none."""

    def __init__(self, config: Any, block: int, inputs: int, outputs: int) -> None:
        rank, count = config.adapter_rank, len(config.hybrid_layer_ids)
        pairs = [
            nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False))
            if use % config.num_mem_blocks == block
            else nn.Identity()
            for use in range(count)
        ]
        super().__init__(pairs)


class SharedAttention(nn.Module):
    """Full attention over hidden states beside embeddings, `[T, 2D]`. Every use has keys and values of its own."""

    def __init__(self, config: Any, block: int) -> None:
        super().__init__()
        width, self.head_dim = config.attention_hidden_size, config.attention_head_dim
        self.memory = AttentionMemory(config.num_key_value_heads, self.head_dim, self.head_dim)
        kv_width = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.adapted = config.use_shared_attention_adapter
        if self.adapted:
            self.linear_q_adapter_list = Adapters(config, block, width, width)
            self.linear_k_adapter_list = Adapters(config, block, width, kv_width)
            self.linear_v_adapter_list = Adapters(config, block, width, kv_width)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary, use: int = 0) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.adapted:
            q = q + self.linear_q_adapter_list[use](x)
            k = k + self.linear_k_adapter_list[use](x)
            v = v + self.linear_v_adapter_list[use](x)
        q, k, v = (part.view(len(x), -1, self.head_dim) for part in (q, k, v))
        output = batch.attend(use, q, k, v, rotary, (self.head_dim / 2) ** -0.5)
        return self.o_proj(output.reshape(len(x), -1))  # type: ignore[no-any-return]


class SharedMLP(nn.Module):
    """down(gelu(gate(x)) · up(x)), gate and up adapted for each use."""

    def __init__(self, config: Any, block: int) -> None:
        super().__init__()
        hidden, width, bias = config.hidden_size, config.intermediate_size, config.add_bias_linear
        self.gate_up_proj = nn.Linear(hidden, 2 * width, bias=bias)
        self.down_proj = nn.Linear(width, hidden, bias=bias)
        self.gate_up_proj_adapter_list = Adapters(config, block, hidden, 2 * width)

    def forward(self, x: Tensor, use: int) -> Tensor:
        gate, up = (self.gate_up_proj(x) + self.gate_up_proj_adapter_list[use](x)).chunk(2, dim=-1)
        return self.down_proj(F.gelu(gate) * up)  # type: ignore[no-any-return]


class SharedBlock(nn.Module):
    """mlp(norm(attention(norm(x, embedding)))), without residuals."""

    def __init__(self, config: Any, block: int) -> None:
        super().__init__()
        self.self_attn = SharedAttention(config, block)
        self.feed_forward = SharedMLP(config, block)
        self.input_layernorm = RMSNorm(config.attention_hidden_size, config.rms_norm_eps)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, embedded: Tensor, batch: Batch, rotary: Rotary, use: int) -> Tensor:
        both = self.input_layernorm(torch.cat([x, embedded], dim=-1))
        attended = self.self_attn(both, batch, rotary, use)
        return self.feed_forward(self.pre_ff_layernorm(attended), use)  # type: ignore[no-any-return]


class MambaLayer(nn.Module):
    """x + mamba(norm(x + extra))."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.mamba = Mamba2(layer, _mamba(config))
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return (self.mamba,)

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations, extra: Tensor | None = None) -> Tensor:
        normed = self.input_layernorm(x if extra is None else x + extra)
        return x + self.mamba(normed, batch, rotations["linear"])  # type: ignore[no-any-return]


class HybridLayer(nn.Module):
    """A Mamba2 layer whose extra input is what a shared block makes of the hidden states and the embeddings."""

    def __init__(self, config: Any, layer: int, use: int, block: SharedBlock) -> None:
        super().__init__()
        self.use = use
        self.linear = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.mamba_decoder = MambaLayer(config, layer)
        self.shared_transformer = block

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return self.shared_transformer.self_attn, self.mamba_decoder.mamba

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations, embedded: Tensor | None = None) -> Tensor:
        extra = self.linear(self.shared_transformer(x, embedded, batch, rotations["full"], self.use))
        return self.mamba_decoder(x, batch, rotations, extra)  # type: ignore[no-any-return]


class EmbeddingDecoder(Decoder):
    """Shows the embeddings to every hybrid layer again."""

    def forward(self, batch: Batch, rotations: Rotations) -> Tensor:
        x = embedded = F.embedding(batch.token_ids, self.embed_tokens.weight)  # [T, D]
        for layer in self.layers:
            seen = (embedded,) if isinstance(layer, HybridLayer) else ()
            x = layer(x, batch, rotations, *seen)
        return self.norm(x)  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of a Zamba2 config. Where embeddings are not tied, transformers does not tie the blocks either."""
    require(config, hidden_act="gelu", use_long_context=False)
    count = config.num_mem_blocks
    blocks = [SharedBlock(config, block) for block in range(count)]
    layers: list[Layer] = []
    uses = 0
    for layer, kind in enumerate(config.layers_block_type):
        if kind == "hybrid":
            block = blocks[uses % count] if config.tie_word_embeddings else SharedBlock(config, uses % count)
            layers.append(HybridLayer(config, layer, uses, block))
            uses += 1
        else:
            layers.append(MambaLayer(config, layer))
    positions = Positions(full=RotaryPositions(config) if config.use_mem_rope else None)
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    return CausalLM(config, layers, norm(), positions, _NAMES, decoder=EmbeddingDecoder)


def _mamba(config: Any) -> Mamba2Shape:
    return Mamba2Shape(
        hidden_size=config.hidden_size,
        heads=config.n_mamba_heads,
        head_dim=config.mamba_headdim,
        groups=config.mamba_ngroups,
        state_dim=config.mamba_d_state,
        conv_width=config.mamba_d_conv,
        eps=_GATED_NORM_EPS,
        in_bias=config.add_bias_linear,
        out_bias=config.add_bias_linear,
        step_limits=(config.time_step_min, float("inf")),
    )
