"""Interference between tasks: collectives that wait, kernels of one round that lack units, pressure."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import make_graph

from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from replay.costs.demand import isolated_durations
from replay.costs.interference import InterferenceFit, kernel_label, with_interference
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import EdgeKind, KernelGraph, Lane, SharingPolicy, TaskKind
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
        waves=[0, 0, 0, 0, RCCL, RCCL, 1],
        **columns,
    )
    kind = np.where([False, True, True, True, True], int(EdgeKind.RENDEZVOUS), int(EdgeKind.STREAM))
    lanes = tuple(Lane(0, 0, stream) for stream in range(4))
    return replace(graph, edges=replace(graph.edges, kind=kind), lanes=lanes)


def last(value: float) -> list[float]:
    """Return a column with a value for the kernel on device 0."""
    return [0.0] * 6 + [value]


def test_304_workgroups_beside_24_that_wait_take_a_further_round() -> None:
    # 280 of 304 units are free: a second round of 0.6 for all 500 ns. The peer arrives only at 1000.
    start, end = simulate(beside_meeting(500, 1000, extra_round=last(0.6)))
    assert (start[6], end[6]) == (0.0, pytest.approx(800))
    np.testing.assert_allclose((start[4], end[4]), (1000, 1100))


def test_without_a_cost_of_rounds_the_rate_falls_with_the_units() -> None:
    _, end = simulate(beside_meeting(500, 1000))
    assert end[6] == pytest.approx(500 * 304 / 280)


def test_units_that_a_collective_leaves_end_the_further_round() -> None:
    # The meeting is at 100 and the transfer ends at 200: by then 200 / 1.6 = 125 of 500 are done, the rest is alone.
    _, end = simulate(beside_meeting(500, 100, extra_round=last(0.6)))
    assert end[4] == pytest.approx(200)
    assert end[6] == pytest.approx(575)


def test_a_kernel_that_came_first_is_not_displaced() -> None:
    release_ns = [50.0, *[0.0] * 6]
    start, end = simulate(beside_meeting(500, 100, extra_round=last(0.6), release_ns=release_ns))
    assert end[6] == pytest.approx(500)
    # The collective gets no units before that, though its peer arrived at 100.
    assert start[4] == pytest.approx(500)


def test_a_kernel_that_fits_beside_the_collective_is_not_slowed() -> None:
    graph = beside_meeting(500, 1000, extra_round=last(0.6), occupies=[0, 1, 0, 0, RCCL, RCCL, 280 / UNITS])
    demand = graph.tasks.demand.copy()
    demand[6, 0] = 280 / UNITS
    assert simulate(graph.with_tasks(demand=demand))[1][6] == pytest.approx(500)


def test_half_of_the_units_cost_another_round_and_a_third_two() -> None:
    for units, rounds in ((0.5, 2), (0.33, 4), (1 / 3, 3)):
        graph = make_graph([100.0], [(1.0,)], waves=[1.0], extra_round=[0.6], cu_mask=[1])
        # A cost of 0.6 a round, but never faster than the units allow.
        expected = 100 * max(1 + 0.6 * (rounds - 1), 1 / units)
        policy = SharingPolicy((units, 1 - units))
        assert simulate(replace(graph, policy=policy))[1][0] == pytest.approx(expected)


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
    for columns in ({"pressure": [1.0, 2.0, 3.0]}, {"sensitivity": [1.0, 2.0, 3.0]}, {"extra_round": [0.0] * 3}):
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


def test_isolated_durations_take_the_wait_and_the_further_round_out() -> None:
    graph = beside_meeting(500, 1000, extra_round=last(0.6))
    start, end = simulate(graph)
    measured = graph.with_tasks(measured_start_ns=start, measured_end_ns=end, duration_ns=end - start)
    np.testing.assert_allclose(isolated_durations(measured), graph.tasks.duration_ns, atol=0.01)


def test_an_ideal_overlap_is_not_slowed_by_pressure() -> None:
    columns = {"pressure": [0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0], "sensitivity": last(1.0)}
    ideal = overlap("no_contention").transform(beside_meeting(500, 1000, **columns), load_parameters())
    assert simulate(ideal)[1][6] == pytest.approx(500)


@pytest.mark.parametrize("column", ["extra_round", "pressure", "sensitivity"])
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_columns_must_not_be_negative(column: str, value: float) -> None:
    graph = make_graph([1.0, 1.0], [(0.5,)] * 2, **{column: [0.5, value]})
    with pytest.raises(InvalidInputError, match=f"task 1: {column} .*must not be negative") as caught:
        simulate(graph)
    assert "\n" not in str(caught.value)


def kernels_and_collective() -> KernelGraph:
    """Return a kernel of one round, one of several, one with four workgroups on a unit, and a collective."""
    kinds = [TaskKind.KERNEL] * 3 + [TaskKind.COLLECTIVE]
    return make_graph(
        [3000, 30_000, 3000, 1000],
        [(1.0,), (1.0,), (1.0,), (RCCL,)],
        kind=kinds,
        class_=[CLASSES.index("gemm")] * 3 + [CLASSES.index("collective")],
        waves=[1.0, 2.5, 1.0, RCCL],
        workgroups=[304, 760, 304, HELD],
        residency=[1, 1, 4, 0],
    )


def test_interference_without_a_fit_comes_from_the_parameters() -> None:
    parameters = load_parameters()
    tasks = with_interference(kernels_and_collective(), parameters).tasks
    latency = parameters["latency_sensitivity"]
    np.testing.assert_allclose(tasks.sensitivity, [1 + latency, 1 + latency / 10, 1 + latency, 0])
    rounds = [parameters["extra_round_cost"], parameters["lacking_units_cost"], 0, 0]
    np.testing.assert_allclose(tasks.extra_round, rounds)
    # No mark shows when the collective waits, and its bytes are unknown: all of its time counts as waiting.
    assumed = parameters["pressure_collective"] * parameters["pressure_share_waiting"] * RCCL
    np.testing.assert_allclose(tasks.pressure, [0, 0, 0, assumed])


def test_a_fit_is_used_for_the_kernels_and_collectives_that_it_names() -> None:
    label = kernel_label("kernel", 304)
    assert label == "kernel [304]"
    fit = InterferenceFit(
        pressures={kernel_label("kernel", HELD): 0.7}, classes={"gemm": 0.5}, kernels={label: 2.0}, device="MI300X"
    )
    parameters = load_parameters()
    parameters = replace(parameters, calibrations=(*parameters.calibrations, fit))
    tasks = with_interference(kernels_and_collective(), parameters).tasks
    latency = parameters["latency_sensitivity"]
    np.testing.assert_allclose(tasks.sensitivity, [2 * (0.5 + latency), 0.5 + latency / 10, 2 * (0.5 + latency), 0])
    np.testing.assert_allclose(tasks.extra_round[:2], [1.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(tasks.pressure, [0, 0, 0, 0.7 * parameters["pressure_share_waiting"]])
