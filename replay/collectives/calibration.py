"""Fits of measured collectives, and how far predictions are off."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from profilers.devices import Device, find_device
from replay.collectives.curve import Curve
from replay.collectives.topology import Topology

__all__ = ["Band", "CollectiveCalibration", "CollectiveFit", "same_group", "same_links", "same_place"]

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
