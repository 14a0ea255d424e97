"""What if what is computed in one data type were computed in another?"""

import numpy as np

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.retiming import retyped
from replay.graph.graph import Basis, KernelGraph
from replay.what_ifs.device import source_device
from replay.what_ifs.what_if import Argument, Recipe, WhatIf, unknown, written

_TYPES = tuple(DTYPES)


def change_dtype(old: str, new: str) -> WhatIf:
    """Kernels that compute in `old` compute in `new`, with operands of its size.

    Products, convolutions and attention go by the rate that the device sustains in the type, and by the bytes of their
    operands; other kernels of the type by the bytes alone. A kernel whose type neither its name nor its operator tells
    stays as it is.

    Not modelled: casts that a mixed precision adds or makes needless, and accuracy.

    Source: `replay.costs.retiming`.

    Raises
    ------
    NotFoundError
        There is no such data type.
    InvalidInputError
        When applied: the device's figures have no peak for `new`.
    """
    for dtype in (old, new):
        if dtype not in DTYPES:
            raise unknown("no data type is called", dtype, _TYPES)

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

    return WhatIf(written("change_dtype", f"{old}->{new}"), transform)


def _of_types(types: str) -> WhatIf:
    old, arrow, new = types.partition("->")
    if not arrow:
        raise InvalidInputError(f"data types {types!r}: write OLD->NEW, as in fp32->bf16")
    return change_dtype(old.strip(), new.strip())


RECIPES = (
    Recipe(
        "change_dtype",
        _of_types,
        (Argument("types", "OLD->NEW"),),
        "Kernels that compute in data type OLD compute in NEW, with operands of its size.",
        "change_dtype:fp32->bf16",
        "kernels",
        change_dtype.__doc__ or "",
    ),
)
