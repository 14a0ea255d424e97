"""Predict durations on any device of the catalogue: from its own fit, or carried over from devices like it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.devices import Device
from profilers.errors import InvalidInputError
from replay.durations.bounds import least_seconds
from replay.durations.calibration import ANY, ANY_HOT, UNKNOWN_SPREAD, Calibration, load_calibration
from replay.durations.carrying import carry_over, runs_hot
from replay.durations.fitting import Fit
from replay.durations.machine import Machine, runs_as
from replay.durations.measurements import LARGEST
from replay.durations.models import MODELS
from replay.operators import DTYPE_BYTES

__all__ = ["Predicted", "predict"]

Floats = npt.NDArray[np.float64]
#: Of an element.
_MOST_BYTES = 16


@dataclass(frozen=True)
class Predicted:
    """Durations, shape (n,) each, in s.

    Parameters
    ----------
    seconds, low, high : array of float64
        The interval is meant to hold nine in ten.
    basis : str
        ``"fitted"`` on this device, or ``"carried"`` over from others.
    start_s : float
        What of each is the fixed time of a launch that is waited for.
    """

    seconds: Floats
    low: Floats
    high: Floats
    basis: str
    start_s: float = 0.0


def predict(
    kind: str,
    dims: npt.ArrayLike,
    device: Device,
    *,
    element_bytes: int | None = None,
    dtype: str = "fp32",
    calibration: Calibration | None = None,
    without: Sequence[str] = (),
) -> Predicted:
    """Predict how long operators take.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array-like, shape (n, n_dims)
        What the model's `dims` name, 1 or more each.
    device : Device
    element_bytes : int, optional
        By default those of the data type.
    dtype : str
        What is computed in. Where no fit has this type, those of the type that comes nearest are used.
    calibration : Calibration, optional
        By default the shipped one.
    without : sequence of str
        Devices whose fits are not used.

    Raises
    ------
    InvalidInputError
        There is no such kind, a dimension is below 1, or the catalogue lacks a figure of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> found = predict("matmul", [[1, 4096, 4096, 4096]], find_device("A100-PCIE-40GB"))
    >>> found.basis, bool(found.low[0] < 137.4e9 / 16e12 < found.high[0])
    ('fitted', True)
    """
    if kind not in MODELS:
        raise InvalidInputError(f"no model of {kind!r}; there are {', '.join(MODELS)}")
    known, dtype = calibration or load_calibration(), runs_as(device, dtype)
    element_bytes = DTYPE_BYTES[dtype] if element_bytes is None else element_bytes
    if not 1 <= element_bytes <= _MOST_BYTES:
        raise InvalidInputError(f"elements of {element_bytes} bytes; they have 1 to {_MOST_BYTES}")
    shapes, machine = _checked(kind, dims), Machine.of(device, dtype)
    like, least = known.like(kind, dtype), least_seconds(kind, shapes, element_bytes, machine)
    own = known.fits.get((kind, device.name, like))
    left_out = {without} if isinstance(without, str) else set(without)
    if own is not None and device.name not in left_out:
        seconds = MODELS[kind].seconds(own.theta, own.tile, shapes, element_bytes, machine)
        return _interval(seconds, least, own, (own.spread, "fitted" if like == dtype else "carried"))
    mixed = carry_over(kind, known.donors(kind, like, {device.name, *left_out}), machine)
    spreads = [known.carried.get((kind, one, like)) for one in (device.name, ANY_HOT if runs_hot(device) else ANY, ANY)]
    spread = next((one for one in spreads if one is not None), UNKNOWN_SPREAD)
    seconds = MODELS[kind].seconds(mixed.theta, mixed.tile, shapes, element_bytes, machine)
    return _interval(seconds, least, mixed, (spread, "carried"))


def _checked(kind: str, dims: npt.ArrayLike) -> Floats:
    wanted = MODELS[kind].dims
    try:
        shapes = np.asarray(dims, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"dims are no table of numbers ({error}); {kind} needs {', '.join(wanted)}") from error
    if shapes.ndim != 2 or shapes.shape[1] != len(wanted):
        raise InvalidInputError(f"dims have shape {shapes.shape}; {kind} needs (n, {len(wanted)}): {', '.join(wanted)}")
    bad = np.flatnonzero(~((shapes >= 1) & (shapes <= LARGEST)).all(axis=1))
    if len(bad):
        text = f"dims[{int(bad[0])}] are {shapes[bad[0]].tolist()}; each must be 1 or more, and at most {LARGEST:.0e}"
        raise InvalidInputError(text)
    return shapes


def _interval(seconds: Floats, least: Floats, used: Fit, known: tuple[float, str]) -> Predicted:
    """Return an interval of a factor each way, nowhere below what the data sheet allows."""
    spread, basis = known
    factor = float(np.exp(spread))
    seconds = np.maximum(seconds, least)
    low = np.maximum(seconds / factor, least)
    return Predicted(seconds, low, seconds * factor, basis, used.values[0])  # every model starts so
