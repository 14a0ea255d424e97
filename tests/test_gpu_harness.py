"""The recording harness: its plan, journal, budget and tables without PyTorch; its streams by a simulated device; a
whole recording on the CPU. What only a GPU can show is said in benchmarks/gpu/README.md."""

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.gpu import environment, gpu_facts, partitions, profile
from benchmarks.gpu import layout as layout_module
from benchmarks.gpu import pack as pack_module
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.budget import Budget
from benchmarks.gpu.gates import GateError, Queue, Timeline
from benchmarks.gpu.gpu_facts import read_nvidia_smi
from benchmarks.gpu.journal import Journal
from benchmarks.gpu.layout import checked
from benchmarks.gpu.pack import file_name, pack
from benchmarks.gpu.partitions import PartitionError, mask_words
from benchmarks.gpu.plan import plan
from benchmarks.gpu.profile import described
from benchmarks.gpu.run import DeviceLostError, Outcome, Progress, Session, Stop, note_death, ordered, record
from benchmarks.gpu.scenarios import MOST_LAUNCHES, MOST_LAUNCHES_TOGETHER
from benchmarks.gpu.step import TABLES, Machine, Member, Step, Tables
from benchmarks.gpu.work import Work, gemm, moved
from profilers.errors import InvalidInputError
from replay.contention import read_contention
from replay.contention.recording import DeviceFacts
from replay.costs.shipped import load_parameters
from seqpoint.validation.contention import notes_on, predict_contention

ROOT = Path(__file__).parents[1]
#: 132 compute units and 60 MB of L2, with all that a plan can ask for.
ABLE = {
    "name": "simulated", "architecture": "sm_90", "compute_units": 132, "memory_bytes": 141 << 30, "l2_bytes": 60 << 20,
    "features": ["copy_engine", "partitions", "pinned", "priorities", "profiler", "triton"],
    "partitions": [[8, 124], [16, 116], [32, 100], [64, 68]],
}  # fmt: skip
UNABLE = {**ABLE, "features": [], "partitions": []}


class Simulated:
    """A machine on which a launch takes 10 us, and members do not disturb one another."""

    device = "simulated:0"
    features = frozenset(ABLE["features"])

    def __init__(self) -> None:
        self.asked: list[Sequence[Member]] = []
        self.broken = False

    def facts(self) -> dict[str, Any]:
        return dict(ABLE)

    def state(self) -> dict[str, Any]:
        return {"sm_clock_mhz": 1980.0}

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def alone(self, member: Member, repetitions: int) -> list[int]:
        return [10_000 * member.launches] * repetitions

    def together(self, members: Sequence[Member], repetitions: int) -> list[list[tuple[int, int]]]:
        self.asked.append(members)
        return [[(m.lag_ns, m.lag_ns + 10_000 * m.launches) for m in members]] * repetitions

    def kernels_of(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        return [{"kernel": f"kernel of {work.kind}", "workgroups": 8, "workgroup_size": 128} for work in works]


class InTurn(Simulated):
    """A machine of 2 TB/s of memory, 400 TFLOP/s, and 50 GB/s each way to the host, with two copy engines.

    Kernels take the whole device in turn. So do copies of one direction the link, beside the kernels.
    """

    features = frozenset({"copy_engine", "triton"})

    def facts(self) -> dict[str, Any]:
        return {**UNABLE, "name": "In turn 132", "l2_bytes": 1 << 20, "copy_engines": 2, "features": [*self.features]}

    def alone(self, member: Member, repetitions: int) -> list[int]:
        work = member.work
        memory_ns, flops_ns = (work.bytes_read + work.bytes_written) / 2000, work.flops / 400_000
        launch_ns = work.host_bytes / 50 if work.host_bytes else max(memory_ns, flops_ns)
        return [round(member.launches * launch_ns)] * repetitions

    def together(self, members: Sequence[Member], repetitions: int) -> list[list[tuple[int, int]]]:
        free_ns: dict[str, int] = {}
        run = []
        for m in members:  # in the order of their release
            queue = m.work.direction if m.work.host_bytes else "kernels"
            free_ns[queue] = max(free_ns.get(queue, 0), m.lag_ns) + self.alone(m, 1)[0]
            run.append((m.lag_ns, free_ns[queue]))
        return [run] * repetitions


def run_all(steps: Sequence[Step], machine: Machine) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            for table, found in checked(step.run(machine, Path(folder))).items():
                rows.setdefault(table, []).extend(dict(row) for row in found)
    return rows


# --- the plan


def test_a_plan_is_the_same_each_time_and_its_keys_tell_its_steps_apart() -> None:
    first, again, other = (plan(ABLE, "full", seed, parts="abcd") for seed in (0, 0, 1))
    keys = [step.key for step in first.steps]
    assert len(set(keys)) == len(keys)
    assert keys == [step.key for step in again.steps]
    assert keys != [step.key for step in other.steps] and sorted(keys) == sorted(step.key for step in other.steps)


def test_the_full_plan_has_the_scenarios_that_a_contention_model_is_held_against_and_fits_its_minutes() -> None:
    planned = plan(ABLE, "full", parts="abcd")
    scenarios = [scenario for group in planned.groups for scenario in group.scenarios]
    assert len(scenarios) >= 400 and len(planned.groups) >= 40
    assert sum(len(scenario.members) == 2 for scenario in scenarios) >= 300
    assert {len(scenario.members) for scenario in scenarios} == {2, 4, 8}
    assert sum(step.seconds for step in planned.steps if step.part in "abcd") < 300
    for group in planned.groups:
        policies = [scenario.policy for scenario in group.scenarios]
        assert len(set(policies)) == len(policies), group.name


def test_what_a_device_cannot_is_left_out_with_the_feature_it_lacks() -> None:
    able, unable = plan(ABLE, "full", parts="abcd"), plan(UNABLE, "full", parts="abcd")
    lacking = dict(unable.left_out)
    assert set(lacking.values()) >= {"triton", "copy_engine", "partitions", "priorities"}
    assert lacking["copy by workgroups"] == "triton" and lacking["copy command h2d by size"] == "copy_engine"
    assert {step.key for step in unable.steps} < {step.key for step in able.steps}
    machine = Simulated()
    run_all(unable.steps, machine)
    assert machine.asked
    for members in machine.asked:
        assert not any(m.units or m.priority or m.work.kind in ("copy_engine", "zero_copy") for m in members)


def test_partitions_are_disjoint_and_whole() -> None:
    machine = Simulated()
    run_all(plan(ABLE, "full", parts="abcd").steps, machine)
    parted = [sorted(m.units for m in members) for members in machine.asked if any(m.units for m in members)]
    assert parted and all(sum(units) == 132 and units in ([8, 124], [16, 116], [32, 100], [64, 68]) for units in parted)


@pytest.mark.parametrize("size", ["full", "cpu", "tiny"])
def test_every_work_that_runs_beside_others_is_recorded_alone_and_described(size: str) -> None:
    machine = Simulated()
    rows = run_all(plan(ABLE, size, parts="abcd").steps, machine)
    together = {(row["work"], row["units"]) for row in rows["together"]}
    assert together <= {(row["work"], row["units"]) for row in rows["alone"]}
    described = [row["work"] for row in rows["works"]]
    assert {row["work"] for row in rows["alone"]} == set(described)
    named = {row["work"] for row in rows["works"] if row.get("kernel", "").startswith("kernel of")}
    assert named == set(described)


def test_what_works_are_comes_first_and_which_kernels_they_were_after_all_that_is_timed() -> None:
    pytest.importorskip("torch")
    keys = [step.key for step in plan(ABLE, "full").steps]
    assert keys[:4] == ["works:a", "works:b", "works:c", "works:d"]
    kernels = [at for at, key in enumerate(keys) if key.startswith("kernels:")]
    timed = [at for at, key in enumerate(keys) if key.startswith(("e/step", "e/epoch")) or key[1] == ":"]
    assert len(kernels) < 10 and timed[-1] < kernels[0] < kernels[-1] < keys.index("f/linear/fp32/0")


def test_no_stream_is_given_more_launches_than_it_takes_without_the_host() -> None:
    machine = Simulated()
    run_all(plan(ABLE, "full", parts="abcd").steps, machine)
    assert max(m.launches for members in machine.asked for m in members) <= MOST_LAUNCHES
    assert max(sum(m.launches for m in members) for members in machine.asked) <= MOST_LAUNCHES_TOGETHER


def test_both_sides_of_a_scenario_do_the_same_under_every_policy() -> None:
    rows = run_all(plan(ABLE, "full", parts="abcd").steps, Simulated())["together"]
    flops: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        if row["part"] == "a" and row["repetition"] == 0 and row["work"].startswith("gemm"):
            flops.setdefault(row["group"], set()).add((row["work"], row["launches"]))
    assert all(len({work for work, _ in pairs}) == len(pairs) for pairs in flops.values())


def test_takes_of_a_folder_launch_the_same_however_fast_the_device_was(tmp_path: Path) -> None:
    class Slower(Simulated):
        def alone(self, member: Member, repetitions: int) -> list[int]:
            return [70_000 * member.launches] * repetitions

    def counts(machine: Machine) -> list[int]:
        planned = plan(ABLE, "tiny", parts="cd")
        steps = [step for step in planned.steps if not step.key.startswith(("works:", "kernels:"))]
        tables = [step.run(machine, tmp_path) for step in steps]
        return [row["launches"] for rows in tables for name in ("alone", "together") for row in rows.get(name, ())]

    first = counts(Simulated())
    with (tmp_path / "launches.jsonl").open("a") as file:
        file.write('["torn')
    assert counts(Slower()) == first
    (tmp_path / "launches.jsonl").unlink()
    assert counts(Slower()) != first


def test_pieces_of_a_cut_product_are_the_product() -> None:
    planned = plan(ABLE, "full", parts="abcd")
    for group in (group for group in planned.groups if group.part == "c"):
        policies = {scenario.policy.split()[0] for scenario in group.scenarios}
        assert policies == {"whole", "M", "K", "MK"}
        for scenario in group.scenarios:
            (_, piece), (_, transfer) = scenario.members
            assert piece.launches * piece.work.flops == group.sides[0].flops
            assert transfer.launches * transfer.work.bytes_written == group.sides[1].bytes_written


# --- steps, budget, journal


def step(key: str, run: Callable[[], Tables] | None = None, seconds: float = 0.0) -> Step:
    """A step of the part that its key begins with, which records one row that names it."""
    tables: Tables = {"steps": [{"model": key, "duration_ns": 1}]}
    return Step(key, key[0], seconds, lambda machine, folder: run() if run else tables)


def loop(folder: Path, steps: Sequence[Step], machine: Machine | None = None, seconds: float = 1e6) -> Outcome:
    journal = Journal(folder / "journal.jsonl")
    note_death(folder, journal, steps)
    pending = ordered(steps, journal)
    session = Session(machine or Simulated(), journal, folder, Stop(), Progress(StringIO(), pending))
    return record(session, pending, seconds, lambda: 0.0)


def models(folder: Path) -> list[str]:
    return sorted(row["model"] for row in Journal(folder / "journal.jsonl").rows("steps"))


def failing(times: int) -> Callable[[], Tables]:
    left = iter(range(times))

    def run() -> Tables:
        if next(left, None) is not None:
            raise ValueError("not yet")
        return {"steps": [{"model": "a2", "duration_ns": 2}]}

    return run


def test_a_step_that_fails_is_written_down_and_tried_again_last(tmp_path: Path) -> None:
    steps = [step("a1"), step("a2", failing(1)), step("a3"), step("b1")]
    assert loop(tmp_path, steps).failed == ["a2"]
    (error,) = (e for e in Journal(tmp_path / "journal.jsonl").entries() if "error" in e)
    assert error["error"] == "ValueError: not yet" and error["part"] == "a"
    assert [s.key for s in ordered([*steps, step("c1")], Journal(tmp_path / "journal.jsonl"))] == ["c1", "a2"]
    assert loop(tmp_path, steps).recorded == ["a2"]
    assert models(tmp_path) == ["a1", "a2", "a3", "b1"]


def test_rows_that_are_not_of_the_layout_fail_their_step(tmp_path: Path) -> None:
    wrong: list[Tables] = [
        {"stepz": []},
        {"steps": [{"modell": "x"}]},
        {"steps": [{"duration_ns": True}]},
        {"operators": [{"latency_ms": float("nan")}]},
        {"steps": [{"batch": 2**63}]},
    ]
    steps = [step(f"a{number}", lambda tables=tables: tables) for number, tables in enumerate(wrong)]
    assert len(loop(tmp_path, steps).failed) == len(wrong)
    assert not models(tmp_path)


def test_a_device_in_error_ends_the_recording_and_another_process_goes_on(tmp_path: Path) -> None:
    machine = Simulated()

    def broken() -> Tables:
        machine.broken = True
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    steps = [step("a1"), step("a2", broken), step("a3")]
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        loop(tmp_path, steps, machine)
    assert models(tmp_path) == ["a1"]
    assert loop(tmp_path, [step("a1"), step("a2"), step("a3")]).recorded == ["a3", "a2"]
    assert models(tmp_path) == ["a1", "a2", "a3"]


def test_a_recording_that_was_killed_goes_on_to_the_rows_of_one_that_was_not(tmp_path: Path) -> None:
    def killed() -> Tables:
        raise SystemExit  # as a kill does, it passes every handler of exceptions

    names = [f"a{number}" for number in range(6)]
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    whole.mkdir()
    halved.mkdir()
    loop(whole, [step(name) for name in names])
    with pytest.raises(SystemExit):
        loop(halved, [step(name, killed if name == "a3" else None) for name in names])
    (halved / "running.json").write_text(json.dumps({"take": 0, "key": "a3"}))
    with (halved / "journal.jsonl").open("a") as file:
        file.write('{"take": 0, "key": "a3", "tab')
    assert loop(halved, [step(name) for name in names]).recorded == ["a4", "a5", "a3"]
    assert models(halved) == models(whole) == names


def test_a_part_has_its_share_and_what_others_leave(tmp_path: Path) -> None:
    steps = [step("a1", seconds=30), step("a2", seconds=28), step("d1", seconds=1)]
    elapsed = [0.0]
    budget = Budget(65, steps, lambda: elapsed[0])
    assert budget.fits(steps[0])
    budget.spend(steps[0], 30)
    elapsed[0] = 30
    assert not budget.fits(steps[1]), "a has 40/45 of 60 s, and used 30 of these 53"
    assert budget.fits(steps[2])
    budget.spend(steps[2], 1)
    elapsed[0] = 29
    assert budget.fits(steps[1]), "d is done, and left 5.7 s"
    elapsed[0] = 33
    assert budget.over(steps[1])


def test_steps_that_time_does_not_allow_are_left(tmp_path: Path) -> None:
    steps = [step("a1", seconds=1), step("a2", seconds=100), step("b1", seconds=1)]
    outcome = loop(tmp_path, steps, seconds=60)
    assert (outcome.recorded, outcome.left, outcome.failed) == (["a1", "b1"], ["a2"], [])


def test_nothing_is_timed_against_the_host_behind_a_profiler(tmp_path: Path) -> None:
    order: list[str] = []

    def noted(key: str, seconds: float, needs: frozenset[str] = frozenset()) -> Step:
        def run(_machine: Machine, _folder: Path) -> Tables:
            order.append(key)
            return {"steps": [{"model": key, "duration_ns": 1}]}

        return Step(key, key[0], seconds, run, needs)

    traced = noted("e9", 5, frozenset({"profiler"}))
    steps = [noted("a1", 1), noted("e1", 30), noted("e2", 20), noted("e3", 45), noted("f1", 3), traced]
    outcome = loop(tmp_path, steps, seconds=95)
    assert order == ["a1", "e1", "e2", "e3", "f1", "e9"] and not outcome.left, "e3 is over its share, but there is time"
    order.clear()
    (tmp_path / "b").mkdir()
    outcome = loop(tmp_path / "b", [*steps[:3], noted("e3", 85), *steps[4:], noted("c1", 85)], seconds=95)
    assert order == ["a1", "e1", "e2", "f1", "e9", "c1"] and outcome.left == ["e3"], "c1 does not mind a profiler"


def test_the_first_interrupt_lets_the_step_be_written_down(tmp_path: Path) -> None:
    stop = Stop()
    before = signal.getsignal(signal.SIGINT)

    def interrupted() -> Tables:
        os.kill(os.getpid(), signal.SIGINT)
        return {"steps": [{"model": "a1", "duration_ns": 1}]}

    steps = [step("a1", interrupted), step("a2")]
    session = Session(
        Simulated(), Journal(tmp_path / "journal.jsonl"), tmp_path, stop, Progress(StringIO(), steps)
    )  # fmt: skip
    with stop.listening():
        outcome = record(session, steps, 1e6, lambda: 0.0)
    assert outcome.interrupted and outcome.recorded == ["a1"] and outcome.left == ["a2"]
    assert signal.getsignal(signal.SIGINT) == before and models(tmp_path) == ["a1"]


# --- from the plan to the score


def test_a_recording_is_packed_read_and_scored_against_times_that_a_formula_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.__main__._machine", lambda options: InTurn())
    for take in ("0", "1"):
        assert main(["--output", str(tmp_path), "--size", "tiny", "--parts", "abcd", "--take", take]) == 0
    (found,) = read_contention(tmp_path)
    assert found.device == DeviceFacts("In turn 132", "", "sm_90", 132, 141 << 30, 1 << 20, 2)
    transfer = moved("copy_engine", "h2d", 1 << 18)
    assert found.alone_ns(transfer.name) == pytest.approx((1 << 18) / 50, rel=1e-4)
    assert {scenario.takes for scenario in found.scenarios} == {2}
    # In the formula, kernels start at once.
    cases = predict_contention([found], load_parameters().with_values([("kernel_start_ns", 1e-3)]))
    assert len(cases) == 138 and {case.mechanism for case in cases} == {"HBM", "L2", "copy engine"}
    # The engine shares in another order; beside others, memory takes longer.
    assert max(case.error for case in cases) < 0.08


# --- environment and tables


def test_a_folder_takes_one_device_and_one_plan(tmp_path: Path) -> None:
    about: dict[str, Any] = {"device": ABLE, "plan": {"size": "full", "seed": 0}}
    environment.begin(tmp_path, 0, about, {"state_before": {"sm_clock_mhz": 345.0}})
    environment.begin(tmp_path, 0, about, {"state_before": {"sm_clock_mhz": 1500.0}})
    environment.end(tmp_path, 0, {"sm_clock_mhz": 1980.0})
    environment.begin(tmp_path, 1, about, {})
    first, second = environment.read_takes(tmp_path)
    assert (first["take"], second["take"], len(first["sessions"])) == (0, 1, 2)
    assert first["state_before"] == {"sm_clock_mhz": 345.0} and first["state_after"] == {"sm_clock_mhz": 1980.0}
    with pytest.raises(InvalidInputError, match=r"another device \(compute_units 132, here 78\)"):
        environment.begin(tmp_path, 0, {**about, "device": {**ABLE, "compute_units": 78}}, {})
    # What a driver keeps for itself differs by some MB from one machine to the next.
    environment.begin(tmp_path, 1, {**about, "device": {**ABLE, "memory_bytes": (141 << 30) - (3 << 20)}}, {})
    with pytest.raises(InvalidInputError, match=r"another device \(memory_bytes"):
        environment.begin(tmp_path, 1, {**about, "device": {**ABLE, "memory_bytes": 80 << 30}}, {})
    with pytest.raises(InvalidInputError, match="--seed 0, not 3"):
        environment.begin(tmp_path, 2, {**about, "plan": {"size": "full", "seed": 3}}, {})
    (tmp_path / "environment.json").write_text('[{"take": "0"}]')
    with pytest.raises(InvalidInputError, match=r"environment\.json: is no list of recordings"):
        environment.read_takes(tmp_path)


def test_tables_are_of_the_layout_and_the_last_of_two_recordings_of_a_step_counts(tmp_path: Path) -> None:
    epoch = {"model": "gru/2", "configuration": "../bf16", "iteration": 0, "sequence_length": 7, "batch": 4}
    for take, key, duration_ns in ((0, "e:1", 100), (0, "e:1", 90), (1, "e:1", 80)):
        Journal(tmp_path / "journal.jsonl", take).write(
            key, "e", 0.5, {"epochs": [{**epoch, "duration_ns": duration_ns}]}
        )
    Journal(tmp_path / "journal.jsonl").write("a:1", "a", 0.5, {"alone": [{"work": "gemm", "units": None}]})
    Journal(tmp_path / "journal.jsonl").fail("a:2", "a", "no")
    written = pack(tmp_path)
    assert {str(path.relative_to(tmp_path)): rows for path, rows in written.items()} == {
        "alone.parquet": 1, "epochs/gru_2/_bf16.parquet": 1, "epochs_take_1/gru_2/_bf16.parquet": 1,
    }  # fmt: skip
    table = pq.read_table(tmp_path / "epochs/gru_2/_bf16.parquet")
    assert table["take"].to_pylist() == [0] and table["duration_ns"].to_pylist() == [90]
    assert pq.read_table(tmp_path / "epochs_take_1/gru_2/_bf16.parquet")["duration_ns"].to_pylist() == [80]
    assert [f"{f.name} {f.type}" for f in table.schema] == ["take int64", *map(" ".join, TABLES["epochs"].items())]
    assert pq.read_table(tmp_path / "alone.parquet")["units"].null_count == 1


def test_what_is_published_is_all_but_the_journal_and_says_what_it_is(tmp_path: Path) -> None:
    folder, target = tmp_path / "own", tmp_path / "measured" / "h200"
    journal = Journal(folder / "journal.jsonl")
    journal.write("a:1", "a", 0.5, {"alone": [{"work": "gemm", "duration_ns": 5}]})
    journal.fail("e/bert", "e", "OutOfMemoryError: 80 GiB | <b>of</b> `memory`")
    device = {**ABLE, "name": "GPU | <script>", "missing": {"partitions": "driver 470"}}
    environment.begin(folder, 0, {"device": device, "plan": {"size": "full", "seed": 0}},
                      {"parts": "ae", "versions": {"torch": "2.11.0", "hip": None}, "state_before": {}})  # fmt: skip
    environment.end(folder, 0, {"sm_clock_mhz": 1980.0})
    (folder / "traces").mkdir()
    (folder / "traces" / "bert.pt.trace.json.gz").write_bytes(b"trace")
    assert main(["--output", str(folder), "--pack", "--to", str(target)]) == 0
    assert {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} == {
        "alone.parquet", "environment.json", "traces/bert.pt.trace.json.gz", "README.md",
    }  # fmt: skip
    said = (target / "README.md").read_text()
    for part in ("# Recorded on GPU \\| &lt;script>", "| alone.parquet | 1 |", "sm_clock_mhz unknown / 1980.0",
                 "| torch | 2.11.0 |", "| hip | unknown |", "| partitions | driver 470 |",
                 "| take 0: e/bert | OutOfMemoryError: 80 GiB \\| &lt;b>of&lt;/b> 'memory' |"):  # fmt: skip
        assert part in said
    assert main(["--output", str(folder), "--pack"]) == 0 and (folder / "README.md").read_text() == said


def test_a_recording_is_added_to_those_of_its_device_that_are_published(tmp_path: Path) -> None:
    def recorded(folder: Path, take: int, part: str, date: str, name: str = "GPU") -> Path:
        rows = [{"part": part, "work": f"gemm {part}{take}", "duration_ns": 5}]
        works = [{"work": f"gemm {part}{take}", "kind": "gemm"}]
        Journal(folder / "journal.jsonl", take).write(f"{part}:1", part, 0.5, {"alone": rows, "works": works})
        about = {"device": {**ABLE, "name": name}, "plan": {"size": "full", "seed": 0}}
        environment.begin(folder, take, about, {"parts": part, "versions": {}, "state_before": {}})
        text = (folder / "environment.json").read_text()
        (folder / "environment.json").write_text(re.sub(r'"date": "[^"]*"', f'"date": "{date}"', text))
        return folder

    target = tmp_path / "measured"
    pack(recorded(tmp_path / "first", 0, "a", "2026-01-01"), target)
    pack(recorded(tmp_path / "second", 0, "a2", "2026-01-02"), target)
    pack(recorded(tmp_path / "third", 1, "a", "2026-01-03"), target)
    again = pack(tmp_path / "second", target)
    assert sorted(pq.read_table(target / "alone.parquet")["work"].to_pylist()) == ["gemm a0", "gemm a1", "gemm a20"]
    assert again[target / "works.parquet"] == 3
    takes = environment.read_takes(target)
    assert [(take["take"], [session["parts"] for session in take["sessions"]]) for take in takes] == [
        (0, ["a", "a2"]), (1, ["a"]),
    ]  # fmt: skip
    assert "| alone.parquet | 3 |" in (target / "README.md").read_text()
    with pytest.raises(InvalidInputError, match="was recorded on another device"):
        pack(recorded(tmp_path / "other", 0, "b", "2026-01-04", "other GPU"), target)
    assert pq.read_table(target / "alone.parquet").num_rows == 3, "nothing of another device is written"
    (target / "alone.parquet").write_bytes(b"no table")
    with pytest.raises(InvalidInputError, match=r"alone\.parquet: is no table of alone that rows can be added to"):
        pack(tmp_path / "second", target)


@pytest.mark.parametrize("device", ["h100", "h200"])
def test_a_second_take_of_a_published_device_launches_as_often_as_the_first(device: str) -> None:
    folder = ROOT / "datasets" / "measured" / device
    (take,) = environment.read_takes(folder)
    groups = {f"{group.part}:{group.name}": group for group in plan(take["device"], "full", parts="abcd").groups}
    lines = [json.loads(line) for line in (folder / "launches.jsonl").read_text().splitlines()]
    counts = dict(lines)
    assert groups.keys() <= counts.keys() and len(counts) == len(lines)
    rows = pq.read_table(folder / "together.parquet").to_pylist()
    first = [row for row in rows if row["repetition"] == 0 and row["policy"] == "in order"]
    for row in first:
        side, member = groups[f"{row['part']}:{row['group']}"].scenarios[0].members[row["member"]]
        if groups[f"{row['part']}:{row['group']}"].scenarios[0].policy == "in order":
            assert row["launches"] == member.launches * counts[f"{row['part']}:{row['group']}"][side]
    assert len(first) > 300


@pytest.mark.parametrize("row", [{"work": 3}, {"duration_ns": "soon"}, {"duration": 1}, {"launches": 2**64}])
def test_a_journal_with_other_values_than_its_columns_is_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    Journal(tmp_path / "journal.jsonl").write("a:1", "a", 0.5, {"alone": [row]})
    with pytest.raises(InvalidInputError, match=r"alone\.parquet"):
        pack(tmp_path)
    assert not (tmp_path / "alone.parquet").exists()


def test_file_names_stay_in_their_folder() -> None:
    assert [file_name(name) for name in ("..", "a/../../b", "", ".hidden", "bf16 batch=8")] == [
        "unnamed", "a_.._.._b", "unnamed", "hidden", "bf16_batch_8",
    ]  # fmt: skip


# --- streams


class Device:
    """Streams, events and sleeps of a GPU on which streams never disturb one another; ns, and two cycles each."""

    def __init__(self, launch_ns: int = 5_000) -> None:
        self.now_ns, self.launch_ns, self.cycles_per_ns = 0, launch_ns, 2.0
        self.streams: list[SimpleNamespace] = []
        self.current: Any = None

    def Stream(self) -> Any:  # noqa: N802
        stream = SimpleNamespace(free_ns=0)
        stream.wait_event = lambda event: setattr(stream, "free_ns", max(stream.free_ns, event.at_ns))
        self.streams.append(stream)
        return stream

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802
        assert enable_timing
        event = SimpleNamespace(at_ns=None)
        event.record = lambda stream: setattr(event, "at_ns", max(stream.free_ns, self.now_ns))
        event.query = lambda: self.now_ns >= event.at_ns
        event.elapsed_time = lambda later: (later.at_ns - event.at_ns) / 1e6
        return event

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.current = stream
        yield
        self.current = None

    def _sleep(self, cycles: int) -> None:
        self.current.free_ns = max(self.current.free_ns, self.now_ns) + int(cycles / self.cycles_per_ns)

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns, *(stream.free_ns for stream in self.streams))

    def kernel(self, duration_ns: int) -> Callable[[int], None]:
        def launch(_: int) -> None:
            self.now_ns += self.launch_ns
            self.current.free_ns = max(self.current.free_ns, self.now_ns) + duration_ns

        return launch

    def clock(self) -> int:
        return self.now_ns


def test_queues_begin_together_behind_the_gate_however_long_the_host_takes() -> None:
    device = Device()
    timeline = Timeline(device, device.clock)
    queues = [
        Queue(device.Stream(), device.kernel(7_000), 50),
        Queue(device.Stream(), device.kernel(30_000), 20),
        Queue(device.Stream(), device.kernel(1_000), 3, lag_ns=40_000),
    ]
    assert timeline.run(queues) == [(0, 350_000), (0, 600_000), (40_000, 43_000)]


def test_a_run_for_which_the_gate_opened_too_early_is_thrown_away() -> None:
    device = Device(launch_ns=200_000)  # more than the 30 us that a first launch is given
    timeline = Timeline(device, device.clock)
    kernel, launched = device.kernel(1_000), []

    def counted(turn: int) -> None:
        launched.append(turn)
        kernel(turn)

    assert timeline.run([Queue(device.Stream(), counted, 10)]) == [(0, 10_000)]
    assert len(launched) > 10 and len(launched) % 10 == 0, "ten for each time that the gate was too early, and ten"


def test_what_goes_before_a_run_goes_before_each_attempt_and_the_clock_is_known_after() -> None:
    device, happened = Device(launch_ns=400_000), list[str]()
    timeline, kernel = Timeline(device, device.clock), device.kernel(1_000)

    def launch(turn: int) -> None:
        happened.append("launch")
        kernel(turn)

    assert timeline.run([Queue(device.Stream(), launch)], lambda: happened.append("before")) == [(0, 1_000)]
    assert len(happened) > 2 and happened == ["before", "launch"] * (len(happened) // 2)
    assert timeline.clock_mhz == pytest.approx(2000, rel=0.01)


def test_a_lag_is_as_long_as_asked_though_the_clock_was_another_when_the_device_was_idle() -> None:
    device = Device()
    device.cycles_per_ns = 0.345
    timeline = Timeline(device, device.clock)
    device.cycles_per_ns = 1.98
    for clock in (1.98, 1.4):
        device.cycles_per_ns = clock
        streams = device.Stream(), device.Stream()
        queues = [Queue(streams[0], device.kernel(7_000), 5), Queue(streams[1], device.kernel(9_000), 2, 5_000)]
        _, (start, _) = timeline.run(queues)
        assert start == pytest.approx(5_000, rel=0.01)


def test_streams_that_wait_for_one_another_are_told() -> None:
    device = Device()
    timeline = Timeline(device, device.clock)
    a, b = device.Stream(), device.Stream()
    assert timeline.side_by_side(a, b)
    slow = Timeline(device, device.clock)
    device.launch_ns = 0

    def late(_: int) -> None:
        device.now_ns += 10**9

    patched, device._sleep = device._sleep, late  # type: ignore[method-assign]
    assert not slow.side_by_side(a, b), "a host that is late is no error, but nothing is known of the streams"
    device._sleep = patched  # type: ignore[method-assign]
    assert not timeline.side_by_side(a, a), "one queue of the device for both"
    assert not timeline.side_by_side(a, timeline._gate_stream) and not timeline.side_by_side(timeline._gate_stream, b)


def test_a_host_that_stood_still_once_makes_no_run_after_it_wait() -> None:
    device = Device()
    timeline = Timeline(device, device.clock)
    stalls = iter([400_000_000])

    def stalled(_: int) -> None:
        device.now_ns += next(stalls, 5_000)

    timeline.run([Queue(device.Stream(), stalled)])
    before = device.now_ns
    timeline.run([Queue(device.Stream(), device.kernel(1_000), 200)])
    assert device.now_ns - before < 50_000_000


def test_a_host_that_always_waits_for_the_device_is_told_so() -> None:
    device = Device()

    def blocking(_: int) -> None:
        device.synchronize()

    with pytest.raises(GateError, match="CUDA_LAUNCH_BLOCKING"):
        Timeline(device, device.clock).run([Queue(device.Stream(), blocking, 3)])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a `GpuMachine` whose device is simulated, whose kernels take 1 us, and which has two splits."""
    torch = pytest.importorskip("torch")
    import benchmarks.gpu.gpu as module
    from benchmarks.gpu.kernels import Bound

    device = Device()
    handles = iter(range(1000))

    class Stream(SimpleNamespace):
        def __init__(self, device: Any = None, priority: int = 0, raw: int = 0) -> None:
            super().__init__(**vars(simulated.Stream()), asked=priority, raw=raw, cuda_stream=next(handles))
            self.wait_event = lambda event: setattr(self, "free_ns", max(self.free_ns, event.at_ns))
            simulated.streams[-1] = self

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -3

    simulated = device
    fakes = {
        "is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda index: None, "Stream": Stream,
        "get_device_properties": lambda index: SimpleNamespace(multi_processor_count=132, total_memory=8_000),
        "Event": device.Event, "stream": device.stream, "_sleep": device._sleep, "synchronize": device.synchronize,
        "ExternalStream": lambda raw, device: Stream(raw=raw),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(module, "found", lambda name: [(16, 116), (66, 66)])
    monkeypatch.setattr(
        module, "split", lambda name, asked: SimpleNamespace(units=(asked, 132 - asked), streams=(asked, 1000 + asked))
    )  # fmt: skip
    monkeypatch.setattr(module, "bind", lambda work, place: Bound(device.kernel(1_000), lambda: None, 400))
    return module.GpuMachine("cuda:0")


def test_streams_of_a_gpu_have_their_priority_or_their_partition(gpu: Any) -> None:
    a, b = gemm(64, 64, 64), gemm(32, 32, 32)
    streams = gpu._streams_of([Member(a), Member(b, priority=2), Member(b, priority=9), Member(a)])
    assert [stream.asked for stream in streams] == [0, -2, -3, 0]
    assert len({stream.cuda_stream for stream in streams}) == 4
    assert [s.cuda_stream for s in gpu._streams_of([Member(b)])] == [streams[0].cuda_stream]
    parted = [[(116, 16), (1016, 16)], [(16, 116), (16, 1016)], [(66, 66), (66, 1066)], [(116,), (1016,)]]
    for units, raws in parted:
        assert tuple(s.raw for s in gpu._streams_of([Member(a, units=u) for u in units])) == raws
    with pytest.raises(ValueError, match="no partitions of"):
        gpu._streams_of([Member(a, units=16), Member(b, units=66)])
    with pytest.raises(ValueError, match="has no priority"):
        gpu._streams_of([Member(a, units=16, priority=1)])


def test_a_gpu_passes_over_streams_that_share_a_queue_and_says_how_many_it_could_not(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import benchmarks.gpu.gpu as module

    monkeypatch.setattr(module, "facts_of", lambda *_: {})
    queues = 9  # streams are dealt out to them by turns
    shared = lambda a, b: (a.cuda_stream - b.cuda_stream) % queues != 0  # noqa: E731
    monkeypatch.setattr(gpu._timeline, "side_by_side", shared)
    facts = gpu.facts()
    streams = list(gpu._streams.values())
    assert len(streams) == 9 and len({stream.cuda_stream % queues for stream in streams}) == 9
    assert facts["streams_that_wait_for_others"] == 0
    gpu._streams.clear()
    queues = 6
    assert gpu.facts()["streams_that_wait_for_others"] == 3


def test_a_gpu_has_the_features_that_worked_and_says_why_it_lacks_the_others(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import benchmarks.gpu.gpu as module

    def refused(device: str) -> list[tuple[int, int]]:
        raise PartitionError("cuGreenCtxCreate answers 801")

    def broken(*_: object) -> None:
        raise OSError("no C compiler")

    monkeypatch.setattr(module, "found", refused)
    monkeypatch.setattr(module, "TritonKernels", broken)
    assert {"copy_engine", "priorities"} <= gpu.features and not {"partitions", "triton"} & gpu.features
    missing = {name: gpu._missing[name] for name in ("partitions", "triton")}
    assert missing == {"partitions": "cuGreenCtxCreate answers 801", "triton": "OSError: no C compiler"}


def test_a_gpu_counts_no_run_but_those_asked_for_and_keeps_no_more_than_its_share(gpu: Any) -> None:
    a, b = gemm(64, 64, 64), gemm(32, 32, 32)
    members = [Member(a, 4), Member(a, 2, lag_ns=500), Member(b, 3)]
    assert gpu.together(members, 2) == [[(0, 4_000), (500, 2_500), (0, 3_000)]] * 2
    assert len(gpu._held) == 3, "what runs stays, though it is more than the share"
    assert gpu.alone(Member(b, 5), 3) == [5_000] * 3
    assert len(gpu._held) == 2, "of 8000 bytes of memory an eighth, and each holds 400"


# --- what others answer


def test_a_copy_has_a_name_and_no_grid() -> None:
    assert described({"name": "Memcpy DtoD"}) == {"kernel": "Memcpy DtoD"}
    found = described({"name": "gemm", "grid": [12, 11, 2], "block": [128, 3, 1]})
    assert found == {"kernel": "gemm", "workgroups": 264, "workgroup_size": 384}


def test_a_work_is_one_row_whichever_part_it_is_of_and_has_its_kernel_where_that_is_known(tmp_path: Path) -> None:
    work = gemm(64, 64, 64).row()
    for take in (0, 1):
        journal = Journal(tmp_path / "journal.jsonl", take)
        journal.write("works:a", "a", 0.0, {"works": [work]})
        if take == 0:
            journal.write("kernels:a:0", "f", 1.0, {"works": [work | {"kernel": "gemm", "workgroups": 4}]})
        journal.write("works:c", "c", 0.0, {"works": [work]})
    pack(tmp_path)
    rows = pq.read_table(tmp_path / "works.parquet").to_pylist()
    assert [(row["take"], row["kernel"], row["workgroups"]) for row in rows] == [(0, "gemm", 4), (1, None, None)]


def test_what_nvidia_smi_does_not_know_is_left_out() -> None:
    answer = "1980, [N/A], 1980, 41, [Not Supported], 700.00, 3, 5, 16, 580.65.06\n"
    state = read_nvidia_smi(answer)
    assert "memory_clock_mhz" not in state and "power_w" not in state
    assert (state["sm_clock_mhz"], state["temperature_c"], state["driver"]) == (1980.0, 41.0, "580.65.06")
    assert read_nvidia_smi("No devices were found\n") == {}


@pytest.mark.parametrize("module", [gpu_facts, layout_module, pack_module, partitions, profile])
def test_examples_run(module: Any) -> None:
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted and not found.failed


def test_masks_of_two_parts_share_no_unit() -> None:
    first, rest = (mask_words(begin, end, 304) for begin, end in ((0, 40), (40, 304)))
    assert len(first) == len(rest) == 10 and not any(a & b for a, b in zip(first, rest, strict=True))
    assert sum(word.bit_count() for word in (*first, *rest)) == 304


# --- on a CPU


def test_kernels_that_compute_something_else_are_found_out() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu.kernels import Place, WrongResultError, bind
    from benchmarks.gpu.work import copied, streamed

    class Wrong:
        def copy(self, source: Any, target: Any, blocks: int) -> None:
            target[:-1].copy_(source[:-1])

        def read(self, source: Any, sums: Any, hint: str) -> None:
            sums.copy_(source[: source.numel() // 2].sum())

        def update(self, values: Any, hint: str) -> None:
            values[1:].mul_(-1).add_(1)

    torch.manual_seed(0)
    for work in (copied(4096, 2), streamed("read", 1024), streamed("update", 1024)):
        with pytest.raises(WrongResultError, match=work.name):
            bind(work, Place("cpu", 1, Wrong())).check()
    for work in (gemm(16, 8, 32, "fp32"), gemm(16, 8, 32, "bf16"), gemm(8, 8, 8, "fp32", accumulate=True),
                 streamed("softmax", 8, 16), streamed("elementwise", 8, 16), streamed("read", 1024)):  # fmt: skip
        bind(work, Place("cpu", 2)).check()


def test_products_that_accumulate_stay_in_size() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.gpu.kernels import Place, bind

    work = gemm(8, 8, 8, "fp32", accumulate=True)
    torch.manual_seed(0)
    bound = bind(work, Place("cpu", 3))
    a, b, out = next(cell.cell_contents for cell in bound.launch.__closure__ if isinstance(cell.cell_contents, list))[0]
    before = out.clone()
    bound.launch(0)
    assert torch.allclose(out, before + a @ b, atol=1e-5)
    for turn in range(1, 6):
        bound.launch(turn)
    assert torch.allclose(out, before, atol=1e-5)


def test_a_cpu_twin_times_threads_on_cores_of_their_own() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu.cpu import CpuMachine

    machine = CpuMachine()
    try:
        work = gemm(64, 64, 64, "fp32")
        (run,) = machine.together([Member(work, 3), Member(work, 2, priority=1, lag_ns=200_000_000)], 1)
        assert all(start < end for start, end in run) and run[0][0] == 0 and run[1][0] >= 100_000_000
        assert machine.alone(Member(work, 1), 2) and machine.facts()["compute_units"] >= 1
        if "partitions" in machine.features:
            cores = [seat.cores for seat in machine._seats_of([Member(work, units=1), Member(work, units=1)])]
            assert not set(cores[0]) & set(cores[1])
        with pytest.raises(ValueError, match="no partitions of"):
            machine.together([Member(work, units=10**6)], 1)
    finally:
        machine.release()


def on_the_cpu(folder: Path, *arguments: str) -> int:
    return main(["--output", str(folder), "--device", "cpu", "--size", "tiny", *arguments])


def test_a_recording_on_the_cpu_is_left_for_lack_of_time_goes_on_and_ends_in_tables_that_are_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "out"
    assert on_the_cpu(folder, "--parts", "cd", "--minutes", "0.085") == 3
    assert "remain for lack of time" in capsys.readouterr().err and not (folder / "works.parquet").exists()
    command = [sys.executable, "-m", "benchmarks.gpu", "--output", str(folder), "--device", "cpu", "--size", "tiny"]
    whole = subprocess.run([*command, "--parts", "cd"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stderr
    together = pq.read_table(folder / "together.parquet").to_pylist()
    assert together and all(0 <= row["start_ns"] < row["end_ns"] and row["take"] == 0 for row in together)
    works = {row["work"] for row in pq.read_table(folder / "works.parquet").to_pylist()}
    assert {row["work"] for row in together} <= works
    (take,) = environment.read_takes(folder)
    assert take["plan"] == {"size": "tiny", "seed": 0} and len(take["sessions"]) == 2
    assert take["left_out"]["triton"] and {"state_before", "state_after", "device"} <= set(take)
    assert on_the_cpu(folder, "--parts", "cd") == 0
    assert "take 0 is complete; --take 1" in capsys.readouterr().err
    assert on_the_cpu(folder, "--seed", "1") == 1
    assert "holds a plan of --seed 0, not 1" in capsys.readouterr().err
    found = read_contention(folder)
    cases = predict_contention(found, load_parameters())
    assert {case.scenario for case in cases} == {row["scenario"] for row in together}
    assert all(0 < case.low_ns <= case.high_ns and case.error < 10 for case in cases)
    assert "is a CPU in place of a GPU" in notes_on(found)[0]


def test_the_script_for_a_lent_machine_leaves_an_archive_that_is_packed_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    recording, packing = (block.split("```")[0] for block in text.split("```sh\n")[1:3])
    out, elsewhere, rec = (tmp_path / name for name in ("out", "elsewhere", "recorded"))
    out.mkdir()
    elsewhere.mkdir()
    for old, new in (("--take 0", "--take 0 --device cpu --size tiny --parts c"), ("/tmp/recorded", str(rec)),
                     ("python3", sys.executable)):  # fmt: skip
        assert old in recording
        recording = recording.replace(old, new)
    run_script(recording, ROOT, OUT=str(out))
    pieces = sorted(out.iterdir())
    assert [piece.name for piece in pieces] == ["recorded.tar.gz.aa"]
    pieces[0].rename(elsewhere / pieces[0].name)
    run_script(packing.replace("python ", f"{sys.executable} "), elsewhere, PYTHONPATH=str(ROOT))
    made = elsewhere / "datasets" / "measured" / "DEVICE"
    assert {path.name for path in made.iterdir()} >= {"works.parquet", "alone.parquet", "together.parquet", "README.md"}


def test_recording_needs_no_package_beside_pytorch() -> None:
    pytest.importorskip("torch")
    harness = "__main__, benchmarks.gpu.gpu, benchmarks.gpu.cpu, benchmarks.gpu.operators, benchmarks.gpu.training"
    code = (
        "import sys\nsys.modules.update(dict.fromkeys(('msgspec', 'pandas', 'pyarrow')))\n"
        f"import benchmarks.gpu.{harness}\nassert not benchmarks.gpu.pack.can_pack()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_script(text: str, folder: Path, **variables: str) -> None:
    """Run a script as a shell would, and expect it to end well."""
    done = subprocess.run(
        ["bash", "-euc", text], cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_second_process_is_kept_out_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    import fcntl

    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert on_the_cpu(tmp_path) == 1
    assert "another process records into it" in capsys.readouterr().err


def test_the_command_line_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path), "--pack"]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}: holds no journal.jsonl; record first\n"
    for missing in (["--pack"], ["--pack", "--output", str(tmp_path / "nowhere")]):
        assert main(missing) == 1
        assert "--pack needs --output and the folder of a recording" in capsys.readouterr().err
    for wrong in (["--parts", "xyz"], ["--minutes", "0"], ["--take", "-1"], ["--size", "huge"]):
        with pytest.raises(SystemExit, match="2"):
            main([*wrong])
