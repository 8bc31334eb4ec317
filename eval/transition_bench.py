"""`hypic bench transition`: what the transition operators of a segment cost to make, and to keep.

Making: the first prefill of a document with and without T, in turns, in one model. Nothing is timed before the gate is
green: the pass is the same with and without T, and T is the operator that it is taken for. Keeping: `operator_bytes`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hypic.batch import PrefillBatch
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval.operator_bytes import GEOMETRIES, bytes_results, bytes_table, operator_bytes
from hypic.eval.random_model import layer_checkpoint, timing_checkpoint
from hypic.eval.report import Report, Table, progress, say
from hypic.eval.ttft import GateError
from hypic.eval.turns import in_turns, overhead_percent
from hypic.kernels.compose.naive import apply_transition
from hypic.linear.operators import Operators
from hypic.sequence import Active, Sequence, SequenceCache, Trace

GATE = 1e-4
"""Of the gate, relative to the largest value compared; a pass in a coarser dtype may be off by its own rounding."""

_SEAM = 8
_GATE_ROUNDINGS = 8
_MEASURED_LAYERS = 6


@dataclass(frozen=True)
class Passes:
    """First prefills of one document of drawn tokens: int64 `[T]`."""

    engine: Engine
    tokens: Tensor

    def prefill(self, *, transitions: bool, states: Tensor | None = None) -> tuple[Tensor, Sequence]:
        """A forward over [seam][remainder], as a build does it, with the T of the remainder or without. states: to
        begin with instead of zeros, `[L, H, K, V]`. Returns hidden states `[T, D]` and the sequence."""
        cache = SequenceCache.empty(self.engine.model.cache_spec(), len(self.tokens))
        if states is not None:
            cache.states.copy_(states)
        pieces = (Active(_SEAM), Active(len(self.tokens) - _SEAM))
        trace = Trace(want_kv=True, want_entering=(1,), want_transition=(1,) if transitions else ())
        sequence = Sequence(cache, pieces, self.tokens, trace)
        with torch.inference_mode():
            batch = PrefillBatch([sequence])
            hidden = self.engine.model.forward(batch)
            batch.finish()
        return hidden, sequence

    def plain(self) -> None:
        """A forward that keeps nothing but what decoding needs."""
        cache = SequenceCache.empty(self.engine.model.cache_spec(), len(self.tokens))
        with torch.inference_mode():
            self.engine.model.forward(PrefillBatch([Sequence(cache, (Active(len(self.tokens)),), self.tokens)]))

    def stored(self) -> Operators:
        """The operators of the document in the engine's formats, from a pass with T."""
        _, sequence = self.prefill(transitions=True)
        entering, _ = sequence.trace.entering(1, sequence.cache)
        transitions = torch.stack(sequence.trace.transitions[1])
        with torch.inference_mode():
            states = sequence.cache.states - apply_transition(transitions, entering)
            return Operators.of(transitions, states, self.engine.formats)


def run_transition(config: EngineConfig, model: Path | None, tokens: int, rounds: int, full: bool) -> Report:
    """Gate, time and weigh. model: a checkpoint, None for a random one. tokens: of the document. full: all layers of
    each geometry, and one layer at the full size of Qwen3.5-35B-A3B too.

    Raises GateError where results are wrong, InvalidRequestError for a model without linear layers or a document that
    is no longer than its seam.
    """
    if tokens <= _SEAM:
        raise InvalidRequestError(f"a document must have more than the {_SEAM} tokens of its seam, found {tokens}")
    with timing_checkpoint(model) as path:
        passes = _passes(replace(config, model=path), tokens)
        gate = check_gate(passes)
        times = _time(passes, rounds)
        name = str(model) if model else _described(passes.engine)
    layers = {name: shape.layers if full else min(_MEASURED_LAYERS, shape.layers) for name, shape in GEOMETRIES.items()}
    with progress("storing operators", sum(layers.values())) as advance:
        weighed = {
            name: operator_bytes(shape, tokens, layers[name], lambda: advance("storing operators"))
            for name, shape in GEOMETRIES.items()
        }
    results: dict[str, Any] = {"segment_tokens": tokens, "dtype": _dtype(passes.engine), "gate": gate, **times}
    tables = [_table(times, tokens, name)]
    if full:
        results["one_layer_of_qwen3_5_35b"] = one_layer(config, tokens, rounds)
        tables.append(_table(results["one_layer_of_qwen3_5_35b"], tokens, "one linear layer of Qwen3.5-35B-A3B"))
    results |= bytes_results(weighed) | {"measured_layers": layers}
    return Report("bench transition", name, config.device, results, (*tables, bytes_table(weighed, tokens, layers)))


def one_layer(config: EngineConfig, tokens: int, rounds: int) -> dict[str, Any]:
    """Times of a model that is one linear layer at the full size of Qwen3.5-35B-A3B. Raises GateError."""
    with layer_checkpoint() as path:
        passes = _passes(replace(config, model=path), tokens)
        check_gate(passes)
        return _time(passes, rounds)


def check_gate(passes: Passes) -> dict[str, float]:
    """Largest differences, relative to the largest value compared. Raises GateError above `GATE`, or above some
    roundings where the model's dtype is coarser.

    same_pass: hidden states with T against those without. law: in the first linear layer, whose inputs do not depend on
    its state, the end state from a drawn start against T times the state that the remainder was entered with, plus S.
    """
    hidden, zero = passes.prefill(transitions=True)
    without, _ = passes.prefill(transitions=False)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(zero.cache.states.shape, generator=generator).to(zero.cache.states.device)
    _, other = passes.prefill(transitions=False, states=drawn)
    transition = zero.trace.transitions[1][0]
    written = zero.cache.states[0] - apply_transition(transition, zero.trace.states[1][0])
    composed = apply_transition(transition, other.trace.states[1][0]) + written
    gate = {"same_pass": _apart(hidden, without), "law": _apart(composed, other.cache.states[0])}
    limit = max(GATE, _GATE_ROUNDINGS * torch.finfo(hidden.dtype).eps)
    wrong = [f"{name} {apart:.2e}" for name, apart in gate.items() if not apart <= limit]
    if wrong:
        raise GateError(f"transition operators are off by more than {limit:.1e}: {', '.join(wrong)}; nothing was timed")
    say(f"gate: {', '.join(f'{name} {apart:.1e}' for name, apart in gate.items())}")
    return gate


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def _passes(config: EngineConfig, tokens: int) -> Passes:
    engine = Engine(config)
    if engine.model.family is None:
        raise InvalidRequestError("the model has no linear layers, and so no transition operators")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, engine.vocabulary, (tokens,), generator=generator)
    return Passes(engine, drawn.to(config.device))


def _time(passes: Passes, rounds: int) -> dict[str, Any]:
    """Medians in ms, and in percent what T adds to a prefill, and a whole entry (T, S, their storage) to a prefill that
    keeps nothing."""
    arms = {
        "without": lambda: passes.prefill(transitions=False),
        "with": lambda: passes.prefill(transitions=True),
        "plain": passes.plain,
        "entry": passes.stored,
    }
    with progress("timing prefills", (rounds + 1) * len(arms)) as advance:
        device = torch.device(passes.engine.config.device)
        seconds = in_turns(arms, rounds, device, lambda: advance("timing prefills"))
    return {
        "overhead_percent": overhead_percent(seconds["with"], seconds["without"]),
        "entry_overhead_percent": overhead_percent(seconds["entry"], seconds["plain"]),
        **{f"{name}_ms": 1000 * median(found) for name, found in seconds.items()},
        "rounds": rounds,
    }


def _table(times: dict[str, Any], tokens: int, model: str) -> Table:
    rows = (
        ("prefill", f"{times['without_ms']:.1f}", "-"),
        ("prefill with T", f"{times['with_ms']:.1f}", f"{times['overhead_percent']:+.1f}"),
        ("prefill that keeps nothing", f"{times['plain_ms']:.1f}", "-"),
        (
            "prefill, T and S taken out and stored",
            f"{times['entry_ms']:.1f}",
            f"{times['entry_overhead_percent']:+.1f}",
        ),
    )
    note = (
        f"First prefill of {tokens} tokens, {model}: medians of {times['rounds']} rounds in turns. Percent: of the row "
        "above, the median of what each round says."
    )
    return Table("Making T", ("pass", "ms", "more %"), rows, note)


def _described(engine: Engine) -> str:
    spec = engine.model.cache_spec()
    return f"random qwen3_5, {spec.linear_layers} linear layers of {spec.heads} heads {spec.key_dim}x{spec.value_dim}"


def _dtype(engine: Engine) -> str:
    return str(engine.model.cache_spec().dtype).removeprefix("torch.")
