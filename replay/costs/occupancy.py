"""How many workgroups a compute unit holds, and how long they take when they share it.

`resident_workgroups` counts the workgroups of a kernel that one compute unit holds at once. `OccupancyLaw` gives the
time of one pass by the number of workgroups on each unit, and `fit_occupancy` finds its two times from two measured
passes. `OccupancyLaw.kernel_ns` is the time of a whole kernel on any number of units.

>>> from profilers.devices.catalogue import find_device
>>> float(resident_workgroups(find_device("H100-SXM5-80GB"), 384, registers=168, lds_bytes=100_000))
1.0
>>> law = fit_occupancy((1, 90e3), (32, 270e3))
>>> [round(float(law.time_ns(resident)) / 1e3) for resident in (1, 8, 16, 32)]
[90, 118, 164, 270]
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats

#: Exponent of the law, fitted to the passes of REEF (Han et al., OSDI 2022; github.com/SJTU-IPADS/reef).
KNEE: Final = 1.5
#: Most threads of a workgroup, on NVIDIA and on AMD.
_MOST_THREADS: Final = 1024
#: Scheduler partitions of a compute unit. Registers are allocated in each, and a wave stays in one.
_PARTITIONS: Final = 4
#: Workgroups of several waves that a CU synchronises (LLVM, AMDGPU backend, getMaxWorkGroupsPerCU).
_BARRIERS: Final = 16
#: Steps in which AMD allocates LDS by architecture, bytes; 512 for the others.
_AMD_LDS_STEPS = MappingProxyType({"CDNA 4": 1280})
#: Architectures of AMD with registers in steps of 4 for each lane, not 8.
_AMD_SMALL_STEPS: Final = ("GCN 5", "CDNA")
#: Architectures of NVIDIA that allocate shared memory in steps of 256 bytes and reserve none of it. Later ones
#: allocate in steps of 128 bytes, and reserve 1 KB for each workgroup.
_NVIDIA_UNRESERVED: Final = ("Pascal", "Volta", "Turing")


@dataclass(frozen=True)
class Workgroup:
    """Resources of a workgroup; NaN if unknown.

    Parameters
    ----------
    threads : float
        Threads.
    registers : float
        32-bit registers of a thread.
    lds_bytes : float
        Static and dynamic shared memory or LDS, without what the driver reserves.
    """

    threads: float
    registers: float = np.nan
    lds_bytes: float = np.nan


@dataclass(frozen=True)
class UnitLimits:
    """Limits of one compute unit, and the steps in which it allocates.

    Parameters
    ----------
    threads : int
        Most threads.
    registers : float
        32-bit registers; infinite if unknown.
    lds_bytes : float
        Shared memory or LDS; infinite if unknown.
    workgroups : float
        Most workgroups; infinite if only the other limits hold.
    barriers : float
        Most workgroups of more than one wave.
    wave : int
        Threads of a wave (AMD) or warp (NVIDIA).
    register_step : int
        Registers of a wave are a multiple of this.
    lds_step, lds_reserved : int
        LDS of a workgroup is a multiple of the step, with what the driver reserves, bytes.
    """

    threads: int
    registers: float
    lds_bytes: float
    workgroups: float
    barriers: float
    wave: int
    register_step: int
    lds_step: int
    lds_reserved: int


def unit_limits(device: Device) -> UnitLimits:
    """Return the limits of a compute unit of a device.

    Totals are figures of the catalogue. Steps are those of cuda_occupancy.h (NVIDIA CUDA toolkit) and of LLVM's AMDGPU
    backend.

    Parameters
    ----------
    device : Device
        Device of the catalogue.

    Raises
    ------
    InvalidInputError
        The catalogue lacks `unit_threads` of the device, or the device is neither of NVIDIA nor of AMD.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> limits = unit_limits(find_device("A100-SXM4-80GB"))
    >>> limits.threads, limits.lds_bytes, limits.lds_reserved
    (2048, 167936.0, 1024)
    """
    threads, name = int(device.value("unit_threads")), device.architecture
    registers, lds_kb, workgroups = (
        device.figures[figure].value if figure in device.figures else np.inf
        for figure in ("unit_registers", "lds_kb", "unit_workgroups")
    )
    lds = lds_kb * 2**10
    if device.vendor == "NVIDIA":
        step, reserved = (256, 0) if name in _NVIDIA_UNRESERVED else (128, 1024)
        return UnitLimits(threads, registers, lds, workgroups, np.inf, 32, 256, step, reserved)
    if device.vendor == "AMD":
        registers_step = 64 * (4 if name in _AMD_SMALL_STEPS else 8)
        step = _AMD_LDS_STEPS.get(name, 512)
        return UnitLimits(threads, registers, lds, workgroups, _BARRIERS, 64, registers_step, step, 0)
    raise InvalidInputError(
        f"{device.name}: how a compute unit of {device.vendor} allocates is unknown; known are NVIDIA and AMD"
    )


def resident_workgroups(
    device: Device,
    threads: npt.ArrayLike,
    *,
    registers: npt.ArrayLike | None = None,
    lds_bytes: npt.ArrayLike | None = None,
) -> Floats:
    """Return how many workgroups of a kernel one compute unit holds at once.

    An unknown resource sets no limit, so that the count is then the largest possible. Many traces of AMD state neither
    registers nor LDS, or no accumulation registers. The grid is not looked at: a small grid leaves units with fewer.

    Parameters
    ----------
    device : Device
        Device of the kernel.
    threads : array of numbers
        Threads of a workgroup; NaN if unknown.
    registers : array of numbers, optional
        32-bit registers of a thread; NaN if unknown.
    lds_bytes : array of numbers, optional
        Static and dynamic shared memory or LDS of a workgroup, without what the driver reserves; NaN if unknown.

    Returns
    -------
    array of float64
        Whole numbers; 0 for a workgroup that does not fit, and NaN where the threads are unknown.

    Raises
    ------
    InvalidInputError
        As `unit_limits`, or a number is negative or a workgroup has no thread.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> h100 = find_device("H100-SXM5-80GB")
    >>> kernels = {"threads": [384, 128], "registers": [168, 32], "lds_bytes": [188548, 0]}
    >>> resident_workgroups(h100, **kernels).tolist()
    [1.0, 16.0]
    """
    limits, size = unit_limits(device), _counts(threads, "threads", 1)
    waves = np.ceil(size / limits.wave)
    fitting = np.minimum(np.floor(limits.threads // limits.wave / waves), limits.workgroups)
    fitting = np.where(waves > 1, np.minimum(fitting, limits.barriers), fitting)
    if registers is not None:
        fitting = np.fmin(fitting, _by_registers(limits, waves, _counts(registers, "registers", 0)))
    if lds_bytes is not None:
        allocated = _stepped(_counts(lds_bytes, "lds_bytes", 0) + limits.lds_reserved, limits.lds_step)
        fitting = np.fmin(fitting, np.floor(limits.lds_bytes / np.where(allocated > 0, allocated, np.nan)))
    fitting = np.where(size > _MOST_THREADS, 0.0, np.maximum(fitting, 0.0))
    return np.asarray(np.where(np.isnan(size), np.nan, fitting), dtype=np.float64)


#: A workgroup of a collective whose registers and LDS are unknown: as RCCL 2.22 has it on MI350X. NCCL 2.14 to 2.26 has
#: 96 registers and 42 to 104 KB on A100 and H100.
COLLECTIVE_WORKGROUP: Final = Workgroup(256, 92, 37664)
#: Registers of a thread of a product by the threads of its workgroup, of another product, and of other kernels.
_OF_PRODUCTS, _OF_OTHER_PRODUCTS, _OF_OTHERS = MappingProxyType({128: 168, 256: 224}), 64, 32
#: Registers of a thread and LDS of a workgroup of nvjet in the traces of nanogpt8, and registers of xmma.
_NVJET, _XMMA = (168, 188_548), 254
#: cuBLAS names more threads than a kernel of nvjet has: one warp group of three only loads.
_NVJET_THREADS: Final = 384
#: A unit of the A100 (NVIDIA, CUDA C++ Programming Guide, table of technical specifications), for an unknown device.
_UNKNOWN_UNIT: Final = UnitLimits(2048, 65536, 164 * 2**10, 32, np.inf, 32, 256, 128, 1024)


def unit_shares(
    device: Device | None, threads: npt.ArrayLike, *, registers: npt.ArrayLike, lds_bytes: npt.ArrayLike
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the shares of a unit's threads, registers, LDS and workgroups that a workgroup takes, at most 1.

    An unknown resource takes next to nothing. Without a device, the unit is that of an A100. `resident_workgroups` says
    which numbers are taken.

    Raises
    ------
    InvalidInputError
        As `resident_workgroups`.

    Examples
    --------
    >>> from profilers.devices.catalogue import find_device
    >>> h100 = find_device("H100-SXM5-80GB")
    >>> [round(float(each), 3) for each in unit_shares(h100, 384, registers=168, lds_bytes=188548)]
    [0.188, 0.984, 0.812, 0.031]
    """
    limits = unit_limits(device) if device else _UNKNOWN_UNIT
    waves = np.ceil(_counts(threads, "threads", 1) / limits.wave)
    wave = _stepped(_counts(registers, "registers", 0) * limits.wave, limits.register_step)
    allocated = _stepped(_counts(lds_bytes, "lds_bytes", 0) + limits.lds_reserved, limits.lds_step)
    taken = (waves * limits.wave / limits.threads, waves * wave / limits.registers, allocated / limits.lds_bytes)
    shares = (np.clip(np.nan_to_num(share), 1e-9, 1.0) for share in (*taken, np.ones_like(waves) / limits.workgroups))
    of_threads, of_registers, of_lds, of_slots = shares
    return of_threads, of_registers, of_lds, of_slots


def workgroup_of_name(name: str, threads: int) -> Workgroup:
    """Return the likely resources of a workgroup on NVIDIA if only the kernel's name and the threads are known.

    Examples
    --------
    >>> workgroup_of_name("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT", 384)
    Workgroup(threads=384, registers=168, lds_bytes=188548)
    >>> workgroup_of_name("copy", 512)
    Workgroup(threads=512, registers=32, lds_bytes=0)
    """
    if "nvjet" in name:
        return Workgroup(_NVJET_THREADS, *_NVJET)
    if not any(part in name for part in ("gemm", "gemv")):
        return Workgroup(threads, _OF_OTHERS, 0)
    is_tiled = not any(part in name for part in ("gemv", "gemmSN"))
    registers = _OF_PRODUCTS.get(threads, _OF_OTHER_PRODUCTS) if is_tiled else _OF_OTHER_PRODUCTS
    return Workgroup(threads, _XMMA if "xmma" in name and threads == max(_OF_PRODUCTS) else registers, 0)


def _by_registers(limits: UnitLimits, waves: Floats, registers: Floats) -> Floats:
    """Return the workgroups that the registers of a unit allow; NaN for unknown or no registers."""
    wave = _stepped(np.where(registers > 0, registers, np.nan) * limits.wave, limits.register_step)
    allowed = _PARTITIONS * np.floor(limits.registers / _PARTITIONS / wave)
    # The hardware refuses a workgroup by its waves rounded up to the partitions.
    refused = wave * _stepped(waves, _PARTITIONS) > limits.registers
    return np.where(refused, 0.0, np.floor(allowed / waves))


def _stepped(amount: Floats | float, step: int) -> Floats:
    """Return amounts rounded up to multiples of a step."""
    return np.asarray(np.ceil(amount / step) * step)


def _counts(values: npt.ArrayLike, name: str, least: int) -> Floats:
    """Return numbers as an array, of at least `least` or NaN."""
    counts = np.asarray(values, dtype=np.float64)
    if (counts < least).any():
        raise InvalidInputError(f"{name} is {counts[counts < least].flat[0]:g}; it must be at least {least}")
    return counts


@dataclass(frozen=True)
class OccupancyLaw:
    """Time of one pass of a kernel with j workgroups on every compute unit: ``f + (a**p + (b * j)**p) ** (1 / p)``.

    ``a`` is the latency of a workgroup that has the unit for itself. ``b`` is the time that the busiest resource of the
    unit, or the unit's share of the device, spends on each workgroup. If the workgroups hid each other's latency
    perfectly, a pass would take ``f + max(a, b * j)``; without any overlap ``f + a + b * j``. The exponent ``p`` lies
    between.

    Parameters
    ----------
    latency_ns : float
        ``a``, not negative.
    workgroup_ns : float
        ``b``, not negative.
    fixed_ns : float
        ``f``, the time that no workgroup takes, such as a launch that the clock includes. A kernel has it once.
    knee : float
        ``p``, at least 1. The larger, the sharper the bend between the two.

    Examples
    --------
    >>> law = OccupancyLaw(latency_ns=3000.0, workgroup_ns=1000.0, knee=2.0)
    >>> law.time_ns([0, 4]).tolist()
    [3000.0, 5000.0]
    """

    latency_ns: float
    workgroup_ns: float
    fixed_ns: float = 0.0
    knee: float = KNEE

    def time_ns(self, resident: npt.ArrayLike) -> Floats:
        """Return the time of a pass.

        Parameters
        ----------
        resident : array of numbers
            Workgroups on every compute unit.
        """
        busy = self.workgroup_ns * np.asarray(resident, dtype=np.float64)
        longest = np.maximum(busy, self.latency_ns)
        scale = np.where(longest > 0, longest, 1.0)  # powers of large times would overflow
        powers = (busy / scale) ** self.knee + (self.latency_ns / scale) ** self.knee
        return np.asarray(self.fixed_ns + scale * powers ** (1 / self.knee))

    def kernel_ns(self, workgroups: int, units: int, *, resident: int) -> float:
        """Return the time of a kernel whose workgroups are dealt evenly to some compute units.

        Each unit takes as many as it holds, pass after pass, and the rest in a last pass. With fewer units the
        workgroups crowd before they queue: 304 of them on 280 units take the time of two on a unit, not two passes.

        Parameters
        ----------
        workgroups : int
            Workgroups of the kernel.
        units : int
            Compute units that it may use.
        resident : int
            Workgroups that one unit holds at once, as `resident_workgroups` counts them.

        Raises
        ------
        InvalidInputError
            One of the numbers is below 1.

        Examples
        --------
        >>> law = OccupancyLaw(latency_ns=3000.0, workgroup_ns=1000.0, knee=2.0)
        >>> [round(law.kernel_ns(304, units, resident=4)) for units in (304, 280, 60)]
        [3162, 3606, 8606]
        """
        if min(workgroups, units, resident) < 1:
            raise InvalidInputError(
                f"{workgroups} workgroups on {units} units that hold {resident}: each must be at least 1"
            )
        passes, rest = divmod(-(-workgroups // units), resident)
        full, last = (float(time) - self.fixed_ns for time in self.time_ns([resident, rest]))
        return self.fixed_ns + passes * full + (last if rest else 0.0)


def fit_occupancy(
    fewer: tuple[float, float], more: tuple[float, float], *, fixed_ns: float = 0.0, knee: float = KNEE
) -> OccupancyLaw:
    """Return the law through two measured passes.

    A longer time of fewer workgroups is noise: the law is then constant, at the geometric mean. If the time grows more
    than in proportion, the law goes through the second pass alone, in proportion.

    Parameters
    ----------
    fewer, more : (float, float)
        Workgroups on every unit and the time in ns, of the pass with fewer workgroups and of the other.
    fixed_ns : float
        Time that no workgroup takes. It counts as the whole time of a shorter pass.
    knee : float
        Exponent of the law.

    Raises
    ------
    InvalidInputError
        The first pass has not fewer workgroups than the second, a time is not above zero, the fixed time is negative,
        or the knee is below 1.

    Examples
    --------
    >>> law = fit_occupancy((1, 10e3), (16, 20e3))
    >>> round(float(law.time_ns(8)))
    13837
    """
    (few, first_ns), (many, last_ns) = fewer, more
    if not (0 < few < many < np.inf and 0 < first_ns < np.inf and 0 < last_ns < np.inf):
        raise InvalidInputError(
            f"passes of {few:g} and {many:g} workgroups in {first_ns:g} and {last_ns:g} ns: give the one with fewer "
            "workgroups first, and times above zero"
        )
    if not (0 <= fixed_ns < np.inf and 1 <= knee < np.inf):
        raise InvalidInputError(
            f"a fixed time of {fixed_ns:g} ns and a knee of {knee:g}: give 0 or more, and 1 or more"
        )
    short, long = max(first_ns - fixed_ns, 0.0), max(last_ns - fixed_ns, 0.0)
    if long <= short:
        return OccupancyLaw(float(np.sqrt(short * long)), 0.0, fixed_ns, knee)
    first, last = (few / many) ** knee, (short / long) ** knee  # powers in units of the second pass
    busy = min((1 - last) / (1 - first), 1.0)
    return OccupancyLaw(long * (1 - busy) ** (1 / knee), long * busy ** (1 / knee) / many, fixed_ns, knee)
