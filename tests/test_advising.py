"""Advice on traces: the first action is what limits the step, gains are those of `project`, and it fits a screen."""

import csv
import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner
from traces import event, kernel, kineto, launch, write_trace

import seqpoint as sp
from profilers.errors import InvalidInputError
from profilers.trace.quality import Quality
from profilers.trace.store import save_trace
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.graph.edit import LIMITING
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf, parse_what_if
from seqpoint import advising
from seqpoint.actions import WORTH, actions
from seqpoint.advising import WIDTH, TraceAdvice, _best_pair, advise_trace
from seqpoint.breakdown import frame_of
from seqpoint.cli import cli
from seqpoint.notebook import without_middle
from seqpoint.projecting import ProjectOptions, TraceProjection, TraceWindows, project_trace

HALF = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn"
SHARED = Path(__file__).parents[2] / "shared"
SMALL = sp.Transformer("small", "megatron", 4, 256, 4, 1024, 1024)
WIDE = sp.Transformer("wide", "megatron", 2, 4096, 32, 16384, 1024)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals from a quarter of the draws: what is tested here is what they lead to."""
    monkeypatch.setattr(advising, "_DRAWS", 8)
    monkeypatch.setattr(advising, "_SEARCH_DRAWS", 4)


@pytest.fixture(scope="module")
def host_bound() -> Trace:
    """A job of tiny kernels on a fast device."""
    return sp.synthesize(sp.TrainingJob(SMALL, 64, 1, 1), "H100-SXM5-80GB", steps=2)


@pytest.fixture(scope="module")
def communicating() -> Trace:
    """A job of large layers that wait for the all-reduce of each."""
    return sp.synthesize(sp.TrainingJob(WIDE, 1024, 4, 4, sp.Layout(tensor=4)), "A100-SXM4-80GB", steps=2)


@pytest.fixture(scope="module")
def computing() -> Trace:
    """A job of large layers in FP32."""
    return sp.synthesize(sp.TrainingJob(WIDE, 1024, 4, 4, precision="fp32"), "A100-SXM4-80GB", steps=2)


def check_shape(advice: TraceAdvice) -> None:
    """Check that an answer fits a screen and 8 kB, and that its gains multiply up."""
    lines = advice.summary()
    assert len(lines) <= 25 and all(len(line) <= WIDTH or line.startswith("More on ") for line in lines)
    assert len(json.dumps(advice.to_dict())) <= 8192
    assert math.prod(each.gain for each in advice.actions) == pytest.approx(
        advice.actions[-1].speedup if advice.actions else 1.0
    )
    for each in advice.actions:
        assert each.low <= each.speedup <= each.high and sum(each.evidence.values()) == pytest.approx(1.0)
    assert all(each.gain < WORTH or each.reason.endswith((", may lose", " alone")) for each in advice.not_worth)


def test_launches_come_first_where_the_host_is_slow(host_bound: Trace) -> None:
    advice = sp.advise(host_bound)
    check_shape(advice)
    assert advice.verdict.startswith("host-bound: ")
    assert advice.actions[0].what_if == "remove_launch_overhead" and advice.actions[0].gain > 1.2
    assert any("Launch" in name for name in advice.actions[0].where)


def test_communication_comes_first_where_the_devices_wait_for_it(communicating: Trace) -> None:
    advice = sp.advise(communicating)
    check_shape(advice)
    assert advice.actions[0].what_if == "overlap:ideal"
    assert "change_dtype:fp32->bf16" in {each.what_if for each in advice.not_worth}


def test_smaller_types_come_first_where_products_in_fp32_take_the_time(computing: Trace) -> None:
    advice = sp.advise(computing)
    check_shape(advice)
    share = re.match(r"GPU-bound: kernels take (\d+) % of the critical path of .*? \(gemm (\d+) %", advice.verdict)
    assert share and int(share[1]) >= int(share[2])
    assert advice.actions[0].what_if in ("change_dtype:fp32->tf32", "change_dtype:fp32->bf16")
    assert not any("collectives" in each.what_if for each in advice.not_worth)  # the job has none


def test_a_gain_is_what_project_says_of_the_named_what_if(host_bound: Trace) -> None:
    advice = sp.advise(host_bound)
    again = sp.project(host_bound, [each.what_if for each in advice.actions], max_points=2, draws=advising._DRAWS)
    for ours, row in zip(advice.actions, again.rows, strict=True):
        assert (ours.speedup, ours.low, ours.high) == (row.speedup, row.low, row.high)


@pytest.mark.parametrize(
    ("files", "verdict", "gain", "worthless"),
    [
        ("hta/trace_diff_a100.json.gz", "host-bound, as far as 1 of ", (1.15, 1.3), "pinned or fewer copies"),
        (
            "ddp4/mi300_4ranks_merged.json.gz",
            "rank 3 has 100 % of the critical path",
            (1.9, 2.3),
            "links twice as fast",
        ),
    ],
)
def test_real_jobs_whose_limit_is_known(files: str, verdict: str, gain: tuple[float, float], worthless: str) -> None:
    path = SHARED / "data" / "traces" / "kineto" / files
    if not path.exists():
        pytest.skip("no shared traces beside the project")
    advice = sp.advise(path)
    check_shape(advice)
    assert verdict in advice.verdict and advice.actions[0].what_if == "remove_launch_overhead"
    assert gain[0] < advice.actions[0].gain < gain[1]
    assert advice.stragglers == (f"seqpoint analyze {path} --stragglers" if "rank 3" in verdict else "")
    assert worthless in {each.action for each in advice.not_worth}


def test_what_names_a_way_comes_before_what_asks_for_something_faster(communicating: Trace) -> None:
    asks = [each.what_if.split("+")[-1].startswith("scale_") for each in sp.advise(communicating).actions]
    assert asks == sorted(asks) and asks[-1]


def test_the_search_ends_with_what_it_has_when_its_time_is_over(communicating: Trace) -> None:
    advice = advise_trace(communicating, minutes=1e-6)
    assert len(advice.actions) == 1 and "the search ended after 1e-06 minutes" in advice.against[-1]


def test_the_command_and_a_trace_without_one_say_the_same(host_bound: Trace, tmp_path: Path) -> None:
    save_trace(host_bound, tmp_path / "a job.trace")
    path = str(tmp_path / "a job.trace")
    said = [CliRunner().invoke(cli, arguments) for arguments in (["advise", path], [path])]
    assert said[0].exit_code == 0 and said[0].stdout == said[1].stdout
    assert f"More on 1: seqpoint project '{path}' -n 2 -w 'remove_launch_overhead'" in said[0].stdout
    content = json.loads(CliRunner().invoke(cli, [path, "--json"]).stdout)
    assert (
        content["rows"][0]["what_if"] == "remove_launch_overhead"
        and content["command"] == f"seqpoint project '{path}' -n 2"
    )


def test_what_cannot_be_advised_on_is_one_line(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["advise", str(tmp_path / "none.json")])
    assert found.exit_code == 1 and "none.json" in str(found.exception)
    assert CliRunner().invoke(cli, ["nothing"]).exit_code == 2
    missing = CliRunner().invoke(cli, ["nothing.json"])
    assert missing.exit_code == 1 and "nothing.json: cannot be read" in str(missing.exception)
    few = CliRunner().invoke(cli, ["advise", str(write_trace(tmp_path / "t.json")), "--minutes", "0"])
    assert few.exit_code == 2
    with pytest.raises(InvalidInputError, match="minutes is nan"):
        sp.advise(tmp_path / "t.json", minutes=math.nan)


def test_a_trace_without_work_on_a_gpu_gets_no_advice(tmp_path: Path) -> None:
    step = {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100, "pid": 1, "tid": 1, "ph": "X"}
    call = {"cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 80, "pid": 1, "tid": 1, "ph": "X"}
    (tmp_path / "host.json").write_text(json.dumps({"traceEvents": [step, call]}))
    advice = sp.advise(tmp_path / "host.json")
    assert advice.verdict.startswith("The trace has no work on a GPU") and not advice.actions and not advice.not_worth


def test_what_a_reader_lost_stands_against_the_answer(host_bound: Trace) -> None:
    damaged = replace(host_bound, meta=replace(host_bound.meta, quality=Quality({"truncated_files": 1})))
    assert damaged.warnings and sp.advise(damaged).against[0].startswith(damaged.warnings[0].meaning)


def test_every_action_is_a_what_if_of_one_line() -> None:
    for action in actions():
        assert parse_what_if(action.what_if).name.startswith(action.what_if)
        assert action.resource in LIMITING and action.takes in ("flag", "code", "library", "hardware")
        assert len(f"1. 1.00 -> 1.00 (1.00 - 1.00)  {action.text}") <= WIDTH


def test_windows_are_replayed_once_for_the_same_what_ifs(host_bound: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    what_ifs = [parse_what_if(text) for text in ("scale_host:0.5", "remove_launch_overhead", "scale_host:0.5")]
    options, drawn = ProjectOptions(max_points=2, draws=6), StepWindow.drawn
    isolated: list[Parameters] = []
    windows = TraceWindows.of(host_bound, options)
    windows.project(what_ifs[:1], draws=4)  # an earlier projection of some of them, with fewer draws

    def counted(self: StepWindow, given: Parameters) -> StepWindow:
        isolated.append(given)
        return drawn(self, given)

    monkeypatch.setattr(StepWindow, "drawn", counted)
    again = windows.project(what_ifs)
    assert len(isolated) == 6 * len(windows.windows)
    assert again.rows == project_trace(host_bound, what_ifs, options).rows
    isolated.clear()
    assert windows.project(what_ifs, draws=6).rows == again.rows and isolated == []


def test_long_names_keep_both_ends() -> None:
    assert without_middle("abc", 8) == "abc" and without_middle("abcdefghijkl", 8) == "abcd..kl"


def test_advice_shows_itself(computing: Trace) -> None:
    advice = sp.advise(computing)
    assert repr(advice) == "\n".join(advice.summary())
    assert advice.table().what_if.tolist() == [each.what_if for each in advice.actions]
    assert "GPU-bound" in advice._repr_html_()


def half_full(path: Path, kernel_name: str = HALF) -> Trace:
    """Write steps of eight products of one input; each has 64 workgroups for the 108 units of the device."""
    events = []
    for step in range(4):
        begin = step * 2000.0
        wait = launch(begin + 100, 10 * step + 9, "cudaDeviceSynchronize", 1200)
        events += [event(f"ProfilerStep#{step}", "user_annotation", begin, 2000), wait]
        for frame, start, time in (("train.py(7): step", 0, 90), ("torch/nn/modules/linear.py(9): forward", 1, 88)):
            events.append(event(frame, "python_function", begin + start, time))
        for n in range(8):
            shapes = {"Input Dims": [[1024, 8192], [8192, 1024]], "Input type": ["c10::Half", "c10::Half"]}
            events.append(event("aten::mm", "cpu_op", begin + 10 * n + 2, 7, **shapes))
            events.append(launch(begin + 10 * n + 3, 10 * step + n))
            events.append(kernel(kernel_name, begin + 50 + 150 * n, 150, 10 * step + n, grid=[8, 8, 1]))
    path.write_text(json.dumps(kineto(events)))
    return sp.open(path)


def with_a_slow_rank(folder: Path) -> Trace:
    """Write steps of four ranks: six products, which take half as long again on rank 3, and an all-reduce."""
    of_all: dict[str, Any] = {
        "Collective name": "allreduce", "In msg nelems": 10**6, "Out msg nelems": 10**6, "dtype": "Float",
        "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4,
    }  # fmt: skip
    files = [folder / f"rank{rank}.json" for rank in range(4)]
    for rank, file in enumerate(files):
        events, time = list[dict[str, object]](), 1500 if rank == 3 else 1000
        for step in range(4):
            begin, last = step * 10_000.0, 20 * step + 6
            done = begin + 100 + 6 * time
            events.append(event(f"ProfilerStep#{step}", "user_annotation", begin, 9900))
            for n in range(6):
                events += [
                    launch(begin + 10 * n, 20 * step + n),
                    kernel(HALF, begin + 100 + n * time, time, 20 * step + n),
                ]
            events += [launch(begin + 90, last), kernel(NCCL, done, begin + 9160 - done, last, **of_all)]
            events.append(launch(begin + 200, last + 1, "cudaDeviceSynchronize", 9100))
        about = {"backend": "nccl", "rank": rank, "world_size": 4}
        file.write_text(json.dumps(kineto(events, distributedInfo=about)))
    return sp.open(files)


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_products_side_by_side_come_first_where_each_fills_half_of_the_device(tmp_path: Path) -> None:
    advice = sp.advise(half_full(tmp_path / "job.json"))
    check_shape(advice)
    assert advice.actions[0].what_if.startswith("concurrent_gemms") and advice.actions[0].gain > 1.2


def test_a_slow_rank_comes_first_where_the_others_wait_for_it(tmp_path: Path) -> None:
    trace = with_a_slow_rank(tmp_path)
    advice = sp.advise(trace)
    check_shape(advice)
    first = advice.actions[0]
    assert (
        "rank 3 has 100 % of the critical path" in advice.verdict
        and "kernels of rank 3 take 1.50 times" in first.action
    )
    assert first.what_if == "scale_kernels:kernels@rank=3:0.667" and first.gain == pytest.approx(9060 / 6060, rel=0.05)
    assert advice.commands()["1"].endswith(" --stragglers") and f"More on 1: {advice.stragglers}" in advice.summary()
    assert sp.describe(trace).verdict().endswith("`seqpoint analyze --stragglers` shows whom the ranks wait for")
    later = replace(advice, actions=(replace(first, what_if="overlap:ideal"),))
    assert set(later.commands()) == {"1", "slow ranks"} and later.commands()["1"].endswith("-w 'overlap:ideal'")


def test_the_shares_are_of_the_iterations_that_are_named(tmp_path: Path) -> None:
    trace = half_full(tmp_path / "job.json")  # steps of 2000 us with kernels for 1200
    for iterations, named in ((), "iteration 1"), ((1, 2), "iterations 1 and 2"), (range(4), "4 iterations"):
        advice = advise_trace(trace, minutes=1e-6, options=ProjectOptions(iterations=iterations, max_points=2))
        assert f"kernels take 60 % of the critical path of {named} (gemm 60 %); host 40 %" in advice.verdict
        assert "devices busy 60 %" in advice.verdict


def test_large_classes_without_an_action_are_named(tmp_path: Path) -> None:
    products, softmax = (half_full(tmp_path / "job.json", name) for name in (HALF, "softmax_warp_forward"))
    advice = advise_trace(products, minutes=1e-6)  # its only action: products on streams of their own
    assert advice.no_action == {} and "No action for" not in repr(advice)
    assert sp.advise(softmax).no_action == {}  # faster memory
    advice = advise_trace(softmax, minutes=1e-6)  # without the launches
    assert advice.no_action == {"softmax": pytest.approx(0.6, abs=0.01)}
    assert "No action for: softmax 60 % of the critical path" in advice.summary()
    assert "softmax 60 %" in advice.markdown() and advice.to_dict()["no_action"] == advice.no_action


def test_an_action_names_the_python_function_of_the_user(tmp_path: Path) -> None:
    trace = half_full(tmp_path / "job.json")
    assert frame_of(trace, [HALF]) == frame_of(trace, ["cudaLaunchKernel"]) == "train.py(7): step"
    assert frame_of(trace, ["no such kernel"]) == ""
    launches = next(each for each in sp.advise(trace).actions if "remove_launch_overhead" in each.what_if)
    assert launches.location().startswith("in train.py(7): step; shorter: cudaLaunchKernel")


def test_an_interrupt_leaves_the_best_so_far(computing: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    project, calls = TraceWindows.project, list[int]()

    def interrupted(self: TraceWindows, what_ifs: list[WhatIf], *, draws: int | None = None) -> TraceProjection:
        calls.append(len(what_ifs))
        if len(calls) == 4:  # the base, the first round, its best action; then the second round
            raise KeyboardInterrupt
        return project(self, what_ifs, draws=draws)

    monkeypatch.setattr(TraceWindows, "project", interrupted)
    advice = sp.advise(computing)
    assert len(advice.actions) == 1 and "the search was interrupted: more time may find more" in advice.against


def test_two_actions_that_gain_only_together_are_found() -> None:
    alone = {action: action for action in actions() if action.says_how}
    names = {action: action.what_if for action in alone}
    wanted = {"remove_launch_overhead", "fuse:elementwise"}

    class Windows:
        def project(self, what_ifs: list[WhatIf], *, draws: int) -> SimpleNamespace:
            rows = [SimpleNamespace(applied=True, speedup=1.0 + 0.3 * (set(each.steps) == wanted)) for each in what_ifs]
            return SimpleNamespace(rows=rows)

    pair = _best_pair(cast(TraceWindows, Windows()), [], cast(Any, alone))
    assert {names[action] for action in pair} == wanted and len({action.resource for action in pair}) == 2


def test_the_error_of_a_kind_of_gain_is_that_of_the_measured_pairs() -> None:
    with (Path(__file__).parent / "accuracy" / "pairs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["change"] == "data type"]
    errors = [abs(float(row["predicted"]) / float(row["measured"] or row["traced"]) - 1) for row in rows]
    told = {action.error for action in actions() if action.what_if.startswith("change_dtype")}
    assert told == {round(float(np.median(errors)), 3)}
    assert all(action.error is None for action in actions() if not action.what_if.startswith("change_dtype"))


def test_the_whole_advice_is_printed_on_demand_and_as_markdown(tmp_path: Path) -> None:
    path = save_trace(half_full(tmp_path / "job.json"), tmp_path / "job.trace")
    run = partial(CliRunner().invoke, cli, catch_exceptions=False)
    brief, whole = (run(["advise", str(path), *more]).stdout for more in ((), ("--all",)))
    assert "..." not in whole and len(whole.splitlines()) >= len(brief.splitlines())
    text = run(["advise", str(path), "--markdown"]).stdout
    advice = sp.advise(path)
    assert text.startswith("## ") and all(f"**{each.action}**: {each.figures}" in text for each in advice.actions)
    assert all(f"- {each.action}: {each.reason}" in text for each in advice.not_worth)


def test_options_on_how_much_is_printed_act_on_advice(tmp_path: Path) -> None:
    path = save_trace(half_full(tmp_path / "job.json"), tmp_path / "job.trace")
    run = partial(CliRunner().invoke, cli, catch_exceptions=False)
    brief, first = (run(["advise", str(path), *more]).stdout for more in ((), ("--top", "1")))
    assert "\n2. " in brief and "\n1. " in first and "\n2. " not in first and "More on 1: " in first
    assert len(json.loads(run(["advise", str(path), "--json", "--top", "1"]).stdout)["rows"]) == 1
    advice = sp.advise(path)
    actions = tuple(replace(each, where=(HALF, HALF)) for each in advice.actions)
    crowded = replace(advice, actions=actions, against=tuple(f"{number} {'word ' * 60}stop" for number in range(9)))
    assert len(crowded.lines()) <= 25 and HALF not in "".join(crowded.lines())
    assert " ".join(crowded.lines(notes=True)).count("stop") == 9
    assert "".join(crowded.lines(wide=True)).count(HALF) == 2 * len(actions)
