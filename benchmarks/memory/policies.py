"""Times of the 17 workloads of the study of cache policies under six policies, as CSV; progress goes to stderr.

python benchmarks/memory/policies.py RESULTS.jsonl > policies.csv

RESULTS.jsonl keeps what is done, so that an interrupted run goes on where it stopped.
"""

import csv
import sys
import time
from pathlib import Path

from replay.costs.shipped import load_parameters
from replay.studies.caching import OPTIMISED, STATIC, outcomes
from replay.studies.workloads import load_study

COLUMNS = ("workload", "policy", "us", "over_best_static", "row_hit_rate", "stall_cycles", "reads_of_unique")


def main() -> None:
    """Write the table to stdout."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    study, policies, started = load_study(), (*STATIC, *OPTIMISED), time.perf_counter()
    rows = []
    for number, each in enumerate(outcomes(study, load_parameters(), policies=policies, file=file), 1):
        done = f"{number} of {len(study) * len(policies)}, {time.perf_counter() - started:.0f} s"
        print(f"{done}: {each.workload} under {each.policy}", file=sys.stderr, flush=True)
        rows.append(each)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    best = {name: min(row.ns for row in rows if row.workload == name and row.policy in STATIC) for name in study}
    for row in rows:
        figures = row.ns / 1e3, row.ns / best[row.workload], row.row_hit_rate, row.stall_cycles, row.reads_of_unique
        writer.writerow([row.workload, row.policy, *(f"{figure:.6g}" for figure in figures)])


if __name__ == "__main__":
    main()
