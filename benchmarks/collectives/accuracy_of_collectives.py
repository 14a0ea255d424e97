"""Regenerate tests/accuracy/collectives.csv: predicted against measured times of collectives.

    python benchmarks/collectives/accuracy_of_collectives.py ../shared/data/collectives > tests/accuracy/collectives.csv

Every group of workers is predicted with its own fit, on the quarter of the sizes that the fit never looked at; then
without any group of its number of workers; then without its device. The shipped fits are made by:

    seqpoint calibrate collectives ../shared/data/collectives -o datasets/fits/collectives.json --fresh
"""

import csv
import sys
from pathlib import Path

from replay.costs.collectives import read_collectives
from seqpoint.validation.collectives import CollectiveScore, collective_rows, score_collectives

COLUMNS = (
    "case",
    "link",
    "basis",
    "rows",
    "error",
    "median",
    "bias",
    "covered",
    "below 1 MiB",
    "1 to 16 MiB",
    "above 16 MiB",
    "limit",
    "met",
)


def table(folder: Path) -> list[dict[str, str]]:
    """Return the rows of the table."""
    scores = score_collectives(read_collectives(folder))
    summaries = [row for row in collective_rows(scores) if row.limit is not None]
    return [_score(one) for one in scores] + [
        {
            "case": row.case,
            ("covered" if row.least else "error"): f"{100 * row.ours:.2f}",
            "limit": f"{100 * row.limit:g}",
            "met": "yes" if row.met else "NO",
        }
        for row in summaries
        if row.limit is not None
    ]


def _score(one: CollectiveScore) -> dict[str, str]:
    return {
        "case": one.case,
        "link": one.link,
        "basis": one.basis,
        "rows": str(one.rows),
        "error": f"{100 * one.error:.2f}",
        "median": f"{100 * one.median:.2f}",
        "bias": f"{one.bias:.3f}",
        "covered": f"{100 * one.covered:.1f}",
        **{name: f"{100 * error:.2f}" for name, error in one.by_size.items()},
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
