"""Regenerate tests/accuracy/memory.csv: streams, caches and DRAM against another simulator and against hardware.

    python benchmarks/memory/accuracy_of_memory.py ../shared/data > tests/accuracy/memory.csv

A row for each limit of `seqpoint validate memory`. `without_launch` is the median error of times without the launch,
which is not simulated: the shipped floor of a kernel, and the host's time of the call.
"""

import csv
import sys

import seqpoint as sp

COLUMNS = ("case", "ours", "limit", "met", "without_launch")


def main(path: str) -> None:
    """Print the table."""
    result = sp.validate("memory", path)
    alone = {f"time: {row['device']} {row['kind']}": row["without_launch"] for row in result.to_dict()["time_summary"]}
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in result.to_dict()["rows"]:
        if row["limit"] is not None:
            other = alone.get(row["case"].partition(", median")[0])
            writer.writerow(
                (row["case"], f"{row['ours']:.4g}", row["limit"], "yes" if row["met"] else "NO",
                 "" if other is None else f"{other:.4g}")
            )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
