"""Kernel variants: the tile, split and resources of kernels that compute the same GEMM."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.gemms.gemm import Gemm


@dataclass(frozen=True)
class Variants:
    """Kernels that can compute a GEMM: columns of equal length n, one row a variant.

    Parameters
    ----------
    tile_m, tile_n : array of int64
        Rows and columns of the result that a workgroup computes.
    depth : array of int64
        Depth that a workgroup loads in one step.
    global_split : array of int64
        Workgroups that share the depth of a tile, and add their results in memory.
    local_split : array of int64
        Parts of a workgroup that share the depth of a tile, and add their results in LDS.
    threads : array of int64
        Threads of a workgroup.
    matrix_rows : array of int64
        Rows of its matrix instruction; 0 if it uses vector instructions.
    lds_bytes : array of float64
        Shared memory or LDS of a workgroup; NaN if unknown.
    candidate : array of int64
        Number of the kernel in the fit of a `VariantModel`; -1 if it has none.

    Raises
    ------
    InvalidInputError
        Columns differ in length, or a size is below 1.

    Examples
    --------
    >>> Variants.of(tile_m=[128, 64], tile_n=[128, 64], depth=[16, 16]).workgroups(Gemm(256, 192, 512)).tolist()
    [4, 12]
    """

    tile_m: Ints
    tile_n: Ints
    depth: Ints
    global_split: Ints
    local_split: Ints
    threads: Ints
    matrix_rows: Ints
    lds_bytes: Floats
    candidate: Ints

    def __post_init__(self) -> None:
        if len({len(getattr(self, field.name)) for field in fields(self)}) > 1:
            raise InvalidInputError("variants: columns differ in length")
        for name in ("tile_m", "tile_n", "depth", "global_split", "local_split", "threads"):
            if (getattr(self, name) < 1).any():
                raise InvalidInputError(f"variants: {name} must be 1 or more")

    @classmethod
    def of(
        cls,
        *,
        tile_m: npt.ArrayLike,
        tile_n: npt.ArrayLike,
        depth: npt.ArrayLike = 32,
        **columns: npt.ArrayLike,
    ) -> "Variants":
        """Return variants from columns of `Variants`; a number stands for all rows.

        Without other values, a variant has no split, 256 threads and unknown LDS.
        """
        defaults: dict[str, npt.ArrayLike] = {
            "global_split": 1, "local_split": 1, "threads": 256, "matrix_rows": 0, "lds_bytes": np.nan, "candidate": -1
        }  # fmt: skip
        values = {**defaults, **columns, "tile_m": tile_m, "tile_n": tile_n, "depth": depth}
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidInputError(f"variants have no column {', '.join(sorted(unknown))}")
        arrays = dict(
            zip(values, np.broadcast_arrays(*(np.atleast_1d(value) for value in values.values())), strict=True)
        )
        return cls(**{name: array.astype(float if name == "lds_bytes" else np.int64) for name, array in arrays.items()})

    def __len__(self) -> int:
        """Return the number of variants."""
        return len(self.tile_m)

    def select(self, rows: npt.ArrayLike) -> "Variants":
        """Return some of the variants, by row numbers or a mask."""
        return Variants(**{field.name: getattr(self, field.name)[np.atleast_1d(rows)] for field in fields(self)})

    def workgroups(self, gemm: Gemm) -> Ints:
        """Return the workgroups of each variant: one for each tile, part of the depth, and product of the batch."""
        rows, columns = -(-gemm.m // self.tile_m), -(-gemm.n // self.tile_n)
        return np.asarray(rows * columns * self.global_split * gemm.batch)
