"""Rows that have a start and an end, given to a sink; what makes no sense is counted and left out."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.arrays import MISSING, Ints
from profilers.errors import BrokenFileError
from profilers.kineto.numbers import TIMES_NS
from profilers.reader import Sink
from profilers.rocm.block import renamed

__all__ = ["check_not_empty", "skip", "write_timed"]


def write_timed(sink: Sink, kind: str, columns: Mapping[str, Any], end: Ints, counts: Counter[str]) -> Ints:
    """Give rows to `sink`, and return the id of each, `MISSING` where it is left out.

    Left out, and counted, are rows without a start and rows that end before they start; one without an end has a
    null duration. An end that runs far into what follows on its stream is cut when kernels are linked
    (`profilers.linking`).

    Parameters
    ----------
    sink : Sink
    kind : str
    columns : mapping
        Arrays by column; of ``start_ns``, ``dur_ns`` is made with `end`. A null ``name`` becomes "unknown".
    end : array of int64
        In ns.
    counts : Counter
    """
    start = columns["start_ns"]
    usable, ended = _is_time(start) & ((start != 0) | (end != 0)), _is_time(end)
    backwards = usable & ended & (end < start)
    kept = np.flatnonzero(usable & ~backwards)
    counts["events"] += len(start)
    counts["dropped_no_time"] += int((~usable).sum())
    counts["dropped_negative"] += int(backwards.sum())
    counts["kept"] += len(kept)
    ids = np.full(len(start), MISSING)
    if len(kept):
        all_kept = len(kept) == len(start)
        chosen = {name: values if all_kept else _taken(values, kept) for name, values in columns.items()}
        duration = np.where(ended, end, MISSING)[kept]
        duration[ended[kept]] -= start[kept][ended[kept]]
        counts["missing_duration"] += int((~ended[kept]).sum())
        ids[kept] = sink.write(kind, {**chosen, "name": _named(chosen["name"], counts), "dur_ns": duration})
    return ids


def _is_time(values: Ints) -> Any:
    return (values >= TIMES_NS.start) & (values < TIMES_NS.stop)


def _taken(values: Any, rows: Any) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def _named(names: pa.Array, counts: Counter[str]) -> pa.DictionaryArray:
    """Return names of which none is missing."""
    full = renamed(names, lambda text: text or None)
    if not full.null_count:
        return full
    counts["missing_name"] += full.null_count
    return full.cast(pa.string()).fill_null("unknown").dictionary_encode()


def skip(counts: Counter[str], rows: int, why: str = "skipped_marker") -> None:
    """Count rows that are no events."""
    counts["events"] += rows
    counts[why] += rows


def check_not_empty(path: Path, counts: Counter[str]) -> None:
    """Raise where no row was kept, and say why.

    Raises
    ------
    BrokenFileError
        Nothing was kept.
    """
    if counts["kept"]:
        return
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    found = f"none of its {counts['events']} rows can be used ({lost})" if counts["events"] else "holds no event"
    raise BrokenFileError(f"{path}: {found}; record again, and see that the tool ends before the file is copied")
