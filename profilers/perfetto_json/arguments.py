"""The arguments of events under Kineto's keys: what has a column, what a column was derived from, and the rest."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.arrays import MISSING, integers
from profilers.columns import lookup
from profilers.kineto.arguments import ARGUMENTS
from profilers.kineto.grids import IN_WORK_ITEMS
from profilers.kineto.rows import direction
from profilers.perfetto_json.columns import joined, member, numbers, one, reals, text
from profilers.perfetto_json.facts import COLLECTIVE_KEY, collective_facts
from profilers.trace import Trace

__all__ = ["Arguments"]


class Arguments:
    """Gives the members of the arguments of a batch of events.

    Parameters
    ----------
    trace : Trace
        Every event of several ranks names its own.
    """

    def __init__(self, trace: Trace) -> None:
        self._several = len(trace.meta.ranks) > 1
        self._facts = collective_facts(trace)
        # What Kineto wrote holds the grids that the workgroups were counted from, on kernels or on their launches.
        self._holds_grids = trace.meta.format == "kineto"
        items = pc.equal(trace.launches["name"].cast(pa.string()), IN_WORK_ITEMS)
        self._in_work_items = integers(trace.launches.filter(items), "id")

    def of(self, kind: str, batch: pa.Table) -> pa.Array:
        """Return one text a row, empty where it has no argument."""
        rest = one(pc.utf8_slice_codeunits(text(batch["args"]), 1, -1))
        rest = pc.if_else(pc.equal(rest, ""), pa.scalar(None, pa.string()), rest)
        parts = [*self._typed(kind, batch, rest), *self._derived(kind, batch), rest]
        if self._several:
            rank = np.where(_stating(rest, "rank"), MISSING, integers(batch, "rank"))
            parts.append(member('"rank":', numbers(rank)))
        return joined(parts, ",")

    def _typed(self, kind: str, batch: pa.Table, rest: pa.Array) -> list[pa.Array]:
        parts = []
        for argument in ARGUMENTS.get(kind, ()):
            column, key = batch[argument.column], argument.keys[0]
            if kind == "counters" and not _stating(rest, "value").any():
                key = "value"  # the first key that Kineto has for a value is that of memory
            parts.append(member(f"{json.dumps(key)}:", reals(column) if argument.what == "float" else text(column)))
        return parts

    def _derived(self, kind: str, batch: pa.Table) -> list[pa.Array]:
        if kind == "kernels":
            return [self._grid(batch), self._collective(batch)]
        if kind == "copies":
            return [_word(batch, "direction", "kind", direction)]
        if kind == "syncs":
            return [_word(batch, "sync", "cuda_sync_kind", lambda name, args: args.get("cuda_sync_kind", name))]
        return []

    def _grid(self, batch: pa.Table) -> pa.Array:
        """Return a grid that gives the workgroups, in the unit that the launching call writes it in."""
        groups, size = integers(batch, "workgroups"), integers(batch, "workgroup_size")
        known = (groups != MISSING) & (size != MISSING)
        if self._holds_grids or not known.any():
            return pa.nulls(len(groups), pa.string())
        known &= ~_stating(batch["args"], "grid")
        items = np.isin(integers(batch, "launch_id"), self._in_work_items)
        grid = numbers(np.where(known, groups * np.where(items, size, 1), MISSING))
        block = numbers(np.where(known, size, MISSING))
        return pc.binary_join_element_wise('"grid":[', grid, ',1,1],"block":[', block, ",1,1]", "")

    def _collective(self, batch: pa.Table) -> pa.Array:
        ids, members = self._facts
        rows = lookup(ids, np.arange(len(ids)), integers(batch, "id"))
        rows = np.where(_stating(batch["args"], COLLECTIVE_KEY), MISSING, rows)
        return pa.array([None if row == MISSING else members[row] for row in rows.tolist()], pa.string())


def _stating(rest: Any, key: str) -> npt.NDArray[np.bool_]:
    """Return which arguments have a member of this name; only those that hold the word are decoded."""
    plain = text(rest)
    result = pc.fill_null(pc.match_substring(plain, f'"{key}"'), False).to_numpy(zero_copy_only=False).copy()
    for row in np.flatnonzero(result).tolist():
        result[row] = key in _object(plain[row].as_py())
    return np.asarray(result, bool)


def _object(members: str) -> dict[str, Any]:
    try:
        found = json.loads(members if members.startswith("{") else f"{{{members}}}", strict=False)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(batch: pa.Table, column: str, key: str, read: Callable[[str, dict[str, Any]], str]) -> pa.Array:
    """Return what makes `read` find the word of a column where name and arguments do not; a loop over the rows."""
    parts = []
    for word, name, args in zip(*(text(batch[c]).to_pylist() for c in (column, "name", "args")), strict=True):
        own = _object(args) if args and f'"{key}"' in args else {}
        needed = word is not None and key not in own and read(name, own) != word
        parts.append(f"{json.dumps(key)}:{json.dumps(word)}" if needed else None)
    return pa.array(parts, pa.string())
