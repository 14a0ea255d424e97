"""Durations of operators on any device of the catalogue, with an interval, from fitted models.

`KernelCalibration` holds all fits, and how far carried predictions were off. `calibrate` makes it from measurements,
and `predict` uses it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
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
from replay.costs.kernels.corrections import DECIMALS, MOST_POINTS
from replay.costs.kernels.fits import CONFIDENCE, Fit, Rows, carry_over, fit, holds_launch, nearest, relation, runs_hot
from replay.costs.kernels.machine import Machine, runs_as
from replay.costs.kernels.measurements import MeasuredOperators
from replay.costs.kernels.models import (
    ALIGNED,
    MODELS,
    KernelModel,
    Tile,
    aligned_elements,
    checked_shapes,
    least_seconds,
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
_RELATIONS = ("family", "other")
#: Ends a name where no relative was measured.
OTHER = "(others)"
#: What a sibling adds to the spread of the fits that it takes: of the recordings of an H100 and an H200, each predicted
#: from the other. Factor on the spread of relatives for a device without any, of kinds where that was not seen.
_OF_SIBLINGS, _OF_OTHERS = 0.05, 2.0
#: What is added to a spread for operators of which no measurement tells the kernels: short ones, where all times hold
#: the launch by the host, and products whose rows are not aligned. Chosen in view of the recordings of two devices.
_OF_UNSEEN = 0.35
#: The same where no library is named, of kinds that were measured in several.
_OF_LIBRARIES = 0.15
#: Least spread of what is carried over: as the least of fits, for another card of the kind.
_LEAST_CARRIED = 0.1
#: Error of the logarithm that is assumed if no other device could be compared: a factor of e.
UNKNOWN_SPREAD = 1.0
#: Largest number of a correction in a calibration file, and factor by which a parameter of it may differ from its
#: prior; characters of a text that errors show.
_MOST_NUMBER, _FARTHEST, _SHOWN = 1e3, 1e4, 40
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
            raise InvalidInputError(
                f"nobody measured {kind.removeprefix('matrix_')} of library {library[:_SHOWN]!r}; there are {there_are}"
            )
        return library

    def like(self, kind: str, dtype: str, without: Collection[str] = (), *, library: str | None = None) -> str:
        """Return the data type whose fits stand in for `dtype`: its own, that of the same units, FP32, or any."""
        library = self.library(kind, library)
        keys = self._by_kind.get(kind, ())
        fitted = sorted({each for _, name, each, of in keys if of == library and name not in without})
        nearest = (dtype, *_NEAREST.get(dtype, ()), "fp32", *fitted)
        return next((each for each in nearest if each in fitted), dtype)

    def without(self, *devices: str) -> "KernelCalibration":
        """Return the calibration without the fits of some devices, as if nobody had measured them."""
        return replace(self, fits={key: fit for key, fit in self.fits.items() if key[1] not in devices})

    def related(self, kind: str, donors: Iterable[str], device: Device) -> str:
        """Return what the nearest of measured devices is to a device (`replay.costs.kernels.fits.relation`)."""
        return relation(donors, device, trees=MODELS[kind].trees)

    def takes_general(self, kind: str, device: Device | Machine, dtype: str) -> bool:
        """Return whether a table that names no library goes first: of the device or of a sibling.

        Fits of the default library go before it if they have the type of the device, and it has the nearest one only.
        """
        keys = self._by_kind.get(kind, {})
        for each in (dtype, *_NEAREST.get(dtype, ())[:1]):
            if any(find_device(name).design == device.design for _, name, of, by in keys if (of, by) == (each, "")):
                return True
            if (kind, device.name, each, self.library(kind)) in keys:
                return False
        return False

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

    def spread(self, key: Key, like: str, related: str) -> float:
        """Return the spread of a prediction from relatives of a device, or from others.

        Parameters
        ----------
        key : (str, str, str, str)
            Kind, device, data type and library that are predicted.
        like : str
            Data type whose fits stand in.
        related : str
            ``"family"`` or ``"other"``; siblings of a device that was not measured count as family.
        """
        kind, device, dtype, library = key
        # What a measured device itself was off by says nothing of a prediction that leaves it out.
        is_measured = any((kind, _without(device, each), dtype, library) in self.carried for each in _RELATIONS)
        names = (device,) if is_measured else (ANY_HOT if runs_hot(find_device(device)) else ANY, ANY)
        factors = {"family": {"family": 1.0, "other": 1.0}, "other": {"other": 1.0, "family": _OF_OTHERS}}
        for instead, factor in factors.get(related, factors["family"]).items():
            for each, name in product((dtype, like), names):
                if (spread := self.carried.get((kind, _without(name, instead), each, library))) is not None:
                    return max(spread * factor, _LEAST_CARRIED)
        return UNKNOWN_SPREAD

    def relatives(self, device: Device) -> tuple[str, tuple[str, ...]]:
        """Return what the nearest measured devices are to a device (`Predicted.relation`), and these devices."""
        measured = {key[1]: find_device(key[1]) for key in self.fits}
        if device.name in measured:
            return "fitted", (device.name,)
        related = relation(measured, device)
        return related, tuple(sorted(name for name in measured if relation([name], device) == related))

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
        # Products in types of matrix units also stand in on devices whose matrix units nobody measured.
        for kind in dict.fromkeys((operators.kind, fitted_kind(operators.kind, operators.device, operators.dtype))):
            key = kind, operators.device.name, operators.dtype, operators.library
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
            fits[key] = fit(key[0], dims, seconds, several[0].element_bytes, machine, launched=several[0].launched)
        except InvalidInputError as error:
            sources = ", ".join(sorted({operators.source for operators in several}))
            raise InvalidInputError(f"{sources}: {error}") from error
    carried = {**base.carried, **_carried(KernelCalibration(fits, {}), rows)}
    return KernelCalibration(MappingProxyType(fits), MappingProxyType(carried), tuple(sorted(digests)))


def _carried(calibration: KernelCalibration, rows: Mapping[Key, Rows]) -> dict[Key, float]:
    """Return the spread of predictions from family and from others, with each device left out in turn, and with none.

    A device is predicted without its siblings, from which nothing is learned of other devices.
    """
    carried: dict[Key, float] = {}
    for kind, dtype, library in sorted({(kind, dtype, library) for kind, _, dtype, library in rows}):
        keys = {key[1]: key for key in rows if (key[0], *key[2:]) == (kind, dtype, library)}
        cool = [name for name in keys if not runs_hot(find_device(name))]
        for left_out in (ANY, ANY_HOT, *keys):
            quantiles: dict[str, list[float]] = {each: [] for each in _RELATIONS}
            # Every device counts the same: the mean is over quantiles of each.
            for name in cool if cool and left_out in (ANY, *cool) else keys:
                without = {left_out, *(each for each in keys if find_device(each).design == find_device(name).design)}
                donors = calibration.stand_ins(kind, dtype, without, library=library)
                if name != left_out and donors:
                    errors = _log_errors(calibration.fits[keys[name]], keys[name], donors, rows[keys[name]])
                    related = calibration.related(kind, donors, find_device(name))
                    quantiles[related].append(float(np.quantile(errors, CONFIDENCE)))
            for related in (each for each in _RELATIONS if quantiles[each]):
                carried[kind, _without(left_out, related), dtype, library] = float(np.mean(quantiles[related]))
    return carried


def _without(left_out: str, related: str) -> str:
    """Return the name of an entry of `KernelCalibration.carried`."""
    return left_out if related == "family" else f"{left_out} {OTHER}".strip()


def _log_errors(own: Fit, key: Key, donors: Mapping[str, Fit], rows: Rows) -> Floats:
    """Return the absolute errors of the logarithm of predictions for a device that are carried over from others."""
    (kind, name, dtype, _), (dims, seconds) = key, rows
    if MODELS[kind].trees:
        dims, seconds = dims[convolutions.scored(dims)], seconds[convolutions.scored(dims)]
    machine = Machine.of(find_device(name), dtype)
    launched = holds_launch(kind, own.values[0])
    predicted = carry_over(kind, donors, machine, launched=launched).seconds(kind, dims, DTYPE_BYTES[dtype], machine)
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
        model = MODELS[key[0]]
        table = np.round((1 if model.trees else 10**DECIMALS) * np.array(one.correction)).astype(int)
        table = table.reshape(-1, convolutions.TREE_NUMBERS if model.trees else len(model.correction) + 1)
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
    """Return the correction of a calibration file, which has its points in thousandths."""
    numbers = np.array(" ".join(row.correction).split(), dtype=np.int64).astype(np.float64)
    if model.trees:
        convolutions.check_trees(numbers, subject)
        return tuple(numbers.tolist())
    values, columns = numbers / 10**DECIMALS, len(model.correction) + 1
    if len(values) % columns or len(values) > MOST_POINTS * columns or (np.abs(values) > _MOST_NUMBER).any():
        raise ValueError(
            f"the correction of {subject} has {len(values)} numbers; it has {columns} for each of at most "
            f"{MOST_POINTS} points, none above {_MOST_NUMBER:g}"
        )
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
        Fixed time of a kernel, or of a launch that is waited for, in each duration of an operator.
    devices : tuple of str
        Measured devices behind the numbers.
    relation : str
        What they are to the device: ``"fitted"`` is itself, ``"sibling"`` has the same compute units, ``"family"`` is
        of the same maker and kind, ``"other"`` is not. Empty for collectives without a measured group, and their
        siblings have the same links.
    """

    seconds: Floats
    low: Floats
    high: Floats
    basis: str
    start_s: float = 0.0
    devices: tuple[str, ...] = ()
    relation: str = ""


def predict(
    kind: str,
    dims: npt.ArrayLike,
    device: Device,
    *,
    calibration: KernelCalibration,
    element_bytes: int | None = None,
    dtype: str = "fp32",
    library: str | None = None,
    launched: bool = False,
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
    launched : bool
        Whether times hold the launch by the host, as those of single operators that are waited for do.

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
    library, is_named = library or None, bool(library)  # tables that name none
    kind = fitted_kind(kind, device, dtype) if calibration.knows(OF_UNITS, dtype) else kind
    if library is None and calibration.takes_general(kind, device, dtype):
        library = ""
    library = calibration.library(kind, library, device.vendor)
    shapes, machine = checked_shapes(kind, dims), Machine.of(device, dtype)
    source = _source_of((kind, device.name, dtype, library), device, machine, calibration, launched=launched)
    spread, unseen, basis = source.spread, np.full(len(shapes), source.hides_kernels and not launched), source.basis
    if kind in _QUANTIZATIONS and not was_measured(shapes):
        basis, spread = "carried", max(spread, calibration.spread((kind, device.name, dtype, library), dtype, "family"))
    if library and kind == OF_UNITS:
        unseen |= aligned_elements(shapes) < ALIGNED
    # No prediction is below the bound of the data sheet.
    least, any_library = least_seconds(kind, shapes, element_bytes, machine), bool(library) and not is_named
    factor = np.exp(np.sqrt(spread**2 + (_OF_UNSEEN * unseen) ** 2 + (_OF_LIBRARIES * any_library) ** 2))
    seconds = np.maximum(source.fit.seconds(kind, shapes, element_bytes, machine), least)
    low, high, start_s = np.maximum(seconds / factor, least), seconds * factor, source.fit.values[0]
    return Predicted(seconds, low, high, basis, start_s, source.devices, source.relation)


@dataclass(frozen=True)
class _Source:
    """The fit that predicts operators, and where it is from; `hides_kernels` if all its times hold launches."""

    fit: Fit
    spread: float
    basis: str
    devices: tuple[str, ...]
    relation: str
    hides_kernels: bool


def _source_of(
    key: Key, device: Device, machine: Machine, calibration: KernelCalibration, *, launched: bool
) -> _Source:
    """Return the fit of a kind on a device: its own, or one that is carried over from its nearest relatives."""
    kind, _, dtype, library = key
    like = calibration.like(kind, dtype, library=library)
    own = calibration.fits.get((kind, device.name, like, library))
    if own is not None:
        hides, fit = holds_launch(kind, own.values[0]), own if launched else own.without_launch(kind)
        if like == dtype:
            return _Source(fit, own.spread, "fitted", (device.name,), "fitted", hides)
        spread = max(own.spread, calibration.spread(key, like, "family"))
        return _Source(fit, spread, "carried", (device.name,), "fitted", hides)
    donors: Mapping[str, Fit] = calibration.donors(kind, like, (), library=library)
    fit, related = carry_over(kind, donors, machine, launched=launched), calibration.related(kind, donors, device)
    names = tuple(sorted(nearest(kind, donors, machine)))
    spread = calibration.spread(key, like, related)
    if related == "sibling":
        spread = float(np.hypot(np.mean([donors[name].spread for name in names]), _OF_SIBLINGS))
        spread = max(spread, calibration.spread(key, like, "family")) if like != dtype else spread
    hides = all(holds_launch(kind, donors[name].values[0]) for name in names)
    return _Source(fit, spread, "carried", names, related, hides)


def _check_type(kind: str, device: Device, dtype: str) -> None:
    """Refuse a data type that the kind does not have, or that the device does not compute in."""
    types = _PRODUCT_TYPES if kind in (*_PRODUCTS, OF_UNITS) else MODELS[kind].types
    if not types:
        return
    if dtype not in types and dtype in DTYPES:
        raise InvalidInputError(f"no model of {kind} in {dtype}; there are {', '.join(types)}")
    needed = "fp8_tflops" if "fp8" in dtype else DTYPES.get(dtype, ("",))[0]
    if needed not in device.figures and (MODELS[kind].types or dtype in _NARROW):
        has = ", ".join(each for each in types if DTYPES[each][0] in device.figures)
        asked = needed.removesuffix("_tflops")
        raise InvalidInputError(
            f"{device.name} does not compute in {asked}: the catalogue has no {needed}. It has {has}"
        )


def fitted_kind(kind: str, device: Device | Machine, dtype: str) -> str:
    """Return the kind whose model times an operator: that of matrix units for products of their types.

    These are on NVIDIA's devices: no device of AMD was measured in them.

    Parameters
    ----------
    kind : str
        Kind of operator.
    device : Device or Machine
        Device that it runs on.
    dtype : str
        Data type of the arithmetic.
    """
    has_units = device.vendor != "AMD" and architecture_of(device.architecture).matrix
    return OF_UNITS if kind in _PRODUCTS and dtype in _UNIT_TYPES and has_units else kind


#: Kinds whose format is in their dimensions.
_QUANTIZATIONS = ("quantization", "quantization_scale")
#: Products; the kind of those of matrix units, and their types.
_PRODUCTS = ("matmul", "batched_matmul")
OF_UNITS = "matrix_matmul"
#: Types that nothing stands in for; types of products. Products with a scale for each block were measured with a host.
_NARROW = ("fp8", "int8", "nvfp4")
_PRODUCT_TYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8_wo", "int4_wo", *_NARROW)
_UNIT_TYPES = (
    "fp16", "bf16", "fp8", "int8", "int8_wo", "int4_wo", "nvfp4", "fp8_block", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8",
)  # fmt: skip
