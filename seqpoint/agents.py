"""Traces for agents: the tools of `seqpoint mcp`, over the Model Context Protocol.

`TraceTools` has a method a tool. Each calls the front door, and answers with JSON of at most 8 kB: the verdict first,
then the first rows of each table, and a handle under which `more` gives the others. Traces are those of one folder.
`server` wires the tools to the SDK of the protocol; each call runs in a thread, so that pings are answered.
"""

import json
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from profilers.errors import DependencyError, InvalidInputError, NotFoundError, SeqPointError
from profilers.files import dataset_path
from profilers.trace.store import is_trace
from profilers.trace.trace import Trace
from seqpoint import front_door
from seqpoint.notebook import NAMES, Result, Table, counted, rows_within, shortened
from seqpoint.opening import surveyed
from seqpoint.queries import QueryResult, sql

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

#: Most bytes of an answer, and characters of an error.
MOST_BYTES, _MOST_ERROR = 8192, 500
#: Most traces that stay open, tables that have a handle, and files that are listed.
_MOST_TRACES, _MOST_TABLES, _MOST_FILES = 4, 64, 500
#: Most notes of an answer; its other notes are a table.
_MOST_NOTES: Final = 5
#: Shapes of an answer, the fullest first: rows of the first table and of others, characters of a cell, tables, columns.
_SHAPES: Final = (
    (48, 12, 320, 12, 20), (24, 12, 160, 12, 20), (16, 8, 120, 12, 20), (12, 6, 96, 12, 20), (12, 4, 64, 12, 16),
    (8, 3, 48, 10, 16), (6, 2, 40, 10, 14), (4, 1, 32, 8, 12), (2, 1, 32, 6, 12), (1, 0, 24, 4, 8), (1, 0, 12, 1, 4),
)  # fmt: skip
#: Most tables that an answer only names.
_MOST_LEFT: Final = 24
#: A table with its handle.
_Kept = tuple[Table, str]
#: Ends of the names of files that may be traces.
_ENDS: Final = tuple(
    f".{end}{packed}"
    for end in ("json", "pb", "csv", "txt", "et", "sqlite", "db", "rpd", "parquet")
    for packed in ("", ".gz", ".zst")
)


@dataclass(frozen=True)
class Answer:
    """What a tool answers.

    Parameters
    ----------
    verdict : sequence of str
        Sentences, the most important first.
    tables : sequence of Table
        Tables, the most telling first; rows by importance. Cells are texts or values of JSON.
    notes : sequence of str
        What stands against the answer.
    """

    verdict: Sequence[str]
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, result: Result, tables: Sequence[Table | str] | None = None) -> "Answer":
        """Return the answer that a result of the front door is."""
        given = result.tables() if tables is None else tables
        sentences = [text for text in given if isinstance(text, str)]
        kept = [table for table in given if isinstance(table, Table) and table.rows]
        return cls([*result.summary(), *sentences], kept, result.notes())

    def text(self, handle: Callable[[Table], str]) -> str:
        """Return the answer as JSON of at most `MOST_BYTES` bytes.

        Parameters
        ----------
        handle : callable
            Returns the handle of a table, by which `TraceTools.more` finds it.
        """
        others = [table for table in self.tables if table.verbose]
        if len(self.notes) > _MOST_NOTES:
            others.append(Table("Notes", ("note~",), [(note,) for note in self.notes]))
        shown, left = (
            [(table, handle(table)) for table in tables]
            for tables in ([table for table in self.tables if not table.verbose], others)
        )
        for shape in _SHAPES:
            text = _json(self._cut(shown, left, shape))
            if len(text.encode()) <= MOST_BYTES:
                break
        return text

    def _cut(self, shown: Sequence[_Kept], left: Sequence[_Kept], shape: tuple[int, int, int, int, int]) -> Any:
        """Return the answer with as many rows, characters, tables and columns as a shape has."""
        first, others, width, most, columns = shape
        tables = [
            _cut_table(table, name, (others if i else first, width, columns))
            for i, (table, name) in enumerate(shown[:most])
        ]
        named = [*shown[most:], *left][:_MOST_LEFT]
        content = {
            "verdict": [shortened(_clean(text), 4 * width) for text in self.verdict[: max(most, 2)]],
            "tables": tables, "more_tables": {name: shortened(_clean(table.title), 24) for table, name in named},
            "notes": [shortened(_clean(text), 2 * width) for text in self.notes[: min(_MOST_NOTES, most)]],
        }  # fmt: skip
        return {key: value for key, value in content.items() if value}


def _cut_table(table: Table, handle: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return the first rows of a table, or those that stand for all, and how to get the others."""
    rows, width, columns = shape
    cut = replace(table, columns=table.columns[:columns])
    chosen = [row[:columns] for row in table.most(rows)]
    content: dict[str, Any] = {
        "title": shortened(_clean(table.title), 80),
        "columns": [shortened(_clean(name), max(width, 12)) for name in cut.names],
        "rows": _cells(cut, chosen, width),
    }
    if len(chosen) < len(table.rows) or len(cut.columns) < len(table.columns):
        content |= {"rows_in_all": len(table.rows), "more": handle}
    if len(cut.columns) < len(table.columns):
        content["columns_left_out"] = len(table.columns) - len(cut.columns)
    return content


def _cells(table: Table, rows: Sequence[tuple[object, ...]], width: int) -> list[list[Any]]:
    """Return rows whose texts have at most `width` characters; names lose their middle and stay different."""
    short = rows_within(table, rows, width) if rows and NAMES & set(table.names) else rows
    pairs = (zip(row, cut, strict=True) for row, cut in zip(rows, short, strict=True))
    return [[_cell(cell if cell is None else cut, width) for cell, cut in pair] for pair in pairs]


def _cell(value: object, width: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    return shortened(_clean(value if isinstance(value, str) else _json(value)), width)


def _clean(text: object) -> str:
    """Return text from a trace without control characters and lone surrogates."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)


class TraceTools:
    """The tools of a server, over the traces below a folder.

    Parameters
    ----------
    root : path
        The folder; nothing outside is read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).resolve()
        if not self._root.is_dir():
            raise NotFoundError(f"{root}: no such folder")
        self._traces: OrderedDict[tuple[Any, ...], Trace] = OrderedDict()
        self._tables: OrderedDict[str, Table] = OrderedDict()
        self._handles = 0

    def describe(self, trace: str = "", by: Literal["", "kernel", "operator", "range", "host"] = "") -> str:
        """List the traces of this server, or show what a trace holds: devices, steps, kernels, overlap, data quality.

        Call it first, without arguments, for the names of the traces. `by` shows kernels by name, operators, ranges of
        the program, or the time of the host by function. Of more than 32 ranks it names slow cards, nodes and links.
        """
        if not trace:
            rows = self._listed()
            table = Table("Traces", ("trace~", "kind~"), rows)
            return self._answer(Answer([f"{counted(len(rows), 'trace')} can be asked about, by these names"], [table]))
        if not by and (survey := surveyed(self._path(trace))):
            return self._answer(Answer.of(survey))
        return self._answer(Answer.of(front_door.describe(self._open(trace), by=[by] if by else ())))

    def advise(self, trace: str, minutes: float = 0.5, device: str = "") -> str:
        """Say what limits the steps of a trace, what to do first, what is not worth it, and what stands against it.

        It replays steps under dozens of what-ifs, for up to `minutes` (at most 10) beyond the first. `device` names the
        GPU if the trace does not.
        """
        if not 0 < minutes <= _MOST_MINUTES:
            raise InvalidInputError(f"minutes {minutes:g}: they are above 0 and at most {_MOST_MINUTES}")
        source = surveyed(self._path(trace)) or self._open(trace)
        advice = front_door.advise(source, minutes=minutes, device=device or None, name=trace)
        content = advice.to_dict()
        actions = ("action", "what_if", "gain", "speedup", "low", "high", "takes", "measured_share", "assumed_share")
        tables = [_rows_table("What to do, in this order", content["rows"], actions)]
        tables += [_rows_table("Not worth it", content["not_worth"], ("action", "reason"))]
        verdict = [*advice.ranks, content["verdict"], content["measured"]]
        return self._answer(Answer(verdict, [table for table in tables if table.rows], advice.against))

    def characterize(
        self,
        trace: str,
        by: Literal["", "operator", "shape", "kernel", "class", "phase", "module"] = "",
        device: str = "",
    ) -> str:
        """Show where the time of a trace goes: operators, classes, shapes, phases, against the roofline.

        The verdict names the rank that others wait for, and why. `Time of each device by cause` compares the ranks.
        `by` chooses one table.
        """
        result = front_door.characterize(self._open(trace), device=device or None)
        tables = result.tables([by] if by else ())
        ranks = (
            [table for table in tables if table.title == result.ranks_table().title] if len(result.ranks) > 1 else []
        )
        return self._answer(Answer.of(result, [*ranks, *(table for table in tables if table not in ranks)]))

    def compare(self, before: str, after: str, what_if: str = "") -> str:
        """Show what changed between two traces, where, and whether it is more than noise.

        With a what-if: does the change that it projects for `before` agree with `after`?
        """
        self._check_what_ifs([what_if])
        traces = self._open(before), self._open(after)
        return self._answer(Answer.of(front_door.compare(*traces, what_if=what_if or None)))

    def project(self, trace: str, what_ifs: list[str], max_points: int = 2, device: str = "") -> str:
        """Project what each what-if would gain on the steps of a trace, with an interval and its evidence.

        `what_ifs` has texts such as "overlap:ideal" or "scale_device:MI355X+scale_links:2"; the tool what_ifs lists
        them. `max_points` is the number of steps that are replayed.
        """
        from seqpoint.projecting import ProjectOptions

        if not 0 < len(what_ifs) <= _MOST_WHAT_IFS or not 0 < max_points <= _MOST_POINTS:
            raise InvalidInputError(f"give 1 to {_MOST_WHAT_IFS} what-ifs, and 1 to {_MOST_POINTS} points")
        self._check_what_ifs(what_ifs)
        options = ProjectOptions(max_points=max_points, device=device or None, jobs=1)
        return self._answer(Answer.of(front_door.project(self._open(trace), what_ifs, options=options)))

    def sql(self, trace: str, query: str = "", limit: int = 1000) -> str:
        """Run a SELECT (DuckDB) over the events of a trace; without a query, list the views and their columns.

        Views: kernels (operator, class, phase, module, rank, iteration, dur_us, ...), ops (self_ns), launches, copies,
        collectives (waiting_ns), syncs, ranges, counters, iterations (step_ns). Group and limit in the query.
        """
        if not 0 < limit <= _MOST_ROWS:
            raise InvalidInputError(f"the limit is 1 to {_MOST_ROWS} rows")
        result = sql(self._open(trace), query, limit=limit, seconds=_SECONDS)
        if not isinstance(result, QueryResult):
            return self._answer(Answer.of(result))
        verdict = f"{counted(len(result.rows), 'row')}" + (
            f"; the limit of {limit} left rows out" if result.more else ""
        )
        (table,) = result.tables()
        return self._answer(Answer([verdict], [replace(table, rows=result.rows)]))

    def what_ifs(self, name: str = "") -> str:
        """List the what-ifs that project takes, with their syntax, or explain one by its name."""
        recipes = front_door.what_ifs()
        if not name:
            rows = [(each.form, each.group, each.summary, each.example) for each in recipes.values()]
            table = Table("What-ifs: all groups", ("syntax~", "group~", "effect~", "example~"), rows)
            return self._answer(
                Answer([f"{len(rows)} what-ifs; ask for one by its name, the word before the colon"], [table])
            )
        from replay.what_ifs import recipe_named

        recipe = recipe_named(name)
        rows = [(each.name, each.kind, each.about, each.default or "") for each in recipe.arguments]
        table = Table("Arguments", ("name~", "kind~", "meaning~", "default~"), rows)
        text = recipe.documentation.removeprefix(recipe.summary).split("\n\n")
        about = [" ".join(part.split()) for part in text if part.strip()]
        return self._answer(Answer([f"{recipe.form}: {recipe.summary}", f"example: {recipe.example}", *about], [table]))

    def more(self, handle: str, offset: int = 0, width: int = 96) -> str:
        """Return further rows of a table of an earlier answer, with the meaning of its columns.

        `handle` is the value of "more" of the table. Start at row `offset` (from 0); "next_offset" of the answer is
        where to go on. Texts have at most `width` characters; raise it for whole names.
        """
        table = self._tables.get(handle)
        if table is None:
            raise NotFoundError(f"no table {handle[:40]!r}: the last {_MOST_TABLES} are kept; call its tool again")
        if not 0 <= offset < max(len(table.rows), 1):
            raise InvalidInputError(f"offset {offset}: the table has {counted(len(table.rows), 'row')}")
        self._tables.move_to_end(handle)
        while True:
            content, width = _page(table, offset, max(width, 4)), width // 2
            text = _json(content)
            if content["rows"] or not len(table.rows) or width < 1:
                return text

    def _answer(self, answer: Answer) -> str:
        return answer.text(self._keep)

    def _keep(self, table: Table) -> str:
        """Keep a table, and return its handle; the oldest tables make room."""
        self._handles += 1
        handle = f"t{self._handles}"
        self._tables[handle] = table
        while len(self._tables) > _MOST_TABLES:
            self._tables.popitem(last=False)
        return handle

    def _open(self, name: str) -> Trace:
        """Return a trace, which stays open until others are asked about or its files change."""
        path = self._path(name)
        files = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
        key = (path, *((each.stat().st_mtime_ns, each.stat().st_size) for each in files[:_MOST_FILES]))
        if key not in self._traces:
            self._traces[key] = front_door.opened(path)
            while len(self._traces) > _MOST_TRACES:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return self._traces[key]

    def _path(self, name: str) -> Path:
        """Return the path of a trace, which lies in the folder of the server with all that it holds."""
        if not name or not name.isprintable() or set("*?[]") & set(name):
            raise InvalidInputError(f"{name[:80]!r} is no name of a trace; describe without arguments lists them")
        try:
            path = (self._root / name).resolve()
            is_there = path.exists()
        except OSError as error:
            raise InvalidInputError(f"{name[:80]!r} is no name of a trace ({error.strerror})") from error
        if path == self._root or not path.is_relative_to(self._root):
            raise InvalidInputError(f"{name[:80]!r} is not in the folder of this server")
        if not is_there:
            raise NotFoundError(f"{name[:80]!r}: no such trace; describe without arguments lists them")
        for each in path.rglob("*") if path.is_dir() else ():
            if each.is_symlink() and not each.resolve().is_relative_to(self._root):
                raise InvalidInputError(f"{name[:80]!r} holds a link out of the folder of this server")
        return path

    def _check_what_ifs(self, texts: Sequence[str]) -> None:
        """Refuse what-ifs that name files, which are plans, policies or jobs."""
        for text in texts:
            words = [text, *re.split(r"[:+=,]", text)]
            if text.startswith("@") or any(word.endswith(".toml") or (word and Path(word).is_file()) for word in words):
                raise InvalidInputError(f"the what-if {text[:80]!r} names a file; this server reads traces only")

    def _listed(self) -> list[tuple[str, str]]:
        """Return name and kind of the traces of the folder: those of several ranks first, then files."""
        found = list[tuple[int, str, str]]()
        for folder, folders, files in os.walk(self._root):
            inside = Path(folder)
            traces = [name for name in folders if is_trace(inside / name)]
            folders[:] = sorted(name for name in folders if name not in traces and not name.startswith("."))
            raw = [name for name in files if name.endswith(_ENDS) and not name.startswith(".")]
            job = [(1, ".", f"folder of {len(raw)} files, as one job")] if len(raw) > 1 and inside != self._root else []
            named = [*((0, name, "trace folder") for name in traces), *job, *((2, name, "file") for name in raw)]
            found += [(order, str((inside / name).relative_to(self._root)), kind) for order, name, kind in named]
            if len(found) > _MOST_FILES:
                break
        return [(name, kind) for _, name, kind in sorted(found)[:_MOST_FILES]]


#: Most columns of a page.
_MOST_COLUMNS: Final = 32
#: Bounds on arguments: minutes of advice, what-ifs and points of a projection, rows and seconds of a statement.
_MOST_MINUTES, _MOST_WHAT_IFS, _MOST_POINTS, _MOST_ROWS, _SECONDS = 10, 16, 16, 10_000, 30.0


def _rows_table(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    """Return a table of rows of JSON, with numbers of four digits."""
    cells = [[row.get(name) for name in names] for row in rows]
    rounded = [tuple(float(f"{cell:.4g}") if isinstance(cell, float) else cell for cell in row) for row in cells]
    return Table(title, tuple(f"{name}~" for name in names), rounded)


def _page(table: Table, offset: int, width: int) -> dict[str, Any]:
    """Return the rows of a table from an offset, as many as fit an answer."""
    cut = replace(table, columns=table.columns[:_MOST_COLUMNS])
    names = [shortened(_clean(name), 40) for name in cut.names]
    meanings = {name: shortened(text, 160) for name, text in zip(names, cut.sentences, strict=True) if text}
    content: dict[str, Any] = {
        "title": shortened(_clean(table.title), 80), "columns": names, "meanings": meanings,
        "columns_left_out": len(table.columns) - len(names), "offset": offset, "rows": [],
        "rows_in_all": len(table.rows), "next_offset": len(table.rows),
    }  # fmt: skip
    if len(_json(content).encode()) > MOST_BYTES // 2:
        content.pop("meanings")
    size = len(_json(content).encode())
    rows = [row[:_MOST_COLUMNS] for row in table.rows[offset : offset + _MOST_FILES]]
    for row in _cells(cut, rows, width):
        size += len(_json(row).encode()) + 1
        if size > MOST_BYTES:
            break
        content["rows"].append(row)
    reached = offset + len(content["rows"])
    return content | {"next_offset": reached if reached < len(table.rows) else None}


def server(root: str | os.PathLike[str]) -> "MCPServer[Any]":
    """Return a server of the traces below a folder, with a tool for each method of `TraceTools`.

    Parameters
    ----------
    root : path
        The folder; nothing outside is read.

    Raises
    ------
    DependencyError
        The SDK of the protocol is not installed.
    NotFoundError
        There is no such folder.
    """
    tools = TraceTools(root)
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise DependencyError("agents need the SDK of the protocol: pip install 'seqpoint[mcp]'") from error
    lock = threading.Lock()

    def guarded(method: Callable[..., str]) -> Callable[..., str]:
        """Return a tool whose errors are one line; calls run one at a time, in threads."""

        @wraps(method)
        def call(*arguments: Any, **named: Any) -> str:
            try:
                with lock:
                    return method(*arguments, **named)
            except SeqPointError as error:
                raise ToolError(_line(error)) from error
            except Exception as error:  # noqa: BLE001 - an agent gets a line, whatever fails
                raise ToolError(f"{type(error).__name__}: {_line(error)}; this is a defect, please report it") from None

        return call

    methods = (tools.describe, tools.characterize, tools.advise, tools.compare, tools.project, tools.sql)
    named = {method.__name__: method for method in (*methods, tools.what_ifs, tools.more)}

    async def checked(ctx: Any, call_next: Callable[[Any], Any]) -> Any:
        """Refuse arguments that a tool does not have, and shorten the errors of tools to one line."""
        given = (ctx.params or {}) if ctx.method == "tools/call" else {}
        method = named.get(str(given.get("name")))
        unknown = set(given.get("arguments") or ()) - set(signature(method).parameters) if method else set()
        if method and unknown:  # as of a tool that does not exist: the SDK ignores them
            result = await call_next(replace(ctx, params={**given, "name": "?"}))
            known = ", ".join(signature(method).parameters)
            text = f"no argument {shortened(min(unknown), 40)!r} of {method.__name__}; there are {known}"
            result["content"][0]["text"] = text
            return result
        result = await call_next(ctx)
        for part in result["content"] if isinstance(result, dict) and result.get("isError") else ():
            part["text"] = _line(part["text"].partition("For further information")[0])
        return result

    serving = MCPServer("seqpoint", instructions=skill().partition("\n---\n")[2].strip(), log_level="ERROR")
    for method in named.values():
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        serving.add_tool(guarded(method), structured_output=False, annotations=hints)
    serving.middleware.append(checked)
    return serving


def _line(error: object) -> str:
    """Return an error as one line."""
    return shortened(" ".join(_clean(error).split()), _MOST_ERROR)


def skill() -> str:
    """Return the skill that tells an agent which tool to call when, and what it must not conclude."""
    return dataset_path("skill.md").read_text(encoding="utf-8")
