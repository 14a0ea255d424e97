"""Kernel to launch by correlation, launch to the innermost operator, External id only where it proves right."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import link

from profilers.ingest.linking import innermost
from profilers.trace.columns import lookup
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta

OP, LAUNCH, KERNEL = 100, 200, 300  # the first id of each kind


def table(kind: str, first: int, rows: list[dict[str, Any]]) -> Any:
    full = [{"id": first + i, "rank": 0, "name": "n", **row} for i, row in enumerate(rows)]
    names = sorted({name for row in full for name in row})
    return make_table(kind, {name: [row.get(name) for row in full] for name in names})


def linked(
    ops: list[dict[str, Any]], launches: list[dict[str, Any]], kernels: list[dict[str, Any]]
) -> tuple[list[int | None], list[tuple[int | None, int | None]], dict[str, int]]:
    """Return the op of each launch, (launch, op) of each kernel, and the counts."""
    host = {"process": 1, "thread": 1, "dur_ns": 1}
    rows = {
        "ops": table("ops", OP, [{**host, **op} for op in ops]),
        "launches": table("launches", LAUNCH, [{**host, **one} for one in launches]),
        "kernels": table("kernels", KERNEL, [{"dur_ns": 1, "stream": 7, **one} for one in kernels]),
    }
    trace = link(Trace(TraceMeta("kineto"), {kind: rows for kind, rows in rows.items() if rows.num_rows}))
    pairs = zip(trace.kernels["launch_id"].to_pylist(), trace.kernels["op_id"].to_pylist(), strict=True)
    return trace.launches["op_id"].to_pylist(), list(pairs), dict(trace.meta.quality.counts)


def test_a_kernel_finds_its_launch_and_the_innermost_operator_around_it() -> None:
    found = linked(
        ops=[{"start_ns": 0, "dur_ns": 100}, {"start_ns": 10, "dur_ns": 50}, {"start_ns": 12, "dur_ns": 3}],
        launches=[{"start_ns": t, "correlation": c} for t, c in ((13, 1), (20, 2), (70, 3), (100, 4))],
        kernels=[{"start_ns": 500 + c, "correlation": c} for c in (4, 3, 2, 1, 9)],
    )
    assert found == (
        [OP + 2, OP + 1, OP, None],
        [(LAUNCH + 3, None), (LAUNCH + 2, OP), (LAUNCH + 1, OP + 1), (LAUNCH, OP + 2), (None, None)],
        {"orphan_device": 1, "orphan_op": 2},
    )


@pytest.mark.parametrize("other", [{"thread": 2}, {"process": 2}, {"rank": 1}])
def test_an_operator_of_another_thread_process_or_rank_launches_nothing_here(other: dict[str, int]) -> None:
    launches, _, _ = linked([{"start_ns": 0, "dur_ns": 9, **other}], [{"start_ns": 5, "correlation": 1}], [])
    assert launches == [None]


@pytest.mark.parametrize(
    "correlation", [0, -1, 1 << 31, (1 << 42) - 1, 1 << 42, 1 << 50, (1 << 63) - 1, -(1 << 63) + 1]
)
@pytest.mark.parametrize("rank", [0, 1 << 19, 1 << 20, (1 << 31) - 1])
def test_any_int64_links_on_any_rank(correlation: int, rank: int) -> None:
    here, there = {"rank": rank, "correlation": correlation}, {"rank": rank ^ 1, "correlation": correlation}
    _, pairs, counts = linked(
        [],
        [{"start_ns": 1, **there}, {"start_ns": 1, **here}, {"start_ns": 1, "rank": rank}],
        [{"start_ns": 2, **here}, {"start_ns": 3, "rank": rank}],
    )
    assert [launch for launch, _ in pairs] == [LAUNCH + 1, None]
    assert counts == {"orphan_device": 1, "orphan_op": 2}


def test_of_launches_with_one_correlation_the_first_counts() -> None:
    _, pairs, counts = linked(
        [],
        [{"start_ns": 9, "correlation": 1}, {"start_ns": 5, "correlation": 1}, {"start_ns": 5, "correlation": 1}],
        [{"start_ns": 9, "correlation": 1}],
    )
    assert pairs == [(LAUNCH + 1, None)]
    assert counts["duplicate_correlation"] == 2


OPS = [{"start_ns": 10 * i, "dur_ns": 9, "external_id": 50 + i} for i in range(3)]
LAUNCHES = [{"start_ns": 10 * i + 1, "correlation": i} for i in range(2)]


@pytest.mark.parametrize(
    ("external_ids", "op_of_orphan", "counts"),
    [
        ((50, 51, 52), OP + 2, {"linked_by_external_id": 1, "external_id_checked": 2, "orphan_device": 1}),
        ((0, 1, 52), None, {"external_id_checked": 2, "external_id_wrong": 2, "orphan_device": 1, "orphan_op": 1}),
        ((50, 1, 52), None, {"external_id_checked": 2, "external_id_wrong": 1, "orphan_device": 1, "orphan_op": 1}),
        ((None, None, 52), None, {"orphan_device": 1, "orphan_op": 1}),
    ],
    ids=["right", "wrong", "half", "unchecked"],
)
def test_external_id_links_orphans_only_where_it_proves_right(
    external_ids: tuple[int, ...], op_of_orphan: int | None, counts: dict[str, int]
) -> None:
    kernels = [{"start_ns": 100 + 5 * i, "correlation": i, "external_id": e} for i, e in enumerate(external_ids)]
    _, pairs, found = linked(OPS, LAUNCHES, kernels)
    assert pairs == [(LAUNCH, OP), (LAUNCH + 1, OP + 1), (None, op_of_orphan)]
    assert found == counts


def test_clock_skew_and_overlap_on_a_stream_are_counted() -> None:
    kernels = [
        {"start_ns": 4, "dur_ns": 10, "correlation": 1},
        {"start_ns": 10, "dur_ns": 10},
        {"start_ns": 20, "dur_ns": None},
        {"start_ns": 20, "dur_ns": 5, "stream": 8},
        {"start_ns": 20, "dur_ns": 5, "rank": 1},
    ]
    _, _, counts = linked([], [{"start_ns": 5, "correlation": 1}], kernels)
    assert counts == {"early_device": 1, "stream_overlap": 1, "orphan_device": 4, "orphan_op": 5}


def test_lookup_takes_the_first_of_a_key_and_nothing_for_a_missing_one() -> None:
    keys, values = np.array([5, 3, 5]), np.array([50, 30, 51])
    missing = np.iinfo(np.int64).min
    assert lookup(keys, values, np.array([5, 4, 3, missing, 9])).tolist() == [50, missing, 30, missing, missing]
    assert lookup(keys[:0], values[:0], np.array([1])).tolist() == [missing]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12)


def _nested(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans that nest with all before them, as calls on a thread do."""
    kept: list[tuple[int, int]] = []
    for start, length in spans:
        end = start + length
        if all(end <= s or e <= start or (s <= start and end <= e) or (start <= s and e <= end) for s, e in kept):
            kept.append((start, end))
    return kept


@given(SPANS, st.lists(st.integers(-1, 100), max_size=8))
def test_innermost_is_the_shortest_interval_around_the_time(spans: list[tuple[int, int]], times: list[int]) -> None:
    nested = _nested(spans)
    host = {"process": 1, "thread": 1}
    outer = table("ops", OP, [{**host, "start_ns": s, "dur_ns": e - s} for s, e in nested])
    inner = table("launches", LAUNCH, [{**host, "start_ns": t} for t in times])
    if not nested or not times:
        return
    for time, found in zip(times, innermost(outer, inner).tolist(), strict=True):
        around = [(e - s) for s, e in nested if s <= time < e]
        if not around:
            assert found == np.iinfo(np.int64).min
        else:
            start, end = nested[found - OP]
            assert start <= time < end and end - start == min(around)


def test_deep_nesting_costs_no_more_than_its_rows() -> None:
    import time

    n = 50_000
    ops = [{"start_ns": i, "dur_ns": (5 if i < 10 else 3) * n - 2 * i} for i in range(n)]
    launches = [{"start_ns": 3 * n + i, "correlation": i} for i in range(n)]
    begun = time.process_time()
    found, _, _ = linked(ops, launches, [])
    assert time.process_time() - begun < 3  # a walk up the nesting, one level for all at a time, took 11 s
    assert set(found) == {OP + 9}
