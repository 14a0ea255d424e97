"""The time of a kernel variant: rounds of workgroups, the bytes that move, and what measurements add.

`VariantConstants` has the constants of the physics, which a table of candidates fits or a prior gives. `busy_ns`
computes the time of variants, and `traffic` the bytes. More compute units never make either larger.

`VariantEffects` has what the physics does not know: instruction order, prefetch, registers. It corrects the time of a
kernel by a factor that depends on the GEMM and the kernel. The factor does not depend on the compute units or the share
of the cache, so that more units never make a kernel slower.

`VariantModel.costs` gives the time and the demands of a variant on a share of a device. `library_of` returns the
kernels that a device has, and their model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats, Ints
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.costs.kernels.machine import runs_as
from replay.costs.kernels.models import TILES
from replay.costs.occupancy import resident_workgroups
from replay.costs.products import block_of_tiles, cache_bytes
from replay.gemms.gemm import SPLITS, Gemm, Variants
from replay.graph.operators import DTYPE_BYTES

#: Bytes that a compute unit takes from the L2 cache, and from LDS, in a cycle (AMD CDNA and GCN 5).
_L2_BYTES, _LDS_BYTES = 64.0, 128.0
_WAVE: Final = 64
#: Engine clock of a device whose clock is unknown, MHz.
_CLOCK_MHZ: Final = 1500.0
#: Length of the covariance of shapes, in binary orders of m, n, k and batch, and distance of another layout.
LENGTH: Final = 2.0
_LAYOUT_DISTANCE: Final = 1.0e3
#: Effects fade beyond this distance from every measured shape, in binary orders.
_REACH: Final = 2.0
#: Number of columns of `shape_features`.
N_FEATURES: Final = 15
#: Numbers in the matrices that are solved at one time.
_BATCH: Final = 2_000_000


#: Constants that a file may have: above zero, zero or more, and one or more.
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_FromZero = Annotated[float, msgspec.Meta(ge=0)]
_FromOne = Annotated[float, msgspec.Meta(ge=1)]


class VariantConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of the physics; the defaults are for a device without a fit. Cycles are of the engine clock.

    Parameters
    ----------
    efficiency : float
        Share of the peak that a compute unit reaches on a large tile.
    edge : float
        Cost of a tile's edge, in elements.
    memory_efficiency, cache_efficiency : float
        Share of the peak bandwidth of memory, and of the L2 cache, that operands reach.
    load : float
        Cycles of LDS for each cycle that its bandwidth asks for.
    step_cycles, wave_cycles : float
        Latency of a step of the depth: a constant, and a part for each wave of the workgroup.
    prologue_cycles : float
        Time of a workgroup before its first step and after its last.
    store, split_store : float
        Cycles to write 64 bytes of the result, and further cycles if the depth is split.
    floor_ns : float
        Time of a kernel without work, ns.
    launch_ns : float
        Time of the launch, ns, which measurements of a table include and a kernel in a trace does not.
    split_ns : float
        Further time of a kernel that splits the depth, ns.
    resident : float
        Most workgroups that a compute unit holds, beside the limits of threads and LDS: registers are not recorded.
    sharpness : float
        How sharply the slowest of computing, the L2 cache and memory rules.
    """

    efficiency: _Positive = 0.85
    edge: _FromZero = 2.0
    memory_efficiency: _Positive = 0.85
    cache_efficiency: _Positive = 8.0
    load: _FromZero = 0.0
    step_cycles: _FromZero = 0.0
    wave_cycles: _FromZero = 0.0
    prologue_cycles: _FromZero = 0.0
    store: _FromZero = 0.0
    split_store: _FromZero = 0.0
    floor_ns: _FromZero = 3000.0
    launch_ns: _FromZero = 0.0
    split_ns: _FromZero = 0.0
    resident: _FromOne = 32.0
    sharpness: _Positive = 3.0


@dataclass(frozen=True)
class VariantGrid:
    """Quantities of variants that run a GEMM on some units: columns of equal length n.

    Parameters
    ----------
    tile_m, tile_n, depth, split, waves : array of float64
        Tile, depth of a step, split of the depth, and waves of a workgroup.
    workgroups, steps, on_unit : array of float64
        Workgroups; steps of the depth; and workgroups of the busiest compute unit.
    resident : array of float64
        Workgroups that threads and LDS allow on one compute unit at once.
    flop_cycles : array of float64
        Cycles of a step at the peak of a compute unit.
    element_bytes : array of float64
        Bytes of an element.
    used : array of float64, shape (n, 2)
        Share of the rows and of the columns of the tiles that the result has.
    memory_bytes, requested_bytes, kept_bytes : array of float64
        As `traffic` returns them.
    units : float
        Compute units.
    """

    tile_m: Floats
    tile_n: Floats
    depth: Floats
    split: Floats
    waves: Floats
    workgroups: Floats
    steps: Floats
    on_unit: Floats
    resident: Floats
    flop_cycles: Floats
    element_bytes: Floats
    used: Floats
    memory_bytes: Floats
    requested_bytes: Floats
    kept_bytes: Floats
    units: Floats

    @classmethod
    def of(
        cls, gemm: Gemm, variants: Variants, device: Device, *, units: int = 0, cache_share: float = 1.0
    ) -> "VariantGrid":
        """Return the quantities on a share of a device; `units` of 0 are all of them."""
        units = units or device.compute_units
        tile_m, tile_n, depth = (getattr(variants, name).astype(float) for name in ("tile_m", "tile_n", "depth"))
        split, workgroups = variants.global_split.astype(float), variants.workgroups(gemm).astype(float)
        memory, requested, kept = traffic(gemm, variants, units, cache_share * cache_bytes(device))
        rows, columns = np.ceil(gemm.m / tile_m), np.ceil(gemm.n / tile_n)
        full = np.ones(len(variants))
        return cls(
            tile_m, tile_n, depth, split, np.ceil(variants.threads / _WAVE),
            workgroups, np.ceil(gemm.k / (split * depth)), np.ceil(workgroups / units),
            resident_of(variants, device), 2.0 * tile_m * tile_n * depth / _unit_flops(gemm, variants, device),
            DTYPE_BYTES[gemm.dtype] * full, np.column_stack([gemm.m / (rows * tile_m), gemm.n / (columns * tile_n)]),
            memory, requested, kept, units * full,
        )  # fmt: skip


def clock_hz(device: Device) -> float:
    """Return the engine clock."""
    return 1e6 * (device.value("clock_mhz") if "clock_mhz" in device.figures else _CLOCK_MHZ)


def resident_of(variants: Variants, device: Device) -> Floats:
    """Return the workgroups that threads and LDS allow on one compute unit at once; at least 1."""
    return np.maximum(resident_workgroups(device, variants.threads, lds_bytes=variants.lds_bytes), 1.0)


def _unit_flops(gemm: Gemm, variants: Variants, device: Device) -> Floats:
    """Return the FLOP that one compute unit does in a cycle with the instructions of each variant."""
    peak = np.full(len(variants), device.flops_per_s(runs_as(device, gemm.dtype)))
    if gemm.dtype == "fp32" and "fp32_matrix_tflops" in device.figures:
        peak = np.where(variants.matrix_rows > 0, device.value("fp32_matrix_tflops") * 1e12, peak)
    return np.asarray(peak / (device.compute_units * clock_hz(device)))


def compute_cycles(constants: VariantConstants | Any, grid: VariantGrid) -> Floats:
    """Return the cycles in which the busiest compute unit runs its workgroups.

    A unit runs ``floor(on_unit / r)`` rounds of r resident workgroups and a last round of the others. A round of x
    workgroups takes ``(L**3 + (x * A)**3)**(1/3)``: steps wait for each other (L) or for the units of arithmetic and
    LDS (A), as in Volkov, Understanding latency hiding on GPUs (2016). Prologue and stores are added.
    """
    tile_bytes = (grid.tile_m + grid.tile_n) * grid.depth * grid.element_bytes
    edges = 1.0 + constants.edge * (1.0 / grid.tile_m + 1.0 / grid.tile_n)
    step = grid.flop_cycles * edges / constants.efficiency + constants.load * tile_bytes / _LDS_BYTES
    busy = grid.steps * step
    waiting = (grid.steps * (constants.step_cycles + constants.wave_cycles * grid.waves)) ** 3
    written = grid.tile_m * grid.tile_n * grid.element_bytes / _L2_BYTES
    store = written * (constants.store + constants.split_store * (grid.split > 1))
    resident = np.maximum(np.minimum(grid.resident, constants.resident), 1.0)
    full = np.floor(grid.on_unit / resident)
    last = grid.on_unit - full * resident

    def cycles(count: Floats) -> Floats:
        return np.asarray(np.cbrt(waiting + (count * busy) ** 3) + constants.prologue_cycles + count * store)

    return np.asarray(full * cycles(resident) + np.where(last > 0, cycles(last), 0.0))


def least_ns(grid: VariantGrid, device: Device) -> Floats:
    """Return the time of the busiest compute unit at its peak, which no kernel falls below, ns."""
    return np.asarray(grid.on_unit * grid.steps * grid.flop_cycles / clock_hz(device) * 1e9)


def busy_ns(constants: VariantConstants | Any, grid: VariantGrid, device: Device) -> tuple[Floats, Floats]:
    """Return the time of the variants without floor and launch, and its part without memory, ns.

    The slowest of computing, the L2 cache and memory rules: ``(C**p + L**p + M**p) ** (1 / p)``.
    """
    clock, sharp = clock_hz(device), constants.sharpness
    compute = compute_cycles(constants, grid) / clock * 1e9
    cache = grid.requested_bytes / (grid.units * _L2_BYTES * clock * constants.cache_efficiency) * 1e9
    memory = grid.memory_bytes / (device.memory_bytes_per_s * constants.memory_efficiency) * 1e9
    inner = compute**sharp + cache**sharp
    return np.asarray((inner + memory**sharp) ** (1 / sharp)), np.asarray(inner ** (1 / sharp))


def traffic(gemm: Gemm, variants: Variants, units: int, room_bytes: float) -> tuple[Floats, Floats, Floats]:
    """Return bytes that memory moves, bytes that workgroups request, and bytes that the last-level cache keeps.

    The workgroups that run at one time compute a nearly square block of the result. They read its rows and columns of
    the operands from memory once (Hong and Kung, 1981). An operand whose panel fits the cache is read once in all.
    Parts of the depth add their results in memory: each reads and writes the result.

    Parameters
    ----------
    gemm : Gemm
        GEMM that the variants compute.
    variants : Variants
        Kernels, n of them.
    units : int
        Compute units that they run on.
    room_bytes : float
        Bytes of the last-level cache that they may use.
    """
    left, right, result = (size / gemm.batch for size in gemm.operand_bytes)
    size, tm, tn = DTYPE_BYTES[gemm.dtype], variants.tile_m, variants.tile_n
    tiles = np.maximum(units / variants.global_split, 1.0)
    high, wide = block_of_tiles(tiles, (tm, tn), (gemm.m, gemm.n))
    read, kept = _operand_reads((left, right), (size * gemm.k, gemm.m, gemm.n), (tm, tn), (high, wide), room_bytes)
    written = result * np.where(variants.global_split > 1, 2.0 * variants.global_split, 1.0)
    requested = left * np.ceil(gemm.n / tn) + right * np.ceil(gemm.m / tm) + written
    memory = gemm.batch * (read + written)
    return memory, np.maximum(gemm.batch * requested, memory), kept


def _operand_reads(
    operands: tuple[float, float],
    lines: tuple[int, int, int],
    tile: tuple[Ints, Ints],
    block: tuple[Floats, Floats],
    room_bytes: float,
) -> tuple[Floats, Floats]:
    """Return the bytes of operands that memory reads, and the bytes that the cache keeps between uses.

    `lines` has the bytes of a row or column of an operand, the rows and the columns. A panel of the left operand that
    the cache keeps is at most as high as the block, and at most as high as the room allows.
    """
    (left, right), (line_bytes, m, n) = operands, lines
    read = left * n / block[1] + right * m / block[0]
    kept = np.zeros(len(read))
    for once, again, size, least, most in ((left, right, m, tile[0], block[0]), (right, left, n, tile[1], block[1])):
        panel = np.minimum(most, room_bytes / line_bytes)
        bytes_ = np.where(panel >= np.minimum(least, size), once + again * size / np.maximum(panel, 1e-9), np.inf)
        kept = np.where(bytes_ < read, panel * line_bytes, kept)
        read = np.minimum(read, bytes_)
    return read, kept


def shape_features(gemm: Gemm, grid: VariantGrid) -> Floats:
    """Return quantities of a GEMM on the whole device that effects of kernels depend on, shape (n, 15).

    They are, in this order, each scaled to about one: a constant; binary orders of m, n, k (from 1,024) and batch; both
    transposes; binary orders of the workgroups of the busiest unit, and of the steps of the depth; binary orders by
    which the grid falls short of the resident workgroups of all units; whether a unit has no workgroup; the used share
    of the rows and of the columns of the tiles; the product of the two binary orders, and the square of the second.
    """
    logs = [np.log2(size) for size in (gemm.m, gemm.n, gemm.k, gemm.batch)]
    shared = np.array([1.0, *(np.array(logs) - (10, 10, 10, 0)), gemm.transpose_a, gemm.transpose_b])
    on_unit, steps = np.log2(grid.on_unit) / 2, np.log2(grid.steps) / 3
    filled = grid.workgroups / grid.units
    shared = np.broadcast_to(shared / (1, 4, 4, 4, 4, 1, 1), (len(steps), len(shared)))
    sparse = np.minimum(np.log2(filled / grid.resident), 0.0)
    return np.column_stack([shared, on_unit, steps, sparse, filled < 1, grid.used, on_unit * steps, steps * steps])


def shape_coordinates(gemm: Gemm) -> Floats:
    """Return the coordinates of a GEMM among shapes: binary orders of m, n, k, batch, and its layout."""
    sizes = [np.log2(size) for size in (gemm.m, gemm.n, gemm.k, gemm.batch)]
    return np.array([*sizes, _LAYOUT_DISTANCE * gemm.transpose_a, _LAYOUT_DISTANCE * gemm.transpose_b])


def shape_covariance(left: Floats, right: Floats) -> Floats:
    """Return the covariance of effects between shapes: a constant and a part that falls with distance.

    Kernels of one layout of operands run no other layout; its covariance is zero there.
    """
    away = left[:, None, :] - right[None, :, :]
    near = np.exp(-0.5 * ((away[..., :4] / LENGTH) ** 2).sum(-1))
    return np.asarray((1.0 + near) * (np.abs(away[..., 4:]).max(-1) == 0))


@dataclass(frozen=True)
class VariantEffects:
    """Logarithms of time over physics, for c kernels of a fit.

    Parameters
    ----------
    low, high : array of float64, shape (15,)
        Range of each column of `shape_features` in the measurements; features are clipped to it.
    general : array of float64, shape (15,)
        Weights of the features for a kernel that was not measured.
    slopes : array of float64, shape (c, 15)
        Weights of the features for each kernel.
    shapes : array of float64, shape (s, 6)
        `shape_coordinates` of the measured GEMMs.
    profiles : array of float64, shape (c, p)
        Weights of the components for each kernel.
    components : array of float64, shape (p, s)
        Weights of the covariances with the measured GEMMs.
    """

    low: Floats
    high: Floats
    general: Floats
    slopes: Floats
    shapes: Floats
    profiles: Floats
    components: Floats

    def check(self, kernels: int) -> None:
        """Check that the arrays belong together.

        Parameters
        ----------
        kernels : int
            Number of kernels.

        Raises
        ------
        ValueError
            An array has another shape, or a range is upside down.
        """
        shapes, components = len(self.shapes), len(self.components)
        expected = {
            "low": (N_FEATURES,), "high": (N_FEATURES,), "general": (N_FEATURES,), "slopes": (kernels, N_FEATURES),
            "shapes": (shapes, 6), "profiles": (kernels, components), "components": (components, shapes),
        }  # fmt: skip
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"effects: {name} is {getattr(self, name).shape}; it must be {shape}")
        if (self.low > self.high).any():
            raise ValueError("effects: low is above high")

    def log_factors(self, gemm: Gemm, grid: VariantGrid, candidate: Ints) -> Floats:
        """Return the logarithm of the factor of each variant.

        Parameters
        ----------
        gemm : Gemm
            GEMM that the variants compute.
        grid : VariantGrid
            Quantities of the variants on the whole device.
        candidate : array of int64, shape (n,)
            Numbers of the kernels; -1 for a kernel that was not measured.
        """
        features = np.clip(shape_features(gemm, grid), self.low, self.high)
        known = (candidate >= 0) & (candidate < len(self.slopes))
        rows = np.where(known, candidate, 0)
        point = shape_coordinates(gemm)
        near = self.components @ shape_covariance(self.shapes, point[None, :])[:, 0]
        measured = np.einsum("ij,ij->i", features, self.slopes[rows]) + self.profiles[rows] @ near
        away = np.sqrt(((self.shapes - point)[:, :4] ** 2).sum(axis=1).min())
        kept = np.exp(-0.5 * (max(away - _REACH, 0.0) / LENGTH) ** 2)
        return np.asarray(kept * np.where(known, measured, features @ self.general))

    def library(self, chosen: Ints, most: int) -> "VariantEffects":
        """Return the effects of some kernels, with a number of components at most.

        Parameters
        ----------
        chosen : array of int64
            Numbers of the kernels, which become 0, 1, ...
        most : int
            Largest number of components; the ones that explain most of the effects on the measured shapes stay.
        """
        root = np.linalg.cholesky(shape_covariance(self.shapes, self.shapes) + 1e-6 * np.eye(len(self.shapes)))
        left, sizes, right = np.linalg.svd(self.profiles[chosen] @ self.components @ root, full_matrices=False)
        components = np.linalg.solve(root.T, right[:most].T).T
        profiles = left[:, :most] * sizes[:most]
        return replace(self, slopes=self.slopes[chosen], profiles=profiles, components=components)


def kernel_effects(residuals: Floats, noise: Floats, shapes: Floats) -> Floats:
    """Return weights of covariances that explain residuals of kernels: kernel ridge regression, row by row.

    Parameters
    ----------
    residuals : array of float64, shape (c, s)
        Residual of each kernel on each shape; NaN if it was not measured.
    noise : array of float64, shape (c, s)
        Variance of each residual.
    shapes : array of float64, shape (s, 6)
        `shape_coordinates` of the shapes.
    """
    measured = np.isfinite(residuals)
    weights = np.zeros(residuals.shape)
    covariance = shape_covariance(shapes, shapes)
    patterns, of_pattern = np.unique(measured, axis=0, return_inverse=True)
    of_pattern = of_pattern.ravel()
    for number, pattern in enumerate(patterns):  # one solution for each set of measured shapes
        at = np.flatnonzero(pattern)
        if not len(at):
            continue
        every = np.flatnonzero(of_pattern == number)
        for rows in np.array_split(every, -(-len(every) * len(at) ** 2 // _BATCH)):
            matrices = covariance[np.ix_(at, at)] + noise[np.ix_(rows, at)][:, :, None] * np.eye(len(at))
            weights[np.ix_(rows, at)] = np.linalg.solve(matrices, residuals[np.ix_(rows, at)][..., None])[..., 0]
    return weights


@dataclass(frozen=True)
class VariantCosts:
    """Time and demands of variants that run a GEMM alone on their units: columns of equal length n.

    Parameters
    ----------
    time_ns : array of float64
        Duration on the compute units and the share of the cache that were given.
    arithmetic_ns : array of float64
        The part of it that rounds of workgroups take, without memory.
    memory_bytes, footprint_bytes : array of float64
        Bytes that memory moves, and bytes of operands that the last-level cache keeps between uses.
    operand_bytes : array of float64
        Bytes that workgroups request from the last-level cache.
    workgroups : array of int64
        Workgroups of the kernel.
    resident : array of float64
        Workgroups that one compute unit holds at once.
    floor_ns, memory_ns : array of float64
        The part of the time before the first workgroup starts, and that of `memory_bytes` at the delivered bandwidth.
    """

    time_ns: Floats
    arithmetic_ns: Floats
    memory_bytes: Floats
    footprint_bytes: Floats
    operand_bytes: Floats
    workgroups: Ints
    resident: Floats
    floor_ns: Floats
    memory_ns: Floats


@dataclass(frozen=True)
class VariantModel:
    """A model of kernel variants; the default is for a device without a fit.

    Parameters
    ----------
    constants : VariantConstants
        Constants of the physics.
    effects : VariantEffects, optional
        Corrections of kernels, by `Variants.candidate`.
    """

    constants: VariantConstants = field(default_factory=VariantConstants)
    effects: VariantEffects | None = None

    def costs(
        self, gemm: Gemm, variants: Variants, device: Device, *, units: int = 0, cache_share: float = 1.0
    ) -> VariantCosts:
        """Return time and demands of each variant.

        Parameters
        ----------
        gemm : Gemm
            GEMM that the variants compute.
        variants : Variants
            Kernels, n of them.
        device : Device
            Device that they run on.
        units : int
            Compute units that they may use; 0 for all of the device.
        cache_share : float
            Share of the last-level cache that they may use, above 0 and at most 1.

        Raises
        ------
        InvalidInputError
            There are more units than the device has, or the share is not above 0 and at most 1.

        Notes
        -----
        ``T = (floor + busy(units, cache)) * exp(effect(gemm, variant))``, with `busy_ns`, and at least
        the time of the arithmetic at the peak. The effect does not depend on units and cache.

        Examples
        --------
        >>> from profilers.devices import find_device
        >>> mi100, gemm = find_device("MI100"), Gemm(4096, 4096, 4096)
        >>> variants = Variants.of(tile_m=[128, 32], tile_n=[128, 32])
        >>> whole, half = (VariantModel().costs(gemm, variants, mi100, units=units).time_ns for units in (120, 60))
        >>> bool(whole[0] < whole[1]), bool((1.8 < half / whole).all() and (half / whole < 2.2).all())
        (True, True)
        """
        if not 0 <= units <= device.compute_units:
            raise InvalidInputError(f"{units} compute units; {device.name} has {device.compute_units}")
        if not 0 < cache_share <= 1:
            raise InvalidInputError(f"a cache share of {cache_share}: give a number above 0, at most 1")
        grid = VariantGrid.of(gemm, variants, device, units=units, cache_share=cache_share)
        busy, arithmetic = busy_ns(self.constants, grid, device)
        factor, least = self._factors(gemm, variants, device), least_ns(grid, device)
        floor = self.constants.floor_ns + self.constants.split_ns * (variants.global_split > 1)
        resident = np.maximum(np.floor(np.minimum(grid.resident, self.constants.resident)), 1.0)
        delivered = device.memory_bytes_per_s * self.constants.memory_efficiency
        return VariantCosts(
            time_ns=np.maximum((floor + busy) * factor, least),
            arithmetic_ns=np.maximum(arithmetic * factor, least),
            memory_bytes=grid.memory_bytes,
            footprint_bytes=grid.kept_bytes,
            operand_bytes=grid.requested_bytes,
            workgroups=variants.workgroups(gemm),
            resident=resident,
            floor_ns=floor * factor,
            memory_ns=grid.memory_bytes / delivered * 1e9,
        )

    def measured_ns(self, gemm: Gemm, variants: Variants, device: Device) -> Floats:
        """Return the time that a table of candidates records: that of the whole device, with the launch.

        Parameters
        ----------
        gemm : Gemm
            GEMM that the variants compute.
        variants : Variants
            Kernels, n of them.
        device : Device
            Device that they run on.
        """
        launch = self.constants.launch_ns * self._factors(gemm, variants, device)
        return self.costs(gemm, variants, device).time_ns + launch

    def _factors(self, gemm: Gemm, variants: Variants, device: Device) -> Floats:
        """Return the factor of each variant."""
        if self.effects is None:
            return np.ones(len(variants))
        whole = VariantGrid.of(gemm, variants, device)
        return np.exp(self.effects.log_factors(gemm, whole, variants.candidate))


@dataclass(frozen=True)
class VariantFit:
    """Kernels of a library on a device, with their model.

    Parameters
    ----------
    device : Device
        Device that was measured.
    dtype : str
        Type of the operands.
    variants : Variants
        Kernels.
    model : VariantModel
        Their model.
    source : str
        Measurements, in words.
    """

    device: Device
    dtype: str
    variants: Variants
    model: VariantModel
    source: str


class _EffectsRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arrays of `VariantEffects` in a file."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    general: tuple[float, ...]
    slopes: tuple[tuple[float, ...], ...]
    shapes: tuple[tuple[float, ...], ...]
    profiles: tuple[tuple[float, ...], ...]
    components: tuple[tuple[float, ...], ...]


class _VariantsRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of `Variants` in a file; LDS of 0 is unknown."""

    tile_m: tuple[float, ...]
    tile_n: tuple[float, ...]
    depth: tuple[float, ...]
    global_split: tuple[float, ...]
    local_split: tuple[float, ...]
    threads: tuple[float, ...]
    matrix_rows: tuple[float, ...]
    lds_bytes: tuple[float, ...]


class _FitRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fit of a file."""

    dtype: str
    variants: _VariantsRow
    constants: VariantConstants
    effects: _EffectsRow | None = None


def _fit_of(content: CalibrationFile[_FitRow]) -> VariantFit:
    """Return the fit of a file's content."""
    fit = content.fit
    if len(content.devices) != 1 or fit.dtype not in DTYPES:
        raise ValueError(f"it is for {', '.join(content.devices) or 'no device'} and type {fit.dtype}")
    columns = {name: np.array(values) for name, values in msgspec.structs.asdict(fit.variants).items()}
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("variants: columns differ in length")
    columns["lds_bytes"] = np.where(columns["lds_bytes"] > 0, columns["lds_bytes"], np.nan)
    variants = Variants.of(**columns, candidate=np.arange(len(columns["tile_m"])))
    effects = None
    if fit.effects is not None:
        effects = VariantEffects(*(np.array(getattr(fit.effects, f.name), dtype=float) for f in fields(VariantEffects)))
        effects.check(len(variants))
    model = VariantModel(fit.constants, effects)
    return VariantFit(find_device(content.devices[0]), fit.dtype, variants, model, content.source)


_LAYOUT = CalibrationLayout("gemms", _FitRow, _fit_of)


def read_variant_fit(path: str | Path) -> VariantFit:
    """Read what `seqpoint calibrate gemms` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or it is no fit of GEMMs.
    """
    return _LAYOUT.read(path)


def write_variant_fit(path: Path, fit: VariantFit) -> None:
    """Write a fit, whole or not at all.

    Parameters
    ----------
    path : Path
        JSON file.
    fit : VariantFit
        Kernels and their model.
    """
    columns = {
        f.name: tuple(float(value) for value in np.nan_to_num(getattr(fit.variants, f.name)))
        for f in fields(Variants)
        if f.name != "candidate"
    }
    effects = None
    if fit.model.effects is not None:
        arrays = {f.name: _rounded(getattr(fit.model.effects, f.name)) for f in fields(VariantEffects)}
        effects = msgspec.convert(arrays, _EffectsRow)
    constants = msgspec.structs.asdict(fit.model.constants)
    rounded = VariantConstants(**{name: _rounded(np.array([value]))[0] for name, value in constants.items()})
    row = _FitRow(fit.dtype, _VariantsRow(**columns), rounded, effects)
    _LAYOUT.write(path, row, devices=[fit.device.name], source=fit.source)


def _rounded(values: Floats) -> Any:
    """Return nested lists of numbers with four significant digits."""
    if values.ndim > 1:
        return tuple(_rounded(row) for row in values)
    return tuple(float(f"{value:.4g}") for value in values)


@cache
def shipped_fits() -> tuple[VariantFit, ...]:
    """Return the fits that the project ships, by name of the file."""
    return tuple(read_variant_fit(path) for path in sorted(dataset_path("fits").glob("gemm_variants_*.json")))


def library_of(device: Device, dtype: str, fits: Sequence[VariantFit] | None = None) -> tuple[Variants, VariantModel]:
    """Return the variants that a library has for a device and a type, and their model.

    They come from the fit of the device and the type. Otherwise they come from a fit of the same architecture: its
    kernels, and its constants, which are relative to the rates of a device. The effects of kernels are kept if the
    type is the same. Without such a fit, they are tiles and splits that libraries use, and a prior.

    Parameters
    ----------
    device : Device
        Device that runs the GEMMs.
    dtype : str
        Type of the operands.
    fits : sequence of VariantFit, optional
        Fits, the preferred ones first; by default the shipped ones.
    """
    for fit in sorted(shipped_fits() if fits is None else fits, key=lambda fit: _distance(fit, device, dtype)):
        if _distance(fit, device, dtype) == (0, 0):
            return fit.variants, fit.model
        if fit.device.architecture.split()[0] != device.architecture.split()[0]:
            break
        scale = DTYPE_BYTES[fit.dtype] / DTYPE_BYTES[dtype]
        depth = np.maximum(fit.variants.depth * scale, 1).astype(np.int64)
        kept = fit.model.effects if fit.dtype == dtype and fit.device.architecture == device.architecture else None
        return replace(fit.variants, depth=depth), VariantModel(fit.model.constants, kept)
    rows = [(*tile, split) for tile in TILES for split in SPLITS]
    tile_m, tile_n, split = np.array(rows).T
    size = DTYPE_BYTES[dtype]
    lds = 2.0 * (tile_m + tile_n) * 32 * size  # two buffers, each of a step of 32 along the depth as in `Variants.of`
    fits_lds = lds <= device.value("lds_kb") * 2**10
    variants = Variants.of(tile_m=tile_m, tile_n=tile_n, global_split=split, lds_bytes=lds)
    return variants.select(fits_lds), VariantModel()


def _distance(fit: VariantFit, device: Device, dtype: str) -> tuple[int, int]:
    """Return how far a fit is from a device, and from a type: 0 if it is the same."""
    near = fit.device.architecture.split()[0] == device.architecture.split()[0]
    of_device = (
        0 if fit.device.name == device.name else 1 + (fit.device.architecture != device.architecture) + 8 * (not near)
    )
    return of_device, int(fit.dtype != dtype) * (1 + abs(DTYPE_BYTES[fit.dtype] - DTYPE_BYTES[dtype]))
