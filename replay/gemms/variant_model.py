"""The time and the demands of a kernel variant on a share of a device.

A workgroup computes one tile of the result. `VariantModel.costs` counts the rounds of workgroups that the compute
units run, the time of a round, and the bytes that memory moves with a share of the last-level cache.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.costs.kernels.models import runs_as
from replay.costs.occupancy import resident_workgroups
from replay.costs.products import TILES, cache_bytes
from replay.gemms.gemm import Gemm
from replay.gemms.variants import Variants
from replay.graph.operators import DTYPE_BYTES

#: Splits of the depth that a library without a table is taken to have.
_SPLITS: Final = (1, 2, 4, 8, 16)


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
    """

    time_ns: Floats
    arithmetic_ns: Floats
    memory_bytes: Floats
    footprint_bytes: Floats
    operand_bytes: Floats
    workgroups: Ints
    resident: Floats


class VariantModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model of kernel variants; the defaults are for a device without a fit.

    Parameters
    ----------
    efficiency : float
        Share of the peak that a compute unit reaches on a large tile.
    edge : float
        Cost of a tile's edge, in elements.
    memory_efficiency : float
        Share of the peak bandwidth that operands reach.
    floor_ns : float
        Time of a kernel without work, ns.
    sharpness : float
        How sharply the slower of computing and moving rules.
    """

    efficiency: float = 0.85
    edge: float = 2.0
    memory_efficiency: float = 0.85
    floor_ns: float = 3000.0
    sharpness: float = 3.0

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
        ``T = floor + (A**p + (bytes / B)**p) ** (1 / p)``, ``A = ceil(workgroups / units) * t``, and ``t`` the time
        of a tile at the peak of a compute unit times `efficiency`, lengthened by its edges.

        Examples
        --------
        >>> from profilers.devices import find_device
        >>> mi100, gemm = find_device("MI100"), Gemm(4096, 4096, 4096)
        >>> variants = Variants.of(tile_m=[128, 32], tile_n=[128, 32])
        >>> whole, half = (VariantModel().costs(gemm, variants, mi100, units=units).time_ns for units in (120, 60))
        >>> bool(whole[0] < whole[1]), bool((1.8 < half / whole).all() and (half / whole < 2.2).all())
        (True, True)
        """
        units = units or device.compute_units
        if not 1 <= units <= device.compute_units:
            raise InvalidInputError(f"{units} compute units; {device.name} has {device.compute_units}")
        if not 0 < cache_share <= 1:
            raise InvalidInputError(f"a cache share of {cache_share}: give a number above 0, at most 1")
        workgroups, resident = variants.workgroups(gemm), _resident(variants, device)
        peak = device.flops_per_s(runs_as(device, gemm.dtype)) / device.compute_units
        steps = np.ceil(gemm.k / (variants.global_split * variants.depth)) * variants.depth
        tile_flops = 2.0 * variants.tile_m * variants.tile_n * steps
        edges = 1.0 + self.edge * (1.0 / variants.tile_m + 1.0 / variants.tile_n)
        arithmetic = np.ceil(workgroups / units) * tile_flops * edges / (peak * self.efficiency) * 1e9
        memory, cached, footprint = traffic(gemm, variants, units, cache_share * cache_bytes(device))
        moving = memory / (device.memory_bytes_per_s * self.memory_efficiency) * 1e9
        busy = (arithmetic**self.sharpness + moving**self.sharpness) ** (1 / self.sharpness)
        return VariantCosts(self.floor_ns + busy, arithmetic, memory, footprint, cached, workgroups, resident)


def library_of(device: Device, dtype: str) -> tuple[Variants, VariantModel]:
    """Return the variants that a library has for a device and a type, and their model."""
    rows = [(*tile, split) for tile in TILES for split in _SPLITS]
    tile_m, tile_n, split = np.array(rows).T
    size = DTYPE_BYTES[dtype]
    lds = 2.0 * (tile_m + tile_n) * 32 * size
    fits = lds <= device.value("lds_kb") * 2**10
    return Variants.of(tile_m=tile_m, tile_n=tile_n, global_split=split, lds_bytes=lds).select(fits), VariantModel()


def _resident(variants: Variants, device: Device) -> Floats:
    """Return the workgroups that one compute unit holds at once; at least 1."""
    return np.maximum(resident_workgroups(device, variants.threads, lds_bytes=variants.lds_bytes), 1.0)


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
    block = np.sqrt(tiles * tm * tn)
    high = np.minimum(np.maximum(block, tm), gemm.m)
    wide = np.minimum(np.maximum(tiles * tm * tn / high, tn), gemm.n)
    high = np.minimum(np.maximum(tiles * tm * tn / wide, tm), gemm.m)
    passes_m, passes_n = np.ceil(gemm.m / high), np.ceil(gemm.n / wide)
    both = left * passes_n + right * passes_m
    rows, columns = size * high * gemm.k, size * wide * gemm.k
    by_rows = np.where(rows <= room_bytes, left + passes_m * right, np.inf)
    by_columns = np.where(columns <= room_bytes, right + passes_n * left, np.inf)
    read = np.minimum(both, np.minimum(by_rows, by_columns))
    kept = np.where(read == by_rows, rows, np.where(read == by_columns, columns, 0.0))
    written = result * np.where(variants.global_split > 1, 2.0 * variants.global_split, 1.0)
    requested = left * np.ceil(gemm.n / tn) + right * np.ceil(gemm.m / tm) + written
    memory = gemm.batch * (read + written)
    return memory, np.maximum(gemm.batch * requested, memory), kept
