"""What links and libraries allow: predictions of groups that were never measured keep to it."""

import itertools

import numpy as np
import pytest

from profilers.devices.catalogue import find_device, load_devices
from replay.costs.collectives import (
    KINDS,
    NETWORKS,
    CollectiveCalibration,
    Topology,
    algorithms_of,
    fastest,
    links_of,
    load_collectives,
    phases_of,
    predict_collective,
    usual_topology,
)
from replay.costs.collectives.algorithms import GroupLinks, algorithm_seconds, least_seconds, least_volume
from replay.costs.collectives.fits import Curve

A100, H100, MI300X, V100 = (
    find_device(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X", "V100-SXM2-16GB")
)
NOTHING = CollectiveCalibration()
SMALL = np.array([256.0])


def test_a_tree_between_nodes_takes_the_steps_of_its_depth() -> None:
    between, inside = phases_of("all_reduce", "tree", Topology(1024, 8))
    assert (between.level, between.steps, between.volume) == ("network tree", 14, 2.0)  # 2 log2(128)
    assert (inside.level, inside.steps, inside.volume) == ("port", 14, 0.0)  # 2(g-1)
    links = GroupLinks("device", 240e9, 240e9, 40e9)
    found = algorithm_seconds((between, inside), "LL", links, np.array([1e6]))
    assert found[0] == pytest.approx(6.6e-6 + 14 * 5.0e-6 + 14 * 0.6e-6 + 2e6 / 20e9)
    assert [phase.level for phase in phases_of("all_reduce", "tree", Topology(4, 1))] == ["network tree"]


def test_small_all_reduces_between_many_nodes_take_a_tree() -> None:
    many = Topology(1024, 8)
    seconds, names = fastest("all_reduce", many, links_of(A100, many), np.array([256.0, 1e12]))
    assert names.tolist() == ["tree LL", "ring Simple"] and seconds[0] < 0.1e-3
    found = predict_collective("all_reduce", SMALL, many, A100, calibration=load_collectives())
    assert found.seconds[0] < 0.2e-3  # a ring takes 2046 steps, 5.5 ms
    two = Topology(16, 8)  # a tree of two is a chain
    assert fastest("all_reduce", two, links_of(A100, two), SMALL)[1].tolist() == ["ring LL"]


@pytest.mark.parametrize("size", [256.0, 1e6, 1e9])
def test_more_nodes_take_no_less_time(size: float) -> None:
    for kind in KINDS:
        times = [
            predict_collective(kind, [size], Topology(8 * n, 8), H100, calibration=load_collectives()).seconds[0]
            for n in (2, 4, 16, 128, 1024)
        ]
        assert times == sorted(times)


def test_intervals_widen_with_every_doubling_beyond_what_was_measured() -> None:
    """The most that was measured between nodes is 32 workers."""
    found = [
        predict_collective("all_reduce", SMALL, Topology(n, 8), A100, calibration=load_collectives())
        for n in (64, 128, 256, 2048)
    ]
    widths = np.log([one.high[0] / one.seconds[0] for one in found])
    assert widths / widths[0] == pytest.approx(np.sqrt(np.array([2, 3, 4, 7]) / 2))
    few = [predict_collective("all_reduce", [1e9], Topology(n), V100, calibration=load_collectives()) for n in (4, 8)]
    assert few[0].high[0] / few[0].seconds[0] == pytest.approx(few[1].high[0] / few[1].seconds[0])
    nothing = predict_collective("all_reduce", SMALL, Topology(1024, 8), A100, NOTHING)
    assert nothing.high[0] / nothing.seconds[0] == pytest.approx(3)


def test_a_message_between_two_takes_one_adapter() -> None:
    size = [2.0**26]
    pair = predict_collective("send_recv", size, Topology(2, 1), A100, calibration=load_collectives()).seconds[0]
    for topology in (Topology(16, 8), Topology(4, 2, 8)):
        assert predict_collective("send_recv", size, topology, A100, calibration=load_collectives()).seconds[
            0
        ] == pytest.approx(pair, rel=0.02)
    far = Topology(2, 1, 8)
    rate = 2.0**26 / predict_collective("send_recv", size, far, A100, NOTHING).seconds[0]
    assert rate == pytest.approx(24e9, rel=0.01)  # the catalogue's adapter of 25 GB/s, with the share of NCCL's table


def test_a_ring_over_nodes_crosses_the_network_once_a_node_and_pass() -> None:
    between, inside = phases_of("all_reduce", "ring", Topology(80, 8))
    assert (between.level, between.steps, between.volume) == ("network", 18, 158 / 80)
    assert (inside.level, inside.steps, inside.volume) == ("port", 140, 0.0)


def test_switches_that_reduce_halve_the_traffic_of_an_all_reduce() -> None:
    """NVLS: on eight H100 about 480 GB/s of bus bandwidth are published, 370 for the ring."""
    size = np.array([2.0**34])
    for device, name, bus in ((H100, "nvls Simple", 490e9), (A100, "ring Simple", 240e9)):
        seconds, names = fastest("all_reduce", Topology(8), links_of(device, Topology(8)), size)
        assert names.tolist() == [name] and 1.75 * size[0] / seconds[0] == pytest.approx(bus, rel=0.02)
    assert "nvls" not in algorithms_of("all_reduce", Topology(2))


@pytest.mark.parametrize(
    ("name", "fabric"), [("L4", "pcie"), ("A100-PCIE-40GB", "pairs"), ("H100-SXM5-80GB", "switch")]
)
def test_cards_without_a_switch_are_on_pcie(name: str, fabric: str) -> None:
    device = find_device(name)
    assert usual_topology(Topology(8), device).fabric == fabric
    found = predict_collective("all_reduce", [2.0**30], Topology(8), device, calibration=load_collectives())
    if fabric == "switch":
        assert 1.75 * 2**30 / found.seconds[0] > 300e9
    else:  # half of a link of 24 GB/s through the host bridge; a bridge of the cards spares it
        bus = {"pcie": 12e9, "pairs": 24e9}[fabric]
        assert 1.75 * 2**30 / found.seconds[0] == pytest.approx(bus, rel=0.15)
        assert found.high[0] / found.seconds[0] >= 1.4  # such boxes were measured twice


def test_adapters_that_are_not_given_are_those_of_the_catalogue_or_of_measured_nodes() -> None:
    size, known = [2.0**30], load_collectives()
    ten = predict_collective("all_reduce", size, Topology(80, 8), H100, calibration=known)
    assert 300e9 < 158 / 80 * size[0] / ten.seconds[0] < 400e9  # eight adapters of 400 Gbit/s
    forty = find_device("A100-SXM4-40GB")
    two = [
        predict_collective("all_reduce", size, Topology(512, 4, nics=2, nic_gbps=gbps), forty, calibration=known)
        for gbps in (0.0, 25.0)
    ]
    assert two[0].seconds == two[1].seconds and two[0].basis == "carried"


def test_a_degraded_pair_sets_the_pace() -> None:
    fast, slow = (
        predict_collective("all_to_all", [2.0**30], Topology(16, 8, nics=8, nic_gbps=gbps), V100, load_collectives())
        for gbps in (50.0, 5.0)
    )
    assert slow.seconds[0] / fast.seconds[0] == pytest.approx(10, rel=0.02)


def test_networks_differ_in_bandwidth_and_latency() -> None:
    groups = {name: Topology(64, 8, nics=8, nic_gbps=25.0, network=name) for name in ("", *NETWORKS)}
    times = {
        name: predict_collective("all_reduce", [2.0**16, 2.0**30], group, V100, load_collectives()).seconds
        for name, group in groups.items()
    }
    assert times[""].tolist() == times["infiniband"].tolist() == times["roce"].tolist()
    assert (times["infiniband"] < times["slingshot"]).all() and (times["slingshot"] < times["ethernet"]).all()


def test_adapters_that_the_user_says_count() -> None:
    half, full = (
        predict_collective(
            "all_reduce", [2.0**30], Topology(64, 8, nics=nics, nic_gbps=12.5), A100, calibration=load_collectives()
        ).seconds[0]
        for nics in (4, 8)
    )
    assert Topology(64, 8).nics == 4 and half / full == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(("name", "raw"), [("V100", 16e9), ("A100", 32e9), ("H100", 64e9)])
def test_no_interval_begins_below_what_pcie_carries(name: str, raw: float) -> None:
    topology, size = Topology(8, fabric="pairs"), 2.0**28
    found = predict_collective("all_reduce", [size], topology, find_device(name), calibration=load_collectives())
    assert 1.75 * size / found.low[0] <= raw * (1 + 1e-9)


def test_what_links_carry_at_least() -> None:
    assert least_volume("all_reduce", Topology(8), A100) == 1.75
    assert least_volume("all_reduce", Topology(8), H100) == 1.0  # its switch adds up
    assert least_volume("all_reduce", Topology(16, 8), A100) == 1.0  # and so may a network
    assert least_volume("all_to_all", Topology(8, fabric="mesh"), MI300X) == 7 / 8
    assert least_volume("send_recv", Topology(16, 8), A100) == 4  # over one of four adapters
    assert least_volume("all_gather", Topology(16, 8), A100) == 0.5
    half = Topology(4, node_devices=8, fabric="mesh")
    assert least_seconds("all_gather", SMALL, half, MI300X)[0] == pytest.approx(0.75 * 256 / (448e9 * 3 / 7))


TOPOLOGIES = (
    Topology(2),
    Topology(6),
    Topology(8),
    Topology(8, fabric="mesh"),
    Topology(8, fabric="pairs"),
    Topology(4, fabric="ring"),
    Topology(8, 4, 8),
    Topology(64, 8),
    Topology(2, 1),
)


def test_no_prediction_of_what_was_not_measured_falls_with_size() -> None:
    sizes = np.geomspace(1e3, 1e9, 400)
    carried = 0
    for kind, topology, device in itertools.product(KINDS, TOPOLOGIES, load_devices().values()):
        found = predict_collective(kind, sizes, topology, device, calibration=load_collectives())
        assert (found.low <= found.seconds).all() and (found.seconds <= found.high).all()
        assert (found.low >= np.minimum(least_seconds(kind, sizes, topology, device), found.seconds)).all()
        if found.relation not in ("fitted", "sibling"):
            carried += 1
            for each in (found.seconds, found.low, found.high):
                assert (np.diff(each) >= -1e-12 * each[1:]).all(), (kind, topology, device.name)
    assert carried > 1000


def test_a_rising_curve_is_the_least_of_all_larger_sizes() -> None:
    curve = Curve((0.0, 10.0, 20.0, 30.0), (1.0, 9.0, 4.0, 0.0), (1.0, 0.1, 0.5, 1.0))
    sizes = np.linspace(0.0, 40.0, 401)
    times = curve.seconds(sizes)
    least = np.minimum.accumulate(times[::-1])[::-1]
    assert curve.rising(sizes) == pytest.approx(least)
    assert (np.diff(times) < 0).any() and (np.diff(curve.rising(sizes)) >= 0).all()


@pytest.mark.parametrize(
    ("kind", "workers", "bytes_a_pair"),
    [("all_to_all", 8, 2**27), ("all_to_all", 4, 2**28), ("all_gather", 2, 2**29), ("send_recv", 8, 2**30)],
)
def test_a_pair_of_devices_on_a_mesh_has_one_link(kind: str, workers: int, bytes_a_pair: int) -> None:
    mesh = Topology(workers, node_devices=8, fabric="mesh")
    found = predict_collective(kind, [2.0**30], mesh, MI300X, calibration=load_collectives())
    assert found.low[0] >= bytes_a_pair / 64e9 * (1 - 1e-9)
    assert found.seconds[0] >= bytes_a_pair / 48e9 * 0.99  # a link of 64 GB/s carries 48 GB/s of payload
