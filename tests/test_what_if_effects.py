"""What-ifs on graphs small enough to work out by hand, and identities on random ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import write_trace

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.ingest.pipeline import collect
from profilers.trace.kernels import CLASSES
from replay.costs.collectives import Topology, load_collectives, predict_collective
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.from_trace import build_graph
from replay.graph.graph import COLLECTIVE_KINDS, Basis, EdgeKind, KernelGraph, Lane, TaskKind, hardware_named
from replay.what_ifs import TaskChoice, compose, parse_what_if, what_ifs
from replay.what_ifs.what_if import check_choices

NOMINAL = load_parameters()
ELEMENTWISE, GEMM = CLASSES.index("elementwise"), CLASSES.index("gemm")


def applied(text: str, graph: KernelGraph) -> KernelGraph:
    return parse_what_if(text)(graph, NOMINAL)


def named(graph: KernelGraph, names: list[str]) -> KernelGraph:
    """Return `graph` with a name a task."""
    return replace(graph, names=tuple(dict.fromkeys(names))).with_tasks(
        name=np.array([list(dict.fromkeys(names)).index(name) for name in names])
    )


def kinds(graph: KernelGraph, kind: list[EdgeKind]) -> KernelGraph:
    return replace(graph, edges=replace(graph.edges, kind=np.array([int(k) for k in kind])))


# -- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("all", [0, 1, 2, 3]),
        ("kernels", [0, 1, 3]),
        ("collectives", [2]),
        ("copies", []),
        ("gemm", [0]),
        ("a::mm<[x]>", [0]),
        ("a::*", [0, 1]),
        ("A::*", []),
        ("?dd", [3]),
        ("*", [0, 1, 2, 3]),
        ("a::mm<x>", []),
    ],
)
def test_tasks_are_chosen_by_kind_class_or_name_and_brackets_are_themselves(text: str, rows: list[int]) -> None:
    graph = named(
        make_graph(
            [1, 1, 1, 1, 1],
            kind=[TaskKind.KERNEL, TaskKind.KERNEL, TaskKind.COLLECTIVE, TaskKind.KERNEL, TaskKind.HOST],
            class_=[GEMM, ELEMENTWISE, CLASSES.index("collective"), ELEMENTWISE, -1],
            device=[0, 0, 0, 0, -1],
        ),
        ["a::mm<[x]>", "a::add", "nccl", "add", "a::mm<[x]>"],
    )
    assert np.flatnonzero(TaskChoice(text).rows(graph)).tolist() == rows


def test_a_pattern_that_no_graph_has_offers_the_nearest() -> None:
    graph = named(make_graph([1, 1], class_=[GEMM, ELEMENTWISE]), ["sgemm_nn", "add"])
    what_if = parse_what_if("dma_collectives+fuse:sgem_nn")
    with pytest.raises(NotFoundError, match=r"what-if .*'sgem_nn'; did you mean sgemm_nn"):
        check_choices(what_if, [graph], NOMINAL)
    check_choices(what_if, [graph, named(graph, ["sgem_nn", "add"])], NOMINAL)


@pytest.mark.parametrize("text", ["fuse:", "fuse:" + "x" * 201, "fuse:" + "*a" * 17])
def test_a_pattern_has_bounds(text: str) -> None:
    with pytest.raises(InvalidInputError, match="chooses no kernels"):
        parse_what_if(text)


def test_a_name_with_colons_and_plus_is_written_with_backslashes() -> None:
    what_if = parse_what_if(r"swap_kernel:at\:\:operator\+*:0.5")
    assert what_if.choices == (TaskChoice("at::operator+*", kinds=(TaskKind.KERNEL,)),)
    assert parse_what_if(r"swap_kernel:at::operator\+*:0.5").name == what_if.name  # `::` separates nothing
    assert parse_what_if(what_if.name).name == what_if.name


# -- swap_kernel ------------------------------------------------------------------------------------------------------


def test_a_kernel_swapped_by_factor_time_and_another_kernel() -> None:
    graph = named(make_graph([100, 200, 300, 40, 60], class_=[GEMM] * 3 + [ELEMENTWISE] * 2), ["a", "a", "a", "b", "b"])
    assert applied("swap_kernel:a:0.5", graph).tasks.duration_ns.tolist() == [50, 100, 150, 40, 60]
    assert applied("swap_kernel:gemm:1.5us", graph).tasks.duration_ns.tolist() == [1500, 1500, 1500, 40, 60]
    taken = applied("swap_kernel:a:b", graph).tasks
    assert taken.duration_ns.tolist() == [40, 40, 40, 40, 60]  # the median of two is the shorter
    assert taken.class_.tolist() == [ELEMENTWISE] * 5 and taken.name.tolist() == [1] * 5
    assert taken.basis.tolist() == [Basis.DERIVED] * 3 + [Basis.MEASURED] * 2


def test_the_demands_of_a_swapped_kernel_follow_its_class_and_grid() -> None:
    graph = make_graph([100, 100], demands=[(1, 0.2), (1, 0.2)], class_=[GEMM, ELEMENTWISE])
    tasks = applied("swap_kernel:gemm:1:gemm:54", graph).tasks
    assert tasks.workgroups.tolist() == [54, 0]
    assert tasks.occupies.tolist() == [0.5, 1.0]  # 54 of 108 compute units
    np.testing.assert_array_equal(tasks.demand[1], graph.tasks.demand[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swap_kernel:gemm:-1", "a factor of -1"),
        ("swap_kernel:gemm:nan", "a factor of nan"),
        ("swap_kernel:gemm:1::9999999999999999999", "^9999999999999999999 workgroups: give a number from 1 to"),
        ("scale_kernels:stram=7:0.5", "tasks are not chosen by 'stram'; did you mean stream"),
        ("scale_kernels:gemm:1e300", "scale_kernels: a factor of 1e.300; give zero, or one from 1e-06 to 1e.06"),
        ("scale_host:1e-7", "scale_host: a factor of 1e-07"),
        ("scale_links:1e7", "scale_links: a factor of 1e.07; give one above zero, from"),
        ("limit_power:0.01", "limit_power: a factor of 0.01; give one above zero, from 0.05"),
        ("swap_kernel:gemm:1:gem", "did you mean gemm"),
        ("swap_kernel:gemm:1:gemm:-5", "-5 workgroups"),
        ("swap_kernel:gemm:1:gemm:many", "workgroups 'many' is no whole number"),
        ("swap_kernel:gemm", "write swap_kernel:TASKS:BY"),
        ("remove_launch_overhead:fast", "'fast' is no time"),
        ("change_priority:gemm:high", "level 'high' is no whole number"),
        ("change_priority:gemm:101", "a priority of 101"),
        ("partition:gemm:1", "share between 0 and 1"),
        ("partition:gemm:nan", "share between 0 and 1"),
        ("cu_order:fare", "order cannot be 'fare'; did you mean fair"),
        ("change_stream:gemm:-1", "a stream of '-1'"),
        ("limit_power:0", "above zero"),
        ("change_world_size:0", "0 ranks"),
        ("change_world_size:12", "workers must fill whole nodes"),
        ("change_world_size:8:x", "per_node 'x' is no whole number"),
        ("overlap:" + "x" * 301, "mode has 301 characters"),
        ("@plan.toml", "a plan has several"),
        ("+".join(["dma_collectives"] * 65), "65 steps"),
    ],
)
def test_what_is_not_plausible_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(SeqPointError, match=message):
        parse_what_if(text)


# -- fuse -------------------------------------------------------------------------------------------------------------


def test_fused_kernels_save_a_floor_and_what_they_pass_on() -> None:
    """Three streaming kernels of 10, 20 and 30 us: joints save 2 us and 2 * 0.5 * the shorter's 10 and 20 us."""
    graph = make_graph(
        [10_000, 20_000, 30_000, 40_000],
        demands=[(1, 0.75)] * 4,
        edges=[(0, 1), (1, 2), (2, 3)],
        class_=[ELEMENTWISE] * 3 + [GEMM],
    )
    fused = applied("fuse:elementwise", graph)
    # Joint 1: 2 us + min(10, 20 - 2); joint 2: 2 us + min(20, 30 - 2); 60 - 12 - 22 = 26, not below the longest, 30.
    assert fused.tasks.duration_ns.tolist() == [30_000, 40_000]
    assert fused.edges.source.tolist() == [0] and fused.edges.target.tolist() == [1]
    assert replay(fused).makespan_ns == 70_000
    assert fused.names[int(fused.tasks.name[0])] == "kernel + kernel + kernel"
    assert applied("fuse:elementwise", make_graph([9_000, 9_000], demands=[(1, 0.25)] * 2, edges=[(0, 1)],
        class_=[ELEMENTWISE] * 2)).tasks.duration_ns.tolist() == [18_000 - 2_000 - 3_000]  # fmt: skip


def test_kernels_of_an_optimizer_pass_nothing_to_the_next_of_their_name() -> None:
    """Two streaming kernels of 20 us save 2 us; as elementwise kernels they save the 18 us that are passed, too."""
    for name, expected in (("optimizer", 38_000), ("elementwise", 20_000)):
        number = CLASSES.index(name)
        graph = make_graph([20_000, 20_000], demands=[(1, 0.75)] * 2, edges=[(0, 1)], class_=[number] * 2)
        assert applied(f"fuse:{name}", graph).tasks.duration_ns.tolist() == [expected]


def test_kernels_that_others_wait_for_are_not_fused() -> None:
    waited = make_graph([5_000] * 3, edges=[(0, 1), (0, 2)], class_=[ELEMENTWISE] * 3, lane=[0, 0, 0])
    waited = kinds(waited, [EdgeKind.STREAM, EdgeKind.WAIT])
    assert len(applied("fuse:elementwise", waited).tasks) == 3
    waits = kinds(
        make_graph([5_000] * 3, edges=[(0, 1), (2, 1)], class_=[ELEMENTWISE] * 3), [EdgeKind.STREAM, EdgeKind.WAIT]
    )
    assert len(applied("fuse:elementwise", waits).tasks) == 3


def test_the_launch_of_a_fused_kernel_takes_no_time() -> None:
    graph = make_graph(
        [1_000, 1_000, 5_000, 5_000],
        edges=[(0, 2), (1, 3), (0, 1), (2, 3)],
        kind=[TaskKind.HOST, TaskKind.HOST, TaskKind.KERNEL, TaskKind.KERNEL],
        device=[-1, -1, 0, 0],
        class_=[-1, -1, ELEMENTWISE, ELEMENTWISE],
    )
    graph = kinds(graph, [EdgeKind.LAUNCH, EdgeKind.LAUNCH, EdgeKind.HOST, EdgeKind.STREAM])
    fused = applied("fuse:elementwise", graph)
    assert fused.tasks.duration_ns[:2].tolist() == [1_000, 0]
    assert (fused.edges.kind == EdgeKind.LAUNCH).sum() == 1 and len(fused.tasks) == 3


# -- host -------------------------------------------------------------------------------------------------------------


def test_launches_and_the_gaps_between_shrink_to_the_floor_and_waits_stay() -> None:
    host, kernel = TaskKind.HOST, TaskKind.KERNEL
    graph = make_graph(
        [5_000, 5_000, 200, 3_000, 3_000],
        edges=[(0, 1, 10_000.0), (1, 2, 7_000.0), (0, 3, 6_000.0, True), (1, 4, 400.0, True), (3, 4)],
        kind=[host, host, host, kernel, kernel],
        device=[-1, -1, -1, 0, 0],
    )
    graph = kinds(graph, [EdgeKind.HOST, EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.LAUNCH, EdgeKind.STREAM])
    floored = applied("remove_launch_overhead:500ns", graph)
    assert floored.tasks.duration_ns.tolist() == [500, 500, 200, 3_000, 3_000]
    assert floored.edges.lag_ns.tolist() == [500, 7_000, 500, 400, 0]  # call 2 launches nothing: its gap stays
    assert applied("remove_launch_overhead", graph).edges.lag_ns.tolist() == [1_000, 7_000, 1_000, 400, 0]


def test_the_host_s_time_around_fused_launches_shrinks_too() -> None:
    host, kernel = TaskKind.HOST, TaskKind.KERNEL
    graph = make_graph(
        [5_000] * 3 + [3_000] * 3,
        edges=[(0, 1, 10_000.0), (1, 2, 10_000.0), (0, 3), (1, 4), (2, 5), (3, 4), (4, 5)],
        kind=[host] * 3 + [kernel] * 3,
        device=[-1] * 3 + [0] * 3,
        class_=[-1] * 3 + [ELEMENTWISE, ELEMENTWISE, GEMM],
    )
    graph = kinds(graph, [EdgeKind.HOST] * 2 + [EdgeKind.LAUNCH] * 3 + [EdgeKind.STREAM] * 2)
    second = "remove_launch_overhead:500ns"
    both = applied(f"fuse:elementwise+{second}", graph)
    assert both.edges.lag_ns[both.edges.kind == EdgeKind.HOST].tolist() == [500, 500]
    assert replay(both).makespan_ns <= replay(applied(second, graph)).makespan_ns


# -- dispatch ---------------------------------------------------------------------------------------------------------


def test_priority_lets_what_comes_later_go_first() -> None:
    """Kernel 0 fills the device; of 1 and 2, which wait for it, the one of higher priority is dispatched first."""
    graph = make_graph([100, 50, 50], demands=[(1,), (1,), (1,)], class_=[GEMM, GEMM, ELEMENTWISE], lane=[0, 0, 0])
    plain, first = replay(graph), replay(applied("change_priority:elementwise:1", graph))
    assert plain.start_ns[1] < plain.start_ns[2]
    assert first.start_ns[2] < first.start_ns[1]
    assert first.makespan_ns == plain.makespan_ns == 200


def test_a_partition_of_a_quarter_of_the_device() -> None:
    """The collective needs a quarter and gets its own; the product has three quarters of what it needs."""
    graph = make_graph(
        [300, 100],
        demands=[(1,), (0.25,)],
        kind=[TaskKind.KERNEL, TaskKind.COLLECTIVE],
        class_=[GEMM, CLASSES.index("collective")],
    )
    both = replay(applied("partition:collectives:0.25", graph))
    assert both.end_ns.tolist() == pytest.approx([400, 100])
    assert replay(graph).end_ns.tolist() == pytest.approx([300, 400])  # in order, the collective waits


def test_partitions_are_taken_from_what_the_rest_still_has() -> None:
    graph = make_graph([100] * 3, class_=[GEMM, ELEMENTWISE, 0])
    both = applied("partition:gemm:0.5+partition:elementwise:0.25", graph)
    assert both.policy.partitions == (0.25, 0.5, 0.25)
    assert both.tasks.cu_mask.tolist() == [2, 4, 1]
    with pytest.raises(InvalidInputError, match=r"leaves none of the 0\.5"):
        applied("partition:gemm:0.5+partition:elementwise:0.5", graph)


@pytest.mark.parametrize("share", [1e-12, 0.009, 0.992])
def test_a_partition_has_one_compute_unit_at_least_and_so_has_the_rest(share: float) -> None:
    graph = make_graph([100] * 2, class_=[GEMM, ELEMENTWISE])  # on 108 compute units
    with pytest.raises(InvalidInputError, match=r"of the 108 compute units leaves .* each needs one"):
        applied(f"partition:gemm:{share!r}", graph)
    assert applied("partition:gemm:0.01", graph).notes == ("partition: 1 tasks on 0.01 of the compute units",)


def test_a_partition_for_no_task_changes_nothing_and_says_so() -> None:
    graph = make_graph([100] * 2, demands=[(1,)] * 2, class_=[ELEMENTWISE] * 2)
    same = applied("partition:gemm:0.9", graph)
    assert same.policy == graph.policy and "nothing changes" in same.notes[0]
    assert replay(same).makespan_ns == replay(graph).makespan_ns


def test_fair_order_halves_what_in_order_queues() -> None:
    graph = make_graph([100, 100], demands=[(1,), (1,)])
    assert replay(graph).end_ns.tolist() == [100, 200]
    assert replay(applied("cu_order:fair", graph)).end_ns.tolist() == [200, 200]
    assert replay(applied("cu_order:fair+cu_order:in_order", graph)).end_ns.tolist() == [100, 200]


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_kernel_on_a_stream_of_its_own_overlaps_with_what_follows() -> None:
    """a, b, c in a row, 100 each; b elsewhere: waits for a, c does not wait for b."""
    graph = named(make_graph([100, 100, 100], edges=[(0, 1), (1, 2)]), ["a", "b", "c"])
    moved = applied("change_stream:b:new", graph)
    timeline = replay(moved)
    assert timeline.start_ns.tolist() == [0, 100, 100]
    assert moved.lanes == (Lane(0, 0, 7), Lane(0, 0, 8)) and moved.tasks.lane.tolist() == [0, 1, 0]


def test_what_waited_for_the_old_stream_waits_for_what_left_it() -> None:
    """The host synchronises after c: still after b as well, which now is the longer."""
    graph = make_graph(
        [100, 500, 100, 10],
        edges=[(0, 1), (1, 2), (2, 3)],
        kind=[TaskKind.KERNEL] * 3 + [TaskKind.HOST],
        device=[0, 0, 0, -1],
        lane=[0, 0, 0, 1],
    )
    graph = replace(graph, lanes=(Lane(0, 0, 7), Lane(0, None, 1)))
    graph = named(kinds(graph, [EdgeKind.STREAM, EdgeKind.STREAM, EdgeKind.SYNC]), ["a", "b", "c", "sync"])
    timeline = replay(applied("change_stream:b:9", graph))
    assert timeline.start_ns.tolist() == [0, 100, 100, 600]


def test_the_place_on_a_stream_that_exists_is_by_start() -> None:
    graph = make_graph([100, 100, 50, 300], edges=[(0, 1), (2, 3)], lane=[0, 0, 1, 1])
    graph = named(replace(graph, lanes=(Lane(0, 0, 7), Lane(0, 0, 8))), ["a", "b", "x", "y"])
    timeline = replay(applied("change_stream:b:8", graph))  # x starts at 0, y at 50, b at 100
    assert timeline.start_ns.tolist() == [0, 350, 0, 50]


def test_each_stream_that_tasks_leave_has_a_new_one_of_its_own() -> None:
    graph = make_graph([100, 100, 50, 300], edges=[(0, 1), (2, 3)], lane=[0, 0, 1, 1])
    graph = replace(graph, lanes=(Lane(0, 0, 7), Lane(0, 0, 8)))
    moved = applied("change_stream:all:new", graph)
    assert moved.tasks.lane.tolist() == [2, 2, 3, 3] and moved.lanes[2:] == (Lane(0, 0, 9), Lane(0, 0, 10))
    assert replay(moved).makespan_ns == replay(graph).makespan_ns


def test_what_followed_the_first_of_a_stream_does_not_come_before_it() -> None:
    graph = named(make_graph([100, 100], edges=[(0, 1)], release_ns=[70.0, 0.0]), ["a", "b"])
    assert replay(applied("change_stream:a:new", graph)).start_ns.tolist() == [70, 70]


def test_moving_to_its_own_stream_changes_nothing() -> None:
    graph = named(make_graph([100, 100], edges=[(0, 1)]), ["a", "b"])
    np.testing.assert_array_equal(applied("change_stream:a:7", graph).edges.kind, graph.edges.kind)


# -- power ------------------------------------------------------------------------------------------------------------


def test_a_lower_limit_slows_arithmetic_by_the_third_root_of_the_excess() -> None:
    graph = make_graph([1000, 1000], demands=[(1,), (1, 0.75)], class_=[GEMM, ELEMENTWISE], edges=[(0, 1)])
    found = applied("limit_power:0.45", graph).tasks.duration_ns
    assert found.tolist() == pytest.approx([1000 * (0.9 / 0.45) ** (1 / 3), 1000])
    assert applied("limit_power:0.95", graph).tasks.duration_ns.tolist() == [1000, 1000]


def test_together_they_are_slower_than_the_limit_allows() -> None:
    graph = make_graph([1000, 1000], demands=[(0.5,), (0.5,)], class_=[GEMM, GEMM])
    shared = 2 * 0.9 * np.sqrt(0.5) / 0.9
    assert replay(applied("limit_power:0.9", graph)).makespan_ns == pytest.approx(1000 * shared ** (1 / 3))


# -- world size -------------------------------------------------------------------------------------------------------


def collectives(ranks: list[int], kind: str = "all_reduce") -> KernelGraph:
    n = len(ranks)
    graph = make_graph(
        [2e6] * n,
        kind=[TaskKind.COLLECTIVE] * n,
        collective=[COLLECTIVE_KINDS.index(kind)] * n,
        bytes=[2**26] * n,
    ).with_tasks(ranks=np.array(ranks))
    return replace(graph, hardware=hardware_named(find_device("A100-SXM4-80GB"), "trace"))


def test_the_part_that_the_model_explains_is_exchanged() -> None:
    device = find_device("A100-SXM4-80GB")
    old, new = (
        predict_collective("all_reduce", [2**26], group, device, calibration=load_collectives()).seconds[0] * 1e9
        for group in (Topology(8), Topology(16, 8, nics=8, nic_gbps=25))
    )
    found = applied("change_world_size:16", collectives([8, 8, 2])).tasks
    assert found.duration_ns.tolist() == pytest.approx([2e6 - old + new] * 2 + [2e6])
    assert found.ranks.tolist() == [16, 16, 2]


def test_more_ranks_take_longer_and_one_rank_exchanges_nothing() -> None:
    graph = collectives([8])
    times = [applied(f"change_world_size:{n}", graph).tasks.duration_ns[0] for n in (1, 4, 8, 64)]
    assert times == sorted(times) and times[0] < times[1] < times[2] < times[3]


def test_pairs_and_unknown_sizes_stay_and_a_trace_without_sizes_is_an_error() -> None:
    graph = collectives([8], "send_recv")
    assert applied("change_world_size:16", graph).tasks.duration_ns.tolist() == [2e6]
    assert applied("change_world_size:16", graph).notes[-1] == "change_world_size: 0 of 1 collectives, from 8 ranks"
    with pytest.raises(InvalidInputError, match="does not say how many ranks"):
        applied("change_world_size:16", collectives([0]))
    assert "no collective" in applied("change_world_size:16", make_graph([1.0])).notes[-1]


def test_a_traced_collective_knows_its_ranks(tmp_path: Path) -> None:
    graph = build_graph(collect([write_trace(tmp_path / "t.json")]), 1, parameters=load_parameters())
    assert graph.tasks.ranks[graph.tasks.kind == TaskKind.COLLECTIVE].tolist() == [1]
    assert not graph.tasks.ranks[graph.tasks.kind != TaskKind.COLLECTIVE].any()


# -- the algebra ------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> KernelGraph:
    """Return up to a dozen kernels on up to three streams, in order, with waits between them."""
    n = draw(st.integers(1, 12))
    lane = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    edges = [(max(j for j in range(i) if lane[j] == lane[i]), i) for i in range(n) if lane[i] in lane[:i]]
    waits = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=4))
    pairs = [*edges, *((a, b) for a, b in waits if a < b)]
    share = st.floats(0.05, 1.0)
    graph = make_graph(
        draw(st.lists(st.floats(1.0, 1e5), min_size=n, max_size=n)),
        demands=draw(st.lists(st.tuples(share, share), min_size=n, max_size=n)),
        edges=pairs,
        lane=lane,
        class_=draw(st.lists(st.sampled_from([GEMM, ELEMENTWISE, 0]), min_size=n, max_size=n)),
    )
    lanes = tuple(Lane(0, 0, number) for number in (7, 8, 9))
    kind = [EdgeKind.STREAM] * len(edges) + [EdgeKind.WAIT] * (len(pairs) - len(edges))
    hardware = hardware_named(find_device("A100-SXM4-80GB"), "trace")
    return replace(kinds(graph, kind), lanes=lanes, hardware=hardware)


NOTHING = (
    "nothing",
    "nothing+scale_links:1 + nothing",
    "scale_kernels:all:1",
    "swap_kernel:all:1",
    "scale_host:1",
    "scale_links:1",
    "scale_device:A100-SXM4-80GB",
    "limit_power:1",
    "change_priority:all:5",
    "cu_order:in_order",
    "cu_order:fair+cu_order:in_order",
    "change_world_size:8",
    "remove_launch_overhead",
    "fuse:convolution",
    "change_stream:convolution:new",
    "swap_kernel:all:2+swap_kernel:all:0.5",
    "scale_device:MI300X+scale_device:A100-SXM4-80GB",
)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from(NOTHING))
def test_what_changes_nothing_is_an_identity(graph: KernelGraph, text: str) -> None:
    before, after = replay(graph), replay(applied(text, graph))
    if "MI300X" in text:  # there and back: demands are worked out anew
        np.testing.assert_allclose(after.graph.tasks.duration_ns, before.graph.tasks.duration_ns, rtol=1e-9)
    else:
        np.testing.assert_array_equal(after.start_ns, before.start_ns)
        np.testing.assert_array_equal(after.end_ns, before.end_ns)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(1, 1000), st.sampled_from([1, 2, 8, 16, 64]))
def test_other_ranks_and_back_is_what_was_traced(graph: KernelGraph, scale: float, ranks: int) -> None:
    n = len(graph.tasks)
    graph = graph.with_tasks(
        kind=np.full(n, int(TaskKind.COLLECTIVE)),
        collective=np.arange(n) % 4,
        bytes=(np.arange(n) + 1) * int(scale * 1000),
        ranks=np.full(n, 4),
    )
    if ranks == 1:  # what is faster than the model says cannot be told from what is not there
        graph = graph.with_tasks(duration_ns=graph.tasks.duration_ns + 1e9)
    back = applied(f"change_world_size:{ranks}+change_world_size:4", graph)
    np.testing.assert_allclose(back.tasks.duration_ns, graph.tasks.duration_ns, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(graphs(), st.sampled_from(["gemm", "elementwise", "all"]), st.sampled_from(["new", "8", "9"]))
def test_on_another_stream_all_still_ends_and_nothing_comes_before_its_inputs(
    graph: KernelGraph, what: str, stream: str
) -> None:
    moved = applied(f"change_stream:{what}:{stream}", graph)
    timeline = replay(moved)
    assert np.isfinite(timeline.end_ns).all()
    kept = graph.edges.kind == EdgeKind.WAIT
    source, target = graph.edges.source[kept], graph.edges.target[kept]
    assert (timeline.start_ns[target] >= timeline.end_ns[source] - 1e-6).all()


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_fusing_is_no_longer_than_the_sum_and_no_shorter_than_the_longest(graph: KernelGraph) -> None:
    fused = applied("fuse:all", graph)
    assert fused.tasks.duration_ns.sum() <= graph.tasks.duration_ns.sum() * (1 + 1e-12)
    assert fused.tasks.duration_ns.max() >= graph.tasks.duration_ns.max()
    assert np.isfinite(replay(fused).makespan_ns)
    again = applied("fuse:all", fused)
    assert len(again.tasks) == len(fused.tasks)


#: Edits of the job need the shapes of a transformer, and a balance of experts needs the sizes of splits.
NEEDY = {name for name, each in what_ifs().items() if each.group == "job"} | {"balance_experts"}
EXAMPLES = [each.example for name, each in what_ifs().items() if "*" not in each.example and name not in NEEDY]


@settings(max_examples=40, deadline=None)
@given(graphs(), st.lists(st.sampled_from(EXAMPLES), max_size=4))
def test_composing_is_applying_one_after_the_other_and_is_read_back(graph: KernelGraph, texts: list[str]) -> None:
    parts = [parse_what_if(text) for text in texts if not text.startswith("change_world_size")]
    whole = compose(*parts)
    step = graph
    for part in parts:
        step = part(step, NOMINAL)
    once, again = whole(graph, NOMINAL), parse_what_if(whole.name)(graph, NOMINAL)
    for other in (once, again):
        np.testing.assert_array_equal(other.tasks.duration_ns, step.tasks.duration_ns)
        np.testing.assert_array_equal(replay(other).end_ns, replay(step).end_ns)


@given(st.floats(0.05, 1e6))
def test_a_factor_is_read_back_to_the_last_bit(factor: float) -> None:
    for name in ("scale_kernels:gemm", "scale_host", "scale_links", "swap_kernel:gemm", "limit_power"):
        what_if = parse_what_if(f"{name}:{factor!r}".replace("e+", "e"))
        assert float(parse_what_if(what_if.name).name.rsplit(":", 1)[1]) == factor


def test_names_in_errors_are_cut() -> None:
    graph = named(make_graph([1, 1], class_=[GEMM, GEMM]), ["void " + "x" * 200, "b"])
    with pytest.raises(NotFoundError, match=r"there are all, kernels, gemm, void x{52}\.\.\., b$"):
        applied("swap_kernel:gemm:?????????z", graph)


def test_every_what_if_says_what_it_models_and_what_not() -> None:
    for recipe in what_ifs().values():
        assert "Not modelled:" in recipe.documentation, recipe.name
        assert "Raises" not in recipe.documentation
        assert recipe.form.startswith(recipe.name)
        assert parse_what_if(recipe.example).steps[0] == recipe.example
