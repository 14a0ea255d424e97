"""Captures: traces that tell which operator launched each kernel of a CUDA or HIP graph.

A graph is launched by one call (``cudaGraphLaunch``), so a profiler sees no operator around its kernels. Two kinds of
trace of the same job tell them, and `read_captures` reads both into sequences of launches, in the order of the calls:

- A trace of the **stream capture** holds the operators and the calls that launch kernels, between
  ``cudaStreamBeginCapture`` and ``cudaStreamEndCapture``. The kernels do not run, so they are no events; HIP writes
  their names and grids with the calls, CUDA does not. Each capture is a sequence.
- An **eager** trace, recorded without graphs, holds the same kernels with their launches. Each marked iteration is a
  sequence.

`profilers.ingest.graph_kernels` finds the sequence of each graph launch.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.ingest.join import base_name, plain_name
from profilers.ingest.linking import innermost
from profilers.readers.common.numbers import IN_WORK_ITEMS, workgroups
from profilers.trace.arrays import MISSING, Bools, Ints, arrow_array, encode_text, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.schema import KERNEL_SEQUENCE, SCHEMAS, concatenate
from profilers.trace.trace import Trace

#: Names of calls that launch a graph.
GRAPH_LAUNCH = "GraphLaunch"
#: Names of calls that launch a kernel, and that begin and end a stream capture, of CUDA and HIP.
_KERNEL_LAUNCH = re.compile(r"Launch\w*Kernel")
_CAPTURE_LIMIT = re.compile(r"Stream(Begin|End)Capture")
_MODULE = "nn.Module: "
#: Key of the file of the capture in the arguments of an operator.
_FILE = "capture"
_NUMBERS = re.compile(r"\d+")
#: Columns that an operator has by its call; the others say when and where it ran in the capture.
CALL_COLUMNS = ("name", "shapes", "dtypes", "strides", "concrete_inputs", "args")
#: Position of the operand of PyTorch's products whose rows are the tokens of a step.
_ROWS_OF = {"mm": 0, "linear": 0, "matmul": 0, "_scaled_mm": 0, "addmm": 1}


@cache
def loose_name(name: str) -> str:
    """Return a kernel's name without return type, clone suffix, spaces and numbers.

    Variants of a kernel that a library or a compiler chooses by size differ in the numbers of their names.

    Examples
    --------
    >>> loose_name("void gemm_128x64<float, 4>(float*)") == loose_name("gemm_256x64<float, 8>(float*)")
    True
    """
    return _NUMBERS.sub("#", plain_name(name))


@cache
def identifier(name: str) -> str:
    """Return the identifier of a kernel without numbers, of a mangled or a demangled name.

    Examples
    --------
    >>> identifier("_ZN5aiter11norm_kernelILi4EEEvPf"), identifier("void aiter::norm_kernel<4>(float*)")
    ('norm_kernel', 'norm_kernel')
    """
    if not is_mangled(name):
        return _NUMBERS.sub("#", base_name(name))
    rest, last = name.removeprefix("_Z").removeprefix("N").lstrip("KVr"), name
    while (length := re.match(r"\d{1,3}", rest)) is not None:
        last, rest = rest[length.end() :][: int(length[0])], rest[length.end() + int(length[0]) :]
    return _NUMBERS.sub("#", last)


def is_mangled(name: str) -> bool:
    """Return whether a name is mangled as compilers of C++ do it (Itanium ABI)."""
    return name.startswith("_Z")


@dataclass(frozen=True)
class CapturedSequence:
    """Launches of kernels, in the order of the calls: columns of length n, one row a launch.

    Parameters
    ----------
    file : str
        Name of the capture's file.
    rank : int
        Rank that launched.
    name : array of int64
        Name of the kernel, as an index into `Captures.names`; -1 if the file does not tell it.
    call : array of int64
        Call of the operator that launched it, as a row of `Captures.calls`; -1 if no operator did.
    workgroups, workgroup_size : array of int64
        Its grid; `MISSING` if unknown.
    """

    file: str
    rank: int
    name: Ints
    call: Ints
    workgroups: Ints
    workgroup_size: Ints

    def __len__(self) -> int:
        return len(self.name)

    @property
    def is_named(self) -> bool:
        """Whether the names of most kernels are known."""
        return 2 * int((self.name >= 0).sum()) > len(self)


@dataclass(frozen=True)
class Captures:
    """The sequences of one or more captures.

    Parameters
    ----------
    sequences : tuple of CapturedSequence
        In the order of files and time.
    names : tuple of str
        Distinct names of kernels, as the profiler wrote them; untrusted.
    calls : Table
        Calls of operators: rows of ``ops`` with the columns `CALL_COLUMNS`. ``args`` names file and module.
    product_rows, other_rows : array of int64
        Rows of the operand of each call that is a matrix product, and first extent of the first operand of each other
        call; -1 if unknown.
    """

    sequences: tuple[CapturedSequence, ...]
    names: tuple[str, ...]
    calls: pa.Table
    product_rows: Ints
    other_rows: Ints

    def tokens(self, calls: Ints) -> int | None:
        """Return the rows of the operands of most products among some calls, or else of most other operators.

        In a decoding step, they are the batch or the number of tokens.
        """
        calls = calls[calls >= 0]
        for extents in (self.product_rows[calls], self.other_rows[calls]):
            values, times = np.unique(extents[extents >= 0], return_counts=True)
            if len(values):
                return int(values[times.argmax()])
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the captures' files."""
        return tuple(dict.fromkeys(sequence.file for sequence in self.sequences))


def read_captures(traces: Sequence[tuple[str, Trace]]) -> Captures:
    """Return the sequences of launches of some captures.

    Parameters
    ----------
    traces : sequence of (str, Trace)
        Name of the file of each capture, and its events.

    Raises
    ------
    InvalidInputError
        A capture has no launch of a kernel with an operator.
    """
    names: dict[str | None, int] = {}
    sequences: list[CapturedSequence] = []
    tables: list[pa.Table] = []
    for file, trace in traces:
        table = _launches(trace, names)
        if not (table.op != MISSING).any():
            raise InvalidInputError(
                f"{file}: no operator launches a kernel in this capture; record operators and launches, with shapes, "
                "while graphs are captured or without graphs"
            )
        calls, row = _calls(file, trace, table)
        first = sum(each.num_rows for each in tables)
        tables.append(calls)
        for rows in _sequences(trace, table):
            call = np.where(row[rows] < 0, -1, row[rows] + first)
            grid = (table.workgroups[rows], table.workgroup_size[rows])
            sequences.append(CapturedSequence(file, int(table.rank[rows[0]]), table.name[rows], call, *grid))
    joined = concatenate("ops", tables, CALL_COLUMNS)
    return Captures(tuple(sequences), tuple(map(str, names)), joined, *_operand_rows(joined))


@dataclass(frozen=True)
class _CapturedLaunches:
    """Launches of kernels by time: those of kernels that ran, and calls whose kernels did not. Columns as `Trace`'s."""

    time: Ints
    rank: Ints
    iteration: Ints
    name: Ints
    op: Ints
    module: npt.NDArray[np.object_]
    workgroups: Ints
    workgroup_size: Ints
    ran: Bools


def _launches(trace: Trace, names: dict[str | None, int]) -> _CapturedLaunches:
    """Return the launches of a capture, those of graphs left out; `names` takes the names of the kernels."""
    launches, kernels = trace.launches, trace.kernels
    called = strings(launches, "name")
    by = lookup(integers(launches, "id"), np.arange(launches.num_rows), integers(kernels, "launch_id"))
    of_graph = np.array([*(GRAPH_LAUNCH in (name or "") for name in called), False], dtype=bool)
    ran = np.flatnonzero(~of_graph[np.where(by == MISSING, launches.num_rows, by)])
    by = by[ran]
    is_launch = np.array([_KERNEL_LAUNCH.search(name or "") is not None for name in called], dtype=bool)
    is_launch[by[by != MISSING]] = False
    waiting = np.flatnonzero(is_launch)
    name, groups, size = _from_arguments(launches, waiting, called)
    start = np.append(integers(launches, "start_ns"), MISSING)[np.where(by == MISSING, launches.num_rows, by)]
    start = np.where(start == MISSING, integers(kernels, "start_ns")[ran], start)
    modules = _modules(trace)

    def joined(column: str) -> Ints:
        return np.concatenate([integers(kernels, column)[ran], integers(launches, column)[waiting]])

    def named(texts: Sequence[str | None]) -> Ints:
        return np.array([-1 if text is None else names.setdefault(text, len(names)) for text in texts], np.int64)

    columns: dict[str, Any] = {
        "time": np.concatenate([start, integers(launches, "start_ns")[waiting]]),
        **{column: joined(column) for column in ("rank", "iteration")},
        "name": np.concatenate([named(strings(kernels, "name")[ran].tolist()), named(name)]),
        "op": joined("op_id"),
        "module": np.concatenate([modules[np.where(by == MISSING, launches.num_rows, by)], modules[waiting]]),
        "workgroups": np.concatenate([integers(kernels, "workgroups")[ran], groups]),
        "workgroup_size": np.concatenate([integers(kernels, "workgroup_size")[ran], size]),
        "ran": np.arange(len(ran) + len(waiting)) < len(ran),
    }
    order = np.lexsort((joined("id"), columns["time"], columns["rank"]))
    return _CapturedLaunches(**{column: values[order] for column, values in columns.items()})


def _from_arguments(
    launches: pa.Table, rows: Ints, called: npt.NDArray[np.object_]
) -> tuple[list[str | None], Ints, Ints]:
    """Return name, workgroups and workgroup size of the kernels of calls, as HIP writes them with the call."""
    codes, texts = encode_text(launches["args"].take(arrow_array(rows)))
    parsed = [_arguments(text) for text in texts] + [(None, [MISSING] * 6)]  # once a distinct text
    extents = np.array([grid for _, grid in parsed], dtype=np.int64)[codes].T
    in_work_items = np.array([called[row] == IN_WORK_ITEMS for row in rows.tolist()], dtype=bool)
    groups, size = workgroups(extents[:3], extents[3:], in_work_items)
    return [parsed[code][0] for code in codes.tolist()], groups, size


def _arguments(text: str) -> tuple[str | None, list[int]]:
    try:
        args = json.loads(text)
    except (ValueError, RecursionError):
        args = {}
    args = args if isinstance(args, dict) else {}
    name, axes = args.get("kernel"), [args.get("grid"), args.get("block")]
    extents = [n for axis in axes if isinstance(axis, list) and len(axis) == 3 for n in axis if _is_extent(n)]
    grid = extents if len(extents) == 6 else [int(MISSING)] * 6
    return (name if isinstance(name, str) and name else None), grid


def _is_extent(number: Any) -> bool:
    return type(number) is int and 0 < number < 1 << 31


def _modules(trace: Trace) -> npt.NDArray[np.object_]:
    """Return the innermost module around each call of the runtime, or None; a None more for kernels without a call."""
    ranges = trace.ranges
    codes, texts = encode_text(ranges["name"])
    is_module = np.array([*(str(text).startswith(_MODULE) for text in texts), False], dtype=bool)[codes]
    outer = ranges.filter(arrow_array(is_module))
    result = np.full(trace.launches.num_rows + 1, None, object)
    if outer.num_rows:
        row = lookup(integers(outer, "id"), np.arange(outer.num_rows), innermost(outer, trace.launches))
        known = np.append(row != MISSING, False)
        result[known] = strings(outer, "name")[row[known[:-1]]]
    return result


def _calls(file: str, trace: Trace, launches: _CapturedLaunches) -> tuple[pa.Table, Ints]:
    """Return the calls of the operators of a capture that launch kernels, and the row of each launch's call, or -1."""
    ops = trace.ops
    op_row = lookup(integers(ops, "id"), np.arange(ops.num_rows), launches.op)
    rows, first, call = np.unique(op_row, return_index=True, return_inverse=True)
    unknown = int(len(rows) > 0 and rows[0] == MISSING)
    rows, first = rows[unknown:], first[unknown:]
    table = ops.select([name for name in CALL_COLUMNS if name != "args"]).take(arrow_array(rows))
    facts = [{_FILE: file} | _module_fact(module) for module in launches.module[first].tolist()]
    column = SCHEMAS["ops"].field("args")
    args = pa.array([json.dumps(each, separators=(",", ":")) for each in facts], pa.string()).cast(column.type)
    return table.append_column(column, args), np.asarray(call, np.int64) - unknown


def _module_fact(module: str | None) -> dict[str, str]:
    return {} if module is None else {"module": module.removeprefix(_MODULE)}


def captured_module(args: str) -> str | None:
    """Return the module of an operator that a capture gave, from its ``args``; None for any other operator.

    Examples
    --------
    >>> captured_module('{"capture":"decode.json.gz","module":"RMSNorm_0"}')
    'RMSNorm_0'
    """
    module = json.loads(args).get("module") if args.startswith(f'{{"{_FILE}":') else None
    return module if isinstance(module, str) else None


def _sequences(trace: Trace, launches: _CapturedLaunches) -> Iterator[Ints]:
    """Yield the rows of each sequence: a stream capture, launches without kernels in a row, or an eager iteration.

    Iterations that were found by the period of kernels may be layers; such launches are one sequence.
    """
    by_period = any((text or "").startswith(KERNEL_SEQUENCE) for text in strings(trace.iterations, "found_by"))
    for rank in np.unique(launches.rank).tolist():
        rows = np.flatnonzero(launches.rank == rank)
        section = np.searchsorted(_capture_limits(trace, rank), launches.time[rows], side="right")
        waiting = ~launches.ran[rows]
        # Launches in a row have one label; those of kernels that ran do not part the launches of a capture.
        label = np.where(waiting, 2 * section, -1)
        eager = rows[~waiting]
        captured = rows[waiting]
        pieces = [*_runs(captured, label[waiting]), *_runs(eager, launches.iteration[eager] * (not by_period))]
        yield from sorted(pieces, key=lambda piece: int(piece[0]))


def _runs(rows: Ints, label: Ints) -> list[Ints]:
    return np.split(rows, np.flatnonzero(np.diff(label)) + 1) if len(rows) else []


def _capture_limits(trace: Trace, rank: int) -> Ints:
    """Return the times at which stream captures of a rank begin and end, ascending."""
    launches = trace.launches
    codes, texts = encode_text(launches["name"])
    is_limit = np.array([*(_CAPTURE_LIMIT.search(str(text)) is not None for text in texts), False], dtype=bool)
    return np.sort(integers(launches, "start_ns")[is_limit[codes] & (integers(launches, "rank") == rank)])


def _operand_rows(calls: pa.Table) -> tuple[Ints, Ints]:
    """Return the rows of the operand of each call: of products, and of other operators; -1 if unknown."""
    names, shapes = (encode_text(calls[name]) for name in ("name", "shapes"))
    kinds = np.array([*(_ROWS_OF.get(str(name).rsplit("::", 1)[-1], -1) for name in names[1]), -1])[names[0]]
    result = np.full((2, calls.num_rows), -1)
    for operand in (0, 1, -1):
        of_text = np.array([*(_rows_of_operand(str(text), operand) for text in shapes[1]), -1], dtype=np.int64)
        chosen = kinds == operand
        result[int(operand < 0), chosen] = of_text[shapes[0][chosen]]
    return result[0], result[1]


def _rows_of_operand(text: str, operand: int) -> int:
    """Return the product of all but the last extent of an operand, or the first extent of the first (-1); or -1."""
    try:
        shapes = json.loads(text)
        shape = next((s for s in shapes if isinstance(s, list) and s), []) if operand < 0 else shapes[operand]
    except (ValueError, RecursionError, IndexError, TypeError):
        return -1
    if not isinstance(shape, list) or not shape or not all(map(_is_extent, shape)):
        return -1
    extents = shape[:1] if operand < 0 else shape[:-1]
    rows = int(np.prod(np.array(extents, dtype=float)))
    return rows if extents and rows < 1 << 31 else -1
