"""Rows from decoded Kineto events, and the table of arguments that have a column of their own.

`KIND_OF` and `ARGUMENTS` hold for both ways of reading: the scanner's and that of `EventRows`, which takes the events
that the standard library decodes, one at a time. Rows are not linked yet.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from profilers.files import shipped_table
from profilers.readers.common.numbers import (
    IN_WORK_ITEMS,
    INT32_LIMIT,
    TIMES_NS,
    Grids,
    exact_ns,
    finite_float,
    identity,
    integer,
    plain_text,
)
from profilers.readers.common.source import Bytes
from profilers.readers.common.xla import copy_facts, launch_facts
from profilers.readers.kineto.lanes import EventLane, FileLanes, LaneRules
from profilers.readers.kineto.pairing import Begins, Event
from profilers.trace.arrays import MISSING
from profilers.trace.schema import OWN_RANK

#: Kinds whose events have a process and a thread.
HOST_KINDS = frozenset({"ops", "launches", "ranges", "counters"})

#: Columns of synchronisations in which -1 stands for null.
SYNC_COLUMNS = ("stream", "wait_on_stream", "event", "event_correlation")


class TypedArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of an event that has a column of its own.

    Parameters
    ----------
    keys : tuple of str
        Spellings of the argument; the first that an event has counts.
    what : str
        Type of the column: ``"integer"``, ``"narrow"`` (32 bits), ``"float"``, ``"json"``, or ``"identity"`` (a stream
        or queue, which may be a text).
    """

    keys: tuple[str, ...]
    what: str = "integer"


class _KinetoFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `datasets/formats/kineto.toml`."""

    categories: dict[str, str]
    lanes: LaneRules
    columns: dict[str, tuple[str, ...]]
    arguments: dict[str, TypedArgument]


_FORMAT = shipped_table("formats/kineto.toml", "Kineto's events", _KinetoFormat)
#: Kind of event by category in lower case; "device", and any other category, have the kind of their lane.
KIND_OF: Mapping[str, str] = _FORMAT.categories
#: Arguments by kind and column.
ARGUMENTS: Mapping[str, Mapping[str, TypedArgument]] = {
    kind: {column: _FORMAT.arguments[column] for column in columns} for kind, columns in _FORMAT.columns.items()
}


_FLOW = frozenset("stfMNDO")
#: Phases that take no time: instants, samples, and marks of clocks, contexts and memory dumps.
_INSTANT, _MARK = frozenset("iIRn"), frozenset("TpPvVc()=a")
#: Kinds whose events run on a stream of a device.
DEVICE_KINDS = frozenset({"kernels", "copies"})
#: Processes below are devices, where an event of a device does not name its own.
DEVICES = 1024


def _json(value: Any) -> str | None:
    """Return `value` as JSON, or None if it is missing or nested deeper than Python's stack."""
    try:
        return None if value is None else _ENCODER.encode(value)
    except RecursionError:
        return None


def _number_or_text(value: Any) -> float | str:
    number = finite_float(value)
    return str(value) if number is None else number


_ENCODER = json.JSONEncoder(default=_number_or_text, separators=(",", ":"))


def _narrow(value: Any) -> int | None:
    """Return an integer of 32 bits, or None."""
    number = integer(value)
    return number if number is not None and -INT32_LIMIT <= number < INT32_LIMIT else None


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "integer": integer,
    "narrow": _narrow,
    "float": finite_float,
    "json": _json,
    "identity": identity,
}


#: Spellings of the arguments that name a device or stream.
_PLACE_KEYS = [key for column in ("device", "stream") for key in _FORMAT.arguments[column].keys]
#: Spellings of arguments with their column and conversion, the best first, by kind.
_SPELLINGS = {
    kind: [(key, column, _CONVERSIONS[a.what]) for column, a in arguments.items() for key in a.keys]
    for kind, arguments in ARGUMENTS.items()
}


def file_lanes(reopen: Callable[[], Bytes] | None = None) -> FileLanes:
    """Return the processes and threads of a Kineto file.

    Parameters
    ----------
    reopen : callable, optional
        Opens the file from its start.
    """
    return FileLanes(_FORMAT.lanes, KIND_OF, reopen)


class EventRows:
    """Events collected as columns, by kind; an event that names no rank gets that of its process, or `OWN_RANK`.

    Parameters
    ----------
    lanes : FileLanes, optional
        Processes and threads of the file; by default those of a file without metadata.
    """

    def __init__(self, lanes: FileLanes | None = None) -> None:
        self._lanes = file_lanes() if lanes is None else lanes
        self._begins = Begins()
        self.clear()

    def clear(self) -> None:
        """Drop the rows collected and the counts; begins that wait for their ends stay."""
        #: Columns by kind and name.
        self.columns: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._extents: dict[str, list[list[int]]] = {"kernels": [], "launches": []}
        self.counts: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Add one event, or count the reason for leaving it out. A begin becomes a row when its end is known."""
        phase = plain_text(event.get("ph", "X"))
        if not event:  # behind the last event of XLA's files
            self.counts["skipped_marker"] += 1
            return
        if self._begins.takes(phase):
            self._begins.add(phase, event)
            if self._begins.full:
                self.pair()
            return
        args = event.get("args")
        self._add_row(event, phase, args if isinstance(args, dict) else {}, exact_ns(event.get("dur")))

    def pair(self) -> None:
        """Add the intervals whose begins and ends were added; call it after the last event."""
        for event, duration in self._begins.paired():
            args = event.get("args")
            self._add_row(event, "X", args if isinstance(args, dict) else {}, duration)
        self.counts += self._begins.counts
        self._begins.counts.clear()

    def _add_row(self, event: Event, phase: str, args: Event, duration: int | None) -> None:
        kind, lane = self._kind(event, phase, args)
        if kind is None:
            return
        start = exact_ns(event.get("ts"))
        if start is not None and duration is not None and start + duration not in TIMES_NS:
            duration = None
        if start is None or (start == 0 and duration == 0):
            self.counts["dropped_no_time"] += 1
        elif duration is not None and duration < 0:
            self.counts["dropped_negative"] += 1
        else:
            if duration is None and kind != "counters":
                self.counts["missing_duration"] += 1
            placed = kind == "ranges" and any(args.get(key) is not None for key in _PLACE_KEYS)
            if lane.is_unread or (placed and lane.origin):
                self.counts[f"unread_device[{lane.origin}]"] += 1
            self._append(kind, event, args, (start, duration), lane)

    def _kind(self, event: Event, phase: str, args: Event) -> tuple[str | None, EventLane]:
        category = plain_text(event.get("cat")).lower()
        if phase == "C" or (phase in _INSTANT and args):
            return "counters", EventLane("counters")
        if phase in _INSTANT or phase in _MARK or category == "trace":
            self.counts["skipped_marker"] += 1
            return None, EventLane("ranges")
        if phase in _FLOW:
            self.counts["skipped_flow"] += 1
            return None, EventLane("ranges")
        kind = KIND_OF.get(category, "device")
        if kind != "device":
            return kind, EventLane(kind)
        lane = self._lanes.lane(category, event.get("pid"), event.get("tid"), plain_text(event.get("name")))
        return lane.kind, lane

    def _append(self, kind: str, event: Event, args: Event, time: tuple[int, int | None], lane: EventLane) -> None:
        columns = self.columns[kind]
        pid, tid = event.get("pid"), event.get("tid")
        rank = _narrow(args.get("rank"))
        label_rank, process = self._lanes.process(pid)
        if rank is None or rank < 0:
            rank = label_rank
        columns["rank"].append(OWN_RANK if rank is None else rank)
        columns["name"].append(plain_text(event.get("name")))
        columns["start_ns"].append(time[0])
        columns["dur_ns"].append(time[1])
        self.counts["kept"] += 1
        if kind in HOST_KINDS:
            columns["process"].append(process)
            columns["thread"].append(identity(tid))
        values: dict[str, Any] = {}
        typed: set[str] = set()  # arguments that a column holds without loss
        for key, column, convert in _SPELLINGS[kind] if args else ():
            if key in args and column not in values:
                values[column] = convert(args[key])
                if values[column] is not None:
                    typed.add(key)
        for column in ARGUMENTS[kind]:
            columns[column].append(values.get(column))
        rest = {key: value for key, value in args.items() if key not in typed} or None
        columns["args"].append(_json(rest))
        self.counts["lost_arguments"] += rest is not None and columns["args"][-1] is None
        if kind in DEVICE_KINDS:
            _place(columns, lane, process, identity(tid))
        _add_special(kind, columns, event, args)
        if kind in self._extents:
            self._extents[kind].append(geometry(args))

    def add_grids(self, grids: Grids) -> None:
        """Add the grids of the kernels and launches collected to `grids`."""
        for kind, rows in self._extents.items():
            if not rows:
                continue
            columns = self.columns[kind]
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
    if grid is None or block is None:
        return launch_extents(args["kernel_details"]) if "kernel_details" in args else [MISSING] * 6
    return grid + block


def launch_extents(details: Any) -> list[int]:
    """Return extents as `geometry` from the text in which XLA states workgroups and their size.

    Examples
    --------
    >>> launch_extents(" grid:4,64,1 block:256,1,1 private_mem:0")
    [256, 1, 1, 256, 1, 1]
    """
    facts = launch_facts(plain_text(details))
    groups, size = facts["workgroups"], facts["workgroup_size"]
    return [MISSING] * 6 if groups is None or size is None else [int(groups), 1, 1, int(size), 1, 1]


def _axes(value: Any) -> list[int] | None:
    if not isinstance(value, list) or not 1 <= len(value) <= 3:
        return None
    numbers = [n for n in map(integer, value) if n is not None and n > 0]
    return [*numbers, *[1] * (3 - len(value))] if len(numbers) == len(value) else None


def direction(name: str, args: Event) -> str:
    """Return the direction of a copy, such as ``HtoD``, or ``memset``.

    Parameters
    ----------
    name : str
        Name of the event, such as ``Memcpy HtoD (Pinned -> Device)``, or ``MemcpyD2H``.
    args : dict of str to Any
        Arguments of the event; ``kind`` or ``direction`` states the direction if the name does not.

    Examples
    --------
    >>> direction("MemcpyD2H", {}), direction("dma_request", {"direction": "HOST_TO_DEVICE"})
    ('DtoH', 'HtoD')
    """
    if name.lower().startswith("memset"):
        return "memset"
    words = name.split()
    if len(words) > 1 and words[0] == "Memcpy":
        return words[1]
    if copy := copy_facts(name, ""):
        return copy[0]
    stated = args.get("kind")
    kind = plain_text(args.get("direction") if stated is None else stated)
    return _DIRECTIONS.get(kind, kind) or "unknown"


#: MTIA's words for the direction of a copy.
_DIRECTIONS: Mapping[str, str] = {
    f"{source}_TO_{target}": f"{source[0]}to{target[0]}"
    for source in ("HOST", "DEVICE")
    for target in ("HOST", "DEVICE")
}


def _place(columns: dict[str, list[Any]], lane: EventLane, process: int | None, thread: int | None) -> None:
    """Complete the stream and device of the last row: those of its lane, or else its queue, thread and process."""
    if columns["stream"][-1] in (None, -1):
        choices = (columns["queue"][-1], lane.stream, thread)
        columns["stream"][-1] = next((choice for choice in choices if choice is not None), None)
    if columns["device"][-1] is None:
        is_device = process is not None and 0 <= process < DEVICES
        columns["device"][-1] = lane.device if lane.device is not None else process if is_device else None


def _add_special(kind: str, columns: dict[str, list[Any]], event: Event, args: Event) -> None:
    """Add the columns of `kind` that hold no argument as it is."""
    if kind in ("launches", "ranges", "counters"):
        columns["api" if kind == "launches" else "category"].append(plain_text(event.get("cat")).lower())
    elif kind == "copies":
        columns["direction"].append(direction(plain_text(event.get("name")), args))
    elif kind == "syncs":
        columns["sync"].append(plain_text(args.get("cuda_sync_kind", event.get("name"))))
        for column in SYNC_COLUMNS:
            if columns[column][-1] == -1:
                columns[column][-1] = None
