"""The data type in which a kernel computes, as its name says it."""

import re

from profilers.devices import DTYPES

__all__ = ["dtype_of_name"]

_INDEX = {name: i for i, name in enumerate(DTYPES)}
#: In kernel names: spelled out, in Tensile's letters (BBS: two bf16 inputs, fp32 sum), in CUTLASS instructions.
_IN_NAME: tuple[tuple[str, str], ...] = (
    ("fp8", r"fp8|e4m3|e5m2|f8f8|F8"),
    ("bf16", r"bf16|bfloat16|BFloat16|_BBS_|_BB_|(?<!_S)_B_B"),
    ("fp16", r"fp16|f16f16|_f16|half|Half|[hs]884|[hs]1688gemm_fp16|h16816|_HHS_|_HH_|hgemm"),
    ("tf32", r"tf32|s1688"),
    ("fp64", r"fp64|f64f64|double|dgemm|_DB_|d884"),
    ("fp32", r"f32f32|sgemm|_SB_|_S_B|float(?!\d)|fp32"),
)
_COMPILED = tuple((_INDEX[name], re.compile(pattern)) for name, pattern in _IN_NAME)


def dtype_of_name(name: str) -> int:
    """Return the index into `DTYPES` of what a kernel's name says, -1 where it says nothing.

    Examples
    --------
    >>> tuple(DTYPES)[dtype_of_name("ampere_sgemm_128x64_nn")]
    'fp32'
    """
    return next((index for index, pattern in _COMPILED if pattern.search(name)), -1)
