"""Sweeps: step times of thousands of scenarios, from a plan.

`sweep` times the scenarios of a plan (`replay.projection.scenarios.read_plan`) in chunks, here, in processes or on a
Dask cluster. Finished chunks wait in a folder beside the result (``.NAME.parquet.work``), keyed by a digest of the plan
and of all parameters, so that a run that was stopped goes on. `SweepResult` holds a row for each scenario.
"""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from math import inf, isfinite, nan
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError, SeqPointError
from profilers.files import file_to_write, held_folder, replaced_file
from profilers.trace.arrays import Bools
from profilers.trace.store import load_trace
from profilers.trace.trace import Trace
from replay.costs.shipped import load_parameters
from replay.projection.rows import NO_EFFECT, NOTHING_CHANGES
from replay.projection.scenarios import (
    COLUMNS,
    GPUS,
    STARTS,
    UNCHANGED,
    Descent,
    Row,
    ScenarioTime,
    Search,
    SweepPlan,
    TracedSizes,
    job_rows,
    read_plan,
    time_columns,
)
from replay.what_ifs import WhatIf, parse_what_if
from replay.workloads import JobTimer
from replay.workloads.job_memory import FITS, usable_bytes
from seqpoint.graphs import Progress, step_windows, typical_iteration
from seqpoint.notebook import TOP, DataFrame, Result, Table, counted, table_of
from seqpoint.projecting import ProjectOptions, project_trace
from seqpoint.units import duration, tokens_per_dollar

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
#: Most what-ifs whose Pareto fronts are printed, beside the main one.
_FRONTS = 3
#: Times that differ by less, relative, are the same.
_ROUNDING = 1e-9
#: Key of the digest of the plan in a result's metadata.
_PLAN = b"seqpoint.plan"
_OF_MEMORY = ("memory_bytes", "usable_bytes")


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
) -> "SweepResult":
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


@dataclass(frozen=True, repr=False)
class SweepResult(Result):
    """Scenarios of a sweep with their times, memory and errors.

    Parameters
    ----------
    plan : SweepPlan
        The plan.
    rows : Table
        A row for each scenario that was timed: values of the grid, then ``device`` to ``error``.
    resumed : int
        Chunks that an earlier run had finished.
    finished : bool
        Whether the result was read, because an earlier run of the same plan had written it.
    prices : mapping of str to float
        US dollars for an hour of a GPU, by name of device.
    """

    heading = "Sweep"

    plan: SweepPlan
    rows: pa.Table
    resumed: int = 0
    finished: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def failed(self) -> int:
        """Number of scenarios without a time."""
        return int(self.rows["step_s"].null_count)

    def errors(self, most: int = 5) -> list[tuple[str, int]]:
        """Return the most frequent errors and how many scenarios have each."""
        counts = Counter({row["values"]: row["counts"] for row in self.rows["error"].value_counts().to_pylist()})
        return [(text, count) for text, count in counts.most_common(most + 1) if text][:most]

    def table(self) -> DataFrame:
        """Return a row for each scenario; times in s, memory in bytes."""
        frame: DataFrame = self.rows.to_pandas()
        return frame

    @cached_property
    def main(self) -> str:
        """The what-if that stands for what can be run: none, or the first of the plan."""
        return UNCHANGED if UNCHANGED in self.plan.what_ifs else self.plan.what_ifs[0]

    @cached_property
    def devices(self) -> list[str]:
        """Names of the devices, in the order of the rows."""
        return [name or "" for name in self.rows["device"].unique().to_pylist()]

    def usable_bytes(self, device: str) -> float | None:
        """Return the bytes of a device that a job can use; None for a trace, or if the memory is unknown."""
        is_known = self.plan.job is not None and "memory_gb" in find_device(device).figures
        return usable_bytes(find_device(device)) if is_known else None

    def pareto(self) -> list[Row]:
        """Return the rows that no other row of the same what-if and device beats in both devices and step time.

        If steps differ in tokens, the time of a token stands for that of a step. Scenarios that do not fit into memory
        are left out. Rows are by what-if, that of `main` first, then by device and by number of devices.
        """
        what_ifs, devices = (_numbered(self.rows[name]) for name in ("what_if", "device"))
        gpus = self.rows["gpus"].to_numpy()
        step = self.rows["step_s"].fill_null(inf).to_numpy()
        if self.work_varies:
            step = 1 / self.rows["tokens_per_s"].fill_null(nan).to_numpy()
        step = np.where(self.rows["fits"].fill_null(True).to_numpy(), step, inf)
        front, best = [], dict[tuple[int, int], float]()
        for i in np.lexsort((step, gpus, devices, what_ifs, ~self._asked())).tolist():
            if step[i] < best.get(key := (what_ifs[i], devices[i]), inf):
                best[key] = step[i]
                front.append(i)
        return self._taken(front)

    @cached_property
    def work_varies(self) -> bool:
        """Whether steps differ in tokens."""
        tokens = pc.min_max(pc.multiply(self.rows["step_s"], self.rows["tokens_per_s"])).as_py()
        return tokens["min"] is not None and bool(tokens["max"] > (1 + _ROUNDING) * tokens["min"])

    def _taken(self, numbers: Sequence[int]) -> list[Row]:
        rows: list[Row] = self.rows.take(pa.array(numbers, pa.int64())).to_pylist()
        if self.prices:
            for row in rows:
                price, rate = self.prices.get(row["device"] or "", nan), _or_nan(row["tokens_per_gpu_s"])
                row["tokens_per_dollar"] = tokens_per_dollar(rate, price) if rate * price > 0 else None
        return rows

    def _asked(self, device: str | None = None) -> Bools:
        """Return whether each row is of the main what-if, and of a device if one is given."""
        asked = pc.equal(self.rows["what_if"], self.main)
        if device is not None:
            asked = pc.and_(asked, pc.equal(self.rows["device"].fill_null(""), device))
        return np.asarray(asked, dtype=bool)

    def best(self, device: str | None = None) -> Row | None:
        """Return the row with the smallest objective of the search, or the shortest step; None if none is allowed.

        Parameters
        ----------
        device : str, optional
            Device of the row; by default any. Rows of a what-if do not count, unless the plan has nothing else.
        """
        search = self.plan.search or Search(must_fit=True)
        scores = np.where(self._asked(device), search.scores(self.rows), inf)
        best = int(np.argmin(scores))
        return self._taken([best])[0] if isfinite(scores[best]) else None

    def cheapest(self) -> Row | None:
        """Return the row with the most tokens per $ that fits; None without prices or tokens."""
        rates = self.rows["tokens_per_gpu_s"].fill_null(0.0).to_numpy()
        costs = np.array([self.prices.get(device or "", inf) for device in self.rows["device"].to_pylist()])
        fits = self.rows["fits"].fill_null(True).to_numpy(zero_copy_only=False)
        scores = np.where(self._asked() & fits, rates / costs, 0.0)
        most = int(np.argmax(scores))
        return self._taken([most])[0] if scores[most] > 0 else None

    def nearest(self, device: str | None = None, most: int = 5) -> list[Row]:
        """Return rows that do not fit, smallest share of the usable memory first, with `usable_bytes`.

        Parameters
        ----------
        device : str, optional
            Device of the rows; by default any.
        most : int
            Most rows.
        """
        limits = {device: self.usable_bytes(device) for device in self.devices}
        usable = np.array([limits[device or ""] or nan for device in self.rows["device"].to_pylist()])
        share = self.rows["memory_bytes"].fill_null(0).to_numpy() / usable
        share[~self._asked(device)] = 0
        near = [i for i in np.argsort(share, kind="stable").tolist() if share[i] > 1][:most]
        rows = zip(self._taken(near), usable[near].tolist(), share[near].tolist(), strict=True)
        return [{**row, "usable_bytes": limit, "memory_share": part} for row, limit, part in rows]

    def plot(self) -> Any:
        """Return step time against devices with the Pareto fronts, as a HoloViews object."""
        from seqpoint.plots import pareto_front

        return pareto_front(self.table(), self.pareto(), self.main)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint sweep --json` prints."""
        counts = {"scenarios": len(self.plan), "tried": len(self), "failed": self.failed}
        errors = [{"error": text, "count": count} for text, count in self.errors()]
        devices = [
            {"device": name, "usable_bytes": self.usable_bytes(name), "best": self.best(name)} for name in self.devices
        ]
        found = {
            "errors": errors,
            "best": self.best(),
            "cheapest": self.cheapest(),
            "devices": devices,
            "pareto": self.pareto(),
        }
        return {**counts, **found, "nearest": self.nearest(), "rows": self.rows.to_pylist()}

    def summary(self) -> list[str]:
        """Return how many scenarios have a time and fit, why the others do not, and the best of each device."""
        no_room = int((self.rows["fits"].fill_null(True).to_numpy(zero_copy_only=False) == 0).sum())
        timed = len(self) - self.failed
        searched = "" if len(self) == len(self.plan) else f" of {len(self):,} that the search tried"
        of = f"{counted(len(self.plan), 'scenario')}: {timed:,}{searched}"
        sentences = [f"{of} {'has' if timed == 1 else 'have'} a step time"]
        if no_room:
            sentences.append(f"{counted(no_room, 'scenario')} {'does' if no_room == 1 else 'do'} not fit into memory")
        for text, count in self.errors():
            sentences.append(f"{counted(count, 'scenario')} {'has' if count == 1 else 'have'} no step time: {text}")
        sentences += [self._of_device(device) for device in self.devices[:TOP]]
        if row := self.cheapest():
            rate = f"{row['tokens_per_dollar']:,.0f} on {row['gpus']:,} {row['device']}"
            sentences.append(f"most tokens per $: {rate}{self._values(row)}, {duration(1e9 * row['step_s'])} a step")
        if GPUS in self.plan.keys:
            sentences.append(
                "gpus of the grid keeps the global batch (strong scaling); `seqpoint scaling --gpus` adds replicas, "
                "each with its batch (weak scaling)"
            )
        return sentences

    def _of_device(self, device: str) -> str:
        """Return the best row of a device and its usable memory, in a sentence."""
        usable, best = self.usable_bytes(device), self.best(device)
        limit = "" if usable is None else f"usable memory of {device}: {usable / 1e9:.1f} GB; "
        if best is None:
            reason = "no scenario has a step time that the plan allows"
            for row in self.nearest(device, 1):
                reason = f"no scenario fits: the smallest needs {row['memory_bytes'] / 1e9:.1f} GB"
            return f"{limit}{reason}" if limit else f"{device}: {reason}"
        is_time = self.plan.search is None or self.plan.search.objective == "time"
        least = "shortest step" if is_time else "fewest GPU seconds"
        return (
            f"{limit}{least} on {device or 'the device'}: {duration(1e9 * best['step_s'])} on "
            f"{counted(best['gpus'], 'GPU')}{self._values(best)}"
        )

    def _values(self, row: Row) -> str:
        """Return the values of the grid of a row, in brackets."""
        keys = [key for key in self.plan.keys if key not in COLUMNS and row[key] is not None]
        values = ", ".join(f"{key.replace('_', ' ')} {row[key]}" for key in keys)
        return f" ({values})" * bool(values)

    def tables(self) -> list[Table]:
        """Return a Pareto front for each of the first what-ifs as text; if nothing fits, what is nearest to it."""
        rows = {what_if: list(group) for what_if, group in groupby(self.pareto(), lambda row: row["what_if"])}
        title = f"Pareto front of each device: fewest GPUs, {'most tokens/s' if self.work_varies else 'shortest step'}"
        tables = [self._table(title, rows.pop(self.main))] if self.main in rows else []
        if not tables and (near := self.nearest()):
            tables = [self._table("Nearest to fit: no scenario fits into memory", near)]
        return tables + [self._table(f"Pareto front under {name}", rows[name]) for name in list(rows)[:_FRONTS]]

    def _table(self, title: str, rows: Sequence[Row]) -> Table:
        """Return rows as text, without the columns that none of them has."""
        columns = {f"{key.replace('_', ' ')}~": "{" + key + "}" for key in self.plan.keys if key not in COLUMNS}
        columns |= {"device~": "{device}", "GPUs": "{gpus:,d}"}
        columns |= {"step time": "{step_ns:time}", "low": "{low_ns:time}", "high": "{high_ns:time}"}
        if any(row["tokens_per_gpu_s"] is not None for row in rows):
            columns["tokens/s per GPU"] = "{tokens_per_gpu_s:,.0f}"
        if any(row.get("tokens_per_dollar") is not None for row in rows):
            columns["tokens per $"] = "{tokens_per_dollar:,.0f}"
        if any(row["memory_bytes"] is not None for row in rows):
            columns["memory GB"] = "{memory_gb:.1f}"
        if any(row["fit"] == FITS[1] for row in rows):
            columns["fit~"] = "{fit}"
        if "usable_bytes" in rows[0]:
            columns |= {"usable GB": "{usable_gb:.1f}", "memory %": "{memory_share:.0%}"}
        return table_of(title, columns, [_in_units(row) for row in rows])


def _in_units(row: Row) -> Row:
    """Return a row with times in ns and memory in GB."""
    times = {name.replace("_s", "_ns"): 1e9 * _or_nan(row[name]) for name in ("step_s", "low_s", "high_s")}
    return row | times | {name.replace("_bytes", "_gb"): _or_nan(row.get(name)) / 1e9 for name in _OF_MEMORY}


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _numbered(column: pa.ChunkedArray) -> Any:
    """Return the number of each text, in the order of their first rows."""
    return column.fill_null("").combine_chunks().dictionary_encode().indices.to_numpy()
