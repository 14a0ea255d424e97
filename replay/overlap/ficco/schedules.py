"""Ways to run a product beside the transfer that it waits for, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from profilers.errors import NotFoundError

__all__ = ["CANDIDATES", "SCHEDULES", "STUDIED", "Schedule", "find_schedule"]


@dataclass(frozen=True)
class Schedule:
    """How a transfer and its product are cut, and in what order the pieces go.

    Parameters
    ----------
    name : str
    transfer : str
        What comes at a time: ``"whole"`` collective, ``"shards"`` (one peer's at a time), or ``"pieces"`` of the
        shards of all peers.
    shape : str
        Of a piece: ``"1D"`` (rows of the left operand, whole), or ``"2D"`` (a block: a shard's rows, and part of the
        depth).
    order : str
        ``"uniform"`` (a step takes its piece of each shard, the local one too), or ``"heterogeneous"`` (the whole
        local shard first).
    kernels : str
        Of a step: ``"fused"`` (one for all peers' pieces), or ``"unfused"`` (one for each, on a stream of its own).
    """

    name: str
    transfer: str = "pieces"
    shape: str = "1D"
    order: str = "uniform"
    kernels: str = "fused"


#: By name: two baselines, then those that the paper studies.
SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        one.name: one
        for one in (
            Schedule("serial", transfer="whole"),
            Schedule("shards", transfer="shards", order="heterogeneous"),
            Schedule("uniform_fused_1d"),
            Schedule("hetero_fused_1d", order="heterogeneous"),
            Schedule("hetero_unfused_1d", order="heterogeneous", kernels="unfused"),
            Schedule("uniform_fused_2d", shape="2D"),
        )
    }
)
#: Those of arXiv 2512.10236.
STUDIED = tuple(name for name, one in SCHEDULES.items() if one.transfer == "pieces")
#: What the chooser chooses from.
CANDIDATES = ("serial", *STUDIED)


def find_schedule(name: str) -> Schedule:
    """Return a schedule by name.

    Raises
    ------
    NotFoundError
        There is none of that name; those that are there are listed.

    Examples
    --------
    >>> find_schedule("uniform_fused_2d").shape
    '2D'
    """
    if name not in SCHEDULES:
        raise NotFoundError(f"no schedule is called {name[:40]!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]
