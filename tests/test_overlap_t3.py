"""`replay.studies.t3`: stages, chunks, arbitration, movement, closed forms, and the order of the systems."""

import dataclasses
import tomllib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import dataset_path
from replay.analysis.idle import resource_use
from replay.costs.collectives import Topology
from replay.costs.collectives.algorithms import busiest_volume, ring_steps
from replay.costs.kernels import load_calibration, predict
from replay.costs.shipped import load_parameters
from replay.engine.timeline import replay
from replay.studies.t3 import Outcome, SubLayer, System, find_sublayer, load_workload, study
from replay.studies.t3.ring import (
    REPLACEMENTS,
    Arbitration,
    Message,
    Ring,
    all_gather,
    cached_share,
    compute_first,
    near_memory_reduce_scatter,
    product_of,
    reduce_scatter,
)
from replay.studies.t3.study import near_memory_gain, reproduce, speedup_beside_few_units, with_link

SYSTEM = load_workload().system
LABELS = list(load_workload().sublayers)


def changed(system: System, **figures: float) -> System:
    old = system.device.figures
    new = {name: dataclasses.replace(old[name], value=value) for name, value in figures.items()}
    return dataclasses.replace(system, device=dataclasses.replace(system.device, figures={**old, **new}))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {
        label: study(find_sublayer(label, load_workload()), SYSTEM, parameters=load_parameters())
        for label in LABELS
        if not label.startswith(("gpt3", "palm"))
    }


@pytest.fixture(scope="module")
def ours() -> dict[str, float]:
    return reproduce(load_parameters(), load_workload())


# ---- the workload


def test_the_workload_holds_every_sublayer_and_says_where_from() -> None:
    assert len(LABELS) == 4 * (2 + 2 + 1 + 1 + 1)
    one = find_sublayer("t_nlg/ip/16", load_workload())
    assert (one.tokens, one.hidden, one.depth, one.output_bytes) == (8192, 4256, 3 * 4256 // 16, 2 * 8192 * 4256)
    assert SYSTEM.device.flops_per_s("fp16") == pytest.approx(184.6e12 / (120 * 1.502e9) * 80 * 1.4e9, rel=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 3072", "hidden = 0", "hidden is 0"),
        ("hidden = 3072", "hiden = 3072", "models.mega_gpt2: unknown key 'hiden'; the keys are"),
        ("workers = [8, 16]", 'workers = ["8"]', r"models.mega_gpt2: workers\[0\]: Expected `int`, got `str`"),
        ("workers = [8, 16]", "workers = [1]", "one worker reduces nothing"),
        ("latency_ns = 500\n", "", "system: lacks the key 'latency_ns'"),
        ("[sublayers.op]", "[parts.op]", "has tables"),
        ('device = "T3-GPU"', 'device = "T4-GPU"', "no device is called"),
        ("tile_rows = 128", "tile_rows = true", "system: tile_rows: Expected `int`, got `bool`"),
        ("[system]", "[system", "no TOML"),
    ],
)
def test_a_wrong_workload_is_refused_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = dataset_path("workloads/t3.toml").read_text()
    assert old in text
    file = tmp_path / "own.toml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(SeqPointError, match=message):
        load_workload(file)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        load_workload(tmp_path / "none.toml")
    with pytest.raises(NotFoundError, match="there are mega_gpt2/op/8"):
        find_sublayer("gpt5/op/8", load_workload())


# ---- products


@pytest.mark.parametrize("label", LABELS)
def test_stages_hold_the_whole_result_and_take_what_the_product_takes(label: str) -> None:
    one = find_sublayer(label, load_workload())
    product = product_of(one, SYSTEM, 1.0, calibration=load_calibration())
    assert product.written_bytes.sum() == one.output_bytes
    assert np.allclose(product.written_bytes.sum(axis=0), one.output_bytes / one.workers)
    assert product.tiles.sum(axis=1).max() == SYSTEM.device.compute_units
    moved = product.read_bytes.sum() + one.output_bytes
    whole = (
        predict(
            "matmul",
            [[1, one.tokens, one.hidden, one.depth]],
            SYSTEM.device,
            dtype="fp16",
            calibration=load_calibration(),
        ).seconds[0]
        * 1e9
    )
    stages = len(product.read_bytes)
    assert product.launch_ns + stages * product.compute_ns + SYSTEM.memory_ns(moved) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("label", ["t_nlg/fc2/8", "mega_gpt2/ip/16", "mt_nlg/op/32"])
def test_operands_are_read_at_least_once_and_more_often_from_a_smaller_cache(label: str) -> None:
    one = find_sublayer(label, load_workload())
    once = 2 * one.depth * (one.tokens + one.hidden)
    read = [
        product_of(one, changed(SYSTEM, l2_mb=size), 1.0, calibration=load_calibration()).read_bytes.sum()
        for size in (1e4, 32, 16, 8, 1)
    ]
    assert read[0] == once
    assert all(np.diff(read) >= 0) and read[-1] > once
    assert (
        product_of(one, SYSTEM, 0.0, calibration=load_calibration()).read_bytes.sum()
        <= product_of(one, SYSTEM, 1.0, calibration=load_calibration()).read_bytes.sum()
    )


@pytest.mark.parametrize("footprint", [1.01, 1.2, 2.0])
def test_the_share_in_the_cache_is_that_of_random_replacement(footprint: float) -> None:
    random, lines = np.random.default_rng(7), 2000
    cache, hits = np.full(lines, -1), 0
    slots: dict[int, int] = {}
    rounds, stream = 60, round(footprint * lines)
    for turn in range(rounds):
        for line in range(stream):
            if line in slots:
                hits += turn >= rounds // 2
                continue
            place = int(random.integers(lines)) if len(slots) == lines else len(slots)
            slots.pop(int(cache[place]), None)
            cache[place], slots[line] = line, place
    assert cached_share(stream / lines, "random") == pytest.approx(hits / (rounds - rounds // 2) / stream, abs=0.02)


def test_replacements_are_ordered_and_named() -> None:
    assert [cached_share(1.25, name) for name in ("lru", "best")] == [0.0, 0.8]
    assert 0 < cached_share(1.25, "random") < 0.8
    assert [cached_share(1.0, name) for name in REPLACEMENTS] == [1.0, 1.0, 1.0]
    with pytest.raises(InvalidInputError, match="no replacement is called 'fifo'; there are lru, random, best"):
        dataclasses.replace(SYSTEM, replacement="fifo")


@pytest.mark.parametrize(
    ("one", "slice_depth", "message"),
    [
        (SubLayer("own", "op", 2**30, 2**14, 1, 8), 128, "at most 1,048,576: raise tile_rows"),
        (SubLayer("own", "op", 2**15, 2**14, 4, 8), 1, "at most 1,048,576 in all: raise slice_depth"),
    ],
)
def test_products_too_large_to_simulate_are_refused(one: SubLayer, slice_depth: int, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        study(one, dataclasses.replace(SYSTEM, slice_depth=slice_depth), parameters=load_parameters())


def test_tokens_that_make_no_whole_chunks_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="take a multiple of 1024"):
        study(SubLayer("own", "op", 1000, 1024, 1, 8), SYSTEM, parameters=load_parameters())


# ---- the ring


@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_collectives_alone_take_their_alpha_beta_times(gpus: int) -> None:
    chunk = 5e6
    beta, alpha = SYSTEM.link_ns(chunk), SYSTEM.latency_ns
    assert (gpus - 1) / gpus == busiest_volume("all_gather", Topology(gpus))
    steps = ring_steps("all_gather", gpus) * (beta + alpha)
    expected = {
        all_gather: steps,
        near_memory_reduce_scatter: steps,
        reduce_scatter: steps + SYSTEM.memory_ns(3 * chunk),
    }
    for kind, time in expected.items():
        ring = Ring(SYSTEM, gpus)
        kind(ring, ring.mark("start"), workers=gpus, chunk_bytes=chunk)
        assert replay(ring.graph()).makespan_ns == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("label", ["t_nlg/fc2/8", "t_nlg/op/16", "mega_gpt2/fc1/16"])
def test_one_gpu_stands_for_all_to_the_bit(label: str) -> None:
    one, all_ = (
        study(find_sublayer(label, load_workload()), SYSTEM, gpus=gpus, parameters=load_parameters())
        for gpus in (1, find_sublayer(label, load_workload()).workers)
    )
    for mine, theirs in ((one.baseline, all_.baseline), (one.t3, all_.t3), (one.t3_mca, all_.t3_mca)):
        assert len(theirs.timeline.graph.devices) == 2 * one.sublayer.workers
        assert (mine.product_ns, mine.reduced_ns, mine.gathered_ns) == (
            theirs.product_ns,
            theirs.reduced_ns,
            theirs.gathered_ns,
        )
        assert mine.movement_bytes == pytest.approx(theirs.movement_bytes)
        assert np.ptp(theirs.timeline.end_ns[theirs.gathered]) == 0
    with pytest.raises(InvalidInputError, match="3 GPUs; give 1"):
        study(find_sublayer(label, load_workload()), SYSTEM, gpus=3, parameters=load_parameters())


# ---- arbitration


def contended(way: Arbitration) -> tuple[float, float]:
    """A burst of 100 us beside an incoming transfer that needs the memory for 100 us; when each is over."""
    ring = Ring(dataclasses.replace(SYSTEM, block_bytes=2**31, latency_ns=0.0), 1, way)
    size = 1e5 * SYSTEM.device.memory_bytes_per_s / 1e9
    burst = ring.access("burst", [size])[0]
    sent = ring.send(Message("over", 1.0, ("", 0.0), ("in", size)))
    line = replay(ring.graph())
    return float(line.end_ns[burst[0]]), float(line.end_ns[sent.came[0]])


def test_who_gets_the_memory_by_hand() -> None:
    assert contended(Arbitration()) == pytest.approx((2e5, 2e5), abs=1.0)
    # With a tenth left to communication: 100 us at 0.9 of the bandwidth, then what is left at all of it.
    assert contended(compute_first(0.1)) == pytest.approx((1e5 / 0.9, 2e5), abs=1.0)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_starvation_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(InvalidInputError, match="more than 0 and less than 1"):
        compute_first(share)


def test_compute_first_never_slows_the_product_more_than_first_come(outcomes: dict[str, Outcome]) -> None:
    for one in outcomes.values():
        assert one.t3_mca.product_ns < one.t3.product_ns


def test_an_update_costs_at_least_a_write() -> None:
    with pytest.raises(InvalidInputError, match="t3_update_cost is 0"):
        study(
            find_sublayer("t_nlg/op/8", load_workload()),
            SYSTEM,
            parameters=load_parameters().with_values([("t3_update_cost", 0.0)]),
        )


def test_no_memory_or_link_is_over_full(outcomes: dict[str, Outcome]) -> None:
    for run in (outcomes["t_nlg/op/16"].t3, outcomes["t_nlg/op/16"].t3_mca):
        use = resource_use(run.timeline, 200)
        assert use.use.max() <= 1 + 1e-9


# ---- what T3 is to do


def test_the_order_of_the_systems(outcomes: dict[str, Outcome]) -> None:
    for label, one in outcomes.items():
        t3, mca, ideal = one.speedup(one.t3), one.speedup(one.t3_mca), one.ideal_speedup
        assert t3 > 1, label
        assert t3 < 1.02 * mca < 1.02**2 * ideal, label
        bound_by_the_product = one.baseline.product_ns > one.baseline.reduced_ns - one.baseline.product_ns
        # Traffic that is saved can beat what only hides time.
        assert not bound_by_the_product or t3 < mca < 1.02 * ideal, label


def test_movement_is_that_of_the_closed_forms(outcomes: dict[str, Outcome]) -> None:
    for one in outcomes.values():
        n, size = one.sublayer.workers, one.sublayer.output_bytes
        before, after = one.baseline.movement_bytes, one.t3_mca.movement_bytes
        assert before["RS reads"] == pytest.approx((2 * n - 1) * size / n, rel=1e-12)
        assert after["RS reads"] == pytest.approx((n - 2) * size / n, rel=1e-12)
        assert before["GEMM writes"] + before["RS writes"] == pytest.approx(2 * size, rel=1e-12)
        assert after["GEMM writes"] + after["RS writes"] == pytest.approx(2 * (n - 1) * size / n, rel=1e-12)
        for name in ("AG reads", "AG writes"):
            assert before[name] == after[name] == pytest.approx((n - 1) * size / n, rel=1e-12)
        assert after == one.t3.movement_bytes


def test_with_fast_links_and_cheap_updates_only_the_product_is_left() -> None:
    one = find_sublayer("t_nlg/fc2/8", load_workload())
    fast = dataclasses.replace(changed(SYSTEM, link_gbps=900.0, l2_mb=1e4), latency_ns=0.0)
    known = load_parameters().with_values([("t3_update_cost", 1.0), ("t3_starvation_share", 1e-6)])
    found = study(one, fast, parameters=known)
    chunk = one.output_bytes / one.workers
    assert found.t3_mca.product_ns == pytest.approx(found.baseline.product_ns, rel=0.01)
    assert found.t3_mca.reduced_ns - found.t3_mca.product_ns < SYSTEM.memory_ns(2 * chunk)


@pytest.mark.parametrize("label", ["t_nlg/op/8", "mega_gpt2/fc2/16"])
@pytest.mark.parametrize(("figure", "values"), [("link_gbps", (40, 75, 150, 300)), ("memory_gbps", (500, 1000, 4000))])
def test_more_bandwidth_never_slows(label: str, figure: str, values: tuple[int, ...]) -> None:
    found = [
        study(find_sublayer(label, load_workload()), changed(SYSTEM, **{figure: value}), parameters=load_parameters())
        for value in values
    ]
    for run in ("baseline", "t3", "t3_mca"):
        times = [getattr(one, run).gathered_ns for one in found]
        assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(times)), times


def test_chunks_are_sent_when_their_tiles_and_the_partial_sum_are_there(outcomes: dict[str, Outcome]) -> None:
    run = outcomes["mega_gpt2/ip/16"].t3
    start, end = run.timeline.start_ns, run.timeline.end_ns
    last = run.product.last_stages()
    for chunk in range(1, len(last) - 1):
        first = start[run.arrivals[chunk][0].first[0]]
        ready = [end[run.stages[last[chunk], 0]]]
        ready += [end[one.came[0]] for one in run.arrivals[chunk - 1]]
        ready += [end[one.left[0]] + SYSTEM.latency_ns for one in run.arrivals[chunk - 1]]
        assert first >= max(ready)


# ---- the tracker


# ---- closed forms and published figures


@pytest.mark.parametrize("workers", [2, 8, 16, 32])
@pytest.mark.parametrize("gbps", [75.0, 150.0])
def test_near_memory_gains_three_chunks_of_memory_over_all_that_is_sent(workers: int, gbps: float) -> None:
    gain = near_memory_gain(with_link(SYSTEM, gbps), workers)
    assert gain == pytest.approx(3 * gbps / (1000 * (workers - 1)), rel=1e-9)


def test_few_compute_units_take_what_overlap_gains() -> None:
    assert speedup_beside_few_units(1.67, 1.41, 0.1) == pytest.approx(1.67 / 1.41, rel=1e-9)
    assert speedup_beside_few_units(1.67, 1.0, 0.1) == pytest.approx(1.67, rel=1e-9)


def published() -> dict[str, dict[str, float | str]]:
    found: dict[str, dict[str, float | str]] = tomllib.loads(dataset_path("published/t3.toml").read_text())["figures"]
    return found


def test_every_published_figure_has_ours(ours: dict[str, float]) -> None:
    assert list(published()) and set(published()) == set(ours)
    assert all(np.isfinite(value) for value in ours.values())


@pytest.mark.parametrize("name", [name for name, row in published().items() if row["grade"] in "AD"])
def test_figures_that_count_are_met(name: str, ours: dict[str, float], request: pytest.FixtureRequest) -> None:
    row = published()[name]
    limit = float(row["limit"]) * (abs(float(row["value"])) if row["limit_is"] == "relative" else 1.0)
    assert abs(ours[name] - float(row["value"])) <= limit
