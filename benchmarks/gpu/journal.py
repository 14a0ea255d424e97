"""`Journal`: rows as they are recorded, one line a step, so that whatever stops a recording loses one step at most."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.step import Row, Tables

__all__ = ["Journal"]

#: How a line begins.
_BEGINS = b'{"take": '


class Journal:
    """An append-only file of JSON lines.

    A line is ``{"take", "key", "part", "seconds", "tables"}``, or with ``"error"`` in place of `tables` where a step
    failed. A last line that was cut off is dropped when the journal is opened again.

    Parameters
    ----------
    path : Path
    take : int
        Which recording of the plan is written.

    Raises
    ------
    ValueError
        A line is no entry, and not one that was cut off; the message names it, and the file is left as it is.
    """

    def __init__(self, path: Path, take: int = 0) -> None:
        self.path, self.take = path, take
        path.parent.mkdir(parents=True, exist_ok=True)
        self._mend()
        entries = list(self.entries())
        self.done = frozenset(e["key"] for e in entries if e["take"] == take and "error" not in e)
        self.failed = frozenset(e["key"] for e in entries if e["take"] == take and "error" in e) - self.done

    def write(self, key: str, part: str, seconds: float, tables: Tables) -> None:
        """Append what a step recorded; it is on the disk when this returns."""
        self._append({"key": key, "part": part, "seconds": round(seconds, 3), "tables": tables})
        self.done |= {key}
        self.failed -= {key}

    def fail(self, key: str, part: str, error: str) -> None:
        """Append that a step failed, and how."""
        self._append({"key": key, "part": part, "error": error[:2000]})
        self.failed |= {key}

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """Yield all entries, of every take, in the order in which they were written."""
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield _entry(self.path, number, line)

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table with their take; of a step that was written twice, the last."""
        latest = {(e["take"], e["key"]): e for e in self.entries() if "error" not in e}
        for (take, _), entry in latest.items():
            for row in entry["tables"].get(table, ()):
                yield {"take": take, **row}

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps({"take": self.take, **entry}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _mend(self) -> None:
        """Cut off a last line without its end, where all before it are entries and it may have become one."""
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            *lines, last = file.read().split(b"\n")
            if not last:
                return
            for number, line in enumerate(lines, 1):
                _entry(self.path, number, line)
            # After a loss of power, a system may have filled it with zeros.
            if last.strip(b"\0") and not last.startswith(_BEGINS[: len(last)]):
                raise _no_entry(self.path, len(lines) + 1, "it is of something else")
            file.truncate(sum(len(line) + 1 for line in lines))


def _entry(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
        fine = type(entry["take"]) is int and all(isinstance(entry[name], str) for name in ("key", "part"))
        if fine and ("error" in entry or _are_tables(entry["tables"])):
            return dict(entry)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_entry(path, number, str(error)[:200]) from error
    raise _no_entry(path, number, "a value is of another type")


def _are_tables(found: object) -> bool:
    return isinstance(found, dict) and all(
        isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in found.values()
    )


def _no_entry(path: Path, number: int, why: str) -> ValueError:
    return ValueError(f"{path}: line {number} is no entry of a journal ({why}); move the file away")
