"""`hypic bench ttft`: time to the first token over warm documents in shuffled order, arms in turns.

Every request shuffles the same documents anew, behind one system prompt that all share. So `prefix` finds the system
prompt, arms that reuse segments find everything, and `full` computes everything. Nothing is timed before the gate is
green: first-token logits of arms that must agree do agree.

The default model is random (weights do not change what is computed), of a size at which arithmetic takes the time.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from hypic.arms import ARMS, Arm, arm_named
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import GenerationError, HypicError, InvalidRequestError
from hypic.eval.probe import combine, computing_composer
from hypic.eval.random_model import timing_checkpoint
from hypic.eval.report import Report, Table, progress, say
from hypic.eval.workloads import long_documents
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams, TokenOutput
from hypic.segment import Document, Message

SYSTEM = "You answer questions from the documents. Quote the sentence that your answer rests on."
QUESTION = "Which of the people in these documents was born first?"
GATE = 1e-3
_GATE_DOCUMENTS = 4
_GATE_ROUNDINGS = 8


class GateError(HypicError):
    """Arms that must agree do not: a time would be the time of a wrong result."""

    code = "red_gate"


@dataclass(frozen=True)
class Prompts:
    """Prompts over the same documents in ever new orders. documents: how many, of about document_tokens each."""

    documents: int = 16
    document_tokens: int = 1024
    seed: int = 0


@dataclass
class Timings:
    """Requests of one arm so far, and what the plan of the last one said."""

    seconds: list[float] = field(default_factory=list)
    tokens_computed: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    first_token: int | None = None


class Workload:
    """Requests over one engine's documents."""

    def __init__(self, engine: Engine, prompts: Prompts) -> None:
        self.engine, self._random, self._count = engine, random.Random(prompts.seed), 0
        self.documents = long_documents(engine.tokenizer, prompts.documents, prompts.document_tokens, prompts.seed)

    def shuffled(self) -> list[Document]:
        """The documents in a new order."""
        return self._random.sample(self.documents, len(self.documents))

    def request(self, arm: Arm, documents: Sequence[Document]) -> GenerationRequest:
        """One token over these documents, in the arm's own namespace."""
        self._count += 1
        messages = [Message("system", SYSTEM), Message("user", QUESTION)]
        segments = chat_segments(self.engine.tokenizer, messages, documents)
        sampling = SamplingParams(max_tokens=1, ignore_eos=True)
        return GenerationRequest(f"ttft-{self._count}", segments, arm, sampling, salt=arm.name)


def run_ttft(
    config: EngineConfig,
    model: Path | None,
    arms: Sequence[str],
    prompts: Prompts,
    rounds: int,
    warm_repeats: int,
) -> Report:
    """Gate, warm up, and time `rounds` rounds: one request of `prefix`, `warm_repeats` of arms that reuse segments; and
    one request of `full` in all.

    model: a checkpoint directory, None for a random one made for this. Raises GateError where results are wrong, and
    InvalidRequestError for an unknown arm or prompts that do not fit the model.
    """
    chosen = [arm_named(name) for name in dict.fromkeys(arms)]
    with timing_checkpoint(model) as path:
        engine = Engine(replace(config, model=path))
        workload = Workload(engine, prompts)
        check_room(workload, chosen)
        gate = check_gate(workload)
        timings = time_arms(workload, chosen, rounds, warm_repeats)
        assert isinstance(engine.model, nn.Module), type(engine.model)
        parameters = sum(parameter.numel() for parameter in engine.model.parameters())
    results = {
        "documents": prompts.documents,
        "document_tokens": prompts.document_tokens,
        "prompt_tokens": next(iter(timings.values())).prompt_tokens,
        "model_parameters": parameters,
        "gate": gate,
        "arms": {name: _figures(timing) for name, timing in timings.items()},
        **_ratios(timings),
    }
    name = str(model) if model else f"random qwen3_5, {parameters / 1e6:.1f} M parameters"
    return Report("bench ttft", name, config.device, results, (_table(results),))


def check_gate(workload: Workload) -> dict[str, float]:
    """Largest differences of first-token logits, on a few documents. Raises GateError above `GATE`, or above
    a few roundings of the largest logit where the model's dtype is coarser than that.

    prefix_full: prefix reuse against recompute. active_full: `hypic` with every segment active against recompute.
    hit_miss: `hypic` with cached segments against the same request when they were cold.
    """
    engine, documents = workload.engine, workload.documents[:_GATE_DOCUMENTS]
    list(engine.generate(workload.request(ARMS["prefix"], documents[::-1])))  # leaves the system prompt's prefix
    full = combine(engine, workload.request(ARMS["full"], documents))
    prefix = combine(engine, workload.request(ARMS["prefix"], documents))
    hypic = replace(workload.request(ARMS["hypic"], documents), salt="gate")
    active = combine(engine, hypic, computing_composer(engine))
    miss, hit = combine(engine, hypic), combine(engine, hypic)
    if not prefix.plan.cached_tokens or not miss.plan.built_tokens or hit.plan.built_tokens:
        raise GateError(
            "the caches did not do what the gate compares: prefix found nothing, or hits and misses are alike"
        )
    gate = {
        "prefix_full": float((prefix.logits - full.logits).abs().max()),
        "active_full": float((active.logits - full.logits).abs().max()),
        "hit_miss": float((hit.logits - miss.logits).abs().max()),
    }
    limit = max(
        GATE, _GATE_ROUNDINGS * torch.finfo(engine.model.cache_spec().dtype).eps * float(full.logits.abs().max())
    )
    wrong = [f"{name} {apart:.2e}" for name, apart in gate.items() if not apart <= limit]
    if wrong:
        raise GateError(f"first-token logits differ by more than {limit:.1e}: {', '.join(wrong)}; nothing was timed")
    say(f"gate: {', '.join(f'{name} {apart:.1e}' for name, apart in gate.items())}")
    return gate


def time_arms(workload: Workload, arms: Sequence[Arm], rounds: int, warm_repeats: int) -> dict[str, Timings]:
    """Times by arm. Each arm is warmed first: its documents are built and one request of it is run untimed.

    A turn is one order of the documents, which all arms that take part in it see. `full` and `prefix` must give the
    same first token; GateError if not.
    """
    timings = {arm.name: Timings() for arm in arms}
    turns = [[arm for arm in arms if _takes_part(arm, turn, warm_repeats)] for turn in range(rounds * warm_repeats)]
    with progress("warming", len(arms) + sum(map(len, turns))) as advance:
        for arm in arms:
            advance(f"warming {arm.name}")
            warm_arm(workload, arm)
        for number, taking_part in enumerate(turns):
            order = workload.shuffled()
            for arm in taking_part:
                advance(f"timing {arm.name}")
                time_request(workload.engine, workload.request(arm, order), timings[arm.name])
            if number == 0:
                _compare_first_tokens(timings)
    return timings


def _takes_part(arm: Arm, turn: int, warm_repeats: int) -> bool:
    """Warm requests are short and run each turn, prefix reuse once a round, recomputing everything once in all."""
    if arm.reuse_segments:
        return True
    return turn % warm_repeats == 0 if arm.reuse_prefix else turn == 0


def warm_arm(workload: Workload, arm: Arm) -> None:
    """Build the arm's documents and its system prompt, and run a short request, so that code and memory are warm."""
    engine, documents = workload.engine, workload.documents
    if arm.reuse_segments:
        segments = list(workload.request(arm, documents).segments[:-1])
        for entry in engine.build(engine.warm(segments, arm.name, salt=arm.name)):
            engine.deliver(entry)
        documents = workload.shuffled()
    else:
        documents = documents[:1]
    for _ in engine.generate(workload.request(arm, documents)):
        pass


def time_request(engine: Engine, request: GenerationRequest, timings: Timings) -> TokenOutput:
    """Submit and step until the first token, which also is the last. Cold segments are built here, in that time; what
    the engine does after the first token (it remembers the prefix) is not in it. Raises GenerationError."""
    start = time.perf_counter()
    engine.build_here([task.key for task in engine.submit(request)])
    outputs: list[TokenOutput] = []
    while not outputs:
        outputs = engine.step()
    timings.seconds.append(time.perf_counter() - start)
    while not engine.idle:
        engine.step()
    output = outputs[0]
    if output.finish_reason == "error":
        raise GenerationError(output.error)
    timings.tokens_computed.append(output.usage.computed_tokens + output.usage.built_tokens)
    timings.prompt_tokens, timings.first_token = output.usage.prompt_tokens, output.token_id
    return output


def _compare_first_tokens(timings: dict[str, Timings]) -> None:
    tokens = {name: timings[name].first_token for name in ("full", "prefix") if name in timings}
    if len(set(tokens.values())) > 1:
        raise GateError(f"full and prefix give different first tokens for one prompt: {tokens}")


def check_room(workload: Workload, arms: Sequence[Arm]) -> None:
    """The model must read the prompt (PromptTooLongError), and every arm's documents, and the gate's, must stay cached
    at once, or warm requests would not be warm (InvalidRequestError)."""
    engine = workload.engine
    request = workload.request(ARMS["hypic"], workload.documents)
    engine.plan(request)
    segments = request.segments
    longest = max(segments, key=len)
    entry_bytes = engine.build(engine.warm([longest]))[0].nbytes
    reusing = sum(arm.reuse_segments for arm in arms)
    needed = entry_bytes * ((len(segments) - 1) * reusing + _GATE_DOCUMENTS + 1)
    if needed > engine.segments.budget_bytes:
        raise InvalidRequestError(
            f"the documents of {reusing} arms take up to {needed} bytes, the cache holds "
            f"{engine.segments.budget_bytes}: raise --cache-bytes, or name fewer arms"
        )


def _figures(timing: Timings) -> dict[str, Any]:
    milliseconds = [1000 * seconds for seconds in timing.seconds]
    return {
        "p50_ms": median(milliseconds),
        "p99_ms": float(np.percentile(milliseconds, 99)),
        "min_ms": min(milliseconds),
        "requests": len(milliseconds),
        "tokens_computed": round(median(timing.tokens_computed)),
    }


def _ratios(timings: dict[str, Timings]) -> dict[str, float]:
    """speedup of hypic over prefix, what token counts alone would give, and the share of it that is reached."""
    if not {"prefix", "hypic"} <= timings.keys():
        return {}
    prefix, hypic = _figures(timings["prefix"]), _figures(timings["hypic"])
    speedup = prefix["p50_ms"] / hypic["p50_ms"]
    tokens = prefix["tokens_computed"] / hypic["tokens_computed"]
    return {"speedup": speedup, "token_ratio": tokens, "share_of_token_ratio": speedup / tokens}


def _table(results: dict[str, Any]) -> Table:
    rows = tuple(
        (
            name,
            f"{row['p50_ms']:.1f}",
            f"{row['p99_ms']:.1f}",
            f"{row['min_ms']:.1f}",
            str(row["tokens_computed"]),
            str(row["requests"]),
        )
        for name, row in results["arms"].items()
    )
    note = f"{results['documents']} documents, {results['prompt_tokens']} prompt tokens, caches warm, order shuffled."
    if "speedup" in results:
        note += (
            f" hypic is {results['speedup']:.1f} times as fast as prefix; token counts alone would give "
            f"{results['token_ratio']:.1f} times, so {100 * results['share_of_token_ratio']:.0f} % of that is reached."
        )
    return Table("Time to first token", ("arm", "p50 ms", "p99 ms", "least", "tokens computed", "requests"), rows, note)
