"""Every route answers as /openapi.json says: to bodies made from the schema, and to bodies that break it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import schemathesis
from http_service import BODY, CHAT, COMPLETIONS, DOCUMENTS, app_over, listening
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks

from hypic.router.api import build_api
from hypic.router.dispatcher import Dispatcher
from hypic.router.keys import ApiKeys, Tenant
from hypic.router.service import ServedModel, Service
from hypic.workers.combine import CombineWorker

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]
EXAMPLES = 12
"""Of each route, beside the ones that schemathesis derives from each field."""

MOST_TOKENS = 64
"""Of prompt and answer: most of what is drawn stays quick to answer."""


def described(keys: ApiKeys | None = None) -> dict[str, Any]:
    def load(max_tokens: int) -> ServedModel:
        raise AssertionError(max_tokens)

    return build_api(Service(Dispatcher([], []), load, keys=keys)).openapi()


SCHEMA = schemathesis.openapi.from_dict(described())


@pytest.fixture(scope="module")
def small_url(combine: CombineWorker, model: ServedModel) -> Iterator[str]:
    with listening(app_over(combine, [], replace(model, max_tokens=MOST_TOKENS))) as url:
        yield url


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_drawn_bodies_get_described_answers(case: Any, small_url: str) -> None:
    keep_short(case.body)
    case.call_and_validate(base_url=small_url, checks=CHECKS)


def test_after_all_that_nothing_is_held(combine: CombineWorker) -> None:
    assert combine._streams == {}
    held = combine._engine.call(lambda engine: (engine.segments.stats.leases, engine.prefixes.stats.leases))
    assert held.result() == (0, 0)


TWICE = {"n": 2, "temperature": 1.0, "hypic": {"explain": True}}
WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {**BODY, **TWICE, "logprobs": True, "top_logprobs": 2},
    COMPLETIONS: {"prompt": "what?", "max_tokens": 4, **TWICE, "logprobs": 2},
    "/generate": {"text": "what?", "return_logprob": True, "top_logprobs_num": 2, "hypic": {"explain": True}},
    "/v1/segments": {"documents": [*DOCUMENTS, {"text": "short"}, {"text": "too long " * 600}]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", WHOLE)
def test_whole_answers_and_streams_are_as_described(path: str, stream: bool, url: str) -> None:
    body = {**WHOLE[path], "stream": stream}
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
    SCHEMA[path]["POST"].validate_response(answer)
    if stream:  # and a chunk that is not what it should be is found
        wrong = re.sub(rb'"index": ?0', b'"index":"0"', answer.content)
        altered = httpx.Response(200, headers=answer.headers, content=wrong, request=answer.request)
        altered.elapsed = answer.elapsed
        with pytest.raises((Failure, FailureGroup), match="violates schema"):
            SCHEMA[path]["POST"].validate_response(altered)


def test_the_schema_says_where_a_key_is_asked_for() -> None:
    guarded = described(ApiKeys({"0" * 64: Tenant("a")}))["paths"]
    assert guarded["/v1/models"]["get"]["security"] == [{"key": []}]
    assert guarded["/health"]["get"]["security"] == []
    assert "security" not in described()["paths"]["/v1/models"]["get"]


def test_422_is_nowhere() -> None:
    for path, operations in described()["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"], path


def keep_short(body: Any) -> None:
    """Answers of thousands of tokens are taken, but nobody waits for them here."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens", "max_new_tokens"):
        asked = body.get(name)
        if type(asked) is int and MOST_TOKENS < asked < 5000:
            body[name] = 4
    keep_short(body.get("sampling_params"))
