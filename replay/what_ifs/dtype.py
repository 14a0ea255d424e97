"""Data type what-if: kernels of one data type compute in another."""

import numpy as np

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from replay.calibration.parameters import Parameters
from replay.costs.retiming import retyped, source_device
from replay.graph.graph import Basis, KernelGraph
from replay.what_ifs.what_if import Argument, WhatIf, recipe, unknown_name, what_if_text

_TYPES = tuple(DTYPES)


@recipe("kernels", "change_dtype:fp32->bf16", Argument("types", "OLD->NEW, such as fp32->bf16"))
def change_dtype(types: str) -> WhatIf:
    """Run kernels of data type OLD in data type NEW, with operands of its size.

    TYPES is ``OLD->NEW``, such as ``fp32->bf16``.

    Matrix products, convolutions and attention are re-timed by the sustained rates of the two types and by the bytes of
    their operands. Other kernels of the type are re-timed by the bytes alone. A kernel stays as it is if neither its
    name nor its operator tells its type.

    Not modelled: casts that mixed precision adds or removes, and numerical accuracy.

    Source: `replay.costs.retiming`.

    Raises
    ------
    NotFoundError
        There is no such data type.
    InvalidInputError
        `types` has no arrow. When applied: the device has no peak for NEW.
    """
    old, arrow, new = (part.strip() for part in types.partition("->"))
    if not arrow:
        raise InvalidInputError(f"data types {types!r}: write OLD->NEW, as in fp32->bf16")
    for dtype in (old, new):
        if dtype not in DTYPES:
            raise unknown_name("no data type is called", dtype, _TYPES)

    def transform(graph: KernelGraph, parameters: Parameters) -> KernelGraph:
        device, tasks = source_device(graph), graph.tasks
        if old == new:
            return graph
        if f"{new}_tflops" not in device.figures:
            available = [dtype for dtype in _TYPES if f"{dtype}_tflops" in device.figures]
            raise InvalidInputError(f"{device.name} does not compute in {new}; choose one of {', '.join(available)}")
        chosen = (tasks.dtype == _TYPES.index(old)) & graph.on_device()
        duration = np.where(chosen, retyped(graph, old, new, parameters), tasks.duration_ns)
        dtypes = np.where(chosen, _TYPES.index(new), tasks.dtype)
        note = f"change_dtype: {int(chosen.sum())} kernels in {old}"
        return graph.with_durations(duration, Basis.DERIVED).with_tasks(dtype=dtypes).with_notes([note])

    return WhatIf(what_if_text("change_dtype", f"{old}->{new}"), transform)
