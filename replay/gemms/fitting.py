"""Fit a model of kernel variants to a table of measured candidates.

`fit_variants` fits in three steps, each to what the step before leaves: the constants of the physics, the effects of
parameters of kernels by shape (ridge regression), and the effects of single kernels by shape (kernel ridge
regression). Candidates count by how near the best of their GEMM they are. `held_out_times` predicts the times of GEMMs
that a fit did not see. `library_rows` chooses the kernels that a library keeps.
"""

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Final

import msgspec
import numpy as np
import scipy

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.gemms.candidates import MeasuredCandidates
from replay.gemms.gemm import Gemm
from replay.gemms.variant_model import (
    VariantConstants,
    VariantEffects,
    VariantFit,
    VariantGrid,
    VariantModel,
    busy_ns,
    kernel_effects,
    shape_coordinates,
    shape_features,
)

#: Where the search for the constants starts, and how far, as a factor, they usually are from there.
_STARTS: Final = {
    "efficiency": (0.6, 1.5), "edge": (10.0, 2.0), "memory_efficiency": (0.7, 1.5), "cache_efficiency": (1.0, 2.0),
    "load": (0.5, 2.0), "step_cycles": (300.0, 2.0), "wave_cycles": (20.0, 2.0), "prologue_cycles": (1000.0, 3.0),
    "store": (1.0, 3.0), "split_store": (1.0, 3.0), "floor_ns": (8000.0, 1.05), "split_ns": (2000.0, 3.0),
}  # fmt: skip
#: Most workgroups of a compute unit that are tried; register use is not recorded.
_RESIDENT: Final = (1.0, 2.0, 4.0)
#: Weight of the starts, in measurements.
_PRIOR: Final = 3.0
#: A candidate this many times slower (as a logarithm) than the best of its GEMM counts 1 / e.
_SCALE: Final = 0.3
#: Least weight of a candidate in the effects of its kernel.
_LEAST_WEIGHT: Final = 0.02
#: Variance of an effect that a shape does not explain, over that of the effects; and weight of small slopes.
_NOISE: Final = 0.2
_RIDGE: Final = 100.0
#: Rows that constants and slopes are fitted to.
_ROWS: Final = 12_000
_ROWS_OF_SLOPES: Final = 30_000
#: Candidates slower than the best by more than this factor do not count for constants and slopes.
_SLOWEST: Final = 3.0
#: Time of a kernel without work, ns; more than this is the launch.
_FLOOR_NS: Final = 3000.0
#: A tile, split and depth that is slower than the best on every GEMM by this factor is not kept.
_LIBRARY_SLOWEST: Final = 1.5
#: Least gain of a kernel that a library adds: the sum of logarithms of speed-ups over GEMMs.
_LEAST_GAIN: Final = 0.005
#: Logarithm of the time over the best of a GEMM that no kernel of the library computes.
_UNSERVED: Final = 5.0
#: Components of the effects of kernels that a library keeps.
_COMPONENTS: Final = 12


@dataclass(frozen=True)
class _CandidateRows:
    """Measurements of a table with the quantities that a fit needs, r rows."""

    grid: VariantGrid
    features: Floats
    log_ns: Floats
    over_best: Floats


def _rows_of(candidates: MeasuredCandidates) -> _CandidateRows:
    """Return the quantities of each measurement, with the logarithms of the time and of the time over the best."""
    grids, features = [], []
    logs = np.log(candidates.time_ns)
    best = np.full(len(candidates.gemms), np.inf)
    np.minimum.at(best, candidates.gemm_of, logs)
    for number in np.unique(candidates.gemm_of):  # one evaluation a GEMM
        rows = candidates.gemm_of == number
        gemm = candidates.gemms[number]
        grids.append(VariantGrid.of(gemm, candidates.variants.select(candidates.variant_of[rows]), candidates.device))
        features.append(shape_features(gemm, grids[-1]))
    grid = VariantGrid(*(np.concatenate([getattr(g, f.name) for g in grids]) for f in fields(VariantGrid)))
    return _CandidateRows(grid, np.concatenate(features), logs, logs - best[candidates.gemm_of])


def _select(grid: VariantGrid, rows: Ints) -> VariantGrid:
    return VariantGrid(*(getattr(grid, f.name)[rows] for f in fields(VariantGrid)))


def fit_variants(candidates: MeasuredCandidates, *, seed: int = 0) -> VariantModel:
    """Fit constants and effects to measured candidates.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Measurements; `Variants.candidate` numbers the effects.
    seed : int
        Seed of the sample of rows that constants and slopes are fitted to.

    Raises
    ------
    InvalidInputError
        There are fewer than two GEMMs or kernels.
    """
    if min(len(np.unique(numbers)) for numbers in (candidates.gemm_of, candidates.variant_of)) < 2:
        raise InvalidInputError(f"{candidates.source}: one GEMM or kernel only; a fit needs two of each or more")
    rows = _rows_of(candidates)
    random = np.random.default_rng(seed)
    near = np.flatnonzero(rows.over_best < np.log(_SLOWEST))
    constants = _fit_constants(rows, _sample(near, candidates.gemm_of, _ROWS, random), candidates.device)
    busy, _ = busy_ns(constants, rows.grid, candidates.device)
    floors = constants.floor_ns + constants.launch_ns + constants.split_ns * (rows.grid.split > 1)
    residual = rows.log_ns - np.log(floors + busy)
    low, high = rows.features.min(axis=0), rows.features.max(axis=0)
    slopes = _fit_slopes(rows, candidates, residual, _sample(near, candidates.gemm_of, _ROWS_OF_SLOPES, random))
    residual = residual - np.einsum("ij,ij->i", rows.features, slopes[candidates.variant_of])
    shapes = np.array([shape_coordinates(gemm) for gemm in candidates.gemms])
    table = np.full((len(candidates.variants), len(shapes)), np.nan)
    noise = np.full(table.shape, np.inf)
    at = (candidates.variant_of, candidates.gemm_of)
    table[at] = residual
    noise[at] = _NOISE / np.maximum(np.exp(-rows.over_best / _SCALE), _LEAST_WEIGHT)
    weights = kernel_effects(table, noise, shapes)
    general = slopes[np.unique(candidates.variant_of)].mean(axis=0)
    return VariantModel(constants, VariantEffects(low, high, general, slopes, shapes, weights, np.eye(len(shapes))))


def _sample(rows: Ints, gemm_of: Ints, most: int, random: np.random.Generator) -> Ints:
    """Return at most `most` rows, about as many for every GEMM."""
    mixed = random.permutation(rows)
    order = mixed[np.argsort(gemm_of[mixed], kind="stable")]
    _, starts, counts = np.unique(gemm_of[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    return np.sort(order[rank < max(most // len(starts), 1)])


def _fit_constants(rows: _CandidateRows, sample: Ints, device: Device) -> VariantConstants:
    """Return the constants that explain the logarithms of times best, near their usual values."""
    grid, log_ns = _select(rows.grid, sample), rows.log_ns[sample]
    weights = np.sqrt(np.exp(-rows.over_best[sample] / _SCALE))
    starts, spreads = (np.log([value[i] for value in _STARTS.values()]) for i in (0, 1))
    defaults = msgspec.structs.asdict(VariantConstants())

    def constants_at(logs: Floats, resident: float) -> SimpleNamespace:
        return SimpleNamespace(**{**defaults, **dict(zip(_STARTS, np.exp(logs), strict=True)), "resident": resident})

    def misses(logs: Floats, resident: float) -> Floats:
        constants = constants_at(logs, resident)
        busy, _ = busy_ns(constants, grid, device)
        predicted = np.log(constants.floor_ns + constants.split_ns * (grid.split > 1) + busy)
        return np.concatenate([weights * (predicted - log_ns), np.sqrt(_PRIOR) * 0.2 * (logs - starts) / spreads])

    options = {"loss": "soft_l1", "f_scale": 0.2, "max_nfev": 40}
    fits = [(scipy.optimize.least_squares(misses, starts, args=(count,), **options), count) for count in _RESIDENT]
    best, resident = min(fits, key=lambda fit: float(fit[0].cost))
    fitted = {name: float(value) for name, value in zip(_STARTS, np.exp(best.x), strict=True)}
    floor = min(fitted["floor_ns"], _FLOOR_NS)
    launch = fitted["floor_ns"] - floor
    return VariantConstants(**{**fitted, "floor_ns": floor, "launch_ns": launch, "resident": resident})


def _fit_slopes(rows: _CandidateRows, candidates: MeasuredCandidates, residual: Floats, sample: Ints) -> Floats:
    """Return for each kernel the weights of the features that its parameters explain, shape (c, 15)."""
    traits = candidates.traits[candidates.variant_of[sample]].astype(np.float32)
    design = (traits[:, :, None] * rows.features[sample].astype(np.float32)[:, None, :]).reshape(len(sample), -1)
    weights = np.sqrt(np.exp(-rows.over_best[sample] / _SCALE)).astype(np.float32)
    scale = _RIDGE * len(sample) / _ROWS_OF_SLOPES
    design *= weights[:, None]
    squares = (design.T @ design).astype(float) + scale * np.eye(design.shape[1])
    solution = np.linalg.solve(squares, (design.T @ (weights * residual[sample])).astype(float))
    return np.asarray(candidates.traits @ solution.reshape(candidates.traits.shape[1], -1))


def measured_times(model: VariantModel, candidates: MeasuredCandidates, numbers: Ints) -> Floats:
    """Return the time that the model expects in each row of some GEMMs; NaN in the other rows.

    Parameters
    ----------
    model : VariantModel
        Model with the effects of the table's kernels.
    candidates : MeasuredCandidates
        Table.
    numbers : array of int64
        GEMMs to predict.
    """
    times = np.full(len(candidates.time_ns), np.nan)
    for number in numbers:  # one evaluation a GEMM
        rows = candidates.gemm_of == number
        variants = candidates.variants.select(candidates.variant_of[rows])
        times[rows] = model.measured_ns(candidates.gemms[number], variants, candidates.device)
    return times


def folds_of(gemms: tuple[Gemm, ...], *, families: bool, folds: int = 5) -> Ints:
    """Return the fold of each GEMM.

    Parameters
    ----------
    gemms : tuple of Gemm
        GEMMs.
    families : bool
        Whether alike GEMMs are in one fold. GEMMs are linked if they differ by a factor of two at most, in all
        dimensions together and in any layout. If that links more than half of the GEMMs, the factor is 1.5.
    folds : int
        Number of folds.

    Examples
    --------
    >>> gemms = tuple(Gemm(64, 64, k) for k in (64, 128, 1024, 8192))
    >>> folds_of(gemms, families=True, folds=3).tolist()
    [0, 0, 1, 2]
    """
    coordinates = np.array([shape_coordinates(gemm)[:4] for gemm in gemms])
    labels = np.arange(len(gemms))
    if families:
        labels = _families(coordinates, 1.01)
        if 2 * np.bincount(labels).max() > len(gemms):
            labels = _families(coordinates, 0.6)
    names, counts = np.unique(labels, return_counts=True)
    fold_of, filled = {}, np.zeros(min(folds, len(names)))
    for at in np.argsort(-counts, kind="stable"):  # a few hundred families
        fold_of[names[at]] = int(filled.argmin())
        filled[fold_of[names[at]]] += counts[at]
    return np.array([fold_of[label] for label in labels])


def _families(coordinates: Floats, reach: float) -> Ints:
    """Return for each shape the first shape that a chain of steps within `reach` leads to."""
    near = np.abs(coordinates[:, None] - coordinates[None]).sum(-1) <= reach
    labels = np.arange(len(coordinates))
    while True:
        linked = np.where(near, labels[None, :], len(coordinates)).min(axis=1)
        if (linked == labels).all():
            return labels
        labels = linked


def held_out_times(candidates: MeasuredCandidates, fold_of: Ints, *, seed: int = 0) -> Floats:
    """Return the time of each row, predicted by a fit without the GEMMs of its fold.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Table.
    fold_of : array of int64
        Fold of each GEMM.
    seed : int
        Seed of the fits.
    """
    times = np.full(len(candidates.time_ns), np.nan)
    for fold in np.unique(fold_of):
        left_out = np.flatnonzero(fold_of == fold)
        model = fit_variants(candidates.of_gemms(np.flatnonzero(fold_of != fold)), seed=seed)
        predicted = measured_times(model, candidates, left_out)
        times = np.where(np.isnan(times), predicted, times)
    return times


def library_rows(candidates: MeasuredCandidates, expected_ns: Floats, *, most: int = 160) -> Ints:
    """Return the kernels that a library keeps.

    The first kernels bring the fastest of the library nearest the best, over all GEMMs together. Of each other
    tile, split and depth, the kernel that is nearest the best on average follows. It must come within a factor of 1.5
    of the best somewhere: with a share of the compute units it may be the fastest.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Table.
    expected_ns : array of float64, shape (r,)
        Time of each row by the fit, which evens out the noise of single measurements.
    most : int
        Most kernels.
    """
    logs = 0.5 * (np.log(candidates.time_ns) + np.log(expected_ns))
    over = np.full((len(candidates.gemms), len(candidates.variants)), np.inf)
    over[candidates.gemm_of, candidates.variant_of] = logs
    over = over[np.isfinite(over).any(axis=1)]
    over -= over.min(axis=1, keepdims=True)
    measured = np.isfinite(over)
    mean = np.where(measured, np.minimum(over, 1.0), 0.0).sum(axis=0) / np.maximum(measured.sum(axis=0), 1)
    variants = candidates.variants
    chosen: list[int] = []
    fastest = np.full(len(over), _UNSERVED)
    while len(chosen) < most:  # one pass over the table for each kernel
        gains = np.maximum(fastest[:, None] - over, 0.0).sum(axis=0)
        best = int(gains.argmax())
        if gains[best] < _LEAST_GAIN:
            break
        chosen.append(best)
        fastest = np.minimum(fastest, over[:, best])
    kinds = np.column_stack([variants.tile_m, variants.tile_n, variants.global_split, variants.depth])
    near = np.flatnonzero(over.min(axis=0) < np.log(_LIBRARY_SLOWEST))
    order = np.concatenate([chosen, near[np.lexsort((near, mean[near]))]]).astype(np.int64)
    _, first = np.unique(kinds[order], axis=0, return_index=True)
    others = order[np.sort(first)]
    chosen += others[~np.isin(others, chosen)][: most - len(chosen)].tolist()
    return np.sort(np.array(chosen))


def fit_library(candidates: MeasuredCandidates, *, most: int = 160) -> VariantFit:
    """Fit a table of candidates and return the kernels that a library keeps, with their model.

    Parameters
    ----------
    candidates : MeasuredCandidates
        Table, of GEMMs of one type.
    most : int
        Most kernels.

    Raises
    ------
    InvalidInputError
        There are fewer than two GEMMs, or they have several types.
    """
    types = sorted({gemm.dtype for gemm in candidates.gemms})
    if len(types) > 1:
        raise InvalidInputError(f"{candidates.source}: GEMMs of {' and '.join(types)}; give a table for each type")
    model = fit_variants(candidates)
    expected = measured_times(model, candidates, np.unique(candidates.gemm_of))
    chosen = library_rows(candidates, expected, most=most)
    assert model.effects is not None
    effects = model.effects.library(chosen, _COMPONENTS)
    variants = replace(candidates.variants.select(chosen), candidate=np.arange(len(chosen)))
    source = (
        f"{candidates.source}: {len(candidates.time_ns):,} times of {len(candidates.variants):,} candidates on "
        f"{len(candidates.gemms)} GEMMs"
    )
    return VariantFit(candidates.device, types[0], variants, VariantModel(model.constants, effects), source)
