"""`Rocprofv3CsvReader`: CSV files of rocprofv3, one for each kind of event.

The tool names the files of one process by a common prefix, and they are read together as one recording. Agents come
from the file ``agent_info.csv`` beside them. A file that rocpd merged holds several processes, told apart by their
``Guid``.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import BrokenFileError
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.source import require_events
from profilers.readers.rocm.delimited import blocks
from profilers.readers.rocm.records import (
    Agent,
    Agents,
    Block,
    call_kind,
    copy_columns,
    kernel_name,
    measured_rows,
    renamed,
    whole_numbers,
    workgroups,
    write_timed,
)
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.columns import constant, lookup
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_TIMES = frozenset({"Start_Timestamp", "End_Timestamp"})
#: Content of a file by the columns that its header must have; the first that fits counts.
_SIGNS: Mapping[str, frozenset[str]] = {
    "counters": _TIMES | {"Kernel_Name", "Counter_Name", "Counter_Value"},
    "kernels": _TIMES | {"Kernel_Name"},
    "copies": _TIMES | {"Direction"},
    "calls": _TIMES | {"Domain", "Function"},
}
#: End of a file's name, after the prefix that the user chose.
_SUFFIX = re.compile(
    r"(^|_)((kernel|memory_copy|hip|hsa|rccl|marker|rocdecode|rocjpeg|ompt)(_[a-z_]+)?_trace|(kernel|memory_copy|hip|hsa"
    r"|rccl|marker|rocdecode|rocjpeg)_trace|counter_collection)\.csv(\.\w+)?$",
    re.IGNORECASE,
)
_KERNEL_ARGS = (
    *("Kind", "Thread_Id", "Process_Id", "Kernel_Id", "Scratch_Size", "Accum_VGPR_Count", "SGPR_Count", "Grid_Size"),
    *(f"{extent}_{axis}" for extent in ("Grid_Size", "Workgroup_Size") for axis in "XYZ"),
)
_COPY_ARGS = ("Source_Agent_Id", "Destination_Agent_Id")


class Rocprofv3CsvReader:
    """CSV files of rocprofv3: kernels, copies, calls of HIP, HSA and RCCL, markers, kernels with counters."""

    name = "rocprofv3_csv"

    def sniff(self, head: Head) -> bool:
        """Return whether the first line of a file names the columns of a trace of rocprofv3."""
        return _content(head.columns) is not None

    def group(self, file: Path) -> str:
        """Return folder and prefix of a file, which the files of one process share.

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
        contents = {file: _content(Head.of(file).columns) for file in files}
        if unknown := [file for file, content in contents.items() if content is None]:
            raise BrokenFileError(f"{unknown[0]}: its first line has not the columns of a trace; record again")
        processes = _Processes.of({file: content or "" for file, content in contents.items()}, sink)
        events = _Events(sink, counts, _agents(files, sink), processes, "kernels" not in contents.values())
        for content in ("calls", "kernels", "copies", "counters"):
            for file in (file for file in contents if contents[file] == content):
                for block in blocks(file, sink, counts):
                    events.write(content, block)
        require_events(files[0], counts)
        return TraceMeta(
            self.name,
            "rocprofv3 csv",
            tuple(file.name for file in files),
            ranks=processes.ranks,
            devices=tuple(gpu for rank in processes.ranks or (OWN_RANK,) for gpu in events.agents.properties(rank)),
            quality=Quality(counts),
        )


def _content(columns: Sequence[str]) -> str | None:
    """Return the content of a file with this header, a key of `_SIGNS`, or None."""
    return next((content for content, sign in _SIGNS.items() if sign <= set(columns)), None)


@dataclass(frozen=True)
class _Processes:
    """The processes of merged files, told apart by ``Guid``; each process with device work is a rank."""

    guids: tuple[str, ...]

    @classmethod
    def of(cls, contents: Mapping[Path, str], sink: Sink) -> "_Processes":
        """Return the processes of files; files that name any are read twice, first for this."""
        guids: set[str] = set()
        for file, content in contents.items():
            if content != "calls" and "Guid" in Head.of(file).columns:
                for block in blocks(file, sink, Counter()):
                    guids |= {text for text in block.texts("Guid").unique().to_pylist() if text}
        return cls(tuple(sorted(guids)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks; empty for a single process."""
        return tuple(range(len(self.guids))) if len(self.guids) > 1 else ()

    def rank(self, block: Block) -> Ints:
        """Return the rank of each row; a process without device work belongs to the first rank."""
        if not self.ranks:
            return np.full(block.rows, OWN_RANK)
        return np.maximum(self._numbers(block), 0)

    def launches_work(self, block: Block) -> Any:
        """Return whether calls of a row's process can have launched the device work of its rank."""
        return self._numbers(block) >= 0 if self.ranks else np.ones(block.rows, dtype=bool)

    def _numbers(self, block: Block) -> Ints:
        numbers = {guid: str(i) for i, guid in enumerate(self.guids)}
        texts = renamed(block.texts("Guid").fill_null(""), lambda guid: numbers.get(guid, "-1"))
        return whole_numbers(texts.cast("string"))


@dataclass
class _Events:
    """Writes the rows of files; kernels come from the file of counters if no other file has them."""

    sink: Sink
    counts: Counter[str]
    agents: Agents
    processes: _Processes
    with_kernels: bool
    #: Dispatch and id of the kernels of each block.
    dispatched: list[tuple[Ints, Ints]] = field(default_factory=list)

    def write(self, content: str, block: Block) -> None:
        """Give the rows of a block to the sink; `content` is a key of `_SIGNS`."""
        if content == "kernels":
            self._write_kernels(block)
        elif content == "copies":
            self._timed("copies", self._copies(block), block)
        elif content == "calls":
            self._calls(block)
        else:
            self._counters(block)

    def _timed(self, kind: str, columns: dict[str, Any], block: Block) -> Ints:
        times = {"rank": self.processes.rank(block), "start_ns": block.ints("Start_Timestamp")}
        return write_timed(self.sink, kind, {**columns, **times}, block.ints("End_Timestamp"), self.counts)

    def _write_kernels(self, block: Block) -> None:
        ids = self._timed("kernels", self._kernels(block), block)
        self.dispatched.append((_dispatches(block, self.processes), ids))

    def _kernels(self, block: Block) -> dict[str, Any]:
        axes = [f"_{axis}" for axis in "XYZ"] if "Grid_Size_X" in block.columns else [""]
        grid, size = ([block.ints(extent + axis) for axis in axes] for extent in ("Grid_Size", "Workgroup_Size"))
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
        columns = copy_columns(block.texts("Direction"), *ends, self.agents)
        return {**columns, **_lanes(block), "args": block.arguments(_COPY_ARGS)}

    def _calls(self, block: Block) -> None:
        domains = block.texts("Domain").fill_null("").dictionary_encode()
        for code, domain in enumerate(domains.dictionary.to_pylist()):
            calls = block.take(np.flatnonzero(domains.indices.to_numpy() == code))
            kind, category = call_kind(domain)
            columns = {
                "name": calls.texts("Function"),
                "process": calls.ints("Process_Id"),
                "thread": calls.ints("Thread_Id"),
                "args": calls.arguments(("Domain",)),
                "api" if kind == "launches" else "category": constant(category, calls.rows),
            }
            if kind == "launches":
                launching = self.processes.launches_work(calls)
                columns["correlation"] = np.where(launching, calls.ints("Correlation_Id"), MISSING)
            self._timed(kind, columns, calls)

    def _counters(self, block: Block) -> None:
        """Give counters to the sink, one value a row; a kernel is repeated for each of its counters."""
        dispatch = _dispatches(block, self.processes)
        if self.with_kernels:
            _, first = np.unique(dispatch, return_index=True)
            written = np.concatenate([keys for keys, _ in self.dispatched] or [dispatch[:0]])
            self._write_kernels(block.take(np.sort(first[~np.isin(dispatch[first], written)])))
        values = block.reals("Counter_Value")
        rows = measured_rows(values, self.counts)
        counters = block.take(rows)
        columns = {
            "name": counters.texts("Counter_Name"),
            "process": counters.ints("Process_Id"),
            "thread": counters.ints("Thread_Id"),
            "value": values.take(pa.array(rows)),
            "kernel_id": self._kernel_ids(dispatch[rows]),
        }
        self._timed("counters", columns, counters)

    def _kernel_ids(self, dispatch: Ints) -> Ints:
        if not self.dispatched:
            return np.full(len(dispatch), MISSING)
        keys, ids = (np.concatenate(arrays) for arrays in zip(*self.dispatched, strict=True))
        return lookup(keys, ids, dispatch)


def _dispatches(block: Block, processes: _Processes) -> Ints:
    """Return a number for each row that is distinct for each dispatch of each process."""
    dispatch = block.ints("Dispatch_Id" if "Dispatch_Id" in block.columns else "Correlation_Id")
    rank = np.maximum(processes.rank(block), 0)
    return np.where((dispatch >= 0) & (dispatch < 1 << 40), dispatch + (rank << 40), MISSING)


def _lanes(block: Block) -> dict[str, Ints]:
    """Return stream, queue and correlation; in versions that name no stream, the queue stands for it."""
    stream = "Stream_Id" if "Stream_Id" in block.columns else "Queue_Id"
    names = {"stream": stream, "queue": "Queue_Id", "correlation": "Correlation_Id"}
    return {column: block.ints(name) for column, name in names.items()}


def _agent(block: Block, name: str) -> Ints:
    """Return the number of each agent, which reads ``Agent 4`` or 4."""
    plain = renamed(block.texts(name).fill_null(""), lambda text: text.strip().removeprefix("Agent "))
    return whole_numbers(plain.cast("string"))


def _agents(files: Sequence[Path], sink: Sink) -> Agents:
    """Return the agents that the file ``agent_info.csv`` beside the traces lists; none if it is absent."""
    prefix = _SUFFIX.sub("", files[0].name)
    path = files[0].with_name(f"{prefix}_agent_info.csv" if prefix else "agent_info.csv")
    agents: list[Agent] = []
    if path.is_file() and {"Node_Id", "Agent_Type"} <= set(Head.of(path).columns):
        for block in blocks(path, sink, Counter()):
            agents += _listed_agents(block)
    return Agents(agents)


def _listed_agents(block: Block) -> list[Agent]:
    """Return the agents that the rows of ``agent_info.csv`` list; a Python loop over a few dozen."""
    name = next((name for name in ("Product_Name", "Model_Name", "Name") if name in block.columns), "Name")
    numbers = (block.ints(column).tolist() for column in ("Node_Id", "Cu_Count"))
    texts = (block.texts(column).to_pylist() for column in ("Agent_Type", name))
    return [
        Agent(node, node, kind == "GPU", text or "", units if units > 0 else None)
        for node, units, kind, text in zip(*numbers, *texts, strict=True)
    ]
