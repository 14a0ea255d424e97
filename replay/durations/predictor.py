"""Predict durations on any device of the catalogue: from its own fit, or carried over from devices like it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.atomic import write_text
from profilers.datasets import dataset_path
from profilers.devices import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.durations.fitting import CONFIDENCE, Fit, fit
from replay.durations.machine import Machine
from replay.durations.measurements import MeasuredOperators
from replay.durations.models import MODELS

__all__ = [
    "Calibration",
    "Predicted",
    "calibrate",
    "carry_over",
    "load_calibration",
    "predict",
    "read_calibration",
    "write_calibration",
]

Floats = npt.NDArray[np.float64]

#: Weight of a device of another family when parameters are carried over; of the same family it is 1. Of 0.003 to 0.1 it
#: makes little difference to most kinds, and 0.01 is the best for matrix products on the files that are fitted.
_OTHER_FAMILY = 0.01
#: Cards below this power limit run into it, and into heat, so that what they sustain says little of others.
_LEAST_WATT = 100.0
_HOT_CARD = 0.1
#: Error of the logarithm that is assumed where no other device could be compared: a factor of e.
_UNKNOWN = 1.0


@dataclass(frozen=True)
class Calibration:
    """All fits, and how far predictions were off where they could be checked.

    Parameters
    ----------
    fits : mapping of (str, str) to Fit
        By kind and the catalogue's name of the device.
    carried : mapping of (str, str) to float
        By kind and the device whose figures are left out (empty: none): 90 % quantile of the absolute error of the
        logarithm when each of the other devices is predicted from the rest.
    digests : tuple of str
        SHA-256 of the files that were fitted.
    """

    fits: Mapping[tuple[str, str], Fit]
    carried: Mapping[tuple[str, str], float]
    digests: tuple[str, ...] = ()


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
    element_bytes: int = 4,
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
    element_bytes : int
    dtype : str
        What is computed in.
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
    known = calibration or load_calibration()
    shapes, machine = _checked(kind, dims), Machine.of(device, dtype)
    own = known.fits.get((kind, device.name))
    if own is not None and device.name not in without:
        seconds = MODELS[kind].seconds(own.theta, own.tile, shapes, element_bytes, machine)
        return _interval(seconds, own, own.spread, "fitted")
    donors = {n: f for (k, n), f in known.fits.items() if k == kind and n != device.name and n not in without}
    mixed = carry_over(kind, donors, machine)
    left_out = device.name if (kind, device.name) in known.carried else ""
    seconds = MODELS[kind].seconds(mixed.theta, mixed.tile, shapes, element_bytes, machine)
    return _interval(seconds, mixed, known.carried.get((kind, left_out), _UNKNOWN), "carried")


def _checked(kind: str, dims: npt.ArrayLike) -> Floats:
    shapes, wanted = np.asarray(dims, dtype=np.float64), MODELS[kind].dims
    if shapes.ndim != 2 or shapes.shape[1] != len(wanted):
        raise InvalidInputError(f"dims have shape {shapes.shape}; {kind} needs (n, {len(wanted)}): {', '.join(wanted)}")
    bad = np.flatnonzero(~((shapes >= 1) & (shapes < np.inf)).all(axis=1))
    if len(bad):
        raise InvalidInputError(f"dims[{int(bad[0])}] are {shapes[bad[0]].tolist()}; each must be 1 or more")
    return shapes


def _interval(seconds: Floats, used: Fit, spread: float, basis: str) -> Predicted:
    factor = float(np.exp(spread))
    return Predicted(seconds, seconds / factor, seconds * factor, basis, used.values[0])  # every model starts so


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
    cool = np.array([d.figures["power_w"].value >= _LEAST_WATT if "power_w" in d.figures else True for d in devices])
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
    return Fit(tuple(theta.tolist()), tile, 0, _UNKNOWN)


def calibrate(measured: Iterable[MeasuredOperators], base: Calibration | None = None) -> Calibration:
    """Fit every kind on every device, and measure how far predictions of a left-out device are off.

    Parameters
    ----------
    measured : iterable of MeasuredOperators
        Of a kind and device that occurs in several files, all rows are taken together.
    base : Calibration, optional
        Whose fits of other devices are kept.
    """
    pooled: dict[tuple[str, str], list[MeasuredOperators]] = {}
    for one in measured:
        pooled.setdefault((one.kind, one.device.name), []).append(one)
    fits = dict(base.fits) if base else {}
    rows: dict[tuple[str, str], tuple[Floats, Floats]] = {}
    for key, several in pooled.items():
        dims, seconds = (np.concatenate([getattr(one, name) for one in several]) for name in ("dims", "seconds"))
        fits[key] = fit(key[0], dims, seconds, several[0].element_bytes, Machine.of(several[0].device))
        rows[key] = (dims, seconds)
    digests = {one.digest for several in pooled.values() for one in several} | set(base.digests if base else ())
    return Calibration(
        MappingProxyType(fits),
        MappingProxyType({**(base.carried if base else {}), **_carried(fits, rows)}),
        tuple(sorted(digests)),
    )


def _carried(
    fits: Mapping[tuple[str, str], Fit], rows: Mapping[tuple[str, str], tuple[Floats, Floats]]
) -> dict[tuple[str, str], float]:
    """Return the spread of carried predictions, with each device left out in turn, and with none."""
    found = {}
    for kind in {kind for kind, _ in rows}:
        names = [name for k, name in rows if k == kind]
        donors = {name: f for (k, name), f in fits.items() if k == kind}
        for left_out in ("", *names):
            errors = [
                _log_errors(kind, name, donors, rows[kind, name], left_out)
                for name in names
                if name != left_out and len(set(donors) - {name, left_out}) > 0
            ]
            if errors:
                # Every device counts the same: quantiles of each, of which the mean is taken.
                found[kind, left_out] = float(np.mean([np.quantile(one, CONFIDENCE) for one in errors]))
    return found


def _log_errors(kind: str, name: str, donors: Mapping[str, Fit], rows: tuple[Floats, Floats], left_out: str) -> Floats:
    machine = Machine.of(find_device(name))
    mixed = carry_over(kind, {n: f for n, f in donors.items() if n not in (name, left_out)}, machine)
    dims, seconds = rows
    return np.asarray(np.abs(np.log(MODELS[kind].seconds(mixed.theta, mixed.tile, dims, 4, machine) / seconds)))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration as JSON, whole or not at all."""
    content = {
        "fits": [
            {
                "kind": kind, "device": name, "rows": one.rows, "spread": round(one.spread, 4), "tile": list(one.tile),
                "parameters": {
                    p.name: float(f"{value:.5g}") for p, value in zip(MODELS[kind].parameters, one.values, strict=True)
                },
            }
            for (kind, name), one in sorted(calibration.fits.items())
        ],
        "carried": [
            {"kind": kind, "without": name, "spread": round(spread, 4)}
            for (kind, name), spread in sorted(calibration.carried.items())
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
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"{file}: no such calibration; `seqpoint calibrate kernels` writes one")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        fits = {(str(row["kind"]), str(row["device"])): _fit_of(row) for row in content["fits"]}
        carried = {(str(r["kind"]), str(r["without"])): float(r["spread"]) for r in content["carried"]}
        digests = tuple(str(one) for one in content["fitted_files_sha256"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInputError(f"{file}: not what `seqpoint calibrate kernels` writes ({error!r})") from error
    return Calibration(MappingProxyType(fits), MappingProxyType(carried), digests)


def _fit_of(row: Mapping[str, Any]) -> Fit:
    model = MODELS[row["kind"]]
    values = tuple(float(row["parameters"][p.name]) for p in model.parameters)
    rows, columns = row["tile"]
    if not all(0 < value < np.inf for value in values) or not 0 <= float(row["spread"]) < np.inf:
        raise ValueError(f"a parameter of {row['kind']} on {row['device']} is not above zero")
    return Fit(values, (int(rows), int(columns)), int(row["rows"]), float(row["spread"]))


@cache
def load_calibration() -> Calibration:
    """Return the shipped calibration."""
    return read_calibration(dataset_path("fits/kernels.json"))
