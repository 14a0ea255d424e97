import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from traces import write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.kernels import CLASSES
from profilers.trace.trace import TraceMeta
from replay.costs.shipped import load_parameters
from replay.from_trace import build_graph
from replay.graph.graph import EdgeKind, TaskKind
from replay.projection.projection import Projection, ProjectionOptions, StepWindow, project
from replay.what_ifs import parse_what_if
from replay.writers.perfetto import write_perfetto


def projected(tmp_path: Path, *texts: str, seed: int = 0) -> Projection:
    trace = collect([write_trace(tmp_path / "t.json")])
    windows = [
        StepWindow.alone(build_graph(trace, i, parameters=load_parameters()), weight)
        for i, weight in ((1, 3.0), (2, 1.0))
    ]
    options = ProjectionOptions(draws=8, seed=seed)
    return project(
        windows, [parse_what_if(t) for t in texts], meta=trace.meta, options=options, parameters=load_parameters()
    )


def test_the_baseline_is_the_weighted_sum_of_what_was_measured(tmp_path: Path) -> None:
    projection = projected(tmp_path)
    assert projection.measured_ns == 4_000_000
    assert projection.baseline_ns == pytest.approx(4_000_000, abs=4)


def test_every_row_has_an_interval_around_it_and_shares_that_add_up(tmp_path: Path) -> None:
    for row in projected(tmp_path, "dma_collectives", "scale_device:MI300X", "overlap:none").rows:
        assert row.low <= row.speedup <= row.high
        assert row.low < row.high
        assert row.measured_share + row.derived_share + row.assumed_share == pytest.approx(1)


def test_shares_follow_what_a_what_if_touches(tmp_path: Path) -> None:
    dma, device, scaled = projected(tmp_path, "dma_collectives", "scale_device:MI300X", "scale_kernels:all:0.5").rows
    assert dma.measured_share > device.measured_share
    assert device.derived_share > dma.derived_share
    assert scaled.assumed_share > dma.assumed_share > 0  # the GEMM beside the collective was slowed by it


@pytest.mark.parametrize(
    ("text", "least"), [("scale_kernels:all:0", 0.5), ("remove_launch_overhead:0ns", 0.02), ("scale_host:0", 0.02)]
)
def test_what_is_assumed_away_counts_as_assumed(tmp_path: Path, text: str, least: float) -> None:
    (row,) = projected(tmp_path, text).rows
    assert row.assumed_share > least


def test_kernels_that_are_merged_away_and_lags_that_shrink_count_by_what_was() -> None:
    host, kernel = TaskKind.HOST, TaskKind.KERNEL
    graph = make_graph(
        [100, 300, 600],
        edges=[(0, 1, 1000.0), (1, 2)],
        kind=[host, kernel, kernel],
        device=[-1, 0, 0],
        class_=[-1, CLASSES.index("gemm"), CLASSES.index("elementwise")],
    )
    graph = replace(graph, edges=replace(graph.edges, kind=np.array([EdgeKind.LAUNCH, EdgeKind.STREAM])))
    texts = ["remove_launch_overhead:0ns", "scale_kernels:elementwise:0", "scale_kernels:gemm:2", "nothing"]
    what_ifs = [parse_what_if(text) for text in texts]
    found = project(
        [StepWindow.alone(graph)],
        what_ifs,
        meta=TraceMeta("kineto"),
        options=ProjectionOptions(draws=1),
        parameters=load_parameters(),
    )
    assert [row.assumed_share for row in found.rows] == pytest.approx([1100 / 2000, 600 / 1000, 600 / 1300, 0])


def test_shares_of_a_graph_that_lost_tasks() -> None:
    graph = make_graph([5000, 5000], edges=[(0, 1)], class_=[CLASSES.index("elementwise")] * 2)
    (row,) = project(
        [StepWindow.alone(graph)],
        [parse_what_if("fuse:elementwise")],
        meta=TraceMeta("kineto"),
        parameters=load_parameters(),
    ).rows
    assert row.assumed_share == 1.0  # the one that stays is assumed, and so is that the other goes


def test_a_time_beyond_all_plausible_is_an_error_that_names_the_what_if(tmp_path: Path) -> None:
    text = "+".join(["scale_kernels:gemm:1e6"] * 40)
    with pytest.raises(InvalidInputError, match=r"what-if scale_kernels.*: a projected time of .* ns"):
        projected(tmp_path, text)


def test_the_same_seed_gives_the_same_numbers_and_another_seed_another_interval(tmp_path: Path) -> None:
    one, again, other = (projected(tmp_path, "scale_device:MI300X", seed=s).rows[0] for s in (0, 0, 1))
    assert one == again
    assert (one.low, one.high) != (other.low, other.high)
    assert one.speedup == other.speedup


def test_provenance_names_all_that_a_number_rests_on(tmp_path: Path) -> None:
    facts = projected(tmp_path).provenance
    assert len(facts["trace_fingerprint"]) == len(facts["parameters_sha256"]) == 64
    assert facts["device"] == "A100-SXM4-80GB" and facts["device_known_by"] == "trace"
    assert facts["parameters"]["dma_command_ns"] == [5500.0, 5000.0, 6000.0]


@pytest.mark.parametrize("weight", [0.0, -2.0])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, weight: float) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    with pytest.raises(InvalidInputError, match="weights above zero"):
        project(
            [StepWindow.alone(build_graph(trace, 1, parameters=load_parameters()), weight)],
            [],
            meta=trace.meta,
            parameters=load_parameters(),
        )


def test_no_iteration_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no iteration"):
        project([], [], meta=TraceMeta("kineto"), parameters=load_parameters())


def test_perfetto_json_holds_both_timelines_with_their_lanes(tmp_path: Path) -> None:
    lines = projected(tmp_path, "overlap:none").timelines
    write_perfetto(tmp_path / "both.json", {"before": lines["baseline"], "after": lines["overlap:none"]})
    document = json.loads((tmp_path / "both.json").read_text())
    events = document["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"before: rank 0", "after: rank 0"}
    kernels = [e for e in events if e["ph"] == "X" and e["cat"] == "kernel"]
    assert len(kernels) == 6
    assert kernels[0]["ts"] == 30.0 and kernels[0]["dur"] == 200.0


def test_a_note_is_told_once_with_the_iterations_that_it_holds_for(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    graphs = [
        build_graph(trace, 1, parameters=load_parameters()),
        build_graph(trace, 2, parameters=load_parameters()).with_notes(["lost 3 events"]),
    ]
    options = ProjectionOptions(draws=8, iterations=(1, 2))
    what_if = parse_what_if("change_dtype:fp32->bf16")
    (row,) = project(
        [StepWindow.alone(graph) for graph in graphs],
        [what_if],
        meta=trace.meta,
        options=options,
        parameters=load_parameters(),
    ).rows
    assert len(row.notes) == 3
    assert row.notes[0].startswith("change_dtype: ") and row.notes[0].endswith(" in fp32 (each of 2 iterations)")
    assert "unknown data type stay" in row.notes[1]
    assert row.notes[2] == "lost 3 events (iteration 2)"


def test_progress_counts_every_draw_up_to_the_last(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    trace = collect([write_trace(tmp_path / "t.json")])
    options = ProjectionOptions(draws=8, progress=lambda *args: told.append(args), jobs=1)
    what_ifs = [parse_what_if("overlap:none"), parse_what_if("overlap:ideal")]
    project(
        [StepWindow.alone(build_graph(trace, 1, parameters=load_parameters()))],
        what_ifs,
        meta=trace.meta,
        options=options,
        parameters=load_parameters(),
    )
    assert [done for done, _, _ in told] == list(range(24))
    assert {total for _, total, _ in told} == {24}
    assert [what for _, _, what in told] == ["durations without contention", "overlap:none", "overlap:ideal"] * 8
