"""`hypic eval quality`: the same questions through every arm, greedily, and what each arm loses against `full`.

Requests run in the engine's continuous batch. Each arm has its own salt, so no arm finds what another has cached, and
each starts cold.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hypic.arms import Arm, arm_named
from hypic.engine.engine import Engine
from hypic.errors import GenerationError, InvalidRequestError, PromptTooLongError
from hypic.eval.metrics import best_over, bootstrap_interval, exact_match, relative_drop, token_f1
from hypic.eval.report import Report, Table, progress
from hypic.eval.workloads import Question, question_sets
from hypic.request import GenerationRequest, SamplingParams

REFERENCE = "full"
_OPEN_REQUESTS = 32


def run_quality(engine: Engine, dataset: str, arms: Sequence[str], limit: int, documents: int, seed: int) -> Report:
    """Run the sets of a data set through the arms; `full` is always among them.

    Raises InvalidRequestError for an unknown arm or data set, and where no prompt fits the model.
    """
    chosen = [arm_named(name) for name in dict.fromkeys([REFERENCE, *arms])]
    found = question_sets(dataset, limit, documents, seed)
    sets = {name: [q for q in questions if _fits(engine, q)] for name, questions in found.items()}
    for name, questions in sets.items():
        if not questions:
            raise InvalidRequestError(
                f"no prompt of {name} fits the model's {engine.max_tokens} tokens; use fewer documents"
            )
    answers: dict[str, dict[str, list[str]]] = {name: {} for name in sets}
    total = len(chosen) * sum(map(len, sets.values()))
    with progress("answering", total) as advance:
        for name, questions in sets.items():
            for arm in chosen:
                title = f"{name}, {arm.name}"
                answers[name][arm.name] = answer_all(engine, questions, arm, lambda: advance(title))  # noqa: B023
    scores = {name: score_arms(sets[name], answers[name], seed) for name in sets}
    means = _summary(scores)
    results = {
        "dataset": dataset,
        "documents": documents,
        "seed": seed,
        "too_long": {name: len(found[name]) - len(sets[name]) for name in sets},
        "sets": scores,
        "means": means,
    }
    tables = tuple(_tables(scores, means))
    return Report("eval quality", str(engine.config.model), engine.config.device, results, tables)


def answer_all(
    engine: Engine, questions: Sequence[Question], arm: Arm, on_answer: Callable[[], None] = lambda: None
) -> list[str]:
    """Greedy answers, in the order of the questions. Cold segments are built in this process."""
    requests = (
        GenerationRequest(
            str(number),
            question.segments(engine.tokenizer),
            arm,
            SamplingParams(max_tokens=question.max_tokens),
            salt=arm.name,
        )
        for number, question in enumerate(questions)
    )
    texts = [""] * len(questions)
    for number, text in _stream(engine, requests):
        texts[number] = text
        on_answer()
    return texts


def _stream(engine: Engine, requests: Iterable[GenerationRequest]) -> Iterable[tuple[int, str]]:
    """(request number, whole text) as requests finish, a bounded number of them open. Raises GenerationError."""
    waiting = deque(requests)
    open_texts: dict[str, str] = {}
    while waiting or open_texts:
        while waiting and len(open_texts) < _OPEN_REQUESTS:
            request = waiting.popleft()
            engine.build_here([task.key for task in engine.submit(request)])
            open_texts[request.request_id] = ""
        for output in engine.step():
            if output.finish_reason == "error":
                raise GenerationError(output.error)
            open_texts[output.request_id] += output.text
            if output.finish_reason is not None:
                yield int(output.request_id), open_texts.pop(output.request_id)


def score_arms(questions: Sequence[Question], answers: dict[str, list[str]], seed: int) -> dict[str, dict[str, Any]]:
    """Per arm: score (exact match, 0 to 100), f1, n, intervals, points and percent lost, changed answers.

    answers: arm -> text per question, `full` among them. lost_interval is of the paired difference.
    """
    exact = {
        arm: [100 * best_over(exact_match, *pair) for pair in _pairs(questions, texts)]
        for arm, texts in answers.items()
    }
    f1 = {
        arm: [100 * best_over(token_f1, *pair) for pair in _pairs(questions, texts)] for arm, texts in answers.items()
    }
    reference = exact[REFERENCE]
    scores = {}
    for arm, texts in answers.items():
        lost = [a - b for a, b in zip(reference, exact[arm], strict=True)]
        scores[arm] = {
            "score": _mean(exact[arm]),
            "interval": bootstrap_interval(exact[arm], seed),
            "f1": _mean(f1[arm]),
            "f1_lost_points": _mean(f1[REFERENCE]) - _mean(f1[arm]),
            "n": len(questions),
            "lost_points": _mean(lost),
            "lost_percent": relative_drop(_mean(reference), _mean(exact[arm])),
            "lost_interval": bootstrap_interval(lost, seed),
            "changed": sum(a != b for a, b in zip(answers[REFERENCE], texts, strict=True)),
        }
    return scores


def _pairs(questions: Sequence[Question], texts: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    return [(text, question.answers) for question, text in zip(questions, texts, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _fits(engine: Engine, question: Question) -> bool:
    """Whether the model can read the prompt and answer it."""
    request = GenerationRequest(
        "fits",
        question.segments(engine.tokenizer),
        arm_named(REFERENCE),
        SamplingParams(max_tokens=question.max_tokens),
    )
    try:
        engine.plan(request)
    except PromptTooLongError:
        return False
    return True


def _summary(scores: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Per arm, means over the sets: score and points lost."""
    arms = next(iter(scores.values()))
    return {
        arm: {key: _mean([found[arm][key] for found in scores.values()]) for key in ("score", "lost_points")}
        for arm in arms
    }


def _tables(scores: dict[str, dict[str, dict[str, Any]]], means: dict[str, dict[str, float]]) -> Iterator[Table]:
    """One table of scores over the sets, and one a set with what is lost and how sure that is."""
    if len(scores) > 1:
        rows = tuple(
            (arm, *(f"{found[arm]['score']:.1f}" for found in scores.values()), *(f"{mean[key]:.1f}" for key in mean))
            for arm, mean in means.items()
        )
        note = "Percent of answers that match exactly; lost: points of the mean against full."
        yield Table("Exact match by set", ("arm", *scores, "mean", "lost"), rows, note)
    for name, found in scores.items():
        rows = tuple(
            (
                arm,
                f"{score['score']:.1f}",
                _span(score["interval"], ""),
                f"{score['f1']:.1f}",
                f"{score['lost_points']:+.1f}",
                _span(score["lost_interval"], "+"),
                f"{score['lost_percent']:+.1f}",
                str(score["changed"]),
            )
            for arm, score in found.items()
        )
        columns = ("arm", "exact", "95 %", "F1", "lost", "95 %", "% lost", "changed")
        count = next(iter(found.values()))["n"]
        note = "lost: points against full, positive is worse; changed: answers whose text differs from that of full."
        yield Table(f"{name}: {count} questions", columns, rows, note)


def _span(interval: tuple[float, float], sign: str) -> str:
    return f"{interval[0]:{sign}.0f}..{interval[1]:{sign}.0f}"
