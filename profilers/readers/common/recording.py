"""Tables of a recording, and how their rows become events.

`RowBlock` holds rows of one table as columns, whatever the format: CSV, JSON, SQLite or Arrow. `RecordedTables` reads
the tables of one file up to where they are damaged; `Join` looks up the rows that other rows refer to by number.
`Output` gives rows with a start and an end to a sink; `write_annotations` tells operators from other ranges of a
program. `Strings` and `Ranks` hold what rows refer to by number: texts, processes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import BrokenFileError
from profilers.readers.common.numbers import TIMES_NS, finite_number, narrow, plain_text, whole_numbers
from profilers.readers.common.reader import Sink
from profilers.readers.common.source import require_events
from profilers.trace.arrays import MISSING, Bools, Ints, arrow_array, text_array
from profilers.trace.columns import combinations, encoded, lookup, taken
from profilers.trace.quality import Quality
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, TraceMeta

#: Function from a text to another, or to None for null.
Change = Callable[[str], str | None]


def renamed(values: pa.Array, change: Change | None) -> pa.DictionaryArray:
    """Return texts with `change` applied, if it is given, once to each distinct text.

    Examples
    --------
    >>> renamed(pa.array(["a", None, "b", "a"]), str.upper).to_pylist()
    ['A', None, 'B', 'A']
    """
    dictionary = values.dictionary_encode()
    texts = dictionary.dictionary
    if change is not None:
        texts = text_list(None if text is None else change(text) for text in texts.to_pylist())
    distinct = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(dictionary.indices), distinct.dictionary)


def text_list(texts: Iterable[str | None]) -> pa.Array:
    """Return untrusted texts as Arrow strings; half a surrogate pair, which UTF-8 cannot hold, is replaced."""
    return text_array([None if text is None else plain_text(text) for text in texts])


class Strings:
    """Texts by number.

    Parameters
    ----------
    ids : array of int64
        Numbers of the texts; the first text counts if a number repeats.
    texts : Array of string
        Texts, as many as numbers.

    Examples
    --------
    >>> Strings(np.array([7, 3]), pa.array(["seven", "three"])).encode(np.array([3, 9, 7])).to_pylist()
    ['three', None, 'seven']
    """

    def __init__(self, ids: Ints, texts: pa.Array) -> None:
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._texts = texts.take(pa.array(order))

    def encode(self, ids: Any, change: Change | None = None) -> pa.DictionaryArray:
        """Return the texts with these numbers, null for a number without a text.

        Parameters
        ----------
        ids : array of int64, or Array of string
            Numbers, or the texts themselves, which some exports have instead.
        change : callable, optional
            Function applied to each distinct text; None stands for null.
        """
        if isinstance(ids, np.ndarray):
            codes = arrow_array(ids).dictionary_encode()
            rows = lookup(self._ids, np.arange(len(self._ids)), codes.dictionary.to_numpy())
            texts = self._texts.take(arrow_array(rows, rows == MISSING))
            return renamed(pa.DictionaryArray.from_arrays(codes.indices, texts), change)
        return renamed(ids.cast(pa.string()), change)

    def texts(self, ids: Ints, change: Change | None = None) -> pa.Array:
        """Return the texts as `encode`, as a plain array."""
        return self.encode(ids, change).cast(pa.string())


class Ranks:
    """Ranks of the processes of a recording.

    Parameters
    ----------
    rank_of : mapping of int to int
        Rank of each process that did device work.
    count : int
        Number of all ranks of the recording.

    Examples
    --------
    >>> ranks = Ranks({70: 0, 71: 1}, 2)
    >>> ranks.numbers, ranks.of(np.array([71, 5])).tolist()
    ((0, 1), [1, 0])
    """

    def __init__(self, rank_of: Mapping[int, int], count: int) -> None:
        #: Processes that did device work, ascending.
        self.processes = np.array(sorted(rank_of), np.int64)
        self._ranks = np.array([rank_of[process] for process in sorted(rank_of)], np.int64)
        #: All ranks; empty for a single process.
        self.numbers = tuple(range(count)) if count > 1 else ()

    def of(self, process: Ints) -> Ints:
        """Return the rank of each process; a process without device work belongs to the first rank."""
        if not self.numbers:
            return np.full(len(process), OWN_RANK)
        return np.maximum(lookup(self.processes, self._ranks, process), 0)


#: Texts with fewer digits are integers of 64 bits.
_DIGITS = 19


@dataclass(frozen=True)
class RowBlock:
    """Rows of one table as columns; an absent column reads as missing values.

    Parameters
    ----------
    columns : mapping of str to array
        Equally long columns by name: int64 arrays whose null is `MISSING`, or Arrow arrays.

    Examples
    --------
    >>> block = RowBlock({"Start": pa.array(["7", "x"])})
    >>> block.rows, block.ints("Start").tolist()[0], block.texts("Name").to_pylist()
    (2, 7, [None, None])
    """

    columns: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def ints(self, name: str, change: Change | None = None) -> Ints:
        """Return a column as int64, `MISSING` where a value, as text changed by `change`, is no integer."""
        if name not in self.columns:
            return np.full(self.rows, MISSING)
        return whole_numbers(self.columns[name] if change is None else self.texts(name, change))

    def narrow(self, name: str) -> Ints:
        """Return a column as integers from 0 to 2^31 - 1, `MISSING` for any other value."""
        return narrow(self.ints(name))

    def reals(self, name: str) -> pa.Array:
        """Return a column as float64, null where a value is no finite number; 0.3 us a distinct value."""
        texts = self.texts(name).dictionary_encode()
        return pa.array(map(finite_number, texts.dictionary.to_pylist()), pa.float64()).take(texts.indices)

    def texts(self, name: str, change: Change | None = None) -> pa.Array:
        """Return a column as Arrow strings, with `change` applied once to each distinct text."""
        if name not in self.columns:
            return pa.nulls(self.rows, pa.string())
        values = self.columns[name]
        if isinstance(values, np.ndarray):
            values = text_list(None if n == MISSING else str(n) for n in values.tolist())
        return (values if change is None else renamed(values, change)).cast(pa.string())

    def arguments(self, names: Sequence[str]) -> pa.Array:
        """Return the named columns as one JSON object a row, without nulls; null for a row that has only nulls.

        Each distinct combination of values is spelled once, so name no column that differs in every row.
        """
        present = [name for name in names if name in self.columns]
        if not present:
            return pa.nulls(self.rows, pa.string())
        codes, values = zip(*(_coded(self.columns[name]) for name in present), strict=True)
        combined, firsts = combinations(np.stack(codes))
        objects = []
        for row in firsts.tolist():  # a loop over distinct combinations
            cells = {name: v[int(c[row])] for name, c, v in zip(present, codes, values, strict=True)}
            members = {name: value for name, value in cells.items() if value is not None and value != ""}
            objects.append(json.dumps(members, separators=(",", ":")) if members else None)
        return encoded(combined, text_list(objects))

    def take(self, rows: npt.NDArray[np.intp]) -> "RowBlock":
        """Return the block with these rows alone, in this order."""
        return RowBlock({name: taken(values, rows) for name, values in self.columns.items()})


def _coded(values: Any) -> tuple[Ints, list[Any]]:
    """Return a code for each row and the JSON value of each code; a text of digits gives an integer."""
    if isinstance(values, np.ndarray):
        numbers, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), [None if n == MISSING else n for n in numbers.tolist()]
    dictionary = values.dictionary_encode()
    distinct = [_json_value(value) for value in dictionary.dictionary.to_pylist()]
    codes = dictionary.indices.cast(pa.int64()).fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    return np.asarray(codes), [*distinct, None]


def _json_value(value: Any) -> Any:
    """Return a value for JSON: an integer for its text, None for a number that JSON lacks."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else value
    return None if isinstance(value, float) and not isfinite(value) else value


class Output:
    """The events of one recording on their way to a sink, with the counts of kept and lost rows.

    Parameters
    ----------
    name : str
        Name of the format.
    files : sequence of Path
        Files of the recording.
    sink : Sink
        Takes the events.
    """

    def __init__(self, name: str, files: Sequence[Path], sink: Sink) -> None:
        self._name = name
        self._files = files
        self.sink = sink
        self.counts: Counter[str] = Counter()

    def write(self, kind: str, columns: Mapping[str, Any], end: Ints) -> Ints:
        """Give rows to the sink and return the id of each, `MISSING` for a row that is left out.

        Rows without a start, and rows that end before they start, are left out and counted. A row without an end has a
        null duration. An end that runs far into the next event of its stream is cut when kernels are linked
        (`profilers.ingest.linking`).

        Parameters
        ----------
        kind : str
            Kind of event, as in `profilers.trace.schema.KINDS`.
        columns : mapping of str to array
            Equally long columns of the schema without ``dur_ns``; a null ``name`` becomes "unknown".
        end : array of int64
            End of each row in ns.
        """
        start = columns["start_ns"]
        usable, ended = _is_time(start) & ((start != 0) | (end != 0)), _is_time(end)
        backwards = usable & ended & (end < start)
        kept = np.flatnonzero(usable & ~backwards)
        self.skip(int((~usable).sum()), "dropped_no_time")
        self.skip(int(backwards.sum()), "dropped_negative")
        ids = np.full(len(start), MISSING)
        if len(kept):
            rows = columns if len(kept) == len(start) else {name: taken(v, kept) for name, v in columns.items()}
            duration = np.where(ended, end - start, MISSING)[kept]
            self.counts["missing_duration"] += int((~ended[kept]).sum())
            ids[kept] = self.write_rows(kind, {**rows, "name": self._named(rows["name"]), "dur_ns": duration})
        return ids

    def write_rows(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Give rows to the sink as they are, and return the id of each."""
        ids = self.sink.write(kind, columns)
        self.skip(len(ids), "kept")
        return ids

    def _named(self, names: pa.Array) -> pa.DictionaryArray:
        """Return names with "unknown" for each missing or empty name; these are counted."""
        names = renamed(names, lambda text: text or None)
        self.counts["missing_name"] += names.null_count
        return names.cast(pa.string()).fill_null("unknown").dictionary_encode() if names.null_count else names

    def skip(self, rows: int, why: str) -> None:
        """Count rows of the recording under `why`, as in `profilers.trace.quality.Quality`."""
        self.counts["events"] += rows
        self.counts[why] += rows

    def measured(self, block: RowBlock, name: str) -> RowBlock:
        """Return the rows whose value in the column `name` is a number, as float64; the others are counted."""
        values = block.reals(name)
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        self.skip(block.rows - len(rows), "dropped_no_value")
        return RowBlock({**block.columns, name: values}).take(rows)

    def meta(self, version: str, *, ranks: tuple[int, ...] = (), devices: Iterable[DeviceProperties] = ()) -> TraceMeta:
        """Return the metadata of the recording after its last event.

        Parameters
        ----------
        version : str
            Version of the format.
        ranks : tuple of int
            All ranks; empty for a single process.
        devices : iterable of DeviceProperties
            The GPUs of each rank.

        Raises
        ------
        BrokenFileError
            No event was kept.
        """
        require_events(self._files[0], self.counts)
        return TraceMeta(
            self._name,
            version,
            tuple(file.name for file in self._files),
            ranks=ranks,
            devices=tuple(devices),
            quality=Quality(self.counts),
        )


#: What PyTorch's ``emit_nvtx`` writes behind the name of a call, the last first, and the form that it has: ids of the
#: calls that made its inputs, shapes of its inputs, its own id, its sequence number. Old versions wrote a
#: ``stashed seq`` for functions of the backward pass.
_FACTS = (
    (", input_op_ids = ", r"^\[[\d, ()-]*\]?$"),
    (", sizes = ", r"^\[[\d, \[\]]*$"),
    (", op_id = ", r"^\d{1,18}$"),
    (", seq = ", r"^\d{1,18}$"),
    (", stashed seq=", r"^\d{1,18}$"),
)
#: Shapes that are complete.
_SHAPE = r"\[(?:\d{1,18}(?:, \d{1,18})*)?\]"
_SHAPES = rf"^\[(?:{_SHAPE}(?:, {_SHAPE})*)?\]$"
#: Names of operators: alone; before an id or shapes; before a sequence number, which annotations lack.
_OPERATORS = (
    r"^(?:aten|prims?|quantized|c10d|_c10d_functional)::\w+$|^autograd::engine::evaluate_function: ",
    r"^\w+(?:::[\w.<>]+)+$|^(?:detach_?|record_param_comms|triton_\w+|\w+Backward\d*)$",
    r"^\S+$",
)
#: Names of this form that are annotations of PyTorch.
_NO_OPERATOR = r"^(?:FSDP|DDP)::"


def write_annotations(out: Output, columns: Mapping[str, Any], end: Ints) -> None:
    """Give ranges of NVTX or roctx to the sink: calls of PyTorch's operators as ``ops``, all others as ``ranges``.

    The form of a text tells an operator. Its sequence number, the id of its call and the shapes of its inputs become
    columns; the ids of the calls that made its inputs become an argument. About 0.5 us a distinct text.

    Parameters
    ----------
    out : Output
        Takes the events.
    columns : mapping of str to array
        Columns of ``ranges`` as for `Output.write`; a ``name`` is the whole text of a range.
    end : array of int64
        End of each range in ns.
    """
    texts = columns["name"].cast(pa.string()).fill_null("").dictionary_encode()
    is_op, facts = _call_facts(texts.dictionary)
    codes = np.asarray(texts.indices)
    for kind, chosen in (("ops", is_op[codes]), ("ranges", ~is_op[codes])):
        rows = np.flatnonzero(chosen)
        if not len(rows):
            continue
        call = {name: values.take(pa.array(codes[rows])) for name, values in facts.items()}
        inputs = call.pop("inputs")
        kept = {name: taken(values, rows) for name, values in columns.items() if name != "category" or kind == "ranges"}
        if kind == "ranges":
            del call["sequence_number"], call["shapes"]
        elif pc.any(pc.not_equal(inputs, "")).as_py():
            kept["args"] = _with_inputs(kept.get("args", pa.nulls(len(rows))), inputs)
        out.write(kind, kept | call, end[rows])


def _call_facts(texts: pa.Array) -> tuple[Bools, dict[str, Any]]:
    """Return which texts are calls of operators, and the columns that their names and facts become."""
    name, facts, is_call = texts, [], pa.repeat(True, len(texts))
    for mark, form in _FACTS:
        name, fact = _split(name, mark)
        facts.append(fact)
        is_call = pc.and_(is_call, pc.or_(pc.equal(fact, ""), pc.match_substring_regex(fact, form)))
    inputs, sizes, call, *sequences = (pc.if_else(is_call, fact, "") for fact in facts)
    sequence = pc.binary_join_element_wise(*sequences, "")
    has_facts = pc.or_(pc.not_equal(call, ""), pc.not_equal(sizes, ""))
    is_numbered = pc.not_equal(sequence, "")
    alone, with_facts, with_number = _operator_names(name)
    is_op = pc.and_(with_facts, pc.or_(has_facts, is_numbered))
    is_op = pc.and_(is_call, pc.or_(alone, pc.or_(is_op, pc.and_(with_number, is_numbered))))
    # What a program itself writes behind a comma stays in the name.
    columns = {
        "name": pc.if_else(pc.or_(is_op, has_facts), name, texts).dictionary_encode(),
        "record_function_id": _whole(call),
        "sequence_number": _whole(sequence),
        "shapes": pc.if_else(pc.match_substring_regex(sizes, _SHAPES), pc.replace_substring(sizes, " ", ""), None),
        "inputs": inputs,
    }
    return np.asarray(is_op), columns


def _split(texts: pa.Array, mark: str) -> tuple[pa.Array, pa.Array]:
    """Return the text before the last `mark` of each text, and the text behind it, "" without a mark."""
    if not pc.any(pc.match_substring(texts, mark)).as_py():
        return texts, pa.repeat("", len(texts))
    pieces = pc.split_pattern(texts, mark, max_splits=1, reverse=True)
    first, end = np.asarray(pieces.offsets[:-1]), np.asarray(pieces.offsets[1:])
    behind = arrow_array(first.astype(np.int64) + 1, end - first == 1)
    return pieces.values.take(pa.array(first)), pieces.values.take(behind).fill_null("")


def _operator_names(names: pa.Array) -> list[pa.Array]:
    """Return for each form in `_OPERATORS` which names have it; each distinct name is matched once."""
    distinct = names.dictionary_encode()
    other = pc.match_substring_regex(distinct.dictionary, _NO_OPERATOR)
    matches = (pc.match_substring_regex(distinct.dictionary, form) for form in _OPERATORS)
    return [pc.and_not(match, other).take(distinct.indices) for match in matches]


def _whole(digits: pa.Array) -> pa.Array:
    """Return texts of digits as integers, null for an empty text."""
    return pc.if_else(pc.equal(digits, ""), None, digits).cast(pa.int64())


def _with_inputs(args: pa.Array, inputs: pa.Array) -> pa.Array:
    """Return the arguments of calls, JSON objects or nulls, with the ids of the calls that made their inputs."""
    before = args.cast(pa.string())
    opened = pc.coalesce(pc.binary_join_element_wise(pc.utf8_rtrim(before, "}"), ",", ""), "{")
    joined = pc.binary_join_element_wise(opened, '"input_op_ids":"', inputs, '"}', "")
    return pc.if_else(pc.equal(inputs, ""), before, joined)


def _is_time(values: Ints) -> Any:
    return (values >= TIMES_NS.start) & (values < TIMES_NS.stop)


class Tables(Protocol):
    """The tables of an open file or folder; `profilers.readers.common.database.Database` documents them."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the columns by table."""
        ...

    def read(self, table: str, columns: Sequence[str], /) -> Iterator[dict[str, Any]]:
        """Yield batches of the named columns."""
        ...


class RecordedTables:
    """The tables of an open recording.

    Parameters
    ----------
    database : Tables
        The open file or folder.
    counts : Counter
        Counts of the file; damaged tables are added.
    """

    def __init__(self, database: Tables, counts: Counter[str]) -> None:
        self._database = database
        self.path = database.path
        self._counts = counts
        #: Names of the columns by table.
        self.tables = database.tables

    def uncounted(self) -> "RecordedTables":
        """Return the same tables, to be read twice: their damage is not counted again."""
        return RecordedTables(self._database, Counter())

    def check(self, table: str, required: Iterable[str]) -> None:
        """Check that a table has the columns that an event needs.

        Raises
        ------
        BrokenFileError
            A column is absent; the message names the file, the table and the column.
        """
        if missing := sorted(set(required) - set(self.tables.get(table, ()))):
            raise BrokenFileError(f"{self.path}: table {table} lacks the columns {', '.join(missing)}; record again")

    def blocks(self, table: str, columns: Sequence[str]) -> Iterator[RowBlock]:
        """Yield the rows of a table up to where it is damaged, which is counted; no rows if the table is absent."""
        if table not in self.tables:
            return
        try:
            yield from map(RowBlock, self._database.read(table, columns))
        except BrokenFileError:
            self._counts["damaged_tables"] += 1

    def join(self, table: str, columns: Sequence[str]) -> "Join":
        """Return integer columns of all rows of a table, 8 bytes a value; empty if the table is absent."""
        return Join(columns, [[block.ints(name) for name in columns] for block in self.blocks(table, columns)])

    def strings(self, table: str, columns: Sequence[str] = ("id", "string")) -> Strings:
        """Return the texts of a table.

        Parameters
        ----------
        table : str
            Name of the table.
        columns : sequence of str
            The column of numbers, then columns of texts; the first text that is not empty counts.
        """
        texts: dict[int, str] = {}
        for block in self.blocks(table, columns):
            for name in columns[1:]:
                pairs = zip(block.ints(columns[0]).tolist(), block.texts(name).to_pylist(), strict=True)
                for key, text in pairs:  # a loop over the distinct texts, 0.2 us each
                    if text:
                        texts.setdefault(key, text)
        return Strings(np.fromiter(texts, np.int64), pa.array(texts.values(), pa.string()))

    def schema_version(self, table: str) -> str | None:
        """Return the version of the schema that a table of metadata states, or None."""
        for block in self.blocks(table, ("tag", "value")):
            values = dict(zip(block.texts("tag").to_pylist(), block.texts("value").to_pylist(), strict=True))
            if version := values.get("schema_version"):
                return str(version)
        return None


class Join:
    """A table whose rows are looked up by number; the first row counts if a number repeats.

    Parameters
    ----------
    names : sequence of str
        Names of the columns; the first holds the number.
    blocks : sequence of sequence of array of int64
        Blocks of rows: the columns of each, in the order of `names`.

    Examples
    --------
    >>> from profilers.trace.arrays import MISSING
    >>> join = Join(("id", "pid"), [[np.array([7, 3]), np.array([70, 30])]])
    >>> join("pid", np.array([3, 7])).tolist(), (join("pid", np.array([5])) == MISSING).tolist()
    ([30, 70], [True])
    """

    def __init__(self, names: Sequence[str], blocks: Sequence[Sequence[Ints]]) -> None:
        columns = [np.concatenate(arrays) for arrays in zip(*blocks, strict=True)]
        columns = columns or [np.empty(0, np.int64)] * len(names)
        order = np.argsort(columns[0], kind="stable")
        self._key = columns[0][order]
        self._columns = {name: values[order] for name, values in zip(names, columns, strict=True)}

    def __call__(self, name: str, numbers: Ints) -> Ints:
        """Return a column of the rows with these numbers, `MISSING` for a number without a row."""
        return lookup(self._key, self._columns[name], numbers)

    def column(self, name: str) -> Ints:
        """Return a whole column, in the order of the numbers."""
        return self._columns[name]
