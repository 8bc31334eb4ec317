"""Checkpoints with random weights, in Hugging Face layout: for parity, where weights must not matter, and for timing.

Written through transformers, so that they are what `save_pretrained` writes and nothing of ours.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hypic.config import BUNDLED_MODEL
from hypic.errors import ModelNotFoundError, UnsupportedModelError
from hypic.models.load import architectures
from hypic.tokenizer import PromptTokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

_TIMED_TYPE = "qwen3_5_text"

_COMMON: dict[str, Any] = {
    "vocab_size": 2048,
    "max_position_embeddings": 65_536,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}

_SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "num_experts": 8,
    "moe_intermediate_size": 192,
    "shared_expert_intermediate_size": 192,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [4, 2, 2],
    },
}
"""Qwen's fields at a size where arithmetic, not Python, takes the time."""

_LAYER_TYPE = "qwen3_5_moe_text"

_LAYER: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 1,
    "layer_types": ["linear_attention"],
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 16,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
"""A linear layer of Qwen3.5-35B-A3B: all that it computes for a token. Of its 256 experts 16 are there, and eight used
as ever."""


def tiny_shape(model_type: str) -> dict[str, Any]:
    """The smallest config that shows what an architecture can do, as its file gives it. Raises UnsupportedModelError
    for one that is not served."""
    served = architectures()
    if model_type not in served:
        raise UnsupportedModelError(f"model_type {model_type!r} is not served; served: {', '.join(sorted(served))}")
    tiny: dict[str, Any] = served[model_type].TINY
    return _COMMON | tiny


def small_shape(model_type: str) -> dict[str, Any]:
    """A config worth timing: some 8 million parameters for gated-delta-net models, the tiny one for others."""
    tiny = tiny_shape(model_type)
    if "linear_key_head_dim" not in tiny:
        return tiny
    return tiny | {name: value for name, value in _SMALL.items() if name in tiny}


def write_random_model(path: Path, model_type: str, shape: dict[str, Any], seed: int = 0, gain: float = 1.0) -> None:
    """Write config.json and model.safetensors of a random float32 model.

    shape: fields of the text config. gain: scales the matrices up from the usual initialisation, so that layers do more
    than pass their input on; vectors are shaken, and decays slowed down, so that states reach back more than a few
    tokens. Raises UnsupportedModelError where transformers has no text model of that type.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # untyped in transformers
    try:
        config = AutoConfig.for_model(model_type, **shape)
        torch.manual_seed(seed)
        model = auto.from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise UnsupportedModelError(f"transformers has no text model of type {model_type!r}: {error}") from error
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-8.0, -4.0)
            elif parameter.ndim > 1:
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


@contextmanager
def timing_checkpoint(model: Path | None) -> Iterator[Path]:
    """The given model, or a random Qwen3.5 worth timing with the bundled tokenizer, living as long as the block."""
    if model is not None:
        yield model
        return
    with _written(_TIMED_TYPE, small_shape(_TIMED_TYPE), gain=2.0) as path:
        yield path


@contextmanager
def layer_checkpoint() -> Iterator[Path]:
    """A random model that is one linear layer at the full size of Qwen3.5-35B-A3B, living as long as the block."""
    with _written(_LAYER_TYPE, tiny_shape(_LAYER_TYPE) | _LAYER, gain=1.0) as path:
        yield path


@contextmanager
def _written(model_type: str, shape: dict[str, Any], gain: float) -> Iterator[Path]:
    """A random model of that shape with the bundled tokenizer and as many embeddings as that has tokens."""
    silence_transformers()
    with tempfile.TemporaryDirectory(prefix="hypic-timing-") as folder:
        copy_tokenizer(BUNDLED_MODEL, Path(folder))
        vocabulary = len(PromptTokenizer.load(Path(folder)).hf)
        write_random_model(Path(folder), model_type, shape | {"vocab_size": vocabulary}, gain=gain)
        yield Path(folder)


def silence_transformers() -> None:
    """No notes and bars of transformers between our own lines."""
    from transformers.utils import logging

    quiet: Any = logging  # untyped in transformers
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
