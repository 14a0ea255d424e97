"""Durations of the quantization of a tensor on a GPU, and of the computation of its scales.

A kernel reads each element of a tensor of rows and columns and writes it in fewer bits. Its time is a fixed start and
the slowest of four streams, which overlap a little:

- *memory*: bytes that the L2 cache does not hold, at a share of the bandwidth;
- *compute units*: all bytes, at some bytes a cycle and unit. A library that quantizes by several elementwise kernels
  moves its intermediate results too, which `passes` counts: SGLang divides, clamps, converts and copies;
- *the longest row*: libraries that give a row to one workgroup (vLLM) wait for it;
- *the dispatch of workgroups*: some cycles a row, in the same libraries.

Only data-sheet figures distinguish devices: bandwidth, L2 size, compute units and clock. So parameters carry over to a
device that was not measured. Measured were tensors of 16 bits to FP8. Other formats take the time of the bytes that
they move.
"""

import numpy as np

from profilers.trace.arrays import Floats
from replay.costs.kernels.machine import REFERENCE_CLOCK_HZ, Machine, refuse_shapes

#: Columns of the dimensions, and the values of the last two that were measured: BF16 to FP8.
DIMS = ("rows", "columns", "source_bytes", "target_bits")
MEASURED_FORMAT = (2.0, 8.0)
#: Share of the data sheet's bandwidth that a long stream reaches: TensorRT-LLM and vLLM reach 0.9 of an H100's, and 0.8
#: of a B200's, whose compute units also hold them back. How sharply the slowest stream rules: of 1.5 to 4, devices that
#: are left out fare best with 1.5. Neither is fitted, because `passes` has the same effect.
_BANDWIDTH_SHARE, _SHARPNESS = 0.9, 1.5
#: Most bytes of an element before, and most bits after.
_MOST_BYTES, _MOST_BITS = 8.0, 64.0


def _bytes_before_and_after(dims: Floats) -> tuple[Floats, Floats]:
    """Return the bytes of an element before and after, shape (n,) each; by default the measured ones."""
    source_bytes, target_bits = dims[:, 2:].T if dims.shape[1] == len(DIMS) else np.array(MEASURED_FORMAT)[:, None]
    return source_bytes, target_bits / 8


def quantization_seconds(
    theta: Floats, tile: tuple[int, int], dims: Floats, element_bytes: int, machine: Machine, *, writes: bool = True
) -> Floats:
    """Return the times of quantizations, s, shape (n,).

    Parameters
    ----------
    theta : array of float64
        Parameters, in the order of `datasets/kernel_models.toml`.
    tile : (int, int)
        Not used: there are no tiles.
    dims : array of float64, shape (n, 2) or (n, 4)
        Tensors, in the first or all columns of `DIMS`.
    element_bytes : int
        Not used: the dimensions have the bytes.
    machine : Machine
        Rates of the device.
    writes : bool
        Whether elements are written; the computation of scales reads them alone.

    Examples
    --------
    Twice the rows of a large tensor take twice the time, apart from the start:

    >>> from profilers.devices import find_device
    >>> machine = Machine.of(find_device("H100"), "fp8")
    >>> theta = np.array([2e-6, 1.0, 0.5, 20.0, 400.0, 0.05])
    >>> once, twice = quantization_seconds(theta, (0, 0), np.array([[2**16, 8192.0], [2**17, 8192]]), 1, machine)
    >>> round(float((twice - 2e-6) / (once - 2e-6)), 2)
    2.0
    """
    start, passes, cache, feed_bytes, row_bytes, row_cycles = theta
    before, after = _bytes_before_and_after(dims)
    rows, row = dims[:, 0], dims[:, 1] * (before + after * writes) * passes
    moved, clock = rows * row, machine.clock_hz
    missed = 1 / (1 + (cache * machine.l2_bytes / moved) ** 2)
    streams = np.array(
        [
            moved * missed / (machine.memory_bytes_per_s * _BANDWIDTH_SHARE),
            moved / (machine.compute_units * clock * feed_bytes),
            row / (clock * row_bytes),
            rows * row_cycles / clock,
        ]
    )
    slowest = streams.max(axis=0)
    together = slowest * ((streams / slowest) ** _SHARPNESS).sum(axis=0) ** (1 / _SHARPNESS)
    return np.asarray(start * REFERENCE_CLOCK_HZ / clock + together, dtype=np.float64)


def least_quantization_seconds(dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return the least time in which memory delivers what no cache holds, s, shape (n,).

    Parameters
    ----------
    dims : array of float64, shape (n, 2) or (n, 4)
        Tensors, in the first or all columns of `DIMS`.
    element_bytes : int
        Not used: the dimensions have the bytes.
    machine : Machine
        Rates of the device.
    """
    read = dims[:, 0] * dims[:, 1] * _bytes_before_and_after(dims)[0]
    return np.asarray(np.maximum(read - machine.cache_bytes, 0.0) / machine.memory_bytes_per_s)


def check_quantizations(dims: Floats) -> None:
    """Refuse formats that cannot be.

    Parameters
    ----------
    dims : array of float64, shape (n, 4)
        Tensors, in the columns `DIMS`.

    Raises
    ------
    InvalidInputError
        An element has more than 8 bytes before, or more than 64 bits after.
    """
    rule = (
        f"an element has 1 to {_MOST_BYTES:g} bytes before (source_bytes) and 1 to {_MOST_BITS:g} bits after "
        "(target_bits)"
    )
    refuse_shapes(dims, [((dims[:, 2] > _MOST_BYTES) | (dims[:, 3] > _MOST_BITS), rule)], "quantization")


def was_measured(dims: Floats) -> bool:
    """Return whether all quantizations have the format that was measured, BF16 to FP8.

    Examples
    --------
    >>> was_measured(np.array([[64.0, 1024, 2, 8]])), was_measured(np.array([[64.0, 1024, 4, 9]]))
    (True, False)
    """
    return bool((dims[:, 2:] == MEASURED_FORMAT).all())
