"""The sequence length of every iteration, from an annotation, from a shape, or from a table of the user.

Without a rule, `add_lengths` reads the annotations that users and serving engines write. A `LengthRule` names a
dimension of an operator's input instead; a CSV file gives the lengths by iteration.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import InvalidInputError
from profilers.files import read_csv
from profilers.trace.arrays import MISSING, Ints, arrow_array, integers, put, strings
from profilers.trace.schema import make_table
from profilers.trace.serving import parse_serving_step
from profilers.trace.trace import Trace

_LIMIT = 1 << 62
_PLAIN = re.compile(r"\b(?:sequence_length|seq_length|seq_len|seqlen|sl)\s*[=:]\s*(\d+)", re.IGNORECASE)
_BATCH = re.compile(r"\b(?:batch_size|batch|bs)\s*[=:]\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class LengthRule:
    """The dimension of an operator's input that is the sequence length of an iteration.

    Parameters
    ----------
    op : str
        Name of the operator; its first call in the iteration counts.
    argument : int
        Position of the input, from 0.
    dimension : int
        Position of the dimension in the shape of that input, from 0.

    Examples
    --------
    >>> LengthRule.parse("aten::layer_norm:0:0")
    LengthRule(op='aten::layer_norm', argument=0, dimension=0)
    """

    op: str
    argument: int
    dimension: int

    @classmethod
    def parse(cls, text: str) -> "LengthRule":
        """Return the rule written as ``OP:ARGUMENT:DIMENSION``.

        Parameters
        ----------
        text : str
            The rule as the user wrote it.

        Raises
        ------
        InvalidInputError
            The text is not of this form.
        """
        op, *numbers = text.rsplit(":", 2)
        if len(numbers) != 2 or not op or not all(n.isdecimal() and len(n) < 4 for n in numbers):
            raise InvalidInputError(f"{text!r} is no length rule; write OP:ARGUMENT:DIMENSION, as aten::embedding:1:1")
        return cls(op, int(numbers[0]), int(numbers[1]))


def length_op(length: str | None) -> str | None:
    """Return the operator whose shapes a length rule reads, or None if lengths come from a file or annotations.

    Parameters
    ----------
    length : str, optional
        A rule or a file, as `add_lengths` takes it.

    Raises
    ------
    InvalidInputError
        `length` is neither a rule nor a file.
    """
    return None if length is None or _is_file(length) else LengthRule.parse(length).op


def add_lengths(trace: Trace, length: str | None = None) -> Trace:
    """Return `trace` with ``sequence_length`` on its iterations.

    Parameters
    ----------
    trace : Trace
        Trace with iterations.
    length : str, optional
        A rule ``OP:ARGUMENT:DIMENSION``, or the name of a CSV file with the columns ``iteration``,
        ``sequence_length`` and, where ranks differ, ``rank``. Without it, annotations are read.

    Raises
    ------
    InvalidInputError, NotFoundError
        The rule or the file cannot be used.
    """
    table = _from_annotations(trace)
    if length is not None:
        lengths, found_by = (
            (_from_file(trace, Path(length)), "file")
            if _is_file(length)
            else (lengths_from_shapes(trace, length), "shape")
        )
        if (lengths == MISSING).all():
            raise InvalidInputError(f"--length {length}: gives no iteration of this trace a length")
        table = _with_lengths(table, lengths, found_by)
    missing = table["sequence_length"].null_count
    return trace.with_tables(iterations=table).with_quality({"iterations_without_length": missing})


def _is_file(length: str) -> bool:
    try:
        return length.lower().endswith((".csv", ".txt")) or Path(length).is_file()
    except OSError:  # too long for a name
        return False


def _with_lengths(table: pa.Table, lengths: Ints, source: str) -> pa.Table:
    """Return the table of iterations with the lengths that are not `MISSING`, and their source."""
    columns = dict(zip(table.schema.names, table.columns, strict=True))
    columns["sequence_length"] = np.where(lengths == MISSING, integers(table, "sequence_length"), lengths)
    columns["length_found_by"] = np.where(lengths == MISSING, strings(table, "length_found_by"), source).tolist()
    return make_table("iterations", columns)


def _by_iteration(table: pa.Table, values: Mapping[tuple[int, int], int]) -> Ints:
    """Return the value of each iteration, or `MISSING`, from values by (rank, iteration)."""
    return np.array([values.get(key, MISSING) for key in _keys(table)], dtype=np.int64)


def _in_iterations(events: pa.Table, column: str, text: str) -> pa.Table:
    """Return the events in iterations that have a text in a column, ordered by start and id."""
    events = events.filter(arrow_array(strings(events, column) == text))
    return events.filter(pc.is_valid(events["iteration"])).sort_by([("start_ns", "ascending"), ("id", "ascending")])


def _keys(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(integers(table, "rank").tolist(), integers(table, "iteration").tolist(), strict=True))


def _from_annotations(trace: Trace) -> pa.Table:
    """Return the iterations with the lengths of the first annotations that state them."""
    ranges = _in_iterations(trace.ranges, "category", "user_annotation")
    lengths: dict[tuple[int, int], int] = {}
    batches: dict[tuple[int, int], int] = {}
    for key, name in zip(_keys(ranges), strings(ranges, "name"), strict=True):  # a Python loop over annotations
        length, batch = _stated(name)
        if length is not None:
            lengths.setdefault(key, length)
        if batch is not None:
            batches.setdefault(key, batch)
    table = put(trace.iterations, "batch", _by_iteration(trace.iterations, batches))
    return _with_lengths(table, _by_iteration(table, lengths), "annotation")


def _stated(name: str) -> tuple[int | None, int | None]:
    """Return the sequence length and the batch size that an annotation states."""
    if (step := parse_serving_step(name)) is not None:
        return step.tokens, step.requests
    plain, batch = _PLAIN.search(name), _BATCH.search(name)
    return _small(plain.group(1)) if plain else None, _small(batch.group(1)) if batch else None


def _small(digits: str) -> int | None:
    number = int(digits) if len(digits) < 19 else _LIMIT
    return number if 0 < number < _LIMIT else None


def lengths_from_shapes(trace: Trace, rule_text: str) -> Ints:
    """Return the length of each iteration by a rule, or `MISSING`: that of the first call with the dimension.

    Parameters
    ----------
    trace : Trace
        Trace with iterations.
    rule_text : str
        A rule ``OPERATOR:ARGUMENT:DIMENSION``.

    Raises
    ------
    InvalidInputError
        The trace has no such operator, or none of its calls has the dimension.
    """
    rule = LengthRule.parse(rule_text)
    if rule.op not in strings(trace.ops, "name"):
        raise InvalidInputError(
            f"--length {rule_text}: the trace has no operator {rule.op!r}; `seqpoint lengths` lists those that would do"
        )
    ops = _in_iterations(trace.ops, "name", rule.op)
    first: dict[tuple[int, int], int] = {}
    for key, shapes in zip(_keys(ops), ops["shapes"].to_pylist(), strict=True):  # a Python loop over one operator
        if key not in first and (size := _extent(shapes, rule)) is not None:
            first[key] = size
    if not first:
        raise InvalidInputError(f"--length {rule_text}: no {rule.op!r} has such a dimension; was record_shapes on?")
    return _by_iteration(trace.iterations, first)


def _extent(shapes: str | None, rule: LengthRule) -> int | None:
    try:
        inputs = json.loads(shapes) if shapes else []
    except RecursionError:
        return None
    shape = inputs[rule.argument] if isinstance(inputs, list) and rule.argument < len(inputs) else []
    size = shape[rule.dimension] if isinstance(shape, list) and rule.dimension < len(shape) else None
    return size if isinstance(size, int) and not isinstance(size, bool) and 0 < size < _LIMIT else None


def _from_file(trace: Trace, path: Path) -> Ints:
    lengths: dict[tuple[int, ...], int] = {}
    rows = _rows_of(path)
    ranked = "rank" in rows[0][1]
    columns = ("rank", "iteration") if ranked else ("iteration",)
    for line, row in rows:  # a Python loop over iterations
        key = tuple(_whole(row, name, 0, f"{path}: line {line}") for name in columns)
        length = _whole(row, "sequence_length", 1, f"{path}: line {line}")
        if lengths.setdefault(key, length) != length:
            raise InvalidInputError(f"{path}: line {line}: gives iteration {key[-1]} a second length, {length}")
    trace_keys = [key if ranked else key[1:] for key in _keys(trace.iterations)]
    return np.array([lengths.get(key, MISSING) for key in trace_keys], dtype=np.int64)


def _rows_of(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file of lengths, each with its line number."""
    names, rows = read_csv(path, "lengths")
    for name in ("iteration", "sequence_length"):
        if name not in names:
            raise InvalidInputError(f"{path}: has no column {name!r} (it has {', '.join(names)})")
    if not rows:
        raise InvalidInputError(f"{path}: holds no length; write a line for each iteration")
    return rows


def _whole(row: dict[str, str], name: str, least: int, line: str) -> int:
    """Return a whole number from a row; `line` names its file and line for the message."""
    text = (row[name] or "").strip()
    if not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise InvalidInputError(f"{line}: {name} is {text!r}, which is no whole number of at least {least}")
    return int(text)
