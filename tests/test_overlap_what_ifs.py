"""The what-ifs that hide communication: c3, t3, fuse_collectives, and all of them ranked; also with ficco."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import make_graph
from test_overlap_targets import GEMM, NORM, chain
from traces import write_trace

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph, TaskKind, hardware_named
from replay.what_ifs import OVERLAPS, compose, explain, parse_what_if
from seqpoint.cli import cli

PARAMETERS = load_parameters()
#: Nothing that is paid once or a piece.
FREE = PARAMETERS.with_values(
    [
        ("collective_latency_ns", 0.0),
        ("put_latency_ns", 0.0),
        ("dma_command_ns", 0.0),
        ("persistent_occupancy_loss", 0.0),
        ("dma_latency_ns", 0.0),
        ("memory_efficiency_mixed", 1e9),
    ]
)
ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "shared" / "data" / "traces"
NAMED = (
    "kineto/ddp4/mi300_4ranks_merged.json.gz",
    "kineto/tracelens/other/resnet_act_checkpoint_mi300_rank0.json.gz",
    "kineto/dlrm8",
    "rocm/rocprofv3_mi350x_50steps.json.gz",
    "nsys/mfu_2gpu_before_2026.2.sqlite",
)


def end_of(graph: KernelGraph, text: str, parameters: object = FREE) -> float:
    return float(simulate(parse_what_if(text)(graph, parameters))[1].max())  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["t3", "ficco", "fuse_collectives", "c3:sp", "c3:rp", "c3:dma"])
def test_what_does_not_apply_changes_nothing_and_says_why(text: str) -> None:
    graph = chain([NORM, "broadcast", NORM], [5e3, 5e3, 5e3])
    found = parse_what_if(text)(graph, PARAMETERS)
    assert simulate(found)[1].tolist() == simulate(graph)[1].tolist()
    assert any(": nothing to apply it to: " in note for note in found.notes)


def beside(order: tuple[int, int]) -> KernelGraph:
    """A product of ten waves, and an all-gather of 0.1 ms on a quarter of an MI300X, dispatched in this order."""
    durations, demands = np.array([100e3, 100e3]), [(1.0, 0.2), (0.25, 0.1, 1.0)]
    graph = make_graph(
        durations[list(order)].tolist(),
        [demands[i] for i in order],
        kind=[(TaskKind.KERNEL, TaskKind.COLLECTIVE)[i] for i in order],
        class_=[(GEMM, -1)[i] for i in order],
        collective=[(-1, 1)[i] for i in order],
        waves=[(10.0, 0.25)[i] for i in order],
        bytes=[(0, 2**25)[i] for i in order],
        ranks=[(0, 8)[i] for i in order],
    )
    return replace(graph, hardware=hardware_named(find_device("MI300X"), "user"))


def test_a_collective_behind_a_product_starves_and_policies_end_that() -> None:
    graph = beside((0, 1))
    starved = end_of(graph, "c3:base")
    first = end_of(graph, "c3:sp")
    engines = end_of(graph, "c3:dma")
    assert starved == pytest.approx(190e3, rel=0.1)  # it starts with the product's last wave
    assert engines == pytest.approx(100e3, rel=0.02)
    assert engines < first < starved
    assert end_of(graph, "c3:rp") < starved


def test_products_and_collectives_that_no_trace_shows_together_share_the_way_to_memory() -> None:
    graph = beside((1, 0))
    law = PARAMETERS.with_values([("dma_command_ns", 0.0), ("dma_latency_ns", 0.0)])
    # 2 x 7/8 of 32 MiB in 87 us are 12.6 % of what memory delivers, or 22.5 % of `memory_efficiency_mixed`.
    copy_ns = 100e3 - 11.8e3
    share = 2 * 7 / 8 * 2**25 / copy_ns / 5300 / PARAMETERS["memory_efficiency_mixed"]
    assert end_of(graph, "c3:dma", law) == pytest.approx(copy_ns * (1 + share) + 100e3 - copy_ns, rel=1e-3)
    start = np.array([0.0, 50e3])
    measured = graph.with_tasks(measured_start_ns=start, measured_end_ns=start + 100e3)
    assert end_of(measured, "c3:base", PARAMETERS) == end_of(measured, "nothing", PARAMETERS)
    assert end_of(graph, "c3:base", PARAMETERS) > end_of(graph, "nothing", PARAMETERS)


def test_a_partition_is_taken_only_where_it_ends_sooner() -> None:
    graph = beside((1, 0)).with_tasks(occupies=np.array([0.01, 1.0]))  # so few units that any partition is too large
    found = parse_what_if("c3:rp")(graph, FREE)
    assert simulate(found)[1].max() == simulate(parse_what_if("c3:base")(graph, FREE))[1].max()
    assert any("no partition is taken" in note for note in found.notes)
    starved = beside((0, 1))
    once = parse_what_if("c3:rp")(starved, FREE)
    assert simulate(once)[1].max() < simulate(starved)[1].max()
    assert simulate(parse_what_if("c3:rp")(once, FREE))[1].max() <= simulate(once)[1].max()


def test_what_each_policy_does_to_each_collective_is_told() -> None:
    graph = chain([NORM, "broadcast", NORM], [5e3, 5e3, 5e3])
    (alone,) = explain(parse_what_if("c3:sp"), graph, PARAMETERS)
    assert not alone.applies and "change_stream:collectives:new" in alone.advice
    (together,) = explain(parse_what_if("c3:sp"), beside((0, 1)), FREE)
    assert together.applies and together.after_ns < together.before_ns
    (kept,) = explain(parse_what_if("dma_collectives"), graph, PARAMETERS)
    assert kept.reason == "are of unknown bytes"
    reducing = beside((0, 1)).with_tasks(collective=np.array([-1, COLLECTIVE_KINDS.index("reduce_scatter")]))
    (reduced,) = explain(parse_what_if("c3:dma"), reducing, PARAMETERS)
    assert reduced.reason.startswith("need arithmetic") and "t3" in reduced.advice


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(NotFoundError, match="policy cannot be"):
        parse_what_if("c3:xx")
    with pytest.raises(InvalidInputError, match="by itself"):
        parse_what_if("overlap:all")


def test_all_compose() -> None:
    graph = chain([GEMM, "all_reduce", "all_gather", GEMM], [80e3, 40e3, 400e3, 800e3])
    graph = graph.with_tasks(ranks=np.array([0, 0, 8, 0]), workgroups=np.array([0, 0, 32, 512]))
    graph = replace(graph, hardware=hardware_named(find_device("MI300X"), "user"))
    both = compose(parse_what_if("t3"), parse_what_if("ficco:hetero_fused_1d"))(graph, FREE)
    assert simulate(both)[1].max() < min(end_of(graph, "t3"), end_of(graph, "ficco:hetero_fused_1d"))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces at {TRACES}")
@pytest.mark.parametrize("name", NAMED)
def test_every_named_trace_has_a_projection_or_a_reason(name: str) -> None:
    result = CliRunner().invoke(
        cli, ["project", str(TRACES / name), "-w", "overlap:all", "--json", "--draws", "8", "--max-points", "1"]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert sorted(row["what_if"][0] for row in rows) == sorted(OVERLAPS)
    applied = [row for row in rows if row["applied"]]
    assert rows[: len(applied)] == applied
    assert [row["speedup"] for row in applied] == sorted((row["speedup"] for row in applied), reverse=True)
    for row in rows:
        if not row["applied"]:
            assert row["reason"] and row["speedup"] is None
            continue
        assert row["low"] <= row["speedup"] <= row["high"]
        if row["speedup"] < 1 - 1e-6:
            assert any("slower than doing nothing" in note for note in row["notes"])
        if row["what_if"][0] in ("t3", "t3:mca", "ficco:auto", "fuse_collectives"):
            assert any("collectives matched" in note or "nothing to apply" in note for note in row["notes"])


def test_a_device_of_one_compute_unit_has_none_to_set_aside() -> None:
    graph = beside((0, 1))
    graph = replace(graph, hardware=replace(graph.hardware, compute_units=1))
    found = parse_what_if("c3:rp")(graph, PARAMETERS)
    assert any("c3:rp: the device has too few compute units" in note for note in found.notes)


def test_the_timeline_that_is_written_is_the_best_ones(tmp_path: Path) -> None:
    trace, out = write_trace(tmp_path / "t.json", steps=1), tmp_path / "both.json"
    asked = ["project", str(trace), "-w", "overlap:all", "--draws", "8", "--json", "--perfetto", str(out)]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    best = json.loads(result.stdout)["rows"][0]["what_if"][0]
    assert f"after {best}" in out.read_text()
    page = tmp_path / "report.html"
    made = CliRunner().invoke(cli, ["report", str(trace), "-w", "overlap:all", "-o", str(page)])
    assert made.exit_code == 0, made.output
    table = page.read_text().split("<h3>What-ifs</h3>")[-1]
    assert table.index(best) < table.index("overlap:none")
