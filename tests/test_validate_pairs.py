"""Coverage of the intervals of projections, on measurements before and after a change."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from profilers.devices.catalogue import find_device
from profilers.errors import NotFoundError
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.graph.graph import KernelGraph
from replay.what_ifs import WhatIf
from seqpoint.cli import cli
from seqpoint.validation.intervals import (
    IntervalScore,
    coverage,
    held_out_coverage,
    interval_rows,
    score_change,
    summaries,
    widening,
)
from seqpoint.validation.pairs import MeasuredChange, collective_changes, job_of, product_changes, serial_graph
from tests import traces

H100, MI300X = "H100-SXM5-80GB", "MI300X"


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
    rows = {row.case: row for row in interval_rows(scores)}
    assert rows["coverage: many"].met is True and rows["coverage: few"].met is None
    case = rows["few: job, scale_device:X"]
    assert (case.low, case.high, case.inside) == (80.0, 125.0, False)
    assert {"low", "high", "inside"} <= set(case.content()) and "low" not in rows["coverage: all"].content()


@pytest.mark.parametrize(
    ("file", "job", "device"),
    [
        ("t/h100/bert.json.gz", "t/bert.json.gz", "h100"),
        ("t/mi300/bert.json.gz", "t/bert.json.gz", "mi300"),
        ("x/hta/diff_a100.json.gz", "x/hta/diff.json.gz", "a100"),
        ("x/batch_32/rank0.json", "x/batch_32/rank0.json", ""),
    ],
)
def test_a_job_is_its_name_without_the_device(file: str, job: str, device: str) -> None:
    assert job_of(Path(file)) == (job, device)


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
    shown = CliRunner().invoke(cli, ["validate", "intervals", str(pair), "--json"])
    assert shown.exit_code == 0, shown.exception
    content = json.loads(shown.stdout)
    kernels = [score for score in content["scores"] if score["kind"] == "kernel time of a step"]
    assert [(score["before_ns"], score["measured_ns"]) for score in kernels] == [(2.1e6, 1.05e6), (1.05e6, 2.1e6)]
    assert sum(score["kind"] == "step time" for score in content["scores"]) == 2
    assert {line["kind"] for line in content["coverage"]} >= {"step time", "kernel time of a class", "all"}
    table = CliRunner().invoke(cli, ["validate", "intervals", str(pair)])
    assert "Coverage of 90 % intervals" in table.output


def test_a_trace_without_a_second_device_is_named(pair: Path, tmp_path: Path) -> None:
    shutil.copytree(pair, tmp_path / "jobs")
    (tmp_path / "jobs" / "a100" / "job.json").rename(tmp_path / "jobs" / "a100" / "other.json")
    shown = CliRunner().invoke(cli, ["validate", "intervals", str(tmp_path / "jobs"), "--json"])
    assert shown.exception is not None and "no second device of other.json, job.json" in str(shown.exception)


def test_the_project_ships_no_pair() -> None:
    shown = CliRunner().invoke(cli, ["validate", "intervals"])
    assert isinstance(shown.exception, NotFoundError)
    assert str(shown.exception).startswith("the project ships no pair of measurements")


def test_an_interval_is_wider_if_its_parameters_are_less_certain() -> None:
    sure = load_parameters()
    name = "replay_error"
    unsure = replace(sure, known={**sure.known, name: replace(sure.known[name], low=-0.1, high=0.1)})
    widths = [score_change(change([15e3, 30e3]), each, draws=50)[0].width for each in (sure, unsure)]
    assert widths[1] > 5 * (widths[0] - 1) + 1
