"""One decay per key channel (GLA) against the literal recurrence."""

import pytest
import torch
from recurrence import relative_error, token_loop
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.diagonal_decay.naive import diagonal_decay, diagonal_decay_step
from hypic.kernels.runs import Runs

H, HV, K, V = 2, 4, 16, 24


def inputs(tokens: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = normal(tokens, H, K) * K**-0.5, normalize(normal(tokens, H, K), dim=-1)
    return {"q": q, "k": k, "v": normal(tokens, HV, V), "g": -0.2 * normal(tokens, HV, K).abs()}


def check(x: dict[str, Tensor]) -> None:
    state = torch.randn(1, HV, K, V, generator=torch.Generator().manual_seed(7))
    expected = token_loop(**x, beta=None, state=state[0])
    runs = Runs.from_lengths([[len(x["v"])]])
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        found = diagonal_decay(**x, runs=runs, initial_states=state.to(dtype), want_transition=[0])
        assert relative_error(found.output, expected.output) <= bound
        assert relative_error(found.final_states[0], expected.state) <= bound
        assert found.transitions[0].shape == (HV, K)
        close = (found.transitions[0].double() - expected.transition.diagonal(dim1=1, dim2=2)).abs()
        assert float(close.max()) <= bound


@pytest.mark.parametrize("tokens", [1, 8, 63, 64, 65, 130])
def test_is_the_recurrence(tokens: int) -> None:
    check(inputs(tokens))


@pytest.mark.parametrize("decay", [(0.0, 0.0), (-50.0, -50.0), (-50.0, 0.0), (-50.0, -1e-3)])
@pytest.mark.parametrize("whole_heads", [False, True])
def test_extreme_gates(decay: tuple[float, float], whole_heads: bool) -> None:
    x = inputs(70)
    shape = (70, HV, 1) if whole_heads else (70, HV, K)
    choice = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.2
    x["g"] = torch.where(choice, *decay).expand(70, HV, K)
    check(x)


def test_33k_tokens() -> None:
    x = inputs(33_000)
    x["g"] = x["g"] * 0.01
    runs, state = Runs.from_lengths([[33_000]]), torch.zeros(1, HV, K, V)
    found = diagonal_decay(**x, runs=runs, initial_states=state, want_transition=[0])
    expected = diagonal_decay(**x, runs=runs, initial_states=state.double())
    assert found.output.isfinite().all()
    assert relative_error(found.output, expected.output) <= 2e-6
    assert relative_error(found.final_states, expected.final_states) <= 2e-6


def test_steps_are_prefill() -> None:
    x = inputs(9)
    state = torch.zeros(1, HV, K, V)
    expected = diagonal_decay(**x, runs=Runs.from_lengths([[9]]), initial_states=state)
    outputs = []
    for t in range(9):
        output, state = diagonal_decay_step(*(x[name][t : t + 1] for name in ("q", "k", "v", "g")), states=state)
        outputs.append(output)
    assert relative_error(torch.cat(outputs), expected.output) <= 2e-6
    assert relative_error(state, expected.final_states) <= 2e-6


def test_refuses_a_gate_of_another_shape() -> None:
    x = {**inputs(5), "g": torch.zeros(5, HV)}
    with pytest.raises(ValueError, match="g must be"):
        diagonal_decay(**x, runs=Runs.from_lengths([[5]]), initial_states=torch.zeros(1, HV, K, V))
