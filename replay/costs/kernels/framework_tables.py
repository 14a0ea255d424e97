"""AIConfigurator's tables of operators inside inference frameworks: products, quantization, attention, experts.

The end of a file's name tells the operator: `*_gemm`, `*_quant_compute_scale`, `*_quant_scale_matrix`,
`*_context_attention`, `*_generation_attention`, `*_moe`. All have the columns ``system``, ``framework``, ``dtype`` and
``latency_us``, and the sizes of `FRAMEWORK_TABLES`. FP8 products with a scale a block are passed over: their times are
those of the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Floats
from replay.calibration.tables import MeasuredTable

#: Largest size, and longest duration in us.
_LARGEST, _LONGEST_US = 1e15, 1e12
#: Data types of products and experts, and of attention and its KV cache.
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "sq": "int8", "int8_wo": "int8_wo",
        "int4_wo": "int4_wo", "nvfp4": "nvfp4", "w4a16_mxfp4": "w4a16_mxfp4", "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
    }
)  # fmt: skip
_ATTENTION_TYPES: Mapping[tuple[str, str], str] = MappingProxyType(
    {("bfloat16", "bfloat16"): "bf16", ("bfloat16", "fp8"): "bf16_kv_fp8", ("fp8", "fp8"): "fp8"}
)
#: Exponent of the power law by which tokens choose experts; 0 if all experts get the same.
_SKEW: Mapping[str, float] = MappingProxyType({"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2})


@dataclass(frozen=True)
class FrameworkTable:
    """Layout of the tables of one operator.

    Parameters
    ----------
    kind : str
        Kind of operator.
    dims : callable
        Function of a table to the operators' shapes, (n, n_dims).
    columns : tuple of str
        Columns that it needs beside those of all tables.
    passed_over : tuple of str
        Data types that are not read.
    backends : bool
        Whether a column `kernel_source` tells backends of a framework apart.
    """

    kind: str
    dims: Callable[[MeasuredTable], Floats]
    columns: tuple[str, ...]
    passed_over: tuple[str, ...] = ()
    backends: bool = False


@dataclass(frozen=True)
class FrameworkGroup:
    """Operators of one device, data type and framework; fields as in `MeasuredOperators`."""

    device: Device
    dtype: str
    library: str
    dims: Floats
    seconds: Floats


def _sizes(table: MeasuredTable, names: Sequence[str]) -> Floats:
    return np.column_stack([table.numbers(name, (1, _LARGEST), whole=True) for name in names])


_PRODUCT, _ROWS = ("m_elements", "n_elements", "k_elements"), ("m_elements", "k_elements")


def _product(table: MeasuredTable) -> Floats:
    sizes = _sizes(table, _PRODUCT)
    return np.column_stack((np.ones(len(sizes)), sizes))


def _rows(table: MeasuredTable) -> Floats:
    return _sizes(table, _ROWS)


_HEADS = ("q_heads_count", "kv_heads_count", "head_dim_elements")


def _tokens(table: MeasuredTable, name: str) -> Floats:
    """Return a column of tokens that may be 0."""
    return table.numbers(name, (1, _LARGEST), whole=True, rows=table.floats(name) != 0)


def _context_attention(table: MeasuredTable) -> Floats:
    """Return sequences, query tokens, KV tokens, query heads, KV heads, head dimension and window."""
    sizes = _sizes(table, ("batch_sequences", "query_tokens", *_HEADS))
    kv_tokens = sizes[:, 1] + _tokens(table, "prefix_tokens")
    return np.column_stack((sizes[:, :2], kv_tokens, sizes[:, 2:], _tokens(table, "window_tokens")))


def _generation_attention(table: MeasuredTable) -> Floats:
    """Return the dimensions of `_context_attention` for one query token a sequence."""
    sizes = _sizes(table, ("batch_sequences", "kv_tokens", *_HEADS))
    return np.column_stack((sizes[:, 0], np.ones(len(sizes)), sizes[:, 1:], _tokens(table, "window_tokens")))


_EXPERTS = (
    "tokens_count", "hidden_elements", "inter_elements", "topk_experts", "experts_count", "moe_tp_ranks",
    "moe_ep_ranks",
)  # fmt: skip


def _experts(table: MeasuredTable) -> Floats:
    """Return the sizes, the exponent of the routing, and 1 for gated experts (three weights each) or 0 (two).

    TensorRT-LLM's kernels say that they are not gated. On the same system other kernels of such a model are not either.
    """
    skew = np.array([_SKEW[each] for each in table.texts("routing", _SKEW, "routing").tolist()])
    sizes, plain = _sizes(table, _EXPERTS), ["nongated" in each for each in table.texts("kernel_source").tolist()]
    _, system = np.unique(table.texts("system").astype(str), return_inverse=True)
    _, model = np.unique(np.column_stack((system.reshape(-1), sizes[:, 1:3])), axis=0, return_inverse=True)
    gated = np.bincount(model.reshape(-1), weights=plain) == 0
    return np.column_stack((sizes, skew, gated[model.reshape(-1)]))


#: Layouts by the end of the file's name, before what a user adds to it.
FRAMEWORK_TABLES: Mapping[str, FrameworkTable] = MappingProxyType(
    {
        "gemm": FrameworkTable("matrix_matmul", _product, _PRODUCT, ("fp8_block",)),
        "quant_compute_scale": FrameworkTable("quantization_scale", _rows, _ROWS),
        "quant_scale_matrix": FrameworkTable("quantization", _rows, _ROWS),
        "context_attention": FrameworkTable(
            "context_attention", _context_attention,
            ("batch_sequences", "query_tokens", "prefix_tokens", *_HEADS, "window_tokens", "kv_cache_dtype"),
            backends=True,
        ),
        "generation_attention": FrameworkTable(
            "generation_attention", _generation_attention,
            ("batch_sequences", "kv_tokens", *_HEADS, "window_tokens", "kv_cache_dtype"),
            backends=True,
        ),
        "moe": FrameworkTable("experts", _experts, (*_EXPERTS, "routing", "kernel_source"), backends=True),
    }
)  # fmt: skip
_COLUMNS = ("system", "framework", "dtype", "latency_us")


def framework_table(file: Path, columns: Sequence[str]) -> FrameworkTable | None:
    """Return the layout of a table of operators inside frameworks; None of any other table.

    Parameters
    ----------
    file : Path
        File of the table.
    columns : sequence of str
        Its columns.

    Examples
    --------
    >>> framework_table(Path("measured.csv"), ["op", "device"]) is None
    True
    """
    for end, layout in FRAMEWORK_TABLES.items():
        if f"_{end}_" in f"{file.stem}_" and {*_COLUMNS, *layout.columns} <= set(columns):
            return layout
    return None


def framework_groups(table: MeasuredTable, layout: FrameworkTable) -> Iterator[FrameworkGroup]:
    """Yield the operators of a table by data type, device and framework.

    Parameters
    ----------
    table : MeasuredTable
        Table of operators inside frameworks.
    layout : FrameworkTable
        Its layout.

    Raises
    ------
    InvalidInputError
        A value is refused; the message names the row.
    """
    microseconds, dims = table.numbers("latency_us", (0, _LONGEST_US)), layout.dims(table)
    systems, libraries, dtypes = table.texts("system"), _libraries(table, layout), _dtypes(table)
    devices = table.devices(systems)
    groups, group = np.unique(np.array([dtypes, systems, libraries], dtype=str), axis=1, return_inverse=True)
    for number, (dtype, system, library) in enumerate(groups.T.tolist()):
        rows = group.reshape(-1) == number
        if dtype not in layout.passed_over:
            yield FrameworkGroup(devices[system], dtype, library, dims[rows], microseconds[rows] / 1e6)


#: Backends of attention and of experts, by a part of the kernel's name; the first that occurs counts.
_ATTENTION_BACKENDS = (("triton", "triton"),)
_EXPERT_BACKENDS = (
    ("min_latency", "min_latency"), ("marlin", "marlin"), ("oaitriton", "oai_triton"),
    ("flashinfer_cutlass", "cutlass"), ("flashinfer", "flashinfer"), ("triton", "triton"), ("vllm_fused_moe", "triton"),
)  # fmt: skip


def _libraries(table: MeasuredTable, layout: FrameworkTable) -> npt.NDArray[np.object_]:
    """Return the framework of each row, with the backend if there is a choice.

    Attention has no backend if it is the framework's first choice. Kernels of FlashInfer that vLLM takes on Blackwell
    are.
    """
    frameworks = table.texts("framework")
    if not layout.backends or "kernel_source" not in table.columns:
        return frameworks
    sources = table.texts("kernel_source").tolist()
    pairs = list(zip(frameworks.tolist(), sources, strict=True))
    library = {pair: _library(layout.kind, *pair) for pair in set(pairs)}
    return np.array([library[pair] for pair in pairs], dtype=object)


def _library(kind: str, framework: str, source: str) -> str:
    if kind != "experts" and source.endswith("flashinfer"):
        return f"{framework}_flashinfer"
    backends = _EXPERT_BACKENDS if kind == "experts" else _ATTENTION_BACKENDS
    return next((f"{framework}_{name}" for part, name in backends if part in source), framework)


def _dtypes(table: MeasuredTable) -> npt.NDArray[np.object_]:
    """Return the data type of each row; that of an attention names its KV cache too."""
    dtypes = table.texts("dtype", _TYPES, "data type")
    if "kv_cache_dtype" not in table.columns:
        return np.array([_TYPES[dtype] for dtype in dtypes.tolist()], dtype=object)
    pairs = list(zip(dtypes.tolist(), table.texts("kv_cache_dtype").tolist(), strict=True))
    table.refuse(  # about 0.1 us a row
        (row, f"no attention in {pair[0]} with a KV cache in {pair[1]}")
        for row, pair in enumerate(pairs)
        if pair not in _ATTENTION_TYPES
    )
    return np.array([_ATTENTION_TYPES[pair] for pair in pairs], dtype=object)
