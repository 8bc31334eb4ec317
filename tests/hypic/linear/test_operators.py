"""Stored operators: off by no more than promised, in the smallest format that keeps the promise, whatever the gates."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from hypic.kernels.compose.naive import LiveHeads, compose
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearInputs, families
from hypic.linear.operators import (
    HALF,
    LOSSLESS,
    SCALED8,
    STATE_FORMATS,
    WHOLE,
    ZERO,
    OperatorError,
    OperatorFormats,
    Operators,
    PackedTransitions,
)
from hypic.linear.scaled import Scaled8
from hypic.linear.transition import held_bytes

H, K, V = 4, 16, 24
FAMILIES = families()
DENSE = [name for name, family in FAMILIES.items() if family.form == "dense"]
bounded = settings(max_examples=50, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Gates:
    """What a text does to one layer. decay, beta: of all tokens, None draws them. keys: how many different ones."""

    family: str
    tokens: int
    decay: float | None
    beta: float | None
    keys: int
    seed: int

    def pair(self) -> tuple[Tensor, Tensor]:
        """T and S, float32."""
        family, generator = FAMILIES[self.family], torch.Generator().manual_seed(self.seed)
        inputs = family.sample(generator, self.tokens, (2, H), K, V)
        which = torch.randint(self.keys, (self.tokens,), generator=generator)
        keys = normalize(torch.randn(self.keys, 2, K, generator=generator), dim=-1)[which]
        g, beta = inputs.g, inputs.beta
        if g is not None and self.decay is not None:
            g = torch.full_like(g, self.decay)
        if beta is not None and self.beta is not None:
            beta = torch.full_like(beta, self.beta)
        runs = Runs.from_lengths([[self.tokens]])
        adversarial = LinearInputs(inputs.q, keys, inputs.v, g, beta)
        result = family.scan(adversarial, runs, torch.zeros(1, H, K, V), want_transition=[0])
        return result.transitions[0], result.final_states[0]


def gates_of(names: list[str]) -> st.SearchStrategy[Gates]:
    """Decays from none to everything, writes from none to reflections, keys that repeat, short and long texts."""
    return st.builds(
        Gates,
        family=st.sampled_from(names),
        tokens=st.sampled_from([1, 3, 40, 130, 400]),
        decay=st.sampled_from([None, 0.0, -1e-4, -1e-2, -1.0, -50.0]),
        beta=st.sampled_from([None, 0.0, 1.0, 2.0]),
        keys=st.sampled_from([1, 2, 8, 1000]),
        seed=st.integers(0, 1000),
    )


gates = gates_of(sorted(FAMILIES))
tolerances = st.sampled_from([0.0, 1e-4, 1e-3, 1e-2, 0.1])


def frobenius(x: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(x.double())


def decoded(operators: Operators, layer: int = 0) -> tuple[Tensor, Tensor]:
    """T with every head, and S."""
    transition, state = operators.pair(layer)
    return (transition.dense(len(state)) if isinstance(transition, LiveHeads) else transition), state


@given(
    gates=gates, tolerance=tolerances, state_format=st.sampled_from(STATE_FORMATS), size=st.sampled_from([1e-3, 1e3])
)
@bounded
def test_state_error_is_within_the_promise(gates: Gates, tolerance: float, state_format: str, size: float) -> None:
    """‖T̂S + Ŝ0 - (TS + S0)‖ <= tolerance·‖S‖ + state_error·‖S0‖, head by head."""
    transition, written = gates.pair()
    formats = OperatorFormats(tolerance, state_format)
    operators = Operators.of(transition[None], written[None], formats)
    entered = torch.randn(H, K, V, generator=torch.Generator().manual_seed(gates.seed)) * size
    exact = compose(transition.double(), written.double(), entered.double())
    promise = tolerance * frobenius(entered) + formats.state_error(V) * frobenius(written)
    rounding = 1e-5 * (frobenius(entered) + frobenius(written))
    assert (frobenius(compose(*operators.pair(0), entered) - exact) <= promise + rounding).all()
    stored = compose(*(part.double() for part in decoded(operators)), entered.double())
    assert (frobenius(stored - exact) <= promise * (1 + 1e-6)).all(), "from storage alone, no rounding to excuse it"


def approximations(transition: Tensor) -> list[Tensor]:
    """A T in each format, by its definition."""
    diagonal = torch.diag_embed(transition.diagonal(dim1=-2, dim2=-1))
    rest = transition - diagonal
    eight, half = Scaled8.of(rest).decoded() + diagonal, rest.bfloat16().float() + diagonal
    return [torch.zeros_like(transition), eight, half, transition]


@given(gates=gates_of(DENSE), tolerance=tolerances.filter(bool))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_the_smallest_format_within_the_tolerance_is_taken(gates: Gates, tolerance: float) -> None:
    transition, _ = gates.pair()
    packed = PackedTransitions.of(transition[None], tolerance)
    by_format = approximations(transition)
    errors = [torch.linalg.matrix_norm((found - transition).double(), ord=2) for found in by_format]
    whole = decoded(Operators.of(transition[None], torch.zeros(1, H, K, V), OperatorFormats(tolerance)))[0]
    for head, chosen in enumerate(packed.formats[0].tolist()):
        assert errors[chosen][head] <= tolerance
        for smaller in range(chosen):
            assert errors[smaller][head] > tolerance / K ** (1 / 16) / 1.001, (chosen, smaller)
        torch.testing.assert_close(whole[head], by_format[chosen][head], rtol=1e-6, atol=1e-9)


@given(gates=gates, tolerance=tolerances, state_format=st.sampled_from(STATE_FORMATS))
@bounded
def test_nbytes_is_what_the_tensors_take(gates: Gates, tolerance: float, state_format: str) -> None:
    transition, written = gates.pair()
    transitions, states = torch.stack([transition, 0 * transition]), torch.stack([written, written])
    operators = Operators.of(transitions, states, OperatorFormats(tolerance, state_format))
    assert operators.nbytes == sum(held_bytes(tensor) for tensor in operators.tensors.values())
    assert operators.nbytes <= transitions.nbytes + states.nbytes + 2 * H * (1 + 8 * K + 4 * V)
    again = Operators.of_tensors(operators.tensors)
    for layer in range(2):
        for one, other in zip(decoded(operators, layer), decoded(again, layer), strict=True):
            assert torch.equal(one, other)


def mixed() -> Tensor:
    """T `[2, H, K, K]` whose heads take all four formats at 1e-3, in another order in each layer."""
    torch.manual_seed(3)
    rest = torch.randn(2, H, K, K) * torch.tensor([[5e-2, 0.0, 1.0, 1e-3], [1.0, 1e-3, 5e-2, 0.0]])[..., None, None]
    diagonal = 0.9 * torch.eye(K) * torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])[..., None, None]
    return rest + diagonal


def test_every_head_is_found_again() -> None:
    transitions = mixed()
    operators = Operators.of(transitions, torch.zeros(2, H, K, V), OperatorFormats(1e-3))
    formats = operators.tensors["transitions.formats"]
    assert formats.tolist() == [[HALF, ZERO, WHOLE, SCALED8], [WHOLE, SCALED8, HALF, ZERO]]
    for layer in range(2):
        found, _ = decoded(operators, layer)
        assert (torch.linalg.matrix_norm(found - transitions[layer], ord=2) <= 1e-3).all()
        assert torch.equal(found.diagonal(dim1=1, dim2=2), transitions[layer].diagonal(dim1=1, dim2=2))


def test_slow_heads_need_their_diagonal_apart() -> None:
    """I - P of 8 directions in 128: within 1e-3 in half precision only because the diagonal stands apart."""
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(128, 8)).Q
    transition = (0.97 * (torch.eye(128) - 0.9 * basis @ basis.T))[None, None]
    assert torch.linalg.matrix_norm(transition - transition.bfloat16().float(), ord=2) > 1e-3
    assert PackedTransitions.of(transition, 1e-3).formats.tolist() == [[HALF]]


def test_bytes_of_each_format() -> None:
    """At the geometry of one layer of Qwen3.5-35B-A3B, by arithmetic."""
    heads, size = 32, 128
    states = torch.randn(1, heads, size, size)
    matrix = size * size

    def nbytes(transition: Tensor, formats: OperatorFormats) -> int:
        return Operators.of(transition.expand(1, heads, size, size), states, formats).nbytes

    eye = torch.eye(size)
    assert nbytes(eye, LOSSLESS) == heads * (1 + 4 * matrix + 4 * matrix)
    assert nbytes(0 * eye, OperatorFormats(1e-3)) == heads * (1 + 4 * matrix)
    assert nbytes(eye, OperatorFormats(1e-3, "bf16")) == heads * (1 + matrix + 12 * size + 2 * matrix)
    assert nbytes(eye, OperatorFormats(1e-3, "int8")) == heads * (1 + matrix + 12 * size + matrix + 8 * size)
    torch.manual_seed(0)
    full = 0.5 * torch.linalg.qr(torch.randn(size, size)).Q
    assert nbytes(full * 0.5, OperatorFormats(1e-3)) == heads * (1 + 2 * matrix + 4 * size + 4 * matrix)
    assert nbytes(full * 2.0, OperatorFormats(1e-3)) == heads * (1 + 4 * matrix + 4 * matrix)


def test_zero_tolerance_keeps_every_bit_without_a_copy() -> None:
    transitions, states = mixed(), torch.randn(2, H, K, V)
    operators = Operators.of(transitions, states)
    transition, state = operators.pair(1)
    assert isinstance(transition, Tensor)
    assert torch.equal(transition, transitions[1])
    assert torch.equal(state, states[1])
    assert transition.data_ptr() == operators.tensors["transitions.wholes"][H:].data_ptr()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("formats", [LOSSLESS, OperatorFormats(1e-3, "int8")], ids=lambda formats: formats.name)
def test_what_is_not_finite_is_refused_by_name(bad: float, formats: OperatorFormats) -> None:
    for name, shape in (("T", (2, H)), ("T", (2, H, K)), ("T", (2, H, K, K)), ("S", ())):
        transitions, states = torch.zeros(shape or (2, H, K, K)), torch.zeros(2, H, K, V)
        (transitions if shape else states)[1, 2].fill_(bad)
        with pytest.raises(OperatorError, match=f"{name} of linear layer 1, head 2 holds NaN or infinity"):
            Operators.of(transitions, states, formats)


def test_formats_that_mean_nothing_make_no_other_entries() -> None:
    assert OperatorFormats.for_form(None, 1e-3, "int8").lossless
    assert OperatorFormats.for_form("scalar", 1e-3, "fp32").lossless
    assert not OperatorFormats.for_form("dense", 1e-3, "fp32").lossless
    assert not OperatorFormats.for_form("diagonal", 0.0, "bf16").lossless
    names = {OperatorFormats(tolerance, form).name for tolerance in (0, 1e-3, 2e-3) for form in STATE_FORMATS}
    assert len(names) == 9
