"""From files to a folder in bounded memory: the same as in memory, resumed after a kill, and never half."""

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from traces import join_counters, join_execution_trace, step, write_trace

import profilers.ingest.pipeline
import seqpoint as sp
from profilers.errors import BrokenFileError, InvalidInputError
from profilers.ingest.pipeline import IngestOptions, collect, ingest
from profilers.trace.schema import SCHEMAS
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace

DATA = Path(__file__).parents[2] / "shared/data/traces"


def rank_file(folder: Path, rank: int, steps: int = 2, **header: Any) -> Path:
    return write_trace(folder / f"rank{rank}.json", steps, distributedInfo={"rank": rank, "world_size": 64}, **header)


def same(one: Trace, other: Trace) -> bool:
    """Return whether two traces hold the same rows, whatever the order of ranks, and say the same of themselves."""
    key = [("rank", "ascending"), ("id", "ascending")]
    return one.meta == other.meta and all(
        one.tables[kind].sort_by(key if kind != "iterations" else [*key[:1], ("iteration", "ascending")]).to_pylist()
        == other.tables[kind]
        .sort_by(key if kind != "iterations" else [*key[:1], ("iteration", "ascending")])
        .to_pylist()
        for kind in SCHEMAS
    )


def content(folder: Path) -> dict[str, str]:
    """Return a digest of every file of a trace."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def hidden(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir() if f.name.startswith("."))


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("iterations", ["auto", "^Prof"])
def test_it_is_what_collect_makes(tmp_path: Path, files: int, iterations: str) -> None:
    paths = [rank_file(tmp_path, rank) for rank in range(files)]
    options = IngestOptions(iterations, "aten::mm:0:0")
    summary = ingest(paths, tmp_path / "t.trace", options)
    stored = load_trace(tmp_path / "t.trace")
    assert same(stored, collect(paths, options))
    assert summary.meta == stored.meta
    assert summary.rows == {kind: table.num_rows for kind, table in stored.tables.items()}
    assert hidden(tmp_path) == []


def test_files_that_are_iterations(tmp_path: Path) -> None:
    paths = [rank_file(tmp_path, 0, steps) for steps in (1,)]
    paths.append(write_trace(tmp_path / "x2.json", 3, distributedInfo={"rank": 0, "world_size": 64}))
    options = IngestOptions("file")
    ingest(paths, tmp_path / "t.trace", options)
    assert same(load_trace(tmp_path / "t.trace"), collect(paths, options))


def test_parts_of_one_rank_are_one_file(tmp_path: Path) -> None:
    for name, t in (("a", 0.0), ("b", 50_000.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(step(1, t)))
    ingest([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "t.trace")
    stored = load_trace(tmp_path / "t.trace")
    assert stored.meta.ranks == (0,)
    assert same(stored, collect([tmp_path / "a.json", tmp_path / "b.json"]))


def with_record_ids(path: Path) -> Path:
    """Give each operator of a Kineto file the record function id that its node in `nodes_file` has."""
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event["cat"] == "cpu_op":
            event["args"]["Record function id"] = 5 + int(event["ts"])
    path.write_text(json.dumps(document))
    return path


def nodes_file(folder: Path, rank: int, steps: int = 2) -> Path:
    """Write PyTorch's execution trace of the operators of `traces.write_trace`, and of one that it lacks."""
    node = {"name": "aten::mm", "parent": 1, "fw_parent": 0, "seq_id": 3, "scope": 0, "tid": 1, "fw_tid": 0}
    more = {"op_schema": "mm", "inputs": [rank], "input_shapes": [], "input_types": [], "outputs": []}
    ids = [5 + 1000 * number + 10 for number in range(1, steps + 1)] + [99]
    nodes = [{**node, **more, "id": 7 + n, "rf_id": record} for n, record in enumerate(ids)]
    path = folder / f"et.{rank}.et.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 7, "nodes": nodes}))
    return path


COUNTERS = """"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","dram__bytes_read.sum"
"","","","","","","","Mbyte"
"0","100","python","127.0.0.1","ampere_sgemm_128x64_nn","1","7","4.2"
"1","100","python","127.0.0.1","other_kernel","1","7","1.5"
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_joined_files_are_joined_alike_in_memory_and_in_a_folder(tmp_path: Path, ranks: int) -> None:
    paths = [with_record_ids(rank_file(tmp_path, rank)) for rank in range(ranks)]
    nodes = [nodes_file(tmp_path, rank) for rank in range(ranks)][: max(ranks - 1, 1)]  # one rank of three has none
    (tmp_path / "counters.csv").write_text(COUNTERS)
    options = IngestOptions(counters=(tmp_path / "counters.csv",), execution_traces=tuple(nodes))
    summary = ingest(paths, tmp_path / "t.trace", options)
    stored = load_trace(tmp_path / "t.trace")
    assert same(stored, collect(paths, options))
    joined = sp.open(paths, counters=tmp_path / "*.csv", execution_traces=nodes)
    assert same(stored, joined)
    assert summary.meta == stored.meta
    assert summary.rows == {kind: table.num_rows for kind, table in stored.tables.items()}
    assert hidden(tmp_path) == []
    plain = join_counters(collect(paths), collect([tmp_path / "counters.csv"]))
    assert same(stored, join_execution_trace(plain, collect(nodes)))
    quality = stored.meta.quality
    assert (quality["nodes_joined"], quality["nodes_without_event"]) == (2 * len(nodes), len(nodes))
    assert quality["ops_without_node"] == stored.ops.num_rows - 2 * len(nodes)
    assert (quality["counters_joined"], quality["counters_without_kernel"]) == (1, 1)
    assert '"execution_trace":{"node":7,' in stored.ops["args"][0].as_py()


def test_options_of_a_trace_that_was_ingested_are_refused(tmp_path: Path) -> None:
    sp.ingest(rank_file(tmp_path, 0), tmp_path / "t.trace", options=sp.IngestOptions(iterations="whole"))
    assert sp.open(tmp_path / "t.trace").iterations.num_rows == 1
    for option in ({"iterations": "file"}, {"length": "aten::mm:0:0"}, {"execution_traces": nodes_file(tmp_path, 0)}):
        with pytest.raises(InvalidInputError, match="were chosen when it was ingested"):
            sp.open(tmp_path / "t.trace", **option)


def test_the_rules_for_iterations_and_lengths_need_not_fit_the_execution_trace(tmp_path: Path) -> None:
    path = with_record_ids(rank_file(tmp_path, 0))
    options = IngestOptions("^Prof", "aten::mm:0:0", execution_traces=(nodes_file(tmp_path, 0),))
    trace = collect([path], options)
    assert (trace.meta.quality["nodes_joined"], trace.iterations["sequence_length"].null_count) == (2, 0)


def test_an_execution_trace_that_does_not_match_leaves_the_old_trace(tmp_path: Path) -> None:
    path = rank_file(tmp_path, 0)
    ingest([path], tmp_path / "t.trace")
    old = content(tmp_path / "t.trace")
    with_record_ids(path)
    other = nodes_file(tmp_path, 0, steps=0)
    with pytest.raises(InvalidInputError, match="no operator of the timeline is a node"):
        ingest([path], tmp_path / "t.trace", IngestOptions(execution_traces=(other,)))
    with pytest.raises(InvalidInputError, match=r"timeline has the ranks \[0\], the execution trace \[3\]"):
        ingest([path], tmp_path / "t.trace", IngestOptions(execution_traces=(nodes_file(tmp_path, 3),)))
    assert content(tmp_path / "t.trace") == old
    ingest([path], tmp_path / "t.trace")
    assert hidden(tmp_path) == []


REAL = [
    "kineto/ddp4/mi300_4ranks_merged.json.gz",
    "kineto/dlrm8",
    "kineto/misc/linear_rtx2080ti_30iters.json.gz",
    "kineto/tracelens/other/sglang_decode_capture_bs32.json.gz",
    "nsys/mfu_2gpu_before_2026.2.sqlite",
]


@pytest.mark.skipif(not DATA.is_dir(), reason="the real traces are not here")
@pytest.mark.parametrize("name", REAL)
def test_a_real_trace_is_what_collect_makes(tmp_path: Path, name: str) -> None:
    ingest([DATA / name], tmp_path / "t.trace")
    assert same(load_trace(tmp_path / "t.trace"), collect([DATA / name]))


@pytest.mark.skipif(not DATA.is_dir(), reason="the real traces are not here")
def test_a_merged_trace_and_its_collectives_alone_are_refused(tmp_path: Path) -> None:
    names = r"mi300_4ranks_merged\.json\.gz and \S*mi300_4ranks_nccl_only\.json\.gz"
    with pytest.raises(InvalidInputError, match=names + r" hold the same events \(21 kernels of rank 0\)"):
        ingest([DATA / "kineto/ddp4"], tmp_path / "t.trace")
    assert not (tmp_path / "t.trace").exists()


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [rank_file(tmp_path, rank) for rank in range(3)]
    ingest(paths, tmp_path / "whole.trace")
    broken = rank_file(tmp_path, 3)
    good = broken.read_bytes()
    broken.write_text('{"traceEvents": []}')
    with pytest.raises(BrokenFileError, match=r"rank3\.json: no event to read"):
        ingest([*paths, broken], tmp_path / "t.trace")
    assert hidden(tmp_path) == [".t.trace.work"] and not (tmp_path / "t.trace").exists()
    broken.write_bytes(good)
    summary = ingest([*paths, broken], tmp_path / "t.trace")
    assert summary.resumed == 3
    assert hidden(tmp_path) == []
    assert same(load_trace(tmp_path / "t.trace"), collect([*paths, broken]))


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    paths = [rank_file(tmp_path, rank) for rank in range(2)]
    (tmp_path / "zz.json").write_text('{"traceEvents": [1]}')
    with pytest.raises(BrokenFileError):
        ingest([*paths, tmp_path / "zz.json"], tmp_path / "t.trace")
    rank_file(tmp_path, 1, steps=3)
    assert ingest(paths, tmp_path / "t.trace").resumed == 1
    assert same(load_trace(tmp_path / "t.trace"), collect(paths))


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    path = rank_file(tmp_path, 0)
    work = tmp_path / ".t.trace.work"
    with (
        profilers.ingest.pipeline._locked(work),
        pytest.raises(InvalidInputError, match="another ingest is writing this trace"),
    ):
        ingest([path], tmp_path / "t.trace")
    ingest([path], tmp_path / "t.trace")


def test_progress_adds_up(tmp_path: Path) -> None:
    paths = [rank_file(tmp_path, rank) for rank in range(2)]
    told: list[tuple[int, int, str]] = []
    ingest(paths, tmp_path / "t.trace", IngestOptions(progress=lambda *args: told.append(args)))
    size = sum(path.stat().st_size for path in paths)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][0] == size and {total for _, total, _ in told} == {size}


def test_a_packed_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + b" " * (1 << 22) + b"]}"))
    with pytest.raises(BrokenFileError, match="unpacks to more than 1,000,000 bytes; raise the limit if you trust it"):
        ingest([path], tmp_path / "t.trace", IngestOptions(limit_bytes=1_000_000))


KILLED = """
import sys
from profilers.ingest import ingest
if __name__ == "__main__":
    ingest(sys.argv[2:], sys.argv[1])
"""


def test_a_kill_leaves_the_old_trace_or_the_new_one(tmp_path: Path) -> None:
    """Kill it six times at random moments; then let it finish: the bytes are those of a run that was let be."""
    script = tmp_path / "run.py"
    script.write_text(KILLED)
    source = tmp_path / "source"
    source.mkdir()
    paths = [str(rank_file(source, rank, steps=150)) for rank in range(4)]
    target = tmp_path / "t.trace"
    command = [sys.executable, str(script), str(target), *paths]
    subprocess.run([sys.executable, str(script), str(tmp_path / "whole.trace"), *paths], check=True)
    subprocess.run([sys.executable, str(script), str(target), paths[0]], check=True)
    old, new = content(target), content(tmp_path / "whole.trace")
    began = time.monotonic()
    subprocess.run([sys.executable, str(script), str(tmp_path / "again.trace"), *paths], check=True)
    spent = time.monotonic() - began
    dice = random.Random(3)
    for _ in range(6):
        with subprocess.Popen(command, start_new_session=True) as process:
            time.sleep(dice.uniform(0.1, 1.05) * spent)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert content(target) in (old, new)
    subprocess.run(command, check=True)
    assert content(target) == new
    assert hidden(tmp_path) == []


def test_what_a_kill_at_the_very_end_leaves_is_no_obstacle(tmp_path: Path) -> None:
    path, target = rank_file(tmp_path, 0), tmp_path / "t.trace"
    ingest([path], target)
    (tmp_path / ".t.trace.work" / "old" / "kernels").mkdir(parents=True)
    ingest([path], target)
    assert hidden(tmp_path) == []


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ranks")
    return [rank_file(folder, rank) for rank in range(64)]


def test_a_dask_cluster_that_loses_a_worker(tmp_path: Path, ranks: list[Path], cluster_client: Any) -> None:
    serial = ingest(ranks, tmp_path / "serial.trace")
    killed: list[int] = []

    def kill_one(done: int, _total: int, _name: str) -> None:
        if done and not killed:
            killed.append(next(iter(cluster_client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    options = IngestOptions(progress=kill_one)
    ingested = ingest(ranks, tmp_path / "t.trace", options, executor=cluster_client.get_executor(pure=False))
    assert killed
    assert ingested.meta == serial.meta
    assert content(tmp_path / "t.trace") == content(tmp_path / "serial.trace")
