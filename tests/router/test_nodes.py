"""Several nodes, `hypic serve --address`, and processes that are really killed or stopped: right answers or clear
errors within seconds, and nothing left behind.

Everything runs in processes of its own, and is killed by process id, as an operator's machine would do it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.cluster_utils import Cluster

from hypic.config import ClusterConfig, EngineConfig
from hypic.engine.engine import Engine
from hypic.eval.server_process import serving

pytestmark = pytest.mark.cluster

CHAT = "/v1/chat/completions"
SECONDS = 60.0
"""How long anything may take here before a test fails; what it waits for takes seconds on a free machine."""

WARM = ("the first warm document says this and that", "the second warm document says something else")


@dataclass
class Nodes:
    """A service whose workers are spread over three nodes of this machine, the first of which has the router."""

    cluster: Cluster
    url: str

    def processes(self, title: str) -> dict[int, int]:
        """Process ids of a kind of actor, and the raylet (the node) that each belongs to."""
        raylets = {process.process.pid for node in self.cluster.list_all_nodes() for process in _raylets(node)}
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name = (folder / "cmdline").read_bytes().decode(errors="replace")
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:  # it has just ended
                continue
            if parent in raylets and name.startswith(f"ray::{title}"):
                found[int(folder.name)] = parent
        return found

    def ask(self, *texts: str, tokens: int = 8, question: str = "what?") -> dict[str, Any]:
        """The whole answer of a request, tried again as clients do where it is told to come later."""
        deadline = time.monotonic() + SECONDS
        while True:
            body = body_of(*texts, tokens=tokens, question=question)
            response = httpx.post(self.url + CHAT, json=body, timeout=SECONDS)
            if response.status_code == 200:
                answer: dict[str, Any] = response.json()
                return answer
            assert response.status_code == 503, response.text
            assert int(response.headers["Retry-After"]) > 0
            assert time.monotonic() < deadline, response.text
            time.sleep(0.2)

    def settle(self) -> list[dict[str, Any]]:
        """Wait until every worker is well and holds nothing for anybody; what they count."""

        def settled() -> bool:
            health = httpx.get(f"{self.url}/health", timeout=SECONDS)
            if health.status_code != 200 or health.json()["status"] != "ok":
                return False
            stats = self.stats()
            return len(stats) == 4 and not any(worker["leases"] or worker["open_requests"] for worker in stats)

        until(settled)
        return self.stats()

    def stats(self) -> list[dict[str, Any]]:
        response = httpx.get(f"{self.url}/server_info", timeout=SECONDS)
        workers: list[dict[str, Any]] = response.json()["workers"] if response.status_code == 200 else []
        return workers


def _raylets(node: Any) -> list[Any]:
    return list(node.all_processes.get("raylet", []))


def body_of(*texts: str, tokens: int = 8, question: str = "what?", **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, **more}
    return {**body, "documents": [{"text": text} for text in texts], "hypic": {"explain": True}}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def nodes(engine_config: EngineConfig) -> Iterator[Nodes]:
    """After the last test some nodes may be gone."""
    memory = {"object_store_memory": 100 * 1024**2}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **memory})
    for _ in range(2):
        cluster.add_node(num_cpus=2, **memory)
    settings = ClusterConfig(scatter_workers=2, combine_workers=2, placement="lpt", address=cluster.address)
    try:
        with serving(engine_config, settings) as served:
            yield Nodes(cluster, served.url)
    finally:
        cluster.shutdown()


@pytest.fixture
def expected(reference: Engine, make_request: Any) -> Callable[..., str]:
    """What an engine in this process answers."""

    def answer(*texts: str, tokens: int = 8, question: str = "what?") -> str:
        request = make_request("r", *texts, tokens=tokens, question=question)
        return "".join(output.text for output in reference.generate(request))

    return answer


def test_workers_of_several_nodes_answer_as_one_engine(nodes: Nodes, expected: Callable[..., str]) -> None:
    workers = nodes.processes("CombineWorker") | nodes.processes("ScatterWorker")
    assert len(workers) == 4
    assert len(set(workers.values())) >= 2
    for texts in (WARM, WARM[::-1], (*WARM, "a third document that nobody has met so far")):
        assert text_of(nodes.ask(*texts)) == expected(*texts)
    assert sum(worker["delivered"] for worker in nodes.settle()) >= 3


def test_a_combine_worker_that_dies_before_the_first_token_is_replaced(
    nodes: Nodes, expected: Callable[..., str]
) -> None:
    """Two requests at once go to two workers, one of which stands still and is then killed."""
    nodes.ask(*WARM)
    victim = next(iter(nodes.processes("CombineWorker")))
    os.kill(victim, signal.SIGSTOP)
    questions = ["which one?", "which other one?"]
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(nodes.ask, *WARM, question=question) for question in questions]
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        found = [text_of(answer.result()) for answer in answers]
    assert found == [expected(*WARM, question=question) for question in questions]
    nodes.settle()


def test_a_combine_worker_that_stands_still_is_given_up_within_seconds(
    nodes: Nodes, expected: Callable[..., str]
) -> None:
    victim = next(iter(nodes.processes("CombineWorker")))
    os.kill(victim, signal.SIGSTOP)
    questions = ["what stands still?", "what goes on?"]
    try:
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(nodes.ask, *WARM, question=question) for question in questions]
            found = [text_of(answer.result()) for answer in answers]
    finally:
        os.kill(victim, signal.SIGCONT)
    assert found == [expected(*WARM, question=question) for question in questions]
    nodes.settle()


def test_a_combine_worker_that_dies_in_mid_answer_is_a_clear_error(nodes: Nodes) -> None:
    body = body_of(*WARM, tokens=3000, stream=True)
    with httpx.stream("POST", nodes.url + CHAT, json=body, timeout=SECONDS) as response:
        lines = response.iter_lines()
        next(lines)
        for pid in nodes.processes("CombineWorker"):
            os.kill(pid, signal.SIGKILL)
        rest = [line for line in lines if line]
    assert '"worker_lost"' in rest[-1]
    nodes.settle()


def test_a_scatter_worker_that_stands_still_costs_seconds(nodes: Nodes, expected: Callable[..., str]) -> None:
    texts = [f"cold document number {number} for a slow worker" for number in range(4)]
    victim = next(iter(nodes.processes("ScatterWorker")))
    os.kill(victim, signal.SIGSTOP)
    try:
        answer = nodes.ask(*texts)
    finally:
        os.kill(victim, signal.SIGCONT)
    assert text_of(answer) == expected(*texts)
    assert {build["cause"] for build in answer["hypic"]["timings"]["builds"]} == {"", "late"}
    nodes.settle()


def test_a_router_that_dies_under_load_is_started_again_and_leaves_nothing(
    nodes: Nodes, expected: Callable[..., str]
) -> None:
    """Its workers notice that it is gone; the new one learns from them what they hold."""
    nodes.ask(*WARM)
    (router,) = nodes.processes("ServeReplica")
    body = body_of(*WARM, tokens=3600, stream=True)
    with httpx.stream("POST", nodes.url + CHAT, json=body, timeout=SECONDS) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(router, signal.SIGKILL)
    until(lambda: bool(nodes.processes("ServeReplica").keys() - {router}))
    stats = nodes.settle()
    answer = nodes.ask(*WARM[::-1])
    assert text_of(answer) == expected(*WARM[::-1])
    assert answer["hypic"]["timings"]["segments_by_worker"] == {}, stats


def test_all_workers_gone_and_back(nodes: Nodes, expected: Callable[..., str]) -> None:
    for pid in (*nodes.processes("CombineWorker"), *nodes.processes("ScatterWorker")):
        os.kill(pid, signal.SIGKILL)
    assert text_of(nodes.ask(*WARM)) == expected(*WARM)
    nodes.settle()


def test_a_node_that_dies_takes_no_answer_along(nodes: Nodes, expected: Callable[..., str]) -> None:
    """Its workers come back on the others."""
    places = nodes.processes("CombineWorker") | nodes.processes("ScatterWorker")
    node = next(
        node
        for node in nodes.cluster.list_all_nodes()
        if node is not nodes.cluster.head_node and _raylets(node)[0].process.pid in places.values()
    )
    nodes.cluster.remove_node(node, allow_graceful=False)
    for texts in (WARM, ("a document that comes after the node has gone", WARM[0])):
        assert text_of(nodes.ask(*texts)) == expected(*texts)
    nodes.settle()
