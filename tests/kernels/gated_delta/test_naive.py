"""The gated delta rule against the literal recurrence: DeltaNet (no gate), GDN (token), KDA (channel)."""

from typing import Any

import pytest
import torch
from recurrence import relative_error, token_loop
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.gated_delta.naive import gated_delta, gated_delta_step
from hypic.kernels.runs import Runs

GATES = ["none", "token", "channel"]
H, HV, K, V = 2, 4, 16, 24


def inputs(tokens: int, gate: str, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    shapes = {"none": None, "token": (tokens, HV), "channel": (tokens, HV, K)}
    shape = shapes[gate]
    return {
        "q": normal(tokens, H, K) * K**-0.5,
        "k": normalize(normal(tokens, H, K), dim=-1),
        "v": normal(tokens, HV, V),
        "g": None if shape is None else -0.2 * normal(*shape).abs(),
        "beta": normal(tokens, HV).sigmoid(),
    }


def check(x: dict[str, Any], bound: float) -> None:
    """Output, state and transition of one run in float64 (tight) and float32 (bound) equal the recurrence."""
    state = torch.randn(1, HV, K, V, generator=torch.Generator().manual_seed(7))
    expected = token_loop(**x, state=state[0])
    runs = Runs.from_lengths([[len(x["v"])]])
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, bound)):
        found = gated_delta(**x, runs=runs, initial_states=state.to(dtype), want_transition=[0])
        assert found.output.dtype == dtype
        assert relative_error(found.output, expected.output) <= limit
        assert relative_error(found.final_states[0], expected.state) <= limit
        # T fades with the decays; it is held to the scale on which it acts, not to its own
        assert float((found.transitions[0].double() - expected.transition).abs().max()) <= limit


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("tokens", [1, 8, 63, 64, 65, 130])
def test_is_the_recurrence(gate: str, tokens: int) -> None:
    check(inputs(tokens, gate), bound=2e-6)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("gate", ["token", "channel"])
@pytest.mark.parametrize("decay", ["zero", "fifty", "mixed", "late"])
def test_extreme_gates(beta: float, gate: str, decay: str) -> None:
    x = inputs(70, gate)
    x["beta"] = torch.full_like(x["beta"], beta)
    if decay == "mixed":
        x["g"] = torch.where(torch.rand(x["g"].shape, generator=torch.Generator().manual_seed(1)) < 0.3, -50.0, 0.0)
    else:
        x["g"] = torch.full_like(x["g"], {"zero": 0.0, "fifty": -50.0, "late": 0.0}[decay])
    if decay == "late":
        x["g"][3] = -50.0  # all but the first tokens follow one strong gate: sums must not carry its rounding
        x["g"][4:] = -0.01
    check(x, bound=4e-6)


@pytest.mark.parametrize("gate", GATES)
def test_unnormalised_keys(gate: str) -> None:
    x = inputs(130, gate)
    x["k"] = x["k"] * 1.4  # β|k|² up to 1.96: a reflection, the edge of what does not grow
    x["beta"] = torch.ones_like(x["beta"])
    check(x, bound=2e-5)


@pytest.mark.parametrize("gate", GATES)
def test_33k_tokens(gate: str) -> None:
    x = {name: part if part is None else part[:, :1] for name, part in inputs(33_000, gate).items()}
    runs, state = Runs.from_lengths([[33_000]]), torch.zeros(1, 1, K, V)
    found = gated_delta(**x, runs=runs, initial_states=state, want_transition=[0])
    expected = gated_delta(**x, runs=runs, initial_states=state.double())
    assert all(part.isfinite().all() for part in (found.output, found.final_states, found.transitions[0]))
    assert relative_error(found.output, expected.output) <= 2e-6
    assert relative_error(found.final_states, expected.final_states) <= 2e-6


@pytest.mark.parametrize("gate", GATES)
def test_steps_are_prefill(gate: str) -> None:
    x = inputs(9, gate)
    state = torch.zeros(1, HV, K, V)
    expected = gated_delta(**x, runs=Runs.from_lengths([[9]]), initial_states=state)
    outputs = []
    for t in range(9):
        output, state = gated_delta_step(
            *(None if x[name] is None else x[name][t : t + 1] for name in ("q", "k", "v", "g", "beta")),
            states=state,
        )
        outputs.append(output)
    assert relative_error(torch.cat(outputs), expected.output) <= 2e-6
    assert relative_error(state, expected.final_states) <= 2e-6


def test_no_gate_is_zero_gate() -> None:
    x = inputs(40, "none")
    runs, state = Runs.from_lengths([[40]]), torch.zeros(1, HV, K, V)
    expected = gated_delta(**x, runs=runs, initial_states=state)
    found = gated_delta(**{**x, "g": torch.zeros(40, HV)}, runs=runs, initial_states=state)
    assert torch.equal(found.output, expected.output)


def test_inputs_are_left_alone() -> None:
    x = inputs(32, "token")
    before = {name: part.clone() for name, part in x.items()}
    state = torch.ones(1, HV, K, V)
    gated_delta(**x, runs=Runs.from_lengths([[32]]), initial_states=state, want_transition=[0])
    assert all(torch.equal(x[name], before[name]) for name in x)
    assert torch.equal(state, torch.ones_like(state))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q", (5, H, K + 1), "q and k must be"),
        ("v", (5, 3, V), "H dividing 3"),
        ("v", (6, HV, V), "runs hold 5 tokens, but v has 6"),
        ("g", (5, HV, K + 1), "g must be"),
        ("beta", (5, H), "beta must be"),
        ("initial_states", (2, HV, K, V), "initial_states must be"),
    ],
)
def test_refuses_wrong_shapes(name: str, shape: tuple[int, ...], message: str) -> None:
    arguments = {**inputs(5, "token"), "initial_states": torch.zeros(1, HV, K, V)}
    arguments[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        gated_delta(**arguments, runs=Runs.from_lengths([[5]]))
