"""Compare predicted durations of operators with those measured in PATH.

A table has the columns op, device, latency_ms, and B M N K (linear, bmm) or B H (softmax, ln, elementwise), FP32.
FP16 profiles of Vidur and sweeps of LLMCompass are read too. Each device is predicted with its own fit, if it has
a fit, and as if it had never been seen.

\b
seqpoint validate kernels measured.parquet --json
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.costs import kernels
from replay.costs.kernels.convolutions import scored
from replay.costs.kernels.fits import half_of_shapes
from replay.costs.kernels.measurements import holds_operators
from replay.costs.kernels.models import MODELS
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import (
    Progress,
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    followed,
    short_devices,
    summary_row,
    table_columns,
)

#: Devices that are left out in turn, whose mean has a limit.
_LEFT_OUT = ("P100-PCIE-16GB", "V100-PCIE-32GB", "T4", "P4", "A100-PCIE-40GB", "MI100")
#: Devices whose own fits have a limit. How hot a T4 or a P4 is changes from table to table.
_COOL = ("P100-PCIE-16GB", "V100-PCIE-32GB", "A100-PCIE-40GB", "MI100")
#: Limits of the mean error if the device is left out.
_CARRIED: Mapping[str, float] = MappingProxyType(
    {"matmul": 0.13, "batched_matmul": 0.16, "elementwise": 0.08, "softmax": 0.15, "normalization": 0.11}
)
#: Limits of the mean error with fits of the device itself, on shapes that were not fitted.
_FITTED: Mapping[str, float] = MappingProxyType(
    {"matmul": 0.09, "batched_matmul": 0.08, "elementwise": 0.03, "softmax": 0.10, "normalization": 0.10}
)
#: Fewest operators that can be fitted.
_LEAST_FITTED = 10
#: Classes by measured duration: below 0.2 ms, up to 2 ms, above.
_SIZES: tuple[tuple[str, float, float], ...] = (
    ("below 0.2 ms", 0.0, 2e-4),
    ("0.2 to 2 ms", 2e-4, 2e-3),
    ("above 2 ms", 2e-3, np.inf),
)
#: Name, lower bound and upper bound of a class of sizes.
SizeClass = tuple[str, float, float]


def accuracy(
    predicted: tuple[Floats, Floats, Floats], measured: Floats, sizes: Floats, classes: Sequence[SizeClass]
) -> dict[str, Any]:
    """Return the fields that scores of many operations share.

    ``rows``; ``error`` and ``median``, the mean and the median of ``|predicted - measured| / measured``; ``bias``, the
    geometric mean of predicted over measured; ``covered``, the share of measured times in their interval;
    ``by_size``, the mean error of each class that occurs.

    Parameters
    ----------
    predicted : tuple of three arrays of float64, shape (n,)
        Predicted seconds, and the lower and the upper bound of their interval.
    measured : array of float64, shape (n,)
        Measured seconds.
    sizes : array of float64, shape (n,)
        Size of each operation, by which it is classed.
    classes : sequence of SizeClass
        Name, lower bound (included) and upper bound (excluded) of each class.
    """
    seconds, low, high = predicted
    ratio = seconds / measured
    errors = np.abs(ratio - 1)
    by_size = {name: errors[(sizes >= first) & (sizes < last)] for name, first, last in classes}
    return {
        "rows": len(measured),
        "error": float(errors.mean()),
        "median": float(np.median(errors)),
        "bias": float(np.exp(np.mean(np.log(ratio)))),
        "covered": float(np.mean((low <= measured) & (measured <= high))),
        "by_size": {name: float(of_class.mean()) for name, of_class in by_size.items() if len(of_class)},
    }


#: Characters of a line of a heading, in tables by size.
_HEADING = 7


def size_table(title: str, columns: Mapping[str, str], scores: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of mean errors by class of size, which ``--verbose`` shows.

    Parameters
    ----------
    title : str
        Title above the table.
    columns : mapping of str to str
        Headings and format strings of the columns that name a case.
    scores : sequence of mapping of str to object
        The names that the format strings use, for each row; ``s`` is a score with its `by_size`.
    """
    sizes = {name: fill(name, _HEADING) for names in scores for name in names["s"].by_size}
    errors = [[names["s"].by_size.get(name) for name in sizes] for names in scores]
    rows = [
        (*cells, *("" if error is None else f"{100 * error:.1f}" for error in by_size))
        for cells, by_size in zip(table_of(title, columns, scores).rows, errors, strict=True)
    ]
    return Table(title, (*columns, *sizes.values()), rows, verbose=True)


@dataclass(frozen=True)
class KernelScore:
    """Errors of one kind of operator on one device.

    Parameters
    ----------
    kind, device, dtype : str
        Kind of operator, device and data type.
    basis : str
        ``"fitted"`` on this device, ``"carried"`` over from others, or by ``"halves"`` of the same table.
    rows : int
        Number of measured operators.
    error, median, bias : float
        Mean and median of ``|predicted - measured| / measured``; geometric mean of predicted over measured.
    covered : float
        Share of measured durations in their 90 % interval.
    by_size : mapping of str to float
        Mean error by measured duration.
    seen : bool
        Whether this file was fitted, on this device or on others.
    source : str
        Name of the file.
    library : str
        Framework that was measured; empty if the table does not say it.
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
    library: str = ""


def read_kernels(
    *paths: str | Path, device: str | None = None, library: str | None = None
) -> list[kernels.MeasuredOperators]:
    """Read measured operators as `replay.costs.kernels.read_measurements` does, and leave out tables without a row.

    Parameters
    ----------
    *paths : str or Path
        Tables, or folders of tables.
    device : str, optional
        Device of tables if neither a column nor the file's name says it.
    library : str, optional
        Framework whose operators are kept, of tables that name it; by default all.

    Raises
    ------
    NotFoundError, InvalidInputError
        As `read_measurements`; or no table has a row.
    """
    measured = [
        operators for path in paths for operators in kernels.read_measurements(path, device, library) if len(operators)
    ]
    if not measured:
        of_library = f" of {library}" if library else " below the header"
        raise InvalidInputError(f"{', '.join(map(str, paths))}: there is no row{of_library}")
    return measured


def score_kernels(
    measured: Sequence[kernels.MeasuredOperators], calibration: kernels.KernelCalibration | None = None
) -> list[KernelScore]:
    """Predict every measured operator twice: with the fits of its device, if it has fits, and with those of others.

    Parameters
    ----------
    measured : sequence of MeasuredOperators
        Operators with their durations.
    calibration : Calibration, optional
        Fits to predict with; by default the shipped ones.
    """
    calibration = calibration or kernels.load_calibration()
    scores = []
    for operators in measured:
        device, dtype = operators.device.name, operators.dtype
        kind = kernels.fitted_kind(operators.kind, operators.device, dtype)
        library = _library(operators, calibration)
        if (kind, device, dtype, library) in calibration.fits:
            scores.append(_score(operators, calibration, ()))
        if calibration.stand_ins(kind, dtype, {device}, library=library) or calibration.donors(
            kind, calibration.like(kind, dtype, library=library), {device}, library=library
        ):
            scores.append(_score(operators, calibration, (device,)))
    return scores


def _library(operators: kernels.MeasuredOperators, calibration: kernels.KernelCalibration) -> str:
    """Return the library whose fits predict the operators: their own, or the default if nobody fitted their own."""
    wanted = kernels.fitted_kind(operators.kind, operators.device, operators.dtype)
    fitted = any((kind, of) == (wanted, operators.library) for kind, _, _, of in calibration.fits)
    return calibration.library(wanted, operators.library if fitted else None)


def _score(
    measured: kernels.MeasuredOperators, calibration: kernels.KernelCalibration, without: tuple[str, ...]
) -> KernelScore:
    """Predict operators with the fits of all devices but `without`; of convolutions, the fastest algorithm."""
    if MODELS[measured.kind].trees:
        mine = scored(measured.dims)
        measured = replace(measured, dims=measured.dims[mine], seconds=measured.seconds[mine])
    predicted = kernels.predict(
        measured.kind, measured.dims, measured.device, element_bytes=measured.element_bytes, dtype=measured.dtype,
        calibration=calibration.without(*without), library=_library(measured, calibration), launched=measured.launched,
    )  # fmt: skip
    return _summary(measured, predicted, seen=measured.digest in calibration.digests)


def score_halves(measured: Sequence[kernels.MeasuredOperators], progress: Progress | None = None) -> list[KernelScore]:
    """Fit one half of each table's operators and score the other, both ways.

    All operators with the same last dimensions (the second operand of a product, or the columns of rows) are in the
    same half. The score is that of a model fitted to measurements of the same kind. A table of fewer than twenty
    operators is skipped.

    Parameters
    ----------
    measured : sequence of MeasuredOperators
        Operators with their durations.
    progress : callable, optional
        Called with (tables done, tables in all, what) before each table.
    """
    scores = []
    for operators in followed(measured, progress, lambda operators: f"{operators.kind} {operators.device.name}"):
        first = half_of_shapes(operators.dims)
        if min(first.sum(), (~first).sum()) < _LEAST_FITTED:
            continue
        predicted = np.empty((3, len(operators)))
        for half in (first, ~first):
            fitted = replace(operators, dims=operators.dims[half], seconds=operators.seconds[half])
            rest = kernels.predict(
                operators.kind, operators.dims[~half], operators.device, element_bytes=operators.element_bytes,
                dtype=operators.dtype, calibration=kernels.calibrate([fitted]), library=operators.library,
                launched=operators.launched,
            )  # fmt: skip
            predicted[:, ~half] = rest.seconds, rest.low, rest.high
        halves = kernels.Predicted(predicted[0], predicted[1], predicted[2], "halves")
        scores.append(_summary(operators, halves, seen=False))
    return scores


def _summary(measured: kernels.MeasuredOperators, predicted: kernels.Predicted, *, seen: bool) -> KernelScore:
    """Return the errors of predicted durations."""
    errors = accuracy((predicted.seconds, predicted.low, predicted.high), measured.seconds, measured.seconds, _SIZES)
    return KernelScore(
        measured.kind,
        measured.device.name,
        measured.dtype,
        predicted.basis,
        seen=seen,
        source=measured.source,
        library=measured.library,
        **errors,
    )


def kernel_rows(scores: Sequence[KernelScore]) -> list[ValidationRow]:
    """Return a row for each score, then the means over devices that have limits."""
    rows = [_row(score) for score in scores]
    for basis, limits, devices in (("carried", _CARRIED, _LEFT_OUT), ("fitted", _FITTED, _COOL)):
        for kind, limit in limits.items():
            # A device whose own fit is not used may be scored on a file that was fitted, if there is no other.
            by_device = {
                s.device: s
                for s in sorted(scores, key=lambda s: not s.seen)
                if (s.kind, s.basis, s.dtype) == (kind, basis, "fp32") and (basis == "carried" or not s.seen)
            }
            errors = [by_device[name].error for name in devices if name in by_device]
            whole = len(errors) == len(devices) if basis == "carried" else len(errors) > 1
            if whole:
                rows.append(
                    summary_row(f"{kind}, {basis}: mean over {len(errors)} devices", float(np.mean(errors)), limit)
                )
    return rows


def _row(score: KernelScore) -> ValidationRow:
    """Return the row of a score."""
    case = ", ".join(filter(None, (score.kind, score.device, score.dtype, score.library, score.basis)))
    fitted = score.seen and score.basis == "fitted"
    return ValidationRow(case, None, score.error, score.error, fitted=fitted, source=score.source)


_CASE = MappingProxyType(
    {
        "operator~": "{s.kind}",
        "device~": "{device}",
        "type~": "{s.dtype}",
        "library~": "{s.library}",
        "basis~": "{basis}",
    }
)
_ERRORS = MappingProxyType(
    {"rows": "{s.rows}", "err %": "{s.error:.1%}", "bias": "{s.bias:.2f}", "held %": "{s.covered:.0%}"}
)


def _scored(measured: Sequence[kernels.MeasuredOperators], options: SuiteOptions) -> SuiteResult:
    """Score operators with the shipped or the given calibration, and by halves if asked to."""
    calibration = kernels.read_calibration(options.calibration) if options.calibration else kernels.load_calibration()
    scores = score_kernels(measured, calibration)
    if options.halves:
        scores += score_halves(measured, options.progress("halves"))
    return SuiteResult(kernel_rows(scores), {"scores": [asdict(score) for score in scores]}, _tables(scores), scores)


def _tables(scores: Sequence[KernelScore]) -> list[Table]:
    """Return the tables of scores: errors, errors by duration, files."""
    short = short_devices(s.device for s in scores)
    names = [
        {"s": s, "device": short[s.device], "basis": s.basis + "*" * (s.seen and s.basis == "fitted")} for s in scores
    ]
    title = "Predicted against measured durations (* was fitted; held: in 90 % interval)"
    case = {head: cell for head, cell in _CASE.items() if head != "library~" or any(s.library for s in scores)}
    files = sorted({(s.source, "yes" if s.seen else "no") for s in scores})
    return [
        table_of(title, case | dict(_ERRORS), names),
        size_table("Error % by measured duration", case, names),
        Table("Files", ("file~", "was fitted~"), files, verbose=True),
    ]


SUITE = Suite(
    name="kernels",
    description=__doc__,
    needs="table of measured operators (columns op, device, latency_ms, and B H)",
    source=lambda file: file if holds_operators(file, table_columns(file)) else None,
    read=lambda sources, options: read_kernels(*sources, device=options.device, library=options.library),
    score=_scored,
    options=("calibration", "device", "halves", "library"),
)
