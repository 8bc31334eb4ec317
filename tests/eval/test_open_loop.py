"""The client against a server of a few lines: it sends on time whether or not it is answered, and says so if not."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from hypic.eval.open_loop import LateClientError, Sample, check_on_time, one_by_one, replay

SLOW_SECONDS = 0.15


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


class Canned(BaseHTTPRequestHandler):
    """Answers as the request says: streams "a" and "b", breaks off, reports an error, is empty or refuses."""

    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        kind = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["kind"]
        self.send_response(503 if kind == "refused" else 200)
        self.end_headers()
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        pieces = {
            "refused": [b"busy"],
            "broken": [event(choices=[{"delta": {"content": "a"}}])],
            "error": [event(error={"message": "it fell over"})],
            "empty": [event(choices=[{"delta": {}}]), b"data: [DONE]\n\n"],
        }.get(kind)
        texts = [event(choices=[{"delta": {"content": text}}]) for text in "ab"]
        for piece in pieces or [texts[0], b"", texts[1], event(choices=[], usage=usage), b"data: [DONE]\n\n"]:
            time.sleep(0 if piece else SLOW_SECONDS)
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Canned) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def body(kind: str = "fine") -> bytes:
    return json.dumps({"kind": kind}).encode()


def test_sends_do_not_wait_for_answers(url: str) -> None:
    done: list[int] = []
    due = [0.01 * number for number in range(8)]
    samples = replay(url, [body()] * 8, due, lambda: done.append(1))
    assert len(done) == 8
    assert [sample.due_seconds for sample in samples] == due
    assert all(sample.sent_seconds >= sample.due_seconds for sample in samples)
    assert samples[-1].sent_seconds < samples[0].done_seconds, "the last was sent while the first was being answered"
    for sample in samples:
        assert (sample.text, sample.error) == ("ab", "")
        assert (sample.prompt_tokens, sample.output_tokens, sample.cached_tokens) == (9, 2, 4)
        first, second = sample.text_seconds
        assert sample.due_seconds < first < second <= sample.done_seconds
        assert sample.ttft_seconds == first - sample.due_seconds


def test_one_by_one_waits(url: str) -> None:
    samples = one_by_one(url, [body()] * 3)
    assert all(after.sent_seconds >= before.done_seconds for before, after in pairwise(samples))


@pytest.mark.parametrize(
    ("kind", "said"),
    [("refused", "status 503: busy"), ("broken", "DONE"), ("error", "it fell over"), ("empty", "is empty")],
)
def test_what_is_no_answer_is_an_error(url: str, kind: str, said: str) -> None:
    (sample,) = replay(url, [body(kind)], [0.0])
    assert said in sample.error


def test_a_server_that_is_not_there_is_an_error() -> None:
    (sample,) = replay("http://127.0.0.1:9", [body()], [0.0])
    assert "ConnectError" in sample.error


def test_lateness_is_found(url: str) -> None:
    """Something blocks the client between two sends: the second is late by what is left of it."""
    samples = replay(url, [body("empty"), body(), body()], [0.0, 0.2, 0.25], lambda: time.sleep(0.5))
    assert samples[1].lag_seconds > 0.2
    assert samples[1].ttft_seconds > samples[1].lag_seconds, "waiting in the client counts"
    with pytest.raises(LateClientError, match="ms late"):
        check_on_time(samples, 0.1)


def test_punctual_clients_pass() -> None:
    samples = [Sample(float(number), number + 0.001 * number) for number in range(100)]
    assert check_on_time(samples, 0.2) == pytest.approx(0.099)
