"""Measured durations of operators: tables in the layout of NeuSight's data set, checked."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from profilers.device_names import device_of_file
from profilers.devices import DTYPES, Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.durations.layouts import Rows, is_profile, is_sweep, profiled, swept
from replay.durations.models import MODELS
from replay.operators import DTYPE_BYTES

__all__ = ["KIND_OF", "LARGEST", "MeasuredOperators", "read_measurements"]

Floats = npt.NDArray[np.float64]

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
    device : Device
    dims : array of float64, shape (n, n_dims)
        As the kind's model wants them.
    seconds : array of float64, shape (n,)
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
    if _fits(table):
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


def _fits(table: pa.Table) -> bool:
    columns = set(table.column_names)
    return {"op", "device", "latency_ms"} <= columns and (set(_PRODUCT) <= columns or set(_ROWS) <= columns)


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
