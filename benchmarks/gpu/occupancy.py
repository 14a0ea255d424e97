"""`Residency`: what a workgroup holds of a compute unit; and `UnitLimits`: how many workgroups that leaves room for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["VECTOR_BYTES", "Residency", "UnitLimits"]

#: That a thread loads or stores at a time.
VECTOR_BYTES = 16
#: Registers that a kernel of ours needs beside its accumulators, or beside its loads in flight.
COMPUTING, MOVING = 8, 12
WARP, PARTITIONS, REGISTER_STEP, SHARED_STEP = 32, 4, 256, 128


@dataclass(frozen=True)
class Residency:
    """What a workgroup of a kernel of ours holds, and of how many a cluster is.

    Parameters
    ----------
    threads : int
    registers : int
        Of a thread; a multiple of 8, as they are dealt out.
    shared_bytes : int
        Dynamic shared memory.
    cluster : int
        Workgroups that are dispatched together.
    """

    threads: int
    registers: int
    shared_bytes: int = 0
    cluster: int = 1

    def __str__(self) -> str:
        """Return it as a part of a work's name.

        Examples
        --------
        >>> str(Residency(256, 64, 1024)), str(Residency(256, 64, cluster=4))
        ('t256r64s1024', 't256r64s0c4')
        """
        cluster = f"c{self.cluster}" if self.cluster > 1 else ""
        return f"t{self.threads}r{self.registers}s{self.shared_bytes}{cluster}"

    @property
    def accumulators(self) -> int:
        """Of a thread that computes."""
        return self.registers - COMPUTING

    @property
    def loads(self) -> int:
        """Of `VECTOR_BYTES`, that a thread which moves has in flight."""
        return (self.registers - MOVING) * 4 // VECTOR_BYTES

    @property
    def chunk_bytes(self) -> int:
        """That a workgroup moves at a time."""
        return self.loads * self.threads * VECTOR_BYTES


@dataclass(frozen=True)
class UnitLimits:
    """What a compute unit has; by default that of an H100 and an H200.

    Parameters
    ----------
    threads, registers, shared_bytes, workgroups : int
    reserved_bytes : int
        Of shared memory, that the driver takes for each workgroup.
    """

    threads: int = 2048
    registers: int = 65_536
    shared_bytes: int = 233_472
    workgroups: int = 32
    reserved_bytes: int = 1024

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "UnitLimits":
        """Return what `Machine.facts` tells; what it does not is as of an H100."""
        names = {"threads": "threads_per_unit", "registers": "registers_per_unit",
                 "shared_bytes": "shared_bytes_per_unit"}  # fmt: skip
        return cls(**{name: int(facts[fact]) for name, fact in names.items() if facts.get(fact)})

    def resident(self, residency: Residency) -> int:
        """Return how many workgroups fit on an empty unit.

        Registers are dealt out by warps, each of which stays in one of the unit's four parts.

        Examples
        --------
        >>> UnitLimits().resident(Residency(384, 168)), UnitLimits().resident(Residency(256, 32, 57_344))
        (1, 4)
        """
        warps = -(-residency.threads // WARP)
        of_warp = -(-residency.registers * WARP // REGISTER_STEP) * REGISTER_STEP
        shared = self.reserved_bytes + -(-residency.shared_bytes // SHARED_STEP) * SHARED_STEP
        by_registers = self.registers // PARTITIONS // of_warp * PARTITIONS // warps
        return min(self.threads // (warps * WARP), by_registers, self.shared_bytes // shared, self.workgroups)

    def shared_for(self, workgroups: int) -> int:
        """Return the most shared memory of a workgroup of which so many fit on a unit.

        Examples
        --------
        >>> UnitLimits().shared_for(1), UnitLimits().resident(Residency(256, 32, UnitLimits().shared_for(3)))
        (232448, 3)
        """
        return self.shared_bytes // workgroups // SHARED_STEP * SHARED_STEP - self.reserved_bytes
