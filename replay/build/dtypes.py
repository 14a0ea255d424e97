"""The data type in which a kernel computes: from its name, else from its operator's inputs."""

import json
import re

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING, integers
from profilers.columns import lookup
from profilers.devices import DTYPES
from replay.build.window import Window

__all__ = ["dtype_of_name", "window_dtypes"]

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
#: As the profiler writes the types of an operator's inputs.
_OF_INPUT = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
}


def dtype_of_name(name: str) -> int:
    """Return the index into `DTYPES` of what a kernel's name says, -1 where it says nothing.

    Examples
    --------
    >>> tuple(DTYPES)[dtype_of_name("ampere_sgemm_128x64_nn")]
    'fp32'
    """
    return next((index for index, pattern in _COMPILED if pattern.search(name)), -1)


def window_dtypes(window: Window) -> npt.NDArray[np.int64]:
    """Return for every row of device work an index into `tuple(DTYPES)`, -1 where unknown."""
    work, ops = window.work, window.trace.ops
    by_name = {name: dtype_of_name(name) for name in set(work.name)}
    rows = lookup(integers(ops, "id"), np.arange(ops.num_rows), work.op)
    distinct = sorted(set(rows[rows != MISSING].tolist()))
    texts = ops["dtypes"].take(distinct).to_pylist() if distinct else []
    by_row = {row: _of_inputs(text) for row, text in zip(distinct, texts, strict=True)}
    found = [
        by_name[n] if by_name[n] >= 0 else by_row.get(row, -1) for n, row in zip(work.name, rows.tolist(), strict=True)
    ]
    return np.array(found, dtype=np.int64)


def _of_inputs(text: str | None) -> int:
    """Return the type of the first floating input."""
    types = json.loads(text) if text else []
    known = (_OF_INPUT.get(t) for t in types if isinstance(t, str)) if isinstance(types, list) else ()
    return next((_INDEX[t] for t in known if t is not None), -1)
