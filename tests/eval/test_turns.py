"""Turns: every arm once a round, another one first each time, and nothing of the untimed round."""

import pytest
import torch

from hypic.eval.turns import in_turns, overhead_percent


def test_each_round_runs_all_and_begins_with_another() -> None:
    order: list[str] = []
    arms = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = in_turns(arms, 2, torch.device("cpu"), lambda: order.append("|"))
    assert "".join(order).replace("|", "") == "cab" + "abc" + "bca"
    assert order.count("|") == 9
    assert {name: len(found) for name, found in seconds.items()} == dict.fromkeys("abc", 2)


def test_overhead_is_what_most_rounds_say() -> None:
    assert overhead_percent([1.1, 3.3, 90.0], [1.0, 3.0, 9.0]) == pytest.approx(10.0)
