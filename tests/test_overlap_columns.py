"""`replay.costs.products` and `replay.costs.products`: what the engine is told of products and collectives."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.costs.collectives import Topology
from replay.costs.products import (
    Product,
    Transfer,
    copy_columns,
    kernel_columns,
    product_columns,
    product_ns,
)
from replay.costs.shipped import load_parameters
from replay.engine.engine import simulate
from replay.graph.assembly import Assembly

MI300X = find_device("MI300X")
MESH = Topology(8, fabric="mesh")
SIZES = st.integers(1, 2**15)
SHARES = ("cu", "occupies", "hbm", "l2", "footprint")


@given(SIZES, SIZES, SIZES, st.sampled_from(["MI300X", "A100-SXM4-80GB", "H100 SXM"]))
def test_any_product_is_something_that_the_engine_takes(m: int, n: int, k: int, name: str) -> None:
    product = Product(m, n, k, find_device(name))
    columns = product_columns(product, parameters=load_parameters())
    assert all(0 <= columns[share] <= 1 for share in SHARES)
    assert 0 <= columns["hit_share"] < 1
    assert columns["cu"] <= columns["occupies"] == min(product.workgroups / product.device.compute_units, 1)
    work = Assembly()
    work.tasks("product", work.lane(device=0), columns)
    assert simulate(work.graph())[1][0] == pytest.approx(columns["duration_ns"])


@given(SIZES, SIZES, SIZES, st.integers(1, 304))
def test_fewer_units_never_make_a_compute_bound_product_faster(m: int, n: int, k: int, units: int) -> None:
    product = Product(m, n, k, MI300X)
    parameters = load_parameters().with_values([("memory_bound_spared_gain", 0.0)])
    part = product_ns(replace(product, units=units), parameters)
    assert part >= product_ns(product, parameters) * (1 - 1e-12)


def test_a_tile_for_every_part_of_the_result() -> None:
    product = Product(4096, 57344, 8192, MI300X)
    rows, columns, parts = product.grid
    assert product.workgroups == ceil(4096 / rows) * ceil(57344 / columns) * parts
    assert product_columns(product, parameters=load_parameters())["waves"] == product.workgroups / 304


def test_memory_delivers_what_the_operands_are_at_least() -> None:
    product = Product(128, 57344, 8192, MI300X)
    columns, least = product_columns(product, parameters=load_parameters()), sum(product.operand_bytes)
    delivered = MI300X.memory_bytes_per_s * load_parameters()["memory_efficiency_mixed"]
    moved = columns["hbm"] * columns["duration_ns"] / 1e9 * delivered
    assert columns["hbm"] == 1.0 or moved >= least * (1 - 1e-9)
    compute = Product(8192, 8192, 8192, MI300X)
    columns = product_columns(compute, parameters=load_parameters())
    assert columns["hbm"] * columns["duration_ns"] / 1e9 * delivered >= sum(compute.operand_bytes) * (1 - 1e-9)


def test_flop_per_byte_against_the_ridge() -> None:
    # 1307.4 TFLOPS over 5.3 TB/s are 246.7 FLOP/byte; a product of few rows has about as many as rows.
    assert Product(128, 57344, 8192, MI300X).memory_bound
    assert not Product(2048, 57344, 8192, MI300X).memory_bound
    assert Product(245, 10**6, 10**6, MI300X).memory_bound and not Product(248, 10**6, 10**6, MI300X).memory_bound


@pytest.mark.parametrize("sizes", [{"m": 0}, {"units": 305}, {"units": -1}])
def test_a_product_that_cannot_be(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        Product(**{"m": 8, "n": 8, "k": 8, **sizes}, device=MI300X)


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_what_is_sent_is_read_and_what_comes_is_written(kind: str) -> None:
    one = Transfer(kind, 8e9, MESH, MI300X)
    assert one.sent_bytes == 7e9 and one.memory_bytes == 14e9
    parameters = load_parameters().with_values([("memory_efficiency_mixed", 1.0), ("collective_kernel_passes", 1.0)])
    columns = kernel_columns(one, parameters)
    assert columns["hbm"] * columns["duration_ns"] / 1e9 * MI300X.memory_bytes_per_s == pytest.approx(14e9)


def test_a_reduce_scatter_reads_again_what_came() -> None:
    # Each of 8 sends 7 parts, and adds 7 that came to its own: 7 + 7 written + 7 read + 1 read + 1 written.
    assert Transfer("reduce_scatter", 8e9, MESH, MI300X).memory_bytes == 23e9


@given(st.floats(1e3, 1e11), st.integers(2, 8))
def test_copies_take_a_latency_and_their_bytes_over_the_link_of_a_pair(size: float, workers: int) -> None:
    one = Transfer("all_to_all", size, Topology(workers, node_devices=8, fabric="mesh"), MI300X)
    parameters = load_parameters()
    # A link of 64 GB/s carries 48; each copy goes over its own.
    expected = parameters["dma_latency_ns"] + size / workers / 48
    assert copy_columns(one, parameters)["duration_ns"] == pytest.approx(expected, rel=1e-9, abs=1e-2)


def test_copies_leave_the_compute_units_alone() -> None:
    columns = copy_columns(Transfer("all_gather", 1e9, MESH, MI300X), parameters=load_parameters())
    assert "cu" not in columns and columns["link"] == pytest.approx(1 / 7)
    with pytest.raises(InvalidInputError, match="adds, which DMA engines cannot"):
        copy_columns(Transfer("reduce_scatter", 1e9, MESH, MI300X), parameters=load_parameters())


def test_two_collectives_on_the_same_links_take_twice_as_long() -> None:
    one = Transfer("all_gather", 1e9, MESH, MI300X)
    work = Assembly()
    for stream in (0, 1):
        work.tasks("all_gather", work.lane(device=0, stream=stream), kernel_columns(one, parameters=load_parameters()))
    assert np.allclose(simulate(work.graph())[1], 2 * kernel_columns(one, parameters=load_parameters())["duration_ns"])


@pytest.mark.parametrize(
    ("kind", "size", "topology"),
    [
        ("broadcast", 1e6, MESH),
        ("all_gather", 0.0, MESH),
        ("all_gather", float("nan"), MESH),
        ("all_gather", 1e6, Topology(1)),
        ("all_gather", 1e6, Topology(16, 8)),
    ],
)
def test_a_transfer_that_cannot_be(kind: str, size: float, topology: Topology) -> None:
    with pytest.raises(InvalidInputError):
        Transfer(kind, size, topology, MI300X)
