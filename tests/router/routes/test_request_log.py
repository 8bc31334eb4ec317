"""The request log: a line a request, with figures and without anything that a client wrote."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_service import CHAT, SMALL, app_over, client_of

from hypic.config import ServerConfig
from hypic.errors import HypicError
from hypic.router import request_log
from hypic.router.observation import Observation
from hypic.router.observers import check_observers
from hypic.router.request_log import RequestLog, relayed
from hypic.router.service import ServedModel
from hypic.workers.combine import CombineWorker


def lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Once there are so many."""
    for _ in range(500):
        found = path.read_text().splitlines() if path.exists() else []
        if len(found) >= count:
            return [json.loads(line) for line in found]
        time.sleep(0.01)
    raise AssertionError((count, found))


def test_a_line_for_every_request(
    combine: CombineWorker, scatter_ports: Any, model: ServedModel, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    for port in scatter_ports:
        port.broken = False
    secret = {
        "messages": [{"role": "user", "content": "zq question"}],
        "documents": [{"id": "zq-id", "title": "zq", "text": "zq text that is long enough to be kept for later"}],
        "session_id": "zq-session",
        "cache_salt": "zq-log",
        "max_tokens": 4,
    }
    with client_of(app_over(combine, scatter_ports, model, replace(SMALL, request_log=str(path)))) as client:
        started = len(lines(path, 1))  # the client asked until the workers were there
        cold = client.post(CHAT, json=secret, headers={"X-Request-Id": "id-1"}).json()
        client.post(CHAT, json=secret)
        client.post(CHAT, json={**secret, "hypic": {"arm": "zq"}})
        client.post(CHAT, json={**secret, "stream": True})
        found = lines(path, started + 4)[started:]
        path.rename(tmp_path / "requests.jsonl.1")  # as logrotate does
        client.get("/nowhere")
        (unrouted,) = lines(path, 1)
    first, second, refused, streamed = found
    assert (first["request_id"], first["status"], first["outcome"], first["error"]) == ("id-1", 200, "ok", "")
    assert first["prompt_tokens"] == cold["usage"]["prompt_tokens"]
    assert (first["cached_tokens"], first["completion_tokens"]) == (0, 4)
    (generation,) = first["generations"]
    assert generation["segments"]["build/cold"] == 1
    assert generation["id"] == cold["id"]
    (build,) = generation["builds"]
    assert build["worker"] in ("scatter-0", "scatter-1")
    assert build["bytes"] > 0
    assert 0 < generation["ttft_seconds"] <= generation["seconds"] <= first["seconds"]
    assert second["cached_tokens"] > 0
    assert second["generations"][0]["builds"] == []
    assert (refused["status"], refused["error"], refused["generations"]) == (400, "invalid_request", [])
    assert streamed["generations"][0]["finished"] == ["length"]
    assert (unrouted["route"], unrouted["status"]) == ("", 404)
    assert "zq" not in json.dumps([*found, unrouted])


def test_lines_that_a_slow_disk_holds_up_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "HELD_LINES", 2)
    lost: list[None] = []
    log = RequestLog(str(tmp_path / "log"), lambda: lost.append(None))
    log._listener.stop()  # nobody writes
    for _ in range(5):
        log.ended(Observation("a", status=200, complete=True).end("GET", "/health", ""))
    assert len(lost) == 3
    log._listener.start()
    log.close()
    assert len(lines(tmp_path / "log", 2)) == 2


def test_stdout_of_another_process_is_relayed(capsys: pytest.CaptureFixture[str]) -> None:
    with relayed("-") as path:
        log = RequestLog(path, lambda: None)
        log.ended(Observation("über", status=200, complete=True).end("GET", "/health", "acme"))
        log.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["request_id"] == "über"
    assert json.loads(line)["tenant"] == "acme"
    with relayed("/some/file") as path:
        assert path == "/some/file"


def test_what_cannot_work_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(HypicError, match="cannot write the request log"):
        check_observers(ServerConfig(request_log=str(tmp_path / "no" / "log")), joins=False)
    with pytest.raises(HypicError, match="name a file"):
        check_observers(ServerConfig(request_log="-"), joins=True)
    with pytest.raises(ValueError, match="otlp_endpoint must be an http"):
        ServerConfig(otlp_endpoint="collector:4318")
    check_observers(ServerConfig(request_log="-", otlp_endpoint="http://localhost:4318"), joins=False)
