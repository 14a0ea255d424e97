"""`KinetoReader`: one Kineto file to an unlinked `Trace`."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profilers.errors import BrokenFileError
from profilers.kineto.numbers import plain_text, whole
from profilers.kineto.stream import Content, read_stream
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.schema import OWN_RANK
from profilers.source import Plain, open_source
from profilers.trace import DeviceProperties, TraceMeta

__all__ = ["KinetoReader"]

#: What the first 64 KB of a Kineto file hold: its own keys, or events as Chrome's trace viewer reads them.
_SIGN = re.compile(rb'"(traceEvents|deviceProperties|schemaVersion|distributedInfo|baseTimeNanoseconds)"\s*:|"ph"\s*:')


class KinetoReader:
    """Traces of the PyTorch profiler, of every age and vendor: JSON, plain or packed."""

    name = "kineto"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts like Kineto's JSON."""
        start = head.start.lstrip(b"\xef\xbb\xbf \t\r\n")
        known = start[:1] in (b"{", b"[") and _SIGN.search(head.start) is not None
        return known and b'"BeginNs"' not in head.start  # which is how rocprof 1 writes Chrome's events

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the events of one file to `sink`.

        Raises
        ------
        BrokenFileError
            The file holds no event that can be used, or unpacks to more than the limit.
        """
        (path,) = files
        with open_source(path, sink.limit_bytes) as stream:
            content = read_stream(stream, path.name, sink)
            content.counts["truncated_files"] |= getattr(stream, "truncated", False)
            fingerprint = stream.fingerprint() if isinstance(stream, Plain) else ""
        _check_not_empty(path, content)
        return replace(_meta(path, content.header, content.counts), fingerprint=fingerprint)


def _check_not_empty(path: Path, content: Content) -> None:
    counts = content.counts
    if counts["kept"]:
        return
    if not counts["events"]:
        where = "its traceEvents is empty" if content.found_events else "it has no traceEvents"
        raise BrokenFileError(f"{path}: no event to read: {where}; was the profiler active when it was written?")
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    raise BrokenFileError(f"{path}: none of its {counts['events']} events can be used ({lost})")


def _meta(path: Path, header: dict[str, Any], counts: Counter[str]) -> TraceMeta:
    distributed = _mapping(header.get("distributedInfo"))
    return TraceMeta(
        format="kineto",
        version=f"schema {plain_text(header.get('schemaVersion')) or 'unknown'}",
        sources=(path.name,),
        ranks=_rank(header),
        world_size=_positive(distributed.get("world_size")),
        clock_base_ns=whole(header.get("baseTimeNanoseconds")) or 0,
        devices=_devices(header),
        quality=Quality({name: n for name, n in counts.items() if n}),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: Any) -> int | None:
    number = whole(value)
    return number if number is not None and number > 0 else None


def _devices(header: dict[str, Any]) -> tuple[DeviceProperties, ...]:
    listed = header.get("deviceProperties")
    rows = [_mapping(row) for row in listed] if isinstance(listed, list) else []
    return tuple(
        DeviceProperties(
            rank=OWN_RANK,
            device=whole(row.get("id")) or 0,
            name=plain_text(row.get("name")),
            compute_units=_positive(row.get("numSms")),
            memory_bytes=_positive(row.get("totalGlobalMem")),
        )
        for row in rows
    )


def _rank(header: dict[str, Any]) -> tuple[int, ...]:
    """Return the rank that the file states for itself, or nothing."""
    rank = whole(_mapping(header.get("distributedInfo")).get("rank"))
    return () if rank is None or not 0 <= rank < 1 << 31 else (rank,)
