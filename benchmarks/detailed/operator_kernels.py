"""Operators of PyTorch as launches of our own PTX, with PyTorch's grids, and probes of single properties of a device.

`operator_plan` returns a plan with the buffers and the launch of an operator; `chase_plan` and `multiply_add_plan`
those of probes. The kernels are in `datasets/ptx/operators`; they compute in FP32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from replay.detailed import KernelLaunch, LaunchPlan

#: Operators by name.
OPERATORS = ("add", "copy", "softmax", "layer_norm")
#: Elements that a block of an elementwise operator computes, and columns of the softmax that a warp keeps.
_BLOCK_ELEMENTS, _WARP_COLUMNS = 512, 1024
#: Threads of a block of the other softmax.
_SOFTMAX_THREADS = 512
_EPSILON = 1e-5


def operator_plan(operator: str, rows: int, columns: int, *, seed: int = 0) -> LaunchPlan:
    """Return the launch of an operator on a matrix.

    Parameters
    ----------
    operator : str
        One of `OPERATORS`.
    rows, columns : int
        Shape; the columns of a layer normalisation are a multiple of 4.
    seed : int
        Seed of the data.

    Raises
    ------
    InvalidInputError
        The operator is unknown, or the shape does not fit it.

    Examples
    --------
    >>> operator_plan("add", 64, 256).calls[0].grid
    (32, 1, 1)
    """
    if operator not in OPERATORS:
        raise InvalidInputError(f"operator {operator!r}; one of {', '.join(OPERATORS)}")
    if rows < 1 or columns < 1 or rows * columns >= 1 << 31 or (operator == "layer_norm" and columns % 4):
        raise InvalidInputError(f"{operator} of {rows} x {columns}: not a shape of it")
    random = np.random.default_rng(seed)
    buffers: dict[str, NDArray[Any]] = {
        "y": np.zeros((rows, columns), dtype=np.float32),
        "x": random.standard_normal((rows, columns), dtype=np.float32),
    }
    count = rows * columns
    file = dataset_path("ptx/operators/operators.ptx")
    elementwise = (-(-count // _BLOCK_ELEMENTS), 1, 1)
    if operator == "add":
        buffers["other"] = random.standard_normal((rows, columns), dtype=np.float32)
        call = KernelLaunch(file, "add", elementwise, (128, 1, 1), ("y", "x", "other", count))
    elif operator == "copy":
        call = KernelLaunch(file, "copy", elementwise, (128, 1, 1), ("y", "x", count))
    elif operator == "softmax" and columns <= _WARP_COLUMNS:
        call = KernelLaunch(file, "softmax_warp", (-(-rows // 4), 1, 1), (32, 4, 1), ("y", "x", rows, columns))
    elif operator == "softmax":
        call = KernelLaunch(file, "softmax_block", (rows, 1, 1), (_SOFTMAX_THREADS, 1, 1), ("y", "x", columns))
    else:
        buffers |= {name: random.standard_normal(columns, dtype=np.float32) for name in ("gamma", "beta")}
        buffers |= {name: np.zeros(rows, dtype=np.float32) for name in ("mean", "scale")}
        arguments = ("y", "mean", "scale", "x", "gamma", "beta", columns, _EPSILON)
        call = KernelLaunch(file, "layer_norm", (rows, 1, 1), (32, 4, 1), arguments)
    return LaunchPlan(f"{operator} {rows} x {columns}", buffers, (call,))


def chase_plan(memory: str, size: int, steps: int, *, line: int = 128) -> LaunchPlan:
    """Return a launch of one thread whose loads each need the one before.

    Parameters
    ----------
    memory : str
        ``"global"`` or ``"shared"``.
    size : int
        Bytes that the chain goes over; of shared memory 4 KiB.
    steps : int
        Loads.
    line : int
        Bytes between the elements of the chain.

    Raises
    ------
    InvalidInputError
        The memory is unknown.
    """
    if memory not in ("global", "shared"):
        raise InvalidInputError(f"memory {memory!r}; global or shared")
    count, each = size // 4, line // 4
    following = np.zeros(max(count, 1024), dtype=np.uint32)
    order = np.random.default_rng(0).permutation(np.arange(1, count // each)) * each
    places = np.concatenate([[0], order])
    following[places] = np.roll(places, -1)
    entry = "chase" if memory == "global" else "chase_shared"
    buffers = {"end": np.zeros(1, dtype=np.uint32), "next": following}
    file = dataset_path("ptx/operators/probes.ptx")
    call = KernelLaunch(file, entry, (1, 1, 1), (1, 1, 1), ("end", "next", steps))
    return LaunchPlan(f"chase of {memory} memory", buffers, (call,))


def multiply_add_plan(blocks: int, threads: int, turns: int) -> LaunchPlan:
    """Return a launch of FP32 multiply-adds: 64 in each turn of each thread."""
    buffers = {"y": np.zeros(blocks * threads, dtype=np.float32)}
    file = dataset_path("ptx/operators/probes.ptx")
    call = KernelLaunch(file, "multiply_add", (blocks, 1, 1), (threads, 1, 1), ("y", 0.5, 1.0, turns))
    return LaunchPlan("multiply-adds", buffers, (call,))
