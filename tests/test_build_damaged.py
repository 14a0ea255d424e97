"""Traces whose times and ids are damaged still become graphs, and an unchanged graph replays as measured."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from traces import kineto, step

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.projection.projection import ProjectionOptions, project
from replay.what_ifs import parse_what_if
from seqpoint.graphs import step_windows

WHAT_IFS = ("overlap:none", "overlap:ideal", "dma_collectives+scale_device:MI300X", "scale_host:0.5")
NAMES = ("cudaStreamSynchronize", "cudaMemcpy", "ncclKernel_AllReduce", "Optimizer.step#x", "ProfilerStep#1")


def damage(events: list[dict[str, Any]], random_: random.Random) -> None:
    """Change one event: remove it, move it, or give it another duration, id, stream, grid, thread or name."""
    event = random_.choice(events)
    args = event["args"]
    kind = random_.randrange(8)
    if kind == 0 and len(events) > 3:
        events.remove(event)
    elif kind == 1:
        event["ts"] = random_.choice([random_.uniform(0, 5000), 0, -5, 1e15, 5e3])
    elif kind == 2:
        event["dur"] = random_.choice([0, random_.uniform(0, 3000), 1e9])
    elif kind == 3:
        args["correlation"] = random_.choice([11, 12, 13, 999, 0])
    elif kind == 4:
        args["stream"] = random_.choice([7, 20, 33, None])
    elif kind == 5:
        args["grid"] = random_.choice([[0, 1, 1], [1, 1, 1], None, "x"])
    elif kind == 6:
        event["tid"] = random_.choice([10, 11, "x", None])
    else:
        event["name"] = random_.choice(NAMES)


@pytest.mark.parametrize("seed", range(48))
def test_a_damaged_trace_replays_as_measured(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    events: list[dict[str, Any]] = json.loads(json.dumps([e for n in range(1, 4) for e in step(n, 1000.0 * n)]))
    for _ in range(random_.randint(1, 12)):
        damage(events, random_)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(kineto(events)))
    try:
        trace = collect([path])
    except SeqPointError as error:
        assert "damaged.json" in str(error)
        return
    iterations = sorted(set(trace.iterations["iteration"].to_pylist()))
    windows = list(step_windows(trace, iterations))
    for graph in [
        *(build_graph(trace, i, parameters=load_parameters()) for i in iterations),
        *(window.graph for window in windows),
    ]:
        assert replay(graph).makespan_ns == pytest.approx(graph.measured_ns, rel=1e-6, abs=2)
    what_ifs = [parse_what_if(w) for w in WHAT_IFS]
    rows = project(windows, what_ifs, meta=trace.meta, options=ProjectionOptions(2), parameters=load_parameters()).rows
    assert all(row.projected_ns >= 0 and row.low <= row.speedup <= row.high for row in rows if row.applied)
