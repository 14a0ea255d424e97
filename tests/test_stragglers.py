"""Stragglers: jobs timed by hand in plain Python, the published answers, and ranks of a synthetic trace."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Run

import seqpoint as sp
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.analysis.stragglers import operation_stragglers
from replay.graph.choice import TaskChoice
from replay.workloads.operations import OPERATIONS, operation_graph, read_operations
from seqpoint.step_analysis import stragglers
from seqpoint.validation.stragglers import SUITE
from seqpoint.validation.suites import SuiteOptions

JOBS = Path(__file__).parents[2] / "shared" / "data" / "jobs"
#: Duration of a pass, s: of (way, rank, stage, micro-batch).
Passes = Callable[[str, int, int, int], float]
Key = tuple[Any, ...]
_TRANSFER, _GATHER, _SCATTER, _TIED, _NORM, _UPDATE = 0.001, 0.02, 0.03, 0.01, 0.002, 0.04


class Pipeline:
    """A training step timed by recursion over what each operation waits for.

    One forward, one backward; with chunks, all forward passes come first. An operation is (kind, rank, stage, number).
    """

    def __init__(self, ranks: int, stages: int, micro_batches: int, seconds: Passes, chunks: int = 1) -> None:
        self.sizes, self.seconds, self.chunks = (ranks, stages, micro_batches), seconds, chunks
        self.begin, self.end = cache(self._begin), cache(self._end)

    def order(self, stage: int) -> list[tuple[str, int]]:
        """Return the passes of a stage in order."""
        _, stages, count = self.sizes
        if self.chunks > 1:
            return [(way, n) for way in ("forward", "backward") for n in range(self.chunks * count)]
        warm = min(stages - 1 - stage, count)
        passes = [("forward", n) for n in range(warm)]
        for n in range(count - warm):
            passes += [("forward", warm + n), ("backward", n)]
        return passes + [("backward", n) for n in range(count - warm, count)]

    def chunk(self, way: str, n: int) -> int:
        """Return the chunk of the n-th pass of a way: forward from the first one, backward from the last."""
        at = n // self.sizes[2]
        return at if way == "forward" else self.chunks - 1 - at

    def partner(self, kind: str, stage: int, n: int) -> tuple[int, int] | None:
        """Return the stage and the number of the other end of a transfer; None if the pass has no such transfer."""
        way, side = kind.split("-")
        _, stages, count = self.sizes
        to = (1 if way == "forward" else -1) * (1 if side == "send" else -1)
        part = self.chunk(way, n) * stages + stage + to
        if not 0 <= part < self.chunks * stages:
            return None
        chunk = part // stages if way == "forward" else self.chunks - 1 - part // stages
        return part % stages, chunk * count + n % count

    def _before(self, key: Key) -> list[Key]:
        """Return what an operation waits for before it starts."""
        kind, rank, stage, *rest = key
        order, last = self.order(stage), self.sizes[1] - 1
        if kind == "gather":
            return []
        if kind in ("forward", "backward"):
            n, at = rest[0], order.index((kind, rest[0]))
            before = [(order[at - 1][0], rank, stage, order[at - 1][1])] if at else [("gather", rank, stage)]
            return before + ([(f"{kind}-recv", rank, stage, n)] if self.partner(f"{kind}-recv", stage, n) else [])
        way, _, side = kind.partition("-")
        if side:
            n = rest[0]
            earlier = [m for m in range(n) if self.partner(kind, stage, m)]
            before = [(kind, rank, stage, earlier[-1])] if earlier else []
            if side == "send":
                return [*before, (way, rank, stage, n)]
            first = order.index(("backward", 0))
            if not earlier and way == "backward" and first >= 2:
                before.append((order[first - 2][0], rank, stage, order[first - 2][1]))
            return [*before, (way, rank, stage, n - 1)] if n else before
        closing = ["scatter", "norm", "update"]
        if last > 0 and stage in (0, last):
            closing.insert(0, "tied")
        at = closing.index(kind)
        return [(closing[at - 1], rank, stage)] if at else [(order[-1][0], rank, stage, order[-1][1])]

    def _begin(self, key: Key) -> float:
        return max((self.end(before) for before in self._before(key)), default=0.0)

    def _end(self, key: Key) -> float:
        kind, rank, stage, *rest = key
        ranks, stages, _ = self.sizes
        way, _, side = kind.partition("-")
        if kind in ("forward", "backward"):
            return self.begin(key) + self.seconds(kind, rank, stage, rest[0])
        if kind == "update":
            return self.begin(key) + _UPDATE
        if side:
            to, number = self.partner(kind, stage, rest[0]) or (stage, rest[0])
            other = (f"{way}-{'recv' if side == 'send' else 'send'}", rank, to, number)
            return max(self.begin(key), self.begin(other)) + _TRANSFER
        members = {
            "gather": [(kind, r, stage) for r in range(ranks)],
            "scatter": [(kind, r, stage) for r in range(ranks)],
            "tied": [(kind, rank, s) for s in (0, stages - 1)],
            "norm": [(kind, r, s) for r in range(ranks) for s in range(stages)],
        }[kind]
        times = {"gather": _GATHER, "scatter": _SCATTER, "tied": _TIED, "norm": _NORM}
        return max(map(self.begin, members)) + times[kind]

    def rows(self, job: str = "job", step: int = 0) -> list[dict[str, Any]]:
        """Return the operations as rows of a table."""
        ranks, stages, count = self.sizes
        names = {"gather": "params-all-gather", "scatter": "grads-reduce-scatter", "update": "optimizer",
                 "tied": "embedding-grads-all-reduce", "norm": "optimizer-clip-main-grad",
                 "forward": "forward-compute", "backward": "backward-compute"}  # fmt: skip
        found = []
        for rank in range(ranks):
            for stage in range(stages):
                keys: list[Key] = [(kind, rank, stage) for kind in ("gather", "scatter", "norm", "update")]
                keys += [("tied", rank, stage)] * (stages > 1 and stage in (0, stages - 1))
                for n in range(self.chunks * count):
                    keys += [("forward", rank, stage, n), ("backward", rank, stage, n)]
                    transfers = (f"{way}-{side}" for way in ("forward", "backward") for side in ("send", "recv"))
                    keys += [(kind, rank, stage, n) for kind in transfers if self.partner(kind, stage, n)]
                for key in keys:
                    n, is_pass = key[3] if len(key) > 3 else 0, key[0] in ("forward", "backward")
                    found.append({
                        "job": job, "dp_rank_index": rank, "pp_stage_index": stage, "step_index": step,
                        "optype": names.get(key[0], key[0]), "start_s": self.begin(key),
                        "duration_s": self.end(key) - self.begin(key), "op_sequence_index": n,
                        "model_chunk_index": self.chunk(key[0], n) if is_pass else -1,
                        "micro_batch_index": n % count if is_pass else -1,
                    })  # fmt: skip
        return found

    @property
    def step_s(self) -> float:
        ranks, stages, _ = self.sizes
        return max(self.end(("update", rank, stage)) for rank in range(ranks) for stage in range(stages))


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def uneven(way: str, rank: int, stage: int, number: int) -> float:
    """Return a duration that differs by rank, stage and micro-batch."""
    return (0.1 if way == "forward" else 0.2) * (1 + 0.1 * (rank == 1) + 0.05 * stage + 0.01 * (number % 3))


#: Data-parallel ranks, stages, micro-batches and chunks.
SIZES = [(1, 1, 2, 1), (2, 1, 3, 1), (2, 2, 4, 1), (1, 4, 4, 1), (3, 3, 5, 1), (2, 4, 2, 1), (2, 2, 4, 2), (1, 3, 3, 3)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_job_takes_what_a_calculation_by_hand_gives_as_it_was_and_balanced(
    tmp_path: Path, sizes: tuple[int, int, int, int]
) -> None:
    *of_job, chunks = sizes
    ranks, stages, count = of_job

    def timed(seconds: Passes) -> Any:
        return pytest.approx(1e9 * Pipeline(ranks, stages, count, seconds, chunks).step_s, abs=500)

    job = Pipeline(ranks, stages, count, uneven, chunks)
    found = operation_stragglers(read_operations(written(tmp_path / "t.parquet", job.rows()))["job"])
    passes = [(rank, stage, n) for rank in range(ranks) for stage in range(stages) for n in range(chunks * count)]
    means = {way: float(np.mean([uneven(way, *at) for at in passes])) for way in ("forward", "backward")}
    assert found.recorded_ns[0] == timed(uneven) and found.base_ns[0] == timed(uneven)
    assert found.balanced_ns[0] == timed(lambda way, *_: means[way])
    for row in found.of("stage"):
        kept = timed(lambda way, *at, n=row.name: uneven(way, *at) if str(at[1]) == n else means[way])
        assert row.step_ns[0] == kept, row.name


@pytest.mark.parametrize(
    ("by", "name", "slow"),
    [
        ("rank", "2", lambda way, rank, stage, n: 1.0 + 0.5 * (rank == 2)),
        ("stage", "1", lambda way, rank, stage, n: 1.0 + 0.5 * (stage == 1)),
        ("operation", "backward-compute", lambda way, rank, stage, n: 1.0 + (way == "backward") * ((rank + n) % 3)),
        ("micro_batch", "3", lambda way, rank, stage, n: 1.0 + 0.5 * (n == 3)),
    ],
)
def test_the_slow_one_comes_first_and_balancing_it_saves_what_it_costs(
    tmp_path: Path, by: str, name: str, slow: Passes
) -> None:
    path = written(tmp_path / "t.parquet", Pipeline(3, 2, 4, slow).rows())
    found = operation_stragglers(read_operations(path)["job"])
    assert found.of(by)[0].name == name
    assert found.slowdown > 1.05 and found.recovered(by) > 0.9
    assert all(row.slowdown >= 1.0 - 1e-9 for row in found.of(by)[:1])


def test_the_order_of_rows_and_another_job_in_the_table_change_nothing(tmp_path: Path) -> None:
    rows = Pipeline(2, 2, 4, uneven).rows(step=7)
    alone = operation_stragglers(read_operations(written(tmp_path / "t.parquet", rows))["job"])
    others = Pipeline(1, 1, 2, uneven).rows(job="another")
    shuffled = [(rows + others)[i] for i in np.random.default_rng(0).permutation(len(rows) + len(others))]
    jobs = read_operations(written(tmp_path / "t.parquet", shuffled))
    assert list(jobs) == ["another", "job"]
    assert operation_stragglers(jobs["job"]).to_dict() == alone.to_dict()


def test_the_steps_of_a_job_are_timed_one_by_one(tmp_path: Path) -> None:
    slow = Pipeline(2, 2, 4, lambda way, rank, stage, n: 2.0 if rank else 1.0)
    rows = [*Pipeline(2, 2, 4, lambda *_: 1.0).rows(step=3), *slow.rows(step=8)]
    path = written(tmp_path / "t.parquet", rows)
    found = operation_stragglers(read_operations(path)["job"])
    assert found.steps == (3, 8) and found.balanced_ns[0] == found.balanced_ns[1]
    assert found.base_ns[1] / found.base_ns[0] == pytest.approx(2.0, rel=0.02)
    only = stragglers(path, 8).jobs[0]
    assert only.steps == (8,) and only.of("rank")[0].name == "1"
    with pytest.raises(NotFoundError, match="job job has no step 4; it has 3, 8"):
        stragglers(path, 4)


def test_an_exchange_that_ends_before_its_last_member_starts_takes_no_time(tmp_path: Path) -> None:
    rows = Pipeline(2, 1, 2, uneven).rows()
    late = next(row for row in rows if row["optype"] == "grads-reduce-scatter" and row["dp_rank_index"] == 1)
    late["start_s"] += 5.0
    operations = read_operations(written(tmp_path / "t.parquet", rows))["job"]
    assert operation_graph(operations).early == 1
    assert operation_stragglers(operations).notes == ("1 exchanges end before their last member starts: clocks differ",)


def _changed(row: int, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda rows: rows[row].update(values)


def _stage_gap(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["pp_stage_index"] *= 2


def _without(name: str, count: int) -> Callable[[list[dict[str, Any]]], None]:
    def drop(rows: list[dict[str, Any]]) -> None:
        for row in [row for row in rows if row["optype"] == name][:count]:
            rows.remove(row)

    return drop


BAD: Mapping[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "negative": (_changed(2, duration_s=-0.5), r"row 3: duration_s is -0.5; it is 0 to 604800"),
    "nan": (_changed(0, start_s=float("nan")), r"row 1: start_s is missing"),
    "null": (_changed(4, pp_stage_index=None), r"row 5: pp_stage_index is missing"),
    "operation": (_changed(1, optype="dance"), r"row 2: no operation 'dance'; there are forward-compute"),
    "gap": (_stage_gap, r"no operation of stage 1, but of stage 2; number them from 0"),
    "huge": (_changed(1, dp_rank_index=10**9), r"row 2: dp_rank_index is 1e\+09"),
    "receive": (_without("forward-recv", 1), r"3 forward-recv for 4 forward-compute that need one \(rank 0, stage 1"),
    "passes": (_without("backward-compute", 4), r"no backward-compute on rank 0, stage 0 in step 0"),
    "partner": (
        lambda rows: [row.update(micro_batch_index=9) for row in rows if row["micro_batch_index"] == 3
                      and row["pp_stage_index"] == 1],
        r"has no partner on the other stage",
    ),
    "twice": (lambda rows: rows.append(dict(rows[0])), r"params-all-gather 0 is there twice \(rank 0, stage 0"),
    "column": (lambda rows: [row.pop("optype") for row in rows], r"no column 'optype'; operations need job"),
    "text": (lambda rows: [row.update(start_s="now") for row in rows], r"column 'start_s' holds string, not seconds"),
    "empty": (lambda rows: [row.update(pp_stage_index=1.5) for row in rows], r"holds double, not whole numbers"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_table_with_a_fault_is_refused_with_the_place(tmp_path: Path, fault: str) -> None:
    rows = Pipeline(2, 2, 4, uneven).rows()
    spoil, message = BAD[fault]
    spoil(rows)
    with pytest.raises(InvalidInputError, match=message):
        operation_stragglers(read_operations(written(tmp_path / "t.parquet", rows))["job"])


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(SeqPointError, match="no readable Parquet file"):
        read_operations(tmp_path / "t.parquet")
    with pytest.raises(NotFoundError, match="no such file"):
        read_operations(tmp_path / "none.parquet")
    with pytest.raises(InvalidInputError, match="the table has no operation"):
        table = pa.Table.from_pylist(Pipeline(1, 1, 1, uneven).rows())
        pq.write_table(table.slice(0, 0), tmp_path / "t.parquet")
        read_operations(tmp_path / "t.parquet")


def test_the_command_prints_who_is_slow_and_what_it_costs(tmp_path: Path, run: Run) -> None:
    slow = Pipeline(2, 2, 4, lambda way, rank, stage, n: 0.3 if rank == 1 else 0.1)
    path = written(tmp_path / "t.parquet", slow.rows())
    content = json.loads(run("analyze", str(path), "--stragglers", "--json").out)
    first = content["rows"][0]
    assert (first["by"], first["name"]) == ("rank", "1")
    assert first["slowdown"] == pytest.approx(content["jobs"][0]["slowdown"], rel=1e-6)
    assert {row["by"] for row in content["rows"]} == {"rank", "stage", "operation", "micro_batch"}
    shown = run("analyze", str(path), "--stragglers").out
    assert "most at rank 1 (100 % of the loss" in " ".join(shown.split()) and "-compute is 800 ms longer" in shown
    refused = run("analyze", str(path), "--stragglers", "--tasks", "gemm")
    assert refused.code == 2 and "--tasks: no effect with --stragglers" in refused.err
    refused = run("analyze", str(path), "--stragglers", "-w", "scale_host:2")
    assert refused.code == 1 and "a table of operations has no kernels" in refused.err
    refused = run("analyze", str(path), "--stragglers", "--device", "H100-SXM5-80GB")
    assert refused.code == 2 and "--device: no effect on a table of operations" in refused.err
    refused = run("analyze", str(path))
    assert (
        refused.code == 1 and "t.parquet: a Parquet file is no trace" in refused.err and "--stragglers" in refused.err
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1 cut off", "no readable Parquet file, so no table of operations"),
        (None, "no column 'job'; operations need job, optype"),
    ],
)
def test_the_command_refuses_a_file_that_is_no_table_of_operations(
    tmp_path: Path, run: Run, content: bytes | None, message: str
) -> None:
    path = tmp_path / "other.parquet"
    if content is None:
        pq.write_table(pa.table({"a": [1]}), path)
    else:
        path.write_bytes(content)
    refused = run("analyze", str(path), "--stragglers")
    assert refused.code == 1 and f"{path.name}: {message}" in refused.err


def test_what_saves_most_is_named_first(tmp_path: Path) -> None:
    slow = Pipeline(2, 2, 4, lambda way, rank, stage, n: 0.1 + 0.1 * (way == "backward" and rank == 1) + 0.02 * stage)
    line = stragglers(written(tmp_path / "t.parquet", slow.rows())).summary()[1]
    saved = [int(text) for text in re.findall(r"([0-9]+) % of the loss", line)]
    assert len(saved) > 1 and saved == sorted(saved, reverse=True)


@pytest.fixture(scope="module")
def tensor_job() -> sp.Trace:
    """Return a step on four tensor-parallel ranks, whose devices set the pace."""
    model = sp.Transformer("gpt", "megatron", 1, 2048, 16, 8192, 8192)
    return sp.synthesize(sp.TrainingJob(model, 512, 8, 4, sp.Layout(tensor=4)), "A100-SXM4-80GB")


def test_a_rank_that_a_what_if_slows_is_found_in_a_synthetic_trace(tensor_job: sp.Trace) -> None:
    assert stragglers(tensor_job).jobs[0].slowdown == pytest.approx(1.0, abs=1e-3)
    (found,) = stragglers(tensor_job, what_if="scale_kernels:gemm@rank=3:1.2").jobs
    assert found.of("rank")[0].name == "3" and found.of("operation")[0].name == "gemm"
    assert found.of("rank")[0].slowdown == pytest.approx(found.slowdown, rel=1e-3) and found.slowdown > 1.01
    assert found.recovered("rank") == pytest.approx(1.0, abs=0.01)
    assert next(iter(found.excess_ns)) == "gemm" and found.excess_ns["gemm"] > 10 * found.excess_ns["host"]
    assert TaskChoice("gemm@rank=3").terms == TaskChoice("gemm,rank=3").terms == (("class", "gemm"), ("rank", "3"))
    assert TaskChoice("f@GLIBC@x=2").terms == (("name", "f@GLIBC@x=2"),)


def test_stages_of_a_trace_are_found_by_its_transfers_and_can_be_chosen() -> None:
    model = sp.Transformer("gpt", "megatron", 4, 2048, 16, 8192, 1024)
    trace = sp.synthesize(sp.TrainingJob(model, 512, 8, 2, sp.Layout(pipeline=2)), "A100-SXM4-80GB")
    (found,) = stragglers(trace, what_if="scale_kernels:kernels@stage=0:1.5").jobs
    assert found.of("stage")[0].name == "0" and len(found.of("stage")) == 2
    with pytest.raises(NotFoundError, match="no task of the iterations has stage=2; stage can be 0, 1"):
        stragglers(trace, what_if="scale_kernels:gemm@stage=2:1.5")


def test_a_rank_that_a_trace_lacks_is_refused_with_those_that_it_has(tensor_job: sp.Trace) -> None:
    with pytest.raises(NotFoundError, match="no task of the iterations has rank=9; rank can be 0, 1, 2, 3"):
        stragglers(tensor_job, what_if="scale_kernels:gemm@rank=9:1.2")
    with pytest.raises(NotFoundError, match="stage=1: the trace has no sends and receives"):
        stragglers(tensor_job, what_if="scale_kernels:gemm@stage=1:1.2")


def test_a_trace_of_one_rank_is_refused() -> None:
    model = sp.Transformer("gpt", "megatron", 1, 1024, 16, 4096, 1024)
    trace = sp.synthesize(sp.TrainingJob(model, 128, 1, 1), "A100-SXM4-80GB")
    with pytest.raises(InvalidInputError, match="stragglers show among ranks, and the trace has one"):
        stragglers(trace)


@pytest.mark.skipif(not JOBS.is_dir(), reason="the published jobs are not there")
def test_published_answers_are_met_as_the_table_says(tmp_path: Path) -> None:
    """The smallest of the three jobs; benchmarks/jobs/accuracy_of_stragglers.py scores all."""
    table = pq.read_table(JOBS / "straggler_traces.parquet", filters=[("job", "==", "ST")])
    pq.write_table(table, tmp_path / "straggler_traces.parquet")
    (tmp_path / "straggler_answers.json").write_bytes((JOBS / "straggler_answers.json").read_bytes())
    options = SuiteOptions()
    rows = SUITE.score(SUITE.read([tmp_path / "straggler_traces.parquet"], options), options).rows
    kept = pd.read_csv(Path(__file__).parent / "accuracy" / "stragglers.csv").set_index("case")
    assert len(rows) == sum(case.startswith("ST: ") for case in kept.index) > 25
    for row in rows:
        assert row.met, row
        assert row.ours == pytest.approx(kept.loc[row.case, "ours"], rel=1e-4, abs=1e-6), row
    assert kept.error.dropna().max() < 0.01


def test_every_operation_of_a_table_has_a_place_in_the_graph() -> None:
    assert len(set(OPERATIONS)) == len(OPERATIONS) == 14
