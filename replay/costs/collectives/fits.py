"""Fits of measured collectives: curves of time over size, their spread, and their calibration file.

A curve has one alpha-beta line for each range of sizes, because libraries switch algorithm and protocol by size. Beside
the curve, a fit holds bounds of measured over predicted times on sizes that were not fitted. `CollectiveCalibration`
holds all fits, and how far predictions of other groups were off.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats, Ints
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.costs.collectives.algorithms import KINDS, LINKS, MOST_BYTES, MOST_GBPS, MOST_WORKERS, Topology

#: Lines that a curve has at most, and measurements that one needs at least.
_MOST_LINES, _LEAST_ROWS = 10, 6
#: Sizes that a curve through points needs at least.
LEAST_POINTS = 3
#: Libraries that run a collective: NCCL by itself; NCCL launched from PyTorch, launch included; the all-reduce of an
#: inference framework, replayed in a CUDA graph, or launched one by one.
LIBRARIES = ("nccl", "torch", "custom", "custom_eager")
#: Factor of sizes that a line spans at least. Beyond the largest measured size, a line fitted to the sizes from half of
#: the largest on continues the curve.
_SPAN, _LARGE = 1.25, 0.5
#: Measurements that a curve looks at: finding where lines end takes the square of their number. Of more, medians.
_MOST_ROWS = 1500
#: Share of the error on the other half by which more lines must lower it, or fewer lines are taken.
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
        exact = np.asarray(sizes, dtype=np.float64)
        line = _range_of(self.starts_bytes, exact)
        return np.asarray(np.array(self.alphas_s)[line] + np.array(self.betas)[line] * exact)

    def rising(self, sizes: npt.ArrayLike) -> Floats:
        """Return the least time of each size and all larger sizes.

        A message can be sent as a longer one, so no longer message takes less time.

        Examples
        --------
        >>> Curve((0.0, 100.0), (5.0, 2.0), (0.0, 0.01)).rising([50, 200]).tolist()
        [3.0, 4.0]
        """
        exact = np.asarray(sizes, dtype=np.float64)
        starts = np.array(self.starts_bytes)
        begins = np.array(self.alphas_s) + np.array(self.betas) * starts
        later = np.append(np.minimum.accumulate(begins[::-1])[::-1], np.inf)
        return np.asarray(np.minimum(self.seconds(exact), later[np.searchsorted(starts, exact, side="right")]))


def _range_of(starts: tuple[float, ...], sizes: Floats) -> Ints:
    """Return the number of the range that holds each size; the first range also holds smaller sizes."""
    return np.maximum(np.searchsorted(np.array(starts), sizes, side="right") - 1, 0)


def fit_curve(sizes: Floats, seconds: Floats, limit: float | None = None) -> Curve:
    """Fit lines to measured times, as many as halves of the measurements agree on.

    Parameters
    ----------
    sizes, seconds : array of float64, shape (n,)
        Bytes and seconds, above zero, in any order.
    limit : float, optional
        Seconds a byte that the links allow. Sizes beyond the largest measured one then take the geometric mean of the
        limit and of the rate of the largest ones: the larger a message, the nearer it comes to the limit.

    Raises
    ------
    InvalidInputError
        There are fewer than six sizes.

    Notes
    -----
    Dynamic programming over the sorted sizes finds where one line ends and the next begins, by the squares of the
    relative errors. Each line is then fitted to the least mean of the absolute relative errors. The number of lines
    is the least whose error, fitted on one half of the measurements and scored on the other, is near the best. More
    than 1500 measurements are thinned to the median of each size, and still more sizes to medians of ranges of sizes.
    """
    if (count := len(np.unique(sizes))) < _LEAST_ROWS:
        raise InvalidInputError(f"{count} sizes were measured; a fit needs {_LEAST_ROWS} or more")
    order = np.lexsort((seconds, sizes))
    x, t = _thinned(sizes[order], seconds[order])
    halves = ((x[::2], t[::2], x[1::2], t[1::2]), (x[1::2], t[1::2], x[::2], t[::2]))
    most = max(1, min(_MOST_LINES, len(x) // 2 // _LEAST_ROWS))
    errors = np.zeros(most)
    for fitted_x, fitted_t, scored_x, scored_t in halves if most > 1 else ():
        for lines, ends in enumerate(_ends(fitted_x, fitted_t, most)):
            errors[lines] += np.mean(np.abs(_curve(fitted_x, fitted_t, ends).seconds(scored_x) / scored_t - 1))
    chosen = int(np.flatnonzero(errors <= errors.min() * (1 + _WORTH))[0])
    return _beyond(_curve(x, t, _ends(x, t, most)[chosen]), x, t, limit)


def _thinned(x: Floats, t: Floats) -> tuple[Floats, Floats]:
    """Return medians of sizes and times if there are too many: by size, then by range on a logarithmic scale."""
    if len(x) <= _MOST_ROWS:
        return x, t
    x, t = _medians(x, t, np.unique(x, return_inverse=True)[1])
    if len(x) <= _MOST_ROWS:
        return x, t
    position = np.log(x / x[0]) / np.log(x[-1] / x[0]) * _MOST_ROWS
    return _medians(x, t, np.minimum(position.astype(np.int64), _MOST_ROWS - 1))


def _medians(x: Floats, t: Floats, group: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the lower median of size and of time of each group; `x` and `group` ascend together."""
    starts = np.flatnonzero(np.concatenate(([True], group[1:] > group[:-1])))
    middle = (starts + np.append(starts[1:], len(group)) - 1) // 2
    return x[middle], t[np.lexsort((t, group))][middle]


def _beyond(curve: Curve, x: Floats, t: Floats, limit: float | None) -> Curve:
    """Return the curve with a line for sizes beyond the largest measured one."""
    large = x >= _LARGE * x[-1]
    if large.sum() < _LEAST_ROWS:
        return curve
    alpha, beta = _line(x[large], t[large])
    if limit is not None and limit < beta:
        end = alpha + beta * x[-1]
        beta = float(min(np.sqrt(limit * beta), end / x[-1]))
        alpha = float(end - beta * x[-1])
    return Curve((*curve.starts_bytes, float(x[-1])), (*curve.alphas_s, alpha), (*curve.betas, beta))


def _ends(x: Floats, t: Floats, most: int) -> list[list[int]]:
    """Return where 1 to `most` lines end (exclusive), best by the squares of relative errors."""
    n, costs = len(x), _costs(x, t)
    best = costs[0].copy()
    back, ends_of = [], [[n]]
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
        ends_of.append([end for end in reversed(ends) if end > 0] if np.isfinite(best[n]) else ends_of[-1])
    return ends_of


def _costs(x: Floats, t: Floats) -> Floats:
    """Return the sum of squares of the relative errors of the best line over rows i to j, shape (n + 1, n + 1)."""
    n = len(x)
    scale = x.mean()
    u, v = 1 / t, x / scale / t
    sums = [np.concatenate(([0.0], np.cumsum(terms))) for terms in (u * u, u * v, v * v, u, v)]
    suu, suv, svv, su, sv = (total[None, :] - total[:, None] for total in sums)
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
    allowed = (count >= _LEAST_ROWS) & (wide | (count == n)) & apart[:, None] & apart[None, :]
    return np.where(allowed, np.maximum(cost, 0.0), np.inf)


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
    suu, suv, svv, su, sv = (float(np.sum(weight * terms)) for terms in (u * u, u * v, v * v, u, v))
    determinant = suu * svv - suv * suv
    if determinant > 1e-12 * suu * svv:
        a, b = (svv * su - suv * sv) / determinant, (suu * sv - suv * su) / determinant
        if a >= 0 and b >= 0:
            return a, b
        if a < 0:
            return 0.0, sv / svv
    return su / suu, 0.0


def point_curve(sizes: Floats, seconds: Floats) -> Curve:
    """Return a curve through a few measured sizes.

    Parameters
    ----------
    sizes, seconds : array of float64, shape (n,)
        Bytes, ascending without doubles, and seconds, above zero. There are two sizes or more.

    Notes
    -----
    Around each point, time goes with the power of the size that its neighbours show, as a line with that slope; the
    power is kept between 0 and 1. Lines meet halfway between the points, on a logarithmic scale.

    Examples
    --------
    >>> point_curve(np.array([1.0, 4.0, 16.0]), np.array([5.0, 5.0, 20.0])).seconds([1, 4, 16, 32]).tolist()
    [5.0, 5.0, 20.0, 40.0]
    """
    x, t = np.log(sizes), np.log(seconds)
    slopes = np.diff(t) / np.diff(x)
    power = np.concatenate((slopes[:1], (slopes[1:] + slopes[:-1]) / 2, slopes[-1:])).clip(0.0, 1.0)
    starts = np.concatenate((sizes[:1], np.sqrt(sizes[1:] * sizes[:-1])))
    return Curve(
        tuple(starts.tolist()), tuple(((1 - power) * seconds).tolist()), tuple((power * seconds / sizes).tolist())
    )


@dataclass(frozen=True)
class Band:
    """Bounds of measured over predicted times, by size.

    Parameters
    ----------
    starts_bytes : tuple of float
        Size from which each bound holds, ascending; the first also holds below.
    low, high : tuple of float
        Lower and upper bounds.
    """

    starts_bytes: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound at each size."""
        row = _range_of(self.starts_bytes, sizes)
        return np.array(self.low)[row], np.array(self.high)[row]


@dataclass(frozen=True)
class CollectiveFit:
    """The fit of one collective of one group of workers.

    Parameters
    ----------
    kind : str
        One of `replay.costs.collectives.KINDS`.
    device : str
        Name in the catalogue.
    topology : Topology
        Group of workers that was measured.
    curve : Curve
        Fitted time by size.
    band : Band
        Bounds on sizes that were not fitted.
    rows : int
        Number of measurements.
    most_bytes : float
        Largest size that was measured.
    library : str
        One of `LIBRARIES`.
    """

    kind: str
    device: str
    topology: Topology
    curve: Curve
    band: Band
    rows: int
    most_bytes: float
    library: str = "nccl"


@dataclass(frozen=True)
class CollectiveCalibration:
    """All fits, and how far predictions of groups that were not fitted are off.

    Parameters
    ----------
    fits : tuple of CollectiveFit
        One fit for each measured group and kind.
    spreads : mapping of (str, str, int) to float
        90 % quantile of the absolute logarithmic error for groups that were not fitted, by kind of link, evidence
        (``"carried"`` from the same links, ``"device"`` from others, ``"custom"``, ``"prior"``), and the number of
        workers that was left out (0: none).
    digests : tuple of str
        SHA-256 of the files that were fitted.
    left_out : int
        The number of workers whose groups were left out; 0 for none.
    """

    fits: tuple[CollectiveFit, ...] = ()
    spreads: Mapping[tuple[str, str, int], float] = field(default_factory=lambda: MappingProxyType({}))
    digests: tuple[str, ...] = ()
    left_out: int = 0

    def own(self, kind: str, topology: Topology, device: Device, library: str = "nccl") -> CollectiveFit | None:
        """Return the fit of a group: the same workers, fabric and links; that of the device itself before others.

        Between nodes whose adapters are given, the adapters are the same, too. Where NCCL was measured in one way only,
        that fit stands for the other.
        """
        size = (topology.n_workers, topology.devices_per_node)
        fits = [
            fit
            for fit in self.fits
            if fit.kind == kind
            and (fit.topology.n_workers, fit.topology.devices_per_node) == size
            and same_place(fit, topology, device)
            and (same_network(fit, topology) or is_group_on_unknown_network(fit, topology))
            and (fit.topology.network == topology.network or ":" not in fit.topology.network)
            and same_library(fit, library)
        ]
        return min(fits, key=lambda fit: (fit.library != library, fit.device != device.name), default=None)

    def without_workers(self, n_workers: int) -> Self:
        """Return the calibration without the groups of a number of workers."""
        kept = tuple(fit for fit in self.fits if fit.topology.n_workers != n_workers)
        return replace(self, fits=kept, left_out=n_workers)

    def without_device(self, device: Device) -> Self:
        """Return the calibration without the groups of devices with the same links as `device`."""
        return replace(self, fits=tuple(fit for fit in self.fits if not same_links(fit, device)))


def same_place(fit: CollectiveFit, topology: Topology, device: Device) -> bool:
    """Return whether a fit is of the same fabric, and of a device with the same links."""
    return fit.topology.fabric == topology.fabric and same_links(fit, device)


def same_network(fit: CollectiveFit, topology: Topology) -> bool:
    """Return whether a fit is of the network of `topology`, as far as its adapters and its name are given.

    A network of adapters without a name is not Ethernet, whose TCP leaves most of the bandwidth unused.
    """
    if topology.link != "network":
        return True
    if not topology.nic_gbps:
        nodes = [(each.nic_gbps, each.nics, each.node_devices) for each in (fit.topology, topology)]
        return nodes[0] == nodes[1]
    name, wanted = fit.topology.network, topology.network
    is_named = name == wanted or name.startswith(f"{wanted}:") if wanted else not name.startswith("ethernet")
    return is_named and (fit.topology.nics, fit.topology.nic_gbps) == (topology.nics, topology.nic_gbps)


def is_group_on_unknown_network(fit: CollectiveFit, topology: Topology) -> bool:
    """Return whether a fit is of as many workers and nodes, and neither says anything of its adapters."""
    groups = [(each.n_workers, each.devices_per_node, each.nic_gbps) for each in (fit.topology, topology)]
    return groups[0] == groups[1] and not topology.nic_gbps


def same_library(fit: CollectiveFit, library: str) -> bool:
    """Return whether a fit is of the library, or both are NCCL, launched in one way or another."""
    return fit.library == library or {fit.library, library} == {"nccl", "torch"}


def same_links(fit: CollectiveFit, device: Device) -> bool:
    """Return whether the links of a fit's device are those of `device`, as with A100 of 40 and of 80 GB."""
    fitted = find_device(fit.device)
    rates = [each.figures["link_gbps"].value if "link_gbps" in each.figures else 0.0 for each in (fitted, device)]
    return fitted.architecture == device.architecture and rates[0] == rates[1]


#: Times of a calibration file, in us and in us a MB: ten thousand years are no collective.
_Time = Annotated[float, msgspec.Meta(ge=0, le=3e17)]
#: Sizes of a calibration file, bytes.
_Size = Annotated[float, msgspec.Meta(ge=0, le=float(MOST_BYTES))]
#: Spread of a calibration file: e^100 is still a number.
_MOST_SPREAD = 100.0
_Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)]
#: Sizes are written in whole bytes from here on.
_WHOLE_BYTES = 1000.0
#: Characters of a text that errors show.
_SHOWN = 40


class LineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a curve, as a calibration file holds it."""

    from_bytes: _Size
    alpha_us: _Time
    us_per_mb: _Time


class BandRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured over predicted times from one size on, as a calibration file holds it."""

    from_bytes: _Size
    low: Annotated[float, msgspec.Meta(ge=0, le=1)]
    high: Annotated[float, msgspec.Meta(ge=1, le=math.exp(_MOST_SPREAD))]


class CollectiveFitRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of one group of workers, as a calibration file holds it; fields as in `CollectiveFit` and `Topology`."""

    kind: str
    device: str
    fabric: str
    link: str
    workers: Annotated[int, msgspec.Meta(ge=2, le=MOST_WORKERS)]
    devices_per_node: _Count
    node_devices: _Count
    rows: Annotated[int, msgspec.Meta(ge=1)]
    most_bytes: Annotated[float, msgspec.Meta(ge=1, le=float(MOST_BYTES))]
    lines: tuple[LineRow, ...]
    measured_over_predicted: tuple[BandRow, ...]
    nics: _Count | None = None
    nic_gbps: Annotated[float, msgspec.Meta(gt=0, le=MOST_GBPS)] | None = None
    network: str = ""
    library: str = "nccl"


class SpreadRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `CollectiveCalibration.spreads`, as a calibration file holds it."""

    link: str
    basis: Literal["carried", "device", "custom", "prior"]
    left_out: Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)]
    spread: Annotated[float, msgspec.Meta(ge=0, le=_MOST_SPREAD)]


class CollectiveFits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a calibration file of collectives."""

    fits: tuple[CollectiveFitRow, ...]
    spreads: tuple[SpreadRow, ...]
    fitted_files_sha256: tuple[str, ...]


def write_collective_calibration(path: Path, calibration: CollectiveCalibration) -> None:
    """Write a calibration of collectives, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file to write or replace.
    calibration : CollectiveCalibration
        Fits to write.

    Raises
    ------
    InvalidInputError
        It has a number that `read_collective_calibration` would refuse, such as one that is not finite.
    """
    try:
        fits = tuple(map(_row_of, calibration.fits))
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"{path}: not written: {error}") from error
    spreads = tuple(
        SpreadRow(link, basis, left_out, round(spread, 4))  # type: ignore[arg-type]
        for (link, basis, left_out), spread in sorted(calibration.spreads.items())
    )
    devices = sorted({fit.device for fit in calibration.fits})
    source = f"{len(calibration.digests)} tables of measured collectives"
    _LAYOUT.write(path, CollectiveFits(fits, spreads, calibration.digests), devices=devices, source=source)


def _row_of(fit: CollectiveFit) -> CollectiveFitRow:
    topology, curve, band = fit.topology, fit.curve, fit.band
    lines = tuple(
        LineRow(_start(start), round(1e6 * alpha, 3), float(f"{1e12 * beta:.5g}"))
        for start, alpha, beta in zip(curve.starts_bytes, curve.alphas_s, curve.betas, strict=True)
    )
    bounds = tuple(
        BandRow(_start(start), round(low, 4), round(high, 4))
        for start, low, high in zip(band.starts_bytes, band.low, band.high, strict=True)
    )
    group = (topology.fabric, topology.link, topology.n_workers, topology.devices_per_node, topology.node_devices)
    network = (topology.nics, topology.nic_gbps or None, topology.network, fit.library)
    return CollectiveFitRow(fit.kind, fit.device, *group, fit.rows, round(fit.most_bytes), lines, bounds, *network)


def _start(size: float) -> float:
    """Return the start of a line in whole bytes; small starts keep digits, so that no two become the same."""
    return round(size) if size == 0 or size >= _WHOLE_BYTES else round(size, 6)


def read_collective_calibration(path: str | Path) -> CollectiveCalibration:
    """Read a calibration of collectives.

    Parameters
    ----------
    path : str or Path
        JSON file that `write_collective_calibration` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration of collectives; the key is named.
    """
    return _LAYOUT.read(path)


def _calibration_of(content: CalibrationFile[CollectiveFits]) -> CollectiveCalibration:
    file = content.fit
    if wrong := [row.link for row in file.spreads if row.link not in LINKS]:
        raise ValueError(f"a spread of the link {wrong[0][:_SHOWN]!r}; there are {', '.join(LINKS)}")
    spreads = {(row.link, str(row.basis), row.left_out): row.spread for row in file.spreads}
    fits = tuple(map(_fit_of, file.fits))
    return CollectiveCalibration(fits, MappingProxyType(spreads), file.fitted_files_sha256)


def _fit_of(row: CollectiveFitRow) -> CollectiveFit:
    if row.kind not in KINDS:
        raise ValueError(f"no collective is called {row.kind[:_SHOWN]!r}")
    try:
        network = (row.nics or 0, row.nic_gbps or 0.0, row.network)
        topology = Topology(row.workers, row.devices_per_node, row.node_devices, row.fabric, *network)
        lines, bounds = row.lines, row.measured_over_predicted
        if any(line.alpha_us + line.us_per_mb == 0 for line in lines):
            raise ValueError("a line of lines takes no time: alpha_us and us_per_mb are both 0")
        alphas, betas = (line.alpha_us / 1e6 for line in lines), (line.us_per_mb / 1e12 for line in lines)
        curve = Curve(_starts(lines), tuple(alphas), tuple(betas))
        band = Band(_starts(bounds), tuple(row.low for row in bounds), tuple(row.high for row in bounds))
    except (ValueError, InvalidInputError) as error:
        raise ValueError(f"{row.kind} on {row.device[:_SHOWN]}: {error}") from error
    if row.library not in LIBRARIES:
        raise ValueError(f"{row.kind} on {row.device[:_SHOWN]}: no library is called {row.library[:_SHOWN]!r}")
    group = (row.kind, find_device(row.device).name, topology)
    return CollectiveFit(*group, curve, band, row.rows, row.most_bytes, row.library)


def _starts(rows: Sequence[LineRow | BandRow]) -> tuple[float, ...]:
    starts = tuple(row.from_bytes for row in rows)
    if not starts or any(first >= second for first, second in pairwise(starts)):
        raise ValueError("from_bytes must ascend, over one row or more")
    return starts


_LAYOUT = CalibrationLayout("collectives", CollectiveFits, _calibration_of)


@cache
def load_collectives() -> CollectiveCalibration:
    """Return the shipped calibration."""
    return read_collective_calibration(dataset_path("fits/collectives.json"))
