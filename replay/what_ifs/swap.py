"""Swap what-if: kernels are replaced by others."""

import re
from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.demand import DEMAND_COLUMNS, with_demands, with_demands_from
from replay.graph.choice import TaskChoice
from replay.graph.graph import Basis, KernelGraph, TaskKind
from replay.what_ifs.what_if import (
    Argument,
    WhatIf,
    check_factor,
    recipe,
    tasks_argument,
    unknown_name,
    what_if_text,
)

_KERNELS = (TaskKind.KERNEL,)

_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ns|us|ms|s)", re.ASCII)
#: Workgroups of a grid; more is a mistake.
_MOST_WORKGROUPS = 10**12
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
#: Columns that a kernel copies from the kernel that replaces it.
_COPIED = ("name", "factor", "class_", "workgroups", "dtype", "operator", "memory_operator", "demand", *DEMAND_COLUMNS)


@recipe(
    "kernels",
    "swap_kernel:*sgemm*:0.7",
    replace(tasks_argument("replace"), older_name="kernel"),
    Argument("by", "factor of the duration, duration (120us), or another kernel of the trace"),
    Argument("class", "class of the new kernel, if it differs", default=""),
    Argument("workgroups", "workgroups of the new kernel, if they differ", "whole", default="0"),
)
def swap_kernel(tasks: str, by: str, *, class_: str = "", workgroups: int = 0) -> WhatIf:
    """Replace chosen kernels by a factor of their duration, a duration, or another kernel of the trace.

    TASKS is any choice of tasks on devices (`seqpoint analyze` shows names). ``all``, and choices that say nothing of
    the kind of task, stand for kernels that compute. BY is one of three:

    - a factor of the isolated duration (``0.5``), also for copies and collectives;
    - an isolated duration (``120us``), also for copies and collectives;
    - a choice of another kernel, such as its name. Its call of median duration replaces each chosen kernel, with its
      isolated duration, workgroups and demands.

    CLASS and WORKGROUPS describe the new kernel if they differ; its demands are then computed anew.

    Not modelled: other operands of the replacing kernel at its new position; give the duration if you know it. With a
    factor or a duration, shares of bandwidth stay.

    Source: a substitution, exact in the given values. Given durations are marked as assumed, those of a kernel of the
    trace as derived.

    Raises
    ------
    InvalidInputError, NotFoundError
        A choice is not valid, there is no such class, or a number is not plausible.
    """
    if class_ and class_ not in CLASSES:
        raise unknown_name("no class of kernels is called", class_, CLASSES)
    if not 0 <= workgroups <= _MOST_WORKGROUPS:
        raise InvalidInputError(f"{workgroups} workgroups: give a number from 1 to {_MOST_WORKGROUPS}, or leave it out")
    fixed_ns, factor = duration_ns(by), _parsed_factor(by)
    donors = _kernels(by) if fixed_ns is None and factor is None else None
    # Only a kernel has a class and a grid, and only a kernel takes the place of one.
    as_kernel = donors is not None or class_ or workgroups
    choice = _kernels(tasks) if as_kernel else TaskChoice(tasks, kinds=_KERNELS)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        chosen = choice.rows(graph)
        note = f"swap_kernel: {int(chosen.sum())} tasks"
        if not chosen.any():
            return graph.with_notes([note])
        if donors is not None:
            swapped = _copied_from(graph, chosen, _median_kernel(graph, donors))
        elif fixed_ns is not None:
            new_ns = np.where(chosen, fixed_ns, graph.tasks.duration_ns)
            swapped = graph.with_durations(new_ns, Basis.ASSUMED)
            swapped = swapped.with_tasks(factor=np.where(chosen, 1.0, graph.tasks.factor))
        else:
            swapped = graph.with_factor(chosen, factor or 0.0, Basis.ASSUMED)
        return _with_grid(swapped, chosen, class_, workgroups, parameters).with_notes([note])

    choices = (choice,) if donors is None else (choice, donors)
    optional = (class_, str(workgroups))[: 2 if workgroups else 1 if class_ else 0]
    return WhatIf(what_if_text("swap_kernel", tasks, by, *optional), transform, choices=choices)


def _kernels(text: str) -> TaskChoice:
    """Return a choice of kernels that compute."""
    return TaskChoice(text, kinds=_KERNELS, allowed=_KERNELS)


def duration_ns(text: str) -> float | None:
    """Parse a duration such as ``120us``; return it in ns, or None if `text` is no duration."""
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _NS[match[2]] if match else None


def _parsed_factor(text: str) -> float | None:
    try:
        factor = float(text)
    except ValueError:
        return None
    check_factor("swap_kernel", factor, zero=True)
    return factor


def _median_kernel(graph: KernelGraph, donors: TaskChoice) -> int:
    """Return the chosen kernel of median duration; of an even number, the shorter middle one."""
    donors.check([graph])
    rows = np.flatnonzero(donors.rows(graph))
    order = rows[np.lexsort((rows, graph.tasks.duration_ns[rows]))]
    return int(order[(len(order) - 1) // 2])


def _copied_from(graph: KernelGraph, chosen: Bools, donor: int) -> KernelGraph:
    """Return `graph` with the columns of `donor` in chosen rows."""
    tasks = graph.tasks
    columns = {name: getattr(tasks, name).copy() for name in ("duration_ns", *_COPIED)}
    for column in columns.values():
        column[chosen] = column[donor]
    basis = np.maximum(tasks.basis, max(int(Basis.DERIVED), int(tasks.basis[donor])))
    unchanged = chosen & (tasks.name == tasks.name[donor]) & (columns["duration_ns"] == tasks.duration_ns)
    return graph.with_tasks(**columns, basis=np.where(chosen & ~unchanged, basis, tasks.basis))


def _with_grid(graph: KernelGraph, chosen: Bools, class_: str, workgroups: int, parameters: Parameters) -> KernelGraph:
    """Return `graph` with chosen kernels of another class or grid, and with the demands that follow."""
    if not class_ and not workgroups:
        return graph
    tasks = graph.tasks
    changed = graph.with_tasks(
        class_=np.where(chosen, CLASSES.index(class_), tasks.class_) if class_ else tasks.class_,
        workgroups=np.where(chosen, workgroups, tasks.workgroups) if workgroups else tasks.workgroups,
        operator=np.where(chosen, -1, tasks.operator),
        memory_operator=np.where(chosen, -1, tasks.memory_operator),
    )
    return with_demands_from(changed, with_demands(changed, parameters), chosen)
