"""What the recordings of AMD's tools have in common: grids in work-items, begin and end stamps, words for copies."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints
from profilers.reader import Sink

__all__ = ["API_KINDS", "api_kind", "copy_direction", "divided", "put_rows", "texts", "whole_numbers"]

_INTEGER = r"^\s*-?[0-9]{1,18}\s*$"
_LIMIT = 1 << 62
_DIRECTIONS = ((r"HOST_?TO_?DEVICE", "HtoD"), (r"DEVICE_?TO_?HOST", "DtoH"), (r"DEVICE_?TO_?DEVICE", "DtoD"))
#: Kind and category of a call, by what its domain or name starts with.
API_KINDS: tuple[tuple[str, str, str], ...] = (
    ("HIP", "launches", "hip_runtime"),
    ("HSA", "ranges", "hsa_api"),
    ("RCCL", "ranges", "rccl"),
    ("NCCL", "ranges", "rccl"),
    ("MARKER", "ranges", "user_annotation"),
    ("ROCTX", "ranges", "user_annotation"),
)


def api_kind(domain: str) -> tuple[str, str]:
    """Return the kind of event of a call, and its category.

    Examples
    --------
    >>> api_kind("HIP_RUNTIME_API_EXT"), api_kind("HSA_CORE_API"), api_kind("ROCDECODE_API")
    (('launches', 'hip_runtime'), ('ranges', 'hsa_api'), ('ranges', 'rocdecode_api'))
    """
    for start, kind, category in API_KINDS:
        if domain.upper().startswith(start):
            return kind, category
    return "ranges", domain.lower()


def copy_direction(word: str) -> str:
    """Return the direction of a copy as Kineto spells it; the word itself where it is none.

    Examples
    --------
    >>> copy_direction("MEMORY_COPY_HOST_TO_DEVICE"), copy_direction("CopyDeviceToHost"), copy_direction("Task")
    ('HtoD', 'DtoH', 'Task')
    """
    found = (short for pattern, short in _DIRECTIONS if re.search(pattern, word, re.IGNORECASE))
    return next(found, "memset" if "fill" in word.lower() or "memset" in word.lower() else word)


def divided(work_items: Ints, size: Ints) -> Ints:
    """Return workgroups: work-items by workgroup size, rounded up; `MISSING` where either is no positive number."""
    known = (work_items > 0) & (size > 0)
    return np.where(known, -(-work_items // np.where(known, size, 1)), MISSING)


def whole_numbers(values: Any) -> Ints:
    """Return integers from texts or numbers; `MISSING` for what is none."""
    if isinstance(values, np.ndarray):
        return values.astype(np.int64, copy=False)
    if pa.types.is_floating(values.type):
        floats = np.asarray(values.to_numpy(zero_copy_only=False), dtype=float)
        good = np.isfinite(floats) & (np.abs(floats) < 2.0**53) & (floats == np.floor(floats))
        return np.where(good, np.where(good, floats, 0), MISSING).astype(np.int64)
    plain = pc.if_else(pc.match_substring_regex(values, _INTEGER), pc.utf8_trim_whitespace(values), None)
    return np.asarray(plain.cast(pa.int64()).fill_null(int(MISSING)).to_numpy(zero_copy_only=False), dtype=np.int64)


def texts(values: Any, wanted: Mapping[str, str] | None = None) -> pa.DictionaryArray:
    """Return texts as a dictionary, each distinct one looked up in `wanted` where it is there; null is ``""``."""
    plain = values if isinstance(values, pa.Array) else pa.array([str(v) for v in values.tolist()], pa.string())
    found = plain.cast(pa.string()).fill_null("").dictionary_encode()
    if wanted is None:
        return found
    renamed = [wanted.get(text, text) for text in found.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(found.indices, pa.array(renamed, pa.string()))


def put_rows(sink: Sink, kind: str, columns: Mapping[str, Any], end: Ints, counts: Counter[str]) -> Ints:
    """Give rows to `sink` whose times make sense; count the others. Return each row's id, `MISSING` without one.

    Parameters
    ----------
    columns : mapping
        With ``start_ns`` as an array; ``dur_ns`` is made from `end`.
    end : array of int64
        In ns.
    """
    start = columns["start_ns"]
    timed = (start != MISSING) & (end != MISSING) & (np.abs(start) < _LIMIT) & (np.abs(end) < _LIMIT)
    timed &= (start != 0) | (end != 0)
    forward = ~timed | (end >= start)
    kept = np.flatnonzero(timed & forward)
    counts["events"] += len(start)
    counts["dropped_no_time"] += int((~timed).sum())
    counts["dropped_negative"] += int((~forward).sum())
    counts["kept"] += len(kept)
    ids = np.full(len(start), MISSING)
    if len(kept):
        chosen = {name: _taken(values, kept) for name, values in columns.items()}
        ids[kept] = sink.write(kind, {**chosen, "dur_ns": end[kept] - start[kept]})
    return ids


def _taken(values: Any, rows: npt.NDArray[np.intp]) -> Any:
    if isinstance(values, np.ndarray):
        return values[rows]
    return values.take(pa.array(rows)) if isinstance(values, pa.Array) else [values[row] for row in rows.tolist()]
