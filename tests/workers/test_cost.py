"""The cost model finds the law that it is shown, and never predicts that longer is cheaper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic.workers.cost import CostModel, fit_cost, measure_cost


@given(st.floats(1e-7, 1e-2), st.floats(0, 1e-5))
def test_fit_recovers_both_terms(per_token: float, squared: float) -> None:
    law = CostModel(per_token, squared)
    lengths = [32, 128, 512, 2048]
    fitted = fit_cost(lengths, [law.seconds(tokens) for tokens in lengths])
    for tokens in (64, 1000, 4000):
        assert fitted.seconds(tokens) == pytest.approx(law.seconds(tokens), rel=1e-4)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-6, 10.0)), min_size=1, max_size=6))
def test_longer_never_costs_less(timings: list[tuple[int, float]]) -> None:
    fitted = fit_cost([tokens for tokens, _ in timings], [seconds for _, seconds in timings])
    assert fitted.per_token >= 0
    assert fitted.per_token_squared >= 0
    assert fitted.seconds(100) > 0


def test_measuring_stops_at_the_first_slow_probe() -> None:
    asked: list[int] = []

    def build(tokens: int) -> float:
        asked.append(tokens)
        return tokens * 0.01

    cost = measure_cost(build, longest_tokens=4096)
    assert max(asked) == 64
    assert cost.seconds(1000) == pytest.approx(10.0)


def test_measuring_asks_for_nothing_longer_than_the_model_reads() -> None:
    asked: list[int] = []
    measure_cost(lambda tokens: asked.append(tokens) or 1e-3, longest_tokens=40)
    assert set(asked) == {40}


def test_nothing_timed_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        fit_cost([], [])
