"""A segment built at position 0 and moved to p is the segment built at p (Ring, Bailing)."""

from dataclasses import replace

import pytest
import torch
from recurrence import relative_error
from torch import Tensor

from hypic.kernels.compose.naive import compose
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs, families
from hypic.linear.rotation import check_rotation, rotate_state

H, K, V = 2, 16, 12
scalar = [family for family in families().values() if family.form == "scalar"]
others = [family for family in families().values() if family.form != "scalar"]


def angles(position: int, dims: int) -> Tensor:
    return position * 10_000.0 ** -(torch.arange(dims // 2, dtype=torch.float64) * 2 / dims)


def rotate(x: Tensor, first: int, dims: int, interleaved: bool) -> Tensor:
    """Rotary embedding of `[T, H, K]` standing at `first` and on, one complex product a channel pair."""
    out = x.clone()
    for t in range(len(x)):
        left, right = (
            (slice(0, dims, 2), slice(1, dims, 2)) if interleaved else (slice(dims // 2), slice(dims // 2, dims))
        )
        turn = torch.polar(torch.ones(dims // 2, dtype=torch.float64), angles(first + t, dims))
        turned = torch.complex(x[t, :, left], x[t, :, right]) * turn
        out[t, :, left], out[t, :, right] = turned.real, turned.imag
    return out


def at(x: LinearInputs, first: int, dims: int, interleaved: bool) -> LinearInputs:
    return replace(x, q=rotate(x.q, first, dims, interleaved), k=rotate(x.k, first, dims, interleaved))


@pytest.mark.parametrize("family", scalar, ids=lambda family: str(family.name))
@pytest.mark.parametrize("dims", [K, K // 2])
@pytest.mark.parametrize("interleaved", [False, True])
def test_moved_segment_is_the_segment_built_there(family: LinearFamily, dims: int, interleaved: bool) -> None:
    """A leading text of 37 tokens, then a cached segment of 50: the state is that of the 87 tokens in a row."""
    x = family.sample(torch.Generator().manual_seed(1), 87, (H, H), K, V, torch.float64)
    zero = torch.zeros(1, H, K, V, dtype=torch.float64)
    whole = family.scan(at(x, 0, dims, interleaved), Runs.from_lengths([[87]]), zero).final_states[0]
    leading = at(x.tokens(0, 37), 0, dims, interleaved)
    before = family.scan(leading, Runs.from_lengths([[37]]), zero).final_states[0]
    segment = at(x.tokens(37, 87), 0, dims, interleaved)
    built = family.scan(segment, Runs.from_lengths([[50]]), zero, want_transition=[0])

    offset = angles(37, dims)
    moved = rotate_state(built.final_states[0], offset.cos(), offset.sin(), interleaved=interleaved)
    assert relative_error(compose(built.transitions[0], moved, before), whole) <= 1e-12
    unmoved = compose(built.transitions[0], built.final_states[0], before)
    assert relative_error(unmoved, whole) > 1e-2


def test_rotations_add_up() -> None:
    state = torch.randn(3, K, V, dtype=torch.float64)
    a, b, both = (angles(p, K) for p in (5, 9, 14))
    once = rotate_state(rotate_state(state, a.cos(), a.sin()), b.cos(), b.sin())
    torch.testing.assert_close(once, rotate_state(state, both.cos(), both.sin()))


def test_keeps_dtype_and_input() -> None:
    state = torch.randn(1, K, V)
    before = state.clone()
    offset = angles(3, K).float()
    narrow = rotate_state(state.bfloat16(), offset.cos(), offset.sin())
    assert narrow.dtype == torch.bfloat16
    rotate_state(state, offset.cos(), offset.sin())
    assert torch.equal(state, before)


@pytest.mark.parametrize("family", others, ids=lambda family: str(family.name))
def test_refuses_a_transition_that_does_not_commute(family: LinearFamily) -> None:
    with pytest.raises(ValueError, match=f"family {family.name} has a {family.form} transition"):
        check_rotation(family)


@pytest.mark.parametrize("family", scalar, ids=lambda family: str(family.name))
def test_accepts_a_scalar_transition(family: LinearFamily) -> None:
    check_rotation(family)


def test_refuses_more_angles_than_channels() -> None:
    with pytest.raises(ValueError, match="cos and sin must be"):
        rotate_state(torch.zeros(1, 8, 2), torch.ones(5), torch.zeros(5))
