"""Cache what-ifs: what they re-time, what they leave, and how they go with others."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.kernels import CLASSES
from replay.costs.operators import batched_matmul
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.graph.graph import Basis, KernelGraph, hardware_named
from replay.graph.operators import rowwise, streaming
from replay.memory.graphs import simulated_kernels
from replay.what_ifs import parse_what_if

NOMINAL = load_parameters().with_values([("memory_simulation_accesses", 100_000)])
#: A row of 20,000 elements is read again from the L2, or from memory if nothing is kept.
OPERATORS = (
    rowwise("softmax", 120, 20_000),
    streaming("elementwise", 1_000_000, 1_000_000, 250_000),
    batched_matmul(1, 128, 128, 128),
)
SOFTMAX, ADD, PRODUCT, UNKNOWN = range(4)
#: Near the simulated times on an MI100, apart from the product.
DURATIONS = (40_000.0, 2_200.0, 20_000.0, 7_000.0)


def job(device: str = "MI100", duration_ns: tuple[float, ...] = DURATIONS) -> KernelGraph:
    """Return a softmax, a sum and a product of known shape, and a kernel of unknown operator."""
    softmax, elementwise, gemm = (CLASSES.index(name) for name in ("softmax", "elementwise", "gemm"))
    graph = make_graph(
        duration_ns,
        edges=[(0, 1), (1, 2), (2, 3)],
        class_=[softmax, elementwise, gemm, elementwise],
        operator=[-1, -1, 2, -1],
        memory_operator=[0, 1, -1, -1],
        dtype=[1] * 4,
        workgroups=[120, 0, 4, 90],
    )
    return replace(graph, hardware=hardware_named(find_device(device), "trace"), operators=OPERATORS)


def times(text: str, graph: KernelGraph | None = None) -> np.ndarray:
    return parse_what_if(text)(graph or job(), NOMINAL).tasks.duration_ns


def test_a_policy_retimes_kernels_of_known_operators_and_leaves_the_others() -> None:
    before, after = job().tasks.duration_ns, times("cache_policy:Uncached")
    assert after[SOFTMAX] > 1.03 * before[SOFTMAX]
    assert after[UNKNOWN] == before[UNKNOWN]
    basis = parse_what_if("cache_policy:Uncached")(job(), NOMINAL).tasks.basis
    assert basis[SOFTMAX] == Basis.MODELLED
    assert basis[UNKNOWN] == Basis.MEASURED


def test_the_simulated_time_is_exchanged_and_the_rest_stays() -> None:
    graph = job()
    after = parse_what_if("cache_policy:Uncached")(graph, NOMINAL)
    old, new = (simulated_kernels(each, NOMINAL).time_ns[SOFTMAX] for each in (graph, after))
    assert old < graph.tasks.duration_ns[SOFTMAX]
    assert after.tasks.duration_ns[SOFTMAX] - graph.tasks.duration_ns[SOFTMAX] == pytest.approx(new - old)
    quick = times("cache_policy:Uncached", job(duration_ns=(0.8 * old, 1000.0, 1000.0, 1000.0)))
    assert quick[SOFTMAX] == pytest.approx(0.8 * new)


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_a_kernel_whose_simulation_is_not_near_its_trace_keeps_its_time(factor: float) -> None:
    simulated = simulated_kernels(job(), NOMINAL).time_ns[SOFTMAX]
    far = (factor * simulated, *DURATIONS[1:])
    graph = parse_what_if("cache_policy:Uncached")(job(duration_ns=far), NOMINAL)
    assert graph.tasks.duration_ns[SOFTMAX] == far[SOFTMAX] and graph.tasks.basis[SOFTMAX] == Basis.MEASURED
    assert re.search(r" [35] % within a factor of 1.5 of the trace", graph.notes[-1])  # the sum alone


@pytest.mark.parametrize("text", ["cache_policy:Device", "scale_cache:L2:1", "scale_cache:L2:4+scale_cache:L2:0.25"])
def test_what_changes_nothing_is_an_identity(text: str) -> None:
    np.testing.assert_allclose(times(text), job().tasks.duration_ns, rtol=1e-9)


@pytest.mark.parametrize("text", ["cache_policy:Uncached", "memory_mapping:row", "simulated_caches"])
def test_twice_is_once(text: str) -> None:
    np.testing.assert_array_equal(times(f"{text}+{text}"), times(text))


def test_the_last_policy_counts() -> None:
    np.testing.assert_allclose(
        times("cache_policy:Uncached+cache_policy:CacheR"), times("cache_policy:CacheR"), rtol=1e-9
    )


@pytest.mark.parametrize(
    "texts",
    [
        ("cache_policy:CacheR", "scale_cache:L2:0.25"),
        ("cache_policy:CacheR", "memory_mapping:row"),
        ("cache_policy:Uncached", "scale_device:MI210"),
        ("scale_cache:L2:0.25", "scale_memory_bandwidth:2"),
        ("cache_policy:Uncached", "scale_clock:0.5"),
        ("simulated_caches", "cache_policy:Uncached"),
    ],
    ids="+".join,
)
def test_cache_what_ifs_commute_with_device_what_ifs(texts: tuple[str, str]) -> None:
    np.testing.assert_allclose(times("+".join(texts)), times("+".join(reversed(texts))), rtol=1e-9)


def test_a_larger_cache_slows_no_kernel_and_a_smaller_one_speeds_none_up() -> None:
    before = job().tasks.duration_ns
    assert (times("scale_cache:L2:8") <= 1.02 * before).all()
    assert (times("scale_cache:L2:0.02") >= 0.98 * before).all()
    assert times("scale_cache:L2:0.02")[SOFTMAX] > 1.03 * before[SOFTMAX]


def test_simulated_caches_share_by_the_footprint_of_the_operands() -> None:
    changed = parse_what_if("simulated_caches")(job(), NOMINAL)
    simulated = simulated_kernels(changed, NOMINAL)
    np.testing.assert_array_equal(changed.tasks.duration_ns, job().tasks.duration_ns)
    l2 = 8 * 2**20
    for row in (ADD, PRODUCT):
        assert changed.tasks.footprint[row] == pytest.approx(min(simulated.footprint[row] / l2, 1.0))
        assert changed.tasks.hit_share[row] == pytest.approx(min(simulated.hit_share[row], 0.99))
    assert simulated.footprint[ADD] == pytest.approx(2_000_000, rel=1e-3)


def test_simulated_caches_move_memory_bound_kernels_by_simulated_times() -> None:
    there = parse_what_if("simulated_caches+scale_device:MI210")(job(), NOMINAL)
    plain = parse_what_if("scale_device:MI210")(job(), NOMINAL)
    here = simulated_kernels(job(), NOMINAL).time_ns
    moved = simulated_kernels(replace(job(), hardware=there.hardware), NOMINAL).time_ns
    traced = job().tasks.duration_ns
    expected = moved[SOFTMAX] + traced[SOFTMAX] - here[SOFTMAX]
    assert there.tasks.duration_ns[SOFTMAX] == pytest.approx(expected)
    assert plain.tasks.duration_ns[SOFTMAX] != pytest.approx(expected)
    assert there.tasks.duration_ns[PRODUCT] == plain.tasks.duration_ns[PRODUCT]
    back = parse_what_if("simulated_caches+scale_device:MI210+scale_device:MI100")(job(), NOMINAL)
    np.testing.assert_allclose(back.tasks.duration_ns, traced, rtol=1e-9)


def test_the_note_has_the_covered_share_of_time() -> None:
    note = parse_what_if("cache_policy:Uncached")(job(), NOMINAL).notes[-1]
    assert note.startswith("cache_policy: 3 of 4 kernels, 90 % of the kernels' time, were simulated")
    unknown = replace(job(), operators=()).with_tasks(operator=np.full(4, -1), memory_operator=np.full(4, -1))
    assert "shapes of operators are missing" in parse_what_if("cache_policy:Uncached")(unknown, NOMINAL).notes[-1]


def test_the_changed_graph_replays() -> None:
    after = parse_what_if("cache_policy:Uncached")(job(), NOMINAL)
    assert replay(after).makespan_ns == pytest.approx(after.tasks.duration_ns.sum())


def test_a_policy_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('policies = [{ name = "Mine", loads = false, stores = false, about = "Nothing is kept." }]\n')
    np.testing.assert_array_equal(times(f"cache_policy:Mine:{file}"), times("cache_policy:Uncached"))
    assert parse_what_if(f"cache_policy:Mine:{file}").name == f"cache_policy:Mine:{file}"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("cache_policy:CacheRX", NotFoundError, "CacheR"),
        ("cache_policy:Mine:nowhere.toml", NotFoundError, "nowhere.toml"),
        ("scale_cache:L4:2", NotFoundError, "no cache is called 'L4'"),
        ("scale_cache:L2:0", InvalidInputError, "factor of 0"),
        ("memory_mapping:rorababg", InvalidInputError, "misses"),
        ("memory_mapping:rorabgbachcoxx", InvalidInputError, "no field 'xx'"),
    ],
)
def test_wrong_arguments_get_a_line(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_what_if(text)


def test_a_device_without_a_last_level_cache() -> None:
    with pytest.raises(InvalidInputError, match="MI100 has no last-level cache"):
        times("scale_cache:LLC:2")


def test_a_trace_without_a_device() -> None:
    graph = job()
    unnamed = replace(graph, hardware=replace(graph.hardware, device=None))
    with pytest.raises(InvalidInputError, match="does not say on which device"):
        times("cache_policy:Uncached", unnamed)
