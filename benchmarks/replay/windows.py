"""How building, replaying and repeating a window grows with its iterations, on a real job.

    python benchmarks/replay/windows.py ../shared/data/traces/kineto/nanogpt8 [ITERATIONS ...]

Prints a row a window: its iterations, tasks and edges; seconds to build the graph, to replay it, and to find its steady
state; the peak memory of the process. All warm: a first window compiles. A trace of fewer iterations is continued with
copies of itself, later in time and with other ids, so that windows of any length have the structure of a real job.
Least of three.
"""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from profilers.ingest.pipeline import collect
from profilers.trace.arrays import MISSING, integers, put
from profilers.trace.steps import job_steps, step_times
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.engine.steady import cycle_of, steady_states, unchanged
from replay.engine.timeline import replay
from replay.from_trace import build_graph, index_trace

T = TypeVar("T")
_IDS = ("id", "op_id", "launch_id", "collective_id", "match_id", "correlation", "event_correlation")


def longer(trace: Trace, iterations: int) -> Trace:
    """Return a trace of at least so many iterations: the trace, again and again."""
    steps = job_steps(step_times(trace))
    have, elapsed = len(steps), int(steps.completion_ns[-1] - steps.begin_ns[0])
    copies = -(-iterations // have)
    width = 1 + max(
        int(integers(t, n).max(initial=0)) for t in trace.tables.values() for n in _IDS if n in t.schema.names
    )
    tables = {}
    for kind, table in trace.tables.items():
        parts = [table]
        for copy in range(1, copies):
            moved = table
            for name, by in (
                *((n, copy * width) for n in _IDS),
                ("start_ns", copy * elapsed),
                ("iteration", copy * have),
            ):
                if name in table.schema.names:
                    values = integers(table, name)
                    moved = put(moved, name, np.where(values == MISSING, MISSING, values + by))
            parts.append(moved)
        tables[kind] = pa.concat_tables(parts)
    return Trace(trace.meta, tables)


def least(function: Callable[[], T]) -> tuple[float, T]:
    """Return the least seconds of three calls, and what the last returned."""
    took, found = [], None
    for _ in range(3):
        began = time.perf_counter()
        found = function()
        took.append(time.perf_counter() - began)
    assert found is not None
    return min(took), found


def main() -> None:
    """Print a row a window."""
    source = collect([Path(sys.argv[1])])
    wanted = [int(n) for n in sys.argv[2:]] or [1, 2, 4, 8, 16]
    trace = longer(source, max(wanted))
    numbers = job_steps(step_times(trace)).iteration.tolist()
    steady_states(
        build_graph(trace, numbers[:2], parameters=load_parameters()),
        cycle_of(build_graph(trace, numbers[:2], parameters=load_parameters())),
        [unchanged],
    )
    arranging, index = least(lambda: index_trace(trace))
    print(f"arranging {len(numbers)} iterations on {len(source.meta.ranks)} ranks: {arranging:.2f} s")
    print("iterations  tasks    edges    build s  replay s  steady s  peak MB")
    for count in wanted:
        building, graph = least(lambda n=count: build_graph(index, numbers[:n], parameters=load_parameters()))
        replaying, _ = least(lambda g=graph: replay(g))
        settling, _ = least(lambda g=graph: steady_states(g, cycle_of(g), [unchanged]))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{count:10d} {len(graph.tasks):8d} {len(graph.edges):8d} {building:8.2f} {replaying:9.3f} "
            f"{settling:9.2f} {memory:8.0f}"
        )


if __name__ == "__main__":
    main()
