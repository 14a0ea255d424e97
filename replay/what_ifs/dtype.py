"""What if what is computed in one data type were computed in another?"""

import difflib

import numpy as np

from profilers.devices import DTYPES
from profilers.errors import InvalidInputError, NotFoundError
from replay.graph import Basis, KernelGraph
from replay.parameters import Parameters
from replay.retiming import retyped
from replay.what_ifs.device import source_device
from replay.what_ifs.what_if import WhatIf

__all__ = ["change_dtype"]

_TYPES = tuple(DTYPES)


def change_dtype(old: str, new: str) -> WhatIf:
    """Kernels that compute in `old` compute in `new`, with operands of its size.

    Products, convolutions and attention go by the rate that the device sustains in the type, and by the bytes of their
    operands; other kernels of the type by the bytes alone. A kernel whose type neither its name nor its operator tells
    stays as it is, and so do casts: those that a mixed precision adds or makes needless are not modelled.

    Raises
    ------
    NotFoundError
        There is no such data type.
    InvalidInputError
        When applied: the device's figures have no peak for `new`.
    """
    for dtype in (old, new):
        if dtype not in DTYPES:
            near = difflib.get_close_matches(dtype, _TYPES, n=1, cutoff=0.5) or list(_TYPES)
            raise NotFoundError(f"no data type is called {dtype!r}; did you mean {', '.join(near)}?")

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        device, tasks = source_device(graph), graph.tasks
        if old == new:
            return graph
        if f"{new}_tflops" not in device.figures:
            have = [dtype for dtype in _TYPES if f"{dtype}_tflops" in device.figures]
            raise InvalidInputError(f"{device.name} does not compute in {new}; it does in {', '.join(have)}")
        chosen = (tasks.dtype == _TYPES.index(old)) & graph.on_device()
        duration = np.where(chosen, retyped(graph, old, new, parameters), tasks.duration_ns)
        changed = duration != tasks.duration_ns
        return graph.with_tasks(
            duration_ns=duration,
            dtype=np.where(chosen, _TYPES.index(new), tasks.dtype),
            basis=np.where(changed, np.maximum(tasks.basis, int(Basis.DERIVED)), tasks.basis),
        ).with_notes([f"change_dtype: {int(chosen.sum())} kernels in {old}"])

    return WhatIf(f"change_dtype:{old}->{new}", transform)
