"""Rows from decoded Kineto events, and the table of arguments that have a column of their own.

`KIND_OF` and `ARGUMENTS` hold for both ways of reading: the scanner's and that of `Rows`, which takes the events that
the standard library decodes, one at a time. Rows are not linked yet.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from profilers.readers.common.numbers import (
    IN_WORK_ITEMS,
    INT32_LIMIT,
    TIMES_NS,
    Grids,
    exact_ns,
    plain_text,
    real,
    whole,
)
from profilers.trace.arrays import MISSING
from profilers.trace.schema import OWN_RANK

#: Kind of event by category in lower case. Events of any other category with a duration become ranges.
KIND_OF: Mapping[str, str] = {
    "cpu_op": "ops",
    "operator": "ops",
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "memcpy": "copies",
    "gpu_memset": "copies",
    "memset": "copies",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
    "runtime": "launches",
    "mtia_runtime": "launches",
    "xpu_runtime": "launches",
    "xpu_driver": "launches",
    "privateuse1_runtime": "launches",
    "privateuse1_driver": "launches",
    "cuda_sync": "syncs",
}
#: Kinds whose events have a process and a thread.
HOST_KINDS = frozenset({"ops", "launches", "ranges", "counters"})


@dataclass(frozen=True)
class Argument:
    """An argument of an event that has a column of its own.

    Parameters
    ----------
    column : str
        Name of the column.
    keys : tuple of str
        Spellings of the argument; the first that an event has counts.
    what : str
        Type of the column: ``"integer"``, ``"narrow"`` (32 bits), ``"float"`` or ``"json"``.
    """

    column: str
    keys: tuple[str, ...]
    what: str = "integer"


_EXTERNAL = Argument("external_id", ("External id", "external id"))
_CORRELATION = Argument("correlation", ("correlation",))
_RECORD = Argument("record_function_id", ("Record function id",))
_INDEX = Argument("event_index", ("Ev Idx",))
_LANE = (Argument("device", ("device",), "narrow"), Argument("stream", ("stream",)))

ARGUMENTS: Mapping[str, tuple[Argument, ...]] = {
    "ops": (
        _EXTERNAL,
        Argument("sequence_number", ("Sequence number",)),
        Argument("forward_thread", ("Fwd thread id",)),
        _RECORD,
        _INDEX,
        Argument("shapes", ("Input Dims", "Input dims"), "json"),
        Argument("dtypes", ("Input type",), "json"),
        Argument("strides", ("Input Strides",), "json"),
        Argument("concrete_inputs", ("Concrete Inputs",), "json"),
    ),
    "launches": (_EXTERNAL, _CORRELATION),
    "kernels": (
        *_LANE,
        Argument("queue", ("queue",)),
        _EXTERNAL,
        _CORRELATION,
        Argument("registers", ("registers per thread",), "narrow"),
        Argument("lds_bytes", ("shared memory",)),
        Argument("occupancy", ("est. achieved occupancy %",), "float"),
        Argument("graph_node", ("graph node id",)),
    ),
    "copies": (*_LANE, _EXTERNAL, _CORRELATION, Argument("bytes", ("bytes",))),
    "syncs": (
        *_LANE,
        _CORRELATION,
        Argument("wait_on_stream", ("wait_on_stream",)),
        Argument("event", ("wait_on_cuda_event_id",)),
        Argument("event_correlation", ("wait_on_cuda_event_record_corr_id",)),
    ),
    "ranges": (
        *_LANE,
        _EXTERNAL,
        _RECORD,
        _INDEX,
        Argument("python_id", ("Python id",)),
        Argument("python_parent_id", ("Python parent id",)),
        Argument("python_module_id", ("Python module id",)),
    ),
    "counters": (Argument("value", ("Bytes", "value"), "float"),),
}

Event = dict[str, Any]

_FLOW = frozenset("stfMNDO")
_INSTANT = frozenset("iIRn")


def _json(value: Any) -> str | None:
    """Return `value` as JSON, or None if it is missing or nested deeper than Python's stack."""
    try:
        return None if value is None else _ENCODER.encode(value)
    except RecursionError:
        return None


def _number_or_text(value: Any) -> float | str:
    number = real(value)
    return str(value) if number is None else number


_ENCODER = json.JSONEncoder(default=_number_or_text, separators=(",", ":"))

_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {"integer": whole, "narrow": whole, "float": real, "json": _json}


class Rows:
    """Events collected as columns, by kind; an event that names no rank gets `OWN_RANK`."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._extents: dict[str, list[list[int]]] = {"kernels": [], "launches": []}
        self.counts: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Add one event, or count the reason for leaving it out."""
        phase = plain_text(event.get("ph", "X"))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        kind = self._kind(event, phase, args)
        if kind is None:
            return
        start, duration = exact_ns(event.get("ts")), exact_ns(event.get("dur"))
        if start is not None and duration is not None and start + duration not in TIMES_NS:
            duration = None
        if start is None or (start == 0 and duration == 0):
            self.counts["dropped_no_time"] += 1
        elif duration is not None and duration < 0:
            self.counts["dropped_negative"] += 1
        else:
            if duration is None and kind != "counters":
                self.counts["missing_duration"] += 1
            self._append(kind, event, args, (start, duration))

    def _kind(self, event: Event, phase: str, args: Event) -> str | None:
        category = plain_text(event.get("cat")).lower()
        if phase == "C" or (phase in _INSTANT and args):
            return "counters"
        if phase in _INSTANT or category == "trace" or phase == "E":
            self.counts["skipped_marker"] += 1
            return None
        if phase in _FLOW:
            self.counts["skipped_flow"] += 1
            return None
        return KIND_OF.get(category, "ranges")

    def _append(self, kind: str, event: Event, args: Event, time: tuple[int, int | None]) -> None:
        columns = self._columns[kind]
        rank = whole(args.get("rank"))
        columns["rank"].append(OWN_RANK if rank is None or not 0 <= rank < INT32_LIMIT else rank)
        columns["name"].append(plain_text(event.get("name")))
        columns["start_ns"].append(time[0])
        columns["dur_ns"].append(time[1])
        self.counts["kept"] += 1
        if kind in HOST_KINDS:
            columns["process"].append(whole(event.get("pid")))
            columns["thread"].append(whole(event.get("tid")))
        typed = self._arguments(kind, columns, args)
        rest = {key: value for key, value in args.items() if key not in typed} or None
        columns["args"].append(_json(rest))
        self.counts["lost_arguments"] += rest is not None and columns["args"][-1] is None
        if (special := _ADD_SPECIAL.get(kind)) is not None:
            special(columns, event, args)
        if kind in self._extents:
            self._extents[kind].append(geometry(args))

    def _arguments(self, kind: str, columns: dict[str, list[Any]], args: Event) -> set[str]:
        """Fill the typed columns of `kind`; return the keys of arguments that these hold without loss."""
        typed: set[str] = set()
        for argument in ARGUMENTS[kind]:
            key = next((k for k in argument.keys if k in args), None)
            value = None if key is None else _CONVERSIONS[argument.what](args[key])
            if value is not None and argument.what == "narrow" and not -INT32_LIMIT <= value < INT32_LIMIT:
                value = None
            if key is not None and value is not None:
                typed.add(key)
            columns[argument.column].append(value)
        return typed

    def columns(self) -> Mapping[str, Mapping[str, list[Any]]]:
        """Return the columns by kind and name."""
        return self._columns

    def add_grids(self, grids: Grids) -> None:
        """Add the grids of the kernels and launches collected to `grids`."""
        for kind, rows in self._extents.items():
            if not rows:
                continue
            columns = self._columns[kind]
            rank = np.array(columns["rank"], dtype=np.int64)
            numbers = [MISSING if n is None else n for n in columns["correlation"]]
            correlation = np.array(numbers, dtype=np.int64)
            extents = np.array(rows, dtype=np.int64)
            if kind == "kernels":
                grids.add_kernels(rank, correlation, extents)
            else:
                grids.add_launches(rank, correlation, extents, np.array(columns["name"]) == IN_WORK_ITEMS)


def geometry(args: Event) -> list[int]:
    """Return the three extents of grid and of block, six times `MISSING` if either is absent or not valid."""
    grid, block = (_axes(args.get(key)) for key in ("grid", "block"))
    return [MISSING] * 6 if grid is None or block is None else grid + block


def _axes(value: Any) -> list[int] | None:
    if not isinstance(value, list) or not 1 <= len(value) <= 3:
        return None
    numbers = [n for n in map(whole, value) if n is not None and n > 0]
    return [*numbers, *[1] * (3 - len(value))] if len(numbers) == len(value) else None


def _launch(columns: dict[str, list[Any]], event: Event, _args: Event) -> None:
    columns["api"].append(plain_text(event.get("cat")).lower())


def _copy(columns: dict[str, list[Any]], event: Event, args: Event) -> None:
    columns["direction"].append(direction(plain_text(event.get("name")), args))


def direction(name: str, args: Event) -> str:
    """Return the direction of a copy, such as ``HtoD``, or ``memset``.

    Parameters
    ----------
    name : str
        Name of the event, such as ``Memcpy HtoD (Pinned -> Device)``.
    args : dict of str to Any
        Arguments of the event; ``kind`` states the direction if the name does not.
    """
    if name.startswith("Memset"):
        return "memset"
    words = name.split()
    kind = words[1] if len(words) > 1 and words[0] == "Memcpy" else plain_text(args.get("kind"))
    return kind or "unknown"


def _sync(columns: dict[str, list[Any]], event: Event, args: Event) -> None:
    columns["sync"].append(plain_text(args.get("cuda_sync_kind", event.get("name"))))
    for column in ("stream", "wait_on_stream", "event", "event_correlation"):
        if columns[column][-1] == -1:
            columns[column][-1] = None


def _category(columns: dict[str, list[Any]], event: Event, _args: Event) -> None:
    columns["category"].append(plain_text(event.get("cat")).lower())


_ADD_SPECIAL: Mapping[str, Callable[[dict[str, list[Any]], Event, Event], None]] = {
    "launches": _launch,
    "copies": _copy,
    "syncs": _sync,
    "ranges": _category,
    "counters": _category,
}
