"""Checkpoints: every layout of them loads, and a wrong one is refused with the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from safetensors.torch import load_file, save_file

from hypic.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from hypic.models.fingerprint import model_fingerprint
from hypic.models.load import load_model


@torch.inference_mode()
def test_sharded_and_nested_checkpoints_load(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """The names of a multimodal checkpoint, in two shards, with towers that text does not use."""
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(tiny_checkpoint / "model.safetensors").items()
    }
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(2, 2)
    tensors["mtp.fc.weight"] = torch.zeros(2)
    shards = {"a.safetensors": sorted(tensors)[::2], "b.safetensors": sorted(tensors)[1::2]}
    for name, held in shards.items():
        save_file({key: tensors[key] for key in held}, tmp_path / name)
    index = {key: name for name, held in shards.items() for key in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    text = json.loads((tiny_checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}))
    nested, plain = load_model(tmp_path), load_model(tiny_checkpoint)
    for (name, one), (_, other) in zip(nested.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_per_expert_matrices_are_stacked(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "moe", "qwen3_5_moe")
    expected = {name: tensor.clone() for name, tensor in load_model(path).named_parameters()}
    tensors = load_file(path / "model.safetensors")
    split: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for number, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2)
                prefix = name.removesuffix("gate_up_proj")
                split[f"{prefix}{number}.gate_proj.weight"] = gate.contiguous()
                split[f"{prefix}{number}.up_proj.weight"] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            for number, matrix in enumerate(tensor):
                split[f"{name.removesuffix('down_proj')}{number}.down_proj.weight"] = matrix.contiguous()
        else:
            split[name] = tensor
    save_file(split, path / "model.safetensors")
    for name, parameter in load_model(path).named_parameters():
        assert torch.equal(parameter, expected[name]), name


Damage = Callable[[Path], None]


def _edit(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors")

    return damage


def _config(**fields: object) -> Damage:
    def damage(path: Path) -> None:
        record = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(record | fields))

    return damage


DAMAGES: dict[str, tuple[Damage, type[Exception], str]] = {
    "missing key": (
        _edit(lambda t: t.pop("model.layers.0.linear_attn.A_log")),
        CheckpointError,
        r"missing: model\.layers\.0\.linear_attn\.A_log",
    ),
    "extra key": (_edit(lambda t: t.update(extra=torch.zeros(1))), CheckpointError, "unexpected: extra"),
    "wrong shape": (
        _edit(lambda t: t.update({"model.norm.weight": torch.zeros(3)})),
        CheckpointError,
        r"model\.norm\.weight is \(3,\), expected \(48,\)",
    ),
    "truncated": (
        lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:1000]),  # type: ignore[return-value,arg-type]
        CheckpointError,
        "cannot be read as safetensors",
    ),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), CheckpointError, "holds no"),
    "no config": (lambda path: (path / "config.json").unlink(), ModelNotFoundError, "no model at"),
    "other architecture": (_config(model_type="llama"), UnsupportedModelError, "'llama' .* is not served"),
    "quantised": (
        _config(quantization_config={"quant_method": "mxfp4"}),
        UnsupportedModelError,
        "quantised weights, which are not served",
    ),
    "moving rope": (
        _config(
            rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.25}
        ),
        UnsupportedModelError,
        "cannot be moved",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_with_the_reason(tmp_path: Path, tiny_checkpoint: Path, name: str) -> None:
    damage, error, message = DAMAGES[name]
    path = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, path)
    damage(path)
    with pytest.raises(error, match=message):
        load_model(path)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"expected a directory with config\.json"):
        load_model(tmp_path / "nothing")


def test_missing_shard_is_named(tmp_path: Path, tiny_checkpoint: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"lacks the shards gone\.safetensors"):
        load_model(tmp_path / "m")


def test_float16_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="float32 or bfloat16"):
        load_model(tiny_checkpoint, torch.float16)


def test_writing_over_a_checkpoint_changes_no_loaded_model(tmp_path: Path, tiny_checkpoint: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(tiny_checkpoint, path)
    model = load_model(path)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    weights = path / "model.safetensors"
    with weights.open("r+b") as file:
        file.write(b"\xff" * weights.stat().st_size)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_fingerprint_sees_one_changed_weight(tmp_path: Path, tiny_checkpoint: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(tiny_checkpoint, path)
    assert model_fingerprint(path) == model_fingerprint(tiny_checkpoint)
    _edit(lambda tensors: tensors["model.norm.weight"][0].add_(1e-3))(path)
    assert model_fingerprint(path) != model_fingerprint(tiny_checkpoint)
