"""Every real Kineto file, against the standard library's decoder; and the acceptance figures of whole jobs."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from profilers.errors import SeqPointError
from profilers.ingest.pipeline import IngestOptions, collect
from profilers.trace.arrays import MISSING, integers, strings
from profilers.trace.store import load_trace, save_trace
from profilers.trace.trace import Trace

DATA = Path(__file__).parents[2] / "shared" / "data" / "traces" / "kineto"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real traces at {DATA}")
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.json*"))
#: Folders of one job in many files.
MANY = ("particle_transformer/", "dlrm8/")
A_FILE_EACH = {"iterations": "file", "length": "aten::layer_norm:0:0"}
KIND_OF = {
    "ops": {"cpu_op", "operator"},
    "kernels": {"kernel"},
    "copies": {"gpu_memcpy", "gpu_memset", "memcpy", "memset"},
    "launches": {"cuda_runtime", "cuda_driver", "runtime", "mtia_runtime"},
    "syncs": {"cuda_sync"},
}


@dataclass
class Expected:
    """What the standard library reads of one kind: events by name, and the sum of their durations in ns."""

    names: Counter[str]
    duration_ns: Decimal


@cache
def reference(path: Path) -> dict[str, Expected]:
    """Decode a file with `json`, numbers exact, and add up its complete events by kind."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, strict=False)
    kinds = {category: kind for kind, categories in KIND_OF.items() for category in categories}
    found = {kind: Expected(Counter(), Decimal(0)) for kind in KIND_OF}
    for event in document["traceEvents"]:
        kind = kinds.get(str(event.get("cat", "")).lower())
        if event.get("cat") == "mtia_ccp_events":  # all work of a device, and its waits
            copy = "copies" if event["name"] == "dma_request" else "kernels"
            kind = "syncs" if event["name"].startswith("event_") else copy
        if kind is None or event.get("ph") != "X" or (event["ts"] == 0 and event["dur"] == 0):
            continue
        found[kind].names[event["name"]] += 1
        found[kind].duration_ns += Decimal(event["dur"]) * 1000
    return found


def summary(trace: Trace, kind: str) -> Expected:
    table = trace.tables[kind]
    durations = integers(table, "dur_ns")
    assert (durations != MISSING).all()
    return Expected(Counter(strings(table, "name").tolist()), Decimal(int(durations.sum())))


@pytest.fixture(scope="module")
def jobs() -> Iterator[Any]:
    """Return a function that collects files, each set of options once a module."""
    known: dict[Any, Trace] = {}

    def job(name: str, **options: Any) -> Trace:
        key = (name, *options.items())
        if key not in known:
            known[key] = collect([DATA / name], IngestOptions(**options))
        return known[key]

    yield job
    known.clear()


def events_of(jobs: Any, name: str) -> Trace:
    """Return the events of one file, out of its job where that is collected anyway."""
    folder, _, file = name.rpartition("/")
    if folder != "particle_transformer/batch_8":
        return jobs(name)
    trace = jobs(folder, **A_FILE_EACH)
    number = trace.meta.sources.index(file)
    return trace.with_tables(**{k: t.filter(pc.equal(t["iteration"], number)) for k, t in trace.tables.items()})


@pytest.mark.parametrize("name", FILES)
def test_a_real_file_says_what_the_standard_library_says(jobs: Any, name: str) -> None:
    trace = events_of(jobs, name)
    for kind, expected in reference(DATA / name).items():
        assert summary(trace, kind) == expected, kind
    quality = trace.meta.quality
    damage = {n for n in quality.counts if n.startswith(("dropped_", "repaired_", "truncated_", "lost_"))}
    assert damage <= {"repaired_grid", "repaired_work_items"}
    assert quality["events"] == quality["kept"] + quality["skipped_flow"] + quality["skipped_marker"]


WHOLE = [name for name in FILES if not name.startswith(MANY)]


@pytest.mark.parametrize("name", WHOLE)
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


def test_four_ranks_merged_in_one_file(jobs: Any) -> None:
    trace = jobs("ddp4/mi300_4ranks_merged.json.gz")
    # amd/HPCTrainingExamples: 4 ranks, 3 DDP steps, 84 RCCL kernels with metadata (data/README.md).
    assert trace.meta.ranks == (0, 1, 2, 3)
    assert trace.kernels.num_rows == 12_381
    rows = trace.collectives
    assert rows.num_rows == 84
    for column in (
        "collective",
        "elements_in",
        "elements_out",
        "dtype",
        "bytes",
        "group_name",
        "group_size",
        "match_id",
    ):
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
    times = [reference(path)["kernels"].duration_ns for path in sorted((DATA / name).iterdir())]
    kernels = trace.kernels
    by_iteration = [Decimal(0)] * 64
    for iteration, duration in zip(kernels["iteration"].to_pylist(), kernels["dur_ns"].to_pylist(), strict=True):
        by_iteration[iteration] += duration
    assert by_iteration == times
    loaded = load_trace(save_trace(trace, tmp_path / "x.trace"))
    assert loaded.meta == trace.meta
    assert all(loaded.tables[kind].equals(trace.tables[kind]) for kind in trace.tables)


def test_swapped_grids_are_seen_in_the_file_that_has_them_and_no_other(jobs: Any) -> None:
    swapped = [name for name in WHOLE if jobs(name).meta.quality["repaired_grid"]]
    assert swapped == ["misc/mi350x_swapped_grid.json.gz"]
    sizes = jobs(swapped[0]).kernels["workgroup_size"].to_pylist()
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
