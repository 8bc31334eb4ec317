"""What the tests of architectures need beside an architecture's own `TINY`: variants, and requests for an engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypic.arms import ARMS, Arm
from hypic.batch import DecodeBatch, PrefillBatch
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.models.contract import HybridModel
from hypic.models.load import architectures
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment
from hypic.sequence import Active, Sequence, SequenceCache

KINDS = sorted({module.__name__.rpartition(".")[2] for module in architectures().values()})

# Ring and Ling up to 2.6 share a `model_type` with Ling 3.
RING_2_5: dict[str, Any] = {
    "group_norm_size": 4,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
    "use_bias": False,
    "use_qkv_bias": False,
}

# Another setting of what `TINY` shows one way, each compared with the reference like `TINY` itself.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bamba": [{"mamba_proj_bias": True, "mlp_bias": True, "attention_bias": True, "mamba_conv_bias": False}],
    "falcon_h1": [
        {"mamba_rms_norm": True, "mamba_norm_before_gate": True, "projectors_bias": True},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_proj_bias": True},
    ],
    "gpt_oss": [{"attention_bias": False, "sliding_window": 100, "rope_parameters": {"rope_theta": 1e4}}],
    "granitemoehybrid": [
        {"num_local_experts": 0, "position_embedding_type": "rope", "rope_parameters": {"rope_theta": 1e4}}
    ],
    "bailing_hybrid": [
        RING_2_5,
        {"kda_safe_gate": False, "q_lora_rank": None},
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale_all_dim": 0.7,
                "mscale": 1.0,
            }
        },
    ],
    "kimi_linear": [{"q_lora_rank": 20, "attention_bias": True, "mlp_layer_types": ["dense"] * 5}],
    "zamba2": [
        {"use_shared_attention_adapter": False, "use_mem_rope": False, "num_mem_blocks": 1, "add_bias_linear": True}
    ],
    "olmo_hybrid": [{"linear_allow_neg_eigval": False, "attention_bias": True, "rope_parameters": {"rope_theta": 1e4}}],
    "nemotron_h": [{"moe_latent_size": None, "n_group": 1, "topk_group": 1, "use_bias": True, "mlp_bias": True}],
}

# Models in which one layer mixes tokens: composition is exact there, up to the logits.
ONE_LAYER: dict[str, dict[str, Any]] = {
    "bamba": {"num_hidden_layers": 1, "attn_layer_indices": []},
    "falcon_h1": {"num_hidden_layers": 1},
    "gpt_oss": {"num_hidden_layers": 1},
    "granitemoehybrid": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    "bailing_hybrid": {"num_hidden_layers": 1},
    "kimi_linear": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    "minimax": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    "nemotron_h": {"layers_block_type": ["mlp", "linear_attention", "moe"]},
    "zamba2": {"num_hidden_layers": 1, "layers_block_type": ["linear_attention"]},
    "qwen3_5": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    "qwen3_5_moe": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
    "qwen3_next": {"num_hidden_layers": 1, "layer_types": ["linear_attention"]},
}


# What each architecture does not serve, and says so.
REFUSED: list[tuple[str, str, Any]] = [
    ("bailing_moe_linear", "linear_silu", True),
    ("bailing_moe_linear", "score_function", "softmax"),
    ("bamba", "hidden_act", "gelu"),
    ("falcon_h1", "hidden_act", "gelu"),
    ("gpt_oss", "hidden_act", "gelu"),
    ("granitemoehybrid", "hidden_act", "gelu"),
    ("minimax", "sliding_window", 64),
    ("nemotron_h", "sliding_window", 64),
    ("olmo_hybrid", "hidden_act", "gelu"),
    ("zamba2", "use_long_context", True),
    ("kimi_linear", "mla_use_nope", False),
    ("nemotron_h", "mlp_hidden_act", "silu"),
]


@dataclass
class Asker:
    """An engine on a checkpoint, and prompts for it."""

    path: Path
    engine: Engine = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.engine = Engine(EngineConfig(model=self.path, threads=1, transition_tolerance=0, state_format="fp32"))

    def prompt(self, *documents: int, leading: int = 30) -> tuple[Segment, ...]:
        """A leading section, documents of 60 tokens and more by number, and a question."""
        start = [_segment("leading", leading, 1000)] if leading else []
        return (*start, *(_segment("document", 60 + 7 * n, n) for n in documents), _segment("question", 9, 2000))

    def request(self, segments: tuple[Segment, ...], arm: str | Arm, salt: str = "") -> GenerationRequest:
        self.count += 1
        arm = ARMS[arm] if isinstance(arm, str) else arm
        return GenerationRequest(f"r{self.count}", segments, arm, SamplingParams(max_tokens=8, ignore_eos=True), salt)

    def tokens(self, request: GenerationRequest) -> list[int]:
        return [output.token_id for output in self.engine.generate(request) if output.token_id is not None]

    @torch.inference_mode()
    def combine(self, request: GenerationRequest) -> tuple[Tensor, SequenceCache]:
        """Logits of the question's tokens after the combine pass, and the memory it leaves."""
        for entry in self.engine.build(list(self.engine.submit(request))):
            self.engine.deliver(entry)
        sequence = self.engine.composer.sequence(self.engine._waiting[request.request_id])
        hidden = self.engine.model.forward(PrefillBatch([sequence]))
        self.engine.abort(request.request_id)
        return self.engine.model.logits(hidden[-len(request.segments[-1]) :]), sequence.cache


@torch.inference_mode()
def logits_in_pieces(model: HybridModel, ids: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """Logits of all tokens: runs of a prefill as long as `cuts` says, then single steps."""
    cache = SequenceCache.empty(model.cache_spec(), len(ids))
    read = sum(cuts)
    batch = PrefillBatch([Sequence(cache, tuple(Active(tokens) for tokens in cuts), ids[:read])])
    logits = [model.logits(model.forward(batch))]
    batch.finish()
    for token in ids[read:]:
        step = DecodeBatch(token[None], [cache])
        logits.append(model.logits(model.forward(step)))
        step.finish()
    return torch.cat(logits)


def ids_of(segments: tuple[Segment, ...]) -> Tensor:
    """Token ids of a whole prompt, int64 `[T]`."""
    return torch.from_numpy(np.concatenate([segment.token_ids for segment in segments])).long()


def _segment(kind: str, tokens: int, seed: int) -> Segment:
    ids = np.random.default_rng(seed).integers(0, 256, tokens).astype(np.int32)
    return Segment(kind, ids, f"{kind} {seed}")  # type: ignore[arg-type]
