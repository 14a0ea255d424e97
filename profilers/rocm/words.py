"""The words of ROCm's tools: domains of calls, directions of copies, names of kernels."""

import re

__all__ = ["call_kind", "copy_direction", "kernel_name"]

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
    (re.compile(rf"{one}_?TO_?{other}", re.IGNORECASE), f"{one[0]}to{other[0]}")
    for one in ("HOST", "DEVICE")
    for other in ("HOST", "DEVICE")
)
_FILL = re.compile("fill|memset", re.IGNORECASE)
_CLONE = re.compile(r"(\s*\[clone \.kd\]|\.kd)$")


def call_kind(domain: str) -> tuple[str, str]:
    """Return the kind of event that calls of a domain are, and their ``api`` or ``category``.

    A call of HIP launches work; one of HSA is how HIP does it, and encloses nothing.

    Examples
    --------
    >>> call_kind("HIP_RUNTIME_API_EXT"), call_kind("MARKER_CORE_API"), call_kind("ROCDECODE_API")
    (('launches', 'hip_runtime'), ('ranges', 'user_annotation'), ('ranges', 'rocdecode_api'))
    """
    upper = domain.upper()
    found = ((kind, word) for start, kind, word in _DOMAINS if upper.startswith(start))
    return next(found, ("ranges", domain.lower() or "unknown"))


def copy_direction(word: str) -> str:
    """Return the direction of a copy as Kineto spells it; the word itself where it names none.

    Examples
    --------
    >>> copy_direction("MEMORY_COPY_HOST_TO_DEVICE"), copy_direction("CopyDeviceToHost"), copy_direction("FillBuffer")
    ('HtoD', 'DtoH', 'memset')
    """
    found = (short for pattern, short in _DIRECTIONS if pattern.search(word))
    return next(found, "memset" if _FILL.search(word) else word or "unknown")


def kernel_name(text: str) -> str:
    """Return the name of a kernel without quotes and without the mark of its descriptor.

    Examples
    --------
    >>> kernel_name('"copyBuffer.kd"'), kernel_name("void f<int>(int) [clone .kd]")
    ('copyBuffer', 'void f<int>(int)')
    """
    return _CLONE.sub("", text.strip().removeprefix('"').removesuffix('"'))
