"""Interference between tasks: collectives that wait, rounds of workgroups, shared units, pressure."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import make_graph

from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from replay.costs.demand import with_isolated_durations
from replay.costs.interference import InterferenceFit, kernel_label, with_interference
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import UNIT_COLUMNS, EdgeKind, KernelGraph, Lane, SharingPolicy, TaskKind
from replay.what_ifs.overlap import overlap

#: Compute units of the device in these tests, and those that a collective holds.
UNITS, HELD = 304, 24
RCCL = HELD / UNITS


def beside_meeting(gemm_ns: float, peer_ns: float, **columns: list[float]) -> KernelGraph:
    """Return a kernel of 304 workgroups beside a collective of 24 that waits for a peer.

    The tasks are the arrival on device 0, a kernel on device 1 that the peer runs before it arrives, the peer's
    arrival, the meeting, the collective on both devices (100 ns each), and the kernel on device 0.
    """
    kinds = [TaskKind.MARK, TaskKind.KERNEL, TaskKind.MARK, TaskKind.MARK, TaskKind.COLLECTIVE, TaskKind.COLLECTIVE]
    edges = [(1, 2), (0, 3), (2, 3), (3, 4), (3, 5)]
    graph = make_graph(
        [0, peer_ns, 0, 0, 100, 100, gemm_ns],
        [(), (1.0,), (), (), (RCCL,), (RCCL,), (1.0,)],
        edges,
        kind=[*kinds, TaskKind.KERNEL],
        lane=[1, 2, 3, -1, 1, 3, 0],
        device=[0, 1, 1, -1, 0, 1, 0],
        **{"waves": [0, 0, 0, 0, RCCL, RCCL, 1], "stays": [False] * 4 + [True] * 2 + [False], **columns},
    )
    kind = np.where([False, True, True, True, True], int(EdgeKind.RENDEZVOUS), int(EdgeKind.STREAM))
    lanes = tuple(Lane(0, 0, stream) for stream in range(4))
    return replace(graph, edges=replace(graph.edges, kind=kind), lanes=lanes)


def last(value: float) -> list[float]:
    """Return a column with a value for the kernel on device 0."""
    return [0.0] * 6 + [value]


def test_304_workgroups_beside_24_that_wait_take_a_second_round() -> None:
    # 280 of 304 units are free, and the peer arrives only at 1000: 24 workgroups begin when the first 280 end.
    start, end = simulate(beside_meeting(400, 1000, in_rounds=last(1)))
    assert (start[6], end[6]) == (0.0, pytest.approx(800))
    np.testing.assert_allclose((start[4], end[4]), (1000, 1100))


def test_workgroups_out_of_step_slow_in_proportion_to_the_units() -> None:
    _, end = simulate(beside_meeting(500, 1000))
    assert end[6] == pytest.approx(500 * 304 / 280)


def test_the_second_round_begins_when_the_collective_leaves() -> None:
    # The meeting is at 100, and the transfer ends at 200.
    _, end = simulate(beside_meeting(500, 100, in_rounds=last(1)))
    assert (end[4], end[6]) == (pytest.approx(200), pytest.approx(700))


def test_a_kernel_that_came_first_is_not_displaced() -> None:
    release_ns = [50.0, *[0.0] * 6]
    start, end = simulate(beside_meeting(500, 100, in_rounds=last(1), release_ns=release_ns))
    assert end[6] == pytest.approx(500)
    # The collective gets no units before that, though its peer arrived at 100.
    assert start[4] == pytest.approx(500)


def test_a_kernel_that_fits_beside_the_collective_is_not_slowed() -> None:
    occupies = [0, 1, 0, 0, RCCL, RCCL, 280 / UNITS]
    graph = beside_meeting(500, 1000, in_rounds=last(1), occupies=occupies, waves=[0, 0, 0, 0, RCCL, RCCL, 280 / UNITS])
    demand = graph.tasks.demand.copy()
    demand[6, 0] = 280 / UNITS
    assert simulate(graph.with_tasks(demand=demand))[1][6] == pytest.approx(500)


@pytest.mark.parametrize(
    ("waves", "units", "rounds"), [(1.0, 0.5, 2), (1.0, 0.33, 4), (1.0, 1 / 3, 3), (3.0, 0.9, 4), (2.5, 0.5, 5)]
)
def test_workgroups_run_in_whole_rounds(waves: float, units: float, rounds: int) -> None:
    """On the share `units` of the device, `waves` of workgroups take ceil(waves / units) rounds."""
    alone_ns = 100.0 * np.ceil(waves)
    graph = make_graph([alone_ns], [(1.0,)], waves=[waves], in_rounds=[True], cu_mask=[1])
    graph = replace(graph, policy=SharingPolicy((units, 1 - units)))
    assert simulate(graph)[1][0] == pytest.approx(100 * rounds)


def test_workgroups_of_two_kernels_share_the_arithmetic_of_their_unit() -> None:
    # A unit holds two workgroups. Each of load 1 takes (1 + 1)^(2/3) alone, and (1 + 2^1.5)^(2/3) beside the other.
    halves = {name: [0.5, 0.5] for name in UNIT_COLUMNS}
    graph = make_graph([100.0, 100.0], [(0.5,)] * 2, occupies=[0.5] * 2, unit_compute=[1.0] * 2, **halves)
    np.testing.assert_allclose(simulate(graph)[1], 100 * ((1 + 2**1.5) / 2) ** (2 / 3))


def test_threads_that_spin_load_the_arithmetic_by_their_share() -> None:
    # Half of the threads of a unit spin: a load of 3 / 2 beside the own of 1.
    halves = {name: [0.5, 0.5] for name in UNIT_COLUMNS}
    columns = {"occupies": [0.5] * 2, "unit_compute": [1.0, 0.0], "spins": [0.0, 1.0]}
    graph = make_graph([100.0, 1000.0], [(0.5,)] * 2, **columns, **halves)
    _, end = simulate(replace(graph, policy=SharingPolicy(spin_weight=3.0)))
    np.testing.assert_allclose(end, [100 * ((1 + 2.5**1.5) / 2) ** (2 / 3), 1000])


def test_workgroups_share_the_bandwidth_of_their_unit() -> None:
    halves = {name: [0.5, 0.5] for name in UNIT_COLUMNS}
    for drawn, slowed in ((0.4, 1.0), (0.8, 1.6)):
        graph = make_graph([100.0] * 2, [(0.5,)] * 2, occupies=[0.5] * 2, unit_bandwidth=[drawn] * 2, **halves)
        np.testing.assert_allclose(simulate(graph)[1], 100 * slowed)


@pytest.mark.parametrize(
    ("policy", "units"),
    [(SharingPolicy(), 0.05), (SharingPolicy((0.5, 0.5)), 0.05), (SharingPolicy(in_order=False), 0.5)],
)
def test_a_collective_that_waits_leaves_units_to_the_kernel_that_its_peer_waits_for(policy, units: float) -> None:
    # The collective came first and would fill the device. It gets 0.95 of it, or half if all get equal shares.
    graph = make_graph(
        [0, 0, 100, 100, 10],
        [(), (), (1.0,), (1.0,), (1.0,)],
        [(0, 1), (4, 1), (1, 2), (1, 3)],
        kind=[TaskKind.MARK, TaskKind.MARK, TaskKind.COLLECTIVE, TaskKind.COLLECTIVE, TaskKind.KERNEL],
        lane=[1, -1, 1, 2, 0],
        device=[0, -1, 0, 1, 0],
        waves=[0, 0, 1, 1, 1],
        cu_mask=[(1 << len(policy.partitions)) - 1] * 5,
    )
    kind = np.array([EdgeKind.RENDEZVOUS, EdgeKind.STREAM, EdgeKind.RENDEZVOUS, EdgeKind.RENDEZVOUS])
    lanes = tuple(Lane(0, 0, stream) for stream in range(3))
    start, end = simulate(replace(graph, edges=replace(graph.edges, kind=kind), lanes=lanes, policy=policy))
    assert end[4] == pytest.approx(10 / units)
    assert start[2] == pytest.approx(end[4])


def test_pressure_adds_time_in_proportion_to_the_sensitivity() -> None:
    # A pressure of 0.5 beside a sensitivity of 2 doubles the time while both run: 100 ns, of which 50 are done.
    graph = make_graph([100, 200], [(0.1,), (0.5,)], pressure=[0.5, 0.0], sensitivity=[0.0, 2.0])
    np.testing.assert_allclose(simulate(graph)[1], [100, 250])


def test_pressures_of_two_add_up_and_a_task_feels_none_of_its_own() -> None:
    # The third task takes 1 + 1 * (0.5 + 0.25) for 100 ns, then 1 + 0.25 for 100, then the rest alone.
    done = 100 / 1.75 + 100 / 1.25
    columns = {"pressure": [0.5, 0.25, 3.0], "sensitivity": [0.0, 0.0, 1.0]}
    _, end = simulate(make_graph([100, 200, 500], [(0.1,)] * 3, **columns))
    np.testing.assert_allclose(end, [100, 200, 200 + 500 - done])


def test_no_sensitivity_and_no_pressure_change_nothing() -> None:
    demands = [(0.7, 0.5), (0.6, 0.9), (0.3, 0.2)]
    plain = simulate(make_graph([100, 200, 300], demands))
    for columns in ({"pressure": [1.0, 2.0, 3.0]}, {"sensitivity": [1.0, 2.0, 3.0]}):
        for times, expected in zip(simulate(make_graph([100, 200, 300], demands, **columns)), plain, strict=True):
            np.testing.assert_array_equal(times, expected)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 500), (0.5, 600), (1.0, 700)])
def test_a_collective_that_waits_puts_a_share_of_its_pressure_on_others(share: float, expected: float) -> None:
    # It waits all the time: 500 * (1 + 0.4 * share). The kernel needs only what the collective leaves.
    pressure = [0.0, 0.0, 0.0, 0.0, 0.4, 0.0, 0.0]
    graph = beside_meeting(500, 1000, pressure=pressure, sensitivity=last(1.0))
    demand = graph.tasks.demand.copy()
    demand[6, 0] = 0.5
    graph = graph.with_tasks(demand=demand, occupies=np.minimum(graph.tasks.occupies, 0.5))
    assert simulate(replace(graph, policy=SharingPolicy(waiting_pressure=share)))[1][6] == pytest.approx(expected)


@pytest.mark.parametrize("peer_ns", [100, 1000])
@pytest.mark.parametrize("waves", [0.0, 1.0, 2.9])
def test_isolated_durations_take_the_wait_and_the_rounds_out(peer_ns: float, waves: float) -> None:
    graph = beside_meeting(500, peer_ns, in_rounds=last(waves > 0), waves=[0, 0, 0, 0, RCCL, RCCL, waves])
    start, end = simulate(graph)
    assert end[6] > 500
    measured = graph.with_tasks(measured_start_ns=start, measured_end_ns=end, duration_ns=end - start)
    np.testing.assert_allclose(with_isolated_durations(measured).tasks.duration_ns, graph.tasks.duration_ns, atol=0.01)


def test_an_ideal_overlap_is_not_slowed_by_pressure() -> None:
    columns = {"pressure": [0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0], "sensitivity": last(1.0)}
    ideal = overlap("no_contention").transform(beside_meeting(500, 1000, **columns), load_parameters())
    assert simulate(ideal)[1][6] == pytest.approx(500)


@pytest.mark.parametrize(
    "column", ["pressure", "sensitivity", "spins", "unit_compute", "unit_bandwidth", "memory_part"]
)
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_columns_must_not_be_negative(column: str, value: float) -> None:
    graph = make_graph([1.0, 1.0], [(0.5,)] * 2, **{column: [0.5, value]})
    with pytest.raises(InvalidInputError, match=f"task 1: {column} .*must not be negative") as caught:
        simulate(graph)
    assert "\n" not in str(caught.value)


def kernels_and_collective() -> KernelGraph:
    """Return a kernel of 3 us and one of 30 us, half of whose time is bound by memory, and a collective."""
    kinds = [TaskKind.KERNEL] * 2 + [TaskKind.COLLECTIVE]
    graph = make_graph(
        [3000, 30_000, 1000],
        [(1.0,), (1.0,), (RCCL,)],
        kind=kinds,
        class_=[CLASSES.index("gemm")] * 2 + [CLASSES.index("collective")],
        workgroups=[304, 760, HELD],
        memory_part=[0.0, 0.5, 0.0],
    )
    return replace(graph, hardware=replace(graph.hardware, compute_units=UNITS))


def test_interference_without_a_fit_comes_from_the_parameters() -> None:
    parameters = load_parameters()
    tasks = with_interference(kernels_and_collective(), parameters).tasks
    latency = parameters["latency_sensitivity"]
    np.testing.assert_allclose(tasks.sensitivity, [latency, 0.5 + latency / 10, 0])
    # No mark shows when the collective waits, and its bytes are unknown: all of its time counts as waiting.
    assumed = parameters["pressure_collective"] * parameters["pressure_share_waiting"] * RCCL
    np.testing.assert_allclose(tasks.pressure, [0, 0, assumed])


def test_a_fit_is_used_for_the_kernels_that_it_names() -> None:
    label = kernel_label("kernel", 304)
    assert label == "kernel [304]"
    parameters = load_parameters().with_calibration(InterferenceFit(kernels={label: 2.0}, device="MI300X"))
    tasks = with_interference(kernels_and_collective(), parameters).tasks
    latency = parameters["latency_sensitivity"]
    np.testing.assert_allclose(tasks.sensitivity, [2 * latency, 0.5 + latency / 10, 0])
