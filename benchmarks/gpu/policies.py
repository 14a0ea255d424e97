"""`Abilities`: what a machine can of what a plan asks; and the policies under which two works share it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu.occupancy import UnitLimits
from benchmarks.gpu.ptx_launches import FEATURE, capability_of, needed_capability
from benchmarks.gpu.scenarios import Scenario
from benchmarks.gpu.step import Member
from benchmarks.gpu.work import Work

__all__ = ["LAG_NS", "Abilities", "paired"]

#: By which the second of two is let go later: without, which one a device takes up first is its own affair.
LAG_NS = 5_000
#: Of the compute capability; older devices have no clusters.
CLUSTERS_SINCE = 90


@dataclass(frozen=True)
class Abilities:
    """What a machine is and can, as a plan needs it.

    Parameters
    ----------
    units : int
    cache_bytes : int
        Of the last cache.
    features : frozenset of str
        As `Machine.features`.
    twins : frozenset of str
        Kinds of work that it does in another way than a GPU.
    partitions : tuple of (int, int)
        Disjoint parts that its compute units can be split in.
    unit : UnitLimits
        Of a compute unit.
    capability : int, optional
        Compute capability, such as 90; of a GPU of NVIDIA.
    """

    units: int
    cache_bytes: int
    features: frozenset[str]
    twins: frozenset[str] = frozenset()
    partitions: tuple[tuple[int, int], ...] = ()
    unit: UnitLimits = field(default_factory=UnitLimits)
    capability: int | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any], most_cache_bytes: int) -> "Abilities":
        """Return what `Machine.facts` tells; an unknown cache is taken to be of `most_cache_bytes`."""
        return cls(
            int(facts["compute_units"]),
            min(int(facts.get("l2_bytes") or most_cache_bytes), most_cache_bytes),
            frozenset(facts.get("features", ())),
            frozenset(facts.get("twins", ())),
            tuple((int(first), int(rest)) for first, rest in facts.get("partitions", ())),
            UnitLimits.of(facts),
            capability_of(facts),
        )

    def lacks(self, work: Work) -> str:
        """Return the feature that a work needs and this machine has not; empty where it can."""
        if work.residency is not None and "residency" not in self.twins:
            least = CLUSTERS_SINCE if work.residency.cluster > 1 else 0
            return ", ".join(sorted({FEATURE, *needed_capability(self.capability, least)} - self.features))
        needed = {"copy_engine"} if work.kind == "copy_engine" else set()
        if work.kind == "zero_copy":
            needed = {"triton", "pinned"}
        elif work.hint == "streaming" or (work.kind == "copy_kernel" and work.blocks and work.kind not in self.twins):
            needed = {"triton"}
        return ", ".join(sorted(needed - self.features))

    def partition_near(self, units: int) -> tuple[int, int] | None:
        """Return the smallest split whose first part has so many units, and the second no fewer."""
        fitting = [split for split in self.partitions if units <= split[0] <= split[1]]
        return min(fitting, default=None)


def paired(sides: Sequence[Work], abilities: Abilities, label: str = "", units: int = 0) -> Iterator[Scenario | str]:
    """Yield the scenarios of two works under every policy; for one that cannot be had, what is missing.

    Parameters
    ----------
    sides : sequence of Work
        Two; the second is what a policy favours: the transfer, or the lesser kernel.
    abilities : Abilities
    label : str
        Before each policy's name: a carrier.
    units : int
        That a partition gives the second side; 0 for no partition.
    """
    a, b = sides
    before = f"{label} " if label else ""
    yield Scenario(f"{before}in order", ((0, Member(a)), (1, Member(b, lag_ns=LAG_NS))))
    yield Scenario(f"{before}reverse order", ((1, Member(b)), (0, Member(a, lag_ns=LAG_NS))))
    yield Scenario(f"{before}at once", ((0, Member(a)), (1, Member(b))))
    if "priorities" in abilities.features:
        yield Scenario(f"{before}priority", ((0, Member(a)), (1, Member(b, priority=1, lag_ns=LAG_NS))))
        yield Scenario(f"{before}priority of the first", ((1, Member(b)), (0, Member(a, priority=1, lag_ns=LAG_NS))))
    else:
        yield "priorities"
    if not units:
        return
    split = abilities.partition_near(units)
    if split is None:
        yield "partitions"
    else:
        members = ((0, Member(a, units=split[1])), (1, Member(b, units=split[0], lag_ns=LAG_NS)))
        yield Scenario(f"{before}partition {split[0]}", members)
