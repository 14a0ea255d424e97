"""The least time that a device's data sheet allows for an operator."""

import numpy as np
import numpy.typing as npt

from replay.durations.machine import Machine
from replay.durations.models import MODELS

__all__ = ["least_seconds"]

Floats = npt.NDArray[np.float64]


def least_seconds(kind: str, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
    """Return what the peak rate and bandwidth allow, s, shape (n,): a prediction below that promises the impossible.

    A product computes ``2 * batch * m * n * k`` FLOP at no more than the peak of its type. Whatever does not fit the
    caches has to come from memory, and what goes there has to leave it, once.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array of float64, shape (n, n_dims)
    element_bytes : int
    machine : Machine

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> machine = Machine.of(find_device("A100-PCIE-40GB"))
    >>> float(least_seconds("matmul", np.array([[1.0, 1000, 1000, 975]]), 4, machine)[0])
    0.0001
    """
    if MODELS[kind].dims == ("batch", "m", "n", "k"):
        return np.asarray(2.0 * dims.prod(axis=1) / machine.peak_flops_per_s)
    arrays = dims[:, 1] if MODELS[kind].dims == ("elements", "arrays") else 2.0
    elements = dims[:, 0] if MODELS[kind].dims == ("elements", "arrays") else dims.prod(axis=1)
    moved = np.maximum(elements * arrays * element_bytes - machine.cache_bytes, 0.0)
    return np.asarray(moved / machine.memory_bytes_per_s)
