"""The tile of a matrix product that the name of its kernel states.

>>> tile_of_name("ampere_sgemm_128x64_nn")
NamedTile(m=128, n=64, depth=0, split=0, persistent=False)
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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
#: Kernels that split the depth, and so launch a workgroup for each part.
_NAMED_SPLIT: Final = re.compile(r"split_?k", re.IGNORECASE)
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
    stays = (persistent and not _NAMED_SPLIT.search(text)) or _STREAM_K.search(text) is not None
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
