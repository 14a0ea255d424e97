"""Busy time and communication of devices: traces of two ranks worked out by hand, and real jobs measured anew."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from traces import event, kernel, kineto, launch, write_trace

from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.activity import (
    COMMUNICATION_KEYS,
    DeviceIntervals,
    DeviceTimes,
    LateRank,
    device_times,
    last_arrivals,
    late_ranks,
    times_in_steps,
)
from profilers.trace.arrays import MISSING, put
from profilers.trace.schema import make_table
from profilers.trace.steps import step_times
from profilers.trace.trace import Trace, TraceMeta
from replay.analysis import exposure, idle_by_cause
from replay.engine.timeline import replay
from replay.graph.edit import with_host_time
from replay.what_ifs import parse_what_if
from seqpoint.cli import cli
from seqpoint.description import describe
from seqpoint.graphs import replay_trace, step_windows
from seqpoint.projecting import project_trace
from seqpoint.reporting.page import ReportSection, summary
from seqpoint.step_analysis import analyze_trace

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
GROUP = {
    "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
    "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2,
}  # fmt: skip


def rank_file(folder: Path, rank: int, begins: float, *work: dict[str, Any], **header: Any) -> Path:
    """Write one step of 1000 us on the host, with an all-reduce that starts at `begins` and ends at 600 us."""
    reduce = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begins, 600 - begins, 9, stream=20, **GROUP)
    marks = [event("ProfilerStep#1", "user_annotation", 0, 1000), launch(begins - 20, 9)]
    about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, **header}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(kineto([*marks, reduce, *work], **about)))
    return path


def two_ranks(folder: Path) -> list[Path]:
    """Write two ranks: the first starts the all-reduce at 250 us and waits until 500 us for the second.

    On the first rank GEMMs run from 100 to 300 us and from 400 to 450 us, on the second one from 100 to 500 us.
    """
    first = [launch(50, 1), launch(60, 2), kernel("sgemm", 100, 200, 1), kernel("sgemm", 400, 50, 2)]
    second = [launch(50, 1), kernel("sgemm", 100, 400, 1)]
    return [rank_file(folder, 0, 250, *first), rank_file(folder, 1, 500, *second)]


#: By hand, in us: busy time, then `COMMUNICATION_KEYS`. The first rank waits from 250 to 500, beside a GEMM for 100 us.
BY_HAND = {0: (500, 350, 250, 100, 100, 250, 150, 100), 1: (500, 100, 0, 100, 0, 100, 0, 100)}


def test_describe_analyze_and_project_agree_with_the_hand_calculation(tmp_path: Path) -> None:
    files = [str(path) for path in two_ranks(tmp_path)]
    out = str(tmp_path / "job.trace")
    CliRunner().invoke(cli, ["ingest", *files, "-o", out], catch_exceptions=False)
    described = printed("describe", out)["devices"]
    analyzed = printed("analyze", out)["before"]["devices"]
    projected = printed("project", out, "-w", "scale_host:1", "--draws", "8")["communication"]
    for rows in (described, analyzed, projected):
        found = {row["rank"]: tuple(row[key] / 1e3 for key in ("busy_ns", *COMMUNICATION_KEYS)) for row in rows}
        assert found == {rank: pytest.approx(figures) for rank, figures in BY_HAND.items()}
        assert [row["busy_share"] for row in rows] == pytest.approx([0.5, 0.5])
        assert [row["device"] for row in rows] == [0, 0]
    columns = [word for key in COMMUNICATION_KEYS for word in key.removesuffix("_ns").split("_")]
    for command in ("describe", "analyze", "project"):
        text = CliRunner().invoke(cli, [command, out, "--all"], env={"COLUMNS": "200"}, catch_exceptions=False).stdout
        title = next(line for line in text.splitlines() if line.startswith("Communication in"))
        headings = text.splitlines()[text.splitlines().index(title) + 1]
        assert [word for word in headings.split() if word in columns] == columns


def printed(command: str, trace: str, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, [command, trace, *options, "--json"], catch_exceptions=False)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_the_report_has_the_same_figures(tmp_path: Path) -> None:
    both = summary(ReportSection("job", "", describe(collect(two_ranks(tmp_path)))))
    # Of 2000 us in the steps: 1000 us busy, 250 + 100 us exposed, 150 us of it waiting.
    assert "busy for 50.0 % of the steps; exposed communication took 17.5 %: 7.5 % waiting for other ranks" in both
    assert both.endswith("and 10.0 % transfer.")
    alone = summary(ReportSection("job", "", describe(collect([tmp_path / "rank0.json"]))))
    assert alone.endswith("exposed communication took 25.0 %, which contains unknown waiting for other ranks.")


def test_idle_time_is_what_is_neither_work_nor_waiting(tmp_path: Path) -> None:
    line = analyze_trace(collect(two_ranks(tmp_path))).before.timeline
    idle, times = idle_by_cause(line), exposure(line).times
    assert (idle.busy_ns / 1e3).tolist() == pytest.approx([500, 500])
    # Before the first kernel the host prepares; after 600 us the device has no more work.
    host, done = (idle.cause_ns[:, i] / 1e3 for i in (0, 4))
    assert host.tolist() == pytest.approx([100, 100]) and done.tolist() == pytest.approx([400, 400])
    assert [row.exposed_waiting_ns for row in times] == pytest.approx([150_000, 0])


def test_waiting_is_unknown_without_the_other_ranks(tmp_path: Path) -> None:
    file = two_ranks(tmp_path)[0]
    described = describe(collect([file]))
    (row,) = described.to_dict()["devices"]
    assert row["waiting_ns"] is None and row["exposed_waiting_ns"] is None
    assert row["transfer_ns"] == row["communication_ns"] == 350_000 and row["exposed_transfer_ns"] == 250_000
    (note,) = described.notes()
    assert note.startswith("1 of 1 collectives: 1 of 2 ranks are absent")
    (cells,) = described.named_tables()["communication"].rows
    assert cells == (0, "0", "350 us", "-", "350 us", "100 us", "250 us", "-", "250 us")
    assert note in analyze_trace(collect([file])).notes()
    analyzed = printed("analyze", str(file))["before"]["devices"][0]
    assert {key: analyzed[key] for key in COMMUNICATION_KEYS} == pytest.approx(
        {key: row[key] for key in COMMUNICATION_KEYS}, abs=0.01
    )


def test_ranks_that_are_absent_from_groups_without_a_size_are_named_in_a_note(tmp_path: Path) -> None:
    files = two_ranks(tmp_path)
    for file in files:
        document = json.loads(file.read_text().replace('"Group size": 2', '"Group size": null'))
        document["distributedInfo"]["world_size"] = 4
        file.write_text(json.dumps(document))
    described = describe(collect(files))
    assert [row.times.waiting_ns for row in described.devices] == [250_000, 0]
    assert described.notes() == [
        "2 collectives of the trace do not name their group: waiting for the 2 absent ranks is inside their transfer"
    ]


Row = tuple[int, int | None, int, int, int | None]


def collectives(*rows: Row, world_size: int | None = None) -> list[int]:
    return last_arrivals(trace_of_collectives(*rows, world_size=world_size)).tolist()


def trace_of_collectives(*rows: Row, world_size: int | None = None) -> Trace:
    """Return a trace of collectives, given as (rank, match, start, end, size of the group)."""
    rank, match, start, end, size = (list(column) for column in zip(*rows, strict=True))
    columns = {"id": range(len(rows)), "rank": rank, "name": ["nccl"] * len(rows), "start_ns": start}
    columns |= {"dur_ns": [b - a for a, b in zip(start, end, strict=True)], "match_id": match, "group_size": size}
    tables = {"collectives": make_table("collectives", {name: list(column) for name, column in columns.items()})}
    return Trace(TraceMeta("kineto", world_size=world_size), tables)


def test_the_rank_that_others_wait_for_is_the_last_to_start(tmp_path: Path) -> None:
    trace = collect(two_ranks(tmp_path))
    assert late_ranks(trace) == (LateRank(1, 1, 250_000),)
    assert describe(trace).to_dict()["late_ranks"] == [{"rank": 1, "collectives": 1, "waited_ns": 250_000}]
    assert late_ranks(collect([tmp_path / "rank0.json"])) == ()
    # Nobody waits if all ranks start at once, nor in collectives whose last rank is unknown.
    rows = [(0, 5, 10, 90, 2), (1, 5, 10, 90, 2), (0, 6, 100, 190, 3), (1, 6, 120, 190, 3)]
    assert late_ranks(trace_of_collectives(*rows)) == ()
    more = [(0, 7, 250, 290, 2), (1, 7, 210, 290, 2), (0, 8, 300, 390, 2), (1, 8, 360, 390, 2)]
    assert late_ranks(trace_of_collectives(*rows, *more)) == (LateRank(1, 1, 60), LateRank(0, 2, 40))


def test_the_last_arrival_needs_every_rank_of_the_group_on_one_clock() -> None:
    assert collectives((0, 5, 10, 90, 2), (1, 5, 40, 90, 2)) == [40, 40]
    assert collectives((0, 5, 10, 90, 3), (1, 5, 40, 90, 3)) == [MISSING, MISSING]  # a rank is absent
    assert collectives((0, 5, 10, 30, 2), (1, 5, 40, 90, 2)) == [MISSING, MISSING]  # ends before the other starts
    assert collectives((0, 5, 10, 90, 2), (0, 5, 40, 90, 2)) == [MISSING, MISSING]  # twice the same rank
    assert collectives((0, 5, 10, 90, None), (1, 5, 40, 90, None)) == [40, 40]  # a group of unknown size
    assert collectives((0, None, 10, 90, 2), (0, None, 20, 90, 1), (0, 7, 30, 90, None)) == [MISSING, 20, MISSING]
    assert collectives((0, None, 10, 90, None), world_size=1) == [10]


def test_a_device_without_a_number_is_null_and_a_dash(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,start_us,dur_us\nsgemm,0,100\nncclAllReduce,100,50\n")
    trace = str(tmp_path / "a.csv")
    described, analyzed = (
        printed("describe", trace, "--iterations", "whole"),
        printed("analyze", trace, "--iterations", "whole"),
    )
    assert [row["device"] for row in described["devices"]] == [None]
    assert [row["device"] for row in described["steps"]] == [None]
    assert [row["device"] for row in analyzed["before"]["devices"]] == [None]
    for command in ("describe", "analyze"):
        text = CliRunner().invoke(cli, [command, trace, "--iterations", "whole"], catch_exceptions=False).stdout
        assert "-1" not in text and re.search(r"^ *0 +-  ", text, re.MULTILINE)


def test_busy_is_one_figure_in_describe_replay_and_analyze(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "job.json", steps=4)])
    (described,) = times_in_steps(trace, step_times(trace))
    # Each step of 1000 us has kernels from 30 to 230, from 231 to 331 and from 332 to 740 us.
    assert described.busy_share == pytest.approx(0.708)
    replayed = replay_trace(trace, [1, 2, 3, 4]).steps
    busy_ns = sum(step.device_busy_share * step.measured_ns for step in replayed)
    assert busy_ns / described.elapsed_ns == pytest.approx(0.708)
    analyzed = analyze_trace(trace).to_dict()["before"]["devices"][0]
    assert analyzed["busy_share"] == pytest.approx(0.708, rel=1e-3)


def test_a_trace_without_iterations_is_described_as_a_whole_and_says_so(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "job.json", steps=1)])
    kernels = put(trace.kernels, "iteration", np.full(trace.kernels.num_rows, MISSING))
    tables = {**trace.tables, "kernels": kernels, "iterations": trace.iterations.slice(0, 0)}
    described = describe(Trace(trace.meta, tables))
    content = described.to_dict()
    assert content["devices_cover"] == "recording" and content["steps"] == []
    assert content["devices"][0]["elapsed_ns"] == 710_000 and content["devices"][0]["busy_ns"] == 708_000
    assert "whole recording" in described.tables()[0].title


def test_copies_are_summed_by_direction(tmp_path: Path) -> None:
    copies = [
        event("Memcpy HtoD", "gpu_memcpy", 100.0 * i, 10, stream=7, device=0, correlation=i + 1, bytes=1000)
        for i in range(3)
    ]
    fill = event("Memset (Device)", "gpu_memset", 500, 5, stream=7, device=0, correlation=9, bytes=64)
    (tmp_path / "a.json").write_text(json.dumps(kineto([*copies, fill, kernel("k", 600, 10, 20)])))
    rows = describe(collect([tmp_path / "a.json"], IngestOptions("whole"))).to_dict()["copies"]
    assert [(row["direction"], row["copies"], row["bytes"], row["time_ns"]) for row in rows] == [
        ("HtoD", 3, 3000, 30_000), ("memset", 1, 64, 5_000),
    ]  # fmt: skip
    assert rows[0]["bytes_per_s"] == pytest.approx(1e8)


tasks = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 40), st.booleans(), st.booleans()), max_size=12
)


@given(tasks, st.integers(0, 40), st.integers(0, 60))
def test_every_moment_is_counted_once(rows: list[tuple[int, int, int, bool, bool]], first: int, length: int) -> None:
    start, size, late, collective, matched = (
        (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.zeros((5, 0), dtype=np.int64))
    )
    is_collective, is_matched = collective.astype(bool), (collective & matched).astype(bool)
    arrived = np.where(is_matched, np.minimum(start + late, start + size), start)
    work = DeviceIntervals(start, start + size, arrived, is_collective, is_matched)
    times = device_times(work.within(first, first + length))
    counts = Counter[str]()
    for now in range(first, first + length):  # each ns by itself
        here = (start <= now) & (now < start + size)
        other, present = (here & ~is_collective).any(), (here & is_collective).any()
        transfers = (here & is_collective & (arrived <= now)).any()
        counts["busy_ns"] += int(other or present)
        counts["communication_ns"] += int(present)
        counts["transfer_ns"] += int(transfers)
        counts["exposed_ns"] += int(present and not other)
        counts["exposed_transfer_ns"] += int(transfers and not other)
    assert {name: counts[name] for name in counts} == {name: getattr(times, name) for name in counts}
    assert times.communication_ns == times.hidden_ns + times.exposed_ns
    if times.waiting_ns is not None and times.exposed_waiting_ns is not None:
        assert times.communication_ns == times.waiting_ns + times.transfer_ns
        assert times.exposed_ns == times.exposed_waiting_ns + times.exposed_transfer_ns


def test_times_of_two_stretches_add_up() -> None:
    total = DeviceTimes(9, 8, 7, 6, 5, 4, 3) + DeviceTimes(1, 1, 1, 1, 1, 1, 1)
    assert total == DeviceTimes(10, 9, 8, 7, 6, 5, 4)
    assert total.waiting_ns == 1 and DeviceTimes(1, 1, 1, 1, 1, 2, 2).waiting_ns is None


@pytest.mark.parametrize(("job", "rank", "exposed_ms"), [("dlrm8", 1, 11.056), ("nanogpt8", 3, 42.996)])
def test_real_jobs_agree_with_a_calculation_from_their_tables(job: str, rank: int, exposed_ms: float) -> None:
    files = sorted((DATA / job).glob("*.json*"))
    if not files:
        pytest.skip(f"needs the traces in {DATA / job}")
    trace = collect(files)
    for row in times_in_steps(trace, step_times(trace)):
        expected = swept(trace, row.rank)
        figures = {name: getattr(row.times, name) for name in expected}
        assert figures == expected
        if row.rank == rank:
            assert row.times.exposed_ns / 1e6 == pytest.approx(exposed_ms, abs=1e-3)


def swept(trace: Trace, rank: int) -> dict[str, float]:
    """Return the times of a rank's device in its steps, from pandas tables and one sweep over all borders."""
    frames = {kind: trace.tables[kind].to_pandas() for kind in ("kernels", "copies", "collectives")}
    groups = frames["collectives"].assign(end=lambda f: f.start_ns + f.dur_ns).groupby("match_id")
    size = groups.group_size.max().fillna(0)
    last = groups.start_ns.max()[(groups["rank"].nunique() >= size) & (groups.start_ns.max() < groups.end.min())]
    arrivals = frames["collectives"].set_index("id").match_id.map({int(key): int(ns) for key, ns in last.items()})
    steps = step_times(trace)
    begin = int(steps.begin_ns[steps.rank == rank][0])
    until = int(steps.completion_ns[steps.rank == rank][-1])
    borders: list[tuple[int, int, int]] = []
    for frame in (frames["kernels"], frames["copies"]):
        for row in frame[frame["rank"] == rank].itertuples():
            start, end = (min(max(int(ns), begin), until) for ns in (row.start_ns, row.start_ns + row.dur_ns))
            id_ = getattr(row, "collective_id", None)
            if id_ is None or pd.isna(id_):
                borders += [(start, 0, 1), (end, 0, -1)]
                continue
            known = arrivals.get(id_)
            arrived = start if known is None or pd.isna(known) else min(max(int(known), start), end)
            borders += [(start, 1, 1), (end, 1, -1), (arrived, 2, 1), (end, 2, -1)]
    names = ("busy_ns", "communication_ns", "transfer_ns", "exposed_ns", "exposed_transfer_ns")
    sums, active, before = dict.fromkeys(names, 0.0), [0, 0, 0], begin
    for now, kind, change in sorted(borders):
        other, present, moving = (count > 0 for count in active)
        for name, counts in zip(
            names, (other or present, present, moving, present and not other, moving and not other), strict=True
        ):
            sums[name] += (now - before) * counts
        active[kind], before = active[kind] + change, now
    return sums


def test_the_time_before_a_late_recording_is_unexplained_and_stays(tmp_path: Path) -> None:
    # Rank 1 begins to record 400 us after rank 0, which waits for it in the all-reduce from 100 us on. Its launch comes
    # 20 us later, and the all-reduce runs from 440 to 500 us. The first calls of the ranks are 400 us apart.
    about = {"backend": "nccl", "world_size": 2}
    files = []
    for rank, begin, starts in ((0, 0, 100), (1, 400, 440)):
        reduce = kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", starts, 500 - starts, 9, stream=20, **GROUP)
        marks = [event("ProfilerStep#1", "user_annotation", begin, 460 - begin), launch(begin + 20, 9)]
        files.append(tmp_path / f"late{rank}.json")
        files[-1].write_text(json.dumps(kineto([*marks, reduce], distributedInfo={**about, "rank": rank})))
    trace = collect(files)
    result = analyze_trace(trace)
    assert result.measured_ns == pytest.approx(500_000)
    assert result.before.pace.by_resource["unexplained"] == pytest.approx(420_000, rel=0.01)
    assert any("recordings of ranks begin up to 0.40 ms apart, that of rank 1 last" in note for note in result.notes())
    assert "recordings of ranks begin up to 400 us apart" in " ".join(describe(trace).notes())
    window = next(step_windows(trace, [1]))
    ends = [replay(with_host_time(window.graph, factor)).makespan_ns / 1e3 for factor in (1.0, 0.5, 0.0)]
    # Without host time, rank 1 still begins 400 us late. Lag and duration, 20 and 60 us, stay.
    assert ends == pytest.approx([500, 490, 480], abs=6)
    (row,) = project_trace(trace, [parse_what_if("scale_host:0")]).rows
    assert row.speedup == pytest.approx(500 / ends[2], rel=0.01)
