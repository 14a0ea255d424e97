from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from traces import write_trace

from profilers.devices.catalogue import FIGURE_RANGES, FIGURE_UNITS, Device, RatedFigure, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.ingest.pipeline import collect
from profilers.trace.kernels import CLASSES
from replay.calibration import Parameters
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, Basis, KernelGraph, TaskKind, hardware_named
from replay.what_ifs import (
    WhatIf,
    change_dtype,
    compose,
    dma_collectives,
    overlap,
    parse_what_if,
    scale_clock,
    scale_compute_units,
    scale_device,
    scale_host,
    scale_kernels,
    scale_links,
    scale_memory_bandwidth,
    what_ifs,
)
from replay.what_ifs.registry import SharedParts

NOMINAL = load_parameters()


@pytest.fixture
def graph(tmp_path: Path) -> KernelGraph:
    return build_graph(collect([write_trace(tmp_path / "t.json")]), 1, parameters=load_parameters())


def same(one: KernelGraph, other: KernelGraph) -> None:
    np.testing.assert_array_equal(replay(one).start_ns, replay(other).start_ns)
    np.testing.assert_array_equal(replay(one).end_ns, replay(other).end_ns)


@pytest.mark.parametrize(
    "nothing",
    [
        scale_kernels("all", 1.0),
        scale_links(1.0),
        scale_host(1.0),
        compose(),
        scale_device("A100-SXM4-80GB"),
        scale_clock(1.0),
        scale_compute_units(1.0),
        scale_memory_bandwidth(1.0),
        change_dtype("bf16->bf16"),
    ],
)
def test_scaling_by_one_and_composing_nothing_are_identities(graph: KernelGraph, nothing) -> None:
    same(nothing(graph, NOMINAL), graph)
    np.testing.assert_array_equal(nothing(graph, NOMINAL).tasks.basis, graph.tasks.basis)


def test_a_what_if_changes_a_new_graph_and_not_its_argument(graph: KernelGraph) -> None:
    before = graph.tasks.duration_ns.copy()
    changed = scale_kernels("gemm", 0.5)(graph, NOMINAL)
    np.testing.assert_array_equal(graph.tasks.duration_ns, before)
    gemm = graph.tasks.class_ == CLASSES.index("gemm")
    np.testing.assert_allclose(changed.tasks.duration_ns[gemm], before[gemm] / 2)
    np.testing.assert_array_equal(changed.tasks.duration_ns[~gemm], before[~gemm])
    assert (changed.tasks.basis[gemm] == Basis.ASSUMED).all()


def test_compositions_that_continue_one_another_apply_each_part_once(graph: KernelGraph) -> None:
    applied: list[str] = []

    def counted(text: str) -> WhatIf:
        part = parse_what_if(text)

        def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
            applied.append(part.name)
            return part(graph, parameters)

        return replace(part, transform=transform)

    a, b, c = map(counted, ("scale_host:0.5", "scale_kernels:gemm:0.5", "scale_links:2"))
    chain = [compose(a), compose(a, b), compose(a, b, c), compose(c, b)]
    alone = [each(graph, load_parameters()) for each in chain]
    applied.clear()
    shared = SharedParts(chain)
    together = [shared.apply(each, graph, load_parameters()) for each in chain]
    assert applied == [a.name, b.name, c.name, c.name, b.name]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.tasks.duration_ns, other.tasks.duration_ns)
    another = graph.with_durations(2 * graph.tasks.duration_ns, Basis.MODELLED)
    assert np.array_equal(
        shared.apply(chain[1], another, load_parameters()).tasks.duration_ns,
        chain[1](another, load_parameters()).tasks.duration_ns,
    )


def test_composition_applies_from_left_to_right(graph: KernelGraph) -> None:
    both = parse_what_if("scale_kernels:gemm:0.5+scale_kernels:gemm:4")
    assert both.steps == ("scale_kernels:gemm:0.5", "scale_kernels:gemm:4")
    same(both(graph, NOMINAL), scale_kernels("gemm", 2.0)(graph, NOMINAL))


def test_dma_takes_the_collective_off_the_compute_units(graph: KernelGraph) -> None:
    collective = graph.tasks.kind == TaskKind.COLLECTIVE
    graph = graph.with_tasks(ranks=np.where(collective, 4, 0))
    moved = dma_collectives()(graph, NOMINAL)
    assert graph.tasks.demand[collective, RESOURCES.index("cu")] > 0
    assert not moved.tasks.occupies[moved.tasks.kind == TaskKind.COLLECTIVE].any()
    copies = moved.tasks.demand[:, RESOURCES.index("dma")] == 1
    assert copies.sum() == 3
    assert moved.notes[-1] == "dma_collectives: 1 of 1 collectives moved"


def test_dma_leaves_what_needs_arithmetic_and_says_so(graph: KernelGraph) -> None:
    reducing = graph.with_tasks(
        collective=np.where(graph.tasks.collective >= 0, COLLECTIVE_KINDS.index("all_reduce"), -1)
    )
    unmoved = dma_collectives()(reducing, NOMINAL)
    same(unmoved, reducing)
    assert "0 of 1 collectives moved; 1 need arithmetic" in unmoved.notes[-1]


def test_without_overlap_a_device_does_one_thing_at_a_time(graph: KernelGraph) -> None:
    timeline = replay(overlap("none")(graph, NOMINAL))
    rows = np.flatnonzero(graph.on_device())
    order = rows[np.argsort(timeline.start_ns[rows], kind="stable")]
    assert (timeline.start_ns[order][1:] >= timeline.end_ns[order][:-1] - 1e-6).all()


def test_ideal_overlap_is_no_slower_than_without_contention_and_that_than_measured(
    graph: KernelGraph,
) -> None:
    ideal, free, plain = (
        replay(g).makespan_ns
        for g in (overlap("ideal")(graph, NOMINAL), overlap("no_contention")(graph, NOMINAL), graph)
    )
    assert ideal <= free + 1e-6 <= plain + 2e-6


def test_another_device_by_hand() -> None:
    source = find_device("V100-SXM2-16GB")
    kinds = {
        "class_": [CLASSES.index("gemm"), CLASSES.index("elementwise")],
        "dtype": [1, 1],
        "workgroups": [10_000, 10_000],
    }
    one = make_graph([102_000, 102_000], **kinds)
    graph = KernelGraph(one.tasks, one.edges, one.names, one.lanes, one.devices, 0.0, hardware_named(source, "trace"))
    new = scale_device("A100-SXM4-40GB")(graph, NOMINAL).tasks.duration_ns
    # Floors of 4 and 2 us stay. Above them a product of unknown shape goes by the FP32 that each sustains (measured on
    # the PCIe cards: 95 % of V100's peak, 97 % of A100's, within what the power allows), streaming by the bandwidth
    # (91 % of 900 GB/s, 87 % of 1555 GB/s).
    fp32, bandwidth = 15.7 * 0.95 / (19.5 * 0.966), 900 * 0.909 / (1555 * 0.875)
    assert new[0] == pytest.approx(4_000 + 98_000 * fp32, rel=0.03)
    assert new[1] == pytest.approx(2_000 + 100_000 * bandwidth, rel=0.03)


def test_a_kernel_below_one_wave_goes_by_the_speed_of_one_unit() -> None:
    source, target = find_device("A100-SXM4-80GB"), find_device("MI300X")
    one = make_graph([102_000], class_=[CLASSES.index("gemm")], dtype=[4], workgroups=[100])
    graph = KernelGraph(one.tasks, one.edges, one.names, one.lanes, one.devices, 0.0, hardware_named(source, "trace"))
    new = scale_device("MI300X")(graph, NOMINAL).tasks.duration_ns[0]
    # The best products that were measured: 271.2 and 668.4 TFLOPS. Floors of 4 and 5 us are those of the vendors.
    per_unit = (271.2 * (source.value("fp16_tflops") / source.value("bf16_tflops")) / 108) / (668.4 / 304)
    assert target.value("fp16_tflops") == target.value("bf16_tflops")
    assert new == pytest.approx(5_000 + 98_000 * per_unit)


def test_a_faster_host_shortens_a_job_that_waits_for_it(graph: KernelGraph) -> None:
    assert replay(scale_host(0.5)(graph, NOMINAL)).makespan_ns < replay(graph).makespan_ns


def test_an_unknown_source_device_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match="--device"):
        scale_device("MI300X")(make_graph([1.0]), NOMINAL)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("dma_colectives", NotFoundError, "did you mean dma_collectives"),
        ("scale_device", InvalidInputError, r"write scale_device:DEVICE\[:HOST\], as in scale_device:"),
        ("scale_device:MI3000", NotFoundError, "MI300"),
        ("scale_kernels:gemm:fast", InvalidInputError, "factor 'fast' is no number"),
        ("scale_kernels:gemm:-1", InvalidInputError, "a factor of -1"),
        ("scale_links:0", InvalidInputError, "above zero"),
        ("scale_clock:-1", InvalidInputError, "above zero"),
        ("scale_compute_units:0", InvalidInputError, "above zero"),
        ("scale_memory_bandwidth:inf", InvalidInputError, "above zero"),
        ("change_dtype:fp32", InvalidInputError, "write OLD->NEW, as in fp32->bf16"),
        ("change_dtype:fp32->bf61", NotFoundError, "did you mean bf16"),
        ("overlap:idael", NotFoundError, "did you mean ideal"),
        ("overlap:ideal+", NotFoundError, "no what-if is called ''"),
    ],
)  # fmt: skip
def test_what_cannot_be_parsed_is_one_clear_line(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_what_if(text)


def test_every_what_if_has_an_example_that_parses() -> None:
    for name, recipe in what_ifs().items():
        assert parse_what_if(recipe.example).name.startswith(name)
        assert recipe.summary.endswith(".")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale_compute_units:1e6", "what-if scale_compute_units:1000000: compute_units of .* would be 1.08e.08 1, "),
        ("scale_clock:1e-6", "what-if scale_clock:1e-06: clock_mhz of .* is not within 1 to 100000"),
        ("scale_memory_bandwidth:1e6", "what-if scale_memory_bandwidth:1000000: memory_gbps"),
        ("+".join(["scale_kernels:all:1e6"] * 60), "what-if scale_kernels:all:1000000: task .* not finite"),
        ("+".join(["scale_host:1e6"] * 60), "what-if scale_host:1000000: (task|edge) .* finite"),
        ("overlap:ideal+scale_clock:1e6", "^what-if scale_clock:1000000: clock_mhz"),
        ("change_dtype:fp32->fp8", "^what-if change_dtype:fp32->fp8: A100.* does not compute in fp8"),
    ],
)
def test_an_error_while_a_what_if_is_applied_names_it(graph: KernelGraph, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_what_if(text)(graph, NOMINAL)


def test_the_task_that_is_not_finite_is_the_one_that_is_named(graph: KernelGraph) -> None:
    duration = graph.tasks.duration_ns.copy()
    duration[3] = np.inf
    with pytest.raises(InvalidInputError, match="task 3 has a duration"):
        graph.with_tasks(duration_ns=duration)


@pytest.mark.parametrize("end", [0, 1])
def test_a_device_at_the_end_of_every_range_can_be_projected_to(graph: KernelGraph, end: int) -> None:
    figures = {
        name: RatedFigure(FIGURE_RANGES[name][end], unit, "a test", "recollection")
        for name, unit in FIGURE_UNITS.items()
    }
    device = Device("End", "NVIDIA", "Ampere", (), figures)
    for name in ("compute_units", "fp32_tflops", "bf16_tflops", "memory_gbps"):
        odd = replace(device, figures={**figures, name: replace(figures[name], value=FIGURE_RANGES[name][1 - end])})
        assert np.isfinite(replay(scale_device(odd)(graph, NOMINAL)).makespan_ns)
