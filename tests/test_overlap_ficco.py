"""FiCCO (arXiv 2512.10236): its schedules as patterns, the what-if, the chooser, and the paper's set-up."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_overlap_targets import GEMM, chain

from benchmarks.overlap.ficco_chooser import candidate_times_ns, draw_scenarios, grow_chooser, lines_of
from profilers.devices.catalogue import find_device
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import dataset_path
from replay.costs.collectives import Topology
from replay.costs.kernels import load_calibration
from replay.costs.products import Product, copy_columns, kernel_columns, product_ns, product_of_task, with_figure
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import Basis, KernelGraph, TaskKind, hardware_named
from replay.graph.operators import batched_matmul
from replay.studies.ficco import load_scenarios, reproduce, scenario_trace, sweep, times_ns, transfer_ratio
from replay.studies.workloads import step_ns
from replay.what_ifs import explain, parse_what_if
from replay.what_ifs.chooser import FEATURES, Chooser, Decision, features_of, load_chooser, score_choices
from replay.what_ifs.schedules import (
    CANDIDATES,
    LATE,
    SCHEDULES,
    STUDIED,
    CoupledProduct,
    Piece,
    SchedulePlan,
    decomposition_loss,
    distance_factor,
    pattern_of,
    piece_columns,
    piece_ns,
    ring_hops,
)
from seqpoint.validation.published import published_figures

PARAMETERS, SCENARIOS = load_parameters(), load_scenarios()
MI300X, G1 = find_device("MI300X"), SCENARIOS["g1"]
TEXT = dataset_path("workloads/ficco.toml").read_text()
#: DMA copies cost their bytes alone.
BARE = PARAMETERS.with_values([("dma_command_ns", 0.0), ("dma_latency_ns", 0.0)])
SENT = CoupledProduct(Product(16384, 8192, 2048, MI300X), "reduce_scatter", Topology(8, fabric="mesh"))
CUT = ("shards", *STUDIED)


def on(fabric: str, scenario: CoupledProduct = G1) -> CoupledProduct:
    return replace(scenario, topology=Topology(8, fabric=fabric))


def time_of(scenario: CoupledProduct, schedule: str, parameters: Any = PARAMETERS, **options: Any) -> float:
    return pattern_of(SchedulePlan(scenario, SCHEDULES[schedule]), parameters, **options).alone_ns()


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    return {carrier: sweep(SCENARIOS, PARAMETERS, carrier=carrier) for carrier in ("dma", "units")}


def test_what_a_device_computes_and_waits_for() -> None:
    assert len(SCENARIOS) == 16
    assert (G1.product.m, G1.product.n, G1.product.k) == (16384, 2048, 131072)
    assert G1.transfer.size_bytes == 2 * 16384 * 131072 and G1.peers == 7
    assert SENT.transfer.size_bytes == 2 * 16384 * 8192 and SENT.sends


@given(
    sizes=st.tuples(st.integers(64, 10**6), st.integers(8, 10**4), st.integers(8, 10**4)),
    ranks=st.integers(2, 8),
    collective=st.sampled_from(["all_gather", "all_to_all", "reduce_scatter"]),
    name=st.sampled_from(sorted(SCHEDULES)),
)
def test_pieces_make_up_the_product_of_any_size(
    sizes: tuple[int, int, int], ranks: int, collective: str, name: str
) -> None:
    coupled = CoupledProduct(Product(*sizes, MI300X), collective, Topology(ranks, fabric="mesh"))
    plan = SchedulePlan(coupled, SCHEDULES[name])
    assert sum(piece.product.m * piece.product.n * piece.product.k for piece in plan.pieces) == np.prod(sizes)
    assert {piece.step for piece in plan.pieces} - {-1} == set(range(plan.steps))
    rows = [piece.product.m for piece in plan.pieces if piece.step >= 0]
    assert max(rows) - min(rows) <= 1
    if name != "serial":
        assert plan.steps * plan.step_transfer.sent_bytes == pytest.approx(coupled.transfer.sent_bytes)


def test_how_many_pieces_there_are_and_which_add() -> None:
    counts = {name: len(SchedulePlan(G1, SCHEDULES[name]).pieces) for name in SCHEDULES}
    assert counts == {
        "serial": 1,
        "shards": 8,
        "uniform_fused_1d": 8,
        "hetero_fused_1d": 9,
        "hetero_unfused_1d": 57,
        "uniform_fused_2d": 8,
    }
    deep = SchedulePlan(G1, SCHEDULES["uniform_fused_2d"]).pieces
    assert [piece.sums for piece in deep] == [False] + [True] * 7
    assert [piece.product.k for piece in deep] == [16384] * 8
    wide = SchedulePlan(SENT, SCHEDULES["uniform_fused_2d"]).pieces
    assert [(piece.product.n, piece.sums) for piece in wide] == [(1024, False)] * 8
    assert [SchedulePlan(each, SCHEDULES["hetero_fused_1d"]).pieces[i].step for each, i in ((G1, 0), (SENT, -1))] == [
        -1,
        -1,
    ]


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("scenario", [G1, SENT], ids=["gather", "scatter"])
def test_all_that_is_not_local_crosses_the_links(name: str, scenario: CoupledProduct) -> None:
    for fabric in ("mesh", "switch", *([] if scenario.sends else ["ring"])):
        plan = SchedulePlan(on(fabric, scenario), SCHEDULES[name])
        assert plan.steps * plan.step_transfer.sent_bytes == pytest.approx(scenario.transfer.size_bytes * 7 / 8)
    tasks = pattern_of(SchedulePlan(scenario, SCHEDULES[name]), PARAMETERS).graph.tasks
    # A step says the bytes of its collective; a shard is half of what two ranks gather.
    moved = tasks.bytes[tasks.kind == TaskKind.COLLECTIVE].sum()
    assert moved == pytest.approx(scenario.transfer.size_bytes * (14 / 8 if name == "shards" else 1))


@pytest.mark.parametrize("scenario", [G1, SENT], ids=["gather", "scatter"])
def test_a_single_piece_is_the_product_and_its_collective(scenario: CoupledProduct) -> None:
    alone = float(kernel_columns(scenario.transfer, PARAMETERS)["duration_ns"])
    alone += product_ns(scenario.product, PARAMETERS)
    assert time_of(scenario, "serial") == pytest.approx(alone, rel=1e-12)
    assert time_of(scenario, "serial", members=8) == pytest.approx(alone, rel=1e-12)


def quiet(scenario: CoupledProduct, schedule: str, parameters: Any) -> float:
    """Time of a pattern whose transfers use nothing beside their links, which are their own."""
    graph = pattern_of(SchedulePlan(scenario, SCHEDULES[schedule]), parameters).graph
    demand, copies = graph.tasks.demand.copy(), graph.tasks.kind == TaskKind.COLLECTIVE
    demand[copies] = 0.0
    graph = graph.with_tasks(demand=demand, footprint=np.where(copies, 0.0, graph.tasks.footprint))
    return float(simulate(graph)[1].max())


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("schedule", ["uniform_fused_1d", "uniform_fused_2d"])
def test_without_contention_the_pattern_takes_the_closed_form(name: str, schedule: str) -> None:
    """T = c1 + sum max(g_i, c_(i+1)) + g_n (arXiv 2512.10236)."""
    plan = SchedulePlan(SCENARIOS[name], SCHEDULES[schedule])
    c = plan.transfer_ns(BARE) / plan.steps
    g = [piece_ns(piece, PARAMETERS) for piece in plan.pieces]
    expected = c + sum(max(each, c) for each in g[:-1]) + g[-1]
    # The first piece of a 2D schedule adds nothing and is shorter: a transfer may make up for what it waited.
    exact = schedule == "uniform_fused_1d" or c >= max(g) or c <= min(g)
    assert quiet(SCENARIOS[name], schedule, BARE) == pytest.approx(expected, rel=1e-9 if exact else 0.01)


def with_links(scenario: CoupledProduct, factor: float) -> CoupledProduct:
    device = scenario.product.device
    faster = with_figure(device, "link_gbps", device.value("link_gbps") * factor)
    return replace(scenario, product=replace(scenario.product, device=faster))


@pytest.mark.parametrize("name", ["shards", "uniform_fused_1d", "hetero_fused_1d", "uniform_fused_2d"])
def test_links_without_end_leave_the_pieces(name: str) -> None:
    free = BARE.with_values([("memory_efficiency_mixed", 1e9)])
    gather, scatter = (with_links(scenario, 1e3) for scenario in (G1, SENT))
    alone = decomposition_loss(SchedulePlan(gather, SCHEDULES[name]), free) * product_ns(gather.product, free)
    assert quiet(gather, name, free) == pytest.approx(alone, rel=2e-3)
    alone = decomposition_loss(SchedulePlan(scatter, SCHEDULES[name]), free) * product_ns(scatter.product, free)
    # Kernels still add what has come: 9 arrays of 2,048 x 8,192 halves at 5.3 TB/s.
    assert alone < quiet(scatter, name, free) < alone + 3e5


@pytest.mark.parametrize("scenario", [*(SCENARIOS[key] for key in ("g1", "g5", "g11", "g14")), SENT])
@pytest.mark.parametrize("name", STUDIED)
def test_faster_links_never_slow_a_schedule_down(name: str, scenario: CoupledProduct) -> None:
    calm = PARAMETERS.with_values([("memory_efficiency_mixed", 1e9)])
    times = [
        time_of(scenario, name, calm.with_values([("dma_bandwidth_ratio", ratio)])) for ratio in (0.5, 0.9, 1, 1.5, 4)
    ]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(times))


def test_free_commands_and_latencies_never_slow_a_schedule_down() -> None:
    for scenario in (*SCENARIOS.values(), SENT):
        for name in STUDIED:
            assert time_of(scenario, name, BARE) <= time_of(scenario, name) * 1.001


@pytest.mark.parametrize("scenario", [G1, SENT], ids=["gather", "scatter"])
@pytest.mark.parametrize("name", CUT)
def test_a_group_takes_as_long_as_the_rank_that_stands_for_it(name: str, scenario: CoupledProduct) -> None:
    assert time_of(scenario, name, members=8) == pytest.approx(time_of(scenario, name), rel=1e-12)


@pytest.mark.parametrize("scenario", [G1, SENT], ids=["gather", "scatter"])
@pytest.mark.parametrize("name", CUT)
def test_small_budgets_join_inner_steps_and_keep_the_bytes(name: str, scenario: CoupledProduct) -> None:
    plan = SchedulePlan(scenario, SCHEDULES[name])
    whole, few = pattern_of(plan, PARAMETERS), pattern_of(plan, PARAMETERS, budget=18)
    if "unfused" not in name:
        assert len(few.graph.tasks) <= 18 < len(whole.graph.tasks)
        assert few.alone_ns() == pytest.approx(whole.alone_ns(), rel=0.08)
    for kind, of_kernel in ((TaskKind.KERNEL, 1), (TaskKind.COLLECTIVE, 2)):
        tasks, all_tasks = few.graph.tasks, whole.graph.tasks
        rows, all_rows = (
            ((tasks.kind == kind) & (few.scale == of_kernel)),
            (all_tasks.kind == kind) & (whole.scale == of_kernel),
        )
        assert tasks.duration_ns[rows].sum() == pytest.approx(all_tasks.duration_ns[all_rows].sum())
        assert tasks.bytes[rows].sum() == all_tasks.bytes[all_rows].sum()
        assert tasks.duration_ns[rows][[0, -1]] == pytest.approx(all_tasks.duration_ns[all_rows][[0, -1]])


def test_a_result_of_fewer_columns_than_steps_is_scattered_on_one_rank_and_on_all() -> None:
    narrow = CoupledProduct(replace(G1.product, n=4), "reduce_scatter", G1.topology)
    times = {time_of(narrow, "uniform_fused_2d", members=members) for members in (1, 8)}
    assert max(times) == pytest.approx(min(times), rel=1e-12) and min(times) > 0


def test_shards_take_seven_times_as_long_on_a_mesh_and_as_long_on_a_switch() -> None:
    for scenario in SCENARIOS.values():
        assert transfer_ratio(scenario, PARAMETERS) == pytest.approx(7.0, rel=1e-9)
        assert transfer_ratio(on("switch", scenario), PARAMETERS) == pytest.approx(1.0, rel=1e-9)
    # Round a ring pieces pass other devices, shards are passed on.
    assert transfer_ratio(on("ring"), PARAMETERS) == pytest.approx(1 / ring_hops(8), rel=1e-9)
    assert ring_hops(8) == pytest.approx(16 / 7) and ring_hops(2) == 1.0


def test_a_shard_and_the_pieces_of_all_take_what_their_links_say() -> None:
    link, shard = 48e9, G1.transfer.size_bytes / 8
    to_one, to_all = (
        copy_columns(SchedulePlan(G1, SCHEDULES[name]).step_transfer, BARE) for name in ("shards", "uniform_fused_1d")
    )
    assert to_one["duration_ns"] == pytest.approx(shard / link * 1e9) and to_one["engine"] == [0]
    assert to_all["duration_ns"] == pytest.approx(shard / 8 / link * 1e9)
    assert to_all["engine"] == list(range(7))


def test_pieces_cost_more_than_the_whole_but_for_waves_that_fit_better() -> None:
    for scenario in SCENARIOS.values():
        for name in STUDIED:
            # g1 and g5: 7/8 of a piece's rows fill whole waves better than all of them.
            assert 0.98 < decomposition_loss(SchedulePlan(scenario, SCHEDULES[name]), PARAMETERS) < 1.65
    assert decomposition_loss(SchedulePlan(G1, SCHEDULES["serial"]), PARAMETERS) == 1.0


def test_a_piece_keeps_the_distances_of_the_whole() -> None:
    whole, fits = SCENARIOS["g2"].product, load_calibration()
    deep = replace(whole, k=whole.k // 8)
    apart = distance_factor(whole, fits) / distance_factor(deep, fits)
    assert apart > 1
    assert piece_ns(Piece(deep, whole), PARAMETERS) / product_ns(deep, PARAMETERS) == pytest.approx(apart)
    assert piece_ns(Piece(whole, whole), PARAMETERS) == pytest.approx(product_ns(whole, PARAMETERS))


def test_adding_costs_its_traffic_and_no_more() -> None:
    whole = SCENARIOS["g14"].product
    deep = replace(whole, k=whole.k // 8)
    first, later = (piece_columns(Piece(deep, whole, sums=sums), PARAMETERS) for sums in (False, True))
    delivered = whole.device.memory_bytes_per_s * PARAMETERS["memory_efficiency_mixed"]
    read = deep.operand_bytes[2] / whole.device.memory_bytes_per_s
    assert 0 < (later["duration_ns"] - first["duration_ns"]) / 1e9 < 1.4 * read
    moved = [each["hbm"] * each["duration_ns"] / 1e9 * delivered for each in (first, later)]
    assert max(first["hbm"], later["hbm"]) < 1
    assert moved[1] - moved[0] == pytest.approx(deep.operand_bytes[2])


def test_no_schedule_is_beyond_what_its_data_and_arithmetic_allow(outcomes: dict[str, dict[str, Any]]) -> None:
    for scenario, each in zip(SCENARIOS.values(), outcomes["dma"].values(), strict=True):
        for name in CUT:
            plan, outcome = SchedulePlan(scenario, SCHEDULES[name]), each[name]
            assert outcome.timeline.makespan_ns > plan.transfer_ns(PARAMETERS)
            if SCHEDULES[name].kernels == "fused":
                alone = outcome.product_ns * decomposition_loss(plan, PARAMETERS)
                assert outcome.timeline.makespan_ns >= alone * (1 - 1e-6)
            assert outcome.contention_loss >= 1 - 1e-9


def test_local_rows_first_hide_the_first_transfer() -> None:
    """On the largest product, what the uniform schedule adds is its first step, less what that slows local work."""
    scenario = SCENARIOS["g13"]
    plan = SchedulePlan(scenario, SCHEDULES["uniform_fused_1d"])
    step = plan.transfer_ns(PARAMETERS) / plan.steps
    assert 0.6 * step < time_of(scenario, "uniform_fused_1d") - time_of(scenario, "hetero_fused_1d") < step


def test_kernels_that_communicate_contend_more(outcomes: dict[str, dict[str, Any]]) -> None:
    for name in SCENARIOS:
        dma, units = (
            np.mean([outcomes[how][name][each].contention_loss for each in STUDIED]) for how in ("dma", "units")
        )
        assert dma < units


def test_several_schedules_win_and_none_is_slower_than_shards_by_more_than_a_hundredth(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    times = times_ns(outcomes["dma"], STUDIED)
    assert len(set(times.argmin(axis=1).tolist())) > 1
    assert (times.min(axis=1) <= 1.01 * times_ns(outcomes["dma"], ("shards",))[:, 0]).all()


def test_all_to_alls_move_as_much() -> None:
    for name in STUDIED:
        assert time_of(replace(G1, collective="all_to_all"), name) == time_of(G1, name)


def test_figures_are_those_that_are_published_of() -> None:
    figures = reproduce(PARAMETERS, SCENARIOS, load_chooser())
    assert list(figures) == [figure.name for figure in published_figures("ficco")]
    assert figures["transfer_ratio_mesh"] == pytest.approx(7.0, rel=1e-9)
    assert figures["transfer_ratio_switch"] == pytest.approx(1.0, rel=1e-9)
    assert figures["heuristic_right"] == 13 and figures["heuristic_loss"] <= 14.0
    assert figures["best_speedup"] == pytest.approx(1.6, rel=0.1)


def test_the_what_if_on_a_trace_of_a_scenario_is_its_pattern() -> None:
    trace = scenario_trace("g1", G1, PARAMETERS)
    times = step_ns(trace, [f"ficco:{name}" for name in CUT], PARAMETERS)
    for name in CUT:  # durations of a trace are whole nanoseconds, and the host calls first
        assert times[f"ficco:{name}"] - 1e4 < time_of(G1, name) < times[f"ficco:{name}"]


def job(
    collective: str = "all_gather",
    *,
    ns: tuple[float, float] | None = None,
    known: bool = True,
    ranks: int = 8,
    device: str = "MI300X",
) -> KernelGraph:
    """A collective of eight MI300X, and a product of 8,192 x 1,024 x 8,192 on its side, with the models' times."""
    sends = collective == "reduce_scatter"
    sizes = (8192, 8192, 1024) if sends else (8192, 1024, 8192)
    coupled = CoupledProduct(Product(*sizes, MI300X), collective, Topology(8, fabric="mesh"))
    times = ns or (
        float(kernel_columns(coupled.transfer, PARAMETERS)["duration_ns"]), product_ns(coupled.product, PARAMETERS)
    )  # fmt: skip
    order = slice(None, None, -1) if sends else slice(None)
    classes: list[int | str] = [collective, GEMM]
    graph = chain(classes[order], list(times)[order])
    is_product = graph.tasks.kind == TaskKind.KERNEL
    columns = {
        "bytes": np.where(is_product, 0, 2**27),
        "ranks": np.where(is_product, 0, ranks),
        "workgroups": np.where(is_product, 512, 32),
        "operator": np.where(is_product & known, 0, -1),
    }
    named = hardware_named(find_device(device), "user") if device else graph.hardware
    return replace(graph.with_tasks(**columns), operators=(batched_matmul(1, *sizes, 2),), hardware=named)


def end_of(graph: KernelGraph, text: str) -> float:
    return float(simulate(parse_what_if(text)(graph, PARAMETERS))[1].max())


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "reduce_scatter"])
@pytest.mark.parametrize("name", CUT)
def test_the_what_if_puts_the_pattern_in_the_place_of_product_and_collective(collective: str, name: str) -> None:
    graph = job(collective)
    sizes = (8192, 8192, 1024) if collective == "reduce_scatter" else (8192, 1024, 8192)
    coupled = CoupledProduct(Product(*sizes, MI300X), collective, Topology(8, fabric="mesh"))
    assert end_of(graph, f"ficco:{name}") == pytest.approx(time_of(coupled, name), rel=1e-9)
    units = pattern_of(SchedulePlan(coupled, SCHEDULES[name], "units"), PARAMETERS).alone_ns()
    assert end_of(graph, f"ficco:{name}:units") == pytest.approx(units, rel=1e-9)
    changed = parse_what_if(f"ficco:{name}")(graph, PARAMETERS)
    assert changed.notes[-1] == f"ficco: 1 collectives matched; 1 by {name}"
    assert end_of(changed, "ficco") == end_of(graph, f"ficco:{name}")  # what is in pieces stays


def test_times_are_relative_to_those_of_the_trace() -> None:
    modelled = job().tasks.duration_ns
    faster, slower = (job(ns=(modelled[0] / 2, modelled[1] * factor)) for factor in (0.5, 3.0))
    shares = [parse_what_if("ficco:uniform_fused_1d")(graph, PARAMETERS).tasks for graph in (job(), faster, slower)]
    for tasks, transfer, product in zip(shares[1:], (0.5, 0.5), (0.5, 3.0), strict=True):
        for kind, factor in ((TaskKind.COLLECTIVE, transfer), (TaskKind.KERNEL, product)):
            own, base = (each.duration_ns[each.kind == kind] for each in (tasks, shares[0]))
            assert own == pytest.approx(base * factor)


def test_time_beyond_the_model_is_a_wait_for_ranks_that_are_not_in_the_trace() -> None:
    transfer_ns, kernel_ns = job().tasks.duration_ns
    late = job(ns=(transfer_ns + 5e6, kernel_ns))
    assert end_of(late, "ficco:uniform_fused_1d") == pytest.approx(end_of(job(), "ficco:uniform_fused_1d") + 5e6)
    changed = parse_what_if("ficco:uniform_fused_1d")(late, PARAMETERS)
    waits = changed.tasks.duration_ns[changed.tasks.name == changed.names.index(LATE)]
    assert waits == pytest.approx([5e6])


def test_gathered_weights_are_the_operand_whose_rows_come() -> None:
    graph = job()
    weights = replace(graph, operators=(batched_matmul(1, 1024, 8192, 8192, 2),))  # 8,192 x 8,192 weights
    assert end_of(weights, "ficco:hetero_fused_1d") == pytest.approx(end_of(graph, "ficco:hetero_fused_1d"), rel=1e-9)


def test_sizes_that_are_not_known_come_from_grid_bytes_and_duration() -> None:
    graph = job(known=False)
    product, is_known = product_of_task(graph, 1, MI300X, operand_bytes=2.0**27)
    # 512 tiles of 128 x 128 make m n, 2^27 bytes m k; m n k at 60 % of 1,307 TFLOPS.
    flops = 0.6 * 1307.4e12 * graph.tasks.duration_ns[1] / 1e9
    assert not is_known
    assert product.m * product.n == pytest.approx(512 * 128 * 128, rel=0.15)
    assert product.m * product.k == pytest.approx(2**26, rel=0.15)
    assert product.flops == pytest.approx(flops, rel=0.2)
    changed = parse_what_if("ficco:hetero_fused_1d")(graph, PARAMETERS)
    assert "sizes of 1 products from grid, bytes and duration" in changed.notes[-1]
    assert (changed.tasks.basis[2:] == Basis.ASSUMED).all()
    assert (parse_what_if("ficco:hetero_fused_1d")(job(), PARAMETERS).tasks.basis[2:] == Basis.DERIVED).all()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: job(device=""), "the trace names no device of the catalogue"),
        (lambda: job(ranks=1), "their group is a single rank"),
        (lambda: job(ranks=16), "they go between nodes"),
        (lambda: replace(job(), operators=(batched_matmul(1, 60, 8, 2**20, 2),)), "fewer rows than there are pieces"),
        (
            lambda: replace(job(), operators=(batched_matmul(1, 8192, 1024, 1024, 2),)),
            "another amount than the product reads",
        ),
        (lambda: job("reduce_scatter").with_tasks(bytes=np.array([0, 2**29])), "another amount than the product reads"),
        (lambda: chain(["all_reduce", GEMM], [1.0, 1.0]), "they are all_reduce"),
    ],
)
def test_what_has_no_schedule_says_why(make: Callable[[], KernelGraph], reason: str) -> None:
    graph = make()  # not while tests are collected: each worker would compile the engine then
    changed = parse_what_if("ficco")(graph, PARAMETERS)
    assert reason in changed.notes[-1] and "nothing to apply it to" in changed.notes[-1]
    (effect,) = explain(parse_what_if("ficco"), graph, PARAMETERS)
    assert reason in effect.reason and (effect.advice or effect.ranks == 1)
    assert simulate(changed)[1].tolist() == simulate(graph)[1].tolist()


def test_a_kernel_between_two_collectives_goes_with_the_first() -> None:
    graph = chain(["all_gather", GEMM, "reduce_scatter"], [1e6, 1e6, 1e6])
    graph = replace(graph.with_tasks(ranks=np.array([8, 0, 8])), hardware=hardware_named(MI300X, "user"))
    note = parse_what_if("ficco:shards")(graph, PARAMETERS).notes[-1]
    assert note.startswith("ficco: 1 collectives matched") and "1 not: the kernel beside them is another's" in note


def test_older_plans_are_told_what_to_give() -> None:
    with pytest.raises(InvalidInputError, match="ficco:8: the number of pieces is that of the ranks; give a schedule"):
        parse_what_if("ficco:8")
    with pytest.raises(NotFoundError, match="ficco has no schedule 'hetero_fused_1'; did you mean hetero_fused_1d"):
        parse_what_if("ficco:hetero_fused_1")
    with pytest.raises(NotFoundError, match="carrier"):
        parse_what_if("ficco:auto:pigeon")


def test_auto_asks_the_chooser() -> None:
    graph = job()
    coupled = CoupledProduct(Product(8192, 1024, 8192, MI300X), "all_gather", Topology(8, fabric="mesh"))
    chosen = load_chooser().choose(coupled)
    assert chosen != "serial" and end_of(graph, "ficco") == end_of(graph, f"ficco:{chosen}")
    tiny = replace(graph, operators=(batched_matmul(1, 256, 64, 256, 2),)).with_tasks(bytes=np.array([2**17, 0]))
    assert end_of(tiny, "ficco") == simulate(tiny)[1].max()
    assert "1 not: the chooser expects no schedule to be faster" in parse_what_if("ficco")(tiny, PARAMETERS).notes[-1]
    assert "1 by hetero_fused_1d" in parse_what_if("ficco:hetero_fused_1d")(tiny, PARAMETERS).notes[-1]


def test_what_was_drawn_is_not_what_is_scored_on() -> None:
    drawn = draw_scenarios(G1, 200, seed=3, without=SCENARIOS.values())
    assert drawn == draw_scenarios(G1, 200, seed=3, without=SCENARIOS.values())
    assert drawn != draw_scenarios(G1, 200, seed=4, without=SCENARIOS.values())
    for product in (scenario.product for scenario in drawn):
        assert 2**12 <= product.m <= 2**21 and 2**12 <= 8 * product.n <= 2**17 and 2**11 <= product.k <= 2**19
        assert sum(product.operand_bytes) <= 96e9
        for known in (scenario.product for scenario in SCENARIOS.values()):
            assert max(abs(getattr(product, size) / getattr(known, size) - 1) for size in "mnk") > 0.1
    assert drawn[0] not in draw_scenarios(G1, 200, seed=3, without=[drawn[0]])
    with pytest.raises(InvalidInputError, match="0 scenarios"):
        draw_scenarios(G1, 0, seed=1)


def test_the_shipped_chooser_is_right_on_scenarios_that_it_never_saw() -> None:
    scenarios = tuple(SCENARIOS.values())
    score = score_choices(scenarios, candidate_times_ns(scenarios, PARAMETERS), load_chooser().choose)
    assert score.best >= 12 and score.right >= 13
    assert score.loss_when_wrong <= 0.14
    for like in (G1, replace(SENT, topology=Topology(8, fabric="mesh"))):
        drawn = draw_scenarios(like, 40, seed=99, without=scenarios)
        times = candidate_times_ns(drawn, PARAMETERS)
        chosen = score_choices(drawn, times, load_chooser().choose)
        always = [score_choices(drawn, times, lambda _, name=name: name) for name in CANDIDATES]  # type: ignore[misc]
        assert chosen.right / chosen.cases > 0.75
        assert chosen.mean_loss < min(each.mean_loss for each in always)


def test_a_chooser_learns_what_it_is_shown() -> None:
    drawn = draw_scenarios(G1, 60, seed=5)
    times = np.full((60, len(CANDIDATES)), 2.0)
    tall = np.array([scenario.product.m > scenario.product.k for scenario in drawn])
    times[tall, 1] = 1.0
    times[~tall, 4] = 1.0
    chooser = grow_chooser(drawn, times, depth=3, least=1)
    assert isinstance(chooser.tree, Decision) and chooser.tree.feature == "m_over_k"
    assert score_choices(drawn, times, chooser.choose).best == 60
    assert [chooser.choose(scenario) for scenario in drawn[:2]] == [
        CANDIDATES[1 if is_tall else 4] for is_tall in tall[:2]
    ]


def test_scores_count_close_choices_as_right() -> None:
    times = np.array([[2.0, 1.0, 1.009, 1.02, 3.0]] * 3)
    names = iter(("uniform_fused_1d", "hetero_fused_1d", "hetero_unfused_1d"))
    score = score_choices([G1] * 3, times, lambda _: next(names))
    assert (score.best, score.right, score.cases) == (1, 2, 3)
    assert score.loss_when_wrong == pytest.approx(0.02)
    assert score.mean_loss == pytest.approx((0.009 + 0.02) / 3)


def test_features_by_hand() -> None:
    features = features_of(G1)
    assert list(features) == list(FEATURES)
    m, n, k = 16384, 2048, 131072
    elements = m * k + k * n + m * n
    assert 2 ** features["mt"] == pytest.approx(elements)
    assert 2 ** features["otb"] == pytest.approx(2 * m * n * k / (2 * elements))
    assert 0 < features["local_waves"] <= 1


def test_a_chooser_is_what_its_file_says(tmp_path: Path) -> None:
    chooser = Chooser(Decision("log_m", 14.5, "serial", Decision("otb", 10.0, "uniform_fused_2d", "hetero_fused_1d")))
    path = tmp_path / "chooser.json"
    path.write_bytes(msgspec.json.encode(chooser))
    assert load_chooser(path) == chooser
    assert chooser.choose(G1) == "serial"
    assert lines_of(chooser.tree)[:2] == ["log_m <= 14.5:", "  serial"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no chooser (Input data was truncated)"),
        ("[]", "Expected `object`, got `array`"),
        (json.dumps({"tree": "nothing"}), "no chooser knows 'nothing'; give one of serial"),
        (json.dumps({"tree": {"feature": "otb"}}), "missing required field `threshold`"),
        (
            json.dumps({"tree": {"feature": "x", "threshold": 1, "below": "serial", "above": "serial"}}),
            "no chooser knows 'x'; give one of log_m",
        ),
        ('{"tree": {"feature": "otb", "threshold": NaN, "below": "serial", "above": "serial"}}', "no chooser ("),
        (
            json.dumps({"tree": {"feature": "otb", "threshold": 1, "below": "serial", "above": 3}}),
            "got `int` - at `$.tree.above`",
        ),
        ('{"tree": ' + '{"feature": "otb", "threshold": 1, "below": "serial", "above": ' * 10**5, "no chooser ("),
    ],
)
def test_a_file_that_is_no_chooser_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "chooser.json"
    path.write_text(content)
    with pytest.raises(BrokenFileError, match=re.escape(message)):
        load_chooser(path)
    with pytest.raises(NotFoundError):
        load_chooser(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("m = 16384\n", "m = 63\n"), "scenarios.g1: 63 rows: pieces for 8 devices need 64 or more"),
        (("m = 16384\n", ""), "scenarios.g1: lacks the key 'm'"),
        (("m = 16384\n", "m = true\n"), "scenarios.g1: m: Expected `int`, got `bool`"),
        (("m = 16384\n", "m = 0\n"), "each size must be 1 or more"),
        (('fabric = "mesh"', 'fabric = "pairs"'), "mesh, switch, ring"),
        (('device = "MI300X"', 'device = "MI9"'), "MI9"),
        (('collective = "all_gather"', 'collective = "all_reduce"'), "all_reduce"),
        (("[hardware]", "[hardware"), "no TOML"),
        ((TEXT[TEXT.index("[scenarios.g1]") :], ""), "no table"),
        (
            (TEXT[TEXT.index("[hardware]") : TEXT.index("[scenarios.g1]")], ""),
            "hardware: Expected `table`, got nothing",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace(*change, 1))
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        load_scenarios(path)
    path.write_text(TEXT)
    assert load_scenarios(path) == SCENARIOS


def test_what_cannot_be_coupled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        load_scenarios(tmp_path / "none.toml")
    with pytest.raises(NotFoundError, match="no carrier"):
        SchedulePlan(G1, SCHEDULES["shards"], "pigeon")
    with pytest.raises(InvalidInputError, match="on a ring"):
        replace(on("ring"), collective="all_to_all")
    with pytest.raises(InvalidInputError, match="devices of one node"):
        replace(G1, topology=Topology(16, 8))
