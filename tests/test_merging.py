"""Several traces as one: ranks, ids, clocks, matches; what was cut apart comes together again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from traces import transformer, write_trace

from profilers.errors import InvalidInputError
from profilers.ingest.pipeline import collect
from profilers.trace.arrays import integers, put
from profilers.trace.schema import KINDS
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace
from profilers.writers.slicing import SliceOptions, as_ranks, merge, slice_trace
from seqpoint.cli.traces import merge_command as command

REFERENCES = ("launch_id", "op_id", "kernel_id", "collective_id")


def told(trace: Trace, kind: str) -> list[str]:
    """Return rows with what their ids stand for, since ids differ."""
    names = {r["id"]: (k, r["rank"], r["name"], r["start_ns"]) for k in KINDS for r in trace.tables[k].to_pylist()}
    rows = [
        {name: names.get(value) if name in REFERENCES else value for name, value in row.items() if name != "id"}
        for row in trace.tables[kind].to_pylist()
    ]
    return sorted(map(repr, rows))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(3):
        write_trace(folder / f"r{rank}.json", distributedInfo={"rank": rank, "world_size": 4})
    return collect([folder])


@given(order=st.permutations(range(3)), together=st.integers(0, 2))
def test_slices_by_rank_merge_into_the_trace(whole: Trace, order: list[int], together: int) -> None:
    groups = [frozenset(order[:together]), frozenset(order[together:])]
    merged = merge([slice_trace(whole, SliceOptions(ranks=group)) for group in groups if group])
    for kind in KINDS:
        # Matches are numbered anew and are the same here, as all ranks are there again.
        assert told(merged, kind) == told(whole, kind), kind
    assert merged.iterations.sort_by([("rank", "ascending"), ("iteration", "ascending")]) == whole.iterations
    assert merged.meta == whole.meta and merged.meta.world_size == 4
    assert whole.meta.quality["collectives"] == whole.meta.quality["collectives_matched"] == 6
    ids = np.concatenate([integers(merged.tables[kind], "id") for kind in KINDS])
    assert len(np.unique(ids)) == len(ids)


def test_the_slices_of_each_rank_count_the_events_of_their_files_once(whole: Trace, tmp_path: Path) -> None:
    slices = [slice_trace(whole, SliceOptions(ranks=frozenset({rank}))) for rank in range(3)]
    assert [part.meta.quality["collectives"] for part in slices] == [2, 2, 2]
    assert [part.meta.quality["events"] for part in slices] == [whole.meta.quality["events"]] * 3
    stored = [load_trace(save_trace(part, tmp_path / f"{n}.trace")) for n, part in enumerate(slices)]
    merged = merge(stored)
    assert dict(merged.meta.quality.counts) == dict(whole.meta.quality.counts)
    assert merged.meta.fingerprint == whole.meta.fingerprint and merged.meta.sources == whole.meta.sources
    other = as_ranks([collect([write_trace(tmp_path / "other.json")])])[0]
    moved = other.with_tables(**{kind: put(t, "rank", np.full(t.num_rows, 3)) for kind, t in other.tables.items()})
    both = merge([*stored, replace(moved, meta=replace(moved.meta, ranks=(3,), devices=()))])
    assert both.meta.quality["events"] == whole.meta.quality["events"] + other.meta.quality["events"]
    assert both.meta.quality["collectives"] == 6 + 2


def test_slices_of_a_synthetic_trace_which_has_no_fingerprint_merge_too() -> None:
    job = transformer(128, tensor=2)
    assert job.meta.fingerprint == ""
    joined = merge([slice_trace(job, SliceOptions(ranks=frozenset([rank]))) for rank in job.meta.ranks])
    assert (joined.meta.ranks, joined.meta.devices) == (job.meta.ranks, job.meta.devices)
    assert joined.meta.quality["collectives"] == job.meta.quality["collectives"]


def test_runs_of_one_rank_become_ranks(tmp_path: Path) -> None:
    runs = [save_trace(collect([write_trace(tmp_path / f"{n}.json")]), tmp_path / f"{n}.trace") for n in "ab"]
    with pytest.raises(
        InvalidInputError, match=r"rank 0 is in two of the traces, of a\.json and of b\.json; leave one of them out"
    ):
        merge([load_trace(run) for run in runs])
    merged = merge(as_ranks([load_trace(run) for run in runs]))
    assert merged.meta.ranks == (0, 1)
    assert [(d.rank, d.device) for d in merged.meta.devices] == [(0, 0), (1, 0)]
    assert merged.collectives["match_id"].null_count == 0
    assert sorted(merged.collectives["match_id"].to_pylist()) == [0, 0, 1, 1]
    arguments = [*map(str, runs), "--as-ranks", "-o", str(tmp_path / "all.trace"), "--json"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert load_trace(tmp_path / "all.trace").meta.ranks == (0, 1)


def test_a_trace_of_several_ranks_cannot_be_renumbered(whole: Trace) -> None:
    with pytest.raises(InvalidInputError, match=r"holds ranks \[0, 1, 2\]"):
        as_ranks([whole])


def test_inputs_are_left_as_they_are(whole: Trace) -> None:
    part = slice_trace(whole, SliceOptions(ranks=frozenset({1})))
    before = {kind: table.to_pylist() for kind, table in part.tables.items()}
    merge(as_ranks([part, part]))
    assert {kind: table.to_pylist() for kind, table in part.tables.items()} == before
