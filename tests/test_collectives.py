"""What a collective is, from whoever knows; and which rows of different ranks are one operation."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from traces import event, kernel, launch

from profilers.errors import InvalidInputError
from profilers.ingest.collectives import add_collectives, match_collectives, reclassify
from profilers.ingest.pipeline import IngestOptions, collect, ingest, open_trace
from profilers.trace.kernels import ClassRule
from profilers.trace.schema import make_table
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace, TraceMeta
from profilers.writers.slicing import SliceOptions, merge, slice_trace
from replay.graph.graph import TaskKind
from seqpoint import describe, project
from seqpoint.cli import cli
from seqpoint.graphs import graph_of
from seqpoint.reproducing import reproduce

RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
META = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16",
    "Group size": 8, "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
}  # fmt: skip
FACTS = ("collective", "elements_in", "elements_out", "dtype", "bytes", "group_name", "group_size", "group_ranks")


def facts(folder: Path, *events: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of the only collective in a file, without its nulls."""
    path = folder / "t.json"
    path.write_text(json.dumps(list(events)))
    (row,) = collect([path]).collectives.to_pylist()
    return {name: row[name] for name in FACTS if row[name] is not None}


FULL = {
    "collective": "all_reduce", "elements_in": 1000, "elements_out": 1000, "dtype": "BFloat16", "bytes": 2000,
    "group_name": "0", "group_size": 8, "group_ranks": "[0, 1]",
}  # fmt: skip


def test_the_kernel_itself_knows(tmp_path: Path) -> None:
    assert facts(tmp_path, kernel(RING, 10, 5, 1, **META)) == FULL


def test_the_operator_that_launched_it_knows(tmp_path: Path) -> None:
    around = event("record_param_comms", "cpu_op", 1, 8, **META)
    assert facts(tmp_path, around, launch(2, 1), kernel(RING, 10, 5, 1)) == FULL


def test_the_annotation_around_the_launch_knows(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[4, 25]], "Input type": ["float"]}
    note = event("nccl:_reduce_scatter_base", "user_annotation", 1, 8, **shapes)
    found = facts(tmp_path, note, launch(2, 1), kernel("ncclKernel_Generic", 10, 5, 1))
    assert found == {"collective": "reduce_scatter", "elements_in": 100, "dtype": "float", "bytes": 400}


@pytest.mark.parametrize(
    ("name", "term"),
    [
        (RING, "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclKernel_Reduce_RING_LL_Sum_float", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t", "broadcast"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("void sglang::all_reduce_one_shot_push_kernel", "all_reduce"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all"),
        ("void deep_ep::internode_ll::combine<false, 7168, 11, 128>(void*)", "all_to_all"),
        ("_ZN4mori3moe24EpDispatchIntraNodeKernelI14__hip_bfloat16EEv", "all_to_all"),
        ("void a2a_combine_recv_kernel<16>(unsigned long)", "all_to_all"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "barrier"),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "barrier"),
        ("void barrier_kernel(unsigned int**, int)", "barrier"),
        ("rcclGenericKernel", "unknown"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
    ],
)
def test_the_name_knows_last(tmp_path: Path, name: str, term: str) -> None:
    assert facts(tmp_path, kernel(name, 10, 5, 1)) == {"collective": term}


@pytest.mark.parametrize(
    ("spelling", "term"),
    [
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("ALLTOALL", "all_to_all"),
        ("recv", "send_recv"),
        ("barrier", "barrier"),
        ("brand_new", "all_reduce"),  # the kernel's name says it
        (7, "all_reduce"),
    ],
)
def test_every_spelling_has_one_term(tmp_path: Path, spelling: Any, term: str) -> None:
    assert facts(tmp_path, kernel(RING, 10, 5, 1, **{"Collective name": spelling}))["collective"] == term


@pytest.mark.parametrize(
    ("odd", "left"),
    [
        ({"Group size": 1 << 40}, {"group_size"}),
        ({"Group size": "8"}, {"group_size"}),
        ({"In msg nelems": 1 << 61, "Out msg nelems": 0}, {"elements_out", "bytes"}),
        ({"In msg nelems": 1 << 70, "Out msg nelems": -1}, {"elements_in", "elements_out", "bytes"}),
        ({"dtype": None}, {"dtype", "bytes"}),
        ({"dtype": ["x"]}, {"bytes"}),
        ({"dtype": "Brand New"}, {"bytes"}),
        ({"Process Group Ranks": ""}, {"group_ranks"}),
        ({"Process Group Ranks": [0, 1]}, set()),
        ({"Process Group Name": None}, {"group_name"}),
    ],
)
def test_arguments_without_sense_are_missing(tmp_path: Path, odd: dict[str, Any], left: set[str]) -> None:
    assert set(FULL) - set(facts(tmp_path, kernel(RING, 10, 5, 1, **{**META, **odd}))) == left


@pytest.mark.parametrize(
    "dims", [5, [], [5], [[]], [[0]], [["4"]], [[1 << 40, 1 << 40]], [[2] * 100], {"a": 1}, [None]]
)
@pytest.mark.parametrize("types", [6, {}, [], [[]], None])
def test_an_annotation_without_sense_says_only_the_kind(tmp_path: Path, dims: Any, types: Any) -> None:
    note = event("nccl:all_reduce", "user_annotation", 1, 8, **{"Input Dims": dims, "Input type": types})
    found = facts(tmp_path, note, launch(2, 1), kernel("ncclX", 10, 5, 1))
    assert {name: v for name, v in found.items() if name != "dtype"} == {"collective": "all_reduce"}


def test_collectives_and_kernels_point_at_each_other(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([kernel("gemm", 1, 1, 1), kernel(RING, 10, 5, 2), kernel(RING, 20, 6, 3)]))
    trace = collect([path])
    ids = dict(zip(trace.kernels["id"].to_pylist(), trace.kernels["collective_id"].to_pylist(), strict=True))
    for row in trace.collectives.to_pylist():
        assert ids[row["kernel_id"]] == row["id"]
    assert sum(value is not None for value in ids.values()) == 2
    assert trace.meta.quality["collectives"] == 2


def matched(*rows: tuple[int, str, int, int], **columns: Any) -> tuple[list[Any], list[Any], int]:
    """Return sequence and match of each (rank, kind, start, end), and how many are matched."""
    table = make_table(
        "collectives",
        {
            "id": list(range(len(rows))),
            "rank": [row[0] for row in rows],
            "name": ["n"] * len(rows),
            "collective": [row[1] for row in rows],
            "start_ns": [row[2] for row in rows],
            "dur_ns": [row[3] - row[2] for row in rows],
            **columns,
        },
    )
    trace = match_collectives(Trace(TraceMeta("kineto"), {"collectives": table}))
    found = trace.collectives
    return found["sequence"].to_pylist(), found["match_id"].to_pylist(), trace.meta.quality["collectives_matched"]


def test_equally_many_match_by_order() -> None:
    rows = [(0, "a", 0, 10), (0, "b", 20, 30), (1, "b", 920, 930), (1, "a", 900, 910)]
    assert matched(*rows) == ([0, 1, 1, 0], [0, 1, 1, 0], 4)


def test_of_different_kinds_nothing_is_one_operation() -> None:
    assert matched((0, "a", 0, 10), (0, "b", 20, 30), (1, "a", 0, 10), (1, "c", 20, 30)) == (
        [0, 1, 0, 1],
        [0, None, 0, None],
        2,
    )


def test_other_data_types_or_sizes_of_an_all_reduce_are_no_single_operation() -> None:
    rows = [
        (rank, kind, start, start + 10) for rank in (0, 1) for kind, start in (("all_to_all", 0), ("all_reduce", 20))
    ]
    same = ([0, 1, 0, 1], [0, 1, 0, 1], 4)
    # An all-to-all may move other bytes on each rank; an all-reduce does not.
    assert matched(*rows, dtype=["Long", "Float", "Long", None], bytes=[8, 400, 16, 400]) == same
    assert matched(*rows, dtype=["Long", "Float", "Byte", "Float"])[1:] == ([None, 0, None, 0], 2)
    assert matched(*rows, bytes=[8, 400, 16, 800])[1:] == ([0, None, 0, None], 2)


def test_where_a_rank_has_more_those_match_that_overlap() -> None:
    rows = [(0, "a", 0, 10), (0, "a", 20, 30), (0, "a", 40, 50), (1, "a", 21, 30), (1, "a", 41, 50)]
    assert matched(*rows) == ([0, 1, 2, 0, 1], [None, 0, 1, 0, 1], 4)


def test_an_operation_is_matched_once_even_where_two_overlap_it() -> None:
    rows = [(0, "a", 0, 10), (0, "a", 5, 15), (1, "a", 0, 15), (1, "a", 20, 30), (1, "a", 40, 50)]
    assert matched(*rows) == ([0, 1, 0, 1, 2], [0, None, 0, None, None], 2)


def test_groups_are_matched_apart() -> None:
    rows = [(0, "a", 0, 10), (0, "a", 20, 30), (1, "a", 0, 10), (1, "a", 20, 30)]
    groups = {"group_name": ["0", "1", "1", "0"], "group_ranks": [None] * 4}
    assert matched(*rows, **groups) == ([0, 0, 0, 0], [0, 1, 1, 0], 4)


def test_one_rank_matches_itself_and_no_collective_is_no_work() -> None:
    assert matched((0, "a", 0, 10), (0, "a", 5, 15)) == ([0, 1], [0, 1], 2)
    empty = Trace(TraceMeta("kineto"))
    assert match_collectives(empty) is empty
    assert add_collectives(empty) is empty


#: Rules that make one of the kernels of `two_ranks` a collective, and take another from them.
OWN = (ClassRule("my_exchange_*", "collective"), ClassRule("*AllGather*", "copy"))


def two_ranks(folder: Path) -> Path:
    """Write a job of two ranks and two steps, each with an exchange of the user's own and two of NCCL's."""
    job = folder / "job"
    job.mkdir()
    for rank in range(2):
        events = []
        for n in range(2):
            t = 1000 * n
            events.append(event(f"ProfilerStep#{n}", "user_annotation", t, 900))
            names = ("my_exchange_v2", "ncclDevKernel_AllGather_RING", RING, "ampere_sgemm_128x64_nn")
            for i, name in enumerate(names):
                events += [launch(t + 10 * i + 1, 10 * n + i + 1), kernel(name, t + 100 * i + 50, 80, 10 * n + i + 1)]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (job / f"rank{rank}.json").write_text(json.dumps(header))
    return job


def collectives_of(trace: Trace) -> list[str]:
    """Return the collectives as text without ids, sorted."""
    kernels = dict(zip(trace.kernels["id"].to_pylist(), trace.kernels.to_pylist(), strict=True))
    rows = []
    for row in trace.collectives.to_pylist():
        assert kernels[row["kernel_id"]]["collective_id"] == row["id"]
        assert kernels[row["kernel_id"]]["iteration"] == row["iteration"]
        kept = ("rank", "name", "start_ns", "iteration", "sequence", "match_id")
        rows.append(repr({name: row[name] for name in kept}))
    return sorted(rows)


def test_own_classes_say_what_is_a_collective_while_a_trace_is_read_and_later(tmp_path: Path) -> None:
    files = [two_ranks(tmp_path)]
    ruled = collect(files, IngestOptions(class_rules=OWN))
    assert ruled.meta.quality["collectives"] == ruled.meta.quality["collectives_matched"] == 8
    assert {row["name"] for row in ruled.collectives.to_pylist()} == {"my_exchange_v2", RING}
    later = reclassify(collect(files), OWN)
    assert collectives_of(later) == collectives_of(ruled) and later.meta == ruled.meta
    folder = tmp_path / "job.trace"
    ingest(files, folder, IngestOptions(class_rules=OWN))
    stored = open_trace(folder)
    assert stored.meta == ruled.meta and collectives_of(stored) == collectives_of(ruled)
    ingest(files, folder)
    assert open_trace(folder, IngestOptions(class_rules=OWN)).meta == ruled.meta
    assert reclassify(stored, OWN).tables == stored.tables
    slices = [slice_trace(stored, SliceOptions(ranks=frozenset({rank}))) for rank in (0, 1)]
    assert collectives_of(merge(slices)) == collectives_of(stored) and merge(slices).meta == stored.meta


def test_own_classes_reach_every_figure(tmp_path: Path) -> None:
    files = [two_ranks(tmp_path)]
    trace = collect(files, IngestOptions(class_rules=OWN))
    assert {row.class_: row.kernels for row in describe(trace).classes} == {"collective": 8, "copy": 4, "gemm": 4}
    graph = graph_of(trace, 0)[1]
    kinds = {graph.names[name]: kind for name, kind in zip(graph.tasks.name, graph.tasks.kind.tolist(), strict=True)}
    assert kinds["my_exchange_v2"] == TaskKind.COLLECTIVE
    assert kinds["ncclDevKernel_AllGather_RING"] == TaskKind.KERNEL
    result = project(trace, ["scale_kernels:copy:0.5"])
    assert result.provenance["class_rules"] == [list(rule) for rule in OWN]
    recorded = json.loads(json.dumps(result.to_dict()))
    assert reproduce(collect(files), recorded).identical
    other = collect(files, IngestOptions(class_rules=OWN[:1]))
    with pytest.raises(InvalidInputError, match="other classes of kernels than the result"):
        reproduce(other, recorded)


def test_own_classes_that_fit_no_kernel_are_an_error(tmp_path: Path) -> None:
    files, options = [two_ranks(tmp_path)], IngestOptions(class_rules=(ClassRule("my_exchange", "collective"),))
    message = "no rule of --classes fits a kernel .*near names: 'my_exchange_v2'"
    with pytest.raises(InvalidInputError, match=message):
        collect(files, options)
    with pytest.raises(InvalidInputError, match=message):
        ingest(files, tmp_path / "job.trace", options)
    assert not (tmp_path / "job.trace").exists()
    with pytest.raises(InvalidInputError, match=message):
        reclassify(collect(files), options.class_rules)


def test_the_option_reaches_each_command_that_reads_a_trace(tmp_path: Path) -> None:
    folder, own = two_ranks(tmp_path), tmp_path / "own.toml"
    own.write_text('[[classes]]\npattern = "my_exchange_*"\nclass = "collective"\n')
    classes = ["--classes", str(own)]
    job = str(tmp_path / "job.trace")
    assert CliRunner().invoke(cli, ["ingest", str(folder), "-o", job, *classes]).exit_code == 0
    assert load_trace(job).meta.class_rules == (ClassRule("my_exchange_*", "collective"),)
    described = CliRunner().invoke(cli, ["describe", str(folder), "--json", *classes])
    assert described.exit_code == 0, described.output
    kernels = {row["class"]: row["kernels"] for row in json.loads(described.stdout)["kernel_classes"]}
    assert kernels == {"collective": 12, "gemm": 4}
    for command in ("analyze", "project", "select", "report", "iterations", "replay"):
        assert "--classes FILE" in CliRunner().invoke(cli, [command, "--help"]).output
    log = tmp_path / "log.csv"
    log.write_text("sequence_length,duration\n1,2\n")
    failed = CliRunner().invoke(cli, ["select", str(log), *classes])
    assert failed.exit_code == 2 and "--classes: no effect on a log" in failed.output


def test_expert_parallel_kernels_are_communication_without_bytes(tmp_path: Path) -> None:
    """Two ranks notify each other for 10 us, dispatch for 70, compute for 108 and combine for 12, two times."""
    times = {
        "void deep_ep::intranode::notify_dispatch<8>(int)": 10,
        "void deep_ep::intranode::dispatch<8, 768>(int4*)": 70,
        "nvjet_tst_128x128_64x6_NNT": 108,
        "void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*)": 12,
    }
    for rank in range(2):
        events, t = [], 0
        for n in range(2):
            t = 1000 * n
            events.append(event(f"ProfilerStep#{n}", "user_annotation", t, 900))
            begin = t + 100
            for i, (name, duration) in enumerate(times.items()):
                events += [launch(t + 10 * i + 1, 10 * n + i + 1), kernel(name, begin, duration, 10 * n + i + 1)]
                begin += duration
        header = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(header))
    trace = collect([tmp_path])
    kinds = sorted(row["collective"] for row in trace.collectives.to_pylist())
    assert kinds == ["all_to_all"] * 8 + ["barrier"] * 4
    assert trace.meta.quality["collectives_matched"] == 12
    described = describe(trace)
    assert {row.class_: row.share for row in described.classes} == {"gemm": 0.54, "collective": 0.46}
    assert [row.times.exposed_ns for row in described.devices] == [2 * 92_000] * 2
    # The device takes 200 us of a step of 1000 us, which the host of this job sets.
    rows = project(trace, ["overlap:ideal", "scale_kernels:gemm:0.5", "scale_host:0.5"]).to_dict()["rows"]
    assert [round(row["speedup"], 2) for row in rows] == [1.0, 1.0, 2.0]
