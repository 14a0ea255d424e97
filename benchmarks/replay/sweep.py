"""A sweep of what-ifs over one graph by 1, 2, ... threads: seconds, the ratio to one thread, and peak memory.

    python benchmarks/replay/sweep.py > sweep.csv            # about a minute; --quick for a smaller graph

The graph is that of `throughput.py`, of 4 streams; every draw and what-if takes contention out and simulates. The
same by as many processes at once, each of one thread and with a graph of its own, says what the machine gives
(`as_processes`: how much more they do in the time of one). The numbers of all threads are compared, bit for bit.
Every row runs in a process of its own, compiled code warm, the least time of three.
"""

import csv
import os
import resource
import subprocess
import sys
import time
from functools import partial

from throughput import graph_of

from profilers.trace.trace import TraceMeta
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.projection.projection import ProjectionOptions, project
from replay.projection.windows import StepWindow
from replay.what_ifs import parse_what_if

COLUMNS = (
    "kernels",
    "what_ifs",
    "draws",
    "threads",
    "seconds",
    "times_as_fast_as_one",
    "as_processes",
    "peak_mb",
    "same_bits",
)
WHAT_IFS = ("scale_kernels:all:0.5", "overlap:no_contention", "cu_order:fair", "partition:all:0.5")
DRAWS = 8


def one(kernels: int, threads: int) -> tuple[float, float, str]:
    """Return seconds, peak MB, and all numbers as text."""
    graph = graph_of(kernels, 4)
    line = replay(graph)
    graph = graph.with_tasks(measured_start_ns=line.start_ns, measured_end_ns=line.end_ns, duration_ns=line.end_ns * 0)
    what_ifs = [parse_what_if(text) for text in WHAT_IFS]
    run = partial(project, meta=TraceMeta("synthetic"), parameters=load_parameters())
    small = graph_of(100, 2)
    run([StepWindow.alone(small)], what_ifs, options=ProjectionOptions(2, jobs=1))
    options, took = ProjectionOptions(DRAWS, jobs=threads), []
    for _ in range(3):
        began = time.perf_counter()
        found = run([StepWindow.alone(graph)], what_ifs, options=options)
        took.append(time.perf_counter() - began)
    seconds = min(took)
    text = " ".join(f"{row.projected_ns!r} {row.low!r} {row.high!r}" for row in found.rows)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, text


def main() -> None:
    """Write a row a number of threads."""
    if sys.argv[1:2] == ["--one"]:
        print(*one(int(sys.argv[2]), int(sys.argv[3])))
        return
    kernels = 20_000 if "--quick" in sys.argv else 200_000
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    cores = len(os.sched_getaffinity(0))
    first: tuple[float, str] | None = None
    for threads in sorted({1, 2, cores}):
        command = [sys.executable, __file__, "--one", str(kernels), str(threads)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        alone = [*command[:-1], "1"]
        many = [subprocess.Popen(alone, stdout=subprocess.PIPE, text=True) for _ in range(threads)]
        slowest = max(float(process.communicate()[0].split()[0]) for process in many)
        seconds, peak, text = float(out.split()[0]), float(out.split()[1]), out.split(maxsplit=2)[2]
        first = first or (seconds, text)
        ratio = f"{first[0] / seconds:.2f}"
        given, same = f"{threads * first[0] / slowest:.2f}", text == first[1]
        writer.writerow((kernels, len(WHAT_IFS), DRAWS, threads, f"{seconds:.2f}", ratio, given, round(peak), same))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
