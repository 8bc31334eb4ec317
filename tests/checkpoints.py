"""Tiny random checkpoints on disk, with a byte-level tokenizer and a Qwen-style chat template.

What tests of the engine, the workers and the server load in place of a real model.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hypic.models.load import architectures

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": 272,
    "max_position_embeddings": 4096,
    "eos_token_id": 258,
    "pad_token_id": 256,
    "bos_token_id": None,
}


def write_checkpoint(path: Path, kind: str = "qwen3_5", tie: bool = False, seed: int = 0, **config: Any) -> Path:
    """Write a random model of that `model_type`, its tokenizer and its generation config. Returns `path`.

    config: fields of the Hugging Face config to set otherwise than the architecture's `TINY` does. Weights are
    scaled up from the usual initialisation, so that layers do more than pass their input on and greedy texts vary.
    """
    path.mkdir(parents=True, exist_ok=True)
    architecture = architectures()[kind]
    shape = _COMMON | architecture.TINY | {"tie_word_embeddings": tie} | config
    torch.manual_seed(seed)
    settings = text_config(kind, shape)
    model = reference_class(kind, settings)._from_config(settings).eval()
    _shake(model)
    model.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256], "pad_token_id": 256}))
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    """One token a byte, and the special tokens of ChatML behind them."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    ids = [fast.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS]
    assert ids == [256, 257, 258], ids
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)


def text_config(kind: str, fields: dict[str, Any]) -> Any:
    """The config of the text model of an architecture."""
    from transformers import AutoConfig

    architecture = architectures()[kind]
    if hasattr(architecture, "Config"):
        return architecture.Config(**fields)
    return AutoConfig.for_model(architecture.MODEL_TYPES[-1], **fields)


def reference_class(kind: str, config: Any = None) -> Any:
    """The model that an architecture must agree with: that of transformers, or where it has none, one of ours."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    if kind == "bailing_hybrid" and hasattr(config, "group_norm_size"):
        return importlib.import_module("references.bailing_v2_5").ForCausalLM
    if hasattr(architectures()[kind], "Config"):
        return importlib.import_module(f"references.{kind}").ForCausalLM
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.for_model(architectures()[kind].MODEL_TYPES[-1]))]


@torch.no_grad()
def _shake(model: Any) -> None:
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if getattr(model.config, "kda_safe_gate", False) and name.endswith(("A_log", "dt_bias")):
            # slow decay where it is a sigmoid of exp(A_log)·(x + dt_bias)
            parameter.uniform_(0.0, 0.5) if name.endswith("A_log") else parameter.uniform_(-9.0, -5.0)
        elif name.endswith("A_log"):  # slow decay, so that a state remembers further than a few tokens
            parameter.uniform_(-8.0, -4.0)
        elif name.endswith("e_score_correction_bias"):
            parameter.normal_(std=0.1)
        elif not isinstance(parameter, torch.nn.Parameter):
            continue  # computed from the config
        elif parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
        else:
            parameter.mul_(4)
