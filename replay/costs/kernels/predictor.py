"""Durations of operators on any device of the catalogue, with an interval, from fitted models.

`KernelCalibration` holds all fits, and how far carried predictions were off. `calibrate` makes it from measurements,
and `predict` uses it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.costs.architectures import architecture_of
from replay.costs.kernels import convolutions
from replay.costs.kernels.fits import CONFIDENCE, MOST_CORRECTED, Fit, Rows, carry_over, fit, runs_hot
from replay.costs.kernels.machine import Machine, runs_as
from replay.costs.kernels.measurements import MeasuredOperators
from replay.costs.kernels.models import (
    CORRECTION_SIZES,
    MODELS,
    KernelModel,
    Tile,
    checked_shapes,
    least_seconds,
    table_size,
)
from replay.costs.kernels.quantization import was_measured
from replay.graph.operators import DTYPE_BYTES

#: Kind, catalogue's name of the device (or of the device that is left out), data type, and library whose kernels were
#: measured; empty if the tables name none.
Key = tuple[str, str, str, str]
#: Data types that the same units compute.
_NEAREST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bf16": ("fp16",),
        "fp16": ("bf16",),
        "tf32": ("fp16", "bf16"),
        "fp8": ("int8", "bf16_kv_fp8", "fp16", "bf16"),
        "int8": ("fp8", "bf16"),
        "nvfp4": ("fp8", "bf16"),
        "int8_wo": ("int4_wo", "bf16"),
        "int4_wo": ("int8_wo", "bf16"),
        "fp8_block": ("fp8", "fp16", "bf16"),
        "w4a16_mxfp4": ("int4_wo", "bf16"),
        "w4a8_mxfp4_mxfp8": ("fp8", "bf16"),
        "bf16_kv_fp8": ("fp8", "bf16"),
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
    fits : mapping of (str, str, str, str) to Fit
        By kind, the catalogue's name of the device, data type and library.
    carried : mapping of (str, str, str, str) to float
        By kind, left-out device, data type and library. The spread is the mean over the other devices of the 90 %
        quantile of the absolute error of the logarithm, when each is predicted from the rest. Cards that run into their
        power limit count only if such a card is left out. `ANY` and `ANY_HOT` stand for devices without measurements.
    digests : tuple of str
        SHA-256 of the files that were fitted.
    """

    fits: Mapping[Key, Fit]
    carried: Mapping[Key, float]
    digests: tuple[str, ...] = ()

    def __hash__(self) -> int:  # results are cached by calibration, and mappings have no hash
        return hash((len(self.fits), self.digests))

    @cached_property
    def _by_kind(self) -> Mapping[str, Mapping[Key, Fit]]:
        """The fits of each kind."""
        kinds: dict[str, dict[Key, Fit]] = {}
        for key, of_key in self.fits.items():
            kinds.setdefault(key[0], {})[key] = of_key
        return kinds

    def library(self, kind: str, library: str | None = None, vendor: str = "") -> str:
        """Return the library whose fits are used: the one that is named, or the default of the kind and vendor.

        A kind whose default library has no fit takes the first that has.

        Raises
        ------
        InvalidInputError
            The library has no fit of this kind.
        """
        known = sorted({each for *_, each in self._by_kind.get(kind, ())})
        if library is None:
            default = MODELS[kind].vendor_libraries.get(vendor, MODELS[kind].library)
            return known[0] if known and default not in known else default
        if known and library not in known:
            there_are = ", ".join(filter(None, known)) or "none; leave the library out"
            raise InvalidInputError(f"nobody measured {kind} of library {library[:_SHOWN]!r}; there are {there_are}")
        return library

    def like(self, kind: str, dtype: str, without: Collection[str] = (), *, library: str | None = None) -> str:
        """Return the data type whose fits stand in for `dtype`: its own, that of the same units, FP32, or any."""
        library = self.library(kind, library)
        keys = self._by_kind.get(kind, ())
        fitted = sorted({each for _, name, each, of in keys if of == library and name not in without})
        nearest = (dtype, *_NEAREST.get(dtype, ()), "fp32", *fitted)
        return next((each for each in nearest if each in fitted), dtype)

    def knows(self, kind: str, dtype: str) -> bool:
        """Return whether any device has a fit that can stand in."""
        return bool(self.donors(kind, self.like(kind, dtype), ()))

    def stand_ins(
        self, kind: str, dtype: str, without: Collection[str], *, library: str | None = None
    ) -> dict[str, Fit]:
        """Return the fits that stand in on devices other than `without`.

        Products of matrix units have types that one device alone was measured in. Fits of the nearest type stand in.
        """
        alone = MODELS[kind].correction and len(self.donors(kind, dtype, (), library=library)) == 1
        like = self.like(kind, dtype, without, library=library) if alone else dtype
        return self.donors(kind, like, without, library=library)

    def donors(self, kind: str, dtype: str, without: Collection[str], *, library: str | None = None) -> dict[str, Fit]:
        """Return the fits of all devices but those `without`, by device."""
        wanted, fits = (dtype, self.library(kind, library)), self._by_kind.get(kind, {})
        return {name: fit for (_, name, d, of), fit in fits.items() if (d, of) == wanted and name not in without}


def calibrate(measured: Iterable[MeasuredOperators], base: KernelCalibration | None = None) -> KernelCalibration:
    """Fit every kind on every device, and measure how far predictions of a left-out device are off.

    Parameters
    ----------
    measured : iterable of MeasuredOperators
        Measurements; those of one kind, device, data type and library are fitted together.
    base : Calibration, optional
        Calibration whose fits of other devices are kept.
    """
    base = base or KernelCalibration({}, {})
    pooled: dict[Key, list[MeasuredOperators]] = {}
    for operators in measured:
        key = operators.kind, operators.device.name, operators.dtype, operators.library
        pooled.setdefault(key, []).append(operators)
    fits, rows, digests = dict(base.fits), dict[Key, Rows](), set(base.digests)
    for key, several in pooled.items():
        dims, seconds = rows[key] = (
            np.concatenate([operators.dims for operators in several]),
            np.concatenate([operators.seconds for operators in several]),
        )
        digests |= {operators.digest for operators in several}
        machine = Machine.of(several[0].device, several[0].dtype)
        try:
            fits[key] = fit(key[0], dims, seconds, several[0].element_bytes, machine)
        except InvalidInputError as error:
            sources = ", ".join(sorted({operators.source for operators in several}))
            raise InvalidInputError(f"{sources}: {error}") from error
    carried = {**base.carried, **_carried(KernelCalibration(fits, {}), rows)}
    return KernelCalibration(MappingProxyType(fits), MappingProxyType(carried), tuple(sorted(digests)))


def _carried(calibration: KernelCalibration, rows: Mapping[Key, Rows]) -> dict[Key, float]:
    """Return the spread of carried predictions, with each device left out in turn, and with none."""
    carried: dict[Key, float] = {}
    for kind, dtype, library in sorted({(kind, dtype, library) for kind, _, dtype, library in rows}):
        keys = {key[1]: key for key in rows if (key[0], *key[2:]) == (kind, dtype, library)}
        cool = [name for name in keys if not runs_hot(find_device(name))]
        for left_out in (ANY, ANY_HOT, *keys):
            # Every device counts the same: the mean is over quantiles of each.
            quantiles = [
                np.quantile(_log_errors(keys[name], donors, rows[keys[name]]), CONFIDENCE)
                for name in (cool if cool and left_out in (ANY, *cool) else keys)
                if name != left_out
                and (donors := calibration.stand_ins(kind, dtype, {name, left_out}, library=library))
            ]
            if quantiles:
                carried[kind, left_out, dtype, library] = float(np.mean(quantiles))
    return carried


def _log_errors(key: Key, donors: Mapping[str, Fit], rows: Rows) -> Floats:
    """Return the absolute errors of the logarithm of predictions for a device that are carried over from others."""
    (kind, name, dtype, _), (dims, seconds) = key, rows
    if MODELS[kind].trees:
        dims, seconds = dims[convolutions.scored(dims)], seconds[convolutions.scored(dims)]
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
    library: str = ""


class CarriedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `Calibration.carried`, as a calibration file holds it."""

    kind: str
    without: str
    dtype: str
    spread: _Spread
    library: str = ""


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
    for key, one in sorted(calibration.fits.items()):
        named = zip(MODELS[key[0]].parameters, one.values, strict=True)
        values = {parameter.name: float(f"{value:.5g}") for parameter, value in named}
        trees = MODELS[key[0]].trees
        table = np.round((1 if trees else 1e3) * np.array(one.correction)).astype(int)
        table = table.reshape(-1, convolutions.TREE_NUMBERS if trees else len(CORRECTION_SIZES))
        correction = tuple(" ".join(map(str, line)) for line in table.tolist())
        fits.append(KernelFitRow(*key[:3], one.rows, round(one.spread, 4), one.tile, values, correction, key[3]))
    carried = tuple(
        CarriedRow(*key[:3], round(spread, 4), key[3]) for key, spread in sorted(calibration.carried.items())
    )
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
    fits = {(row.kind, row.device, _checked_dtype(row.dtype), row.library): _fit_of(row) for row in file.fits}
    carried = {(row.kind, row.without, _checked_dtype(row.dtype), row.library): row.spread for row in file.carried}
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


def _correction_of(row: KernelFitRow, model: KernelModel, subject: str) -> tuple[float, ...]:
    """Return the correction of a calibration file, which has it in thousandths."""
    numbers = np.array(" ".join(row.correction).split(), dtype=np.int64).astype(np.float64)
    if model.trees:
        convolutions.check_trees(numbers, subject)
        return tuple(numbers.tolist())
    values = numbers / 1e3
    expected = sum(map(table_size, model.correction))
    if len(values) not in (0, expected) or (np.abs(values) > MOST_CORRECTED + 1e-9).any():
        raise ValueError(f"the correction of {subject} needs {expected} values of at most {MOST_CORRECTED * 1e3:g}")
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
    library: str | None = None,
    without: Sequence[str] = (),
) -> Predicted:
    """Predict how long operators take.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    dims : array-like, shape (n, n_dims)
        Shapes, in the columns that the model's `dims` name; 1 or more each, or 0 where the model allows it.
    device : Device
        Device that the operators run on.
    calibration : Calibration
        Fits to predict from.
    element_bytes : int, optional
        Bytes of an element; by default those of the data type.
    dtype : str
        Data type of the arithmetic. If no fit has this type, fits of the nearest type are used.
    library : str, optional
        Library whose kernels run, of kinds that were measured in several; by default that of the kind's model.
    without : sequence of str
        Devices whose fits are not used.

    Raises
    ------
    InvalidInputError
        There is no such kind, nobody measured the library, a dimension is below its least, the device lacks the type
        of an attention or of experts, or the catalogue lacks a figure of the device.

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
    _check_type(kind, device, dtype)
    dtype = runs_as(device, dtype)
    element_bytes = DTYPE_BYTES[dtype] if element_bytes is None else element_bytes
    if not 1 <= element_bytes <= _MOST_BYTES:
        raise InvalidInputError(f"elements of {element_bytes} bytes; they have 1 to {_MOST_BYTES}")
    left_out = {without} if isinstance(without, str) else set(without)
    library = library or None  # tables that name none
    kind = _kind_of_units(kind, device, dtype, calibration, left_out, library)
    library = calibration.library(kind, library, device.vendor)
    shapes, machine = checked_shapes(kind, dims), Machine.of(device, dtype)
    like = calibration.like(kind, dtype, left_out if MODELS[kind].correction else (), library=library)
    used = calibration.fits.get((kind, device.name, like, library))
    names = (device.name, ANY_HOT if runs_hot(device) else ANY, ANY)
    spreads = [calibration.carried.get((kind, name, each, library)) for each in (dtype, like) for name in names]
    spread, basis = next((each for each in spreads if each is not None), UNKNOWN_SPREAD), "carried"
    if used is None or device.name in left_out:
        donors: Mapping[str, Fit] = calibration.donors(kind, like, {device.name, *left_out}, library=library)
        if kind in _QUANTIZATIONS:
            donors = _with_starts_of_products(donors, calibration, device.name, library, left_out)
        used = carry_over(kind, donors, machine)
    elif kind in _QUANTIZATIONS and not was_measured(shapes):
        spread = max(spread, used.spread)
    else:
        spread, basis = used.spread, "fitted" if like == dtype else "carried"
    # No prediction is below the bound of the data sheet.
    least, factor = least_seconds(kind, shapes, element_bytes, machine), float(np.exp(spread))
    seconds = np.maximum(used.seconds(kind, shapes, element_bytes, machine), least)
    start_s = used.values[0]  # the first parameter of every model
    return Predicted(seconds, np.maximum(seconds / factor, least), seconds * factor, basis, start_s)


def _check_type(kind: str, device: Device, dtype: str) -> None:
    """Refuse a data type that the kind does not have, or that the device does not compute in."""
    types = MODELS[kind].types
    if not types:
        return
    if dtype not in types:
        raise InvalidInputError(f"no model of {kind} in {dtype}; there are {', '.join(types)}")
    needed = "fp8_tflops" if "fp8" in dtype else DTYPES[dtype][0]
    if needed not in device.figures:
        raise InvalidInputError(
            f"{device.name} does not compute in {needed.removesuffix('_tflops')}: the catalogue has no {needed}"
        )


def _with_starts_of_products(
    donors: Mapping[str, Fit], calibration: KernelCalibration, device: str, library: str, left_out: Collection[str]
) -> Mapping[str, Fit]:
    """Return fits of quantization whose starts are scaled to a device by its products in FP8.

    A product of TensorRT-LLM in FP8 quantizes its activations first. Its start exceeds that of a product in BF16 by the
    start of the quantization. Fits stay as they are where the library's products were not measured in both types.
    """
    starts = {
        name: eight.values[0] - products[name].values[0]
        for products in (calibration.donors(_OF_UNITS, "bf16", left_out),)
        for name, eight in calibration.donors(_OF_UNITS, "fp8", left_out).items()
        if library == calibration.library(_OF_UNITS) and name in products
    }
    if starts.get(device, 0.0) <= 0 or not all(starts.get(name, 0.0) > 0 for name in donors):
        return donors
    return {
        name: replace(fit, values=(fit.values[0] * starts[device] / starts[name], *fit.values[1:]))
        for name, fit in donors.items()
    }


def _kind_of_units(
    kind: str,
    device: Device,
    dtype: str,
    calibration: KernelCalibration,
    left_out: Collection[str],
    library: str | None,
) -> str:
    """Return the kind whose model times a product: that of matrix units for their types on NVIDIA's devices.

    A general fit to products of this type, of the device or another of its architecture, goes first, unless a library
    is named. No device of AMD was measured.
    """
    if kind != "matmul":
        return kind
    if library is not None:
        return _OF_UNITS if dtype in _UNIT_TYPES else kind
    general = calibration.donors(kind, dtype, left_out)
    own = any(find_device(name).architecture == device.architecture for name in general)
    if own or dtype not in _UNIT_TYPES or device.vendor == "AMD" or not architecture_of(device.architecture).matrix:
        return kind
    return _OF_UNITS if calibration.donors(_OF_UNITS, calibration.like(_OF_UNITS, dtype, left_out), left_out) else kind


#: Kinds whose format is in their dimensions.
_QUANTIZATIONS = ("quantization", "quantization_scale")
#: Kind of products of matrix units, and their types.
_OF_UNITS = "matrix_matmul"
_UNIT_TYPES = (
    "fp16", "bf16", "fp8", "int8", "int8_wo", "int4_wo", "nvfp4", "fp8_block", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8",
)  # fmt: skip
