"""rocprofv3 in CSV: one file a kind of event, all of one folder and prefix one recording."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.amd.delimited import blocks
from profilers.amd.rows import api_kind, copy_direction, divided, put_rows, texts, whole_numbers
from profilers.arrays import MISSING, Ints
from profilers.errors import BrokenFileError
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.trace import TraceMeta

__all__ = ["Rocprofv3CsvReader"]

_TIMES = {"Start_Timestamp", "End_Timestamp"}
_KERNELS = _TIMES | {"Kernel_Name", "Agent_Id"}
_COUNTERS = _KERNELS | {"Dispatch_Id", "Counter_Name", "Counter_Value"}
_COPIES = _TIMES | {"Direction"}
_CALLS = _TIMES | {"Domain", "Function"}
_SUFFIX = re.compile(r"_?(?:[a-z]+_)*(?:trace|collection|bindings|csv)\.csv(?:\.\w+)?$", re.IGNORECASE)

Block = Mapping[str, pa.Array]


class Rocprofv3CsvReader:
    """rocprofv3 CSV sets: kernel, memory copy, HIP, HSA, RCCL, marker and counter files of one run."""

    name = "rocprofv3_csv"

    def sniff(self, head: Head) -> bool:
        """Return whether a CSV file has the columns of one of the kinds."""
        columns = set(head.columns)
        return any(wanted <= columns for wanted in (_KERNELS, _COPIES, _CALLS))

    def group(self, file: Path) -> str:
        """Return folder and prefix: the files of one process."""
        return f"{file.parent.absolute()}/{_SUFFIX.sub('', file.name)}"

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one set of files to `sink`.

        Raises
        ------
        BrokenFileError
            None of them holds an event that can be used.
        """
        counts: Counter[str] = Counter()
        columns = {file: set(Head.of(file).columns) for file in files}
        traced = any(own >= _KERNELS and not own >= _COUNTERS for own in columns.values())
        for file, own in columns.items():
            if own >= _COUNTERS:
                _counters(file, sink, counts, with_kernels=not traced)
                continue
            write = _kernels if own >= _KERNELS else _copies if own >= _COPIES else _calls
            for block in blocks(file, sink, counts):
                write(block, sink, counts)
        if not counts["kept"]:
            raise BrokenFileError(f"{files[0]}: no event that can be used ({counts['events']} lines looked at)")
        names = tuple(file.name for file in files)
        return TraceMeta("rocprofv3_csv", sources=names, quality=Quality({k: n for k, n in counts.items() if n}))


def _whole(block: Block, name: str) -> Ints:
    return whole_numbers(block[name]) if name in block else np.full(len(next(iter(block.values()))), MISSING)


def _agent(block: Block, name: str) -> Ints:
    """Return the number of an agent, which reads 4 or ``Agent 4``."""
    if name not in block:
        return _whole(block, name)
    return whole_numbers(pc.replace_substring_regex(block[name], r"^\s*Agent\s+", ""))


def _work(block: Block) -> dict[str, Any]:
    """Return the columns of kernels, whose grids are in work-items."""
    grid, size = (
        np.stack([_whole(block, f"{name}_{axis}") for axis in "XYZ"]) for name in ("Grid_Size", "Workgroup_Size")
    )
    if "Grid_Size_X" not in block:
        groups, sizes = (
            divided(_whole(block, "Grid_Size"), _whole(block, "Workgroup_Size")),
            _whole(block, "Workgroup_Size"),
        )
    else:
        each = divided(grid, size)
        known = (each != MISSING).all(axis=0) & (
            np.prod(np.where(each == MISSING, 1, each).astype(float), axis=0) < 2.0**62
        )
        groups = np.where(known, np.prod(each, axis=0, where=each != MISSING), MISSING)
        sizes = np.where(known, np.prod(size, axis=0, where=size != MISSING), MISSING)
    return {
        "name": texts(block["Kernel_Name"]),
        "start_ns": _whole(block, "Start_Timestamp"),
        "device": _small(_agent(block, "Agent_Id")),
        "stream": _whole(block, "Stream_Id"),
        "queue": _whole(block, "Queue_Id"),
        "correlation": _whole(block, "Correlation_Id"),
        "workgroups": groups,
        "workgroup_size": _small(sizes),
        "registers": _small(_whole(block, "VGPR_Count")),
        "lds_bytes": _whole(block, "LDS_Block_Size"),
    }


def _small(values: Ints) -> Ints:
    """Return values without those that do not fit 32 bits."""
    return np.where((values >= 0) & (values < 1 << 31), values, MISSING)


def _kernels(block: Block, sink: Sink, counts: Counter[str]) -> None:
    put_rows(sink, "kernels", _work(block), _whole(block, "End_Timestamp"), counts)


def _copies(block: Block, sink: Sink, counts: Counter[str]) -> None:
    words = {word: copy_direction(word) for word in pc.unique(block["Direction"]).to_pylist()}
    source, target = _agent(block, "Source_Agent_Id"), _agent(block, "Destination_Agent_Id")
    incoming = np.array([words[word] == "HtoD" for word in block["Direction"].to_pylist()])
    columns = {
        "name": texts(block["Direction"]),
        "direction": texts(block["Direction"], words),
        "start_ns": _whole(block, "Start_Timestamp"),
        "device": _small(np.where(incoming, target, source)),
        "stream": _whole(block, "Stream_Id"),
        "correlation": _whole(block, "Correlation_Id"),
    }
    put_rows(sink, "copies", columns, _whole(block, "End_Timestamp"), counts)


def _calls(block: Block, sink: Sink, counts: Counter[str]) -> None:
    for domain in pc.unique(block["Domain"]).to_pylist():
        chosen = pc.equal(block["Domain"], domain)
        own = {name: values.filter(chosen) for name, values in block.items()}
        kind, category = api_kind(domain)
        columns: dict[str, Any] = {
            "name": texts(own["Function"]),
            "start_ns": _whole(own, "Start_Timestamp"),
            "process": _whole(own, "Process_Id"),
            "thread": _whole(own, "Thread_Id"),
            "api" if kind == "launches" else "category": [category] * len(own["Domain"]),
        }
        if kind == "launches":
            columns["correlation"] = _whole(own, "Correlation_Id")
        put_rows(sink, kind, columns, _whole(own, "End_Timestamp"), counts)


def _counters(path: Path, sink: Sink, counts: Counter[str], *, with_kernels: bool) -> None:
    """Write a kernel for each dispatch, unless a kernel file has them, and a row for each counter of each."""
    for block in blocks(path, sink, counts):
        dispatch = _whole(block, "Dispatch_Id")
        _, first, which = np.unique(dispatch, return_index=True, return_inverse=True)
        kernel = np.full(len(first), MISSING)
        if with_kernels:
            own = {name: values.take(pa.array(first)) for name, values in block.items()}
            kernel = put_rows(sink, "kernels", _work(own), _whole(own, "End_Timestamp"), counts)
        columns = {
            "name": texts(block["Counter_Name"]),
            "start_ns": _whole(block, "Start_Timestamp"),
            "value": pc.if_else(pc.match_substring_regex(block["Counter_Value"], r"^\s*-?[0-9.]{1,30}\s*$"),
                                block["Counter_Value"], None).cast(pa.float64()),
            "kernel_id": kernel[which],
            "category": ["counter"] * len(dispatch),
        }  # fmt: skip
        put_rows(sink, "counters", columns, _whole(block, "End_Timestamp"), counts)
