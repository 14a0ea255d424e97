"""Sweeps: step times of thousands of scenarios, from a plan.

`sweep` times the scenarios of a plan (`replay.projection.scenarios.read_plan`) in chunks, here, in processes or on a
Dask cluster. Finished chunks wait in a folder beside the result (``.NAME.parquet.work``), keyed by a digest of the plan
and of all parameters, so that a run that was stopped goes on. `SweepResult` holds a row for each scenario.
"""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, SeqPointError
from profilers.files import file_to_write, held_folder, replaced_file
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.projection.rows import NO_EFFECT, NOTHING_CHANGES
from replay.projection.scenarios import (
    GPUS,
    STARTS,
    UNCHANGED,
    Descent,
    Row,
    ScenarioTime,
    SweepPlan,
    TracedSizes,
    job_rows,
    read_plan,
    time_columns,
)
from replay.what_ifs import WhatIf, parse_what_if
from replay.workloads import JobTimer
from seqpoint.graphs import Progress, step_windows, typical_iteration
from seqpoint.projecting import ProjectOptions, project_trace
from seqpoint.sweep_result import SweepResult

#: Most scenarios of a chunk, predicted and replayed: seconds of work. A small sweep is cut into `_CHUNKS`.
_PREDICTED, _REPLAYED, _CHUNKS = 256, 64, 32
#: Least scenarios of a chunk of a trace, which is read for each chunk.
_OF_TRACE = 8
#: Chunks, below which other processes would start for longer than they help.
_SMALL = 12
#: Rounds of a search without a new scenario, after which it ends.
_IDLE_ROUNDS = 200
#: Draws of the parameters for the interval of a scenario of a trace.
_DRAWS = 8
#: Key of the digest of the plan in a result's metadata.
_PLAN = b"seqpoint.plan"


def evaluate(plan: SweepPlan, numbers: Sequence[int]) -> pa.Table:
    """Return the rows of some scenarios, in order; any process can do so with the plan alone.

    Parameters
    ----------
    plan : SweepPlan
        The plan.
    numbers : sequence of int
        Numbers of the scenarios.
    """
    rows = _trace_rows(plan, numbers) if plan.job is None else job_rows(plan, numbers, _timer)
    return pa.Table.from_pylist(rows, schema=plan.schema())


@lru_cache(16)
def _timer(device: str) -> JobTimer:
    """Return the timer of a device, which the chunks of a process share."""
    return JobTimer(find_device(device), load_parameters())


def _trace_rows(plan: SweepPlan, numbers: Sequence[int]) -> list[Row]:
    """Return the rows of scenarios of a trace: the what-ifs of the grid, the device and the what-if, composed."""
    trace, rows, texts = load_trace(Path(plan.trace)), [], []
    (window,) = step_windows(trace, [typical_iteration(trace)])
    known, ranks = window.graph.hardware.device, trace.meta.world_size or len(trace.meta.ranks)
    sizes = TracedSizes.of_graph(window.graph, ranks)
    for number in numbers:
        values, device, what_if = plan.scenario(number)
        steps = [f"{key}:{value}" for key, value in values.items()]
        steps += [f"scale_device:{device}"] * bool(device) + [what_if] * (what_if != UNCHANGED)
        texts.append("+".join(steps))
        rows.append({**values, "device": device or (known and known.name), "what_if": what_if})
    what_ifs = {text: parse_what_if(text or UNCHANGED) for text in dict.fromkeys(texts)}
    times = _projected(trace, what_ifs)
    for row, text in zip(rows, texts, strict=True):
        gpus, tokens = sizes.edited(what_ifs[text])
        row |= {GPUS: gpus, **time_columns(times[text], gpus, tokens)}
    return rows


def _projected(trace: Trace, what_ifs: Mapping[str, WhatIf]) -> dict[str, ScenarioTime]:
    """Return the time of a step under each what-if, by its text; one that changes nothing has the measured time."""
    try:
        result = project_trace(trace, list(what_ifs.values()), ProjectOptions(draws=_DRAWS, jobs=1))
    except SeqPointError as error:
        if len(what_ifs) == 1:
            return dict.fromkeys(what_ifs, ScenarioTime(error=str(error)))
        items, middle = list(what_ifs.items()), len(what_ifs) // 2  # find the one that cannot be applied
        return _projected(trace, dict(items[:middle])) | _projected(trace, dict(items[middle:]))
    base_s = result.projection.baseline_ns / sum(result.chosen.weights) / 1e9
    times = {}
    for text, row in zip(what_ifs, result.rows, strict=True):
        if row.reason.startswith((NOTHING_CHANGES, NO_EFFECT)):
            times[text] = ScenarioTime(base_s, base_s, base_s, "measured")
        elif not row.applied:
            times[text] = ScenarioTime(error=row.reason)
        else:
            step, low, high = (base_s / speedup for speedup in (row.speedup, row.high, row.low))
            times[text] = ScenarioTime(step, low, high, "projected")
    return times


class _Chunks:
    """Finished chunks of a sweep as files of a folder, or none if the result is not written."""

    def __init__(self, folder: Path | None, digest: str) -> None:
        self.folder, self.digest, self.resumed = folder, digest, 0

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.digest}-{name}.parquet"

    def read(self, name: str) -> pa.Table | None:
        """Return a chunk that an earlier run has finished, or None."""
        file = self._file(name)
        if file is None or not file.exists():
            return None
        self.resumed += 1
        return pq.read_table(file)

    def write(self, name: str, table: pa.Table) -> None:
        """Write a finished chunk, whole or not at all."""
        if (file := self._file(name)) is not None:
            write_table(file, table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as a Parquet file, whole or not at all.

    Parameters
    ----------
    path : Path
        File to create or replace.
    table : Table
        The rows.
    """
    with replaced_file(path) as stream:
        pq.write_table(table, stream, compression="zstd")


def _finished(target: Path, digest: str) -> pa.Table | None:
    """Return the rows of a result that an earlier run of the same plan has written, or None."""
    try:
        metadata = pq.read_schema(target).metadata or {}
        return pq.read_table(target) if metadata.get(_PLAN) == digest.encode() else None
    except (OSError, pa.ArrowException):  # there is none, or it is another file
        return None


@contextmanager
def _work_folder(output: Path | None) -> Iterator[Path | None]:
    """Hold the folder of finished chunks beside a result; it stays if the sweep is stopped."""
    if output is None:
        yield None
        return
    folder = output.with_name(f".{output.name}.work")
    with held_folder(folder, output, "another sweep is writing this result"):
        try:
            yield folder
        finally:
            if not any(folder.glob("*.parquet")):
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _pool(executor: Executor | None, jobs: int, scenarios: int, most: int) -> Iterator[Executor | None]:
    """Yield where chunks of at most `most` scenarios are timed: a cluster, other processes, or None for this one."""
    cores = 1 if scenarios < _SMALL * most else len(os.sched_getaffinity(0))
    workers = min(jobs or cores, scenarios)
    if executor is not None or workers < 2:
        yield executor
        return
    # The processes leave an interrupt of the terminal to this one.
    ignore_interrupts = (signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with ProcessPoolExecutor(workers, get_context("spawn"), *ignore_interrupts) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass
class _Runner:
    """Times chunks of scenarios, and counts the scenarios that are done."""

    plan: SweepPlan
    chunks: _Chunks
    pool: Executor | None
    total: int
    progress: Progress | None
    done: int = 0

    def run(self, numbers: Mapping[str, Sequence[int]]) -> dict[str, pa.Table]:
        """Return the rows of each chunk by its name; chunks that are finished are read."""
        tables: dict[str, pa.Table] = {}
        waiting = {}
        for name, scenarios in numbers.items():
            if (table := self.chunks.read(name)) is not None:
                tables[name] = table
                self._count(len(scenarios))
            elif self.pool is None:
                tables[name] = self._keep(name, evaluate(self.plan, scenarios))
            else:
                waiting[self.pool.submit(evaluate, self.plan, scenarios)] = name
        try:
            for future in as_completed(waiting):
                tables[waiting[future]] = self._keep(waiting[future], future.result())
        except BaseException as error:
            for future, name in waiting.items():  # what is finished stays, for a later run
                if name not in tables and future.done() and not future.cancelled() and not future.exception():
                    self.chunks.write(name, future.result())
            if isinstance(error, BrokenProcessPool):
                message = (
                    "a process of the sweep was killed; run it again to go on, with fewer --jobs if memory was short"
                )
                raise InvalidInputError(message) from error
            raise
        return {name: tables[name] for name in numbers}

    def _keep(self, name: str, table: pa.Table) -> pa.Table:
        self.chunks.write(name, table)
        self._count(table.num_rows)
        return table

    def _count(self, scenarios: int) -> None:
        self.done += scenarios
        self.show()

    def show(self) -> None:
        """Show how many scenarios are done."""
        if self.progress:
            self.progress(self.done - 1, self.total, "scenarios")


def sweep(
    plan: SweepPlan | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    executor: Executor | None = None,
    jobs: int = 0,
    progress: Progress | None = None,
    prices: Mapping[str, float] | None = None,
) -> SweepResult:
    """Time the scenarios of a plan: a grid or a search over sizes of a job, devices and what-ifs.

    Parameters
    ----------
    plan : SweepPlan, str or path
        The plan, or its TOML file, as `replay.projection.scenarios.read_plan` describes it.
    output : path, optional
        Parquet file to write. Finished chunks wait beside it until all are done, and a later run goes on from them. If
        it is the result of the same plan, it is read.
    executor : Executor, optional
        Cluster that times the chunks; by default processes of this machine.
    jobs : int
        Processes; 0 for one on each core, 1 for none beside this one.
    progress : callable, optional
        Called with (scenarios done less one, scenarios in all, what).
    prices : mapping of str to float, optional
        US dollars for an hour of a GPU, by name of device: rows of the result then have tokens per $.

    Raises
    ------
    SeqPointError
        The plan cannot be read, no scenario has a time, the file cannot be written, or a process was killed.
    """
    plan = plan if isinstance(plan, SweepPlan) else read_plan(plan)
    prices = {find_device(name).name: price for name, price in (prices or {}).items()}
    if plan.job is not None and (odd := prices.keys() - {find_device(name).name for name in plan.devices}):
        raise InvalidInputError(f"{plan.source}: has no device {min(odd)}, of which a price is given")
    target, digest = None if output is None else _result_file(Path(output)), plan.digest(load_parameters())
    if target is not None and (rows := _finished(target, digest)) is not None:
        return SweepResult(plan, rows, finished=True, prices=prices)
    total = len(plan) if plan.search is None else min(plan.search.evaluations, len(plan))
    most = _PREDICTED if plan.job is not None and set(plan.what_ifs) == {UNCHANGED} else _REPLAYED
    size = min(most, max(-(-total // _CHUNKS), _OF_TRACE if plan.trace else 1))
    # Scenarios of a job stay together; chunks are the same for any number of processes.
    size = -(-size // len(plan.what_ifs)) * len(plan.what_ifs)
    with _work_folder(target) as folder, _pool(executor, jobs, total, most) as pool:
        runner = _Runner(plan, _Chunks(folder, digest), pool, total, progress)
        runner.show()
        if total == len(plan):
            pieces = {f"{i:08d}": range(i, min(i + size, total)) for i in range(0, total, size)}
            table = pa.concat_tables(runner.run(pieces).values())
        else:
            table = _searched(runner)
        result = SweepResult(plan, table, runner.chunks.resumed, prices=prices)
        if result.failed == len(result):
            ((error, _),) = result.errors(1)
            raise InvalidInputError(f"{plan.source}: no scenario has a step time; most often: {error}")
        if target is not None:
            write_table(target, table.replace_schema_metadata({_PLAN: digest}))
    return result


def _result_file(output: Path) -> Path:
    """Return the file of a result, whose name says that it is Parquet."""
    if output.suffix != ".parquet":
        raise InvalidInputError(
            f"{output}: a result is a Parquet file, so give a name that ends in .parquet; for other formats, print it "
            "with --json, or read it with pandas"
        )
    return file_to_write(output)


def _searched(runner: _Runner) -> pa.Table:
    """Return the rows that a search times, in the order of their numbers."""
    plan, tables, found = runner.plan, [], dict[int, float]()
    assert plan.search is not None
    descent = Descent(plan.axes, plan.search.seed)
    idle = 0
    for turn in range(plan.search.evaluations * len(plan.axes) + _IDLE_ROUNDS):
        numbers = [n for n in descent.lines() if n not in found][: runner.total - len(found)]
        idle = 0 if numbers else idle + 1
        if numbers:
            size = -(-len(numbers) // STARTS)
            pieces = {f"{turn:06d}-{i:04d}": numbers[i : i + size] for i in range(0, len(numbers), size)}
            for piece, table in runner.run(pieces).items():
                found |= dict(zip(pieces[piece], plan.search.scores(table).tolist(), strict=True))
                tables.append(table)
        if len(found) == runner.total or idle == _IDLE_ROUNDS:
            break
        descent.move(found)
    rows = pa.concat_tables(tables)
    return rows.take(pa.array(np.argsort(list(found), kind="stable")))
