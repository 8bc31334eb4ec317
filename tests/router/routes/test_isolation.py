"""Tenants learn nothing of each other: by what is reused, by the work that is done, and by the time it takes."""

import hashlib
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from http_service import CHAT, COMPLETIONS, QUESTION, app_over, check_envelope, client_of
from starlette.testclient import TestClient

from hypic.router.keys import ApiKeys, Tenant
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker

ALARM = 4.5
"""Beyond this z of the rank test a difference counts: by chance less than once in 100,000 runs (two-sided, 7e-6)."""

TRIALS = 20
"""Requests of each kind; 20 of each that are told apart without exception have a z of 5.4."""

A, B = {"Authorization": "Bearer key of a"}, {"Authorization": "Bearer key of b"}


def keys(*tenants: str) -> ApiKeys:
    """One key for each of a and b, and whose it is."""
    return ApiKeys(
        {
            hashlib.sha256(f"key of {key}".encode()).hexdigest(): Tenant(name, operator=False)
            for key, name in zip("ab", tenants, strict=True)
        }
    )


@pytest.fixture(scope="module")
def tenants(combine: CombineWorker, model: ServedModel) -> Iterator[TestClient]:
    with client_of(app_over(combine, [], model, keys=keys("a", "b")), **A) as client:
        yield client


def document(seed: int, words: int = 24) -> str:
    draw = random.Random(f"isolation {seed}")
    return " ".join("".join(draw.choices("abcdefghij", k=5)) for _ in range(words))


def marked(text: str) -> str:
    return f"Notes: <<PIC_SEP>>{text}<<PIC_SEP>> what?"


EXPLAINED = {"cache_salt": "shared", "hypic": {"explain": True}}
ASKED: dict[str, Any] = {
    CHAT: lambda text: {"messages": QUESTION, "documents": [{"text": text}], "max_tokens": 1},
    COMPLETIONS: lambda text: {"prompt": marked(text), "max_tokens": 1},
    "/generate": lambda text: {"text": marked(text), "sampling_params": {"max_new_tokens": 1}},
}


def plan(client: TestClient, path: str, text: str, who: dict[str, str], **fields: Any) -> dict[str, Any]:
    response = client.post(path, json={**ASKED[path](text), **EXPLAINED, **fields}, headers=who)
    assert response.status_code == 200, response.text
    report = response.json()["hypic"]
    found: dict[str, Any] = (report[0] if isinstance(report, list) else report)["plan"]
    return found


def document_of(found: dict[str, Any]) -> dict[str, Any]:
    """The row of the one document of a plan."""
    (row,) = [row for row in found["segments"] if row["kind"] == "document"]
    return dict(row)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("warmed", [*ASKED, "/v1/segments"])
def test_what_one_tenant_warmed_is_cold_for_another(warmed: str, asked: str, tenants: TestClient) -> None:
    text = document(hash_of(warmed, asked), words=60)
    if warmed == "/v1/segments":
        body = {"documents": [{"text": text}], "cache_salt": "shared"}
        assert tenants.post(warmed, json=body, headers=A).json()["built"] == 1
    else:
        plan(tenants, warmed, text, A)
    hits = tenants.app.state.service.token_cache.hits  # type: ignore[attr-defined]
    theirs = plan(tenants, asked, text, B)
    assert tenants.app.state.service.token_cache.hits == hits  # type: ignore[attr-defined]
    unseen = plan(tenants, asked, document(hash_of("unseen", warmed, asked), words=60), B)
    assert document_of(theirs)["source"] == "build"
    assert theirs["built_tokens"] == unseen["built_tokens"] > 0
    assert document_of(theirs)["computed_tokens"] == document_of(unseen)["computed_tokens"]
    own = plan(tenants, asked, text, B)
    assert document_of(own)["source"] != "build"


def hash_of(*names: str) -> int:
    return int.from_bytes(hashlib.blake2b(" ".join(names).encode(), digest_size=4).digest())


def test_segments_of_another_tenant_are_neither_listed_nor_deleted(tenants: TestClient) -> None:
    body = {"documents": [{"text": document(1)}], "cache_salt": "listed"}
    (warmed,) = tenants.post("/v1/segments", json=body, headers=A).json()["data"]
    salt = {"cache_salt": "listed"}
    assert tenants.get("/v1/segments", params=salt, headers=B).json()["data"] == []
    path = f"/v1/segments/{warmed['id']}"
    check_envelope(tenants.delete(path, params=salt, headers=B), 404, "segment_not_found")
    assert [s["id"] for s in tenants.get("/v1/segments", params=salt, headers=A).json()["data"]] == [warmed["id"]]
    assert tenants.delete(path, params=salt, headers=A).json()["deleted"]


def rank_z(left: list[float], right: list[float]) -> float:
    """Mann-Whitney's U of two samples as a standard normal deviate: below zero where `left` has the smaller values."""
    ranks = np.empty(len(left) + len(right))
    ranks[np.argsort(left + right, kind="stable")] = np.arange(1, len(ranks) + 1)
    n, m = len(left), len(right)
    u = ranks[:n].sum() - n * (n + 1) / 2
    return float((u - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12))


def test_the_rank_test_sees_what_is_there_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    alarms = [abs(rank_z(list(rng.normal(size=24)), list(rng.normal(size=24)))) > 3 for _ in range(4000)]
    assert sum(alarms) < 40  # 2.7 in a thousand are expected
    assert rank_z(list(range(24)), list(range(24, 48))) < -ALARM
    assert rank_z(list(range(24, 48)), list(range(24))) > ALARM


def difference(client: TestClient, seed: int) -> float:
    """How B's times to the first token over documents that A has warmed differ from those over documents that nobody
    has seen, as a z of the rank test; the two kinds in an order drawn at random, so a busy machine favours neither."""
    warm, unseen = [[document(seed + kind + 2 * n, words=100) for n in range(TRIALS)] for kind in (0, 1)]
    body = {"documents": [{"text": text} for text in warm], "cache_salt": "shared"}
    assert client.post("/v1/segments", json=body, headers=A).json()["built"] == TRIALS
    seconds: dict[bool, list[float]] = {True: [], False: []}
    order = [(text, True) for text in warm] + [(text, False) for text in unseen]
    random.Random(seed).shuffle(order)
    for text, known_to_a in [(document(seed - 1), False), *order]:
        began = time.perf_counter()
        plan(client, CHAT, text, B)
        seconds[known_to_a].append(time.perf_counter() - began)
    return rank_z(seconds[True], seconds[False][1:])


def test_time_to_the_first_token_tells_nothing_of_another_tenant(tenants: TestClient) -> None:
    assert abs(difference(tenants, 10_000)) < ALARM


def test_the_same_test_finds_a_leak_where_there_is_one(combine: CombineWorker, model: ServedModel) -> None:
    """Two keys of one tenant: what one has warmed is quick for the other."""
    with client_of(app_over(combine, [], model, keys=keys("one", "one")), **A) as client:
        assert difference(client, 20_000) < -ALARM
