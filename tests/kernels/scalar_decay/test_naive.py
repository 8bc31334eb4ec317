"""One decay per head against the literal recurrence: constant (RetNet, Lightning) and per token (Mamba2)."""

import pytest
import torch
from recurrence import relative_error, token_loop
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.compose.naive import compose
from hypic.kernels.runs import Runs
from hypic.kernels.scalar_decay.naive import scalar_decay, scalar_decay_step

H, HV, K, V = 2, 6, 16, 24
GATES = {"head": (HV,), "token": (130, HV)}


def inputs(tokens: int, gate: str, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = normal(tokens, H, K) * K**-0.5, normalize(normal(tokens, H, K), dim=-1)
    g = -0.2 * normal(*(tokens, HV) if gate == "token" else (HV,)).abs()
    return {"q": q, "k": k, "v": normal(tokens, HV, V), "g": g}


def check(x: dict[str, Tensor]) -> None:
    state = torch.randn(1, HV, K, V, generator=torch.Generator().manual_seed(7))
    expected = token_loop(**x, beta=None, state=state[0])
    runs = Runs.from_lengths([[len(x["v"])]])
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        found = scalar_decay(**x, runs=runs, initial_states=state.to(dtype), want_transition=[0])
        assert relative_error(found.output, expected.output) <= bound
        assert relative_error(found.final_states[0], expected.state) <= bound
        assert found.transitions[0].shape == (HV,)
        close = (found.transitions[0].double() - expected.transition[:, 0, 0]).abs()
        assert float(close.max()) <= bound


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("tokens", [1, 8, 63, 64, 65, 130])
def test_is_the_recurrence(gate: str, tokens: int) -> None:
    check(inputs(tokens, gate))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("decay", [(0.0, 0.0), (-50.0, -50.0), (-50.0, 0.0), (-50.0, -1e-3)])
def test_extreme_gates(gate: str, decay: tuple[float, float]) -> None:
    x = inputs(70, gate)
    choice = torch.rand(x["g"].shape, generator=torch.Generator().manual_seed(1)) < 0.2
    x["g"] = torch.where(choice, *decay)
    check(x)


@pytest.mark.parametrize("gate", GATES)
def test_33k_tokens(gate: str) -> None:
    x = inputs(33_000, gate)
    x["g"] = x["g"] * 0.01
    runs, state = Runs.from_lengths([[33_000]]), torch.zeros(1, HV, K, V)
    found = scalar_decay(**x, runs=runs, initial_states=state, want_transition=[0])
    expected = scalar_decay(**x, runs=runs, initial_states=state.double())
    assert found.output.isfinite().all()
    assert relative_error(found.output, expected.output) <= 2e-6
    assert relative_error(found.final_states, expected.final_states) <= 2e-6


@pytest.mark.parametrize("gate", GATES)
def test_steps_are_prefill(gate: str) -> None:
    x = inputs(9, gate)
    state = torch.zeros(1, HV, K, V)
    expected = scalar_decay(**x, runs=Runs.from_lengths([[9]]), initial_states=state)
    outputs = []
    for t in range(9):
        q, k, v = (x[name][t : t + 1] for name in ("q", "k", "v"))
        output, state = scalar_decay_step(q, k, v, x["g"] if gate == "head" else x["g"][t : t + 1], state)
        outputs.append(output)
    assert relative_error(torch.cat(outputs), expected.output) <= 2e-6
    assert relative_error(state, expected.final_states) <= 2e-6


@pytest.mark.parametrize(("tokens", "expected"), [(256, 0.221), (512, 0.394), (1024, 0.632)])
def test_adding_states_forgets_the_decay(tokens: int, expected: float) -> None:
    """Closed form: a state entering n tokens of decay λ is kept as λ^n of it; adding keeps all of it, so the
    part 1 - λ^n of what is added is wrong. Composition has no such error."""
    decay = 1 - 2**-10
    x = inputs(tokens, "head")
    x["g"] = torch.full((HV,), decay, dtype=torch.float64).log()
    runs = Runs.from_lengths([[tokens]])
    before = torch.randn(1, HV, K, V, generator=torch.Generator().manual_seed(3))
    segment = scalar_decay(**x, runs=runs, initial_states=torch.zeros_like(before), want_transition=[0])
    true = scalar_decay(**x, runs=runs, initial_states=before.double()).final_states[0]

    added = before[0] + segment.final_states[0]
    wrong = float((added.double() - true).norm() / before.double().norm())
    assert wrong == pytest.approx(1 - decay**tokens, rel=1e-5)
    assert wrong == pytest.approx(expected, abs=5e-4)
    assert relative_error(compose(segment.transitions[0], segment.final_states[0], before[0]), true) <= 1e-6


def test_refuses_a_gate_of_another_shape() -> None:
    x = {**inputs(5, "head"), "g": torch.zeros(5, HV, K)}
    with pytest.raises(ValueError, match="g must be"):
        scalar_decay(**x, runs=Runs.from_lengths([[5]]), initial_states=torch.zeros(1, HV, K, V))
