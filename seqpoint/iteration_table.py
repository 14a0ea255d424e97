"""Table of iterations with their sequence lengths and statistics, and candidates for the length.

`iteration_table` makes it from a trace, and `read_log` from a log. `find_lengths` reads the shapes of the first call of
each operator in each iteration. A dimension that takes several values is a candidate. Candidates with equal values in
all iterations are one, named by the operator that comes first. They are ranked by Spearman's correlation with the time
in kernels, or with the step time if the trace has no kernels. Of equal correlations, the value that most dimensions
share comes first: a length is an input of many operators, and its product with the batch of few.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, integers, strings
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.serving import serving_steps
from profilers.trace.steps import is_file, step_times
from profilers.trace.trace import Trace
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of

#: Statistics that a trace gives for each iteration, with their units. "duration" is the step time, from the completion
#: of the iteration before to its own. "latency" counts from the start of the iteration on the host.
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "kernel_time": "ns",
        "communication_time": "ns",
        "copy_time": "ns",
        "kernels": "1",
        "duration": "ns",
        "latency": "ns",
    }
)


_TIMES = tuple(name for name, unit in UNITS.items() if unit == "ns")
#: Factor of the rank in the code of an iteration, above any number of an iteration.
_RANK_CODE = 1 << 32


@dataclass(frozen=True, repr=False)
class IterationTable(Result):
    """Iterations of one or more ranks, ordered by (rank, start).

    Parameters
    ----------
    rank, iteration : array of int64, shape (n,)
        Rank and number of each iteration.
    start_ns : array of int64, shape (n,)
        Start on the host.
    sequence_length : array of float64, shape (n,)
        Padded sequence length; NaN if unknown.
    statistics : mapping of str to array of float64, shape (n,)
        Statistics by name, in the units of `UNITS`, or of the user for a log.
    found_by, length_found_by : tuple of str
        How the limits and the length of each iteration were found.
    files : tuple of str
        Name of the file that each iteration is, or an empty text if files are no iterations; empty for a log.
    phases : tuple of str
        Phase of serving of each iteration, or an empty text if it is unknown; empty if no annotation states any.
    """

    heading = "Iterations"

    rank: Ints
    iteration: Ints
    start_ns: Ints
    sequence_length: Floats
    statistics: Mapping[str, Floats]
    found_by: tuple[str, ...]
    length_found_by: tuple[str, ...]
    files: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rank)

    def of_rank(self, rank: int) -> "IterationTable":
        """Return the iterations of one rank.

        Raises
        ------
        InvalidInputError
            The table has no such rank.
        """
        rows = np.flatnonzero(self.rank == rank)
        if not len(rows):
            raise InvalidInputError(f"no iteration of rank {rank} (ranks: {sorted(set(self.rank.tolist()))})")
        return self.take(rows)

    def take(self, rows: npt.NDArray[np.intp]) -> "IterationTable":
        """Return the iterations in `rows`, in that order."""
        return IterationTable(
            self.rank[rows],
            self.iteration[rows],
            self.start_ns[rows],
            self.sequence_length[rows],
            {name: values[rows] for name, values in self.statistics.items()},
            tuple(self.found_by[r] for r in rows.tolist()),
            tuple(self.length_found_by[r] for r in rows.tolist()),
            tuple(self.files[r] for r in rows.tolist()) if self.files else (),
            tuple(self.phases[r] for r in rows.tolist()) if self.phases else (),
        )

    def statistic(self, name: str) -> Floats:
        """Return a statistic by its name.

        Raises
        ------
        InvalidInputError
            The table has no such statistic; the message lists those it has.
        """
        if name not in self.statistics:
            raise InvalidInputError(f"no statistic {name!r}; there are {', '.join(self.statistics)}")
        return self.statistics[name]

    def file(self, row: int) -> str | None:
        """Return the name of the file that an iteration is, or None if it is no file."""
        return (self.files[row] or None) if self.files else None

    def phase(self, row: int) -> dict[str, str | None]:
        """Return the entry for the phase of an iteration in JSON; empty if no iteration has a phase."""
        return {"phase": self.phases[row] or None} if self.phases else {}

    def identity(self, row: int) -> dict[str, Any]:
        """Return the keys by which JSON names an iteration of known length."""
        numbers = {name: int(getattr(self, name)[row]) for name in ("iteration", "rank", "sequence_length")}
        return numbers | self.phase(row)

    @property
    def names_files(self) -> bool:
        """Whether some iteration is a file."""
        return any(self.files)

    @property
    def begins(self) -> Bools:
        """Whether a recording begins with each iteration: the first of a rank, or one after a gap in the numbers.

        Numbers that do not ascend, or mostly follow a gap, tell of no recording.
        """
        first = np.ones(len(self), dtype=bool)
        first[1:] = self.rank[1:] != self.rank[:-1]
        step = np.diff(self.iteration)
        gap = ~first[1:] & (step != 1)
        if (step[~first[1:]] > 0).all() and 2 * gap.sum() < len(self):
            first[1:] |= gap
        return first

    @property
    def default_statistic(self) -> str:
        """Name of the time in kernels, or of the step time if the trace has no kernels."""
        kernel_time = self.statistics.get("kernel_time")
        return "kernel_time" if kernel_time is not None and kernel_time.any() else "duration"

    def table(self) -> DataFrame:
        """Return a row for each iteration, with its length (NaN if unknown) and statistics."""
        columns: dict[str, Any] = {"rank": self.rank, "iteration": self.iteration}
        columns |= {"sequence_length": self.sequence_length}
        files = {"file": self.files} if self.names_files else {}
        columns |= {"phase": self.phases} if self.phases else {}
        return data_frame({**columns, **self.statistics, "found_by": self.found_by, **files})

    def plot(self, statistic: str | None = None) -> Any:
        """Return the chart of a statistic over the iterations, as a HoloViews object."""
        from seqpoint.plots import statistic_by_iteration

        name = statistic or self.default_statistic
        self.statistic(name)  # an unknown name is an error
        return statistic_by_iteration(self.table(), name, UNITS.get(name, ""))

    def tables(self) -> tuple[Table, ...]:
        """Return the iterations as text."""
        columns = {"rank": "{rank}", "iteration": "{iteration}", "length": "{sequence_length}"}
        columns |= {"phase~": "{phase}"} if self.phases else {}
        columns |= {
            "step time" if name == "duration" else name.replace("_", " "): f"{{{name}:time}}" for name in _TIMES
        }
        columns |= {"kernels": "{kernels:.0f}", "found by~": "{found_by}"}
        columns |= {"file~": "{file}"} if self.names_files else {}
        return (table_of("Iterations", columns, self.to_dict()["iterations"]),)

    def frames(self) -> Mapping[str, DataFrame]:
        """Return all iterations."""
        return {f"{len(self)} iterations": self.table()}

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint iterations --json` prints."""
        rows = [
            {
                "rank": int(self.rank[i]),
                "iteration": int(self.iteration[i]),
                "start_ns": int(self.start_ns[i]),
                "sequence_length": int(length) if np.isfinite(length) else None,
                **self.phase(i),
                **{name: float(values[i]) for name, values in self.statistics.items()},
                "found_by": self.found_by[i],
                "length_found_by": self.length_found_by[i],
                "file": self.file(i),
            }
            for i, length in enumerate(self.sequence_length.tolist())
        ]
        return {"units": dict(UNITS), "iterations": rows}


#: Degrees of freedom that the noise of the whole epoch counts as, in the noise near a point.
POOLED_DEGREES = 10.0


def relative_spreads(values: Floats, labels: Ints) -> Floats:
    """Return the relative standard deviation of the values in each bin.

    A bin borrows the deviation of all bins, which counts as 10 iterations of its own.

    Parameters
    ----------
    values : ndarray of float64, shape (n_iterations,)
        Statistic of each iteration, zero or more.
    labels : ndarray of int64, shape (n_iterations,)
        Bin of each iteration.

    Examples
    --------
    >>> relative_spreads(np.array([9.0, 11.0, 30.0]), np.array([0, 0, 1])).round(3).tolist()
    [0.141, 0.141]
    """
    counts = np.bincount(labels)
    means = np.bincount(labels, values) / np.maximum(counts, 1)
    of_bin = means[labels]  # a bin whose values are all 0 has no noise
    residuals = np.divide(values - of_bin, of_bin, out=np.zeros_like(values), where=of_bin > 0)
    squares, degrees = np.bincount(labels, residuals**2), np.maximum(counts - 1, 0)
    pooled = squares.sum() / max(int(degrees.sum()), 1)
    return np.asarray(np.sqrt((squares + POOLED_DEGREES * pooled) / (degrees + POOLED_DEGREES)))


def iteration_table(trace: Trace) -> IterationTable:
    """Return the iterations of a trace with their lengths and statistics, without the context of a slice."""
    table = trace.iterations
    rank, number = integers(table, "rank"), integers(table, "iteration")
    start = integers(table, "start_ns")
    order = np.lexsort((number, start, rank))
    keys = rank[order] * _RANK_CODE + number[order]
    length = integers(table, "sequence_length")[order]
    kernels, copies = trace.kernels, trace.copies
    communicates = {name: trace.meta.class_of(name) == COLLECTIVE for name in set(strings(kernels, "name"))}
    steps = step_times(trace)
    is_comm = np.array([communicates[name] for name in strings(kernels, "name")], dtype=bool)
    duration = _durations(kernels)
    names, by_files = strings(table, "name")[order].tolist(), is_file(table)[order].tolist()
    statistics = {
        "kernel_time": _sums(kernels, duration, keys),
        "communication_time": _sums(kernels, np.where(is_comm, duration, 0), keys),
        "copy_time": _sums(copies, _durations(copies), keys),
        "kernels": _sums(kernels, np.ones(kernels.num_rows), keys),
        "duration": steps.step_ns.astype(np.float64),
        "latency": steps.latency_ns.astype(np.float64),
    }
    phases, kv_tokens = _serving_phases(trace, (rank[order], start[order], _durations(table)[order]))
    statistics |= {"kv_tokens": kv_tokens} if phases else {}
    every = IterationTable(
        rank[order],
        number[order],
        start[order],
        np.where(length == MISSING, np.nan, length.astype(np.float64)),
        statistics,
        tuple(strings(table, "found_by")[order].tolist()),
        tuple(text or "unknown" for text in strings(table, "length_found_by")[order].tolist()),
        tuple(name if by_file else "" for name, by_file in zip(names, by_files, strict=True)),
        phases,
    )
    return every.take(np.flatnonzero(~np.isin(every.iteration, trace.meta.context)))


def _serving_phases(trace: Trace, spans: tuple[Ints, Ints, Ints]) -> tuple[tuple[str, ...], Floats]:
    """Return the phase of serving of each iteration, and the tokens that its requests attend to, 0 if unknown.

    `spans` are rank, start and duration of the iterations, by rank and start. Without annotations no phase is returned.
    """
    steps, (rank, start, duration) = serving_steps(trace), spans
    phases, kv_tokens = [set[str]() for _ in rank], np.zeros(len(rank))
    for row in range(len(steps)):  # 10 us a step
        mine = slice(*np.searchsorted(rank, [steps.rank[row], steps.rank[row] + 1]))
        at = mine.start + int(np.searchsorted(start[mine], steps.start_ns[row], side="right")) - 1
        if at >= mine.start and steps.start_ns[row] < start[at] + duration[at]:
            step = steps.step(row)
            phases[at].add(step.phase)
            kv_tokens[at] += (step.prefill.kv_tokens or 0) + (step.decode.kv_tokens or 0)
    names = tuple("mixed" if len(each) > 1 else "".join(each) for each in phases)
    return (names if any(names) else ()), kv_tokens


def _durations(table: pa.Table) -> Ints:
    duration = integers(table, "dur_ns")
    return np.where(duration == MISSING, 0, duration)


def _sums(table: pa.Table, values: Ints | Floats, keys: Ints) -> Floats:
    """Return the sum of `values` over the rows of each iteration, given the code of each (rank, iteration)."""
    order = np.argsort(keys)
    iteration = integers(table, "iteration")
    inside = iteration != MISSING
    codes = integers(table, "rank")[inside] * _RANK_CODE + iteration[inside]
    total = np.zeros(len(keys))
    np.add.at(total, order[np.searchsorted(keys[order], codes)], np.asarray(values, dtype=np.float64)[inside])
    return total


def read_log(path: str | Path) -> IterationTable:
    """Read the iterations of a user's log.

    The columns ``sequence_length`` and ``duration_ns`` (or another statistic) are required; ``iteration`` and ``rank``
    are optional. Every other column of numbers is a statistic.

    Parameters
    ----------
    path : str or Path
        The log, CSV or Parquet.

    Raises
    ------
    NotFoundError, InvalidInputError
        The file is missing or lacks a column, or a value is not a number; the message names the row.
    """
    file = Path(path)
    table = _read_table(file)
    n = table.num_rows
    if "sequence_length" not in table.column_names or not n:
        columns = ", ".join(table.column_names) or "none"
        raise InvalidInputError(
            f"{file}: a log needs rows and a column sequence_length (it has {n} rows; columns: {columns})"
        )
    numbers = {name: _numbers(table, name, file) for name in table.column_names if _is_number(table[name].type)}
    keys = ("rank", "iteration", "start_ns", "sequence_length")
    statistics = {name.removesuffix("_ns"): values for name, values in numbers.items() if name not in keys}
    if not statistics or "sequence_length" not in numbers:
        raise InvalidInputError(f"{file}: a log needs a column of numbers beside the lengths, such as duration_ns")
    return IterationTable(
        _whole(numbers.get("rank", np.zeros(n)), "rank", file),
        _whole(numbers.get("iteration", np.arange(n, dtype=np.float64)), "iteration", file),
        np.arange(n, dtype=np.int64),
        numbers["sequence_length"],
        statistics,
        ("log",) * n,
        ("log",) * n,
    )


def _read_table(file: Path) -> pa.Table:
    from pyarrow.csv import read_csv
    from pyarrow.parquet import read_table

    if not file.is_file():
        raise NotFoundError(f"{file}: no such log")
    try:
        return read_table(file) if file.suffix.lower() == ".parquet" else read_csv(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file}: cannot be read as a log ({str(error).splitlines()[0]})") from error


def _is_number(type_: pa.DataType) -> bool:
    """Return whether a column holds numbers, or nulls alone, which `_numbers` reports as missing."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_null(type_))


def _numbers(table: pa.Table, name: str, file: Path) -> Floats:
    values = table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise InvalidInputError(f"{file}: row {int(bad[0]) + 1}: {name} is missing or not finite")
    return np.asarray(values, dtype=np.float64)


def _whole(values: Floats, name: str, file: Path) -> Ints:
    bad = np.flatnonzero((values != np.floor(values)) | (values < 0))
    if len(bad):
        raise InvalidInputError(
            f"{file}: row {int(bad[0]) + 1}: {name} {values[bad[0]]:g} is not a whole number, 0 or more"
        )
    return values.astype(np.int64)


#: Fewest iterations that tell a correlation, and most whose shapes are read.
_FEWEST, _MOST_READ = 3, 2048
#: Most candidates that are listed.
_MOST_LISTED = 20
#: Longest text of shapes that is read: an operator of many inputs, such as an optimiser's, has no sequence length.
_LONGEST_SHAPES = 2000

#: Dimension of an operator's input: operator, argument and dimension.
_Dimension = tuple[str, int, int]


@dataclass(frozen=True)
class LengthCandidate:
    """A dimension of an operator's input that may be the sequence length.

    Parameters
    ----------
    rule : str
        ``OPERATOR:ARGUMENT:DIMENSION``, as ``--length`` takes it.
    distinct : int
        Number of distinct values.
    low, high : int
        Smallest and largest value.
    known : int
        Iterations in which the operator has the dimension.
    step_time_correlation, kernel_time_correlation : float, optional
        Spearman's rank correlation with the step time and with the time in kernels; None if either is constant.
    alike : int
        Further dimensions with the same values in all iterations.
    """

    rule: str
    distinct: int
    low: int
    high: int
    known: int
    step_time_correlation: float | None
    kernel_time_correlation: float | None
    alike: int = 0

    @property
    def strength(self) -> float:
        """Correlation by which candidates are ranked."""
        first = self.kernel_time_correlation
        return (self.step_time_correlation or 0.0) if first is None else first


@dataclass(frozen=True, repr=False)
class LengthCandidates(Result):
    """Candidates for the sequence length of a trace, best first.

    Parameters
    ----------
    iterations : int
        Iterations of the lowest rank.
    stated : int
        Those whose length is known already.
    candidates : tuple of LengthCandidate
        The candidates.
    """

    heading = "Candidates for the sequence length"

    iterations: int
    stated: int
    candidates: tuple[LengthCandidate, ...]

    def table(self) -> DataFrame:
        """Return the candidates, a row each."""
        return data_frame([asdict(row) for row in self.candidates], columns=list(LengthCandidate.__annotations__))

    def tables(self) -> tuple[Table, ...]:
        """Return the candidates as text."""
        columns = {
            "--length~": "{rule}", "distinct": "{distinct}", "from": "{low}", "to": "{high}",
            "known in": f"{{known}} of {self.iterations}", "with step time": "{step_time_correlation:+.2f}",
            "with kernel time": "{kernel_time_correlation:+.2f}", "alike": "{alike}",
        }  # fmt: skip
        title = "Candidates for the sequence length"
        return (table_of(title, columns, self.candidates),) if self.candidates else ()

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint lengths --json` prints."""
        rows = [asdict(row) for row in self.candidates]
        return {"iterations": self.iterations, "stated": self.stated, "candidates": rows, "advice": self.closing()}

    def closing(self) -> list[str]:
        """Return what to do with the candidates, in a sentence or two."""
        sentences = []
        if self.stated:
            sentences.append(
                f"{self.stated} of {self.iterations} iterations have a length already; --length replaces it"
            )
        if not self.candidates:
            return [
                *sentences,
                "no dimension of an operator's input differs between iterations; if lengths do differ, record with "
                "record_shapes=True, or give them as a CSV file (--length FILE.csv)",
            ]
        rule = self.candidates[0].rule
        return [
            *sentences,
            f"read the files with it: seqpoint select FILES --length {rule}, or seqpoint ingest FILES -o NAME.trace "
            f"--length {rule}. A .trace keeps the lengths of its ingest, so ingest its files again",
        ]


def find_lengths(trace: Trace) -> LengthCandidates:
    """Return the candidates for the sequence length of a trace, best first.

    Parameters
    ----------
    trace : Trace
        The trace, with the shapes of operators.

    Raises
    ------
    InvalidInputError
        The trace has fewer than three iterations.
    """
    table = iteration_table(trace)
    table = table.of_rank(int(table.rank.min())) if len(table) else table
    if len(table) < _FEWEST:
        raise InvalidInputError(
            f"{len(table)} iterations cannot tell what time depends on; candidates for the length need {_FEWEST}, see "
            "--iterations"
        )
    groups: dict[bytes, list[_Dimension]] = {}
    for dimension, values in _varying(trace, table):
        groups.setdefault(values.tobytes(), []).append(dimension)
    candidates = [_candidate(trace, table, alike) for alike in groups.values()]
    order = sorted(
        (candidate for candidate in candidates if candidate is not None),
        key=lambda each: (-each.known, -round(each.strength, 2), -each.alike, each.rule),
    )
    stated = int(np.isfinite(table.sequence_length).sum())
    return LengthCandidates(len(table), stated, tuple(order[:_MOST_LISTED]))


def _varying(trace: Trace, table: IterationTable) -> Iterator[tuple[_Dimension, Ints]]:
    """Yield each dimension that differs between iterations, in the order of first calls, with its values."""
    numbers = table.iteration[np.unique(np.linspace(0, len(table) - 1, min(len(table), _MOST_READ)).astype(int))]
    calls = _first_calls(trace, int(table.rank[0]), numbers)
    rows: dict[_Dimension, Ints] = {}
    parsed: dict[str, list[Any]] = {}
    row_of = {number: row for row, number in enumerate(numbers.tolist())}
    for name, number, shapes in calls:  # a Python loop over operators and iterations
        if shapes not in parsed:
            parsed[shapes] = list(_extents(shapes))
        for argument, dimension, size in parsed[shapes]:
            values = rows.setdefault((name, argument, dimension), np.full(numbers.size, MISSING))
            values[row_of[number]] = size
    for key, values in rows.items():
        known = values[values != MISSING]
        if known.size >= _FEWEST and known.min() < known.max():
            yield key, values


def _first_calls(trace: Trace, rank: int, numbers: Ints) -> Iterator[tuple[str, int, str]]:
    """Yield the first call of each operator in each iteration: name, iteration and shapes, in the order of starts."""
    ops = trace.ops
    iteration = integers(ops, "iteration")
    kept = np.flatnonzero((integers(ops, "rank") == rank) & np.isin(iteration, numbers))
    columns = ops.select(["name", "shapes"]).take(pa.array(kept))
    names = np.array(columns["name"].to_pylist(), dtype=object)
    shapes = columns["shapes"].to_pylist()
    order = np.lexsort((integers(ops, "id")[kept], integers(ops, "start_ns")[kept]))
    seen: set[tuple[str, int]] = set()
    for row in order.tolist():  # a Python loop over operators
        key = (names[row], int(iteration[kept[row]]))
        if key not in seen and shapes[row]:
            seen.add(key)
            yield *key, shapes[row]


def _extents(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield (argument, dimension, size) of the shapes of a call."""
    if len(text) > _LONGEST_SHAPES:
        return
    shapes = json.loads(text)
    for argument, shape in enumerate(shapes if isinstance(shapes, list) else []):
        for dimension, size in enumerate(shape if isinstance(shape, list) else []):
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                yield argument, dimension, size


def _candidate(trace: Trace, table: IterationTable, alike: list[_Dimension]) -> LengthCandidate | None:
    """Return the candidate of dimensions with equal values; its values are those that `--length` gives."""
    from profilers.ingest.lengths import lengths_from_shapes

    rule = ":".join(map(str, alike[0]))
    lengths = lengths_from_shapes(trace, rule)
    length_of = dict(zip(_keys(trace), lengths.tolist(), strict=True))
    values = np.array([length_of[key] for key in zip(table.rank.tolist(), table.iteration.tolist(), strict=True)])
    known = values != MISSING
    if known.sum() < _FEWEST:
        return None
    low, high = int(values[known].min()), int(values[known].max())
    x = values[known].astype(np.float64)
    step, kernel = (_rank_correlation(x, table.statistic(name)[known]) for name in ("duration", "kernel_time"))
    return LengthCandidate(rule, len(np.unique(x)), low, high, x.size, step, kernel, len(alike) - 1)


def _keys(trace: Trace) -> list[tuple[int, int]]:
    table = trace.iterations
    return list(zip(integers(table, "rank").tolist(), integers(table, "iteration").tolist(), strict=True))


def _rank_correlation(x: Floats, y: Floats) -> float | None:
    """Return Spearman's rank correlation, or None if either is constant."""
    return float(scipy.stats.spearmanr(x, y).statistic) if np.ptp(x) and np.ptp(y) else None
