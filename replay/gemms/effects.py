"""Effects of kernels that the physics of a variant does not know: instruction order, prefetch, registers.

`VariantEffects` corrects the time of a kernel by a factor that depends on the GEMM and the kernel, and not on the
compute units or the share of the cache, so that more units never make a kernel slower.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from profilers.trace.arrays import Floats, Ints
from replay.gemms.gemm import Gemm
from replay.gemms.variant_times import VariantGrid

#: Length of the covariance of shapes, in binary orders of m, n, k and batch, and distance of another layout.
LENGTH: Final = 2.0
_LAYOUT_DISTANCE: Final = 1.0e3
#: Effects fade beyond this distance from every measured shape, in binary orders.
_REACH: Final = 2.0
#: Number of columns of `shape_features`.
N_FEATURES: Final = 15
#: Numbers in the matrices that are solved at one time.
_BATCH: Final = 2_000_000


def shape_features(gemm: Gemm, grid: VariantGrid) -> Floats:
    """Return quantities of a GEMM on the whole device that effects of kernels depend on, shape (n, 15)."""
    logs = [np.log2(size) for size in (gemm.m, gemm.n, gemm.k, gemm.batch)]
    shared = np.array([1.0, *(np.array(logs) - (10, 10, 10, 0)), gemm.transpose_a, gemm.transpose_b])
    on_unit, steps = np.log2(grid.on_unit) / 2, np.log2(grid.steps) / 3
    filled = grid.workgroups / grid.units
    shared = np.broadcast_to(shared / (1, 4, 4, 4, 4, 1, 1), (len(steps), len(shared)))
    sparse = np.minimum(np.log2(filled / grid.resident), 0.0)
    return np.column_stack(
        [shared, on_unit, steps, sparse, filled < 1, grid.used, on_unit * steps, steps * steps]
    )  # fmt: skip


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
            An array has another shape.
        """
        shapes, components = len(self.shapes), len(self.components)
        expected = {
            "low": (N_FEATURES,), "high": (N_FEATURES,), "general": (N_FEATURES,), "slopes": (kernels, N_FEATURES),
            "shapes": (shapes, 6), "profiles": (kernels, components), "components": (components, shapes),
        }  # fmt: skip
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"effects: {name} is {getattr(self, name).shape}; it must be {shape}")

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
            Largest number of components. Those that explain most of the effects on the measured shapes are kept.
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
