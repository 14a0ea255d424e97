"""Kernels a second and memory of the engine, 1e3 to 1e7 kernels on 1 to 16 streams, beside simpy on the same graph.

    pip install simpy
    python benchmarks/replay/throughput.py > throughput.csv          # about two minutes; --quick up to 1e6

Every size runs in a process of its own, compiled code warm, the least time of three. Streams run in order; every tenth
kernel waits for one of the stream before. Kernels ask at random for 5 to 100 % of four resources, so that most of the
time they slow each other. simpy's model has a process a stream, an event a kernel that another waits for, and a timeout
a kernel: order without any sharing, which is less than the engine does.
"""

import csv
import resource
import subprocess
import sys
import time

import numpy as np

from replay.engine import simulate
from replay.graph import RESOURCES, EdgeKind, Edges, KernelGraph, Lane, TaskKind, Tasks

COLUMNS = ("engine", "kernels", "streams", "seconds", "kernels_per_s", "peak_mb")
STREAMS = (1, 2, 4, 8, 16)
#: simpy takes minutes beyond this.
SIMPY_KERNELS = (1_000, 10_000, 100_000)


def graph_of(kernels: int, streams: int, seed: int = 0) -> KernelGraph:
    """Return `streams` streams of equal length on one device, with waits between neighbours."""
    random = np.random.default_rng(seed)
    each = kernels // streams
    n = each * streams
    task = np.arange(n)
    stream, place = task // each, task % each
    ordered = task[place > 0]
    waits = task[(stream > 0) & (place % 10 == 0)]
    source = np.concatenate([ordered - 1, (stream[waits] - 1) * each + np.maximum(place[waits] - 1, 0)])
    target = np.concatenate([ordered, waits])
    kind = np.repeat([int(EdgeKind.STREAM), int(EdgeKind.WAIT)], [len(ordered), len(waits)])
    demand = np.zeros((n, len(RESOURCES)))
    asked = random.uniform(0.05, 1.0, (n, 4)) * (random.random((n, 4)) < 0.6)
    demand[:, [RESOURCES.index(name) for name in ("cu", "hbm", "link", "dma")]] = asked
    demand[:, RESOURCES.index("hbm")] = np.maximum(demand[:, RESOURCES.index("hbm")], 0.1)
    zero, none, nothing = np.zeros(n, np.int64), np.full(n, -1), np.full(n, np.nan)
    tasks = Tasks(
        kind=np.full(n, int(TaskKind.KERNEL)), name=zero, class_=zero, lane=stream, device=zero,
        duration_ns=random.uniform(5e3, 2e5, n), demand=demand, release_ns=np.zeros(n), measured_start_ns=nothing,
        measured_end_ns=nothing, basis=zero, own=np.ones(n, bool), event=task, workgroups=zero, bytes=zero, dtype=none,
        collective=none, operator=none,
    )  # fmt: skip
    edges = Edges(source, target, np.zeros(len(source)), np.zeros(len(source), bool), kind)
    return KernelGraph(tasks, edges, ("kernel",), tuple(Lane(0, 0, s) for s in range(streams)), ((0, 0),), 0.0)


def with_engine(graph: KernelGraph) -> float:
    """Return the least time of three runs, s."""
    simulate(graph_of(100, 2))
    return min(_timed(lambda: simulate(graph)) for _ in range(3))


def with_simpy(graph: KernelGraph) -> float:
    """Return the time of one run of the same graph without sharing, s."""
    import simpy

    def run() -> None:
        environment = simpy.Environment()
        ended = {int(task): environment.event() for task in np.unique(graph.edges.source)}
        before: dict[int, list[int]] = {}
        for source, target, kind in zip(graph.edges.source, graph.edges.target, graph.edges.kind, strict=True):
            if kind == EdgeKind.WAIT:
                before.setdefault(int(target), []).append(int(source))

        def stream(tasks, durations):  # type: ignore[no-untyped-def]
            for task, duration in zip(tasks, durations, strict=True):
                for other in before.get(task, ()):
                    yield ended[other]
                yield environment.timeout(duration)
                if task in ended:
                    ended[task].succeed()

        for lane in range(len(graph.lanes)):
            mine = np.flatnonzero(graph.tasks.lane == lane)
            environment.process(stream(mine.tolist(), graph.tasks.duration_ns[mine].tolist()))
        environment.run()

    return _timed(run)


def _timed(run) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(engine: str, kernels: int, streams: int) -> None:
    """Print one row."""
    graph = graph_of(kernels, streams)
    took = (with_engine if engine == "seqpoint" else with_simpy)(graph)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    n = len(graph.tasks)
    csv.writer(sys.stdout).writerow((engine, n, streams, f"{took:.4g}", f"{n / took:.4g}", f"{peak:.0f}"))


def main() -> None:
    """Print every row, each from a process of its own."""
    if len(sys.argv) == 4:
        return measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sizes = [10**power for power in range(3, 7 if "--quick" in sys.argv else 8)]
    cases = [("seqpoint", n, s) for n in sizes for s in STREAMS]
    cases += [("simpy", n, s) for n in SIMPY_KERNELS for s in STREAMS]
    print(",".join(COLUMNS), flush=True)
    for case in cases:
        subprocess.run([sys.executable, __file__, *map(str, case)], check=True)
    return None


if __name__ == "__main__":
    main()
