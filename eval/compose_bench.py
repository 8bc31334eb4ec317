"""`hypic bench compose`: what one more warm document adds to a prompt, against computing it in the same place.

Three prompts in turns, over the same shuffled documents, the system prompt and the documents being cached:

    base        n documents, a question
    more        n + m documents, a question
    recompute   n documents, a question that holds one document's text: it is computed where it stands

One more warm document costs (more - base) / m, computing it recompute - base: planning, copying and rotating keys,
composing and the seam are in the one, all layers of all its tokens in the other. Nothing is timed before the gate of
`hypic bench ttft` is green.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hypic.arms import ARMS, DEFAULT_SEAM_TOKENS
from hypic.cache.entry import SegmentEntry
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import GenerationError
from hypic.eval.random_model import timing_checkpoint
from hypic.eval.report import Report, Table, progress
from hypic.eval.ttft import QUESTION, SYSTEM, GateError, Prompts, Workload, check_gate, check_room
from hypic.eval.turns import in_turns
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Message

ARM = ARMS["hypic"]


@dataclass
class Prompt:
    """One of the three prompts: how many documents stand in it, and whether one more is computed in its question.
    request: the next to run. What the last run said is kept."""

    documents: int
    computes_one: bool = False
    request: GenerationRequest | None = None
    tokens_computed: int = 0


class Bench:
    """Runs the prompts. Each run has a new order of documents, so that no prompt is found whole in the prefix cache."""

    def __init__(self, workload: Workload, prompts: dict[str, Prompt]) -> None:
        self.workload, self.prompts, self._count = workload, prompts, 0
        self.settle()

    def run(self, prompt: Prompt) -> None:
        """Submit, and step until the first token, which also is the last. Raises GateError where the plan is not what
        is to be timed, GenerationError where the request fails."""
        engine, request = self.workload.engine, prompt.request
        assert request is not None, "settle after each run"
        prompt.request = None
        if engine.submit(request):
            raise GateError("a document of a warm prompt was not cached: its time would be that of building it")
        output = engine.step()[0]
        if output.finish_reason == "error":
            raise GenerationError(output.error)
        documents = request.segments[1:-1]
        expected = len(documents) * ARM.seam_tokens + len(request.segments[-1])
        if output.usage.computed_tokens != expected:
            raise GateError(f"{output.usage.computed_tokens} tokens were computed, {expected} were to be timed")
        prompt.tokens_computed = expected

    def settle(self) -> None:
        """What is in no time: what the engine does after a first token (it remembers the prefix), and making requests
        (tokenising their documents above all)."""
        while not self.workload.engine.idle:
            self.workload.engine.step()
        for prompt in self.prompts.values():
            prompt.request = prompt.request or self._request(prompt)

    def _request(self, prompt: Prompt) -> GenerationRequest:
        self._count += 1
        order = self.workload.shuffled()
        question = (order[-1].section if prompt.computes_one else "") + QUESTION
        messages = [Message("system", SYSTEM), Message("user", question)]
        segments = chat_segments(self.workload.engine.tokenizer, messages, order[: prompt.documents])
        sampling = SamplingParams(max_tokens=1, ignore_eos=True)
        return GenerationRequest(f"compose-{self._count}", segments, ARM, sampling, salt=ARM.name)


def run_compose(
    config: EngineConfig, model: Path | None, documents: int, more: int, document_tokens: int, rounds: int, seed: int
) -> Report:
    """Gate, warm and time. model: a checkpoint, None for a random one. documents, more: n and m.

    Raises GateError where results are wrong, and InvalidRequestError where prompts do not fit the model or the cache.
    """
    with timing_checkpoint(model) as path:
        engine = Engine(replace(config, model=path))
        workload = Workload(engine, Prompts(documents + more, document_tokens, seed))
        check_room(workload, [ARM])
        gate = check_gate(workload)
        entries = _warm(workload)
        prompts = {
            "base": Prompt(documents),
            "more": Prompt(documents + more),
            "recompute": Prompt(documents, computes_one=True),
        }
        seconds = time_prompts(Bench(workload, prompts), rounds)
        spec = engine.model.cache_spec()
    results: dict[str, Any] = {
        "documents": documents,
        "more_documents": more,
        "document_tokens": round(median(len(entry.token_ids) for entry in entries)),
        "dtype": str(spec.dtype).removeprefix("torch."),
        "gate": gate,
        **figures(seconds, more),
        "seam_tokens": DEFAULT_SEAM_TOKENS,
        "tokens_computed": {name: prompt.tokens_computed for name, prompt in prompts.items()},
        "segment_bytes": _bytes(entries),
        "rounds": rounds,
    }
    shape = f"{spec.linear_layers} linear layers of {spec.heads} heads {spec.key_dim}x{spec.value_dim}"
    name = str(model) if model else f"random qwen3_5, {shape}"
    return Report("bench compose", name, config.device, results, (_table(results),))


def time_prompts(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Seconds by prompt and round."""
    with progress("timing", (rounds + 1) * len(bench.prompts)) as advance:

        def done() -> None:
            bench.settle()
            advance("timing")

        runs = {name: (lambda prompt=prompt: bench.run(prompt)) for name, prompt in bench.prompts.items()}
        return in_turns(runs, rounds, torch.device(bench.workload.engine.config.device), done)


def figures(seconds: dict[str, list[float]], more: int) -> dict[str, float]:
    """Medians over rounds of the differences within each round."""
    warm = [1000 * (b - a) / more for a, b in zip(seconds["base"], seconds["more"], strict=True)]
    computed = [1000 * (b - a) for a, b in zip(seconds["base"], seconds["recompute"], strict=True)]
    return {
        "warm_segment_ms": median(warm),
        "recompute_segment_ms": median(computed),
        "ratio": median(computed) / median(warm),
        **{f"{name}_ms": 1000 * median(found) for name, found in seconds.items()},
    }


def _warm(workload: Workload) -> list[SegmentEntry]:
    """Cache the documents in the arm's own namespace, and the system prompt with them. Returns their entries."""
    engine = workload.engine
    segments = list(workload.request(ARM, workload.documents).segments[1:-1])
    entries = engine.build(engine.warm(segments, ARM.name, salt=ARM.name))
    for entry in entries:
        engine.deliver(entry)
    for _ in engine.generate(workload.request(ARM, workload.shuffled())):
        pass
    return entries


def _bytes(entries: list[SegmentEntry]) -> dict[str, int]:
    """Of a document, by what they are for: median over the entries."""
    return {
        "operators": round(median(entry.operators.nbytes for entry in entries)),
        "keys_and_values": round(median(entry.keys.nbytes + entry.values.nbytes for entry in entries)),
        "convolution_tails": round(median(entry.conv_tails.nbytes for entry in entries)),
        "all": round(median(entry.nbytes for entry in entries)),
    }


def _table(results: dict[str, Any]) -> Table:
    taken = results["segment_bytes"]
    rows = (
        ("one more warm document", f"{results['warm_segment_ms']:.2f}", str(results["seam_tokens"])),
        ("computing it there", f"{results['recompute_segment_ms']:.1f}", str(results["document_tokens"])),
    )
    note = (
        f"Documents of {results['document_tokens']} tokens behind {results['documents']} others, medians of "
        f"{results['rounds']} rounds in turns: {results['ratio']:.1f} times cheaper. An entry takes "
        f"{taken['all'] / 2**20:.2f} MiB, {taken['operators'] / 2**20:.2f} of it operators."
    )
    return Table("One more document", ("what", "ms", "tokens computed"), rows, note)
