"""How much of a trace's device time the operators account for."""

from dataclasses import dataclass

import numpy as np

from profilers.arrays import MISSING, integers, strings
from profilers.columns import lookup
from profilers.kernels import is_collective
from profilers.trace import Trace
from replay.operators.calls import Call, operator_of
from replay.operators.kernels import operator_of_kernel
from replay.operators.operator import Operator

__all__ = ["OperatorCoverage", "operator_coverage", "operators_of_kernels"]


@dataclass(frozen=True)
class OperatorCoverage:
    """Shares of the time in kernels that are no collectives.

    Parameters
    ----------
    kernel_ns : int
        That time.
    with_op, with_shapes, known : float
        Share whose kernel was launched by an operator; whose operator has recorded shapes; whose work is known.
    by_kernel : float
        Share whose work only the kernel's name and grid tell (`operator_of_kernel`).
    """

    kernel_ns: int
    with_op: float
    with_shapes: float
    known: float
    by_kernel: float = 0.0


def operators_of_kernels(trace: Trace) -> tuple[list[Operator | None], "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    """Return for every kernel the work of the operator that launched it, and whether that has recorded shapes.

    An operator that launches several kernels is the work of all of them together.
    """
    kernels, ops = trace.kernels, trace.ops
    rows = lookup(integers(ops, "id"), np.arange(ops.num_rows), integers(kernels, "op_id"))
    wanted = sorted(set(rows[rows != MISSING].tolist()))
    taken = ops.select(["name", "shapes", "dtypes", "concrete_inputs"]).take(wanted).to_pylist() if wanted else []
    known: dict[int, Operator | None] = {}
    shaped: set[int] = set()
    for row, op in zip(wanted, taken, strict=True):  # a Python loop over operators that launch kernels
        known[row] = operator_of(Call.of_row(op["name"], op["shapes"], op["dtypes"], op["concrete_inputs"]))
        if op["shapes"]:
            shaped.add(row)
    each = rows.tolist()
    return [known.get(row) for row in each], np.array([row in shaped for row in each], dtype=np.bool_)


def operator_coverage(trace: Trace) -> OperatorCoverage:
    """Return the shares of a trace's kernel time whose work is known.

    Examples
    --------
    >>> from profilers.trace import Trace, TraceMeta
    >>> operator_coverage(Trace(TraceMeta(""), {})).known
    0.0
    """
    kernels = trace.kernels
    duration = integers(kernels, "dur_ns")
    names = strings(kernels, "name")
    collective = {name: is_collective(name) for name in set(names)}
    counted = np.array([not collective[name] for name in names], dtype=np.bool_) & (duration != MISSING)
    operators, shaped = operators_of_kernels(trace)
    launched = integers(kernels, "op_id") != MISSING
    known = np.array([one is not None for one in operators], dtype=np.bool_)
    total = int(duration[counted].sum())

    def share(rows: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
        return float(duration[counted & rows].sum() / total) if total else 0.0

    return OperatorCoverage(total, share(launched), share(shaped), share(known), share(~known & _told(trace, names)))


def _told(trace: Trace, names: np.ndarray) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return whose name and grid tell their work; a loop over the distinct names."""
    there = {name: operator_of_kernel(name, 1, 1) is not None for name in set(names)}
    launched = np.minimum(integers(trace.kernels, "workgroups"), integers(trace.kernels, "workgroup_size")) > 0
    return np.array([there[name] for name in names], dtype=np.bool_) & launched
