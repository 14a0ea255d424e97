"""Works side by side: recordings are read or refused, predicted as projections are, fitted, and scored on the rest."""

import json
import re
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import recordings
from click.testing import CliRunner, Result
from traces import write_trace

from profilers.errors import InvalidInputError, NotFoundError
from replay.contention import (
    ContentionFit,
    FittedRange,
    RecordedMember,
    base_parameters,
    calibrate_contention,
    ceilings_of,
    fold_of,
    linked_groups,
    mechanism_of,
    read_contention,
    read_contention_fit,
    read_recording,
    scenario_model,
    write_contention_fit,
)
from replay.contention.fitting import BOUNDS
from replay.costs.shipped import load_parameters
from replay.graph.graph import UNIT_COLUMNS
from seqpoint.cli import cli
from seqpoint.cli.validate import show_limits
from seqpoint.validation.contention import (
    ContentionCase,
    contention_rows,
    percent_of_ideal,
    predict_contention,
    score_by_mechanism,
    score_ideal,
    score_order,
)
from seqpoint.validation.suites import ValidationRow

#: What the device of the test recordings is like, and a calibration has to find.
TRUTH = {
    "memory_efficiency_shared": 0.8,
    "unit_bytes_per_clock": 20.0,
    "pressure_host_read": 0.1,
    "unit_host_read_gbps": 8.0,
}
SOME = [one for one in recordings.WORKS if not one["work"].endswith(("4096", "_128", "_256", "d2h_64", "_12"))]


@cache
def recorded() -> Path:
    return recordings.write_recording(Path(mkdtemp()) / "imaginary", TRUTH, works=SOME)


@cache
def by_hand() -> Path:
    """Return a calibration with the truth, of one half of the groups."""
    one = read_recording(recorded())
    kin = linked_groups([one])
    ranges = {name: FittedRange(value, value, value) for name, value in TRUTH.items()}
    ranges["unit_bytes_per_clock"] = FittedRange(20.0, 15.0, 25.0)
    groups = {key for s in one.scenarios if fold_of(kin[s.group], 2) == 0 for key in one.digests_of(s)}
    fit = ContentionFit(one.device.name, ranges, (), 0.05, 20, tuple(sorted(groups)), "by hand")
    write_contention_fit(file := Path(mkdtemp()) / "fit.json", fit)
    return file


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, arguments)


def small(folder: Path) -> Path:
    works = [recordings.product(2048), recordings.streamed(64), recordings.moved(64, "h2d")]
    return recordings.write_recording(folder, {}, works=works, noise=0.0)


def changed(folder: Path, table: str, change: Callable[[list[dict]], object]) -> None:
    file = folder / f"{table}.parquet"
    rows = pq.read_table(file).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows), file)


# What is read, and what is refused


def test_a_recording_is_read_with_medians_over_takes(tmp_path: Path) -> None:
    folder = small(tmp_path / "one")
    changed(folder, "alone", lambda rows: [row.update(duration_ns=1000 + 100 * row["take"]) for row in rows])
    one = read_recording(folder)
    assert one.device.name == "Imaginary 100" and one.source == "one"
    assert [len(s.runs) for s in one.scenarios] == [6] * len(one.scenarios)
    # Two launches took 1000 ns in take 0 and 1100 in take 1.
    assert one.alone_ns("gemm_2048") == 525.0 and one.alone_ns("gemm_2048", launches=4) == 2100.0
    assert [r.source for r in read_contention(tmp_path)] == ["one"]


def test_the_spread_of_a_scenario_is_between_takes(tmp_path: Path) -> None:
    folder = small(tmp_path / "one")
    changed(folder, "together", lambda rows: [row.update(end_ns=1000 + 50 * row["take"]) for row in rows])
    (scenario, *_) = read_recording(folder).scenarios
    assert scenario.measured_ns == 1025.0 and scenario.spread == pytest.approx(50 / 1025) and scenario.takes == 2


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("together", {"work": "gemm_9"}, r"together.parquet: row 3: work 'gemm_9' is not in works.parquet"),
        ("together", {"start_ns": -5}, r"row 3: start_ns is -5; it must be 0 to"),
        ("together", {"end_ns": 0, "start_ns": 7}, r"row 3: it ends at 0 ns and began at 7 ns"),
        ("together", {"launches": 10**6}, r"row 3: launches is 1000000; it must be 1 to 10000"),
        ("together", {"group": None}, r"row 3: group is None; it must be a text"),
        ("together", {"scenario": "x" * 2400}, r"row 3: scenario is 'x+.*; it must be a text of at most 2000"),
        ("together", {"repetition": 1}, r"member 0 of this repetition is there already|count from 0 without a gap"),
        ("together", {"units": 1000, "lag_ns": 0}, r"other members than in the repetition before|1000 compute units"),
        ("alone", {"duration_ns": 0}, r"alone.parquet: row 3: duration_ns is 0; it must be 1 to"),
        ("alone", {"work": "gemm_9"}, r"alone.parquet: row 3: work 'gemm_9' is not in works.parquet"),
        ("works", {"kind": "prayer"}, r"works.parquet: row 3: no kind 'prayer'; there are gemm, "),
        ("works", {"direction": "up"}, r"works.parquet: row 3: no direction 'up'"),
        ("works", {"work": "gemm_2048"}, r"works.parquet: row 3: 'gemm_2048' is there before as another work"),
        ("works", {"bytes_written": 0, "host_bytes": 0}, r"row 3: .* neither computes nor moves anything"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_is_named(tmp_path: Path, table: str, change: dict, message: str) -> None:
    folder = small(tmp_path / "bad")
    changed(folder, table, lambda rows: rows[2].update(change))
    with pytest.raises(InvalidInputError, match=message):
        read_recording(folder)


def test_too_many_streams_partitions_and_missing_times_are_refused(tmp_path: Path) -> None:
    folder = small(tmp_path / "bad")
    changed(folder, "together", lambda rows: [rows.append({**rows[0], "member": n}) for n in range(9, 20)])
    with pytest.raises(InvalidInputError, match=r"more than 8 members side by side"):
        read_recording(folder)
    folder = small(tmp_path / "wide")
    changed(folder, "together", lambda rows: [row.update(units=60) for row in rows])
    with pytest.raises(InvalidInputError, match=r"120 compute units of their own, the device has 100"):
        read_recording(folder)
    folder = small(tmp_path / "untimed")
    changed(folder, "alone", lambda rows: [row.update(units=5) for row in rows if row["work"] == "elementwise_64"])
    with pytest.raises(InvalidInputError, match=r"alone.parquet has no time of 'elementwise_64' on all compute units"):
        read_recording(folder)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder"):
        read_contention(tmp_path / "none")
    with pytest.raises(NotFoundError, match=r"no recording of works side by side"):
        read_contention(tmp_path)
    folder = small(tmp_path / "one")
    (folder / "alone.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(InvalidInputError, match=r"alone.parquet: cannot be read as Parquet"):
        read_recording(folder)
    pq.write_table(pa.table({"work": ["a"]}), folder / "alone.parquet")
    with pytest.raises(InvalidInputError, match=r"alone.parquet: no column 'part'"):
        read_recording(folder)
    (folder / "alone.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"alone.parquet: no such file"):
        read_recording(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a list of takes"),
        ("[]", "no take; a recording has one or more"),
        ('[{"device": {"name": 3}}]', "take 0: name is 3; it must be text"),
        ('[{"device": {"name": "a", "l2_bytes": -1}}]', "take 0: l2_bytes is -1"),
        ('[{"device": {"name": "a"}}, {"device": {"name": "b"}}]', "takes are of different devices"),
        ("[" * 100_000, "not a list of takes"),
    ],
)  # fmt: skip
def test_an_environment_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = small(tmp_path / "one")
    (folder / "environment.json").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_recording(folder)


# What is predicted


def ends(folder: Path, members: list[RecordedMember], **values: float) -> list[float]:
    one = read_recording(folder)
    known = base_parameters(one, load_parameters()).with_values(values.items())
    return (scenario_model(one, [members]).ends_ns(known) / 1e3).round(1).tolist()


def test_recorded_sizes_of_workgroups_are_shares_of_a_unit(tmp_path: Path) -> None:
    """A unit of an A100 has 2048 threads, 65,536 registers and 164 KB for 32 workgroups."""
    works = [recordings.product(2048), recordings.streamed(64), recordings.streamed(8, "update")]
    device = {**recordings.DEVICE, "name": "NVIDIA A100-SXM4-80GB"}
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, noise=0.0, device=device)
    sizes = {
        "gemm_2048": {"kernel": "nvjet_tst_128x128_64x4_1x2_h_bz_TNT", "workgroup_size": 384},
        "elementwise_64": {"workgroup_size": 256, "registers": 64, "static_shared_bytes": 16_384},
    }
    unknown = {"kernel": None, "workgroup_size": None, "registers": None, "static_shared_bytes": None}
    changed(folder, "works", lambda rows: [row.update({**unknown, **sizes.get(row["work"], {})}) for row in rows])
    one = read_recording(folder)
    ((graph, _, _),) = scenario_model(one, [[RecordedMember(row["work"]) for row in works]]).batches
    found = np.stack([getattr(graph.tasks, name) for name in UNIT_COLUMNS], axis=1)
    np.testing.assert_allclose(found, [
        [384 / 2048, 384 * 168 / 65_536, 1.0, 1 / 32],  # as the name says, with more than 164 KB
        [256 / 2048, 256 * 64 / 65_536, (16_384 + 1024) / 167_936, 1 / 32],
        [1.0] * 4,
    ])  # fmt: skip


def test_copies_in_one_direction_share_the_link_and_others_do_not(tmp_path: Path) -> None:
    works = [recordings.moved(64, "h2d"), recordings.moved(32, "h2d"), recordings.moved(64, "d2h"),
             recordings.moved(32, "h2d", "zero_copy"), recordings.streamed(128)]  # fmt: skip
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, noise=0.0)
    into, out, zero = (RecordedMember(f"{name}", 1) for name in ("copy_engine_h2d_64", "copy_engine_d2h_64",
                                                                 "zero_copy_h2d_32"))  # fmt: skip
    alone = 64 * 2**20 / recordings.LINK * 1e6
    assert ends(folder, [into, out]) == pytest.approx([alone, alone], rel=1e-3)
    # Half of the link each until the shorter is done, whether an engine or a kernel carries it; a kernel begins later.
    start = load_parameters()["kernel_start_ns"] / 1e3
    assert ends(folder, [into, zero]) == pytest.approx([1.5 * alone - start, alone - start], abs=0.2)
    assert ends(folder, [into, RecordedMember("copy_engine_h2d_32")]) == pytest.approx([1.5 * alone, alone], rel=1e-3)


def test_works_bound_by_memory_share_what_was_measured_of_it(tmp_path: Path) -> None:
    works = [recordings.streamed(128), recordings.streamed(64), recordings.product(2048)]
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, noise=0.0)
    pair = [RecordedMember("elementwise_128"), RecordedMember("elementwise_64", 2)]
    alone = 256 * 2**20 / recordings.MEMORY * 1e6
    # Both ask for all, and memory that is used to 97 % alone is not full: sqrt(4 + 1 - 0.97^2) times as long.
    no_hits = {
        "dispatch_in_order": 0.0,
        "hit_share_memory_bound": 0.0,
        "l2_bandwidth_ratio": 1e3,
        "kernel_start_ns": 0.0,
    }
    assert max(ends(folder, pair, **no_hits)) == pytest.approx(np.sqrt(5 - 0.97**2) * alone, rel=2e-3)
    # They lose hits of the cache to each other.
    assert max(ends(folder, pair, **{**no_hits, "hit_share_memory_bound": 0.2})) > 2.1 * alone
    # What memory gives to both together, over what it gives to one.
    assert max(ends(folder, pair, **no_hits, memory_efficiency_shared=1.2)) < 1.8 * alone


def test_priority_partition_and_lag_are_kept(tmp_path: Path) -> None:
    works = [recordings.product(4096), recordings.streamed(64)]
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, noise=0.0)
    alone, short = (recordings.alone_ns(one) / 1e3 for one in works)
    long, soon = RecordedMember("gemm_4096", 4), RecordedMember("elementwise_64", 1)
    late = ends(folder, [long, RecordedMember("elementwise_64", 1, lag_ns=100_000)])
    assert late[0] > 4 * alone - 0.1 and late[1] >= 100 + short - 0.1
    # In equal parts or not, who has a higher priority gets the units that it asks for.
    first = ends(folder, [long, RecordedMember("elementwise_64", 1, priority=1)], dispatch_in_order=0.0)
    assert first[1] <= ends(folder, [long, soon], dispatch_in_order=0.0)[1]
    apart = ends(folder, [RecordedMember("gemm_4096", 4, units=50), RecordedMember("elementwise_64", 1, units=50)])
    assert apart == pytest.approx([8 * alone, short], rel=0.2)


def test_operands_that_fit_the_cache_leave_memory_alone(tmp_path: Path) -> None:
    works = [recordings.streamed(8, "update"), recordings.streamed(128), recordings.product(2048)]
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, noise=0.0)
    pair = [RecordedMember("update_8", 20), RecordedMember("elementwise_128", 1)]
    free = {"dispatch_in_order": 0.0, "cu_share_saturating_memory": 0.2}
    served, missed = (max(ends(folder, pair, **free, hit_share_resident=share)) for share in (0.98, 0.0))
    assert served < 0.9 * missed


def test_the_mechanism_is_told_by_what_works_do() -> None:
    one = read_recording(recorded())
    ceilings = ceilings_of(one)
    found = {s.group: mechanism_of(one, s, ceilings) for s in one.scenarios}
    assert found["gemm_2048|gemm_6144"] == "SM"
    assert found["gemm_6144|copy_kernel_128_b16"] == "SM"
    assert found["gemm_6144|copy_engine_h2d_64"] == "copy engine"
    assert found["copy_engine_h2d_64|zero_copy_h2d_32"] == "host link"
    assert found["elementwise_64|copy_kernel_128_b16"] == "HBM"


# What is fitted, and what is held out


def test_the_same_works_are_never_on_both_sides() -> None:
    one = read_recording(recorded())
    kin = linked_groups([one])
    for folds in (2, 4):
        sides: dict[frozenset[str], set[int]] = {}
        for s in one.scenarios:
            sides.setdefault(frozenset(m.work for m in s.members), set()).add(fold_of(kin[s.group], folds))
        assert all(len(side) == 1 for side in sides.values())
        assert set().union(*sides.values()) == set(range(folds))


def test_groups_of_the_same_works_are_kin_whatever_they_are_called(tmp_path: Path) -> None:
    pair = [RecordedMember("gemm_2048", 1), RecordedMember("elementwise_64", 1)]
    works = [recordings.product(2048), recordings.streamed(64)]
    scenarios = [("z", "streams", pair), ("a", "other", pair[::-1])]
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, scenarios=scenarios)
    assert dict(linked_groups([read_recording(folder)])) == {"a": "a", "z": "a"}


def test_a_calibration_finds_what_the_device_is_like_and_predicts_what_it_has_not_seen(tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    result = run("calibrate", "contention", str(recorded()), "-o", str(file))
    assert result.exit_code == 0, result.exception
    table = result.stdout.partition("Parameters")[2]
    rows = [line for line in table.splitlines() if "  " in line]
    assert len(rows) >= len(TRUTH) and all(len(row) <= 80 for row in rows)
    fit = read_contention_fit(file)
    for name, value in TRUTH.items():
        assert fit.ranges[name].low <= value <= fit.ranges[name].high < 2 * fit.ranges[name].low, name
    assert set(fit.undetermined) | set(fit.ranges) == {*BOUNDS}
    assert fit.device == "Imaginary 100" and 0 < fit.spread < 0.3
    found = read_contention(recorded())
    after = [case for case in predict_contention(found, load_parameters(), fit) if not case.fitted]
    names = {case.name for case in after}
    before = [case for case in predict_contention(found, load_parameters()) if case.name in names]
    assert len(before) == len(after) >= 15 and fit.scenarios + len(after) == len(found[0].scenarios)
    old, new = score_by_mechanism(before)[-1], score_by_mechanism(after)[-1]
    assert new.p90 < 0.5 * old.p90 and new.slowdown < 0.01 and new.covered > 0.75
    assert score_order(after).share >= score_order(before).share


def test_a_calibration_learns_a_load_that_a_formula_states(tmp_path: Path) -> None:
    """Two products with a workgroup each on every unit load it by 1.8 each; the engine makes no time."""
    works = [dict(recordings.product(1280), work=f"gemm_{n}", k=n << 16, flops=n * 2 * 1280**2 << 16,
                  workgroup_size=256, registers=128) for n in range(2, 10)]  # fmt: skip
    slower = ((1 + 3.6**1.5) / (1 + 1.8**1.5)) ** (2 / 3)
    measured = []
    for one, other in combinations(works, 2):
        short, long = recordings.alone_ns(one), recordings.alone_ns(other)
        members = [RecordedMember(row["work"]) for row in (one, other)]
        ends = [slower * short, slower * short + long - short]
        measured.append((f"{one['work']}|{other['work']}", "streams", members, ends))
    device = {**recordings.DEVICE, "name": "NVIDIA A100-SXM4-80GB"}
    found = read_recording(recordings.write_measured(tmp_path / "shared", measured, works=works, device=device))
    fit = calibrate_contention([found], parameters=load_parameters())
    assert fit.ranges["unit_load_compute"].value == pytest.approx(1.8, rel=0.1)
    held = [case for case in predict_contention([found], load_parameters(), fit) if not case.fitted]
    shipped = [case.error for case in predict_contention([found], load_parameters())]
    assert len(shipped) == 28 and len(held) == 28 - fit.scenarios >= 6
    assert max(shipped) > 0.08 and max(case.error for case in held) < 0.02
    assert np.mean([case.covered for case in held]) >= 0.75


def test_draws_are_from_the_fitted_ranges() -> None:
    known = read_contention_fit(by_hand()).parameters(load_parameters())
    drawn = [known.drawn(np.random.default_rng(seed))["unit_bytes_per_clock"] for seed in range(20)]
    assert 20 * 0.75**1.5 <= min(drawn) < 18 and 22 < max(drawn) <= 20 * 1.25**1.5


def test_too_few_scenarios_and_other_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="at least 12 are needed"):
        calibrate_contention([read_recording(small(tmp_path / "one"))], parameters=load_parameters())
    other = recordings.write_recording(
        tmp_path / "two", {}, works=[recordings.product(2048), recordings.streamed(64)],
        device={**recordings.DEVICE, "name": "Other"},
    )  # fmt: skip
    with pytest.raises(InvalidInputError, match="fit each device by itself"):
        calibrate_contention([read_recording(recorded()), read_recording(other)], parameters=load_parameters())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("parameters", "memory_time_softmax"), {"value": 2.0, "low": 0.5, "high": 3.0}, "must be within 0.1 to 0.97"),
        (("parameters", "replay_error"), {"value": 0.0, "low": 0.0, "high": 0.0}, "no parameter 'replay_error' is"),
        (("spread",), float("nan"), "JSON is malformed"),
        (("spread",), 10, r"fit.spread: Expected `float` < 10.0"),
        (("groups",), ["abc"], r"fit.groups\[0\]: Expected .* matching regex"),
        (("groups",), [], r"fit.groups: Expected .* of length >= 1"),
        (("groups",), ["<script>alert(1)"], r"fit.groups\[0\]: Expected .* matching regex"),
        (("scenarios",), -5, r"fit.scenarios: Expected `int` >= 1"),
        (("scenarios",), 1.5, r"fit.scenarios: Expected `int`, got `float`"),
        (("spread",), {"a": 1}, r"fit.spread: .*got `table`"),
        (("undetermined",), ["l2_share_of_units"] * 2, "names a parameter twice"),
        (("devices",), [{"a": 1}], r"devices\[0\]: .*got `table`"),
        (("devices",), ["a", "b"], "devices is one name"),
        (("source",), "b" * 3000, "source a text, of at most 2000 characters"),
        (("undetermined",), ["x"], "no parameter 'x' is fitted"),
    ],
)  # fmt: skip
def test_a_calibration_that_cannot_be_is_refused(tmp_path: Path, path: tuple, value: object, message: str) -> None:
    fit = {"parameters": {}, "undetermined": [], "spread": 0.1, "scenarios": 20, "groups": ["0123456789abcdef"]}
    content = {"kind": "contention", "version": 1, "devices": ["a"], "source": "b", "fit": fit}
    where = content if path[0] in content else fit
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    (tmp_path / "fit.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=message):
        read_contention_fit(tmp_path / "fit.json")


# What is scored


def case(policy: str, measured: float, predicted: float, **given: object) -> ContentionCase:
    fields = {
        "recording": "r", "device": "d", "group": "g", "scenario": "s", "policy": policy, "mechanism": "SM",
        "carrier": "", "measured_ns": measured, "predicted_ns": predicted, "low_ns": 0.9 * predicted,
        "high_ns": 1.1 * predicted, "alone_ns": (100.0, 100.0), "measured_ends_ns": (measured, measured),
        "predicted_ends_ns": (predicted, predicted), "lags_ns": (0.0, 0.0), "spread": 0.0, "takes": 2,
        "fitted": False,
    }  # fmt: skip
    return ContentionCase(**{**fields, **given})


def test_the_order_of_policies_counts_what_differs_by_more_than_takes_do() -> None:
    cases = [
        case("a", 100, 100), case("b", 110, 120), case("c", 150, 119),  # b before c is told wrong
        case("d", 101, 90),  # 1 % from a: no order; told before b and c
        case("e", 200, 200, group="h"), case("f", 230, 230, group="h", spread=0.2),  # takes differ by more
        case("e", 200, 210, group="i"), case("f", 230, 220, group="i"),
    ]  # fmt: skip
    found = score_order(cases)
    assert (found.compared, found.right, found.groups, found.groups_right) == (6, 5, 2, 1)
    assert found.share == 5 / 6


def test_what_is_predicted_the_same_has_no_order() -> None:
    assert score_order([case("a", 100, 100), case("b", 120, 100)]).right == 0


def test_percent_of_ideal_by_hand() -> None:
    # 100 and 60 together in 130: S = 160 / 130, S_ideal = 1.6.
    assert percent_of_ideal((100.0, 60.0), 130.0) == pytest.approx(100 * (160 / 130 - 1) / 0.6)
    assert percent_of_ideal((100.0, 60.0), 100.0) == pytest.approx(100.0)
    beside = {"alone_ns": (100.0, 100.0), "carrier": "copy engine"}
    (one,) = score_ideal([case("a", 150, 125, **beside), case("b", 100, 100, **beside),
                          case("c", 100, 100, carrier="copy engine", alone_ns=(100.0, 5.0))])  # fmt: skip
    assert one.cases == 2  # hiding 5 of 105 is no gain to take a share of
    assert one.measured == pytest.approx((100 / 3 + 100) / 2) and one.predicted == pytest.approx((60 + 100) / 2)
    assert one.published == {"conccl": 66.0, "conccl_rp": 72.0}


def test_the_slow_down_is_judged_by_what_is_between_the_baselines() -> None:
    # 1000 beside 10: 2 % of the time is twice what overlap could gain.
    one = case("a", 1000, 1020, alone_ns=(1000.0, 10.0))
    assert one.error == pytest.approx(0.02) and one.slowdown_error == pytest.approx(2.0)
    assert (one.serial_ns, one.free_ns) == (1010.0, 1000.0)
    late = case("a", 100, 100, lags_ns=(0.0, 150.0))
    assert (late.serial_ns, late.free_ns) == (250.0, 250.0) and np.isnan(late.slowdown_error)


def test_no_figure_is_finer_than_takes_differ() -> None:
    rows = {row.case: row for row in contention_rows([case("a", 100, 101, spread=0.12)])}
    assert rows["time until all are done: median error"].ours == 0.12
    assert rows["time until all are done: median error"].met is False
    assert rows["works side by side, not fitted: number"].met is False


def test_what_was_fitted_is_not_gated() -> None:
    rows = contention_rows([case("a", 100, 100, fitted=True)])
    assert [(row.case, row.fitted, row.met) for row in rows] == [
        ("r: s (a)", True, None),
        ("works side by side, not fitted: number", False, False),
    ]


# The command line


def test_validate_prints_json_with_the_keys_of_the_contract() -> None:
    result = run("validate", "contention", str(recorded()), "--calibration", str(by_hand()), "--json")
    assert result.exit_code == 0, result.exception
    content = json.loads(result.stdout)
    keys = {"case", "reference", "ours", "error", "limit", "met", "fitted", "source"}
    assert all(set(row) == keys for row in content["rows"])
    assert {row["fitted"] for row in content["rows"]} == {True, False}
    assert content["calibration_sha256"] == read_contention_fit(by_hand()).digest
    assert content["scores"][-1]["mechanism"] == "all" and content["order"]["compared"] > 0
    assert {one["carrier"] for one in content["percent_of_ideal"]} == {"copy engine", "SM copies"}


def test_tables_fit_eighty_columns_and_the_gate_wants_enough_pairs() -> None:
    result = run("validate", "contention", str(recorded()), "--verbose", "--gate")
    assert result.exit_code == 1 and re.search("300 +NO", result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_count_of_thousands_is_shown_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    show_limits([ValidationRow("number", None, 1416.0, 1416.0, 300, True)])
    assert "1416" in capsys.readouterr().out


def test_what_was_recorded_is_named_and_what_was_not_measured_too(tmp_path: Path) -> None:
    works = [recordings.product(2048), recordings.streamed(64)]
    device = {**recordings.DEVICE, "twins": ["partitions"]}
    folder = recordings.write_recording(tmp_path / "one", {}, works=works, takes=1, device=device)
    result = run("validate", "contention", str(folder))
    assert result.stdout.startswith("Imaginary 100: ")
    assert "one: Imaginary 100 is a CPU in place of a GPU; its figures say nothing about a GPU" in result.stderr
    assert "one: one take, so `takes` is how far its repetitions differ" in result.stderr
    result = run("validate", "contention", str(recorded()), "--calibration", str(by_hand()))
    assert "by a calibration on Imaginary 100" in result.stdout and "note" not in result.stderr


def test_without_a_recording_it_is_said_how_to_make_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("seqpoint.validation.suites.dataset_path", lambda name: tmp_path)
    result = run("validate", "contention")
    assert isinstance(result.exception, NotFoundError) and "python -m benchmarks.gpu" in str(result.exception)
    both = run("validate", "contention", str(recorded()), "--refit", "--calibration", "x")
    assert both.exit_code == 2 and "--refit fits anew" in both.output


def test_a_projection_takes_the_calibrated_ranges_and_says_so(tmp_path: Path) -> None:
    trace = str(write_trace(tmp_path / "t.json"))
    asked = ("project", trace, "-w", "overlap:none", "-w", "cu_order:fair", "--draws", "8", "--json")
    plain, with_fit = (run(*asked, *more) for more in ((), ("--contention", str(by_hand()))))
    assert with_fit.exit_code == 0, with_fit.exception
    one, other = (json.loads(result.stdout)["provenance"] for result in (plain, with_fit))
    fit = read_contention_fit(by_hand())
    held, shipped = fit.ranges["unit_bytes_per_clock"], load_parameters().known["unit_bytes_per_clock"]
    assert other["parameters"]["unit_bytes_per_clock"] == [held.value, held.low, held.high]
    assert one["parameters"]["unit_bytes_per_clock"] == [shipped.value, shipped.low, shipped.high]
    assert other["contention"]["sha256"] == fit.digest and "contention" not in one
    assert other["parameters_sha256"] != one["parameters_sha256"]
    (tmp_path / "result.json").write_text(with_fit.stdout)
    again = run("project", trace, "--from", str(tmp_path / "result.json"))
    assert again.exit_code == 0 and "identical, bit for bit" in again.stdout


def test_refitting_holds_every_scenario_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is predicted by a fit of the others; fitting itself is tested above."""
    seen: list[set[str]] = []

    def fit(found: list, **how: Callable[[str], bool]) -> ContentionFit:
        kin = linked_groups(found)
        seen.append({s.name for one in found for s in one.scenarios if how["part"](kin[s.group])})
        return ContentionFit("d", {}, (), 0.1, 20, (), "s")

    monkeypatch.setattr("replay.contention.calibrate_contention", fit)
    result = run("validate", "contention", str(recorded()), "--refit", "--json")
    assert result.exit_code == 0, result.exception
    names = [one["scenario"] for one in json.loads(result.stdout)["cases"]]
    every = {s.name for s in read_recording(recorded()).scenarios}
    assert sorted(names) == sorted(every) and len(seen) == 4
    assert all(sum(name not in part for part in seen) == 1 for name in names)
