"""Iterations of a serving run, selected from each phase in turn."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.random import default_rng
from test_docs import ROOT, console

from profilers.devices import find_device
from profilers.errors import InvalidInputError
from profilers.trace import Trace, save_trace
from profilers.trace.arrays import integers
from profilers.trace.serving import PhaseTokens, ServingStep
from replay.workloads.program import KernelCall, SyntheticJob, SyntheticStep, Wait
from replay.workloads.program_trace import write_trace
from seqpoint.cli import cli
from seqpoint.iteration_table import IterationTable, _serving_phases, iteration_table
from seqpoint.selection.another_run import estimate_run
from seqpoint.selection.phases import estimate_by_phase, select_by_phase
from seqpoint.selection.selecting import SelectionResult, SelectOptions

#: Tokens of a step of either phase: the same numbers.
TOKENS = (16, 24, 32, 48, 64, 96)
#: Nanoseconds of a token.
COST = {"prefill": 3_000, "decode": 40_000, "mixed": 9_000}


def step(number: int, phase: str, scale: float = 1.0) -> SyntheticStep:
    """Return a step whose time follows its tokens and its phase, and scatters by 1 %."""
    tokens = TOKENS[number % len(TOKENS)]
    noise = float(default_rng(number).normal(1, 0.01))
    prompt, new = PhaseTokens.equal(1, tokens, tokens), PhaseTokens.equal(tokens, 1, 500 + 10 * number)
    if phase == "mixed":
        prompt, new = PhaseTokens.equal(1, tokens // 2, tokens // 2), PhaseTokens.equal(tokens // 2, 1, 500)
    requests = ServingStep(prompt if phase != "decode" else PhaseTokens(), new if phase != "prefill" else PhaseTokens())
    kernel = KernelCall("gemm", "aten::mm", round(scale * noise * (10_000 + COST[phase] * tokens)), 2_000)
    return SyntheticStep(f"step {number}", tokens, 1, [[kernel, Wait()]], requests=requests)


def run(phases: list[str], scales: dict[str, float] | None = None) -> Trace:
    steps = [step(number, phase, (scales or {}).get(phase, 1.0)) for number, phase in enumerate(phases)]
    return write_trace(SyntheticJob("a serving run", "1", steps, 1, "Half", 2), find_device("H100"))


PHASES = ["prefill" if number // len(TOKENS) % 5 == 1 else "decode" for number in range(60)]


@pytest.fixture(scope="module")
def table() -> IterationTable:
    return iteration_table(run(PHASES))


def chosen(result: SelectionResult) -> dict[str, float]:
    """Return the weights of the points of each phase."""
    weights: dict[str, float] = {}
    for point in result.to_dict()["points"]:
        weights[point["phase"]] = weights.get(point["phase"], 0.0) + point["weight"]
    return weights


def test_few_points_of_each_phase_know_a_total_that_points_of_all_do_not(table: IterationTable) -> None:
    options = SelectOptions(max_points=6, tolerance=0.0)
    result, without = select_by_phase(table, options), select_by_phase(replace(table, phases=()), options)
    assert result.error < 0.005 < 0.02 and result.cross_validated_error is not None
    assert result.cross_validated_error < 0.02 < 0.1 < (without.cross_validated_error or 0.0)
    assert chosen(result) == {"prefill": 12, "decode": 48} and not len(result.outliers)
    # The next run computes more prompts a second: points that stand for both phases do not tell.
    faster = iteration_table(run(PHASES, {"prefill": 0.1}))
    measured = float(faster.statistic("kernel_time").sum())
    time = faster.statistic("kernel_time")
    errors = [abs(float(each.weights @ time[each.rows]) / measured - 1) for each in (result, without)]
    assert errors[0] < 0.02 and errors[0] < errors[1] / 5


@pytest.mark.parametrize("selector", ["seqpoint", "stratified", "k-medoids", "random", "seqpoint, assisted"])
def test_no_selector_lets_a_phase_stand_for_another(selector: str) -> None:
    phases = ["mixed" if number % 10 == 7 else phase for number, phase in enumerate(PHASES)]
    features = ("kv_tokens",) if selector in ("stratified", "k-medoids") else ()
    several = iteration_table(run(phases))
    result = select_by_phase(several, SelectOptions(max_points=12, selector=selector, features=features))
    assert chosen(result) == pytest.approx({phase: phases.count(phase) for phase in set(phases)})
    assert result.estimate.low <= result.measured <= result.estimate.high
    own = [sum(row.phases[0] == phase for row in [several.take(np.array([i])) for i in result.rows]) for phase in COST]
    assert min(own) >= 1 and sum(own) <= 12 + len(COST)


def test_a_phase_whose_statistic_is_zero_adds_nothing(table: IterationTable) -> None:
    zero = np.where(np.array(table.phases) == "decode", 0.0, table.statistic("kernel_time"))
    result = select_by_phase(replace(table, statistics={"duration": zero}), SelectOptions(max_points=4))
    assert chosen(result) == {"prefill": 12} and result.error < 0.05


def test_outliers_are_those_of_their_phase(table: IterationTable) -> None:
    time = table.statistic("kernel_time").copy()
    time[9] *= 8  # a prefill that takes as long as a decode
    result = select_by_phase(replace(table, statistics={"duration": time}))
    assert result.outliers.rows.tolist() == [9]
    assert result.to_dict()["outliers"][0]["phase"] == "prefill"


def test_another_run_is_estimated_by_phase(table: IterationTable) -> None:
    chosen, slower = (
        select_by_phase(table, SelectOptions(max_points=12)),
        iteration_table(run(PHASES, {"prefill": 2.0})),
    )
    result = estimate_by_phase(chosen.to_dict(), (table, slower))
    assert result.measured == pytest.approx(slower.statistic("kernel_time").sum())
    assert result.error is not None and result.error < 0.001 and result.low < result.estimate < result.high
    # A file of a selection has no phases; a single point for all phases is taken as it is.
    plain = [{key: value for key, value in point.items() if key != "phase"} for point in chosen.to_dict()["points"]]
    assert estimate_by_phase(chosen.to_dict() | {"points": plain}, (table, slower)) == result
    median = select_by_phase(table, SelectOptions(selector="median")).to_dict()
    assert estimate_by_phase(median, (table, slower)) == estimate_run(median, (table, slower))
    with pytest.raises(InvalidInputError, match="lacks the chosen iterations"):
        estimate_by_phase(chosen.to_dict(), (table, slower.take(np.arange(20))))


def test_iterations_and_points_show_their_phase(tmp_path: Path) -> None:
    save_trace(run(PHASES), tmp_path / "serving.trace")

    def printed(*arguments: str) -> str:
        done = CliRunner().invoke(cli, [*arguments, str(tmp_path / "serving.trace")], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        return done.stdout

    rows = json.loads(printed("iterations", "--json"))["iterations"]
    assert [row["phase"] for row in rows] == PHASES
    assert rows[4]["kv_tokens"] == TOKENS[4] * 540
    assert " phase " in printed("iterations").splitlines()[1]
    points = json.loads(printed("select", "--json"))["points"]
    assert {point["phase"] for point in points} == {"prefill", "decode"}
    assert "length  phase    weight" in printed("select")


def test_an_iteration_of_steps_of_both_phases_is_mixed_and_one_of_none_has_none() -> None:
    first, second, third = step(0, "decode"), step(1, "prefill"), replace(step(2, "decode"), requests=None)
    trace = write_trace(SyntheticJob("", "1", [first, second, third], 1, "Half", 2), find_device("H100"))
    assert iteration_table(trace).phases == ("decode", "prefill", "")
    rank, start, duration = (integers(trace.iterations, name) for name in ("rank", "start_ns", "dur_ns"))
    whole = rank[:1], start[:1], np.array([duration.sum()])
    phases, kv_tokens = _serving_phases(trace, whole)
    assert (phases, kv_tokens.tolist()) == (("mixed",), [16 * 500 + 24])
    assert _serving_phases(trace, (rank[2:], start[2:], duration[2:]))[0] == ()


def test_the_documentation_shows_what_is_printed(tmp_path: Path) -> None:
    save_trace(run(PHASES), tmp_path / "engine.trace")
    ((command, lines),) = [each for each in console(ROOT / "docs" / "selection.md") if "engine.trace" in each[0]]
    arguments = command.replace("engine.trace", str(tmp_path / "engine.trace")).split()[1:]
    printed = " ".join(CliRunner().invoke(cli, arguments, env={"COLUMNS": "80"}).stdout.split())
    assert all(" ".join(line.split()) in printed for line in lines), printed
