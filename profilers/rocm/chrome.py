"""The JSON that rocprof 1 writes for Chrome's trace viewer, as the tables that its database has."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from profilers.arrays import MISSING
from profilers.kineto.document import Document
from profilers.kineto.numbers import plain_text, whole
from profilers.reader import Sink
from profilers.rocm.block import Block, text_list
from profilers.source import read_source

__all__ = ["read_tables"]

#: Which table holds the events of a process, by how the viewer labels it.
_LABELS = (("CPU HIP", "HIP"), ("CPU HSA", "HSA"), ("CPU KFD", "KFD"), ("COPY", "COPY"), ("GPU", "OPS"))
_TEXTS = ("Name",)
_NUMBERS = ("BeginNs", "EndNs", "tid", "dev-id", "queue-id")

Event = Mapping[str, Any]
#: Process, thread and microsecond of an event, by which an arrow finds it.
Place = tuple[int | None, int | None, int | None]


@dataclass
class _Lanes:
    """What was found so far: events by process, arrows by what they point to."""

    labels: dict[int | None, str] = field(default_factory=dict)
    events: dict[int | None, list[Event]] = field(default_factory=dict)
    places: dict[int | None, list[Place]] = field(default_factory=dict)
    tails: dict[Any, Place] = field(default_factory=dict)
    heads: dict[Any, Place] = field(default_factory=dict)

    def add(self, event: Event) -> bool:
        """Keep an event, or what a label or an arrow says; return whether it is an event."""
        phase, arguments = event.get("ph"), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        process = whole(event.get("pid"))
        place = process, whole(event.get("tid")), whole(event.get("ts"))
        if phase == "X":
            name = plain_text(arguments.get("Name")) or plain_text(event.get("name"))
            self.events.setdefault(process, []).append({**arguments, "tid": event.get("tid"), "Name": name})
            self.places.setdefault(process, []).append(place)
        elif phase == "M" and event.get("name") == "process_name":
            self.labels[process] = plain_text(arguments.get("name"))
        elif phase in ("s", "t", "f"):
            arrows = self.tails if phase == "s" else self.heads
            arrows[plain_text(event.get("id"))] = place
        return phase == "X"

    def table(self, process: int | None) -> str:
        """Return which table of the database holds the events of a process."""
        label = self.labels.get(process, "")
        return next((table for start, table in _LABELS if label.startswith(start)), "rocTX")


def read_tables(path: Path, sink: Sink, counts: Counter[str]) -> Iterator[tuple[str, Block]]:
    """Yield the name of a table and rows of it, with an ``Index`` that joins a call and what it launched.

    The whole text is held, as are its events: about ten times the size of the file. The tool itself fails on
    large runs, so these files are small.

    Raises
    ------
    BrokenFileError
        It is no JSON, or unpacks to more than the limit.
    """
    source = read_source(path, sink.limit_bytes)
    document = Document(source.content.decode("utf-8-sig", "replace"), path.name)
    lanes = _Lanes()
    for event in document:  # a Python loop over the events, 5 us each
        if not lanes.add(event):
            counts["events"] += 1
            counts["skipped_flow"] += 1
    counts["truncated_files"] += bool(source.truncated or document.counts["truncated_files"])
    for name in ("dropped_broken", "repaired_nan", "repaired_escape"):
        counts[name] += document.counts[name]
    counts["events"] += document.counts["dropped_broken"]
    called, launched = _correlations(lanes)
    for process, events in sorted(lanes.events.items(), key=lambda item: str(item[0])):
        table = lanes.table(process)
        if table == "HIP":
            index = np.arange(len(events)) + called.get(process, 0)
        else:
            index = np.array([launched.get(place, int(MISSING)) for place in lanes.places[process]], np.int64)
        yield table, _block(events, index)


def _block(events: list[Event], index: Any) -> Block:
    columns: dict[str, Any] = {name: text_list(plain_text(e.get(name)) for e in events) for name in _TEXTS}
    for name in _NUMBERS:
        found = (whole(event.get(name)) for event in events)
        columns[name] = np.array([MISSING if number is None else number for number in found], np.int64)
    return Block({**columns, "Index": index})


def _correlations(lanes: _Lanes) -> tuple[dict[int | None, int], dict[Place, int]]:
    """Return the number of the first call of each process, and the number of the call that an operation is of.

    An arrow begins inside its call, in whole microseconds: it is of the call of its thread that began last.
    """
    firsts: dict[int | None, int] = {}
    threads: dict[tuple[int | None, int | None], list[tuple[int, int, int, int]]] = {}
    number = 0
    for process, events in sorted(lanes.events.items(), key=lambda item: str(item[0])):
        if lanes.table(process) != "HIP":
            continue
        firsts[process] = number
        for event, (_, thread, at) in zip(events, lanes.places[process], strict=True):
            begin, end = whole(event.get("BeginNs")), whole(event.get("EndNs"))
            if at is not None and begin is not None and end is not None:
                threads.setdefault((process, thread), []).append((at, begin, -end, number))
            number += 1
    return firsts, _launched(lanes, {thread: sorted(calls) for thread, calls in threads.items()})


def _launched(lanes: _Lanes, calls: Mapping[Any, list[tuple[int, int, int, int]]]) -> dict[Place, int]:
    """Return the number of the call of every operation that an arrow leads to."""
    starts = {thread: [call[0] for call in own] for thread, own in calls.items()}
    launched: dict[Place, int] = {}
    for arrow, (process, thread, at) in lanes.tails.items():
        if at is None or arrow not in lanes.heads or (process, thread) not in calls:
            continue
        row = bisect_right(starts[process, thread], at) - 1
        if row >= 0:
            began, begin, end, number = calls[process, thread][row]
            if at <= began + (-end - begin) // 1000 + 1:
                launched[lanes.heads[arrow]] = number
    return launched
