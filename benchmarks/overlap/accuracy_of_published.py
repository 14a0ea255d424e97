"""Published figures beside ours, as tests/accuracy/published.csv keeps them.

python benchmarks/overlap/accuracy_of_published.py > tests/accuracy/published.csv

It also writes what each policy makes of each workload of the caching study to tests/accuracy/caching.jsonl. Tests
simulate every seventh of these anew.
"""

import csv
import sys
from pathlib import Path

from replay.costs.shipped import load_parameters
from replay.studies.caching import reproduce
from replay.studies.workloads import load_study
from seqpoint.validation.published import score_published

OUTCOMES = Path(__file__).parents[2] / "tests" / "accuracy" / "caching.jsonl"
COLUMNS = ("system", "name", "published", "ours", "unit", "grade", "fitted", "met")


def table(system: str | None = None) -> list[dict[str, str]]:
    """Return a row for each published figure of one system, or of all."""
    rows = []
    for score in score_published(load_parameters(), [system] if system else ()):
        figure, met = score.figure, score.row.met
        values = (
            score.system,
            figure.name,
            f"{figure.value:g}",
            f"{score.ours:.4g}",
            figure.unit,
            figure.grade,
            "yes" if figure.fitted else "",
            {True: "yes", False: "NO", None: ""}[met],
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def main() -> None:
    """Write the table to stdout, and the outcomes of the caching study to their file."""
    OUTCOMES.unlink(missing_ok=True)
    reproduce(load_parameters(), load_study(), OUTCOMES)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table())


if __name__ == "__main__":
    main()
