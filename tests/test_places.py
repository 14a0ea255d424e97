"""Where workgroups run: what they take of a unit, which run in rounds or stay, and what bounds them there."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import make_graph

from profilers.devices.catalogue import find_device
from profilers.trace.kernels import CLASSES
from replay.costs.demand import with_demands
from replay.costs.occupancy import Workgroup, unit_shares, workgroup_of_name
from replay.costs.places import leaves_units, per_unit, with_places, with_unit_sizes
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.graph import RESOURCES, TO_HOST, UNIT_COLUMNS, KernelGraph, TaskKind, hardware_named
from replay.graph.operators import Operator

H100 = find_device("H100-SXM5-80GB")
UNITS = 132
PARAMETERS = load_parameters()
NVJET = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"
CU, L2 = RESOURCES.index("cu"), RESOURCES.index("l2")


def kernels(names: list[str], workgroups: list[int], **columns: list[float]) -> KernelGraph:
    """Return tasks of 100 us on an H100, one a name; those of NCCL are collectives."""
    is_collective = ["nccl" in name for name in names]
    of_word = {"nccl": "collective", "add": "elementwise", "soft": "softmax"}
    classes = [next((of_word[word] for word in of_word if word in name), "gemm") for name in names]
    columns = {
        "kind": [TaskKind.COLLECTIVE if each else TaskKind.KERNEL for each in is_collective],
        "class_": [CLASSES.index(name) for name in classes],
        "name": list(range(len(names))),
        "lane": list(range(len(names))),
        "duration_ns": [100_000.0] * len(names),
        **columns,
    }  # fmt: skip
    graph = make_graph(columns.pop("duration_ns"), workgroups=workgroups, **columns)
    return replace(graph, names=tuple(names), hardware=hardware_named(H100, "trace"))


def product(rows: int, columns: int, depth: int) -> Operator:
    """Return a product in BF16."""
    sizes = [2.0 * n for n in (rows * depth + depth * columns, rows * columns)]
    return Operator("matmul", 2.0 * rows * columns * depth, *sizes, (1, rows, columns, depth), 2)


def test_a_workgroup_of_unknown_size_takes_a_unit_if_it_computes() -> None:
    graph = kernels(["gemm", "add", "ncclDevKernel_AllReduce"], [132, 132, 8])
    tasks = with_unit_sizes(graph, np.array([True, False, False]), PARAMETERS).tasks
    assert per_unit(tasks).tolist() == [1, PARAMETERS["workgroups_per_unit_max"], 1]
    known = graph.with_tasks(unit_threads=np.full(3, 0.25), unit_shared=np.full(3, 0.4))
    shares = with_unit_sizes(known, np.array([True, False, False]), PARAMETERS).tasks
    assert shares.unit_threads.tolist() == [0.25] * 3 and shares.unit_shared.tolist() == [0.4] * 3


@pytest.mark.parametrize(("share", "count"), [(1.0, 1), (0.5, 2), (0.34, 2), (1 / 3, 3), (2.0, 1)])
def test_a_unit_holds_whole_workgroups_by_its_scarcest_limit(share: float, count: int) -> None:
    tasks = kernels(["gemm"], [1], unit_registers=[share], **{n: [0.1] for n in UNIT_COLUMNS if "regi" not in n}).tasks
    assert per_unit(tasks).tolist() == [count]


def test_kernels_that_send_and_receive_hold_no_units() -> None:
    names = ["ncclDevKernel_SendRecv", "ncclDevKernel_AllReduce", "my_SendRecv_gemm"]
    graph = kernels(names, [16, 16, 132], kind=[TaskKind.COLLECTIVE, TaskKind.COLLECTIVE, TaskKind.KERNEL])
    assert leaves_units(graph).tolist() == [True, False, False]
    demanding = with_demands(graph, PARAMETERS).tasks
    assert demanding.occupies.tolist() == [0, 16 / UNITS, 1] and demanding.demand[0, CU] == 0
    assert demanding.stays.tolist() == [True, True, True]


@pytest.mark.parametrize(
    ("nccl", "workgroups", "rounds"),
    [("AllReduce", 124, 1), ("AllReduce", 125, 2), ("AllReduce", 250, 3), ("SendRecv", 132, 1)],
)
def test_kernels_run_in_rounds_on_the_units_that_a_collective_leaves(nccl: str, workgroups: int, rounds: int) -> None:
    """The collective holds 8 of 132 units. A kernel of one round takes 100 us alone, and so does one of two."""
    graph = kernels([f"ncclDevKernel_{nccl}", "gemm"], [8, workgroups], duration_ns=[1e6, 1e5])
    assert end_beside(graph) == pytest.approx(1e5 * rounds / np.ceil(workgroups / UNITS))


def end_beside(graph: KernelGraph) -> float:
    """Return the end of the second task beside the first, if they share nothing but compute units."""
    silent = ("pressure_collective", "hbm_share_collective", "kernel_start_ns", "memory_time_compute")
    return float(simulate(with_demands(graph, PARAMETERS.with_values((name, 0.0) for name in silent)))[1][1])


def test_a_product_that_stays_is_slowed_by_the_share_of_units_that_it_lacks() -> None:
    """It has 8 x 33 tiles for 132 workgroups, and next to no loads."""
    graph = kernels(["ncclDevKernel_AllReduce", NVJET], [8, 132], duration_ns=[1e6, 1e5], operator=[-1, 0])
    assert end_beside(replace(graph, operators=(product(2048, 4224, 64),))) == pytest.approx(1e5 * 132 / 124, rel=1e-4)


def places(graph: KernelGraph, *, computes: list[bool]) -> KernelGraph:
    """Return a graph with waves, occupied units and places, and no transfers."""
    waves = graph.tasks.workgroups / UNITS
    graph = graph.with_tasks(waves=waves, occupies=np.minimum(waves, 1.0))
    return with_places(graph, np.array(computes), np.zeros(len(computes)), PARAMETERS)


def test_only_kernels_that_compute_in_few_rounds_are_in_step() -> None:
    most = int(PARAMETERS["rounds_max"])
    grids = [100, most * UNITS - 1, most * UNITS + 1, 100, 0]
    tasks = places(kernels(["gemm"] * 3 + ["add", "gemm"], grids), computes=[True] * 3 + [False, True]).tasks
    assert tasks.in_rounds.tolist() == [True, True, False, False, False]
    assert not tasks.stays.any()


def test_products_that_launch_a_workgroup_a_unit_stay_and_draw_tiles() -> None:
    """A product of 4096 x 4096 has 32 x 16 tiles of 256 x 128: 512 / 132 waves."""
    graph = kernels([NVJET, NVJET, "gemm"], [132, 512, 264], operator=[0, 0, -1])
    graph = replace(graph, operators=(product(4096, 4096, 4096),))
    tasks = places(graph, computes=[True] * 3).tasks
    # With a workgroup a tile, nothing is left to draw. The third fills all units in whole rounds.
    assert tasks.stays.tolist() == [True, False, True]
    assert tasks.in_rounds.tolist() == [False, True, False]
    np.testing.assert_allclose(tasks.waves, [512 / UNITS, 512 / UNITS, 2])


def test_the_loads_of_a_product_bound_it_as_its_units_move_them() -> None:
    """Workgroups load half of the FLOP times 2 B times (1 / 128 + 1 / 256)."""
    graph = replace(kernels([NVJET, "gemm"], [132, 132], operator=[0, 0]), operators=(product(4096, 4096, 1024),))
    tasks = places(graph, computes=[True, True]).tasks
    loaded = 4096**2 * 1024 * 2 * (1 / 128 + 1 / 256)
    unit = PARAMETERS["unit_bytes_per_clock"] * H100.value("clock_mhz") * 1e6
    time = loaded / UNITS / (PARAMETERS["tile_load_ratio"] * unit) / 1e-4
    assert 0.1 < time < 0.97
    # The name of the second states no tile.
    np.testing.assert_allclose(tasks.memory_part, [time**3, PARAMETERS["memory_time_compute"] ** 3])
    l2 = loaded / 1e-4 / (PARAMETERS["l2_share_of_units"] * unit * UNITS)
    assert tasks.demand[0, L2] == pytest.approx(min(l2, PARAMETERS["l2_share_product_max"]))


def test_arithmetic_of_a_unit_is_shared_by_the_workgroups_in_flight() -> None:
    graph = kernels(["gemm", "gemm", "add"], [132, 528, 528], **{name: [1.0, 0.25, 0.25] for name in UNIT_COLUMNS})
    tasks = places(graph, computes=[True, True, False]).tasks
    load = PARAMETERS["unit_load_compute"]
    np.testing.assert_allclose(tasks.unit_compute, [load, load / 4, 0])


def test_a_softmax_needs_units_for_its_arithmetic() -> None:
    tasks = places(kernels(["softmax", "add"], [132, 132]), computes=[False, False]).tasks
    time = PARAMETERS["memory_time_softmax"]
    np.testing.assert_allclose(tasks.memory_part, [time**3, 1])
    np.testing.assert_allclose(tasks.demand[:, CU], [(1 - time**3) ** (1 / 3), 0])


def test_kernels_that_copy_over_the_link_spread_and_press() -> None:
    """Eight workgroups write 40 MB in 100 us: 50 GB/s each."""
    graph = kernels(["copy_add", "add"], [8, 8], link=[TO_HOST, -1], bytes=[40_000_000, 40_000_000])
    tasks = places(graph, computes=[False, False]).tasks
    assert tasks.spreads.tolist() == [True, False]
    np.testing.assert_allclose(tasks.pressure, [8 * PARAMETERS["pressure_host_write"], 0])
    assert tasks.unit_bandwidth[0] == pytest.approx(50 / PARAMETERS["unit_host_write_gbps"])
    assert tasks.memory_part.tolist() == [0, 1]


def test_a_kernel_starts_within_half_of_its_duration() -> None:
    tasks = places(kernels(["gemm", "gemm"], [1, 1], duration_ns=[1000.0, 1e6]), computes=[True, True]).tasks
    assert tasks.start_ns.tolist() == [500, PARAMETERS["kernel_start_ns"]]


@pytest.mark.parametrize(
    ("name", "threads", "registers", "lds_bytes"),
    [
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", 256, 168, 188_548),
        ("ampere_sgemm_128x64_nn", 128, 168, 0),
        ("ampere_sgemm_128x64_nn", 256, 224, 0),
        ("ampere_sgemm_128x64_nn", 64, 64, 0),
        ("sm80_xmma_gemm_f32f32", 256, 254, 0),
        ("sm80_xmma_gemm_f32f32", 128, 168, 0),
        ("gemvNSP_kernel", 256, 64, 0),
        ("gemmSN_TN_kernel", 128, 64, 0),
        ("softmax", 1024, 32, 0),
    ],
)
def test_a_name_tells_the_size_of_a_workgroup(name: str, threads: int, registers: int, lds_bytes: int) -> None:
    assert workgroup_of_name(name, threads) == Workgroup(384 if "nvjet" in name else threads, registers, lds_bytes)


def test_shares_of_a_unit_are_rounded_as_it_allocates() -> None:
    # 33 threads are 2 of 64 warps, 100 registers 3200 -> 3328 a warp; 1000 B and 1 KB make 16 x 128 B of 228 KB.
    shares = unit_shares(H100, 33, registers=100, lds_bytes=1000)
    np.testing.assert_allclose(shares, [2 / 64, 2 * 3328 / 65_536, 2048 / 233_472, 1 / 32])
    # Unknown registers take next to nothing, nothing takes more than the unit, and the A100 has 164 KB.
    without = unit_shares(None, [1024, 2048], registers=[np.nan, 255], lds_bytes=[0, 2**20])
    np.testing.assert_allclose(without, [[0.5, 1], [1e-9, 1], [1024 / 167_936, 1], [1 / 32] * 2])
