"""`hypic demo`: a question over documents through router, scatter workers and combine worker, cold and then warm.

First the bundled model's own kind of documents, where answers can be right or wrong; then real text, for figures alone.
Each arm has its own salt, so no arm lives on what another has computed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from hypic.arms import Arm, arm_named
from hypic.config import ClusterConfig, EngineConfig
from hypic.eval.metrics import best_over, exact_match
from hypic.eval.planning import plan_table
from hypic.eval.recall import PEOPLE, RecallExample, examples
from hypic.eval.report import Report, Table, progress, say, show
from hypic.eval.workloads import question_sets
from hypic.prompt import section_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.router.cluster import Completion, LocalCluster
from hypic.tokenizer import PromptTokenizer

DOCUMENTS = 8
NEW_DOCUMENTS = 2
QUESTIONS = 12
ROUNDS = 5

NEXT_STEPS = """
What to try next
  hypic eval quality            what each arm's answers lose, over four sets of questions
  hypic bench ttft              time to first token over 16 documents of 1000 tokens
  hypic plan --help             what would be reused of your own prompt, and why not the rest
  hypic serve                   the same behind an OpenAI-compatible API; --model DIR takes any supported checkpoint
"""


class Service(Protocol):
    """What the demo asks of a cluster."""

    @property
    def tokenizer(self) -> PromptTokenizer: ...

    def complete(self, request: GenerationRequest) -> Completion: ...


@dataclass(frozen=True)
class Story:
    """Sections met first, the same in another order beside new ones, and a question with one answer in both."""

    cold: tuple[str, ...]
    warm: tuple[str, ...]
    question: str
    answer: str


class Client:
    """Sends prompts, each under an id of its own, and keeps what was told of them. labels: what a plan calls a
    section. told: the tables shown so far."""

    def __init__(self, service: Service) -> None:
        self.service, self.labels, self._count = service, dict[str, str](), 0
        self.told: list[Table] = []

    def tell(self, table: Table) -> None:
        """Show a table now, and keep it for the report."""
        show(table)
        self.told.append(table)

    def ask(
        self, sections: Sequence[str], question: str, arm: Arm, tokens: int = 8, salt: str | None = None
    ) -> Completion:
        """A completed request over these sections, in the arm's namespace unless told another."""
        self._count += 1
        found = section_segments(self.service.tokenizer, sections, question)
        names = iter([self.labels.get(section, "new document") for section in sections])
        segments = tuple(replace(s, label=next(names)) if s.kind == "document" else s for s in found)
        sampling = SamplingParams(max_tokens=tokens)
        salt = arm.name if salt is None else salt
        return self.service.complete(GenerationRequest(f"demo-{self._count}", segments, arm, sampling, salt))


def run_demo(engine: EngineConfig, cluster: ClusterConfig, arms: Sequence[str]) -> Report:
    """Start the cluster, tell both parts while they run, and stop it. Raises HypicError where it cannot start."""
    chosen = [arm_named(name) for name in arms]
    say("starting Ray, the router and its workers")
    with LocalCluster(engine, cluster, say) as local:
        client = Client(local)
        recall = tell_recall(client, chosen)
        hotpotqa = tell_hotpotqa(client, chosen, local.info.max_tokens)
        say("stopping")
    print(NEXT_STEPS)
    results = {"recall": recall, "hotpotqa": hotpotqa}
    return Report("demo", str(engine.model), engine.device, results, tuple(client.told))


def stories(count: int, documents: int, new_documents: int, seed: int) -> list[Story]:
    """Stories whose fact is changed by a later document: the warm order keeps the change behind what it changes."""
    rng = random.Random(seed)
    found = examples("overwritten", count, documents, seed)
    others = examples("plain", count, max(2, new_documents), seed + 1)
    return [_story(rng, example, other.sections[:new_documents]) for example, other in zip(found, others, strict=True)]


def tell_recall(client: Client, arms: Sequence[Arm]) -> dict[str, Any]:
    """One story in detail, cold and warm, then how many of `QUESTIONS` stories each arm answers right."""
    first, *more = stories(QUESTIONS, DOCUMENTS, NEW_DOCUMENTS, seed=0)
    client.labels = {section: f"document {number}" for number, section in enumerate(first.cold, 1)}
    show(f"\n1. {DOCUMENTS} short documents, new to the cluster; one changes what another told.")
    show(f"   Question: {first.question}   Right answer: {first.answer}")
    client.ask(first.cold, first.question, arm_named("hypic"), salt="warm-up")  # code and memory, not this cache
    cold = client.ask(first.cold, first.question, arm_named("hypic"))
    show(f"   Answer: {cold.text.strip()}\n")
    client.tell(cold_table(cold))
    show(f"\n   The same documents in another order beside {NEW_DOCUMENTS} new ones, arm by arm.\n")
    warm = {arm.name: _cold_then_warm(client, first, arm) for arm in arms}
    right = {arm.name: int(_right(warm[arm.name], first)) for arm in arms}
    with progress("more questions", len(more) * len(arms)) as advance:
        for story in more:
            for arm in arms:
                right[arm.name] += _right(_cold_then_warm(client, story, arm), story)
                advance(f"more questions, {arm.name}")
    client.tell(plan_table(warm[arms[-1].name].plan))
    client.tell(warm_table(warm, first, right))
    return {
        "question": first.question,
        "answer": first.answer,
        "cold": {**_figures(cold), "timings": cold.record.timings()},
        "warm": {name: {**_figures(done), "right": _right(done, first)} for name, done in warm.items()},
        "questions": QUESTIONS,
        "right": right,
    }


def tell_hotpotqa(client: Client, arms: Sequence[Arm], max_tokens: int) -> dict[str, Any]:
    """Plan and times of a prompt of real paragraphs; nothing is claimed of the answer."""
    sections = _real_sections(client.service.tokenizer, max_tokens)
    show(f"\n2. {len(sections)} paragraphs of Wikipedia (HotpotQA), for times alone: the bundled model,")
    show("   trained on invented site logs, cannot answer real questions.\n")
    client.labels = {section: section.partition("\n")[0] for section in sections}
    rng = random.Random(0)
    orders = [rng.sample(sections, len(sections)) for _ in range(ROUNDS)]
    question = "Who is named in these documents?"
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    last: dict[str, Completion] = {}
    cold = client.ask(sections, question, arm_named("hypic"), tokens=1, salt="cold")
    for arm in arms:
        client.ask(sections, question, arm, tokens=1)
    with progress("timing", ROUNDS * len(arms)) as advance:
        for order in orders:
            for arm in arms:
                last[arm.name] = client.ask(order, question, arm, tokens=1)
                times[arm.name].append(last[arm.name].record.ttft_seconds)
                advance(f"timing {arm.name}")
    seconds = {name: median(found) for name, found in times.items()}
    client.tell(plan_table(last[arms[-1].name].plan))
    client.tell(_ttft_table(last, seconds, cold))
    return {
        "documents": len(sections),
        "cold": _figures(cold),
        "warm": {name: {**_figures(done), "ttft_ms": 1000 * seconds[name]} for name, done in last.items()},
    }


def cold_table(done: Completion) -> Table:
    """Which worker prefilled what, and what that saved."""
    record = done.record
    workers = sorted({build.worker for build in record.builds})
    rows = []
    for worker in workers:
        builds = [build for build in record.builds if build.worker == worker]
        row = (worker, len(builds), sum(build.tokens for build in builds))
        times = (sum(build.build_seconds for build in builds), sum(build.transfer_seconds for build in builds))
        rows.append((*map(str, row), *(f"{1000 * seconds:.0f}" for seconds in times)))
    together = sum(build.build_seconds for build in record.builds)
    note = (
        f"All segments at hand after {1000 * record.dispatch_seconds:.0f} ms (makespan) for {1000 * together:.0f} ms "
        f"of prefill; combine pass {1000 * record.combine_seconds:.0f} ms; first token after "
        f"{1000 * record.ttft_seconds:.0f} ms."
    )
    return Table(
        "Cold: who prefilled what", ("worker", "segments", "tokens", "prefill ms", "transfer ms"), tuple(rows), note
    )


def warm_table(done: dict[str, Completion], story: Story, right: dict[str, int]) -> Table:
    """Arm by arm: tokens, time, answer, and the score over all stories."""
    rows = tuple(
        (
            name,
            completion.text.strip(),
            "yes" if _right(completion, story) else "no",
            *_token_cells(completion),
            f"{1000 * completion.record.ttft_seconds:.0f}",
            f"{right[name]} of {QUESTIONS}",
        )
        for name, completion in done.items()
    )
    columns = ("arm", "answer", "right", "reused", "computed", "built", "ms", "in all")
    note = (
        "Tokens: reused, computed in the combine pass (seams included), built for new documents; ms to the first "
        f"token (prompts this short gain none); in all: right answers to {QUESTIONS} questions, each over documents of "
        "its own."
    )
    return Table(f"Warm, another order, {NEW_DOCUMENTS} new documents", columns, rows, note, text_columns=3)


def _ttft_table(done: dict[str, Completion], seconds: dict[str, float], cold: Completion) -> Table:
    rows = [("hypic, cold", *_token_cells(cold), f"{1000 * cold.record.ttft_seconds:.0f}")]
    rows += [(name, *_token_cells(completion), f"{1000 * seconds[name]:.0f}") for name, completion in done.items()]
    note = f"Shuffled order, warm; medians of {ROUNDS} through router and Ray. Cold: once, all segments to prefill."
    return Table(
        f"Time to first token, {cold.usage.prompt_tokens} prompt tokens",
        ("arm", "reused", "computed", "built", "TTFT ms"),
        tuple(rows),
        note,
    )


def _cold_then_warm(client: Client, story: Story, arm: Arm) -> Completion:
    """The warm answer of an arm that has met the documents once."""
    client.ask(story.cold, story.question, arm)
    return client.ask(story.warm, story.question, arm)


def _story(rng: random.Random, example: RecallExample, new: Sequence[str]) -> Story:
    """Shuffle the sections, new ones among them; those that name the asked person stay in order, or the truth would
    change with the order."""
    person = next(name for name in PEOPLE["test"] if name in example.question)
    sections = [*example.sections, *(section for section in new if person not in section)]
    shuffled = rng.sample(sections, len(sections))
    telling = iter([section for section in example.sections if person in section])
    warm = tuple(next(telling) if person in section else section for section in shuffled)
    return Story(example.sections, warm, example.question, example.answer)


def _real_sections(tokenizer: PromptTokenizer, max_tokens: int) -> list[str]:
    """Paragraphs of the shipped sample, as many of up to ten as the model reads with a question."""
    question = question_sets("hotpotqa", 1, 10, seed=0)["hotpotqa"][0]
    sections, used = [], 200
    for section in question.sections:
        used += sum(map(len, section_segments(tokenizer, [section], "?")[-2:-1]))
        if used > max_tokens:
            break
        sections.append(section)
    return sections


def _right(done: Completion, story: Story) -> bool:
    return best_over(exact_match, done.text, [story.answer]) == 1.0


def _token_cells(done: Completion) -> tuple[str, str, str]:
    usage = done.usage
    return str(usage.cached_tokens), str(usage.computed_tokens), str(usage.built_tokens)


def _figures(done: Completion) -> dict[str, Any]:
    usage = done.usage
    return {
        "answer": done.text,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": usage.computed_tokens,
        "built_tokens": usage.built_tokens,
        "ttft_ms": 1000 * done.record.ttft_seconds,
    }
