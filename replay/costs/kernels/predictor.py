"""Durations of operators on any device of the catalogue, with an interval, from fitted models.

`fit` fits the parameters of a model to measured durations of one device; priors hold the parameters that the data do
not determine. `carry_over` gives a device without measurements the mean parameters of other devices, its own family
first. `KernelCalibration` holds all fits, and how far carried predictions were off. `predict` uses both.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import scipy

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Bools, Floats
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.costs.kernels.machine import Machine, runs_as
from replay.costs.kernels.measurements import LARGEST, MeasuredOperators
from replay.costs.kernels.models import (
    CORRECTION_SIZES,
    MODELS,
    Model,
    Tile,
    corrected_seconds,
    least_seconds,
)
from replay.graph.operators import DTYPE_BYTES

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
_SMOOTH, _SMALL, _MOST_CORRECTED = 0.2, 0.1, 0.7
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
        modelled = MODELS[kind].seconds(self.theta, self.tile, dims, element_bytes, machine)
        return corrected_seconds(MODELS[kind], np.array(self.correction), dims, modelled)


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
    smaller = dims.prod(axis=1) <= np.median(dims.prod(axis=1))
    spread = 0.0 if model.correction else _LEAST_SPREAD
    for half in (drawn,) if model.correction else (drawn, smaller):
        if not half.all():  # all may be of one size
            theta, correction = trained(half)
            others = corrected_seconds(model, correction, dims[~half], predicted(theta, tile, dims[~half]))
            errors = np.log(others / seconds[~half])
            spread = max(spread, float(np.quantile(np.abs(errors), CONFIDENCE)))
    theta, correction = trained(np.ones(len(dims), dtype=np.bool_))
    return Fit(tuple(theta.tolist()), tile, len(dims), spread, tuple(correction.tolist()))


def _correction(model: Model, dims: Floats, errors: Floats) -> Floats:
    """Return the correction that leaves the least squares of `errors`, and differs little from knot to knot."""
    knots, columns = np.log2(CORRECTION_SIZES), model.correction
    if not columns:
        return np.empty(0)
    size, count = len(knots), len(knots) ** len(columns)
    place, weight = np.zeros((len(dims), 1), dtype=np.int64), np.ones((len(dims), 1))
    for column in columns:
        sizes = np.minimum(np.log2(dims[:, column]), knots[-1])
        lower = np.clip(np.searchsorted(knots, sizes, side="right") - 1, 0, size - 2)
        share = ((sizes - knots[lower]) / np.diff(knots)[lower])[:, None]
        place = np.concatenate((place * size + lower[:, None], place * size + lower[:, None] + 1), axis=1)
        weight = np.concatenate((weight * (1 - share), weight * share), axis=1)
    rows = np.repeat(np.arange(len(dims)), weight.shape[1])
    design = scipy.sparse.csr_array((weight.ravel(), (rows, place.ravel())), shape=(len(dims), count))
    held = _SMALL * scipy.sparse.eye_array(count)
    step = scipy.sparse.diags_array(
        [np.full(size - 1, -1.0), np.ones(size - 1)], offsets=[0, 1], shape=(size - 1, size)
    )
    for column in range(len(columns)):
        before, after = (scipy.sparse.eye_array(size**power) for power in (column, len(columns) - 1 - column))
        differences = scipy.sparse.kron(scipy.sparse.kron(before, step), after)
        held = held + differences.T @ differences
    clipped = np.clip(errors, -_MOST_CORRECTED, _MOST_CORRECTED)
    solved = scipy.sparse.linalg.spsolve((design.T @ design + _SMOOTH * held).tocsc(), design.T @ clipped)
    return np.asarray(np.round(np.clip(solved, -_MOST_CORRECTED, _MOST_CORRECTED), 3), dtype=np.float64)


def _theta(model: Model, tile: Tile, rows: Rows, predicted: Callable[[Floats, Tile, Floats], Floats]) -> Floats:
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
_HOT_CARD = 0.1


def runs_hot(device: Device) -> bool:
    """Return whether a card has a power limit so low that it runs into it."""
    return "power_w" in device.figures and device.value("power_w") < _LEAST_WATT


def carry_over(kind: str, donors: Mapping[str, Fit], machine: Machine) -> Fit:
    """Return parameters for a device without measurements: the mean of their logarithms over the others.

    A device of the same family weighs a hundred times one of another family. A card below 100 W weighs a tenth of that,
    and nothing for the efficiency.

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
    devices, parameters = [find_device(name) for name in donors], MODELS[kind].parameters
    family = np.array([1.0 if Machine.of(d).family == machine.family else _OTHER_FAMILY for d in devices])
    cool = np.array([not runs_hot(device) for device in devices])
    weights = np.repeat(np.where(cool, family, _HOT_CARD * family)[:, None], len(parameters), axis=1)
    if cool.any():
        weights[np.outer(~cool, [parameter.name == "efficiency" for parameter in parameters])] = 0.0
    logs = np.log([donor.theta for donor in donors.values()])
    theta = np.exp((weights * logs).sum(axis=0) / weights.sum(axis=0))
    votes: dict[Tile, float] = {}
    for donor, weight in zip(donors.values(), family.tolist(), strict=True):
        votes[donor.tile] = votes.get(donor.tile, 0.0) + weight
    return Fit(tuple(theta.tolist()), max(sorted(votes), key=lambda tile: votes[tile]), 0, spread=0.0)


#: Kind, catalogue's name of the device (or of the device that is left out), and data type.
Key = tuple[str, str, str]
#: Data types that the same units compute.
_NEAREST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bf16": ("fp16",),
        "fp16": ("bf16",),
        "tf32": ("fp16", "bf16"),
        "fp8": ("int8", "fp16", "bf16"),
        "int8": ("fp8", "bf16"),
        "nvfp4": ("fp8", "bf16"),
        "int8_wo": ("int4_wo", "bf16"),
        "int4_wo": ("int8_wo", "bf16"),
    }
)

#: Names that stand for a device without measurements, and for one that runs into its power limit.
ANY, ANY_HOT = "", "(power limited)"
#: Error of the logarithm that is assumed if no other device could be compared: a factor of e.
UNKNOWN_SPREAD = 1.0
#: Factor by which a parameter of a calibration file may differ from its prior; characters of a text that errors show.
_FARTHEST, _SHOWN = 1e4, 40
#: Spread of the logarithm of a prediction, in a calibration file.
_Spread = Annotated[float, msgspec.Meta(ge=0, le=10)]


@dataclass(frozen=True)
class KernelCalibration:
    """All fits, and how far predictions for devices without measurements are off.

    Parameters
    ----------
    fits : mapping of (str, str, str) to Fit
        By kind, the catalogue's name of the device, and data type.
    carried : mapping of (str, str, str) to float
        By kind, left-out device and data type. The spread is the mean over the other devices of the 90 % quantile of
        the absolute error of the logarithm, when each is predicted from the rest. Cards that run into their power limit
        count only if such a card is left out. `ANY` and `ANY_HOT` stand for devices without measurements.
    digests : tuple of str
        SHA-256 of the files that were fitted.
    """

    fits: Mapping[Key, Fit]
    carried: Mapping[Key, float]
    digests: tuple[str, ...] = ()

    def __hash__(self) -> int:  # results are cached by calibration, and mappings have no hash
        return hash((len(self.fits), self.digests))

    def like(self, kind: str, dtype: str, without: Collection[str] = ()) -> str:
        """Return the data type whose fits stand in for `dtype`: its own, that of the same units, FP32, or any."""
        fitted = sorted({each for k, name, each in self.fits if k == kind and name not in without})
        nearest = (dtype, *_NEAREST.get(dtype, ()), "fp32", *fitted)
        return next((each for each in nearest if each in fitted), dtype)

    def knows(self, kind: str, dtype: str) -> bool:
        """Return whether any device has a fit that can stand in."""
        return bool(self.donors(kind, self.like(kind, dtype), ()))

    def stand_ins(self, kind: str, dtype: str, without: Collection[str]) -> dict[str, Fit]:
        """Return the fits that stand in on devices other than `without`.

        Products of matrix units have types that one device alone was measured in. Fits of the nearest type stand in.
        """
        alone = MODELS[kind].correction and len(self.donors(kind, dtype, ())) == 1
        return self.donors(kind, self.like(kind, dtype, without) if alone else dtype, without)

    def donors(self, kind: str, dtype: str, without: Collection[str]) -> dict[str, Fit]:
        """Return the fits of all devices but those `without`, by device."""
        return {name: fit for (k, name, d), fit in self.fits.items() if (k, d) == (kind, dtype) and name not in without}


def calibrate(measured: Iterable[MeasuredOperators], base: KernelCalibration | None = None) -> KernelCalibration:
    """Fit every kind on every device, and measure how far predictions of a left-out device are off.

    Parameters
    ----------
    measured : iterable of MeasuredOperators
        Measurements; those of one kind, device and data type are fitted together.
    base : Calibration, optional
        Calibration whose fits of other devices are kept.
    """
    base = base or KernelCalibration({}, {})
    pooled: dict[Key, list[MeasuredOperators]] = {}
    for operators in measured:
        pooled.setdefault((operators.kind, operators.device.name, operators.dtype), []).append(operators)
    fits, rows, digests = dict(base.fits), dict[Key, Rows](), set(base.digests)
    for (kind, name, dtype), several in pooled.items():
        dims, seconds = rows[kind, name, dtype] = (
            np.concatenate([operators.dims for operators in several]),
            np.concatenate([operators.seconds for operators in several]),
        )
        digests |= {operators.digest for operators in several}
        machine = Machine.of(several[0].device, dtype)
        try:
            fits[kind, name, dtype] = fit(kind, dims, seconds, several[0].element_bytes, machine)
        except InvalidInputError as error:
            sources = ", ".join(sorted({operators.source for operators in several}))
            raise InvalidInputError(f"{sources}: {error}") from error
    carried = {**base.carried, **_carried(KernelCalibration(fits, {}), rows)}
    return KernelCalibration(MappingProxyType(fits), MappingProxyType(carried), tuple(sorted(digests)))


def _carried(calibration: KernelCalibration, rows: Mapping[Key, Rows]) -> dict[Key, float]:
    """Return the spread of carried predictions, with each device left out in turn, and with none."""
    carried = {}
    for kind, dtype in sorted({(kind, dtype) for kind, _, dtype in rows}):
        names = [name for k, name, d in rows if (k, d) == (kind, dtype)]
        cool = [name for name in names if not runs_hot(find_device(name))]
        for left_out in (ANY, ANY_HOT, *names):
            # Every device counts the same: the mean is over quantiles of each.
            quantiles = [
                np.quantile(_log_errors((kind, name, dtype), donors, rows[kind, name, dtype]), CONFIDENCE)
                for name in (cool if cool and left_out in (ANY, *cool) else names)
                if name != left_out and (donors := calibration.stand_ins(kind, dtype, {name, left_out}))
            ]
            if quantiles:
                carried[kind, left_out, dtype] = float(np.mean(quantiles))
    return carried


def _log_errors(key: Key, donors: Mapping[str, Fit], rows: Rows) -> Floats:
    """Return the absolute errors of the logarithm of predictions for a device that are carried over from others."""
    (kind, name, dtype), (dims, seconds) = key, rows
    machine = Machine.of(find_device(name), dtype)
    predicted = carry_over(kind, donors, machine).seconds(kind, dims, DTYPE_BYTES[dtype], machine)
    return np.asarray(np.abs(np.log(predicted / seconds)))


class KernelFitRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of one kind of operator on one device, as a calibration file holds it; fields as in `Fit`."""

    kind: str
    device: str
    dtype: str
    rows: Annotated[int, msgspec.Meta(ge=1)]
    spread: _Spread
    tile: Tile
    parameters: dict[str, float]
    correction: tuple[str, ...] = ()


class CarriedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `Calibration.carried`, as a calibration file holds it."""

    kind: str
    without: str
    dtype: str
    spread: _Spread


class KernelFits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of kernels."""

    fits: tuple[KernelFitRow, ...]
    carried: tuple[CarriedRow, ...]
    fitted_files_sha256: tuple[str, ...]


def write_calibration(path: Path, calibration: KernelCalibration) -> None:
    """Write a calibration of kernels, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file to write or replace.
    calibration : Calibration
        Fits to write, with parameters of five digits.
    """
    fits = []
    for key, fit in sorted(calibration.fits.items()):
        named = zip(MODELS[key[0]].parameters, fit.values, strict=True)
        values = {parameter.name: float(f"{value:.5g}") for parameter, value in named}
        table = np.round(1e3 * np.array(fit.correction)).astype(int).reshape(-1, len(CORRECTION_SIZES))
        correction = tuple(" ".join(map(str, line)) for line in table.tolist())
        fits.append(KernelFitRow(*key, fit.rows, round(fit.spread, 4), fit.tile, values, correction))
    carried = tuple(CarriedRow(*key, round(spread, 4)) for key, spread in sorted(calibration.carried.items()))
    devices = sorted({row.device for row in fits})
    source = f"{len(calibration.digests)} tables of measured operators"
    _LAYOUT.write(path, KernelFits(tuple(fits), carried, calibration.digests), devices=devices, source=source)


def read_calibration(path: str | Path) -> KernelCalibration:
    """Read a calibration of kernels.

    Parameters
    ----------
    path : str or Path
        JSON file that `write_calibration` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration of kernels; the key is named.
    """
    return _LAYOUT.read(path)


def _calibration_of(content: CalibrationFile[KernelFits]) -> KernelCalibration:
    file = content.fit
    fits = {(row.kind, row.device, _checked_dtype(row.dtype)): _fit_of(row) for row in file.fits}
    carried = {(row.kind, row.without, _checked_dtype(row.dtype)): row.spread for row in file.carried}
    return KernelCalibration(MappingProxyType(fits), MappingProxyType(carried), file.fitted_files_sha256)


def _checked_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ValueError(f"data type {dtype[:_SHOWN]!r} is none of {', '.join(DTYPES)}")
    return dtype


def _fit_of(row: KernelFitRow) -> Fit:
    if row.kind not in MODELS:
        raise ValueError(f"no model of {row.kind[:_SHOWN]!r}; there are {', '.join(MODELS)}")
    model, subject = MODELS[row.kind], f"{row.kind} on {find_device(row.device).name}"
    if missing := [parameter.name for parameter in model.parameters if parameter.name not in row.parameters]:
        raise ValueError(f"the parameters of {subject} lack {', '.join(missing)}")
    values = tuple(row.parameters[parameter.name] for parameter in model.parameters)
    for parameter, value in zip(model.parameters, values, strict=True):
        if not parameter.prior / _FARTHEST <= value <= parameter.prior * _FARTHEST:
            raise ValueError(
                f"{parameter.name} of {subject} is {value:g}; it lies within {_FARTHEST:g} times {parameter.prior:g}"
            )
    if row.tile not in model.tiles:
        raise ValueError(f"the tile of {subject} is {row.tile}; there are {', '.join(map(str, model.tiles))}")
    return Fit(values, row.tile, row.rows, row.spread, _correction_of(row, model, subject))


def _correction_of(row: KernelFitRow, model: Model, subject: str) -> tuple[float, ...]:
    """Return the correction of a calibration file, which has it in thousandths."""
    values = np.array([int(text) for line in row.correction for text in line.split()], dtype=np.float64) / 1e3
    expected = len(CORRECTION_SIZES) ** len(model.correction) if model.correction else 0
    if len(values) not in (0, expected) or (np.abs(values) > _MOST_CORRECTED + 1e-9).any():
        raise ValueError(f"the correction of {subject} needs {expected} values of at most {_MOST_CORRECTED * 1e3:g}")
    return tuple(values.tolist())


_LAYOUT = CalibrationLayout("kernels", KernelFits, _calibration_of)


@cache
def load_calibration() -> KernelCalibration:
    """Return the shipped calibration."""
    return read_calibration(dataset_path("fits/kernels.json"))


#: Largest number of bytes of an element.
_MOST_BYTES = 16


@dataclass(frozen=True)
class Predicted:
    """Predicted durations of operators or collectives, in s.

    Parameters
    ----------
    seconds, low, high : array of float64
        Times, one a shape or size, and the ends of an interval that is meant to hold nine measured times in ten.
    basis : str
        ``"fitted"`` on this device or group of workers, or ``"carried"`` over from others. Collectives also have
        ``"prior"``, from constants and the device catalogue, and ``"none"``, of one worker.
    start_s : float
        Fixed time of a launch that is waited for, in each duration of an operator.
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
    calibration: KernelCalibration,
    element_bytes: int | None = None,
    dtype: str = "fp32",
    without: Sequence[str] = (),
) -> Predicted:
    """Predict how long operators take.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array-like, shape (n, n_dims)
        Shapes, in the columns that the model's `dims` name; 1 or more each.
    device : Device
        Device that the operators run on.
    calibration : Calibration
        Fits to predict from.
    element_bytes : int, optional
        Bytes of an element; by default those of the data type.
    dtype : str
        Data type of the arithmetic. If no fit has this type, fits of the nearest type are used.
    without : sequence of str
        Devices whose fits are not used.

    Raises
    ------
    InvalidInputError
        There is no such kind, a dimension is below 1, or the catalogue lacks a figure of the device.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> device, shapes = find_device("A100-PCIE-40GB"), [[1, 4096, 4096, 4096]]
    >>> predicted = predict("matmul", shapes, device, calibration=load_calibration())
    >>> predicted.basis, bool(predicted.low[0] < 137.4e9 / 16e12 < predicted.high[0])
    ('fitted', True)
    """
    if kind not in MODELS:
        raise InvalidInputError(f"no model of {kind!r}; there are {', '.join(MODELS)}")
    dtype = runs_as(device, dtype)
    element_bytes = DTYPE_BYTES[dtype] if element_bytes is None else element_bytes
    if not 1 <= element_bytes <= _MOST_BYTES:
        raise InvalidInputError(f"elements of {element_bytes} bytes; they have 1 to {_MOST_BYTES}")
    left_out = {without} if isinstance(without, str) else set(without)
    kind = _kind_of_units(kind, device, dtype, calibration, left_out)
    shapes, machine = _checked_shapes(kind, dims), Machine.of(device, dtype)
    like = calibration.like(kind, dtype, left_out if MODELS[kind].correction else ())
    used = calibration.fits.get((kind, device.name, like))
    if used is not None and device.name not in left_out:
        spread, basis = used.spread, "fitted" if like == dtype else "carried"
    else:
        used = carry_over(kind, calibration.donors(kind, like, {device.name, *left_out}), machine)
        names = (device.name, ANY_HOT if runs_hot(device) else ANY, ANY)
        spreads = [calibration.carried.get((kind, name, each)) for each in (dtype, like) for name in names]
        spread, basis = next((each for each in spreads if each is not None), UNKNOWN_SPREAD), "carried"
    # No prediction is below the bound of the data sheet.
    least, factor = least_seconds(kind, shapes, element_bytes, machine), float(np.exp(spread))
    seconds = np.maximum(used.seconds(kind, shapes, element_bytes, machine), least)
    start_s = used.values[0]  # the first parameter of every model
    return Predicted(seconds, np.maximum(seconds / factor, least), seconds * factor, basis, start_s)


def _kind_of_units(
    kind: str, device: Device, dtype: str, calibration: KernelCalibration, left_out: Collection[str]
) -> str:
    """Return the kind whose model times a product: that of matrix units for their types on NVIDIA's devices.

    A general fit to products of this type, of the device or another of its architecture, goes first. No device of AMD
    was measured.
    """
    general = calibration.donors(kind, dtype, left_out)
    own = any(find_device(name).architecture == device.architecture for name in general)
    if kind != "matmul" or own or dtype not in _UNIT_TYPES or device.vendor == "AMD" or device.architecture == "Pascal":
        return kind
    return _OF_UNITS if calibration.donors(_OF_UNITS, calibration.like(_OF_UNITS, dtype, left_out), left_out) else kind


#: Kind of products of matrix units, and their types.
_OF_UNITS, _UNIT_TYPES = "matrix_matmul", ("fp16", "bf16", "fp8", "int8", "int8_wo", "int4_wo", "nvfp4")


def _checked_shapes(kind: str, dims: npt.ArrayLike) -> Floats:
    names = MODELS[kind].dims
    try:
        shapes = np.asarray(dims, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"dims are no table of numbers ({error}); {kind} needs {', '.join(names)}") from error
    if shapes.ndim != 2 or shapes.shape[1] != len(names):
        raise InvalidInputError(f"dims have shape {shapes.shape}; {kind} needs (n, {len(names)}): {', '.join(names)}")
    bad = np.flatnonzero(~((shapes >= 1) & (shapes <= LARGEST)).all(axis=1))
    if len(bad):
        raise InvalidInputError(
            f"dims[{int(bad[0])}] are {shapes[bad[0]].tolist()}; each must be 1 or more, and at most {LARGEST:.0e}"
        )
    return shapes
