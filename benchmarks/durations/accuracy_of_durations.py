"""Regenerate tests/accuracy/kernel_durations.csv: predicted against measured durations of operators.

    python benchmarks/durations/accuracy_of_durations.py ../shared/data/kernels > tests/accuracy/kernel_durations.csv

Every device is predicted with its own fit, and carried over from the others as if it had never been measured. The
shipped fits are made from the files without `_test` in their names (and MI100's, which have no test files):

    seqpoint calibrate kernels ../shared/data/kernels/nvidia_{linear,bmm,elem,softmax,ln}.parquet \
        ../shared/data/kernels/amd_mi100_*.parquet -o datasets/fits/kernels.json --fresh
"""

import csv
import sys
from pathlib import Path

from replay.durations import read_measurements
from seqpoint.validation.kernels import KernelScore, kernel_rows, score_kernels

COLUMNS = ("case", "rows", "error", "median", "bias", "covered", "limit")


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table."""
    scores = [one for one in score_kernels(read_measurements(folder)) if not (one.seen and one.basis == "fitted")]
    test_files = {(s.kind, s.device) for s in scores if "_test" in s.source}
    kept = [s for s in scores if "_test" in s.source or (s.kind, s.device) not in test_files]
    summaries = [row for row in kernel_rows(kept) if row.limit is not None]
    return [_score(one) for one in kept] + [
        {"case": row.case, "error": f"{100 * row.error:.2f}", "limit": f"{100 * row.limit:g}"}
        for row in summaries
        if row.limit is not None
    ]


def _score(one: KernelScore) -> dict[str, str]:
    return {
        "case": f"{one.kind} {one.device} {one.basis}",
        "rows": str(one.rows),
        "error": f"{100 * one.error:.2f}",
        "median": f"{100 * one.median:.2f}",
        "bias": f"{one.bias:.3f}",
        "covered": f"{100 * one.covered:.1f}",
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
