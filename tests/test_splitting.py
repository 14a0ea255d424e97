"""`replay.what_ifs.pipeline`: tasks in pieces."""

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from replay.engine.engine import simulate
from replay.graph.graph import KernelGraph
from replay.what_ifs.pipeline import quantisation, split


def chain_of(durations: list[float]) -> KernelGraph:
    return make_graph(durations, [(1.0, 0.5)] * len(durations), [(i, i + 1) for i in range(len(durations) - 1)])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(1.0, 1e6), min_size=1, max_size=6),
    st.lists(st.integers(1, 7), min_size=6, max_size=6),
)
def test_pieces_take_the_time_of_the_whole(durations: list[float], counts: list[int]) -> None:
    graph = chain_of(durations)
    rows = np.arange(len(durations))
    found = split(graph, rows, counts[: len(rows)])
    assert len(found.graph.tasks) == sum(counts[: len(rows)])
    start, end = simulate(graph)
    after_start, after_end = simulate(found.graph)
    assert after_end[rows] == pytest.approx(end, rel=1e-9)
    first = [found.of(row)[0] for row in rows.tolist()]
    assert after_start[first] == pytest.approx(start, rel=1e-9, abs=1e-6)


def test_each_task_has_its_pieces_in_order_and_the_last_is_itself() -> None:
    graph = make_graph(
        [12.0, 6.0, 5.0], edges=[(0, 1), (0, 2, 1.0, True)], workgroups=[7, 2, 1], release_ns=[3.0, 0, 0]
    )
    found = split(graph, [2, 0], [1, 3])
    assert found.of(0).tolist() == [3, 4, 0] and found.of(1).tolist() == [1] and found.of(2).tolist() == [2]
    assert simulate(found.graph)[0][found.of(0)].tolist() == [3.0, 7.0, 11.0]
    assert found.graph.tasks.workgroups[found.of(0)].tolist() == [3, 3, 3]
    assert simulate(found.graph)[0][1:3].tolist() == [15.0, 4.0]  # after its end; and a little after its start
    assert np.isnan(found.graph.tasks.measured_start_ns[found.of(0)]).all()


def test_the_graph_that_is_split_stays() -> None:
    graph = chain_of([4.0, 2.0])
    split(graph, [0], 2)
    assert graph.tasks.duration_ns.tolist() == [4.0, 2.0] and len(graph.edges) == 1


@pytest.mark.parametrize(("rows", "counts"), [([0, 0], 2), ([2], 2), ([-1], 2), ([0], 0), ([0], 5000)])
def test_what_cannot_be_split_is_refused(rows: list[int], counts: int) -> None:
    with pytest.raises(InvalidInputError, match="split"):
        split(chain_of([1.0, 2.0]), rows, counts)


def test_waves_that_are_not_whole_cost_time() -> None:
    assert quantisation([8.0, 9.0, 0.5], [4, 4, 2]).tolist() == [1.0, pytest.approx(12 / 9), 2.0]
