"""Real files: events against the standard library's decoder, what ingest says of them, and figures of whole jobs.

Files are a sample, drawn by a hash of their names. The programs that compare or tabulate them read all.
"""

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ingest.kineto_events import decoded, read
from benchmarks.ingest.quality import row
from profilers.errors import SeqPointError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.arrays import integers
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "traces"
KINETO = DATA / "kineto"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
FILES = sorted(path.relative_to(KINETO).as_posix() for path in KINETO.rglob("*.json*"))
TABLE = list(csv.DictReader((ROOT / "tests" / "accuracy" / "ingest.csv").read_text().splitlines()))
A_FILE_EACH = {"iterations": "file", "length": "aten::layer_norm:0:0"}


def sampled(name: str) -> bool:
    """Return whether the tests read a file: a third by a hash of their names, an eighth of one job's many."""
    return zlib.crc32(name.encode()) % (8 if "particle_transformer" in name else 3) == 0


def kernel_time_ns(path: Path) -> int:
    """Return the time in kernels by the standard library."""
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, strict=False)["traceEvents"]
    return sum(int(Decimal(event["dur"]) * 1000) for event in events if event.get("cat", "").lower() == "kernel")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Any]:
    """Return a function that collects files, each set of options once a module."""
    known: dict[Any, Trace] = {}

    def job(name: str, **options: Any) -> Trace:
        key = (name, *options.items())
        if key not in known:
            known[key] = collect([KINETO / name], IngestOptions(**options))
        return known[key]

    yield job
    known.clear()


@pytest.mark.parametrize("name", [name for name in FILES if sampled(name)])
def test_nothing_is_lost_and_nothing_changed(name: str) -> None:
    wanted = decoded(KINETO / name)
    rows, counts = read(KINETO / name)
    missing, added = wanted - rows, rows - wanted
    assert not missing, next(iter(missing))
    assert not added, next(iter(added))
    assert counts.get("kept", 0) == wanted.total()
    damage = {n for n in counts if n.startswith(("dropped_", "repaired_", "truncated_", "lost_"))}
    assert damage <= {"repaired_grid", "repaired_work_items"}
    assert counts["events"] == sum(counts.get(n, 0) for n in ("kept", "skipped_flow", "skipped_marker"))


@pytest.mark.parametrize("expected", [pytest.param(line, id=line["file"]) for line in TABLE if sampled(line["file"])])
def test_a_file_is_read_as_the_table_says(expected: dict[str, str]) -> None:
    """The table may not change silently: what is read, what was repaired, and what was left unlinked."""
    found = {"file": expected["file"], **row(DATA / expected["file"])}
    assert {k: str(found.get(k, "")) for k in expected} == expected


@pytest.mark.parametrize("name", [name for name in FILES if sampled(name) and "tracelens" not in name])
def test_a_real_file_is_a_linked_trace_or_one_error(jobs: Any, name: str) -> None:
    try:
        trace = jobs(name)
    except SeqPointError as error:
        assert str(error) and "\n" not in str(error)
        return
    counts = trace.meta.quality
    assert trace.iterations.num_rows >= 1
    assert counts["collectives"] == trace.collectives.num_rows
    assert counts["orphan_device"] == sum(trace.tables[k]["launch_id"].null_count for k in ("kernels", "copies"))


def test_what_formats_md_measured_comes_out() -> None:
    by_name = {row["file"].rpartition("/")[2]: row for row in TABLE}
    wrong = {n: float(r["external_id_wrong"] or 0) / float(r["external_id_checked"]) for n, r in by_name.items()
             if float(r["external_id_checked"] or 0)}  # fmt: skip
    # Right in 100 % of some files and wrong in 100 % of others (2022 to mid-2023), and nothing between.
    assert set(wrong.values()) == {0.0, 1.0}
    assert wrong["nccl_a100_rank0.json.gz"] == 0 and wrong["trace_diff_v100.json.gz"] == 1
    assert by_name["mi350x_swapped_grid.json.gz"]["repaired_grid"] == "20"
    # By correlation alone 1799 of 3442 kernels have no launch; by process and correlation 1810.
    assert by_name["h100_2gpu_1s_2026.2.sqlite"]["kernels"] == "3442"


def test_four_ranks_merged_in_one_file(jobs: Any) -> None:
    trace = jobs("ddp4/mi300_4ranks_merged.json.gz")
    # amd/HPCTrainingExamples: 4 ranks, 3 DDP steps, 84 RCCL kernels with metadata (data/README.md).
    assert trace.meta.ranks == (0, 1, 2, 3)
    assert trace.kernels.num_rows == 12_381
    rows = trace.collectives
    assert rows.num_rows == 84
    sizes = ("elements_in", "elements_out", "dtype", "bytes")
    for column in ("collective", *sizes, "group_name", "group_size", "match_id"):
        assert rows[column].null_count == 0, column
    assert set(rows["collective"].to_pylist()) <= {"all_reduce", "broadcast", "all_gather"}
    assert set(rows["group_size"].to_pylist()) == {4}
    assert Counter(Counter(rows["match_id"].to_pylist()).values()) == {4: 21}
    assert Counter(trace.iterations["rank"].to_pylist()) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert trace.kernels["launch_id"].null_count == 0
    assert trace.kernels["iteration"].null_count == 0


def test_eight_files_are_eight_ranks(jobs: Any) -> None:
    trace = jobs("dlrm8")
    assert (trace.meta.ranks, trace.meta.world_size) == (tuple(range(8)), 8)
    rows = trace.collectives
    assert Counter(rows["rank"].to_pylist()) == dict.fromkeys(range(8), 8)
    assert Counter(Counter(rows["match_id"].to_pylist()).values()) == {8: 8}
    assert trace.meta.quality["collectives_matched"] == 64
    for match in range(8):
        own = rows.filter(rows["match_id"].to_numpy() == match)
        assert len(set(own["collective"].to_pylist())) == 1
        assert len(set(own["sequence"].to_pylist())) == 1
    assert dict(Counter(rows["collective"].to_pylist())).keys() <= {"all_to_all", "all_reduce"}


def test_one_iteration_a_file_with_its_length(jobs: Any, tmp_path: Path) -> None:
    name = "particle_transformer/batch_8"
    trace = jobs(name, **A_FILE_EACH)
    lengths = trace.iterations["sequence_length"].to_pylist()
    assert len(lengths) == 64
    assert (min(lengths), max(lengths), len(set(lengths))) == (41, 128, 35)
    assert set(trace.iterations["length_found_by"].to_pylist()) == {"shape"}
    kernels = trace.kernels
    found_ns = np.bincount(integers(kernels, "iteration"), integers(kernels, "dur_ns"), minlength=64)
    paths = enumerate(sorted((KINETO / name).iterdir()))
    assert all(found_ns[number] == kernel_time_ns(path) for number, path in paths if sampled(f"{name}/{path.name}"))
    loaded = load_trace(save_trace(trace, tmp_path / "x.trace"))
    assert loaded.meta == trace.meta
    assert all(loaded.tables[kind].equals(trace.tables[kind]) for kind in trace.tables)


def test_swapped_grids_are_seen_in_the_file_that_has_them_and_no_other(jobs: Any) -> None:
    swapped = [row["file"] for row in TABLE if row["repaired_grid"] not in ("", "0")]
    assert swapped == ["kineto/misc/mi350x_swapped_grid.json.gz"]
    sizes = jobs("misc/mi350x_swapped_grid.json.gz").kernels["workgroup_size"].to_pylist()
    assert all(size in range(64, 1025, 64) for size in sizes)


@pytest.mark.parametrize(
    ("name", "length", "batch"),
    [
        ("sglang_Qwen3-8B_decode.json.gz", 32, 32),
        ("sglang_Qwen3-8B_prefilldecode.json.gz", 15360, 15),
        ("sglang_decode_capture_bs32.json.gz", None, None),
    ],
)
def test_an_engine_states_the_length_of_a_step(jobs: Any, name: str, length: int | None, batch: int | None) -> None:
    (row,) = jobs(f"tracelens/other/{name}").iterations.to_pylist()
    assert (row["sequence_length"], row["batch"]) == (length, batch)
