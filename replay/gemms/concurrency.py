"""GEMMs side by side on a device, as a small graph of the engine.

`GemmDevice.columns` describes a kernel variant as one task. `concurrent_ns` runs several in rounds of workgroups: the
engine fills the last round of one with the first workgroups of the next. Many sets are simulated at once, each on a
device of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import DTYPES, Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.calibration.parameters import Parameters
from replay.costs.products import SHARPNESS, cache_bytes
from replay.engine.engine import simulate
from replay.gemms.gemm import Gemm, Variants
from replay.gemms.variant_model import VariantCosts, VariantModel, library_of
from replay.graph.assembly import Assembly
from replay.graph.graph import RESOURCES, Tasks

#: Share of the time before a kernel's first workgroup in which no other kernel starts. NVIDIA: of the starts on
#: different streams of an H100 (nanoGPT), 1 % are within 0.61 us, a quarter of the 2.4 us between kernels of a graph.
#: Other vendors: all of it is assumed; no trace at hand has their products on two streams.
_SERIAL_START: Final = {"NVIDIA": 0.25}
_SERIAL_ELSEWHERE: Final = 1.0
#: So small a share of the cache keeps no operand between uses.
_NO_CACHE: Final = 1e-6
#: Share of accesses that a cache serves at most; the engine wants less than 1.
_MAX_HIT_SHARE: Final = 0.99

_CU, _HBM, _L2 = (RESOURCES.index(name) for name in ("cu", "hbm", "l2"))

#: Columns of `replay.graph.assembly.Assembly.tasks`.
TaskColumns: TypeAlias = dict[str, npt.NDArray[np.float64] | npt.NDArray[np.int64] | int]


def serial_start(device: Device) -> float:
    """Return the share of the time before a kernel's first workgroup in which the device starts no other kernel."""
    return _SERIAL_START.get(device.vendor, _SERIAL_ELSEWHERE)


@dataclass(frozen=True)
class KernelTimes:
    """Kernels whose workgroups run in waves: columns of equal length n, one row a kernel.

    Parameters
    ----------
    floor_ns, serial : array of float64
        Time before the first workgroup starts, on no compute unit, and the share of it in which no other kernel starts.
    workgroups : array of int64
        Workgroups.
    units : array of int64
        Compute units of the device; each runs one workgroup of a wave.
    round_ns, last_ns : array of float64
        Time of a whole wave, and of the last wave, which may fill less of the device.
    needed : array of float64
        Share of the units that it occupies with which it runs at full rate.
    hbm, l2 : array of float64
        Share of memory's and of the cache's bandwidth that a whole wave draws.
    last_hbm, last_l2 : array of float64
        The same for the last wave.
    footprint, hit_share : array of float64
        Share of the last-level cache that its operands fill, and share of accesses that this cache serves.
    """

    floor_ns: Floats
    serial: Floats
    workgroups: Ints
    units: Ints
    round_ns: Floats
    last_ns: Floats
    needed: Floats
    hbm: Floats
    l2: Floats
    last_hbm: Floats
    last_l2: Floats
    footprint: Floats
    hit_share: Floats

    @classmethod
    def of_tasks(cls, tasks: Tasks, duration_ns: Floats, *, units: int) -> "KernelTimes":
        """Return the kernels of a graph by waves of workgroups.

        Parameters
        ----------
        tasks : Tasks
            Kernels. Without a known number of workgroups they fill as much as they occupy.
        duration_ns : array of float64
            Duration of each alone.
        units : int
            Compute units of the device.

        Notes
        -----
        All waves take equal time, and no time passes before the first. Workgroups that share a unit share its rate, so
        residency does not count.
        """
        rounds = np.maximum(np.ceil(tasks.waves), 1.0)
        filled = np.maximum(np.rint(tasks.occupies * units * rounds), 1.0)
        workgroups = np.where(tasks.workgroups > 0, tasks.workgroups, filled).astype(np.int64)
        rounds = np.ceil(workgroups / units)
        last = workgroups / units - rounds + 1.0
        whole = rounds / (rounds - 1.0 + last)  # demand of a whole wave over the mean demand
        needed = np.minimum(tasks.demand[:, _CU] / np.maximum(tasks.occupies, _NO_CACHE), 1.0)
        hbm, l2 = (np.minimum(tasks.demand[:, resource] * whole, 1.0) for resource in (_HBM, _L2))
        return cls(
            floor_ns=np.zeros(len(tasks)),
            serial=np.zeros(len(tasks)),
            workgroups=workgroups,
            units=np.full(len(tasks), units),
            round_ns=duration_ns / rounds,
            last_ns=duration_ns / rounds,
            needed=needed,
            hbm=hbm,
            l2=l2,
            last_hbm=hbm * last,
            last_l2=l2 * last,
            footprint=np.asarray(tasks.footprint),
            hit_share=np.asarray(tasks.hit_share),
        )

    def __len__(self) -> int:
        """Return the number of kernels."""
        return len(self.workgroups)

    @property
    def rounds(self) -> Ints:
        """Rounds of workgroups of each kernel on the whole device, its last wave included."""
        return -(-self.workgroups // self.units)

    @property
    def alone_ns(self) -> Floats:
        """Duration of each kernel alone on the device."""
        return np.asarray(self.floor_ns + (self.rounds - 1) * self.round_ns + self.last_ns)

    def select(self, rows: npt.ArrayLike) -> "KernelTimes":
        """Return some of the kernels, by row numbers or a mask."""
        return KernelTimes(*(getattr(self, field.name)[np.atleast_1d(rows)] for field in fields(self)))

    def joined(self, *others: "KernelTimes") -> "KernelTimes":
        """Return these kernels and those of `others`, in this order."""
        return KernelTimes(*(np.concatenate([getattr(each, f.name) for each in (self, *others)]) for f in fields(self)))


@dataclass(frozen=True)
class Saturation:
    """How few compute units draw the bandwidth of memory, and the bandwidth of the last-level cache over memory's.

    Parameters
    ----------
    units_share : float
        The parameter `cu_share_saturating_memory`.
    cache_ratio : float
        The parameter `l2_bandwidth_ratio`.
    """

    units_share: float
    cache_ratio: float

    @classmethod
    def of(cls, parameters: Parameters) -> "Saturation":
        """Return the values of the parameters."""
        return cls(parameters["cu_share_saturating_memory"], parameters["l2_bandwidth_ratio"])


@dataclass(frozen=True)
class GemmDevice:
    """A device with the model of its GEMM kernels.

    Parameters
    ----------
    device : Device
        Device.
    model : VariantModel
        Model of the time and the traffic of kernels.
    saturation : Saturation
        Parameters of the contention model.
    """

    device: Device
    model: VariantModel
    saturation: Saturation

    @classmethod
    def of(cls, device: Device, gemm: Gemm, saturation: Saturation, model: VariantModel | None = None) -> "GemmDevice":
        """Return a device with a model, by default that of its library for the type of a GEMM."""
        return cls(device, model or library_of(device, gemm.dtype)[1], saturation)

    @property
    def units(self) -> int:
        """Compute units of the device."""
        return self.device.compute_units

    def times(self, gemm: Gemm, variants: Variants, on_unit: npt.ArrayLike = 0) -> KernelTimes:
        """Return kernel variants by waves of workgroups.

        Parameters
        ----------
        gemm : Gemm
            GEMM that the variants compute.
        variants : Variants
            Kernels, n of them.
        on_unit : int or array of int64, shape (n,)
            Workgroups that a compute unit runs in all, those of other kernels included; 0 for those of the kernel.

        Notes
        -----
        A unit that runs several workgroups at once hides their latency, also if they belong to several kernels. With
        X workgroups on a unit, the arithmetic of a wave therefore takes a time in proportion to ``A(X) / X``, and A(X)
        is the model's on ``workgroups / X`` units. A wave takes ``(a**p + m**p) ** (1 / p)``, with its arithmetic a and
        its memory traffic m. All are scaled so that the waves of the kernel alone take the time of the model. The
        demand on memory is capped at 1: then memory alone rules the wave.
        """
        costs = self.model.costs(gemm, variants, self.device)
        waves = costs.workgroups / self.units
        rounds = np.ceil(waves)
        last = waves - rounds + 1.0
        floor = np.minimum(costs.floor_ns, costs.time_ns)
        memory = costs.memory_ns / waves
        alone = costs.arithmetic_ns / rounds
        busy = (rounds - 1.0) * _norm(alone, memory) + _norm(alone, memory * last)
        scale = (costs.time_ns - floor) / busy
        shared, alone_on_unit = (
            self._wave_ns(gemm, variants, count) for count in (np.maximum(rounds, on_unit), rounds)
        )
        each = alone * shared / alone_on_unit
        full, tail = _norm(each, memory) * scale, _norm(each, memory * last) * scale
        cache = self._cache_ns(costs.operand_bytes) / waves
        footprint, hit_share = self._cache_use(gemm, variants, costs)
        return KernelTimes(
            floor_ns=floor,
            serial=np.full(len(variants), serial_start(self.device)),
            workgroups=costs.workgroups,
            units=np.full(len(variants), self.units),
            round_ns=full,
            last_ns=tail,
            needed=self._needed(each / _norm(each, memory)),
            hbm=np.minimum(memory / full, 1.0),
            l2=np.minimum(cache / full, 1.0),
            last_hbm=np.minimum(memory * last / tail, 1.0),
            last_l2=np.minimum(cache * last / tail, 1.0),
            footprint=footprint,
            hit_share=hit_share,
        )

    def columns(self, gemm: Gemm, variants: Variants) -> TaskColumns:
        """Return kernel variants as columns of `replay.graph.assembly.Assembly.tasks`, a task each.

        Parameters
        ----------
        gemm : Gemm
            GEMM that the variants compute.
        variants : Variants
            Kernels, n of them.

        Returns
        -------
        dict
            Arrays of length n or one value for all. `occupies` is the share of units that workgroups fill, `cu` the
            part of it that arithmetic needs, at least `cu_share_saturating_memory`. `hbm` is a share of what memory
            delivers, `l2` of `l2_bandwidth_ratio` times the peak of memory. `hit_share` counts accesses that the cache
            saves while it keeps an operand's panel: without the cache, memory moves ``1 / (1 - hit_share)`` times as
            much.
        """
        costs = self.model.costs(gemm, variants, self.device)
        occupies = np.minimum(costs.workgroups / self.units, 1.0)
        footprint, hit_share = self._cache_use(gemm, variants, costs)
        return {
            "duration_ns": costs.time_ns,
            "class_": CLASSES.index("gemm"),
            "dtype": tuple(DTYPES).index(gemm.dtype),
            "cu": occupies * self._needed(costs.arithmetic_ns / costs.time_ns),
            "occupies": occupies,
            "hbm": np.minimum(costs.memory_ns / costs.time_ns, 1.0),
            "l2": np.minimum(self._cache_ns(costs.operand_bytes) / costs.time_ns, 1.0),
            "workgroups": costs.workgroups,
            "waves": costs.workgroups / self.units,
            "footprint": footprint,
            "hit_share": hit_share,
        }

    def _wave_ns(self, gemm: Gemm, variants: Variants, on_unit: Floats) -> Floats:
        """Return the arithmetic of a wave if a unit runs `on_unit` workgroups in all."""
        shares = np.maximum(np.ceil(variants.workgroups(gemm) / on_unit), 1.0).astype(np.int64)
        arithmetic = np.empty(len(variants))
        for units in np.unique(shares).tolist():  # a few: most variants have a like number of workgroups
            chosen = shares == units
            costs = self.model.costs(gemm, variants.select(chosen), self.device, units=min(units, self.units))
            arithmetic[chosen] = costs.arithmetic_ns / np.ceil(costs.workgroups / units)
        return arithmetic

    def _needed(self, busy: Floats) -> Floats:
        """Return the share of its units that a kernel needs whose arithmetic takes the share `busy` of its time."""
        return np.minimum(np.maximum(busy, self.saturation.units_share), 1.0)

    def _cache_ns(self, requested_bytes: Floats) -> Floats:
        """Return the time that the last-level cache needs for these bytes at its peak."""
        bandwidth = self.saturation.cache_ratio * self.device.memory_bytes_per_s
        return requested_bytes / bandwidth * 1e9

    def _cache_use(self, gemm: Gemm, variants: Variants, costs: VariantCosts) -> tuple[Floats, Floats]:
        """Return footprints as a share of the last-level cache, and the share of accesses that the cache saves."""
        without = self.model.costs(gemm, variants, self.device, cache_share=_NO_CACHE).memory_bytes
        footprint = np.minimum(costs.footprint_bytes / cache_bytes(self.device), 1.0)
        saved = 1.0 - costs.memory_bytes / np.maximum(without, costs.memory_bytes)
        return footprint, np.minimum(saved, _MAX_HIT_SHARE)


def concurrent_ns(
    kernels: Sequence[tuple[Gemm, Variants]],
    *,
    device: Device,
    parameters: Parameters,
    model: VariantModel | None = None,
) -> float:
    """Return the time from the common start of kernels to the end of the last, ns.

    Parameters
    ----------
    kernels : sequence of (Gemm, Variants)
        GEMMs, each with the variant, one row, that computes it. They are dispatched in this order.
    device : Device
        Device that they run on.
    parameters : Parameters
        Parameters of the contention model.
    model : VariantModel, optional
        Model of their time and traffic; by default that of the device's library for each type.

    Raises
    ------
    InvalidInputError
        There is no kernel, or a GEMM has several variants.

    Examples
    --------
    Two kernels of 60 workgroups each fill a device of 120 compute units together:

    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> half = (Gemm(640, 768, 4096), Variants.of(tile_m=64, tile_n=128))
    >>> options = {"device": find_device("MI100"), "parameters": load_parameters()}
    >>> round(concurrent_ns([half, half], **options) / concurrent_ns([half], **options), 2)
    1.0
    """
    if not kernels or any(len(variant) != 1 for _, variant in kernels):
        raise InvalidInputError("GEMMs side by side: give one variant for each GEMM, and a GEMM at least")
    workgroups = sum(int(variant.workgroups(gemm)[0]) for gemm, variant in kernels)
    on_unit = -(-workgroups // device.compute_units)
    saturation = Saturation.of(parameters)
    times = [GemmDevice.of(device, gemm, saturation, model).times(gemm, variant, on_unit) for gemm, variant in kernels]
    return float(sets_ns(times[0].joined(*times[1:]), np.arange(len(times))[None])[0])


def sets_ns(kernels: KernelTimes, sets: Ints) -> Floats:
    """Return the time of each set of kernels that start together, ns.

    Parameters
    ----------
    kernels : KernelTimes
        Kernels of one device, n of them.
    sets : array of int64, shape (n_sets, degree)
        Kernels of each set in the order of dispatch, by row; -1 for none.

    Returns
    -------
    array of float64, shape (n_sets,)

    Notes
    -----
    The device starts kernels one at a time: the part `KernelTimes.serial` of the time before a kernel's first workgroup
    passes before the next kernel begins to start.
    """
    present = sets >= 0
    device = np.repeat(np.arange(len(sets)), present.sum(axis=1))
    serial = np.where(present, (kernels.serial * kernels.floor_ns)[sets], 0.0)
    waits = np.cumsum(serial, axis=1) - serial
    chosen = kernels.select(sets[present])
    waves = chosen.workgroups / chosen.units
    occupies = np.minimum(waves, 1.0)
    columns = {
        "release_ns": waits[present],
        "duration_ns": chosen.alone_ns,
        "start_ns": chosen.floor_ns,
        "occupies": occupies,
        "cu": occupies * chosen.needed,
        "waves": waves,
        "in_rounds": True,
        "hbm": np.where(chosen.rounds > 1, chosen.hbm, chosen.last_hbm),
        "l2": np.where(chosen.rounds > 1, chosen.l2, chosen.last_l2),
        "footprint": chosen.footprint,
        "hit_share": chosen.hit_share,
    }
    assembly = Assembly()
    lanes = np.array([assembly.lane(device=number) for number in range(len(sets))])
    assembly.tasks("product", lanes[device], columns)
    ends = np.zeros(len(sets))
    np.maximum.at(ends, device, simulate(assembly.graph())[1])
    return ends


def _norm(first: Floats, second: Floats) -> Floats:
    """Return the time of two activities at once, ruled by the slower one."""
    return np.asarray((first**SHARPNESS + second**SHARPNESS) ** (1 / SHARPNESS))
