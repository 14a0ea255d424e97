"""Curves of time over size, fitted to measured collectives, and their files.

A measured curve of time by size: one alpha-beta line a range of sizes, as a library switches by size.

Fits of measured collectives, and how far predictions are off.

The file that holds fits of measured collectives: written only if it can be read, read only if it can be.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, SeqPointError
from profilers.files import dataset_path, write_text
from profilers.trace.arrays import Floats
from replay.calibration.parameters import read_calibration_file
from replay.costs.collectives.algorithms import KINDS, LINKS, MOST_BYTES, MOST_WORKERS, Topology

#: Lines that a curve has at most, and measurements that one needs at least.
_MOST_LINES, _LEAST_ROWS = 10, 6
#: A line spans at least this factor of sizes: fewer are noise. What is larger than all that was measured continues the
#: line of the largest sizes, down to a half of the largest.
_SPAN, _LARGE = 1.25, 0.5
#: Measurements that a curve looks at: finding where lines end takes the square of their number. Of more, medians.
_MOST_ROWS = 1500
#: Fewer lines are taken where more of them lower the error on the other half by less than this share.
_WORTH = 0.03
#: Rounds of reweighting that turn least squares into least absolute errors, and the error below which it stops.
_ROUNDS, _FLOOR = 12, 1e-3


@dataclass(frozen=True)
class Curve:
    """Lines ``alpha + beta * size``, each from one size on.

    Parameters
    ----------
    starts_bytes : tuple of float
        Size from which each line holds, ascending; the first also holds below.
    alphas_s, betas : tuple of float
        Seconds, and seconds a byte, of each line; none below zero.

    Examples
    --------
    >>> Curve((0.0, 100.0), (1.0, 2.0), (0.0, 0.5)).seconds([50, 100, 200]).tolist()
    [1.0, 52.0, 102.0]
    """

    starts_bytes: tuple[float, ...]
    alphas_s: tuple[float, ...]
    betas: tuple[float, ...]

    def seconds(self, sizes: npt.ArrayLike) -> Floats:
        """Return the time at each size in bytes, of the shape of `sizes`."""
        return self._at(np.asarray(sizes, dtype=np.float64), 1.0)

    def rising(self, sizes: npt.ArrayLike, slower: float = 1.0) -> Floats:
        """Return the least time of each size and all above, with what is fixed `slower` times as long.

        A message can be sent as a longer one: no longer one takes less time.

        Examples
        --------
        >>> Curve((0.0, 100.0), (5.0, 2.0), (0.0, 0.01)).rising([50, 200]).tolist()
        [3.0, 4.0]
        """
        wanted = np.asarray(sizes, dtype=np.float64)
        starts = np.array(self.starts_bytes)
        begins = slower * np.array(self.alphas_s) + np.array(self.betas) * starts
        later = np.append(np.minimum.accumulate(begins[::-1])[::-1], np.inf)
        least = np.minimum(self._at(wanted, slower), later[np.searchsorted(starts, wanted, side="right")])
        return np.asarray(least, dtype=np.float64)

    def _at(self, wanted: Floats, slower: float) -> Floats:
        line = np.maximum(np.searchsorted(np.array(self.starts_bytes), wanted, side="right") - 1, 0)
        return np.asarray(
            slower * np.array(self.alphas_s)[line] + np.array(self.betas)[line] * wanted, dtype=np.float64
        )


def fit_curve(sizes: Floats, seconds: Floats, limit: float | None = None) -> Curve:
    """Fit lines to measured times, as many as halves of the measurements agree on.

    Parameters
    ----------
    sizes, seconds : array of float64, shape (n,)
        Bytes and seconds, above zero, in any order.
    limit : float, optional
        Seconds a byte that the links allow. Sizes beyond all that were measured then take the geometric mean of it
        and of what the largest ones took: the larger a message, the nearer it comes to the limit.

    Raises
    ------
    InvalidInputError
        There are fewer than six sizes.

    Notes
    -----
    Where one line ends and the next begins is found by dynamic programming over the sorted sizes, with the squares of
    the relative errors; each line is then fitted to the least mean of the absolute relative errors. The number of lines
    is the least whose error, fitted on one half of the measurements and scored on the other, is near the best. More
    than 1500 measurements are thinned to the median of each size, and still more sizes to medians of ranges of sizes.
    """
    if (found := len(np.unique(sizes))) < _LEAST_ROWS:
        raise InvalidInputError(f"{found} sizes were measured; a fit needs {_LEAST_ROWS} or more")
    order = np.lexsort((seconds, sizes))
    x, t = _thinned(sizes[order], seconds[order])
    halves = ((x[::2], t[::2], x[1::2], t[1::2]), (x[1::2], t[1::2], x[::2], t[::2]))
    most = max(1, min(_MOST_LINES, len(x) // 2 // _LEAST_ROWS))
    errors = np.zeros(most)
    for near, at, other, then in halves if most > 1 else ():
        for lines, ends in enumerate(_ends(near, at, most)):
            errors[lines] += np.mean(np.abs(_curve(near, at, ends).seconds(other) / then - 1))
    chosen = int(np.flatnonzero(errors <= errors.min() * (1 + _WORTH))[0])
    return _beyond(_curve(x, t, _ends(x, t, most)[chosen]), x, t, limit)


def _thinned(x: Floats, t: Floats) -> tuple[Floats, Floats]:
    """Return medians of sizes and times where there are too many, of as many ranges on a logarithmic scale at most."""
    if len(x) <= _MOST_ROWS:
        return x, t
    x, t = _medians(x, t, np.unique(x, return_inverse=True)[1])
    if len(x) <= _MOST_ROWS:
        return x, t
    place = np.log(x / x[0]) / np.log(x[-1] / x[0]) * _MOST_ROWS
    return _medians(x, t, np.minimum(place.astype(np.int64), _MOST_ROWS - 1))


def _medians(x: Floats, t: Floats, group: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the lower median of size and of time of each group; `x` and `group` ascend together."""
    starts = np.flatnonzero(np.concatenate(([True], group[1:] > group[:-1])))
    middle = (starts + np.append(starts[1:], len(group)) - 1) // 2
    return x[middle], t[np.lexsort((t, group))][middle]


def _beyond(curve: Curve, x: Floats, t: Floats, limit: float | None) -> Curve:
    """Add the line of sizes that are larger than all that were measured."""
    large = x >= _LARGE * x[-1]
    if large.sum() < _LEAST_ROWS:
        return curve
    alpha, beta = _line(x[large], t[large])
    if limit is not None and limit < beta:
        end = alpha + beta * x[-1]
        beta = min(float(np.sqrt(limit * beta)), end / x[-1])
        alpha = end - beta * x[-1]
    return Curve((*curve.starts_bytes, float(x[-1])), (*curve.alphas_s, alpha), (*curve.betas, beta))


def _ends(x: Floats, t: Floats, most: int) -> list[list[int]]:
    """Return where 1 to `most` lines end (exclusive), best by the squares of relative errors."""
    n = len(x)
    costs = _costs(x, t)
    best = costs[0].copy()
    back, found = [], [[n]]
    for _ in range(1, most):
        # total[i, j]: the lines before end at i, the last one takes i to j.
        total = best[:, None] + costs
        previous = np.argmin(total, axis=0)
        best = total[previous, np.arange(n + 1)]
        back.append(previous)
        ends, at = [n], n
        for step in reversed(back):
            at = int(step[at])
            ends.append(at)
        found.append([end for end in reversed(ends) if end > 0] if np.isfinite(best[n]) else found[-1])
    return found


def _costs(x: Floats, t: Floats) -> Floats:
    """Return the sum of squares of the relative errors of the best line over rows i to j, shape (n + 1, n + 1)."""
    n = len(x)
    scale = x.mean()
    u, v = 1 / t, x / scale / t
    sums = [np.concatenate(([0.0], np.cumsum(one))) for one in (u * u, u * v, v * v, u, v)]
    suu, suv, svv, su, sv = (one[None, :] - one[:, None] for one in sums)
    count = np.arange(n + 1)[None, :] - np.arange(n + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = suu * svv - suv * suv
        a = (svv * su - suv * sv) / determinant
        b = (suu * sv - suv * su) / determinant
        both = count - a * su - b * sv
        flat, steep = count - su * su / suu, count - sv * sv / svv
        cost = np.where((a >= 0) & (b >= 0) & (determinant > 1e-12 * suu * svv), both, np.minimum(flat, steep))
    from_, to = np.append(x, x[-1]), np.concatenate((x[:1], x))
    wide = to[None, :] >= _SPAN * from_[:, None]
    apart = np.concatenate(([True], x[1:] > x[:-1], [True]))  # a size does not belong to two lines
    return np.where(
        (count >= _LEAST_ROWS) & (wide | (count == n)) & apart[:, None] & apart[None, :], np.maximum(cost, 0.0), np.inf
    )


def _curve(x: Floats, t: Floats, ends: list[int]) -> Curve:
    begins = [0, *ends[:-1]]
    lines = [_line(x[i:j], t[i:j]) for i, j in zip(begins, ends, strict=True)]
    starts = [0.0, *(float(np.sqrt(x[i - 1] * x[i])) for i in begins[1:])]
    return Curve(tuple(starts), tuple(a for a, _ in lines), tuple(b for _, b in lines))


def _line(x: Floats, t: Floats) -> tuple[float, float]:
    """Return the line with the least mean of absolute relative errors, alpha and beta not below zero."""
    weight = np.ones(len(x))
    a, b = 0.0, 0.0
    for _ in range(_ROUNDS):
        a, b = _weighted(x, t, weight)
        weight = 1 / np.maximum(np.abs((a + b * x) / t - 1), _FLOOR)
    return a, b


def _weighted(x: Floats, t: Floats, weight: Floats) -> tuple[float, float]:
    """Return the line with the least weighted squares of relative errors; a negative part is set to zero."""
    u, v = 1 / t, x / t
    suu, suv, svv, su, sv = (float(np.sum(weight * one)) for one in (u * u, u * v, v * v, u, v))
    determinant = suu * svv - suv * suv
    if determinant > 1e-12 * suu * svv:
        a, b = (svv * su - suv * sv) / determinant, (suu * sv - suv * su) / determinant
        if a >= 0 and b >= 0:
            return a, b
        if a < 0:
            return 0.0, sv / svv
    return su / suu, 0.0


@dataclass(frozen=True)
class Band:
    """What measured times are between, relative to predicted ones, by size.

    Parameters
    ----------
    starts_bytes : tuple of float
        From which size each holds, ascending; the first also holds below.
    low, high : tuple of float
        Measured over predicted.
    """

    starts_bytes: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Return low and high at each size."""
        place = np.maximum(np.searchsorted(np.array(self.starts_bytes), sizes, side="right") - 1, 0)
        return np.array(self.low)[place], np.array(self.high)[place]


@dataclass(frozen=True)
class CollectiveFit:
    """One collective of one group of workers.

    Parameters
    ----------
    kind : str
    device : str
        Name in the catalogue.
    topology : Topology
    curve : Curve
    band : Band
        Of sizes that were not fitted.
    rows : int
        Measurements that there were.
    most_bytes : float
        Largest size that was measured.
    """

    kind: str
    device: str
    topology: Topology
    curve: Curve
    band: Band
    rows: int
    most_bytes: float


@dataclass(frozen=True)
class CollectiveCalibration:
    """All that is known from measurements.

    Parameters
    ----------
    fits : tuple of CollectiveFit
    spreads : mapping of (str, str, int) to float
        By kind of link, basis, and the number of workers that was left out (0: none): 90 % of the predictions of groups
        that were not fitted are off by no more than this, of the logarithm.
    digests : tuple of str
        SHA-256 of the files that were fitted.
    left_out : int
        The number of workers that nothing is known of; 0 for none.
    """

    fits: tuple[CollectiveFit, ...] = ()
    spreads: Mapping[tuple[str, str, int], float] = field(default_factory=lambda: MappingProxyType({}))
    digests: tuple[str, ...] = ()
    left_out: int = 0

    def own(self, kind: str, topology: Topology, device: Device) -> CollectiveFit | None:
        """Return the fit of a group: the same workers, fabric and links; that of the device itself before others."""
        found = [
            one
            for one in self.fits
            if one.kind == kind and same_place(one, topology, device) and same_group(one.topology, topology)
        ]
        return min(found, key=lambda one: one.device != device.name, default=None)

    def without_workers(self, n_workers: int) -> Self:
        """Return what is known without any group of a number of workers."""
        kept = tuple(one for one in self.fits if one.topology.n_workers != n_workers)
        return type(self)(kept, self.spreads, self.digests, n_workers)

    def without_device(self, device: Device) -> Self:
        """Return what is known without any group of devices with links like these."""
        kept = tuple(one for one in self.fits if not same_links(find_device(one.device), device))
        return type(self)(kept, self.spreads, self.digests, self.left_out)


def same_place(fit: CollectiveFit, topology: Topology, device: Device) -> bool:
    """Return whether a fit is of the same fabric, and of a device with the same links."""
    return fit.topology.fabric == topology.fabric and same_links(find_device(fit.device), device)


def same_links(one: Device, other: Device) -> bool:
    """Return whether two devices have links alike: A100 of 40 and of 80 GB do."""
    links = [device.figures["link_gbps"].value if "link_gbps" in device.figures else 0.0 for device in (one, other)]
    return one.architecture == other.architecture and links[0] == links[1]


def same_group(one: Topology, other: Topology) -> bool:
    """Return whether two groups cross the same links in the same numbers."""
    return (one.n_workers, one.devices_per_node) == (other.n_workers, other.devices_per_node)


#: Of times, in us and in us a MB: ten thousand years are no collective. Of spreads, that e^100 is still a number.
_MOST_TIME, _MOST_SPREAD = 3e17, 100.0
_BASES = ("carried", "prior")
#: Sizes are written in whole bytes from here on.
_WHOLE_BYTES = 1000.0


def write_fits(path: Path, calibration: CollectiveCalibration) -> None:
    """Write a calibration as JSON, whole or not at all.

    Raises
    ------
    InvalidInputError
        It has a number that `read_fits` would refuse, such as one that is not finite.
    """
    try:
        content = {
            "fits": [_content(one) for one in calibration.fits],
            "spreads": [
                {"link": link, "basis": basis, "left_out": n, "spread": round(spread, 4)}
                for (link, basis, n), spread in sorted(calibration.spreads.items())
            ],
            "fitted_files_sha256": list(calibration.digests),
        }
        _known(content)
    except (ValueError, OverflowError, SeqPointError) as error:
        raise InvalidInputError(f"{path}: not written: {error}") from error
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _content(one: CollectiveFit) -> dict[str, Any]:
    where, curve, band = one.topology, one.curve, one.band
    lines = zip(curve.starts_bytes, curve.alphas_s, curve.betas, strict=True)
    return {
        "kind": one.kind,
        "device": one.device,
        "fabric": where.fabric,
        "link": where.link,
        "workers": where.n_workers,
        "devices_per_node": where.devices_per_node,
        "node_devices": where.node_devices,
        "nics": where.nics,
        "rows": one.rows,
        "most_bytes": round(one.most_bytes),
        "lines": [
            {"from_bytes": _start(start), "alpha_us": round(1e6 * alpha, 3), "us_per_mb": float(f"{1e12 * beta:.5g}")}
            for start, alpha, beta in lines
        ],
        "measured_over_predicted": [
            {"from_bytes": _start(start), "low": round(low, 4), "high": round(high, 4)}
            for start, low, high in zip(band.starts_bytes, band.low, band.high, strict=True)
        ],
    }


def _start(size: float) -> float:
    """Return where a line starts: whole bytes, but where that could make two lines start at one."""
    return round(size) if size == 0 or size >= _WHOLE_BYTES else round(size, 6)


def read_fits(path: str | Path) -> CollectiveCalibration:
    """Read what `write_fits` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration; the place is named.
    """
    absent = "no such calibration; `seqpoint calibrate collectives` writes one"
    return read_calibration_file(path, absent, "not what `seqpoint calibrate collectives` writes", _known)


def _known(content: Mapping[str, Any]) -> CollectiveCalibration:
    fits = tuple(_fit_of(row) for row in content["fits"])
    spreads = {_key_of(row): _number(row, "spread", 0, _MOST_SPREAD) for row in content["spreads"]}
    digests = tuple(str(digest) for digest in content["fitted_files_sha256"])
    return CollectiveCalibration(fits, MappingProxyType(spreads), digests)


def _key_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    if row["link"] not in LINKS or row["basis"] not in _BASES:
        raise ValueError(f"a spread of {row['link']!r:.40}, {row['basis']!r:.40}")
    return row["link"], row["basis"], _whole(row, "left_out", 0)


def _fit_of(row: Mapping[str, Any]) -> CollectiveFit:
    if row["kind"] not in KINDS:
        raise ValueError(f"no collective is called {row['kind']!r:.40}")
    try:
        where = Topology(
            _whole(row, "workers", 2),
            _whole(row, "devices_per_node", 1),
            _whole(row, "node_devices", 1),
            str(row["fabric"]),
            _whole(row, "nics", 1) if "nics" in row else 0,
        )
        most = _number(row, "most_bytes", 1, MOST_BYTES)
        curve, band = _curve_of(row["lines"]), _band_of(row["measured_over_predicted"])
        rows = _whole(row, "rows", 1, MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"{row['kind']} on {row['device']}: {error}") from error
    return CollectiveFit(row["kind"], find_device(str(row["device"])).name, where, curve, band, rows, most)


def _curve_of(lines: list[Mapping[str, Any]]) -> Curve:
    curve = Curve(
        _starts(lines),
        tuple(_number(one, "alpha_us", 0, _MOST_TIME) / 1e6 for one in lines),
        tuple(_number(one, "us_per_mb", 0, _MOST_TIME) / 1e12 for one in lines),
    )
    if any(alpha + beta == 0 for alpha, beta in zip(curve.alphas_s, curve.betas, strict=True)):
        raise ValueError("a line of lines takes no time: alpha_us and us_per_mb are both 0")
    return curve


def _band_of(bounds: list[Mapping[str, Any]]) -> Band:
    low = tuple(_number(one, "low", 0, 1) for one in bounds)
    return Band(_starts(bounds), low, tuple(_number(one, "high", 1, math.exp(_MOST_SPREAD)) for one in bounds))


def _starts(rows: list[Mapping[str, Any]]) -> tuple[float, ...]:
    starts = tuple(_number(one, "from_bytes", 0, MOST_BYTES) for one in rows)
    if not starts or any(one >= other for one, other in pairwise(starts)):
        raise ValueError("from_bytes must ascend, over one row or more")
    return starts


def _number(row: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        shown = "beyond that" if isinstance(value, int) and abs(value) > 2**64 else f"{value!r:.40}"
        raise ValueError(f"a number cannot be: {name} is {shown}, not {least:g} to {most:g}")
    return float(value)


def _whole(row: Mapping[str, Any], name: str, least: int, most: int = MOST_WORKERS) -> int:
    number = _number(row, name, least, most)
    if number != int(number):
        raise ValueError(f"{name} is {number:g}; it must be whole")
    return int(number)


@cache
def load_collectives() -> CollectiveCalibration:
    """Return the shipped calibration."""
    return read_fits(dataset_path("fits/collectives.json"))
