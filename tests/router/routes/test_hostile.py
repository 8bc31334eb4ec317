"""Wrong and hostile input: it costs nothing but its own error."""

from collections.abc import Iterator
from typing import Any

import pytest
from http_service import CHAT, check_envelope
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from hypic.router.bodies.chat import ChatBody
from hypic.workers.combine import CombineWorker


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{not json", 400, "invalid_json"),
        (b"", 400, "invalid_value"),
        (b"[]", 400, "invalid_value"),
        (b'"text"', 400, "invalid_value"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"messages": "\xc3\x28"}', 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "invalid_value"),
        (b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}', 400, "invalid_json"),
        (b'{"messages": [], "n": 1, "n": 2}', 400, "invalid_json"),
        (b'{"documents": [{"text": "a", "text": "b"}]}', 400, "invalid_json"),
        (b'{"n": -Infinity}', 400, "invalid_json"),
        (b'{"n": 1' + b"0" * 5000 + b"}", 400, "invalid_json"),
        (b'{"n": 1e999}', 400, "invalid_value"),
        (b'{"max_tokens": 99999999999999999999}', 400, "invalid_value"),
        (b'{"\\ud800": 1}', 400, "invalid_value"),
        (b'{"' + b"k" * 5000 + b'": 1}', 400, "invalid_value"),
        (b'{"metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, 400, "invalid_json"),
        (b'{"messages": "' + b"x" * (3 * 1024**2) + b'"}', 413, "body_too_large"),
    ],
)
def test_broken_bytes_are_refused(content: bytes, status: int, code: str, client: TestClient) -> None:
    response = client.post(CHAT, content=content, headers={"Content-Type": "application/json"})
    check_envelope(response, status, code)


def test_a_body_of_unannounced_length_is_limited_too(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 100_000

    response = client.post(CHAT, content=pieces(), headers={"Content-Type": "application/json"})
    check_envelope(response, 413, "body_too_large")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "developer", "tool"]),
            "content": st.text(max_size=40) | st.none() | ANYTHING,
        }
    ),
    max_size=4,
)
DOCUMENT_LISTS = st.lists(
    st.fixed_dictionaries({"text": st.text(max_size=60)}, optional={"title": ANYTHING}), max_size=5
)


@given(
    st.fixed_dictionaries(
        {"messages": MESSAGES | ANYTHING, "max_tokens": st.integers(-1, 3)},
        optional={field: ANYTHING for field in ChatBody.model_fields if field not in ("messages", "max_tokens")}
        | {"documents": DOCUMENT_LISTS, "stop": st.lists(st.text(max_size=3), max_size=3), "stream": st.booleans()},
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_is_a_fault_of_ours(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post(CHAT, json=body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]


def test_after_all_that_nothing_is_held(client: TestClient, combine: CombineWorker) -> None:
    stats = combine._engine.call(lambda engine: (engine.segments.stats.leases, engine.prefixes.stats.leases))
    assert stats.result() == (0, 0)
    assert combine._streams == {}
