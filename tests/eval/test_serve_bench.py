"""The benchmark against a real server: HTTP, dispatcher and engine of this process."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from hypic.config import ClusterConfig, EngineConfig
from hypic.errors import GenerationError, InvalidRequestError
from hypic.eval import serve_bench
from hypic.eval.open_loop import Sample
from hypic.eval.serve_bench import check_answers, check_gate, cut, run_serve_bench
from hypic.eval.serve_config import LoadConfig
from hypic.eval.ttft import GateError
from hypic.router.api import build_api
from hypic.router.dispatcher import Dispatcher
from hypic.router.service import ServedModel, Service
from hypic.tokenizer import PromptTokenizer
from hypic.workers.combine import CombineWorker


@pytest.fixture(scope="module")
def url(tiny_checkpoint: Path) -> Iterator[str]:
    """One combine worker behind HTTP, without Ray."""
    worker = CombineWorker("combine-0", EngineConfig(model=tiny_checkpoint, threads=1))
    tokenizer = PromptTokenizer.load(tiny_checkpoint)
    service = Service(Dispatcher([], [worker]), lambda tokens: ServedModel("tiny", tokenizer, tokens, "hypic", 0))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(build_api(service), log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        while not (server.started and httpx.get(f"{address}/health").status_code == 200):
            time.sleep(0.01)
        yield address
        server.should_exit = True
        thread.join(timeout=10)
        worker.stop()


def load(url: str, **changed: object) -> LoadConfig:
    settings = {"rounds": 2, "requests": 4, "lead": 8, "prompt_scale": 0.1, "output_scale": 0.02, "url": url} | changed
    return LoadConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("trace", ["ragpulse", "synthetic"])
def test_a_small_run(tiny_checkpoint: Path, url: str, trace: str) -> None:
    config = EngineConfig(model=tiny_checkpoint, threads=1)
    settings = load(url, trace=trace, ttft_limit_ms=60_000.0)
    report = run_serve_bench(config, ClusterConfig(), settings, ["hypic"])
    results = report.results
    assert list(results["arms"]) == ["prefix", "hypic"], "the baseline is always there"
    assert results["ttft_limit_ms"] == 60_000.0
    assert results["gate"]["prefix"] == 1.0
    for arm in results["arms"].values():
        first, second = arm["points"]
        assert (first["completed"], first["failed"]) == (4, 0)
        assert first["held"], first["reason"]
        assert second["qps"] == pytest.approx(1.5 * first["qps"])
        assert arm["sustainable_qps"] in (first["qps"], second["qps"])
        assert 0 < first["ttft_ms"]["median"] <= first["ttft_ms"]["p99"] <= first["e2el_ms"]["p99"]
    points = {name: arm["points"][0] for name, arm in results["arms"].items()}
    assert points["hypic"]["prompt_tokens"] == points["prefix"]["prompt_tokens"], "both saw the same requests"
    assert points["hypic"]["cached_tokens"] > points["prefix"]["cached_tokens"]
    ladder = report.tables[-1]
    assert len(ladder.rows) == 4


def test_a_wrong_answer_stops_it(tiny_checkpoint: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a strawman in the place of `prefix`, nothing is timed."""
    monkeypatch.setattr(serve_bench, "BASELINE", "last_state")
    with pytest.raises(GateError, match="nothing was timed"):
        run_serve_bench(EngineConfig(model=tiny_checkpoint, threads=1), ClusterConfig(), load(url), ["last_state"])


def test_gate_compares_the_same_requests() -> None:
    texts = [f"answer {number}" for number in range(8)]
    full = [Sample(0.0, text=text) for text in texts]
    prefix = [Sample(0.0, text="earlier"), *full]
    other = [Sample(0.0, text=text.upper() if number < 2 else text) for number, text in enumerate(texts)]
    assert check_gate({"prefix": prefix, "hypic": other, "full": full}) == {"prefix": 1.0, "hypic": 0.75, "full": 1.0}
    with pytest.raises(GateError):
        check_gate({"prefix": other, "full": full})


def test_failed_requests_are_refused() -> None:
    with pytest.raises(GenerationError, match="1 of 2 requests failed, the first with: the answer is empty"):
        check_answers([Sample(0.0, text="fine"), Sample(0.0, error="the answer is empty")])


def test_rounds_are_the_end_of_the_trace(url: str) -> None:
    requests = serve_bench.read_trace("synthetic", 0)
    found = cut(requests, load(url, prompt_scale=1.0), max_tokens=4200)
    assert [len(part) for part in (*found.rounds, found.lead)] == [4, 4, 8]
    assert found.left_out > 0
    assert found.rounds[-1][-1].seconds <= requests[-1].seconds
    assert found.earlier[-1].seconds < found.lead[0].seconds < found.rounds[0][0].seconds
    with pytest.raises(InvalidRequestError, match="lower --rounds"):
        cut(requests[:10], load(url), max_tokens=4200)


def test_settings_are_checked() -> None:
    wrong = {"arrivals": "never", "prompt_scale": 0.0, "rounds": 0, "lead": 2, "ttft_limit_ms": -1.0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"{value}"):
            LoadConfig(**{name: value})  # type: ignore[arg-type]
