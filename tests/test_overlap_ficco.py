"""`replay.studies`: FiCCO (arXiv 2512.10236)."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.overlap.ficco_chooser import candidate_times_ns, draw_scenarios, grow_chooser
from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import dataset_path
from replay.costs.collectives import Topology
from replay.costs.kernels import load_calibration
from replay.costs.products import copy_columns, kernel_columns, product_ns
from replay.costs.shipped import load_parameters
from replay.graph.graph import TaskKind
from replay.studies.ficco import (
    CANDIDATES,
    SCHEDULES,
    STUDIED,
    Piece,
    Scenario,
    best_schedule,
    decomposition_loss,
    distance_factor,
    find_schedule,
    graph_of,
    load_scenarios,
    makespan_ns,
    piece_columns,
    piece_ns,
    pieces_of,
    ring_hops,
    run_schedule,
    step_transfer,
    steps_of,
)
from replay.studies.ficco_chooser import (
    FEATURES,
    Chooser,
    Decision,
    features_of,
    load_chooser,
    reproduce,
    score_choices,
    sweep,
    transfer_ratio,
)
from replay.studies.published import published_figures

SCENARIOS = load_scenarios()
G1 = SCENARIOS["g1"]
TEXT = dataset_path("workloads/ficco.toml").read_text()
#: DMA copies cost their bytes alone.
BARE = load_parameters().with_values([("dma_command_ns", 0.0), ("dma_latency_ns", 0.0)])


def on(fabric: str, scenario: Scenario = G1) -> Scenario:
    return replace(scenario, topology=Topology(8, fabric=fabric))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    return {carrier: sweep(SCENARIOS, load_parameters(), carrier=carrier) for carrier in ("dma", "units")}


def test_what_a_device_computes_and_waits_for() -> None:
    assert len(SCENARIOS) == 16
    assert (G1.product.m, G1.product.n, G1.product.k) == (16384, 2048, 131072)
    assert G1.transfer.size_bytes == 2 * 16384 * 131072
    assert G1.peers == 7


@pytest.mark.parametrize("name", SCHEDULES)
def test_pieces_make_up_the_product(name: str) -> None:
    for scenario in SCENARIOS.values():
        pieces = pieces_of(scenario, find_schedule(name))
        assert sum(piece.product.flops for piece in pieces) == scenario.product.flops
        assert {piece.step for piece in pieces} - {-1} == set(range(steps_of(scenario, find_schedule(name))))


def test_how_many_pieces_there_are_and_which_add() -> None:
    counts = {name: len(pieces_of(G1, find_schedule(name))) for name in SCHEDULES}
    assert counts == {
        "serial": 1,
        "shards": 8,
        "uniform_fused_1d": 8,
        "hetero_fused_1d": 9,
        "hetero_unfused_1d": 57,
        "uniform_fused_2d": 8,
    }
    assert [piece.sums for piece in pieces_of(G1, find_schedule("uniform_fused_2d"))] == [False] + [True] * 7
    assert [piece.product.k for piece in pieces_of(G1, find_schedule("uniform_fused_2d"))] == [16384] * 8


@pytest.mark.parametrize("name", ["shards", *STUDIED])
def test_what_is_received_is_all_that_is_not_local(name: str) -> None:
    for fabric in ("mesh", "switch", "ring"):
        schedule = find_schedule(name)
        received = steps_of(G1, schedule) * step_transfer(on(fabric), schedule).sent_bytes
        assert received == pytest.approx(G1.transfer.size_bytes * 7 / 8)


def test_a_serial_run_is_the_sum_of_both(outcomes: dict[str, dict[str, Any]]) -> None:
    for name, each in outcomes["dma"].items():
        scenario, serial = SCENARIOS[name], each["serial"]
        alone = float(kernel_columns(scenario.transfer, parameters=load_parameters())["duration_ns"]) + product_ns(
            scenario.product, parameters=load_parameters()
        )
        assert serial.timeline.makespan_ns == pytest.approx(alone, rel=1e-9)
        assert serial.speedup == pytest.approx(1.0) and serial.contention_loss == pytest.approx(1.0)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("schedule", ["uniform_fused_1d", "uniform_fused_2d"])
def test_without_contention_the_simulation_is_the_closed_form(name: str, schedule: str) -> None:
    """T = c1 + sum max(g_i, c_(i+1)) + g_n (arXiv 2512.10236)."""
    scenario, chosen = SCENARIOS[name], find_schedule(schedule)
    graph = graph_of(scenario, chosen, BARE)
    demand, copies = graph.tasks.demand.copy(), graph.tasks.kind == TaskKind.COPY
    demand[copies] = 0.0
    # Copies that use nothing beside their links, which are their own.
    quiet = graph.with_tasks(demand=demand, footprint=np.where(copies, 0.0, graph.tasks.footprint))
    c = float(copy_columns(step_transfer(scenario, chosen), BARE)["duration_ns"])  # type: ignore[arg-type]
    g = [piece_ns(piece, parameters=load_parameters()) for piece in pieces_of(scenario, chosen)]
    from replay.engine.timeline import replay

    expected = c + sum(max(one, c) for one in g[:-1]) + g[-1]
    # The first piece of a 2D schedule adds nothing and is shorter: a transfer may make up for what it waited.
    exact = schedule == "uniform_fused_1d" or c >= max(g) or c <= min(g)
    assert replay(quiet).makespan_ns == pytest.approx(expected, rel=1e-9 if exact else 0.01)


def test_shards_take_seven_times_as_long_on_a_mesh_and_as_long_on_a_switch() -> None:
    for scenario in SCENARIOS.values():
        assert transfer_ratio(scenario, parameters=load_parameters()) == pytest.approx(7.0, rel=1e-9)
        assert transfer_ratio(on("switch", scenario), parameters=load_parameters()) == pytest.approx(1.0, rel=1e-9)
    # Round a ring pieces pass other devices, shards are passed on.
    assert transfer_ratio(on("ring"), parameters=load_parameters()) == pytest.approx(1 / ring_hops(8), rel=1e-9)
    assert ring_hops(8) == pytest.approx(16 / 7) and ring_hops(2) == 1.0


def test_one_shard_and_the_pieces_of_all_take_what_their_links_say() -> None:
    link, shard = 48e9, G1.transfer.size_bytes / 8
    one = copy_columns(step_transfer(G1, find_schedule("shards")), BARE)
    all_ = copy_columns(step_transfer(G1, find_schedule("uniform_fused_1d")), BARE)
    assert one["duration_ns"] == pytest.approx(shard / link * 1e9) and one["engine"] == [0]
    assert all_["duration_ns"] == pytest.approx(shard / 8 / link * 1e9) and len(all_["engine"]) == 7  # type: ignore[arg-type]


def test_pieces_cost_more_than_the_whole_but_for_waves_that_fit_better() -> None:
    for scenario in SCENARIOS.values():
        for name in STUDIED:
            # g1 and g5: 7/8 of a piece's rows fill whole waves better than all of them.
            assert 0.98 < decomposition_loss(scenario, find_schedule(name), parameters=load_parameters()) < 1.6
    assert decomposition_loss(G1, find_schedule("serial"), parameters=load_parameters()) == 1.0


def test_a_piece_keeps_the_distances_of_the_whole() -> None:
    whole = SCENARIOS["g2"].product
    deep = replace(whole, k=whole.k // 8)
    assert distance_factor(deep, calibration=load_calibration()) < distance_factor(
        whole, calibration=load_calibration()
    )
    assert piece_ns(Piece(deep, whole), parameters=load_parameters()) / product_ns(
        deep, parameters=load_parameters()
    ) == pytest.approx(
        distance_factor(whole, calibration=load_calibration()) / distance_factor(deep, calibration=load_calibration())
    )
    assert piece_ns(Piece(whole, whole), parameters=load_parameters()) == pytest.approx(
        product_ns(whole, parameters=load_parameters())
    )


def test_adding_costs_its_traffic_and_no_more() -> None:
    whole = SCENARIOS["g14"].product
    deep = replace(whole, k=whole.k // 8)
    first, later = (
        piece_columns(Piece(deep, whole, sums=sums), parameters=load_parameters()) for sums in (False, True)
    )
    delivered = whole.device.memory_bytes_per_s * load_parameters()["memory_efficiency_mixed"]
    read = deep.operand_bytes[2] / whole.device.memory_bytes_per_s
    extra = (later["duration_ns"] - first["duration_ns"]) / 1e9
    assert 0 < extra < 1.4 * read
    moved = [one["hbm"] * one["duration_ns"] / 1e9 * delivered for one in (first, later)]
    assert max(first["hbm"], later["hbm"]) < 1
    assert moved[1] - moved[0] == pytest.approx(deep.operand_bytes[2])


def test_no_schedule_is_beyond_what_its_data_and_arithmetic_allow(outcomes: dict[str, dict[str, Any]]) -> None:
    for each in outcomes["dma"].values():
        for name in ("shards", *STUDIED):
            one = each[name]
            assert one.timeline.makespan_ns > one.transfers_alone_ns
            if SCHEDULES[name].kernels == "fused":
                assert one.timeline.makespan_ns >= one.product_ns * one.decomposition_loss * (1 - 1e-9)
            assert one.contention_loss >= 1 - 1e-9


@pytest.mark.parametrize("name", STUDIED)
def test_faster_links_never_slow_a_schedule_down(name: str) -> None:
    for key in ("g1", "g5", "g11", "g14"):
        scenario = SCENARIOS[key]
        quiet = load_parameters().with_values([("memory_efficiency_mixed", 1e9)])
        times = []
        for ratio in (0.5, 0.9, 1.0, 1.5, 4.0):
            known = quiet.with_values([("dma_bandwidth_ratio", ratio)])
            times.append(makespan_ns(scenario, name, known))
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(times))


def test_free_commands_and_latencies_never_slow_a_schedule_down() -> None:
    for scenario in SCENARIOS.values():
        for name in STUDIED:
            assert (
                makespan_ns(scenario, name, BARE) <= makespan_ns(scenario, name, parameters=load_parameters()) * 1.001
            )


def test_local_rows_first_hide_the_first_transfer() -> None:
    """On the largest product, what the uniform schedule adds is its first step, less what that slows local work."""
    scenario = SCENARIOS["g13"]
    uniform, local_first = (
        makespan_ns(scenario, name, parameters=load_parameters()) for name in ("uniform_fused_1d", "hetero_fused_1d")
    )
    step = float(
        copy_columns(step_transfer(scenario, find_schedule("uniform_fused_1d")), parameters=load_parameters())[
            "duration_ns"
        ]
    )  # type: ignore[arg-type]
    assert 0.6 * step < uniform - local_first < step


def test_kernels_that_communicate_contend_more(outcomes: dict[str, dict[str, Any]]) -> None:
    for name in SCENARIOS:
        dma, units = (
            np.mean([outcomes[how][name][one].contention_loss for one in STUDIED]) for how in ("dma", "units")
        )
        assert dma < units


def test_several_schedules_win(outcomes: dict[str, dict[str, Any]]) -> None:
    best = {best_schedule({one: each[one] for one in STUDIED}) for each in outcomes["dma"].values()}
    assert len(best) > 1


def test_the_fastest_is_not_slower_than_shards_by_more_than_a_hundredth(outcomes: dict[str, dict[str, Any]]) -> None:
    for each in outcomes["dma"].values():
        best = min(each[name].timeline.makespan_ns for name in STUDIED)
        assert best <= 1.01 * each["shards"].timeline.makespan_ns


def test_all_to_alls_move_as_much() -> None:
    gathered, exchanged = G1, replace(G1, collective="all_to_all")
    for name in STUDIED:
        assert makespan_ns(exchanged, name, parameters=load_parameters()) == makespan_ns(
            gathered, name, parameters=load_parameters()
        )


def test_figures_are_those_that_are_published_of() -> None:
    found = reproduce(load_parameters(), SCENARIOS, load_chooser())
    assert list(found) == [figure.name for figure in published_figures("ficco")]
    assert found["transfer_ratio_mesh"] == pytest.approx(7.0, rel=1e-9)
    assert found["transfer_ratio_switch"] == pytest.approx(1.0, rel=1e-9)
    assert found["heuristic_right"] == 13
    assert found["heuristic_loss"] <= 14.0
    assert found["best_speedup"] == pytest.approx(1.6, rel=0.1)


def test_what_was_drawn_is_not_what_is_scored_on() -> None:
    drawn = draw_scenarios(G1, 200, seed=3, without=SCENARIOS.values())
    assert drawn == draw_scenarios(G1, 200, seed=3, without=SCENARIOS.values())
    assert drawn != draw_scenarios(G1, 200, seed=4, without=SCENARIOS.values())
    for one in drawn:
        assert 2**12 <= one.m <= 2**21 and 2**12 <= one.n <= 2**17 and 2**11 <= one.k <= 2**19
        assert sum(one.product.operand_bytes) <= 96e9
        for known in SCENARIOS.values():
            assert max(abs(one.m / known.m - 1), abs(one.n / known.n - 1), abs(one.k / known.k - 1)) > 0.1
    first = drawn[0]
    assert first not in draw_scenarios(G1, 200, seed=3, without=[first])
    with pytest.raises(InvalidInputError, match="0 scenarios"):
        draw_scenarios(G1, 0, seed=1)


def test_the_shipped_chooser_is_right_on_scenarios_that_it_never_saw() -> None:
    scenarios = tuple(SCENARIOS.values())
    score = score_choices(scenarios, candidate_times_ns(scenarios, parameters=load_parameters()), load_chooser().choose)
    assert score.best >= 12 and score.right >= 13
    assert score.loss_when_wrong <= 0.14
    drawn = draw_scenarios(G1, 60, seed=99, without=scenarios)
    times = candidate_times_ns(drawn, parameters=load_parameters())
    chosen = score_choices(drawn, times, load_chooser().choose)
    always = [score_choices(drawn, times, lambda _, name=name: name) for name in CANDIDATES]  # type: ignore[misc]
    assert chosen.right / chosen.cases > 0.75
    assert chosen.mean_loss < min(one.mean_loss for one in always)


def test_a_chooser_learns_what_it_is_shown() -> None:
    drawn = draw_scenarios(G1, 60, seed=5)
    times = np.full((60, len(CANDIDATES)), 2.0)
    tall = np.array([one.m > one.k for one in drawn])
    times[tall, 1] = 1.0
    times[~tall, 4] = 1.0
    chooser = grow_chooser(drawn, times, depth=3, least=1)
    assert isinstance(chooser.first, Decision) and chooser.first.feature == "m_over_k"
    assert score_choices(drawn, times, chooser.choose).best == 60
    assert [chooser.choose(one) for one in drawn[:2]] == [CANDIDATES[1 if one else 4] for one in tall[:2]]


def test_scores_count_close_choices_as_right() -> None:
    times = np.array([[2.0, 1.0, 1.009, 1.02, 3.0]] * 3)
    names = iter(("uniform_fused_1d", "hetero_fused_1d", "hetero_unfused_1d"))
    score = score_choices([G1] * 3, times, lambda _: next(names))
    assert (score.best, score.right, score.cases) == (1, 2, 3)
    assert score.loss_when_wrong == pytest.approx(0.02)
    assert score.mean_loss == pytest.approx((0.009 + 0.02) / 3)


def test_features_by_hand() -> None:
    found = features_of(G1)
    assert list(found) == list(FEATURES)
    m, n, k = 16384, 2048, 131072
    elements = m * k + k * n + m * n
    assert 2 ** found["mt"] == pytest.approx(elements)
    assert 2 ** found["otb"] == pytest.approx(2 * m * n * k / (2 * elements))
    assert 0 < found["local_waves"] <= 1


def test_a_chooser_is_what_its_file_says(tmp_path: Path) -> None:
    chooser = Chooser(Decision("log_m", 14.5, "serial", Decision("otb", 10.0, "uniform_fused_2d", "hetero_fused_1d")))
    path = tmp_path / "chooser.json"
    path.write_text(chooser.to_json())
    assert load_chooser(path) == chooser
    assert chooser.choose(G1) == "serial"
    assert chooser.lines()[0] == "log_m <= 14.5:" and chooser.lines()[1].strip() == "serial"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON"),
        ("[]", "no object with a tree"),
        (json.dumps({"tree": "nothing"}), "tree: give one of serial"),
        (json.dumps({"tree": {"feature": "otb"}}), "tree: give one of serial"),
        (
            json.dumps({"tree": {"feature": "x", "threshold": 1, "below": "serial", "above": "serial"}}),
            "a feature is one of log_m",
        ),
        ('{"tree": {"feature": "otb", "threshold": NaN, "below": "serial", "above": "serial"}}', "its threshold"),
        (
            json.dumps({"tree": {"feature": "otb", "threshold": 1, "below": "serial", "above": 3}}),
            "tree.above: give one of",
        ),
    ],
)
def test_a_file_that_is_no_chooser_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "chooser.json"
    path.write_text(content)
    with pytest.raises(BrokenFileError, match=re.escape(message)):
        load_chooser(path)
    with pytest.raises(NotFoundError):
        load_chooser(tmp_path / "none.json")


def test_trees_too_deep_are_refused(tmp_path: Path) -> None:
    node: Any = "serial"
    for _ in range(17):
        node = {"feature": "otb", "threshold": 1.0, "below": node, "above": "serial"}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps({"tree": node}))
    with pytest.raises(BrokenFileError, match="16 deep"):
        load_chooser(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("m = 16384\n", "m = 16385\n"), "m = 16385: pieces for 8 devices need a multiple of 64"),
        (("m = 16384\n", ""), "scenarios.g1: lacks the key 'm'"),
        (("m = 16384\n", "m = true\n"), "scenarios.g1: m: Expected `int`, got `bool`"),
        (("m = 16384\n", "m = 0\n"), "m is 0"),
        (('fabric = "mesh"', 'fabric = "pairs"'), "mesh, switch, ring"),
        (('device = "MI300X"', 'device = "MI9"'), "MI9"),
        (('collective = "all_gather"', 'collective = "all_reduce"'), "all_reduce"),
        (("[hardware]", "[hardware"), "no TOML"),
        ((TEXT[TEXT.index("[scenarios.g1]") :], ""), "no table"),
        (
            (TEXT[TEXT.index("[hardware]") : TEXT.index("[scenarios.g1]")], ""),
            "hardware: Expected `table`, got nothing",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace(*change, 1))
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        load_scenarios(path)
    path.write_text(TEXT)
    assert load_scenarios(path) == SCENARIOS


def test_what_is_asked_for_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no schedule"):
        find_schedule("fast")
    with pytest.raises(NotFoundError, match="no such file"):
        load_scenarios(tmp_path / "none.toml")
    with pytest.raises(InvalidInputError, match="no carrier"):
        run_schedule(G1, "shards", carrier="pigeon", parameters=load_parameters())
    with pytest.raises(InvalidInputError, match="on a ring"):
        replace(on("ring"), collective="all_to_all")
    with pytest.raises(InvalidInputError, match="no outcome"):
        best_schedule({})
