"""Pairs form a monoid: associative, with identity; applying a merged pair is applying both."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hypic.kernels.compose.naive import LiveHeads, apply_transition, compose, merge

H, K, V = 3, 6, 4
SHAPES = {"scalar": (H,), "diagonal": (H, K), "dense": (H, K, K)}

forms = pytest.mark.parametrize("form", SHAPES)
seeds = given(seed=st.integers(0, 10_000))
bounded = settings(max_examples=20, deadline=None, derandomize=True)


def pairs(form: str, seed: int, count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return [(normal(*SHAPES[form]), normal(H, K, V)) for _ in range(count)]


@forms
@bounded
@seeds
def test_merge_is_associative(form: str, seed: int) -> None:
    a, b, c = pairs(form, seed, 3)
    left, right = merge(merge(c, b), a), merge(c, merge(b, a))
    torch.testing.assert_close(left[0], right[0])
    torch.testing.assert_close(left[1], right[1])


@forms
@bounded
@seeds
def test_merged_pair_applies_both(form: str, seed: int) -> None:
    a, b, (_, before) = pairs(form, seed, 3)
    torch.testing.assert_close(compose(*merge(b, a), before), compose(*b, compose(*a, before)))


@forms
def test_identity(form: str) -> None:
    ((transition, state),) = pairs(form, 0, 1)
    ones = torch.ones(SHAPES[form], dtype=torch.float64)
    identity = (
        torch.eye(K, dtype=torch.float64).expand(H, K, K) if form == "dense" else ones,
        torch.zeros_like(state),
    )
    for merged in (merge(identity, (transition, state)), merge((transition, state), identity)):
        assert torch.equal(merged[0], transition)
        assert torch.equal(merged[1], state)


@forms
def test_batched_states(form: str) -> None:
    """A leading axis on the transition and the state is a batch of pairs."""
    (first, before), (second, _) = pairs(form, 1, 2)
    batch = apply_transition(torch.stack([first, second]), torch.stack([before, before]))
    torch.testing.assert_close(batch[0], apply_transition(first, before))
    torch.testing.assert_close(batch[1], apply_transition(second, before))


def test_refuses_other_shapes() -> None:
    state = torch.zeros(H, K, V)
    with pytest.raises(ValueError, match=r"a transition is \[H\], \[H, K\] or \[H, K, K\]"):
        apply_transition(torch.tensor(1.0), state)
    with pytest.raises(ValueError, match="cannot merge transitions"):
        merge((torch.ones(H), state), (torch.ones(H, K), state))


@pytest.mark.parametrize("heads", [[], [1], [2, 0], [1, 2, 0]])
def test_live_heads_compose_as_all_heads_with_zeros(heads: list[int]) -> None:
    ((transition, state),) = pairs("dense", 1, 1)
    before = torch.randn(H, K, V, dtype=torch.float64)
    at = torch.tensor(heads, dtype=torch.int64)
    live = LiveHeads(at, transition[at])
    whole = torch.zeros_like(transition)
    whole[heads] = transition[heads]
    assert torch.equal(live.dense(H), whole)
    torch.testing.assert_close(compose(live, state, before), compose(whole, state, before))
    assert live.to(torch.float32).matrices.dtype == torch.float32
