"""`hypic bench serve`: a trace replayed over HTTP at rising rates, and the rate that each arm can sustain.

The caches first catch up with what the trace asked for earlier. Then every round replays the next stretch of the trace,
each arm the same requests, in turns, each at the next rate of its own search. So all arms have seen the same requests
at every moment, and none finds a prompt that it has answered before. Nothing is timed before the gate is green.
"""

import math
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hypic.arms import arm_named
from hypic.config import ClusterConfig, EngineConfig
from hypic.errors import GenerationError, InvalidRequestError
from hypic.eval.filling import Filling
from hypic.eval.load_metrics import ATTAINED, summarise
from hypic.eval.open_loop import Sample, check_on_time, one_by_one, replay
from hypic.eval.rate_search import RateSearch
from hypic.eval.replay import Asked, catch_up, read_trace, scaled, send_times
from hypic.eval.report import Advance, Report, progress, say
from hypic.eval.serve_config import GATE_REQUESTS, LoadConfig
from hypic.eval.serve_tables import serve_tables
from hypic.eval.server_process import check_serving, serving
from hypic.eval.ttft import GateError
from hypic.models.load import load_config
from hypic.tokenizer import PromptTokenizer

REFERENCE, BASELINE = "full", "prefix"

LIMIT_FACTOR = 5.0
"""The TTFT limit, where none is given, in units of what `full` takes without load."""

LAG_SHARE = 0.1
"""Share of the TTFT limit by which the client may be late."""

_OVERLOADED = ("status 429", "status 503")


@dataclass(frozen=True)
class Stretches:
    """The trace, cut. earlier: what the caches catch up with. lead: right before those of the measured rounds."""

    earlier: list[Asked]
    lead: list[Asked]
    rounds: list[list[Asked]]
    left_out: int


class LoadedServer:
    """One server and the bodies to send to it. Each arm has a salt of its own, new in every run."""

    def __init__(self, url: str, filling: Filling, advance: Advance) -> None:
        self._url, self._filling, self._advance = url, filling, advance
        self._run = uuid.uuid4().hex[:8]

    def bodies(self, asked: Sequence[Asked], arm: str) -> list[bytes]:
        return [self._filling.body(request, arm, f"{self._run}-{arm}") for request in asked]

    def one_by_one(self, asked: Sequence[Asked], arm: str, title: str) -> list[Sample]:
        """Without load. Raises GenerationError for the first that fails."""
        samples = one_by_one(self._url, self.bodies(asked, arm), lambda: self._advance(title))
        check_answers(samples)
        return samples

    def replay(self, asked: Sequence[Asked], arm: str, qps: float, load: LoadConfig, title: str) -> list[Sample]:
        """Under load. Raises GenerationError where a request fails for another reason than overload."""
        due = send_times(asked, qps, load.arrivals, load.seed)
        samples = replay(self._url, self.bodies(asked, arm), due, lambda: self._advance(title))
        check_answers([sample for sample in samples if not sample.error.startswith(_OVERLOADED)])
        return samples


def run_serve_bench(engine: EngineConfig, cluster: ClusterConfig, load: LoadConfig, arms: Sequence[str]) -> Report:
    """Catch up, gate, search, report. `prefix` is always among the arms. Raises GateError where answers of `prefix` are
    not those of `full`, GenerationError where a request fails, LateClientError, and InvalidRequestError."""
    names = [arm_named(name).name for name in dict.fromkeys([BASELINE, *arms])]
    stretches = cut(read_trace(load.trace, load.seed), load, int(load_config(engine.model).max_position_embeddings))
    warming = catch_up(stretches.earlier, [request for part in stretches.rounds for request in part])
    total = len(names) * (len(warming) + load.lead + load.rounds * load.requests) + GATE_REQUESTS
    filling = Filling(PromptTokenizer.load(engine.model))
    with _server(engine, cluster, load) as url, progress("warming", total) as advance:
        server = LoadedServer(url, filling, advance)
        unloaded = warm(server, names, warming, stretches.lead)
        gate = check_gate(unloaded)
        limit_seconds = load.ttft_limit_ms / 1000 or LIMIT_FACTOR * _median_ttft(unloaded[REFERENCE])
        searches = {name: RateSearch(0.5 / _mean_total(unloaded[name])) for name in names}
        points = climb(server, searches, stretches.rounds, load, limit_seconds)
    results = {
        **asdict(load),
        "first_request": len(stretches.earlier) + load.lead,
        "left_out": stretches.left_out,
        "catch_up": {"requests": len(warming), "documents": sum(len(r.documents) + len(r.context) for r in warming)},
        "gate": gate,
        "ttft_limit_ms": 1000 * limit_seconds,
        "ttft_limit_rule": "given" if load.ttft_limit_ms else f"{LIMIT_FACTOR:g} times unloaded full",
        "attained_share": ATTAINED,
        "workers": {"scatter": cluster.scatter_workers, "combine": cluster.combine_workers} if not load.url else None,
        "arms": {name: _arm(searches[name], points[name], unloaded[name]) for name in names},
    }
    results["ratio_to_prefix"] = _ratios(results["arms"])
    return Report("bench serve", str(engine.model), engine.device, results, tuple(serve_tables(results)))


def cut(requests: Sequence[Asked], load: LoadConfig, max_tokens: int) -> Stretches:
    """The last requests of the trace that fit the model, in rounds; what precedes them is history. Raises
    InvalidRequestError where the trace is too short."""
    sized = scaled(requests, load.prompt_scale, load.output_scale)
    fitting = [request for request in sized if 1.1 * request.prompt_tokens + request.output_tokens + 64 <= max_tokens]
    measured = load.rounds * load.requests
    if len(fitting) < measured + load.lead:
        raise InvalidRequestError(
            f"{load.trace} has {len(fitting)} requests that fit the model's {max_tokens} tokens, "
            f"{measured + load.lead} are wanted: lower --rounds, --requests or --prompt-scale"
        )
    first = len(fitting) - measured
    rounds = [fitting[at : at + load.requests] for at in range(first, len(fitting), load.requests)]
    return Stretches(
        fitting[: first - load.lead], fitting[first - load.lead : first], rounds, len(sized) - len(fitting)
    )


def warm(
    server: LoadedServer, names: Sequence[str], warming: Sequence[Asked], lead: Sequence[Asked]
) -> dict[str, list[Sample]]:
    """The same requests with every arm, one at a time: samples of the lead by arm; of `full`, of its end."""
    say(f"warming {', '.join(names)} with the same {len(warming) + len(lead)} requests")
    unloaded = {}
    for name in names:
        server.one_by_one(warming, name, f"warming {name}")
        unloaded[name] = server.one_by_one(lead, name, f"{name} without load")
    unloaded.setdefault(REFERENCE, server.one_by_one(lead[-GATE_REQUESTS:], REFERENCE, "gate"))
    return unloaded


def check_gate(unloaded: dict[str, list[Sample]]) -> dict[str, float]:
    """Share of answers that are those of `full`, by arm, on the last requests of the lead. Raises GateError where
    `prefix` does not give all of them."""
    expected = [sample.text for sample in unloaded[REFERENCE][-GATE_REQUESTS:]]
    equal = {}
    for name, samples in unloaded.items():
        texts = [sample.text for sample in samples[-GATE_REQUESTS:]]
        equal[name] = sum(a == b for a, b in zip(texts, expected, strict=True)) / len(expected)
    if equal[BASELINE] < 1:
        raise GateError(
            f"{BASELINE} gives {100 * equal[BASELINE]:.0f} % of the answers that {REFERENCE} gives to {len(expected)} "
            "requests; nothing was timed"
        )
    return equal


def check_answers(samples: Sequence[Sample]) -> None:
    """Raises GenerationError for the first failed or empty answer."""
    failed = [sample.error for sample in samples if sample.error]
    if failed:
        raise GenerationError(f"{len(failed)} of {len(samples)} requests failed, the first with: {failed[0]}")


def climb(
    server: LoadedServer,
    searches: dict[str, RateSearch],
    rounds: Sequence[Sequence[Asked]],
    load: LoadConfig,
    limit_seconds: float,
) -> dict[str, list[dict[str, Any]]]:
    """All points of all ladders. Raises LateClientError where the client could not keep a schedule."""
    points: dict[str, list[dict[str, Any]]] = {name: [] for name in searches}
    for number, asked in enumerate(rounds):
        turns = list(searches) if number % 2 == 0 else list(searches)[::-1]
        for name in turns:
            qps = searches[name].next_rate()
            title = f"round {number + 1}: {name} at {qps:.1f} QPS"
            samples = server.replay(asked, name, qps, load, title)
            check_on_time(samples, LAG_SHARE * limit_seconds)
            point = summarise(samples, qps, limit_seconds)
            searches[name].record(qps, point["held"])
            points[name].append(point)
            say(f"{title}: {'held' if point['held'] else point['reason']}, p90 {point['ttft_ms']['p90']:.0f} ms")
    return points


@contextmanager
def _server(engine: EngineConfig, cluster: ClusterConfig, load: LoadConfig) -> Iterator[str]:
    if load.url:
        check_serving(load.url)
        yield load.url.rstrip("/")
        return
    say("starting hypic serve")
    with serving(engine, cluster) as served:
        yield served.url


def _arm(search: RateSearch, points: list[dict[str, Any]], unloaded: Sequence[Sample]) -> dict[str, Any]:
    """first_failing_qps: None where every rate held, so that the sustainable one is only a lower bound."""
    return {
        "sustainable_qps": search.sustained,
        "first_failing_qps": None if math.isinf(search.lowest_failed) else search.lowest_failed,
        "unloaded_ttft_p50_ms": 1000 * _median_ttft(unloaded),
        "points": points,
    }


def _ratios(arms: dict[str, Any]) -> dict[str, float]:
    base = arms[BASELINE]["sustainable_qps"]
    return {name: arm["sustainable_qps"] / base for name, arm in arms.items()} if base else {}


def _median_ttft(samples: Sequence[Sample]) -> float:
    return float(np.median([sample.ttft_seconds for sample in samples]))


def _mean_total(samples: Sequence[Sample]) -> float:
    return float(np.mean([sample.total_seconds for sample in samples]))
