"""What the cached operators of one segment take at the geometries of published models, in each format.

Entries are made as a build makes them: a scan of drawn inputs, T and S of a 1k-token segment, stored. The inputs are
those that each family draws for its tests, whose gates lie where published layers start: no trained checkpoint was
read, and how many heads forget everything within a segment depends on the gates. So the same geometry is also measured
without any decay, where no head does: the most that it can take.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hypic.config import EngineConfig
from hypic.eval.report import Table
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs, families
from hypic.linear.operators import LOSSLESS, OperatorFormats, Operators, PackedTransitions

TOLERANCE = EngineConfig.transition_tolerance
FORMATS: dict[str, OperatorFormats] = {
    "fp32": LOSSLESS,
    "mixed_fp32": OperatorFormats(TOLERANCE, "fp32"),
    "mixed_bf16": OperatorFormats(TOLERANCE, "bf16"),
    "mixed_int8": OperatorFormats(TOLERANCE, "int8"),
}
"""T and S in float32, as published; T by head within the default tolerance, S as named. The last is the default."""

HEAD_FORMATS = ("zero", "8 bit", "bf16", "fp32")


@dataclass(frozen=True)
class Geometry:
    """The linear layers of a model: how many, H key and HV value heads, K and V. decay: whether heads forget."""

    family: str
    layers: int
    heads: tuple[int, int]
    key_dim: int
    value_dim: int
    decay: bool = True


GEOMETRIES: dict[str, Geometry] = {
    "qwen3_5_35b": Geometry("gated_delta_net", 30, (16, 32), 128, 128),
    "qwen3_5_35b_no_decay": Geometry("gated_delta_net", 30, (16, 32), 128, 128, decay=False),
    "ring_mini": Geometry("retnet", 16, (16, 16), 128, 128),
}


@dataclass(frozen=True)
class OperatorBytes:
    """Bytes of T and S of one segment in all layers, by format; and the share of heads that T takes in each format of
    `HEAD_FORMATS`, empty where T is no matrix."""

    by_format: dict[str, int]
    head_shares: dict[str, float]


def operator_bytes(
    geometry: Geometry, tokens: int, measured_layers: int, advance: Callable[[], None] = lambda: None
) -> OperatorBytes:
    """Store the operators of a drawn segment. measured_layers: each with inputs of its own; bytes are those of all
    layers of the geometry, at what the measured ones take."""
    family = families()[geometry.family]
    taken = dict.fromkeys(FORMATS, 0)
    counts = torch.zeros(len(HEAD_FORMATS), dtype=torch.int64)
    for layer in range(measured_layers):
        stored = _stored(family, geometry, tokens, seed=layer)
        for name, operators in stored.items():
            taken[name] += operators.nbytes
        transitions = stored["mixed_int8"].transitions
        if isinstance(transitions, PackedTransitions):
            counts += torch.bincount(transitions.formats.flatten().long(), minlength=len(HEAD_FORMATS))
        advance()
    heads = int(counts.sum())
    return OperatorBytes(
        {name: round(total * geometry.layers / measured_layers) for name, total in taken.items()},
        {name: int(count) / heads for name, count in zip(HEAD_FORMATS, counts, strict=True)} if heads else {},
    )


def _stored(family: LinearFamily, geometry: Geometry, tokens: int, seed: int) -> dict[str, Operators]:
    """One layer's operators of a segment of so many tokens, in each format."""
    inputs = _drawn(family, geometry, tokens, seed)
    start = torch.zeros(1, geometry.heads[1], geometry.key_dim, geometry.value_dim)
    result = family.scan(inputs, Runs.from_lengths([[tokens]]), start, want_transition=(0,))
    transitions = result.transitions[0].unsqueeze(0)
    return {name: Operators.of(transitions, result.final_states, formats) for name, formats in FORMATS.items()}


def _drawn(family: LinearFamily, geometry: Geometry, tokens: int, seed: int) -> LinearInputs:
    generator = torch.Generator().manual_seed(seed)
    inputs = family.sample(generator, tokens, geometry.heads, geometry.key_dim, geometry.value_dim)
    return inputs if geometry.decay else replace(inputs, g=torch.zeros_like(inputs.gate("g")))


def bytes_table(found: dict[str, OperatorBytes], tokens: int, measured_layers: dict[str, int]) -> Table:
    """MiB by geometry and format."""
    rows = tuple(
        (
            name,
            *(f"{taken / 2**20:.1f}" for taken in row.by_format.values()),
            " / ".join(f"{100 * share:.0f}" for share in row.head_shares.values()) or "scalar T",
        )
        for name, row in found.items()
    )
    measured = ", ".join(f"{count} of {GEOMETRIES[name].layers}" for name, count in measured_layers.items())
    note = (
        f"MiB of T and S of one segment of {tokens} tokens in all linear layers, from entries of drawn inputs in "
        f"{measured} layers. fp32 "
        f"is the published layout; mixed: each head of T in the smallest format within {TOLERANCE:g} in spectral norm, "
        "S as named. Heads: percent whose T is stored as zero, in 8 bits, bf16 and fp32. No trained checkpoint was "
        "read: gates are drawn from the range in which such layers start, and without decay nothing is forgotten."
    )
    return Table("Operators of a segment", ("geometry", *FORMATS, "heads %"), rows, note)


def bytes_results(found: dict[str, OperatorBytes]) -> dict[str, Any]:
    """For the JSON."""
    return {
        "bytes_per_segment": {name: row.by_format for name, row in found.items()},
        "head_shares": {name: row.head_shares for name, row in found.items() if row.head_shares},
    }
