"""Counters that were measured on kernels of one run, given to the same kernels of a timeline."""

import re
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints, arrow_array, integers, strings
from profilers.trace.schema import make_table
from profilers.trace.trace import Trace

_CLONE = re.compile(r"\s*\[clone [^\]]*\]|\.kd$")
_RETURNS = re.compile(r"^(?:void|int|bool|auto|static)\s+")


def plain_name(name: str) -> str:
    """Return a kernel's name without what profilers add to it or leave out.

    Examples
    --------
    >>> plain_name("void add<float, 4>(float*, int) [clone .kd]")
    'add<float,4>(float*,int)'
    """
    return re.sub(r"\s+", "", _RETURNS.sub("", _CLONE.sub("", name.strip())))


def base_name(name: str) -> str:
    """Return a kernel's name without namespaces, template arguments and parameters.

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

    The first kernel of a name that was measured on a rank and device is the first of that name on the timeline, the
    second the second, and so on: a profiler of counters slows and repeats kernels, so that times tell nothing. Names
    are compared without spaces, ``void`` and ``.kd``; where the timeline has none that is equal, without template
    arguments and parameters, as Nsight Compute prints them. Devices count where both traces name all of theirs.

    Parameters
    ----------
    trace : Trace
        A timeline.
    counted : Trace
        Collected from a file of counters, with the same ranks.

    Raises
    ------
    InvalidInputError
        `counted` has no counter of a kernel, or none of its kernels is in the timeline.
    """
    counters = counted.counters
    kernel_of = integers(counters, "kernel_id")
    measured = np.isin(integers(counted.kernels, "id"), kernel_of)
    if not measured.any():
        raise InvalidInputError("the second trace has no counter of a kernel; collect a file of counters")
    rows = np.flatnonzero(measured)
    found = _same_kernels(trace.kernels, counted.kernels, rows)
    if not found:
        raise InvalidInputError("no kernel with counters has the name of one in the timeline, on the same rank")
    own_ids, ids = integers(trace.kernels, "id"), integers(counted.kernels, "id")
    by_id = {int(ids[row]): at for row, at in found.items()}
    at = np.array([by_id.get(kernel, -1) for kernel in kernel_of.tolist()], dtype=np.int64)
    added = _pointing(trace, counters.filter(arrow_array(at >= 0)), own_ids, at[at >= 0])
    table = pa.concat_tables([trace.counters, added]).unify_dictionaries().combine_chunks()
    counts = {
        "counters_joined": int((at >= 0).sum()),
        "counters_without_kernel": int((at < 0).sum()),
        "counted_kernels_joined": len(found),
        "counted_kernels_missing": len(rows) - len(found),
    }
    table = table.sort_by([("start_ns", "ascending"), ("id", "ascending")])
    return trace.with_tables(counters=table).with_quality(counts)


def _same_kernels(timeline: pa.Table, counted: pa.Table, rows: Ints) -> dict[int, int]:
    """Return for each row with counters the row of the same kernel of the timeline; loops over the kernels."""
    by_device = not (timeline["device"].null_count or counted["device"].null_count)
    kernels = _Named(timeline, np.arange(timeline.num_rows), by_device)
    known = {key[1] for key in kernels.of(plain_name)}
    found: dict[int, int] = {}
    for named, equal in ((plain_name, True), (base_name, False)):
        names = strings(counted, "name")
        own = np.array([row for row in rows.tolist() if (plain_name(names[row]) in known) == equal], dtype=np.int64)
        there = kernels.of(named)
        for key, members in _Named(counted, own, by_device).of(named).items():
            found.update(zip(members, there.get(key, []), strict=False))
    return found


class _Named:
    """Kernels in the order in which they were launched, by place and name."""

    def __init__(self, kernels: pa.Table, rows: Ints, by_device: bool) -> None:
        order = np.lexsort((integers(kernels, "id")[rows], integers(kernels, "start_ns")[rows]))
        self._rows = rows[order]
        device = integers(kernels, "device") if by_device else np.zeros(kernels.num_rows, np.int64)
        self._places = list(zip(integers(kernels, "rank").tolist(), device.tolist(), strict=True))
        self._names = strings(kernels, "name")

    def of(self, named: Any) -> dict[tuple[tuple[int, int], str], list[int]]:
        """Return the rows by place and by what `named` makes of their name."""
        plain: dict[str, str] = {}
        found: dict[tuple[tuple[int, int], str], list[int]] = defaultdict(list)
        for row in self._rows.tolist():
            name = self._names[row]
            if name not in plain:
                plain[name] = named(name)
            found[self._places[row], plain[name]].append(row)
        return found


def _pointing(trace: Trace, counters: pa.Table, ids: Ints, at: Ints) -> pa.Table:
    """Return counters that stand on the kernels in the rows `at` of the timeline."""
    columns: dict[str, Any] = {name: counters[name] for name in counters.schema.names}
    for name in ("rank", "start_ns", "iteration"):
        columns[name] = integers(trace.kernels, name)[at]
    columns["kernel_id"] = ids[at]
    columns["id"] = np.arange(len(at)) + max(trace.next_id(), 0)
    return make_table("counters", columns)
