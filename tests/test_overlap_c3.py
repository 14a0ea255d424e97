"""`replay.what_ifs.c3`, `replay.what_ifs.dma` and `replay.studies.c3`: C3 and ConCCL (arXiv 2412.14335)."""

import tomllib
from collections import Counter
from itertools import pairwise
from math import ceil, log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path
from replay.calibration.parameters import Parameters
from replay.costs.products import Transfer, kernel_columns, product_ns
from replay.costs.shipped import load_parameters
from replay.engine.timeline import Timeline, replay
from replay.graph.graph import COLLECTIVE_KINDS, RESOURCES, EdgeKind, KernelGraph, TaskKind
from replay.studies.c3 import (
    NAMES,
    WEIGHTS,
    C3ModelTable,
    Scenario,
    crossover_bytes,
    load_scenarios,
    loss,
    overlapped,
    percent_of_ideal,
    reproduce,
    share_not_copying,
    speedups,
    weight_bytes,
)
from replay.studies.workloads import layer_graph, layer_trace, step_ns
from replay.what_ifs import parse_what_if
from replay.what_ifs.c3 import PARTITIONS
from replay.workloads.program import Collective, KernelCall

SCENARIOS, PARAMETERS = load_scenarios(), load_parameters()
TEXT = dataset_path("workloads/c3.toml").read_text()
#: Nothing costs anything but the compute units.
FREE = PARAMETERS.with_values(
    [
        ("memory_efficiency_mixed", 1e9),
        ("dma_command_ns", 0.0),
        ("dma_latency_ns", 0.0),
        ("memory_bound_spared_gain", 0.0),
    ]
)
DMA = RESOURCES.index("dma")
#: From the begin of the step to the first kernel, and from one call to the next.
LAUNCH = 1500.0


def timeline_of(scenario: Scenario, policy: str, first: str = "gemm", parameters: Parameters = PARAMETERS) -> Timeline:
    """Return the timeline of a scenario under a policy."""
    graph = layer_graph(scenario.trace(parameters, first), parameters)
    return replay(parse_what_if(overlapped(policy, first))(graph, parameters))


def device_ns(timeline: Timeline) -> float:
    """Return the time from the first start to the last end on the device."""
    rows = timeline.graph.on_device()
    return float(timeline.end_ns[rows].max() - timeline.start_ns[rows].min())


def row_of(timeline: Timeline, kind: TaskKind) -> int:
    return int(np.flatnonzero(timeline.graph.tasks.kind == kind)[0])


def by_hand(scenario: Scenario, slow: float) -> float:
    """Return the time of a product and a transfer that slow each other to 1 / `slow` and begin together."""
    long, short = sorted(scenario.alone_ns(PARAMETERS), reverse=True)
    return short * slow + long - short


# The table.


def test_there_are_thirty_and_every_class_of_them() -> None:
    kinds = Counter((s.product.memory_bound, s.transfer.kind) for s in SCENARIOS.values())
    assert kinds == {(False, kind): 9 for kind in ("all_gather", "all_to_all")} | {
        (True, kind): 6 for kind in ("all_gather", "all_to_all")
    }
    # Longer than 1.15 times the other is long (arXiv 2412.14335).
    alone = [s.alone_ns(PARAMETERS) for s in SCENARIOS.values()]
    classes = Counter((product > 1.15 * transfer) - (transfer > 1.15 * product) for product, transfer in alone)
    assert classes == {1: 10, 0: 8, -1: 12}


def test_sizes_are_those_that_the_rule_of_the_file_gives() -> None:
    content = tomllib.loads(TEXT)
    sizes = {(m, w): weight_bytes(C3ModelTable(**row), w) for m, row in content["models"].items() for w in WEIGHTS}
    for name, row in content["scenarios"].items():
        scenario = SCENARIOS[name]
        product, model = content["products"][row["product"]], content["models"]
        shape = model[product["model"]]
        assert scenario.product.n == shape["feedforward"] * {2: 1, 3: 2}[shape["matrices"]]
        assert scenario.product.m == product["tokens"] and scenario.product.k == shape["hidden"]
        product_alone = product_ns(scenario.product, PARAMETERS)

        def off(size: int, scenario: Scenario = scenario, ratio: float = product_alone * row["ratio"]) -> float:
            gather = Transfer("all_gather", size, scenario.transfer.topology, scenario.product.device)
            return abs(log(kernel_columns(gather, PARAMETERS)["duration_ns"] / ratio))

        nearest = min(off(size) for size in sizes.values())
        assert off(sizes[row["model"], row["weights"]]) == pytest.approx(nearest, abs=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('product = "cb1"', 'product = "cb9"', r"scenarios\.cb1_all_gather_half: no products\.cb9; there are cb1"),
        ('weights = "layer"', 'weights = "head"', "no weights are called 'head'; there are projection"),
        ('collective = "all_to_all"', 'collective = "broadcast"', "no transfer is called 'broadcast'"),
        ("tokens = 4096", "tokens = 4096.5", r"products\.cb1: tokens: Expected `int`, got `float`; the keys are"),
        ("tokens = 4096", "tokens = 0", r"products\.cb1: tokens"),
        ("hidden = 4096", "", r"models\.llama2_7b: lacks the key 'hidden'"),
        ('device = "MI300X"', 'device = "MI9"', "hardware: "),
        ("[hardware]", "[hardware", "no TOML"),
        ("[products.", "[things.", r"no table \[products\.NAME\]"),
    ],
)
def test_a_file_that_is_none_of_scenarios(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    file = tmp_path / "c3.toml"
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(InvalidInputError, match=message):
        load_scenarios(file)


def test_another_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TEXT.replace("tokens = 4096", "tokens = 1024"))
    assert load_scenarios(file)["cb1_all_gather_half"].product.m == 1024
    with pytest.raises(NotFoundError, match="no such file"):
        load_scenarios(tmp_path / "none.toml")


# Policies on the scenarios.


def test_without_a_policy_product_and_collective_run_one_after_the_other() -> None:
    for scenario in SCENARIOS.values():
        for first in ("gemm", "collectives"):
            times = step_ns(scenario.trace(PARAMETERS, first), [], PARAMETERS)
            assert times["nothing"] == LAUNCH + sum(scenario.alone_ns(PARAMETERS))


def test_a_product_called_first_starves_a_collective_until_its_last_wave() -> None:
    for scenario in SCENARIOS.values():
        timeline = timeline_of(scenario, "base")
        start = timeline.start_ns[row_of(timeline, TaskKind.COLLECTIVE)]
        waves = scenario.product.workgroups / scenario.product.device.compute_units
        assert start - LAUNCH == pytest.approx(scenario.alone_ns(PARAMETERS)[0] * (1 - 1 / ceil(waves)), abs=2 * LAUNCH)


@pytest.mark.parametrize("first", ["gemm", "collectives"])
def test_a_collective_dispatched_first_starts_with_its_call(first: str) -> None:
    for scenario in SCENARIOS.values():
        timeline = timeline_of(scenario, "sp", first)
        start = timeline.start_ns[row_of(timeline, TaskKind.COLLECTIVE)]
        assert start == (LAUNCH if first == "collectives" else 2 * LAUNCH)


def test_engines_that_cost_nothing_reach_the_ideal() -> None:
    for scenario in SCENARIOS.values():
        longest = max(scenario.alone_ns(FREE))
        # Copies pay no latency of a kernel's start, which takes 12 us.
        assert longest - 12e3 <= device_ns(timeline_of(scenario, "dma", parameters=FREE)) <= longest + LAUNCH


@pytest.mark.parametrize("name", [name for name, s in SCENARIOS.items() if not s.product.memory_bound])
def test_engines_slow_a_compute_bound_product_by_what_they_send_on_the_way_to_memory(name: str) -> None:
    scenario = SCENARIOS[name]
    parameters = PARAMETERS.with_values([("dma_command_ns", 0.0), ("dma_latency_ns", 11.8e3)])  # as the kernel's
    transfer = scenario.transfer
    rate = transfer.memory_bytes / (scenario.alone_ns(PARAMETERS)[1] / 1e9) / transfer.device.memory_bytes_per_s
    expected = by_hand(scenario, 1 + rate / parameters["memory_efficiency_mixed"])
    assert device_ns(timeline_of(scenario, "dma", parameters=parameters)) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("name", [name for name, s in SCENARIOS.items() if not s.product.memory_bound])
def test_a_kernel_moves_each_byte_twice_and_takes_whole_waves_of_the_product(name: str) -> None:
    scenario, transfer = SCENARIOS[name], SCENARIOS[name].transfer
    timeline = timeline_of(scenario, "sp", "collectives", PARAMETERS.with_values([("collective_kernel_passes", 1.0)]))
    once = timeline.graph.tasks.demand[row_of(timeline, TaskKind.COLLECTIVE)]
    rate = transfer.memory_bytes / (scenario.alone_ns(PARAMETERS)[1] / 1e9) / transfer.device.memory_bytes_per_s
    assert once[RESOURCES.index("hbm")] == pytest.approx(rate / PARAMETERS["memory_efficiency_mixed"])
    twice = timeline_of(scenario, "sp", "collectives")
    assert twice.graph.tasks.demand[row_of(twice, TaskKind.COLLECTIVE), RESOURCES.index("l2")] == pytest.approx(
        2 * rate / PARAMETERS["memory_efficiency_mixed"]
    )
    assert device_ns(twice) > device_ns(timeline)


def test_units_kept_from_a_compute_bound_product_cost_whole_waves() -> None:
    gathers = {s.product: s for s in SCENARIOS.values() if s.transfer.kind == "all_gather"}
    for product, scenario in gathers.items():
        for fewer in (32, 64, 128):
            waves = ceil(product.workgroups / 304)
            expected = ceil(product.workgroups / (304 - fewer)) / waves - 1
            if not product.memory_bound:
                # The engine shares the last wave by itself, so that it is within one of them.
                assert abs(loss(scenario, fewer, PARAMETERS) - expected) < 1 / waves


def test_the_partition_is_what_the_rule_of_the_run_time_expects() -> None:
    """Without contention the step takes as long as the rule says, for the best of the partitions."""
    for scenario in SCENARIOS.values():
        enough = 32 if scenario.transfer.kind == "all_gather" else 64
        product, transfer = scenario.alone_ns(PARAMETERS)
        tasks = layer_graph(scenario.trace(PARAMETERS), PARAMETERS).tasks
        # A kernel that draws most of the memory's bandwidth needs fewer units than it occupies.
        waves, needs_fewer = scenario.product.workgroups / 304, tasks.demand[tasks.operator >= 0, 0][0] < 0.5
        slow = {k: 1.0 if needs_fewer else ceil(waves * 304 / (304 - k)) / ceil(waves) for k in PARTITIONS}
        expected = min(max(product * slow[k], transfer * max(enough / k, 1)) for k in PARTITIONS)
        found = device_ns(timeline_of(scenario, "rp", parameters=FREE))
        assert found == pytest.approx(expected, rel=1 / ceil(waves), abs=2 * LAUNCH)


def test_a_partition_that_delays_the_step_is_not_taken_and_the_note_says_by_how_much() -> None:
    scenario = SCENARIOS["cb3_all_to_all_half"]
    timeline = timeline_of(scenario, "sp_rp")
    assert any("no partition is taken; with 32 of 304" in note for note in timeline.graph.notes)
    assert device_ns(timeline) == device_ns(timeline_of(scenario, "sp"))


def test_products_bound_by_memory_spare_units_and_are_faster_for_it() -> None:
    scenario = SCENARIOS["mb1_all_gather_half"]
    plain, spared = (timeline_of(scenario, policy) for policy in ("dma", "dma_rp"))
    row = row_of(plain, TaskKind.KERNEL)
    gain = 1 - PARAMETERS["memory_bound_spared_gain"]
    assert spared.graph.tasks.duration_ns[row] == pytest.approx(gain * plain.graph.tasks.duration_ns[row])
    assert spared.graph.tasks.occupies[row] == pytest.approx(296 / 304)
    compute = SCENARIOS["cb1_all_gather_half"]
    assert device_ns(timeline_of(compute, "dma_rp")) == device_ns(timeline_of(compute, "dma"))


@pytest.mark.parametrize("policy", [name for name in NAMES if "rp" not in name])
def test_memory_that_delivers_more_never_slows(policy: str) -> None:
    for scenario in list(SCENARIOS.values())[::3]:
        times = [
            device_ns(
                timeline_of(scenario, policy, parameters=PARAMETERS.with_values([("memory_efficiency_mixed", share)]))
            )
            for share in (0.4, 0.56, 0.7, 0.9, 1.0)
        ]
        assert all(b <= a * (1 + 1e-9) for a, b in pairwise(times))


def test_no_policy_gains_more_than_overlap_can() -> None:
    for scenario in SCENARIOS.values():
        for name, speedup in speedups(scenario, PARAMETERS).items():
            # Spared units make a memory-bound product faster than alone, which the ideal does not know.
            spared = "rp" in name and scenario.product.memory_bound
            assert 0 < percent_of_ideal(scenario, speedup, PARAMETERS) <= (125 if spared else 100), (scenario, name)


def test_the_chance_of_the_order_weighs_its_times() -> None:
    scenario = SCENARIOS["cb2_all_gather_same"]
    times = []
    for chance in (0.0, 0.25, 1.0):
        parameters = PARAMETERS.with_values([("collective_first_chance", chance)])
        times.append(1 / speedups(scenario, parameters)["c3_base"])
    assert times[1] == pytest.approx(0.75 * times[0] + 0.25 * times[2])
    assert times[2] < times[0]


@pytest.mark.parametrize("name", list(SCENARIOS)[::3])
def test_the_study_says_what_the_projection_of_its_trace_says(name: str) -> None:
    scenario = SCENARIOS[name]
    texts = {policy: overlapped(policy) for policy in NAMES if policy != "base"}
    projected = sp.project(scenario.trace(PARAMETERS), list(texts.values()), draws=8)
    by_text = {row.label: row.speedup for row in projected.rows}
    ours = speedups(scenario, PARAMETERS)
    for policy, text in texts.items():
        assert by_text[text] == pytest.approx(ours[NAMES[policy]], rel=1e-9)


def test_every_published_figure_has_ours_and_those_that_gate_are_met() -> None:
    published = tomllib.loads(dataset_path("published/c3.toml").read_text())["figures"]
    ours = reproduce(PARAMETERS, SCENARIOS)
    assert ours.keys() == published.keys()
    missed = set()
    for name, row in published.items():
        room = row["limit"] * (abs(row["value"]) if row["limit_is"] == "relative" else 1.0)
        if abs(ours[name] - row["value"]) > room:
            missed.add(name)
    assert missed == {"dma_overhead_64kb", "c3_rp", "c3_sp_rp"}  # docs/systems/c3.md says why


# DMA engines.


def test_small_transfers_are_for_compute_units_and_large_ones_for_engines() -> None:
    model = next(iter(SCENARIOS.values()))
    crossover = crossover_bytes(model, PARAMETERS)
    assert 2**23 < crossover < 2**28
    dear = PARAMETERS.with_values([("dma_command_ns", 2 * PARAMETERS["dma_command_ns"])])
    assert crossover_bytes(model, dear) > crossover


def test_the_share_of_a_copy_that_is_not_copying() -> None:
    # 5.5 us of command, 2.25 us of latency, 48 GB/s.
    scenario = next(iter(SCENARIOS.values()))
    for size in (2**10, 2**16, 2**20, 2**24):
        found = share_not_copying(scenario, size, PARAMETERS)
        assert found == pytest.approx(5500 / (5500 + 2250 + size / 48), rel=1e-4)


def call_of(size_bytes: float, parameters: Parameters = PARAMETERS) -> KernelCall:
    """Return an all-gather on eight MI300X."""
    model = SCENARIOS["cb1_all_gather_half"]
    transfer = Transfer("all_gather", size_bytes, model.transfer.topology, model.product.device)
    ns = round(kernel_columns(transfer, parameters)["duration_ns"])
    exchange = Collective("all_gather", round(size_bytes / 2), "all", 8)
    return KernelCall("ncclDevKernel_AllGather", "all_gather", ns, 1500, workgroups=32, exchange=exchange)


def gathered(size_bytes: float) -> KernelGraph:
    """Return the graph of an all-gather alone, on a mesh of MI300X."""
    device = SCENARIOS["cb1_all_gather_half"].product.device
    return layer_graph(layer_trace("alone", device, [call_of(size_bytes)], world_size=8), PARAMETERS)


@settings(max_examples=20, deadline=None)
@given(st.floats(2**16, 2**32))
def test_copies_follow_their_commands_and_keep_the_bytes(size: float) -> None:
    graph = gathered(size)
    moved = parse_what_if("dma_collectives")(graph, PARAMETERS)
    start, end = replay(moved).start_ns, replay(moved).end_ns
    copies = np.flatnonzero(moved.tasks.demand[:, DMA] > 0)
    assert sorted(moved.tasks.engine[copies]) == list(range(7))
    assert np.diff(start[copies]) == pytest.approx(PARAMETERS["dma_command_ns"])
    row = np.flatnonzero(graph.tasks.kind == TaskKind.COLLECTIVE)
    assert moved.tasks.bytes.sum() == graph.tasks.bytes.sum()
    # What is sent is read and what comes is written: 2 x 7/8 of the buffer, by seven copies.
    peak = 5.3e3 * PARAMETERS["memory_efficiency_mixed"]
    moved_bytes = moved.tasks.demand[copies, RESOURCES.index("hbm")] * moved.tasks.duration_ns[copies] * peak
    assert moved_bytes.sum() == pytest.approx(2 * size * 7 / 8, rel=1e-3)
    # Seven commands, and one copy over a link of 48 GB/s.
    expected = 7 * PARAMETERS["dma_command_ns"] + PARAMETERS["dma_latency_ns"] + size / 8 / 48
    assert end[copies].max() - start[row[0]] == pytest.approx(expected, rel=1e-3, abs=2.0)


def test_two_collectives_on_engines_share_the_links() -> None:
    device, call = SCENARIOS["cb1_all_gather_half"].product.device, call_of(2**30)
    trace = layer_trace("two", device, [call, call], world_size=8)
    texts = ["dma_collectives", "change_stream:collectives:new+dma_collectives"]
    times = step_ns(trace, texts, FREE)
    # A stream has its order, so both take twice as long as each.
    assert times[texts[0]] == pytest.approx(times[texts[1]])
    assert times[texts[0]] == pytest.approx(times["nothing"], rel=0.02)


def test_what_waited_for_a_collective_waits_for_its_last_copy() -> None:
    scenario = SCENARIOS["cb1_all_gather_half"]
    graph = layer_graph(scenario.trace(PARAMETERS, "collectives"), PARAMETERS)
    moved = parse_what_if("dma_collectives")(graph, PARAMETERS)
    timeline = replay(moved)
    copies = moved.tasks.demand[:, DMA] > 0
    assert timeline.start_ns[row_of(timeline, TaskKind.KERNEL)] == timeline.end_ns[copies].max()
    assert {graph.names[name] for name in graph.tasks.name[graph.on_device()]} == {
        moved.names[name] for name in moved.tasks.name[moved.on_device()]
    }


def test_engines_taken_twice_are_taken_once_and_links_apply_to_copies() -> None:
    graph = gathered(2**30)
    once, twice = (
        parse_what_if(text)(graph, PARAMETERS) for text in ("dma_collectives", "+".join(["dma_collectives"] * 2))
    )
    assert len(once.tasks) == len(twice.tasks) and replay(once).makespan_ns == replay(twice).makespan_ns
    # The model of the kernel's collective leaves a part of its time to latency, which links do not change.
    for text, off in (("dma_collectives+scale_links:2", 1e-4), ("scale_links:2+dma_collectives", 0.05)):
        faster = replay(parse_what_if(text)(graph, PARAMETERS)).makespan_ns
        fixed = LAUNCH + 7 * PARAMETERS["dma_command_ns"] + PARAMETERS["dma_latency_ns"]
        assert faster - fixed == pytest.approx(2**30 / 8 / 48 / 2, rel=off)


def test_another_device_keeps_the_copies_on_their_engines() -> None:
    moved = parse_what_if("dma_collectives+scale_device:MI355X")(gathered(2**30), PARAMETERS)
    copies = moved.tasks.demand[:, DMA] > 0
    assert copies.sum() == 7 and (moved.tasks.demand[copies, RESOURCES.index("link")] < 0.2).all()
    assert not moved.tasks.occupies[copies].any()


def test_large_graphs_have_fewer_copies_of_several_peers_each(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = gathered(2**30)
    whole = replay(parse_what_if("dma_collectives")(graph, PARAMETERS))
    monkeypatch.setattr("replay.what_ifs.dma.task_budget", lambda _: 6)
    few = parse_what_if("dma_collectives")(graph, PARAMETERS)
    copies = few.tasks.demand[:, DMA] > 0
    assert copies.sum() == 3 and few.tasks.bytes.sum() == graph.tasks.bytes.sum()
    assert replay(few).makespan_ns == pytest.approx(whole.makespan_ns, rel=1e-6)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"collective": COLLECTIVE_KINDS.index("all_reduce")}, "need arithmetic"),
        ({"bytes": 0}, "are of unknown bytes"),
        ({"ranks": 16}, "span several nodes"),
    ],
)
def test_what_engines_cannot_run_stays_and_the_note_says_why(columns: dict[str, int], reason: str) -> None:
    graph = gathered(2**30)
    rows = graph.tasks.kind == TaskKind.COLLECTIVE
    graph = graph.with_tasks(
        **{name: np.where(rows, value, getattr(graph.tasks, name)) for name, value in columns.items()}
    )
    kept = parse_what_if("dma_collectives")(graph, PARAMETERS)
    assert len(kept.tasks) == len(graph.tasks)
    assert kept.notes[-1].startswith(f"dma_collectives: 0 of 1 collectives moved; 1 {reason}")


def test_the_wait_for_other_ranks_stays() -> None:
    graph = gathered(2**28)
    rows = graph.tasks.kind == TaskKind.COLLECTIVE
    late = graph.with_tasks(duration_ns=np.where(rows, graph.tasks.duration_ns + 5e6, graph.tasks.duration_ns))
    times = [replay(parse_what_if("dma_collectives")(each, PARAMETERS)).makespan_ns for each in (graph, late)]
    assert 4.7e6 < times[1] - times[0] <= 5e6


# One device runs one task at a time.


def test_without_overlap_streams_keep_their_order_and_no_task_reads_another_stream() -> None:
    graph = timeline_of(SCENARIOS["cb1_all_gather_same"], "sp").graph
    serial = parse_what_if("overlap:none")(graph, PARAMETERS)
    added = serial.edges.select(serial.edges.kind == EdgeKind.SERIAL)
    assert len(added) and (serial.tasks.lane[added.source] != serial.tasks.lane[added.target]).all()
    assert serial.names == graph.names and serial.lanes == graph.lanes
