"""T3: products in stages, chunks around a ring, arbitration, the what-if on graphs, and the published figures."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_overlap_targets import GEMM, NORM, chain

import seqpoint as sp
from profilers.devices.catalogue import find_device
from profilers.errors import NotFoundError
from profilers.files import dataset_path
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import RESOURCES, Basis, KernelGraph, SharingPolicy, TaskKind, hardware_named
from replay.studies.t3 import load_workload, near_memory_gain, reproduce, speedup_beside_few_units, study
from replay.studies.workloads import layer_graph, step_ns
from replay.what_ifs import parse_what_if
from replay.what_ifs.ring import (
    MOVEMENTS,
    PRODUCT_READS,
    PRODUCT_WRITES,
    REDUCE_READS,
    REDUCE_WRITES,
    RingColumns,
    RingTimes,
    TiledProduct,
    ring_pattern,
    tile_of,
)
from replay.what_ifs.splice import SplicePattern
from replay.workloads.program import Collective, KernelCall, SyntheticJob, SyntheticStep
from replay.workloads.program_trace import write_trace

PARAMETERS = load_parameters()
FULL = 2**20
#: Four chunks of one stage each: 128 rows, and 128 columns for one tile.
FOUR = TiledProduct(512, 128, 128, 4, 1, 1e9)
LINK = {"link": 1.0, "link_number": 2}
SHAPES = st.tuples(st.integers(1, 4000), st.integers(1, 2000), st.integers(1, 600), st.integers(2, 12))


def free(product_ns: float, reduce_ns: float, latency_ns: float = 0.0) -> RingTimes:
    """Times on a device whose memory takes no time."""
    return RingTimes(product_ns, reduce_ns, 0.0, latency_ns, 1.0)


def pattern_of(product: TiledProduct, times: RingTimes, budget: int = FULL, **columns: Any) -> SplicePattern:
    return ring_pattern(
        product, times, RingColumns(**{"kernel": {"cu": 1.0}, "link": LINK} | columns), members=1, budget=budget
    )


def moved_bytes(graph: KernelGraph) -> Mapping[str, int]:
    """Bytes that the tasks of each name move."""
    names = [graph.names[name] for name in graph.tasks.name]
    return {name: int(graph.tasks.bytes[[each == name for each in names]].sum()) for name in MOVEMENTS}


# ---- stages


def test_stages_read_and_write_by_hand() -> None:
    product = TiledProduct(512, 256, 128, 2, 2, 1e9)  # 4 x 2 tiles; two tiles of a column are a stage
    assert (product.stages, product.slices, product.chunk_ends.tolist()) == (4, 1, [2, 4])
    bounds, panel = np.arange(5), 128 * 128 * 2
    # A chunk has a group of two rows of tiles; the second chunk reads the columns again if the cache is too small.
    assert product.read_bytes(bounds, caches_result=False).tolist() == [3 * panel, panel, 2 * panel, 0]
    small = replace(product, cache_bytes=0.0)
    assert small.read_bytes(bounds, caches_result=False).tolist() == [3 * panel, panel, 3 * panel, panel]
    fits = replace(product, cache_bytes=4 * panel)  # operands of a group; its result takes as much again
    assert [fits.read_bytes(bounds, caches_result=through).sum() / panel for through in (False, True)] == [6, 8]
    written = product.written_bytes(bounds, np.arange(3))
    assert written.tolist() == [[2 * panel, 0], [2 * panel, 0], [0, 2 * panel], [0, 2 * panel]]


@given(st.tuples(st.integers(1, 6), st.integers(1, 700), st.integers(1, 300), st.integers(2, 5)), st.integers(1, 40))
def test_stages_are_those_of_tiles_one_by_one(shape: tuple[int, int, int, int], units: int) -> None:
    panels, columns, depth, chunks = shape
    product = TiledProduct(panels * 128 * chunks, columns, depth, chunks, units, 0.0)
    reads, written, seen = np.zeros(product.stages), np.zeros((product.stages, chunks)), set()
    tile = 0
    for chunk in range(chunks):
        for first in range(0, panels, 8):
            for column in range(0, columns, 128):
                width = min(128, columns - column)
                for panel in range(first, min(first + 8, panels)):
                    stage = tile // units
                    for key, size in ((("row", chunk, panel), 128), (("column", chunk, first, column), width)):
                        reads[stage] += 2 * depth * size * (key not in seen)
                        seen.add(key)
                    written[stage, chunk] += 2 * 128 * width
                    tile += 1
    bounds = np.arange(product.stages + 1)
    assert product.stages == ceil(tile / units)
    assert np.allclose(product.read_bytes(bounds, caches_result=True), reads)
    assert np.allclose(product.written_bytes(bounds, np.arange(chunks + 1)), written)


@given(SHAPES, st.integers(1, 200), st.floats(0, 1e8))
def test_the_whole_result_is_written_and_operands_are_read_once_at_least(
    shape: tuple[int, int, int, int], units: int, cache_bytes: float
) -> None:
    product = TiledProduct(*shape, units, cache_bytes)
    bounds, chunks = np.arange(product.stages + 1), np.arange(product.chunks + 1)
    written = product.written_bytes(bounds, chunks)
    assert np.allclose(written.sum(axis=0), product.output_bytes / product.chunks)
    m, n, k, _ = shape
    through, around = (product.read_bytes(bounds, caches_result=each).sum() for each in (True, False))
    assert 2 * k * (m + n) <= around * (1 + 1e-12) <= through * (1 + 1e-9)
    assert replace(product, cache_bytes=1e12).read_bytes(bounds, caches_result=True).sum() == pytest.approx(
        2 * k * (m + n)
    )


def test_the_tile_is_that_of_the_grid() -> None:
    assert tile_of(8192, 4096, 64 * 32) == (128, 128)
    assert tile_of(8192, 4096, 32 * 32) == (256, 128)
    assert tile_of(8192, 4096, 132) == tile_of(8192, 4096, 0) == (128, 128)  # a persistent kernel; unknown


# ---- the ring


def test_chunks_leave_when_they_are_computed_and_the_partial_sum_is_there() -> None:
    # Chunks are complete at 100, 200, 300, 400; a step takes 20 on the link and 10 more.
    assert pattern_of(FOUR, free(400.0, 90.0, 10.0)).alone_ns() == 400.0
    # Steps of 200: the first chunk leaves at 100, the others when the one before has arrived.
    assert pattern_of(FOUR, free(400.0, 600.0)).alone_ns() == pytest.approx(100.0 + 600.0)
    assert pattern_of(FOUR, free(400.0, 630.0, 10.0)).alone_ns() == pytest.approx(100.0 + 630.0)
    late = pattern_of(FOUR, free(400.0, 330.0, 10.0))  # steps of 110: the last chunk leaves at 320, not at 300
    assert late.alone_ns() == pytest.approx(100.0 + 330.0)


def test_one_stage_is_the_graph_as_it_was() -> None:
    whole = replace(FOUR, units=4)
    assert whole.stages == 1
    assert pattern_of(whole, free(400.0, 90.0, 10.0)).alone_ns() == pytest.approx(490.0)


@given(
    st.integers(2, 16), st.floats(1.0, 1e6), st.floats(1.0, 1e6), st.sampled_from([FULL, 256, 40])
)  # one stage a chunk
def test_without_latency_and_memory_only_the_longer_side_is_left(
    ranks: int, product_ns: float, reduce_ns: float, budget: int
) -> None:
    product = TiledProduct(128 * ranks, 128, 128, ranks, 1, 1e9)
    time = pattern_of(product, free(product_ns, reduce_ns), budget).alone_ns()
    step = reduce_ns / (ranks - 1)
    if budget == FULL:  # the first chunk hides nothing, and the last that is sent hides under nothing
        ends = [product_ns, product_ns / ranks + reduce_ns, product_ns * (ranks - 1) / ranks + step]
        assert time == pytest.approx(max(ends), rel=1e-9)
    assert max(product_ns, reduce_ns) * (1 - 1e-9) <= time <= (product_ns + reduce_ns) * (1 + 1e-9)


@settings(deadline=None)
@given(SHAPES, st.integers(1, 100), st.sampled_from([FULL, 1000, 100, 32]))
def test_bytes_are_conserved_whatever_is_merged(shape: tuple[int, int, int, int], units: int, budget: int) -> None:
    product = TiledProduct(*shape, units, 0.0)
    pattern = pattern_of(product, RingTimes(1e6, 1e6, 1e-3, 500.0, 2.0), budget)
    moved, n, size = moved_bytes(pattern.graph), product.chunks, product.output_bytes
    rounding = len(pattern.graph.tasks)
    assert moved[REDUCE_READS] == pytest.approx((n - 2) * size / n, abs=rounding)
    assert moved[PRODUCT_WRITES] + moved[REDUCE_WRITES] == pytest.approx(2 * (n - 1) * size / n, abs=rounding)
    reads = product.read_bytes(np.array([0, product.stages]), caches_result=False).sum()
    assert moved[PRODUCT_READS] == pytest.approx(reads, abs=rounding)
    if budget < FULL and product.stages > 1:
        assert len(pattern.graph.tasks) <= 1.5 * budget + 8


@pytest.mark.parametrize("defers", [0, 1])
@pytest.mark.parametrize("budget", [FULL, 200, 40])
def test_a_rank_stands_for_a_ring_of_all(defers: int, budget: int) -> None:
    product, times = TiledProduct(4096, 3000, 512, 8, 80, 2**24), RingTimes(4e5, 6e5, 1e-3, 500.0, 2.0)
    gather = {"duration_ns": 1e5, "link": 1.0, "kind": int(TaskKind.COLLECTIVE)}
    columns = RingColumns({"cu": 1.0}, LINK, gather, defers)
    alone, ring = (ring_pattern(product, times, columns, members=n, budget=budget).graph for n in (1, 8))
    assert len(ring.devices) == 8 and len(alone.devices) == 1
    policy = SharingPolicy(deferred_share=0.1 * defers)
    one, all_ = (simulate(replace(graph, policy=policy))[1] for graph in (alone, ring))
    assert all_.max() == pytest.approx(one.max(), rel=1e-12)
    ends = [all_[ring.tasks.device == device].max() for device in range(8)]
    assert np.ptp(ends) <= 1e-9 * one.max()


def test_an_all_reduce_gathers_when_all_ranks_have_reduced() -> None:
    gather = {"duration_ns": 50.0, "link": 1.0, "kind": int(TaskKind.COLLECTIVE)}
    assert pattern_of(FOUR, free(400.0, 600.0), gather=gather).alone_ns() == pytest.approx(750.0)


def test_bursts_longer_than_the_traced_kernel_are_shortened() -> None:
    product = replace(FOUR, units=4)
    moved = product.read_bytes(np.array([0, 1]), caches_result=True).sum() + product.output_bytes
    pattern = pattern_of(product, RingTimes(moved / 2, 1e-3, 1.0, 0.0, 1.0))
    durations = pattern.graph.tasks.duration_ns[pattern.scale == 1]
    # A quarter of the result is stored to the next rank, and not written here.
    assert durations.sum() == pytest.approx((moved - product.output_bytes / 4) / 2)


# ---- arbitration


def contended(defers: int, share: float) -> tuple[float, float]:
    """When product and reduce-scatter end whose memory accesses meet."""
    product = TiledProduct(4096, 4096, 256, 4, 80, 0.0)
    pattern = ring_pattern(
        product,
        RingTimes(6e5, 3e5, 1e-3, 500.0, 2.0),
        RingColumns({"cu": 1.0}, LINK, {}, defers),
        members=1,
        budget=FULL,
    )
    end = simulate(replace(pattern.graph, policy=SharingPolicy(deferred_share=share)))[1]
    return float(end[pattern.kernel_end].max()), float(end[pattern.collective_end].max())


def test_communication_yields_and_never_starves() -> None:
    fair, first = contended(0, 0.1), contended(1, 0.1)
    assert first[0] < fair[0]
    least, half = contended(1, 1e-3), contended(1, 0.5)
    assert first[0] < half[0] and least[0] < first[0]
    assert np.isfinite(least[1]) and least[1] >= least[0]


def test_a_burst_beside_blocks_by_hand() -> None:
    # Memory takes a product's burst of 100 us while a chunk of 100 us comes in: a tenth of the bandwidth is left to it.
    graph = chain([NORM, NORM], [100e3, 100e3])
    graph = replace(graph, edges=graph.edges.select(np.zeros(1, bool)), policy=SharingPolicy(deferred_share=0.1))
    demand = np.zeros((2, len(RESOURCES)))
    demand[:, RESOURCES.index("hbm")] = 1.0
    graph = graph.with_tasks(demand=demand, occupies=np.zeros(2), defers=np.array([0.0, 1.0]))
    assert simulate(graph)[1].tolist() == pytest.approx([100e3 / 0.9, 200e3])


@pytest.mark.parametrize("label", ["t_nlg/fc2/8", "mega_gpt2/ip/16", "palm/op/32"])
def test_with_arbitration_the_product_ends_earlier(label: str) -> None:
    sublayer = load_workload()[label]
    graph, ends = layer_graph(sublayer.trace(PARAMETERS), PARAMETERS), []
    for text in ("t3", "t3:mca"):
        changed = parse_what_if(text)(graph, PARAMETERS)
        computing = [changed.names[name].startswith("T3 product") for name in changed.tasks.name]
        ends.append(simulate(changed)[1][computing].max())
    assert ends[1] <= ends[0] * (1 + 1e-9)


# ---- the what-if


@pytest.mark.parametrize("label", ["t_nlg/fc2/8", "mega_gpt2/ip/16", "gpt3/op/32"])
def test_a_study_says_what_project_says(label: str) -> None:
    sublayer = load_workload()[label]
    outcome = study(sublayer, PARAMETERS)
    for row in sp.project(sublayer.trace(PARAMETERS), ["t3", "t3:mca"], draws=8).to_dict()["rows"]:
        assert row["speedup"] == pytest.approx(outcome.speedups[row["what_if"][0]], rel=1e-9)


def test_a_trace_of_all_ranks_gains_what_one_rank_does() -> None:
    sublayer = load_workload()["t_nlg/fc2/8"]
    (m, n, k), (product_ns, reduce_ns, _) = sublayer.sizes, sublayer.times_ns(PARAMETERS)
    for kind in ("reduce_scatter", "all_reduce"):
        steps = []
        for meets in ("", "ring"):
            exchange = Collective(kind, m * n, "tensor parallel", 8, meets)
            calls = [
                KernelCall("gemm", "aten::mm", product_ns, 1500, shape=(m, k), operands=((k, n),), workgroups=64 * 34),
                KernelCall(kind, f"c10d::{kind}", reduce_ns, 1500, shape=(m, n), exchange=exchange),
            ]
            step = SyntheticStep("ring", 1, 1, [calls] * (8 if meets else 1), 1500)
            trace = write_trace(SyntheticJob("ring", "test", [step], 8), sublayer.device)
            steps.append([*step_ns(trace, ("t3", "t3:mca"), PARAMETERS).values()])
        assert steps[1] == pytest.approx(steps[0], rel=1e-9)


def on_t3_device(graph: KernelGraph) -> KernelGraph:
    return replace(graph, hardware=hardware_named(find_device("T3-GPU"), "user"))


def test_it_applies_without_shapes_and_keeps_what_follows() -> None:
    graph = chain([GEMM, "all_reduce", NORM], [800e3, 400e3, 10e3]).with_tasks(ranks=np.array([0, 4, 0]))
    graph = on_t3_device(graph.with_tasks(workgroups=np.array([1024, 0, 0])))
    changed = parse_what_if("t3")(graph, PARAMETERS)
    assert "1 by order alone: shapes or sizes are not known" in changed.notes[-1]
    end = simulate(changed)[1]
    # Half of the all-reduce is hidden; a part of the result is not written to local memory.
    assert 0.95 * (800e3 + 200e3 + 10e3) < end[2] < 800e3 + 400e3 + 10e3
    assert end[1] == pytest.approx(end[2] - 10e3)
    pieces = np.arange(len(changed.tasks)) >= 3
    sends = pieces & (changed.tasks.link > 1)
    assert not changed.tasks.demand[sends, RESOURCES.index("cu")].any()
    assert (changed.tasks.basis[pieces] == Basis.DERIVED).all()
    assert (changed.tasks.kind[[0, 1]] == TaskKind.MARK).all()


def test_it_says_why_it_does_not_apply() -> None:
    graph = chain([GEMM, "all_reduce"], [80e3, 40e3])
    for text, missing in (("t3", graph), ("t3:mca", graph)):
        changed = parse_what_if(text)(missing, PARAMETERS)
        assert simulate(changed)[1].tolist() == simulate(missing)[1].tolist()
        assert changed.notes[-1] == f"{text}: nothing to apply it to: 1 not: the trace names no device of the catalogue"
    what_if = parse_what_if("t3")
    assert what_if.targets is not None
    (miss,) = what_if.targets(graph, PARAMETERS).misses
    assert miss.advice == "name it: --device NAME; docs/devices.md adds one"
    with pytest.raises(NotFoundError, match="memory cannot be 'mac'"):
        parse_what_if("t3:mac")


def test_twice_is_once() -> None:
    graph = on_t3_device(chain([NORM, GEMM, "reduce_scatter", NORM], [5e3, 80e3, 40e3, 5e3]))
    once, twice = (simulate(parse_what_if(text)(graph, PARAMETERS))[1] for text in ("t3", "t3+t3"))
    assert once.tolist() == twice.tolist()


def test_other_links_and_t3_commute() -> None:
    trace = load_workload()["t_nlg/op/8"].trace(PARAMETERS)
    steps = step_ns(trace, ("t3", "t3+scale_links:2", "scale_links:2+t3"), PARAMETERS)
    assert steps["t3+scale_links:2"] < 0.8 * steps["t3"]
    assert steps["t3+scale_links:2"] == pytest.approx(steps["scale_links:2+t3"], rel=0.03)


@pytest.mark.parametrize("label", ["t_nlg/op/8", "mega_gpt2/fc2/16"])
@pytest.mark.parametrize("text", ["t3", "t3:mca"])
def test_a_faster_collective_never_slows_the_step(label: str, text: str) -> None:
    sublayer = load_workload()[label]
    steps = []
    for gbps in (40, 75, 150, 300):
        figures = dict(sublayer.device.figures)
        figures["link_gbps"] = replace(figures["link_gbps"], value=float(gbps))
        faster = replace(sublayer, device=replace(sublayer.device, figures=figures))
        steps.append(step_ns(faster.trace(PARAMETERS), (text,), PARAMETERS)[text])
    assert all(np.diff(steps) <= 1.0), steps


# ---- the published set-up


def test_the_table_holds_every_sub_layer() -> None:
    workload = load_workload()
    assert len(workload) == 4 * (2 + 2 + 1 + 1 + 1)
    sublayer = workload["t_nlg/ip/16"]
    assert sublayer.sizes == (8192, 4256, 3 * 4256 // 16) and sublayer.result_bytes == 2 * 8192 * 4256
    assert sublayer.device.flops_per_s("fp16") == pytest.approx(184.6e12 / (120 * 1.502e9) * 80 * 1.4e9, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 8, 16, 32])
def test_near_memory_gains_three_chunks_of_memory_over_all_that_is_sent(ranks: int) -> None:
    sublayer = replace(load_workload()["t_nlg/op/8"], ranks=ranks)
    assert near_memory_gain(sublayer) == pytest.approx(3 * 150 / (1000 * (ranks - 1)), rel=1e-9)


def test_few_compute_units_take_what_overlap_gains() -> None:
    assert speedup_beside_few_units(1.67, 1.41, 0.1) == pytest.approx(1.67 / 1.41, rel=1e-9)
    assert speedup_beside_few_units(1.67, 1.0, 0.1) == pytest.approx(1.67, rel=1e-9)


@pytest.fixture(scope="module")
def ours() -> dict[str, float]:
    return reproduce(PARAMETERS, load_workload())


def published() -> dict[str, dict[str, float | str]]:
    figures: dict[str, dict[str, float | str]] = tomllib.loads(dataset_path("published/t3.toml").read_text())["figures"]
    return figures


def test_every_published_figure_has_ours(ours: dict[str, float]) -> None:
    assert list(published()) and set(published()) == set(ours)
    assert all(np.isfinite(value) for value in ours.values())


@pytest.mark.parametrize("name", [name for name, row in published().items() if row["grade"] in "AD"])
def test_figures_that_count_are_met(name: str, ours: dict[str, float]) -> None:
    row = published()[name]
    limit = float(row["limit"]) * (abs(float(row["value"])) if row["limit_is"] == "relative" else 1.0)
    assert abs(ours[name] - float(row["value"])) <= limit
