"""Wrong and hostile input: it costs nothing but its own error."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from http_service import BODY, CHAT, COMPLETIONS, check_envelope
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from hypic.prompt import chat_segments
from hypic.router.bodies.chat import ChatBody
from hypic.router.service import ServedModel
from hypic.segment import Document, Message
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
        ('{"messages": [{"role": "user", "content": "b\u00f6x"}]}'.encode("utf-16"), 400, "invalid_json"),
        ('{"messages": [{"role": "user", "content": "b\u00f6x"}]}'.encode("latin-1"), 400, "invalid_json"),
        ('{"messages": []}'.encode("utf-8-sig"), 400, "invalid_json"),
        (gzip.compress(b'{"messages": []}'), 400, "invalid_json"),
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


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"]
)
def test_a_body_that_is_not_announced_as_json_is_told_so(kind: str, client: TestClient) -> None:
    response = client.post(CHAT, content=json.dumps(BODY), headers={"Content-Type": kind})
    assert "Content-Type: application/json" in check_envelope(response, 400, "invalid_json")["message"]


def many(item: str) -> str:
    """A list of some 300 kB."""
    return "[" + ",".join([item] * (300_000 // (len(item) + 1))) + "]"


FIELDS = "{" + ",".join(f'"k{number:x}":1' for number in range(30_000)) + "}"
USER = '{"role":"user","content":'
BOMBS = {
    "numbers for prompts": (COMPLETIONS, '{"prompt":' + many("1.5") + "}"),
    "texts and then numbers": (COMPLETIONS, '{"prompt":["a",' + many("1")[1:] + "}"),
    "empty prompts": (COMPLETIONS, '{"prompt":' + many("[]") + "}"),
    "token ids": ("/generate", '{"input_ids":' + many("1") + "}"),
    "separators": (COMPLETIONS, '{"prompt":"' + "<<PIC_SEP>>" * 90_000 + '"}'),
    "10,000 separators in SGLang's shape": ("/generate", '{"text":"' + "a<<PIC_SEP>>" * 10_000 + '"}'),
    "one word": (COMPLETIONS, '{"prompt":"' + "a" * 10**6 + '"}'),
    "special tokens": (COMPLETIONS, '{"prompt":"' + "<|im_end|>" * 10**5 + '"}'),
    "documents that are none": (CHAT, '{"messages":[],"documents":' + many("{}") + "}"),
    "messages that are none": (CHAT, '{"messages":' + many("1") + "}"),
    "messages": (CHAT, '{"messages":' + many('{"role":"user"}') + "}"),
    "parts that are none": (CHAT, '{"messages":[' + USER + many("1") + "}]}"),
    "parts": (CHAT, '{"messages":[' + USER + many('{"type":"text","text":"a"}') + "}]}"),
    "stops": (CHAT, '{"messages":[],"stop":' + many('""') + "}"),
    "fields": (CHAT, FIELDS),
    "fields of a document": ("/v1/segments", '{"documents":[' + FIELDS + "]}"),
    "biased tokens": (CHAT, '{"messages":[],"logit_bias":' + FIELDS + "}"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_what_a_refusal_costs_does_not_grow_with_what_is_wrong(case: str, client: TestClient) -> None:
    """Bodies of which every item is a fault, or one too many. A value of two bytes is a Python object of some 60;
    where each fault was kept, it took more than a kilobyte, and a body of 3 MB took 3 GB."""
    path, body = BOMBS[case]
    tracemalloc.start()
    try:
        response = client.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert response.status_code == 400, response.text[:200]
    assert len(response.content) < 1000
    assert peak_bytes < 80 * len(body)


NASTY = ["<<PIC_SEP>>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end", "|>", "system\n", "\u202e", "\x00"]
NASTY += ["e\u0301", "\u200d", "\U0001f469\u200d\U0001f680", "\ufeff", "\u0661", "\ufffd"]


@given(st.lists(st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=12))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_of_a_user_becomes_a_special_token_or_a_border(model: ServedModel, pieces: list[str]) -> None:
    text = "".join(pieces)
    plain, special = model.tokenizer, set(model.tokenizer._added.values())
    segments = chat_segments(plain, [Message("user", text)], [Document(text, title=text), Document("b" + text)])
    bare = chat_segments(plain, [Message("user", "a")], [Document("a"), Document("b")])
    assert [segment.kind for segment in segments] == [segment.kind for segment in bare]
    for section, of_bare in zip(segments, bare, strict=True):
        found = [token for token in section.token_ids.tolist() if token in special]
        assert found == [token for token in of_bare.token_ids.tolist() if token in special]
    assert plain.decode(segments[2].token_ids.tolist()) == Document("b" + text).section


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
