"""A reader of tick logs, a made-up CSV format with a kernel or a copy in each row."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profilers.readers import Batches, Head, Sink, check_not_empty, csv_rows, exact_ns
from profilers.trace import Quality, TraceMeta

HEADER = ("what", "name", "begin_ms", "took_ms", "queue", "bytes")
MILLISECONDS = 6  # a millisecond is 10**6 ns


class TickLogReader:
    """Tick logs: CSV files of kernels and copies, with times in milliseconds."""

    name = "ticklog"

    def sniff(self, head: Head) -> bool:
        """Return whether the first line of a file is the header of a tick log."""
        return head.columns == HEADER

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Write the kernels and copies of one file to `sink`."""
        (path,) = files
        counts: Counter[str] = Counter()
        batches = Batches(sink, counts)
        with csv_rows(path, sink, counts) as rows:
            next(rows)  # the header
            for cells in rows:
                counts["events"] += 1
                event = read_event(cells)
                if event is None:
                    counts["dropped_broken"] += 1
                else:
                    batches.add(*event)
            batches.flush()
        check_not_empty(path, counts)
        return TraceMeta(self.name, sources=(path.name,), quality=Quality(counts))


def read_event(cells: list[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the kind of event and its columns; None if the row cannot be used."""
    if len(cells) != len(HEADER):
        return None
    what, name, begin, took, queue, size = cells
    start_ns, dur_ns = exact_ns(begin, MILLISECONDS), exact_ns(took, MILLISECONDS)
    if start_ns is None or dur_ns is None or dur_ns < 0 or not queue.isdecimal():
        return None
    row = {"name": name, "start_ns": start_ns, "dur_ns": dur_ns, "device": 0, "stream": int(queue)}
    if what == "kernel":
        return "kernels", row
    if what == "copy":
        return "copies", row | {"bytes": int(size) if size.isdecimal() else None}
    return None
