"""The whole service for real: Ray actors, Ray Serve, HTTP over a socket, disconnecting clients, killed processes."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import ray
import torch

from hypic.engine.engine import Engine
from hypic.protocol import decode_entry
from hypic.request import GenerationRequest
from hypic.workers.ports import BuiltSegment, WorkerStats

pytestmark = pytest.mark.cluster

CHAT = "/v1/chat/completions"
TEXTS = tuple(f"{name} keeps the {name[::-1]} key{' in a box' * (4 + 5 * n)}." for n, name in enumerate("ABCDE"))


def body_of(*texts: str, question: str = "what?", tokens: int = 8, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "documents": [{"text": text} for text in texts], "max_tokens": tokens, **more}


def expected_text(reference: Engine, request: GenerationRequest) -> str:
    return "".join(output.text for output in reference.generate(request))


def combine_stats(running: Any) -> WorkerStats:
    return next(stats for stats in running.cluster.stats() if stats.role == "combine")


def wait_until_idle(running: Any, seconds: float = 5.0) -> WorkerStats:
    """Stats once nothing is open any more; fails if that takes longer."""
    deadline = time.monotonic() + seconds
    while (stats := combine_stats(running)).open_requests or stats.leases:
        assert time.monotonic() < deadline, stats
        time.sleep(0.05)
    return stats


def test_entries_from_scatter_workers_are_the_engines_own(running: Any, reference: Engine, make_request: Any) -> None:
    """Bit by bit: built in another process, alone, and carried here."""
    tasks = reference.warm(list(make_request("warm", *TEXTS).segments[1:-1]))
    assert len(tasks) == 5
    for number, task in enumerate(tasks):
        actor = running.cluster.workers.actors[f"scatter-{number % 2}"]
        built: BuiltSegment = ray.get(actor.build.remote(task))
        arrived, own = decode_entry(built.payload), reference.build([task])[0]
        assert arrived.key == own.key
        for name, tensor in own.tensors.items():
            assert torch.equal(arrived.tensors[name], tensor), name


def test_cold_shuffled_and_mixed_over_http(running: Any, reference: Engine, make_request: Any) -> None:
    with httpx.Client(base_url=running.url, timeout=60) as client:
        answers = []
        for texts in (TEXTS, TEXTS[::-1], (TEXTS[2], "a text that nobody has seen so far", TEXTS[0])):
            response = client.post(CHAT, json=body_of(*texts, hypic={"explain": True}))
            assert response.status_code == 200, response.text
            answers.append(response.json())
            text = answers[-1]["choices"][0]["message"]["content"]
            assert text == expected_text(reference, make_request("r", *texts))
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    plans = [answer["hypic"]["plan"]["segments"] for answer in answers]
    assert cached[0] == sum(row["tokens"] for row in plans[0] if row["source"] == "prefix")
    seam_tokens = 8
    documents = [row for row in plans[1] if row["kind"] == "document"]
    assert {row["key"] for row in documents} == {row["key"] for row in plans[0] if row["kind"] == "document"}
    template = sum(row["tokens"] for row in plans[1] if row["source"] == "prefix")
    assert cached[1] == template + sum(row["tokens"] - seam_tokens for row in documents)
    assert [row["source"] for row in plans[2] if row["kind"] == "document"] == ["segment", "build", "segment"]
    assert set(answers[0]["hypic"]["timings"]["segments_by_worker"]) == {"scatter-0", "scatter-1"}


def test_the_openai_client_works_unchanged(running: Any, reference: Engine, make_request: Any) -> None:
    client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    documents = [{"text": text} for text in TEXTS[:2]]
    asked: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": "what?"}],
        "max_tokens": 8,
        "extra_body": {"documents": documents},
    }
    assert asked["model"] == running.model
    whole = client.chat.completions.create(**asked)
    expected = expected_text(reference, make_request("r", *TEXTS[:2]))
    assert whole.choices[0].message.content == expected
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
    with pytest.raises(openai.BadRequestError, match="n: at most 16") as refusal:
        client.chat.completions.create(**asked, n=99)
    assert refusal.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**asked, "model": "gpt-4"})


def test_bad_input_over_a_socket(running: Any) -> None:
    with httpx.Client(base_url=running.url, timeout=60) as client:
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        for content, status, code in (
            (b"{no json", 400, "invalid_json"),
            (json.dumps(body_of("word " * 200_000)).encode(), 400, "context_length_exceeded"),
            (json.dumps(body_of(hypic={"arm": "leg"})).encode(), 400, "invalid_request"),
            (json.dumps({"messages": []}).encode(), 400, "invalid_request"),
            (b" " * (33 * 1024**2), 413, "body_too_large"),
        ):
            response = client.post(CHAT, content=content, headers={"Content-Type": "application/json"})
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    wait_until_idle(running)


def test_a_long_document_holds_up_nobody(running: Any) -> None:
    """While one request is tokenised and refused, another is answered."""
    with httpx.Client(base_url=running.url, timeout=60) as client, ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(client.post, CHAT, json=body_of("word " * 900_000)) for _ in range(2)]
        time.sleep(0.2)
        began = time.monotonic()
        assert client.get("/v1/models").status_code == 200
        seconds = time.monotonic() - began
        assert [future.result().status_code for future in slow] == [400, 400]
        assert seconds < 3.0


def test_requests_at_once_do_not_mix(running: Any, reference: Engine, make_request: Any) -> None:
    questions = [f"question {number}?" for number in range(6)]

    def ask(question: str) -> str:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            response = client.post(CHAT, json=body_of(*TEXTS[:3], question=question, tokens=12))
        return str(response.json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, questions))
    expected = [
        expected_text(reference, make_request("r", *TEXTS[:3], question=question, tokens=12)) for question in questions
    ]
    assert answers == expected
    assert len(set(answers)) > 1


def test_a_client_that_leaves_in_mid_stream_frees_everything(running: Any) -> None:
    before = combine_stats(running).requests
    with httpx.Client(base_url=running.url, timeout=60) as client:
        body = body_of(*TEXTS[:3], tokens=3000, stream=True)
        with client.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()
            for _ in range(5):
                next(lines)
            assert combine_stats(running).open_requests == 1
    stats = wait_until_idle(running, 3.0)
    assert stats.requests == before + 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_frees_everything(running: Any, stream: bool) -> None:
    texts = [f"{stream} {number} " + "cold words " * 60 for number in range(4)]
    with httpx.Client(base_url=running.url, timeout=0.03) as client, pytest.raises(httpx.TimeoutException):
        client.post(CHAT, json=body_of(*texts, tokens=1000, stream=stream))
    time.sleep(0.3)
    wait_until_idle(running, 3.0)


def test_the_other_arms_agree_with_the_engine(running: Any, reference: Engine, make_request: Any) -> None:
    for arm in ("full", "prefix", "last_state", "transition", "anchored"):
        texts = [f"for {arm}: {text}" for text in TEXTS[:2]]  # an exact prefix of one arm would serve the others
        request = make_request(f"arm-{arm}", *texts, arm=arm)
        completion = running.cluster.complete(request)
        assert completion.text == expected_text(reference, request)
        assert completion.record.plan.arm == arm


def _wait_well(running: Any) -> None:
    deadline = time.monotonic() + 60
    with httpx.Client(base_url=running.url, timeout=10) as client:
        while client.get("/health").json()["status"] != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_killed_scatter_worker_costs_seconds_not_answers(
    moment: str, running: Any, reference: Engine, make_request: Any
) -> None:
    texts = [f"{moment} {number} " + f"uncommon words {number} " * 20 for number in range(8)]
    expected = expected_text(reference, make_request("r", *texts))
    pid = ray.get(running.cluster.workers.actors["scatter-0"].hello.remote()).pid
    delay = 0.0 if moment == "before" else 0.05
    killer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
    killer.start()
    if moment == "before":
        killer.join()
    began = time.monotonic()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        response = client.post(CHAT, json=body_of(*texts, hypic={"explain": True}))
    seconds = time.monotonic() - began
    killer.join()
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == expected
    assert seconds < 10
    assert len(response.json()["hypic"]["timings"]["builds"]) == 8
    wait_until_idle(running)
    _wait_well(running)


def test_through_rays_proxy_ids_are_one_and_metrics_count(running: Any) -> None:
    """Ray Serve's proxy sends an X-Request-Id of its own: ours must not come twice, nor be another."""
    with httpx.Client(base_url=running.url, timeout=60) as client:
        mine = client.get("/v1/models", headers={"X-Request-Id": "mine-1"})
        assert mine.headers.get_list("X-Request-Id") == ["mine-1"]
        assert client.get("/v1/models", headers={"X-Request-Id": "a b"}).status_code == 400
        assert len(client.post(CHAT, json={}).headers.get_list("X-Request-Id")) == 1
        told = client.get("/metrics").text
    assert 'hypic:http_requests_total{handler="/v1/models",method="GET",status="400"}' in told
    assert 'hypic:worker_up{role="combine",worker="combine-0"} 1.0' in told


def test_a_killed_combine_worker_is_an_error_then_well_again(
    running: Any, reference: Engine, make_request: Any
) -> None:
    """Last, since it takes the cache along."""
    pid = ray.get(running.cluster.workers.actors["combine-0"].hello.remote()).pid
    with httpx.Client(base_url=running.url, timeout=60) as client:
        with client.stream("POST", CHAT, json=body_of(*TEXTS[:2], tokens=3000, stream=True)) as response:
            lines = response.iter_lines()
            next(lines)
            os.kill(pid, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "worker_lost"
        refused = client.post(CHAT, json=body_of(*TEXTS[:2]))
        if refused.status_code != 200:  # it may be back already
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) > 0
        _wait_well(running)
        again = client.post(CHAT, json=body_of(*TEXTS[:2]))
    assert again.status_code == 200, again.text
    text = again.json()["choices"][0]["message"]["content"]
    assert text == expected_text(reference, make_request("r", *TEXTS[:2]))
