"""Measured durations of operators, from tables of three public layouts.

The layouts are those of NeuSight's data set, of Vidur's profiles and of LLMCompass' sweeps. Every row is checked; an
error names the file and the row.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from profilers.devices.catalogue import DTYPES, Device, device_of_file, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Floats
from replay.costs.kernels.models import MODELS
from replay.graph.operators import DTYPE_BYTES

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
        File of the table, for messages.
    table : pyarrow.Table
        Content of the file.
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


#: Kind of each ``op`` of the layout, and the arrays that an elementwise one goes through.
KIND_OF: dict[str, tuple[str, int]] = {
    "linear": ("matmul", 0),
    "bmm": ("batched_matmul", 0),
    "softmax": ("softmax", 0),
    "ln": ("normalization", 0),
    **dict.fromkeys(("add", "sub", "mul", "div", "pow"), ("elementwise", 3)),
    **dict.fromkeys(("addu", "subu", "mulu", "divu", "powu", "relu", "gelu", "tanh", "sigmoid"), ("elementwise", 2)),
}
_PRODUCT, _ROWS = ("B", "M", "N", "K"), ("B", "H")
#: Columns by which a table is taken for one of measured operators.
_LAYOUT = {"op", "latency_ms", "num_tokens"}
#: (batch, m, n, k) of the columns of a product: an (M, N) by an (N, K) matrix, as the recorded grids show (of 87,623
#: batched products every one has ceil(K / tile) * ceil(M / tile) * B workgroups).
_DIMS_OF_PRODUCT = [0, 1, 3, 2]
_SUFFIXES = (".parquet", ".csv")
#: Of a dimension, and of a duration in ms: what is above is no operator.
LARGEST, _LONGEST_MS = 1e15, 1e9


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
        As the kind's model wants them.
    seconds : array of float64, shape (n,)
        Measured durations, s.
    dtype : str
        What was computed in.
    source : str
        Name of the file.
    digest : str
        SHA-256 of the file, by which a fit remembers what it has seen.
    """

    kind: str
    device: Device
    dims: Floats
    seconds: Floats
    dtype: str
    source: str
    digest: str

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    def __len__(self) -> int:
        return len(self.seconds)


def read_measurements(path: str | Path, device: str | None = None) -> list[MeasuredOperators]:
    """Read a table of measured operators, or all those in a folder.

    A table has the columns ``op``, ``device``, ``latency_ms``, and ``B M N K`` (linear and bmm: ``B`` products of an
    (M, N) by an (N, K) matrix) or ``B H`` (others), one row an operator. With all five sizes it may hold both, and
    those that an operator has not are not read. A column ``dtype`` says what each row was computed in (a key of
    `profilers.devices.DTYPES`); without it all is FP32. Vidur's profiles of a model and the sweeps of LLMCompass
    (`llmcompass_DEVICE_matmul.csv`), both FP16, are read too. In a folder, tables with other columns are passed over;
    one that is named has to fit.

    Parameters
    ----------
    path : str or Path
        Table of measured operators, or a folder of such tables.
    device : str, optional
        Of tables where neither a column nor the file's name says it.

    Raises
    ------
    NotFoundError
        There is no such file, no table in the folder, or no such device as the given one.
    InvalidInputError
        A column is missing; or an operator, a device, a type, a size or a duration cannot be: the message names the
        row.
    """
    if device is not None:
        find_device(device)
    root = Path(path)
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.suffix in _SUFFIXES)
        found = [one for file in files for one in _read(file, device) or ()]
        if not found:
            raise NotFoundError(f"{root}: no table of measured operators (columns op, device, latency_ms, and B H)")
        return found
    if not root.is_file():
        raise NotFoundError(f"{root}: no such file")
    table = None if is_sweep(root) else _table(root)
    if table is None and not is_sweep(root):
        raise InvalidInputError(f"{root}: cannot be read as a table; give Parquet or CSV")
    read = _read(root, device)
    if read is None:
        columns = [] if table is None else table.column_names
        raise InvalidInputError(
            f"{root}: columns {', '.join(columns)}; needed are op, device, latency_ms, and B M N K (linear, "
            "bmm) or B H (softmax, ln, elementwise), or those of a profile: time_stats.OP.median, num_tokens, n_embd..."
        )
    return read


def _read(file: Path, device: str | None) -> list[MeasuredOperators] | None:
    """Return what a file has, None if it is of none of the layouts."""
    if is_sweep(file):
        return [_half(file, device, swept(file))]
    table = _table(file)
    if table is None:
        return None
    if _fits(table.column_names):
        return list(_measured(file, table))
    if is_profile(table.column_names):
        pooled: dict[str, list[Rows]] = {}
        for rows in profiled(file, table, lambda name: _numbers(file, table, name)):
            pooled.setdefault(rows[0], []).append(rows)
        return [_half(file, device, _joined(several)) for several in pooled.values()]
    return None


def _joined(several: list[Rows]) -> Rows:
    return several[0][0], np.concatenate([r[1] for r in several]), np.concatenate([r[2] for r in several])


def _half(file: Path, device: str | None, rows: Rows) -> MeasuredOperators:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return MeasuredOperators(rows[0], device_of_file(file, device), rows[1], rows[2], "fp16", file.name, digest)


def _table(file: Path) -> pa.Table | None:
    try:
        table = pq.read_table(file) if file.suffix == ".parquet" else pcsv.read_csv(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError):
        return None
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice and _LAYOUT & set(table.column_names):
        raise InvalidInputError(f"{file}: column {', '.join(twice)} occurs more than once")
    return table


def _fits(columns: Sequence[str]) -> bool:
    names = set(columns)
    return {"op", "device", "latency_ms"} <= names and (set(_PRODUCT) <= names or set(_ROWS) <= names)


def holds_operators(file: Path, columns: Sequence[str]) -> bool:
    """Return whether a file has a layout that `read_measurements` reads, told by its name and its columns.

    Examples
    --------
    >>> holds_operators(Path("measured.csv"), ["op", "device", "latency_ms", "B", "H"])
    True
    """
    return is_sweep(file) or _fits(columns) or is_profile(list(columns))


def _measured(file: Path, table: pa.Table) -> Iterator[MeasuredOperators]:
    milliseconds = _numbers(file, table, "latency_ms")
    ops, devices = (_texts(file, table, name) for name in ("op", "device"))
    layouts = [sizes for sizes in (_PRODUCT, _ROWS) if set(sizes) <= set(table.column_names)]
    sized = _sized(file, ops, layouts)
    dtypes = _dtypes(file, table)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    found = {name: _device(file, devices, name) for name in sorted(set(devices.tolist()))}
    kinds = np.array([KIND_OF[op][0] for op in ops.tolist()], dtype=object)
    numbers = {sizes: _sizes(file, table, sizes, sized == layouts.index(sizes)) for sizes in layouts}
    for kind, dtype in product(MODELS, sorted(set(dtypes.tolist()))):
        for name, device in found.items():
            rows = np.flatnonzero((kinds == kind) & (devices == name) & (dtypes == dtype))
            if len(rows):
                dims = _dims(kind, numbers[layouts[sized[rows[0]]]][rows], ops[rows])
                yield MeasuredOperators(kind, device, dims, milliseconds[rows] / 1e3, dtype, file.name, digest)


def _sized(file: Path, ops: npt.NDArray[np.object_], layouts: Sequence[tuple[str, ...]]) -> npt.NDArray[np.int64]:
    """Return which of the table's layouts has the sizes of each row."""
    found = np.empty(len(ops), dtype=np.int64)
    for row, op in enumerate(ops.tolist()):  # a Python loop over measurements
        wanted = _PRODUCT if KIND_OF.get(op, ("", 0))[0] in ("matmul", "batched_matmul") else _ROWS
        if op not in KIND_OF or wanted not in layouts:
            raise InvalidInputError(f"{file}: row {row + 1}: no operator {op!r}; there are {', '.join(KIND_OF)}")
        found[row] = layouts.index(wanted)
    return found


def _sizes(file: Path, table: pa.Table, sizes: tuple[str, ...], rows: npt.NDArray[np.bool_]) -> Floats:
    """Return the sizes of the rows that have them, (n, n_sizes); of the others anything."""
    return np.column_stack([_numbers(file, table, name, rows) for name in sizes])


def _dtypes(file: Path, table: pa.Table) -> npt.NDArray[np.object_]:
    """Return what each row was computed in."""
    if "dtype" not in table.column_names:
        return np.full(table.num_rows, "fp32", dtype=object)
    found = _texts(file, table, "dtype")
    if (row := next((i for i, name in enumerate(found.tolist()) if name not in DTYPES), None)) is not None:
        raise InvalidInputError(f"{file}: row {row + 1}: no data type {found[row]!r}; there are {', '.join(DTYPES)}")
    return found


def _dims(kind: str, sizes: Floats, ops: npt.NDArray[np.object_]) -> Floats:
    if kind in ("matmul", "batched_matmul"):
        return sizes[:, _DIMS_OF_PRODUCT]
    if kind != "elementwise":
        return sizes
    arrays = np.array([KIND_OF[op][1] for op in ops.tolist()], dtype=np.float64)
    return np.column_stack((sizes[:, 0] * sizes[:, 1], arrays))


def _numbers(file: Path, table: pa.Table, name: str, rows: npt.NDArray[np.bool_] | None = None) -> Floats:
    """Return a column, checked where `rows` says so, by default everywhere."""
    try:
        values = table[name].cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise InvalidInputError(f"{file}: column {name} is no number ({str(error).splitlines()[0]})") from error
    longest = _LONGEST_MS if name == "latency_ms" else LARGEST
    checked = np.ones(len(values), dtype=np.bool_) if rows is None else rows
    bad = np.flatnonzero(~((values > 0) & (values <= longest)) & checked)
    if len(bad):
        row = int(bad[0])
        raise InvalidInputError(
            f"{file}: row {row + 1}: {name} is {values[row]:g}; it must be finite and above zero, at most {longest:.0e}"
        )
    part = np.flatnonzero((values != np.floor(values)) & checked & (name != "latency_ms"))
    if len(part):
        row = int(part[0])
        raise InvalidInputError(f"{file}: row {row + 1}: {name} is {values[row]:g}; it must be a whole number")
    return np.asarray(values, dtype=np.float64)


def _texts(file: Path, table: pa.Table, name: str) -> npt.NDArray[np.object_]:
    try:
        values = table[name].to_pylist()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{file}: column {name} is no UTF-8 text") from error
    if (row := next((i for i, value in enumerate(values) if not isinstance(value, str)), None)) is not None:
        raise InvalidInputError(f"{file}: row {row + 1}: {name} is {values[row]!r}; it must be text")
    return np.array(values, dtype=object)


def _device(file: Path, devices: npt.NDArray[np.object_], name: str) -> Device:
    try:
        return find_device(name)
    except NotFoundError as error:
        row = int(np.flatnonzero(devices == name)[0])
        raise InvalidInputError(f"{file}: row {row + 1}: {error}") from error
