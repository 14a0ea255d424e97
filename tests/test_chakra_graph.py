"""Graphs as Chakra files: what ASTRA-sim asks of them, and that every task is a node."""

import heapq
import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import make_graph
from hypothesis import given
from hypothesis import strategies as st
from traces import write_trace

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.readers.chakra.protobuf import Node, read_records
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, Edges, KernelGraph, Lane, TaskKind, hardware_named
from replay.graph.operators import Operator
from replay.what_ifs import parse_what_if
from replay.writers.chakra import write_chakra
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


def assert_holds(paths: tuple[Path, ...], graph: KernelGraph) -> None:
    """Assert that every task of a graph is a node of its rank with its name, and that nothing else but delays is."""
    nodes: dict[int, Node] = {}
    for path in paths:
        with path.open("rb") as stream:
            header: dict[str, Any] = {}
            read = list(read_records(stream, header, Counter()))
        assert header == {"version": "0.0.4", "schema": "seqpoint graph"}
        nodes |= {node.id: node for node in read}
    tasks = [nodes.pop(row + 1) for row in range(len(graph.tasks))]
    assert [node.name for node in tasks] == [graph.names[name] for name in graph.tasks.name]
    assert [node.attributes["is_cpu_op"] for node in tasks] == (graph.tasks.device < 0).tolist()
    assert {node.name for node in nodes.values()} <= {"lag", "release", "start"}


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


@given(graphs())
def test_every_task_is_a_node_with_its_name(graph: KernelGraph) -> None:
    with TemporaryDirectory() as folder:
        assert_holds(write_chakra(graph, Path(folder) / "g.et").paths, graph)


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
    assert_holds(found.paths, graph)


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
    assert_holds(found.paths, graph)
    files = check(found.paths)
    assert abs(run(files) - alone(graph) / 1000) <= 0.501
    if what_if is None:
        assert run(files, slots=True) / run(files) - 1 <= IN_SLOTS[name]


def test_a_trace_of_the_toolkit_goes_all_the_way(tmp_path: Path) -> None:
    graph = build_graph(collect([write_trace(tmp_path / "t.json", steps=1)]), 1, parameters=load_parameters())
    found = write_chakra(graph, tmp_path / "g.et")
    assert_holds(found.paths, graph)
    assert abs(run(check(found.paths)) - alone(graph) / 1000) <= 0.501


def test_the_command_line_writes_a_changed_graph(tmp_path: Path) -> None:
    trace, out = str(write_trace(tmp_path / "t.json")), tmp_path / "g.et"
    asked = ["export", trace, "--graph", "-i", "2", "-w", "scale_host:0.5", "-o", str(out), "--json"]
    found = CliRunner().invoke(cli, asked)
    assert found.exit_code == 0, found.exception
    told = json.loads(found.stdout)
    assert list(told["files"]) == [str(tmp_path / "g.0.et")] and told["iteration"] == 2
    assert told["what_if"] == ["scale_host:0.5"] and told["unexpressed"] == 0
    parameters = load_parameters()
    graph = parse_what_if("scale_host:0.5")(build_graph(collect([Path(trace)]), 2, parameters=parameters), parameters)
    assert_holds((tmp_path / "g.0.et",), graph)
    delays = sum(one["id"] > len(graph.tasks) for one in decode(tmp_path / "g.0.et")[1])
    assert (told["tasks"], told["delays"]) == (len(graph.tasks), delays)
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
