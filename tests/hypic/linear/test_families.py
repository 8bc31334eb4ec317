"""Laws that every family obeys; a new file in hypic/linear/ is found and held to them."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrence import relative_error, token_loop
from torch import Tensor

import hypic.linear.family
from hypic.kernels.compose.naive import compose, merge
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs, families
from hypic.linear.transition import held_bytes, identity_transition, pair_bytes, transition_shape

H, HV, K, V = 2, 4, 16, 24
EXACT, SINGLE = 1e-12, 2e-6
every = pytest.mark.parametrize("family", families().values(), ids=lambda family: str(family.name))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tensors here are small: a second thread costs ten times what it saves where cores are shared."""
    torch.set_num_threads(1)


def sample(family: LinearFamily, tokens: int, seed: int = 0, heads: tuple[int, int] = (H, HV)) -> LinearInputs:
    return family.sample(torch.Generator().manual_seed(seed), tokens, heads, K, V)


def states(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, HV, K, V, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)


def one_run(tokens: int) -> Runs:
    return Runs.from_lengths([[tokens]])


def build(family: LinearFamily, x: LinearInputs, lengths: list[int]) -> list[tuple[Tensor, Tensor]]:
    """The pair of every segment, each from a zero state."""
    zeros = torch.zeros(len(lengths), HV, K, V, dtype=x.v.dtype)
    runs = Runs.from_lengths([[length] for length in lengths])
    built = family.scan(x, runs, zeros, want_transition=range(len(lengths)))
    return [(built.transitions[run], built.final_states[run]) for run in range(len(lengths))]


def test_every_file_with_a_family_is_found() -> None:
    folder = Path(hypic.linear.family.__file__).parent
    declared = {path.stem for path in folder.glob("*.py") if "\nFAMILY = " in path.read_text()}
    assert set(families()) == declared
    assert {"retnet", "mamba2", "gla", "delta_net", "gated_delta_net", "kda"} <= declared


@every
def test_declares_what_it_takes(family: LinearFamily) -> None:
    x = sample(family, 7)
    shapes = {"none": None, "head": (HV,), "token": (7, HV), "channel": (7, HV, K)}
    assert (None if x.g is None else x.g.shape) == shapes[family.decay]
    assert (x.beta is not None) == family.takes_beta
    assert x.q.shape == x.k.shape == (7, H, K)
    assert x.v.shape == (7, HV, V)
    assert family.source.startswith("arXiv")
    assert family.commutes_with_rotation == (family.form == "scalar")
    if family.takes_beta:
        with pytest.raises(ValueError, match="needs the gate beta"):
            family.scan(LinearInputs(x.q, x.k, x.v, x.g), one_run(7), states(1))
    if family.decay != "none":
        with pytest.raises(ValueError, match="needs the gate g"):
            family.step(LinearInputs(x.q, x.k, x.v, None, x.beta), states(7))


@every
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("heads", [(1, 4), (2, 4), (4, 4)], ids=str)
def test_is_the_recurrence(family: LinearFamily, tokens: int, heads: tuple[int, int]) -> None:
    x = sample(family, tokens, heads=heads)
    for dtype, bound in ((torch.float64, EXACT), (torch.float32, SINGLE)):
        expected = token_loop(x.q, x.k, x.v, x.g, x.beta, states(1)[0])
        found = family.scan(x, one_run(tokens), states(1).to(dtype))
        assert relative_error(found.output, expected.output) <= bound
        assert relative_error(found.final_states[0], expected.state) <= bound


@every
def test_steps_are_prefill(family: LinearFamily) -> None:
    """Decoding the last 6 tokens of three sequences side by side ends where prefilling all of them does."""
    x, before = [sample(family, 20, seed) for seed in range(3)], states(3)
    whole = [family.scan(part, one_run(20), before[n : n + 1]) for n, part in enumerate(x)]
    state = torch.cat(
        [family.scan(part.tokens(0, 14), one_run(14), before[n : n + 1]).final_states for n, part in enumerate(x)]
    )
    for t in range(14, 20):
        rows = [part.tokens(t, t + 1) for part in x]
        batch = LinearInputs(
            *(torch.cat([getattr(row, name) for row in rows]) for name in ("q", "k", "v")),
            g=rows[0].g if family.decay in ("none", "head") else torch.cat([row.gate("g") for row in rows]),
            beta=torch.cat([row.gate("beta") for row in rows]) if family.takes_beta else None,
        )
        output, state = family.step(batch, state)
        for n in range(3):
            assert relative_error(output[n], whole[n].output[t]) <= 4e-6
    for n in range(3):
        assert relative_error(state[n], whole[n].final_states[0]) <= SINGLE


@every
@settings(max_examples=20, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 100), max_size=6), seed=st.integers(0, 1000))
def test_split_anywhere_is_whole(family: LinearFamily, cuts: list[int], seed: int) -> None:
    x, before = sample(family, 100, seed).to(torch.float64), states(1, torch.float64)
    edges = [0, *sorted(cuts), 100]
    pairs = build(family, x, [end - start for start, end in pairwise(edges)])
    whole = family.scan(x, one_run(100), before, want_transition=[0])
    state, merged = before[0], pairs[0]
    for pair in pairs:
        state = compose(*pair, state)
    for pair in pairs[1:]:
        merged = merge(pair, merged)
    assert relative_error(state, whole.final_states[0]) <= EXACT
    assert relative_error(compose(*merged, before[0]), whole.final_states[0]) <= EXACT
    torch.testing.assert_close(merged[0], whole.transitions[0], rtol=1e-9, atol=1e-14)


@every
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_composition_is_associative(family: LinearFamily, seed: int) -> None:
    a, b, c = build(family, sample(family, 90, seed).to(torch.float64), [17, 40, 33])
    left, right = merge(merge(c, b), a), merge(c, merge(b, a))
    torch.testing.assert_close(left[0], right[0], rtol=1e-10, atol=1e-14)
    assert relative_error(left[1], right[1]) <= EXACT


@every
def test_no_tokens_are_the_identity(family: LinearFamily) -> None:
    ((transition, state),) = build(family, sample(family, 0), [0])
    assert torch.equal(transition, identity_transition(family.form, HV, K))
    assert not state.any()
    pair = build(family, sample(family, 30), [30])[0]
    for merged in (merge(pair, (transition, state)), merge((transition, state), pair)):
        assert torch.equal(merged[0], pair[0])
        assert torch.equal(merged[1], pair[1])


@every
def test_a_batch_is_each_sequence_alone(family: LinearFamily) -> None:
    """Fault 19: the state of the second and later request of a batch was taken at the wrong token."""
    lengths, before = [41, 0, 130, 1, 63], states(5)
    x = sample(family, sum(lengths))
    batch = family.scan(x, Runs.from_lengths([[n] for n in lengths]), before, want_transition=range(5))
    start = 0
    for n, tokens in enumerate(lengths):
        part = x.tokens(start, start + tokens)
        alone = family.scan(part, one_run(tokens), before[n : n + 1], want_transition=[0])
        torch.testing.assert_close(batch.output[start : start + tokens], alone.output, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(batch.final_states[n], alone.final_states[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(batch.transitions[n], alone.transitions[0], rtol=1e-5, atol=1e-6)
        start += tokens


@every
@pytest.mark.parametrize("log_decay", [0.0, -50.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_extreme_gates(family: LinearFamily, log_decay: float, beta: float) -> None:
    x = sample(family, 130)
    x = LinearInputs(
        x.q,
        x.k * (1.4 if family.takes_beta else 10.0),  # not normalised; |k|² up to 2, or β|k|² > 2 grows without end
        x.v,
        None if x.g is None else torch.full_like(x.g, log_decay),
        None if x.beta is None else torch.full_like(x.beta, beta),
    )
    expected = token_loop(x.q, x.k, x.v, x.g, x.beta, states(1)[0])
    found = family.scan(x, one_run(130), states(1), want_transition=[0])
    assert found.transitions[0].isfinite().all()
    assert relative_error(found.output, expected.output) <= 2e-5
    assert relative_error(found.final_states[0], expected.state) <= 2e-5


@every
def test_64_segments_compose_in_float32(family: LinearFamily) -> None:
    """Fault 27: long compositions drift where a state is narrower than it should be."""
    lengths = [5, 31, 16, 1] * 16
    x = sample(family, sum(lengths))
    pairs = build(family, x, lengths)
    state = torch.zeros(HV, K, V)
    for pair in pairs:
        assert pair[0].dtype == pair[1].dtype == torch.float32
        state = compose(*pair, state)
    expected = token_loop(x.q, x.k, x.v, x.g, x.beta, torch.zeros(HV, K, V)).state
    assert relative_error(state, expected) <= SINGLE


@every
def test_bytes_reported_are_bytes_held(family: LinearFamily) -> None:
    x = sample(family, 40)
    built = family.scan(x, one_run(40), torch.zeros(1, HV, K, V), want_entering=[0], want_transition=[0])
    transition, state = built.transitions[0], built.entering[0]
    assert transition.shape == transition_shape(family.form, HV, K)
    assert held_bytes(transition) + held_bytes(state) == pair_bytes(family.form, HV, K, V)


@every
def test_steps_leave_their_states(family: LinearFamily) -> None:
    x = sample(family, 3)
    before = states(3)
    strided = before.mT.contiguous().mT
    output, after = family.step(x, strided)
    assert torch.equal(strided, before)
    expected = family.step(x, before)
    assert torch.equal(output, expected[0])
    assert torch.equal(after, expected[1])
