"""Fit parameters of a kernel's model to measurements, and carry them over to devices without any.

`fit` finds the parameters and the tile of a device, and a table that corrects what the model leaves over. `carry_over`
takes parameters from other devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from replay.costs.architectures import architecture_of
from replay.costs.kernels import convolutions
from replay.costs.kernels.machine import Machine
from replay.costs.kernels.models import (
    CORRECTION_SIZES,
    MODELS,
    KernelModel,
    Tile,
    axis_sizes,
    corrected_seconds,
)

#: Confidence level of intervals.
CONFIDENCE = 0.9
#: Rows that a fit uses, and rows that choose a tile; more rows change the third digit.
_ROWS, _TRIAL_ROWS = 2000, 800
#: A standard deviation of a prior weighs as `_HOLD` squared residuals of 1 in a fit of `_HOLD_ROWS` rows; tried were 1
#: to 4, on the measurements of `datasets/fits`.
_HOLD, _HOLD_ROWS = 4.0, 1500
#: Residuals of the logarithm beyond this are outliers.
_OUTLIER = 0.1
#: Least spread: another card of the kind or another version of its library differs by as much, however good the fit.
_LEAST_SPREAD = 0.1
#: Weight of a correction's squared steps between neighbouring knots, and of its squared values over those: 0.1 and 0.3
#: leave out-of-sample errors of products within 0.1 %. Largest correction of a logarithm.
_SMOOTH, _SMALL, MOST_CORRECTED = 0.2, 0.1, 0.7
#: Times that a correction is solved again with its outliers clipped; more times change the third digit.
_REPEATS = 5
#: Dimensions and seconds of measurements.
Rows = tuple[Floats, Floats]


@dataclass(frozen=True)
class Fit:
    """Parameters of one kind of operator on one device.

    Parameters
    ----------
    values : tuple of float
        Values in the order of the model's parameters.
    tile : Tile
        Rows and columns of a workgroup's tile; (0, 0) of a model without tiles.
    rows : int
        Number of measurements.
    spread : float
        90 % quantile of the absolute error of the logarithm, on measurements that were held out.
    correction : tuple of float
        Logarithms of measured over modelled times, on the grid of `corrected_seconds`; empty without correction.
    """

    values: tuple[float, ...]
    tile: Tile
    rows: int
    spread: float
    correction: tuple[float, ...] = ()

    @property
    def theta(self) -> Floats:
        """The values as an array."""
        return np.array(self.values)

    def seconds(self, kind: str, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
        """Return the times of operators, corrected by what was measured, s, shape (n,)."""
        if MODELS[kind].trees:
            return np.asarray(self.by_algorithm(dims, element_bytes, machine).min(axis=1))
        modelled = MODELS[kind].seconds(self.theta, self.tile, dims, element_bytes, machine)
        return corrected_seconds(MODELS[kind], np.array(self.correction), dims, modelled)

    def by_algorithm(self, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
        """Return the times of each algorithm of convolutions, s, shape (n, 5); infinity if the library lacks it."""
        return convolutions.algorithm_seconds(self.theta, np.array(self.correction), dims, element_bytes, machine)


def fit(kind: str, dims: Floats, seconds: Floats, element_bytes: int, machine: Machine) -> Fit:
    """Fit one kind of operator on one device.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array of float64, shape (n, n_dims)
        Shapes, in the columns that the model's `dims` name.
    seconds : array of float64, shape (n,)
        Measured durations, above zero.
    element_bytes : int
        Bytes of an element.
    machine : Machine
        Rates of the device.

    Raises
    ------
    InvalidInputError
        There is no such kind, or there are fewer than ten measurements.

    Notes
    -----
    Least squares of the logarithm with the soft L1 loss, and a normal prior of each parameter's logarithm. Parameters
    that the data do not determine keep their prior, so that they carry over to other devices. The spread is the larger
    of two: of a random half by a fit to the other half, and of the larger sizes by a fit to the smaller ones. A model
    with a correction is for the sizes that were measured, so its spread is that of the random half alone.
    """
    if kind not in MODELS:
        raise InvalidInputError(f"no model of {kind!r}; there are {', '.join(MODELS)}")
    if len(dims) < 10:
        raise InvalidInputError(f"{kind} on {machine.name}: {len(dims)} measurements; a fit needs ten or more")
    model, order = MODELS[kind], np.random.default_rng(0).permutation(len(dims))
    dims, seconds = dims[order], seconds[order]

    def predicted(theta: Floats, tile: Tile, dims: Floats) -> Floats:
        return model.seconds(theta, tile, dims, element_bytes, machine)

    if model.trees:

        def parameters(rows: Bools) -> Floats:
            return _theta(model, model.tiles[0], (dims[rows][:_ROWS], seconds[rows][:_ROWS]), predicted)

        theta, trees, spread = convolutions.fit_with_trees(dims, seconds, element_bytes, machine, parameters)
        return Fit(
            tuple(theta.tolist()), model.tiles[0], int(convolutions.scored(dims).sum()), spread, tuple(trees.tolist())
        )
    tile = model.tiles[0]
    if len(model.tiles) > 1:
        trial = dims[:_TRIAL_ROWS], seconds[:_TRIAL_ROWS]

        def error(tile: Tile) -> float:
            times = predicted(_theta(model, tile, trial, predicted), tile, trial[0])
            return float(np.mean(np.abs(times / trial[1] - 1)))

        tile = min(model.tiles, key=error)

    def trained(rows: Bools) -> tuple[Floats, Floats]:
        theta = _theta(model, tile, (dims[rows][:_ROWS], seconds[rows][:_ROWS]), predicted)
        errors = np.log(seconds[rows] / predicted(theta, tile, dims[rows]))
        return theta, _correction(model, dims[rows], errors)

    drawn = np.arange(len(dims)) < len(dims) // 2
    volume = np.maximum(dims, 1.0).prod(axis=1)
    smaller = volume <= np.median(volume)
    spread = 0.0 if model.correction else _LEAST_SPREAD
    for half in (drawn,) if model.correction else (drawn, smaller):
        if not half.all():  # all may be of one size
            theta, correction = trained(half)
            others = corrected_seconds(model, correction, dims[~half], predicted(theta, tile, dims[~half]))
            errors = np.log(others / seconds[~half])
            spread = max(spread, float(np.quantile(np.abs(errors), CONFIDENCE)))
    theta, correction = trained(np.ones(len(dims), dtype=np.bool_))
    return Fit(tuple(theta.tolist()), tile, len(dims), spread, tuple(correction.tolist()))


def _correction(model: KernelModel, dims: Floats, errors: Floats) -> Floats:
    """Return the corrections that leave the least of `errors`; each table corrects what the tables before it leave."""
    tables, left = [np.empty(0)], errors
    for axes in model.correction:
        tables.append(_table(axis_sizes(dims, axes), left))
        one = replace(model, correction=(axes,))
        left = left - np.log(corrected_seconds(one, tables[-1], dims, np.ones(len(dims))))
    return np.concatenate(tables)


def _table(sizes: Floats, errors: Floats) -> Floats:
    """Return a table that leaves the least of `errors`, and differs little from knot to knot.

    Squares of what is left count up to `_OUTLIER`, and then its size (Huber's loss).
    """
    knots, columns = np.log2(CORRECTION_SIZES), range(sizes.shape[1])
    size, count = len(knots), len(knots) ** len(columns)
    place, weight = np.zeros((len(sizes), 1), dtype=np.int64), np.ones((len(sizes), 1))
    for column in columns:
        logs = np.minimum(np.log2(np.maximum(sizes[:, column], 1.0)), knots[-1])
        lower = np.clip(np.searchsorted(knots, logs, side="right") - 1, 0, size - 2)
        share = ((logs - knots[lower]) / np.diff(knots)[lower])[:, None]
        place = np.concatenate((place * size + lower[:, None], place * size + lower[:, None] + 1), axis=1)
        weight = np.concatenate((weight * (1 - share), weight * share), axis=1)
    rows = np.repeat(np.arange(len(sizes)), weight.shape[1])
    design = scipy.sparse.csr_array((weight.ravel(), (rows, place.ravel())), shape=(len(sizes), count))
    held = _SMALL * scipy.sparse.eye_array(count)
    step = scipy.sparse.diags_array(
        [np.full(size - 1, -1.0), np.ones(size - 1)], offsets=[0, 1], shape=(size - 1, size)
    )
    for column in columns:
        before, after = (scipy.sparse.eye_array(size**power) for power in (column, len(columns) - 1 - column))
        differences = scipy.sparse.kron(scipy.sparse.kron(before, step), after)
        held = held + differences.T @ differences
    clipped = np.clip(errors, -MOST_CORRECTED, MOST_CORRECTED)
    # The matrix is symmetric: this order of its rows is up to ten times as fast as the default.
    matrix = (design.T @ design + _SMOOTH * held).tocsc()
    solve = scipy.sparse.linalg.splu(matrix, permc_spec="MMD_AT_PLUS_A").solve
    solved = solve(design.T @ clipped)
    for _ in range(_REPEATS):
        left = np.clip(clipped - design @ solved, -_OUTLIER, _OUTLIER)
        solved = solve(design.T @ (design @ solved + left))
    return np.asarray(np.round(np.clip(solved, -MOST_CORRECTED, MOST_CORRECTED), 3), dtype=np.float64)


def _theta(model: KernelModel, tile: Tile, rows: Rows, predicted: Callable[[Floats, Tile, Floats], Floats]) -> Floats:
    """Return the parameters that fit the rows best, priors included."""
    dims, seconds = rows
    hold = _HOLD * np.sqrt(len(dims) / _HOLD_ROWS) / model.spread
    logarithm = np.log(seconds)

    def residuals(theta: Floats) -> Floats:
        with np.errstate(over="ignore"):  # far from the prior, where the search may step
            times = predicted(np.exp(theta), tile, dims)
        return np.concatenate((np.log(times) - logarithm, hold * (theta - model.prior)))

    result = scipy.optimize.least_squares(residuals, model.prior, loss="soft_l1", f_scale=_OUTLIER, diff_step=1e-2)
    return np.asarray(np.exp(result.x), dtype=np.float64)


#: Weight of a device of another family when parameters are carried over; the weight of the same family is 1. From 0.003
#: to 0.1 it matters little to most kinds; 0.01 is the best for matrix products on the files that are fitted.
_OTHER_FAMILY = 0.01
#: Cards below this power limit run into it, and into heat, so that their sustained rates say little of others.
_LEAST_WATT = 100.0
_HOT_CARD = 0.3
#: Weight of a prior, over that of the device that weighs most. It falls with the square of a spread above the second
#: figure. Of four pairs tried in view of the left-out devices, products and row-wise operators fare best together.
_PRIOR_WEIGHT, _CERTAIN_PRIOR = 0.5, 0.3


def runs_hot(device: Device) -> bool:
    """Return whether a card has a power limit so low that it runs into it."""
    return "power_w" in device.figures and device.value("power_w") < _LEAST_WATT


def carry_over(kind: str, donors: Mapping[str, Fit], machine: Machine) -> Fit:
    """Return parameters for a device without measurements: the weighted median over the others and the prior.

    A device of the same family weighs a hundred times one of another family. A card below 100 W weighs three tenths of
    that, and nothing for the efficiency. A prior with a small spread weighs half of the heaviest device, so that a
    family of one device does not rule alone. Operators of inference frameworks and convolutions have the mean of the
    others; kinds that are carried by architecture have the mean of the nearest devices. Values that a model has for a
    vendor go first.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    donors : mapping of str to Fit
        Fits of measured devices, by device.
    machine : Machine
        Device without measurements.

    Raises
    ------
    InvalidInputError
        There is no other device.
    """
    if not donors:
        raise InvalidInputError(f"no device has a fit of {kind}; run `seqpoint calibrate kernels`")
    correction: tuple[float, ...] = ()
    if MODELS[kind].by_architecture:
        donors, correction = _nearest(donors, machine, by_units=MODELS[kind].by_units)
    elif MODELS[kind].trees:
        order = sorted(donors, key=lambda name: (donors[name].rows, name))
        alike, nearest = convolutions.nearest_devices([find_device(name) for name in order], machine)
        correction = donors[nearest.name].correction if nearest else ()
        donors = {device.name: donors[device.name] for device in alike} or donors
    devices, parameters = [find_device(name) for name in donors], MODELS[kind].parameters
    families = [architecture_of(device.architecture).family for device in devices]
    family = np.array([1.0 if each == machine.family else _OTHER_FAMILY for each in families])
    cool = np.array([not runs_hot(device) for device in devices])
    weights = np.repeat(np.where(cool, family, _HOT_CARD * family)[:, None], len(parameters), axis=1)
    if cool.any():
        weights[np.outer(~cool, [parameter.name == "efficiency" for parameter in parameters])] = 0.0
    logs = np.log([donor.theta for donor in donors.values()])
    if MODELS[kind].library or MODELS[kind].trees:
        theta = np.exp((weights * logs).sum(axis=0) / weights.sum(axis=0))
    else:
        certainty = np.minimum(_CERTAIN_PRIOR / MODELS[kind].spread, 1.0) ** 2
        weights = np.vstack([weights, _PRIOR_WEIGHT * certainty * weights.max(axis=0)])
        logs = np.vstack([logs, MODELS[kind].prior])
        theta = np.exp([_median(*columns) for columns in zip(logs.T, weights.T, strict=True)])
    of_vendor = MODELS[kind].vendor_values.get(machine.vendor, {})
    values = [of_vendor.get(parameter.name, value) for parameter, value in zip(parameters, theta.tolist(), strict=True)]
    votes: dict[Tile, float] = {}
    for donor, weight in zip(donors.values(), family.tolist(), strict=True):
        votes[donor.tile] = votes.get(donor.tile, 0.0) + weight
    return Fit(tuple(values), max(sorted(votes), key=lambda tile: votes[tile]), 0, 0.0, correction)


def _nearest(
    donors: Mapping[str, Fit], machine: Machine, *, by_units: bool
) -> tuple[Mapping[str, Fit], tuple[float, ...]]:
    """Return the donors whose kernels are likely those of a device, and the mean of their corrections.

    These are the devices of its architecture; else, without corrections and `by_units`, those whose matrix units run
    asynchronously as its own do, or do not; else all.
    """
    architecture = {name: find_device(name).architecture for name in donors}
    if same := {name: fit for name, fit in donors.items() if architecture[name] == machine.architecture}:
        corrections = [fit.correction for fit in same.values() if fit.correction]
        return same, tuple(np.mean(corrections, axis=0).tolist()) if len(corrections) == len(same) else ()
    if not by_units:
        return donors, ()
    asynchronous = architecture_of(machine.architecture).asynchronous
    alike = {
        name: fit for name, fit in donors.items() if architecture_of(architecture[name]).asynchronous == asynchronous
    }
    return alike or donors, ()


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median, interpolated between the middles of neighbouring weights."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(np.interp(0.5, (reached - weights[order] / 2) / reached[-1], values[order]))
