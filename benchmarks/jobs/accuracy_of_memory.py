"""Regenerate tests/accuracy/job_memory.csv: predicted against measured memory of training jobs, by group.

    python benchmarks/jobs/accuracy_of_memory.py ../shared/data/training > tests/accuracy/job_memory.csv

Errors are of predicted over measured GiB, in %. The share of reserved bytes was fitted to one of the groups.
"""

import csv
import sys
from pathlib import Path

from seqpoint.validation.job_memory import memory_groups, memory_kind, read_memory, score_memory

COLUMNS = ("case", "n", "mean", "worst", "bias", "fits")


def table(folder: Path) -> list[dict[str, str]]:
    """Return a row for each group."""
    measured = read_memory([path for path in sorted(folder.glob("*.csv")) if memory_kind(path)])
    return [
        {
            "case": group["name"],
            "n": str(group["n"]),
            "mean": f"{100 * group['error']:.1f}",
            "worst": f"{100 * group['worst']:.1f}",
            "bias": f"{group['ratio']:.3f}",
            "fits": f"{100 * group['fits']:.0f}",
        }
        for group in memory_groups(score_memory(measured.runs))
    ]


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
