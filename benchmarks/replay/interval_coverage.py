"""Regenerate tests/accuracy/intervals.csv: how often intervals of projections hold what was measured.

    python benchmarks/replay/interval_coverage.py ../shared/data > tests/accuracy/intervals.csv

It takes about three minutes. The first rows count the intervals of each kind of comparison. The rows below them are the
intervals of the pairs of traces. Times are in ms, shares in %. `widening` is the factor, as a power of ratios, with
which the intervals hold 90 %. `held_out` is the coverage if each case is widened by what the other cases need.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from seqpoint.validation.intervals import IntervalScore, summaries
from seqpoint.validation.suites import validate

COLUMNS = (
    *("kind", "case", "what_if", "measured_ms", "projected_ms", "low_ms", "high_ms", "inside"),
    *("intervals", "cases", "coverage", "width", "error", "widening", "held_out"),
)
#: Files and folders below the shared data that hold pairs.
SOURCES = (
    "traces/kineto/tracelens",
    "traces/kineto/hta/trace_diff_a100.json.gz",
    "traces/kineto/hta/trace_diff_v100.json.gz",
    "models/measured_per_op.parquet",
    "operators/aic_gemm.parquet",
    "convolutions/deepbench.parquet",
    "collectives/aic_collectives.parquet",
)
#: Kinds of comparison that whole traces give.
OF_TRACES = ("step time", "kernel time of a step", "kernel time of a class")


def table(scores: Sequence[IntervalScore]) -> list[dict[str, str]]:
    """Return the rows of the table."""
    rows = []
    for line in summaries(scores):
        numbers = {name: f"{line[name]:.3f}" for name in ("width", "widening")}
        numbers |= {name: f"{100 * float(str(line[name])):.1f}" for name in ("coverage", "error", "held_out")}
        rows.append(
            {"kind": str(line["kind"]), "intervals": str(line["intervals"]), "cases": str(line["jobs"]), **numbers}
        )
    return rows + [pair(score) for score in scores if score.kind in OF_TRACES]


def pair(score: IntervalScore) -> dict[str, str]:
    """Return the row of an interval."""
    times = {name: getattr(score, f"{name}_ns") for name in ("measured", "projected", "low", "high")}
    text = {f"{name}_ms": f"{ns / 1e6:.3f}" for name, ns in times.items()}
    names = {"kind": score.kind, "case": score.case, "what_if": score.what_if}
    return {**names, **text, "inside": "yes" if score.inside else "no"}


def main(folder: Path) -> None:
    """Write the table of the shared data to stdout."""
    result = validate("intervals", [folder / source for source in SOURCES], {}).results["intervals"]
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(result.scores))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
