"""`Schedule`: in which order a persistent kernel computes the slices of its output."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.overlap.fused.cluster import Cluster
from replay.sizes import checked_size

__all__ = ["ORDERS", "Schedule", "Slices", "common_slices", "slices_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Orders of the logical workgroups.
ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "remote_first": "what other nodes wait for, then what peers of the node wait for, then the rank's own",
        "local_first": "the rank's own, then as remote_first",
        "ascending": "by the receiver's rank, the same on every rank: a kernel that knows nothing of what it sends",
    }
)
_MOST_PARTS = 2**14


@dataclass(frozen=True)
class Schedule:
    """How a fused kernel cuts its work.

    Parameters
    ----------
    order : str
        One of `ORDERS`.
    parts : int
        Slices for each destination; never more than it has workgroups.
    variation : float
        Standard deviation of the logarithm of a slice's work.
    seed : int
        Of the variation.

    Raises
    ------
    InvalidInputError
        There is no such order, or a number is out of range.
    """

    order: str = "remote_first"
    parts: int = 8
    variation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidInputError(f"no order {self.order!r}; there are {', '.join(ORDERS)}")
        object.__setattr__(self, "parts", checked_size("parts", self.parts, _MOST_PARTS))
        if not 0 <= self.variation <= 3:
            raise InvalidInputError(f"a variation of {self.variation}; give 0 to 3")

    def is_symmetric(self) -> bool:
        """Whether one rank stands for all: each computes the same amounts, at the same places in its order."""
        return self.order != "ascending" and self.variation == 0


@dataclass(frozen=True)
class Slices:
    """The slices of one rank in the order in which it computes them.

    Parameters
    ----------
    offset : array of int64
        Of the destination (`Cluster`).
    part : array of int64
        Which of the destination's slices.
    work : array of float64
        Share of the whole, 1 together where nothing varies.
    """

    offset: Ints
    part: Ints
    work: Floats

    def __len__(self) -> int:
        return len(self.offset)


def slices_of(cluster: Cluster, schedule: Schedule, rank: int, workgroups: int) -> Slices:
    """Return what `rank` computes, slice after slice.

    Parameters
    ----------
    cluster : Cluster
    schedule : Schedule
    rank : int
    workgroups : int
        Of the whole: no slice is smaller than one.

    Notes
    -----
    Destinations of a kind take turns, so that their links carry equal amounts; in the ascending order each is done at
    once.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.collectives import Topology
    >>> pair = Cluster(find_device("MI210"), Topology(2, 1, nics=1))
    >>> slices_of(pair, Schedule(parts=2), 0, 64).offset.tolist()
    [1, 1, 0, 0]
    """
    parts = min(schedule.parts, max(workgroups // cluster.ranks, 1))
    each = np.arange(parts)
    if schedule.order == "ascending":
        offset = np.repeat(cluster.offset(rank, np.arange(cluster.ranks)), parts)
        part = np.tile(each, cluster.ranks)
    else:
        kinds = [cluster.network_offsets, cluster.peer_offsets]
        own = np.zeros(1, np.int64)
        groups = [own, *kinds] if schedule.order == "local_first" else [*kinds, own]
        offset = np.concatenate([np.tile(group, parts) for group in groups])
        part = np.concatenate([np.repeat(each, len(group)) for group in groups])
    return Slices(offset, part, _work(schedule, rank, offset * parts + part))


def common_slices(schedule: Schedule, rank: int, workgroups: int) -> Slices:
    """Return what `rank` computes where every rank needs all of it, in an order that is the same on all.

    Parameters
    ----------
    schedule : Schedule
    rank : int
    workgroups : int
        Of the whole: no slice is smaller than one.

    Examples
    --------
    >>> common_slices(Schedule(parts=2), 0, 64).work.tolist()
    [0.5, 0.5]
    """
    part = np.arange(min(schedule.parts, workgroups))
    return Slices(np.zeros_like(part), part, _work(schedule, rank, part))


def _work(schedule: Schedule, rank: int, slices: Ints) -> Floats:
    """Return each slice's share of the work; it is the slice's own, whatever the order, and one on average."""
    n = len(slices)
    drawn = np.random.default_rng((schedule.seed, rank)).standard_normal(n)
    spread = schedule.variation
    return np.exp(spread * drawn[slices] - spread**2 / 2) / n
