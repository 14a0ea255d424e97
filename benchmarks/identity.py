"""Replay every iteration of every real trace unchanged and with typical delays; write the table that the tests compare.

    python benchmarks/identity.py ../shared/data/traces > tests/accuracy/identity.csv

Columns: the trace; its iterations; the median and the worst error of the unchanged replay's time; the worst error of
the start of a kernel or copy, as a share of its iteration; the median and the worst error of the time when every
delay between host and device, and between device tasks, is replaced by the median of its kind (`replay.typical`),
which is a prediction and not a repetition; and the share of the iteration that is waiting which no recorded event
explains. All in percent.
"""

import csv
import sys
from pathlib import Path

import numpy as np

from profilers.collect import CollectOptions, collect
from profilers.trace import Trace
from replay.build import build_graph, index_trace
from replay.timeline import Timeline, replay
from replay.typical import with_typical_lags

COLUMNS = ("trace", "iterations", "median", "worst", "start_worst", "typical_median", "typical_worst", "unexplained")
#: Of the tables that rocprofv3 writes, those that have kernels or copies.
ROCPROFV3 = ("kernel_trace", "kernel_trace_truncated", "counter_collection", "memory_copy_trace")


def cases(root: Path) -> list[tuple[str, list[Path]]]:
    """Return every trace below `root`: the eight ranks of dlrm8 as one job, each particle_transformer as one."""
    kineto = root / "kineto"
    several = {"particle_transformer", "dlrm8"}
    files = [f for f in sorted(kineto.rglob("*.gz")) if not several & set(f.parts)]
    files += sorted((root / "nsys").glob("*.sqlite"))
    rocm = root / "rocm"
    files += [rocm / "rocprofv1_gfx906" / "results.db", rocm / "rocprofv1_gfx906" / "results.json"]
    files += [rocm / "rocprofv1_gfx942" / "results.csv", rocm / "rocprofv1_gfx942" / "results.db"]
    files += [rocm / "rocprofv3_csv" / f"{name}.csv" for name in ROCPROFV3]
    files += sorted(rocm.glob("*.gz"))
    found = [(f.relative_to(root).as_posix(), [f]) for f in files]
    for folder in [*sorted((kineto / "particle_transformer").glob("*")), kineto / "dlrm8"]:
        found.append((folder.relative_to(root).as_posix(), sorted(folder.glob("*.gz"))))
    return found


def read(name: str, files: list[Path]) -> Trace:
    """Return one trace; each file of particle_transformer is an iteration of its own."""
    return collect(files, CollectOptions("file") if "particle_transformer" in name else None)


def start_error(timeline: Timeline) -> float:
    """Return how far the start of a kernel or copy is off at worst, in ns."""
    rows = timeline.graph.on_device() & timeline.graph.tasks.own
    return float(np.abs(timeline.start_ns - timeline.graph.tasks.measured_start_ns)[rows].max(initial=0.0))


def row(name: str, files: list[Path]) -> dict[str, str]:
    """Return one row of the table."""
    index = index_trace(read(name, files))
    errors, starts, typical, unexplained = [], [], [], []
    for iteration in sorted(set(index.trace.iterations["iteration"].to_pylist())):
        graph = build_graph(index, iteration)
        timeline = replay(graph)
        measured = max(graph.measured_ns, 1.0)
        errors.append(abs(timeline.makespan_ns - graph.measured_ns) / measured)
        starts.append(start_error(timeline) / measured)
        typical.append(abs(replay(with_typical_lags(graph)).makespan_ns - graph.measured_ns) / measured)
        unexplained.append(timeline.unexplained_ns() / measured)
    numbers = (
        np.median(errors), max(errors), max(starts), np.median(typical), max(typical), np.median(unexplained),
    )  # fmt: skip
    return {
        "trace": name,
        "iterations": str(len(errors)),
        **{c: f"{100 * n:.3f}" for c, n in zip(COLUMNS[2:], numbers, strict=True)},
    }


def main() -> None:
    """Write the table to stdout."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for name, files in cases(Path(sys.argv[1])):
        writer.writerow(row(name, files))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
