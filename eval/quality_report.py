"""What results of `hypic eval quality` come to: scores, losses against `full` and how sure they are, and tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypic.eval.metrics import best_over, bootstrap_interval, exact_match, relative_drop, rouge_l, token_f1
from hypic.eval.report import Table
from hypic.eval.workloads import Metric, Question

REFERENCE = "full"
NOT_SHOWN = "no difference shown"

_METRICS = {"exact_match": exact_match, "f1": token_f1, "rouge_l": rouge_l}
_TITLES = {"exact_match": "exact match", "f1": "token F1", "rouge_l": "ROUGE-L F"}

Scores = dict[str, dict[str, Any]]
"""By arm."""


@dataclass(frozen=True)
class Result:
    """Of one question in one arm: the answer, what was cached of its prompt, and how far the arm is from `full` on the
    reference answer (see `hypic.eval.divergence`)."""

    text: str
    prompt_tokens: int
    cached_tokens: int
    first_agrees: bool
    kl_nats: float
    nll_nats: float
    tokens: int


def score_arms(questions: Sequence[Question], results: dict[str, list[Result]], seed: int) -> Scores:
    """Per arm: score (0 to 100, by the set's metric), every metric, n, intervals, points and percent lost, a verdict,
    answers that changed, and divergence from `full`.

    results: arm -> one a question, `full` among them. Intervals of differences are paired: of the same questions.
    """
    metric = questions[0].metric
    measured = {arm: _values(questions, found, metric) for arm, found in results.items()}
    return {arm: _score(arm, results, measured, metric, seed) for arm in results}


def _score(
    arm: str, results: dict[str, list[Result]], measured: dict[str, dict[str, list[float]]], metric: Metric, seed: int
) -> dict[str, Any]:
    found, expected = results[arm], results[REFERENCE]
    values, reference = measured[arm], measured[REFERENCE]
    lost = [a - b for a, b in zip(reference[metric], values[metric], strict=True)]
    lost_interval = bootstrap_interval(lost, seed)
    return {
        "score": _mean(values[metric]),
        "metric": metric,
        "interval": bootstrap_interval(values[metric], seed),
        **{name: _mean(scores) for name, scores in values.items()},
        "n": len(found),
        "lost_points": _mean(lost),
        "lost_percent": relative_drop(_mean(reference[metric]), _mean(values[metric])),
        "lost_interval": lost_interval,
        "verdict": verdict(lost_interval),
        "changed": sum(a.text != b.text for a, b in zip(expected, found, strict=True)),
        "cached_share": sum(r.cached_tokens for r in found) / sum(r.prompt_tokens for r in found),
        "divergence": _divergence(found, expected, seed),
    }


def verdict(lost_interval: tuple[float, float]) -> str:
    """What the paired 95 % interval of the points lost says: "loses", "gains", or NOT_SHOWN."""
    low, high = lost_interval
    if low > 0:
        return "loses"
    return "gains" if high < 0 else NOT_SHOWN


def _divergence(found: Sequence[Result], expected: Sequence[Result], seed: int) -> dict[str, Any]:
    """Teacher-forced on the reference answer. nll_gained_nats: above that of `full`; positive is worse."""
    kl = [result.kl_nats for result in found]
    gained = [a.nll_nats - b.nll_nats for a, b in zip(found, expected, strict=True)]
    return {
        "forced_on": "reference answer",
        "first_token_agreement": _mean([float(result.first_agrees) for result in found]),
        "kl_nats": _mean(kl),
        "kl_interval": bootstrap_interval(kl, seed),
        "nll_nats": _mean([result.nll_nats for result in found]),
        "nll_gained_nats": _mean(gained),
        "nll_gained_interval": bootstrap_interval(gained, seed),
        "verdict": verdict(bootstrap_interval(gained, seed)),
    }


def _values(questions: Sequence[Question], found: Sequence[Result], metric: Metric) -> dict[str, list[float]]:
    """Metric -> 0 to 100 for each question: the set's own, and for short answers both of SQuAD's."""
    names = ("rouge_l",) if metric == "rouge_l" else ("exact_match", "f1")
    return {
        name: [
            100 * best_over(_METRICS[name], result.text, question.answers)
            for question, result in zip(questions, found, strict=True)
        ]
        for name in names
    }


def means(scores: dict[str, Scores]) -> dict[str, dict[str, float]]:
    """Per arm, means over the sets: score and points lost."""
    arms = next(iter(scores.values()))
    return {
        arm: {key: _mean([found[arm][key] for found in scores.values()]) for key in ("score", "lost_points")}
        for arm in arms
    }


def tables(scores: dict[str, Scores], overall: dict[str, dict[str, float]]) -> Iterator[Table]:
    """One table of scores over the sets, and two a set: what is lost and how sure that is, and the divergence."""
    if len(scores) > 1:
        rows = tuple(
            (arm, *(f"{found[arm]['score']:.1f}" for found in scores.values()), *(f"{mean[key]:.1f}" for key in mean))
            for arm, mean in overall.items()
        )
        note = "Scores from 0 to 100; lost: points of the mean against full, positive is worse."
        yield Table("Score by set", ("arm", *scores, "mean", "lost"), rows, note)
    for name, found in scores.items():
        yield _loss_table(name, found)
    for name, found in scores.items():
        yield _divergence_table(name, found)


def _loss_table(name: str, found: Scores) -> Table:
    first = next(iter(found.values()))
    beside = [key for key in ("exact_match",) if key in first and key != first["metric"]]
    rows = tuple(
        (
            arm,
            f"{score['score']:.1f}",
            _span(score["interval"], ""),
            *(f"{score[key]:.1f}" for key in beside),
            f"{score['lost_points']:+.1f}" + ("" if score["verdict"] == NOT_SHOWN else " *"),
            _span(score["lost_interval"], "+"),
            f"{score['lost_percent']:+.1f}",
            str(score["changed"]),
            f"{100 * score['cached_share']:.0f} %",
        )
        for arm, score in found.items()
    )
    columns = ("arm", "score", "95 %", *("exact" for _ in beside), "lost", "95 %", "% lost", "changed", "cached")
    note = (
        f"score: {_TITLES[first['metric']]}. lost: points against full, positive is worse, * where the interval leaves "
        "out 0; changed: answers whose text differs from that of full; cached: share of prompt tokens not computed."
    )
    return Table(f"{name}: {first['n']} questions", columns, rows, note)


def _divergence_table(name: str, found: Scores) -> Table:
    rows = []
    for arm, score in found.items():
        apart = score["divergence"]
        rows.append(
            (
                arm,
                f"{100 * apart['first_token_agreement']:.0f} %",
                f"{apart['kl_nats']:.4f}",
                f"{apart['nll_nats']:.3f}",
                f"{apart['nll_gained_nats']:+.3f}",
                _span(apart["nll_gained_interval"], "+", 3),
            )
        )
    columns = ("arm", "first token", "KL", "NLL", "above full", "95 %")
    note = (
        "Every arm reads the reference answer. first token: how often the likeliest is that of full; nats a token: "
        "KL(full || arm), the answer's negative log-likelihood, and how far it is above that of full."
    )
    return Table(f"{name}: next-token distributions", columns, tuple(rows), note)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _span(interval: tuple[float, float], sign: str, digits: int = 0) -> str:
    return f"{interval[0]:{sign}.{digits}f}..{interval[1]:{sign}.{digits}f}"
