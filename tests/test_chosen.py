"""What a choice of tasks costs a step: hand-computed on small graphs, and the same sums as the tables of `analyze`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import make_graph
from traces import write_trace

import seqpoint as sp
from profilers.errors import NotFoundError
from profilers.trace.kernels import CLASSES
from replay.analysis import ChosenTasks, chosen_tasks, critical_path, exposure
from replay.engine.timeline import replay
from replay.graph.choice import TaskChoice
from replay.graph.graph import EdgeKind, KernelGraph, Lane, TaskKind
from seqpoint.cli import cli

GEMM, ELEMENTWISE, COLLECTIVE = (CLASSES.index(name) for name in ("gemm", "elementwise", "collective"))


def two_ranks() -> KernelGraph:
    """Return two ranks that meet in a collective of 100: rank 0 after 100, rank 1 after 300.

    An addition of 50 runs on another stream of rank 0 from 20 on.
    """
    kinds = [TaskKind.KERNEL, TaskKind.MARK, TaskKind.COLLECTIVE] * 2 + [TaskKind.MARK, TaskKind.KERNEL]
    graph = make_graph(
        [100, 0, 100, 300, 0, 100, 0, 50],
        edges=[(0, 1), (3, 4), (1, 6), (4, 6), (6, 2), (6, 5)],
        kind=kinds,
        class_=[GEMM, -1, COLLECTIVE, GEMM, -1, COLLECTIVE, -1, ELEMENTWISE],
        lane=[0, 0, 0, 1, 1, 1, -1, 2],
        device=[0, 0, 0, 1, 1, 1, -1, 0],
        event=[0, 2, 2, 3, 5, 5, -1, 7],
        release_ns=[0, 0, 0, 0, 0, 0, 0, 20],
    )
    kind = [EdgeKind.STREAM] * 2 + [EdgeKind.RENDEZVOUS] * 4
    lanes = (Lane(0, 0, 7), Lane(1, 1, 7), Lane(0, 0, 20))
    edges = replace(graph.edges, kind=np.array([int(each) for each in kind]))
    return replace(graph, edges=edges, lanes=lanes, devices=((0, 0), (1, 1)))


def chosen(text: str) -> ChosenTasks:
    return chosen_tasks(critical_path(replay(two_ranks())), TaskChoice(text))


def figures(text: str) -> list[list[float]]:
    """Return count, time, waiting, active, exposed and path by device."""
    tasks = chosen(text)
    columns = (tasks.count, tasks.time_ns, tasks.waiting_ns, tasks.active_ns, tasks.exposed_ns, tasks.path_ns)
    return [column.tolist() for column in columns]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gemm", [[1, 1], [100, 300], [0, 0], [100, 300], [50, 300], [0, 300]]),
        # Rank 0 is in the collective from 100 to 400, and waits for rank 1 until 300.
        ("collectives", [[1, 1], [300, 100], [200, 0], [300, 100], [300, 100], [100, 0]]),
        ("rank=0", [[3, 0], [450, 0], [200, 0], [400, 0], [400, 0], [100, 0]]),
        ("stream=20", [[1, 0], [50, 0], [0, 0], [50, 0], [0, 0], [0, 0]]),
    ],
)
def test_number_time_waiting_exposed_time_and_path_by_device(text: str, expected: list[list[float]]) -> None:
    *found, path = figures(text)
    assert found == expected[:-1]
    # The critical path ends with the collective of either rank.
    assert sum(path) == sum(expected[-1])
    assert chosen(text).path_share == pytest.approx(sum(expected[-1]) / 400)


def test_exposed_collectives_are_the_exposed_communication() -> None:
    line = replay(two_ranks())
    tasks = chosen_tasks(critical_path(line), TaskChoice("collectives"))
    times = exposure(line).times
    assert tasks.exposed_ns.tolist() == [each.exposed_ns for each in times]
    assert tasks.active_ns.tolist() == [each.communication_ns for each in times]
    everything = chosen_tasks(critical_path(line), TaskChoice("all"))
    assert everything.active_ns.tolist() == everything.exposed_ns.tolist() == [each.busy_ns for each in times]


def analyzed(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["analyze", *map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_analyze_counts_and_times_chosen_tasks_on_both_sides(tmp_path: Path) -> None:
    """A step of the trace has GEMMs of 200 us, by aten::mm, and of 400 us beside a collective."""
    trace = write_trace(tmp_path / "job.json", steps=3)
    found = analyzed(trace, "--tasks", "gemm", "-w", "scale_kernels:gemm:0.5")
    before, after = found["before"]["chosen"], found["after"]["chosen"]
    assert (before["tasks"], before["count"], after["count"]) == ("gemm", 2, 2)
    assert before["path_ns"] == pytest.approx(600_000)
    assert before["path_share"] == pytest.approx(600_000 / found["before"]["makespan_ns"])
    assert [row["name"] for row in before["by_name"]] == ["ampere_sgemm_128x64_nn"]
    assert before["devices"][0]["exposed_ns"] == before["exposed_ns"] < before["time_ns"]
    halved = analyzed(trace, "--tasks", "operator=aten::mm", "-w", "scale_kernels:gemm:0.5")
    first, second = (halved[side]["chosen"] for side in ("before", "after"))
    assert first["count"] == second["count"] == 1
    assert (first["time_ns"], second["time_ns"]) == (pytest.approx(200_000), pytest.approx(100_000))
    assert analyzed(trace)["before"]["chosen"] is None


def test_the_table_names_the_choice_and_its_share(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "job.json", steps=3)
    shown = CliRunner().invoke(cli, ["analyze", str(trace), "--tasks", "collectives"], catch_exceptions=False).stdout
    assert "Chosen tasks, collectives: 0.0 % of the critical path of the step" in shown
    assert "Chosen tasks by name" in shown and "ncclDevKernel_AllGather_RING_LL" in shown
    with pytest.raises(NotFoundError, match="stream=8; stream can be 7, 20"):
        sp.analyze(trace, tasks="stream=8")
