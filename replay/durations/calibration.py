"""`Calibration`: all fits, how far they carry, and the file they are kept in."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.atomic import write_text
from profilers.datasets import dataset_path
from profilers.devices import DTYPES, find_device
from profilers.errors import InvalidInputError
from replay.calibration_file import read_calibration_file
from replay.durations.carrying import carry_over, runs_hot
from replay.durations.fitting import CONFIDENCE, Fit, fit
from replay.durations.machine import Machine
from replay.durations.measurements import MeasuredOperators
from replay.durations.models import MODELS
from replay.operators import DTYPE_BYTES

__all__ = [
    "ANY",
    "ANY_HOT",
    "UNKNOWN_SPREAD",
    "Calibration",
    "calibrate",
    "load_calibration",
    "read_calibration",
    "write_calibration",
]

Floats = npt.NDArray[np.float64]
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
#: What a calibration file may hold: spreads, and how far a parameter lies from where all start.
_WIDEST, _FARTHEST = 10.0, 1e4


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


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration as JSON, whole or not at all."""
    content = {
        "fits": [
            {
                "kind": kind, "device": name, "dtype": dtype, "rows": one.rows,
                "spread": round(one.spread, 4), "tile": list(one.tile),
                "parameters": {
                    p.name: float(f"{value:.5g}") for p, value in zip(MODELS[kind].parameters, one.values, strict=True)
                },
            }
            for (kind, name, dtype), one in sorted(calibration.fits.items())
        ],
        "carried": [
            {"kind": kind, "without": name, "dtype": dtype, "spread": round(spread, 4)}
            for (kind, name, dtype), spread in sorted(calibration.carried.items())
        ],
        "fitted_files_sha256": list(calibration.digests),
    }  # fmt: skip
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_calibration(path: str | Path) -> Calibration:
    """Read what `write_calibration` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration; the place is named.
    """
    absent = "no such calibration; `seqpoint calibrate kernels` writes one"
    return read_calibration_file(path, absent, "not what `seqpoint calibrate kernels` writes", _calibration_of)


def _calibration_of(content: Mapping[str, Any]) -> Calibration:
    fits = {(str(row["kind"]), str(row["device"]), _dtype_of(row)): _fit_of(row) for row in content["fits"]}
    carried = {(str(r["kind"]), str(r["without"]), _dtype_of(r)): _spread_of(r) for r in content["carried"]}
    digests = tuple(str(one) for one in content["fitted_files_sha256"])
    return Calibration(MappingProxyType(fits), MappingProxyType(carried), digests)


def _dtype_of(row: Mapping[str, Any]) -> str:
    if row["dtype"] not in DTYPES:
        raise ValueError(f"data type {row['dtype']!r} is none of {', '.join(DTYPES)}")
    return str(row["dtype"])


def _spread_of(row: Mapping[str, Any]) -> float:
    spread = float(row["spread"])
    if not 0 <= spread <= _WIDEST:
        raise ValueError(f"the spread of {row['kind']} is {spread}; it is 0 to {_WIDEST:g}")
    return spread


def _fit_of(row: Mapping[str, Any]) -> Fit:
    model, place = MODELS[row["kind"]], f"{row['kind']} on {find_device(str(row['device'])).name}"
    values = tuple(float(row["parameters"][p.name]) for p in model.parameters)
    for parameter, value in zip(model.parameters, values, strict=True):
        if not parameter.prior / _FARTHEST <= value <= parameter.prior * _FARTHEST:
            raise ValueError(
                f"{parameter.name} of {place} is {value:g}; it lies within {_FARTHEST:g} times {parameter.prior:g}"
            )
    tile = (int(row["tile"][0]), int(row["tile"][1]))
    if tile not in model.tiles:
        raise ValueError(f"the tile of {place} is {tile}; there are {', '.join(map(str, model.tiles))}")
    return Fit(values, tile, int(row["rows"]), _spread_of(row))


@cache
def load_calibration() -> Calibration:
    """Return the shipped calibration."""
    return read_calibration(dataset_path("fits/kernels.json"))
