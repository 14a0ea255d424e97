"""Fit parameters of a kernel's model to measurements, and carry them over to devices without any.

`fit` finds the parameters and the tile of a device, and a table that corrects what the model leaves over. `carry_over`
takes parameters from other devices.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from replay.costs.architectures import architecture_of
from replay.costs.kernels import convolutions
from replay.costs.kernels.corrections import MOST_POINTS, corrected_seconds, fit_correction
from replay.costs.kernels.machine import Machine
from replay.costs.kernels.models import MODELS, KernelModel, Tile

#: Logarithm of the start from which a fit begins, over the shortest duration; another begins from the prior.
_SHORTEST = -0.2
#: Confidence level of intervals.
CONFIDENCE = 0.9
#: Rows that a fit uses, and rows that choose a tile; more rows change the third digit.
_ROWS, _TRIAL_ROWS = 2000, 800
#: A standard deviation of a prior weighs as `_HOLD` squared residuals of 1 in a fit of `_HOLD_ROWS` rows; tried were 1
#: to 4, on the measurements of `datasets/fits`.
_HOLD, _HOLD_ROWS = 4.0, 1500
#: Residuals of the logarithm beyond this are outliers.
_OUTLIER = 0.1
#: A correction is kept unless the mean error on other shapes becomes larger than by this factor. Chosen: 2 % is within
#: the scatter of halves, and siblings take a correction that is kept.
_MOST_WORSE = 1.02
#: Least spread: another card of the kind or another version of its library differs by as much, however good the fit.
_LEAST_SPREAD = 0.1
#: Dimensions and seconds of measurements.
Rows = tuple[Floats, Floats]


#: Start of a kernel, s: 2.3 to 2.6 us of the shortest elementwise kernels of an H100 and an H200 that the project
#: recorded. A start above the second figure holds the launch by the host: tables of single operators hold 10 to 90 us.
KERNEL_START_S, _LONGEST_START_S = 2.5e-6, 8e-6


def holds_launch(kind: str, start_s: float) -> bool:
    """Return whether a start is that of a launch: operators of frameworks and convolutions are several kernels.

    Examples
    --------
    >>> holds_launch("softmax", 2e-5), holds_launch("softmax", 3e-6), holds_launch("context_attention", 2e-5)
    (True, False, False)
    """
    return start_s > _LONGEST_START_S and not MODELS[kind].library


def _started(model: KernelModel, *, launched: bool) -> KernelModel:
    """Return the model with the prior of a kernel's start, if the measurements are of kernels alone."""
    if launched or model.library:
        return model
    start = replace(model.parameters[0], prior=min(model.parameters[0].prior, KERNEL_START_S))
    return replace(model, parameters=(start, *model.parameters[1:]))


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
        Points of `replay.costs.kernels.corrections`, or trees; empty without correction.
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

    def without_launch(self, kind: str) -> "Fit":
        """Return the fit with the start of the device alone, where the measurements hold the launch by the host."""
        if not holds_launch(kind, self.values[0]):
            return self
        return replace(self, values=(KERNEL_START_S, *self.values[1:]))

    def seconds(self, kind: str, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
        """Return the times of operators, corrected by what was measured, s, shape (n,)."""
        if MODELS[kind].trees:
            return np.asarray(self.by_algorithm(dims, element_bytes, machine).min(axis=1))
        modelled = MODELS[kind].seconds(self.theta, self.tile, dims, element_bytes, machine)
        return corrected_seconds(MODELS[kind].correction, np.array(self.correction), dims, modelled)

    def by_algorithm(self, dims: Floats, element_bytes: int, machine: Machine) -> Floats:
        """Return the times of each algorithm of convolutions, s, shape (n, 5); infinity if the library lacks it."""
        return convolutions.algorithm_seconds(self.theta, np.array(self.correction), dims, element_bytes, machine)


def fit(
    kind: str, dims: Floats, seconds: Floats, element_bytes: int, machine: Machine, *, launched: bool = False
) -> Fit:
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
    launched : bool
        Whether the durations hold the launch by the host.

    Raises
    ------
    InvalidInputError
        There is no such kind, or there are fewer than ten measurements.

    Notes
    -----
    Least squares of the logarithm with the soft L1 loss, and a normal prior of each parameter's logarithm. Parameters
    that the data do not determine keep their prior, so that they carry over to other devices. The spread is the larger
    of two: of half of the operators by a fit to the other half, and of the larger sizes by a fit to the smaller ones.
    Operators of a library are predicted at sizes like the measured ones, so their spread is the first alone. A
    correction is kept if it does no harm on the other half, or if there are so few shapes that each is a point of it.
    """
    if kind not in MODELS:
        raise InvalidInputError(f"no model of {kind!r}; there are {', '.join(MODELS)}")
    if len(dims) < 10:
        raise InvalidInputError(f"{kind} on {machine.name}: {len(dims)} measurements; a fit needs ten or more")
    model, order = _started(MODELS[kind], launched=launched), np.random.default_rng(0).permutation(len(dims))
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
    tile = _best_tile(model, (dims[:_TRIAL_ROWS], seconds[:_TRIAL_ROWS]), predicted)
    axes = () if launched else model.correction

    def trained(rows: Bools) -> tuple[Floats, Floats]:
        theta = _theta(model, tile, (dims[rows][:_ROWS], seconds[rows][:_ROWS]), predicted)
        errors = np.log(seconds[rows] / predicted(theta, tile, dims[rows]))
        return theta, fit_correction(axes, dims[rows], errors)

    def errors_of(half: Bools) -> tuple[Floats, Floats]:
        """Return the absolute errors of the logarithm on the other half, without and with the correction."""
        if half.all():  # all may be of one size
            return np.zeros(1), np.zeros(1)
        theta, correction = trained(half)
        bare = predicted(theta, tile, dims[~half])
        both = bare, corrected_seconds(axes, correction, dims[~half], bare)
        without, corrected = (np.abs(np.log(times / seconds[~half])) for times in both)
        return without, corrected

    halves = [half_of_shapes(dims) if axes else np.arange(len(dims)) < len(dims) // 2]
    if not model.library:
        volume = np.maximum(dims, 1.0).prod(axis=1)
        halves.append(volume <= np.median(volume))
    errors = [errors_of(half) for half in halves]
    without, corrected = (float(each.mean()) for each in errors[0])
    is_few = len(np.unique(dims, axis=0)) <= MOST_POINTS  # each shape is a point: a sibling takes their very times
    is_corrected = is_few or corrected < _MOST_WORSE * without
    axes = axes if is_corrected else ()
    theta, correction = trained(np.ones(len(dims), dtype=np.bool_))
    spread = max(float(np.quantile(each[int(is_corrected)], CONFIDENCE)) for each in errors)
    spread = spread if model.library else max(spread, _LEAST_SPREAD)
    return Fit(tuple(theta.tolist()), tile, len(dims), spread, tuple(correction.tolist()))


def _best_tile(model: KernelModel, rows: Rows, predicted: Callable[[Floats, Tile, Floats], Floats]) -> Tile:
    """Return the tile of a model with which its fit to some rows is off least."""
    if len(model.tiles) == 1:
        return model.tiles[0]

    def error(tile: Tile) -> float:
        times = predicted(_theta(model, tile, rows, predicted), tile, rows[0])
        return float(np.mean(np.abs(times / rows[1] - 1)))

    return min(model.tiles, key=error)


def half_of_shapes(dims: Floats) -> Bools:
    """Return a mask of the first half of the operators; those with the same last dimensions stay together.

    These are the second operand of a product, or the columns of rows.
    """
    last = dims[:, -1:] if dims.shape[1] == 2 else dims[:, 2:]
    keys = last if len(np.unique(last, axis=0)) > 1 else dims
    _, group = np.unique(keys, axis=0, return_inverse=True)
    sizes = np.bincount(group.reshape(-1))
    order, taken = np.argsort(-sizes, kind="stable"), [0, 0]
    side = np.zeros(len(sizes), dtype=np.int64)
    for number in order:  # the larger groups first, each to the half that has less
        side[number] = int(taken[1] < taken[0])
        taken[side[number]] += int(sizes[number])
    return np.asarray(side[group.reshape(-1)] == 0, dtype=np.bool_)


def _theta(model: KernelModel, tile: Tile, rows: Rows, predicted: Callable[[Floats, Tile, Floats], Floats]) -> Floats:
    """Return the parameters that fit the rows best, priors included."""
    dims, seconds = rows
    hold = _HOLD * np.sqrt(len(dims) / _HOLD_ROWS) / model.spread
    logarithm = np.log(seconds)

    def residuals(theta: Floats) -> Floats:
        with np.errstate(over="ignore"):  # far from the prior, where the search may step
            times = predicted(np.exp(theta), tile, dims)
        return np.concatenate((np.log(times) - logarithm, hold * (theta - model.prior)))

    results = [
        scipy.optimize.least_squares(residuals, begin, loss="soft_l1", f_scale=_OUTLIER, diff_step=1e-2)
        for begin in (model.prior, np.append(_SHORTEST + logarithm.min(), model.prior[1:]))
    ]
    return np.asarray(np.exp(min(results, key=lambda result: float(result.cost)).x), dtype=np.float64)


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


def carry_over(kind: str, donors: Mapping[str, Fit], machine: Machine, *, launched: bool = False) -> Fit:
    """Return parameters for a device without measurements, from its nearest relatives.

    Siblings, which have the same compute units, go first: the mean of their parameters and of their corrections.
    Without them, parameters are the weighted median over the others and the prior. A device of the same family weighs a
    hundred times one of another family. A card below 100 W weighs three tenths of that, and nothing for the efficiency.
    A prior with a small spread weighs half of the heaviest device, so that a family of one device does not rule alone.
    Operators of inference frameworks and convolutions have the mean of the others. Values that a model has for a vendor
    go first.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    donors : mapping of str to Fit
        Fits of measured devices, by device.
    machine : Machine
        Device without measurements.
    launched : bool
        Whether the times are to hold the launch by the host, where the times of donors do.

    Raises
    ------
    InvalidInputError
        There is no other device.
    """
    if not donors:
        raise InvalidInputError(f"no device has a fit of {kind}; run `seqpoint calibrate kernels`")
    if launched:
        donors = {name: fit for name, fit in donors.items() if holds_launch(kind, fit.values[0])} or donors
    else:
        donors = {name: fit.without_launch(kind) for name, fit in donors.items()}
    model = _started(MODELS[kind], launched=launched)
    correction: tuple[float, ...] = ()
    near: Mapping[str, Fit] = {name: donors[name] for name in nearest(kind, donors, machine)}
    siblings = all(find_device(name).design == machine.design for name in near)
    if siblings:
        correction = _mean_correction([fit.correction for fit in near.values()], len(model.correction) + 1)
    if model.trees:
        siblings, order = False, sorted(donors, key=lambda name: (donors[name].rows, name))
        alike, best = convolutions.nearest_devices([find_device(name) for name in order], machine)
        correction = donors[best.name].correction if best else ()
        near = {device.name: donors[device.name] for device in alike} or donors
    devices, parameters = [find_device(name) for name in near], model.parameters
    families = [architecture_of(device.architecture).family for device in devices]
    family = np.array([1.0 if each == machine.family else _OTHER_FAMILY for each in families])
    cool = np.array([not runs_hot(device) for device in devices])
    weights = np.repeat(np.where(cool, family, _HOT_CARD * family)[:, None], len(parameters), axis=1)
    if cool.any():
        weights[np.outer(~cool, [parameter.name == "efficiency" for parameter in parameters])] = 0.0
    logs = np.log([donor.theta for donor in near.values()])
    if siblings or model.library or model.trees:
        theta = np.exp((weights * logs).sum(axis=0) / weights.sum(axis=0))
    else:
        certainty = np.minimum(_CERTAIN_PRIOR / model.spread, 1.0) ** 2
        weights = np.vstack([weights, _PRIOR_WEIGHT * certainty * weights.max(axis=0)])
        logs = np.vstack([logs, model.prior])
        theta = np.exp([_median(*columns) for columns in zip(logs.T, weights.T, strict=True)])
    of_vendor = {} if siblings else model.vendor_values.get(machine.vendor, {})
    values = [of_vendor.get(parameter.name, value) for parameter, value in zip(parameters, theta.tolist(), strict=True)]
    votes: dict[Tile, float] = {}
    for donor, weight in zip(near.values(), family.tolist(), strict=True):
        votes[donor.tile] = votes.get(donor.tile, 0.0) + weight
    return Fit(tuple(values), max(sorted(votes), key=lambda tile: votes[tile]), 0, 0.0, correction)


def nearest(kind: str, donors: Iterable[str], machine: Machine) -> list[str]:
    """Return the devices whose kernels are likely those of a device.

    These are its siblings; else, of kinds that are carried by units, those whose matrix units run asynchronously as its
    own do, or do not; else all.
    """
    devices = [find_device(name) for name in donors]
    if siblings := [device.name for device in devices if device.design == machine.design]:
        return siblings
    alike = []
    if MODELS[kind].by_units:
        asynchronous = architecture_of(machine.architecture).asynchronous
        alike = [d.name for d in devices if architecture_of(d.architecture).asynchronous == asynchronous]
    return alike or [device.name for device in devices]


def relation(donors: Iterable[str], device: Device, *, trees: bool = False) -> str:
    """Return how near the nearest of other devices is: ``"sibling"``, ``"family"`` or ``"other"``.

    A family is of one vendor, and either for computing or for graphics. Of kinds with `trees`, whose libraries go by
    the architecture, it is a family of architectures, and there are no siblings.
    """
    if trees:
        family = architecture_of(device.architecture).family
        families = [architecture_of(find_device(name).architecture).family for name in donors]
        return "family" if family and family in families else "other"
    others = [find_device(name) for name in donors if find_device(name).vendor == device.vendor]
    if any(each.design == device.design for each in others):
        return "sibling"
    return "family" if any(each.is_for_graphics == device.is_for_graphics for each in others) else "other"


def _mean_correction(corrections: Sequence[tuple[float, ...]], columns: int) -> tuple[float, ...]:
    """Return the points of all corrections, with the weights of their mean; without any if one fit has none."""
    if not all(corrections):
        return ()
    points = np.concatenate([np.reshape(each, (-1, columns)) for each in corrections])
    points[:, -1] /= len(corrections)
    return tuple(points.reshape(-1).tolist())


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median, interpolated between the middles of neighbouring weights."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(np.interp(0.5, (reached - weights[order] / 2) / reached[-1], values[order]))
