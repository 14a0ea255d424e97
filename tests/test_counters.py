"""Counters of one run on the kernels of another."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import join_counters

from profilers.errors import InvalidInputError
from profilers.ingest.join import base_name, plain_name
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta


def timeline(names: list[str], **columns: Any) -> Trace:
    count = len(names)
    own = {"id": range(10, 10 + count), "rank": [0] * count, "name": names, "start_ns": range(100, 100 + count)}
    return Trace(TraceMeta("kineto", ranks=(0,)), {"kernels": make_table("kernels", {**own, **columns})})


def counted(names: list[str], counters: list[tuple[int, str, float]], **columns: Any) -> Trace:
    count = len(names)
    own = {"id": range(count), "rank": [0] * count, "name": names, "start_ns": range(count)}
    kernels, metrics, values = zip(*counters, strict=True)
    at = {"id": range(count, count + len(counters)), "rank": [0] * len(counters), "start_ns": [0] * len(counters)}
    table = make_table("counters", {**at, "name": metrics, "value": values, "kernel_id": kernels})
    return Trace(TraceMeta("ncu"), {"kernels": make_table("kernels", {**own, **columns}), "counters": table})


def found(trace: Trace) -> list[tuple[Any, ...]]:
    columns = ("id", "kernel_id", "name", "value", "start_ns", "iteration")
    return [tuple(row[c] for c in columns) for row in trace.counters.to_pylist()]


def test_the_nth_of_a_name_is_the_nth_of_that_name() -> None:
    joined = join_counters(
        timeline(["a", "b", "a", "a"], iteration=[0, 0, 1, 1]),
        counted(["void b [clone .kd]", "a", "a"], [(0, "bytes", 1.0), (1, "bytes", 2.0), (2, "bytes", 3.0)]),
    )
    assert found(joined) == [
        (15, 10, "bytes", 2.0, 100, 0),
        (14, 11, "bytes", 1.0, 101, 0),
        (16, 12, "bytes", 3.0, 102, 1),
    ]
    assert joined.meta.quality.counts == {"counters_joined": 3, "counted_kernels_joined": 3}


def test_base_names_are_the_second_choice() -> None:
    names = ["void at::native::add<float, 4>(float*)", "void at::native::add<int, 4>(int*)"]
    joined = join_counters(timeline(names), counted(["add", "add"], [(0, "x", 1.0), (1, "x", 2.0)]))
    assert [row[1:4] for row in found(joined)] == [(10, "x", 1.0), (11, "x", 2.0)]


def test_what_the_timeline_lacks_is_counted() -> None:
    joined = join_counters(timeline(["a"]), counted(["a", "a", "z"], [(0, "x", 1.0), (1, "x", 2.0), (2, "x", 3.0)]))
    assert [row[1:4] for row in found(joined)] == [(10, "x", 1.0)]
    assert joined.meta.quality.counts == {
        "counters_joined": 1,
        "counters_without_kernel": 2,
        "counted_kernels_joined": 1,
        "counted_kernels_missing": 2,
    }


def test_devices_count_where_both_say_them() -> None:
    trace = timeline(["a", "a"], device=[0, 1])
    told = join_counters(trace, counted(["a"], [(0, "x", 1.0)], device=[1]))
    assert [row[1] for row in found(told)] == [11]
    untold = join_counters(trace, counted(["a"], [(0, "x", 1.0)]))
    assert [row[1] for row in found(untold)] == [10]


def test_counters_of_the_timeline_stay() -> None:
    power = make_table("counters", {"id": [50], "rank": [0], "name": ["Power"], "start_ns": [0], "value": [300.0]})
    joined = join_counters(timeline(["a"]).with_tables(counters=power), counted(["a"], [(0, "x", 1.0)]))
    assert [row[:3] for row in found(joined)] == [(50, None, "Power"), (51, 10, "x")]


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="no kernel with counters has the name"):
        join_counters(timeline(["a"]), counted(["z"], [(0, "x", 1.0)]))
    with pytest.raises(InvalidInputError, match="no counter of a kernel"):
        join_counters(timeline(["a"]), timeline(["a"]))


@given(st.text())
def test_names_of_any_kind_have_a_plain_one(name: str) -> None:
    assert plain_name(plain_name(name)) == plain_name(plain_name(plain_name(name)))
    assert len(base_name(name)) <= len(name)
