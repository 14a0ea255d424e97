"""What if a kernel were another one?"""

import re

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import (
    Argument,
    Recipe,
    TaskChoice,
    WhatIf,
    check_factor,
    kernel_choice,
    unknown,
    with_demands_of,
    written,
)

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ns|us|ms|s)", re.ASCII)
#: More than any grid has.
_MOST_WORKGROUPS = 10**12
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
#: What a kernel takes over from the one that it is swapped for.
_TAKEN = ("name", "class_", "workgroups", "dtype", "operator", "demand", "occupies", "waves", "footprint", "hit_share")


def swap_kernel(kernel: str, by: str, *, class_: str = "", workgroups: int = 0) -> WhatIf:
    """Chosen kernels are replaced: by a factor of their time, by a time, or by a kernel that the trace has.

    KERNEL is a class, or a name with ``*`` and ``?`` (`seqpoint analyze` shows names). BY is a factor (``0.5``), a
    time alone on the device (``120us``), or the name or pattern of another kernel, whose median call then stands for
    each: its time alone, workgroups and demands. CLASS and WORKGROUPS say what the new kernel is where it differs;
    what it then asks of the device is worked out anew.

    Not modelled: that a kernel at another place has other operands; give the time where you know it. With a factor or a
    time, shares of bandwidth stay.

    Source: a substitution, exact in what is given; times rest on it and are marked assumed, those of a kernel of the
    trace derived.

    Raises
    ------
    InvalidInputError, NotFoundError
        There is no such class, or a number is not plausible.
    """
    choice = kernel_choice("swap_kernel", kernel)
    if class_ and class_ not in CLASSES:
        raise unknown("no class of kernels is called", class_, CLASSES)
    if not 0 <= workgroups <= _MOST_WORKGROUPS:
        raise InvalidInputError(f"{workgroups} workgroups: give a number from 1 to {_MOST_WORKGROUPS}, or none")
    time, factor = duration_ns(by), _factor(by)
    donors = kernel_choice("swap_kernel", by) if time is None and factor is None else None

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        rows = choice.rows(graph) & (graph.tasks.kind == TaskKind.KERNEL)
        note = f"swap_kernel: {int(rows.sum())} kernels"
        if not rows.any():
            return graph.with_notes([note])
        if donors is not None:
            swapped = _taken(graph, rows, _median(graph, donors))
        else:
            old = graph.tasks.duration_ns
            new = np.where(rows, time if time is not None else old * (factor or 0.0), old)
            basis = np.where(rows & (new != old), int(Basis.ASSUMED), graph.tasks.basis)
            swapped = graph.with_tasks(duration_ns=new, basis=basis)
        return _described(swapped, rows, (class_, workgroups), parameters).with_notes([note])

    patterns = choice.patterns + (donors.patterns if donors is not None else ())
    more = (class_, str(workgroups))[: 2 if workgroups else 1 if class_ else 0]
    return WhatIf(written("swap_kernel", kernel, by, *more), transform, patterns=patterns)


def duration_ns(text: str) -> float | None:
    """Return the time that a text such as ``120us`` gives, in ns; None where it gives none."""
    found = _DURATION.fullmatch(text)
    return float(found[1]) * _NS[found[2]] if found else None


def _factor(text: str) -> float | None:
    try:
        factor = float(text)
    except ValueError:
        return None
    check_factor("swap_kernel", factor, zero=True)
    return factor


def _median(graph: KernelGraph, donors: TaskChoice) -> int:
    """Return the kernel that a pattern chooses, of median duration; of an even number the shorter."""
    rows = np.flatnonzero(donors.rows(graph) & (graph.tasks.kind == TaskKind.KERNEL))
    if not len(rows):
        raise unknown("no kernel of this iteration is called", donors.text, graph.names)
    order = rows[np.lexsort((rows, graph.tasks.duration_ns[rows]))]
    return int(order[(len(order) - 1) // 2])


def _taken(graph: KernelGraph, rows: npt.NDArray[np.bool_], donor: int) -> KernelGraph:
    tasks = graph.tasks
    columns = {}
    for name in ("duration_ns", *_TAKEN):
        column = getattr(tasks, name).copy()
        column[rows] = column[donor]
        columns[name] = column
    basis = np.maximum(tasks.basis, max(int(Basis.DERIVED), int(tasks.basis[donor])))
    same = rows & (tasks.name == tasks.name[donor]) & (columns["duration_ns"] == tasks.duration_ns)
    return graph.with_tasks(**columns, basis=np.where(rows & ~same, basis, tasks.basis))


def _described(
    graph: KernelGraph, rows: npt.NDArray[np.bool_], what: tuple[str, int], parameters: Parameters
) -> KernelGraph:
    """Return `graph` with chosen kernels of another class or grid, and the demands that go with it."""
    class_, workgroups = what
    if not class_ and not workgroups:
        return graph
    tasks = graph.tasks
    changed = graph.with_tasks(
        class_=np.where(rows, CLASSES.index(class_), tasks.class_) if class_ else tasks.class_,
        workgroups=np.where(rows, workgroups, tasks.workgroups) if workgroups else tasks.workgroups,
        operator=np.where(rows, -1, tasks.operator),
    )
    return with_demands_of(changed, rows, parameters)


RECIPES = (
    Recipe(
        "swap_kernel",
        lambda kernel, by, class_, workgroups: swap_kernel(kernel, by, class_=class_, workgroups=workgroups),
        (
            Argument("kernel", "class, name, or pattern with * and ?"),
            Argument("by", "factor, time (120us), or another kernel of the trace"),
            Argument("class", "class of the new kernel", default=""),
            Argument("workgroups", "of the new kernel", "whole", default="0"),
        ),
        "Kernels are replaced by others: another time, class or grid, or another kernel of the trace.",
        "swap_kernel:*sgemm*:0.7",
        "kernels",
        swap_kernel.__doc__ or "",
    ),
)
