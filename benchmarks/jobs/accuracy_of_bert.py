"""Regenerate tests/accuracy/bert.csv: shares of BERT-Large's operators and ratios of its throughput, measured and ours.

    python benchmarks/jobs/accuracy_of_bert.py ../shared/data > tests/accuracy/bert.csv

Nothing is fitted to these measurements. Operators are predicted with the shipped fits of their device, and as if the
device had never been measured.
"""

import csv
import sys
from pathlib import Path

from seqpoint.validation.bert import SUITE
from seqpoint.validation.suites import SuiteOptions, find_sources

COLUMNS = ("case", "measured", "ours", "error", "limit")


def table(folder: Path) -> list[dict[str, str]]:
    """Return a row for each share and ratio, and their means and medians with limits."""
    options = SuiteOptions()
    sources, _ = find_sources(SUITE, [folder / "models", folder / "training"])
    return [
        {
            "case": row.case,
            "measured": "" if row.reference is None else f"{row.reference:.4f}",
            "ours": f"{row.ours:.4f}",
            "error": f"{100 * row.error:.2f}",
            "limit": "" if row.limit is None else f"{100 * row.limit:g}",
        }
        for row in SUITE.score(SUITE.read(sources, options), options).rows
    ]


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
