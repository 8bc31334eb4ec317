"""The table of architectures in docs/models.md says what the code says of the published models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import KINDS
from checkpoints import text_config

from hypic.linear.transition import transition_shape
from hypic.models.load import architectures

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
TOKENS = 1000
BFLOAT16 = 2

# Fields of published config.json files, where the defaults of the config class are another model's.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "bailing_hybrid": ("Ling-3.0-Flash", {}),
    "bailing_moe_linear": ("Ring-mini-linear-2.0", {"layer_group_size": 5, "group_norm_size": 4, "rope_theta": 6e5}),
    "bamba": ("Bamba-9B", {"mamba_d_state": 128, "attn_layer_indices": [9, 18, 27]}),
    "falcon_h1": (
        "Falcon-H1-7B",
        {
            "hidden_size": 3072,
            "num_hidden_layers": 44,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 130048,
            "intermediate_size": 12288,
            "mamba_d_ssm": 3072,
            "mamba_n_heads": 24,
            "mamba_d_head": 128,
            "mamba_d_state": 256,
        },
    ),
    "gpt_oss": ("gpt-oss-120b", {}),
    "granitemoehybrid": (
        "Granite-4.0-H-Tiny",
        {
            "hidden_size": 1536,
            "num_hidden_layers": 40,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "vocab_size": 100352,
            "intermediate_size": 512,
            "shared_intermediate_size": 1024,
            "num_local_experts": 64,
            "tie_word_embeddings": True,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        },
    ),
    "kimi_linear": (
        "Kimi-Linear-48B-A3B",
        {
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [layer for layer in range(1, 27) if layer % 4],
            }
        },
    ),
    "minimax": (
        "MiniMax-Text-01",
        {
            "hidden_size": 6144,
            "vocab_size": 200064,
            "intermediate_size": 9216,
            "num_local_experts": 32,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
        },
    ),
    "nemotron_h": (
        "Nemotron-3-Nano-30B-A3B",
        {
            "hidden_size": 2688,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "n_routed_experts": 128,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "mamba_num_heads": 64,
            "num_key_value_heads": 2,
        },
    ),
    "olmo_hybrid": ("Olmo-Hybrid-7B", {}),
    "qwen3_5": ("Qwen3.5-9B", {}),
    "qwen3_5_moe": ("Qwen3.5-35B-A3B", {}),
    "zamba2": (
        "Zamba2-2.7B",
        {
            "num_mem_blocks": 2,
            "n_mamba_heads": 80,
            "mamba_d_state": 64,
            "mamba_ngroups": 1,
            "use_shared_attention_adapter": False,
            "hybrid_layer_ids": [6, 12, 18, 24, 30, 36, 42, 47, 51],
        },
    ),
    "qwen3_next": ("Qwen3-Next-80B-A3B", {}),
}


def row(kind: str) -> str:
    """The architecture's row: parameters, layers, then MiB of S, T, convolution tails, KV and all of it, for 1,000
    tokens."""
    name, fields = PUBLISHED[kind]
    with torch.device("meta"):
        model = architectures()[kind].build(text_config(kind, fields))
    spec = model.cache_spec()
    shape = transition_shape(model.family.form, spec.heads, spec.key_dim) if model.family else ()
    states = spec.linear_layers * spec.heads * spec.key_dim * spec.value_dim * 4
    transitions = spec.linear_layers * torch.Size(shape).numel() * 4
    tails = spec.linear_layers * (spec.conv_width - 1) * spec.conv_channels * BFLOAT16
    width = spec.kv_heads * (spec.attention_key_dim + spec.attention_value_dim)
    kv = TOKENS * spec.attention_layers * width * BFLOAT16
    sizes = [f"{size / 2**20:.1f}" for size in (states, transitions, tails, kv, states + transitions + tails + kv)]
    linear = f"{spec.linear_layers} `{model.family.name}`, " if model.family else ""
    layers = f"{linear}{spec.attention_layers} full"
    state = " \N{MULTIPLICATION SIGN} ".join(str(size) for size in (spec.heads, spec.key_dim, spec.value_dim) if size)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    return f"| `{kind}` | {name} | {parameters:.1f} B | {layers} | {state} | {' | '.join(sizes)} |"


@pytest.mark.parametrize("kind", KINDS)
def test_row_is_what_the_code_says(kind: str) -> None:
    assert kind in PUBLISHED, "say which published model the row is for"
    assert row(kind) in PAGE.read_text().splitlines(), row(kind)
