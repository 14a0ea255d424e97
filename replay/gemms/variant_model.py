"""The time and the demands of a kernel variant on a share of a device.

A workgroup computes one tile of the result. `VariantModel.costs` counts the rounds of workgroups that the compute
units run, the time of a round, and the bytes that memory moves with a share of the last-level cache. A fit corrects
the time of each kernel. `library_of` returns the kernels that a device has, and their model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from profilers.devices.catalogue import DTYPES, Device, find_device
from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.arrays import Floats, Ints
from replay.calibration.files import CalibrationFile, CalibrationLayout
from replay.costs.products import TILES
from replay.gemms.gemm import Gemm, Variants
from replay.gemms.variant_times import VariantConstants, VariantEffects, VariantGrid, busy_ns, least_ns
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
        ``T = (floor + busy(units, cache)) * exp(effect(gemm, variant))``, with `busy_ns` of
        `replay.gemms.variant_times`, and at least the time of the arithmetic at the peak. The effect does not depend on
        units and cache.

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
        Fits, the preferred ones first; by default those that the project ships.
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
    rows = [(*tile, split) for tile in TILES for split in _SPLITS]
    tile_m, tile_n, split = np.array(rows).T
    size = DTYPE_BYTES[dtype]
    lds = 2.0 * (tile_m + tile_n) * 32 * size
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
