"""The worker that prefills cold segments: one a call, so that each result is on its way while the next is computed."""

import os
import time
from functools import cached_property

import numpy as np

from hypic.arms import DEFAULT_SEAM_TOKENS
from hypic.config import EngineConfig
from hypic.engine.composer import BuildTask
from hypic.engine.engine import Engine
from hypic.protocol import encode_entry
from hypic.workers.cost import CostModel, measure_cost
from hypic.workers.ports import BuiltSegment, WorkerInfo, WorkerStats


class ScatterWorker:
    """One engine that builds and keeps nothing. Calls run one after another, in their order.

    Plain class: Ray makes an actor of it as it is.
    """

    def __init__(self, name: str, config: EngineConfig) -> None:
        """Returns at once: the model is loaded by the first call, so what is wrong with it is that call's error."""
        self.name = name
        self._config = config
        self._built, self._built_seconds = 0, 0.0
        self._loading_seconds = 0.0

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self._config)

    @cached_property
    def _cost(self) -> CostModel:
        return self.measure()

    def hello(self) -> WorkerInfo:
        """Who this is and what builds cost here; answers after the builds queued before."""
        began = time.perf_counter()
        cost = self._cost
        self._loading_seconds = self._loading_seconds or time.perf_counter() - began
        return WorkerInfo(
            name=self.name,
            role="scatter",
            pid=os.getpid(),
            namespace=self._engine.namespace,
            max_tokens=self._engine.max_tokens,
            loading_seconds=self._loading_seconds,
            cost=cost,
        )

    def build(self, task: BuildTask) -> BuiltSegment:
        """Prefill one segment."""
        began = time.perf_counter()
        entry = self._engine.build([task])[0]
        payload = encode_entry(entry)
        seconds = time.perf_counter() - began
        self._built += 1
        self._built_seconds += seconds
        return BuiltSegment(self.name, payload, seconds, time.time())

    def measure(self) -> CostModel:
        """Time this engine on segments of random tokens and fit its cost."""
        rng = np.random.default_rng(0)
        vocabulary = int(self._engine.model.config.vocab_size)

        def timed(tokens: int) -> float:
            token_ids = rng.integers(vocabulary, size=tokens, dtype=np.int32)
            task = BuildTask(bytes(32), token_ids, min(DEFAULT_SEAM_TOKENS, tokens - 1))
            began = time.perf_counter()
            self._engine.build([task])
            return time.perf_counter() - began

        return measure_cost(timed, self._engine.max_tokens)

    def stats(self) -> WorkerStats:
        return WorkerStats(self.name, "scatter", built=self._built, built_seconds=self._built_seconds)
