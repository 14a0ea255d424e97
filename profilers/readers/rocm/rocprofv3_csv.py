"""`Rocprofv3CsvReader`: CSV files of rocprofv3, one for each kind of event.

The tool names the files of one process by a common prefix, and they are read together as one recording. Agents come
from the file ``agent_info.csv`` beside them. A file that rocpd merged holds several processes, told apart by their
``Guid``.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profilers.errors import BrokenFileError
from profilers.readers.common.csv_rows import blocks
from profilers.readers.common.numbers import workgroups
from profilers.readers.common.reader import Head, Sink
from profilers.readers.common.recording import Join, Output, Ranks, RowBlock, renamed
from profilers.readers.rocm import conversion
from profilers.readers.rocm.conversion import Agents, Gpu, write_calls
from profilers.trace.arrays import MISSING, Ints
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import DeviceProperties, TraceMeta

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
    r"(^|_)((kernel|memory_copy|hip|hsa|rccl|marker|rocdecode|rocjpeg|ompt)(_[a-z_]+)?_trace|counter_collection)"
    r"\.csv(\.\w+)?$",
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
        out = Output(self.name, files, sink)
        contents = {file: _content(Head.of(file).columns) for file in files}
        if unknown := [file for file, content in contents.items() if content is None]:
            raise BrokenFileError(f"{unknown[0]}: its first line has not the columns of a trace; record again")
        guids = _guids((file for file, content in contents.items() if content != "calls"), sink)
        agents = _agents(files, sink)
        events = _CsvEvents(out, agents, guids, "kernels" not in contents.values())
        for content, write in events.writers.items():
            for file in (file for file in contents if contents[file] == content):
                for block in blocks(file, sink, out.counts):
                    write(block)
        ranks = events.ranks.numbers
        devices = [gpu for rank in ranks or (OWN_RANK,) for gpu in agents.properties(rank)]
        return out.meta("rocprofv3 csv", ranks=ranks, devices=devices)


def _content(columns: Sequence[str]) -> str | None:
    """Return the content of a file with this header, a key of `_SIGNS`, or None."""
    return next((content for content, sign in _SIGNS.items() if sign <= set(columns)), None)


def _guids(files: Iterable[Path], sink: Sink) -> list[str]:
    """Return the ``Guid`` of each process in files of device work; files that name any are read twice, first for this.

    Such files are merged; each process in them is a rank.
    """
    guids: set[str] = set()
    for file in files:
        if "Guid" in Head.of(file).columns:
            for block in blocks(file, sink, Counter()):
                guids |= {text for text in block.texts("Guid").unique().to_pylist() if text}
    return sorted(guids)


class _CsvEvents:
    """Writes the rows of files; kernels come from the file of counters if no other file has them."""

    def __init__(self, out: Output, agents: Agents, guids: Sequence[str], with_kernels: bool) -> None:
        self._out = out
        self._agents = agents
        self._number_of = {guid: str(number) for number, guid in enumerate(guids)}
        self.ranks = Ranks({number: number for number in range(len(guids))}, len(guids))
        self._with_kernels = with_kernels
        #: Dispatch and id of the kernels of each block.
        self._dispatched: list[tuple[Ints, Ints]] = []
        #: Function for the rows of each kind of file, a key of `_SIGNS`, in the order of reading.
        self.writers: Mapping[str, Callable[[RowBlock], None]] = {
            "calls": self._calls,
            "kernels": self._write_kernels,
            "copies": self._copies,
            "counters": self._counters,
        }

    def _process(self, block: RowBlock) -> Ints:
        """Return the number of each row's process, -1 for one without device work."""
        return block.ints("Guid", lambda guid: self._number_of.get(guid, "-1"))

    def _rank_and_start(self, block: RowBlock) -> dict[str, Ints]:
        return {"rank": self.ranks.of(self._process(block)), "start_ns": block.ints("Start_Timestamp")}

    def _dispatches(self, block: RowBlock) -> Ints:
        """Return a number for each row that is distinct for each dispatch of each process."""
        dispatch = block.ints("Dispatch_Id" if "Dispatch_Id" in block.columns else "Correlation_Id")
        rank = np.maximum(self.ranks.of(self._process(block)), 0)
        return np.where((dispatch >= 0) & (dispatch < 1 << 40), dispatch + (rank << 40), MISSING)

    def _write_kernels(self, block: RowBlock) -> None:
        ids = self._out.write("kernels", self._kernels(block), block.ints("End_Timestamp"))
        self._dispatched.append((self._dispatches(block), ids))

    def _kernels(self, block: RowBlock) -> dict[str, Any]:
        axes = [f"_{axis}" for axis in "XYZ"] if "Grid_Size_X" in block.columns else [""]
        grid, size = ([block.ints(extent + axis) for axis in axes] for extent in ("Grid_Size", "Workgroup_Size"))
        groups, sizes = workgroups(grid, size)
        return {
            **self._rank_and_start(block),
            "name": renamed(block.texts("Kernel_Name"), conversion.kernel_name),
            "device": self._agents.devices(block.ints("Agent_Id", _agent)),
            **_lanes(block),
            "workgroups": groups,
            "workgroup_size": sizes,
            "registers": block.narrow("VGPR_Count"),
            "lds_bytes": block.ints("LDS_Block_Size"),
            "args": block.arguments(_KERNEL_ARGS),
        }

    def _copies(self, block: RowBlock) -> None:
        source, target = block.ints("Source_Agent_Id", _agent), block.ints("Destination_Agent_Id", _agent)
        columns = {
            **self._rank_and_start(block),
            **self._agents.copies(block.texts("Direction"), source, target),
            **_lanes(block),
            "args": block.arguments(_COPY_ARGS),
        }
        self._out.write("copies", columns, block.ints("End_Timestamp"))

    def _calls(self, block: RowBlock) -> None:
        domains = block.texts("Domain").fill_null("").dictionary_encode()
        for code, domain in enumerate(domains.dictionary.to_pylist()):
            calls = block.take(np.flatnonzero(domains.indices.to_numpy() == code))
            correlation = calls.ints("Correlation_Id")
            if self.ranks.numbers:
                correlation = np.where(np.isin(self._process(calls), self.ranks.processes), correlation, MISSING)
            columns = {
                **self._rank_and_start(calls),
                "name": calls.texts("Function"),
                "process": calls.ints("Process_Id"),
                "thread": calls.ints("Thread_Id"),
                "args": calls.arguments(("Domain",)),
                "correlation": correlation,
            }
            write_calls(self._out, domain, columns, calls.ints("End_Timestamp"))

    def _counters(self, block: RowBlock) -> None:
        """Write counters, one value a row; a kernel is repeated for each of its counters."""
        if self._with_kernels:
            dispatch, first = np.unique(self._dispatches(block), return_index=True)
            is_written = np.isin(dispatch, self._written_kernels().column("dispatch"))
            self._write_kernels(block.take(np.sort(first[~is_written])))
        counters = self._out.measured(block, "Counter_Value")
        columns = {
            **self._rank_and_start(counters),
            "name": counters.texts("Counter_Name"),
            "process": counters.ints("Process_Id"),
            "thread": counters.ints("Thread_Id"),
            "value": counters.columns["Counter_Value"],
            "kernel_id": self._written_kernels()("id", self._dispatches(counters)),
        }
        self._out.write("counters", columns, counters.ints("End_Timestamp"))

    def _written_kernels(self) -> Join:
        return Join(("dispatch", "id"), self._dispatched)


def _lanes(block: RowBlock) -> dict[str, Ints]:
    """Return stream, queue and correlation; in versions that name no stream, the queue stands for it."""
    stream = "Stream_Id" if "Stream_Id" in block.columns else "Queue_Id"
    names = {"stream": stream, "queue": "Queue_Id", "correlation": "Correlation_Id"}
    return {column: block.ints(name) for column, name in names.items()}


def _agent(text: str) -> str:
    """Return the number of an agent, which reads ``Agent 4`` or 4."""
    return text.strip().removeprefix("Agent ")


def _agents(files: Sequence[Path], sink: Sink) -> Agents:
    """Return the agents that the file ``agent_info.csv`` beside the traces lists; none if it is absent."""
    prefix = _SUFFIX.sub("", files[0].name)
    path = files[0].with_name(f"{prefix}_agent_info.csv" if prefix else "agent_info.csv")
    gpus: list[Gpu] = []
    if path.is_file() and {"Node_Id", "Agent_Type"} <= set(Head.of(path).columns):
        for block in blocks(path, sink, Counter()):
            name = next((name for name in ("Product_Name", "Model_Name", "Name") if name in block.columns), "Name")
            numbers = (block.ints(column).tolist() for column in ("Node_Id", "Cu_Count"))
            texts = (block.texts(column).to_pylist() for column in ("Agent_Type", name))
            for node, units, kind, text in zip(*numbers, *texts, strict=True):  # a few dozen
                if kind == "GPU":
                    gpus.append((node, node, DeviceProperties(OWN_RANK, 0, text or "", units if units > 0 else None)))
    return Agents(gpus)
