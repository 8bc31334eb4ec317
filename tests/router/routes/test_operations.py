"""What is served, sessions, and the handles of operators."""

from typing import Any

from http_service import BODY, CHAT, cached_tokens, check_envelope
from starlette.testclient import TestClient

from hypic.workers.combine import CombineWorker


def test_models_and_health(client: TestClient) -> None:
    (served,) = client.get("/v1/models").json()["data"]
    assert (served["id"], served["max_model_len"]) == ("tiny", 4096)
    assert client.post(CHAT, json={**BODY, "model": "tiny"}).status_code == 200
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    assert client.get("/health_generate").status_code == 200
    check_envelope(client.get("/nothing"), 404, "not_found")
    check_envelope(client.get(CHAT), 405, "method_not_allowed")


def test_the_server_tells_its_limits_and_its_workers(client: TestClient) -> None:
    info = client.get("/server_info").json()
    assert (info["model"], info["max_tokens"], info["arm"]) == ("tiny", 4096, "hypic")
    assert info["limits"]["max_choices"] == 4
    names = [worker["name"] for worker in info["workers"]]
    assert names == ["combine-0", "scatter-0", "scatter-1"]


def test_a_flush_makes_everything_cold(client: TestClient) -> None:
    body = {**BODY, "cache_salt": "flush"}
    client.post(CHAT, json=body)
    assert cached_tokens(client.post(CHAT, json=body).json()) > 0
    assert client.post("/flush_cache").json()["segments"] > 0
    assert cached_tokens(client.post(CHAT, json=body).json()) == 0


def sessions_of(combine: CombineWorker) -> Any:
    return combine._engine.call(lambda engine: engine.memory.sessions).result()


def test_sessions_open_and_close(client: TestClient, combine: CombineWorker) -> None:
    name = client.post("/open_session", json={"capacity_of_str_len": 1000}).json()
    assert name.startswith("session-")
    assert name in {key.split(":", 1)[1] for key in sessions_of(combine)._generations}
    assert client.post("/open_session", json={"session_id": "mine"}).json() == "mine"
    client.post(CHAT, json={**BODY, "session_id": "mine"})
    refers = sessions_of(combine)._cells["0:mine"]
    assert refers
    assert client.post("/close_session", json={"session_id": "mine"}).status_code == 200
    assert "0:mine" not in sessions_of(combine)._generations
    client.post(CHAT, json={**BODY, "session_id": "mine"})  # too late: it does not open it again
    assert "0:mine" not in sessions_of(combine)._generations
    client.post("/close_session", json={"session_id": name})
    check_envelope(client.post("/close_session", json={"session_id": ""}), 400, "invalid_value")


def test_sessions_of_different_salts_do_not_meet(client: TestClient, combine: CombineWorker) -> None:
    client.post("/open_session", json={"session_id": "s", "cache_salt": "a"})
    client.post("/close_session", json={"session_id": "s", "cache_salt": "b"})
    assert "1:as" in sessions_of(combine)._generations
    client.post("/close_session", json={"session_id": "s", "cache_salt": "a"})
    assert "1:as" not in sessions_of(combine)._generations
