"""Checkpoint directories in Hugging Face layout to models: config, architecture by file name, strict weights."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import hypic.models
from hypic.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from hypic.models.contract import HybridModel

_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$")

_CONV = re.compile(r"^(.*\.)([qkv])_conv1d\.weight$")
# Small tensors that the recurrences and routers compute with in float32: rounding them would buy nothing.
_FLOAT32 = re.compile(r"(\.A_log|\.dt_bias|\.D|e_score_correction_bias|expert_bias)$")


def architectures() -> dict[str, ModuleType]:
    """Every served `model_type` and the file that serves it."""
    found = {}
    for module in pkgutil.iter_modules(hypic.models.__path__, "hypic.models."):
        architecture = importlib.import_module(module.name)
        found.update(dict.fromkeys(getattr(architecture, "MODEL_TYPES", ()), architecture))
    return found


def load_config(path: Path) -> Any:
    """The text config of a checkpoint directory. Raises ModelNotFoundError or UnsupportedModelError."""
    from transformers import AutoConfig

    if not (path / "config.json").is_file():
        raise ModelNotFoundError(
            f"no model at {path}: expected a directory with config.json, *.safetensors and a tokenizer, as "
            "`save_pretrained` writes or a hub download holds"
        )
    model_type = json.loads((path / "config.json").read_text()).get("model_type")
    if model_type not in architectures():
        raise UnsupportedModelError(
            f"model_type {model_type!r} in {path / 'config.json'} is not served; served: "
            f"{', '.join(sorted(architectures()))}"
        )
    reader = getattr(architectures()[model_type], "Config", AutoConfig)
    config = reader.from_pretrained(path, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError(f"{path} holds quantised weights, which are not served: convert them to bfloat16")
    return config.get_text_config()


def load_model(path: Path, dtype: torch.dtype | None = None, device: str = "cpu") -> HybridModel:
    """Read a checkpoint. dtype: float32 or bfloat16; None takes the config's own, else float32.

    Raises ModelNotFoundError, UnsupportedModelError, or CheckpointError naming missing and unexpected tensors.
    """
    config = load_config(path)
    dtype = dtype or config.dtype or torch.float32
    if dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedModelError(f"dtype {dtype} is not served; use float32 or bfloat16")
    with torch.device("meta"):
        model = architectures()[config.model_type].build(config)
    weights = dict(_merge_experts(_merge_convs(_tensors(path, model, dtype))))
    _assign(model, weights, path)
    return model.to(device).eval().requires_grad_(False)  # type: ignore[no-any-return]


def _tensors(path: Path, model: HybridModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Tensors of all shards under our names, floating ones in `dtype`, those that decide over decays in float32."""
    for shard in _shards(path):
        try:
            with safe_open(shard, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - a safetensors handle is not a mapping
                    ours = model.checkpoint_name(name)
                    if ours is not None:
                        # A copy: what safetensors returns is the mapped file, and a checkpoint that is written over
                        # while it is served would change the weights under their fingerprint, or end the process.
                        wanted = torch.float32 if _FLOAT32.search(name) else dtype
                        yield ours, file.get_tensor(name).to(wanted, copy=True)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{shard} cannot be read as safetensors: {error}; download it again") from error


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = [path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        absent = [shard.name for shard in shards if not shard.is_file()]
        if absent:
            raise CheckpointError(f"{path} lacks the shards {', '.join(absent)} that its index names")
        return shards
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise CheckpointError(f"{path} holds no *.safetensors file; other weight formats are not read")
    return shards


def _merge_convs(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Convolutions of q, k and v that are kept apart, as one over all their channels. Only their sum of channels is
    relied on: what transformers saves is cut into thirds, whatever the widths of q, k and v are."""
    apart: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        match = _CONV.match(name)
        if match is None:
            yield name, tensor
        else:
            apart.setdefault(match[1], {})[match[2]] = tensor
    for prefix, parts in apart.items():
        if set(parts) != set("qkv"):
            raise CheckpointError(f"{prefix} holds convolutions of {sorted(parts)}, expected of q, k and v")
        yield f"{prefix}conv1d.weight", torch.cat([parts[part] for part in "qkv"])


def _merge_experts(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Per-expert matrices, as older checkpoints hold them, stacked to `[E, 2I, D]` and `[E, D, I]`; experts without a
    gate to `[E, I, D]`."""
    experts: dict[str, dict[tuple[str, int], Tensor]] = {}
    for name, tensor in tensors:
        match = _EXPERT.match(name)
        if match is None:
            yield name, tensor
        else:
            experts.setdefault(match[1], {})[match[3], int(match[2])] = tensor
    for prefix, matrices in experts.items():
        count = 1 + max(expert for _, expert in matrices)
        kinds = ("gate", "up", "down") if any(kind == "gate" for kind, _ in matrices) else ("up", "down")
        try:
            stacks = {kind: torch.stack([matrices[kind, expert] for expert in range(count)]) for kind in kinds}
        except KeyError as error:
            raise CheckpointError(f"{prefix} lacks the matrix {error.args[0]} of its {count} experts") from error
        yield f"{prefix}.down_proj", stacks.pop("down")
        name = "_".join(stacks)  # gate_up or up
        yield f"{prefix}.{name}_proj", torch.cat(list(stacks.values()), dim=1)


def _share(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give every name of a parameter that has several, an embedding that is the output head too or a block that serves
    several layers, the tensor that the checkpoint holds under one of them."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for shared in names.values():
        held = [name for name in shared if name in weights]
        for name in shared if held else ():
            weights[name] = weights[held[0]]


def _assign(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    _share(model, weights)
    missing, unexpected = sorted(expected.keys() - weights), sorted(weights.keys() - expected)
    wrong = [
        f"{name} is {tuple(weights[name].shape)}, expected {expected[name]}"
        for name in expected.keys() & weights
        if tuple(weights[name].shape) != expected[name]
    ]
    if missing or unexpected or wrong:
        faults = [f"missing: {', '.join(missing[:8])} ({len(missing)} in all)"] if missing else []
        faults += [f"unexpected: {', '.join(unexpected[:8])} ({len(unexpected)} in all)"] if unexpected else []
        faults += wrong[:8]
        raise CheckpointError(f"{path} does not hold the model of its config.json; " + "; ".join(faults))
    model.load_state_dict(weights, strict=True, assign=True)
