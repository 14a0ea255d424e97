"""What each kernel of a window computes, where the operator that launched it says so."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from profilers.arrays import MISSING
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


def window_operators(window: Window) -> dict[int, Operator]:
    """Return the operator that a row of device work computes, of those rows for which it is known.

    Equal calls share one operator, so that a job of many layers has few of them.
    """
    work, ops = window.work, window.trace.ops
    classes = window.index.work.names.class_[work.name]
    able = np.flatnonzero(np.isin(classes, tuple(_KINDS)))
    rows = window.index.ops.find(work.op[able])
    able, rows = able[rows != MISSING], rows[rows != MISSING]
    wanted, place = np.unique(rows, return_inverse=True)
    calls = ops.select(list(_COLUMNS)).take(wanted).to_pylist() if len(wanted) else []
    keys = [tuple(call[column] for column in _COLUMNS) for call in calls]
    known = {key: operator_of(Call.of_row(*key)) for key in dict.fromkeys(keys)}
    found = ((row, known[keys[i]]) for row, i in zip(able.tolist(), place.tolist(), strict=True))
    return {row: o for row, o in found if o is not None and o.kind in _KINDS[classes[row]]}
