"""Uneven all-to-alls: sizes from totals and split sizes, shares of ranks, and the gain of balance by hand."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import event, kernel, kineto, launch

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.exchanges import _splits, exchange_directions, exchange_sizes
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.what_ifs import parse_what_if
from seqpoint.communication import exchange_rows

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces"
NOMINAL = load_parameters()
FLOOR_NS = NOMINAL["kernel_floor_ns"]
#: Elements that each of two ranks sends to both in a dispatch.
UNEVEN, BALANCED = [1_500_000, 500_000], [1_000_000, 1_000_000]


def exchange(sent: object, received: object, **changes: object) -> dict[str, Any]:
    """Return the arguments of an all-to-all-v among two ranks; totals are those of the lists, unless changed."""
    totals = {
        f"{side} msg nelems": sum(sizes)
        for side, sizes in (("In", sent), ("Out", received))
        if isinstance(sizes, list) and all(isinstance(each, int) for each in sizes)
    }
    texts = {
        f"{side} split size": sizes if isinstance(sizes, str) else json.dumps(sizes)
        for side, sizes in (("In", sent), ("Out", received))
    }
    group = {"Process Group Name": "ep", "Process Group Ranks": "[0, 1]", "Group size": 2}
    return {"Collective name": "all_to_allv", "dtype": "BFloat16", **group, **totals, **texts, **changes}


def experts(folder: Path, sent: list[int], ranks: int = 2, **changes: object) -> Trace:
    """Return a step in which each rank sends `sent`, computes 100 us for every million it gets, and sends it back.

    The host launches all of it at once and waits. The exchange takes 10 us once both ranks have come.
    """
    folder.mkdir(exist_ok=True)
    compute = [100 * 2 * each // 1_000_000 for each in sent]
    end = 136 + max(compute)
    for rank in range(ranks):
        got = [sent[rank]] * 2
        out, back = exchange(sent, got, **changes), exchange(got, sent, **changes)
        last = 126 + compute[rank]
        events = [
            event("ProfilerStep#0", "user_annotation", 100, end - 90),
            *(launch(110 + 2 * n, n + 1, dur=1) for n in range(3)),
            launch(118, 9, "cudaDeviceSynchronize", end - 117),
            kernel("ncclDevKernel_SendRecv", 116, 10, 1, **out),
            kernel("ampere_bf16_s16816gemm_bf16_128x128", 126, compute[rank], 2),
            kernel("ncclDevKernel_SendRecv", last, end - last, 3, **back),
        ]
        header = {"distributedInfo": {"rank": rank, "world_size": ranks}}
        (folder / f"rank{rank}.json").write_text(json.dumps(kineto(events, **header)))
    return collect([folder])


def graph_of(trace: Trace) -> KernelGraph:
    return build_graph(trace, 0, parameters=NOMINAL)


def products(graph: KernelGraph) -> np.ndarray:
    """Return the rows of the products, by rank."""
    rows = np.flatnonzero(graph.tasks.kind == TaskKind.KERNEL)
    return rows[np.argsort(graph.ranks()[rows])]


def test_the_gain_of_equal_shares_by_hand(tmp_path: Path) -> None:
    graph = graph_of(experts(tmp_path, UNEVEN))
    changed = parse_what_if("balance_experts")(graph, NOMINAL)
    old, new, rows = graph.tasks.duration_ns, changed.tasks.duration_ns, products(graph)
    # 300 and 100 us become 200 us, but for the time of a launch. Exchanges of 6 MB, by their busiest rank, become 4 MB.
    by_hand = [FLOOR_NS + (300e3 - FLOOR_NS) * 2 / 3, FLOOR_NS + (100e3 - FLOOR_NS) * 2]
    np.testing.assert_allclose(new[rows], by_hand)
    assert (changed.tasks.basis[rows] == Basis.DERIVED).all()
    exchanges = np.flatnonzero(graph.tasks.kind == TaskKind.COLLECTIVE)
    assert set(changed.tasks.bytes[exchanges].tolist()) == {4_000_000}
    assert set(graph.tasks.bytes[exchanges].tolist()) == {4_000_000, 6_000_000}
    shrunk = (new - old)[exchanges]
    assert (shrunk < 0).all() and len(set(shrunk.round(6).tolist())) == 1
    ends = [replay(each).end_ns[exchanges].max() for each in (graph, changed)]
    assert ends[0] - ends[1] == pytest.approx(300e3 - max(by_hand) - 2 * shrunk[0])
    assert "1.50 times the mean" in changed.notes[-1] and "4 all-to-alls and 2 products" in changed.notes[-1]
    again = parse_what_if("balance_experts")(changed, NOMINAL)
    np.testing.assert_array_equal(again.tasks.duration_ns, new)


def test_a_balanced_job_gains_nothing_and_a_composition_both(tmp_path: Path) -> None:
    graph = graph_of(experts(tmp_path / "even", BALANCED))
    same = parse_what_if("balance_experts")(graph, NOMINAL)
    assert same.replays_like(graph) and replay(graph).makespan_ns / replay(same).makespan_ns == 1.0
    (row,) = sp.project(experts(tmp_path / "even", BALANCED), ["balance_experts"]).to_dict()["rows"]
    assert "changes no task" in row["reason"] and "all-to-alls of known sizes are even" in row["reason"]
    trace = experts(tmp_path / "uneven", UNEVEN)
    rows = sp.project(trace, ["balance_experts", "scale_kernels:gemm:0.5", "balance_experts+scale_kernels:gemm:0.5",
                              "scale_kernels:gemm:0.5+balance_experts"]).to_dict()["rows"]  # fmt: skip
    gains = [row["speedup"] for row in rows]
    assert 1.2 < gains[0] < gains[2] and gains[1] < gains[2]
    assert gains[2] == pytest.approx(gains[3])


def test_shares_of_ranks_by_hand(tmp_path: Path) -> None:
    result = sp.characterize(experts(tmp_path, UNEVEN))
    dispatch, combine = result.exchanges
    assert (dispatch.direction, dispatch.calls, dispatch.unknown, dispatch.group) == ("dispatch", 2, 0, "ep")
    assert (dispatch.sent, dispatch.received) == ((2_000_000, 2_000_000), (3_000_000, 1_000_000))
    assert (dispatch.imbalance, dispatch.lasting, dispatch.busiest) == (1.5, 1.5, "0: 75 %")
    assert dispatch.shares == ((0.75, 0.25), (0.5, 0.5)) and dispatch.histograms == ("█▃", "██")
    assert (combine.direction, combine.received, combine.imbalance) == ("combine", dispatch.sent, 1.0)
    assert result.to_dict()["exchanges"][0]["sent_shares"] == (0.5, 0.5)
    assert "Shares of ranks in all-to-alls" in [table.title for table in result.tables()]
    even = sp.characterize(experts(tmp_path / "even", BALANCED))
    assert "Shares of ranks in all-to-alls" not in [table.title for table in even.tables()]
    assert [row.imbalance for row in even.exchanges] == [1.0]


NO_TOTALS = {"In msg nelems": None, "Out msg nelems": None}


@pytest.mark.parametrize(
    ("splits", "totals", "sizes", "unread"),
    [
        (([3, 1], [3, 3]), {}, (4, 6), {}),
        (([3, 1], [3, 3]), {"Out msg nelems": None, "In msg nelems": 40}, (40, 60), {}),  # rows of 10 elements
        (([2, 2], [0, 0]), {"Out msg nelems": 0}, (4, 0), {}),  # PyTorch's total of a rank that gets nothing
        (([3, 1], [3, 3]), NO_TOTALS, (4, 6), {}),
        (([3, 1], [3, 3]), {"Out msg nelems": None, "In msg nelems": 7}, (7, None), {}),
        (([], []), {"In msg nelems": 8, "Out msg nelems": None}, (8, 8), {}),
        (("[1, 2, ..., 4]", "[1, 1, ..., 1]"), {"In msg nelems": 9, "Out msg nelems": 5}, (9, 5), {"truncated": 1}),
        (("[1, 2, ..., 4]", "[1, 1, ..., 1]"), NO_TOTALS, (None, None), {"truncated": 1}),
        *(
            ((bad, [3, 3]), NO_TOTALS, (None, None), {"malformed": 1})
            for bad in ("no JSON", "[1, 2", [1, 2, 3], [4], [-1, 5], [[1], [3]], [1.5, 2.5], [True, 3], '{"0": 4}',
                        "null", [1 << 62, 1], "[" * 5000, "9" * 5000)
        ),
    ],
)  # fmt: skip
def test_sizes_come_from_totals_then_from_valid_splits(
    tmp_path: Path, splits: Any, totals: Any, sizes: tuple[int | None, int | None], unread: dict[str, int]
) -> None:
    document = kineto([launch(1, 1), kernel("ncclDevKernel_SendRecv", 5, 9, 1, **exchange(*splits, **totals))])
    (tmp_path / "t.json").write_text(json.dumps(document))
    trace = collect([tmp_path / "t.json"])
    found = exchange_sizes(trace)
    assert [value if value >= 0 else None for value in (int(found.sent[0]), int(found.received[0]))] == list(sizes)
    assert found.unread == unread
    notes = " ".join(sp.characterize(trace).notes())
    assert all(f"{count} lists of split sizes are {name}" in notes for name, count in unread.items())
    assert ("of unknown sizes" in notes) == (None in sizes)


def test_a_trace_without_sizes_or_with_a_single_rank_is_refused(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("In split size", "Out split size", "In msg nelems", "Out msg nelems"))
    with pytest.raises(InvalidInputError, match="no all-to-all with split sizes; join") as raised:
        parse_what_if("balance_experts")(graph_of(experts(tmp_path / "none", UNEVEN, **unknown)), NOMINAL)
    assert "\n" not in str(raised.value)
    with pytest.raises(InvalidInputError, match="give the files of all ranks"):
        parse_what_if("balance_experts")(graph_of(experts(tmp_path / "one", UNEVEN, ranks=1)), NOMINAL)


def test_an_exchange_with_a_rank_of_unknown_size_has_no_direction() -> None:
    operation, missing = np.array([0, 0, 1, 1, 2]), np.iinfo(np.int64).min
    sent, received = np.array([4, 4, 4, 4, 4]), np.array([6, missing, 6, 2, 9])
    assert exchange_directions(operation, sent, received).tolist() == [3, 3, 1, 1, 3]


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared")
def test_the_shares_of_a_real_job_are_those_of_its_execution_traces() -> None:
    """Count the elements of the outputs of DLRM's all-to-alls in the JSON, whose splits are in other fields."""
    files = sorted((DATA / "chakra" / "dlrm8").glob("*.json.gz"))
    trace = collect([DATA / "kineto" / "dlrm8"], IngestOptions(execution_traces=tuple(files)))
    counted = defaultdict[int, list[tuple[int, int]]](list)
    for rank, file in enumerate(files):
        for node in json.loads(gzip.decompress(file.read_bytes()))["nodes"]:
            if node["name"] == "record_param_comms" and str(node["inputs"][-3]).startswith("all_to_all"):
                counted[rank].append((node["inputs"][0][3], node["outputs"][0][3]))
    sizes = exchange_sizes(trace)
    rows = exchange_rows(trace, sizes)
    for row in rows:
        uneven = [[call for call in counted[rank] if (call[0] == 3392) == (row.direction == "dispatch")]
                  for rank in range(8)]  # fmt: skip
        assert row.sent == tuple(sum(sent for sent, _ in calls) for calls in uneven)
        assert row.received == tuple(sum(received for _, received in calls) for calls in uneven)
    assert [(row.direction, row.calls, row.unknown) for row in rows] == [("dispatch", 8, 0), ("even", 32, 0)]
    assert rows[0].imbalance == pytest.approx(8 * 13_312 / (8 * 3_392)) and rows[0].busiest == "3: 49 %"
    graph = build_graph(trace, 10, parameters=NOMINAL)
    changed = parse_what_if("balance_experts")(graph, NOMINAL)
    assert (changed.tasks.duration_ns <= graph.tasks.duration_ns).all()
    moved = np.flatnonzero(changed.tasks.bytes != graph.tasks.bytes)
    assert set(changed.tasks.bytes[moved].tolist()) == {4 * 3392}
    two = sorted((DATA / "kineto" / "dlrm8").glob("worker[03]_*"))
    part = collect(two, IngestOptions(execution_traces=(files[0], files[3])))
    assert [row.direction for row in exchange_rows(part, exchange_sizes(part))] == ["unknown"]
    with pytest.raises(InvalidInputError, match="give the files of all ranks"):
        parse_what_if("balance_experts")(build_graph(part, 10, parameters=NOMINAL), NOMINAL)


def test_whole_lists_of_an_execution_trace_count_where_those_of_the_profiler_are_truncated() -> None:
    node = {"inputs": {"values": [[1, 2, 0, 4, 4, "cuda:0"], 7, "all_to_allv", [3, 1], [3, 3]]}}
    profiler = {"In split size": "[3, ..., 1]", "Out split size": "[3, ..., 3]"}
    texts = [json.dumps(profiler), json.dumps({"execution_trace": node})]
    assert _splits(texts, 2) == ((4, 6), "") and _splits(texts[:1], 2) == (None, "truncated")


def test_exchanges_of_unknown_bytes_keep_their_time(tmp_path: Path) -> None:
    graph = graph_of(experts(tmp_path, UNEVEN, dtype="unheard of"))
    changed = parse_what_if("balance_experts")(graph, NOMINAL)
    rows = np.flatnonzero(changed.tasks.duration_ns != graph.tasks.duration_ns)
    assert sorted(rows.tolist()) == sorted(products(graph).tolist())
