"""Candidates for the sequence length of a trace: dimensions of operators' inputs that differ between iterations.

`find_lengths` reads the shapes of the first call of each operator in each iteration. A dimension that takes several
values is a candidate. Candidates with equal values in all iterations are one, named by the operator that comes first.
They are ranked by Spearman's correlation with the time in kernels, or with the step time if the trace has no kernels.
Of equal correlations, the value that most dimensions share comes first: a length is an input of many operators, and
its product with the batch of few.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy

from profilers.errors import InvalidInputError
from profilers.ingest.lengths import lengths_from_shapes
from profilers.trace.arrays import MISSING, Floats, Ints, integers
from profilers.trace.trace import Trace
from seqpoint.iteration_table import IterationTable, iteration_table
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of

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

    def tables(self, top: int = _MOST_LISTED) -> tuple[Table, ...]:
        """Return the candidates as text."""
        columns = {
            "--length~": "{rule}", "distinct": "{distinct}", "from": "{low}", "to": "{high}",
            "known in": f"{{known}} of {self.iterations}", "with step time": "{step_time_correlation:+.2f}",
            "with kernel time": "{kernel_time_correlation:+.2f}", "alike": "{alike}",
        }  # fmt: skip
        title = "Candidates for the sequence length"
        return (table_of(title, columns, self.candidates[:top]),) if self.candidates else ()

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
