"""Algorithms of collectives, curves fitted to their times, and what carries over to other groups of workers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.costs.collectives import (
    FABRICS,
    KINDS,
    CollectiveCalibration,
    Topology,
    algorithms_of,
    calibrate_collectives,
    fastest,
    links_of,
    load_collectives,
    load_systems,
    phases_of,
    predict_collective,
    read_collective_calibration,
    read_collectives,
    scored_rows,
    write_collective_calibration,
)
from replay.costs.collectives.algorithms import (
    GroupLinks,
    algorithm_seconds,
    busiest_volume,
    link_bytes_per_s,
    ring_steps,
)
from replay.costs.collectives.fits import Curve, fit_curve, point_curve
from replay.costs.collectives.predictor import nic_rate
from seqpoint.cli import cli
from seqpoint.validation.collectives import collective_rows, score_collectives

A100, H100, MI300X = (find_device(name) for name in ("A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X"))
NOTHING = CollectiveCalibration()


@pytest.mark.parametrize(
    ("kind", "algorithm", "topology", "steps", "volume"),
    [
        ("all_reduce", "ring", Topology(8), 14, 1.75),  # 2(n-1), 2(n-1)/n
        ("all_gather", "ring", Topology(8), 7, 0.875),  # n-1, (n-1)/n
        ("reduce_scatter", "ring", Topology(4), 3, 0.75),
        ("all_reduce", "tree", Topology(8), 6, 2.0),  # 2 log2 n, 2
        ("all_reduce", "one-shot", Topology(8, fabric="mesh"), 1, 1.0),
        ("all_reduce", "two-shot", Topology(8, fabric="mesh"), 2, 0.25),  # 2/n
        ("all_gather", "direct", Topology(8, fabric="mesh"), 1, 0.125),  # 1/n
        ("all_to_all", "direct", Topology(8), 1, 0.875),  # a switch: (n-1)/n over all links
        ("all_to_all", "direct", Topology(8, fabric="mesh"), 1, 0.125),  # a mesh: 1/n over each pair's
        ("all_to_all", "direct", Topology(16, 8), 1, 4.0),  # eight devices send half of it out of the node
        ("broadcast", "ring", Topology(4), 3, 1.0),
        ("broadcast", "tree", Topology(8), 3, 1.0),
        ("send_recv", "direct", Topology(2), 1, 1.0),
    ],
)
def test_steps_and_bytes_of_algorithms(
    kind: str, algorithm: str, topology: Topology, steps: int, volume: float
) -> None:
    (phase,) = phases_of(kind, algorithm, topology)
    assert (phase.steps, phase.volume) == (steps, pytest.approx(volume))


def test_a_ring_takes_its_steps_and_its_bytes() -> None:
    links = GroupLinks("device", 240e9, 240e9, 1.0)
    found = algorithm_seconds(phases_of("all_reduce", "ring", Topology(8)), "Simple", links, np.array([2.0**30]))
    assert found[0] == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 1.75 * 2**30 / 240e9)


def test_a_hierarchy_reduces_in_nodes_and_exchanges_between_them() -> None:
    inside, between = phases_of("all_reduce", "hierarchical", Topology(16, 8))
    assert (inside.level, inside.steps, inside.volume) == ("port", 14, 1.75)
    assert (between.level, between.steps, between.volume) == ("network", 2, 1.0)
    links = GroupLinks("device", 100e9, 100e9, 10e9)
    found = algorithm_seconds((inside, between), "LL", links, np.array([1e6]))
    assert found[0] == pytest.approx(6.6e-6 + 14 * 0.6e-6 + 2 * 2.7e-6 + 1.75e6 / 50e9 + 1e6 / 5e9)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for n in range(2, 65):
        whole, half = (phases_of(kind, "ring", Topology(n))[0] for kind in ("all_reduce", "all_gather"))
        assert whole.steps == 2 * half.steps and whole.volume == pytest.approx(2 * half.volume)
        assert ring_steps("all_gather", n) == ring_steps("reduce_scatter", n) == n - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibration", [NOTHING, load_collectives()], ids=["prior", "shipped"])
def test_one_worker_costs_nothing(kind: str, calibration: CollectiveCalibration) -> None:
    found = predict_collective(kind, [1, 2**30], Topology(1), A100, calibration)
    assert found.seconds.tolist() == found.high.tolist() == [0.0, 0.0] and found.basis == "none"
    assert phases_of(kind, algorithms_of(kind, Topology(1))[0], Topology(1)) == ()
    assert fastest(kind, Topology(1), links_of(A100, Topology(1)), np.ones(2))[0].tolist() == [0.0, 0.0]


@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(FABRICS),
    st.floats(1.0, 1e10),
    st.floats(1.0, 100.0),
)
def test_more_bytes_never_take_less_time(
    kind: str, devices: int, nodes: int, fabric: str, size: float, more: float
) -> None:
    topology = Topology(devices * nodes, devices, 8, fabric)
    found = predict_collective(kind, [size, size * more], topology, A100, NOTHING)
    assert found.seconds[0] <= found.seconds[1]
    assert (found.low <= found.seconds).all() and (found.seconds <= found.high).all()


@given(st.sampled_from(KINDS), st.sampled_from(["mesh", "switch"]), st.floats(1.0, 1e10))
def test_a_faster_link_never_takes_more_time(kind: str, fabric: str, size: float) -> None:
    topology, sizes = Topology(8, fabric=fabric), np.array([size])
    slow = fastest(kind, topology, GroupLinks("device", 100e9, 10e9, 1e9), sizes)[0]
    fast = fastest(kind, topology, GroupLinks("device", 200e9, 20e9, 1e9), sizes)[0]
    assert fast[0] <= slow[0]


def test_small_messages_take_the_protocol_of_low_latency() -> None:
    topology = Topology(8)
    seconds, names = fastest("all_reduce", topology, links_of(A100, topology), np.array([1e3, 1e9]))
    assert names.tolist() == ["tree LL", "ring Simple"]
    assert seconds[1] == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 1.75e9 / 240e9)


def test_a_subset_of_a_mesh_has_the_links_among_itself() -> None:
    all_of, half = (links_of(MI300X, Topology(n, node_devices=8, fabric="mesh")) for n in (8, 4))
    assert all_of.port == pytest.approx(7 * all_of.peer) and half.port == pytest.approx(3 * half.peer)
    assert half.peer == all_of.peer == pytest.approx(448e9 * 0.75 / 7)


def test_pairs_of_bridged_cards_go_over_pcie_beyond_two() -> None:
    two, four = Topology(2, node_devices=4, fabric="pairs"), Topology(4, fabric="pairs")
    assert (two.link, four.link) == ("device", "pcie")
    assert links_of(A100, four).port == 24e9 and links_of(A100, two).port == 240e9
    assert link_bytes_per_s(H100, "device") == pytest.approx(370.8e9)
    assert link_bytes_per_s(find_device("T4"), "device") == 12e9  # it has no other links


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0,), "n_workers is 0; it must be a whole number, 1 to 1048576"),
        ((2.5,), "n_workers is 2.5; it must be a whole number"),
        ((True,), "n_workers is True; it must be a whole number"),
        (("8",), "n_workers is '8'; it must be a whole number"),
        ((10**400,), "n_workers is beyond that; it must be"),
        ((8, -8), "devices_per_node is -8"),
        ((8, 8, np.nan), "node_devices is nan"),
        ((8, 8, 8, "switch", np.nan), "nics is nan"),
        ((8, 8, 8, "switch", [1]), r"nics is \[1\]"),
        ((6, 4), "workers must fill whole nodes"),
        ((8, 8, 4), "a node must have the devices"),
        ((8, 8, 8, "star"), "no fabric is called 'star'; there are mesh, switch, ring, pairs"),
    ],
)
def test_groups_that_cannot_be(numbers: tuple, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Topology(*numbers)


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("scan", [1.0], "no collective is called 'scan'; there are all_reduce"),
        ("all_reduce", [1.0, 0.0], r"sizes\[1\] is 0; it must be finite and above zero"),
        ("all_reduce", [np.nan], r"sizes\[0\] is nan"),
        ("all_reduce", [1.0, 2.0**51], r"sizes\[1\] is 2.2518e\+15; it must be"),
        ("all_reduce", ["8"], "sizes must be numbers"),
        ("all_reduce", "8", "sizes must be numbers"),
        ("all_reduce", [[1.0], [1.0, 2.0]], "sizes must be numbers"),
        ("all_reduce", [10**400], "sizes must be numbers"),
        ("all_reduce", [None], "sizes must be numbers"),
        ("all_reduce", [True], "sizes must be numbers"),
        ("all_reduce", 1j, "sizes must be numbers"),
    ],
)
def test_bad_collectives_are_named(kind: str, sizes: list, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        predict_collective(kind, sizes, Topology(8), A100, calibration=load_collectives())
    with pytest.raises(InvalidInputError, match="no algorithm 'tree' of all_to_all here; there are direct"):
        phases_of("all_to_all", "tree", Topology(8))


@pytest.mark.parametrize("topology", [Topology(1), Topology(8), Topology(6), Topology(64, 8)])
def test_no_sizes_give_no_times(topology: Topology) -> None:
    found = predict_collective("all_reduce", [], topology, A100, calibration=load_collectives())
    assert found.seconds.shape == found.low.shape == found.high.shape == (0,)


def test_numbers_of_numpy_are_taken() -> None:
    assert Topology(np.int64(16), np.int32(8)) == Topology(16, 8)
    assert type(Topology(np.int64(16)).n_workers) is int


def test_a_curve_finds_the_lines_that_the_times_were_made_with() -> None:
    """Two protocols, with a switch at 1 MB that is not where they are as fast."""
    x = np.unique(np.geomspace(1e4, 1e8, 400).round())
    made = Curve((0.0, 1e6), (10e-6, 40e-6), (1 / 20e9, 1 / 200e9))
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(len(x)))
    found = fit_curve(x[::2], (made.seconds(x) * noise)[::2])
    assert np.mean(np.abs(found.seconds(x[1::2]) / made.seconds(x[1::2]) - 1)) < 0.005
    assert found.betas[-1] == pytest.approx(1 / 200e9, rel=0.02) and found.alphas_s[0] == pytest.approx(10e-6, rel=0.05)
    assert any(abs(start / 1e6 - 1) < 0.1 for start in found.starts_bytes)
    far = np.array([1e9])
    assert found.seconds(far)[0] == pytest.approx(made.seconds(far)[0], rel=0.03)


def test_a_curve_through_points_meets_them_and_stays_between() -> None:
    x = 2.0 ** np.arange(9, 30)
    t = 20e-6 + x / 100e9
    found = point_curve(x, t)
    assert found.seconds(x) == pytest.approx(t) and min(*found.alphas_s, *found.betas) >= 0
    between = 2.0 ** np.arange(9.5, 29)
    assert found.seconds(between) == pytest.approx(20e-6 + between / 100e9, rel=0.03)
    assert found.seconds([2.0**31])[0] == pytest.approx(20e-6 + 2.0**31 / 100e9, rel=0.02)


SWEEP = "system,gpu,collective,ranks_count,ranks_per_node_count,setting_id,library,implementation,message_bytes,time_us"


def sweep(folder: Path, name: str = "sweep.csv", **change: object) -> Path:
    """A table in the layout of nccl-tests, with one cell of the third row changed."""
    lines = [SWEEP]
    for kind, ranks, here, setting, library, implementation in (
        ("all_reduce", 8, 4, 4, "nccl", "NCCL"), ("alltoall", 8, 4, 1, "nccl", "NCCL"),
        ("all_reduce", 4, 4, 4, "custom_allreduce", "X_eager"), ("sendrecv", 2, 2, 4, "nccl", "NCCL"),
    ):  # fmt: skip
        for size in 2 ** np.arange(12, 28):
            row = f"polaris,NVIDIA A100-SXM4-40GB,{kind},{ranks},{here},{setting},{library},{implementation}"
            lines.append(f"{row},{size},{30 + size / 2e4:.3f}")
    cells = dict(zip(SWEEP.split(","), lines[3].split(","), strict=True)) | {k: str(v) for k, v in change.items()}
    lines[3] = ",".join(cells.values())
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_of_nccl_tests_is_read_by_its_columns(tmp_path: Path) -> None:
    found = {(one.kind, one.library): one for one in read_collectives(sweep(tmp_path))}
    assert set(found) == {
        ("all_reduce", "nccl"),
        ("all_to_all", "nccl"),
        ("all_reduce", "custom_eager"),
        ("send_recv", "nccl"),
    }
    reduce, exchange = (found[kind, "nccl"] for kind in ("all_reduce", "all_to_all"))
    assert reduce.topology == load_systems()["Polaris"].topology(8, 4, "4") and reduce.device.name == "A100-SXM4-40GB"
    assert (reduce.topology.nics, reduce.topology.network) == (2, "slingshot:4")
    assert exchange.topology.network == "ethernet:1"  # without the plug-in for the adapters
    assert reduce.seconds[0] == pytest.approx((30 + 4096 / 2e4) / 1e6, rel=1e-4)
    assert found["send_recv", "nccl"].topology.link == "device"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_us": 0}, "row 3: time_us is 0; it must be finite and above zero"),
        ({"message_bytes": -4}, "row 3: message_bytes is -4"),
        ({"collective": "scan"}, "row 3: no collective 'scan'"),
        ({"ranks_count": 6}, "row 3: 6 workers, 4 in each node of 4 devices: workers must fill"),
        ({"library": "mpi"}, "row 3: no library 'mpi'"),
        ({"gpu": "Voodoo 2"}, "row 3: no device is called 'Voodoo 2'"),
        ({"ranks_per_node_count": 2.5}, "row 3: ranks_per_node_count is 2.5; it must be whole"),
        ({"setting_id": "fast"}, "setting_id is 'fast'; it must be a number"),
    ],
)
def test_a_row_of_nccl_tests_that_cannot_be_is_named(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        read_collectives(sweep(tmp_path, **change))
    assert message in str(error.value) and "sweep.csv" in str(error.value)


def test_few_sizes_are_fitted_by_a_curve_through_them_and_kept_by_library(tmp_path: Path) -> None:
    measured = read_collectives(sweep(tmp_path))
    write_collective_calibration(tmp_path / "c.json", calibrate_collectives(measured))
    known = read_collective_calibration(tmp_path / "c.json")
    assert {fit.library for fit in known.fits} == {"nccl", "custom_eager"}
    for one in measured:
        found = predict_collective(one.kind, one.sizes, one.topology, one.device, known, library=one.library)
        assert found.basis == "fitted" and found.seconds == pytest.approx(one.seconds, rel=1e-3)
    scores = score_collectives(measured, known)
    own = [score for score in scores if score.how == "sizes left out"]
    assert len(own) == 4 and all(0.001 < score.error < 0.05 for score in own)  # each size left out in turn
    with pytest.raises(InvalidInputError, match="no library is called 'mpi'"):
        predict_collective("all_reduce", [1e6], Topology(4), A100, known, library="mpi")
    two = replace(measured[0], sizes=measured[0].sizes[:2], seconds=measured[0].seconds[:2])
    with pytest.raises(InvalidInputError, match="2 sizes were measured; a fit needs 3 or more"):
        calibrate_collectives([two])


def test_systems_name_devices_of_the_catalogue() -> None:
    for name, system in load_systems().items():
        group = system.topology(4 * system.devices)
        assert find_device(system.device).figures and group.nodes == 4, name
        assert group.nic_gbps > 0 and system.source


def test_one_outlier_does_not_move_a_curve() -> None:
    x = np.linspace(1e6, 64e6, 200)
    t = 20e-6 + x / 100e9
    spoiled = t.copy()
    spoiled[-1] /= 2
    assert fit_curve(x, spoiled).seconds([1e8])[0] == pytest.approx(20e-6 + 1e8 / 100e9, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_rows_changes_nothing(seed: int) -> None:
    x = np.geomspace(1e4, 1e8, 60)
    t = 20e-6 + x / 100e9
    order = np.random.default_rng(seed).permutation(60)
    assert fit_curve(x[order], t[order]) == fit_curve(x, t)


def test_a_curve_that_the_links_bound_can_be_written() -> None:
    x = np.geomspace(1e4, 1e8, 60)
    bounded = fit_curve(x, 20e-6 + x / 100e9, limit=1 / 400e9)
    assert {type(value) for value in (*bounded.alphas_s, *bounded.betas)} == {
        float
    }  # a calibration file takes no other


def test_few_sizes_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="5 sizes were measured; a fit needs 6 or more"):
        fit_curve(np.arange(1.0, 6.0), np.ones(5))


GROUPS = ((2, 2), (4, 4), (8, 8), (8, 4), (16, 8))


def made(workers: int, devices: int, sizes: np.ndarray) -> np.ndarray:
    """Ring all-reduces: 240 GB/s in a node, 10 GB/s an adapter between nodes (one a device, four at most)."""
    volume = 2 * (workers - 1) / workers
    if workers == devices:
        return 20e-6 + 2 * (workers - 1) * 0.6e-6 + volume * sizes / 240e9
    return 20e-6 + 2 * (workers - 1) * 14e-6 + volume * sizes / (min(devices, 4) * 10e9)


def table(folder: Path, name: str = "a100_dgx_all_reduce.csv", n: int = 120, **change: object) -> Path:
    """A file in the layout of the profiles, with one cell of the third row changed."""
    lines = ["time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node,max_devices_per_node"]
    sizes = np.unique(np.geomspace(1e4, 1e8, n).round())
    for workers, devices in GROUPS:
        times = 1e3 * made(workers, devices, sizes)
        lines += [f"{float(t)!r},0,{workers},{x:.0f},all_reduce,{devices},8" for x, t in zip(sizes, times, strict=True)]
    if change:
        names = [name.replace("time_stats.all_reduce.median", "time") for name in lines[0].split(",")]
        cells = dict(zip(names, lines[3].split(","), strict=True)) | {k: str(v) for k, v in change.items()}
        lines[3] = ",".join(cells.values())
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_read_by_group(tmp_path: Path) -> None:
    found = read_collectives(table(tmp_path))
    assert {(m.topology.n_workers, m.topology.devices_per_node) for m in found} == set(GROUPS)
    assert {(m.kind, m.device.name, m.topology.fabric) for m in found} == {("all_reduce", "A100-SXM4-80GB", "switch")}
    one = next(m for m in found if m.topology == Topology(8, 8, 8))
    assert one.seconds[0] == pytest.approx(made(8, 8, one.sizes)[0])  # ms to s
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert len(read_collectives(tmp_path)) == 5
    assert read_collectives(table(tmp_path, "my.csv"), "MI300X")[0].topology.fabric == "mesh"
    assert read_collectives(table(tmp_path, "h100_pairwise.csv"))[0].topology.fabric == "pairs"
    assert read_collectives(table(tmp_path, "v100.csv"), None, "ring")[0].device.architecture == "Volta"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "row 3: size is 0; it must be finite and above zero"),
        ({"size": 1e300}, "row 3: size is 1e+300; it must be 1 to 1125899906842624"),
        ({"size": 0.5}, "row 3: size is 0.5; it must be 1 to"),
        ({"num_workers": "9" * 20}, "row 3: num_workers is 1e+20; it must be 1 to 1048576"),
        ({"time": 1e-9}, "row 3: time_stats.all_reduce.median is 1e-09, less than a nanosecond; it must be in ms"),
        ({"num_workers": 0}, "row 3: num_workers is 0"),
        ({"num_workers": 2.5}, "row 3: num_workers is 2.5; it must be whole"),
        (
            {"max_devices_per_node": 1},
            "row 3: 2 workers, 2 in each node of 1 devices: workers must fill",
        ),
        ({"num_workers": 3}, "row 3: 3 workers, 2 in each node of 8 devices: workers must fill whole nodes"),
        ({"time": -1}, "row 3: time_stats.all_reduce.median is -1"),
        ({"time": "nan"}, "row 3: time_stats.all_reduce.median is nan; it must be finite and above zero"),
        ({"time": "fast"}, "time_stats.all_reduce.median is 'fast'; it must be a number"),
        ({"time": 1e12}, "row 3: time_stats.all_reduce.median is 1e+12, more than a day; it must be in ms"),
        ({"collective": "scan"}, "row 3: no collective 'scan'; there are all_reduce, all_gather"),
        ({"collective": "all_gather"}, "no column time_stats.all_gather.median; needed are"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        read_collectives(table(tmp_path, **change))
    assert message in str(error.value) and "a100_dgx_all_reduce.csv" in str(error.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size,num_workers,collective\n1,2,all_reduce\n")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    (tmp_path / "a100.csv").write_text("size,num_workers,collective,devices_per_node,time_stats.all_reduce.mean\n")
    for name, error, message in (
        ("a.csv", InvalidInputError, r"no column devices_per_node; needed are time_stats.<collective>.median \(ms\)"),
        ("a100.csv", InvalidInputError, "there is no row"),
        ("b.parquet", InvalidInputError, "cannot be read as a table"),
        ("c.csv", NotFoundError, "no such file"),
    ):
        with pytest.raises(error, match=message):
            read_collectives(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no table of measured collectives"):
        read_collectives(tmp_path / "empty")


def test_a_device_that_is_not_said_or_not_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match="its name has no device, and there is no column of it; give --device NAME"
    ):
        read_collectives(table(tmp_path, "mine.csv"))
    with pytest.raises(InvalidInputError, match="its name has more than one device"):
        read_collectives(table(tmp_path, "a100_h100.csv"))
    with pytest.raises(NotFoundError, match="no device is called 'Voodoo 2'"):
        read_collectives(table(tmp_path), "Voodoo 2")


def test_a_group_without_fit_is_predicted_from_the_others(tmp_path: Path) -> None:
    measured = read_collectives(table(tmp_path))
    known = calibrate_collectives(measured)
    for one in measured:
        own = predict_collective(one.kind, one.sizes, one.topology, one.device, known)
        rest = known.without_workers(one.topology.n_workers)
        other = predict_collective(one.kind, one.sizes, one.topology, one.device, rest)
        assert (own.basis, other.basis) == ("fitted", "carried")
        assert np.mean(np.abs(own.seconds / one.seconds - 1)) < 0.01
        large = one.sizes > 1e7
        assert np.mean(np.abs(other.seconds / one.seconds - 1)[large]) < 0.05
    assert nic_rate([f for f in known.fits if f.topology.link == "network"]) == pytest.approx(10e9, rel=0.05)


def test_other_links_and_collectives_take_their_share() -> None:
    """A carried all-gather is half an all-reduce of what is large; an MI300X on a switch is faster as its links are."""
    size = [2.0**30]
    reduce, gather = (
        predict_collective(kind, size, Topology(16), A100, calibration=load_collectives()).seconds[0]
        for kind in ("all_reduce", "all_gather")
    )
    assert gather == pytest.approx(reduce / 2, rel=0.03)
    other = predict_collective("all_reduce", size, Topology(8), MI300X, calibration=load_collectives())
    own = predict_collective("all_reduce", size, Topology(8), A100, calibration=load_collectives())
    assert (other.basis, own.basis) == ("carried", "fitted")
    assert own.seconds[0] / other.seconds[0] == pytest.approx(336 / 240, rel=0.2)
    assert other.high[0] / other.low[0] > own.high[0] / own.low[0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_bridged_pair_of_an_h100_was_measured(kind: str) -> None:
    """A table that was called an H100's was a copy of an A100's; nothing of it may stay in the shipped fits."""
    known = load_collectives()
    assert all(fit.topology.fabric == "switch" for fit in known.fits if fit.device == H100.name)
    pairs = Topology(2, 2, 4, "pairs")
    found = predict_collective(kind, [2.0**20], pairs, H100, calibration=known)
    assert found.basis == "carried" and found.low[0] < found.seconds[0] < found.high[0]


def test_cards_of_the_same_links_share_a_fit() -> None:
    found = [
        predict_collective("all_reduce", [1e8], Topology(8), find_device(name), calibration=load_collectives())
        for name in ("A100-SXM4-40GB", "A100-SXM4-80GB")
    ]
    assert found[0].seconds == found[1].seconds and found[1].basis == "fitted"


def test_a_fit_of_the_device_itself_goes_before_that_of_one_with_the_same_links(tmp_path: Path) -> None:
    (one,) = (m for m in read_collectives(table(tmp_path)) if m.topology.n_workers == 16)
    fast, slow = (replace(one, device=find_device(f"A100-SXM4-{size}GB")) for size in (40, 80))
    slow = replace(slow, seconds=2 * slow.seconds)
    known = calibrate_collectives([fast, slow])
    for group in (fast, slow):
        found = predict_collective("all_reduce", group.sizes, group.topology, group.device, known)
        assert found.seconds == pytest.approx(group.seconds, rel=0.05)


def test_a_million_predictions_are_those_of_single_sizes() -> None:
    sizes, calibration = np.geomspace(1e3, 1e9, 10**6), load_collectives()
    some = np.arange(0, len(sizes), 99_991)
    for topology in (Topology(8), Topology(6), Topology(64, 8)):
        many = predict_collective("all_reduce", sizes, topology, A100, calibration=calibration).seconds
        single = [
            predict_collective("all_reduce", sizes[[i]], topology, A100, calibration=calibration).seconds for i in some
        ]
        np.testing.assert_array_equal(many[some], np.concatenate(single))


def test_the_quarter_that_scores_is_not_fitted(tmp_path: Path) -> None:
    one = read_collectives(table(tmp_path))[0]
    scored = scored_rows(one)
    assert 0.15 < scored.mean() < 0.35  # the file has 120 sizes
    spoiled = replace(one, seconds=np.where(scored, 9 * one.seconds, one.seconds))
    assert calibrate_collectives([one]).fits == calibrate_collectives([spoiled]).fits


def test_files_of_one_group_are_fitted_together_and_score_on_the_same_sizes(tmp_path: Path) -> None:
    (one,) = (m for m in read_collectives(table(tmp_path)) if m.topology.n_workers == 16)
    halves = [replace(one, sizes=one.sizes[i::2], seconds=one.seconds[i::2]) for i in (0, 1)]
    assert calibrate_collectives(halves).fits == calibrate_collectives([one]).fits
    assert scored_rows(halves[1]).tolist() == scored_rows(one)[1::2].tolist()


def test_intervals_hold_nine_in_ten_of_noisy_times(tmp_path: Path) -> None:
    one = read_collectives(table(tmp_path, n=2000))[0]
    noisy = replace(one, seconds=one.seconds * np.exp(0.1 * np.random.default_rng(3).standard_normal(len(one))))
    known, scored = calibrate_collectives([noisy]), scored_rows(one)
    found = predict_collective(one.kind, one.sizes[scored], one.topology, one.device, known)
    true = noisy.seconds[scored]
    assert 0.85 < np.mean((found.low <= true) & (true <= found.high)) < 0.95


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibrate_collectives(read_collectives(table(tmp_path)))
    write_collective_calibration(tmp_path / "c.json", found)
    again = read_collective_calibration(tmp_path / "c.json")
    assert again.digests == found.digests and again.spreads == pytest.approx(dict(found.spreads), abs=1e-4)
    sizes = np.geomspace(1e3, 1e9, 100)
    for one, other in zip(found.fits, again.fits, strict=True):
        assert one.topology == other.topology and one.kind == other.kind
        assert other.curve.seconds(sizes) == pytest.approx(one.curve.seconds(sizes), rel=1e-2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"fits": [], "spreads": [], "fitted_files_sha256": []}',
        '{"kind": "collectives", "version": 1, "devices": [], "source": "", "fit": {"fits": [{}]}}',
        '{"kind": "kernels", "version": 1, "devices": [], "source": "", "fit": {}}',
        "[" * 99999,
    ],
)
def test_a_damaged_calibration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InvalidInputError, match="not what `seqpoint calibrate collectives` writes"):
        read_collective_calibration(tmp_path / "c.json")


def test_a_time_below_zero_in_a_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_collective_calibration(path, calibrate_collectives(read_collectives(table(tmp_path))))
    content = json.loads(path.read_text())
    content["fit"]["fits"][0]["lines"][0]["alpha_us"] = -1
    path.write_text(json.dumps(content))
    with pytest.raises(SeqPointError, match=r"fit.fits\[0\].lines\[0\].alpha_us: Expected `float` >= 0.0"):
        read_collective_calibration(path)
    with pytest.raises(NotFoundError, match="no such calibration"):
        read_collective_calibration(tmp_path / "none.json")


def refused(tmp_path: Path, change: Callable[[dict], None], message: str) -> None:
    path = tmp_path / "c.json"
    if not path.exists():
        write_collective_calibration(path, calibrate_collectives(read_collectives(table(tmp_path))))
    content = json.loads(path.read_text())
    change(content)
    (tmp_path / "changed.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=message):
        read_collective_calibration(tmp_path / "changed.json")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("workers", np.inf, "JSON is malformed"),
        ("workers", 1, r"fit.fits\[0\].workers: Expected `int` >= 2"),
        ("workers", 2.5, r"fit.fits\[0\].workers: Expected `int`, got `float`"),
        ("workers", True, r"fit.fits\[0\].workers: .*got `bool`"),
        ("workers", "2", r"fit.fits\[0\].workers: .*got `str`"),
        ("nics", 0, r"fit.fits\[0\].nics: Expected `int` >= 1"),
        ("most_bytes", 10**400, "most_bytes"),
        ("most_bytes", np.nan, "JSON is malformed"),
        ("rows", 0, r"fit.fits\[0\].rows: Expected `int` >= 1"),
        ("kind", "scan", "no collective is called 'scan'"),
        ("lines", [], "from_bytes must ascend, over one row or more"),
        ("lines", [{"from_bytes": 0, "alpha_us": 0, "us_per_mb": 0}], "takes no time"),
        ("lines", [{"from_bytes": np.nan, "alpha_us": 1, "us_per_mb": 0}], "JSON is malformed"),
        ("lines", [{"from_bytes": 0, "alpha_us": 1, "us_per_mb": np.inf}], "JSON is malformed"),
        ("lines", [{"from_bytes": at, "alpha_us": 1, "us_per_mb": 0} for at in (9, 3)], "from_bytes must ascend"),
        ("measured_over_predicted", [{"from_bytes": 0, "low": 2, "high": 1}], r"low: Expected `float` <= 1.0"),
        ("measured_over_predicted", [{"from_bytes": 0, "low": 1, "high": 0.5}], r"high: Expected `float` >= 1.0"),
        ("measured_over_predicted", [], "from_bytes must ascend, over one row or more"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(tmp_path: Path, place: str, value: object, message: str) -> None:
    refused(tmp_path, lambda content: content["fit"]["fits"][0].update({place: value}), message)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("spread", np.nan, "JSON is malformed"),
        ("spread", -1, r"fit.spreads\[0\].spread: Expected `float` >= 0.0"),
        ("spread", 1e9, r"spread: Expected `float` <= 100.0"),
        ("left_out", -1, r"left_out: Expected `int` >= 0"),
        ("link", "string", "a spread of the link 'string'"),
        ("basis", [], r"basis: .*got `list`"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(tmp_path: Path, place: str, value: object, message: str) -> None:
    refused(tmp_path, lambda content: content["fit"]["spreads"][0].update({place: value}), message)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_what_cannot_be_read_is_not_written(tmp_path: Path, bad: float) -> None:
    (one,) = (m for m in read_collectives(table(tmp_path)) if m.topology.n_workers == 16)
    known = calibrate_collectives([one])
    worse = replace(known.fits[0], curve=replace(known.fits[0].curve, alphas_s=(bad,) * len(known.fits[0].curve.betas)))
    for spoiled in (replace(known, fits=(worse,)), replace(known, spreads={("device", "prior", 0): bad})):
        with pytest.raises(InvalidInputError, match=r"c\.json: not written: "):
            write_collective_calibration(tmp_path / "c.json", spoiled)
    assert not (tmp_path / "c.json").exists()


def test_adapters_that_a_table_says_are_kept(tmp_path: Path) -> None:
    path = table(tmp_path)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},nics", *(f"{row},8" for row in rows)]) + "\n")
    known = calibrate_collectives(read_collectives(path))
    write_collective_calibration(tmp_path / "c.json", known)
    assert {one.topology.nics for one in read_collective_calibration(tmp_path / "c.json").fits} == {8}


def test_the_bandwidth_of_adapters_that_a_table_says_is_kept_and_a_fit_holds_for_its_network(tmp_path: Path) -> None:
    path = table(tmp_path)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},nics,nic_gbps", *(f"{row},4,12.5" for row in rows)]) + "\n")
    write_collective_calibration(tmp_path / "c.json", calibrate_collectives(read_collectives(path)))
    known, device = read_collective_calibration(tmp_path / "c.json"), find_device("A100-SXM4-80GB")
    assert {(one.topology.nics, one.topology.nic_gbps) for one in known.fits} == {(4, 12.5)}
    same, other = (Topology(16, 8, nics=nics, nic_gbps=12.5) for nics in (4, 8))
    assert predict_collective("all_reduce", [2**26], same, device, known).basis == "fitted"
    assert predict_collective("all_reduce", [2**26], other, device, known).basis == "prior"
    for bad, message in (("-1", "nic_gbps is -1"), ("1e9", "nic_gbps is 1e\\+09")):
        path.write_text("\n".join([f"{header},nic_gbps", *(f"{row},{bad}" for row in rows)]) + "\n")
        with pytest.raises(InvalidInputError, match=message):
            read_collectives(path)


@pytest.mark.parametrize("name", ["size", "time_stats.all_reduce.median"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_that_is_there_twice_is_named(tmp_path: Path, name: str, suffix: str) -> None:
    measured = pcsv.read_csv(table(tmp_path))
    path = tmp_path / f"a100_twice.{suffix}"
    double = measured.append_column(name, measured[name])
    if suffix == "csv":
        pcsv.write_csv(double, path)
    else:
        pq.write_table(double, path)
    with pytest.raises(InvalidInputError, match=f"a100_twice.{suffix}: .*{name}.* there 2 times"):
        read_collectives(path)


def test_measurements_that_say_nothing_of_other_sizes_are_refused(tmp_path: Path) -> None:
    (one,) = (m for m in read_collectives(table(tmp_path)) if m.topology.n_workers == 16)
    for size in np.geomspace(1e4, 1e8, 12).round():  # whichever part it falls in
        same = replace(one, sizes=np.full(200, size), seconds=np.linspace(1e-4, 2e-4, 200))
        with pytest.raises(InvalidInputError, match=r": 1 sizes were measured; a fit needs 3 or more"):
            calibrate_collectives([same])
    fitted = one.part % 2 == 0
    few = replace(one, sizes=one.sizes[fitted], seconds=one.seconds[fitted])
    with pytest.raises(InvalidInputError, match="no size is left for the interval"):
        calibrate_collectives([few])


def test_a_group_of_one_worker_is_not_fitted(tmp_path: Path) -> None:
    measured = read_collectives(table(tmp_path))
    alone = replace(measured[0], topology=Topology(1, 1, 8))
    assert calibrate_collectives([*measured, alone]).fits == calibrate_collectives(measured).fits
    with pytest.raises(
        InvalidInputError, match=r"a100_dgx_all_reduce\.csv: no group of two or more workers was measured"
    ):
        calibrate_collectives([alone])


def test_a_million_rows_of_a_group_are_fitted() -> None:
    random = np.random.default_rng(5)
    sizes = random.integers(1000, 10**8, 10**6).astype(float)
    times = (20e-6 + sizes / 100e9) * np.exp(0.05 * random.standard_normal(10**6))
    many = fit_curve(sizes, times)
    wanted = np.geomspace(2e3, 9e7, 50)
    assert np.mean(np.abs(many.seconds(wanted) / (20e-6 + wanted / 100e9) - 1)) < 0.01
    repeated = fit_curve(np.repeat(wanted, 20000), np.repeat(20e-6 + wanted / 100e9, 20000))
    assert repeated == fit_curve(wanted, 20e-6 + wanted / 100e9)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_calibrate_then_validate(tmp_path: Path) -> None:
    measured = table(tmp_path)
    done = run("calibrate", "collectives", measured, "-o", tmp_path / "mine.json", "--fresh")
    assert done.exit_code == 0 and "A100-SXM4-80GB" in done.stdout
    found = run("validate", "collectives", measured, "--calibration", tmp_path / "mine.json", "--json")
    assert found.exit_code == 0
    content = json.loads(found.stdout)
    by_case = {row["case"]: row for row in content["rows"]}
    assert by_case["all_reduce, fitted: mean over 5 groups"]["met"] is True
    assert by_case["all_reduce, A100-SXM4-80GB (switch), 8 workers, 8 a node, fitted"]["error"] < 0.01
    scores = {(s["workers"], s["devices_per_node"], s["how"]): s for s in content["scores"]}
    assert 15 < scores[8, 8, "fitted"]["rows"] < 50 and scores[8, 8, "workers left out"]["rows"] == 120
    assert "mean over 5 groups" in run("validate", "collectives", measured).stdout


def test_a_device_that_was_never_fitted_is_validated(tmp_path: Path) -> None:
    mine = table(tmp_path, "mine.csv")
    found = json.loads(run("validate", "collectives", mine, "--device", "V100-SXM2-16GB", "--json").stdout)
    assert {s["how"] for s in found["scores"]} == {"workers left out", "device left out"}
    again = json.loads(run("validate", "collectives", mine, "--device", "V100", "--refit", "--json").stdout)
    fitted = [s for s in again["scores"] if s["how"] == "fitted"]
    assert len(fitted) == 5 and max(s["error"] for s in fitted) < 0.02
    assert all(15 < s["rows"] < 50 for s in fitted)
    missing = run("validate", "collectives", mine)
    assert isinstance(missing.exception, InvalidInputError) and "give --device NAME" in str(missing.exception)


def test_a_limit_that_is_missed_fails_the_gate(tmp_path: Path) -> None:
    measured = read_collectives(table(tmp_path))
    known = calibrate_collectives(measured)
    slow = [replace(one, seconds=3 * one.seconds, digest="") for one in measured]
    rows = {row.case: row for row in collective_rows(score_collectives(slow, known))}
    row = rows["all_reduce, fitted: mean over 5 groups"]
    assert row.limit == 0.05 and row.met is False and row.error > 0.6
    lines = table(tmp_path).read_text().splitlines()
    cells = [line.split(",") for line in lines[1:]]
    text = "\n".join([lines[0], *(",".join([str(9 * float(c[0])), *c[1:]]) for c in cells)])
    (tmp_path / "a100_slow.csv").write_text(text + "\n")
    assert run("validate", "collectives", tmp_path / "a100_slow.csv", "--gate").exit_code == 1


def test_the_volume_of_a_ring_does_not_pass_twice_the_buffer() -> None:
    volumes = [busiest_volume("all_reduce", Topology(n)) for n in range(2, 200)]
    assert volumes == sorted(volumes) and volumes[0] == 1.0 and volumes[-1] < 2


@pytest.mark.parametrize(("workers", "published"), [(2, 197e9), (4, 222e9), (8, 229e9)])
def test_sizes_beyond_all_that_were_fitted_come_near_published_bandwidths(workers: int, published: float) -> None:
    """Bus bandwidth of all-reduces of 1 GiB on a DGX A100, published; the fits end at 64 MiB."""
    found = predict_collective("all_reduce", [2.0**30], Topology(workers), A100, calibration=load_collectives())
    bytes_on_the_bus = 2 * (workers - 1) / workers * 2**30
    assert bytes_on_the_bus / found.seconds[0] == pytest.approx(published, rel=0.1)
    assert found.low[0] < bytes_on_the_bus / published < found.high[0]


def test_no_bandwidth_beyond_what_was_measured_is_above_the_link() -> None:
    x = np.linspace(1e6, 64e6, 100)
    found = fit_curve(x, 20e-6 + x / 100e9, 1 / 400e9)
    assert found.betas[-1] == pytest.approx(1 / 200e9)  # the mean of 100 and 400 GB/s, geometric
    assert found.seconds([64e6 - 1])[0] == pytest.approx(found.seconds([64e6 + 1])[0], rel=1e-3)


def test_intervals_widen_beyond_the_largest_measured_size() -> None:
    found = predict_collective("all_reduce", [2.0**25, 2.0**31], Topology(8), A100, calibration=load_collectives())
    width = found.high / found.low
    assert width[1] > 1.2 * width[0]
