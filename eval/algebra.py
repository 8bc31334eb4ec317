"""Is composition exact? Every family's cached pairs against the recurrence, one layer, no model.

A text is split at random into segments, each segment is built alone from a zero state in float32, and the
state at the end is composed from the pairs (T, S). The truth is the recurrence run token by token in
float64 over the whole text. `run_algebra` is what `hypic eval algebra` prints.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hypic.kernels.compose.naive import compose, merge
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs
from hypic.linear.family import families as all_families

Progress = Callable[[str, int, int], None]
"""Called with a family's name, the splits of it that are done, and the splits in all."""

_Pair = tuple[Tensor, Tensor]
"""A segment's transition, every head of it, and its state."""

MAX_SEGMENTS = 64


def run_algebra(
    splits: int = 64,
    tokens: int = 2048,
    heads: int = 2,
    key_dim: int = 128,
    value_dim: int = 128,
    seed: int = 0,
    families: Collection[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """`{"families": {name: errors}}`, with the errors of `measure_family`, for the families named (all of
    them by default). Raises ValueError for an unknown family."""
    known = all_families()
    wanted = list(known) if families is None else list(families)
    if unknown := sorted(set(wanted) - set(known)):
        raise ValueError(f"unknown families {unknown}, expected some of {sorted(known)}")
    results: dict[str, Any] = {}
    with one_thread():
        for name in wanted:
            generator = torch.Generator().manual_seed(seed)
            inputs = known[name].sample(generator, tokens, (heads, heads), key_dim, value_dim)
            results[name] = measure_family(known[name], inputs, splits, generator, progress)
    return {"families": results}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: matrices here are small, and on busy cores a second thread made this 7 times
    slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def measure_family(
    family: LinearFamily,
    inputs: LinearInputs,
    splits: int,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Worst relative Frobenius errors over `splits` random splits into 2 to 64 segments, the first into the
    most.

    max_relative_error: of the end state composed segment by segment. merged_relative_error: of the end
    state from pairs merged in a balanced tree. output_relative_error: of all outputs, each segment entered
    with the composed state. addition_relative_error: of the end state when states are added and T is left
    out.
    """
    outputs, state = token_loop(inputs)
    worst = {"max": 0.0, "merged": 0.0, "output": 0.0, "addition": 0.0}
    for split in range(splits):
        runs = random_split(generator, len(inputs.v), MAX_SEGMENTS if split == 0 else None)
        pairs = _build(family, inputs, runs)
        entering = _entering(pairs)
        found = family.scan(inputs, runs, torch.stack(entering))
        errors = {
            "max": relative_error(compose(*pairs[-1], entering[-1]), state),
            "merged": relative_error(_merge_tree(pairs)[1], state),
            "output": relative_error(found.output, outputs),
            "addition": relative_error(torch.stack([pair[1] for pair in pairs]).sum(0), state),
        }
        worst = {name: max(worst[name], error) for name, error in errors.items()}
        if progress is not None:
            progress(family.name, split + 1, splits)
    return {"form": family.form, **{f"{name}_relative_error": error for name, error in worst.items()}}


def token_loop(inputs: LinearInputs) -> tuple[Tensor, Tensor]:
    """The recurrence of DESIGN 2.1 in float64, token by token from a zero state: outputs `[T, HV, V]` and
    the end state `[HV, K, V]`. It shares no code with the kernels."""
    tokens, heads, value_dim = inputs.v.shape
    q, k = (x.double().repeat_interleave(heads // x.shape[1], dim=1) for x in (inputs.q, inputs.k))
    v = inputs.v.double()
    decay = torch.ones(tokens, heads, 1, dtype=torch.float64)
    if inputs.g is not None:
        g = inputs.g.double().exp()
        decay = g if g.ndim == 3 else g.expand(tokens, heads).unsqueeze(-1)
    beta = None if inputs.beta is None else inputs.beta.double().unsqueeze(-1)
    state = torch.zeros(heads, k.shape[2], value_dim, dtype=torch.float64)
    outputs = torch.zeros_like(v)
    for t in range(tokens):
        state = decay[t].unsqueeze(-1) * state
        write = v[t]
        if beta is not None:
            write = beta[t] * (write - torch.einsum("hk,hkv->hv", k[t], state))
        state = torch.baddbmm(state, k[t].unsqueeze(2), write.unsqueeze(1))
        outputs[t] = torch.einsum("hk,hkv->hv", q[t], state)
    return outputs, state


def random_split(generator: torch.Generator, tokens: int, segments: int | None = None) -> Runs:
    """Segments as sequences of their own, cut at random; 2 to 64 of them unless told how many."""
    limit = min(MAX_SEGMENTS, tokens)
    if segments is None:
        segments = int(torch.randint(2, limit + 1, (), generator=generator))
    cuts = torch.randperm(tokens - 1, generator=generator)[: min(segments, limit) - 1] + 1
    edges = [0, *sorted(cuts.tolist()), tokens]
    return Runs.from_lengths([[end - start] for start, end in pairwise(edges)])


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of `expected`, in float64."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def _build(family: LinearFamily, inputs: LinearInputs, runs: Runs) -> list[_Pair]:
    """The float32 pair of every segment, built from a zero state."""
    shape = (runs.num_runs, inputs.v.shape[1], inputs.k.shape[2], inputs.v.shape[2])
    built = family.scan(inputs, runs, torch.zeros(shape), want_transition=range(runs.num_runs))
    return [(built.transitions[run], built.final_states[run]) for run in range(runs.num_runs)]


def _entering(pairs: list[_Pair]) -> list[Tensor]:
    """The composed state before each segment."""
    states = [torch.zeros_like(pairs[0][1])]
    for transition, state in pairs[:-1]:
        states.append(compose(transition, state, states[-1]))
    return states


def _merge_tree(pairs: list[_Pair]) -> _Pair:
    if len(pairs) == 1:
        return pairs[0]
    middle = len(pairs) // 2
    return merge(_merge_tree(pairs[middle:]), _merge_tree(pairs[:middle]))
