"""The bench of the cache runs, its keys are those that were promised, and the traces are what they say."""

from typing import Any

import pytest

from hypic.eval import cache_bench
from hypic.eval.cache_traces import (
    POLICIES,
    Request,
    distinct_bytes_of_passages,
    foresight_hit_rate,
    fractional_limit,
    passage_bound,
    passage_bytes,
    passage_hit_rate,
    prefix_bound,
    prefix_hit_rate,
    read_mooncake,
    read_ragpulse,
)


def small(requests: list[Request]) -> list[Request]:
    return requests[:300]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in (
        ("LEAVES", 200),
        ("TURNS", 10),
        ("NODES", 20),
        ("PROMPT_TOKENS", 2000),
        ("LEAF_COUNTS", (100,)),
    ):
        monkeypatch.setattr(cache_bench, name, value)
    monkeypatch.setattr(cache_bench, "read_ragpulse", lambda path: small(read_ragpulse(path)))
    monkeypatch.setattr(cache_bench, "read_mooncake", lambda path: small(read_mooncake(path)))
    return cache_bench.run_cache_bench()


def test_results_have_the_promised_keys(results: dict[str, Any]) -> None:
    assert results["match_plan_p50_ms"] > 0
    assert results["evict_64_p50_ms"]["100"] > 0
    for trace in ("ragpulse", "mooncake"):
        bound = results["hit_rate_bounds"][trace]["unlimited"]
        for policy in POLICIES:
            rates = results["hit_rate"][trace][policy]
            assert all(0 <= rate <= bound + 1e-9 for rate in rates.values()), (trace, policy, rates)
            assert rates["1/16"] <= rates["1/1"] + 1e-9
    assert results["hit_rate"]["ragpulse"]["lru"]["1/4+host"] == results["hit_rate_bounds"]["ragpulse"]["unlimited"]


def test_traces_are_whole() -> None:
    passages, prompts = read_ragpulse(), read_mooncake()
    assert sum(len(request.ids) for request in passages) == 23_904
    assert len(prompts) > 11_000
    for requests in (passages, prompts):
        assert [r.seconds for r in requests] == sorted(r.seconds for r in requests)
        assert all(len(r.ids) == len(r.tokens) > 0 for r in requests)


def test_bounds_are_bounds() -> None:
    passages = small(read_ragpulse())
    distinct = distinct_bytes_of_passages(passages)
    for part in (8, 2, 1):
        best = foresight_hit_rate(passages, distinct // part)
        assert best <= fractional_limit(passages, distinct // part) <= passage_bound(passages) + 1e-9
        for policy in POLICIES:
            assert passage_hit_rate(passages, policy, distinct // part) <= best + 0.01
    assert (
        passage_hit_rate(passages, "lru", distinct) == passage_bound(passages) == foresight_hit_rate(passages, distinct)
    )
    prompts = small(read_mooncake())
    assert prefix_hit_rate(prompts, "lru", 10**15) <= prefix_bound(prompts)


def test_a_repeated_conversation_by_hand() -> None:
    requests = [Request(0.0, "a", (1, 2), (512, 512)), Request(1.0, "a", (1, 2, 3), (512,) * 3)]
    assert prefix_bound(requests) == prefix_hit_rate(requests, "lru", 10**12) == 2 / 5
    assert passage_bound([Request(0.0, "a", (1, 2), (10, 30)), Request(1.0, "b", (2, 3), (30, 5))]) == 30 / 75
    assert passage_bytes(0) > 0


def test_the_limit_by_hand() -> None:
    """Passage 1 has to stay for 3 references and passage 2 for 1; both have 10 tokens. Room for one passage at all of
    the 4 times is enough for both stays, for half of one only the shorter and a third of the longer."""
    requests = [Request(0.0, "a", (passage,), (10,)) for passage in (1, 2, 2, 1)]
    size = passage_bytes(10)
    assert fractional_limit(requests, size) == pytest.approx(2 / 4)
    assert fractional_limit(requests, size // 2) == pytest.approx((1 + 1 / 3) / 4)
    assert fractional_limit(requests, 0) == 0
