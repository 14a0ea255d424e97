"""Windows and their repetition: what joins one iteration to the next, and what a cycle keeps."""

import json
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from jobs import write_job
from traces import event, kernel, kineto, launch

from profilers.ingest.pipeline import collect
from replay.costs.shipped import load_parameters
from replay.engine.steady import cycle_of, repeated, steady_states, unchanged
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import EdgeKind, KernelGraph, TaskKind
from replay.projection.windows import StepWindow
from seqpoint.graphs import step_windows


def graph_of(tmp_path: Path, events: list[object], iterations: tuple[int, ...]) -> KernelGraph:
    (tmp_path / "t.json").write_text(json.dumps(kineto(events)))
    return build_graph(collect([tmp_path / "t.json"]), iterations, parameters=load_parameters())


def steps(*numbers: int) -> list[object]:
    return [event(f"ProfilerStep#{n}", "user_annotation", 100.0 * n, 90) for n in numbers]


def edges_between(graph: KernelGraph, first: int, then: int) -> list[tuple[str, str, str]]:
    of, edges = graph.tasks.iteration, graph.edges
    rows = np.flatnonzero((of[edges.source] == first) & (of[edges.target] == then))
    name = [graph.names[n] for n in graph.tasks.name]
    return [(EdgeKind(edges.kind[r]).name, name[edges.source[r]], name[edges.target[r]]) for r in rows.tolist()]


def test_a_window_joins_its_iterations_as_tasks_of_one_are_joined(tmp_path: Path) -> None:
    events = [*steps(1, 2), launch(110, 1), launch(210, 2), launch(230, 3, "cudaDeviceSynchronize", 100),
              kernel("a", 120, 150, 1), kernel("b", 270, 50, 2)]  # fmt: skip
    graph = graph_of(tmp_path, events, (1, 2))
    assert graph.iterations == (1, 2)
    assert ("STREAM", "a", "b") in edges_between(graph, 0, 1)
    assert ("HOST", "cudaLaunchKernel", "cudaLaunchKernel") in edges_between(graph, 0, 1)
    assert ("HOST", "end of the step on the host", "cudaLaunchKernel") in edges_between(graph, 0, 1)
    np.testing.assert_allclose(replay(graph).completions_ns(), [170_000, 230_000], atol=1)


def test_what_happens_between_two_iterations_belongs_to_the_later(tmp_path: Path) -> None:
    events = [*steps(1, 2), launch(110, 1), launch(194, 2, dur=2), launch(210, 3),
              kernel("a", 120, 50, 1), kernel("between", 198, 5, 2), kernel("b", 220, 50, 3)]  # fmt: skip
    graph = graph_of(tmp_path, events, (1, 2))
    name = [graph.names[n] for n in graph.tasks.name]
    assert graph.tasks.iteration[name.index("between")] == 1
    # Alone, the later iteration has it as work that runs when it begins.
    alone = graph_of(tmp_path, events, (2,))
    name = [alone.names[n] for n in alone.tasks.name]
    assert alone.tasks.iteration[name.index("between")] == -1


def test_a_single_iteration_does_not_repeat() -> None:
    graph = make_graph([5.0, 7.0], edges=[(0, 1)])
    assert cycle_of(graph) is None
    (state,) = steady_states(graph, None, [unchanged])
    assert state.period_ns == 12.0 and state.settled
    assert StepWindow.alone(graph).total_ns(state) == 12.0


def test_a_cycle_has_its_tasks_once_more_and_its_edges_from_the_end_to_the_beginning(tmp_path: Path) -> None:
    files, _ = write_job(tmp_path, [[("launch", 80.0), ("work", 50.0), ("launch", 30.0), ("sync",)]], 3)
    graph = build_graph(collect(files), (2, 3), parameters=load_parameters())
    pattern = cycle_of(graph)
    assert pattern is not None
    again = repeated(graph, pattern, 3)
    assert again.iterations == (2, 3) * 3
    assert len(again.tasks) == 3 * int(graph.tasks.in_iteration.sum())
    inside = {cycle: edges_between(again, 2 * cycle, 2 * cycle + 1) for cycle in range(3)}
    assert inside[0] == inside[1] == inside[2]
    assert sorted(edges_between(again, 1, 2)) == sorted(inside[0])  # the seam is like what joins 2 to 3
    once = repeated(graph, pattern, 1)
    assert replay(once).makespan_ns == pytest.approx(replay(again).completions_ns()[1])


def test_the_period_of_alternating_iterations_is_that_of_both(tmp_path: Path) -> None:
    # Long and short steps in turn: what joins them is the same, and each keeps its own time.
    long, short = [("launch", 300.0), ("work", 50.0)], [("launch", 100.0), ("work", 50.0)]
    files, _ = write_job(tmp_path, [[*long, *short]], 3)
    content = json.loads(files[0].read_text())
    marks = [e for e in content["traceEvents"] if e["name"].startswith("ProfilerStep")]
    for mark in marks:
        content["traceEvents"].remove(mark)
    starts = sorted(e["ts"] for e in content["traceEvents"] if e["name"] == "cudaLaunchKernel")
    ends = [*starts[1:], starts[-1] + 52]
    content["traceEvents"] += [event(f"ProfilerStep#{i}", "user_annotation", a, b - a - 0.1)
                               for i, (a, b) in enumerate(zip(starts, ends, strict=True))]  # fmt: skip
    files[0].write_text(json.dumps(content))
    (window,) = step_windows(collect(files), [2, 3, 4, 5])
    state = window.steady()
    assert [state.step_ns[at] / 1e3 for at in window.chosen] == pytest.approx([300, 100, 300, 100], rel=1e-6)


def test_windows_hold_what_the_host_had_not_waited_for(tmp_path: Path) -> None:
    files, _ = write_job(tmp_path, [[("launch", 100.0), ("work", 8.0)]], 30)
    trace = collect(files)
    (window,) = step_windows(trace, [20])
    assert window.graph.iterations == tuple(range(5, 21)) and window.chosen == (15,)
    (both,) = step_windows(trace, [20, 25], [2.0, 3.0])
    assert both.graph.iterations == tuple(range(5, 26)) and both.chosen == (15, 20) and both.weights == (2.0, 3.0)
    synchronised, _ = write_job(tmp_path, [[("launch", 100.0), ("work", 8.0), ("sync",)]], 30)
    (window,) = step_windows(collect(synchronised), [20])
    assert window.graph.iterations == (19, 20)
    (first,) = step_windows(collect(synchronised), [1])
    assert first.graph.iterations == (1, 2) and first.chosen == (0,)


def test_a_trace_of_kernels_alone_repeats(tmp_path: Path) -> None:
    rows = ["name,start_us,dur_us,stream"]
    for i in range(12):
        rows += [f"a,{100.0 * i},60,1", f"b,{100.0 * i + 60},30,1"]
    (tmp_path / "k.csv").write_text("\n".join(rows))
    trace = collect([tmp_path / "k.csv"])
    numbers = sorted(set(trace.iterations["iteration"].to_pylist()))
    (window,) = step_windows(trace, numbers)
    assert len(window.chosen) == len(numbers) > 2 and set(window.measured_ns[1:-1]) == {100_000}
    assert window.steady().step_ns == pytest.approx([100_000] * len(numbers))  # also the first and the last


def test_scaling_by_one_is_exact_and_kinds_of_tasks_stay(tmp_path: Path) -> None:
    files, _ = write_job(tmp_path, [[("launch", 80.0), ("work", 50.0), ("launch", 30.0), ("sync",)]], 4)
    (window,) = step_windows(collect(files), [3, 4])
    state = window.steady()
    tasks = state.timeline.graph.tasks
    assert (tasks.kind == TaskKind.KERNEL).sum() % len(state.timeline.graph.iterations) == 0
    (same,) = window.steady_all([lambda graph: graph.with_tasks(duration_ns=graph.tasks.duration_ns * 1.0)])
    np.testing.assert_array_equal(state.step_ns, same.step_ns)
