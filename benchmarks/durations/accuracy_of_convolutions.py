r"""Regenerate the table of predicted against measured convolutions in tests/accuracy.

    python benchmarks/durations/accuracy_of_convolutions.py ../shared/data/convolutions \
        > tests/accuracy/convolutions.csv

Rows `halves`: a half of the geometries is fitted and the other scored, both ways; all types and directions of a
geometry are in the same half. Rows `carried`: the device is predicted from the shipped fits of others. `choice` is the
share of convolutions whose predicted algorithm took at most 15 % longer than the fastest that was measured; `named`
the share whose predicted algorithm was measured at all. The shipped fits are made by

    seqpoint calibrate kernels ../shared/data/convolutions/{deepbench,miopen_conv_mi100,miopen_conv_mi200_104cu,\
miopen_conv_vega20_60cu}.parquet -o datasets/fits/kernels.json
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from profilers.trace.arrays import Bools, Floats
from replay.costs.kernels import Machine, MeasuredOperators, load_calibration, predict, read_measurements
from replay.costs.kernels.convolutions import ALGORITHM, ALGORITHMS, DIRECTION, DIRECTIONS, scored
from replay.costs.kernels.fits import carry_over, fit

COLUMNS = ("case", "rows", "error", "median", "bias", "covered", "choice", "named")
#: Time over that of the fastest algorithm with which a choice counts as good, and fewest rows of a case.
GOOD, LEAST_ROWS = 1.15, 20


def table(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of the table, of a file or of a folder."""
    calibration = load_calibration()
    for measured in read_measurements(path):
        if measured.kind != "convolution":
            continue
        mine, machine = scored(measured.dims), Machine.of(measured.device, measured.dtype)
        dims, seconds = measured.dims[mine], measured.seconds[mine]
        named = named_seconds(measured)
        predicted, chosen = by_halves(measured, machine)
        yield from cases(measured, "halves", dims, seconds, predicted, (chosen, named))
        donors = calibration.donors("convolution", measured.dtype, {measured.device.name}, library=measured.library)
        if not donors:
            continue
        carried = predict(
            "convolution", dims, measured.device, calibration=calibration.without(measured.device.name),
            dtype=measured.dtype, library=measured.library,
        )  # fmt: skip
        other = carry_over("convolution", donors, machine)
        choice = other.by_algorithm(dims, measured.element_bytes, machine).argmin(axis=1)
        ends = np.stack((carried.seconds, carried.low, carried.high))
        yield from cases(measured, "carried", dims, seconds, ends, (choice, named))


def by_halves(measured: MeasuredOperators, machine: Machine) -> tuple[Floats, Floats]:
    """Return times, low and high ends, shape (3, n), and the chosen algorithms of the fastest rows."""
    mine, size = scored(measured.dims), measured.element_bytes
    group = np.unique(measured.dims[:, :DIRECTION], axis=0, return_inverse=True)[1].reshape(-1)
    first = np.random.default_rng(1).permutation(int(group.max()) + 1)[group] % 2 == 0
    predicted, chosen = np.empty((3, int(mine.sum()))), np.empty(int(mine.sum()), dtype=np.int64)
    for half in (first, ~first):
        fitted = fit("convolution", measured.dims[half], measured.seconds[half], size, machine)
        others = ~half[mine]
        times = fitted.by_algorithm(measured.dims[mine][others], size, machine)
        factor = np.exp(fitted.spread)
        best = times.min(axis=1)
        predicted[:, others] = best, best / factor, best * factor
        chosen[others] = times.argmin(axis=1)
    return predicted, chosen


def named_seconds(measured: MeasuredOperators) -> Floats:
    """Return the measured time of each algorithm of the fastest rows, infinity if it was not measured, shape (n, 5)."""
    mine = scored(measured.dims)
    _, group = np.unique(measured.dims[:, :ALGORITHM], axis=0, return_inverse=True)
    times = np.full((int(group.max()) + 1, len(ALGORITHMS)), np.inf)
    of = measured.dims[~mine, ALGORITHM].astype(int) - 1
    times[group.reshape(-1)[~mine], of] = measured.seconds[~mine]
    return np.asarray(times[group.reshape(-1)[mine]])


def cases(
    measured: MeasuredOperators, basis: str, dims: Floats, seconds: Floats, predicted: Floats,
    choices: tuple[Floats, Floats],
) -> Iterator[dict[str, str]]:  # fmt: skip
    """Yield the row of all directions, then one each."""
    whole = np.ones(len(dims), dtype=np.bool_)
    directions = [(name, dims[:, DIRECTION] == number) for number, name in enumerate(DIRECTIONS, 1)]
    for name, rows in (("all", whole), *directions):
        if rows.sum() >= LEAST_ROWS:
            case = f"{measured.device.name.replace(' ', '-')} {measured.dtype} {measured.library} {name} {basis}"
            yield {"case": case, **_errors(rows, seconds, predicted, choices)}


def _errors(rows: Bools, seconds: Floats, predicted: Floats, choices: tuple[Floats, Floats]) -> dict[str, str]:
    (times, low, high), measured = predicted[:, rows], seconds[rows]
    chosen, named = choices[0][rows], choices[1][rows]
    known = np.isfinite(named).any(axis=1)
    taken = named[np.arange(len(named)), chosen]
    has, good = np.isfinite(taken)[known], (taken <= GOOD * named.min(axis=1))[known]
    errors = np.abs(times / measured - 1)
    return {
        "rows": str(len(measured)),
        "error": f"{100 * errors.mean():.1f}",
        "median": f"{100 * np.median(errors):.1f}",
        "bias": f"{np.exp(np.log(times / measured).mean()):.3f}",
        "covered": f"{100 * ((low <= measured) & (measured <= high)).mean():.1f}",
        "choice": f"{100 * good.mean():.1f}" if known.any() else "",
        "named": f"{100 * has.mean():.1f}" if known.any() else "",
    }


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table(Path(sys.argv[1])))
