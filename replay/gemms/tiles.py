"""Tiles and grids of GEMM kernels: the tile that a kernel's name states, and the rounds that its workgroups take.

`tile_of_name` reads names of cuBLAS, cuBLASLt (nvjet), CUTLASS, rocBLAS and hipBLASLt (Tensile). `grid_of` explains the
workgroups of a launch by that tile, or guesses a tile that gives as many. `LaunchGrid` counts waves and tails.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Final

from replay.costs.products import TILES
from replay.gemms.gemm import Gemm

#: Names of kernels, by library. Groups: rows and columns of the tile as the library sees them, and the depth.
_PATTERNS: Final = tuple(
    (re.compile(pattern), persistent)
    for pattern, persistent in (
        # rocBLAS and hipBLASLt: Cijk_Ailk_Bljk_BBS_BH_MT128x64x32_MI16x16x16x1_SN_...
        (r"_MT(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)(?=_|$)", False),
        # cuBLASLt since CUDA 12.4: nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT (tile, depth x stages, cluster).
        (r"nvjet_\w*?_(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x\d+_\d+x\d+", True),
        # cuBLAS's xmma: sm90_xmma_gemm_..._tilesize128x128x64_warpgroupsize1x1x1_... ; those of warp groups stay.
        (r"tilesize(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)\w*warpgroupsize", True),
        (r"tilesize(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)", False),
        # CUTLASS 3: cutlass3x_sm90_tensorop_s64x128x16gemm_..._128x128x64_2x1x1_0_tnn_align8_... (tile, cluster).
        (r"cutlass3x_\w*?gemm\w*?_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_\d+x\d+x\d+_", True),
        # CUTLASS 2: cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1 (tile, depth x stages).
        (r"gemm\w*?_(?P<m>\d+)x(?P<n>\d+)_(?P<k>\d+)x\d+(?=_|$)", False),
        # cuBLAS: ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn, volta_sgemm_64x32_sliced1x4_nn.
        (r"gemm\w*?_(?P<m>\d+)x(?P<n>\d+)\w*?_stages_(?P<k>\d+)x", False),
        (r"gemm\w*?_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_", False),
        (r"gemm\w*?_(?P<m>\d+)x(?P<n>\d+)(?=_|$)", False),
        (r"GemmShape<\s*(?P<m>\d+),\s*(?P<n>\d+),\s*(?P<k>\d+)\s*>", False),
    )
)
_GLOBAL_SPLIT: Final = re.compile(r"_GSU(\d+)(?=_|$)")
#: Kernels of Tensile whose workgroups share all tiles evenly (stream-K); SK0 does not.
_STREAM_K: Final = re.compile(r"_SK[1-9]\d*(?=_|$)")
#: Sides of a tile that a kernel can have.
_SIDES: Final = range(4, 1025)
#: Parts of the depth that libraries often take at most, and the step along it if the name states none.
_USUAL_PARTS: Final = 64
_USUAL_DEPTH: Final = 8
#: CUTLASS rounds one side of the grid up to a multiple of these, so that neighbours share operands in the cache.
_SWIZZLES: Final = (2, 4, 8)
#: Kernels that split the depth, and so launch a workgroup for each part.
_SPLITS: Final = re.compile(r"split_?k", re.IGNORECASE)
#: Characters of a name that count.
_LENGTH: Final = 8192


@dataclass(frozen=True)
class NamedTile:
    """Part of the result that a workgroup computes.

    Parameters
    ----------
    m, n : int
        Rows and columns, as the library sees them. BLAS stores columns one after another, so that a framework with
        rows one after another asks it for the transposed result: its rows are then our columns.
    depth : int
        Depth that a workgroup loads in one step; 0 if unknown.
    split : int
        Workgroups that share the depth of a tile, if the name states it; 0 if not.
    persistent : bool
        Whether the kernel launches as many workgroups as fit at once, and each computes tiles one after another.
    """

    m: int
    n: int
    depth: int = 0
    split: int = 0
    persistent: bool = False


@lru_cache(maxsize=4096)
def tile_of_name(name: str) -> NamedTile | None:
    """Return the tile that a kernel's name states; None if it states none.

    Parameters
    ----------
    name : str
        Name of the kernel, as the profiler wrote it.

    Examples
    --------
    >>> tile_of_name("ampere_sgemm_128x64_nn")
    NamedTile(m=128, n=64, depth=0, split=0, persistent=False)
    >>> tile_of_name("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT")
    NamedTile(m=192, n=208, depth=64, split=0, persistent=True)
    >>> tile_of_name("gemv2T_kernel_val") is None
    True
    """
    if (match := _tile_match(name)) is None:
        return None
    found, persistent = match
    sizes, text = found.groupdict(), found.string
    split = _GLOBAL_SPLIT.search(text)
    stays = (persistent and not _SPLITS.search(text)) or _STREAM_K.search(text) is not None
    return NamedTile(int(sizes["m"]), int(sizes["n"]), int(sizes.get("k") or 0), int(split[1]) if split else 0, stays)


def tile_end(name: str) -> int:
    """Return the position in a kernel's name behind its tile; 0 if it states none.

    Examples
    --------
    >>> name = "ampere_sgemm_128x64_nn"
    >>> name[: tile_end(name)]
    'ampere_sgemm_128x64'
    """
    match = _tile_match(name)
    return 0 if match is None else match[0].end(max(match[0].re.groupindex.values()))


def _tile_match(name: str) -> tuple[re.Match[str], bool] | None:
    """Return the first pattern's match with sizes that a tile can have, and whether its kernels are persistent."""
    for pattern, persistent in _PATTERNS:
        match = pattern.search(name[:_LENGTH])
        if match is not None and int(match["m"]) in _SIDES and int(match["n"]) in _SIDES:
            return match, persistent
    return None


@dataclass(frozen=True)
class LaunchGrid:
    """Workgroups of a launch, and the rounds in which compute units run them.

    Parameters
    ----------
    tile_m, tile_n, depth : int
        Rows and columns of our result that a workgroup computes, and its step along the depth; 0 if unknown.
    known_by : str
        Source of the tile: ``"name"`` of the kernel, ``"grid"`` (guessed: it gives as many workgroups), or ``""``.
    workgroups : int
        Workgroups that were launched; 0 if the trace does not say.
    tiles : int
        Pieces that workgroups compute: tiles times parts of the depth. The workgroups if the tile is unknown.
    split : int
        Parts of the depth; 0 if unknown.
    persistent : bool
        Whether each workgroup computes several tiles, one after another.
    units : int
        Compute units of the device.
    resident : int
        Workgroups that one compute unit holds at once.
    """

    tile_m: int
    tile_n: int
    depth: int
    known_by: str
    workgroups: int
    tiles: int
    split: int
    persistent: bool
    units: int
    resident: int = 1

    @property
    def _round(self) -> int:
        """Tiles that run at one time."""
        return self.workgroups if self.persistent else self.units * self.resident

    @property
    def waves(self) -> float:
        """Tiles over those that run at one time."""
        return self.tiles / self._round

    @property
    def last_wave(self) -> float:
        """Share of the last wave that is filled."""
        rest = self.tiles % self._round
        return rest / self._round if rest else 1.0

    @property
    def tail_efficiency(self) -> float:
        """Share of the compute units that compute tiles, mean over the rounds; above 0, at most 1.

        Workgroups on one unit share its rate. So the unit with most tiles sets the time: the mean number of tiles on a
        unit, over the largest number.
        """
        crowd = (
            ceil(self.workgroups / self.units) * ceil(self.waves) if self.persistent else ceil(self.tiles / self.units)
        )
        return min(self.tiles / self.units / crowd, 1.0)

    @property
    def units_used(self) -> float:
        """Share of the compute units that get a tile at all."""
        return min(min(self.tiles, self.workgroups or self.tiles) / self.units, 1.0)

    def inside(self, gemm: Gemm) -> float | None:
        """Return the share of the tiles' area that lies inside the result; None if the tile is unknown."""
        if not self.tile_m:
            return None
        rows, columns = (ceil(size / tile) * tile for size, tile in ((gemm.m, self.tile_m), (gemm.n, self.tile_n)))
        return gemm.m * gemm.n / (rows * columns)


def grid_of(gemm: Gemm, tile: NamedTile | None, workgroups: int, *, units: int, resident: int = 1) -> LaunchGrid | None:
    """Return the grid of a launch: its tile, oriented as our result, its split, and the tiles to compute.

    Parameters
    ----------
    gemm : Gemm
        GEMM that the launch computes.
    tile : NamedTile or None
        Tile that the kernel's name states. Without it, the largest tile of a library that gives as many workgroups is
        guessed.
    workgroups : int
        Workgroups of the launch; 0 if unknown.
    units : int
        Compute units of the device.
    resident : int
        Workgroups that one compute unit holds at once.

    Returns
    -------
    LaunchGrid or None
        None if neither tile nor workgroups are known.

    Examples
    --------
    >>> grid = grid_of(Gemm(788, 768, 768), NamedTile(64, 32, 128), 300, units=304)
    >>> grid.tile_m, grid.tile_n, grid.tiles, grid.split, round(grid.tail_efficiency, 3)
    (32, 64, 300, 1, 0.987)
    """
    if tile is None:
        return _guessed(gemm, workgroups, units, resident)
    sides = ((tile.n, tile.m), (tile.m, tile.n))
    if not workgroups:
        rows, columns = sides[0]
        count = _count(gemm, rows, columns) * max(tile.split, 1)
        return LaunchGrid(rows, columns, tile.depth, "name", 0, count, tile.split or 1, False, units, resident)
    if tile.persistent:
        rows, columns = sides[0]
        return LaunchGrid(
            *(rows, columns, tile.depth, "name", workgroups, _count(gemm, rows, columns)),
            *(1, True, units, resident),
        )
    fits = [fit for side in sides for fit in _fits(gemm, side, workgroups, tile)]
    best = min(fits, default=None, key=lambda fit: fit[0])  # of equal ones the first: as BLAS has it, and the least
    if best is None:  # fewer workgroups than tiles stay and take several; the reason for more is unknown
        (rows, columns), count = sides[0], min(_count(gemm, *side) for side in sides)
        stays = workgroups < count
        tiles, split = (count, 1) if stays else (workgroups, 0)
        return LaunchGrid(rows, columns, tile.depth, "name", workgroups, tiles, split, stays, units, resident)
    _, rows, columns, split, tiles = best
    return LaunchGrid(rows, columns, tile.depth, "name", workgroups, tiles, split, False, units, resident)


def _fits(
    gemm: Gemm, side: tuple[int, int], workgroups: int, tile: NamedTile
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield ways to get `workgroups`: a penalty, rows and columns of the tile, parts of the depth, and tiles."""
    rows, columns = side
    count, most = _count(gemm, rows, columns), max(gemm.k // (tile.depth or _USUAL_DEPTH), 1)
    if workgroups % count == 0 and workgroups // count <= most:
        split = workgroups // count
        yield int(tile.split not in (0, split) or split > _USUAL_PARTS), rows, columns, split, workgroups
    down, across = ceil(gemm.m / rows), ceil(gemm.n / columns)
    for many in _SWIZZLES:
        for a, b in ((ceil(down / many) * many, across), (down, ceil(across / many) * many)):
            padded = gemm.batch * a * b
            if padded > count and workgroups % padded == 0 and workgroups // padded <= most:
                split = workgroups // padded
                yield 2 + many + 8 * (split > _USUAL_PARTS), rows, columns, split, count * split


def _guessed(gemm: Gemm, workgroups: int, units: int, resident: int) -> LaunchGrid | None:
    """Return the grid of a kernel whose name states no tile; None if the trace does not count workgroups."""
    if not workgroups:
        return None
    for split, (rows, columns) in product((1, 2, 4, 8, 16), TILES):
        if _count(gemm, rows, columns) * split == workgroups:
            return LaunchGrid(rows, columns, 0, "grid", workgroups, workgroups, split, False, units, resident)
    return LaunchGrid(0, 0, 0, "", workgroups, workgroups, 0, False, units, resident)


def _count(gemm: Gemm, rows: int, columns: int) -> int:
    return gemm.batch * ceil(gemm.m / rows) * ceil(gemm.n / columns)
