"""What reuse costs in quality, measured on real requests: in idle time the prompts of some are computed in full, and
the distribution of the first token is compared with the one that was served.

Nothing cached is read or written for it: the served logits were kept, and the full pass has memory of its own, which is
dropped with it. So no later answer depends on whether a request was probed, and nothing crosses between tenants.
"""

import logging
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from hypic.cache.prefix_cache import joined
from hypic.engine.divergence import kl_nats
from hypic.engine.prefill import Prefill
from hypic.models.contract import HybridModel
from hypic.plan import Plan
from hypic.request import GenerationRequest
from hypic.sequence import Active, Sequence, SequenceCache

PIECE_TOKENS = 256
"""Computed at once. A request that comes in meanwhile waits for the rest of its piece, and no longer."""

KEPT_PROBES = 4
"""Requests that wait for idle time, each with a row of logits."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drift:
    """Of one request against a full recompute of its prompt. kl_nats: KL(full || served) of the first token.
    first_agrees: the likeliest first token is the same."""

    arm: str
    kl_nats: float
    first_agrees: bool
    prompt_tokens: int


@dataclass(frozen=True)
class DriftReport:
    """What came of probes since the last report. dropped: not measured, since the engine was busy. left: still to be
    measured."""

    measured: tuple[Drift, ...]
    dropped: int
    left: int


@dataclass(eq=False)
class _Probe:
    """A served request: its prompt int64 `[T]` and the logits float32 `[vocabulary]` of its first token."""

    arm: str
    token_ids: Tensor
    logits: Tensor


class DriftProbe:
    """The probes of one engine."""

    def __init__(self, model: HybridModel) -> None:
        self._model = model
        self._kept: deque[_Probe] = deque()
        self._pass: Prefill | None = None
        self._measured: list[Drift] = []
        self._dropped = 0

    def keep(self, request: GenerationRequest, plan: Plan, exact_prefix: bool, logits: Tensor) -> None:
        """Take a request whose first token has just been computed, if it asks to be probed and reused anything that a
        full recompute would not give. logits: `[vocabulary]`."""
        reuses = not exact_prefix or any(row.source in ("segment", "build") for row in plan.rows)
        if not (request.probe and reuses):
            return
        if len(self._kept) >= KEPT_PROBES:
            self._dropped += 1
            return
        token_ids = torch.from_numpy(joined(request.segments)).long()
        self._kept.append(_Probe(request.arm.name, token_ids, logits.detach().float().clone()))

    def give_way(self) -> None:
        """Drop what is under way, with its memory: a request has come in."""
        if self._pass is not None:
            self._drop()

    def report(self) -> DriftReport:
        """What came of probes; it is told once."""
        found = DriftReport(tuple(self._measured), self._dropped, len(self._kept))
        self._measured, self._dropped = [], 0
        return found

    @torch.inference_mode()
    def step(self) -> None:
        """Compute the next piece of the oldest probe."""
        if not self._kept:
            return
        probe = self._kept[0]
        try:
            self._pass = self._pass or self._begin(probe)
            logits = self._pass.step()
        except Exception as error:  # no memory for it, most likely: it is not worth a fault
            _log.warning("a drift probe of %d tokens failed", len(probe.token_ids), exc_info=error)
            self._drop()
            return
        if logits is not None:
            self._kept.popleft()
            self._pass = None
            kl = float(kl_nats(logits[None], probe.logits[None]))
            agrees = bool(logits.argmax() == probe.logits.argmax())
            self._measured.append(Drift(probe.arm, kl, agrees, len(probe.token_ids)))

    def _begin(self, probe: _Probe) -> Prefill:
        """The full pass, in memory of its own."""
        spec = self._model.cache_spec()
        cache = SequenceCache.empty(spec, len(probe.token_ids))
        sequence = Sequence(cache, (Active(len(probe.token_ids)),), probe.token_ids.to(spec.device))
        return Prefill(self._model, sequence, PIECE_TOKENS)

    def _drop(self) -> None:
        self._kept.popleft()
        self._pass = None
        self._dropped += 1
