"""Fits of measured collectives, how far predictions are off, and the file that holds both."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from profilers.atomic import write_text
from profilers.datasets import dataset_path
from profilers.devices import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from replay.collectives.algorithms import KINDS
from replay.collectives.curve import Curve
from replay.collectives.topology import Topology

__all__ = ["Band", "CollectiveCalibration", "CollectiveFit", "load_collectives", "read_fits", "write_fits"]

Floats = npt.NDArray[np.float64]


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
        """Return the fit of a group: the same workers, fabric and links."""
        for one in self.fits:
            if one.kind == kind and same_place(one, topology, device) and same_group(one.topology, topology):
                return one
        return None

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


def write_fits(path: Path, calibration: CollectiveCalibration) -> None:
    """Write a calibration as JSON, whole or not at all."""
    content = {
        "fits": [_content(one) for one in calibration.fits],
        "spreads": [
            {"link": link, "basis": basis, "left_out": n, "spread": round(spread, 4)}
            for (link, basis, n), spread in sorted(calibration.spreads.items())
        ],
        "fitted_files_sha256": list(calibration.digests),
    }
    write_text(path, json.dumps(content, indent=1) + "\n")


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
        "rows": one.rows,
        "most_bytes": round(one.most_bytes),
        "lines": [
            {"from_bytes": round(start), "alpha_us": round(1e6 * alpha, 3), "us_per_mb": float(f"{1e12 * beta:.5g}")}
            for start, alpha, beta in lines
        ],
        "measured_over_predicted": [
            {"from_bytes": round(start), "low": round(low, 4), "high": round(high, 4)}
            for start, low, high in zip(band.starts_bytes, band.low, band.high, strict=True)
        ],
    }


def read_fits(path: str | Path) -> CollectiveCalibration:
    """Read what `write_fits` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or its content is no calibration; the place is named.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"{file}: no such calibration; `seqpoint calibrate collectives` writes one")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        fits = tuple(_fit_of(row) for row in content["fits"])
        spreads = {
            (str(row["link"]), str(row["basis"]), int(row["left_out"])): float(row["spread"])
            for row in content["spreads"]
        }
        digests = tuple(str(one) for one in content["fitted_files_sha256"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SeqPointError) as error:
        raise InvalidInputError(f"{file}: not what `seqpoint calibrate collectives` writes ({error!r})") from error
    return CollectiveCalibration(fits, MappingProxyType(spreads), digests)


def _fit_of(row: Mapping[str, Any]) -> CollectiveFit:
    lines, bounds = row["lines"], row["measured_over_predicted"]
    curve = Curve(
        tuple(float(one["from_bytes"]) for one in lines),
        tuple(float(one["alpha_us"]) / 1e6 for one in lines),
        tuple(float(one["us_per_mb"]) / 1e12 for one in lines),
    )
    band = Band(*(tuple(float(one[name]) for one in bounds) for name in ("from_bytes", "low", "high")))
    numbers = np.array([*curve.alphas_s, *curve.betas, *band.low, *band.high])
    if row["kind"] not in KINDS or not lines or not bounds or not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise ValueError(f"a number of {row['kind']} on {row['device']} cannot be")
    where = Topology(int(row["workers"]), int(row["devices_per_node"]), int(row["node_devices"]), str(row["fabric"]))
    name = find_device(str(row["device"])).name
    return CollectiveFit(row["kind"], name, where, curve, band, int(row["rows"]), float(row["most_bytes"]))


@cache
def load_collectives() -> CollectiveCalibration:
    """Return the shipped calibration."""
    return read_fits(dataset_path("fits/collectives.json"))
