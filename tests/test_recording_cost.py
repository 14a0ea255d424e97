"""What a recording cost its host: counts by hand, shares that were measured, and intervals that hold both hosts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from commands import Run
from traces import event, kernel, kineto, launch, write_trace

import seqpoint as sp
from profilers.files import dataset_path
from profilers.trace.trace import Trace, TraceMeta
from replay.costs.host import COSTS, RecordingCost, cost_facts, recording_cost
from replay.costs.shipped import load_parameters
from replay.graph.edit import with_host_time
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind
from replay.projection import ProjectionOptions, StepWindow, project
from replay.what_ifs import parse_what_if
from seqpoint.projecting import TraceWindows

PARAMETERS = load_parameters()
SHARED = Path(__file__).parents[2] / "shared/data/traces/kineto"


def step_events(frames: int = 10, *more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a step of 100 us with Python functions, two operators, one of them with shapes, and a launched kernel."""
    functions = [event(f"a.py({i}): f", "python_function", 10 + i, 1, **{"Python id": i}) for i in range(frames)]
    return [
        event("ProfilerStep#1", "user_annotation", 0, 100),
        *functions,
        event("aten::linear", "cpu_op", 30, 20),
        event("aten::addmm", "cpu_op", 32, 10, **{"Input Dims": [[8, 8], [8, 8]]}),
        launch(34, 1),
        kernel("gemm", 40, 12, 1),
        *more,
    ]


def opened(path: Path, *events: dict[str, Any]) -> Trace:
    path.write_text(json.dumps(kineto(list(events))))
    return sp.open(path)


def test_functions_operators_shapes_and_overhead_of_the_steps_are_counted(tmp_path: Path) -> None:
    flush = event("Buffer Flush", "overhead", 60, 8)
    full = event("Command Buffer Full", "overhead", 70, 9)  # the launch queue is none of the profiler
    wait = {**launch(80, 2, dur=15), "name": "cudaDeviceSynchronize"}
    before = event("a.py(1): warm_up", "python_function", -50, 10)
    cost = recording_cost(opened(tmp_path / "a.json", before, *step_events(10, flush, full, wait)), PARAMETERS)
    assert cost == RecordingCost(frames=10, operators=2, shapes=1, calls=2, overhead_ns=8000, host_ns=85_000)
    values = dict(zip(COSTS, (2000, 500, 300, 250), strict=True))
    assert cost.share(values) == pytest.approx((8000 + 2 * 2000 + 500 + 10 * 300 + 2 * 250) / 85_000)
    assert replace(cost, host_ns=0).share(values) == 0
    assert recording_cost(sp.open(tmp_path / "a.json"), PARAMETERS, [1]) == cost
    assert recording_cost(sp.open(tmp_path / "a.json"), PARAMETERS, [2]) is None
    assert replace(cost, frames=1e6).share(values) == 0.7


def test_little_cost_and_other_formats_have_none(tmp_path: Path) -> None:
    trace = opened(tmp_path / "a.json", *step_events())
    assert recording_cost(trace, PARAMETERS) is not None
    quiet = [event("ProfilerStep#1", "user_annotation", 0, 1000), event("aten::mm", "cpu_op", 30, 20)]
    assert recording_cost(opened(tmp_path / "b.json", *quiet), PARAMETERS) is None
    for format_ in ("synthetic", "nsys"):
        assert recording_cost(replace(trace, meta=replace(trace.meta, format=format_)), PARAMETERS) is None


@pytest.mark.parametrize("device", ["h100", "h200"])
@pytest.mark.parametrize(
    ("model", "dtype", "name"),
    [
        ("bert", "bf16", "bert_n128_b4_bf16"),
        ("bert", "fp32", "bert_n128_b4_fp32"),
        ("dlrm", "fp32", "dlrm_b2048_fp32"),
        ("lenet", "fp32", "lenet_b256_fp32"),
    ],
)
def test_the_range_holds_what_was_measured_before_and_in_the_trace(
    device: str, model: str, dtype: str, name: str
) -> None:
    folder = dataset_path(f"measured/{device}")
    steps = pd.read_parquet(folder / "steps.parquet")
    alike = (steps.model == model) & (steps.dtype == dtype) & steps.configuration.str.endswith("-before-trace")
    trace = sp.open(folder / "traces" / f"{name}.pt.trace.json.gz")
    cost = recording_cost(trace, PARAMETERS)
    assert cost is not None
    traced_ns = float(np.median(sp.describe(trace).steps[0].step_ns))
    low, high = cost.range(PARAMETERS)
    assert low <= 1 - steps.duration_ns[alike].median() / traced_ns <= high


def host_bound() -> KernelGraph:
    """Return calls of 800 and 200 ns on the host, and a kernel of 100 ns that the second launches."""
    from graphs import make_graph

    host, kernel_ = TaskKind.HOST, TaskKind.KERNEL
    graph = make_graph(
        [800, 200, 100], edges=[(0, 1), (1, 2)], kind=[host, host, kernel_], device=[-1, -1, 0], class_=[-1, -1, 0]
    )
    return replace(graph, edges=replace(graph.edges, kind=np.array([EdgeKind.HOST, EdgeKind.LAUNCH])))


def test_the_interval_holds_the_host_with_and_without_the_recording() -> None:
    cost = RecordingCost(frames=0, operators=1, shapes=0, calls=0, overhead_ns=300, host_ns=1000)
    free = PARAMETERS.with_values([(name, 0.0) for name in COSTS])
    free = replace(
        free, known={n: replace(p, low=0, value=0, high=0) if n in COSTS else p for n, p in free.known.items()}
    )
    window = StepWindow.alone(host_bound())

    def row(window: StepWindow, text: str) -> Any:
        options = ProjectionOptions(draws=16)
        return project(
            [window], [parse_what_if(text)], meta=TraceMeta("kineto"), parameters=free, options=options
        ).rows[0]

    as_recorded, told = row(window, "scale_host:0.5"), row(replace(window, recording=cost), "scale_host:0.5")
    assert told.speedup == as_recorded.speedup == pytest.approx(1100 / 600)
    # Without the recording the host takes 700 ns: 800 ns a step before, 450 after.
    assert told.low < 800 / 450 < as_recorded.low and told.high >= as_recorded.high - 1e-3
    # What the host does not decide keeps its interval.
    narrow = row(replace(window, recording=cost), "scale_kernels:all:0.999")
    assert narrow.high - narrow.low < 0.1


def test_repeated_steps_have_the_host_without_the_recording_too(tmp_path: Path) -> None:
    trace = sp.open(write_trace(tmp_path / "job.json", steps=4))
    window = next(each for each in TraceWindows.of(trace, sp.ProjectOptions()).windows if each.pattern is not None)
    half = RecordingCost(frames=0, operators=0, shapes=0, calls=0, overhead_ns=500, host_ns=1000)
    drawn, recorded = replace(window, recording=half).drawn(PARAMETERS), window.isolated(PARAMETERS)
    halved = recorded.steady(lambda graph: with_host_time(graph, 0.5))
    assert drawn.total_ns(drawn.steady()) == recorded.total_ns(halved)
    assert drawn.total_ns(drawn.steady()) < 0.95 * recorded.total_ns(recorded.steady())


def test_the_commands_say_what_the_recording_may_have_cost(run: Run, tmp_path: Path) -> None:
    opened(tmp_path / "a.json", *step_events(20))
    text = "recorded with 20 Python functions, 2 operators, 1 lists of shapes and 1 calls a step, which may be"
    for command in (("describe",), ("characterize",), ("project", "-w", "scale_host:0.5", "--draws", 8)):
        shown = run(command[0], tmp_path / "a.json", *command[1:])
        assert text in " ".join(shown.out.split()), (command, shown.out, shown.err)
    content = json.loads(run("project", tmp_path / "a.json", "-w", "scale_host:0.5", "--draws", 8, "--json").out)
    facts = content["provenance"]["recording"]
    assert (facts["python_functions"], facts["operators"], facts["operators_with_shapes"]) == (20, 2, 1)
    assert 0 < facts["host_share_low"] < facts["host_share_high"] <= 0.7


def test_a_real_step_with_python_functions_has_a_wider_interval() -> None:
    path = SHARED / "tracelens/h100/gaunernst_bert-small-uncased.json.gz"
    if not path.is_file():
        pytest.skip(f"no trace at {path}")
    trace = sp.open(path)
    cost = recording_cost(trace, PARAMETERS)
    assert cost is not None and cost.frames > 1000
    assert cost_facts(cost, PARAMETERS)["operators"] == 479
    (row,) = sp.project(trace, ["remove_launch_overhead"], draws=16).rows
    assert row.speedup == pytest.approx(4.91, abs=0.01)
    assert row.low < 4 and row.high > row.speedup
