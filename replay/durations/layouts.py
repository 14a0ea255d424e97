"""Tables of measured FP16 operators in the layouts of two public data sets: Vidur's profiles and LLMCompass' sweeps."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError

__all__ = ["SWEEPS", "Rows", "is_profile", "is_sweep", "profiled", "swept"]

Floats = npt.NDArray[np.float64]
#: Of a number in a sweep.
_LEAST, _MOST = 1e-12, 1e15
#: Kind, dimensions, seconds.
Rows = tuple[str, Floats, Floats]

_SIZES = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
_MEDIAN = "time_stats.{}.median"


def is_profile(columns: list[str]) -> bool:
    """Return whether these are the columns of a profile of a model's operators by number of tokens."""
    return set(_SIZES) <= set(columns) and any(_MEDIAN.format(op) in columns for op in _PROFILED)


def profiled(file: Path, table: pa.Table, numbers: Callable[[str], Floats]) -> Iterator[Rows]:
    """Yield the operators of a profile: medians in ms, of a model's sizes, tokens and tensor-parallel devices.

    Parameters
    ----------
    file : Path
    table : pyarrow.Table
    numbers : callable
        Column of positive numbers by name; raises where there are others.

    Raises
    ------
    InvalidInputError
        Heads do not divide the hidden size, or ranks not the heads.
    """
    try:
        gated = np.asarray(table["use_gated_mlp"].cast(pa.bool_()).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInputError(f"{file}: column use_gated_mlp is neither true nor false everywhere") from error
    size = {name: numbers(name) for name in _SIZES if name != "use_gated_mlp"} | {"use_gated_mlp": gated}
    heads, ranks = size["n_head"], size["num_tensor_parallel_workers"]
    wide = size["n_expanded_embd"]
    for what, whole, part in (
        ("n_embd by n_head", size["n_embd"], heads), ("n_head by ranks", heads, ranks), ("MLP by ranks", wide, ranks)
    ):  # fmt: skip
        bad = np.flatnonzero(whole % part)
        if len(bad):
            raise InvalidInputError(f"{file}: row {int(bad[0]) + 1}: {what} is no whole number")
    for op, (kind, dims) in _PROFILED.items():
        if (name := _MEDIAN.format(op)) in table.column_names:
            try:
                taken = np.asarray(table[name].to_numpy(zero_copy_only=False), np.float64)
            except (ValueError, TypeError) as error:
                raise InvalidInputError(f"{file}: column {name} is no number ({error})") from error
            rows = np.flatnonzero(np.isfinite(taken) & (taken > 0))  # the clock's step is 1 us: the shortest are 0
            if (taken < 0).any():
                raise InvalidInputError(f"{file}: row {int(np.flatnonzero(taken < 0)[0]) + 1}: {name} is below zero")
            if len(rows):
                yield kind, np.column_stack(dims(size))[rows], taken[rows] / 1e3


Sizes = Mapping[str, Floats]
Dims = Callable[[Sizes], tuple[Floats, ...]]


def _projection(outputs: Callable[[Sizes], Floats], inputs: Callable[[Sizes], Floats]) -> tuple[str, Dims]:
    return "matmul", lambda s: (np.ones(len(s["n_embd"])), s["num_tokens"], outputs(s), inputs(s))


def _hidden(s: Sizes) -> Floats:
    return s["n_embd"]


def _own_heads(s: Sizes) -> Floats:
    return s["n_embd"] / s["num_tensor_parallel_workers"]


def _shared_heads(s: Sizes) -> Floats:
    return np.maximum(s["n_kv_head"] // s["num_tensor_parallel_workers"], 1) * s["n_embd"] / s["n_head"]


def _wide(s: Sizes) -> Floats:
    return s["n_expanded_embd"] // s["num_tensor_parallel_workers"]


def _streamed(kind: str, width: Callable[[Sizes], Floats], arrays: int) -> tuple[str, Dims]:
    return kind, lambda s: (s["num_tokens"] * width(s), np.full(len(s["n_embd"]), float(arrays)))


def _normalized(s: Sizes) -> tuple[Floats, ...]:
    return s["num_tokens"], s["n_embd"]


_PROFILED: Mapping[str, tuple[str, Dims]] = MappingProxyType(
    {
        "attn_pre_proj": _projection(lambda s: _own_heads(s) + 2 * _shared_heads(s), _hidden),
        "attn_post_proj": _projection(_hidden, _own_heads),
        "mlp_up_proj": _projection(lambda s: (1 + s["use_gated_mlp"]) * _wide(s), _hidden),
        "mlp_down_proj": _projection(_hidden, _wide),
        "mlp_act": _streamed("gated_activation", _wide, 3),
        "add": _streamed("elementwise", _hidden, 3),
        "attn_rope": _streamed("rotary", lambda s: _own_heads(s) + _shared_heads(s), 2),
        "emb": _streamed("embedding", _hidden, 2),
        "input_layernorm": ("rms_normalization", _normalized),
        "post_attention_layernorm": ("rms_normalization", _normalized),
    }
)

#: Sweeps without a header, by the last word of the file's name: what their columns are.
SWEEPS: Mapping[str, str] = MappingProxyType(
    {
        "matmul": "M, N, K, time in ms, TFLOP/s",
        "softmax": "rows, columns, G elements/s",
        "layernorm": "rows, columns, G elements/s",
        "gelu": "elements, G elements/s",
    }
)


def is_sweep(file: Path) -> bool:
    """Return whether the file's name is one of a sweep."""
    return file.suffix == ".csv" and file.stem.rsplit("_", 1)[-1] in SWEEPS and file.stem.startswith("llmcompass")


def swept(file: Path) -> Rows:
    """Return the operators of a sweep.

    Raises
    ------
    InvalidInputError
        A row has other columns, or a number that is not above zero.
    """
    kind = file.stem.rsplit("_", 1)[-1]
    rows = []
    for i, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        cells = [cell.strip().removesuffix("ms").removesuffix("Tflops") for cell in line.split(",")]
        try:
            values = [float(cell) for cell in cells]
        except ValueError:
            values = []
        if len(values) != SWEEPS[kind].count(",") + 1 or not all(_LEAST < value < _MOST for value in values):
            raise InvalidInputError(f"{file}: row {i}: {line[:80]!r}; columns are {SWEEPS[kind]}, all above zero")
        rows.append(values)
    if not rows:
        raise InvalidInputError(f"{file}: there is no row; columns are {SWEEPS[kind]}")
    return _swept(kind, np.array(rows))


def _swept(kind: str, rows: Floats) -> Rows:
    if kind == "matmul":
        return "matmul", np.column_stack((np.ones(len(rows)), rows[:, 0], rows[:, 1], rows[:, 2])), rows[:, 3] / 1e3
    seconds = rows[:, :-1].prod(axis=1) / rows[:, -1] / 1e9
    if kind == "gelu":
        return "elementwise", np.column_stack((rows[:, 0], np.full(len(rows), 2.0))), seconds
    return {"softmax": "softmax", "layernorm": "normalization"}[kind], rows[:, :2], seconds
