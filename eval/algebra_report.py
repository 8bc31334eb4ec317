"""`hypic eval algebra`: the report around `hypic.eval.algebra`."""

from hypic.eval.algebra import run_algebra
from hypic.eval.report import Report, Table, progress
from hypic.linear.family import families

LIMIT = 2e-6


def report_algebra(splits: int, tokens: int, seed: int) -> Report:
    """Composition errors of every family. Raises ValueError where there are fewer tokens than a split needs."""
    with progress("composing", splits * len(families())) as advance:
        results = run_algebra(splits, tokens, seed=seed, progress=lambda name, done, total: advance(name))
    rows = tuple(
        (
            name,
            row["form"],
            f"{row['max_relative_error']:.1e}",
            f"{row['merged_relative_error']:.1e}",
            f"{row['output_relative_error']:.1e}",
            f"{row['addition_relative_error']:.1e}",
        )
        for name, row in results["families"].items()
    )
    columns = ("family", "transition", "composed", "merged", "outputs", "addition")
    note = (
        f"Worst relative errors over {splits} random splits; of composed, at most {LIMIT:.0e} is wanted; addition is "
        "the strawman."
    )
    return Report(
        "eval algebra",
        "no model",
        "cpu",
        {"limit": LIMIT, "splits": splits, "tokens": tokens, **results},
        (Table("Composition against a float64 token loop", columns, rows, note, text_columns=2),),
    )
