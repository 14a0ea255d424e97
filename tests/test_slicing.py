"""A part of a trace: whole events, valid references, and what it says of itself."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import MISSING, integers
from profilers.trace.schema import KINDS, SCHEMAS
from profilers.trace.trace import Trace
from profilers.writers.slicing import SliceOptions, slice_trace

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


@settings(max_examples=150, deadline=None)
@given(options=OPTIONS)
def test_rows_are_those_asked_for_and_refer_to_nothing_else(whole: Trace, options: SliceOptions) -> None:
    first = 0 if options.start_ns is None else options.start_ns
    last = 1 << 60 if options.end_ns is None else options.end_ns

    def wanted(row: dict[str, int]) -> bool:
        end = row["start_ns"] + (row["dur_ns"] or 0)
        return (
            (options.iterations is None or row["iteration"] in options.iterations)
            and (options.ranks is None or row["rank"] in options.ranks)
            and row["start_ns"] < last
            and (end > first or row["start_ns"] >= first)
        )

    expected = {kind: [r["id"] for r in whole.tables[kind].to_pylist() if wanted(r)] for kind in KINDS}
    if not any(expected.values()):
        with pytest.raises(InvalidInputError, match="nothing of the trace"):
            slice_trace(whole, options)
        return
    part = slice_trace(whole, options)
    assert {kind: part.tables[kind]["id"].to_pylist() for kind in KINDS} == expected
    assert all(part.tables[kind].schema == SCHEMAS[kind] for kind in SCHEMAS)
    check_references(part)
    again = slice_trace(part, SliceOptions(None, options.ranks, options.start_ns, options.end_ns))
    assert again.tables == part.tables


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
    assert part.meta.ranks == (0, 2) and part.iterations.num_rows == 2
    own = trace.kernels.to_pylist()
    assert part.kernels.num_rows == sum(r["iteration"] == number and r["rank"] in (0, 2) for r in own)
    assert part.kernels["launch_id"].null_count == 0  # an iteration holds the calls of its kernels
