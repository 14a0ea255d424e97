"""`Rocprofv3CsvReader`: rocprofv3's CSV files, one a kind of event; those of one process are one recording."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import BrokenFileError
from profilers.readers.common.reader import Head, Sink
from profilers.readers.rocm.delimited import blocks
from profilers.readers.rocm.records import (
    Agent,
    Agents,
    Block,
    call_kind,
    check_not_empty,
    constant,
    copy_columns,
    kernel_name,
    renamed,
    whole_numbers,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import lookup
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_TIMES = frozenset({"Start_Timestamp", "End_Timestamp"})
#: Columns that tell what the rows of a file are; the first that fits.
_SIGNS: Mapping[str, frozenset[str]] = {
    "counters": _TIMES | {"Kernel_Name", "Counter_Name", "Counter_Value"},
    "kernels": _TIMES | {"Kernel_Name"},
    "copies": _TIMES | {"Direction"},
    "calls": _TIMES | {"Domain", "Function"},
}
#: How the tool names its files, after what the user chose.
_SUFFIX = re.compile(
    r"(^|_)((kernel|memory_copy|hip|hsa|rccl|marker|rocdecode|rocjpeg|ompt)(_[a-z_]+)?_trace|(kernel|memory_copy|hip|hsa"
    r"|rccl|marker|rocdecode|rocjpeg)_trace|counter_collection)\.csv(\.\w+)?$",
    re.IGNORECASE,
)
_KERNEL_ARGS = (
    *("Kind", "Thread_Id", "Process_Id", "Kernel_Id", "Scratch_Size", "Accum_VGPR_Count", "SGPR_Count", "Grid_Size"),
    *(f"{what}_{axis}" for what in ("Grid_Size", "Workgroup_Size") for axis in "XYZ"),
)
_COPY_ARGS = ("Source_Agent_Id", "Destination_Agent_Id")


class Rocprofv3CsvReader:
    """CSV files of rocprofv3: kernels, copies, calls of HIP, HSA and RCCL, markers, kernels with counters."""

    name = "rocprofv3_csv"

    def sniff(self, head: Head) -> bool:
        """Return whether a first line names the columns of one of these files."""
        return _what(head.columns) is not None

    def group(self, file: Path) -> str:
        """Return folder and prefix, such as the process id: what the files of one process have in common.

        A file that was renamed is a recording of its own.
        """
        return str(file.parent.absolute() / _SUFFIX.sub("", file.name))

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of the files of one process, or of several merged by rocpd, to `sink`.

        Raises
        ------
        BrokenFileError
            None of them holds an event that can be used.
        """
        counts: Counter[str] = Counter()
        kinds = {file: _what(Head.of(file).columns) for file in files}
        if unknown := [file for file, what in kinds.items() if what is None]:
            raise BrokenFileError(f"{unknown[0]}: its first line has not the columns of a trace; record again")
        merged = _Processes.of({file: what or "" for file, what in kinds.items()}, sink)
        events = _Events(sink, counts, _agents(files, sink), merged, "kernels" not in kinds.values())
        for what in ("calls", "kernels", "copies", "counters"):
            for file in (file for file, own in kinds.items() if own == what):
                for block in blocks(file, sink, counts):
                    events.write(what, block)
        check_not_empty(files[0], counts)
        return TraceMeta(
            self.name,
            "rocprofv3 csv",
            tuple(file.name for file in files),
            ranks=merged.ranks,
            devices=tuple(p for rank in merged.ranks or (OWN_RANK,) for p in events.agents.properties(rank)),
            quality=Quality(counts),
        )


def _what(columns: Sequence[str]) -> str | None:
    return next((what for what, wanted in _SIGNS.items() if wanted <= set(columns)), None)


@dataclass(frozen=True)
class _Processes:
    """The processes that a merged file tells apart by ``Guid``: each with work on a GPU is a rank."""

    guids: tuple[str, ...]

    @classmethod
    def of(cls, kinds: Mapping[Path, str], sink: Sink) -> "_Processes":
        """Return the processes of files; those that name any are read twice, the first time for this."""
        found: set[str] = set()
        for file, what in kinds.items():
            if what != "calls" and "Guid" in Head.of(file).columns:
                for block in blocks(file, sink, Counter()):
                    found |= {text for text in block.texts("Guid").unique().to_pylist() if text}
        return cls(tuple(sorted(found)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them, nothing for one process alone."""
        return tuple(range(len(self.guids))) if len(self.guids) > 1 else ()

    def rank(self, block: Block) -> Ints:
        """Return the rank of each row; a process without work on a GPU belongs to the first."""
        if not self.ranks:
            return np.full(block.rows, OWN_RANK)
        return np.maximum(self._numbers(block), 0)

    def own(self, block: Block) -> Any:
        """Return whether what the process of a row calls can have caused the work of its rank."""
        return self._numbers(block) >= 0 if self.ranks else np.ones(block.rows, dtype=bool)

    def _numbers(self, block: Block) -> Ints:
        numbers = {guid: str(i) for i, guid in enumerate(self.guids)}
        found = renamed(block.texts("Guid").fill_null(""), lambda guid: numbers.get(guid, "-1"))
        return whole_numbers(found.cast("string"))


@dataclass
class _Events:
    """Writes the rows of files; of counters also the kernels, where no other file has them."""

    sink: Sink
    counts: Counter[str]
    agents: Agents
    processes: _Processes
    with_kernels: bool
    #: Rank, dispatch and id of kernels.
    known: list[tuple[Ints, Ints]] = field(default_factory=list)

    def write(self, what: str, block: Block) -> None:
        """Give the rows of a block to the sink."""
        if what == "kernels":
            self._remember(block, self._timed("kernels", self._kernels(block), block))
        elif what == "copies":
            self._timed("copies", self._copies(block), block)
        elif what == "calls":
            self._calls(block)
        else:
            self._counters(block)

    def _timed(self, kind: str, columns: dict[str, Any], block: Block) -> Ints:
        times = {"rank": self.processes.rank(block), "start_ns": block.ints("Start_Timestamp")}
        return write_timed(self.sink, kind, {**columns, **times}, block.ints("End_Timestamp"), self.counts)

    def _remember(self, block: Block, ids: Ints) -> None:
        self.known.append((_dispatches(block, self.processes), ids))

    def _kernels(self, block: Block) -> dict[str, Any]:
        axes = [f"_{axis}" for axis in "XYZ"] if "Grid_Size_X" in block.columns else [""]
        grid, size = ([block.ints(what + axis) for axis in axes] for what in ("Grid_Size", "Workgroup_Size"))
        groups, sizes = workgroups(grid, size)
        return {
            "name": renamed(block.texts("Kernel_Name"), kernel_name),
            "device": self.agents.devices(_agent(block, "Agent_Id")),
            **_lanes(block),
            "workgroups": groups,
            "workgroup_size": sizes,
            "registers": block.narrow("VGPR_Count"),
            "lds_bytes": block.ints("LDS_Block_Size"),
            "args": block.arguments(_KERNEL_ARGS),
        }

    def _copies(self, block: Block) -> dict[str, Any]:
        ends = _agent(block, "Source_Agent_Id"), _agent(block, "Destination_Agent_Id")
        known = copy_columns(block.texts("Direction"), *ends, self.agents)
        return {**known, **_lanes(block), "args": block.arguments(_COPY_ARGS)}

    def _calls(self, block: Block) -> None:
        domains = block.texts("Domain").fill_null("").dictionary_encode()
        for code, domain in enumerate(domains.dictionary.to_pylist()):
            own = block.take(np.flatnonzero(domains.indices.to_numpy() == code))
            kind, word = call_kind(domain)
            columns = {
                "name": own.texts("Function"),
                "process": own.ints("Process_Id"),
                "thread": own.ints("Thread_Id"),
                "args": own.arguments(("Domain",)),
                "api" if kind == "launches" else "category": constant(word, own.rows),
            }
            if kind == "launches":
                columns["correlation"] = np.where(self.processes.own(own), own.ints("Correlation_Id"), MISSING)
            self._timed(kind, columns, own)

    def _counters(self, block: Block) -> None:
        """Give values, one a line; a kernel comes once for each of its counters."""
        dispatch = _dispatches(block, self.processes)
        if self.with_kernels:
            _, first = np.unique(dispatch, return_index=True)
            fresh = np.sort(
                first[~np.isin(dispatch[first], np.concatenate([d for d, _ in self.known] or [dispatch[:0]]))]
            )
            new = block.take(fresh)
            self._remember(new, self._timed("kernels", self._kernels(new), new))
        values = _numbers(block, "Counter_Value")
        good = np.flatnonzero(np.isfinite(values))
        self.counts["events"] += block.rows - len(good)
        self.counts["dropped_no_value"] += block.rows - len(good)
        own = block.take(good)
        columns = {
            "name": own.texts("Counter_Name"),
            "process": own.ints("Process_Id"),
            "thread": own.ints("Thread_Id"),
            "value": values[good],
            "kernel_id": self._ids(dispatch[good]),
        }
        self._timed("counters", columns, own)

    def _ids(self, dispatch: Ints) -> Ints:
        if not self.known:
            return np.full(len(dispatch), MISSING)
        keys, ids = (np.concatenate(parts) for parts in zip(*self.known, strict=True))
        return lookup(keys, ids, dispatch)


def _dispatches(block: Block, processes: _Processes) -> Ints:
    """Return one number for each dispatch of each process."""
    dispatch = block.ints("Dispatch_Id" if "Dispatch_Id" in block.columns else "Correlation_Id")
    rank = np.maximum(processes.rank(block), 0)
    return np.where((dispatch >= 0) & (dispatch < 1 << 40), dispatch + (rank << 40), MISSING)


def _lanes(block: Block) -> dict[str, Ints]:
    """Return stream, queue and correlation; a queue stands for the stream in versions that name none."""
    stream = "Stream_Id" if "Stream_Id" in block.columns else "Queue_Id"
    found = {"stream": stream, "queue": "Queue_Id", "correlation": "Correlation_Id"}
    return {column: block.ints(name) for column, name in found.items()}


def _agent(block: Block, name: str) -> Ints:
    """Return the number of each agent, which reads ``Agent 4`` or 4."""
    plain = renamed(block.texts(name).fill_null(""), lambda text: text.strip().removeprefix("Agent "))
    return whole_numbers(plain.cast("string"))


def _numbers(block: Block, name: str) -> Any:
    texts = block.texts(name).dictionary_encode()
    return np.array([_number(text) for text in texts.dictionary.to_pylist()])[texts.indices.to_numpy()]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _agents(files: Sequence[Path], sink: Sink) -> Agents:
    """Return the agents from the file that the tool writes beside its traces, where it is there."""
    prefix = _SUFFIX.sub("", files[0].name)
    path = files[0].with_name(f"{prefix}_agent_info.csv" if prefix else "agent_info.csv")
    found: list[Agent] = []
    if path.is_file() and {"Node_Id", "Agent_Type"} <= set(Head.of(path).columns):
        for block in blocks(path, sink, Counter()):
            found += _listed(block)
    return Agents(found)


def _listed(block: Block) -> list[Agent]:
    """Return the agents of a machine, a few dozen at most on real ones."""
    name = next((name for name in ("Product_Name", "Model_Name", "Name") if name in block.columns), "Name")
    columns = (block.ints("Node_Id"), block.texts("Agent_Type"), block.texts(name), block.ints("Cu_Count"))
    rows = zip(
        *(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist() for column in columns), strict=True
    )
    return [
        Agent(node, node, kind == "GPU", text or "", units if units > 0 else None) for node, kind, text, units in rows
    ]
