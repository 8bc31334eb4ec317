"""What the routes work on: the workers, the served model, its limits."""

import asyncio
import importlib.metadata
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from hypic.config import ServerConfig
from hypic.errors import UnavailableError
from hypic.router.dispatcher import Dispatcher
from hypic.router.drift import DriftMetrics, DriftWatch
from hypic.router.guards import caller, operator
from hypic.router.keys import ApiKeys, Tenant
from hypic.router.metrics import Metrics
from hypic.router.observation import Observations
from hypic.router.observers import observers_for
from hypic.router.worker_metrics import WorkerMetrics
from hypic.token_cache import TokenCache
from hypic.tokenizer import PromptTokenizer

ResultT = TypeVar("ResultT")

RETRY_SECONDS = 2
"""When a client should try again, and when the workers are looked for again."""

TOKENISING_THREADS = 2
"""Each holds what encoding a piece of a text takes; with more of them long documents would crowd out the event loop."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """What is served, under which name. arm, temperature, top_p: of requests that do not say."""

    id: str
    tokenizer: PromptTokenizer
    max_tokens: int
    arm: str
    created: int
    temperature: float = 0.0
    top_p: float = 1.0


class Service:
    """Behind the routes. model is there once the workers are."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        load: Callable[[int], ServedModel],
        config: ServerConfig | None = None,
        keys: ApiKeys | None = None,
    ) -> None:
        """load: the served model, given the longest text that the workers read. keys: None asks nobody for one."""
        self.dispatcher, self.keys = dispatcher, keys
        self.config = config or ServerConfig()
        version = importlib.metadata.version("hypic")
        self.metrics = Metrics(version)
        self.observations = Observations(observers_for(self.config, self.metrics, version))
        drift_metrics = DriftMetrics(self.metrics.registry)
        self.drift = DriftWatch(self.config.drift_share, self.observations, dispatcher, drift_metrics)
        self.worker_metrics = WorkerMetrics(self.metrics.registry, self.observations, dispatcher)
        self.model: ServedModel | None = None
        self.token_cache = TokenCache(self.config.token_cache_bytes)
        self._load = load
        self._missing = "the workers are still loading the model"
        self._tokenising = ThreadPoolExecutor(TOKENISING_THREADS, thread_name_prefix="tokenise")

    async def connect(self) -> None:
        """Wait for the workers, and keep trying while they are not there."""
        while self.model is None:
            try:
                info = await self.dispatcher.connect()
                self.model = self._load(info.max_tokens)
            except Exception as error:  # whatever it is: said to every client, and tried again
                _log.warning("no workers yet", exc_info=error)
                self._missing = f"the workers are not there yet: {error}"
                await asyncio.sleep(RETRY_SECONDS)

    @property
    def served(self) -> ServedModel:
        if self.model is None:
            raise UnavailableError(self._missing, RETRY_SECONDS)
        return self.model

    async def tokenised(self, work: Callable[[], ResultT]) -> ResultT:
        """Run what encodes text beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._tokenising, work)

    async def close(self) -> None:
        """Stop what runs in the background."""
        self._tokenising.shutdown(wait=False, cancel_futures=True)
        await self.dispatcher.close()
        await asyncio.to_thread(self.observations.close)


def default_sampling(path: Path) -> tuple[float, float]:
    """Temperature and top-p that a checkpoint's generation_config.json asks for: greedy unless it says do_sample."""
    file = path / "generation_config.json"
    record = json.loads(file.read_text()) if file.is_file() else {}
    if not record.get("do_sample"):
        return 0.0, 1.0
    return float(record.get("temperature", 1.0)), float(record.get("top_p", 1.0))


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]
CallerDep = Annotated[Tenant, Depends(caller)]
OperatorDep = Annotated[Tenant, Depends(operator)]
