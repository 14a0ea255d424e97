"""Join counters that were measured on the kernels of one run to the same kernels of a timeline.

A profiler of counters slows and repeats kernels, so its times are of no use. The kernels of both runs are matched by
rank, device, name and order instead.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints, arrow_array, integers, strings
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace

#: Columns of a timeline's kernels that joining counters needs.
KERNEL_COLUMNS = ("id", "rank", "device", "name", "start_ns", "iteration")
_CLONE = re.compile(r"\s*\[clone [^\]]*\]|\.kd$")
_RETURNS = re.compile(r"^(?:void|int|bool|auto|static)\s+")


def plain_name(name: str) -> str:
    """Return a kernel's name without return type, clone suffix and spaces, in which profilers differ.

    Parameters
    ----------
    name : str
        Name as a profiler writes it.

    Examples
    --------
    >>> plain_name("void add<float, 4>(float*, int) [clone .kd]")
    'add<float,4>(float*,int)'
    """
    return re.sub(r"\s+", "", _RETURNS.sub("", _CLONE.sub("", name.strip())))


def base_name(name: str) -> str:
    """Return a kernel's name without namespaces, template arguments and parameters.

    Parameters
    ----------
    name : str
        Name as a profiler writes it.

    Examples
    --------
    >>> base_name("void at::native::(anonymous namespace)::add<float, 4>(float*, int)")
    'add'
    """
    depth, kept = 0, []
    text = plain_name(name).replace("(anonymousnamespace)::", "").replace("operator()", "operator")
    for character in text:
        if character in "<(":
            # Parameters end the name, template arguments need not.
            if character == "(" and depth == 0:
                break
            depth += 1
        elif character in ">)":
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(character)
    return "".join(kept).rsplit("::", 1)[-1]


def join_counters(trace: Trace, counted: Trace) -> Trace:
    """Return `trace` with the counters of `counted`, each pointing to a kernel of the timeline.

    The first measured kernel of a name on a rank and device is the first kernel of that name in the timeline there,
    the second the second, and so on. Names are compared without spaces, ``void`` and ``.kd``. Names that the timeline
    lacks are compared without template arguments and parameters, as Nsight Compute prints them. Devices are compared
    if both traces name the devices of all kernels.

    Parameters
    ----------
    trace : Trace
        The timeline.
    counted : Trace
        Trace of a file of counters, with the same ranks.

    Raises
    ------
    InvalidInputError
        `counted` has no counter of a kernel, or none of its kernels is in the timeline.
    """
    ids = [integers(table, "id") for kind, table in trace.tables.items() if kind != "iterations" and table.num_rows]
    next_id = max((int(column.max()) + 1 for column in ids), default=0)
    table, counts = add_counters(trace.kernels, trace.counters, counted, max(next_id, 0))
    return trace.with_tables(counters=table).with_quality(counts)


def add_counters(
    kernels: pa.Table, counters: pa.Table, counted: Trace, next_id: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return the counters of a timeline with those of `counted` added, and the quality counts of the join.

    Parameters
    ----------
    kernels : Table
        The kernels of the timeline, with at least the columns `KERNEL_COLUMNS`.
    counters : Table
        The counters that the timeline has.
    counted : Trace
        Trace of a file of counters, with the same ranks.
    next_id : int
        The id of the first counter that is added.

    Raises
    ------
    InvalidInputError
        As `join_counters`.
    """
    measurements = counted.counters
    kernel_of = integers(measurements, "kernel_id")
    measured = np.isin(integers(counted.kernels, "id"), kernel_of)
    if not measured.any():
        raise InvalidInputError("the second trace has no counter of a kernel; collect a file of counters")
    rows = np.flatnonzero(measured)
    timeline_row = _same_kernels(kernels, counted.kernels, rows)
    if not timeline_row:
        raise InvalidInputError("no kernel with counters has the name of one in the timeline, on the same rank")
    ids = integers(counted.kernels, "id")
    row_of_id = {int(ids[row]): kernel_row for row, kernel_row in timeline_row.items()}
    kernel_rows = np.array([row_of_id.get(kernel, -1) for kernel in kernel_of.tolist()], dtype=np.int64)
    joined = kernel_rows >= 0
    added = _pointing(kernels, measurements.filter(arrow_array(joined)), kernel_rows[joined], next_id)
    table = pa.concat_tables([counters, added]).unify_dictionaries().combine_chunks()
    counts = {
        "counters_joined": int(joined.sum()),
        "counters_without_kernel": int((~joined).sum()),
        "counted_kernels_joined": len(timeline_row),
        "counted_kernels_missing": len(rows) - len(timeline_row),
    }
    return table.sort_by([("start_ns", "ascending"), ("id", "ascending")]), counts


def _same_kernels(timeline: pa.Table, counted: pa.Table, rows: Ints) -> dict[int, int]:
    """Return, by row of `counted`, the row of the same kernel in the timeline; loops over the kernels."""
    by_device = not (timeline["device"].null_count or counted["device"].null_count)
    kernels = _LaunchOrder(timeline, np.arange(timeline.num_rows), by_device)
    full_names = {name for _, name in kernels.by_name(plain_name)}
    names = strings(counted, "name")
    same: dict[int, int] = {}
    for shorten, has_full_name in ((plain_name, True), (base_name, False)):
        chosen = [row for row in rows.tolist() if (plain_name(names[row]) in full_names) == has_full_name]
        timeline_rows = kernels.by_name(shorten)
        order = _LaunchOrder(counted, np.array(chosen, dtype=np.int64), by_device)
        for key, counted_rows in order.by_name(shorten).items():
            same.update(zip(counted_rows, timeline_rows.get(key, []), strict=False))
    return same


class _LaunchOrder:
    """Some kernels of a table, in the order in which they started."""

    def __init__(self, kernels: pa.Table, rows: Ints, by_device: bool) -> None:
        order = np.lexsort((integers(kernels, "id")[rows], integers(kernels, "start_ns")[rows]))
        self._rows = rows[order]
        device = integers(kernels, "device") if by_device else np.zeros(kernels.num_rows, np.int64)
        self._devices = list(zip(integers(kernels, "rank").tolist(), device.tolist(), strict=True))
        self._names = strings(kernels, "name")

    def by_name(self, shorten: Callable[[str], str]) -> dict[tuple[tuple[int, int], str], list[int]]:
        """Return the rows by (rank, device) and by shortened name."""
        short_names: dict[str, str] = {}
        rows: dict[tuple[tuple[int, int], str], list[int]] = defaultdict(list)
        for row in self._rows.tolist():
            name = self._names[row]
            if name not in short_names:
                short_names[name] = shorten(name)
            rows[self._devices[row], short_names[name]].append(row)
        return rows


def _pointing(kernels: pa.Table, counters: pa.Table, rows: Ints, next_id: int) -> pa.Table:
    """Return `counters` on the kernels in these rows of the timeline, with ids from `next_id` on."""
    columns: dict[str, Any] = {name: counters[name] for name in counters.schema.names}
    for name in ("rank", "start_ns", "iteration"):
        columns[name] = integers(kernels, name)[rows]
    columns["kernel_id"] = integers(kernels, "id")[rows]
    columns["id"] = np.arange(len(rows)) + next_id
    return make_table("counters", columns)
