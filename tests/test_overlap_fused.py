"""`fuse_collectives`: slices of a persistent kernel, the what-if on graphs, its published set-ups, and DLRM jobs."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from test_overlap_targets import COPY, GEMM, NORM, chain, ranks

import seqpoint as sp
from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.kernels import CLASSES
from replay.costs.collectives import CollectiveCalibration, Topology, predict_collective
from replay.costs.shipped import load_parameters
from replay.costs.wire_time import group_topology
from replay.engine.engine import simulate
from replay.graph.graph import Basis, EdgeKind, KernelGraph, Network, TaskKind, hardware_named
from replay.studies.fused import FusedLayer, layers, load_workloads, what_if_on
from replay.studies.workloads import layer_graph
from replay.what_ifs import parse_what_if
from replay.what_ifs.slices import ORDERS, Fusion, SliceGroup, fused_pattern, slices_of
from replay.what_ifs.splice import SplicePattern
from replay.workloads import Cluster, Dlrm, dlrm_trace

MI210 = find_device("MI210")
PARAMETERS = load_parameters()
#: No cost but bytes and arithmetic.
FREE = PARAMETERS.with_values(
    [
        *((name, 0.0) for name in ("put_latency_ns", "store_latency_ns", "put_issue_ns", "stream_sync_ns")),
        ("persistent_occupancy_loss", 0.0),
    ]
)
#: Two nodes of one device, 24 GB/s between them; four devices of a node, 40 GB/s between two of them.
PAIR = SliceGroup(Topology(2, 1, nics=1, nic_gbps=25.0), MI210)
QUAD = SliceGroup(Topology(4, fabric="mesh"), MI210)
#: So many workgroups, in so many waves, that slices end as they please.
FINE = {"workgroups": 2**20, "waves": 2.0**12}


def ms(fusion: Fusion, parameters: object = FREE) -> float:
    return fused_pattern(fusion, parameters).alone_ns() / 1e6  # type: ignore[arg-type]


def sent_bytes(pattern: SplicePattern) -> float:
    tasks = pattern.graph.tasks
    return float(tasks.bytes[tasks.kind == TaskKind.COPY].sum())


def named(graph: KernelGraph, name: str) -> np.ndarray:
    return np.flatnonzero(graph.tasks.name == graph.names.index(name))


def test_one_slice_for_each_rank_by_hand() -> None:
    # The other rank's half is computed after 1 ms and sent in another, while the own half is computed.
    fusion = Fusion(PAIR, "all_to_all", 48e6, 2e6, workgroups=2, waves=2.0)
    assert ms(fusion) == pytest.approx(2.0)
    assert ms(replace(fusion, order="local_first")) == ms(replace(fusion, order="ascending")) == pytest.approx(3.0)
    slow = FREE.with_values([("put_latency_ns", 5e5), ("put_issue_ns", 1e5), ("persistent_occupancy_loss", 0.5)])
    assert ms(fusion, slow) == pytest.approx(4.0)  # 2 ms, then 0.1 + 1 + 0.5 beside the own half
    assert ms(replace(fusion, kernel_ns=1e6), slow) == pytest.approx(1.0 + 0.1 + 1.0 + 0.5)


def test_a_slice_ends_with_the_wave_of_its_last_workgroup() -> None:
    pattern = fused_pattern(Fusion(PAIR, "all_to_all", 48e6, 4e6, workgroups=1024, waves=2.0), FREE)
    assert pattern.graph.tasks.duration_ns[named(pattern.graph, "slices")].tolist() == pytest.approx([2e6, 2e6])
    # With half of the workgroups resident, four waves of twice the time.
    half = FREE.with_values([("persistent_occupancy_loss", 0.5)])
    pattern = fused_pattern(Fusion(PAIR, "all_to_all", 48e6, 4e6, workgroups=1024, waves=2.0), half)
    assert pattern.graph.tasks.duration_ns[named(pattern.graph, "slices")].tolist() == pytest.approx([2e6] * 4)


def test_stores_to_peers_go_beside_the_slice_that_they_belong_to() -> None:
    # A quarter of 160 MB to each of three peers at 40 GB/s takes 1 ms, while three quarters of 4 ms are computed.
    assert ms(Fusion(QUAD, "all_to_all", 160e6, 4e6, **FINE)) == pytest.approx(4.0, rel=1e-3)
    # Links that are behind hold the slices back: 7 of 8 parts are sent in 3.5 ms, the last beside the next computed.
    assert ms(Fusion(QUAD, "all_to_all", 640e6, 1e6, **FINE)) == pytest.approx(4.0 + 0.25, abs=0.2)
    slow = SliceGroup(QUAD.topology, MI210, store_share=0.5)
    assert ms(Fusion(slow, "all_to_all", 640e6, 1e6, **FINE)) == pytest.approx(8.0 + 0.25, abs=0.2)


def test_what_goes_to_a_peer_is_not_written_at_home() -> None:
    fusion = Fusion(QUAD, "all_to_all", 100e6, 1e6, **FINE)
    whole, light = (fused_pattern(replace(fusion, is_memory_bound=bound), FREE) for bound in (False, True))
    computed = [float(each.graph.tasks.duration_ns[named(each.graph, "slices")].sum()) for each in (whole, light)]
    written_ns = 75e6 / (1638e9 * PARAMETERS["hbm_share_memory_bound"]) * 1e9
    assert computed == pytest.approx([1e6, 1e6 - written_ns])


def test_an_all_reduce_takes_the_shots_that_its_size_asks_for() -> None:
    # Two shots: each peer's quarter is computed and stored in 1 ms, the own one last; its sum is stored in 1 ms more.
    large = fused_pattern(Fusion(QUAD, "all_reduce", 160e6, 4e6, workgroups=4, waves=4.0), FREE)
    assert large.alone_ns() == pytest.approx(4e6 + 1e6)
    assert sent_bytes(large) == 2 * 120e6
    # In one shot, all of it goes to all three peers, and every rank sums all of it.
    small = fused_pattern(Fusion(QUAD, "all_reduce", 8e3, 1e4, workgroups=1, waves=1.0), PARAMETERS)
    assert sent_bytes(small) == 3 * 8e3
    assert small.graph.tasks.bytes[named(small.graph, "sum")].tolist() == [5 * 8e3]


def test_the_receiver_is_where_the_offset_says() -> None:
    group = SliceGroup(Topology(6, 3, fabric="mesh", nics=3, nic_gbps=25.0), MI210)
    for rank in range(6):
        receivers = group.receiver(rank, np.arange(6))
        assert group.offset(rank, receivers).tolist() == list(range(6))
        assert (group.is_far(np.arange(6)) == (receivers // 3 != rank // 3)).all()


groups = st.builds(
    lambda nodes, each, fabric, gbps: SliceGroup(Topology(nodes * each, each, fabric=fabric, nics=each, nic_gbps=gbps),
                                            MI210),
    st.integers(2, 5), st.integers(1, 4), st.sampled_from(("mesh", "switch")), st.sampled_from((12.5, 25.0, 100.0)),
)  # fmt: skip
fusions = st.builds(
    Fusion,
    groups,
    st.sampled_from(("all_to_all", "all_reduce")),
    st.floats(1e4, 1e9),
    st.floats(1e3, 1e8),
    workgroups=st.integers(0, 5000),
    waves=st.floats(0.0, 40.0),
    order=st.sampled_from(tuple(ORDERS)),
    budget=st.sampled_from((32, 300, 2**20)),
)
exchanges = fusions.map(lambda fusion: replace(fusion, kind="all_to_all"))


@settings(max_examples=60, deadline=None)
@given(fusions, st.booleans())
def test_every_byte_is_sent_and_every_slice_is_computed_once(fusion: Fusion, whole: bool) -> None:
    fusion = replace(fusion, members=fusion.group.ranks if whole else 1)
    pattern, n = fused_pattern(fusion, FREE), fusion.group.ranks
    others = fusion.size_bytes * (n - 1) / n
    expected = [others] if fusion.kind == "all_to_all" else [2 * others, fusion.size_bytes * (n - 1)]
    messages = len(named(pattern.graph, "send"))
    assert any(abs(sent_bytes(pattern) - fusion.members * each) <= messages + 1e-9 * each for each in expected)
    computed = pattern.graph.tasks.duration_ns[named(pattern.graph, "slices")].sum()
    assert computed == pytest.approx(fusion.members * fusion.kernel_ns)
    slices = slices_of(fusion)
    assert sorted(zip(slices.offset, slices.part, strict=True)) == [
        (o, p) for o in range(n) for p in range(fusion.parts)
    ]
    assert slices.share.sum() == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(exchanges)
def test_without_overheads_at_most_half_is_saved_and_no_less_is_needed_than_by_each_phase(fusion: Fusion) -> None:
    wire_ns, fused_ns = fusion.group.exchange_ns(fusion.size_bytes / fusion.group.ranks), 1e6 * ms(fusion)
    assert fused_ns >= max(fusion.kernel_ns, wire_ns) * (1 - 1e-9) - 0.1
    assert fused_ns >= 0.5 * (fusion.kernel_ns + wire_ns) * (1 - 1e-9) - 0.1


@settings(max_examples=60, deadline=None)
@given(fusions)
def test_links_of_no_time_leave_the_time_of_the_kernel(fusion: Fusion) -> None:
    pattern = fused_pattern(fusion, FREE)
    duration = np.where(pattern.scale == 1, pattern.graph.tasks.duration_ns, 0.0)  # the kernel's alone
    assert simulate(pattern.graph.with_tasks(duration_ns=duration))[1].max() == pytest.approx(fusion.kernel_ns)


@settings(max_examples=60, deadline=None)
@given(exchanges)
def test_a_kernel_of_one_workgroup_computes_and_then_sends(fusion: Fusion) -> None:
    far = SliceGroup(Topology(fusion.group.ranks, 1, nics=1, nic_gbps=25.0), MI210)
    alone = replace(fusion, group=far, workgroups=1, waves=1.0)
    others = fusion.size_bytes * (1 - 1 / far.ranks)
    assert 1e6 * ms(alone) == pytest.approx(fusion.kernel_ns + others / 24.0)


@settings(max_examples=60, deadline=None)
@given(fusions, st.floats(1.0, 20.0))
def test_faster_links_slow_nothing(fusion: Fusion, factor: float) -> None:
    pattern = fused_pattern(fusion, PARAMETERS)
    tasks = pattern.graph.tasks
    faster = pattern.graph.with_tasks(
        duration_ns=np.where(pattern.scale == 2, tasks.duration_ns / factor, tasks.duration_ns)
    )
    assert simulate(faster)[1].max() <= simulate(pattern.graph)[1].max() * (1 + 1e-9) + 1.0


@settings(max_examples=60, deadline=None)
@given(exchanges)
def test_slices_for_others_first_are_never_later_than_own_slices_first(fusion: Fusion) -> None:
    remote, local = (ms(replace(fusion, order=order), PARAMETERS) for order in ("remote_first", "local_first"))
    assert remote <= local * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(fusions.filter(lambda fusion: fusion.order != "ascending"))
def test_one_rank_stands_for_all(fusion: Fusion) -> None:
    whole = replace(fusion, members=fusion.group.ranks)
    assert ms(fusion, PARAMETERS) == pytest.approx(ms(whole, PARAMETERS), rel=1e-9)


def test_many_ranks_take_little_time_and_few_tasks() -> None:
    group = SliceGroup(Topology(1024, 4, fabric="mesh", nics=4, nic_gbps=25.0), MI210)
    fusion = Fusion(group, "all_to_all", 1e9, 1e7, **FINE)
    began = time.process_time()
    whole = fused_pattern(fusion, PARAMETERS).alone_ns()
    assert time.process_time() - began < 2.0
    for budget in (32, 256, 4096):
        small = fused_pattern(replace(fusion, budget=budget), PARAMETERS)
        assert len(small.graph.tasks) <= max(budget, 48)
        assert small.alone_ns() == pytest.approx(whole, rel=0.1)


def on_device(graph: KernelGraph, node: int = 8) -> KernelGraph:
    hardware = replace(hardware_named(MI210, "user"), network=Network(node))
    return replace(graph, hardware=hardware)


def collective_ns(kind: str, size: int, n: int, network: Network) -> float:
    """Return the time of a library's collective by the model."""
    fits = PARAMETERS.calibration(CollectiveCalibration)
    return float(predict_collective(kind, [size], group_topology(n, MI210, network), MI210, fits).seconds[0]) * 1e9


def exchange(size: int, n: int, excess_ns: float = 0.0) -> KernelGraph:
    """A product, a kernel that packs and an all-to-all of one rank, on nodes of one device."""
    sent_ns = collective_ns("all_to_all", size, n, Network(1)) + excess_ns
    graph = chain([GEMM, COPY, "all_to_all", NORM], [2e6, 1e5, sent_ns, 1e3])
    return on_device(graph.with_tasks(ranks=np.array([0, 0, n, 0]), bytes=np.array([0, 0, size, 0])), 1)


def ends(graph: KernelGraph, text: str, parameters: object = FREE) -> np.ndarray:
    return simulate(parse_what_if(text)(graph, parameters))[1]  # type: ignore[arg-type]


def test_nothing_is_packed_and_the_library_has_no_latency() -> None:
    # One adapter a device by the catalogue, 12 GB/s: the half is sent in 1 ms, while the own half is computed.
    graph = exchange(24_000_000, 2)
    assert ends(graph, "fuse_collectives")[3] == pytest.approx(2e6 + 1e6 / 8 + 1e3, rel=0.1)
    assert ends(graph, "nothing")[3] > 3.1e6
    # Where it takes longer than the model says, one rank has waited for the others, and still does.
    assert ends(exchange(24_000_000, 2, 5e6), "fuse_collectives")[3] == pytest.approx(
        ends(graph, "fuse_collectives")[3] + 5e6
    )


def test_waits_for_launches_and_for_the_other_stream_go() -> None:
    graph = exchange(24_000_000, 2)
    lag = np.array([4e3, 1e4, 1e4])
    kinds = np.array([EdgeKind.STREAM, EdgeKind.WAIT, EdgeKind.WAIT])
    late = replace(graph, edges=replace(graph.edges, lag_ns=lag, kind=kinds))
    same = FREE.with_values([("stream_sync_ns", 1e4)])
    assert ends(late, "fuse_collectives", same).tolist() == ends(graph, "fuse_collectives", same).tolist()
    # A longer wait has another reason, which stays.
    assert ends(late, "fuse_collectives")[3] == pytest.approx(ends(graph, "fuse_collectives")[3] + 1e4)


def test_an_elementwise_kernel_between_is_computed_by_the_fused_kernel() -> None:
    graph = exchange(24_000_000, 2)
    adds = graph.with_tasks(
        class_=np.where(graph.tasks.class_ == COPY, CLASSES.index("elementwise"), graph.tasks.class_)
    )
    assert ends(adds, "fuse_collectives")[0] == pytest.approx(ends(graph, "fuse_collectives")[0] + 1e5)


def test_what_is_fused_waits_for_no_launch_of_its_own() -> None:
    graph = exchange(24_000_000, 2)
    launched = make_graph(
        [*graph.tasks.duration_ns, 8e6],
        [*[(1.0, 0.2)] * 2, (0.1, 0.1, 1.0), (1.0,), (0.0,)],
        [(0, 1), (1, 2), (2, 3), (4, 2)],
        kind=[*graph.tasks.kind, TaskKind.HOST],
        class_=[*graph.tasks.class_, -1],
        collective=[*graph.tasks.collective, -1],
        device=[0, 0, 0, 0, -1],
        measured_end_ns=[1.0, 2.0, 3.0, 4.0, 0.0],
        **{name: [*getattr(graph.tasks, name), 0] for name in ("bytes", "ranks")},
    )
    kinds = np.array([EdgeKind.STREAM] * 3 + [EdgeKind.LAUNCH])
    launched = on_device(replace(launched, edges=replace(launched.edges, kind=kinds)), 1)
    assert simulate(launched)[1][3] > 9e6
    assert ends(launched, "fuse_collectives")[3] == pytest.approx(ends(graph, "fuse_collectives")[3])


def test_a_shorter_exchange_than_the_model_s_is_sent_in_a_shorter_time() -> None:
    graph = exchange(240_000_000, 2)
    faster = graph.with_tasks(duration_ns=graph.tasks.duration_ns * np.array([1.0, 1.0, 0.5, 1.0]))
    whole, half = (ends(each, "fuse_collectives:local_first")[2] - 2e6 for each in (graph, faster))
    assert half == pytest.approx(whole / 2, rel=0.2)


def test_ranks_that_meet_wait_for_each_other() -> None:
    graph = ranks((40e3, 80e3))
    size, duration = 480_000, graph.tasks.duration_ns.copy()
    duration[[2, 5]] = collective_ns("all_reduce", size, 2, Network(1))
    graph = on_device(graph.with_tasks(duration_ns=duration, bytes=np.where(graph.tasks.collective >= 0, size, 0)), 1)
    after = ends(graph, "fuse_collectives")
    # The first rank waits for what the second computes, and the second is done with its own last sum.
    assert 80e3 <= after[5] < after[2] < simulate(graph)[1][2]


def test_unknown_bytes_are_those_that_the_time_would_carry() -> None:
    graph = exchange(24_000_000, 2)
    unknown = graph.with_tasks(bytes=np.zeros(4, np.int64))
    changed = parse_what_if("fuse_collectives")(unknown, FREE)
    sent = changed.tasks.duration_ns[named(changed, "send")].sum()
    share = PARAMETERS["collective_wire_share_waiting"]
    assert sent == pytest.approx(share * (graph.tasks.duration_ns[2] - PARAMETERS["collective_latency_ns"]), rel=1e-6)


def test_durations_rest_on_what_they_say() -> None:
    changed = parse_what_if("fuse_collectives")(exchange(24_000_000, 2), PARAMETERS)
    basis = changed.tasks.basis
    assert (basis[named(changed, "slices")] == Basis.ASSUMED).all()
    assert (basis[named(changed, "send")] == Basis.DERIVED).all()
    assert not changed.tasks.demand[named(changed, "send"), 0].any()  # no compute units


def test_applied_twice_is_applied_once_and_faster_links_count_before_and_after_it() -> None:
    graph = exchange(240_000_000, 2)
    once = ends(graph, "fuse_collectives", PARAMETERS)
    assert ends(graph, "fuse_collectives+fuse_collectives", PARAMETERS).max() == once.max()
    both = [
        ends(graph, text, PARAMETERS).max()
        for text in ("scale_links:2+fuse_collectives", "fuse_collectives+scale_links:2")
    ]
    assert both[0] == pytest.approx(both[1]) and both[0] < once.max() - 1e6


def test_it_says_why_it_does_nothing() -> None:
    unnamed = chain([GEMM, "all_to_all"], [4e4, 4e4])
    for graph, reason in (
        (unnamed, "the trace names no device of the catalogue"),
        (on_device(chain([NORM, "all_to_all"], [4e4, 4e4])), "normalization comes before them"),
        (on_device(chain([GEMM, "all_gather"], [4e4, 4e4])), "they are all_gather"),
    ):
        changed = parse_what_if("fuse_collectives:local_first")(graph, PARAMETERS)
        assert simulate(changed)[1].tolist() == simulate(graph)[1].tolist()
        assert "fuse_collectives:local_first: nothing to apply it to: " in changed.notes[-1]
        assert reason in changed.notes[-1]


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(NotFoundError, match="order cannot be"):
        parse_what_if("fuse_collectives:first")
    with pytest.raises(InvalidInputError, match="nodes of 0 devices"):
        parse_what_if("fuse_collectives:remote_first:0")
    assert parse_what_if("fuse_collectives:remote_first:8").name == "fuse_collectives"
    assert parse_what_if("fuse_collectives:remote_first:1:1:25").name == "fuse_collectives:remote_first:1:1:25"


WORKLOADS = load_workloads()


@pytest.mark.parametrize("figure", ["inter_node", "intra_node", "gemv", "gemm"])
def test_the_study_says_what_the_command_says(figure: str) -> None:
    for layer in layers(WORKLOADS, figure)[::6][:3]:
        trace = layer.trace(PARAMETERS)
        projected = sp.project(trace, [what_if_on(layer.cluster)], draws=1).to_dict()["rows"]
        speedup = next(row["speedup"] for row in projected if row["what_if"][0].startswith("fuse_collectives"))
        assert 1 - layer.fuse(PARAMETERS).saving == pytest.approx(1 / speedup, rel=1e-9)


def test_the_layers_of_a_study_are_targets_with_their_packing_kernel() -> None:
    for figure, kernels in (("inter_node", 2), ("gemv", 1), ("gemm", 2)):
        layer = layers(WORKLOADS, figure)[0]
        graph = layer_graph(layer.trace(PARAMETERS), PARAMETERS)
        what_if = parse_what_if(what_if_on(layer.cluster))
        assert what_if.targets is not None
        (target,) = what_if.targets(graph, PARAMETERS).found
        assert len(target.kernels) == kernels
    assert CLASSES[graph.tasks.class_[target.kernel]] == "gemm" and not target.by_order  # its shape is in the trace


def test_an_order_that_is_not_of_receivers_sends_some_ranks_late() -> None:
    sweep = WORKLOADS.sweeps["embedding"]
    layer = FusedLayer(WORKLOADS.clusters["inter_node"], sweep, (512, 32, 20, 128))
    assert layer.skew(PARAMETERS, "ascending") > 0.05
    assert layer.skew(PARAMETERS, "remote_first") == pytest.approx(0.0, abs=1e-12)


SWEEP = '[sweeps.a]\ncollective = "{}"\nsizes = {}\nsource = ""\n'
CLUSTER = '[clusters.a]\ndevice = "{}"\nnodes = {}\ndevices_per_node = 1\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[clusters.a]\nnodes = 2\n", "clusters.a: lacks the key 'device'"),
        (CLUSTER.format("MI210", '"2"'), "clusters.a: nodes: Expected `int`, got `str`; the keys are"),
        (CLUSTER.format("MI9", 2), "no device"),
        (CLUSTER.format("MI210", 1), "one rank exchanges nothing"),
        (CLUSTER.format("MI210", 2) + SWEEP.format("broadcast", "[[1]]"), "collective 'broadcast'"),
        (CLUSTER.format("MI210", 2) + SWEEP.format("all_reduce", "[[1], [2]]"), "give 1 to 100,000 of 4 sizes"),
        (CLUSTER.format("MI210", 2) + SWEEP.format("all_reduce", "[]"), "give 1 to 100,000 of 4 sizes"),
        ("clusters = 3\n", "no table [clusters.NAME]"),
        ("[clusters", "no TOML"),
    ],
)
def test_files_of_workloads_that_are_wrong_are_told_what_is(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InvalidInputError) as found:
        load_workloads(tmp_path / "mine.toml")
    assert message in str(found.value) and "mine.toml" in str(found.value)


NODE = Cluster("node", "MI210", 1, 8)
SMALL = Dlrm("small", 512, 4, 20, 64, (512, 512, 512, 64), (576, 512, 512, 512, 1))


def test_a_dlrm_step_has_its_collectives_and_the_forward_exchange_can_be_fused() -> None:
    trace = dlrm_trace(SMALL, NODE, parameters=PARAMETERS, steps=2)
    kinds = trace.collectives["collective"].to_pylist()
    assert kinds == ["all_to_all", "all_reduce"] * 4
    assert trace.meta.synthetic and trace.meta.world_size == 8 and trace.iterations.num_rows == 2
    pooled, top = 512 * 8 * 4 * 64 * 4, 4 * (576 * 512 + 2 * 512 * 512 + 512)
    assert trace.collectives["bytes"].to_pylist()[:2] == [pooled, top]
    changed = parse_what_if("fuse_collectives")(layer_graph(trace, PARAMETERS), PARAMETERS)
    assert "1 collectives matched" in changed.notes[-1]


def test_a_step_saves_no_more_than_its_exchange() -> None:
    graph = layer_graph(dlrm_trace(SMALL, NODE, parameters=PARAMETERS), PARAMETERS)
    before, after = ends(graph, "nothing", PARAMETERS), ends(graph, "fuse_collectives", PARAMETERS)
    exchanged = int(np.flatnonzero(graph.tasks.kind == TaskKind.COLLECTIVE)[0])
    packed = float(graph.tasks.duration_ns[np.flatnonzero(graph.tasks.class_ == COPY)[0]])
    waits = 2 * PARAMETERS["stream_sync_ns"]
    assert 0 < before.max() - after.max() <= graph.tasks.duration_ns[exchanged] + packed + waits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SMALL, dim=0), "small: dim is 0"),
        (lambda: replace(SMALL, bottom=(1,)), "two layers or more"),
        (lambda: replace(NODE, devices_per_node=0), "devices_per_node is 0"),
        (lambda: dlrm_trace(SMALL, NODE, parameters=PARAMETERS, steps=0), "0 steps"),
    ],
)
def test_models_and_clusters_that_cannot_be_are_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]
