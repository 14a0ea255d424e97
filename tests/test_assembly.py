"""`replay.graph.assembly`: graphs from models."""

from dataclasses import fields

import numpy as np
import pytest

from profilers.errors import InvalidInputError
from profilers.files import dataset_path, read_toml
from replay.analysis.critical_path import PATH_CAUSES
from replay.engine.engine import simulate
from replay.graph.assembly import Assembly
from replay.graph.columns import EDGE_KINDS, TASK_COLUMNS, EdgeKind
from replay.graph.edit import LIMITING
from replay.graph.graph import RESOURCES, SharingPolicy, TaskKind, Tasks


def test_columns_are_spread_and_devices_told_apart() -> None:
    work = Assembly()
    lanes = [work.lane(device=d, stream=s) for d in (0, 1) for s in (0, 1)]
    first = work.tasks("a", lanes, {"duration_ns": 10.0, "cu": 0.5, "hbm": [0.1, 0.2, 0.3, 0.4]})
    second = work.tasks("b", lanes[2], {"duration_ns": 5.0, "kind": TaskKind.COLLECTIVE, "occupies": 0.25})
    work.edges(first, second, lag_ns=1.0)
    graph = work.graph()
    assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [4]
    assert graph.tasks.device.tolist() == [0, 0, 1, 1, 1]
    assert graph.tasks.demand[:, RESOURCES.index("hbm")].tolist() == [0.1, 0.2, 0.3, 0.4, 0.0]
    assert graph.tasks.occupies.tolist() == [0.5, 0.5, 0.5, 0.5, 0.25]
    assert [graph.names[i] for i in graph.tasks.name] == ["a"] * 4 + ["b"]
    assert simulate(graph)[1].tolist() == [10.0, 10.0, 10.0, 10.0, 16.0]


def test_tasks_and_edges_are_what_their_table_says() -> None:
    assert list(TASK_COLUMNS) == [field.name for field in fields(Tasks)]
    assert set(read_toml(dataset_path("graph.toml"), "columns")["edges"]) == {kind.name for kind in EdgeKind}
    kinds = [facts.time_of for facts in EDGE_KINDS.values()]
    assert set(kinds) <= {*LIMITING, ""} and {facts.lag for facts in EDGE_KINDS.values()} <= set(PATH_CAUSES)
    work = Assembly()
    work.tasks("a", work.lane(device=0), {"duration_ns": 1.0})
    tasks = work.graph().tasks
    for name, column in TASK_COLUMNS.items():
        assert getattr(tasks, name).dtype == column.dtype, name


def test_links_can_be_told_apart() -> None:
    work = Assembly()
    lane = work.lane(device=0)
    work.tasks("put", lane, {"duration_ns": [4.0, 4.0, 4.0], "link": 1.0, "link_number": [0, 0, 1]})
    graph = work.graph()
    assert graph.tasks.link.tolist() == [0, 0, 1]
    assert simulate(graph)[1].tolist() == [8.0, 8.0, 4.0]


def test_a_chain_ends_at_its_sum_with_its_lags() -> None:
    work = Assembly()
    work.chain(work.tasks("a", work.lane(device=0), {"duration_ns": [1.0, 2.0, 3.0]}), lag_ns=0.5)
    assert simulate(work.graph())[1].tolist() == [1.0, 3.5, 7.0]


def test_the_policy_goes_with_the_graph() -> None:
    work = Assembly()
    lane = work.lane(device=0)
    work.tasks("a", lane, {"duration_ns": [4.0, 4.0], "cu": 1.0, "cu_mask": [1, 2]})
    assert np.allclose(simulate(work.graph(policy=SharingPolicy(partitions=(0.5, 0.5))))[1], [8.0, 8.0])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"flops": 3}, "tasks have no column 'flops'"),
        ({"duration_ns": [1.0, 2.0], "cu": [1.0, 1.0, 1.0]}, "columns of the tasks 'a' differ in length"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, object], message: str) -> None:
    work = Assembly()
    with pytest.raises(InvalidInputError, match=message):
        work.tasks("a", work.lane(device=0), columns)


def test_an_empty_assembly_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no task"):
        Assembly().graph()
