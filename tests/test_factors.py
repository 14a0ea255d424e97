"""Assumed factors commute with what-ifs that re-time tasks: floors apply to the durations of the trace."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given
from hypothesis import strategies as st

from profilers.devices.catalogue import find_device
from profilers.trace.kernels import CLASSES
from replay.costs.shipped import load_parameters
from replay.graph.graph import COLLECTIVE_KINDS, COPY_DIRECTIONS, KernelGraph, TaskKind, hardware_named
from replay.graph.operators import batched_matmul
from replay.what_ifs import parse_what_if

NOMINAL = load_parameters()
_KERNEL_CLASSES = ("gemm", "elementwise", "attention", "optimizer")
FACTORS = (
    *(f"scale_kernels:{tasks}" for tasks in ("all", "gemm", "copies", "collectives", "*kernel*")),
    *("swap_kernel:all", "swap_kernel:collectives=all_gather"),
)
RETIMED = (
    *("scale_clock:0.5", "scale_memory_bandwidth:2", "scale_compute_units:0.5", "scale_device:H100-SXM5-80GB"),
    *("scale_device:MI300X", "scale_links:0.25", "change_dtype:bf16->fp32", "dma_collectives", "limit_power:0.5"),
    *("change_world_size:16", "scale_host:0.5", "fuse:elementwise", "overlap:no_contention", "cu_order:fair"),
)


@st.composite
def graphs(draw: st.DrawFn) -> KernelGraph:
    """Return a chain of kernels, copies and collectives on an A100, from far below a floor to far above."""
    n = draw(st.integers(2, 8))
    kind = draw(
        st.lists(st.sampled_from([TaskKind.KERNEL] * 3 + [TaskKind.COPY, TaskKind.COLLECTIVE]), min_size=n, max_size=n)
    )
    label = draw(st.lists(st.sampled_from([CLASSES.index(name) for name in _KERNEL_CLASSES]), min_size=n, max_size=n))
    is_collective = [each == TaskKind.COLLECTIVE for each in kind]
    graph = make_graph(
        draw(st.lists(st.floats(200.0, 1e6), min_size=n, max_size=n)),
        demands=[(0.9, 0.4, 0.2, 0.0)] * n,
        edges=[(i, i + 1) for i in range(n - 1)],
        kind=kind,
        class_=[c if k == TaskKind.KERNEL else -1 for k, c in zip(kind, label, strict=True)],
        operator=[
            0 if k == TaskKind.KERNEL and c == CLASSES.index("gemm") else -1 for k, c in zip(kind, label, strict=True)
        ],
        bytes=[0 if k == TaskKind.KERNEL else 2**20 for k in kind],
        dtype=[2] * n,
        workgroups=draw(st.lists(st.integers(0, 300), min_size=n, max_size=n)),
        collective=[COLLECTIVE_KINDS.index("all_gather") if each else -1 for each in is_collective],
        ranks=[8 if each else 0 for each in is_collective],
        direction=[COPY_DIRECTIONS.index("DtoD") if k == TaskKind.COPY else -1 for k in kind],
    )
    device = hardware_named(find_device("A100-SXM4-80GB"), "trace")
    return replace(graph, hardware=device, operators=(batched_matmul(1, 512, 256, 128, 2),))


@pytest.mark.parametrize("retimed", RETIMED)
@given(graphs(), st.sampled_from(FACTORS), st.sampled_from([0.0, 0.01, 0.5, 3.0]))
def test_a_factor_before_or_after_a_model_is_the_same(
    retimed: str, graph: KernelGraph, chosen: str, factor: float
) -> None:
    if retimed.startswith("change_world_size") and not (graph.tasks.ranks > 0).any():
        return
    first, second = parse_what_if(f"{chosen}:{factor}"), parse_what_if(retimed)
    one, other = second(first(graph, NOMINAL), NOMINAL), first(second(graph, NOMINAL), NOMINAL)
    if "fuse" in retimed and one.tasks.class_.tolist() != other.tasks.class_.tolist():
        return
    np.testing.assert_allclose(one.tasks.duration_ns, other.tasks.duration_ns, rtol=1e-9)
    if factor:
        np.testing.assert_allclose(one.tasks.demand, other.tasks.demand, rtol=1e-9)
    np.testing.assert_array_equal(
        one.tasks.basis[one.tasks.duration_ns > 0], other.tasks.basis[other.tasks.duration_ns > 0]
    )


@given(graphs(), st.sampled_from(FACTORS), st.sampled_from(FACTORS))
def test_two_factors_commute(graph: KernelGraph, first: str, second: str) -> None:
    one, other = (
        parse_what_if(text)(graph, NOMINAL) for text in (f"{first}:0.5+{second}:3", f"{second}:3+{first}:0.5")
    )
    np.testing.assert_allclose(one.tasks.duration_ns, other.tasks.duration_ns, rtol=1e-12)


def test_floors_apply_to_the_durations_of_the_trace() -> None:
    """A streaming kernel of 10 us, 2 of them floor: twice the bandwidth gives 2 + 8 / 2 = 6 us; half of that is 3."""
    graph = make_graph([10_000.0], class_=[CLASSES.index("elementwise")])
    graph = replace(graph, hardware=hardware_named(find_device("A100-SXM4-80GB"), "trace"))
    for text in ("scale_kernels:all:0.5+scale_memory_bandwidth:2", "scale_memory_bandwidth:2+scale_kernels:all:0.5"):
        assert parse_what_if(text)(graph, NOMINAL).tasks.duration_ns.tolist() == pytest.approx([3_000])


def test_a_given_duration_has_no_factor() -> None:
    """Half of a given 8 us is 4 us; a given 8 us replaces whatever was half of the old duration."""
    graph = make_graph([10_000.0, 10_000.0], class_=[CLASSES.index("gemm"), CLASSES.index("elementwise")])
    times = [
        parse_what_if(text)(graph, NOMINAL).tasks
        for text in ("swap_kernel:gemm:8us+scale_kernels:all:0.5", "scale_kernels:all:0.5+swap_kernel:gemm:8us")
    ]
    assert [each.duration_ns.tolist() for each in times] == [[4_000, 5_000], [8_000, 5_000]]
    assert [each.factor.tolist() for each in times] == [[0.5, 0.5], [1, 0.5]]
