"""Join counters that were measured on the kernels of one run to the same kernels of a timeline.

A profiler of counters slows and repeats kernels, so its times are of no use. The kernels of both runs are matched by
rank, device, name and order instead.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import MISSING, Ints, arrow_array, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.schema import concatenate, make_table
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


def add_counters(
    kernels: pa.Table, counters: pa.Table, counted: Trace, next_id: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return the counters of a timeline with those of `counted` added, and the quality counts of the join.

    The first measured kernel of a name on a rank and device is the first kernel of that name in the timeline there,
    the second the second, and so on. Names are compared without spaces, ``void`` and ``.kd``. Names that the timeline
    lacks are compared without template arguments and parameters, as Nsight Compute prints them. Devices are compared
    if both traces name the devices of all kernels.

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
        `counted` has no counter of a kernel, or none of its kernels is in the timeline.
    """
    measurements = counted.counters
    kernel_of = integers(measurements, "kernel_id")
    ids = integers(counted.kernels, "id")
    rows = np.flatnonzero(np.isin(ids, kernel_of))
    if not len(rows):
        raise InvalidInputError("the second trace has no counter of a kernel; collect a file of counters")
    timeline_row = _same_kernels(kernels, counted.kernels, rows)
    if not timeline_row:
        raise InvalidInputError("no kernel with counters has the name of one in the timeline, on the same rank")
    kernel_rows = lookup(ids[list(timeline_row)], np.array(list(timeline_row.values())), kernel_of)
    joined = kernel_rows != MISSING
    columns = {name: measurements[name].filter(arrow_array(joined)) for name in measurements.schema.names}
    columns |= {name: integers(kernels, name)[kernel_rows[joined]] for name in ("rank", "start_ns", "iteration")}
    columns["kernel_id"] = integers(kernels, "id")[kernel_rows[joined]]
    columns["id"] = np.arange(next_id, next_id + int(joined.sum()))
    added = make_table("counters", columns)
    table = concatenate("counters", [counters, added])
    counts = {
        "counters_joined": int(joined.sum()),
        "counters_without_kernel": int((~joined).sum()),
        "counted_kernels_joined": len(timeline_row),
        "counted_kernels_missing": len(rows) - len(timeline_row),
    }
    return table.sort_by([("start_ns", "ascending"), ("id", "ascending")]), counts


def _same_kernels(timeline: pa.Table, counted: pa.Table, rows: Ints) -> dict[int, int]:
    """Return, by row of `counted`, the row of the same kernel in the timeline; loops over the kernels."""
    with_device = not (timeline["device"].null_count or counted["device"].null_count)
    columns = ("rank", "device") if with_device else ("rank",)
    full_names = {plain_name(name) for name in set(strings(timeline, "name"))}
    has_full_name = np.array([plain_name(name) in full_names for name in strings(counted, "name")[rows]])
    same: dict[int, int] = {}
    for shorten, chosen in ((plain_name, rows[has_full_name]), (base_name, rows[~has_full_name])):
        timeline_rows = _by_name(timeline, np.arange(timeline.num_rows), columns, shorten)
        for key, counted_rows in _by_name(counted, chosen, columns, shorten).items():
            same.update(zip(counted_rows, timeline_rows.get(key, []), strict=False))
    return same


def _by_name(
    kernels: pa.Table, rows: Ints, columns: Sequence[str], shorten: Callable[[str], str]
) -> dict[tuple[int | str, ...], list[int]]:
    """Return some rows of kernels, in the order of their starts, by some columns and by shortened name."""
    order = np.lexsort((integers(kernels, "id")[rows], integers(kernels, "start_ns")[rows]))
    names = strings(kernels, "name")
    short_names = {name: shorten(name) for name in set(names[rows])}
    keys = list(zip(*(integers(kernels, column).tolist() for column in columns), strict=True))
    by_name = defaultdict(list)
    for row in rows[order].tolist():
        by_name[*keys[row], short_names[names[row]]].append(row)
    return by_name
