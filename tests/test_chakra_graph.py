"""Graphs as Chakra files: what ASTRA-sim asks of them, the way back, and files of other tools."""

import heapq
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chakra import attribute, put, records
from traces import write_trace

from profilers.devices.catalogue import find_device
from profilers.errors import BrokenFileError, InvalidInputError, SeqPointError, UnknownFormatError
from profilers.ingest.pipeline import collect
from profilers.readers.chakra.protobuf import node as decoded
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, EdgeKind, Edges, KernelGraph, Lane, TaskKind, hardware_named
from replay.graph.operators import Operator
from replay.what_ifs import parse_what_if
from replay.writers import chakra_reading as reader
from replay.writers.chakra import RowWriter, columns_of, filled, write_chakra
from replay.writers.chakra_reading import read_chakra
from seqpoint.cli import cli

DATA = Path(__file__).parents[2] / "shared/data/traces"
REAL = {
    "dlrm8": "kineto/dlrm8",
    "ddp4": "kineto/ddp4/mi300_4ranks_nccl_only.json.gz",
    "nccl_a100": "kineto/hta/nccl_a100_rank0.json.gz",
}
#: How much longer they take where a rank runs one call, one kernel and one collective at a time.
IN_SLOTS = {"dlrm8": 1e-3, "ddp4": 0.88, "nccl_a100": 1e-3}
COMP, SEND, RECV, COLL = 4, 5, 6, 7


# A decoder of its own, by the text of et_def.proto: none of the toolkit's.


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value: Any
            value, at = _varint(data, at)
        else:
            size, at = (8, at) if key & 7 == 1 else _varint(data, at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def decode(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the metadata and the nodes of a file; of an attribute, the number of the field that holds its value."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size, at = _varint(data, at)
        messages.append(data[at : at + size])
        at += size
    nodes = []
    for message in messages[1:]:
        node: dict[str, Any] = {"id": 0, "type": 0, "us": 0, "ctrl": [], "data": [], "at": {}}
        for number, value in _fields(message):
            if number == 10:
                name, (held, content) = _attribute(value)
                assert name not in node["at"]
                node["at"][name] = (held, content)
            elif number in (4, 5):
                node["ctrl" if number == 4 else "data"] += _packed(value)
            else:
                node[{1: "id", 2: "name", 3: "type", 6: "start", 7: "us"}[number]] = value
        nodes.append(node)
    return messages[0], nodes


def _attribute(data: bytes) -> tuple[str, tuple[int, Any]]:
    (_, name), (held, content) = _fields(data)
    if held == 3:
        content = struct.unpack("<d", content)[0]
    return name.decode(), (held, content)


def slot(node: dict[str, Any]) -> str:
    """Return which of the three places of a rank a node takes in ASTRA-sim, where each runs one at a time."""
    return "host" if node["at"]["is_cpu_op"][1] else "compute" if node["type"] == COMP else "communication"


def meeting(nodes: list[dict[str, Any]]) -> dict[int, Any]:
    """Return by node of communication what it shares with its partners: the n-th of its group or tag, by id."""
    seen: dict[Any, int] = defaultdict(int)
    found = {}
    for node in sorted(nodes, key=lambda one: one["id"]):
        at, key = node["at"], None
        if node["type"] == COLL:
            key = ("group", at.get("pg_name", (29, b""))[1])
        elif node["type"] in (SEND, RECV):
            key = ("pair", *(at[f"comm_{name}"][1] for name in ("src", "dst", "tag")))
        if key is not None:
            found[node["id"]] = (key, seen[key])
            seen[key] += 1
    return found


def run(files: dict[int, list[dict[str, Any]]], *, slots: bool = False) -> float:
    """Return when the last node is done, us: durations, dependencies, partners that meet, and ASTRA-sim's slots."""
    nodes = {(rank, node["id"]): node for rank, own in files.items() for node in own}
    of = {(rank, id_): key for rank, own in files.items() for id_, key in meeting(own).items()}
    partners, children, free = defaultdict(list), defaultdict(list), defaultdict(list)
    waiting = {me: len(node["data"]) for me, node in nodes.items()}
    for me, node in nodes.items():
        partners[of.get(me, me)].append(me)
        for before in node["data"]:
            children[me[0], before].append(me)
        if not waiting[me]:
            free[me[0], slot(node)].append(me)
    events: list[tuple[float, tuple[int, int]]] = []
    busy, arrived, now, done = set(), defaultdict(int), 0.0, 0
    while True:
        for place, queue in list(free.items()):
            queue.sort(reverse=True)
            while queue and not (slots and place in busy):
                me = queue.pop()
                busy.add(place)
                together = of.get(me, me)
                arrived[together] += 1
                if arrived[together] == len(partners[together]):
                    for one in partners[together]:
                        heapq.heappush(events, (now + nodes[one]["us"], one))
        if not events:
            break
        now, me = heapq.heappop(events)
        done += 1
        busy.discard((me[0], slot(nodes[me])))
        for child in children[me]:
            waiting[child] -= 1
            if not waiting[child]:
                free[child[0], slot(nodes[child])].append(child)
    assert done == len(nodes), "nodes wait for each other in a circle, or for what is not there"
    return now


def check(paths: tuple[Path, ...]) -> dict[int, list[dict[str, Any]]]:
    """Check all that ASTRA-sim and its feeders ask of a file, and return the nodes."""
    files = {int(path.name.split(".")[-2]): decode(path)[1] for path in paths}
    for nodes in files.values():
        ids = [node["id"] for node in nodes]
        assert len(set(ids)) == len(ids) and min(ids) > 0
        for node in nodes:
            at = node["at"]
            assert set(node["data"]) <= set(ids) and len(set(node["data"])) == len(node["data"])
            assert node["ctrl"] == [] and node["type"] in (COMP, SEND, RECV, COLL)
            assert at["is_cpu_op"][0] == 27
            held = {"num_ops": 9, "tensor_size": 13, "comm_type": 9, "comm_size": 9, "pg_name": 29, "involved_dim": 28}
            held |= {"comm_src": 7, "comm_dst": 7, "comm_tag": 7}
            assert all(at[name][0] == field for name, field in held.items() if name in at)
            if node["type"] != COMP:
                assert at["is_cpu_op"][1] == 0 and at["comm_size"][1] > 0
            if node["type"] == COLL:
                assert at["comm_type"][1] in (0, 2, 5, 6, 7)
                assert at.get("pg_name", (29, b"1"))[1].isdigit()
            if node["type"] in (SEND, RECV):
                assert {"comm_src", "comm_dst", "comm_tag"} <= at.keys()
    return files


def alone(graph: KernelGraph) -> float:
    """Return when the last task is done where nothing shares a device."""
    return float(replay(graph.with_tasks(device=np.full(len(graph.tasks), -1))).end_ns.max())


def assert_same(one: KernelGraph, other: KernelGraph) -> None:
    for table in ("tasks", "edges"):
        for column in fields(getattr(one, table)):
            a, b = (getattr(getattr(graph, table), column.name) for graph in (one, other))
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), column.name
    for field in fields(one):
        if field.name not in ("tasks", "edges"):
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    a, b = replay(one), replay(other)
    assert a.start_ns.tobytes() == b.start_ns.tobytes() and a.end_ns.tobytes() == b.end_ns.tobytes()


@st.composite
def graphs(draw: st.DrawFn) -> KernelGraph:
    """Random graphs on two ranks, with lags, starts, releases, odd numbers, and edges between ranks."""
    n = draw(st.integers(1, 12))
    times = st.floats(0, 1e6, allow_nan=False) | st.integers(0, 5000).map(float)
    many = {"min_size": n, "max_size": n}
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), times, st.booleans())
    edges = [(min(a, b), max(a, b), lag, s) for a, b, lag, s in draw(st.lists(pairs, max_size=20)) if a != b]
    lane = np.array(draw(st.lists(st.integers(0, 3), **many)))
    graph = make_graph(
        draw(st.lists(times, **many)),
        draw(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), **many)),
        edges,
        lane=lane,
        device=np.array([0, -1, 1, -1])[lane],
        release_ns=draw(st.lists(times, **many)),
        measured_start_ns=draw(st.lists(st.floats(allow_nan=False) | st.just(np.nan), **many)),
        bytes=draw(st.lists(st.integers(0, 2**62), **many)),
        operator=draw(st.lists(st.integers(-1, 1), **many)),
        iteration=draw(st.lists(st.integers(-1, 1), **many)),
        event=draw(st.lists(st.integers(-1, 2**62), **many)),
        name=draw(st.lists(st.integers(0, 1), **many)),
    )
    lanes = (Lane(0, 0, 7), Lane(0, None, 1), Lane(3, 2, -5), Lane(3, None, 2**62))
    used = set(graph.tasks.name.tolist())
    texts = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=2, max_size=2))
    names = tuple(text if i in used else "" for i, text in enumerate(texts))
    operators = (Operator("matmul", 0.1, 2.0, 3e18, (1, 2), 2), Operator("copy", 1.0, 1e-9, 0.0, ()))
    hardware = hardware_named(find_device("MI300X"), "user")
    notes = ("a", names[0])
    return replace(graph, lanes=lanes, devices=((0, 0), (3, 2)), names=names, operators=operators,
                   hardware=hardware, notes=notes, measured_ns=draw(times), iterations=(4, 5))  # fmt: skip


@settings(deadline=None)
@given(graphs())
def test_a_graph_comes_back_to_the_bit(graph: KernelGraph) -> None:
    with TemporaryDirectory() as folder:
        files = write_chakra(graph, Path(folder) / "g.et")
        assert_same(read_chakra(files.paths[::-1], parameters=load_parameters()), graph)


@settings(deadline=None)
@given(graphs())
def test_durations_and_dependencies_alone_give_the_makespan_without_contention(graph: KernelGraph) -> None:
    rank = np.array([lane.rank for lane in graph.lanes])[graph.tasks.lane]
    within = rank[graph.edges.source] == rank[graph.edges.target]
    with TemporaryDirectory() as folder:
        found = write_chakra(graph, Path(folder) / "g.et")
        nodes = check(found.paths)
    assert found.unexpressed == (~within).sum()
    expected = alone(replace(graph, edges=graph.edges.select(within)))
    # Times that ranks did not wait for are rounded from a replay in which they did: no more than what was dropped.
    slack = 0.501 if within.all() else 1.0 + len(graph.tasks) + len(graph.edges)
    assert abs(run(nodes) - expected / 1000) <= slack


def test_a_lag_a_release_and_an_edge_from_the_start_are_nodes(tmp_path: Path) -> None:
    """0 runs 0..9 us; 1 starts 4 us after its start, 4..6; 2 starts 3 us after the end of 1, 9..10, not before 8."""
    graph = make_graph([9000, 2000, 1000], edges=[(0, 1, 4000.0, True), (1, 2, 3000.0)], release_ns=[0, 0, 8000])
    found = write_chakra(graph, tmp_path / "g")
    (nodes,) = check(found.paths).values()
    named = {node["id"]: node.get("name", b"").decode() for node in nodes}
    told = {f"{named[n['id']]}{n['id']}": (n["us"], sorted(n["data"])) for n in nodes}
    assert told == {
        "kernel1": (9, [5]), "kernel2": (2, [6]), "kernel3": (1, [4, 7]),
        "release4": (8, []), "start5": (0, []), "lag6": (4, [5]), "lag7": (3, [2]),
    }  # fmt: skip
    assert run({0: nodes}) == 10.0 and found.delays == 4 and found.unexpressed == 0


def test_rounded_times_do_not_drift(tmp_path: Path) -> None:
    """1000 tasks of 1.4 us in a row are 1400 us, not 1000."""
    graph = make_graph([1400] * 1000, edges=[(i, i + 1) for i in range(999)])
    (nodes,) = check(write_chakra(graph, tmp_path / "g").paths).values()
    assert run({0: nodes}) == 1400.0


def two_ranks(kind: str, names: tuple[str, str] = ("nccl", "nccl"), size: int = 64) -> KernelGraph:
    """Two ranks of three: a kernel, then a collective of the first two, 5 us; the third rank runs a kernel alone."""
    mark, kernel, coll = int(TaskKind.MARK), int(TaskKind.KERNEL), int(TaskKind.COLLECTIVE)
    code = COLLECTIVE_KINDS.index(kind)
    graph = make_graph(
        [3000, 8000, 0, 0, 0, 5000, 5000, 1000],
        edges=[(0, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 6)],
        kind=[kernel, kernel, mark, mark, mark, coll, coll, kernel],
        lane=[0, 1, 0, 1, -1, 0, 1, 2],
        device=[0, 1, 0, 1, -1, 0, 1, 2],
        name=[0, 0, 0, 0, 0, 1, 2, 0],
        collective=[-1, -1, -1, -1, -1, code, code, -1],
        bytes=[0, 0, 0, 0, 0, size, size, 0],
    )
    meets = np.where(np.arange(6) >= 2, int(EdgeKind.RENDEZVOUS), int(EdgeKind.STREAM))
    edges = Edges(*(getattr(graph.edges, f.name) for f in fields(Edges)[:4]), meets)
    lanes = tuple(Lane(rank, 0, 7) for rank in range(3))
    return replace(graph, edges=edges, lanes=lanes, devices=((0, 0), (1, 0), (2, 0)), names=("k", *names))


def test_a_collective_is_communication_in_its_group(tmp_path: Path) -> None:
    graph = two_ranks("all_gather")
    found = write_chakra(graph, tmp_path / "g.et")
    files = check(found.paths)
    told = [(n["us"], n["at"]["comm_type"][1], n["at"]["comm_size"][1], n["at"]["pg_name"][1])
            for nodes in files.values() for n in nodes if n["type"] == COLL]  # fmt: skip
    assert told == [(5, 2, 64, b"1")] * 2
    assert found.groups is not None and json.loads(found.groups.read_text()) == {"1": [0, 1]}
    assert run(files) == 13.0 and found.unexpressed == 0
    assert_same(read_chakra(found.paths, parameters=load_parameters()), graph)


@pytest.mark.parametrize(("kind", "size"), [("barrier", 64), ("all_gather", 0), ("unknown", 64), ("reduce", 64)])
def test_what_the_simulator_stops_at_is_plain_work_and_counted(tmp_path: Path, kind: str, size: int) -> None:
    found = write_chakra(two_ranks(kind, size=size), tmp_path / "g.et")
    files = check(found.paths)
    assert {n["type"] for nodes in files.values() for n in nodes} == {COMP}
    assert found.groups is None and found.unexpressed == 2


def test_a_send_and_a_receive_are_a_pair_where_names_say_which(tmp_path: Path) -> None:
    found = write_chakra(two_ranks("send_recv", ("nccl:recv", "nccl:send")), tmp_path / "g.et")
    files = check(found.paths)
    told = [(rank, n["type"], *(n["at"][f"comm_{k}"][1] for k in ("src", "dst", "tag", "size")))
            for rank, nodes in files.items() for n in nodes if n["type"] != COMP]  # fmt: skip
    assert told == [(0, RECV, 1, 0, 0, 64), (1, SEND, 1, 0, 0, 64)]
    assert run(files) == 13.0 and found.unexpressed == 0
    both = write_chakra(two_ranks("send_recv", ("SendRecv", "SendRecv")), tmp_path / "h.et")
    assert {n["type"] for nodes in check(both.paths).values() for n in nodes} == {COMP} and both.unexpressed == 2


def test_operations_and_bytes_of_a_known_operator(tmp_path: Path) -> None:
    operator = Operator("matmul", 2e6, 300.0, 100.0, (1, 10, 10, 10))
    graph = replace(make_graph([1000, 2000], operator=[0, -1], bytes=[0, 77]), operators=(operator,))
    (nodes,) = check(write_chakra(graph, tmp_path / "g").paths).values()
    told = [[node["at"].get(k, (0, None))[1] for k in ("num_ops", "tensor_size")] for node in nodes]
    assert told == [[2_000_000, 400], [None, 77]]


def test_a_graph_without_tasks_or_in_a_circle_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no task to write"):
        write_chakra(make_graph([]), tmp_path / "g.et")
    with pytest.raises(InvalidInputError, match="circle"):
        write_chakra(make_graph([1, 1], edges=[(0, 1), (1, 0)]), tmp_path / "g.et")
    assert list(tmp_path.iterdir()) == []


def test_all_ranks_or_none(tmp_path: Path) -> None:
    (tmp_path / "g.2.et").mkdir()
    with pytest.raises(InvalidInputError, match=r"g\.2\.et: is a folder"):
        write_chakra(two_ranks("all_reduce"), tmp_path / "g.et")
    assert [path.name for path in tmp_path.iterdir()] == ["g.2.et"]


def test_files_of_one_graph_belong_together(tmp_path: Path) -> None:
    found = write_chakra(two_ranks("all_reduce"), tmp_path / "g.et")
    other = write_chakra(two_ranks("all_gather"), tmp_path / "h.et")
    with pytest.raises(InvalidInputError, match=r"has the ranks \[0, 1, 2\], the files' names say \[0, 2\]"):
        read_chakra([found.paths[0], found.paths[2]], parameters=load_parameters())
    with pytest.raises(InvalidInputError, match="of another graph"):
        read_chakra([*found.paths[:2], other.paths[2]], parameters=load_parameters())
    with pytest.raises(InvalidInputError, match="of the same rank"):
        read_chakra([*found.paths, found.paths[2]], parameters=load_parameters())
    with pytest.raises(InvalidInputError, match="no Chakra file"):
        read_chakra([], parameters=load_parameters())


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_file_is_an_error_or_the_same_form(data: st.DataObject) -> None:
    """Whatever a byte becomes, the error is one of ours."""
    with TemporaryDirectory() as folder:
        (path,) = write_chakra(make_graph([10, 20, 30], edges=[(0, 1, 5.0), (1, 2)]), Path(folder) / "g.et").paths
        raw = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        else:
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        path.write_bytes(raw)
        try:
            assert isinstance(read_chakra([path], parameters=load_parameters()), KernelGraph)
        except SeqPointError as error:
            assert str(path) in str(error) or "g.0.et" in str(error) or "ranks" in str(error)


@pytest.mark.parametrize("column", ["duration_ns", "release_ns", "edge_lag_ns"])
def test_times_that_nothing_lasts_are_refused_with_file_and_node(tmp_path: Path, column: str) -> None:
    graph = make_graph([5000, 77_000], edges=[(0, 1, 2e18 if column == "edge_lag_ns" else 3.0, False)])
    if column != "edge_lag_ns":
        graph = graph.with_tasks(**{column: np.array([5000.0, 2e18])})
    (path,) = write_chakra(graph, tmp_path / "g").paths
    with pytest.raises(BrokenFileError, match=rf"{path.name}: node \d+ has seqpoint_{column} .*; 1e\+18 at most$"):
        read_chakra([path], parameters=load_parameters())


def test_a_duration_that_another_tool_changed_is_no_surprise(tmp_path: Path) -> None:
    (path,) = write_chakra(make_graph([5000, 77_000]), tmp_path / "g").paths
    raw = path.read_bytes()
    assert raw.count(put(7, 77)) == 1
    path.write_bytes(raw.replace(put(7, 77), put(7, 99)))
    with pytest.raises(BrokenFileError, match="node 2 lasts 99 us, its seqpoint_duration_ns is 77000: another tool"):
        read_chakra([path], parameters=load_parameters())


@dataclass(frozen=True)
class Later:
    """Columns as a later version may have them."""

    mask: Any
    pairs: Any
    small: Any
    absent: Any = None


def test_columns_that_nobody_has_thought_of_are_carried() -> None:
    table = Later(
        np.array([2**64 - 1, 0, 0], np.uint64),
        np.array([[True, False], [True, False], [False, False]]),
        np.array([-1, 5, 5], np.int32),
    )
    columns = columns_of(table)
    writer = RowWriter(columns, "x_")
    described = json.loads(json.dumps(writer.described))
    nodes = {row: decoded(put(1, row + 1) + writer.row(row)) for row in range(3)}
    assert [len(one.attributes) for one in nodes.values()] == [2, 0, 1]
    back = filled(described, nodes, "x_")
    assert back.keys() == {"mask", "pairs", "small"}
    for name, values in columns.items():
        assert back[name].dtype == values.dtype and back[name].tolist() == values.tolist()


def test_demands_are_on_resources_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(RESOURCES)
    graph = make_graph([1]).with_tasks(demand=np.arange(1.0, 1.0 + len(names))[None] / 8)
    found = write_chakra(graph, tmp_path / "g")
    monkeypatch.setattr(reader, "RESOURCES", tuple(names[::-1]))
    assert (
        read_chakra(found.paths, parameters=load_parameters()).tasks.demand[0].tolist()
        == graph.tasks.demand[0, ::-1].tolist()
    )
    monkeypatch.setattr(reader, "RESOURCES", (*names[1:], "new"))
    with pytest.raises(BrokenFileError, match=f"use the resource '{names[0]}', which this version does not know"):
        read_chakra(found.paths, parameters=load_parameters())


HEADER = put(1, "0.0.4")


def node(number: int, type_: int = COMP, us: int = 5, **more: Any) -> bytes:
    """Return a node of the device as another tool writes it."""
    deps, start, cpu = more.pop("deps", ()), more.pop("start", 0), more.pop("cpu", 0)
    message = put(1, number) + put(2, f"n{number}") + put(3, type_) + put(5, bytes(deps)) + put(6, start) + put(7, us)
    message += attribute("is_cpu_op", 27, cpu)
    for name, value in more.items():
        message += attribute(name, 29 if isinstance(value, str) else 9, value)
    return message


def foreign(folder: Path, *ranks: list[bytes]) -> list[Path]:
    paths = [folder / f"job.{rank}.et" for rank in range(len(ranks))]
    for path, nodes in zip(paths, ranks, strict=True):
        path.write_bytes(records(HEADER, *nodes))
    return paths


def test_a_file_of_another_tool_becomes_a_graph(tmp_path: Path) -> None:
    nodes = [node(0, cpu=1, us=10, tid=3), node(1, us=7, deps=[0]), node(2, 2, us=4, tensor_size=512), node(3, 1, us=0)]
    graph = read_chakra(
        foreign(tmp_path, nodes), hardware_named(find_device("A100-SXM4-80GB"), "user"), parameters=load_parameters()
    )
    kinds = [TaskKind(kind).name for kind in graph.tasks.kind]
    assert kinds == ["HOST", "KERNEL", "COPY", "HOST"]
    assert graph.tasks.duration_ns.tolist() == [10_000, 7_000, 4_000, 0]
    assert [lane.label for lane in graph.lanes] == ["rank 0 thread 3", "rank 0 GPU 0 stream 0", "rank 0 thread 0"]
    assert [EdgeKind(kind).name for kind in graph.edges.kind] == ["LAUNCH"]
    assert graph.tasks.bytes.tolist() == [0, 0, 512, 0]
    assert replay(graph).makespan_ns == 17_000 and graph.hardware.compute_units == 108
    assert any("nothing is measured" in note for note in graph.notes)


def test_ranks_of_another_tool_meet_and_waiting_is_not_the_collective(tmp_path: Path) -> None:
    """Rank 0 begins its all-reduce at 1, rank 1 at 91; both end at 101: it takes 10, and is replayed so."""
    early = [node(1, COLL, us=100, start=1, comm_type=0, comm_size=8)]
    late = [node(7, us=90, start=1), node(8, COLL, us=10, start=91, deps=[7], comm_type=0, comm_size=8)]
    graph = read_chakra(foreign(tmp_path, early, late), parameters=load_parameters())
    line = replay(graph)
    chosen = graph.tasks.kind == TaskKind.COLLECTIVE
    assert line.start_ns[chosen].tolist() == [90_000, 90_000] and line.end_ns[chosen].tolist() == [100_000, 100_000]
    assert graph.measured_ns == 100_000


def test_a_receive_of_another_tool_waits_for_its_send(tmp_path: Path) -> None:
    one = [node(1, us=9), node(2, SEND, us=2, deps=[1], comm_dst=1, comm_tag=5)]
    other = [node(1, RECV, us=2, comm_src=0, comm_tag=5)]
    graph = read_chakra(foreign(tmp_path, one, other), parameters=load_parameters())
    assert replay(graph).end_ns[graph.tasks.kind == TaskKind.COLLECTIVE].tolist() == [11_000, 11_000]


@pytest.mark.parametrize(
    ("ranks", "error", "says"),
    [
        ([[node(1, us=0), node(2, us=0)]], InvalidInputError, "no node has a duration_micros"),
        ([[node(1), node(2, COLL, us=0, comm_type=0)]], InvalidInputError, "node 2 .n2. communicates and has no dur"),
        ([[node(1, deps=[9])]], BrokenFileError, "node 1 waits for node 9, which the file does not hold"),
        ([[node(1), node(1)]], BrokenFileError, "two nodes have the id 1"),
        ([[node(1, 42)]], BrokenFileError, "of type 42"),
        ([[]], BrokenFileError, "holds no node"),
        ([[node(1), node(2)[:-3]]], BrokenFileError, "damaged"),
        ([[node(1, us=1 << 60)]], InvalidInputError, "which cannot be"),
        ([[node(1, COLL, comm_type=0)], [node(1, COLL, comm_type=2)]], InvalidInputError, "is all_reduce, at its pl"),
        ([[node(1, COLL), node(2, COLL)], [node(1, COLL)]], InvalidInputError, "node 2 of rank 0. has no part on ra"),
        ([[node(1, SEND, comm_dst=1)], [node(1)]], InvalidInputError, "has no part on rank 1"),
    ],
)  # fmt: skip
def test_what_a_file_lacks_is_said(tmp_path: Path, ranks: list[list[bytes]], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read_chakra(foreign(tmp_path, *ranks), parameters=load_parameters())


def test_a_circle_of_another_tool_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"circle: n\d \(task \d\) -> n\d"):
        read_chakra(foreign(tmp_path, [node(1, deps=[2]), node(2, deps=[1])]), parameters=load_parameters())


def test_files_that_are_cut_off_or_of_no_rank(tmp_path: Path) -> None:
    (path,) = foreign(tmp_path, [node(1), node(2)])
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BrokenFileError, match="cut off or damaged behind node 1"):
        read_chakra([path], parameters=load_parameters())
    path.write_bytes(b"hello")
    with pytest.raises(UnknownFormatError, match="is no Chakra execution trace"):
        read_chakra([path], parameters=load_parameters())
    other = tmp_path / "other.et"
    other.write_bytes(records(HEADER, node(1)))
    with pytest.raises(InvalidInputError, match="must say a rank of its own"):
        read_chakra([other, other], parameters=load_parameters())
    with pytest.raises(InvalidInputError, match="was written by another tool than"):
        read_chakra([*write_chakra(make_graph([1]), tmp_path / "g").paths, other], parameters=load_parameters())


@pytest.mark.skipif(not (DATA / "chakra").is_dir(), reason="the Chakra traces are not on this machine")
def test_real_files_of_other_tools() -> None:
    graph = read_chakra([DATA / "chakra/chakra.0.et"], parameters=load_parameters())
    assert len(graph.tasks) == 3664
    assert 0 < replay(graph).makespan_ns <= graph.tasks.duration_ns.sum()
    with pytest.raises(InvalidInputError, match="says no durations"):
        read_chakra([DATA / "chakra/linear_et.json.gz"], parameters=load_parameters())


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("what_if", [None, "dma_collectives+overlap:none"])
def test_real_graphs(tmp_path: Path, name: str, what_if: str | None) -> None:
    if not (DATA / REAL[name]).exists():
        pytest.skip("the Kineto traces are not on this machine")
    trace = collect([DATA / REAL[name]])
    graph = build_graph(trace, trace.iterations["iteration"].to_pylist()[0], parameters=load_parameters())
    if what_if is not None:
        graph = parse_what_if(what_if)(graph, load_parameters())
    found = write_chakra(graph, tmp_path / "g.et")
    assert_same(read_chakra(found.paths, parameters=load_parameters()), graph)
    files = check(found.paths)
    assert abs(run(files) - alone(graph) / 1000) <= 0.501
    if what_if is None:
        assert run(files, slots=True) / run(files) - 1 <= IN_SLOTS[name]


def test_a_trace_of_the_toolkit_goes_all_the_way(tmp_path: Path) -> None:
    graph = build_graph(collect([write_trace(tmp_path / "t.json", steps=1)]), 1, parameters=load_parameters())
    found = write_chakra(graph, tmp_path / "g.et")
    assert_same(read_chakra(found.paths, parameters=load_parameters()), graph)
    assert abs(run(check(found.paths)) - alone(graph) / 1000) <= 0.501


def test_the_command_line_writes_a_changed_graph(tmp_path: Path) -> None:
    trace, out = str(write_trace(tmp_path / "t.json")), tmp_path / "g.et"
    asked = ["export", trace, "--graph", "-i", "2", "-w", "scale_host:0.5", "-o", str(out), "--json"]
    found = CliRunner().invoke(cli, asked)
    assert found.exit_code == 0, found.exception
    told = json.loads(found.stdout)
    assert list(told["files"]) == [str(tmp_path / "g.0.et")] and told["iteration"] == 2
    assert told["what_if"] == ["scale_host:0.5"] and told["unexpressed"] == 0
    graph = parse_what_if("scale_host:0.5")(
        build_graph(collect([Path(trace)]), 2, parameters=load_parameters()), load_parameters()
    )
    back = read_chakra([tmp_path / "g.0.et"], parameters=load_parameters())
    assert_same(back, graph)
    delays = sum("seqpoint_delay" in one["at"] for one in decode(tmp_path / "g.0.et")[1])
    assert (told["tasks"], told["delays"]) == (len(back.tasks), delays)
    plain = CliRunner().invoke(cli, ["export", trace, "--graph", "-o", str(out)])
    assert plain.exit_code == 0 and "tasks" in plain.stdout


@pytest.mark.parametrize(
    ("more", "says"),
    [(["-i", "2", "-o", "g.et"], "--iteration is of a graph"), (["-w", "overlap:none", "-o", "g.et"], "--what-if is"),
     (["--graph", "-o", "g.json"], "must end in .et"), (["--graph", "-i", "99", "-o", "g.et"], "99")],
)  # fmt: skip
def test_the_command_line_says_what_does_not_go(tmp_path: Path, more: list[str], says: str) -> None:
    trace = str(write_trace(tmp_path / "t.json"))
    found = CliRunner().invoke(cli, ["export", trace, *more])
    assert found.exit_code == 1 and says in str(found.exception)
