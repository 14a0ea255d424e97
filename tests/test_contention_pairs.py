"""Pairs of alone and overlapped launches: traces of a few kernels with the pairs worked out by hand."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import MISSING
from profilers.trace.schema import make_table
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import DeviceProperties, Trace, TraceMeta
from replay.contention import ContentionPairs, PairOptions, collective_pairs, measure_pairs
from replay.contention.launches import REASONS, DeviceEvents, Neighbors
from replay.contention.pairs import GROUP_COLUMNS, PAIR_COLUMNS, PARTNER_COLUMNS

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
GEMM, ADD, NCCL = "ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Event(NamedTuple):
    """A kernel or a copy: name, start and time in us, columns."""

    name: str
    at: float
    us: float
    columns: dict[str, Any]


def kernel(name: str, at: float, us: float, **columns: Any) -> Event:
    """Return a kernel of 108 workgroups on stream 7 of device 0 of rank 0."""
    default = {"workgroups": 108, "workgroup_size": 256, "rank": 0, "device": 0, "stream": 7}
    return Event(name, at, us, {**default, **columns})


def copy(at: float, us: float, **columns: Any) -> Event:
    """Return a copy of 5000 bytes on stream 9."""
    return Event("Memcpy HtoD", at, us, {"rank": 0, "device": 0, "stream": 9, "bytes": 5000, **columns})


def collective(at: float, us: float, **columns: Any) -> Event:
    """Return a kernel of 24 workgroups on stream 20."""
    return kernel(NCCL, at, us, **{"stream": 20, "workgroups": 24, **columns})


def gemms(count: int, at: float = 0.0, us: float = 10.0, **columns: Any) -> list[Event]:
    """Return GEMMs, one every 100 us from `at` on."""
    return [kernel(GEMM, at + 100 * i, us, **columns) for i in range(count)]


def table(kind: str, events: list[Event], first: int, **more: list[Any]) -> Any:
    """Return a table of events with ids from `first` on."""
    names = sorted({name for each in events for name in each.columns})
    columns: dict[str, Any] = {name: [each.columns.get(name) for each in events] for name in names}
    columns |= {"id": list(range(first, first + len(events))), "name": [each.name for each in events]}
    columns |= {"start_ns": [round(1000 * each.at) for each in events]}
    return make_table(kind, {**columns, "dur_ns": [round(1000 * each.us) for each in events], **more})


def trace_of(kernels: list[Event], copies: list[Event] | None = None, *, shapes: str | None = "[[64,64]]") -> Trace:
    """Return a trace: kernels with ids from 100, copies with ids from 500, an operator of equal shapes a kernel."""
    count = len(kernels)
    ops = {"id": list(range(count)), "rank": [0] * count, "name": ["aten::mm"] * count, "start_ns": [0] * count}
    tables = {"ops": make_table("ops", {**ops, "shapes": [shapes] * count})} if count else {}
    if count:
        tables["kernels"] = table("kernels", kernels, 100, op_id=list(range(count)))
    if copies:
        tables["copies"] = table("copies", copies, 500)
    devices = tuple(DeviceProperties(rank, 0, "NVIDIA A100-SXM4-80GB") for rank in range(3))
    return Trace(TraceMeta("kineto", ranks=(0, 1, 2), devices=devices), tables)


def total(pairs: ContentionPairs) -> int:
    """Return the number of launches in pairs, alone and excluded."""
    return len(pairs.event) + pairs.alone + sum(pairs.excluded.values())


def test_a_launch_beside_a_collective_is_compared_with_the_alone_launches() -> None:
    beside = [collective(990, 60), kernel(GEMM, 1000, 16), kernel(ADD, 1020, 5)]
    pairs = measure_pairs(trace_of([*gemms(4), kernel(ADD, 400, 4), *beside]))
    assert (pairs.event.tolist(), pairs.rank.tolist(), pairs.iteration.tolist()) == ([106], [0], [MISSING])
    assert (pairs.duration_ns.tolist(), pairs.alone_ns.tolist()) == ([16_000.0], [10_000.0])
    assert pairs.slowdown.tolist() == [1.6]
    assert (pairs.partner_event.tolist(), pairs.partner_share.tolist()) == ([105], [1.0])
    assert (pairs.beside_share.tolist(), pairs.same_position.tolist()) == ([1.0], [False])
    assert pairs.alone_n.tolist() == [4]
    assert pairs.partners.to_pylist() == [
        {
            **{"name": NCCL, "kind": "collective", "class": "collective", "collective": None, "workgroups": 24},
            **{"workgroup_size": 256, "registers": None, "lds_bytes": None, "bytes": None, "n": 1},
        }
    ]
    used, few = pairs.groups.to_pylist()
    assert (used["name"], used["class"], used["device"], used["rank"]) == (GEMM, "gemm", "NVIDIA A100-SXM4-80GB", None)
    assert (used["n_alone"], used["n_overlapped"], used["ratio"], used["status"]) == (4, 1, 1.6, "used")
    assert (used["alone_ns"], used["overlapped_ns"], used["alone_scatter"]) == (10_000, 16_000, 0)
    assert (few["name"], few["n_alone"], few["ratio"], few["status"]) == (ADD, 1, 1.25, "too few alone")
    assert pairs.excluded == {"communication": 1, "too few alone": 2}
    assert (pairs.launches, pairs.alone, total(pairs)) == (8, 4, 8)
    assert (pairs.resolution_ns, pairs.confounded) == (1000, "")


def test_the_columns_of_the_tables_are_those_that_are_told() -> None:
    for trace in (trace_of([]), trace_of([*gemms(4), collective(990, 60), kernel(GEMM, 1000, 16)])):
        pairs = measure_pairs(trace)
        assert (tuple(pairs.groups.schema.names), tuple(pairs.partners.schema.names)) == (
            GROUP_COLUMNS,
            PARTNER_COLUMNS,
        )


def test_launches_next_to_other_streams_are_neither_alone_nor_overlapped() -> None:
    """Two GEMMs have a copy 0.5 us before or after them, the third has one beside it for half of its time."""
    copies = [copy(510.5, 5), copy(590, 9.5), copy(695, 10), copy(790, 30)]
    pairs = measure_pairs(trace_of(gemms(9), copies))
    assert pairs.event.tolist() == [108]
    assert pairs.excluded == {"close neighbor": 2, "partly overlapped": 1}
    assert pairs.partners.select(["name", "kind", "class", "bytes"]).to_pylist() == [
        {"name": "Memcpy HtoD", "kind": "copy", "class": "", "bytes": 4096}
    ]
    wider = measure_pairs(trace_of(gemms(9), copies), PairOptions(min_gap_ns=400, min_overlap=0.5))
    assert (wider.event.tolist(), wider.alone, dict(wider.excluded)) == ([107, 108], 7, {})
    assert (wider.beside_share.tolist(), wider.partner_event.tolist()) == ([0.5, 1.0], [502, 503])


def steps(times: list[list[float]], **columns: Any) -> list[Event]:
    """Return iterations of 1000 us with GEMMs that take these times, one every 100 us."""
    return [
        kernel(GEMM, 1000 * number + 100 * i, us, iteration=number, **columns)
        for number, step in enumerate(times)
        for i, us in enumerate(step)
    ]


def test_a_launch_is_compared_with_its_position_in_other_iterations() -> None:
    """The second GEMM of an iteration takes 20 us instead of 10, and 30 us in the last one, beside a collective."""
    events = [*steps([[10, 20], [10, 20], [10, 20], [10, 30]]), collective(3090, 60)]
    for shapes in ("[[64,64]]", None):  # with shapes that do not change, and with unknown ones
        pairs = measure_pairs(trace_of(events, shapes=shapes))
        assert (pairs.event.tolist(), pairs.alone_ns.tolist()) == ([107], [20_000.0])
        assert (pairs.same_position.tolist(), pairs.iteration.tolist()) == ([True], [3])
        assert pairs.alone_n.tolist() == [3]
        assert pairs.groups.to_pylist()[0]["ratio"] == 1.5


def test_unknown_operands_are_not_compared_across_positions() -> None:
    """The second GEMM is always overlapped, and may be another product than the first."""
    events = [*steps([[10, 30]] * 4), *(collective(1000 * i + 90, 60) for i in range(4))]
    assert measure_pairs(trace_of(events)).slowdown.tolist() == [3.0] * 4
    for shapes in (None, "[[],[]]"):
        pairs = measure_pairs(trace_of(events, shapes=shapes))
        assert len(pairs.event) == pairs.alone == 0
        assert pairs.excluded == {"communication": 4, "unknown operands": 8}
        assert pairs.groups["status"].to_pylist() == ["unknown operands"]


def test_positions_that_differ_are_not_compared() -> None:
    """The first two GEMMs take 10 and 20 us alone; what the third takes alone is anyone's guess."""
    events = [*steps([[10, 20, 30]] * 4), *(collective(1000 * i + 190, 60) for i in range(4))]
    pairs = measure_pairs(trace_of(events))
    assert pairs.excluded == {"communication": 4, "positions differ": 12}


def test_an_iteration_with_other_launches_has_no_positions() -> None:
    """The last iteration lacks its first GEMM, so its second one counts as no position."""
    events = [*steps([[10, 11]] * 4), kernel(GEMM, 4100, 22, iteration=4), collective(4090, 60)]
    pairs = measure_pairs(trace_of(events))
    assert (pairs.same_position.tolist(), pairs.alone_ns.tolist()) == ([False], [10_500.0])


def test_first_iterations_that_take_longer_are_warm_up() -> None:
    events = steps([[20, 20], [10, 10], [10, 10], [10, 10], [10, 15]])
    events += [collective(90, 60), collective(4090, 60)]
    pairs = measure_pairs(trace_of(events))
    assert (pairs.event.tolist(), pairs.alone_ns.tolist()) == ([109], [10_000.0])
    assert pairs.excluded == {"communication": 2, "warm-up": 2}


def test_a_slow_first_launch_is_left_out() -> None:
    """The first GEMM of rank 0 takes 15 us alone, and that of rank 1 30 us beside a collective, the next one 14 us."""
    events = [*steps([[15, 90], [10, 90], [10, 90], [10, 95]]), collective(3090, 110)]
    events += [*steps([[30, 90], [14, 90], [10, 90]], rank=1), collective(0, 60, rank=1), collective(990, 60, rank=1)]
    pairs = measure_pairs(trace_of(events))
    assert pairs.event.tolist() == [107, 111]
    assert pairs.excluded == {"communication": 3, "first touch": 2}


def test_ranks_of_another_speed_are_not_pooled() -> None:
    """GEMMs take 10 us on rank 0 and 14 us on rank 1; on rank 1 the first of each iteration has no alone launch."""
    events = [*steps([[10, 10]] * 4), *steps([[21, 14]] * 4, rank=1)]
    events += [collective(1000 * i - 5, 30, rank=1) for i in range(4)]
    pairs = measure_pairs(trace_of(events))
    assert (set(pairs.alone_ns.tolist()), set(pairs.slowdown.tolist())) == ({14_000.0}, {1.5})
    assert pairs.groups.select(["rank", "n_alone", "n_overlapped"]).to_pylist() == [
        {"rank": 1, "n_alone": 4, "n_overlapped": 4}
    ]
    assert pairs.excluded == {"communication": 4, "never overlapped": 8}


def test_a_rank_of_another_speed_without_alone_launches_is_left_out() -> None:
    """GEMMs take 10 us on rank 0, 14 us on rank 1, and 12 us on rank 2, where all are overlapped."""
    events = [*steps([[10, 10]] * 4), *steps([[14, 14]] * 4, rank=1), *steps([[12, 12]] * 4, rank=2)]
    events += [collective(1000 * i - 5, 200, rank=2) for i in range(4)]
    pairs = measure_pairs(trace_of(events))
    assert pairs.excluded == {"communication": 4, "never overlapped": 16, "ranks differ": 8}


def test_alone_launches_that_scatter_measure_nothing() -> None:
    times = (10, 16, 10, 17, 9, 18)
    events = [*(kernel(GEMM, 100 * i, us) for i, us in enumerate(times)), kernel(GEMM, 600, 20), collective(590, 60)]
    pairs = measure_pairs(trace_of(events))
    assert pairs.excluded == {"communication": 1, "scattered alone": 7}
    assert pairs.groups["alone_scatter"][0].as_py() > 0.25
    assert measure_pairs(trace_of(events), PairOptions(max_scatter=1)).event.tolist() == [106]


def test_the_noise_is_the_error_of_alone_launches_predicted_from_the_others() -> None:
    """Of 10, 10 and 13 us the medians of the two others are 11.5, 11.5 and 10 us."""
    times = (10, 10, 13)
    events = [*(kernel(GEMM, 100 * i, us) for i, us in enumerate(times)), kernel(GEMM, 300, 20), collective(290, 60)]
    pairs = measure_pairs(trace_of(events))
    assert pairs.noise == pytest.approx(1.5 / 11.5)
    assert pairs.noise_mean == pytest.approx((1.5 + 1.5 + 3) / (11.5 + 11.5 + 10))
    even = measure_pairs(trace_of([*gemms(4), kernel(GEMM, 500, 20), collective(499, 60)]))
    assert even.noise == even.noise_mean == pytest.approx(1 / 30)  # a third of the clock's 1 us


def test_overlapped_launches_that_are_faster_are_no_contention() -> None:
    events = [*gemms(4), *gemms(3, at=400, us=7), collective(390, 300)]
    pairs = measure_pairs(trace_of(events))
    assert pairs.slowdown.tolist() == [0.7] * 3
    assert pairs.confounded == (
        "Kernels with 100% of the overlapped time are faster than alone, and only 0% are slower: "
        "clocks or data differ, which is not contention."
    )


def test_the_number_of_a_kernel_in_its_operator_makes_a_group() -> None:
    """Each operator runs a GEMM of 10 us and the same GEMM again for 20 us, which is once overlapped."""
    events = [kernel(GEMM, 100 * i + at, us) for i in range(4) for at, us in ((0, 10), (40, 20))]
    trace = trace_of([*events[:-1], kernel(GEMM, 340, 25), collective(335, 40)])
    trace = trace.with_tables(kernels=table("kernels", [*events[:-1], kernel(GEMM, 340, 25), collective(335, 40)], 100,
                                            op_id=[0, 0, 1, 1, 2, 2, 3, 3, None]))  # fmt: skip
    pairs = measure_pairs(trace)
    assert (pairs.event.tolist(), pairs.slowdown.tolist()) == ([107], [1.25])


@pytest.mark.parametrize(
    "kernels",
    [[], gemms(5), [kernel(GEMM, 0, 0)], [collective(0, 50)], [kernel(GEMM, 0, 10), kernel(GEMM, 0, 10, stream=8)]],
    ids=["no kernels", "one stream", "no duration", "communication alone", "never alone"],
)
def test_a_trace_without_pairs_says_why(kernels: list[Event]) -> None:
    for measure in (measure_pairs, collective_pairs):
        pairs = measure(trace_of(kernels))
        assert len(pairs.event) == len(pairs.partner) == pairs.alone == pairs.partners.num_rows == 0
        assert sum(pairs.excluded.values()) == pairs.launches == len(kernels)
        assert np.isnan(pairs.noise)
        assert set(pairs.excluded) <= set(REASONS)


@pytest.mark.parametrize("options", [{"min_alone": 1}, {"min_overlap": 0.0}, {"max_scatter": 0.0}, {"min_gap_ns": -1}])
def test_limits_that_make_no_sense_are_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"^{next(iter(options))} is .*; "):
        PairOptions(**options)


def random_trace(seed: int, count: int = 300) -> Trace:
    """Return kernels at random times on three streams of two ranks."""
    generator = np.random.default_rng(seed)
    starts, times, streams = (generator.integers(low, high, count) for low, high in ((0, 4000), (0, 20), (1, 4)))
    names, iterations = (GEMM, ADD, NCCL), starts // 900
    facts = zip(starts.tolist(), times.tolist(), streams.tolist(), iterations.tolist(), strict=True)
    return trace_of(
        [
            kernel(names[i % 3], at, us, stream=stream, rank=i % 2, iteration=iteration)
            for i, (at, us, stream, iteration) in enumerate(facts)
        ]
    )


@given(st.integers(0, 10_000))
def test_what_runs_beside_a_kernel_is_found_as_by_comparing_all(seed: int) -> None:
    events = DeviceEvents.of(random_trace(seed, 60))
    near = Neighbors.of(events, 2000)
    for i in range(len(events.id)):
        start, end = events.start_ns[i], events.end_ns[i]
        others = (events.device == events.device[i]) & (np.arange(len(events.id)) != i)
        moments = np.arange(start, end, 1000)[:, None]
        covered = (others & (events.start_ns <= moments) & (events.end_ns > moments)).any(axis=1)
        assert near.beside_ns[i] == 1000 * covered.sum()
        shared = np.where(others, np.minimum(end, events.end_ns) - np.maximum(start, events.start_ns), 0)
        assert near.partner_ns[i] == max(shared.max(), 0)
        assert (near.partner[i] < 0) if shared.max() <= 0 else shared[near.partner[i]] == shared.max()
        far = (events.end_ns <= start - 2000) | (events.start_ns >= end + 2000)
        assert near.is_close[i] == (others & (events.stream != events.stream[i]) & ~far).any()


def test_every_launch_counts_once_in_any_order() -> None:
    trace, options = random_trace(3), PairOptions(max_scatter=10, min_overlap=0.6)
    pairs = measure_pairs(trace, options)
    assert total(pairs) == pairs.launches == 300
    assert len(set(pairs.event.tolist())) == len(pairs.event) > 3
    assert Counter(pairs.partner.tolist()) == dict(enumerate(pairs.partners["n"].to_pylist()))
    order = np.random.default_rng(1).permutation(300)
    shuffled = measure_pairs(trace.with_tables(kernels=trace.kernels.take(order)), options)
    for name in ("event", "rank", "duration_ns", "alone_ns", "partner_event", "partner_share"):
        assert getattr(shuffled, name).tolist() == getattr(pairs, name).tolist()
    assert (shuffled.excluded, shuffled.noise) == (pairs.excluded, pairs.noise)


def test_the_columns_that_are_named_suffice(tmp_path: Path) -> None:
    trace, options = random_trace(3), PairOptions(max_scatter=10, min_overlap=0.6)
    narrow = load_trace(save_trace(trace, tmp_path / "t.trace"), PAIR_COLUMNS)
    assert (narrow.launches.num_rows, narrow.ops.schema.names) == (0, ["id", "shapes", "dtypes"])
    pairs, again = measure_pairs(trace, options), measure_pairs(narrow, options)
    assert again.alone_ns.tolist() == pairs.alone_ns.tolist()
    assert again.groups.equals(pairs.groups) and again.partners.equals(pairs.partners)


def reductions(*ranks: list[tuple[float, float]], group_size: int = 2, kernels: list[Event] | None = None) -> Trace:
    """Return a trace of all-reduces, each the next match of all ranks: (start, end) by rank."""
    calls = [
        collective(at, end - at, rank=rank, collective_id=1000 * rank + i)
        for rank, spans in enumerate(ranks)
        for i, (at, end) in enumerate(spans)
    ]
    ids = [each.columns["collective_id"] for each in calls]
    columns = {"id": ids, "rank": [each.columns["rank"] for each in calls], "match_id": [id_ % 1000 for id_ in ids]}
    columns |= {"collective": ["all_reduce"] * len(calls), "bytes": [1 << 20] * len(calls)}
    columns |= {"group_size": [group_size] * len(calls), "name": [NCCL] * len(calls)}
    columns |= {"start_ns": [round(1000 * each.at) for each in calls]}
    columns |= {"dur_ns": [round(1000 * each.us) for each in calls], "dtype": ["float"] * len(calls)}
    return trace_of([*calls, *(kernels or [])]).with_tables(collectives=make_table("collectives", columns))


def test_the_wait_for_the_last_rank_is_no_time_of_a_collective() -> None:
    """Four all-reduces take 100 us alone; the fifth takes 150 us, of which 120 us beside a GEMM on rank 0.

    Rank 1 comes 300 us later to each, and ends when rank 0 ends.
    """
    spans = [(1000.0 * i, 1000.0 * i + 400) for i in range(4)] + [(4000.0, 4450.0)]
    late = [(at + 300, end) for at, end in spans]
    trace = reductions(spans, late, kernels=[kernel(GEMM, 4310, 120)])
    pairs = collective_pairs(trace, PairOptions(min_overlap=0.4))
    assert (pairs.event.tolist(), pairs.duration_ns.tolist()) == ([104], [150_000.0])
    assert pairs.alone_ns.tolist() == [100_000.0]
    assert pairs.beside_share.tolist() == [0.8]
    assert pairs.excluded == {"computation": 1, "partly overlapped": 1}  # on rank 1 nothing is beside the fifth
    group = pairs.groups.to_pylist()[0]
    assert (group["collective"], group["bytes"], group["group_size"], group["n_alone"]) == ("all_reduce", 1 << 20, 2, 8)
    assert measure_pairs(trace).excluded["communication"] == 10


def test_a_collective_is_alone_only_if_it_is_so_on_all_ranks() -> None:
    spans = [(1000.0 * i, 1000.0 * i + 100) for i in range(5)]
    busy = [kernel(GEMM, 4000, 90, rank=1), kernel(GEMM, 3000, 90, rank=0), kernel(GEMM, 3000, 90, rank=1)]
    pairs = collective_pairs(reductions(spans, spans, kernels=busy))
    assert pairs.event.tolist() == [103, 108]
    assert pairs.excluded == {"computation": 3, "partly overlapped": 2}
    assert pairs.alone == 6


@pytest.mark.parametrize(
    "ranks",
    [([(0.0, 100.0)],), ([(0.0, 100.0)], [(500.0, 600.0)])],
    ids=["one rank of two", "clocks apart"],
)
def test_a_wait_that_cannot_be_known_is_counted(ranks: tuple[list[tuple[float, float]], ...]) -> None:
    assert collective_pairs(reductions(*ranks)).excluded == {"unknown wait": len(ranks)}


@cache
def recorded(name: str) -> ContentionPairs:
    """Return the pairs of a real file."""
    return measure_pairs(collect([DATA / name]))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_convolutions_that_fill_a_mi300x_wait_for_the_units_that_rccl_holds() -> None:
    """Convolutions of 304 workgroups on 304 compute units; RCCL holds 24 of them."""
    pairs = recorded("ddp4/mi300_4ranks_merged.json.gz")
    groups = pairs.groups.to_pandas()
    groups = groups[(groups.workgroups == 304) & (groups.status == "used")]
    whole = groups[groups.name.str.startswith("miopenSp3AsmConv")]
    assert len(whole) > 5 and whole.ratio.between(1.25, 1.7).all()
    assert len(pairs.event) > 2000 and total(pairs) == pairs.launches == 12_381
    assert pairs.noise < 0.05 and pairs.confounded == ""
    assert np.mean(pairs.same_position) > 0.9


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_a_job_whose_overlapped_kernels_are_faster_is_confounded() -> None:
    pairs = recorded("tracelens/other/resnet_act_checkpoint_mi300_rank0.json.gz")
    assert np.median(pairs.slowdown) < 1
    assert pairs.confounded.endswith("which is not contention.")
