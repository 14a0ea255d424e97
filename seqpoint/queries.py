"""SQL over a trace: `sql` runs one SELECT of DuckDB over views of its events.

The views are those of `datasets/sql_views.toml`. A ``.trace`` folder is read in place. Of another trace, and of what
the toolkit derives (operator, class, phase and module of a kernel, waits, step times), a statement gets the tables that
it names. The statement runs in a process of its own (`seqpoint.sql_process`), which can read nothing else.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import DTYPES
from profilers.errors import DependencyError, InvalidInputError
from profilers.files import shipped_table
from profilers.trace.arrays import MISSING, Floats, Ints, arrow_array
from profilers.trace.columns import encoded
from profilers.trace.schema import SCHEMAS, empty_table
from profilers.trace.store import is_trace, load_trace
from profilers.trace.trace import Trace
from seqpoint import front_door, sql_process
from seqpoint.notebook import DataFrame, Result, Table, counted, data_frame
from seqpoint.opening import many_ranks

#: Most characters of a statement.
_MOST_TEXT: Final = 100_000
#: Memory of DuckDB, and of its process beyond the tables that it gets, in bytes.
_MEMORY, _PROCESS = 1 << 30, 3 << 30
#: Characters that are patterns in DuckDB's names of files.
_PATTERN: Final = frozenset("*?[")
#: Types of DuckDB that a table aligns to the right.
_NUMBERS: Final = ("BIGINT", "INTEGER", "HUGEINT", "DOUBLE", "FLOAT", "DECIMAL", "SMALLINT", "TINYINT", "NUMBER")


class _View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A view: what a row is, the query that makes it, and a sentence on each column."""

    meaning: str
    query: str
    columns: dict[str, str]


class _Views(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `datasets/sql_views.toml`, whose head explains its keys."""

    shared: dict[str, str]
    views: dict[str, _View]


def _shipped() -> _Views:
    return shipped_table("sql_views.toml", "views of traces", _Views)


@dataclass(frozen=True, repr=False)
class QueryResult(Result):
    """Rows of a statement.

    Parameters
    ----------
    columns : tuple of str
        Names of the columns; a name that repeats ends in a number.
    types : tuple of str
        Their types in DuckDB.
    rows : tuple of tuple
        Cells as JSON has them.
    more : bool
        Whether the statement has more rows than were asked for.
    """

    heading = "Query"

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool = False

    def table(self) -> DataFrame:
        """Return the rows for pandas."""
        return data_frame(list(self.rows), list(self.columns))

    def tables(self) -> tuple[Table, ...]:
        """Return the rows as text."""
        is_number = [kind.startswith(_NUMBERS) for kind in self.types]
        heads = tuple(f"{name}{'' if number else '~'}" for name, number in zip(self.columns, is_number, strict=True))
        title = f"Rows of the statement: {len(self.rows):,}" + (" or more" if self.more else "")
        return (Table(title, heads, [tuple(map(_cell, row)) for row in self.rows]),)

    def notes(self) -> tuple[str, ...]:
        """Return that rows are left out, if some are."""
        left = f"the statement has more than these {counted(len(self.rows), 'row')}; --limit sets how many are fetched"
        return (left,) if self.more else ()

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint sql --json` prints."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        types = dict(zip(self.columns, self.types, strict=True))
        return {"columns": types, "rows": rows, "more": self.more}


def _cell(value: Any) -> str:
    """Return a cell as text: numbers in full, fractions with six digits."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, repr=False)
class ViewList(Result):
    """The views that a statement can read, with a sentence on each column."""

    heading = "Views"

    def table(self) -> DataFrame:
        """Return a row for each column of each view, for pandas."""
        return data_frame(self.to_dict()["rows"])

    def tables(self) -> tuple[Table, ...]:
        """Return the views, and the columns of each, as text."""
        views = [(name, ", ".join(view.columns), view.meaning) for name, view in _shipped().views.items()]
        columns = [tuple(row.values()) for row in self.to_dict()["rows"]]
        heads = ("view~", "column~", "meaning~")
        return Table("Views", ("view~", "columns~", "meaning~"), views), Table("Columns", heads, columns, True)

    def summary(self) -> tuple[str, ...]:
        """Return what can be read."""
        return ("one SELECT reads these views; raw_kernels, raw_ops and so on are the tables as they are stored",)

    def notes(self) -> tuple[str, ...]:
        """Return where the sentences on the columns are."""
        return ("--all explains each column",)

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint sql TRACE --json` prints."""
        shipped = _shipped()
        rows = [
            {"view": name, "column": column, "meaning": sentence or shipped.shared[column]}
            for name, view in shipped.views.items()
            for column, sentence in view.columns.items()
        ]
        return {"views": {name: view.meaning for name, view in shipped.views.items()}, "rows": rows}


def sql(
    trace: Trace | str | PathLike[str] | Sequence[str | PathLike[str]],
    query: str = "",
    *,
    limit: int = 10_000,
    seconds: float = 60.0,
) -> QueryResult | ViewList:
    """Run a SELECT over the events of a trace; without a statement, return the views and their columns.

    Parameters
    ----------
    trace : Trace, path or sequence of paths
        The trace; a ``.trace`` folder is read in place, of more than 32 ranks those that stand for all.
    query : str
        One SELECT in the SQL of DuckDB.
    limit : int
        Most rows to fetch.
    seconds : float
        Time for the statement, after which it is stopped.

    Raises
    ------
    DependencyError
        DuckDB is not installed.
    InvalidInputError
        The statement is wrong, is no SELECT, or takes too long or too much memory.
    SeqPointError
        The trace cannot be read.
    """
    if limit < 1 or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise InvalidInputError("the limits on rows and seconds are above 0")
    source = _QueriedTrace(trace if isinstance(trace, Trace | str | PathLike) else tuple(trace))
    if not query.strip():
        source.views()  # the trace can be read
        return ViewList()
    if len(query) > _MOST_TEXT:
        raise InvalidInputError(f"the statement has {len(query):,} characters; at most {_MOST_TEXT:,} are read")
    with _Statement(seconds) as statement:
        content = statement.run(source, query, limit)
    columns = _distinct([name for name, _ in content["columns"]])
    types = tuple(kind for _, kind in content["columns"])
    return QueryResult(columns, types, tuple(map(tuple, content["rows"])), content["more"])


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without repetitions.

    Examples
    --------
    >>> _distinct(["a", "b", "a"])
    ('a', 'b', 'a_2')
    """
    result: dict[str, None] = {}
    for name in names:
        number, distinct = 1, name
        while distinct in result:
            number, distinct = number + 1, f"{name}_{number + 1}"
        result[distinct] = None
    return tuple(result)


class _QueriedTrace:
    """The tables of a trace by name: those as stored, and what the toolkit derives from them.

    Parameters
    ----------
    trace : Trace, path or tuple of paths
        The trace; a ``.trace`` folder is loaded when a derived table is needed.
    """

    def __init__(self, trace: Any) -> None:
        in_place = isinstance(trace, str | PathLike) and is_trace(trace) and not _PATTERN & set(fspath(trace))
        in_place = in_place and many_ranks(trace) is None
        self._trace, self._folder = trace, Path(trace).resolve() if in_place else None

    @cached_property
    def _loaded(self) -> Trace:
        return self._trace if isinstance(self._trace, Trace) else front_door.opened(self._trace)

    @property
    def _meta(self) -> Any:
        return self._loaded.meta if self._folder is None else load_trace(self._folder, {}).meta

    def files(self) -> dict[str, list[str]]:
        """Return the Parquet files by name of the table."""
        if self._folder is None:
            return {}
        return {f"raw_{kind}": sorted(map(str, (self._folder / kind).glob("rank=*.parquet"))) for kind in SCHEMAS}

    def views(self) -> dict[str, str]:
        """Return the query of each view, without the iterations that a slice has as context only."""
        context = ", ".join(map(str, self._meta.context))
        where = f" where iteration not in ({context})" if context else ""
        return {
            name: f"select {', '.join(view.columns)} from ({view.query}) as rows{where}"
            for name, view in _shipped().views.items()
        }

    def table(self, name: str) -> pa.Table:
        """Return a table; one that is read from files has no rows here."""
        if name in _DERIVED:
            return _DERIVED[name](self._loaded.without_context())
        kind = name.removeprefix("raw_")
        return empty_table(kind) if self._folder is not None else self._loaded.tables[kind]


class _Statement:
    """The process that runs a statement; it ends with the block, at the latest."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._late = seconds, False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", sql_process.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> "_Statement":
        return self

    def __exit__(self, *_problem: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, source: _QueriedTrace, query: str, limit: int) -> dict[str, Any]:
        """Return the answer to a statement."""
        job = {
            "query": query, "limit": limit, "files": source.files(), "views": source.views(),
            "tables": [*(f"raw_{kind}" for kind in SCHEMAS), *_DERIVED], "threads": min(os.cpu_count() or 1, 4),
            "memory_bytes": _MEMORY, "process_bytes": _PROCESS,
        }  # fmt: skip
        self._send(json.dumps(job).encode() + b"\n")
        tables = [source.table(name) for name in self._answer()["needs"]]
        self._send(json.dumps(sum(table.nbytes for table in tables)).encode() + b"\n")
        for table in tables:
            self._send(table)
        return self._answer()

    def _send(self, content: bytes | pa.Table) -> None:
        """Write to the process; if it has ended, its answer tells why."""
        pipe = self._process.stdin
        assert pipe is not None
        try:
            if isinstance(content, bytes):
                pipe.write(content)
            else:
                with pa.ipc.new_stream(pipe, content.schema) as stream:
                    stream.write_table(content)
            pipe.flush()
        except OSError:
            return

    def _answer(self) -> dict[str, Any]:
        """Return the next line of the process."""
        assert self._process.stdout is not None
        timer = threading.Timer(self._seconds, self._stop)
        timer.daemon = True  # an interrupt between start and cancel leaves it, and Python waits for others at its end
        try:
            timer.start()
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            why = f"is stopped after {self._seconds:g} s" if self._late else f"takes more than {_PROCESS >> 30} GB"
            raise InvalidInputError(f"the statement {why}; narrow it, by rank, iteration or name")
        content: dict[str, Any] = json.loads(line)
        if content.get("missing"):
            raise DependencyError("SQL needs DuckDB: pip install 'seqpoint[sql]'")
        if "error" in content:
            raise InvalidInputError(f"the statement fails: {content['error']}")
        return content

    def _stop(self) -> None:
        self._late = True
        self._process.kill()


def _kernel_facts(trace: Trace) -> pa.Table:
    """Return what `kernel_facts` says of each kernel."""
    from seqpoint.kernel_facts import KERNEL_PHASES, kernel_facts, operators_or_reasons

    facts = kernel_facts(trace)
    texts = {
        "class": (facts.class_, facts.classes), "operator": operators_or_reasons(trace, facts),
        "shapes": (facts.shape, facts.shapes), "dtype": (facts.dtype, tuple(DTYPES)),
        "phase": (facts.phase, KERNEL_PHASES), "module": (facts.module, facts.modules),
    }  # fmt: skip
    columns = {name: _texts(codes, known) for name, (codes, known) in texts.items()}
    return pa.table(
        {"id": arrow_array(facts.event), **columns, "flops": _known(facts.flops), "bytes": _known(facts.bytes)}
    )


def _texts(codes: Ints, known: Sequence[str]) -> pa.DictionaryArray:
    """Return the text of each code, null below 0."""
    at = np.where(codes < 0, len(known), codes).astype(np.int32)
    return encoded(at, pa.array([text or None for text in known] + [None], pa.string()))


def _known(values: Floats) -> pa.Array:
    return arrow_array(values, np.isnan(values))


def _op_facts(trace: Trace) -> pa.Table:
    """Return the self time of each operator."""
    from seqpoint.breakdown import self_times

    return pa.table({"id": trace.ops["id"], "self_ns": arrow_array(self_times(trace.ops))})


def _collective_facts(trace: Trace) -> pa.Table:
    """Return when the last rank started each collective."""
    from profilers.trace.activity import last_arrivals

    arrived = last_arrivals(trace)
    return pa.table({"id": trace.collectives["id"], "arrived_ns": arrow_array(arrived, arrived == MISSING)})


def _iteration_facts(trace: Trace) -> pa.Table:
    """Return the statistics of each iteration."""
    from seqpoint.iteration_table import iteration_table

    table = iteration_table(trace)
    of = {"step": "duration", "latency": "latency", "kernel": "kernel_time", "communication": "communication_time"}
    times = {f"{name}_ns": _whole(table.statistics[key]) for name, key in {**of, "copy": "copy_time"}.items()}
    return pa.table(
        {"rank": table.rank, "iteration": table.iteration, **times, "kernels": _whole(table.statistics["kernels"])}
    )


def _whole(values: Floats) -> pa.Array:
    return arrow_array(np.nan_to_num(values).astype(np.int64), np.isnan(values))


#: Tables that the toolkit derives from a trace, by name.
_DERIVED: Mapping[str, Callable[[Trace], pa.Table]] = MappingProxyType(
    {
        "kernel_facts": _kernel_facts,
        "op_facts": _op_facts,
        "collective_facts": _collective_facts,
        "iteration_facts": _iteration_facts,
    }
)
