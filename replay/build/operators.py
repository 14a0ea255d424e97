"""What each kernel of a window computes, where the operator that launched it says so."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from profilers.arrays import MISSING, integers
from profilers.columns import lookup
from profilers.kernels import classify
from replay.build.window import Window
from replay.operators import Call, Operator, operator_of

__all__ = ["window_operators"]

#: Which kinds of operators the kernels of a class do the main work of; a copy or a sum that an operator launches
#: beside them is not its work.
_KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "gemm": frozenset({"matmul", "batched_matmul", "convolution"}),
        "convolution": frozenset({"convolution"}),
        "attention": frozenset({"attention"}),
    }
)
_COLUMNS = ("name", "shapes", "dtypes", "concrete_inputs")


def window_operators(window: Window) -> list[Operator | None]:
    """Return for every row of device work the operator that it computes; None where that is not known.

    Equal calls share one operator, so that a job of many layers has few of them.
    """
    work, ops = window.work, window.trace.ops
    kinds = {name: _KINDS.get(classify(name), frozenset()) for name in set(work.name)}
    rows = lookup(integers(ops, "id"), np.arange(ops.num_rows), work.op)
    wanted = sorted({row for row, name in zip(rows.tolist(), work.name, strict=True) if row != MISSING and kinds[name]})
    calls = ops.select(list(_COLUMNS)).take(wanted).to_pylist() if wanted else []
    keys = [tuple(call[column] for column in _COLUMNS) for call in calls]
    known = {key: operator_of(Call.of_row(*key)) for key in dict.fromkeys(keys)}
    found = {row: known[key] for row, key in zip(wanted, keys, strict=True)}
    return [
        operator if (operator := found.get(row)) is not None and operator.kind in kinds[name] else None
        for row, name in zip(rows.tolist(), work.name, strict=True)
    ]
