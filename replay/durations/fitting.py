"""Fit a model's parameters to measured durations of one device, held to what they are taken for elsewhere."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares  # type: ignore[import-untyped, unused-ignore]

from profilers.errors import InvalidInputError
from replay.durations.machine import Machine
from replay.durations.models import MODELS, Model, Tile

__all__ = ["CONFIDENCE", "Fit", "fit"]

Floats = npt.NDArray[np.float64]

#: What intervals are meant to cover.
CONFIDENCE = 0.9
#: Rows that a fit looks at, and that a tile is chosen by; more rows change the third digit.
_ROWS, _TRIAL_ROWS = 2000, 800
#: A standard deviation of a prior weighs as `_HOLD` squared residuals of 1 in a fit of `_HOLD_ROWS` rows; tried were 1
#: to 4, on the measurements of `datasets/fits`.
_HOLD, _HOLD_ROWS = 4.0, 1500
#: Residuals of the logarithm beyond this are outliers.
_OUTLIER = 0.1
#: What another card of the kind or another version of its library differs by, however well the fit is.
_LEAST_SPREAD = 0.1


@dataclass(frozen=True)
class Fit:
    """Parameters of one kind of operator on one device.

    Parameters
    ----------
    values : tuple of float
        In the order of the model's parameters.
    tile : Tile
    rows : int
        Measurements that there were.
    spread : float
        90 % quantile of the absolute error of the logarithm, on measurements that were held out.
    """

    values: tuple[float, ...]
    tile: Tile
    rows: int
    spread: float

    @property
    def theta(self) -> Floats:
        """The values as an array."""
        return np.array(self.values)


def fit(kind: str, dims: Floats, seconds: Floats, element_bytes: int, machine: Machine) -> Fit:
    """Fit one kind of operator on one device.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array of float64, shape (n, n_dims)
        What the model's `dims` name.
    seconds : array of float64, shape (n,)
        Measured, above zero.
    element_bytes : int
    machine : Machine

    Raises
    ------
    InvalidInputError
        There is no such kind, or there are fewer than ten measurements.

    Notes
    -----
    Least squares of the logarithm with the soft L1 loss, and a normal prior of each parameter's
    logarithm: parameters that the data do not tell stay where they were, so that they carry over to other devices. The
    spread is the larger of two: of one half at random by a fit to the other, and of the larger half by the smaller.
    """
    if kind not in MODELS:
        raise InvalidInputError(f"no model of {kind!r}; there are {', '.join(MODELS)}")
    if len(dims) < 10:
        raise InvalidInputError(f"{kind} on {machine.name}: {len(dims)} measurements; a fit needs ten or more")
    model, order = MODELS[kind], np.random.default_rng(0).permutation(len(dims))
    dims, seconds = dims[order], seconds[order]
    tile = _tile(model, (dims[:_TRIAL_ROWS], seconds[:_TRIAL_ROWS]), element_bytes, machine)
    theta = _theta(model, tile, (dims[:_ROWS], seconds[:_ROWS]), element_bytes, machine)
    drawn = np.arange(len(dims)) < len(dims) // 2
    smaller = dims.prod(axis=1) <= np.median(dims.prod(axis=1))
    spreads = [_held(model, tile, (dims, seconds, half), element_bytes, machine) for half in (drawn, smaller)]
    return Fit(tuple(theta.tolist()), tile, len(dims), max(*spreads, _LEAST_SPREAD))


def _held(
    model: Model,
    tile: Tile,
    measured: tuple[Floats, Floats, npt.NDArray[np.bool_]],
    element_bytes: int,
    machine: Machine,
) -> float:
    """Return the 90 % quantile of the error of the logarithm on one half, of a fit to the other."""
    dims, seconds, half = measured
    if half.all():  # all of one size
        return 0.0
    trial = _theta(model, tile, (dims[half][:_ROWS], seconds[half][:_ROWS]), element_bytes, machine)
    errors = np.log(model.seconds(trial, tile, dims[~half], element_bytes, machine) / seconds[~half])
    return float(np.quantile(np.abs(errors), CONFIDENCE))


def _tile(model: Model, measured: tuple[Floats, Floats], element_bytes: int, machine: Machine) -> Tile:
    """Return the tile with which the model errs least."""
    if len(model.tiles) == 1:
        return model.tiles[0]
    dims, seconds = measured

    def error(tile: Tile) -> float:
        theta = _theta(model, tile, measured, element_bytes, machine)
        return float(np.mean(np.abs(model.seconds(theta, tile, dims, element_bytes, machine) / seconds - 1)))

    return min(model.tiles, key=error)


def _theta(model: Model, tile: Tile, measured: tuple[Floats, Floats], element_bytes: int, machine: Machine) -> Floats:
    dims, seconds = measured
    hold = _HOLD * np.sqrt(len(dims) / _HOLD_ROWS) / model.spread
    logarithm = np.log(seconds)

    def residuals(theta: Floats) -> Floats:
        with np.errstate(over="ignore"):  # far from the prior, where the search may step
            predicted = model.seconds(np.exp(theta), tile, dims, element_bytes, machine)
        return np.concatenate((np.log(predicted) - logarithm, hold * (theta - model.prior)))

    found = least_squares(residuals, model.prior, loss="soft_l1", f_scale=_OUTLIER, diff_step=1e-2)
    return np.asarray(np.exp(found.x), dtype=np.float64)
