"""What a kernel computes, as far as its name and its grid tell: for kernels that no recorded operator stands behind."""

import re

from replay.operators.operator import DTYPE_BYTES, Operator, streaming

__all__ = ["operator_of_kernel"]

#: PyTorch's pointwise kernels, and how many elements a thread takes: the second parameter of the legacy kernel; four,
#: or the width of the vector where that is more, of the others; eight where it is unrolled by hand.
_LEGACY = re.compile(r"\belementwise_kernel<(\d{1,4}), (\d{1,4})\b")
_VECTORIZED = re.compile(r"\bvectorized_elementwise_kernel<(\d{1,4})\b")
_UNROLLED = re.compile(r"\bunrolled_elementwise_kernel<")
_BY_HAND = re.compile(r"\belementwise_kernel_manual_unroll<(\d{1,4}), (\d{1,4})\b")
#: The pointers that are handed to it: one an array.
_POINTERS = re.compile(r"[Aa]rray<char ?\*, (\d{1,2})(?!\d)")
#: Of workgroups, and of the work-items of one.
_MOST = 2**40
_TYPES: tuple[tuple[str, str], ...] = (
    ("bfloat16", "bf16"),
    ("half", "fp16"),
    ("double", "fp64"),
    ("float8", "fp8"),
    ("float", "fp32"),
    ("long", "long"),
    ("bool", "bool"),
    ("char", "int8"),
)


def operator_of_kernel(name: str, workgroups: int, workgroup_size: int) -> Operator | None:
    """Return the work of a pointwise kernel of PyTorch; None of any other.

    Parameters
    ----------
    name : str
    workgroups, workgroup_size : int
        Of its launch.

    Notes
    -----
    The last workgroup may be partly idle, so that elements are an upper bound, off by less than one workgroup's.
    Products do not tell their depth, row-wise kernels not their columns. Elements a thread are those of PyTorch 1.10 to
    2.9, as `tests/test_real_durations.py` compares them with recorded shapes.

    Examples
    --------
    >>> name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, Array<char*, 3> >"
    >>> operator_of_kernel(name, 8, 128).bytes_moved
    49152
    """
    each = _elements_a_thread(name)
    if not each or not (1 <= workgroups < _MOST and 1 <= workgroup_size < _MOST):
        return None
    elements = int(workgroups) * int(workgroup_size) * each
    pointers = _POINTERS.search(name)
    arrays = int(pointers[1]) if pointers else 2
    size = _element_bytes(name)
    kind = "copy" if re.search(r"copy|fill", name, re.IGNORECASE) else "elementwise"
    return streaming(kind, max(arrays - 1, 0) * elements * size, elements * size, elements, size)


def _elements_a_thread(name: str) -> int | None:
    if by_hand := _BY_HAND.search(name):
        return int(by_hand[2])
    if legacy := _LEGACY.search(name):
        return int(legacy[2])
    if vectorized := _VECTORIZED.search(name):
        return max(int(vectorized[1]), 4)
    return 4 if _UNROLLED.search(name) else None


def _element_bytes(name: str) -> int:
    lower = name.lower().replace("array<char", "array<")
    found = [(lower.find(text), dtype) for text, dtype in _TYPES if text in lower]
    return DTYPE_BYTES[min(found)[1]] if found else 4
