"""Recomputing a critical path after a change: Holistic Trace Analysis and ours, side by side in one run.

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0 "pandas<3"
    python benchmarks/replay/critical_path.py ../shared/data/traces/kineto hta/bin/python

HTA asks its users to change weights of edges on a graph that it has built, and to call ``critical_path()`` again: the
call is timed, and also the search for the longest path in it alone, without its checks. Ours is the replay of a graph
that is built, which besides order and lags shares the device among what runs at once, and the critical path of its
timeline. Least of `RUNS`, compiled code warm; the two take turns in one run, HTA in a process of its own because its
dependencies are others. Both see the whole trace, in HTA with its last step. HTA's graph has a node for the start and
the end of every operator on the host, ours a task for every call that launches or waits, with the time between as lag.
"""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

RUNS = 7
TRACES = (
    "hta/cuda_event_sync",
    "hta/cuda_event_sync_multi_stream",
    "hta/critical_path_alexnet",
    "hta/nccl_a100_rank0",
    "hta/multistream_a100_rank0",
    "hta/trace_diff_a100",
    "tracelens/other/xdit_flux_mi300",
)
COLUMNS = (
    "trace",
    "hta_nodes",
    "hta_edges",
    "hta_ms",
    "hta_search_ms",
    "tasks",
    "edges",
    "ours_ms",
    "ratio",
    "search_ratio",
)
THEIRS = """
import json, logging, sys, time, warnings
import networkx
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
graph, _ = found.critical_path_analysis(rank=0, annotation="", instance_id=None)
for line in sys.stdin:
    began = time.perf_counter()
    graph.critical_path()
    took = time.perf_counter() - began
    began = time.perf_counter()
    networkx.dag_longest_path(graph, weight="weight")
    search = time.perf_counter() - began
    print("RESULT", json.dumps([took, search, len(graph.nodes), len(graph.edges)]), flush=True)
"""


def ours(file: Path):  # type: ignore[no-untyped-def]
    """Return a function that replays the trace's graph and finds its critical path, and the graph's size."""
    from profilers.ingest.pipeline import IngestOptions, collect
    from replay.analysis import critical_path
    from replay.costs.shipped import load_parameters
    from replay.engine.timeline import replay
    from replay.from_trace import build_graph

    trace = collect([file], IngestOptions("whole"))
    first = trace.iterations["iteration"].to_pylist()[0]
    graph = build_graph(trace, first, parameters=load_parameters())
    return (lambda: critical_path(replay(graph))), len(graph.tasks), len(graph.edges)


def measure(file: Path, python: str) -> list[object]:
    """Return a row of figures: turn by turn, the least of each."""
    run, tasks, edges = ours(file)
    run()
    peer = subprocess.Popen(
        [python, "-c", THEIRS, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    best, theirs, searched, size = float("inf"), float("inf"), float("inf"), (0, 0)
    for _ in range(RUNS):
        peer.stdin.write("again\n")
        peer.stdin.flush()
        while not (line := peer.stdout.readline()).startswith("RESULT"):
            if not line:
                return ["HTA cannot read it", "", "", "", tasks, edges, "", "", ""]
        took, search, *size = json.loads(line.removeprefix("RESULT"))
        theirs, searched = min(theirs, took), min(searched, search)
        for _ in range(RUNS):
            began = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - began)
    peer.stdin.close()
    peer.wait()
    times = [f"{1e3 * t:.3f}" for t in (theirs, searched)]
    return [*size, *times, tasks, edges, f"{1e3 * best:.3f}", f"{theirs / best:.0f}", f"{searched / best:.0f}"]


def main() -> None:
    """Write the table to stdout."""
    root, python = Path(sys.argv[1]), sys.argv[2]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in TRACES:
        writer.writerow([name, *measure(root / f"{name}.json.gz", python)])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
