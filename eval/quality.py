"""`hypic eval quality`: the same questions through every arm, greedily, and what each arm loses against `full`.

Questions are taken in small groups, each group through every arm in turn, from empty caches. So a group's results
depend on nothing but itself: a run that was stopped goes on where it was, and ends as if it had not been stopped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hypic.arms import arm_named
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError, PromptTooLongError
from hypic.eval.answering import answer_all, cold_documents
from hypic.eval.divergence import compare, force
from hypic.eval.journal import Journal
from hypic.eval.quality_report import REFERENCE, Result, means, score_arms, tables
from hypic.eval.report import Advance, Report, commit, progress, say
from hypic.eval.settings import QualityConfig
from hypic.eval.workloads import Question, question_sets, questions_fingerprint
from hypic.request import GenerationRequest, SamplingParams

_GROUP = 8
"""Questions that are answered together in the continuous batch: what a stopped run does again at most."""

JOURNAL = "eval-quality.jsonl"

_TELLING = ("dtype", "device", "min_segment_tokens", "transition_tolerance", "state_format")
"""Settings of the engine that change what it answers."""

Sets = dict[str, list[Question]]
Results = dict[tuple[str, int, str], Result]
"""By set, number of the question in it, and arm."""


def run_quality(engine: Engine, config: QualityConfig, arms: Sequence[str], out: Path | None = None) -> Report:
    """Run the sets of a data set through the arms; `full` is always among them.

    out: folder of the journal, from which a stopped run goes on; without one nothing is kept. Raises
    InvalidRequestError for an unknown arm or data set, where no prompt fits the model, and where the folder holds
    results of another run.
    """
    names = [arm_named(name).name for name in dict.fromkeys([REFERENCE, *arms])]
    found = question_sets(config.dataset, config.limit, config.documents or None, config.seed, config.shuffle)
    sets = _fitting(engine, found)
    header = _header(engine, config, names, sets)
    journal = None if out is None else Journal(out / JOURNAL, header)
    results = _measured(engine, config, names, sets, journal)
    scores = {
        name: score_arms(
            questions,
            {arm: [results[name, number, arm] for number in range(len(questions))] for arm in names},
            config.seed,
        )
        for name, questions in sets.items()
    }
    overall = means(scores)
    outcome = {
        **asdict(config),
        "documents": config.documents or None,
        "too_long": {name: len(found[name]) - len(sets[name]) for name in sets},
        "sets": scores,
        "means": overall,
        "questions_fingerprint": header["questions"],
    }
    model, device = str(engine.config.model), engine.config.device
    return Report("eval quality", model, device, outcome, tuple(tables(scores, overall)))


def _header(engine: Engine, config: QualityConfig, arms: list[str], sets: Sets) -> dict[str, Any]:
    """What must be the same for results to belong together."""
    settings = engine.config
    return {
        "command": "hypic eval quality",
        "journal": 1,
        "model": engine.namespace.model,
        "tokenizer": engine.namespace.tokenizer,
        "engine": {name: getattr(settings, name) for name in _TELLING},
        "questions": questions_fingerprint(sets),
        "arms": arms,
        "options": asdict(config),
        "commit": commit(),
    }


def _measured(engine: Engine, config: QualityConfig, arms: list[str], sets: Sets, journal: Journal | None) -> Results:
    """All results: those of the journal, and what is missing in it. An interrupt says how to go on."""
    results = {_place(record): Result(**record["result"]) for record in (journal.records if journal else ())}
    groups = list(_groups(sets))
    open_groups = [
        (name, numbers)
        for name, numbers in groups
        if not all((name, number, arm) in results for number in numbers for arm in arms)
    ]
    total, left = (len(arms) * sum(len(numbers) for _, numbers in some) for some in (groups, open_groups))
    if journal and left < total:
        say(f"{total - left} of {total} answers are in {journal.path} and are not asked for again")
    with progress("answering", total, total - left) as advance:
        for name, numbers in open_groups:
            try:
                fresh = _run_group(engine, config, arms, name, sets[name], numbers, partial(_titled, advance, name))
            except KeyboardInterrupt:
                way = (
                    f"the same command goes on from {journal.path}" if journal else "nothing is kept without --out DIR"
                )
                say(f"stopped with {len(results)} of {total} answers done; {way}")
                raise
            missing = {place: result for place, result in fresh.items() if place not in results}
            if journal:
                journal.append([_record(place, result) for place, result in missing.items()])
            results |= missing
    return results


def _titled(advance: Advance, name: str, arm: str) -> None:
    advance(f"{name}, {arm}")


def _run_group(
    engine: Engine,
    config: QualityConfig,
    arms: list[str],
    name: str,
    questions: list[Question],
    numbers: range,
    advance: Callable[[str], None],
) -> Results:
    """A group's answers in every arm, and the divergence of each arm from `full` on the reference answers."""
    asked = [questions[number] for number in numbers]
    cold = [cold_documents(questions[number], config.cold_share, config.seed, number) for number in numbers]
    engine.segments.clear()
    engine.prefixes.clear()
    answers = {arm: answer_all(engine, asked, arm_named(arm), cold) for arm in arms}
    results: Results = {}
    for at, number in enumerate(numbers):
        reference = force(engine, asked[at], arm_named(REFERENCE))
        for arm in arms:
            forced = reference if arm == REFERENCE else force(engine, asked[at], arm_named(arm))
            answer, apart = answers[arm][at], compare(forced, reference)
            results[name, number, arm] = Result(**asdict(answer), **asdict(apart))
            advance(arm)
    return results


def _groups(sets: Sets) -> Iterator[tuple[str, range]]:
    for name, questions in sets.items():
        for start in range(0, len(questions), _GROUP):
            yield name, range(start, min(start + _GROUP, len(questions)))


def _record(key: tuple[str, int, str], result: Result) -> dict[str, Any]:
    name, number, arm = key
    return {"set": name, "question": number, "arm": arm, "result": asdict(result)}


def _place(record: dict[str, Any]) -> tuple[str, int, str]:
    return record["set"], record["question"], record["arm"]


def _fitting(engine: Engine, found: Sets) -> Sets:
    """The questions whose prompts the model can read and answer. Raises InvalidRequestError where a set has none."""
    sets = {name: [q for q in questions if _fits(engine, q)] for name, questions in found.items()}
    for name, questions in sets.items():
        if not questions:
            raise InvalidRequestError(
                f"no prompt of {name} fits the model's {engine.max_tokens} tokens; use fewer documents"
            )
    return sets


def _fits(engine: Engine, question: Question) -> bool:
    sampling = SamplingParams(max_tokens=question.max_tokens)
    request = GenerationRequest("fits", question.segments(engine.tokenizer), arm_named(REFERENCE), sampling)
    try:
        engine.plan(request)
    except PromptTooLongError:
        return False
    return True
