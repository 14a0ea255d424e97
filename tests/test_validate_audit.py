"""The audit of traces: counts by hand on a small trace, and mistakes that its checks find."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from jobs import write_job

from profilers.devices.catalogue import find_device
from profilers.ingest.pipeline import open_trace
from profilers.trace.arrays import MISSING
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.costs.wire_time import group_ranks
from replay.from_trace import host_waits, index
from replay.workloads.program import Collective, KernelCall, SyntheticJob, SyntheticStep, Wait
from replay.workloads.program_trace import write_trace
from seqpoint.cli import cli
from seqpoint.validation import audit, by_hand
from tests import traces

PARAMETERS = load_parameters()


def exchange(duration_us: int, after: tuple[int, ...] = ()) -> KernelCall:
    call = Collective("all_reduce", 256, "tp", 2, "a")
    return KernelCall("ncclDevKernel_AllReduce", "nccl:all_reduce", 1000 * duration_us, 5000, 9, (4, 4), 2, after, call)


def gemm(duration_us: int) -> KernelCall:
    return KernelCall("gemm_kernel", "aten::mm", 1000 * duration_us, 5000, 7, (4, 4), 2)


@pytest.fixture(scope="module")
def two_ranks() -> Trace:
    """Return a trace in which rank 0 computes for 50 us before an exchange of 10 us; rank 1 waits in its kernel."""
    programs = [[gemm(50), exchange(10, (0,)), Wait()], [gemm(20), exchange(10), Wait()]]
    step = SyntheticStep("iteration", 16, 2, programs)
    return write_trace(SyntheticJob("by hand", "1", [step] * 2, 2), find_device("MI300X"))


@pytest.fixture(scope="module")
def kineto(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return open_trace(str(traces.write_trace(tmp_path_factory.mktemp("audit") / "job.json", 3)))


def test_waiting_and_exposure_are_swept_as_drawn() -> None:
    """Collective 0-100 whose last rank comes at 60; a kernel at 20-40; a lone kernel at 120-130."""
    start, end = np.array([0, 20, 120]), np.array([100, 40, 130])
    swept = by_hand._swept(start, end, np.array([60, 20, 120]), np.array([True, False, False]), elapsed_ns=200)
    assert swept == by_hand.DeviceByHand(
        elapsed_ns=200, busy_ns=110, communication_ns=100, exposed_ns=80, waiting_ns=60, exposed_waiting_ns=40
    )


def test_a_rank_that_starts_first_waits(two_ranks: Trace) -> None:
    """Rank 1 starts its exchange at 13 us, rank 0 at 58 us; both end at 68 us. It computes beside it until 28 us."""
    first, second = (by_hand.devices_by_hand(two_ranks)[rank, 0] for rank in (0, 1))
    assert (first.waiting_ns, first.communication_ns) == (0, 2 * 10_000)
    assert (second.waiting_ns, second.communication_ns) == (2 * 45_000, 2 * 55_000)
    assert (second.exposed_ns, second.exposed_waiting_ns) == (2 * 40_000, 2 * 30_000)
    collectives = by_hand.collectives_by_hand(two_ranks, 0)
    assert sorted((each.dur_ns, each.transfer_ns, each.matched) for each in collectives) == [
        (10_000, 10_000, True), (55_000, 10_000, True),
    ]  # fmt: skip


def test_sums_and_copies_are_those_of_the_events(kineto: Trace) -> None:
    """Each step: two products of 200 and 400 us, an addition of 100 us, a collective of 300 us."""
    assert by_hand.kernel_times(kineto, 1) == {"gemm": 600_000, "elementwise": 100_000, "collective": 300_000}
    lone = by_hand.lone_kernels(kineto, 1)
    assert sorted(lone.values()) == [100_000, 200_000]  # the other two run side by side
    assert by_hand.step_times(kineto, 0) == {1: 1_000_000, 2: 1_000_000, 3: 1_000_000}
    assert by_hand.row_counts(kineto)["kernels"] == kineto.kernels.num_rows


def test_a_large_all_reduce_of_an_unknown_group_has_the_time_of_two_ranks_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 MiB over the 448 GB/s of an MI300X's links take 150 us; a tenth of what is over 20 us would be 48 us."""
    call = Collective("all_reduce", 2**26, "dp", 0, "a")
    kernel = KernelCall("ncclDevKernel_AllReduce", "nccl:all_reduce", 500_000, 5000, 9, (4, 4), 2, (), call)
    step = SyntheticStep("iteration", 16, 2, [[gemm(50), kernel, Wait()]])
    subject = audit.Subject(
        "job", write_trace(SyntheticJob("by hand", "1", [step] * 2, 1), find_device("MI300X")), load_parameters()
    )
    subject = audit.Subject(
        "job", replace(subject.trace, meta=replace(subject.trace.meta, world_size=None)), load_parameters()
    )
    case = "job: scale_links:0.5, time added to large all-reduces"
    (row,) = [row for row in audit.check_links(subject) if row.case == case]
    assert row.met and row.ours >= 2**26 / 448
    monkeypatch.setattr("replay.costs.wire_time.likely_ranks", group_ranks)
    (row,) = [row for row in audit.check_links(subject) if row.case == case]
    assert not row.met and row.ours == pytest.approx(48_000)


def test_steps_far_apart_have_no_times_by_hand(tmp_path: Path) -> None:
    events = [event for number, t in ((1, 1_000.0), (2, 9_000.0)) for event in traces.step(number, t)]
    (tmp_path / "job.json").write_text(json.dumps(traces.kineto(events)))
    assert by_hand.step_times(open_trace(str(tmp_path / "job.json")), 0) == {}


def test_every_check_has_rows_for_a_trace_with_its_data(kineto: Trace, two_ranks: Trace) -> None:
    rows = audit.audit("job", kineto, PARAMETERS) + audit.audit("two", two_ranks, PARAMETERS)
    cases = " ".join(row.case for row in rows)
    for expected in (
        "describe, kernel time of gemm", "describe, busy of rank 0", "describe, exposed of rank 1", "lone kernels",
        "scale_kernels:gemm:0.5, steps", "below 64 KiB", "matched collectives", "bytes of collectives", "either order",
        "the first is lost", "baseline", "merge of slices by rank, kernels", "scale_host:0.5, steps", "figures without",
        "change_dtype:fp16->fp32, figures without fp16",
    ):  # fmt: skip
        assert expected in cases, expected
    sums = [row for row in rows if "kernel time" in row.case or "lone kernels" in row.case]
    assert len(sums) >= 6 and all(row.met for row in sums)


def test_a_wrong_figure_is_found(kineto: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    right = by_hand.kernel_times(kineto)
    monkeypatch.setattr(by_hand, "kernel_times", lambda trace: right | {"gemm": right["gemm"] + 1000})
    wrong = [row for row in audit.check_classes(audit.Subject("job", kineto, PARAMETERS)) if not row.met]
    assert [row.case for row in wrong] == ["job: describe, kernel time of gemm"]


def test_bounds_measure_how_far_a_figure_leaves_them(kineto: Trace) -> None:
    subject = audit.Subject("job", kineto, PARAMETERS)
    assert subject.bounded("inside", 5.0, least=4.0, most=6.0).error == 0.0
    assert subject.bounded("above", 9.0, most=6.0).error == pytest.approx(0.5)
    assert subject.bounded("below", 3.0, least=4.0).error == pytest.approx(0.25)


def test_an_error_of_a_check_is_a_missed_row(kineto: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_nothing(subject: audit.Subject) -> None:
        subject.changed("scale_kernels:nothing-of-the-sort:0.5:x")

    monkeypatch.setattr(audit, "CHECKS", (check_nothing,))
    (row,) = audit.audit("job", kineto, PARAMETERS)
    assert row.case == "job: nothing" and not row.met and row.source.startswith("job: ")


def test_of_many_traces_in_a_folder_a_few_are_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CHECKS", (audit.check_classes,))
    for number in range(6):
        traces.write_trace(tmp_path / f"{number}.json")
    shown = CliRunner().invoke(cli, ["validate", "audit", str(tmp_path), "--json"])
    names = {row["case"].partition(":")[0].split("/")[-1] for row in json.loads(shown.stdout)["rows"]}
    assert names == {"0.json", "2.json", "3.json", "5.json"}
    table = CliRunner().invoke(cli, ["validate", "audit", str(tmp_path)])
    assert "4 of 6 traces" in table.output


def test_a_collective_has_the_data_type_that_was_recorded(kineto: Trace) -> None:
    """The kernel's name has no type; its record says Float, 4000 elements of 4 bytes."""
    (row,) = audit.check_dtype(audit.Subject("job", kineto, PARAMETERS))
    assert (row.case, row.reference, row.ours) == (
        "job: change_dtype:fp32->fp16, bytes of collectives in fp32", 8000.0, 8000.0,
    )  # fmt: skip


def test_a_full_queue_that_is_not_seen_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is busy throughout, so kernels that take half of their time halve the step."""
    files, _ = write_job(tmp_path, [[("launch", 20.0), ("work", 3.0)] * 600], 12, 1022)
    trace = open_trace(str(files[0]))
    assert all(row.met for row in audit.check_limits(audit.Subject("busy", trace, PARAMETERS)))
    blind = index.full_queues

    def no_queue(trace: Trace, calls: dict[str, np.ndarray], work: dict[str, np.ndarray]) -> host_waits.FullQueues:
        queues = blind(trace, calls, work)
        nothing = {"unblocked_ns": np.zeros_like, "freed_by": lambda ids: np.full_like(ids, MISSING)}
        return replace(
            queues, **{name: make(getattr(queues, name)) for name, make in nothing.items()}, full=frozenset()
        )

    monkeypatch.setattr(index, "full_queues", no_queue)
    missed = [row for row in audit.check_limits(audit.Subject("busy", trace, PARAMETERS)) if not row.met]
    assert missed[-1].case.endswith("scale_kernels:gemm:0.5, busy devices")
