"""An engine on a tiny checkpoint, and requests for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hypic.arms import ARMS, Arm
from hypic.batch import PrefillBatch
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment


@dataclass
class Bench:
    """One engine and a way to ask it things."""

    engine: Engine
    count: int = 0

    def segment(self, tokens: int, seed: int, kind: str = "document") -> Segment:
        """A random section of plain byte tokens."""
        ids = np.random.default_rng(seed).integers(0, 256, tokens).astype(np.int32)
        return Segment(kind, ids, f"{kind} {seed}")  # type: ignore[arg-type]

    def prompt(self, documents: Sequence[int], lengths: Sequence[int] = (), leading: int = 30) -> tuple[Segment, ...]:
        """Leading section, documents by seed (60 tokens and more), and a question."""
        sizes = lengths or [60 + 7 * seed for seed in documents]
        sections = [self.segment(n, seed) for seed, n in zip(documents, sizes, strict=True)]
        start = [self.segment(leading, 1000, "leading")] if leading else []
        return (*start, *sections, self.segment(9, 2000, "question"))

    def request(
        self, segments: Sequence[Segment], arm: str | Arm = "hypic", salt: str = "", **sampling: object
    ) -> GenerationRequest:
        self.count += 1
        params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
        arm = ARMS[arm] if isinstance(arm, str) else arm
        return GenerationRequest(f"request-{self.count}", tuple(segments), arm, params, salt)

    def tokens(self, request: GenerationRequest) -> list[int]:
        """Generate to the end; token ids."""
        return [output.token_id for output in self.engine.generate(request) if output.token_id is not None]

    @torch.inference_mode()
    def logits(self, request: GenerationRequest) -> Tensor:
        """float32 logits of the question's tokens after the combine pass, building what is cold."""
        engine = self.engine
        tasks = engine.submit(request)
        for entry in engine.build(list(tasks)):
            engine.deliver(entry)
        reservation = engine._waiting[request.request_id]
        sequence = engine.composer.sequence(reservation)
        batch = PrefillBatch([sequence])
        hidden = engine.model.forward(batch)
        engine.abort(request.request_id)
        return engine.model.logits(hidden[-len(request.segments[-1]) :])


@pytest.fixture
def make_bench(tiny_checkpoint: Path) -> Callable[..., Bench]:
    """Make an engine on the tiny checkpoint, or on another model; keyword arguments are settings. Segments are stored
    without loss, so that what is exact can be seen to be; test_formats.py has the others."""
    base = EngineConfig(model=tiny_checkpoint, threads=1, transition_tolerance=0, state_format="fp32")

    def make(**settings: object) -> Bench:
        return Bench(Engine(replace(base, **settings)))  # type: ignore[arg-type]

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
