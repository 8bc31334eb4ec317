"""A service in this process for the tests of dispatcher and API, and one real Ray cluster for the rest."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from safetensors.torch import load_file, save_file

from hypic.arms import ARMS
from hypic.config import ClusterConfig, EngineConfig, ServerConfig
from hypic.engine.composer import BuildTask
from hypic.engine.engine import Engine
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.router.cluster import LocalCluster
from hypic.segment import Document, Message
from hypic.tokenizer import PromptTokenizer
from hypic.workers.combine import CombineWorker
from hypic.workers.ports import BuiltSegment, WorkerInfo, WorkerStats
from hypic.workers.scatter import ScatterWorker

MakeRequest = Callable[..., GenerationRequest]


@pytest.fixture(scope="session")
def chatty_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends a text by itself, so that answers have the length that was asked for."""
    path = write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "chatty", seed=1)
    weights = load_file(path / "model.safetensors")
    weights["lm_head.weight"][256:] = 0  # of 272 logits the largest is practically never 0
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    assert json.loads((path / "config.json").read_text())["vocab_size"] == 272
    return path


@pytest.fixture(scope="session")
def engine_config(chatty_checkpoint: Path) -> EngineConfig:
    return EngineConfig(model=chatty_checkpoint, threads=1)


@pytest.fixture(scope="session")
def reference(engine_config: EngineConfig) -> Engine:
    """An engine of its own in this process: what every way through the cluster must agree with."""
    torch.set_num_threads(1)
    return Engine(engine_config)


@pytest.fixture(scope="session")
def make_request(chatty_checkpoint: Path) -> MakeRequest:
    """Requests from document texts."""
    tokenizer = PromptTokenizer.load(chatty_checkpoint)

    def make(
        name: str, *texts: str, question: str = "what?", tokens: int = 8, arm: str = "hypic", salt: str = ""
    ) -> GenerationRequest:
        segments = chat_segments(tokenizer, [Message("user", question)], [Document(text) for text in texts])
        return GenerationRequest(name, segments, ARMS[arm], SamplingParams(max_tokens=tokens), salt)

    return make


class ThreadScatter:
    """`ScatterPort` of a scatter worker in a thread. broken: every build fails from now on."""

    def __init__(self, worker: ScatterWorker) -> None:
        self.worker, self.name, self.broken = worker, worker.name, False
        self.tasks: list[BuildTask] = []
        self._pool = ThreadPoolExecutor(1)

    def build(self, task: BuildTask) -> Awaitable[BuiltSegment]:
        self.tasks.append(task)
        return asyncio.ensure_future(self._build(task))

    async def _build(self, task: BuildTask) -> BuiltSegment:
        if self.broken:
            raise TimeoutError("no answer")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.worker.build, task)

    async def hello(self) -> WorkerInfo:
        while self.broken:
            await asyncio.sleep(0.01)
        return self.worker.hello()

    async def stats(self) -> WorkerStats:
        return self.worker.stats()


@dataclass
class InProcess:
    """Two scatter workers and two combine workers without Ray; fresh caches for each test."""

    scatter: list[ThreadScatter]
    combine: list[CombineWorker]


@pytest.fixture(scope="session")
def scatter_ports(engine_config: EngineConfig) -> list[ThreadScatter]:
    return [ThreadScatter(ScatterWorker(f"scatter-{number}", engine_config)) for number in range(2)]


@pytest.fixture
def in_process(engine_config: EngineConfig, scatter_ports: list[ThreadScatter]) -> Iterator[InProcess]:
    for port in scatter_ports:
        port.broken = False
        port.tasks.clear()
    combine = [CombineWorker(f"combine-{number}", engine_config) for number in range(2)]
    yield InProcess(scatter_ports, combine)
    for worker in combine:
        worker.stop()


@dataclass
class Running:
    """A real cluster with its HTTP server."""

    cluster: LocalCluster
    url: str
    model: str


@pytest.fixture(scope="session")
def running(engine_config: EngineConfig) -> Iterator[Running]:
    """Ray, two scatter workers, one combine worker, Ray Serve."""
    from hypic.router.app import HttpServer, model_id

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = ServerConfig(port=probe.getsockname()[1])
    config = ClusterConfig(scatter_workers=2, combine_workers=1, placement="lpt")
    with (
        LocalCluster(engine_config, config) as cluster,
        HttpServer(cluster.workers.names, engine_config, config, server) as http,
    ):
        yield Running(cluster, http.wait(), model_id(engine_config))
