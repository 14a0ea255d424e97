"""Measured durations of operators, from tables of four public layouts.

The layouts are those of NeuSight's data set, of Vidur's profiles, of LLMCompass' sweeps and of AIConfigurator
(`framework_tables`). Every row is checked; an error names the file and the row.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.devices.catalogue import DTYPES, Device, device_of_file, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats
from replay.calibration.tables import MeasuredTable, read_tables, refuse_row
from replay.costs.kernels.convolutions import ALGORITHM, impossible
from replay.costs.kernels.framework_tables import framework_groups, framework_table
from replay.costs.kernels.models import LARGEST, MODELS
from replay.graph.operators import DTYPE_BYTES

#: Bounds on the numbers of a sweep.
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


def is_profile(columns: Sequence[str]) -> bool:
    """Return whether these are the columns of a profile of a model's operators by number of tokens."""
    return set(_SIZES) <= set(columns) and any(_MEDIAN.format(op) in columns for op in _PROFILED)


def profiled(table: MeasuredTable) -> list[Rows]:
    """Return the operators of a profile, by kind.

    A profile has medians in ms, by a model's sizes, tokens and tensor-parallel devices.

    Parameters
    ----------
    table : MeasuredTable
        Table of the profile.

    Raises
    ------
    InvalidInputError
        A value is refused, heads do not divide the hidden size, or ranks do not divide the heads.
    """
    try:
        gated = np.asarray(table.content["use_gated_mlp"].cast(pa.bool_()).to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInputError(f"{table.file}: column use_gated_mlp is neither true nor false everywhere") from error
    heads, shared_heads, hidden, expanded, tokens, ranks = (
        table.numbers(name, (1, LARGEST), whole=True) for name in _SIZES if name != "use_gated_mlp"
    )
    for what, total, divisor in (
        ("n_embd by n_head", hidden, heads), ("n_head by ranks", heads, ranks), ("MLP by ranks", expanded, ranks)
    ):  # fmt: skip
        table.refuse([(row, f"{what} is no whole number") for row in np.flatnonzero(total % divisor).tolist()])
    ones, query = np.ones(len(tokens)), hidden / ranks
    keys, mlp = np.maximum(shared_heads // ranks, 1) * hidden / heads, expanded // ranks
    dims: dict[str, tuple[Floats, ...]] = {
        "attn_pre_proj": (ones, tokens, query + 2 * keys, hidden),
        "attn_post_proj": (ones, tokens, hidden, query),
        "mlp_up_proj": (ones, tokens, (1 + gated) * mlp, hidden),
        "mlp_down_proj": (ones, tokens, hidden, mlp),
        "mlp_act": (tokens * mlp, 3 * ones),
        "add": (tokens * hidden, 3 * ones),
        "attn_rope": (tokens * (query + keys), 2 * ones),
        "emb": (tokens * hidden, 2 * ones),
        "input_layernorm": (tokens, hidden),
        "post_attention_layernorm": (tokens, hidden),
    }
    pooled: dict[str, list[tuple[Floats, Floats]]] = {}
    for op, kind in _PROFILED.items():
        if (name := _MEDIAN.format(op)) not in table.columns:
            continue
        milliseconds = table.floats(name)
        table.refuse([(row, f"{name} is below zero") for row in np.flatnonzero(milliseconds < 0).tolist()])
        rows = np.isfinite(milliseconds) & (milliseconds > 0)  # the clock's step is 1 us: the shortest are 0
        if rows.any():
            pooled.setdefault(kind, []).append((np.column_stack(dims[op])[rows], milliseconds[rows] / 1e3))
    return [
        (kind, np.concatenate([dims for dims, _ in several]), np.concatenate([seconds for _, seconds in several]))
        for kind, several in pooled.items()
    ]


#: Kinds of the operators of a profile.
_PROFILED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj"), "matmul"),
        "mlp_act": "gated_activation",
        "add": "elementwise",
        "attn_rope": "rotary",
        "emb": "embedding",
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm"), "rms_normalization"),
    }
)

#: Columns of sweeps, which have no header, by the last word of the file's name.
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
            refuse_row(file, i, f"{line[:80]!r}; columns are {SWEEPS[kind]}, all above zero")
            continue
        rows.append(values)
    if not rows:
        raise InvalidInputError(f"{file}: there is no row; columns are {SWEEPS[kind]}")
    table, ones = np.array(rows), np.ones(len(rows))
    if kind == "matmul":
        return "matmul", np.column_stack((ones, table[:, :3])), table[:, 3] / 1e3
    dims, seconds = table[:, :-1], table[:, :-1].prod(axis=1) / table[:, -1] / 1e9
    if kind == "gelu":
        return "elementwise", np.column_stack((dims, 2 * ones)), seconds
    return {"softmax": "softmax", "layernorm": "normalization"}[kind], dims, seconds


#: Kind of each ``op`` of the layout, and the arrays that an elementwise one goes through.
KIND_OF: dict[str, tuple[str, int]] = {
    "linear": ("matmul", 0),
    "bmm": ("batched_matmul", 0),
    "softmax": ("softmax", 0),
    "ln": ("normalization", 0),
    **dict.fromkeys(("add", "sub", "mul", "div", "pow"), ("elementwise", 3)),
    **dict.fromkeys(("addu", "subu", "mulu", "divu", "powu", "relu", "gelu", "tanh", "sigmoid"), ("elementwise", 2)),
}
#: Columns of the sizes of a product, as (batch, m, n, k), and of other operators. A product is an (M, N) by an (N, K)
#: matrix, as the recorded grids show: each of 87,623 batched ones has ceil(K / tile) * ceil(M / tile) * B workgroups.
_PRODUCT, _ROWS = ("B", "M", "K", "N"), ("B", "H")
#: Columns that mark a table of measured operators.
_MARKS = {"op", "latency_ms", "num_tokens"}
#: Time in ms from which on a table holds launches: the shortest of tables with launches take 28 us and more, kernels 2.
_SHORTEST_LAUNCH_MS = 0.01
#: Longest duration in ms.
_LONGEST_MS = 1e9


@dataclass(frozen=True)
class MeasuredOperators:
    """Measurements of one kind of operator on one device.

    Parameters
    ----------
    kind : str
        One of `MODELS`.
    device : Device
        Device that was measured.
    dims : array of float64, shape (n, n_dims)
        Shapes, in the columns of the kind's model.
    seconds : array of float64, shape (n,)
        Measured durations, s.
    dtype : str
        Data type of the arithmetic.
    source : str
        Name of the file.
    digest : str
        SHA-256 of the file, by which a fit remembers what it has seen.
    library : str
        Framework whose operators were measured; empty if the table does not say it.
    launched : bool
        Whether the durations hold the launch by the host.
    """

    kind: str
    device: Device
    dims: Floats
    seconds: Floats
    dtype: str
    source: str
    digest: str
    library: str = ""
    launched: bool = False

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    def __len__(self) -> int:
        return len(self.seconds)


def read_measurements(
    path: str | Path, device: str | None = None, library: str | None = None
) -> list[MeasuredOperators]:
    """Read a table of measured operators, or all those in a folder.

    A table has the columns ``op``, ``device``, ``latency_ms``, and ``B M N K`` (linear and bmm: ``B`` products of an
    (M, N) by an (N, K) matrix) or ``B H`` (others), one row an operator. With all five sizes it may hold both; sizes
    that an operator lacks are not read. A column ``dtype`` holds the data type of each row (a key of
    `profilers.devices.DTYPES`); without it all is FP32. Vidur's profiles of a model and the sweeps of LLMCompass
    (`llmcompass_DEVICE_matmul.csv`), both FP16, are read too. So are AIConfigurator's tables of operators inside
    inference frameworks (`replay.costs.kernels.framework_tables`). In a folder, tables with other columns are passed
    over.

    Parameters
    ----------
    path : str or Path
        Table of measured operators, or a folder of such tables.
    device : str, optional
        Device of tables that name none in a column or in the file's name.
    library : str, optional
        Framework whose operators are kept, of tables that name it, or one implementation of it (`sglang_triton`); by
        default all.

    Raises
    ------
    NotFoundError
        There is no such file, no table in the folder, or no such device as the given one.
    InvalidInputError
        A column is missing; or an operator, a device, a type, a size or a duration is refused: the message names the
        row.
    """
    if device is not None:
        find_device(device)
    what = "table of measured operators (columns op, device, latency_ms, and B H)"
    measured = read_tables(path, partial(_read, device=device), suffixes=MeasuredTable.SUFFIXES, table=what)
    return [
        operators
        for operators in measured
        if library is None
        or library in (operators.library, operators.library.partition("_")[0])
        or not operators.library
    ]


def _read(file: Path, device: str | None) -> list[MeasuredOperators] | str:
    """Return the measurements of a file; or the reason why it has none of the layouts."""
    if is_sweep(file):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return [replace(_half_precision(file, device, swept(file), digest), launched=True)]
    table = MeasuredTable.read(file)
    if table is None:
        return MeasuredTable.UNREADABLE
    if _MARKS & set(table.columns):
        table.refuse_doubles(table.columns)
    if _fits(table.columns):
        return list(_measured(table))
    if set(_RECORD) <= set(table.columns):
        return list(_recorded_convolutions(table, device))
    if set(_SHEET) <= set(table.columns):
        return list(_sheet_convolutions(table))
    if framework := framework_table(file, table.columns):
        if framework.kind not in MODELS:
            return f"operators of kind {framework.kind} have no model"
        return [
            MeasuredOperators(
                framework.kind, group.device, group.dims, group.seconds, group.dtype, file.name, table.digest,
                group.library,
            )
            for group in framework_groups(table, framework)
        ]  # fmt: skip
    if is_profile(table.columns):
        return [_half_precision(file, device, rows, table.digest) for rows in profiled(table)]
    return (
        f"columns {', '.join(table.columns)}; needed are op, device, latency_ms, and B M N K (linear, bmm) or B H "
        "(softmax, ln, elementwise), or those of a profile: time_stats.OP.median, num_tokens, n_embd..., or those of "
        "frameworks, in a file *_gemm, *_attention, *_moe or *_quant_...: system, framework, dtype, latency_us..."
    )


def _half_precision(file: Path, device: str | None, rows: Rows, digest: str) -> MeasuredOperators:
    return MeasuredOperators(rows[0], device_of_file(file, device), rows[1], rows[2], "fp16", file.name, digest)


def _fits(columns: Sequence[str]) -> bool:
    names = set(columns)
    return {"op", "device", "latency_ms"} <= names and (set(_PRODUCT) <= names or set(_ROWS) <= names)


def holds_operators(file: Path, columns: Sequence[str]) -> bool:
    """Return whether a file has a layout that `read_measurements` reads, by its name and its columns.

    Examples
    --------
    >>> holds_operators(Path("measured.csv"), ["op", "device", "latency_ms", "B", "H"])
    True
    """
    framework = framework_table(file, columns)
    if framework is not None and framework.kind in MODELS:
        return True
    convolutions = set(_RECORD) <= set(columns) or set(_SHEET) <= set(columns)
    return convolutions or is_sweep(file) or _fits(columns) or is_profile(columns)


def _measured(table: MeasuredTable) -> Iterator[MeasuredOperators]:
    """Yield the measurements of a table with a row an operator, by kind, data type and device."""
    milliseconds = table.numbers("latency_ms", (0, _LONGEST_MS))
    ops, names = table.texts("op", KIND_OF, "operator"), table.texts("device")
    kinds = np.array([KIND_OF[op][0] for op in ops.tolist()], dtype=object)
    arrays = np.array([KIND_OF[op][1] for op in ops.tolist()], dtype=np.float64)
    is_product = np.isin(kinds, ("matmul", "batched_matmul"))
    sizes = {}
    for columns, rows in ((_PRODUCT, is_product), (_ROWS, ~is_product)):
        if not set(columns) <= set(table.columns):
            if rows.any():
                row = int(np.argmax(rows))
                raise table.refusal(row, f"no operator {ops[row]!r} with the columns {', '.join(table.columns)}")
            continue
        sizes[columns] = np.column_stack([table.numbers(name, (1, LARGEST), whole=True, rows=rows) for name in columns])
    dtypes = np.full(len(ops), "fp32", dtype=object)
    if "dtype" in table.columns:
        dtypes = table.texts("dtype", DTYPES, "data type")
    devices = table.devices(names)
    for kind, dtype, name in product(MODELS, sorted(set(dtypes)), devices):
        rows = (kinds == kind) & (names == name) & (dtypes == dtype)
        if rows.any():
            dims = sizes[_PRODUCT if is_product[rows][0] else _ROWS][rows]
            if kind == "elementwise":
                dims = np.column_stack((dims.prod(axis=1), arrays[rows]))
            yield MeasuredOperators(
                kind, devices[name], dims, milliseconds[rows] / 1e3, dtype, table.file.name, table.digest,
                launched=float(milliseconds[rows].min()) >= _SHORTEST_LAUNCH_MS,
            )  # fmt: skip


#: Columns of MIOpen's record of convolutions, in the order of the model, and of DeepBench's sheets.
_RECORD = (
    "n", "c", "d", "h", "w", "k", "kernel_d", "kernel_h", "kernel_w", "stride_d", "stride_h", "stride_w",
    "pad_d", "pad_h", "pad_w", "dilation_d", "dilation_h", "dilation_w", "groups", "direction", "layout",
    "algorithm", "solver", "dtype", "config_id", "time_ms", "spatial_dims",
)  # fmt: skip
_SHEET = (
    "op", "device", "mode", "precision", "direction", "n", "c", "h", "w", "k", "filter_h", "filter_w", "stride_h",
    "stride_w", "pad_h", "pad_w", "algorithm", "time_ms",
)  # fmt: skip
_DIRECTIONS: Mapping[str, float] = MappingProxyType({"forward": 1.0, "backward_data": 2.0, "backward_weights": 3.0})
_LAYOUTS: Mapping[str, float] = MappingProxyType({"NCHW": 1.0, "NHWC-NHWC-NHWC": 2.0, "NHWC": 2.0, "NCDHW": 3.0})
_ALGORITHMS: Mapping[str, float] = MappingProxyType(
    {"ImplicitGEMM": 1.0, "GEMM": 2.0, "Direct": 3.0, "Winograd": 4.0, "FFT": 5.0}
)
#: Start of the name of a solver that no library would choose, and that only checks others.
_NAIVE = "ConvDirectNaive"
#: Devices of MIOpen's records whose names are not of the catalogue. A die of an MI250 has the record of an MI210.
_RECORDED_DEVICES: Mapping[str, str] = MappingProxyType({"mi200_104cu": "MI210", "vega20_60cu": "MI50"})
#: Devices of DeepBench's sheets.
_SHEET_DEVICES: Mapping[str, str] = MappingProxyType(
    {
        "NV_V100": "V100-SXM2-16GB", "NV_P100": "P100-PCIE-16GB", "NV_T4": "T4", "NV_1080Ti": "GTX 1080 Ti",
        "AMD_VegaFE": "Radeon Vega Frontier Edition",
    }
)  # fmt: skip
#: Data type of a sheet by the start of its precision, and algorithm by a part of its name.
_PRECISIONS: Mapping[str, str] = MappingProxyType(
    {"Float": "fp32", "16 bit inputs, 16 bit multiplication": "fp16", "GEMM, Conv: Int8": "int8"}
)
_SHEET_ALGORITHMS: Mapping[str, float] = MappingProxyType(
    {
        "PRECOMP_GEMM": 1.0,
        "IMPLICIT_GEMM": 1.0,
        "AlgoGEMM": 2.0,
        "Direct": 3.0,
        "WINOGRAD": 4.0,
        "Winograd": 4.0,
        "FFT": 5.0,
    }
)


def _recorded_convolutions(table: MeasuredTable, device: str | None) -> Iterator[MeasuredOperators]:
    """Yield the convolutions of a record of MIOpen by data type: the fastest of each, then the best of each algorithm.

    Naive solvers are left out, and so are convolutions without another one, and types that the device lacks.
    """
    stem = next((name for name in _RECORDED_DEVICES if name in table.file.stem), None)
    recorded = find_device(_RECORDED_DEVICES[stem]) if stem and device is None else device_of_file(table.file, device)
    milliseconds = table.numbers("time_ms", (0, _LONGEST_MS))
    sizes = [_size(table, name) for name in _RECORD[:19]]
    numbered = [_numbered(table, name, of) for name, of in (("direction", _DIRECTIONS), ("layout", _LAYOUTS))]
    dims = np.column_stack((*sizes, *numbered, _numbered(table, "algorithm", _ALGORITHMS)))
    _refuse_impossible(table, dims)
    naive = np.char.startswith(table.texts("solver").astype(str), _NAIVE)
    types = np.char.lower(table.texts("dtype").astype(str))
    yield from _convolutions(table, recorded, "miopen", (dims[~naive], milliseconds[~naive] / 1e3, types[~naive]))


def _sheet_convolutions(table: MeasuredTable) -> Iterator[MeasuredOperators]:
    """Yield the convolutions of DeepBench's sheets by device and data type; rows of other operators are passed over."""
    devices, precisions = table.texts("device"), table.texts("precision")
    types = np.full(len(devices), "", dtype=object)
    for start, dtype in _PRECISIONS.items():
        types[np.char.startswith(precisions.astype(str), start)] = dtype
    rows = (table.texts("op") == "conv") & np.isin(devices, list(_SHEET_DEVICES)) & (types != "")
    milliseconds = table.numbers("time_ms", (0, _LONGEST_MS), rows=rows)
    algorithms, directions = np.zeros(len(rows)), table.texts("direction").astype(str)
    for part, number in _SHEET_ALGORITHMS.items():
        algorithms[np.char.find(table.texts("algorithm").astype(str), part) >= 0] = number
    one, zero = np.ones(len(rows)), np.zeros(len(rows))
    way = np.select([directions == name for name in _DIRECTIONS], list(_DIRECTIONS.values()), 1.0)
    size = partial(_size, table, rows=rows)
    dims = np.column_stack(
        (size("n"), size("c"), one, size("h"), size("w"), size("k"), one, size("filter_h"), size("filter_w"),
         one, size("stride_h"), size("stride_w"), zero, size("pad_h"), size("pad_w"), one, one, one, one, way, one,
         algorithms)
    )  # fmt: skip
    _refuse_impossible(table, dims, rows)
    for name, device in _SHEET_DEVICES.items():
        mine = rows & (devices == name)
        library = "cudnn" if name.startswith("NV_") else "miopen"
        yield from _convolutions(
            table, find_device(device), library, (dims[mine], milliseconds[mine] / 1e3, types[mine].astype(str))
        )


def _size(table: MeasuredTable, name: str, rows: Bools | None = None) -> Floats:
    """Return a column of sizes; padding may be 0."""
    if name.startswith("pad"):
        rows = (table.floats(name) != 0) & (True if rows is None else rows)
    return table.numbers(name, (1, LARGEST), whole=True, rows=rows)


def _numbered(table: MeasuredTable, name: str, numbers: Mapping[str, float]) -> Floats:
    texts = table.texts(name, numbers, name).astype(str)
    return np.asarray(np.select([texts == text for text in numbers], list(numbers.values())), dtype=np.float64)


def _refuse_impossible(table: MeasuredTable, dims: Floats, rows: Bools | None = None) -> None:
    of = np.arange(len(dims)) if rows is None else np.flatnonzero(rows)
    if (problem := impossible(dims[of])) is not None:
        raise table.refusal(int(of[problem[0]]), problem[1])


def _convolutions(
    table: MeasuredTable, device: Device, library: str, measured: tuple[Floats, Floats, npt.NDArray[np.str_]]
) -> Iterator[MeasuredOperators]:
    """Yield measured convolutions by data type: the fastest of each shape as algorithm 0, then the named ones."""
    all_dims, all_seconds, types = measured
    for dtype in sorted(set(types.tolist())):
        if not any(figure == f"{dtype}_tflops" for figure in device.figures):
            continue
        dims, seconds = all_dims[types == dtype], all_seconds[types == dtype]
        fastest = dims.copy()
        fastest[:, ALGORITHM] = 0
        dims, seconds = (
            np.concatenate((fastest, dims[dims[:, ALGORITHM] > 0])),
            np.concatenate((seconds, seconds[dims[:, ALGORITHM] > 0])),
        )
        order = np.argsort(seconds, kind="stable")
        _, first = np.unique(dims[order], axis=0, return_index=True)
        kept = order[np.sort(first)]
        yield MeasuredOperators(
            "convolution", device, dims[kept], seconds[kept], dtype, table.file.name, table.digest, library
        )
