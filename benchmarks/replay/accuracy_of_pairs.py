"""Regenerate tests/accuracy/pairs.csv and intervals.csv: gains of what-ifs, and how often intervals hold.

    python benchmarks/replay/accuracy_of_pairs.py ../shared/data tests/accuracy

It takes about five minutes. `pairs.csv` has a row for each job that ran before and after a change, of the recordings
that the project ships and of the shared traces. A gain is the time of a step before the change over that after.
`intervals.csv` counts the intervals of each kind of comparison; the rows below are the intervals of kernel times of
traces, in ms. `widening` is the factor, as a power of ratios, with which the intervals hold 90 %. `held_out` is the
coverage if each case is widened by what the other cases need. Shares are in %.
"""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from profilers.files import dataset_path
from seqpoint.validation.changes import IntervalScore, summaries
from seqpoint.validation.suites import validate

PAIRS = ("change", "runs", "what_if", "measured", "traced", "predicted", "low", "high", "inside", "cause")
INTERVALS = (
    *("kind", "case", "what_if", "measured_ms", "projected_ms", "low_ms", "high_ms", "inside"),
    *("intervals", "cases", "coverage", "width", "error", "widening", "held_out"),
)
#: Files and folders below the shared data that hold pairs.
SOURCES = (
    "traces/kineto/tracelens",
    "traces/kineto/hta/trace_diff_a100.json.gz",
    "traces/kineto/hta/trace_diff_v100.json.gz",
    "traces/kineto/particle_transformer",
    "models/measured_per_op.parquet",
    "operators/aic_gemm.parquet",
    "convolutions/deepbench.parquet",
    "collectives/aic_collectives.parquet",
)
#: Kinds of comparison that traces give, beside gains.
OF_TRACES = ("kernel time of a step", "kernel time of a class")


def gain_row(gain: Mapping[str, object]) -> dict[str, str]:
    """Return the row of a pair."""
    names = {"change": str(gain["change"]), "runs": str(gain["case"]), "what_if": str(gain["what_if"])}
    numbers = {name: "" if gain[name] is None else f"{gain[name]:.3f}" for name in PAIRS[3:8]}
    inside = {None: "", True: "yes", False: "no"}[gain["inside"]]  # type: ignore[index]
    return {**names, **numbers, "inside": inside, "cause": str(gain["cause"] or gain["reason"])}


def coverage_row(line: Mapping[str, object]) -> dict[str, str]:
    """Return the row of a kind of comparison."""
    numbers = {name: f"{line[name]:.3f}" for name in ("width", "widening")}
    numbers |= {name: f"{100 * float(str(line[name])):.1f}" for name in ("coverage", "error", "held_out")}
    return {"kind": str(line["kind"]), "intervals": str(line["intervals"]), "cases": str(line["jobs"]), **numbers}


def interval_row(score: IntervalScore) -> dict[str, str]:
    """Return the row of an interval."""
    times = {name: getattr(score, f"{name}_ns") for name in ("measured", "projected", "low", "high")}
    text = {f"{name}_ms": f"{ns / 1e6:.3f}" for name, ns in times.items()}
    names = {"kind": score.kind, "case": score.case, "what_if": score.what_if}
    return {**names, **text, "inside": "yes" if score.inside else "no"}


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> None:
    """Write a table."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(shared: Path, target: Path) -> None:
    """Write both tables."""
    paths = [shared / source for source in SOURCES] + [dataset_path("measured")]
    result = validate("pairs", paths, {}).results["pairs"]
    scores: Sequence[IntervalScore] = result.scores
    write(target / "pairs.csv", PAIRS, map(gain_row, result.details["pairs"]))  # type: ignore[call-overload]
    rows = [*map(coverage_row, summaries(scores)), *(interval_row(each) for each in scores if each.kind in OF_TRACES)]
    write(target / "intervals.csv", INTERVALS, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
