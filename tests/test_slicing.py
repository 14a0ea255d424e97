"""A part of a trace: whole events, valid references, and what it says of itself."""

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import event, kernel, launch, write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import MISSING, integers
from profilers.trace.schema import KINDS, SCHEMAS
from profilers.trace.steps import job_steps, step_times
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace
from profilers.writers.slicing import SliceOptions, slice_trace
from seqpoint import describe, project
from seqpoint.graphs import all_iterations

DATA = Path(__file__).parents[2] / "shared/data/traces/kineto"
_IDS = ("launch_id", "op_id", "kernel_id", "collective_id")
_END = 4_000_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(2):
        write_trace(folder / f"r{rank}.json", 3, distributedInfo={"rank": rank, "world_size": 2})
    return collect([folder])


def check_references(part: Trace) -> None:
    """Every reference is to a row of its own kind and rank, or null."""
    of = {"launch_id": "launches", "op_id": "ops", "kernel_id": "kernels", "collective_id": "collectives"}
    for table in part.tables.values():
        for column in set(_IDS) & set(table.schema.names):
            values = integers(table, column)
            known = values[values != MISSING]
            assert np.isin(known, integers(part.tables[of[column]], "id")).all(), column


OPTIONS = st.builds(
    SliceOptions,
    st.none() | st.frozensets(st.integers(1, 3), min_size=1),
    st.none() | st.frozensets(st.integers(0, 1), min_size=1),
    st.none() | st.integers(0, _END),
    st.none() | st.integers(0, _END),
)


@given(options=OPTIONS)
def test_rows_are_those_asked_for_and_refer_to_nothing_else(whole: Trace, options: SliceOptions) -> None:
    first = 0 if options.start_ns is None else options.start_ns
    last = 1 << 60 if options.end_ns is None else options.end_ns

    def wanted(row: dict[str, int], iterations: frozenset[int] | None) -> bool:
        end = row["start_ns"] + (row["dur_ns"] or 0)
        return (
            (iterations is None or row["iteration"] in iterations)
            and (options.ranks is None or row["rank"] in options.ranks)
            and row["start_ns"] < last
            and (end > first or row["start_ns"] >= first)
        )

    rows = {kind: whole.tables[kind].to_pylist() for kind in KINDS}
    expected = {kind: [r["id"] for r in rows[kind] if wanted(r, options.iterations)] for kind in KINDS}
    if not any(expected.values()):
        with pytest.raises(InvalidInputError, match="nothing of the trace"):
            slice_trace(whole, options)
        return
    part = slice_trace(whole, options)
    numbers = None if options.iterations is None else options.iterations | set(part.meta.context)
    with_context = {kind: [r["id"] for r in rows[kind] if wanted(r, numbers)] for kind in KINDS}
    of_iterations = {
        kind: table.filter(pc.is_valid(table["iteration"])) if numbers else table for kind, table in part.tables.items()
    }
    assert {kind: of_iterations[kind]["id"].to_pylist() for kind in KINDS} == with_context
    asked = part.without_context()
    if part.meta.context:
        assert {kind: asked.tables[kind]["id"].to_pylist() for kind in KINDS} == expected
    assert all(part.tables[kind].schema == SCHEMAS[kind] for kind in SCHEMAS)
    check_references(part)
    again = slice_trace(part, SliceOptions(None, options.ranks, options.start_ns, options.end_ns))
    assert again.tables == part.tables and again.meta == part.meta


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_step_of_a_slice_is_that_of_the_trace(whole: Trace, number: int, tmp_path: Path) -> None:
    """Steps of 1000 us follow each other, but for the first, which begins on the host and ends with its last kernel."""
    part = slice_trace(whole, SliceOptions(iterations=frozenset({number})))
    assert part.meta.context == ((2,) if number == 1 else (number - 1,))
    stored = load_trace(save_trace(part, tmp_path / "step.trace"))
    assert stored.meta == part.meta and all_iterations(stored) == [number]
    steps = job_steps(step_times(stored)).without(stored.meta.context)
    before = job_steps(step_times(whole))
    assert steps.iteration.tolist() == [number]
    assert steps.step_ns.tolist() == before.step_ns[before.iteration == number].tolist()
    assert number == 1 or steps.step_ns.tolist() == [1_000_000]
    described, whole_described = describe(stored), describe(whole)
    assert sum(row.kernels for row in described.classes) * 3 == sum(row.kernels for row in whole_described.classes)
    assert [row.steps for row in described.steps] == [1, 1] and len(described.iterations) == 2


WHAT_IFS = ["scale_host:0.5", "scale_kernels:gemm:0.5"]


def check_projection(trace: Trace, number: int) -> None:
    """The projection of a step is the same in the trace and in a slice of the step, to the last digit."""
    part = slice_trace(trace, SliceOptions(iterations=frozenset({number})))
    results = [project(trace, WHAT_IFS, iterations=[number]).to_dict(), project(part, WHAT_IFS).to_dict()]
    for key in ("baseline_ns", "rows"):
        assert results[0][key] == results[1][key], key


def test_the_context_cannot_be_projected(whole: Trace) -> None:
    part = slice_trace(whole, SliceOptions(iterations=frozenset({3})))
    with pytest.raises(InvalidInputError, match="iteration 2 is only the context of a slice of 3; slice it, too"):
        project(part, WHAT_IFS, iterations=[2])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_slice_projects_as_the_trace_does(whole: Trace, number: int) -> None:
    check_projection(whole, number)


def late(tmp_path: Path) -> Trace:
    """Return three steps of 100 us on the host, whose kernels of 300 us queue up: the third waits for both others."""
    events = []
    for n in range(3):
        t = 1000 + 100 * n
        events += [event(f"ProfilerStep#{n}", "user_annotation", t, 100), launch(t + 10, n + 1)]
        events.append(kernel("ampere_sgemm_128x64_nn", 1020 + 300 * n, 300, n + 1))
    events += [launch(900, 9), kernel("ampere_sgemm_32x32_nn", 910, 110, 9)]
    path = tmp_path / "late.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return collect([path])


def test_a_slice_keeps_the_iterations_that_still_run(tmp_path: Path) -> None:
    trace = late(tmp_path)
    part = slice_trace(trace, SliceOptions(iterations=frozenset({2})))
    assert part.meta.context == (0, 1)
    assert job_steps(step_times(part)).step_ns.tolist()[-1] == 300_000
    assert part.kernels.num_rows == 4 and part.without_context().kernels.num_rows == 1
    check_projection(trace, 2)
    both = slice_trace(trace, SliceOptions(iterations=frozenset({1, 2})))
    assert both.meta.context == (0,) and all_iterations(both) == [1, 2]
    again = slice_trace(part, SliceOptions(iterations=frozenset({1, 2})))
    assert again.meta.context == (0,) and again.tables == both.tables


def test_a_slice_of_everything_is_the_trace(whole: Trace) -> None:
    for options in (SliceOptions(), SliceOptions(ranks=frozenset({0, 1}), start_ns=0, end_ns=1 << 60)):
        part = slice_trace(whole, options)
        assert part.tables == whole.tables and part.meta == whole.meta


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
def test_iterations_of_a_real_trace(tmp_path: Path) -> None:
    trace = collect([DATA / "ddp4/mi300_4ranks_merged.json.gz"])
    number = trace.iterations["iteration"][0].as_py()
    part = slice_trace(trace, SliceOptions(iterations=frozenset({number}), ranks=frozenset({0, 2})))
    check_references(part)
    assert part.meta.ranks == (0, 2) and part.iterations.num_rows == 4 and part.meta.context == (number + 1,)
    asked = part.without_context()
    kernels = trace.kernels.to_pylist()
    assert asked.kernels.num_rows == sum(r["iteration"] == number and r["rank"] in (0, 2) for r in kernels)
    assert asked.kernels["launch_id"].null_count == 0  # an iteration holds the calls of its kernels


NANO = DATA / "nanogpt8/nanogpt_rank0.json.gz"


@pytest.mark.skipif(not NANO.is_file(), reason=f"no real trace at {NANO}")
def test_a_step_of_a_busy_job_projects_as_in_its_trace() -> None:
    check_projection(collect([NANO]), 12)
