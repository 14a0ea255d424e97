"""Words of ROCm's tools as words of the schema: domains of calls, directions of copies and names of kernels."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.trace.arrays import Bools


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
