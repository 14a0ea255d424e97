"""Regenerate tests/accuracy/stragglers.csv: slow-downs of three training jobs, as published and ours.

    python benchmarks/jobs/accuracy_of_stragglers.py ../shared/data/jobs > tests/accuracy/stragglers.csv

Nothing is fitted. Errors are in percent.
"""

import csv
import sys
from pathlib import Path

from seqpoint.validation.stragglers import SUITE
from seqpoint.validation.suites import SuiteOptions, find_sources

COLUMNS = ("case", "published", "ours", "error", "limit")


def table(folder: Path) -> list[dict[str, str]]:
    """Return a row for each published figure."""
    options = SuiteOptions()
    sources, _ = find_sources(SUITE, [folder])
    return [
        {
            "case": row.case,
            "published": "" if row.reference is None else f"{row.reference:.6g}",
            "ours": f"{row.ours:.6g}",
            "error": f"{100 * row.error:.4f}" if not row.least else "",
            "limit": "" if row.limit is None else f"{100 * row.limit:g}",
        }
        for row in SUITE.score(SUITE.read(sources, options), options).rows
    ]


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
