"""The data type in which a kernel computes: from its name, else from its operator's inputs."""

import json

import numpy as np
import numpy.typing as npt

from profilers.arrays import MISSING
from profilers.devices import DTYPES
from replay.build.window import Window

__all__ = ["window_dtypes"]

_INDEX = {name: i for i, name in enumerate(DTYPES)}
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


def window_dtypes(window: Window) -> npt.NDArray[np.int64]:
    """Return for every row of device work an index into `tuple(DTYPES)`, -1 where unknown."""
    names = window.index.work.names
    found = names.dtype[window.work.name]
    unsaid = np.flatnonzero(found < 0)
    rows = window.index.ops.find(window.work.op[unsaid])
    distinct, place = np.unique(rows, return_inverse=True)
    known = distinct != MISSING
    texts = window.trace.ops["dtypes"].take(distinct[known]).to_pylist() if known.any() else []
    of_text = {text: _of_inputs(text) for text in set(texts)}
    by_row = np.full(len(distinct), -1)
    by_row[known] = [of_text[text] for text in texts]
    result = found.copy()
    result[unsaid] = by_row[place]
    return result


def _of_inputs(text: str | None) -> int:
    """Return the type of the first floating input."""
    types = json.loads(text) if text else []
    known = (_OF_INPUT.get(t) for t in types if isinstance(t, str)) if isinstance(types, list) else ()
    return next((_INDEX[t] for t in known if t is not None), -1)
