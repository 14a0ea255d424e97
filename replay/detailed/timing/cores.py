"""The compute units of a device: issue, units, latencies and limits of residence.

`core_of` makes a `Core` from a device of the catalogue and from `datasets/cores.toml`, which holds what the catalogue
lacks.
"""

from dataclasses import dataclass
from functools import cache

import msgspec

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import shipped_table


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An execution unit of a scheduler.

    Parameters
    ----------
    interval : int
        Cycles in which it takes the instruction of a warp.
    latency : int
        Cycles until the result can be used.
    """

    interval: int
    latency: int


class CoreFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `datasets/cores.toml`, whose head explains its keys."""

    schedulers: int
    fp32: Unit
    integer: Unit
    fp64: Unit
    special: Unit
    memory: Unit
    tensor_fma: int
    tensor_latency: int
    shared_latency: int
    constant_latency: int
    branch: int
    barrier: int
    shared_kb: list[int]
    start: int
    source: str
    certainty: str


class _CoresFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    architectures: dict[str, CoreFigures]


@dataclass(frozen=True)
class Core:
    """A compute unit of a device; times are cycles of its clock.

    Parameters
    ----------
    units : int
        Compute units of the device.
    clock_hz : float
        Their clock.
    threads, registers, blocks, shared_bytes : int
        Most threads, 32-bit registers, blocks and bytes of shared memory at a time.
    figures : object
        Row of `datasets/cores.toml`.
    """

    units: int
    clock_hz: float
    threads: int
    registers: int
    blocks: int
    shared_bytes: int
    figures: CoreFigures

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks a compute unit holds at a time.

        Registers are given to warps in units of 256, shared memory in units of 256 bytes (CUDA occupancy calculator).

        Parameters
        ----------
        threads : int
            Threads of a block.
        registers : int
            Registers of a thread.
        shared_bytes : int
            Shared memory of a block.

        Raises
        ------
        InvalidInputError
            Not one block fits.
        """
        warps = -(-threads // 32)
        of_warp = -(-max(registers, 16) * 32 // 256) * 256
        shared = -(-shared_bytes // 256) * 256
        limits = {
            "threads": self.threads // (32 * warps),
            "registers": self.registers // of_warp // warps,
            "shared memory": self.shared_bytes // shared if shared else self.blocks,
        }
        least = min(limits, key=lambda name: limits[name])
        if limits[least] < 1:
            raise InvalidInputError(
                f"a block of {threads} threads, {registers} registers a thread and {shared_bytes} bytes of shared "
                f"memory does not fit a compute unit: too much of {least}"
            )
        return min(self.blocks, *limits.values())

    def cache_bytes(self, l1_bytes: int, shared_bytes: int) -> int:
        """Return the bytes of L1 cache beside the shared memory that blocks take.

        The split is the smallest that holds the shared memory (CUDA C Programming Guide, unified data cache).
        """
        splits = sorted(self.figures.shared_kb)
        if len(splits) == 1:
            return l1_bytes
        taken = next((kb for kb in splits if kb * 1024 >= shared_bytes), splits[-1])
        return max(l1_bytes - taken * 1024, l1_bytes // 8)


@cache
def _shipped() -> _CoresFile:
    return shipped_table("cores.toml", "compute units", _CoresFile)


def core_of(device: Device, clock_hz: float | None = None) -> Core:
    """Return the compute units of a device.

    Parameters
    ----------
    device : Device
        Device of the catalogue.
    clock_hz : float, optional
        Clock; by default that of the catalogue.

    Raises
    ------
    NotFoundError
        The compute units of its architecture are not known: PTX runs on devices of NVIDIA.
    """
    tables = _shipped().architectures
    if device.architecture not in tables:
        raise NotFoundError(
            f"no compute units of {device.name} ({device.architecture}) that run PTX; there are those of "
            f"{', '.join(tables)}"
        )
    return Core(
        units=device.compute_units,
        clock_hz=clock_hz or device.value("clock_mhz") * 1e6,
        threads=int(device.value("unit_threads")),
        registers=int(device.value("unit_registers")),
        blocks=int(device.value("unit_workgroups")),
        shared_bytes=int(device.value("lds_kb") * 1024),
        figures=tables[device.architecture],
    )
