"""A reader of step logs, a made-up format: ``STEPLOG 1``, then a kernel a line as ``start_ns dur_ns name``."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from profilers.errors import BrokenFileError
from profilers.readers.common.reader import Head, Sink
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

__all__ = ["StepLogReader"]

_FIRST = b"STEPLOG 1\n"
_BATCH = 65536


class StepLogReader:
    """Step logs, version 1: a kernel a line."""

    name = "steplog"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts as a step log does."""
        return head.start.startswith(_FIRST)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the kernels of one file to `sink`.

        Raises
        ------
        BrokenFileError
            No line can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        rows: list[tuple[int, int, str]] = []
        with path.open(encoding="utf-8", errors="replace") as lines:
            next(lines)
            for line in lines:
                counts["events"] += 1
                match line.rstrip("\n").split(" ", 2):
                    case [start, duration, name] if start.isdecimal() and duration.isdecimal() and len(line) < 4096:
                        rows.append((int(start), int(duration), name))
                    case _:
                        counts["dropped_broken"] += 1
                if len(rows) == _BATCH:
                    counts["kept"] += _write(rows, sink)
                    rows.clear()
        counts["kept"] += _write(rows, sink)
        if not counts["kept"]:
            raise BrokenFileError(f"{path}: none of its {counts['events']} lines is a kernel")
        return TraceMeta(self.name, "1", (path.name,), quality=Quality(counts))


def _write(rows: Sequence[tuple[int, int, str]], sink: Sink) -> int:
    start, duration, name = ([row[i] for row in rows] for i in range(3))
    columns = {"rank": [OWN_RANK] * len(rows), "name": name, "start_ns": start, "dur_ns": duration}
    return len(sink.write("kernels", columns))
