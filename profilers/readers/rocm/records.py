"""Tables of records as ROCm's tools write them, and how their rows become events.

`Block` holds rows of one table as columns, whatever the format: CSV, JSON or SQLite. `Output` gives rows with a start
and an end to a sink. `Agents` numbers the GPUs of a machine as rocprofv3 lists them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.readers.common.json_documents import ints, listed
from profilers.readers.common.numbers import TIMES_NS, finite_number, narrow, whole_numbers
from profilers.readers.common.reader import Sink
from profilers.readers.common.references import Change, renamed, text_list
from profilers.readers.common.source import require_events
from profilers.readers.rocm import conversion
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import combinations, constant, encoded, lookup, taken
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, Quality, TraceMeta

#: Texts with fewer digits are integers of 64 bits.
_DIGITS = 19


@dataclass(frozen=True)
class Block:
    """Rows of one table as columns; an absent column reads as missing values.

    Parameters
    ----------
    columns : mapping of str to array
        Equally long columns by name: int64 arrays whose null is `MISSING`, or Arrow arrays.

    Examples
    --------
    >>> block = Block({"Start": pa.array(["7", "x"])})
    >>> block.rows, block.ints("Start").tolist()[0], block.texts("Name").to_pylist()
    (2, 7, [None, None])
    """

    columns: Mapping[str, Any]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def ints(self, name: str, change: Change | None = None) -> Ints:
        """Return a column as int64, `MISSING` where a value, as text changed by `change`, is no integer."""
        if name not in self.columns:
            return np.full(self.rows, MISSING)
        return whole_numbers(self.columns[name] if change is None else self.texts(name, change))

    def narrow(self, name: str) -> Ints:
        """Return a column as integers from 0 to 2^31 - 1, `MISSING` for any other value."""
        return narrow(self.ints(name))

    def reals(self, name: str) -> pa.Array:
        """Return a column as float64, null where a value is no finite number; 0.3 us a distinct value."""
        texts = self.texts(name).dictionary_encode()
        return pa.array(map(finite_number, texts.dictionary.to_pylist()), pa.float64()).take(texts.indices)

    def texts(self, name: str, change: Change | None = None) -> pa.Array:
        """Return a column as Arrow strings, with `change` applied once to each distinct text."""
        if name not in self.columns:
            return pa.nulls(self.rows, pa.string())
        values = self.columns[name]
        if isinstance(values, np.ndarray):
            values = text_list(None if n == MISSING else str(n) for n in values.tolist())
        return (values if change is None else renamed(values, change)).cast(pa.string())

    def arguments(self, names: Sequence[str]) -> pa.Array:
        """Return the named columns as one JSON object a row, without nulls; null for a row that has only nulls.

        Each distinct combination of values is spelled once, so name no column that differs in every row.
        """
        present = [name for name in names if name in self.columns]
        if not present:
            return pa.nulls(self.rows, pa.string())
        codes, values = zip(*(_coded(self.columns[name]) for name in present), strict=True)
        combined, firsts = combinations(np.stack(codes))
        objects = []
        for row in firsts.tolist():  # a loop over distinct combinations
            cells = {name: v[int(c[row])] for name, c, v in zip(present, codes, values, strict=True)}
            members = {name: value for name, value in cells.items() if value is not None and value != ""}
            objects.append(json.dumps(members, separators=(",", ":")) if members else None)
        return encoded(combined, text_list(objects))

    def take(self, rows: npt.NDArray[np.intp]) -> "Block":
        """Return the block with these rows alone, in this order."""
        return Block({name: taken(values, rows) for name, values in self.columns.items()})


def _coded(values: Any) -> tuple[Ints, list[Any]]:
    """Return a code for each row and the JSON value of each code; a text of digits gives an integer."""
    if isinstance(values, np.ndarray):
        numbers, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), [None if n == MISSING else n for n in numbers.tolist()]
    dictionary = values.dictionary_encode()
    distinct = [_json_value(value) for value in dictionary.dictionary.to_pylist()]
    codes = dictionary.indices.cast(pa.int64()).fill_null(len(distinct)).to_numpy(zero_copy_only=False)
    return np.asarray(codes), [*distinct, None]


def _json_value(value: Any) -> Any:
    """Return a value for JSON: an integer for its text, None for a number that JSON lacks."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and len(value) < _DIGITS else value
    return None if isinstance(value, float) and not isfinite(value) else value


class Output:
    """The events of one recording on their way to a sink, with the counts of kept and lost rows.

    Parameters
    ----------
    name : str
        Name of the format.
    files : sequence of Path
        Files of the recording.
    sink : Sink
        Takes the events.
    """

    def __init__(self, name: str, files: Sequence[Path], sink: Sink) -> None:
        self._name = name
        self._files = files
        self.sink = sink
        self.counts: Counter[str] = Counter()

    def write(self, kind: str, columns: Mapping[str, Any], end: Ints) -> Ints:
        """Give rows to the sink and return the id of each, `MISSING` for a row that is left out.

        Rows without a start, and rows that end before they start, are left out and counted. A row without an end has a
        null duration. An end that runs far into the next event of its stream is cut when kernels are linked
        (`profilers.ingest.linking`).

        Parameters
        ----------
        kind : str
            Kind of event, as in `profilers.trace.schema.KINDS`.
        columns : mapping of str to array
            Equally long columns of the schema without ``dur_ns``; a null ``name`` becomes "unknown".
        end : array of int64
            End of each row in ns.
        """
        start = columns["start_ns"]
        usable, ended = _is_time(start) & ((start != 0) | (end != 0)), _is_time(end)
        backwards = usable & ended & (end < start)
        kept = np.flatnonzero(usable & ~backwards)
        self.skip(int((~usable).sum()), "dropped_no_time")
        self.skip(int(backwards.sum()), "dropped_negative")
        ids = np.full(len(start), MISSING)
        if len(kept):
            rows = columns if len(kept) == len(start) else {name: taken(v, kept) for name, v in columns.items()}
            duration = np.where(ended, end - start, MISSING)[kept]
            self.counts["missing_duration"] += int((~ended[kept]).sum())
            ids[kept] = self.write_rows(kind, {**rows, "name": self._named(rows["name"]), "dur_ns": duration})
        return ids

    def write_rows(self, kind: str, columns: Mapping[str, Any]) -> Ints:
        """Give rows to the sink as they are, and return the id of each."""
        ids = self.sink.write(kind, columns)
        self.skip(len(ids), "kept")
        return ids

    def _named(self, names: pa.Array) -> pa.DictionaryArray:
        """Return names with "unknown" for each missing or empty name; these are counted."""
        names = renamed(names, lambda text: text or None)
        self.counts["missing_name"] += names.null_count
        return names.cast(pa.string()).fill_null("unknown").dictionary_encode() if names.null_count else names

    def write_calls(self, domain: str, columns: Mapping[str, Any], end: Ints) -> None:
        """Give calls of one domain to the sink, as launches or as ranges.

        Parameters
        ----------
        domain : str
            Domain of the calls, as for `call_kind`.
        columns : mapping of str to array
            Columns as for `write`. A range has no ``correlation``, so this column is left out.
        end : array of int64
            End of each call in ns.
        """
        kind, category = conversion.call_kind(domain)
        word = {"api" if kind == "launches" else "category": constant(category, len(end))}
        kept = {name: values for name, values in columns.items() if kind == "launches" or name != "correlation"}
        self.write(kind, kept | word, end)

    def skip(self, rows: int, why: str) -> None:
        """Count rows of the recording under `why`, as in `profilers.trace.trace.Quality`."""
        self.counts["events"] += rows
        self.counts[why] += rows

    def measured(self, block: Block, name: str) -> Block:
        """Return the rows whose value in the column `name` is a number, as float64; the others are counted."""
        values = block.reals(name)
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        self.skip(block.rows - len(rows), "dropped_no_value")
        return Block({**block.columns, name: values}).take(rows)

    def meta(self, version: str, *, ranks: tuple[int, ...] = (), devices: Iterable[DeviceProperties] = ()) -> TraceMeta:
        """Return the metadata of the recording after its last event.

        Parameters
        ----------
        version : str
            Version of the format.
        ranks : tuple of int
            All ranks; empty for a single process.
        devices : iterable of DeviceProperties
            The GPUs of each rank.

        Raises
        ------
        BrokenFileError
            No event was kept.
        """
        require_events(self._files[0], self.counts)
        return TraceMeta(
            self._name,
            version,
            tuple(file.name for file in self._files),
            ranks=ranks,
            devices=tuple(devices),
            quality=Quality(self.counts),
        )


def _is_time(values: Ints) -> Any:
    return (values >= TIMES_NS.start) & (values < TIMES_NS.stop)


#: A GPU as rocprofv3 lists it: its position among the agents of the machine, the number or handle by which events name
#: it, and its properties.
Gpu = tuple[int, int, DeviceProperties]


def gpu_properties(names: Iterable[str | None], properties: Mapping[str, Any]) -> DeviceProperties:
    """Return the properties of a GPU from the JSON that rocprofv3 writes of it.

    Parameters
    ----------
    names : iterable of str or None
        Candidates for the name; the first that is not empty counts.
    properties : mapping of str to Any
        JSON object with ``cu_count`` and ``mem_banks``.
    """
    units = int(ints([properties], "cu_count")[0])
    banks = ints(listed(properties.get("mem_banks")), "size_in_bytes").tolist()
    name = next((name for name in names if name), "")
    return DeviceProperties(OWN_RANK, 0, name, units if units > 0 else None, max(banks, default=0) or None)


class Agents:
    """The agents of a machine, CPUs and GPUs; numbers the GPUs as devices.

    Parameters
    ----------
    gpus : iterable of Gpu
        GPUs in any order. If there is none, as in recordings that list no agents, the key of an agent is its device.

    Examples
    --------
    >>> gpu = gpu_properties(["MI300X"], {"cu_count": 304})
    >>> agents = Agents([(2, 9, gpu), (1, 8, gpu)])
    >>> agents.devices(np.array([8, 9])).tolist(), (agents.devices(np.array([7])) == MISSING).tolist()
    ([0, 1], [True])
    """

    def __init__(self, gpus: Iterable[Gpu]) -> None:
        self._gpus = {key: properties for _, key, properties in sorted(gpus, key=lambda gpu: gpu[:2])}

    def devices(self, keys: Ints) -> Ints:
        """Return the device of each agent key, `MISSING` for a CPU."""
        if not self._gpus:
            return narrow(keys)
        return lookup(np.array([*self._gpus]), np.arange(len(self._gpus)), keys)

    def copies(self, words: pa.Array, source: Ints, target: Ints) -> dict[str, Any]:
        """Return the columns ``name``, ``direction`` and ``device`` of copies that rocprofv3 recorded.

        The device is the source if that is a GPU, else the target. If the recording lists no GPU, the direction tells
        whether source or target is the device.

        Parameters
        ----------
        words : array of string
            Directions in rocprofv3's spelling, such as ``MEMORY_COPY_HOST_TO_DEVICE``.
        source, target : array of int64
            Keys of the agents that a copy reads and writes.
        """
        words = words.fill_null("")
        directions = renamed(words, conversion.copy_direction).cast(pa.string())
        source_gpu, target_gpu = self.devices(source), self.devices(target)
        peers = (source_gpu != target_gpu) & (source_gpu != MISSING) & (target_gpu != MISSING) & bool(self._gpus)
        is_target = source_gpu == MISSING if self._gpus else conversion.is_text(directions, "HtoD")
        return {
            "name": words,
            "direction": conversion.with_peers(directions, peers),
            "device": np.where(is_target, target_gpu, source_gpu),
        }

    def properties(self, rank: int) -> tuple[DeviceProperties, ...]:
        """Return name, compute units and memory of every GPU, as devices of `rank`."""
        return tuple(replace(gpu, rank=rank, device=i) for i, gpu in enumerate(self._gpus.values()))


def lanes(stream: Ints, queue: Ints, correlation: Ints) -> dict[str, Ints]:
    """Return the columns ``stream``, ``queue`` and ``correlation``.

    In versions of rocprofv3 that name no stream, the queue stands for it.
    """
    return {"stream": queue if (stream == MISSING).all() else stream, "queue": queue, "correlation": correlation}
