"""Tiny random checkpoints on disk, with a byte-level tokenizer and a Qwen-style chat template.

What tests of the engine, the workers and the server load in place of a real model.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_SHAPE: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "max_position_embeddings": 4096,
    "layer_types": [
        "linear_attention",
        "full_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    ],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 24,
}


def write_checkpoint(
    path: Path, kind: str = "qwen3_5", tie: bool = False, seed: int = 0, **config: Any
) -> Path:
    """Write a random model of that `model_type`, its tokenizer and its generation config. Returns `path`.

    config: fields of the Hugging Face config to set otherwise. Weights are scaled up from the usual
    initialisation, so that layers do more than pass their input on and greedy texts vary.
    """
    path.mkdir(parents=True, exist_ok=True)
    shape = {**_SHAPE, **({} if kind == "qwen3_5" else _EXPERTS)}
    shape |= {"tie_word_embeddings": tie, "eos_token_id": 258, "pad_token_id": 256, "bos_token_id": None}
    torch.manual_seed(seed)
    model = _random_model(kind, shape | config)
    model.save_pretrained(path)
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [258, 256], "pad_token_id": 256})
    )
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


def _random_model(kind: str, shape: dict[str, Any]) -> Any:
    import transformers

    names = {"qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM")}
    names |= {"qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM")}
    names |= {"qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM")}
    config_name, model_name = names[kind]
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):  # slow decay, so that a state remembers further than a few tokens
                parameter.uniform_(-8.0, -4.0)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(4)
    return model
