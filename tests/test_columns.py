"""Compact columns, lanes and the index by rank and number, each equal to the plain way to say it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import link, staged

from profilers.ingest.iterations import fill_from_neighbours
from profilers.ingest.linking import Index, Numbering
from profilers.trace.arrays import MISSING, Narrowed, Runs
from profilers.trace.columns import LaneNumbers, by_lane
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta

WIDE = st.integers(-(1 << 63) + 1, (1 << 63) - 1)
SOME = st.one_of(st.integers(-200, 200), st.integers(-(1 << 33), 1 << 33), WIDE, st.just(int(MISSING)))


@pytest.mark.parametrize("kind", [Narrowed, Runs])
@given(batches=st.lists(st.lists(SOME, max_size=8), max_size=6), data=st.data())
def test_a_compact_column_gives_back_what_it_took(
    kind: type[Narrowed] | type[Runs], batches: list[list[int]], data: st.DataObject
) -> None:
    column = kind()
    for batch in batches:
        column.append(np.array(batch, np.int64))
    values = [value for batch in batches for value in batch]
    if values or kind is Narrowed:
        assert column.take(slice(1, 5)).tolist() == values[1:5]
    if values:
        rows = data.draw(st.lists(st.integers(0, len(values) - 1)))
        assert column.take(np.array(rows, np.int64)).tolist() == [values[row] for row in rows]


def test_a_column_takes_the_width_that_it_needs() -> None:
    column, widths = Narrowed(), []
    for value in (127, -128, MISSING, 40_000, 1 << 40):
        column.append(np.array([value], np.int64))
        widths.append(column.raw().dtype.itemsize)
    assert widths == [1, 2, 2, 4, 8]
    assert column.take(slice(None)).tolist() == [127, -128, MISSING, 40_000, 1 << 40]


@given(st.lists(SOME), st.lists(SOME))
def test_numbers_are_distinct_and_small(values: list[int], others: list[int]) -> None:
    numbering = Numbering(lambda: iter([np.array(values, np.int64)]))
    known = sorted(set(values) - {int(MISSING)})
    found = numbering.of(np.array(known, np.int64)).tolist()
    assert found == sorted(set(found)) and all(0 <= number < numbering.size for number in found)
    strange = [value for value in others if value not in known and not known[:1] <= [value] <= known[-1:]]
    assert (numbering.of(np.array([*strange, int(MISSING)], np.int64)) == -1).all()


@given(st.lists(st.tuples(st.integers(0, 2), SOME, st.integers(0, 5))), st.lists(st.tuples(st.integers(0, 3), SOME)))
def test_an_index_finds_the_first_to_start(rows: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    ranks, numbers, starts = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    table = make_table(
        "launches",
        {
            "id": np.arange(len(rows)),
            "rank": ranks,
            "start_ns": starts,
            "correlation": np.array(numbers, np.int64),
        },
    )
    index = Index(staged(Trace(TraceMeta(""), {"launches": table})), "launches", "correlation")
    expected: dict[tuple[int, int], int] = {}
    for row, (rank, number, start) in enumerate(rows):
        if number != MISSING and start < starts[expected[rank, number]] if (rank, number) in expected else True:
            expected[rank, number] = row
    wanted = [*asked, *((rank, number) for rank, number, _ in rows)]
    found = index.find(*(np.array([pair[i] for pair in wanted], np.int64) for i in (0, 1)))
    assert found.tolist() == [-1 if number == MISSING else expected.get((rank, number), -1) for rank, number in wanted]
    known = [(rank, number) for rank, number, _ in rows if number != MISSING]
    assert index.duplicates == len(known) - len(set(known))


@given(st.lists(st.lists(st.integers(0, 4), max_size=5)))
def test_lanes_keep_the_order_of_their_rows(batches: list[list[int]]) -> None:
    lanes = LaneNumbers()
    numbers = [lanes.of([np.array(batch, np.int64), np.zeros(len(batch), np.int64)]) for batch in batches]
    flat = [int(number) for batch in numbers for number in batch]
    found = by_lane(lambda: iter(numbers))
    assert [rows.tolist() for rows in found if len(rows)] == [
        [row for row, number in enumerate(flat) if number == lane] for lane in sorted(set(flat))
    ]


def test_work_without_a_launch_goes_with_neighbours_that_agree() -> None:
    launched = np.array([True, False, False, True, False, True, False])
    iteration = np.array([1, MISSING, 5, 1, MISSING, 2, MISSING])
    fill_from_neighbours(np.arange(7, dtype=np.int32), launched, iteration)
    assert iteration.tolist() == [1, 1, 5, 1, MISSING, 2, MISSING]


@pytest.mark.parametrize("stride", [1, -1])
def test_overlaps_are_counted_in_the_order_of_time(stride: int) -> None:
    starts = [0, 10, 20, 30, *range(1000, 3000, 10)][::stride]
    columns = {"id": range(len(starts)), "rank": [0] * len(starts), "start_ns": starts, "stream": [7] * len(starts)}
    durations = [12 if start == 10 else 9 for start in starts]
    table = make_table("kernels", {name: list(values) for name, values in columns.items()} | {"dur_ns": durations})
    assert link(Trace(TraceMeta(""), {"kernels": table})).meta.quality["stream_overlap"] == 1
