"""Checkpoints with random weights, in Hugging Face layout: for parity, where weights must not matter, and for timing.

Written through transformers, so that they are what `save_pretrained` writes and nothing of ours.
"""

import shutil
from pathlib import Path
from typing import Any

import torch

from hypic.errors import ModelNotFoundError, UnsupportedModelError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

_LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}

TINY: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "layer_types": [*_LAYERS, "linear_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 4096,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 24,
    "rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]},
}
"""Every feature at its smallest: grouped heads, partial rotation, V unlike K, experts."""

SMALL: dict[str, Any] = TINY | {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "layer_types": _LAYERS * 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 65_536,
    "num_experts": 8,
    "moe_intermediate_size": 192,
    "shared_expert_intermediate_size": 192,
    "rope_parameters": _ROPE | {"mrope_section": [4, 2, 2]},
}
"""Large enough that arithmetic, not Python, takes the time."""


def write_random_model(path: Path, model_type: str, shape: dict[str, Any], seed: int = 0, gain: float = 1.0) -> None:
    """Write config.json and model.safetensors of a random float32 model.

    shape: fields of the text config; those that an architecture does not know are ignored by it. gain: scales the
    matrices up from the usual initialisation, so that layers do more than pass their input on; vectors are shaken as
    well. Raises UnsupportedModelError where transformers has no text model of that type.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None} | shape
    try:
        config = AutoConfig.for_model(model_type, **fields)
        torch.manual_seed(seed)
        auto: Any = AutoModelForCausalLM  # untyped in transformers
        model = auto.from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise UnsupportedModelError(f"transformers has no text model of type {model_type!r}: {error}") from error
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(gain)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Give a checkpoint the tokenizer and chat template of another. Raises ModelNotFoundError where there is none."""
    if not (source / "tokenizer.json").is_file():
        raise ModelNotFoundError(f"no tokenizer.json at {source}, whose tokenizer was to be used")
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
