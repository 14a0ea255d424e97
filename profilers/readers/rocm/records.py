"""Blocks of records of ROCm's tools: agents, launches, copies, times.

`Block`: rows of one table of a recording, whose columns may be absent, texts or numbers.

The words of ROCm's tools: domains of calls, directions of copies, names of kernels.

Grids of ROCm's tools: work-items along three axes, or their product, turned into workgroups.

Rows that have a start and an end, given to a sink; what makes no sense is counted and left out.

The agents of a machine, as rocprofv3 lists them: GPUs get their index among the GPUs, CPUs none.

What rocprofv3 says of memory copies in each of its formats, as columns.

Tables of SQLite recordings: read up to where they are damaged, joined by number, strings looked up.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profilers.errors import BrokenFileError
from profilers.readers.common.database import Database
from profilers.readers.common.numbers import TIMES_NS, plain_text, whole
from profilers.readers.common.reader import Sink
from profilers.trace.arrays import MISSING, Ints, text_array
from profilers.trace.columns import combinations, encoded, lookup
from profilers.trace.trace import DeviceProperties

_NARROW = 1 << 31
#: Texts with fewer digits are integers of 64 bits.
_DIGITS = 19


@dataclass(frozen=True)
class Block:
    """Rows as columns; one that is absent reads as missing.

    Parameters
    ----------
    columns : mapping of str to array
        An int64 array whose null is `MISSING`, or an Arrow array; equally long.

    Examples
    --------
    >>> block = Block({"Start": pa.array(["7", "x"])})
    >>> block.rows, block.ints("Start").tolist()[0], block.texts("Name").to_pylist()
    (2, 7, [None, None])
    """

    columns: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), ()))

    def ints(self, name: str) -> Ints:
        """Return a column as integers; what is none is `MISSING`."""
        return whole_numbers(self.columns[name]) if name in self.columns else np.full(self.rows, MISSING)

    def narrow(self, name: str) -> Ints:
        """Return a column as integers from 0 that fit 32 bits; what does not is `MISSING`."""
        return narrow(self.ints(name))

    def texts(self, name: str) -> pa.Array:
        """Return a column as Arrow strings."""
        if name not in self.columns:
            return pa.nulls(self.rows, pa.string())
        values = self.columns[name]
        if isinstance(values, np.ndarray):
            return text_list(None if n == MISSING else str(n) for n in values.tolist())
        return values if values.type == pa.string() else values.cast(pa.string())

    def arguments(self, names: Sequence[str]) -> pa.Array:
        """Return the values of columns as a JSON object a row, without nulls; null where there is none.

        An object is made once for each combination of values, so name no column that differs in every row.
        """
        present = [name for name in names if name in self.columns]
        if not present:
            return pa.nulls(self.rows, pa.string())
        codes, values = zip(*(_coded(self.columns[name]) for name in present), strict=True)
        combined, firsts = combinations(np.stack(codes))
        made = []
        for row in firsts.tolist():  # a loop over distinct combinations
            cells = ((name, own[int(code[row])]) for name, code, own in zip(present, codes, values, strict=True))
            found = {name: value for name, value in cells if value is not None and value != ""}
            made.append(json.dumps(found, separators=(",", ":")) if found else None)
        return encoded(combined, text_list(made))

    def take(self, rows: npt.NDArray[np.intp]) -> "Block":
        """Return the block with these rows alone."""
        index = pa.array(rows)
        return Block({n: v[rows] if isinstance(v, np.ndarray) else v.take(index) for n, v in self.columns.items()})


def _coded(values: Any) -> tuple[Ints, list[Any]]:
    """Return a code a row and the value of each code; a text that is an integer becomes one."""
    if isinstance(values, np.ndarray):
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), [None if n == MISSING else n for n in distinct.tolist()]
    found = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    own = [_plain(value) for value in found.dictionary.to_pylist()]
    codes = found.indices.cast(pa.int64()).fill_null(len(own)).to_numpy(zero_copy_only=False)
    return np.asarray(codes), [*own, None]


def _plain(value: Any) -> Any:
    """Return a value for JSON: an integer for its text, None for a number that JSON lacks."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else value
    return None if isinstance(value, float) and not isfinite(value) else value


def whole_numbers(values: Any) -> Ints:
    """Return integers from texts or numbers; `MISSING` for what is none.

    Examples
    --------
    >>> whole_numbers(pa.array(["12", " 5", "1e3", "", None, "x"])).tolist()[:3]
    [12, 5, 1000]
    """
    if isinstance(values, np.ndarray):
        return values.astype(np.int64, copy=False)
    if pa.types.is_floating(values.type):
        floats = np.asarray(values.fill_null(np.nan).to_numpy(zero_copy_only=False), dtype=float)
        good = np.isfinite(floats) & (np.abs(floats) < 2.0**53) & (floats == np.floor(floats))
        return np.where(good, np.where(good, floats, 0).astype(np.int64), MISSING)
    try:
        found = values.cast(pa.int64())
    except pa.ArrowInvalid:
        found = _some_whole(values)
    return np.asarray(found.fill_null(int(MISSING)).to_numpy(zero_copy_only=False), dtype=np.int64)


def _some_whole(values: pa.Array) -> pa.Array:
    """Return integers of texts some of which are none; a loop over the distinct ones, 1 us each."""
    own = values.dictionary_encode()
    numbers = pa.array(
        [None if text is None else whole(text.strip()) for text in own.dictionary.to_pylist()], pa.int64()
    )
    return numbers.take(own.indices)


def narrow(values: Ints) -> Ints:
    """Return integers, `MISSING` where one is negative or needs more than 32 bits."""
    return np.where((values >= 0) & (values < _NARROW), values, MISSING)


def renamed(values: pa.Array, change: Callable[[str], str | None]) -> pa.DictionaryArray:
    """Return texts, each distinct one changed once.

    Examples
    --------
    >>> renamed(pa.array(["a", None, "b", "a"]), str.upper).to_pylist()
    ['A', None, 'B', 'A']
    """
    own = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    texts = text_list(None if text is None else change(text) for text in own.dictionary.to_pylist())
    distinct = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(pc.take(distinct.indices, own.indices), distinct.dictionary)


def constant(text: str, rows: int) -> pa.DictionaryArray:
    """Return a column that holds one text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def text_list(texts: Iterable[str | None]) -> pa.Array:
    """Return texts of strangers as Arrow strings; half a surrogate pair, which UTF-8 cannot hold, is replaced."""
    plain = [None if text is None else plain_text(text) for text in texts]
    if plain and all(text is not None for text in plain):
        return text_array([text for text in plain if text is not None])
    return pa.array(plain, pa.string())


_DOMAINS = (
    ("HIP_COMPILER", "launches", "hip_compiler"),
    ("HIP", "launches", "hip_runtime"),
    ("HSA", "ranges", "hsa_api"),
    ("RCCL", "ranges", "rccl"),
    ("NCCL", "ranges", "rccl"),
    ("MARKER", "ranges", "user_annotation"),
    ("ROCTX", "ranges", "user_annotation"),
)
_DIRECTIONS = tuple(
    (re.compile(rf"{one}_?TO_?{other}", re.IGNORECASE), f"{one[0]}to{other[0]}")
    for one in ("HOST", "DEVICE")
    for other in ("HOST", "DEVICE")
)
_FILL = re.compile("fill|memset", re.IGNORECASE)
_CLONE = re.compile(r"(\s*\[clone \.kd\]|\.kd)$")


def call_kind(domain: str) -> tuple[str, str]:
    """Return the kind of event that calls of a domain are, and their ``api`` or ``category``.

    A call of HIP launches work; one of HSA is how HIP does it, and encloses nothing.

    Examples
    --------
    >>> call_kind("HIP_RUNTIME_API_EXT"), call_kind("MARKER_CORE_API"), call_kind("ROCDECODE_API")
    (('launches', 'hip_runtime'), ('ranges', 'user_annotation'), ('ranges', 'rocdecode_api'))
    """
    upper = domain.upper()
    found = ((kind, word) for start, kind, word in _DOMAINS if upper.startswith(start))
    return next(found, ("ranges", domain.lower() or "unknown"))


def copy_direction(word: str) -> str:
    """Return the direction of a copy as Kineto spells it; the word itself where it names none.

    Examples
    --------
    >>> copy_direction("MEMORY_COPY_HOST_TO_DEVICE"), copy_direction("CopyDeviceToHost"), copy_direction("FillBuffer")
    ('HtoD', 'DtoH', 'memset')
    """
    found = (short for pattern, short in _DIRECTIONS if pattern.search(word))
    return next(found, "memset" if _FILL.search(word) else word or "unknown")


def kernel_name(text: str) -> str:
    """Return the name of a kernel without quotes and without the mark of its descriptor.

    Examples
    --------
    >>> kernel_name('"copyBuffer.kd"'), kernel_name("void f<int>(int) [clone .kd]")
    ('copyBuffer', 'void f<int>(int)')
    """
    return _CLONE.sub("", text.strip().removeprefix('"').removesuffix('"'))


#: Products below are exact in float64.
_EXACT = 2.0**53


def workgroups(
    grid: Sequence[Ints], size: Sequence[Ints], in_work_items: npt.NDArray[np.bool_] | None = None
) -> tuple[Ints, Ints]:
    """Return workgroups and work-items a workgroup of each kernel, `MISSING` where an axis is not positive.

    Parameters
    ----------
    grid, size : sequence of array of int64
        By axis.
    in_work_items : array of bool, optional
        Whether a grid counts work-items; without it all do, as in all formats but RPD. The last workgroup of an
        axis need not be full.

    Examples
    --------
    >>> groups, sizes = workgroups([np.array([1000]), np.array([4])], [np.array([256]), np.array([2])])
    >>> groups.tolist(), sizes.tolist()
    ([8], [512])
    """
    known = np.logical_and.reduce([axis > 0 for axis in (*grid, *size)])
    divided = known if in_work_items is None else known & in_work_items
    groups, sizes = np.ones(len(known)), np.ones(len(known))
    for items, own in zip(grid, size, strict=True):
        groups *= np.where(divided, (items - 1) // np.where(known, own, 1) + 1, items)
        sizes *= own
    exact = known & (np.abs(groups) < _EXACT) & (np.abs(sizes) < _EXACT)
    found = [np.where(exact, np.where(exact, values, 0).astype(np.int64), MISSING) for values in (groups, sizes)]
    return found[0], narrow(found[1])


def write_timed(sink: Sink, kind: str, columns: Mapping[str, Any], end: Ints, counts: Counter[str]) -> Ints:
    """Give rows to `sink`, and return the id of each, `MISSING` where it is left out.

    Left out, and counted, are rows without a start and rows that end before they start; one without an end has a
    null duration. An end that runs far into what follows on its stream is cut when kernels are linked
    (`profilers.ingest.linking`).

    Parameters
    ----------
    sink : Sink
    kind : str
    columns : mapping
        Arrays by column; of ``start_ns``, ``dur_ns`` is made with `end`. A null ``name`` becomes "unknown".
    end : array of int64
        In ns.
    counts : Counter
    """
    start = columns["start_ns"]
    usable, ended = _is_time(start) & ((start != 0) | (end != 0)), _is_time(end)
    backwards = usable & ended & (end < start)
    kept = np.flatnonzero(usable & ~backwards)
    counts["events"] += len(start)
    counts["dropped_no_time"] += int((~usable).sum())
    counts["dropped_negative"] += int(backwards.sum())
    counts["kept"] += len(kept)
    ids = np.full(len(start), MISSING)
    if len(kept):
        all_kept = len(kept) == len(start)
        chosen = {name: values if all_kept else _taken(values, kept) for name, values in columns.items()}
        duration = np.where(ended, end, MISSING)[kept]
        duration[ended[kept]] -= start[kept][ended[kept]]
        counts["missing_duration"] += int((~ended[kept]).sum())
        ids[kept] = sink.write(kind, {**chosen, "name": _named(chosen["name"], counts), "dur_ns": duration})
    return ids


def _is_time(values: Ints) -> Any:
    return (values >= TIMES_NS.start) & (values < TIMES_NS.stop)


def _taken(values: Any, rows: Any) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def _named(names: pa.Array, counts: Counter[str]) -> pa.DictionaryArray:
    """Return names of which none is missing."""
    full = renamed(names, lambda text: text or None)
    if not full.null_count:
        return full
    counts["missing_name"] += full.null_count
    return full.cast(pa.string()).fill_null("unknown").dictionary_encode()


def skip(counts: Counter[str], rows: int, why: str = "skipped_marker") -> None:
    """Count rows that are no events."""
    counts["events"] += rows
    counts[why] += rows


def check_not_empty(path: Path, counts: Counter[str]) -> None:
    """Raise where no row was kept, and say why.

    Raises
    ------
    BrokenFileError
        Nothing was kept.
    """
    if counts["kept"]:
        return
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    found = f"none of its {counts['events']} rows can be used ({lost})" if counts["events"] else "holds no event"
    raise BrokenFileError(f"{path}: {found}; record again, and see that the tool ends before the file is copied")


@dataclass(frozen=True)
class Agent:
    """One agent.

    Parameters
    ----------
    key : int
        What events call it by.
    order : int
        Its place among the agents of the machine.
    gpu : bool
    name : str
    compute_units, memory_bytes : int, optional
    """

    key: int
    order: int
    gpu: bool
    name: str = ""
    compute_units: int | None = None
    memory_bytes: int | None = None


class Agents:
    """Which agent is which device.

    Parameters
    ----------
    found : sequence of Agent
        In any order. Where no agent is a GPU, as in recordings that list none, an agent's own number is its
        device.

    Examples
    --------
    >>> agents = Agents([Agent(7, 0, False), Agent(9, 2, True), Agent(8, 1, True)])
    >>> agents.devices(np.array([8, 9])).tolist(), (agents.devices(np.array([7])) == MISSING).tolist()
    ([0, 1], [True])
    """

    def __init__(self, found: Sequence[Agent]) -> None:
        gpus = sorted((agent for agent in found if agent.gpu), key=lambda agent: (agent.order, agent.key))
        self._gpus = list({agent.key: agent for agent in gpus}.values())
        self._index: Mapping[int, int] = {agent.key: i for i, agent in enumerate(self._gpus)}

    @property
    def known(self) -> bool:
        """Whether the recording lists its GPUs."""
        return bool(self._index)

    def devices(self, keys: Ints) -> Ints:
        """Return the device of each key, `MISSING` for what is no GPU."""
        if not self._index:
            return narrow(keys)
        distinct, which = np.unique(keys, return_inverse=True)
        return np.array([self._index.get(key, int(MISSING)) for key in distinct.tolist()], np.int64)[which]

    def of_copies(self, source: Ints, target: Ints) -> tuple[Ints, np.typing.NDArray[np.bool_]]:
        """Return the device of each copy, its source where that is a GPU, and whether it goes to another GPU."""
        one, other = self.devices(source), self.devices(target)
        peers = (one != MISSING) & (other != MISSING) & (one != other) & bool(self._index)
        return np.where(one == MISSING, other, one), peers

    def properties(self, rank: int) -> tuple[DeviceProperties, ...]:
        """Return what is known of the GPUs."""
        return tuple(
            DeviceProperties(rank, i, agent.name, agent.compute_units or None, agent.memory_bytes or None)
            for i, agent in enumerate(self._gpus)
        )


def copy_columns(words: pa.Array, source: Ints, target: Ints, agents: Agents) -> dict[str, Any]:
    """Return name, direction and device of copies.

    Parameters
    ----------
    words : array of string
        As ``MEMORY_COPY_HOST_TO_DEVICE``.
    source, target : array of int64
        Keys of the agents; where no agent is known to be a GPU, the direction tells which one is.
    agents : Agents
    """
    words = words.fill_null("")
    direction = renamed(words, copy_direction).cast(pa.string())
    device, peers = agents.of_copies(source, target)
    if not agents.known:
        to_device = np.array(direction.to_numpy(zero_copy_only=False) == "HtoD")
        device = np.where(to_device, agents.devices(target), agents.devices(source))
    between = pa.array(peers & np.array(direction.to_numpy(zero_copy_only=False) == "DtoD"))
    peer_to_peer = constant("PtoP", len(words)).cast(pa.string())
    direction = pa.compute.if_else(between, peer_to_peer, direction)
    return {"name": words, "direction": direction.dictionary_encode(), "device": np.where(device < 0, MISSING, device)}


def check_columns(path: Path, table: str, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise where a table lacks columns of the minimum.

    Raises
    ------
    BrokenFileError
        It names the file, the table and the columns.
    """
    if missing := sorted(set(wanted) - set(present)):
        raise BrokenFileError(f"{path}: table {table} lacks the columns {', '.join(missing)}; record again")


def in_blocks(database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> Iterator[Block]:
    """Yield the rows of a table up to where it is damaged, which is counted; none of a table that is absent."""
    if table not in database.tables:
        return
    try:
        for batch in database.read(table, columns):
            yield Block(batch)
    except BrokenFileError:
        counts["damaged_tables"] += 1


def whole_table(database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> dict[str, Ints]:
    """Return integer columns of all rows of a table, 8 bytes a value; empty where the table is absent."""
    parts = [[block.ints(name) for name in columns] for block in in_blocks(database, table, columns, counts)]
    found = (
        [np.concatenate(part) for part in zip(*parts, strict=True)] if parts else [np.empty(0, np.int64)] * len(columns)
    )
    return dict(zip(columns, found, strict=True))


class Join:
    """Rows found by a number, the first where a number repeats.

    Parameters
    ----------
    columns : mapping of str to array of int64
        Equally long.
    key : str
        The column that holds the number.

    Examples
    --------
    >>> join = Join({"id": np.array([7, 3]), "pid": np.array([70, 30])}, "id")
    >>> join("pid", np.array([3, 7])).tolist(), (join("pid", np.array([5])) == MISSING).tolist()
    ([30, 70], [True])
    """

    def __init__(self, columns: Mapping[str, Ints], key: str) -> None:
        order = np.argsort(columns[key], kind="stable")
        self._key = columns[key][order]
        self._columns = {name: values[order] for name, values in columns.items()}

    def __call__(self, name: str, wanted: Ints) -> Ints:
        """Return a column of the rows with these numbers, `MISSING` where there is none."""
        return lookup(self._key, self._columns[name], wanted)


class Strings:
    """A table of texts by number.

    Parameters
    ----------
    texts : mapping of int to str
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        keys = np.array(sorted(texts), dtype=np.int64)
        self._row = Join({"key": keys, "row": np.arange(len(keys))}, "key")
        self._texts = pa.array([texts[key] for key in keys.tolist()], pa.string())

    @classmethod
    def of(cls, database: Database, table: str, columns: Sequence[str], counts: Counter[str]) -> "Strings":
        """Return the texts of a table, from the first of the columns after the number that has one."""
        texts: dict[int, str] = {}
        for block in in_blocks(database, table, columns, counts):
            for name in columns[1:]:
                own = zip(block.ints(columns[0]).tolist(), block.texts(name).to_pylist(), strict=True)
                for key, text in own:  # a loop over the distinct texts, 0.2 us each
                    if text:
                        texts.setdefault(key, text)
        return cls(texts)

    def encode(self, numbers: Ints, change: Callable[[str], str | None] = str) -> pa.DictionaryArray:
        """Return the texts of numbers, each distinct one changed once; null for a number without one."""
        rows = self._row("row", numbers)
        missing = rows == MISSING
        if not len(self._texts):
            return pa.nulls(len(rows), pa.string()).dictionary_encode()
        distinct, which = np.unique(np.where(missing, 0, rows), return_inverse=True)
        index = pa.array(which.astype(np.int32), mask=missing)
        return renamed(pa.DictionaryArray.from_arrays(index, self._texts.take(pa.array(distinct))), change)
