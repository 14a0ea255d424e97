"""Kernels a second and memory of the engine, 1e3 to 1e7 kernels on 1 to 16 streams, beside simpy on the same graph.

    pip install simpy
    python benchmarks/replay/throughput.py > throughput.csv          # about two minutes; --quick up to 1e6

Every size runs in a process of its own, compiled code warm, the least time of three. Streams run in order; every tenth
kernel waits for one of the stream before. Kernels ask at random for 5 to 100 % of compute units, memory, links and copy
engines, so that most of the time they slow each other. Four engines, on the same graph:

- ``seqpoint``: `simulate`, from the graph to starts and ends; ``seqpoint, loop``: of it the engine's loop alone.
- ``simpy, order``: a process a stream, an event a kernel that another waits for, and a timeout a kernel: nothing is
  shared, so its makespan is another.
- ``simpy, sharing``: the same streams on a device that gives out compute units in order and shares the rest max-min,
  as the engine does: the same makespan, to a millionth (checked).
"""

import csv
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from replay.engine.engine import begin, run, simulate, state_of
from replay.graph.graph import RESOURCES, EdgeKind, Edges, KernelGraph, Lane, TaskKind, Tasks

COLUMNS = ("engine", "kernels", "streams", "seconds", "kernels_per_s", "peak_mb", "makespan_ms")
STREAMS = (1, 2, 4, 8, 16)
#: simpy takes minutes beyond this.
SIMPY_KERNELS = (1_000, 10_000, 100_000)
#: The same, of the model that shares.
SHARING_KERNELS = (1_000, 10_000)


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
        measured_end_ns=nothing, basis=zero, iteration=zero, event=task, workgroups=zero, bytes=zero, dtype=none,
        collective=none, operator=none,
    )  # fmt: skip
    edges = Edges(source, target, np.zeros(len(source)), np.zeros(len(source), bool), kind)
    return KernelGraph(tasks, edges, ("kernel",), tuple(Lane(0, 0, s) for s in range(streams)), ((0, 0),), 0.0)


def with_engine(graph: KernelGraph) -> tuple[float, float]:
    """Return the least time of three runs, s, and the makespan, ns."""
    simulate(graph_of(100, 2))
    return min(_timed(lambda: simulate(graph)) for _ in range(3)), float(simulate(graph)[1].max())


def with_loop(graph: KernelGraph) -> tuple[float, float]:
    """Return the same of the loop alone, its arrays laid out before."""
    simulate(graph_of(100, 2))
    least, state = np.inf, state_of(graph)
    for _ in range(3):
        state = state_of(graph)
        begin(state)
        least = min(least, _timed(lambda state=state: run(state)))
    return least, float(state.end.max())


def with_order(graph: KernelGraph) -> tuple[float, float]:
    """Return the time of one run of the streams in simpy, where a kernel is a timeout."""
    import simpy

    environment = simpy.Environment()
    return _timed(lambda: _streams(environment, graph, lambda task, ns: environment.timeout(ns))), environment.now


def with_sharing(graph: KernelGraph) -> tuple[float, float]:
    """Return the time of one run of the streams in simpy on a device that they share."""
    import simpy

    environment = simpy.Environment()
    device = Device(environment, graph)
    return _timed(lambda: _streams(environment, graph, device.execute)), environment.now


def _streams(environment, graph: KernelGraph, execute) -> None:  # type: ignore[no-untyped-def]
    ended = {int(task): environment.event() for task in np.unique(graph.edges.source)}
    before: dict[int, list[int]] = {}
    for source, target, kind in zip(graph.edges.source, graph.edges.target, graph.edges.kind, strict=True):
        if kind == EdgeKind.WAIT:
            before.setdefault(int(target), []).append(int(source))

    def stream(tasks, durations):  # type: ignore[no-untyped-def]
        for task, duration in zip(tasks, durations, strict=True):
            for other in before.get(task, ()):
                yield ended[other]
            yield execute(task, duration)
            if task in ended:
                ended[task].succeed()

    for lane in range(len(graph.lanes)):
        mine = np.flatnonzero(graph.tasks.lane == lane)
        environment.process(stream(mine.tolist(), graph.tasks.duration_ns[mine].tolist()))
    environment.run()


class Device:
    """A device in simpy: tasks get compute units as they come, and share the rest max-min."""

    def __init__(self, environment, graph: KernelGraph) -> None:  # type: ignore[no-untyped-def]
        self.environment, self.demand = environment, graph.tasks.demand.tolist()
        self.active: dict[int, Any] = {}  # task: [work left, rate, event, arrival]
        self.since, self.version = 0.0, 0

    def execute(self, task: int, duration: float):  # type: ignore[no-untyped-def]
        """Return the event of the task's end."""
        self._settle()
        done = self.environment.event()
        self.active[task] = [duration, 0.0, done, self.environment.now]
        self._expect(at_once=True)
        return done

    def _settle(self) -> None:
        for entry in self.active.values():
            entry[0] -= (self.environment.now - self.since) * entry[1]
        self.since = self.environment.now

    def _expect(self, *, at_once: bool = False) -> None:
        self.version += 1
        version = self.version
        if not at_once:
            self._share()
        rates = [entry[0] / entry[1] for entry in self.active.values() if entry[1] > 0]
        wait = 0.0 if at_once else min(rates, default=None)
        if wait is not None:
            self.environment.timeout(wait).callbacks.append(lambda _: self._wake(version))

    def _wake(self, version: int) -> None:
        if version != self.version:
            return
        self._settle()
        for task in [task for task, entry in self.active.items() if entry[0] <= 1e-3]:
            self.active.pop(task)[2].succeed()
        self._expect()

    def _share(self) -> None:
        left, capacity, caps = 1.0, [1.0] * len(RESOURCES), {}
        for task in sorted(self.active, key=lambda task: (self.active[task][3], task)):
            wants = self.demand[task][0]
            caps[task] = min(left / wants, 1.0) if wants > 0 else 1.0
            caps[task] = caps[task] if caps[task] > 1e-12 else 0.0
            left = max(left - wants, 0.0)
        rising = {task for task, cap in caps.items() if cap > 0}
        for task in caps:
            self.active[task][1] = 0.0
        level = 0.0
        while rising:
            asked = [sum(self.demand[task][r] for task in rising) for r in range(1, len(RESOURCES))]
            room = [capacity[r + 1] / a for r, a in enumerate(asked) if a > 0]
            rise = min([min(caps[task] for task in rising) - level, *room])
            level += rise
            for r, a in enumerate(asked, 1):
                capacity[r] -= rise * a
            full = [r for r in range(1, len(RESOURCES)) if capacity[r] <= 1e-12]
            for task in list(rising):
                if caps[task] <= level + 1e-12 or any(self.demand[task][r] > 0 for r in full):
                    self.active[task][1] = level
                    rising.discard(task)


def _timed(run) -> float:  # type: ignore[no-untyped-def]
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


ENGINES = {
    "seqpoint": with_engine,
    "seqpoint, loop": with_loop,
    "simpy, order": with_order,
    "simpy, sharing": with_sharing,
}


def measure(engine: str, kernels: int, streams: int) -> None:
    """Print one row."""
    graph = graph_of(kernels, streams)
    took, makespan = ENGINES[engine](graph)
    if engine == "simpy, sharing":
        ours = float(simulate(graph)[1].max())
        assert abs(makespan / ours - 1) < 1e-6, f"simpy ends at {makespan} ns, the engine at {ours}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    n = len(graph.tasks)
    csv.writer(sys.stdout).writerow(
        (engine, n, streams, f"{took:.4g}", f"{n / took:.4g}", f"{peak:.0f}", f"{makespan / 1e6:.6f}")
    )


def main() -> None:
    """Print every row, each from a process of its own."""
    if len(sys.argv) == 4:
        return measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sizes = [10**power for power in range(3, 7 if "--quick" in sys.argv else 8)]
    cases = [(engine, n, s) for engine in ("seqpoint", "seqpoint, loop") for n in sizes for s in STREAMS]
    cases += [("simpy, order", n, s) for n in SIMPY_KERNELS for s in STREAMS]
    cases += [("simpy, sharing", n, s) for n in SHARING_KERNELS for s in STREAMS]
    print(",".join(COLUMNS), flush=True)
    for case in cases:
        subprocess.run([sys.executable, __file__, *map(str, case)], check=True)
    return None


if __name__ == "__main__":
    main()
