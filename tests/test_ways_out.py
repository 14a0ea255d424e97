"""Out of a trace and back: Perfetto JSON, Chakra files, slices and merges."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import event, kineto, step, write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import integers
from profilers.trace.schema import KINDS
from profilers.trace.trace import Trace
from profilers.writers.chakra import export_chakra
from profilers.writers.perfetto import export_perfetto
from profilers.writers.slicing import SliceOptions, merge, slice_trace

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
REFERENCES = ("launch_id", "op_id", "kernel_id", "collective_id")


def rows(trace: Trace, kind: str) -> list[str]:
    """Return the rows of a kind without their ids, in an order of their own."""
    drop = {"id", *REFERENCES}
    found = [{k: v for k, v in row.items() if k not in drop} for row in trace.tables[kind].to_pylist()]
    for row in found:
        if row.get("args"):
            row["args"] = json.dumps(json.loads(row["args"]), sort_keys=True)
    return sorted(map(repr, found))


def job(folder: Path, rank: int, base: int = 5_000_000) -> Path:
    info = {"rank": rank, "world_size": 2}
    counter = {"ph": "C", "cat": "gpu", "name": "Power", "ts": 1500.5, "pid": 0, "tid": 0, "args": {"value": 3.5}}
    odd = event('k "q" \\ naïve', "user_annotation", 1200.001, 3, note={"a": [1, None, "x"]})
    document = kineto(
        [*step(1, 1000.125), *step(2, 3000), counter, odd], distributedInfo=info, baseTimeNanoseconds=base
    )
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_perfetto_json_reads_back_as_it_was(tmp_path: Path, name: str, ranks: int) -> None:
    source = tmp_path / "in"
    source.mkdir()
    trace = collect([job(source, rank) for rank in range(ranks)])
    export_perfetto(trace, tmp_path / name)
    back = collect([tmp_path / name])
    for kind in (*KINDS, "iterations"):
        expected = rows(trace, kind)
        if ranks > 1 and kind not in ("collectives", "iterations"):
            back_rows = [row.replace('"rank": 1', "").replace('"rank": 0', "") for row in rows(back, kind)]
            assert len(back_rows) == len(expected)
            continue
        assert rows(back, kind) == expected, kind
    assert (back.meta.ranks, back.meta.world_size, back.meta.clock_base_ns) == (trace.meta.ranks, 2, 5_000_000)
    assert back.meta.quality["orphan_device"] == trace.meta.quality["orphan_device"]
    arrows = 2 * (trace.kernels.num_rows - trace.kernels["launch_id"].null_count)
    assert back.meta.quality["skipped_flow"] > arrows  # and what names processes and streams


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
@pytest.mark.parametrize("name", ["hta/nccl_a100_rank0.json.gz", "misc/mi350x_swapped_grid.json.gz"])
def test_a_real_trace_comes_back_from_perfetto_json(tmp_path: Path, name: str) -> None:
    trace = collect([DATA / name])
    export_perfetto(trace, tmp_path / "t.json")
    back = collect([tmp_path / "t.json"])
    for kind in (*KINDS, "iterations"):
        assert rows(back, kind) == rows(trace, kind), kind


def test_chakra_files_hold_the_kernels_and_collectives_of_each_rank(tmp_path: Path) -> None:
    trace = collect([job(tmp_path, rank) for rank in range(2)])
    written = export_chakra(trace, tmp_path / "job.et")
    assert [path.name for path in written] == ["job.0.et", "job.1.et"]
    back = collect(written)
    assert back.meta.format == "chakra" and back.meta.ranks == (0, 1)
    assert back.collectives["collective"].to_pylist() == ["all_gather"] * 4
    compute = trace.kernels.num_rows - trace.collectives.num_rows
    assert (back.kernels.num_rows, back.ops.num_rows) == (compute, trace.ops.num_rows + trace.launches.num_rows)
    names = {row["name"] for row in back.kernels.to_pylist()}
    assert names == {"ampere_sgemm_128x64_nn", "vectorized_elementwise_kernel"}


def test_nothing_is_left_of_an_export_that_fails(tmp_path: Path) -> None:
    trace = collect([job(tmp_path, 0)])
    with pytest.raises(InvalidInputError, match="cannot be written"):
        export_perfetto(trace, tmp_path / "no" / "out.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def valid(trace: Trace) -> bool:
    """Return whether every reference is to an event of the trace."""
    ids = np.concatenate([integers(trace.tables[kind], "id") for kind in KINDS])
    named = [t[c].drop_null().to_numpy() for t in trace.tables.values() for c in REFERENCES if c in t.schema.names]
    return all(np.isin(values, ids).all() for values in named) and len(set(ids.tolist())) == len(ids)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("two")
    return collect([job(folder, rank) for rank in range(2)])


def test_a_slice_of_everything_is_the_trace(two: Trace) -> None:
    part = slice_trace(two, SliceOptions(ranks=frozenset({0, 1})))
    assert part.tables == two.tables and part.meta == two.meta


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    iterations=st.none() | st.sets(st.sampled_from([1, 2]), min_size=1),
    ranks=st.none() | st.sets(st.sampled_from([0, 1]), min_size=1),
    window=st.none() | st.tuples(st.integers(0, 4_000_000), st.integers(0, 4_000_000)),
)
def test_a_slice_keeps_what_it_says_and_refers_to_nothing_else(
    two: Trace, iterations: Any, ranks: Any, window: Any
) -> None:
    start, end = (None, None) if window is None else sorted(window)
    options = SliceOptions(iterations and frozenset(iterations), ranks and frozenset(ranks), start, end)
    try:
        part = slice_trace(two, options)
    except InvalidInputError as error:
        assert "nothing of the trace" in str(error)
        return
    assert valid(part)
    for kind in KINDS:
        for row in part.tables[kind].to_pylist():
            assert iterations is None or row["iteration"] in {None, *iterations, *part.meta.context}
            assert ranks is None or row["rank"] in ranks
            assert end is None or row["start_ns"] < end
            assert start is None or row["start_ns"] + (row["dur_ns"] or 0) >= start


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SliceOptions(ranks=frozenset({7})), r"no rank \[7\]; the trace has \[0, 1\]"),
        (SliceOptions(iterations=frozenset({9})), r"no iteration \[9\]; the trace has \[1, 2\]"),
        (SliceOptions(start_ns=1 << 50), "nothing of the trace lies in this slice"),
    ],
)
def test_a_slice_of_what_is_not_there_says_so(two: Trace, options: SliceOptions, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        slice_trace(two, options)


def test_slices_by_rank_merge_into_the_trace(two: Trace) -> None:
    merged = merge([slice_trace(two, SliceOptions(ranks=frozenset({rank}))) for rank in (1, 0)])
    assert valid(merged)
    assert merged.meta.ranks == (0, 1) and merged.meta.quality["collectives_matched"] == 4
    for kind in (*KINDS, "iterations"):
        assert rows(merged, kind) == rows(two, kind), kind


def test_traces_on_different_clocks_merge_on_the_earlier(tmp_path: Path) -> None:
    apart = [collect([job(tmp_path, 0, 7_000)]), collect([job(tmp_path, 1, 2_000)])]
    merged = merge(apart)
    together = collect([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    assert merged.meta.clock_base_ns == 2_000
    assert sorted(integers(merged.kernels, "start_ns")) == sorted(integers(together.kernels, "start_ns"))


def test_two_traces_of_one_rank_do_not_merge(tmp_path: Path) -> None:
    trace = collect([write_trace(tmp_path / "t.json")])
    with pytest.raises(InvalidInputError, match="rank 0 is in two of the traces"):
        merge([trace, trace])


def test_collectives_that_prove_clocks_apart_bring_them_together(tmp_path: Path) -> None:
    """Rank 1's clock is 60 s ahead: its collectives end long after rank 0's, though both are one operation."""
    for rank, ahead in ((0, 0.0), (1, 60e6)):
        info = {"rank": rank, "world_size": 2}
        (tmp_path / f"r{rank}.json").write_text(json.dumps(kineto(step(1, 1000 + ahead), distributedInfo=info)))
    trace = collect([tmp_path])
    assert trace.meta.quality["clock_shift_max_ns"] == 60_000_000_000
    starts = {rank: sorted(r["start_ns"] for r in trace.kernels.to_pylist() if r["rank"] == rank) for rank in (0, 1)}
    assert starts[0] == starts[1]
    assert trace.iterations["start_ns"].to_pylist() == [1_000_000, 1_000_000]
