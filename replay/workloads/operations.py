"""Operations of training jobs that were recorded by rank, stage and micro-batch, and the graph of their dependencies.

A table of operations has a row for each forward or backward pass of a micro-batch, each transfer between stages, and
each exchange of parameters or gradients. `read_operations` reads and checks it. `operation_graph` returns the
operations as a `KernelGraph` in which each waits for what it needs, so that the engine can time the steps anew.

The dependencies are those of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(arXiv 2505.05713): passes of a stage run in the order in which they were recorded; sends follow their pass, and passes
follow their receives; the k-th transfer of a direction begins after the one before it; a transfer or exchange begins
when its last member has started.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.trace.arrays import Bools, Floats, Ints, row_keys
from replay.calibration.tables import InvalidRowsError, SkippedRow, refuse_row, skipped_rows
from replay.graph.assembly import Assembly
from replay.graph.graph import COLLECTIVE_KINDS, Basis, EdgeKind, KernelGraph, Lane, TaskKind

#: Whole-number columns of a table of operations, with the names of the fields that hold them.
_NUMBERS: Mapping[str, str] = {
    "dp_rank_index": "rank",
    "pp_stage_index": "stage",
    "step_index": "step",
    "op_sequence_index": "sequence",
    "model_chunk_index": "chunk",
    "micro_batch_index": "micro_batch",
}
_TIMES = ("start_s", "duration_s")
#: Columns of a table of operations.
OPERATION_COLUMNS: tuple[str, ...] = ("job", "optype", *_NUMBERS, *_TIMES)
_FORWARD, _BACKWARD = "forward-compute", "backward-compute"
_GATHER, _SCATTER, _SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
_EMBEDDING, _CLIP, _OPTIMIZER = "embedding-grads-all-reduce", "optimizer-clip-main-grad", "optimizer"
#: Transfers between stages: the pass that they belong to, and whether they send.
_TRANSFERS: Mapping[str, tuple[str, bool]] = {
    "forward-send": (_FORWARD, True),
    "forward-recv": (_FORWARD, False),
    "backward-send": (_BACKWARD, True),
    "backward-recv": (_BACKWARD, False),
}
#: Operations after the last pass of a stage, in order.
_CLOSING = ("gc", "layernorm-grads-all-reduce", _EMBEDDING, _SCATTER, _SEPARATE, _CLIP, _OPTIMIZER)
#: Kinds of exchanges, by operation. Layer norms are summed over tensor-parallel ranks, of which the table has one.
_EXCHANGES: Mapping[str, str] = {
    **dict.fromkeys(_TRANSFERS, "send_recv"),
    _GATHER: "all_gather",
    _SCATTER: "reduce_scatter",
    **dict.fromkeys((_SEPARATE, _EMBEDDING, _CLIP, "layernorm-grads-all-reduce"), "all_reduce"),
}
#: Operations that a table may have.
OPERATIONS: tuple[str, ...] = (_FORWARD, _BACKWARD, *_TRANSFERS, _GATHER, *_CLOSING)
_CODES: Mapping[str, int] = {name: code for code, name in enumerate(OPERATIONS)}
#: Longest time, s, and largest number of a row: a week, and what sums of keys hold.
_LONGEST_S, _LARGEST = 604_800.0, 1_000_000


@dataclass(frozen=True)
class Operations:
    """Operations of one training job: columns of equal length n, one row an operation.

    Parameters
    ----------
    job : str
        Name of the job.
    operation : array of int64
        Index into `OPERATIONS`.
    rank, stage, step : array of int64
        Data-parallel rank and pipeline stage, each from 0 without gaps, and number of the step.
    sequence : array of int64
        Number among the operations of its kind on its rank and stage in its step, from 0.
    chunk, micro_batch : array of int64
        Chunk of the model and micro-batch of a pass; -1 if the operation has none.
    start_ns, duration_ns : array of float64
        Start after the begin of the step, and duration.
    """

    job: str
    operation: Ints
    rank: Ints
    stage: Ints
    step: Ints
    sequence: Ints
    chunk: Ints
    micro_batch: Ints
    start_ns: Floats
    duration_ns: Floats

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def end_ns(self) -> Floats:
        """End of each operation after the begin of its step."""
        return self.start_ns + self.duration_ns

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steps, ascending."""
        return tuple(np.unique(self.step).tolist())

    @property
    def step_ns(self) -> Floats:
        """Recorded time of each step: to the end of its last operation, shape (n_steps,)."""
        ends = np.zeros(len(self.steps))
        np.maximum.at(ends, self.position, self.end_ns)
        return ends

    @cached_property
    def position(self) -> Ints:
        """Position of the step of each operation in `steps`."""
        return np.searchsorted(np.array(self.steps, dtype=np.int64), self.step)

    @cached_property
    def ranks(self) -> int:
        """Number of data-parallel ranks."""
        return int(self.rank.max()) + 1

    @cached_property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return int(self.stage.max()) + 1

    @cached_property
    def worker(self) -> Ints:
        """Number of the step, rank and stage together of each operation: who runs it, once a step."""
        return (self.position * self.ranks + self.rank) * self.stages + self.stage

    def is_a(self, *names: str) -> Bools:
        """Return the mask of the operations with one of these names."""
        return np.isin(self.operation, [_CODES[name] for name in names])

    def only(self, step: int | None) -> "Operations":
        """Return the operations of one step; all for None.

        Raises
        ------
        NotFoundError
            The job has no such step.
        """
        if step is None:
            return self
        rows = np.flatnonzero(self.step == step)
        if not len(rows):
            some = ", ".join(map(str, self.steps[:8])) + (", ..." if len(self.steps) > 8 else "")
            raise NotFoundError(f"job {self.job[:40]} has no step {step}; it has {some}")
        names = (field.name for field in fields(self) if field.name != "job")
        return Operations(self.job, **{name: getattr(self, name)[rows] for name in names})

    def where(self, row: int) -> str:
        """Return the rank, stage and step of an operation, for messages."""
        return f"rank {self.rank[row]}, stage {self.stage[row]}, step {self.step[row]}"


def is_parquet(path: str | Path) -> bool:
    """Return whether a path is a file that is Parquet by its name or its first bytes."""
    path = Path(path)
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return path.suffix == ".parquet" or stream.read(len(_MAGIC)) == _MAGIC


#: First bytes of a Parquet file.
_MAGIC = b"PAR1"


def is_operations(path: str | Path) -> bool:
    """Return whether a path is a Parquet file that has columns of a table of operations, three at least."""
    path = Path(path)
    if path.suffix != ".parquet" or not path.is_file():
        return False
    try:
        return len(set(OPERATION_COLUMNS) & set(pq.read_schema(path).names)) >= 3
    except (pa.ArrowException, OSError):
        return False


def read_operations(path: str | Path) -> dict[str, Operations]:
    """Read the operations of every job in a Parquet file.

    Parameters
    ----------
    path : str or Path
        File with `OPERATION_COLUMNS`: ``job``, ``optype`` (`OPERATIONS`), whole numbers, and times in seconds. Other
        columns are not read.

    Returns
    -------
    dict of str to Operations
        Jobs by name, in the order of names.

    Raises
    ------
    NotFoundError
        There is no such file.
    BrokenFileError
        It is no Parquet file.
    InvalidInputError
        A column or value is missing, a time is negative or no number, an operation is unknown, ranks, stages or
        sequences leave gaps, or a table has no operation. The message names the file and the row, from 1.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; a table of operations is one Parquet file")
    try:
        names = pq.read_schema(path).names
        missing = [name for name in OPERATION_COLUMNS if name not in names]
        if missing:
            raise InvalidInputError(
                f"{path}: no column {missing[0]!r}; operations need {', '.join(OPERATION_COLUMNS)} (docs/stragglers.md)"
            )
        table = pq.read_table(path, columns=list(OPERATION_COLUMNS))
    except (pa.ArrowException, OSError) as error:
        raise BrokenFileError(
            f"{path}: no readable Parquet file, so no table of operations; it may be cut off or damaged ({error})"
        ) from error
    if not len(table):
        raise InvalidInputError(f"{path}: the table has no operation")
    table = _without_jobs(table, skipped_rows(path))
    columns, jobs = _columns(table, path), _texts(table, "job", path)
    of_jobs = {}
    for name in sorted(set(jobs.tolist())):
        rows = np.flatnonzero(jobs == name)
        operations = Operations(name, **{key: values[rows] for key, values in columns.items()})
        try:
            _check_numbers(operations)
        except InvalidInputError as error:
            refuse_row(path, f"job {name[:40]}", error)
            continue
        of_jobs[name] = operations
    return of_jobs


#: Column of the numbers of the rows in the file, from 0.
_ROW = "row of the file"


def _without_jobs(table: pa.Table, rows: Ints) -> pa.Table:
    """Return the table with the numbers of its rows, and without the jobs of some rows: a job needs all of them."""
    table = table.append_column(_ROW, pa.array(np.arange(len(table))))
    if not len(rows):
        return table
    job = table["job"].cast(pa.string())
    of_job = pc.is_in(job, job.take(pa.array(rows)).combine_chunks().drop_null())
    return table.filter(pc.invert(pc.or_(of_job, pc.is_in(table[_ROW], pa.array(rows)))))


def _refuse(table: pa.Table, path: Path, problems: Iterable[tuple[int, str]]) -> None:
    """Raise an error that names rows with their problems, if there are any."""
    if refused := [SkippedRow(str(path), table[_ROW][row].as_py() + 1, problem) for row, problem in problems]:
        raise InvalidRowsError(refused)


def _texts(table: pa.Table, name: str, path: Path) -> npt.NDArray[Any]:
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise InvalidInputError(f"{path}: column {name!r} holds {column.type}, not text")
    _refuse(table, path, ((row, f"no {name}") for row in np.flatnonzero(np.asarray(column.is_null())).tolist()))
    return np.asarray(column.to_numpy(), dtype=np.str_)


def _columns(table: pa.Table, path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the checked columns of a table by the fields of `Operations`."""
    texts = _texts(table, "optype", path)
    names, index = np.unique(texts, return_inverse=True)
    unknown = np.flatnonzero(~np.isin(texts, list(_CODES))).tolist()
    known = f"there are {', '.join(OPERATIONS)}"
    _refuse(table, path, ((row, f"no operation {str(texts[row])!r:.60}; {known}") for row in unknown))
    columns = {"operation": np.array([_CODES[str(name)] for name in names], dtype=np.int64)[index]}
    for name, field in _NUMBERS.items():
        least = -1 if field in ("chunk", "micro_batch") else 0
        columns[field] = _numbers(table, name, (least, _LARGEST), path).astype(np.int64)
    for name in _TIMES:
        columns[f"{name[:-2]}_ns"] = np.rint(1e9 * _numbers(table, name, (0.0, _LONGEST_S), path))
    return columns


def _numbers(table: pa.Table, name: str, limits: tuple[float, float], path: Path) -> Floats:
    """Return a column of finite numbers within limits; -1 of a whole number stands for none."""
    column, whole = table[name], name in _NUMBERS
    if not (pa.types.is_integer(column.type) or (pa.types.is_floating(column.type) and not whole)):
        raise InvalidInputError(
            f"{path}: column {name!r} holds {column.type}, not {'whole numbers' if whole else 'seconds'}"
        )
    values = np.asarray(pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy())
    bad = np.flatnonzero(~((values >= limits[0]) & (values <= limits[1]))).tolist()
    shown = {row: "missing" if np.isnan(values[row]) else f"{values[row]:g}" for row in bad}
    rule = f"it is {limits[0]:g} to {limits[1]:g}"
    _refuse(table, path, ((row, f"{name} is {text}; {rule}") for row, text in shown.items()))
    return values


def _check_numbers(operations: Operations) -> None:
    """Raise an error if ranks or stages leave gaps, a worker has no pass, or an operation is there twice."""
    for name in ("rank", "stage"):
        present = np.unique(getattr(operations, name))
        if len(present) != present[-1] + 1:
            gap = int(np.flatnonzero(present != np.arange(len(present)))[0])
            raise InvalidInputError(
                f"no operation of {name} {gap}, but of {name} {present[-1]}; number them from 0 without gaps"
            )
    workers = len(operations.steps) * operations.ranks * operations.stages
    if 2 * workers > len(operations):
        raise InvalidInputError(
            f"{len(operations)} operations for {operations.ranks} ranks of {operations.stages} stages in "
            f"{len(operations.steps)} steps; each has a {_FORWARD} and a {_BACKWARD} at least"
        )
    for name in (_FORWARD, _BACKWARD):
        passes = np.bincount(operations.worker[operations.is_a(name)], minlength=workers)
        if not passes.all():
            step, worker = divmod(int(np.flatnonzero(passes == 0)[0]), operations.ranks * operations.stages)
            rank, stage = divmod(worker, operations.stages)
            raise InvalidInputError(f"no {name} on rank {rank}, stage {stage} in step {operations.steps[step]}")
    key = (operations.worker * len(OPERATIONS) + operations.operation) * (_LARGEST + 1) + operations.sequence
    order = np.argsort(key, kind="stable")
    twice = np.flatnonzero(np.diff(key[order]) == 0)
    if len(twice):
        row = int(order[twice[0] + 1])
        raise InvalidInputError(
            f"{OPERATIONS[operations.operation[row]]} {operations.sequence[row]} is there twice "
            f"({operations.where(row)})"
        )


@dataclass(frozen=True)
class OperationGraph:
    """Operations as a graph, in which exchanges take their transfer alone and wait for their members.

    Parameters
    ----------
    operations : Operations
        The operations.
    graph : KernelGraph
        All steps, each from time 0; an iteration of the graph is a position in `Operations.steps`.
    task : array of int64, shape (n_operations,)
        Task of each operation.
    transfer_ns : array of float64, shape (n_operations,)
        Duration of each operation without waiting: of an exchange from the start of its last member to its own end.
    micro_batch : array of int64, shape (n_operations,)
        Micro-batch of passes and of their transfers; -1 for others.
    early : int
        Exchanges that end before their last member starts, because clocks differ; they take no time.
    """

    operations: Operations
    graph: KernelGraph
    task: Ints
    transfer_ns: Floats
    micro_batch: Ints
    early: int


def operation_graph(operations: Operations) -> OperationGraph:
    """Return the operations of a job as a graph of tasks that share nothing.

    Parameters
    ----------
    operations : Operations
        Operations of one job.

    Raises
    ------
    InvalidInputError
        The transfers do not fit the passes: a receive without a pass, or a send without a receive.
    """
    group, micro_batch = np.full(len(operations), -1), operations.micro_batch.copy()
    edges = [*_order(operations), *_transfers(operations, group, micro_batch), *_closing(operations)]
    _exchanges(operations, group)
    transfer_ns, early = _transfer_times(operations, group)
    meets = group >= 0
    assembly = Assembly()
    workers = operations.rank * operations.stages + operations.stage
    # A thread of a worker without a device: its operations share nothing, so the engine needs no event for them.
    lanes = np.array([assembly.number_lane(Lane(n, None, 0)) for n in range(int(workers.max()) + 1)], dtype=np.int64)
    names = assembly.number_names(operations.operation, OPERATIONS)
    common = {"iteration": operations.position, "basis": float(Basis.MEASURED)}
    kinds = np.array([_exchange_kind(name) for name in OPERATIONS])[operations.operation]
    task = assembly.tasks(
        names,
        lanes[workers],
        common
        | {
            "kind": np.where(kinds >= 0, int(TaskKind.COLLECTIVE), int(TaskKind.KERNEL)),
            "collective": kinds,
            "duration_ns": transfer_ns,
        },
    )
    marks = {key: values[meets] for key, values in common.items() if isinstance(values, np.ndarray)}
    begin = task.copy()
    begin[meets] = assembly.tasks("arrival", lanes[workers[meets]], marks | {"kind": int(TaskKind.MARK)})
    _, first, member = np.unique(group[meets], return_index=True, return_inverse=True)
    met = assembly.tasks("all have started", -1, {"kind": int(TaskKind.MARK), "iteration": marks["iteration"][first]})
    assembly.edges(begin[meets], met[member], kind=EdgeKind.RENDEZVOUS)
    assembly.edges(met[member], task[meets], kind=EdgeKind.RENDEZVOUS)
    for source, target in edges:
        assembly.edges(task[source], begin[target])
    return OperationGraph(operations, assembly.graph(), task, transfer_ns, micro_batch, early)


def _exchange_kind(name: str) -> int:
    return COLLECTIVE_KINDS.index(_EXCHANGES[name]) if name in _EXCHANGES else -1


Pairs = tuple[Ints, Ints]


def _chains(rows: Ints, key: Ints) -> Pairs:
    """Return pairs of rows that follow each other with one key; `rows` are sorted by key."""
    same = np.flatnonzero(key[rows][1:] == key[rows][:-1])
    return rows[same], rows[same + 1]


def _sorted(operations: Operations, rows: Ints, *by: npt.NDArray[Any]) -> Ints:
    """Return rows in the order of workers, then of the given columns, the first first."""
    return rows[np.lexsort((*(column[rows] for column in reversed(by)), operations.worker[rows]))]


def _passes(operations: Operations) -> Ints:
    """Return the rows of the passes in the order of workers, and in which each worker ran them."""
    rows = np.flatnonzero(operations.is_a(_FORWARD, _BACKWARD))
    return _sorted(operations, rows, operations.start_ns, operations.sequence, operations.operation)


def _order(operations: Operations) -> list[Pairs]:
    """Return the order of passes of a worker, of its transfers of a kind, and of its exchanges of parameters."""
    worker, pairs = operations.worker, [_chains(_passes(operations), operations.worker)]
    columns = (operations.start_ns, operations.sequence, operations.operation)
    for names in ([name] for name in _TRANSFERS):
        rows = np.flatnonzero(operations.is_a(*names))
        pairs.append(_chains(_sorted(operations, rows, *columns), worker))
    rows = np.flatnonzero(operations.is_a(_GATHER, _SCATTER))
    return [*pairs, _chains(_sorted(operations, rows, *columns), worker)]


def _transfers(operations: Operations, group: Ints, micro_batch: Ints) -> list[Pairs]:
    """Return what transfers and passes wait for; write the group and the micro-batch of each transfer."""
    stages, worker = operations.stages, operations.worker
    part = np.maximum(operations.chunk, 0) * stages + operations.stage
    parts, most = int(part.max()) + 1, int(operations.micro_batch.max()) + 1
    step_rank = operations.position * operations.ranks + operations.rank
    pairs: list[Pairs] = []
    for name, (computes, sends) in _TRANSFERS.items():
        forward = computes == _FORWARD
        ends = parts - 1 if forward == sends else 0  # the part of the model that has no such transfer
        passes = _sorted(operations, np.flatnonzero(operations.is_a(computes)), operations.sequence)
        needing = passes[part[passes] != ends]
        rows = _sorted(operations, np.flatnonzero(operations.is_a(name)), operations.sequence)
        _check_matches(operations, rows, needing, (name, computes))
        micro_batch[rows] = operations.micro_batch[needing]
        receiver = part[needing] + ((1 if forward else -1) if sends else 0)
        key = (step_rank[rows] * parts + receiver) * most + micro_batch[rows]
        group[rows] = 2 * key + forward
        if sends:
            pairs.append((needing, rows))
        else:
            before, after = _chains(passes, worker)
            previous = np.full(len(operations), -1)
            previous[after] = before
            waits = previous[needing] >= 0
            pairs += [(rows, needing), (previous[needing][waits], rows[waits])]
    _check_pairs(operations, group)
    return [*pairs, *_first_backward(operations)]


def _check_matches(operations: Operations, rows: Ints, needing: Ints, names: tuple[str, str]) -> None:
    """Raise an error unless each worker has as many transfers of a kind as passes that need them."""
    workers = int(operations.worker.max()) + 1
    counts = [np.bincount(operations.worker[each], minlength=workers) for each in (rows, needing)]
    wrong = np.flatnonzero(counts[0] != counts[1])
    if len(wrong):
        row = int(np.flatnonzero(operations.worker == wrong[0])[0])
        raise InvalidInputError(
            f"job {operations.job[:40]}: {counts[0][wrong[0]]} {names[0]} for {counts[1][wrong[0]]} {names[1]} that "
            f"need one ({operations.where(row)})"
        )


def _check_pairs(operations: Operations, group: Ints) -> None:
    """Raise an error unless each transfer has a sender and a receiver."""
    rows = np.flatnonzero(group >= 0)
    _, member, count = np.unique(group[rows], return_inverse=True, return_counts=True)
    alone = np.flatnonzero(count[member] != 2)
    if len(alone):
        row = int(rows[alone[0]])
        raise InvalidInputError(
            f"job {operations.job[:40]}: {OPERATIONS[operations.operation[row]]} {operations.sequence[row]} has "
            f"no partner on the other stage ({operations.where(row)})"
        )


def _first_backward(operations: Operations) -> list[Pairs]:
    """Let the first transfers of gradients of a worker wait for the last forward pass but one before them.

    A worker starts its first receive of gradients together with the send of its last warm-up pass.
    """
    passes = _passes(operations)
    worker = operations.worker[passes]
    rows = np.flatnonzero(operations.is_a(_BACKWARD)[passes])
    _, nth = np.unique(worker[rows], return_index=True)
    first = rows[nth]
    is_later = first >= 2
    first = first[is_later][worker[first[is_later] - 2] == worker[first[is_later]]]
    before = np.full(int(operations.worker.max()) + 1, -1)
    before[worker[first]] = passes[first - 2]
    pairs = []
    for name in ("backward-recv", "backward-send"):
        transfers = _sorted(operations, np.flatnonzero(operations.is_a(name)), operations.sequence)
        _, nth = np.unique(operations.worker[transfers], return_index=True)
        source, target = before[operations.worker[transfers[nth]]], transfers[nth]
        pairs.append((source[source >= 0], target[source >= 0]))
    return pairs


def _closing(operations: Operations) -> list[Pairs]:
    """Return what exchanges of parameters and gradients, the optimizer and the first passes wait for."""
    worker, is_overlapped = operations.worker, bool(operations.is_a(_SEPARATE).any())
    place = np.array([_CLOSING.index(name) if name in _CLOSING else -1 for name in OPERATIONS])[operations.operation]
    closing = (place >= 0) & ~(operations.is_a(_SCATTER) & is_overlapped)
    rows = _sorted(operations, np.flatnonzero(closing), place, operations.sequence)
    passes = _sorted(operations, np.flatnonzero(operations.is_a(_FORWARD, _BACKWARD)), operations.end_ns)
    last = np.empty(int(worker.max()) + 1, dtype=np.int64)
    last[worker[passes]] = passes  # the last of each worker stays
    _, first = np.unique(worker[rows], return_index=True)
    pairs = [_chains(rows, worker), (last[worker[rows[first]]], rows[first])]
    of_chunk = row_keys(worker, np.maximum(operations.chunk, 0))
    # The last gather of a chunk comes before the first forward pass of that chunk.
    pairs.append(_by_chunk(operations, of_chunk, (_GATHER, True), (_FORWARD, False)))
    if is_overlapped:
        pairs.append(_by_chunk(operations, of_chunk, (_BACKWARD, True), (_SCATTER, False)))
        scatters = _sorted(operations, np.flatnonzero(operations.is_a(_SCATTER)), operations.sequence)
        final = np.full(len(last), -1)
        final[worker[scatters]] = scatters
        after = rows[~operations.is_a("gc")[rows]]
        _, nth = np.unique(worker[after], return_index=True)
        source = final[worker[after[nth]]]
        pairs.append((source[source >= 0], after[nth][source >= 0]))
    return pairs


def _by_chunk(operations: Operations, key: Ints, before: tuple[str, bool], after: tuple[str, bool]) -> Pairs:
    """Return the first or last operation of a name, and that of another name, of each worker and chunk with both."""
    sides = []
    for name, is_last in (before, after):
        rows = np.flatnonzero(operations.is_a(name))
        rows = _sorted(operations, rows, operations.start_ns, operations.sequence)
        chosen = np.full(int(key.max()) + 1, -1)
        order = rows if is_last else rows[::-1]
        chosen[key[order]] = order
        sides.append(chosen)
    both = (sides[0] >= 0) & (sides[1] >= 0)
    return sides[0][both], sides[1][both]


def _exchanges(operations: Operations, group: Ints) -> None:
    """Write the groups of the exchanges that are no transfers: over ranks, over two stages, or over all workers."""
    base = int(group.max()) + 1
    step, rank, stage = operations.position, operations.rank, operations.stage
    across = (step * operations.stages + stage) * (int(operations.sequence.max()) + 1) + operations.sequence
    keys = dict.fromkeys((_GATHER, _SCATTER, _SEPARATE), across)
    keys |= {_EMBEDDING: step * operations.ranks + rank, _CLIP: step}
    for name, key in keys.items():
        rows = operations.is_a(name)
        group[rows] = base + key[rows]
        base = max(base, int(group.max()) + 1)


def _transfer_times(operations: Operations, group: Ints) -> tuple[Floats, int]:
    """Return the durations without waiting, and how many exchanges end before their last member starts."""
    rows = np.flatnonzero(group >= 0)
    _, member = np.unique(group[rows], return_inverse=True)
    latest = np.full(int(member.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(latest, member, operations.start_ns[rows])
    transfer = operations.end_ns[rows] - latest[member]
    durations = operations.duration_ns.copy()
    durations[rows] = np.maximum(transfer, 0.0)
    return durations, int((transfer < 0).sum())


def balanced_durations(graph: OperationGraph) -> Floats:
    """Return the duration of each operation if all of its kind took the same, shape (n_operations,), ns.

    Passes, the optimizer and collection of garbage take the mean of the job, over steps, ranks, stages and
    micro-batches; exchanges take the median of their transfers, which waits and retries do not move.
    """
    durations, operations = np.empty(len(graph.task)), graph.operations
    for code in np.unique(operations.operation).tolist():
        rows = operations.operation == code
        centre = np.median if OPERATIONS[code] in _EXCHANGES else np.mean
        durations[rows] = centre(graph.transfer_ns[rows])
    return durations


def operation_labels(graph: OperationGraph) -> dict[str, tuple[Ints, Sequence[str]]]:
    """Return labels of the tasks: a number each, -1 for none, and the names of the numbers.

    Tasks are labelled by rank, stage, operation, worker (rank/stage) and micro-batch. Sends and receives of a direction
    are one operation, as in the paper.
    """
    operations, tasks = graph.operations, len(graph.graph.tasks)
    kinds = [f"{name.split('-')[0]}-pp-comm" if name in _TRANSFERS else name for name in OPERATIONS]
    names = list(dict.fromkeys(kinds))
    columns: dict[str, tuple[Ints, Sequence[str]]] = {
        "rank": (operations.rank, [str(n) for n in range(operations.ranks)]),
        "stage": (operations.stage, [str(n) for n in range(operations.stages)]),
        "operation": (np.array([names.index(kind) for kind in kinds])[operations.operation], names),
        "worker": (
            operations.rank * operations.stages + operations.stage,
            [f"{rank}/{stage}" for rank in range(operations.ranks) for stage in range(operations.stages)],
        ),
        "micro_batch": (graph.micro_batch, [str(n) for n in range(int(graph.micro_batch.max(initial=-1)) + 1)]),
    }
    labels = {}
    for dimension, (values, known) in columns.items():
        of_task = np.full(tasks, -1)
        of_task[graph.task] = values
        labels[dimension] = (of_task, known)
    return labels
