"""What a trace knows of its collectives beyond what reading its kernels, operators and annotations again finds."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, Ints, integers
from profilers.collectives import ANNOTATION, add_collectives
from profilers.columns import lookup
from profilers.kernels import is_collective
from profilers.trace import Trace, TraceMeta

__all__ = ["COLLECTIVE_KEY", "collective_facts"]

#: The argument that shows that a kernel states what collective it is.
COLLECTIVE_KEY = "Collective name"
#: How Kineto spells what the columns of a collective hold.
_KEYS = {
    "collective": COLLECTIVE_KEY,
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "dtype": "dtype",
    "group_name": "Process Group Name",
    "group_size": "Group size",
    "group_ranks": "Process Group Ranks",
}


def collective_facts(trace: Trace) -> tuple[Ints, list[str]]:
    """Return kernels by id, ascending, and the members of their arguments that a reader needs to find the same again.

    Kernels whose collective follows from what is exported anyway are not named. A loop over the collectives.
    """
    stored = trace.collectives.filter(pc.is_valid(trace.collectives["kernel_id"]))
    if not stored.num_rows:
        return np.empty(0, np.int64), []
    found = _read_again(trace)
    rows = lookup(integers(found, "kernel_id"), np.arange(found.num_rows), integers(stored, "kernel_id"))
    names = [*_KEYS, "bytes"]
    known = found.select(names).to_pylist()
    facts = {}
    for row, own in zip(rows.tolist(), stored.select([*names, "kernel_id"]).to_pylist(), strict=True):
        kernel = own.pop("kernel_id")
        if row == MISSING or known[row] != own:
            facts[kernel] = _members(own)
    ids = np.array(sorted(facts), np.int64)
    return ids, [facts[kernel] for kernel in ids.tolist()]


def _members(row: dict[str, Any]) -> str:
    told = {key: row[column] for column, key in _KEYS.items() if row[column] is not None}
    return json.dumps(told, separators=(",", ":"))[1:-1]


def _read_again(trace: Trace) -> pa.Table:
    """Return the collectives that reading the exported events gives."""
    kernels = _pick(trace.kernels, "name", is_collective)
    called = pa.array(np.unique(integers(kernels, "launch_id")))
    small = {
        "kernels": kernels,
        "ops": _pick(trace.ops, "args", lambda args: f'"{COLLECTIVE_KEY}"' in args),
        "launches": trace.launches.filter(pc.is_in(trace.launches["id"], value_set=called)),
        "ranges": _pick(trace.ranges, "name", lambda name: ANNOTATION.match(name) is not None),
    }
    return add_collectives(Trace(TraceMeta(""), small), first_id=0).collectives


def _pick(table: pa.Table, column: str, wanted: Callable[[str], bool]) -> pa.Table:
    """Return the rows whose text is wanted; each distinct text of a chunk is asked for once."""
    masks = [
        pa.array([wanted(text) for text in chunk.dictionary.to_pylist()], pa.bool_()).take(chunk.indices)
        for chunk in table[column].chunks
    ]
    return table.filter(pa.chunked_array(masks, pa.bool_()))
