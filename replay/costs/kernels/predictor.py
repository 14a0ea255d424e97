"""Durations of operators on any device of the catalogue, with an interval, from fitted models.

`fit` fits the parameters of a model to measured durations of one device; priors hold the parameters that the data do
not determine. `carry_over` gives a device without measurements the mean parameters of other devices, its own family
first. `Calibration` holds all fits, and how far carried predictions were off. `predict` uses both.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
from profilers.trace.arrays import Floats
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.costs.kernels.measurements import LARGEST, MeasuredOperators
from replay.costs.kernels.models import MODELS, Machine, Model, Tile, least_seconds, runs_as
from replay.graph.operators import DTYPE_BYTES

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
        Rows and columns of a workgroup's tile; (0, 0) of a model without tiles.
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
        Bytes of an element.
    machine : Machine
        Rates of the device.

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

    found = scipy.optimize.least_squares(residuals, model.prior, loss="soft_l1", f_scale=_OUTLIER, diff_step=1e-2)
    return np.asarray(np.exp(found.x), dtype=np.float64)


#: Weight of a device of another family when parameters are carried over; of the same family it is 1. Of 0.003 to 0.1 it
#: makes little difference to most kinds, and 0.01 is the best for matrix products on the files that are fitted.
_OTHER_FAMILY = 0.01
#: Cards below this power limit run into it, and into heat, so that what they sustain says little of others.
_LEAST_WATT = 100.0
_HOT_CARD = 0.1
#: Of parameters that are carried over nothing is known yet.
_NO_SPREAD = 0.0


def runs_hot(device: Device) -> bool:
    """Return whether a card's power limit is so low that it runs into it."""
    return "power_w" in device.figures and device.value("power_w") < _LEAST_WATT


def carry_over(kind: str, donors: Mapping[str, Fit], machine: Machine) -> Fit:
    """Return parameters for a device without measurements: the mean of their logarithms over the others.

    A device of the same family counts a hundred times one of another; a card below 100 W a tenth of that, and of its
    efficiency nothing.

    Raises
    ------
    InvalidInputError
        There is no other device.
    """
    if not donors:
        raise InvalidInputError(f"no device has a fit of {kind}; run `seqpoint calibrate kernels`")
    devices = [find_device(name) for name in donors]
    family = np.array([1.0 if Machine.of(d).family == machine.family else _OTHER_FAMILY for d in devices])
    cool = np.array([not runs_hot(device) for device in devices])
    weights = np.where(cool, family, _HOT_CARD * family)
    each = np.repeat(weights[:, None], len(MODELS[kind].parameters), axis=1)
    if cool.any():
        efficiency = np.array([p.name == "efficiency" for p in MODELS[kind].parameters])
        each[np.outer(~cool, efficiency)] = 0.0
    logs = np.log([donor.theta for donor in donors.values()])
    theta = np.exp((each * logs).sum(axis=0) / each.sum(axis=0))
    votes: dict[tuple[int, int], float] = {}
    for donor, weight in zip(donors.values(), family.tolist(), strict=True):
        votes[donor.tile] = votes.get(donor.tile, 0.0) + weight
    tile = max(sorted(votes), key=lambda one: votes[one])
    return Fit(tuple(theta.tolist()), tile, 0, _NO_SPREAD)


#: Dimensions and seconds.
Rows = tuple[Floats, Floats]
#: Kind, catalogue's name of the device (or of the one that is left out), and data type.
Key = tuple[str, str, str]
#: Types that the same units compute in.
_NEAREST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bf16": ("fp16",), "fp16": ("bf16",), "tf32": ("fp16", "bf16"), "fp8": ("fp16", "bf16")}
)

#: In the place of a device that is left out: none is, and the device is a card that runs into its power limit, or not.
ANY, ANY_HOT = "", "(power limited)"
#: Error of the logarithm that is assumed where no other device could be compared: a factor of e.
UNKNOWN_SPREAD = 1.0
#: Factor by which a parameter of a calibration file may differ from its prior; characters of a text that errors show.
_FARTHEST, _SHOWN = 1e4, 40
#: Spread of the logarithm of a prediction, in a calibration file.
_Spread = Annotated[float, msgspec.Meta(ge=0, le=10)]


@dataclass(frozen=True)
class Calibration:
    """All fits, and how far predictions were off where they could be checked.

    Parameters
    ----------
    fits : mapping of (str, str, str) to Fit
        By kind, the catalogue's name of the device, and data type.
    carried : mapping of (str, str, str) to float
        By kind, the device whose figures are left out, and data type: mean over the other devices of the 90 % quantile
        of the absolute error of the logarithm when each is predicted from the rest. Cards that run into their power
        limit count only where such a card is left out. `ANY` and `ANY_HOT` stand for devices without measurements.
    digests : tuple of str
        SHA-256 of the files that were fitted.
    """

    fits: Mapping[Key, Fit]
    carried: Mapping[Key, float]
    digests: tuple[str, ...] = ()

    def __hash__(self) -> int:  # results are cached by calibration, and mappings have no hash
        return hash((len(self.fits), self.digests))

    def like(self, kind: str, dtype: str) -> str:
        """Return the data type whose fits stand in for `dtype`: its own, that of the same units, FP32, or any."""
        there = sorted({own for k, _, own in self.fits if k == kind})
        return next((one for one in (dtype, *_NEAREST.get(dtype, ()), "fp32", *there) if one in there), dtype)

    def knows(self, kind: str, dtype: str) -> bool:
        """Return whether any device has a fit that can stand in."""
        return any((k, d) == (kind, self.like(kind, dtype)) for k, _, d in self.fits)

    def donors(self, kind: str, dtype: str, without: Collection[str]) -> dict[str, Fit]:
        """Return the fits of all devices but those `without`, by device."""
        return {name: one for (k, name, d), one in self.fits.items() if (k, d) == (kind, dtype) and name not in without}


def calibrate(measured: Iterable[MeasuredOperators], base: Calibration | None = None) -> Calibration:
    """Fit every kind on every device, and measure how far predictions of a left-out device are off.

    Parameters
    ----------
    measured : iterable of MeasuredOperators
        Of a kind and device that occurs in several files, all rows are taken together.
    base : Calibration, optional
        Whose fits of other devices are kept.
    """
    pooled: dict[Key, list[MeasuredOperators]] = {}
    for one in measured:
        pooled.setdefault((one.kind, one.device.name, one.dtype), []).append(one)
    fits = dict(base.fits) if base else {}
    rows = {key: _rows(several) for key, several in pooled.items()}
    for (kind, name, dtype), several in pooled.items():
        dims, seconds = rows[kind, name, dtype]
        machine = Machine.of(several[0].device, dtype)
        try:
            fits[kind, name, dtype] = fit(kind, dims, seconds, several[0].element_bytes, machine)
        except InvalidInputError as error:
            raise InvalidInputError(f"{', '.join(sorted({one.source for one in several}))}: {error}") from error
    digests = {one.digest for several in pooled.values() for one in several} | set(base.digests if base else ())
    return Calibration(
        MappingProxyType(fits),
        MappingProxyType({**(base.carried if base else {}), **_carried(Calibration(fits, {}), rows)}),
        tuple(sorted(digests)),
    )


def _rows(several: Sequence[MeasuredOperators]) -> Rows:
    return np.concatenate([one.dims for one in several]), np.concatenate([one.seconds for one in several])


def _carried(known: Calibration, rows: Mapping[Key, Rows]) -> dict[Key, float]:
    """Return the spread of carried predictions, with each device left out in turn, and with none."""
    found = {}
    for kind, dtype in sorted({(kind, dtype) for kind, _, dtype in rows}):
        names = [name for k, name, d in rows if (k, d) == (kind, dtype)]
        hot = {name for name in names if runs_hot(find_device(name))}
        for left_out in (ANY, ANY_HOT, *names):
            judged = (
                names if left_out in (ANY_HOT, *hot) or len(hot) == len(names) else [n for n in names if n not in hot]
            )
            errors = [
                _log_errors((kind, name, dtype), donors, rows[kind, name, dtype])
                for name in judged
                if name != left_out and (donors := known.donors(kind, dtype, {name, left_out}))
            ]
            if errors:
                # Every device counts the same: quantiles of each, of which the mean is taken.
                found[kind, left_out, dtype] = float(np.mean([np.quantile(one, CONFIDENCE) for one in errors]))
    return found


def _log_errors(key: Key, donors: Mapping[str, Fit], rows: Rows) -> Floats:
    kind, name, dtype = key
    machine = Machine.of(find_device(name), dtype)
    mixed, (dims, seconds) = carry_over(kind, donors, machine), rows
    predicted = MODELS[kind].seconds(mixed.theta, mixed.tile, dims, DTYPE_BYTES[dtype], machine)
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


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration of kernels, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file to write or replace.
    calibration : Calibration
        Fits to write, with parameters of five digits.
    """
    fits = tuple(
        KernelFitRow(
            kind,
            device,
            dtype,
            fit.rows,
            round(fit.spread, 4),
            fit.tile,
            {
                parameter.name: float(f"{value:.5g}")
                for parameter, value in zip(MODELS[kind].parameters, fit.values, strict=True)
            },
        )
        for (kind, device, dtype), fit in sorted(calibration.fits.items())
    )
    carried = tuple(CarriedRow(*key, round(spread, 4)) for key, spread in sorted(calibration.carried.items()))
    devices = sorted({row.device for row in fits})
    source = f"{len(calibration.digests)} tables of measured operators"
    _LAYOUT.write(path, KernelFits(fits, carried, calibration.digests), devices=devices, source=source)


def read_calibration(path: str | Path) -> Calibration:
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


def _calibration_of(content: CalibrationFile[KernelFits]) -> Calibration:
    file = content.fit
    fits = {(row.kind, row.device, _checked_dtype(row.dtype)): _fit_of(row) for row in file.fits}
    carried = {(row.kind, row.without, _checked_dtype(row.dtype)): row.spread for row in file.carried}
    return Calibration(MappingProxyType(fits), MappingProxyType(carried), file.fitted_files_sha256)


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
    return Fit(values, row.tile, row.rows, row.spread)


_LAYOUT = CalibrationLayout("kernels", KernelFits, _calibration_of)


@cache
def load_calibration() -> Calibration:
    """Return the shipped calibration."""
    return read_calibration(dataset_path("fits/kernels.json"))


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
    calibration: Calibration,
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
        What the model's `dims` name, 1 or more each.
    device : Device
        Device that the operators run on.
    calibration : Calibration
        Fits to predict from.
    element_bytes : int, optional
        Bytes of an element; by default those of the data type.
    dtype : str
        What is computed in. Where no fit has this type, those of the type that comes nearest are used.
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
    known, dtype = calibration, runs_as(device, dtype)
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
