"""Replay every iteration of every real trace: unchanged, with typical delays, and repeated. Write the table of it.

    python benchmarks/identity.py ../shared/data/traces > tests/accuracy/identity.csv

| column | what |
|---|---|
| elapsed_ms | the step times added up, of the rank with the most |
| latencies_ms | the latencies added up instead, over all ranks: what was called the measured time before step times |
| elapsed_error | the sum of the step times against the time between the first and the last completion, worst rank |
| completion_worst | unchanged replay: the worst error of the completion of an iteration, of the elapsed time |
| start_worst | unchanged replay: the worst error of the start of a kernel or copy, of its step time |
| typical_median, typical_worst | every delay at the median of its kind, error of each window |
| steady_median, steady_worst | each window repeated until its period settles, against its measured step times |
| busy_describe, busy_replay | share of the elapsed time that devices work, from the trace and from the replay |
| unexplained | share of the time that is waiting which no recorded event explains |

Errors and shares are in percent, errors without their sign.
"""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from profilers.ingest.pipeline import CollectOptions, collect
from profilers.trace.arrays import ends, integers
from profilers.trace.steps import StepTimes, busy_in_steps, job_steps, step_times
from profilers.trace.trace import Trace
from replay.engine.timeline import Timeline, replay
from replay.graph.graph import SYNC_EDGES, EdgeKind, KernelGraph
from seqpoint.graphs import all_iterations, replay_trace, step_windows

COLUMNS = (
    *("trace", "iterations", "elapsed_ms", "latencies_ms", "elapsed_error", "completion_worst", "start_worst"),
    *("typical_median", "typical_worst", "steady_median", "steady_worst", "busy_describe", "busy_replay"),
    "unexplained",
)
#: Of the tables that rocprofv3 writes, those that have kernels or copies.
ROCPROFV3 = ("kernel_trace", "kernel_trace_truncated", "counter_collection", "memory_copy_trace")


#: Edges whose lag is a delay between host and device, or between device tasks.
_DELAYS = (
    EdgeKind.STREAM,
    EdgeKind.LAUNCH,
    EdgeKind.GRAPH_LAUNCH,
    EdgeKind.WAIT,
    EdgeKind.WAIT_INFERRED,
    EdgeKind.SYNC,
    EdgeKind.SYNC_INFERRED,
)


def with_typical_lags(graph: KernelGraph) -> KernelGraph:
    """Return `graph` with every delay between host and device, and between device tasks, at the median of its kind.

    Replaying an unchanged graph returns the measured times because each edge has its measured delay. With the median
    of its kind instead, the error of the replay shows how much of the timeline order, launches, waits and durations
    explain. Nodes of a launched graph have a median of their own, since they follow each other faster. The time between
    host calls stays, since it is the program's work. So do the pauses for work that the recording does not hold
    (`EdgeKind.BACKLOG`, `EdgeKind.GRAPH_GAP`), which `Timeline.unexplained_ns` counts.
    """
    edges = graph.edges
    lag = edges.lag_ns.copy()
    is_node = np.zeros(len(graph.tasks), dtype=bool)
    is_node[edges.target[edges.kind == EdgeKind.GRAPH_LAUNCH]] = True
    for kind in _DELAYS:
        of_kind = (edges.kind == kind) & ~(edges.from_start & (edges.kind == EdgeKind.STREAM))
        # An edge without a delay only might bind, as from work that had ended before a synchronisation.
        of_kind &= edges.lag_ns > 0 if kind in SYNC_EDGES else of_kind
        for rows in (of_kind & is_node[edges.target], of_kind & ~is_node[edges.target]):
            if rows.any():
                lag[rows] = np.median(lag[rows])
    return replace(graph, edges=replace(edges, lag_ns=lag))


def cases(root: Path) -> list[tuple[str, list[Path]]]:
    """Return every trace below `root`: the ranks of dlrm8 and nanogpt8 as a job, each particle_transformer as one."""
    kineto = root / "kineto"
    several = {"particle_transformer", "dlrm8", "nanogpt8"}
    files = [f for f in sorted(kineto.rglob("*.gz")) if not several & set(f.parts)]
    files += sorted((root / "nsys").glob("*.sqlite"))
    rocm = root / "rocm"
    files += [rocm / "rocprofv1_gfx906" / "results.db", rocm / "rocprofv1_gfx906" / "results.json"]
    files += [rocm / "rocprofv1_gfx942" / "results.csv", rocm / "rocprofv1_gfx942" / "results.db"]
    files += [rocm / "rocprofv3_csv" / f"{name}.csv" for name in ROCPROFV3]
    files += sorted(rocm.glob("*.gz"))
    found = [(f.relative_to(root).as_posix(), [f]) for f in files]
    for folder in [*sorted((kineto / "particle_transformer").glob("*")), kineto / "dlrm8", kineto / "nanogpt8"]:
        found.append((folder.relative_to(root).as_posix(), sorted(folder.glob("*.gz"))))
    return found


def read(name: str, files: list[Path]) -> Trace:
    """Return one trace; each file of particle_transformer is an iteration of its own."""
    return collect(files, CollectOptions("file") if "particle_transformer" in name else None)


def elapsed_error(trace: Trace, steps: StepTimes) -> float:
    """Return by which share step times miss the time between the first and the last completion, on the worst rank.

    The completions are looked up in the tables of the trace: the last end of an iteration or of anything in it.
    """
    tables = (trace.iterations, trace.kernels, trace.copies)
    rank, iteration = (np.concatenate([integers(t, name) for t in tables]) for name in ("rank", "iteration"))
    end = np.concatenate([ends(t) for t in tables])
    worst = 0.0
    for row in np.flatnonzero(steps.follows).tolist():
        run = steps.run_of(row)
        if run[-1] != row:
            continue
        mine = rank == steps.rank[row]
        done = [int(end[mine & (iteration <= steps.iteration[at]) & (iteration >= steps.iteration[run[0]])].max())
                for at in (run[0], row)]  # fmt: skip
        total = int(steps.step_ns[run[1:]].sum())
        worst = max(worst, abs(total - (done[1] - done[0])) / max(done[1] - done[0], 1))
    return worst


def row(name: str, files: list[Path]) -> dict[str, str]:
    """Return one row of the table."""
    trace = read(name, files)
    steps, iterations = step_times(trace), all_iterations(trace)
    elapsed = max(int(steps.step_ns[steps.rank == r].sum()) for r in np.unique(steps.rank).tolist())
    completions, typical, steady = [], [], []
    for window in step_windows(trace, iterations):
        graph = window.graph
        line = replay(graph)
        measured = Timeline(graph, graph.tasks.measured_start_ns, np.nan_to_num(graph.tasks.measured_end_ns))
        completions.append(float(np.abs(line.completions_ns() - measured.completions_ns()).max(initial=0.0)))
        usual = replay(with_typical_lags(graph)).makespan_ns
        typical.append(abs(usual - graph.measured_ns) / max(graph.measured_ns, 1.0))
        if window.pattern is not None and window.measured_total_ns:
            steady.append(abs(window.total_ns(window.steady()) / window.measured_total_ns - 1))
    replayed = replay_trace(trace, iterations).steps
    busy = busy_in_steps(trace, steps)
    total = sum(step.measured_ns for step in replayed)
    worked = sum(step.device_busy * step.measured_ns for step in replayed) / max(total, 1.0)
    shares = {
        "elapsed_error": elapsed_error(trace, steps),
        "completion_worst": max(completions) / max(elapsed, 1),
        "start_worst": max(step.start_error_ns / max(step.measured_ns, 1.0) for step in replayed),
        "typical_median": np.median(typical),
        "typical_worst": max(typical),
        "steady_median": np.median(steady) if steady else 0.0,
        "steady_worst": max(steady, default=0.0),
        "busy_describe": sum(d.busy_ns for d in busy) / max(sum(d.elapsed_ns for d in busy), 1),
        "busy_replay": worked if busy else 0.0,
        "unexplained": np.median([step.unexplained for step in replayed]),
    }
    return {
        "trace": name,
        "iterations": str(len(iterations)),
        "elapsed_ms": f"{elapsed / 1e6:.3f}",
        "latencies_ms": f"{job_steps(steps).latency_ns.sum() / 1e6:.3f}",
        **{column: f"{100 * share:.3f}" for column, share in shares.items()},
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
