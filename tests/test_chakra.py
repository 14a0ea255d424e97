"""Execution traces: Chakra's protobuf and PyTorch's JSON, their damage, and the way to a timeline."""

import gzip
import json
import struct
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from readings import balanced, read_content, rows_of, table
from traces import join_execution_trace
from xplanes import field, varint

from profilers.errors import BrokenFileError, InvalidInputError
from profilers.ingest.join import align
from profilers.ingest.pipeline import collect
from profilers.ingest.stage import Stage
from profilers.readers.chakra import ChakraReader
from profilers.readers.chakra.protobuf import MessageError, metadata, node
from profilers.readers.common.reader import Head, find_reader
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace, TraceMeta

DATA = Path(__file__).parents[2] / "shared/data/traces"
needs_chakra = pytest.mark.skipif(not (DATA / "chakra").is_dir(), reason="the Chakra traces are not on this machine")
needs_dlrm = pytest.mark.skipif(not (DATA / "kineto/dlrm8").is_dir(), reason="the DLRM traces are not on this machine")


def attribute(name: str, number: int, value: int | bytes | str) -> bytes:
    return field(10, field(1, name) + field(number, value))


def records(*messages: bytes) -> bytes:
    return b"".join(varint(len(message)) + message for message in messages)


HEADER = field(1, "0.0.4") + field(2, field(1, "pid") + field(9, 77))
MM = (
    field(1, 3) + field(2, "aten::mm") + field(3, 4) + field(4, b"\x01\x02") + field(5, 2) + field(6, 1000)
    + field(7, 318)
    + field(8, field(1, "[[5, 6, 0, 64, 4, 'cuda:0'], None]") + field(2, "[[8,8]]") + field(3, "['Tensor(float)']"))
    + field(9, field(2, "[[8,8]]"))
    + attribute("rf_id", 9, 12) + attribute("seq_id", 9, 2**64 - 1) + attribute("tid", 9, 1)
    + attribute("op_schema", 29, "mm(Tensor)") + attribute("is_cpu_op", 27, 1)
)  # fmt: skip
KERNEL = (
    field(1, 4)
    + field(2, "sgemm")
    + field(3, 4)
    + field(7, 9)
    + attribute("is_cpu_op", 27, 0)
    + attribute("tid", 9, 20)
)
REDUCE = field(1, 5) + field(2, "nccl") + field(3, 7) + attribute("comm_type", 9, 0) + attribute("comm_size", 9, 4096)
SEND = field(1, 6) + field(2, "to 3") + field(3, 5) + field(6, 2000) + attribute("involved_dim", 28, field(1, b"\1\0"))
LOAD = (
    field(1, 7) + field(2, "weights") + field(3, 2) + field(6, 3000) + field(7, 4) + attribute("tensor_size", 13, 512)
)
STORAGE = field(1, 8) + field(2, "read") + field(3, 8) + field(6, 4000) + field(7, 5)
METADATA = field(1, 9) + field(2, "group") + field(3, 1)
ET = records(HEADER, MM, KERNEL, REDUCE, SEND, LOAD, STORAGE, METADATA)

FLAT_NODE = {
    **{"name": "aten::mm", "id": 12, "rf_id": 4, "parent": 11, "fw_parent": 0, "seq_id": 660, "scope": 0, "tid": 1},
    **{"fw_tid": 0, "op_schema": "mm", "inputs": [[5, 6, 0, 64, 4, "cuda:0"]], "input_shapes": [[8, 8]]},
    **{"input_types": ["Tensor(float)"], "outputs": [1], "output_shapes": [[8, 8]], "output_types": ["Tensor(float)"]},
}
FLAT = json.dumps({"schema": "1.0.1", "pid": 7, "nodes": [FLAT_NODE, {**FLAT_NODE, "id": 13, "rf_id": 0}], "finish": 9})
NESTED_NODE = {
    **{"id": 12, "name": "aten::mm", "ctrl_deps": 11},
    "inputs": {"values": [1], "shapes": [[8, 8]], "types": ["Tensor(float)"], "strides": [[8, 1]]},
    "outputs": {"values": [], "shapes": [], "types": []},
    "attrs": [
        {"name": "rf_id", "type": "uint64", "value": 4},
        {"name": "tid", "type": "uint64", "value": 1},
        {"name": "kernel_backend", "type": "string", "value": ""},
        {"name": "pg_name", "type": "string", "value": "0"},
    ],
}
NESTED = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [NESTED_NODE]})


def read(folder: Path, content: bytes | str, name: str = "t.et") -> Trace:
    return read_content(ChakraReader(), folder / name, content)


def test_every_type_of_node_becomes_its_kind(tmp_path: Path) -> None:
    trace = read(tmp_path, ET)
    assert table(trace, "ops", "name", "start_ns", "dur_ns") == [("aten::mm", 1_000_000, 318_000)]
    assert table(trace, "kernels", "name", "start_ns", "dur_ns", "stream") == [("sgemm", 1_318_000, 9000, 20)]
    assert table(trace, "collectives", "name", "collective", "bytes", "start_ns", "dur_ns") == [
        ("nccl", "all_reduce", 4096, 1_327_000, None),
        ("to 3", "send_recv", None, 2_000_000, None),
    ]
    assert table(trace, "copies", "name", "direction", "bytes", "dur_ns") == [("weights", "load", 512, 4000)]
    assert table(trace, "ranges", "name", "category", "process") == [("read", "storage", 77)]
    assert trace.meta.quality.counts == {
        "events": 7,
        "kept": 6,
        "skipped_marker": 1,
        "assumed_start": 2,
        "missing_duration": 2,
    }
    assert trace.meta.version == "schema 0.0.4"


def test_what_has_a_column_is_in_it_and_the_rest_in_args(tmp_path: Path) -> None:
    trace = read(tmp_path, ET)
    columns = ("process", "thread", "record_function_id", "sequence_number", "forward_thread", "shapes", "dtypes")
    assert table(trace, "ops", *columns) == [(77, 1, 12, None, None, "[[8,8]]", '["Tensor(float)"]')]
    assert json.loads(table(trace, "ops", "args")[0][0]) == {
        "node": 3,
        "ctrl_deps": [1, 2],
        "data_deps": [2],
        "inputs": {"values": [[5, 6, 0, 64, 4, "cuda:0"], None]},
        "outputs": {"shapes": [[8, 8]]},
        "op_schema": "mm(Tensor)",
        "is_cpu_op": True,
    }
    assert json.loads(table(trace, "collectives", "args")[1][0]) == {"node": 6, "involved_dim": [True, False]}


@pytest.mark.parametrize(
    ("number", "value", "read_as"),
    [
        (3, struct.pack("<d", 0.5), 0.5),
        (3, struct.pack("<d", float("inf")), "inf"),
        (5, struct.pack("<f", 0.25), 0.25),
        (15, 3, -2),
        (19, struct.pack("<I", 7), 7),
        (25, struct.pack("<q", -7), -7),
        (10, field(1, 5) + field(1, b"\x06\x07"), [5, 6, 7]),
        (4, field(1, struct.pack("<d", 2.0)), [2.0]),
        (30, field(1, "a") + field(1, "b"), ["a", "b"]),
        (31, b"\xff\0", "ff00"),
    ],
)
def test_every_type_of_attribute(tmp_path: Path, number: int, value: int | bytes, read_as: Any) -> None:
    content = field(number, value)
    if isinstance(value, bytes) and number % 2 and number < 29:
        content = varint(number << 3 | (1 if len(value) == 8 else 5)) + value
    trace = read(tmp_path, records(HEADER, field(1, 1) + field(2, "x") + field(10, field(1, "a") + content)))
    assert json.loads(table(trace, "ops", "args")[0][0])["a"] == read_as


@pytest.mark.parametrize(("text", "strides"), [(FLAT, None), (NESTED, "[[8,1]]")], ids=["flat", "nested"])
def test_both_schemas_of_json(tmp_path: Path, text: str, strides: str | None) -> None:
    trace = read(tmp_path, text, "t.json")
    columns = ("name", "process", "thread", "record_function_id", "shapes", "dtypes", "strides", "start_ns", "dur_ns")
    own = ("aten::mm", 7, 1, 4, "[[8,8]]", '["Tensor(float)"]', strides, 0, None)
    assert table(trace, "ops", *columns)[0] == own
    args = json.loads(table(trace, "ops", "args")[0][0])
    assert (args["node"], args["ctrl_deps"]) == (12, [11])
    assert ("pg_name" in args) == (text == NESTED) and "kernel_backend" not in args
    assert (
        balanced(trace.meta.quality) and trace.meta.quality["assumed_start"] == trace.meta.quality["missing_duration"]
    )


def test_the_window_moves_over_a_long_file(tmp_path: Path) -> None:
    nodes = ",\n".join(json.dumps({**FLAT_NODE, "id": i, "op_schema": "x" * (i % 977)}) for i in range(5000))
    trace = read(tmp_path, f'{{"nodes": [{nodes}], "schema": "late"}}', "t.json")
    assert [json.loads(args)["node"] for (args,) in table(trace, "ops", "args")] == list(range(5000))
    assert trace.meta.version == "schema late"
    many = records(HEADER, *(field(1, i + 1) + field(2, "x" * (i % 977)) for i in range(5000)))
    assert read(tmp_path, many).meta.quality["kept"] == 5000


def test_a_file_names_its_rank(tmp_path: Path) -> None:
    assert read(tmp_path, ET, "run.12.et").meta.ranks == (12,)
    assert read(tmp_path, ET, "run.et").meta.ranks == ()


@pytest.mark.parametrize(
    ("content", "name"), [(ET, "a.et"), (gzip.compress(ET), "b.et"), (FLAT, "c.json"), (NESTED, "d.json")]
)
def test_its_files_are_known(tmp_path: Path, content: bytes | str, name: str) -> None:
    trace = read(tmp_path, content, name)
    assert find_reader(tmp_path / name).name == trace.meta.format == "chakra"


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\0",
        b"name,start_ns,dur_ns\nk,1,2\n",
        b'{"traceEvents":[]}',
        b'{"nodes":[1]}',
        b"SQLite format 3\0",
        b"\x1f",
    ],
)
def test_other_files_are_not_claimed(tmp_path: Path, start: bytes) -> None:
    assert not ChakraReader().sniff(Head(tmp_path, start))


@pytest.mark.parametrize(
    ("content", "kept", "counts"),
    [
        (ET[:-3], 6, {"dropped_broken": 1, "truncated_files": 1}),
        (records(HEADER, MM, b"\xff" * 5, MM), 2, {"dropped_broken": 1}),
        (records(HEADER, MM, b""), 1, {"dropped_broken": 1}),
        (records(HEADER, MM) + b"\xff" * 30, 1, {"dropped_broken": 1, "truncated_files": 1}),
        (records(HEADER, MM) + varint(1 << 40), 1, {"dropped_broken": 1, "truncated_files": 1}),
        (records(HEADER, MM, field(1, 2**64 - 1) + field(6, 2**63)), 1, {"dropped_no_time": 1}),
        (records(HEADER, field(2, b"\xff\xfe") + field(6, 1) + field(7, 2**63)), 1, {"missing_duration": 1}),
        (records(b"\x08\x01", MM), 1, {"dropped_broken": 1}),
        (FLAT[:-15], 2, {"truncated_files": 1}),
        (FLAT[:-90], 1, {"truncated_files": 1, "dropped_broken": 1}),
        (FLAT.replace('"id": 12', '"id": x'), 1, {"dropped_broken": 1}),
        (FLAT.replace('"id": 12', '"id": 1.5'), 1, {"dropped_broken": 1}),
        (FLAT.replace('"seq_id": 660', '"seq_id": NaN'), 2, {"repaired_nan": 2}),
        (FLAT.replace('"seq_id": 660', '"seq_id": 1' + "0" * 5000), 0, {}),
        (FLAT.replace("[8, 8]", "[" * 100_000, 1), 1, {"dropped_broken": 1}),
        (FLAT.replace("[8, 8]", "[" * 200 + "]" * 200), 2, {}),
        (FLAT.replace('"nodes": [', '"nodes": [7, "x", '), 2, {"dropped_broken": 1}),
        (FLAT.replace("aten::mm", "\\ud800"), 2, {}),
        (FLAT.encode().replace(b"aten::mm", b"\xff\xfe"), 2, {"repaired_utf8": 1}),
    ],
)
def test_damage_costs_what_it_touches(
    tmp_path: Path, content: bytes | str, kept: int, counts: Mapping[str, int]
) -> None:
    if not kept:
        with pytest.raises(BrokenFileError, match="none of its"):
            read(tmp_path, content)
        return
    trace = read(tmp_path, content)
    quality = trace.meta.quality
    usual = {"assumed_start", "missing_duration", "events", "kept", "skipped_marker"} - set(counts)
    assert {name: n for name, n in quality.counts.items() if name not in usual} == counts
    assert quality["kept"] == kept == rows_of(trace) and balanced(quality)


@pytest.mark.parametrize("content", [records(HEADER), '{"schema":"1.0.1","nodes":[],"rf_id":0}', b""])
def test_a_file_without_nodes_is_an_error(tmp_path: Path, content: bytes | str) -> None:
    with pytest.raises(BrokenFileError, match="holds no node"):
        read(tmp_path, content)


def test_the_limit_holds(tmp_path: Path) -> None:
    (tmp_path / "t.et").write_bytes(gzip.compress(ET * 1000))
    with pytest.raises(BrokenFileError, match="unpacks to more"):
        ChakraReader().read([tmp_path / "t.et"], Stage(limit_bytes=10_000))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    ChakraReader().sniff(Head(Path("x"), data))
    for read_message in (metadata, node):
        try:
            assert json.dumps(read_message(data) if read_message is metadata else node(data).attributes)
        except MessageError:
            continue


def timeline(records: list[int | None], names: list[str], **columns: Any) -> Trace:
    count = len(names)
    own = {"id": range(count), "rank": [0] * count, "name": names, "start_ns": range(count), "dur_ns": [1] * count}
    table = make_table("ops", {**own, "record_function_id": records, **columns})
    return Trace(TraceMeta("kineto", ranks=(0,)), {"ops": table})


def nodes(records: list[int | None], names: list[str], **columns: Any) -> Trace:
    args = [f'{{"node":{i}}}' for i in range(len(names))]
    return timeline(records, names, args=args, **columns)


def test_record_function_ids_join_and_fill_what_is_null() -> None:
    joined = join_execution_trace(
        timeline(
            [5, 6, 7, 7], ["a", "b", "c", "c"], shapes=["[1]", None, None, None], args=['{"x":1}', None, None, None]
        ),
        nodes([6, 5, 7, 9], ["b", "a", "c", "d"], shapes=["[2]", "[3]", "[4]", "[5]"], sequence_number=[1, 2, 3, 4]),
    )
    assert joined.ops.select(["shapes", "sequence_number", "args"]).to_pylist() == [
        {"shapes": "[1]", "sequence_number": 2, "args": '{"x":1,"execution_trace":{"node":1}}'},
        {"shapes": "[2]", "sequence_number": 1, "args": '{"execution_trace":{"node":0}}'},
        {"shapes": None, "sequence_number": None, "args": None},
        {"shapes": None, "sequence_number": None, "args": None},
    ]
    assert joined.meta.quality.counts == {"nodes_joined": 2, "nodes_without_event": 2, "ops_without_node": 2}


def test_an_id_under_another_name_is_another_event() -> None:
    with pytest.raises(InvalidInputError, match="no operator of the timeline is a node"):
        join_execution_trace(timeline([5], ["a"]), nodes([5], ["b"]))


def test_parts_of_a_converted_operator_and_annotations_join_too() -> None:
    note = {"id": [9], "rank": [0], "name": ["step"], "start_ns": [0], "dur_ns": [9], "record_function_id": [3]}
    trace = timeline([5], ["a"]).with_tables(ranges=make_table("ranges", note))
    joined = join_execution_trace(trace, nodes([5, 3], ["a(0)", "step"]))
    assert joined.ops["args"].to_pylist() == ['{"execution_trace":{"node":0}}']
    assert joined.ranges["args"].to_pylist() == ['{"execution_trace":{"node":1}}']
    again = join_execution_trace(joined, nodes([3, 5], ["step", "a"]))
    assert again.ops["args"].to_pylist() == ['{"execution_trace":{"node":1}}']


def test_traces_of_other_ranks_do_not_join() -> None:
    other = Trace(TraceMeta("chakra", ranks=(3,)))
    with pytest.raises(InvalidInputError, match="the same ranks"):
        join_execution_trace(timeline([5], ["a"]), other)


def test_without_ids_the_order_of_calls_joins_each_thread() -> None:
    joined = join_execution_trace(
        timeline([None] * 5, ["step", "a", "p", "b", "c"], thread=[9, 9, 8, 9, 9]),
        nodes([4, 3, 2, 1], ["c", "b", "a", "p"], thread=[1, 1, 1, 2], sequence_number=[1, 2, 3, 4]),
    )
    found = [json.loads(args)["execution_trace"]["node"] if args else None for args in joined.ops["args"].to_pylist()]
    assert found == [None, 2, 3, 1, 0]
    assert joined.ops["sequence_number"].null_count == 5
    assert joined.meta.quality["nodes_joined_by_order"] == 4


@given(st.lists(st.sampled_from("abcdef"), max_size=60), st.lists(st.sampled_from("abcdef"), max_size=60))
def test_an_alignment_is_ascending_and_agrees(first: list[str], second: list[str]) -> None:
    pairs = align(first, second)
    assert all(first[i] == second[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    assert align(first, first) == [(i, i) for i in range(len(first))]


@needs_chakra
def test_a_converted_trace() -> None:
    trace = collect([DATA / "chakra/chakra.0.et"])
    assert (trace.ops.num_rows, trace.kernels.num_rows, trace.collectives.num_rows) == (2434, 1209, 21)
    assert trace.meta.quality["kept"] == trace.meta.quality["events"] == 3664
    assert trace.meta.version == "schema 1.0.1"


@needs_chakra
def test_a_trace_of_the_observer() -> None:
    trace = collect([DATA / "chakra/linear_et.json.gz"])
    assert trace.ops.num_rows == trace.meta.quality["events"] == 931
    assert trace.ops["shapes"].null_count < 931 / 2


@needs_dlrm
def test_the_ranks_of_dlrm_join_their_timelines() -> None:
    trace = collect(sorted((DATA / "kineto/dlrm8").iterdir()))
    et = collect(sorted((DATA / "chakra/dlrm8").iterdir()))
    joined = join_execution_trace(trace, et)
    quality = joined.meta.quality
    # These files of 2023 lack record function ids, so that all join by order; what does not is the step itself.
    assert quality["nodes_joined_by_order"] == quality["nodes_joined"] == 13352
    assert (quality["ops_without_node"], trace.ops.num_rows) == (24, 13064)
    # What the order does not look at bears it out: autograd's numbers differ by those of the steps in between, always.
    nodes_of = {(row["rank"], json.loads(row["args"])["node"]): row for row in et.ops.to_pylist()}
    apart = Counter()
    for row in joined.ops.filter(pc.is_valid(joined.ops["sequence_number"])).to_pylist():
        found = json.loads(row["args"] or "{}").get("execution_trace")
        node = nodes_of[row["rank"], found["node"]] if found else row
        if found and node["sequence_number"] is not None:
            apart[row["sequence_number"] - node["sequence_number"]] += 1
    assert apart == {40: 2514}
