"""Values of ROCm's tables as values of the schema, whole columns at a time.

Numbers and texts come first, then the words of ROCm's tools: domains of calls, directions of copies and names of
kernels. `workgroups` counts the workgroups of launch grids.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.readers.common.numbers import INT32_LIMIT, integer
from profilers.trace.arrays import MISSING, Bools, Floats, Ints

#: Integers below are exact in float64.
_EXACT = 2.0**53


def whole_numbers(values: Any) -> Ints:
    """Return a column of texts or numbers as int64, `MISSING` where a value is no integer.

    Examples
    --------
    >>> whole_numbers(pa.array(["12", " 5", "1e3", "", None, "x"])).tolist()[:3]
    [12, 5, 1000]
    """
    if isinstance(values, np.ndarray):
        return values.astype(np.int64, copy=False)
    if pa.types.is_floating(values.type):
        floats = np.asarray(values.fill_null(np.nan).to_numpy(zero_copy_only=False), dtype=float)
        return _exact_integers(np.where(floats == np.floor(floats), floats, np.nan))
    try:
        numbers = values.cast(pa.int64())
    except pa.ArrowInvalid:
        texts = values.dictionary_encode()  # a loop over the distinct texts, 1 us each
        distinct = [None if text is None else integer(text.strip()) for text in texts.dictionary.to_pylist()]
        numbers = pa.array(distinct, pa.int64()).take(texts.indices)
    return np.asarray(numbers.fill_null(int(MISSING)).to_numpy(zero_copy_only=False), dtype=np.int64)


def _exact_integers(floats: Floats) -> Ints:
    """Return float64 integers as int64, `MISSING` for NaN and for magnitudes that float64 does not hold exactly."""
    exact = np.abs(floats) < _EXACT
    return np.where(exact, np.where(exact, floats, 0).astype(np.int64), MISSING)


def narrow(values: Ints) -> Ints:
    """Return integers with `MISSING` where one is negative or needs more than 32 bits."""
    return np.where((values >= 0) & (values < INT32_LIMIT), values, MISSING)


def is_text(values: pa.Array, text: str) -> Bools:
    """Return for each row whether it holds `text`."""
    return np.asarray(pc.equal(values, text).fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


_DOMAINS = (
    ("HIP_COMPILER", "launches", "hip_compiler"),
    ("HIP", "launches", "hip_runtime"),
    ("HSA", "ranges", "hsa_api"),
    ("RCCL", "ranges", "rccl"),
    ("NCCL", "ranges", "rccl"),
    ("MARKER", "ranges", "user_annotation"),
    ("ROCTX", "ranges", "user_annotation"),
)
_DIRECTIONS = tuple(
    (re.compile(rf"{source}_?TO_?{target}", re.IGNORECASE), f"{source[0]}to{target[0]}")
    for source in ("HOST", "DEVICE")
    for target in ("HOST", "DEVICE")
)
_FILL = re.compile("fill|memset", re.IGNORECASE)
_CLONE = re.compile(r"(\s*\[clone \.kd\]|\.kd)$")


def call_kind(domain: str) -> tuple[str, str]:
    """Return the kind of event that the calls of a domain become, and their ``api`` or ``category``.

    Calls of HIP launch device work. Calls of HSA carry out what a call of HIP asked for, so they are ranges.

    Examples
    --------
    >>> call_kind("HIP_RUNTIME_API_EXT"), call_kind("MARKER_CORE_API"), call_kind("ROCDECODE_API")
    (('launches', 'hip_runtime'), ('ranges', 'user_annotation'), ('ranges', 'rocdecode_api'))
    """
    upper = domain.upper()
    kinds = ((kind, category) for prefix, kind, category in _DOMAINS if upper.startswith(prefix))
    return next(kinds, ("ranges", domain.lower() or "unknown"))


def copy_direction(word: str) -> str:
    """Return the direction of a copy as Kineto spells it; `word` itself if it names no direction.

    Examples
    --------
    >>> copy_direction("MEMORY_COPY_HOST_TO_DEVICE"), copy_direction("CopyDeviceToHost"), copy_direction("FillBuffer")
    ('HtoD', 'DtoH', 'memset')
    """
    directions = (short for pattern, short in _DIRECTIONS if pattern.search(word))
    return next(directions, "memset" if _FILL.search(word) else word or "unknown")


def with_peers(directions: pa.Array, peers: Bools) -> pa.DictionaryArray:
    """Return directions of copies with ``PtoP`` for copies between two GPUs.

    Parameters
    ----------
    directions : array of string
        Directions as `copy_direction` gives them.
    peers : array of bool
        Whether source and target of each copy are different GPUs.
    """
    between = pa.array(peers & is_text(directions, "DtoD"))
    return pc.if_else(between, "PtoP", directions).dictionary_encode()


def kernel_name(text: str) -> str:
    """Return the name of a kernel without quotes and without the suffix of its descriptor.

    Examples
    --------
    >>> kernel_name('"copyBuffer.kd"'), kernel_name("void f<int>(int) [clone .kd]")
    ('copyBuffer', 'void f<int>(int)')
    """
    return _CLONE.sub("", text.strip().removeprefix('"').removesuffix('"'))


def workgroups(
    grid: Sequence[Ints], size: Sequence[Ints], in_work_items: npt.NDArray[np.bool_] | None = None
) -> tuple[Ints, Ints]:
    """Return the workgroups of each kernel and the work-items of each workgroup.

    Both are `MISSING` for a kernel with an axis that is not positive. The last workgroup of an axis need not be full.

    Parameters
    ----------
    grid, size : sequence of array of int64
        Extents of the grid and of a workgroup, one array an axis.
    in_work_items : array of bool, optional
        Whether a kernel's grid counts work-items; by default all grids do, as in all formats but RPD.

    Examples
    --------
    >>> groups, sizes = workgroups([np.array([1000]), np.array([4])], [np.array([256]), np.array([2])])
    >>> groups.tolist(), sizes.tolist()
    ([8], [512])
    """
    positive = np.logical_and.reduce([axis > 0 for axis in (*grid, *size)])
    divided = positive if in_work_items is None else positive & in_work_items
    groups, sizes = np.ones(len(positive)), np.ones(len(positive))
    for grid_axis, size_axis in zip(grid, size, strict=True):
        rounded_up = (grid_axis - 1) // np.where(positive, size_axis, 1) + 1
        groups *= np.where(divided, rounded_up, grid_axis)
        sizes *= size_axis
    group_counts, group_sizes = (_exact_integers(np.where(positive, values, np.nan)) for values in (groups, sizes))
    return group_counts, narrow(group_sizes)
