"""RPD (rocmProfileData): SQLite with one row an operation of the device and one a call, and a table that joins them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.amd.rows import copy_direction, divided, put_rows, whole_numbers
from profilers.arrays import MISSING, Ints
from profilers.database import Database, open_database
from profilers.errors import BrokenFileError
from profilers.kineto.grids import IN_WORK_ITEMS
from profilers.linking import lookup
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.trace import TraceMeta

__all__ = ["RpdReader", "columns_of", "named"]

_MINIMUM = {
    "rocpd_op": ("id", "start", "end", "gpuId", "queueId", "description_id", "opType_id"),
    "rocpd_string": ("id", "string"),
}


class RpdReader:
    """RPD of ROCm's rocmProfileData: kernels, copies, HIP calls and markers."""

    name = "rpd"

    def sniff(self, head: Head) -> bool:
        """Return whether a database has RPD's tables."""
        return "rocpd_op" in head.tables and "rocpd_string" in head.tables

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            A table or column of the minimum is missing, or no event can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        with open_database(path, sink.limit_bytes) as database:
            for table, columns in _MINIMUM.items():
                if missing := set(columns) - set(database.tables.get(table, ())):
                    raise BrokenFileError(f"{path}: table {table} lacks {sorted(missing)}; is it a whole RPD file?")
            strings = _strings(database)
            apis = columns_of(database, "rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id"))
            _operations(database, strings, apis, sink, counts)
            _calls(apis, strings, sink, counts)
        if not counts["kept"]:
            raise BrokenFileError(f"{path}: no event that can be used ({counts['events']} looked at)")
        quality = Quality({name: n for name, n in counts.items() if n})
        return TraceMeta("rpd", sources=(path.name,), quality=quality)


def columns_of(database: Database, table: str, names: Sequence[str]) -> dict[str, Ints]:
    """Return integer columns of a whole table; empty where the table is absent, missing where a column is."""
    parts: dict[str, list[Ints]] = {name: [] for name in names}
    if table in database.tables:
        for batch in database.read(table, names):
            for name in names:
                parts[name].append(whole_numbers(batch[name]))
    return {name: np.concatenate(found) if found else np.empty(0, np.int64) for name, found in parts.items()}


def _strings(database: Database) -> dict[int, str]:
    found: dict[int, str] = {}
    for batch in database.read("rocpd_string", ("id", "string")):
        values = batch["string"]
        plain = values.to_pylist() if isinstance(values, pa.Array) else [None] * len(values)
        found |= {int(i): text or "" for i, text in zip(whole_numbers(batch["id"]), plain, strict=True)}
    return found


def named(numbers: Ints, strings: Mapping[int, str]) -> pa.DictionaryArray:
    """Return strings by number, ``""`` for one that is not there."""
    distinct, which = np.unique(numbers, return_inverse=True)
    names = pa.array([strings.get(int(n), "") for n in distinct], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(which.astype(np.int32)), names)


def _operations(
    database: Database, strings: Mapping[int, str], apis: Mapping[str, Ints], sink: Sink, counts: Counter[str]
) -> None:
    ops = columns_of(database, "rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"))
    joins = columns_of(database, "rocpd_api_ops", ("api_id", "op_id"))
    api = lookup(joins["op_id"], joins["api_id"], ops["id"])
    word = np.array([strings.get(int(n), "") for n in ops["opType_id"]], dtype=object)
    kernels = word == "KernelExecution"
    copies = np.array([str(w).startswith(("Copy", "Fill", "Memset")) for w in word], dtype=bool)
    counts["skipped_marker"] += int((~kernels & ~copies).sum())  # barriers and other tasks of the queues
    counts["events"] += int((~kernels & ~copies).sum())
    common = {
        "start_ns": ops["start"],
        "device": np.where((ops["gpuId"] >= 0) & (ops["gpuId"] < 1 << 31), ops["gpuId"], MISSING),
        "queue": ops["queueId"],
        "correlation": api,
    }
    shape = columns_of(
        database,
        "rocpd_kernelapi",
        ("api_ptr_id", *(f"{n}{a}" for n in ("grid", "workgroup") for a in "XYZ"), "groupSegmentSize"),
    )
    found = {name: lookup(shape["api_ptr_id"], values, api) for name, values in shape.items()}
    in_items = [i for i, text in strings.items() if text == IN_WORK_ITEMS]
    found["in_items"] = np.isin(lookup(apis["id"], apis["apiName_id"], api), in_items).astype(np.int64)
    _put_kernels({**common, **found}, ops, kernels, strings, sink, counts)
    size = columns_of(database, "rocpd_copyapi", ("api_ptr_id", "size"))
    columns: dict[str, Any] = {name: values[copies] for name, values in common.items()}
    columns["name"] = pa.array(word[copies].tolist(), pa.string())
    columns["direction"] = pa.array([copy_direction(str(w)) for w in word[copies]], pa.string())
    columns["bytes"] = lookup(size["api_ptr_id"], size["size"], api)[copies]
    put_rows(sink, "copies", columns, ops["end"][copies], counts)


def _put_kernels(
    found: dict[str, Ints],
    ops: dict[str, Ints],
    rows: Any,
    strings: Mapping[int, str],
    sink: Sink,
    counts: Counter[str],
) -> None:
    """Give kernels; a grid is in workgroups, but of the call that counts in work-items (read off a real file)."""
    grid, size = ([found[f"{name}{axis}"] for axis in "XYZ"] for name in ("grid", "workgroup"))
    items = found["in_items"] == 1
    each = [np.where(items, divided(g, s), np.where(g > 0, g, MISSING)) for g, s in zip(grid, size, strict=True)]
    known = np.logical_and.reduce([e != MISSING for e in each]) & (
        np.prod([np.where(e == MISSING, 1, e).astype(float) for e in each], axis=0) < 2.0**62
    )
    sizes = np.prod([np.where(known, s, 1) for s in size], axis=0)
    columns: dict[str, Any] = {
        "name": named(ops["description_id"], strings).cast(pa.string()).filter(pa.array(rows)),
        "workgroups": np.where(known, np.prod([np.where(known, e, 1) for e in each], axis=0), MISSING)[rows],
        "workgroup_size": np.where(known & (sizes < 1 << 31), sizes, MISSING)[rows],
        "lds_bytes": found["groupSegmentSize"][rows],
        **{name: found[name][rows] for name in ("start_ns", "device", "queue", "correlation")},
    }
    put_rows(sink, "kernels", columns, ops["end"][rows], counts)


def _calls(apis: dict[str, Ints], strings: Mapping[int, str], sink: Sink, counts: Counter[str]) -> None:
    """Give HIP calls as launches, and markers, whose text stands in the arguments, as annotations."""
    names = named(apis["apiName_id"], strings).cast(pa.string())
    marker = np.array([name == "UserMarker" for name in names.to_pylist()], dtype=bool)
    for kind, rows in (("launches", ~marker), ("ranges", marker)):
        word = "hip_runtime" if kind == "launches" else "user_annotation"
        own = names if kind == "launches" else named(apis["args_id"], strings).cast(pa.string())
        columns: dict[str, Any] = {
            "name": own.filter(pa.array(rows)),
            "start_ns": apis["start"][rows],
            "process": apis["pid"][rows],
            "thread": apis["tid"][rows],
            "api" if kind == "launches" else "category": [word] * int(rows.sum()),
        }
        if kind == "launches":
            columns["correlation"] = apis["id"][rows]
        put_rows(sink, kind, columns, apis["end"][rows], counts)
