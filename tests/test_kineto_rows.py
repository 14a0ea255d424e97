"""One event in, one row of the right kind out; exact times; nulls for what makes no sense."""

import json
import zlib
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.ingest.stage import Stage
from profilers.readers.common.numbers import TIMES_NS, Grids, exact_ns, finite_float, integer, plain_text
from profilers.readers.kineto.rows import EventRows


def rows(*events: dict[str, Any]) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """Return the rows of every kind without their nulls, and the counts that are not zero."""
    collector, stage = EventRows(), Stage()
    for event in events:
        collector.add(event)
    for kind, columns in collector.columns.items():
        stage.write(kind, columns)
    grids = Grids()
    collector.add_grids(grids)
    groups, sizes, repaired = grids.workgroups()
    if len(groups):
        stage.amend("kernels", "workgroups", groups)
        stage.amend("kernels", "workgroup_size", sizes)
    collector.counts.update(repaired)
    tables = {
        kind: [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
        for kind, table in stage.tables().items()
        if table.num_rows
    }
    return tables, {name: n for name, n in collector.counts.items() if n}


def complete(cat: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": "n", "ts": 1, "dur": 2, "pid": 3, "tid": 4, **more}


COMMON = {"id": 0, "rank": -1, "name": "n", "start_ns": 1000, "dur_ns": 2000}
HOST = {"process": 3, "thread": 4}
#: An event that names neither device nor stream runs on those of its process and thread.
DEVICE = {"device": 3, "stream": 4}


@pytest.mark.parametrize(
    ("event", "kind", "columns"),
    [
        (
            complete("cpu_op", args={"External id": 5, "Sequence number": 6, "Input Dims": [[1, 2]],
                                     "Fwd thread id": 7}),
            "ops",
            {**HOST, "external_id": 5, "sequence_number": 6, "shapes": "[[1,2]]", "forward_thread": 7},
        ),
        (complete("Operator", tid="25738", args={"external id": 5}), "ops",
         {**HOST, "thread": 25738, "external_id": 5}),
        (complete("cpu_op", tid="stream 7", pid="python"), "ops", {"process": -2 - zlib.crc32(b"python"), "thread": 7}),
        (complete("cpu_op", tid=15514734831341844875), "ops", {**HOST, "thread": 15514734831341844875 - 2**64}),
        (complete("Runtime", args={"correlation": 9}), "launches", {**HOST, "api": "runtime", "correlation": 9}),
        (complete("cuda_driver"), "launches", {**HOST, "api": "cuda_driver"}),
        (
            complete("kernel", args={"device": 0, "stream": 0, "correlation": "9", "grid": [2, 3, 1],
                                     "block": [64, 1, 1]}),
            "kernels",
            {"device": 0, "stream": 0, "correlation": 9, "workgroups": 6, "workgroup_size": 64,
             "args": '{"grid":[2,3,1],"block":[64,1,1]}'},
        ),
        (
            complete("Kernel", args={"registers per thread": 1 << 40, "est. achieved occupancy %": 10**400,
                                     "shared memory": 1 << 70, "device": -1 << 40}),
            "kernels",
            {**DEVICE, "args": json.dumps({"registers per thread": 1 << 40, "est. achieved occupancy %": 10**400,
                                 "shared memory": 1 << 70, "device": -1 << 40}, separators=(",", ":"))},
        ),
        (complete("gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", args={"bytes": 4096}), "copies",
         {**DEVICE, "name": "Memcpy HtoD (Pinned -> Device)", "bytes": 4096, "direction": "HtoD"}),
        (complete("gpu_memset", name="Memset (Device)"), "copies",
         {**DEVICE, "name": "Memset (Device)", "direction": "memset"}),
        (complete("gpu_memcpy", name="CopyDeviceToHost", args={"kind": 5}), "copies",
         {**DEVICE, "name": "CopyDeviceToHost", "direction": "5", "args": '{"kind":5}'}),
        (complete("gpu_memcpy", name="copyBuffer"), "copies",
         {**DEVICE, "name": "copyBuffer", "direction": "unknown"}),
        (complete("kernel", args={"device": 0, "sycl queue": 65, "l0 queue": "0x1041"}), "kernels",
         {"device": 0, "stream": 65, "queue": 0x1041}),
        (complete("kernel", args={"device": 0, "l0 queue": "0x1041"}), "kernels",
         {"device": 0, "stream": 0x1041, "queue": 0x1041}),
        (complete("mtia_ccp_events", name="dma_request", args={"stream": 1, "direction": "DEVICE_TO_HOST", "size": 8}),
         "copies", {"device": 3, "stream": 1, "name": "dma_request", "bytes": 8, "direction": "DtoH",
                    "args": '{"direction":"DEVICE_TO_HOST"}'}),
        (complete("mtia_ccp_events", name="event_wait", args={"stream": 1, "wait_on_stream": 2}),
         "syncs", {"stream": 1, "wait_on_stream": 2, "name": "event_wait", "sync": "event_wait"}),
        (complete("hpu_op", name="gemm"), "kernels", {**DEVICE, "name": "gemm"}),
        (complete("hpu_op", name="memcpy_h2d"), "copies",
         {**DEVICE, "name": "memcpy_h2d", "direction": "unknown"}),
        (complete("", name="cudaLaunchKernel", args={"correlation_id": "7"}), "launches",
         {**HOST, "name": "cudaLaunchKernel", "api": "", "correlation": 7}),
        (complete("", name="addmm Cmpt Exec"), "kernels", {**DEVICE, "name": "addmm Cmpt Exec"}),
        (
            complete("cuda_sync", args={"cuda_sync_kind": "Stream Sync", "stream": -1, "wait_on_stream": 20}),
            "syncs",
            {"sync": "Stream Sync", "wait_on_stream": 20, "args": '{"cuda_sync_kind":"Stream Sync"}'},
        ),
        (complete("user_annotation", args=[1, 2]), "ranges", {**HOST, "category": "user_annotation"}),
        (complete("gpu_user_annotation", args={"stream": 7}), "ranges",
         {**HOST, "category": "gpu_user_annotation", "stream": 7}),
        (complete("Brand New Category"), "ranges", {**HOST, "category": "brand new category"}),
        (complete("cpu_op", args={"rank": 5}), "ops", {**HOST, "rank": 5, "args": '{"rank":5}'}),
        (complete("cpu_op", args={"rank": 1 << 31}), "ops", {**HOST, "args": '{"rank":2147483648}'}),
        (complete("cpu_op", args="{}", name=7), "ops", {**HOST, "name": "7"}),
        (complete("cpu_op", name=None), "ops", {**HOST, "name": ""}),
        (complete("cpu_op", name=["a"]), "ops", {**HOST, "name": ""}),
        (complete("cpu_op", name="\ud800x"), "ops", {**HOST, "name": "?x"}),
        ({"cat": "kernel", "name": "n", "ts": 1, "dur": 2}, "kernels", {}),
        ({**complete(""), "ph": ["X"], "cat": ["kernel"]}, "ranges", {**HOST, "category": ""}),
    ],
)  # fmt: skip
def test_one_event_becomes_one_row(event: dict[str, Any], kind: str, columns: dict[str, Any]) -> None:
    tables, counts = rows(event)
    assert tables == {kind: [{**COMMON, **columns}]}
    assert counts == {"kept": 1}


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        ({"ph": "M", "name": "process_name", "args": {"name": "x"}}, {"skipped_flow": 1}),
        ({"ph": "s", "id": 1, "ts": 1}, {"skipped_flow": 1}),
        ({"ph": "i", "name": "Record Window End", "ts": 1}, {"skipped_marker": 1}),
        ({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 1, "dur": 3}, {"skipped_marker": 1}),
        (complete("kernel", dur=-1), {"dropped_negative": 1}),
        (complete("kernel", ts=0, dur=0), {"dropped_no_time": 1}),
        (complete("kernel", ts=None), {"dropped_no_time": 1}),
        (complete("kernel", ts="soon"), {"dropped_no_time": 1}),
        (complete("kernel", ts=True), {"dropped_no_time": 1}),
        (complete("kernel", ts=1 << 62), {"dropped_no_time": 1}),
        (complete("kernel", ts=Decimal("1e400")), {"dropped_no_time": 1}),
        ({"ph": "X", "cat": "kernel", "name": "no ts"}, {"dropped_no_time": 1}),
        ({}, {"skipped_marker": 1}),
    ],
)
def test_what_is_left_out_is_counted(event: dict[str, Any], counts: dict[str, int]) -> None:
    assert rows(event) == ({}, counts)


@pytest.mark.parametrize("duration", [None, "long", [1], Decimal("1e300"), 1 << 70, (1 << 62) // 1000 - 5])
def test_a_duration_that_is_none_is_null_and_counted(duration: Any) -> None:
    tables, counts = rows(complete("kernel", dur=duration, ts=10))
    assert "dur_ns" not in tables["kernels"][0]
    assert counts == {"kept": 1, "missing_duration": 1}


def test_counters_are_instants_with_a_value() -> None:
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": {"Bytes": -512}}
    power = {"ph": "C", "name": "GPU power", "ts": 2, "args": {"value": Decimal("300.5")}}
    huge = {"ph": "C", "name": "GPU power", "ts": 3, "args": {"value": 10**400}}
    tables, counts = rows(memory, power, huge)
    assert [(row["name"], row.get("value")) for row in tables["counters"]] == [
        ("[memory]", -512.0),
        ("GPU power", 300.5),
        ("GPU power", None),
    ]
    assert counts == {"kept": 3}


def test_grid_is_understood_by_the_call_with_the_same_correlation_on_the_same_rank() -> None:
    shape = {"grid": [65536, 1, 1], "block": [256, 1, 1]}
    tables, counts = rows(
        complete("kernel", args={"correlation": 1, **shape}),
        complete("kernel", args={"correlation": 1, "rank": 1, **shape}),
        complete("kernel", args={"correlation": 2}),
        complete("cuda_runtime", name="hipExtModuleLaunchKernel", args={"correlation": 1}),
        complete("cuda_runtime", name="hipLaunchKernel", args={"correlation": 1, "rank": 1}),
        complete("cuda_runtime", name="hipLaunchKernel", args={"correlation": 2, "grid": [9, 1, 1], "block": [64]}),
    )
    assert [row["workgroups"] for row in tables["kernels"]] == [256, 65536, 9]
    assert counts == {"kept": 6, "repaired_work_items": 1}


def test_arguments_nested_past_the_stack_are_counted_and_the_event_kept() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    tables, counts = rows(complete("cpu_op", args={"Input Dims": deep, "x": 1}))
    assert tables["ops"] == [{**COMMON, **HOST}]
    assert counts == {"kept": 1, "lost_arguments": 1}


US = st.decimals(min_value=-(10**12), max_value=4 * 10**15, places=3) | st.integers(-(10**12), 4 * 10**15)


@given(US)
def test_three_decimals_of_a_microsecond_are_exact(us: Decimal | int) -> None:
    exact = int(Decimal(us).scaleb(3))
    assert exact_ns(us) == exact == exact_ns(str(us))


@given(st.decimals(min_value=0, max_value=10**15, places=12))
def test_more_decimals_round_to_the_nearest_nanosecond(us: Decimal) -> None:
    got = exact_ns(us)
    assert got is not None
    assert abs(Decimal(got) - us * 1000) <= Decimal("0.5")


def test_a_time_rounds_once() -> None:
    # Rounding to 28 digits first would make a tie of this, and then go to the even neighbour.
    assert exact_ns(Decimal("1000000000000000.0025" + "0" * 14 + "1")) == 1000000000000000003


@given(st.integers() | st.decimals() | st.text() | st.none() | st.booleans() | st.floats())
def test_numbers_of_any_kind_give_int64_or_none(value: Any) -> None:
    time, number, size = exact_ns(value), integer(value), finite_float(value)
    assert time is None or time in TIMES_NS
    assert number is None or -(1 << 63) < number < 1 << 63
    assert size is None or abs(size) < float("inf")


@given(st.text(st.characters()) | st.integers() | st.none() | st.lists(st.none()))
def test_a_name_is_always_text_that_can_be_stored(value: Any) -> None:
    assert isinstance(plain_text(value).encode("utf-8"), bytes)
