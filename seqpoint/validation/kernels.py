"""Score predicted durations of operators against measured ones, with the device's own fit and without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.costs.kernels import (
    Calibration,
    MeasuredOperators,
    Predicted,
    calibrate,
    load_calibration,
    predict,
    read_measurements,
)
from seqpoint.validation.rows import ValidationRow

#: Called with (done, in all, what).
Progress = Callable[[int, int, str], None]

#: Devices that are left out in turn, whose mean is gated: T4 and P4 run into their power limit and are shown apart.
_GATED = ("P100-PCIE-16GB", "V100-PCIE-32GB", "A100-PCIE-40GB", "MI100")
_LEFT_OUT: Mapping[str, float] = MappingProxyType(
    {"matmul": 0.15, "batched_matmul": 0.16, "elementwise": 0.17, "softmax": 0.14, "normalization": 0.25}
)
#: With the device's own fit, on shapes that were not fitted.
_OWN: Mapping[str, float] = MappingProxyType(
    {"matmul": 0.09, "batched_matmul": 0.10, "elementwise": 0.10, "softmax": 0.10, "normalization": 0.10}
)
#: Of operators that a fit takes.
_LEAST_FITTED = 10
#: Classes by measured time: below 0.2 ms, up to 2 ms, above.
_SIZES: tuple[tuple[str, float, float], ...] = (
    ("below 0.2 ms", 0.0, 2e-4),
    ("0.2 to 2 ms", 2e-4, 2e-3),
    ("above 2 ms", 2e-3, np.inf),
)


@dataclass(frozen=True)
class KernelScore:
    """Errors of one kind of operator on one device.

    Parameters
    ----------
    kind, device : str
    dtype : str
    basis : str
        ``"fitted"`` on this device, ``"carried"`` over from others, or by ``"halves"`` of the same table.
    rows : int
    error, median, bias : float
        Mean and median of ``|predicted - measured| / measured``; geometric mean of predicted over measured.
    covered : float
        Share of measured durations in their 90 % interval.
    by_size : mapping of str to float
        Mean error by measured duration.
    seen : bool
        Whether this file was fitted, on this device or on others.
    source : str
    """

    kind: str
    device: str
    dtype: str
    basis: str
    rows: int
    error: float
    median: float
    bias: float
    covered: float
    by_size: Mapping[str, float]
    seen: bool
    source: str


def read_kernels(path: str | Path, device: str | None = None) -> list[MeasuredOperators]:
    """Read measured operators as `replay.costs.kernels.read_measurements` does; a table without a row is an error.

    Raises
    ------
    NotFoundError, InvalidInputError
        As there; or there is no row.
    """
    measured = read_measurements(path, device)
    if not any(map(len, measured)):
        raise InvalidInputError(f"{path}: there is no row below the header")
    return [one for one in measured if len(one)]


def score_kernels(measured: Sequence[MeasuredOperators], calibration: Calibration | None = None) -> list[KernelScore]:
    """Predict every measured operator twice: with the fits of its device, where there are any, and by other devices'.

    Parameters
    ----------
    measured : sequence of MeasuredOperators
    calibration : Calibration, optional
        By default the shipped one.
    """
    known = calibration or load_calibration()
    found = []
    for one in measured:
        if (one.kind, one.device.name, one.dtype) in known.fits:
            found.append(_score(one, known, ()))
        if known.donors(one.kind, known.like(one.kind, one.dtype), {one.device.name}):
            found.append(_score(one, known, (one.device.name,)))
    return found


def _score(measured: MeasuredOperators, known: Calibration, without: tuple[str, ...]) -> KernelScore:
    found = predict(
        measured.kind, measured.dims, measured.device, element_bytes=measured.element_bytes, dtype=measured.dtype,
        calibration=known, without=without,
    )  # fmt: skip
    return _summary(measured, found, seen=measured.digest in known.digests)


def score_halves(measured: Sequence[MeasuredOperators], progress: Progress | None = None) -> list[KernelScore]:
    """Fit one half of each table's operators and score the other, both ways.

    All operators with the same last dimensions (of a product the sizes of its second operand, of rows their columns)
    are in one half. This tells what the model would be worth with measurements made as these were; a table of fewer
    than twenty operators is passed over.

    Parameters
    ----------
    measured : sequence of MeasuredOperators
    progress : callable, optional
        Called with (tables done, tables in all, what) before each.
    """
    found = []
    for number, one in enumerate(measured):
        if progress:
            progress(number, len(measured), f"{one.kind} {one.device.name}")
        first = _half(one.dims)
        if min(first.sum(), (~first).sum()) < _LEAST_FITTED:
            continue
        predicted = np.empty((3, len(one)))
        for half in (first, ~first):
            known = calibrate([replace(one, dims=one.dims[half], seconds=one.seconds[half])])
            other = predict(one.kind, one.dims[~half], one.device, element_bytes=one.element_bytes, dtype=one.dtype,
                            calibration=known)  # fmt: skip
            predicted[:, ~half] = other.seconds, other.low, other.high
        found.append(_summary(one, Predicted(predicted[0], predicted[1], predicted[2], "halves"), seen=False))
    return found


def _half(dims: Floats) -> npt.NDArray[np.bool_]:
    """Return which operators are in the first half: groups of the same last dimensions by turns, or single ones."""
    last = dims[:, -1:] if dims.shape[1] == 2 else dims[:, 2:]
    keys = last if len(np.unique(last, axis=0)) > 1 else dims
    _, group = np.unique(keys, axis=0, return_inverse=True)
    sizes = np.bincount(group.reshape(-1))
    order, taken = np.argsort(-sizes, kind="stable"), [0, 0]
    side = np.zeros(len(sizes), dtype=np.int64)
    for one in order:  # the larger groups first, each to the half that has less
        side[one] = int(taken[1] < taken[0])
        taken[side[one]] += int(sizes[one])
    return np.asarray(side[group.reshape(-1)] == 0, dtype=np.bool_)


def _summary(measured: MeasuredOperators, found: Predicted, *, seen: bool) -> KernelScore:
    ratio, true = found.seconds / measured.seconds, measured.seconds
    errors = np.abs(ratio - 1)
    sizes = {name: errors[(true >= low) & (true < high)] for name, low, high in _SIZES}
    return KernelScore(
        measured.kind,
        measured.device.name,
        measured.dtype,
        found.basis,
        len(measured),
        float(errors.mean()),
        float(np.median(errors)),
        float(np.exp(np.mean(np.log(ratio)))),
        float(np.mean((found.low <= true) & (true <= found.high))),
        {name: float(each.mean()) for name, each in sizes.items() if len(each)},
        seen,
        measured.source,
    )


def kernel_rows(scores: Sequence[KernelScore]) -> list[ValidationRow]:
    """Return a row a score, then the means over devices that are gated."""
    rows = [_row(one) for one in scores]
    for basis, limits in (("carried", _LEFT_OUT), ("fitted", _OWN)):
        for kind, limit in limits.items():
            # A device whose own fit is not used may be scored on a file that was fitted, where there is no other.
            mine = {
                s.device: s
                for s in sorted(scores, key=lambda s: not s.seen)
                if (s.kind, s.basis, s.dtype) == (kind, basis, "fp32") and (basis == "carried" or not s.seen)
            }
            gated = [mine[name].error for name in _GATED if name in mine]
            whole = len(gated) == len(_GATED) if basis == "carried" else len(gated) > 1
            if whole:
                error = float(np.mean(gated))
                case = f"{kind}, {basis}: mean over {len(gated)} devices"
                rows.append(ValidationRow(case, None, error, error, limit, source="the cases above"))
    return rows


def _row(one: KernelScore) -> ValidationRow:
    case = f"{one.kind}, {one.device}, {one.dtype}, {one.basis}"
    return ValidationRow(case, None, one.error, one.error, fitted=one.seen and one.basis == "fitted", source=one.source)
