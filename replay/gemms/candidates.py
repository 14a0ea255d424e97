"""Tables of measured candidates: the time of every kernel that a library could run, for a set of GEMMs.

A row is a candidate kernel on a GEMM, as tuning runs of Tensile or CUTLASS record them. `read_candidates` checks a
table and returns `MeasuredCandidates`. Failed measurements and repetitions are counted.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import DTYPES, Device, device_of_file, find_device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Floats, Ints
from replay.calibration.tables import MeasuredTable
from replay.gemms.gemm import Gemm, Variants

_SHAPE: Final = ("m", "n", "k")
#: Columns of `Variants` and the names that a table may give them.
_NAMES: Final = {
    "tile_m": ("macro_tile_m", "tile_m"),
    "tile_n": ("macro_tile_n", "tile_n"),
    "depth": ("depth_u", "depth"),
    "global_split": ("global_split_u", "global_split"),
    "local_split": ("local_split_u", "local_split"),
    "threads": ("workgroup_size_threads", "threads"),
    "lds_bytes": ("lds_bytes", "lds_min_bytes"),
}
#: Times, and the factor to ns. The first that a table has counts; without any, its throughput, gflops.
_TIMES: Final = {"time_ns": 1.0, "time_us": 1e3, "time_ms": 1e6}
#: Columns that name a kernel.
_KERNELS: Final = ("kernel_name", "kernel", "candidate_id")
#: Columns that describe the GEMM or the measurement, not the kernel.
_NOT_TRAITS: Final = frozenset(
    (*_SHAPE, "batch", "transpose_a", "transpose_b", "dtype", "device", "workgroups", "gflops", *_TIMES, *_KERNELS)
)
#: Words of a file's name that say the type of the operands.
_DTYPE_WORDS: Final = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "half": "fp16", "f8": "fp8"}
#: A number with more values than this is coded by its logarithm. A text with more values is a name, and no trait.
_MOST_LEVELS: Final = 12
_MOST_TEXTS: Final = 24
#: Largest dimension of a GEMM; tile, depth, split or threads; and LDS; and the range of a time, ns.
_MOST_SIZE, _MOST_TILE, _MOST_LDS, _TIME_RANGE = 2**31, 2**16, 2**30, (1.0, 1e14)
#: Largest matrix instruction, rows.
_MOST_ROWS: Final = 1024

NEEDS: Final = "table of candidate kernels (columns m, n, k, macro_tile_m, macro_tile_n, and gflops or time_us)"


@dataclass(frozen=True)
class MeasuredCandidates:
    """Times of candidate kernels on GEMMs: r measurements of c kernels.

    Parameters
    ----------
    source : str
        Name of the file.
    device : Device
        Device that was measured.
    gemms : tuple of Gemm
        Distinct GEMMs.
    variants : Variants
        Distinct kernels; `Variants.candidate` is their number, from 0.
    traits : array of float64, shape (c, t)
        Coded parameters of each kernel: indicators of values, or logarithms.
    gemm_of, variant_of : array of int64, shape (r,)
        Numbers of the GEMM and of the kernel that each row measures, in the order of both.
    time_ns : array of float64, shape (r,)
        Duration.
    failed : int
        Rows without a time: zero, negative or missing.
    repeated : int
        Rows that measure a kernel again; the median of the repetitions is kept.
    """

    source: str
    device: Device
    gemms: tuple[Gemm, ...]
    variants: Variants
    traits: Floats
    gemm_of: Ints
    variant_of: Ints
    time_ns: Floats
    failed: int = 0
    repeated: int = 0

    def of_gemms(self, numbers: Ints) -> "MeasuredCandidates":
        """Return the measurements of some GEMMs, which keep their numbers."""
        rows = np.isin(self.gemm_of, numbers)
        return replace(self, gemm_of=self.gemm_of[rows], variant_of=self.variant_of[rows], time_ns=self.time_ns[rows])


def holds_candidates(columns: list[str]) -> bool:
    """Return whether a table with these columns has the layout that `read_candidates` reads.

    Examples
    --------
    >>> holds_candidates(["m", "n", "k", "tile_m", "tile_n", "time_us"]), holds_candidates(["m", "n", "k", "time_us"])
    (True, False)
    """
    tiles = all(set(_NAMES[name]) & set(columns) for name in ("tile_m", "tile_n"))
    return tiles and set(_SHAPE) <= set(columns) and bool({"gflops", *_TIMES} & set(columns))


def dtype_of_file(file: Path, dtype: str | None = None) -> str:
    """Return the type of the operands: the given one, else that of a word of the file's name.

    Raises
    ------
    InvalidInputError
        The type is not in `profilers.devices.DTYPES`, or the name has no such word.

    Examples
    --------
    >>> dtype_of_file(Path("candidates_mi100_f32.parquet")), dtype_of_file(Path("h100_bf16.csv"))
    ('fp32', 'bf16')
    """
    words = re.split(r"[^a-z0-9]+", file.stem.lower())
    for word in (dtype,) if dtype else words:
        if (named := _DTYPE_WORDS.get(word, word)) in DTYPES:
            return named
    if dtype:
        raise InvalidInputError(f"data type {dtype!r} is none of {', '.join(DTYPES)}")
    raise InvalidInputError(f"{file}: which type are the operands? say --dtype, one of {', '.join(DTYPES)}")


def read_candidates(path: str | Path, device: str | None = None, dtype: str | None = None) -> MeasuredCandidates:
    """Read a table of measured candidates.

    A row has the GEMM (m, n, k; batch, transpose_a and transpose_b if the table has them), the kernel (macro_tile_m,
    macro_tile_n; depth_u, global_split_u, local_split_u, workgroup_size_threads, lds_bytes, matrix_instruction if
    known; -1 means that a value is not known), and gflops, time_us, time_ms or time_ns. Every other column that is
    constant for a kernel describes it, whatever its name.

    Parameters
    ----------
    path : str or Path
        Parquet or CSV file.
    device : str, optional
        Name of the device that was measured, if neither a column ``device`` nor the file's name says it.
    dtype : str, optional
        Type of the operands, if neither a column ``dtype`` nor the file's name says it.

    Raises
    ------
    NotFoundError
        There is no such file, or no such device.
    InvalidInputError
        A column is missing or there twice, a value cannot be, or no row has a time. The message names file, column and
        row.
    """
    file = Path(path)
    table = MeasuredTable.open(file)
    table.refuse_doubles(table.columns)
    if not holds_candidates(table.columns):
        raise InvalidInputError(f"{file}: no {NEEDS}; it has {', '.join(table.columns)[:200]}")
    shapes = _shapes(table)
    time, failed = _times(table, 2.0 * shapes[:, :4].prod(axis=1, dtype=np.float64))
    kept = np.flatnonzero(~failed)
    if not len(kept):
        raise InvalidInputError(f"{file}: no row has a time above zero")
    gemms, gemm_of = _gemms(table, shapes[kept], dtype, kept)
    columns, texts = recorded_columns(table), _text_columns(table)
    first, variant_of, traits = _kernels(table, {**columns, **texts, **_number_columns(table)}, kept)
    variants = Variants.of(**known_columns(columns, first), candidate=np.arange(len(first)))
    coded = _coded({name: values[first] for name, values in traits.items()}, frozenset(texts))
    order, rows, time_ns = _medians(gemm_of, variant_of, time[kept])
    return MeasuredCandidates(
        file.name, _device(table, device), gemms, variants, coded, gemm_of[order], variant_of[order], time_ns,
        int(failed.sum()), len(kept) - rows,
    )  # fmt: skip


def _shapes(table: MeasuredTable) -> Ints:
    """Return m, n, k, batch and both transposes of each row."""
    columns = [table.numbers(name, (1, _MOST_SIZE), whole=True) for name in _SHAPE]
    batch = "batch" in table.columns
    columns.append(table.numbers("batch", (1, _MOST_SIZE), whole=True) if batch else np.ones(len(columns[0])))
    for name in ("transpose_a", "transpose_b"):
        columns.append(_flags(table, name) if name in table.columns else np.zeros(len(columns[0])))
    return np.column_stack(columns).astype(np.int64)


def _flags(table: MeasuredTable, name: str) -> Floats:
    """Return a column of true and false, of 0 and 1, or of N and T."""
    if _holds_texts(table.content[name].type):
        texts = table.texts(name, ("N", "T", "false", "true"), f"{name} of")
        return np.isin(texts, ("T", "true")).astype(float)
    values = table.floats(name)
    bad = np.flatnonzero((values != 0) & (values != 1)).tolist()
    table.refuse((row, f"{name} is {values[row]:g}; it must be 0 or 1") for row in bad)
    return values


def _times(table: MeasuredTable, flops: Floats) -> tuple[Floats, Bools]:
    """Return the time of each row in ns, and the rows that have none."""
    name = next(name for name in (*_TIMES, "gflops") if name in table.columns)
    values = table.floats(name)
    failed = ~(values > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        time = flops / values if name == "gflops" else values * _TIMES[name]
    odd = ~failed & ~((time >= _TIME_RANGE[0]) & (time <= _TIME_RANGE[1]))
    table.refuse(
        (row, f"{name} is {values[row]:g}: a time of {time[row]:.3g} ns; check its unit")
        for row in np.flatnonzero(odd).tolist()
    )
    return time, failed


def _gemms(table: MeasuredTable, shapes: Ints, dtype: str | None, kept: Ints) -> tuple[tuple[Gemm, ...], Ints]:
    """Return the distinct GEMMs and the number of each row's."""
    if "dtype" in table.columns and dtype is None:
        types, codes = _types(table, kept)
    else:
        types, codes = [dtype_of_file(table.file, dtype)], np.zeros(len(shapes), dtype=np.int64)
    distinct, numbers = np.unique(np.column_stack([shapes, codes]), axis=0, return_inverse=True)
    gemms = tuple(
        Gemm(m, n, k, batch, types[code], bool(a), bool(b)) for m, n, k, batch, a, b, code in distinct.tolist()
    )
    return gemms, numbers.ravel()


def _types(table: MeasuredTable, kept: Ints) -> tuple[list[str], Ints]:
    """Return the distinct types of a column, and the number of each kept row's."""
    names, first, codes = np.unique(table.texts("dtype")[kept].astype(str), return_index=True, return_inverse=True)
    types = []
    for name, row in zip(names, kept[first], strict=True):
        try:
            types.append(dtype_of_file(table.file, str(name)))
        except InvalidInputError as error:
            raise table.refusal(int(row), error) from error
    return types, codes


def _device(table: MeasuredTable, device: str | None) -> Device:
    """Return the device of a table: the given one, else that of a column, else that of the file's name."""
    if device is not None:
        return find_device(device)
    if "device" not in table.columns:
        return device_of_file(table.file, None)
    devices = {named.name: named for named in table.devices(table.texts("device")).values()}
    if len(devices) > 1:
        raise InvalidInputError(f"{table.file}: devices are {', '.join(sorted(devices))}; give a table for each")
    return next(iter(devices.values()))


def recorded_columns(table: MeasuredTable, prefix: str = "") -> dict[str, Floats]:
    """Return the columns of `Variants` that a table has; -1 if a value is not known.

    Parameters
    ----------
    table : MeasuredTable
        Table with tiles and other parameters of kernels.
    prefix : str
        Text before the names of the columns.

    Raises
    ------
    InvalidInputError
        A value cannot be; the message names file, row and column.
    """
    columns = {}
    for variant, names in _NAMES.items():
        if name := next((prefix + name for name in names if prefix + name in table.columns), ""):
            values = np.nan_to_num(table.floats(name), nan=-1.0)
            needed = variant in ("tile_m", "tile_n")
            least, most = (0, _MOST_LDS) if variant == "lds_bytes" else (1, _MOST_TILE)
            known = (values == np.floor(values)) & (values >= least) & (values <= most)
            rule = f"it must be whole, {least} to {most}" + ("" if needed else ", or -1 if it is not known")
            bad = np.flatnonzero(~(known | ((values == -1) & (not needed)))).tolist()
            table.refuse([(row, f"{name} is {values[row]:g}; {rule}") for row in bad])
            columns[variant] = values
    if (name := f"{prefix}matrix_instruction") in table.columns:
        columns["matrix_rows"] = _matrix_rows(table, name)
    return columns


def _matrix_rows(table: MeasuredTable, name: str) -> Floats:
    """Return the rows of each matrix instruction, such as 32 for ``32x32x2x1``; 0 for ``none``."""
    texts, codes = np.unique(table.texts(name).astype(str), return_inverse=True)
    rows = []
    for code, text in enumerate(map(str, texts)):
        number = re.match(r"\d{1,4}(?=x|$)", text)
        if not (number and int(number[0]) <= _MOST_ROWS) and text not in ("none", "", "-1"):
            rule = "it must be like 32x32x2x1, or none"
            table.refuse([(row, f"{name} is {text!r:.40}; {rule}") for row in np.flatnonzero(codes == code).tolist()])
        rows.append(float(number[0]) if number else 0.0)
    return np.array(rows)[codes]


def _holds_texts(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _other_columns(table: MeasuredTable) -> list[str]:
    """Return the columns that may describe a kernel, beside those of `Variants`."""
    read = {name for names in _NAMES.values() for name in names}
    return [name for name in table.columns if name not in read and name not in _NOT_TRAITS]


def _text_columns(table: MeasuredTable) -> dict[str, Floats]:
    """Return the columns of texts with few values that may describe a kernel, as codes; -1 if a value is missing."""
    columns = {}
    for name in _other_columns(table):
        if _holds_texts((column := table.content[name]).type):
            levels = column.cast(pa.string()).combine_chunks().dictionary_encode()
            if len(levels.dictionary) <= _MOST_TEXTS:
                columns[name] = levels.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(float)
    return columns


def _number_columns(table: MeasuredTable) -> dict[str, Floats]:
    """Return the columns of numbers that may describe a kernel; -1 if a value is missing or not finite."""
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    names = [name for name in _other_columns(table) if any(test(table.content[name].type) for test in tests)]
    return {name: np.nan_to_num(table.floats(name), nan=-1.0, posinf=-1.0, neginf=-1.0) for name in names}


def _kernels(table: MeasuredTable, columns: dict[str, Floats], kept: Ints) -> tuple[Ints, Ints, dict[str, Floats]]:
    """Return a row of each distinct kernel, the kernel of each kept row, and the columns that describe kernels.

    A kernel has one name, if the table has names, and one value of each column of `Variants`: a table may use a name
    for several kernels. Any other column that varies for a named kernel describes the GEMM, and is left out. Without
    names, each combination of values is a kernel.
    """
    codes, named = _name_codes(table, kept)
    describing = {}
    for name, values in columns.items():
        _, first = np.unique(codes, return_index=True)
        constant = bool((values[kept][first][codes] == values[kept]).all())
        if named and not constant and name not in (*_NAMES, "matrix_rows"):
            continue
        describing[name] = values
        if not constant:
            _, levels = np.unique(values[kept], return_inverse=True)
            _, codes = np.unique(codes * (levels.max() + 1) + levels, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    return kept[first], codes, describing


def _name_codes(table: MeasuredTable, kept: Ints) -> tuple[Ints, bool]:
    """Return the number of the name of each kept row's kernel, and whether the table has names."""
    name = next((name for name in _KERNELS if name in table.columns), "")
    if not name:
        return np.zeros(len(kept), dtype=np.int64), False
    column = table.content[name].combine_chunks()
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.unique(indices[kept], return_inverse=True)[1], True


def known_columns(columns: dict[str, Floats], rows: Ints) -> dict[str, Floats]:
    """Return some rows of the columns of `Variants`, with defaults for unknown values.

    Parameters
    ----------
    columns : dict of str to array
        What `recorded_columns` returned.
    rows : array of int64
        Rows.
    """
    return {name: _known(name, values[rows]) for name, values in columns.items()}


def _known(name: str, values: Floats) -> Floats:
    """Return a column of `Variants` with defaults for unknown values."""
    default = {"depth": 32.0, "threads": 256.0, "lds_bytes": np.nan}.get(name, 1.0)
    return values if name == "matrix_rows" else np.where(values < 0, default, values)


def _coded(columns: dict[str, Floats], texts: frozenset[str]) -> Floats:
    """Return indicators of the values of each column, or the logarithm of a number with many values."""
    coded = [np.ones(len(next(iter(columns.values()))))]
    for name, values in columns.items():
        levels = np.unique(values)
        if name in texts or len(levels) <= _MOST_LEVELS:
            coded += [(values == level).astype(float) for level in levels[1:]]
        else:
            coded.append(np.log2(np.maximum(values, 1.0)))
    return np.column_stack(coded)


def _medians(gemm_of: Ints, variant_of: Ints, time: Floats) -> tuple[Ints, int, Floats]:
    """Return a row of each pair of GEMM and kernel, in their order, their number, and the median of their times."""
    order = np.lexsort((time, variant_of, gemm_of))
    pairs = gemm_of[order] * (variant_of.max() + 1) + variant_of[order]
    _, starts, counts = np.unique(pairs, return_index=True, return_counts=True)
    low, high = starts + (counts - 1) // 2, starts + counts // 2
    return order[starts], len(starts), np.sqrt(time[order][low] * time[order][high])
