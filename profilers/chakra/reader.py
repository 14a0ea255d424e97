"""`ChakraReader`: one execution trace to rows of the kinds of event."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profilers.chakra.execution_trace import is_execution_trace, read_execution_trace
from profilers.chakra.records import is_chakra, read_records
from profilers.chakra.rows import Rows
from profilers.errors import BrokenFileError
from profilers.kineto.numbers import plain_text
from profilers.quality import Quality
from profilers.reader import Head, Sink
from profilers.source import head, open_source
from profilers.trace import TraceMeta

__all__ = ["ChakraReader"]

#: What simulators expect the file of a rank to be called.
_RANK = re.compile(r"\.(\d{1,9})\.et(?:\.\w+)?$")


class ChakraReader:
    """Execution traces: Chakra's protobuf files (.et) and the JSON of PyTorch's execution trace observer.

    Where the files hold no times, as PyTorch's do not, events follow each other in the order of the file, which is
    counted; `join_execution_trace` takes what they know to a timeline of the same rank.
    """

    name = "chakra"

    def sniff(self, head: Head) -> bool:
        """Return whether a file starts with Chakra's metadata or like PyTorch's execution trace."""
        return is_execution_trace(head.start) or is_chakra(head.start)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the nodes of one file to `sink`.

        Raises
        ------
        BrokenFileError
            It holds no node that can be used, or unpacks to more than the limit.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        header: dict[str, Any] = {}
        read = read_execution_trace if is_execution_trace(head(path)) else read_records
        with open_source(path, sink.limit_bytes) as stream:
            rows = Rows(sink, header, counts)
            for node in read(stream, header, counts):  # a Python loop over the nodes, about 20 us each
                rows.add(node)
            rows.flush()
            counts["truncated_files"] |= int(getattr(stream, "truncated", False))
        _check_not_empty(path, counts)
        version = plain_text(header.get("schema")) or plain_text(header.get("version")) or "unknown"
        return TraceMeta(self.name, f"schema {version}", (path.name,), _rank(path), quality=Quality({**counts}))


def _rank(path: Path) -> tuple[int, ...]:
    """Return the rank that the file's name states, or nothing."""
    match = _RANK.search(path.name)
    return (int(match[1]),) if match else ()


def _check_not_empty(path: Path, counts: Counter[str]) -> None:
    if counts["kept"]:
        return
    if not counts["events"]:
        raise BrokenFileError(f"{path}: holds no node; was the observer started before the model ran?")
    lost = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if n and name not in ("events", "kept"))
    raise BrokenFileError(f"{path}: none of its {counts['events']} nodes can be used ({lost})")
