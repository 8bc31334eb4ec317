"""The bundled model's card, from the reports of its training runs: `python -m hypic.eval.recall_card RUN... --out DIR`.

Each RUN is a directory that `hypic.eval.train_recall` wrote. The first is the one that is shipped: it is copied to DIR.
All are run through the engine's arms, and README.md tells the figures of all.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.eval.quality import run_quality
from hypic.eval.recall import PROBES
from hypic.eval.settings import QualityConfig

ARMS = ("full", "hypic", "transition", "addition")
Scores = dict[str, Any]


def measure_arms(model: Path, count: int) -> Scores:
    """Exact answers in percent through the engine: {documents: {arm: {probe: score}}}."""
    engine = Engine(EngineConfig(model=model, threads=1))
    report: Scores = {}
    for documents in (8, 16):
        sets = run_quality(engine, QualityConfig("recall", count, documents), ARMS).results["sets"]
        report[str(documents)] = {arm: {probe: sets[probe][arm]["score"] for probe in PROBES} for arm in ARMS}
    return report


def measured(run: Path, count: int) -> Scores:
    """The report of a run with the arms in it, measured once and kept in the run's directory."""
    path = run / "training_report.json"
    report: Scores = json.loads(path.read_text(encoding="utf-8"))
    if report.get("questions_per_arm") != count:
        report |= {"questions_per_arm": count, "arms": measure_arms(run, count)}
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _table(head: str, rows: list[tuple[str, Scores]]) -> str:
    """One row a label, a column a probe, and their mean."""
    lines = [f"| {head} | {' | '.join(PROBES)} | mean |", "|---|" + "---:|" * (len(PROBES) + 1)]
    for label, scores in rows:
        values = [scores[probe] for probe in PROBES]
        cells = " | ".join(f"{value:.1f}" for value in [*values, sum(values) / len(values)])
        lines.append(f"| {label} | {cells} |")
    return "\n".join(lines)


def results(reports: list[Scores]) -> str:
    """Every table of the card."""
    parts = []
    for documents in ("8", "16"):
        rows = [(f"{r['seed']}, {arm}", r["arms"][documents][arm]) for r in reports for arm in ARMS]
        parts.append(f"### {documents} documents, through the engine\n\n" + _table("seed, arm", rows))
    for documents in ("8", "16"):
        rows = [
            (f"{r['seed']}, {name}", scores) for r in reports for name, scores in r["exact_answers"][documents].items()
        ]
        title = f"### {documents} documents, ordinary forward in transformers, mixers zeroed"
        parts.append(f"{title}\n\n" + _table("seed, zeroed", rows))
    return "\n\n".join(parts)


def card(reports: list[Scores]) -> str:
    """README.md of the shipped model, the first of the reports."""
    shipped = reports[0]
    template = Path(__file__).parent / "data" / "recall_card.md"
    return template.read_text(encoding="utf-8").format(
        seed=shipped["seed"],
        seeds=", ".join(str(report["seed"]) for report in reports),
        parameters=f"{shipped['parameters']:,}",
        steps=shipped["steps"],
        minutes=", ".join(f"{report['training_seconds'] / 60:.0f}" for report in reports),
        count=shipped["questions_per_probe"],
        arm_count=shipped["questions_per_arm"],
        results=results(reports),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure trained recall models and write the card of the first.")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="directory of the shipped model")
    parser.add_argument("--count", type=int, default=200, help="questions a probe")
    options = parser.parse_args()
    reports = [measured(run, options.count) for run in options.runs]
    if options.out.resolve() != options.runs[0].resolve():
        shutil.copytree(options.runs[0], options.out, dirs_exist_ok=True)
    text = json.dumps({**reports[0], "other_seeds": reports[1:]}, indent=2)
    (options.out / "training_report.json").write_text(text + "\n", encoding="utf-8")
    (options.out / "README.md").write_text(card(reports), encoding="utf-8")


if __name__ == "__main__":
    main()
