"""rocprofv3 in JSON (rocprofiler-sdk-tool): agents, kernel symbols and records by kind, a process an entry."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profilers.amd.rows import api_kind, copy_direction, put_rows
from profilers.arrays import MISSING, Ints
from profilers.errors import BrokenFileError
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.schema import OWN_RANK
from profilers.source import read_source
from profilers.trace import DeviceProperties, TraceMeta

__all__ = ["Rocprofv3JsonReader"]

_SIGN = re.compile(rb'"rocprofiler-sdk-tool"\s*:')
_API = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api")

Record = Mapping[str, Any]


class Rocprofv3JsonReader:
    """rocprofv3 JSON (rocprofiler-sdk-tool), held in memory while it is read."""

    name = "rocprofv3_json"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts like rocprofv3's JSON."""
        return head.start.lstrip()[:1] == b"{" and _SIGN.search(head.start) is not None

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`; a Python loop over events, about 10 us each.

        Raises
        ------
        BrokenFileError
            The file is no whole JSON document, or holds no event that can be used.
        """
        (path,) = files
        try:
            document = json.loads(read_source(path, sink.limit_bytes).content)
        except (ValueError, RecursionError) as error:
            raise BrokenFileError(f"{path}: no whole JSON document ({str(error)[:150]}); record it again") from error
        tools = [t for t in _list(_mapping(document).get("rocprofiler-sdk-tool")) if isinstance(t, dict)]
        busy = [t for t in tools if _list(_mapping(t.get("buffer_records")).get("kernel_dispatch"))]
        counts: Counter[str] = Counter()
        devices: list[DeviceProperties] = []
        for tool in tools:
            rank = busy.index(tool) if len(busy) > 1 and any(tool is one for one in busy) else OWN_RANK
            process = _Process(tool, rank, sink, counts)
            process.write()
            devices += process.devices
        if not counts["kept"]:
            raise BrokenFileError(f"{path}: no event that can be used ({counts['events']} looked at)")
        quality = Quality({name: n for name, n in counts.items() if n})
        return TraceMeta("rocprofv3_json", sources=(path.name,), devices=tuple(devices), quality=quality)


class _Process:
    """One entry of the file."""

    def __init__(self, tool: Record, rank: int, sink: Sink, counts: Counter[str]) -> None:
        self._tool, self._rank, self._sink, self._counts = tool, rank, sink, counts
        agents = [a for a in _list(tool.get("agents")) if isinstance(a, dict) and _number(a.get("type")) == 2]
        self._device = {_number(_mapping(a.get("id")).get("handle")): i for i, a in enumerate(agents)}
        self.devices = [
            DeviceProperties(rank, i, _text(a.get("product_name")) or _text(a.get("name")), _number(a.get("cu_count")))
            for i, a in enumerate(agents)
        ]
        symbols = [s for s in _list(tool.get("kernel_symbols")) if isinstance(s, dict)]
        self._names = {_number(s.get("kernel_id")): _symbol(s) for s in symbols}
        strings = _mapping(tool.get("strings"))
        self._calls = [r for r in _list(strings.get("buffer_records")) if isinstance(r, dict)]

    def write(self) -> None:
        """Give all records to the sink."""
        records = _mapping(self._tool.get("buffer_records"))
        self._put("kernels", _list(records.get("kernel_dispatch")), self._kernel)
        self._put("copies", _list(records.get("memory_copy")), self._copy)
        for name in _API:
            kind, category = api_kind(name)
            place = {"api" if kind == "launches" else "category": category}
            for part in ([r for r in _list(records.get(name)) if isinstance(r, dict)],):
                self._put(kind, part, lambda record, place=place, kind=kind: self._call(record, place, kind))  # type: ignore[misc]

    def _put(self, kind: str, records: list[Any], row: Callable[[Record], Record]) -> None:
        rows = [row(record) for record in records if isinstance(record, dict)]
        lost = len(records) - len(rows)
        self._counts["events"] += lost
        self._counts["dropped_broken"] += lost
        if not rows:
            return
        columns: dict[str, Any] = {name: [one[name] for one in rows] for name in rows[0]}
        columns = {
            name: _array(values) if name not in ("name", "direction", "api", "category") else values
            for name, values in columns.items()
        }
        end = columns.pop("end")
        put_rows(self._sink, kind, columns, end, self._counts)

    def _times(self, record: Record) -> dict[str, Any]:
        start, end = (_number(record.get(f"{name}_timestamp")) for name in ("start", "end"))
        correlation = _number(_mapping(record.get("correlation_id")).get("internal"))
        return {"rank": self._rank, "start_ns": start, "end": end, "correlation": correlation}

    def _kernel(self, record: Record) -> Record:
        info = _mapping(record.get("dispatch_info"))
        grid, size = (_axes(info.get(name)) for name in ("grid_size", "workgroup_size"))
        known = grid is not None and size is not None
        groups = (
            int(np.prod([-(-g // s) for g, s in zip(grid or (), size or (), strict=True)], dtype=object))
            if known
            else 0
        )
        return {
            **self._times(record),
            "name": self._names.get(_number(info.get("kernel_id")), "unknown kernel"),
            "device": self._device.get(_number(_mapping(info.get("agent_id")).get("handle"))),
            "stream": _number(_mapping(record.get("stream_id")).get("handle")),
            "queue": _number(_mapping(info.get("queue_id")).get("handle")),
            "workgroups": groups if 0 < groups < 1 << 62 else None,
            "workgroup_size": size[0] * size[1] * size[2] if size and known else None,
            "lds_bytes": _number(info.get("group_segment_size")),
        }

    def _copy(self, record: Record) -> Record:
        word = self._operation(record)
        source, target = (
            self._device.get(_number(_mapping(record.get(f"{n}_agent_id")).get("handle"))) for n in ("src", "dst")
        )
        return {
            **self._times(record),
            "name": word or "memory copy",
            "direction": copy_direction(word),
            "device": target if source is None else source,
            "stream": _number(_mapping(record.get("stream_id")).get("handle")),
            "bytes": _number(record.get("bytes")),
        }

    def _call(self, record: Record, place: Record, kind: str) -> Record:
        row = {
            **self._times(record),
            "name": self._operation(record) or "unknown call",
            "process": _number(_mapping(_mapping(self._tool.get("metadata"))).get("pid")),
            "thread": _number(record.get("thread_id")),
            **place,
        }
        if kind != "launches":
            row.pop("correlation")
        return row

    def _operation(self, record: Record) -> str:
        """Return the name of what a record is of: the tables of names are by kind and operation."""
        kind, operation = _number(record.get("kind")), _number(record.get("operation"))
        if kind is None or operation is None or not 0 <= kind < len(self._calls):
            return ""
        names = _list(self._calls[kind].get("operations"))
        return _text(names[operation]) if 0 <= operation < len(names) else ""


def _symbol(symbol: Record) -> str:
    names = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")
    return next((text for name in names if (text := _text(symbol.get(name)))), "unknown kernel").removesuffix(".kd")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and -(1 << 62) < value < 1 << 62
    return value if good else None


def _text(value: Any) -> str:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _axes(value: Any) -> tuple[int, int, int] | None:
    found = [_number(_mapping(value).get(axis)) for axis in "xyz"]
    x, y, z = (n if n is not None and 0 < n < 1 << 32 else 0 for n in found)
    return (x, y, z) if x and y and z else None


def _array(values: list[int | None]) -> Ints:
    return np.array([MISSING if value is None else value for value in values], dtype=np.int64)
