"""`hypic bench scatter`: cold prompts on 1..N scatter workers, longest first against round robin, and simulated beyond.

Every request is cold (a tenant nobody has seen), and all give the answer of a run that never left the combine worker,
or nothing is reported. What more workers than cores would do is simulated from the costs of the real one-worker runs.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hypic.arms import ARMS
from hypic.config import ClusterConfig, EngineConfig
from hypic.eval.filling import Filling
from hypic.eval.random_model import timing_checkpoint
from hypic.eval.replay import Part
from hypic.eval.report import Report, Table, progress, say
from hypic.eval.scatter_config import ScatterConfig
from hypic.eval.scatter_simulation import StageCosts, fit_stages, lower_bound_seconds, simulate
from hypic.eval.ttft import GateError
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.router.cluster import Completion, LocalCluster
from hypic.router.placement import Policy
from hypic.router.record import RequestRecord
from hypic.segment import Document, Message

POLICIES: tuple[Policy, ...] = ("lpt", "round_robin")
EVEN = (2400,) * 11
UNEVEN_TOKENS, UNEVEN_SEGMENTS = 32_768, 32
ANSWER_TOKENS = 4
SHORT = 4
"""A run that is not full cuts the segments to one part in so many."""


@dataclass(frozen=True)
class Kind:
    """One kind of real run."""

    mix: str
    workers: int
    policy: Policy


def mixes(config: ScatterConfig) -> dict[str, tuple[int, ...]]:
    """Tokens of the segments of each prompt: the published even one, and lengths as documents have them (log-normal)
    in an order that was drawn as well."""
    rng = random.Random(config.seed)
    drawn = [rng.lognormvariate(0.0, 0.7) for _ in range(UNEVEN_SEGMENTS)]
    uneven = tuple(max(SHORT * 64, round(UNEVEN_TOKENS * length / sum(drawn))) for length in drawn)
    share = 1 if config.full else SHORT
    return {name: tuple(tokens // share for tokens in mix) for name, mix in (("even", EVEN), ("uneven", uneven))}


def run_scatter(engine: EngineConfig, model: Path | None, config: ScatterConfig) -> Report:
    """Start a cluster, run every kind of request in turns, and simulate what the machine is too small for.

    model: a checkpoint directory, None for a random one made for timing. Raises GateError where answers differ, and
    PromptTooLongError where the model does not read the prompts.
    """
    prompts = mixes(config)
    with timing_checkpoint(model) as path:
        settled = replace(engine, model=path, threads=engine.threads or 1)
        with LocalCluster(settled, ClusterConfig(scatter_workers=config.workers), say) as cluster:
            records = _measure(cluster, prompts, config)
    runs = [_real_row(kind, found) for kind, found in records.items()]
    costs = {mix: fit_stages(records[Kind(mix, 1, "lpt")]) for mix in prompts}
    if config.simulate:
        runs += _simulated_rows(prompts, costs, config)
    for run in runs:
        first = next(r for r in runs if _same_line(r, run) and r["workers"] == 1)
        run["speedup"] = first["dispatch_ms"] / run["dispatch_ms"]
    results = {
        "full": config.full,
        "mixes": {name: list(tokens) for name, tokens in prompts.items()},
        "runs": runs,
        "simulated_over_real": _agreement(runs),
        "combine_percent": {mix: 100 * next(r for r in runs if r["mix"] == mix)["combine_share"] for mix in prompts},
    }
    name = str(model) if model else "random qwen3_5 made for timing"
    return Report("bench scatter", name, engine.device, results, (_table(results),))


def _measure(
    cluster: LocalCluster, prompts: dict[str, tuple[int, ...]], config: ScatterConfig
) -> dict[Kind, list[RequestRecord]]:
    """Records of every kind, kinds in turns. Before a prompt is timed it runs once without scatter workers, which is
    the answer that all must give, and once on all of them, so that their code and memory are warm."""
    kinds = [
        Kind(mix, workers, policy)
        for mix in prompts
        for workers in range(1, config.workers + 1)
        for policy in (POLICIES if workers > 1 else POLICIES[:1])
    ]
    clients = {mix: ColdClient(cluster, mix, tokens) for mix, tokens in prompts.items()}
    records: dict[Kind, list[RequestRecord]] = {kind: [] for kind in kinds}
    with progress("reference", 2 * len(prompts) + len(kinds) * config.repeats) as advance:
        answers = {}
        for mix, client in clients.items():
            advance(f"{mix}, without scatter workers")
            answers[mix] = client.ask(config.workers, "local").token_ids
            advance(f"{mix}, warming")
            client.ask(config.workers, "round_robin")
        for _ in range(config.repeats):
            for kind in kinds:
                advance(f"{kind.mix}, {kind.workers} {kind.policy}")
                done = clients[kind.mix].ask(kind.workers, kind.policy)
                _check(kind, done, answers[kind.mix])
                records[kind].append(done.record)
    return records


class ColdClient:
    """Asks one prompt again and again, each time as a tenant that has nothing cached."""

    def __init__(self, cluster: LocalCluster, mix: str, tokens: Sequence[int]) -> None:
        self._cluster, self._mix, self._asked = cluster, mix, 0
        filling = Filling(cluster.tokenizer)
        documents = [Document(filling.text(Part(f"{mix}-{n}", count))) for n, count in enumerate(tokens)]
        messages = [Message("user", "Which of these documents was written first?")]
        self._segments = chat_segments(cluster.tokenizer, messages, documents)

    def ask(self, workers: int, policy: Policy) -> Completion:
        """The prompt on so many scatter workers, everything cold."""
        self._asked += 1
        self._cluster.use(workers, policy)
        name = f"{self._mix}-{self._asked}"
        sampling = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
        return self._cluster.complete(GenerationRequest(name, self._segments, ARMS["hypic"], sampling, salt=name))


def _check(kind: Kind, done: Completion, answer: tuple[int, ...]) -> None:
    fallbacks = [build.fallback for build in done.record.builds if build.fallback]
    if done.token_ids != answer:
        raise GateError(f"{kind} answers {done.token_ids}, the combine worker alone {answer}; nothing is reported")
    if fallbacks or done.usage.cached_tokens:
        raise GateError(f"{kind} was not cold on its scatter workers: {fallbacks}, {done.usage}; nothing is reported")


def _real_row(kind: Kind, records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Medians over the repeats. The lower bound is that of the builds as they were timed in these very runs."""
    builds = [[build.build_seconds for build in record.builds] for record in records]
    transfers = [sum(build.transfer_seconds for build in record.builds) for record in records]
    return _row(
        kind,
        simulated=False,
        ttft=median(record.ttft_seconds for record in records),
        dispatch=median(record.dispatch_seconds for record in records),
        transfer=median(transfers),
        combine=median(record.combine_seconds for record in records),
        lower_bound=median(lower_bound_seconds(seconds, kind.workers) for seconds in builds),
        payload_bytes=sum(build.payload_bytes for build in records[0].builds),
    )


def _simulated_rows(
    prompts: dict[str, tuple[int, ...]], costs: dict[str, StageCosts], config: ScatterConfig
) -> list[dict[str, Any]]:
    sizes = sorted({1, config.workers, *(2**n for n in range(1, 7) if 2**n <= config.simulate), config.simulate})
    rows = []
    for mix, tokens in prompts.items():
        for workers in sizes:
            for policy in POLICIES if workers > 1 else POLICIES[:1]:
                found = simulate(tokens, workers, policy, costs[mix])
                row = _row(
                    Kind(mix, workers, policy),
                    simulated=True,
                    ttft=found.ttft_seconds,
                    dispatch=found.dispatch_seconds,
                    transfer=found.transfer_seconds,
                    combine=costs[mix].combine_seconds,
                    lower_bound=found.lower_bound_seconds,
                )
                rows.append(row)
    return rows


def _row(kind: Kind, *, simulated: bool, payload_bytes: int | None = None, **seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"mix": kind.mix, "workers": kind.workers, "policy": kind.policy, "simulated": simulated}
    row |= {f"{name}_ms": 1000 * value for name, value in seconds.items()}
    row["dispatch_over_lower_bound"] = seconds["dispatch"] / seconds["lower_bound"]
    row["combine_share"] = seconds["combine"] / seconds["ttft"]
    return row if payload_bytes is None else row | {"payload_bytes": payload_bytes}


def _same_line(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs differ in workers and policy alone: with one worker the policies are one."""
    return bool(one["mix"] == other["mix"] and one["simulated"] == other["simulated"])


def _agreement(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Simulated dispatch over the real one, for every kind that was both run and simulated."""
    real = {(r["mix"], r["workers"], r["policy"]): r["dispatch_ms"] for r in runs if not r["simulated"]}
    found = {(r["mix"], r["workers"], r["policy"]): r["dispatch_ms"] for r in runs if r["simulated"]}
    return {
        f"{mix} {workers} {policy}": found[key] / real[key]
        for key in real
        if key in found
        for mix, workers, policy in [key]
    }


def _table(results: dict[str, Any]) -> Table:
    rows = tuple(
        (
            run["mix"],
            run["policy"].replace("_", " "),
            f"{run['workers']}" + (" simulated" if run["simulated"] else ""),
            f"{run['ttft_ms']:.0f}",
            f"{run['dispatch_ms']:.0f}",
            f"{run['transfer_ms']:.0f}",
            f"{run['combine_ms']:.0f}",
            f"{run['lower_bound_ms']:.0f}",
            f"{run['speedup']:.2f}",
        )
        for run in results["runs"]
    )
    shares = ", ".join(f"{mix} {share:.1f} %" for mix, share in results["combine_percent"].items())
    apart = ", ".join(f"{name} {ratio:.2f}" for name, ratio in results["simulated_over_real"].items())
    note = f"Combine pass of the TTFT on one worker: {shares}. The speed-up is that of the dispatch over one worker."
    if apart:
        note += f" Simulated over real dispatch: {apart}."
    columns = ("mix", "policy", "workers", "TTFT ms", "dispatch", "transfer", "combine", "bound", "speed-up")
    return Table("Cold prompts on several workers", columns, rows, note, text_columns=3)
