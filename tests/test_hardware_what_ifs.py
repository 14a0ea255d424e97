"""What-ifs on devices and links: any order, only what bytes need, and cases worked out by hand."""

import csv
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import transformer

from profilers.devices.catalogue import DTYPES, find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.trace import save_trace
from profilers.trace.kernels import CLASSES
from replay.costs.collectives import Topology, load_collectives, predict_collective
from replay.costs.host import HostCosts, load_host_costs
from replay.costs.operators import attention, batched_matmul
from replay.costs.shipped import load_parameters
from replay.costs.wire_time import collective_models, group_ranks, group_topology, waits_apart
from replay.graph.graph import COLLECTIVE_KINDS, Basis, EdgeKind, KernelGraph, Network, TaskKind, hardware_named
from replay.what_ifs import parse_what_if, with_host
from seqpoint.cli import cli

ROOT = Path(__file__).parents[1]
NOMINAL = load_parameters()
TYPES = tuple(DTYPES)
OPERATORS = (batched_matmul(1, 4096, 4096, 512, 2), attention((8, 12, 512, 64), (12, 512), causal=True))
DEVICE_WHAT_IFS = (
    *("scale_clock:0.5", "scale_clock:1.7", "scale_compute_units:0.3", "scale_memory_bandwidth:1.5"),
    *("scale_device:MI300X", "scale_device:H100-SXM5-80GB", "scale_links:0.5", "limit_power:0.4", "limit_power:0.8"),
)
KERNEL, COPY, COLLECTIVE = TaskKind.KERNEL, TaskKind.COPY, TaskKind.COLLECTIVE
ALL_REDUCE, UNKNOWN = COLLECTIVE_KINDS.index("all_reduce"), COLLECTIVE_KINDS.index("unknown")


def applied(text: str, graph: KernelGraph, parameters=NOMINAL) -> KernelGraph:
    return parse_what_if(text)(graph, parameters)


def job(device: str = "A100-SXM4-80GB", scale: float = 1.0) -> KernelGraph:
    """Return products, attention, streaming kernels, a copy, and collectives: in a node, beyond it, of unknown size."""
    gemm, fused, pointwise, collective = (
        CLASSES.index(name) for name in ("gemm", "attention", "elementwise", "collective")
    )
    reduce_scatter = COLLECTIVE_KINDS.index("reduce_scatter")
    graph = make_graph(
        [scale * ns for ns in (9e5, 5e4, 3e3, 2e5, 1e3, 4e5, 2e6, 1.17e6, 8e6, 3e5, 5e4)],
        demands=[(0.9, 0.3)] * 5 + [(0.0, 0.7)] + [(0.1, 0.15, 1.0)] * 5,
        kind=[KERNEL] * 5 + [COPY] + [COLLECTIVE] * 5,
        class_=[gemm, gemm, fused, pointwise, pointwise, -1, *[collective] * 5],
        operator=[0, -1, 1, *[-1] * 8],
        dtype=[3, 1, 3, 1, -1, -1, 1, 1, 3, -1, -1],
        workgroups=[0, 60, 900, 70_000, 3, 0, *[16] * 5],
        bytes=[0, 0, 0, 0, 0, 2**28, 2**26, 256, 2**28, 0, 2**20],
        collective=[-1] * 6 + [ALL_REDUCE, reduce_scatter, ALL_REDUCE, UNKNOWN, ALL_REDUCE],
    ).with_tasks(ranks=np.array([0] * 6 + [8, 8, 64, 8, 1]))
    return replace(graph, hardware=hardware_named(find_device(device), "trace"), operators=OPERATORS)


# -- any order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [*combinations(DEVICE_WHAT_IFS, 2)], ids="+".join)
def test_device_what_ifs_commute(pair: tuple[str, str]) -> None:
    graph = job()
    if all(text.startswith("scale_device") for text in pair):
        pair = (pair[0] + "+" + pair[1], pair[1])  # the last device counts
        first, second = (applied(text, graph) for text in pair)
    else:
        first, second = applied("+".join(pair), graph), applied("+".join(reversed(pair)), graph)
    np.testing.assert_allclose(first.tasks.duration_ns, second.tasks.duration_ns, rtol=1e-9)
    np.testing.assert_allclose(first.tasks.demand, second.tasks.demand, rtol=1e-9, atol=1e-12)
    assert first.hardware.compute_units == second.hardware.compute_units
    if not any(text.startswith(("limit_power", "scale_device")) for text in pair):
        np.testing.assert_array_equal(first.tasks.basis, second.tasks.basis)
    assert (first.tasks.duration_ns != graph.tasks.duration_ns).any()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(DEVICE_WHAT_IFS), min_size=2, max_size=4, unique_by=lambda text: text.split(":")[0]),
    st.randoms(use_true_random=False),
    st.floats(min_value=0.01, max_value=30.0),
    st.integers(min_value=0, max_value=1000),
)
def test_device_what_ifs_commute_under_every_draw(texts: list[str], random, scale: float, seed: int) -> None:
    drawn, shuffled = NOMINAL.drawn(np.random.default_rng(seed)), random.sample(texts, len(texts))
    first, second = (applied("+".join(order), job(scale=scale), drawn) for order in (texts, shuffled))
    np.testing.assert_allclose(first.tasks.duration_ns, second.tasks.duration_ns, rtol=1e-9)
    np.testing.assert_allclose(first.tasks.demand, second.tasks.demand, rtol=1e-9, atol=1e-12)


def test_a_factor_before_another_device_applies_to_that_device() -> None:
    graph = job()
    moved, slower = applied("scale_device:MI300X", graph), applied("scale_clock:0.5+scale_device:MI300X", graph)
    assert slower.hardware.device is not None and moved.hardware.device is not None
    assert slower.hardware.device.value("clock_mhz") == moved.hardware.device.value("clock_mhz") / 2
    floor = NOMINAL["product_floor_amd_ns"]
    before, after = moved.tasks.duration_ns[1], slower.tasks.duration_ns[1]
    assert after == pytest.approx(floor + 2 * (before - floor))


@pytest.mark.parametrize("there", ["scale_links:4", "limit_power:0.5", "scale_device:MI300X", "scale_clock:3"])
def test_there_and_back_restores_durations(there: str) -> None:
    graph, (name, value) = job(), there.split(":")
    back = "A100-SXM4-80GB" if name == "scale_device" else repr(1 / float(value))
    restored = applied(f"{there}+{name}:{back}", graph)
    np.testing.assert_allclose(restored.tasks.duration_ns, graph.tasks.duration_ns, rtol=1e-9)
    assert (applied(there, graph).tasks.duration_ns != graph.tasks.duration_ns).any()


def test_power_limits_multiply() -> None:
    once, twice = applied("limit_power:0.25", job()), applied("limit_power:0.5+limit_power:0.5", job())
    np.testing.assert_allclose(once.tasks.duration_ns, twice.tasks.duration_ns, rtol=1e-12)


# -- only what bytes need ---------------------------------------------------------------------------------------------


def test_half_the_links_double_what_the_bytes_need_and_no_wait() -> None:
    graph = job()
    found = applied("scale_links:0.5", graph).tasks.duration_ns
    device, fits = find_device("A100-SXM4-80GB"), load_collectives()
    large, half = 1e9 * predict_collective("all_reduce", [2**30, 2**29], Topology(8), device, fits).seconds
    wire = 2**26 * (large - half) / 2**29
    assert 2 * 7 / 8 * 2**26 / 300 < wire < 2 * 7 / 8 * 2**26 / 200  # 200 to 300 GB/s
    assert found[6] == pytest.approx(2e6 + wire)
    assert 1.17e6 <= found[7] < 1.17e6 * 1.001  # 256 bytes in 1.17 ms: all of it is waiting
    assert found[10] == 5e4  # a group of one rank sends nothing
    np.testing.assert_array_equal(found[:6], graph.tasks.duration_ns[:6])


def test_a_collective_shorter_than_its_model_scales_in_proportion() -> None:
    graph = job()
    device, fits = find_device("A100-SXM4-80GB"), load_collectives()
    whole = 1e9 * predict_collective("all_reduce", [2**26], Topology(8), device, fits).seconds[0]
    wire = collective_models(graph, NOMINAL).wire_ns[6]
    short = graph.with_tasks(duration_ns=np.where(np.arange(11) == 6, whole / 2, graph.tasks.duration_ns))
    found = applied("scale_links:0.5", short).tasks.duration_ns[6]
    assert found == pytest.approx((whole + wire) / 2)


def test_unknown_bytes_are_a_stated_and_bounded_assumption() -> None:
    graph, latency = job(), NOMINAL["collective_latency_ns"]
    for share in (0.0, 0.5, 1.0):
        parameters = NOMINAL.with_values([("collective_wire_share_waiting", share)])
        changed = applied("scale_links:0.5", graph, parameters)
        assert changed.tasks.duration_ns[9] == pytest.approx(3e5 + share * (3e5 - latency))
        assert changed.tasks.basis[9] == (Basis.ASSUMED if share else Basis.MEASURED)
    assert "10 % of the time above 20 us is taken for the bytes" in applied("scale_links:0.5", graph).notes[-1]


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("all_reduce", 1.0), ("all_gather", 0.5), ("reduce_scatter", 0.5)],
)
def test_known_bytes_of_an_unknown_group_need_the_time_of_two_ranks_at_least(kind: str, sent: float) -> None:
    """A GiB on links of 300 GB/s, with the share of these that measured groups reach."""
    graph = make_graph([3e7], kind=[COLLECTIVE], collective=[COLLECTIVE_KINDS.index(kind)], bytes=[2**30])
    graph = replace(graph, hardware=hardware_named(find_device("A100-SXM4-80GB"), "trace"))
    changed = applied("scale_links:0.5", graph)
    assert (
        sent * 2**30 / 300 < changed.tasks.duration_ns[0] - 3e7 < 2.1 * sent * 2**30 / 300
    )  # two ranks gather at half of the rate
    assert changed.tasks.basis[0] == Basis.ASSUMED
    assert "1 do not name their group, for which two ranks, which need least, are taken" in " ".join(changed.notes)
    back = applied("scale_links:2", changed)
    assert back.tasks.duration_ns[0] == pytest.approx(3e7)


def test_all_ranks_of_the_job_are_taken_for_an_unknown_group() -> None:
    graph = make_graph([3e7], kind=[COLLECTIVE], collective=[ALL_REDUCE], bytes=[2**30])
    graph = replace(graph, hardware=hardware_named(find_device("A100-SXM4-80GB"), "trace"), world_size=8)
    named = graph.with_tasks(ranks=np.array([8]))
    after, expected = applied("scale_links:0.5", graph), applied("scale_links:0.5", named)
    assert after.tasks.duration_ns[0] == expected.tasks.duration_ns[0]
    assert (after.tasks.basis[0], expected.tasks.basis[0]) == (Basis.ASSUMED, Basis.DERIVED)
    assert "1 do not name their group, for which all 8 ranks of the job are taken" in after.notes[-1]
    assert "group" not in expected.notes[-1]


def test_a_drawn_share_of_wire_time_is_never_more_than_all() -> None:
    names = ("collective_wire_share", "collective_wire_share_waiting")
    draws = [NOMINAL.drawn(np.random.default_rng(seed)) for seed in range(300)]
    assert all(0 < draw[name] < 1 for draw in draws for name in names)
    assert all(applied("scale_links:1e3", job(), draw).tasks.duration_ns[9] > 0 for draw in draws[:50])


def test_collectives_beyond_a_node_go_by_the_network_of_the_other_device() -> None:
    """A node of A100 has 8 adapters of 25 GB/s, one of H100 8 of 50; the links have 300 and 450 GB/s."""
    graph = job()
    models = collective_models(graph, NOMINAL)
    found = applied("scale_device:H100-SXM5-80GB", graph).tasks.duration_ns
    assert found[8] == pytest.approx(8e6 - models.wire_ns[8] * (1 - 25 / 50))
    assert found[6] == pytest.approx(2e6 - models.wire_ns[6] * (1 - 300 / 450))
    assert found[7] == pytest.approx(1.17e6, rel=1e-3)


def test_another_clock_leaves_collectives() -> None:
    np.testing.assert_array_equal(applied("scale_clock:0.5", job()).tasks.duration_ns[6:], job().tasks.duration_ns[6:])


def test_ranks_that_meet_in_the_graph_tell_the_size_of_their_group() -> None:
    """Two ranks meet at a mark; the trace does not say how many take part."""
    mark = TaskKind.MARK
    graph = make_graph(
        [0.0, 0.0, 0.0, 2e6, 2e6],
        edges=[(0, 2), (1, 2), (2, 3), (2, 4)],
        kind=[mark, mark, mark, COLLECTIVE, COLLECTIVE],
        collective=[-1, -1, -1, ALL_REDUCE, ALL_REDUCE],
        bytes=[0, 0, 0, 2**26, 2**26],
    )
    edges = replace(graph.edges, kind=np.full(4, int(EdgeKind.RENDEZVOUS)))
    graph = replace(graph, edges=edges, hardware=hardware_named(find_device("A100-SXM4-80GB"), "trace"))
    assert group_ranks(graph).tolist() == [0, 0, 0, 2, 2] and waits_apart(graph).tolist() == [False] * 3 + [True] * 2
    assert collective_models(graph, NOMINAL).is_known[3:].all()
    part = replace(graph, world_size=128)  # most ranks of the job are absent, so those that meet are not the group
    assert not group_ranks(part).any() and not waits_apart(part).any()
    larger = applied("change_world_size:8", graph)
    assert larger.notes[-1] == "change_world_size: 2 of 2 collectives, from 2 ranks"
    assert larger.tasks.ranks.tolist() == [0, 0, 0, 8, 8]


def test_a_trace_without_device_scales_its_links_by_the_assumption_alone() -> None:
    graph = make_graph([1.2e5], kind=[COLLECTIVE], collective=[ALL_REDUCE], bytes=[2**26])
    changed = applied("scale_links:2", graph.with_tasks(ranks=np.array([8])))
    assert changed.tasks.duration_ns[0] == pytest.approx(2e4 + 1e5 * (1 - 0.1 / 2))
    assert "names no device (--device NAME)" in " ".join(changed.notes)


# -- data types -------------------------------------------------------------------------------------------------------


def test_collectives_of_the_type_move_fewer_bytes() -> None:
    graph = job()
    changed = applied("change_dtype:fp32->bf16", graph)
    device, fits = find_device("A100-SXM4-80GB"), load_collectives()
    old, new = 1e9 * predict_collective("all_reduce", [2**26, 2**25], Topology(8), device, fits).seconds
    assert changed.tasks.bytes[6:].tolist() == [2**25, 128, 2**28, 0, 2**20]
    assert changed.tasks.duration_ns[6] == pytest.approx(2e6 - old + new)
    assert changed.tasks.duration_ns[8] == 8e6


def test_what_a_type_change_leaves_out_is_counted_by_reason() -> None:
    graph = job().with_tasks(dtype=np.array([2, 1, 3, 1, -1, -1, 1, 1, 3, -1, -1]))
    notes = applied("change_dtype:fp32->bf16", graph).notes
    assert notes[-3].startswith("change_dtype: 2 kernels and 2 collectives in fp32")
    assert notes[-2].startswith("change_dtype: 1 products of fp32 operands in tf32 stay, 78 % of the time of kernels")
    assert notes[-2].endswith("change_dtype:tf32->bf16 changes these")
    assert notes[-1] == "change_dtype: 1 kernels of unknown data type stay, 0 % of the time of kernels"


def test_a_type_change_leaves_tasks_of_other_types() -> None:
    """Waves and footprints of tasks are not those that the model gives: they were measured beside others."""
    graph = job().with_tasks(waves=np.full(11, 0.25), footprint=np.full(11, 0.5), hit_share=np.full(11, 0.1))
    absent = applied("change_dtype:fp16->bf16", graph)
    assert absent.replays_like(graph)
    assert absent.notes[-2].startswith("change_dtype: 0 kernels in fp16")
    after, before = applied("change_dtype:fp32->bf16", graph).tasks, graph.tasks
    others = before.dtype != TYPES.index("fp32")
    assert 0 < others.sum() < len(others)
    for name in ("duration_ns", "bytes", "waves", "footprint", "hit_share", "occupies", "demand", "operator"):
        np.testing.assert_array_equal(getattr(after, name)[others], getattr(before, name)[others], err_msg=name)


@pytest.mark.parametrize("other", ["scale_device:H100-SXM5-80GB", "scale_clock:0.7", "scale_links:3"])
def test_a_type_change_commutes_with_devices(other: str) -> None:
    types = "change_dtype:bf16->fp32"
    first, second = applied(f"{types}+{other}", job()), applied(f"{other}+{types}", job())
    np.testing.assert_allclose(first.tasks.duration_ns, second.tasks.duration_ns, rtol=1e-9)
    np.testing.assert_allclose(first.tasks.demand, second.tasks.demand, rtol=1e-9, atol=1e-12)


def test_products_that_another_device_may_compute_in_tf32_are_named() -> None:
    note = applied("scale_device:A100", job("V100")).notes[-1]
    assert note.startswith("scale_device: 1 products in fp32, 0 % of the time of devices, stay in fp32; A100")
    assert note.endswith("+change_dtype:fp32->tf32")
    assert not any("TF32" in note for note in applied("scale_device:H100", job("A100")).notes)
    assert not any("TF32" in note for note in applied("scale_device:V100-SXM2-32GB", job("V100")).notes)


# -- nodes and their network ------------------------------------------------------------------------------------------


def all_reduce(n_bytes: int, device: str = "H100-SXM5-80GB", ranks: int = 8) -> KernelGraph:
    graph = make_graph([5e6], kind=[COLLECTIVE], collective=[ALL_REDUCE], bytes=[n_bytes])
    graph = graph.with_tasks(ranks=np.array([ranks]))
    return replace(graph, hardware=hardware_named(find_device(device), "trace"))


def test_beyond_a_node_the_ring_goes_by_the_adapters_of_the_node() -> None:
    """A ring of 64 ranks moves 2 * 63/64 of 4 GiB; 4 adapters of 12.5 GB/s carry 48 GB/s by NCCL's table."""
    slow = collective_models(applied("change_world_size:64:8:4:12.5", all_reduce(2**32)), NOMINAL)
    assert slow.wire_ns[0] == pytest.approx(2 * 63 / 64 * 2**32 / 48e9 * 1e9, rel=0.02)
    usual = collective_models(applied("change_world_size:64", all_reduce(2**32)), NOMINAL)
    # 8 adapters of 50 GB/s carry 384 GB/s, the links of a device 450 * 0.824 = 371 of these, measured groups 362.
    assert usual.wire_ns[0] == pytest.approx(2 * 63 / 64 * 2**32 / 370.8e9 * 1e9, rel=0.05)


def test_the_note_says_which_network_is_assumed() -> None:
    notes = [
        applied(text, all_reduce(2**26)).notes[-1] for text in ("change_world_size:64", "change_world_size:64:8:4")
    ]
    assert "8 adapters of 400 Gbit/s in each node of 8 devices (the catalogue's node of this device)" in notes[0]
    assert "4 adapters of 400 Gbit/s" in notes[1] and "adapters as given" in notes[1]
    unlisted = applied("change_world_size:64", all_reduce(2**26, "RTX 4090")).notes[-1]
    assert "8 adapters of 100 Gbit/s in each node of 8 devices (assumed: one for each device" in unlisted
    assert "Gbit" not in applied("change_world_size:4", all_reduce(2**26)).notes[-1]


def test_an_argument_that_no_network_has_is_an_error() -> None:
    for text in ("change_world_size:64:8:-1", "change_world_size:64:8:4:-2", "change_world_size:64:8:4:nan"):
        with pytest.raises(InvalidInputError, match=r"adapters of|is no"):
            parse_what_if(text)
    assert parse_what_if("change_world_size:64:8:4:12.5").name == "change_world_size:64:8:4:12.5"
    assert parse_what_if("change_world_size:64:8:0:0").name == "change_world_size:64"


def test_a_group_that_fills_no_nodes_takes_what_divides_it() -> None:
    device = find_device("A100-SXM4-80GB")
    assert (group_topology(12, device, Network()).devices_per_node, group_topology(6, device, Network()).nodes) == (
        6,
        1,
    )


# -- the host of another device ---------------------------------------------------------------------------------------


def host_job() -> KernelGraph:
    """Return a call of 3 us, 7 us on the host, a call of 5 us, and the kernel that it launches."""
    host = TaskKind.HOST
    graph = make_graph([3e3, 5e3, 1e4], edges=[(0, 1, 7e3), (1, 2, 1e3)], kind=[host, host, KERNEL], device=[-1, -1, 0])
    edges = replace(graph.edges, kind=np.array([EdgeKind.HOST, EdgeKind.LAUNCH]))
    return replace(graph, edges=edges, hardware=hardware_named(find_device("H100-SXM5-80GB"), "trace"))


def host_ns(graph: KernelGraph) -> float:
    return float(graph.tasks.duration_ns[:2].sum() + graph.edges.lag_ns[graph.edges.kind == EdgeKind.HOST].sum())


@pytest.mark.parametrize(
    ("host", "ratio", "expected"),
    [("", 1.0, 15e3), ("", 1.2, 18e3), (":keep", 1.2, 15e3), (":0.8", 1.2, 12e3)],
)
def test_the_host_of_another_device(host: str, ratio: float, expected: float) -> None:
    parameters = NOMINAL.with_values([("host_machine_ratio", ratio)])
    changed = applied(f"scale_device:MI300X{host}", host_job(), parameters)
    assert host_ns(changed) == pytest.approx(expected)
    assert changed.edges.lag_ns[1] == 1e3  # the lag from a call to its kernel is no host time
    assert changed.notes[-1].startswith("scale_device: ")


def test_a_device_as_host_scales_by_what_launches_cost() -> None:
    costs = HostCosts({"H100-SXM5-80GB": (4.0, 5.0, 9.0), "MI300X": (3.0, 5.0)})
    changed = applied("scale_device:MI300X:MI300X", host_job(), NOMINAL.with_calibration(costs))
    assert host_ns(changed) == pytest.approx(15e3 * 4 / 5)
    assert "a launch typically takes 4 us on machines with MI300X, 5 us with H100" in " ".join(changed.notes)
    with pytest.raises(NotFoundError, match="was not measured on a machine with T4, only with A100"):
        applied("scale_device:MI300X:T4", host_job())


def test_the_host_of_the_last_device_counts_and_the_way_back_restores_it() -> None:
    parameters = NOMINAL.with_values([("host_machine_ratio", 1.2)])
    assert host_ns(applied("scale_device:MI300X:0.5+scale_device:V100", host_job(), parameters)) == pytest.approx(18e3)
    back = applied("scale_device:MI300X+scale_device:H100-SXM5-80GB", host_job(), parameters)
    assert host_ns(back) == pytest.approx(15e3)
    assert applied("scale_device:H100-SXM5-80GB", host_job(), parameters).notes == ()


@pytest.mark.parametrize("host", ["0", "-1", "nan", "1e9", "MI30", "later"])
def test_a_host_that_is_nothing_is_one_clear_line(host: str) -> None:
    with pytest.raises(SeqPointError, match=r"give one from 0\.001 to 1000|is not keep, no factor, and no device"):
        parse_what_if(f"scale_device:MI300X:{host}")


def test_one_host_for_every_device_of_a_call() -> None:
    texts = ("scale_device:MI300X+scale_links:2", "scale_device:V100:keep", "scale_links:2")
    titled = replace(parse_what_if(texts[0]), title="AMD", parameters=(("dma_command_ns", 3000.0),))
    found = with_host([titled, *map(parse_what_if, texts[1:])], "0.7")
    assert [what_if.name for what_if in found] == [
        "scale_device:MI300X:0.7+scale_links:2",
        "scale_device:V100-SXM2-16GB:keep",
        "scale_links:2",
    ]
    assert (found[0].title, found[0].parameters) == ("AMD", (("dma_command_ns", 3000.0),))
    with pytest.raises(InvalidInputError, match="no what-if has a scale_device without a host"):
        with_host([parse_what_if("scale_links:2")], "keep")


def test_shipped_costs_of_launches_name_devices_of_the_catalogue() -> None:
    costs = load_host_costs()
    assert {find_device(name).name for name in costs.launch_us} == set(costs.launch_us)
    assert 3 < costs.typical_us(find_device("MI300X")) < costs.typical_us(find_device("V100-SXM2-16GB"))


def test_the_command_gives_its_host_to_every_device(tmp_path: Path) -> None:
    save_trace(transformer(64, device="A100-SXM4-80GB"), tmp_path / "job.trace")
    trace = str(tmp_path / "job.trace")
    command = ["project", trace, "-w", "scale_device:MI300X", "-w", "scale_links:2", "--draws", "8", "--json"]
    done = CliRunner().invoke(cli, [*command, "--host", "0.5"], catch_exceptions=False)
    rows = json.loads(done.stdout)["rows"]
    assert [row["what_if"] for row in rows] == [["scale_device:MI300X:0.5"], ["scale_links:2"]]
    assert any("host times are multiplied by 0.5, as given" in note for note in rows[0]["notes"])
    with pytest.raises(InvalidInputError, match="no what-if has a scale_device without a host"):
        CliRunner().invoke(cli, ["project", trace, "-w", "scale_links:2", "--host", "keep"], catch_exceptions=False)


@pytest.mark.parametrize("other", ["scale_links:0.5", "scale_device:H100-SXM5-80GB", "change_dtype:fp32->bf16"])
@pytest.mark.parametrize("size", ["change_world_size:128", "change_world_size:8"])
def test_another_number_of_ranks_commutes_with_links(size: str, other: str) -> None:
    first, second = applied(f"{size}+{other}", job()), applied(f"{other}+{size}", job())
    np.testing.assert_allclose(first.tasks.duration_ns, second.tasks.duration_ns, rtol=1e-9)


def test_the_table_of_power_limits_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "power"))
    from accuracy_of_limits import jobs_of, row_of, scores

    with (ROOT / "tests" / "accuracy" / "power_limits.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["limit_w"] == "all"]
    assert [row["device"] for row in rows] == ["V100-SXM2-32GB", "P100-PCIE-16GB"]
    for row in rows:
        assert float(row["time_median"]) < 0.08 and float(row["energy_median"]) < 0.10
    measured = ROOT.parent / "shared" / "new" / "power" / "zeus_power_p100.csv"
    if not measured.is_file():
        pytest.skip("power by limit is not beside the project")
    jobs = jobs_of(measured)
    assert row_of(rows[1]["device"], "all", scores(jobs, rows[1]["device"]), len(jobs)) == rows[1]
