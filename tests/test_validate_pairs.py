"""Gains of jobs that ran before and after a change, and coverage of the intervals of projections."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs import WhatIf
from seqpoint.cli import cli
from seqpoint.validation.changes import (
    IntervalScore,
    MeasuredChange,
    collective_changes,
    coverage,
    coverage_rows,
    held_out_coverage,
    product_changes,
    score_change,
    serial_graph,
    summaries,
    widening,
)
from seqpoint.validation.job_pairs import JobRun, job_of, named_pairs, read_pairs
from seqpoint.validation.suites import SuiteResult, load_suite, validate
from tests import traces

H100, MI300X = "H100-SXM5-80GB", "MI300X"
SHIPPED = Path(__file__).parents[1] / "datasets" / "measured"


def is_source(path: Path) -> bool:
    """Return whether the suite reads a file."""
    return load_suite("pairs").source(path) is not None


def scored(measured: float, kind: str = "step", case: str = "job") -> IntervalScore:
    """Return a score of 100 ns, with an interval from 80 to 125 ns: the same factor up and down."""
    return IntervalScore(kind, case, "scale_device:X", measured, 100.0, 80.0, 125.0, 90.0)


def halved(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
    return graph.with_tasks(duration_ns=graph.tasks.duration_ns / 2)


def change(measured: list[float]) -> MeasuredChange:
    """Return two groups of kernels of 10 + 20 and 40 us, which a what-if halves; a third kernel does not count."""
    graph = serial_graph(find_device(H100), [10e3, 20e3, 40e3, 5e3], {})
    groups = [np.array([0, 0, 1, -1])]
    return MeasuredChange(
        "kernels", "job", WhatIf("halve", halved), [graph], groups, ["a", "b"], np.array(measured), "total", "by hand"
    )


def test_a_measured_time_is_inside_or_needs_a_wider_interval() -> None:
    assert scored(110.0).inside and scored(110.0).needed < 1
    outside = scored(156.25)  # 1.25 twice: the interval must be twice as wide
    assert not outside.inside and outside.needed == pytest.approx(2.0)
    assert scored(64.0).needed == pytest.approx(2.0)  # 0.8 twice
    assert scored(100.0).width == pytest.approx(125 / 80)


def test_coverage_and_widening_are_of_the_scores_given() -> None:
    scores = [scored(100.0)] * 9 + [scored(156.25)]
    assert coverage(scores) == pytest.approx(0.9)
    assert widening([scored(156.25), scored(156.25)]) == pytest.approx(2.0)


def test_held_out_coverage_widens_by_the_other_jobs_alone() -> None:
    scores = [scored(156.25, case="a"), scored(156.25, case="b"), scored(300.0, case="c")]
    # The other two of a and b need 4.9 and 2, whose 90 % quantile holds them; those of c need 2, which does not hold c.
    assert held_out_coverage(scores) == pytest.approx(2 / 3)


def test_groups_and_totals_of_a_change_are_sums() -> None:
    first, second, total = score_change(change([15e3, 30e3]), load_parameters(), draws=50)
    assert [s.case for s in (first, second, total)] == ["job, a", "job, b", "job"]
    assert [s.projected_ns for s in (first, second, total)] == pytest.approx([15e3, 20e3, 35e3])
    assert [s.before_ns for s in (first, second, total)] == pytest.approx([30e3, 40e3, 70e3])
    assert first.inside and not second.inside and not total.inside
    # Nothing but the error of the replay, 1 % each way, is drawn for a factor that is certain.
    assert first.low_ns == pytest.approx(15e3 * 0.991, rel=2e-3) and first.width == pytest.approx(1.018, rel=5e-3)


def test_rows_count_each_kind_apart_and_have_a_limit_where_there_are_many() -> None:
    scores = [scored(100.0, "many", str(i)) for i in range(25)] + [scored(200.0, "few")]
    lines = {line["kind"]: line for line in summaries(scores)}
    assert (lines["many"]["coverage"], lines["few"]["coverage"]) == (1.0, 0.0)
    assert lines["all"]["intervals"] == 26 and lines["all"]["coverage"] == pytest.approx(25 / 26)
    rows = {row.case: row for row in coverage_rows(scores)}
    assert rows["coverage: many"].met is True and rows["coverage: few"].met is None
    case = scores[-1].row
    assert (case.case, case.low, case.high, case.inside) == ("few: job, scale_device:X", 80.0, 125.0, False)
    assert {"low", "high", "inside"} <= set(case.content()) and "low" not in rows["coverage: all"].content()
    assert coverage_rows([]) == []


@pytest.mark.parametrize(
    ("file", "job", "words"),
    [
        ("t/h100/bert.json.gz", "t/bert.json.gz", {"device": "h100"}),
        ("t/mi300/bert.json.gz", "t/bert.json.gz", {"device": "mi300"}),
        ("x/hta/diff_a100.json.gz", "x/hta/diff.json.gz", {"device": "a100"}),
        ("x/batch_32/rank0.json", "x/rank0.json", {"batch": "batch32"}),
        ("x/b200/gpt_b32.json", "x/gpt.json", {"device": "b200", "batch": "b32"}),
        ("x/y/net_BF16.json", "x/y/net.json", {"data type": "bf16"}),
        ("x/y/rank0.json", "x/y/rank0.json", {}),
    ],
)
def test_a_job_is_its_name_without_the_words_of_a_change(file: str, job: str, words: dict[str, str]) -> None:
    assert job_of(Path(file)) == (job, words)


def runs_of(*names: str) -> list[JobRun]:
    return [JobRun(name, (Path("x") / name,)) for name in names]


def test_names_that_differ_in_one_change_are_a_pair() -> None:
    runs = runs_of("a_h100_b4_fp32", "a_h100_b8_fp32", "a_h100_b4_bf16", "a_mi300_b4_fp32", "other_b4")
    found = {(pair.change, pair.before.name, pair.after.name, pair.what_if) for pair in named_pairs(runs)}
    assert found == {
        ("batch", "a_h100_b4_fp32", "a_h100_b8_fp32", "micro_batch:8"),
        ("data type", "a_h100_b4_fp32", "a_h100_b4_bf16", ""),
        ("device", "a_h100_b4_fp32", "a_mi300_b4_fp32", ""),
        ("device", "a_mi300_b4_fp32", "a_h100_b4_fp32", ""),
    }
    lengths = named_pairs(runs_of("g_n512", "g_n1024", "g"))
    assert [(pair.what_if, pair.case) for pair in lengths] == [("sequence_length:1024", "g_n512 -> g_n1024")]


def test_products_are_grouped_by_rows_and_the_fastest_library_counts(tmp_path: Path) -> None:
    rows = [
        ("a100_sxm", "bfloat16", 512, 40.0), ("a100_sxm", "bfloat16", 512, 50.0), ("a100_sxm", "bfloat16", 768, 60.0),
        ("h100_sxm", "bfloat16", 512, 15.0), ("h100_sxm", "bfloat16", 768, 25.0), ("h100_sxm", "fp8", 512, 9.0),
    ]  # fmt: skip
    columns = list(zip(*rows, strict=True))
    names = ("system", "dtype", "m_elements", "latency_us")
    table = {name: pa.array(list(column)) for name, column in zip(names, columns, strict=True)}
    table |= {name: pa.array([4096] * len(rows)) for name in ("n_elements", "k_elements")}
    pq.write_table(pa.table(table), tmp_path / "products.parquet")
    changes = {(c.what_if.name, c.names[0]): c for c in product_changes(tmp_path / "products.parquet")}
    moved = changes[f"scale_device:{H100}", "products of 512 to 1023 rows in bf16"]
    assert moved.times_ns(moved.graphs) == pytest.approx([100e3]) and moved.measured_ns == pytest.approx([40e3])
    typed = changes["change_dtype:bf16->fp8", "products of 512 to 1023 rows in bf16"]
    assert typed.times_ns(typed.graphs) == pytest.approx([15e3]) and typed.measured_ns == pytest.approx([9e3])
    assert set(changes) == {
        (f"scale_device:{H100}", "products of 512 to 1023 rows in bf16"),
        ("scale_device:A100-SXM4-80GB", "products of 512 to 1023 rows in bf16"),
        ("change_dtype:bf16->fp8", "products of 512 to 1023 rows in bf16"),
        ("change_dtype:fp8->bf16", "products of 512 to 1023 rows in fp8"),
    }


def test_collectives_keep_their_bytes_and_change_their_ranks(tmp_path: Path) -> None:
    table = pa.table(
        {
            "system": ["a100_sxm"] * 4,
            "implementation": ["NCCL"] * 3 + ["custom"],
            "dtype": ["half"] * 4,
            "collective": ["all_reduce"] * 4,
            "ranks_count": [2, 4, 4, 8],
            "message_bytes": [2**24, 2**24, 2**10, 2**24],
            "time_us": [100.0, 150.0, 9.0, 1.0],
        }
    )
    pq.write_table(table, tmp_path / "collectives.parquet")
    changes = list(collective_changes(tmp_path / "collectives.parquet"))
    assert [(c.what_if.name, c.measured_ns.tolist()) for c in changes] == [
        ("change_world_size:4", [150e3]), ("change_world_size:2", [100e3]),
    ]  # fmt: skip
    assert changes[0].graphs[0].tasks.bytes.tolist() == [2**24] and changes[0].graphs[0].tasks.ranks.tolist() == [2]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a job on an A100, and on an H100 that takes half the time for each kernel."""
    folder = tmp_path_factory.mktemp("pair")
    for name, device, factor in (("a100", "NVIDIA A100-SXM4-80GB", 1.0), ("h100", "NVIDIA H100 80GB HBM3", 0.5)):
        (folder / name).mkdir()
        document = json.loads(traces.write_trace(folder / name / "job.json", 3).read_text())
        document["deviceProperties"][0]["name"] = device
        # Without the collective, the kernels run one after another: 200, 100 and 400 us a step.
        document["traceEvents"] = [event for event in document["traceEvents"] if "nccl" not in event["name"]]
        for event in document["traceEvents"]:
            if event["cat"] == "kernel":
                event["dur"] *= factor
        (folder / name / "job.json").write_text(json.dumps(document))
    return folder


def test_two_traces_of_a_job_are_a_pair_in_both_directions(pair: Path) -> None:
    shown = CliRunner().invoke(cli, ["validate", "pairs", str(pair), "--json"])
    assert shown.exit_code == 0, shown.exception
    content = json.loads(shown.stdout)
    kernels = [score for score in content["scores"] if score["kind"] == "kernel time of a step"]
    assert [(score["before_ns"], score["measured_ns"]) for score in kernels] == [(2.1e6, 1.05e6), (1.05e6, 2.1e6)]
    assert [gain["what_if"] for gain in content["pairs"]] == [f"scale_device:{H100}", "scale_device:A100-SXM4-80GB"]
    assert {line["kind"] for line in content["coverage"]} >= {"gain, device", "kernel time of a class", "all"}
    table = CliRunner().invoke(cli, ["validate", "pairs", str(pair)])
    assert "Gains: the step before a change over that after" in table.output
    assert "Coverage of 90 % intervals" in table.output


def test_a_trace_without_a_partner_is_named(pair: Path, tmp_path: Path) -> None:
    shutil.copytree(pair, tmp_path / "jobs")
    (tmp_path / "jobs" / "a100" / "job.json").rename(tmp_path / "jobs" / "a100" / "other.json")
    shown = CliRunner().invoke(cli, ["validate", "pairs", str(tmp_path / "jobs"), "--json"])
    assert shown.exception is not None and "traces without a partner: a100/other, h100/job" in str(shown.exception)


def write_steps(path: Path, gap: float, length: float, kernels: bool, steps: int = 3, warm_up: float = 0) -> None:
    """Write steps of ten launches, `gap` us apart, of kernels that take `length` us and wait for nothing else.

    The first step begins with a pause of `warm_up` us.
    """
    events = []
    for step in range(steps):
        begin = 10 * gap * step + (warm_up if step else 0)
        more = 0 if step else warm_up
        events.append(traces.event(f"ProfilerStep#{step}", "user_annotation", begin, 10 * gap + more))
        begin += more
        for number in range(10):
            at, link = begin + gap * number, 10 * step + number + 1
            events.append(traces.event("aten::mm", "cpu_op", at, 0.9 * gap))
            events.append(traces.launch(at + 1, link))
            events += [traces.kernel("gemm", at + 8, length, link)] if kernels else []
    path.write_text(json.dumps(traces.kineto(events)))


@pytest.fixture
def recording(tmp_path: Path) -> Callable[..., SuiteResult]:
    """Return what records runs `a` (a launch each 100 us, kernels of 10 us) and `b`, and scores their pair."""

    def scored(
        what_if: str,
        times: dict[str, int],
        gap: float = 100,
        length: float = 10,
        *,
        kernels: bool = True,
        columns: Any = None,
    ) -> SuiteResult:
        (tmp_path / "traces").mkdir(exist_ok=True)
        for name, shape in (("a", (100.0, 10.0)), ("b", (gap, length))):
            write_steps(tmp_path / "traces" / f"{name}.json", *shape, kernels)
            (tmp_path / "traces" / f"{name}.json").rename(tmp_path / "traces" / f"pair_{name}.pt.trace.json.gz")
        rows = [{"group": "g", "run": run, "measure": "step", "duration_ns": ns} for run, ns in times.items()]
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "runs.parquet")
        named = {"group": ["g"], "before": ["a"], "after": ["b"], "what_if": [what_if]} | (columns or {})
        pq.write_table(pa.table(named), tmp_path / "pairs.parquet")
        return validate("pairs", [tmp_path], {}).results["pairs"]

    return scored


def gain_of(result: SuiteResult) -> dict[str, Any]:
    pairs: Any = result.details["pairs"]
    (gain,) = pairs
    return dict(gain)


def test_a_gain_is_measured_without_a_profiler_and_predicted_from_the_trace_before(recording: Any) -> None:
    result = recording("scale_host:0.5", {"a": 900_000, "b": 500_000}, gap=50)
    gain = gain_of(result)
    assert (gain["measured"], gain["traced"]) == (pytest.approx(1.8), pytest.approx(2, rel=0.02))
    assert gain["predicted"] == pytest.approx(2, rel=0.02) and gain["error"] == pytest.approx(0.11, abs=0.02)
    assert gain["cause"] == "the recording: as traced, the gain is 2.00"
    (row,) = [row for row in result.rows if row.reference is not None]
    assert (row.case, row.source) == ("g: a -> b, scale_host:0.5", "without a profiler")
    assert row.reference == pytest.approx(1.8) and row.ours == gain["predicted"]


def test_the_warm_up_is_no_part_of_a_gain(tmp_path: Path) -> None:
    for name, gap, warm_up in (("b4", 100.0, 0.0), ("b8", 110.0, 50_000.0)):
        write_steps(tmp_path / f"job_{name}.json", gap, 10, True, 9, warm_up)
    (gain,) = json.loads(CliRunner().invoke(cli, ["validate", "pairs", str(tmp_path), "--json"]).stdout)["pairs"]
    assert gain["traced"] == pytest.approx(100 / 110, rel=0.01), "a mean over all steps would say 0.16"


def test_without_times_the_gain_is_that_between_the_traces(recording: Any) -> None:
    gain = gain_of(recording("scale_host:2", {}, gap=200))
    assert gain["measured"] is None and gain["traced"] == pytest.approx(0.5, rel=0.02) and gain["inside"]


def test_an_error_has_a_cause_that_takes_it_away(recording: Any) -> None:
    gain = gain_of(recording("scale_kernels:all:0.5", {}, gap=200, length=5))
    assert gain["predicted"] == pytest.approx(1, rel=0.02) and not gain["inside"]
    assert gain["cause"].startswith(
        "the host of the trace works 2.00 times as long (10 -> 10 kernels); with that, the gain as traced (0.50)"
    )
    longer = gain_of(recording("scale_host:0.1", {}, gap=100, length=95))
    assert longer["cause"].startswith("kernels take 9.50 times as long as predicted; with that")


def test_a_what_if_that_does_not_apply_says_why_and_is_not_scored(recording: Any) -> None:
    result = recording("change_dtype:fp8->bf16", {"a": 10, "b": 10})
    gain = gain_of(result)
    assert gain["predicted"] is None and "changes no task" in gain["reason"] and not result.rows
    assert "Not predicted" in [table.title for table in result.tables if not isinstance(table, str)]
    assert "no what-if is called 'nonsense'" in gain_of(recording("nonsense", {}))["reason"]
    assert "a plan has several what-ifs" in gain_of(recording("@/etc/hostname", {}))["reason"]


def test_a_bound_is_held_to_be_no_less_than_the_gain(recording: Any) -> None:
    gain = gain_of(recording("bound:host", {"a": 1000, "b": 1000}))
    assert gain["predicted"] >= 1 and gain["error"] == 0 and gain["inside"]
    over = gain_of(recording("bound:kernels", {"a": 3000, "b": 1000}))
    assert over["predicted"] == pytest.approx(1, abs=0.02) and over["error"] == pytest.approx(2, abs=0.05)
    assert gain_of(recording("bound:nothing", {}))["reason"] == "the trace has no nothing that takes time"


def test_a_step_of_serving_is_predicted_from_the_model(recording: Any) -> None:
    what_if = "predict:decode:2x4096x32x32000:1x512->64x512"
    gain = gain_of(recording(what_if, {"a": 1000, "b": 1200}))
    assert gain["measured"] == pytest.approx(1000 / 1200)
    # Weights of 5 GB are read once for one and for 64 sequences, whose caches are 1.1 GB.
    assert 0.4 < gain["predicted"] < 1 and gain["low"] is None and gain["inside"] is None
    assert "not PHASE:MODEL" in gain_of(recording("predict:decode:2x", {}))["reason"]


def test_a_run_and_its_trace_tell_what_the_recording_costs(recording: Any) -> None:
    gain = gain_of(recording("recording", {"a": 900_000}))
    assert (
        gain["measured"] == pytest.approx(0.9, abs=0.02) and 0 < gain["low"] <= gain["predicted"] <= gain["high"] <= 1
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"before": ["../a"]}, r"pairs.parquet: row 1: '../a' is no name of a run"),
        ({"before": [".."]}, r"row 1: '..' is no name of a run"),
        ({"after": ["b\x00"]}, r"row 1: 'b.x00' is no name of a run"),
        ({"after": ["b" * 5000]}, r"row 1: after has more than 200 characters"),
        ({"after": ["a"]}, r"row 1: 'a' is both before and after"),
        ({"what_if": [""]}, r"row 1: what_if is missing"),
        ({"after": pa.nulls(1, pa.string())}, r"pairs.parquet: row 1: after is missing"),
        ({"group": [[1]]}, r"pairs.parquet: no table of pairs of a recording"),
    ],
)
def test_a_damaged_table_is_named_with_its_row(recording: Any, columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        recording("nothing", {}, columns=columns)


def test_files_of_these_names_that_cannot_be_read_are_said(recording: Any, tmp_path: Path) -> None:
    recording("scale_host:0.5", {"a": 3, "b": 2})
    for name in ("runs", "pairs"):
        kept = (tmp_path / f"{name}.parquet").read_bytes()
        for content in (b"garbage", b""):
            (tmp_path / f"{name}.parquet").write_bytes(content)
            said = rf"{name}\.parquet: no table of {name} of a recording"
            if name == "pairs":  # without its names there is no pair
                with pytest.raises(InvalidInputError, match=said):
                    validate("pairs", [tmp_path], {})
            else:
                (skipped,) = validate("pairs", [tmp_path], {}).results["pairs"].skipped
                assert re.search(said, str(skipped))
        (tmp_path / f"{name}.parquet").write_bytes(kept)
    with pytest.raises(NotFoundError, match="no such file or folder"):
        validate("pairs", [tmp_path / "nowhere.json"], {})


def test_a_damaged_trace_is_named_and_a_pair_counts_once(recording: Any, tmp_path: Path) -> None:
    twice = {"group": ["g"] * 2, "before": ["a"] * 2, "after": ["b"] * 2, "what_if": ["scale_host:0.5"] * 2}
    assert gain_of(recording("", {"a": 3, "b": 2}, columns=twice))["measured"] == pytest.approx(1.5)
    path = tmp_path / "traces" / "pair_b.pt.trace.json.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    notes = validate("pairs", [tmp_path], {}).results["pairs"].notes
    assert any("pair_b.pt.trace.json.gz: truncated_files 1" in note for note in notes)


def test_a_trace_without_a_device_says_so(recording: Any) -> None:
    gain = gain_of(recording("scale_kernels:all:0.5", {"a": 3, "b": 2}, kernels=False))
    assert gain["reason"] == "the trace has no kernels of a device"


def test_times_below_a_nanosecond_and_files_that_are_no_tables_are_refused(recording: Any, tmp_path: Path) -> None:
    (skipped,) = recording("nothing", {"a": 1, "b": 0}).skipped
    assert str(skipped).endswith("runs.parquet: row 2: duration_ns is 0, below 1")
    (tmp_path / "steps.parquet").write_bytes(b"PAR1 and nothing else")
    pairs, alone = read_pairs([])
    assert (pairs, alone) == ([], [])


def test_the_project_ships_pairs_whose_recording_costs_what_the_parameters_say() -> None:
    pairs, alone = read_pairs([path for path in sorted(SHIPPED.rglob("*")) if path.is_file() and is_source(path)])
    kinds = [pair.change for pair in pairs]
    assert (kinds.count("device"), kinds.count("data type"), kinds.count("recording")) == (18, 6, 16)
    assert kinds.count("data type, epoch") == 4 and not alone
    bert = next(pair for pair in pairs if pair.case == "h100/bert_n128_b4_fp32 -> h100/bert_n128_b4_bf16")
    assert bert.before.step_ns == {128: pytest.approx(35_286_592.5)}, "the median of steps.parquet, by hand"


def test_an_interval_is_wider_if_its_parameters_are_less_certain() -> None:
    sure = load_parameters()
    name = "replay_error"
    unsure = replace(sure, known={**sure.known, name: replace(sure.known[name], low=-0.1, high=0.1)})
    widths = [score_change(change([15e3, 30e3]), each, draws=50)[0].width for each in (sure, unsure)]
    assert widths[1] > 5 * (widths[0] - 1) + 1
