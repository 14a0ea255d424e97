"""rocpd: the SQLite files of rocprofv3 since ROCm 7, whose tables end in the id of the process that wrote them.

The plain-named views over those tables are never read. ``correlation_id`` is 0 in the events seen, so a dispatch
finds its call by the event's ``stack_id``. (Written from the published schema; no file under a free licence was
found to test it on.)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.amd.rows import api_kind, copy_direction, divided, put_rows, whole_numbers
from profilers.amd.rpd import columns_of, named
from profilers.arrays import MISSING, Ints
from profilers.database import Database, open_database
from profilers.errors import BrokenFileError
from profilers.linking import lookup
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.schema import OWN_RANK
from profilers.trace import DeviceProperties, TraceMeta

__all__ = ["RocpdReader"]

_DISPATCH = "rocpd_kernel_dispatch"
_SIZES = tuple(f"{name}_size_{axis}" for name in ("grid", "workgroup") for axis in "xyz")


class RocpdReader:
    """rocpd databases of rocprofv3: kernels, copies, regions and agents of one or more processes."""

    name = "rocpd"

    def sniff(self, head: Head) -> bool:
        """Return whether a database has rocpd's tables of dispatches or regions."""
        return (
            any(name.startswith((_DISPATCH, "rocpd_region")) for name in head.tables) and "rocpd_op" not in head.tables
        )

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            No event of the file can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        devices: list[DeviceProperties] = []
        with open_database(path, sink.limit_bytes) as database:
            suffixes = _suffixes(database)
            busy = [s for s in suffixes if len(columns_of(database, _DISPATCH + s, ("id",))["id"])]
            for suffix in suffixes:
                rank = busy.index(suffix) if len(busy) > 1 and suffix in busy else OWN_RANK
                process = _Process(database, suffix, rank)
                process.write(sink, counts)
                devices += process.devices()
        if not counts["kept"]:
            raise BrokenFileError(f"{path}: no event that can be used ({counts['events']} looked at)")
        quality = Quality({name: n for name, n in counts.items() if n})
        return TraceMeta("rocpd", "3", sources=(path.name,), devices=tuple(devices), quality=quality)


def _suffixes(database: Database) -> list[str]:
    """Return what the tables of each process end in."""
    starts = (_DISPATCH, "rocpd_region")
    found = {name.removeprefix(start) for name in database.tables for start in starts if name.startswith(start)}
    return sorted(suffix for suffix in found if suffix == "" or suffix.startswith("_"))


class _Process:
    """The tables of one process; ids are its own."""

    def __init__(self, database: Database, suffix: str, rank: int) -> None:
        self._database, self._suffix, self._rank = database, suffix, rank
        self._strings = self._texts("rocpd_string", "string")
        event = self._columns("rocpd_event", ("id", "stack_id", "parent_stack_id", "correlation_id", "category_id"))
        self._event = event["id"]
        stack = np.where(event["correlation_id"] > 0, event["correlation_id"], event["stack_id"])
        self._stack = np.where(stack > 0, stack, MISSING)
        self._category = event["category_id"]
        agents = self._columns("rocpd_info_agent", ("id", "type_index"))
        types = self._texts("rocpd_info_agent", "type")
        gpus = [int(i) for i in agents["id"] if types.get(int(i), "").upper() == "GPU"]
        self._device = {agent: number for number, agent in enumerate(gpus)}

    def _columns(self, table: str, names: Sequence[str]) -> dict[str, Ints]:
        return columns_of(self._database, table + self._suffix, names)

    def _texts(self, table: str, column: str) -> dict[int, str]:
        found: dict[int, str] = {}
        name = table + self._suffix
        if column not in self._database.tables.get(name, ()):
            return found
        for batch in self._database.read(name, ("id", column)):
            values = batch[column]
            plain = values.to_pylist() if isinstance(values, pa.Array) else [None] * len(values)
            found |= {int(i): str(text or "") for i, text in zip(whole_numbers(batch["id"]), plain, strict=True)}
        return found

    def devices(self) -> list[DeviceProperties]:
        """Return the GPUs of the process."""
        names = self._texts("rocpd_info_agent", "product_name") or self._texts("rocpd_info_agent", "name")
        return [DeviceProperties(self._rank, number, names.get(agent, "")) for agent, number in self._device.items()]

    def write(self, sink: Sink, counts: Counter[str]) -> None:
        """Give all events to the sink."""
        self._kernels(sink, counts)
        self._copies(sink, counts)
        self._regions(sink, counts)

    def _common(self, rows: Mapping[str, Ints], agent: str) -> dict[str, Any]:
        device = np.array([self._device.get(int(i), MISSING) for i in rows[agent]], dtype=np.int64)
        return {
            "rank": np.full(len(device), self._rank),
            "start_ns": rows["start"],
            "device": device,
            "stream": rows["stream_id"],
            "queue": rows["queue_id"],
            "correlation": lookup(self._event, self._stack, rows["event_id"]),
        }

    def _kernels(self, sink: Sink, counts: Counter[str]) -> None:
        plain = ("start", "end", "agent_id", "kernel_id", "queue_id", "stream_id", "event_id", "group_segment_size")
        rows = self._columns(_DISPATCH, (*plain, *_SIZES))
        symbol = "rocpd_info_kernel_symbol"
        names = self._texts(symbol, "display_name") or self._texts(symbol, "kernel_name")
        each = [divided(rows[f"grid_size_{axis}"], rows[f"workgroup_size_{axis}"]) for axis in "xyz"]
        known = np.logical_and.reduce([e != MISSING for e in each]) & (
            np.prod([np.where(e == MISSING, 1, e).astype(float) for e in each], axis=0) < 2.0**62
        )
        sizes = np.prod([np.where(known, rows[f"workgroup_size_{axis}"], 1) for axis in "xyz"], axis=0)
        columns = {
            **self._common(rows, "agent_id"),
            "name": named(rows["kernel_id"], names).cast(pa.string()),
            "workgroups": np.where(known, np.prod([np.where(known, e, 1) for e in each], axis=0), MISSING),
            "workgroup_size": np.where(known & (sizes > 0) & (sizes < 1 << 31), sizes, MISSING),
            "lds_bytes": rows["group_segment_size"],
        }
        put_rows(sink, "kernels", columns, rows["end"], counts)

    def _copies(self, sink: Sink, counts: Counter[str]) -> None:
        plain = ("start", "end", "name_id", "src_agent_id", "dst_agent_id", "size", "queue_id", "stream_id", "event_id")
        rows = self._columns("rocpd_memory_copy", plain)
        source = np.isin(rows["src_agent_id"], list(self._device))
        rows["agent"] = np.where(source, rows["src_agent_id"], rows["dst_agent_id"])
        names = named(rows["name_id"], self._strings).cast(pa.string())
        columns = {
            **self._common(rows, "agent"),
            "name": names,
            "direction": pa.array([copy_direction(name) for name in names.to_pylist()], pa.string()),
            "bytes": rows["size"],
        }
        put_rows(sink, "copies", columns, rows["end"], counts)

    def _regions(self, sink: Sink, counts: Counter[str]) -> None:
        rows = self._columns("rocpd_region", ("pid", "tid", "start", "end", "name_id", "event_id"))
        category = lookup(self._event, self._category, rows["event_id"])
        for number in np.unique(category).tolist():
            own = category == number
            kind, word = api_kind(self._strings.get(number, "") or "region")
            columns: dict[str, Any] = {
                "rank": np.full(int(own.sum()), self._rank),
                "name": named(rows["name_id"], self._strings).cast(pa.string()).filter(pa.array(own)),
                "start_ns": rows["start"][own],
                "process": rows["pid"][own],
                "thread": rows["tid"][own],
                "api" if kind == "launches" else "category": [word] * int(own.sum()),
            }
            if kind == "launches":
                columns["correlation"] = lookup(self._event, self._stack, rows["event_id"][own])
            put_rows(sink, kind, columns, rows["end"][own], counts)
