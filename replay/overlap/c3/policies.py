"""Ways to run a product and a collective side by side, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from profilers.errors import NotFoundError

__all__ = ["PARTITIONS", "POLICIES", "Policy", "find_policy"]

#: Compute units that a partition can have for the collective.
PARTITIONS = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Policy:
    """How a product and a collective share a device.

    Parameters
    ----------
    name : str
    carrier : str
        What moves the collective's bytes: ``"units"`` (a kernel) or ``"dma"`` (copies on DMA engines).
    order : str
        What is dispatched first: ``"product"``, ``"transfer"``, ``"fewest workgroups"``, or ``"either"`` as it
        happens.
    partition : str
        Of the compute units: ``"none"``, or ``"chosen"`` among `PARTITIONS` by the run-time's rule.
    spared : int
        Compute units that memory-bound products leave idle.
    """

    name: str
    carrier: str = "units"
    order: str = "either"
    partition: str = "none"
    spared: int = 0


#: By name, in the order in which the paper brings them; before them, what order can cost at most.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        one.name: one
        for one in (
            Policy("c3_product_first", order="product"),
            Policy("c3_base"),
            Policy("c3_sp", order="fewest workgroups"),
            Policy("c3_rp", partition="chosen"),
            Policy("c3_sp_rp", order="fewest workgroups", partition="chosen"),
            Policy("conccl", carrier="dma"),
            Policy("conccl_rp", carrier="dma", spared=8),
        )
    }
)


def find_policy(name: str) -> Policy:
    """Return a policy by name.

    Raises
    ------
    NotFoundError
        There is none of that name; those that are there are listed.

    Examples
    --------
    >>> find_policy("conccl").carrier
    'dma'
    """
    if name not in POLICIES:
        raise NotFoundError(f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]
