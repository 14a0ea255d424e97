"""`FileLanes`: what the processes and threads of a file say of its events, where the category does not.

- A process may be a text, such as ``[TP00] 4000`` or ``rank0_7``. Merged files have one such label a rank.
- XLA's and Ascend's files have no categories. Their metadata names the processes that are devices, and the threads
  that are streams.
- MTIA's and Gaudi's files have one category for all work of a device; names tell copies and waits from kernels.

Metadata may come after the events that it describes. So the file is searched for it (`read_metadata`), once, at the
first event that needs it. The rules are in ``[lanes]`` of `datasets/formats/kineto.toml`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from profilers.readers.common.numbers import identity, plain_text, unnumbered
from profilers.readers.common.source import Bytes

_BLOCK = 4 << 20
#: Bytes around a name of metadata in which its event is looked for, and most texts of each kind.
_AROUND, _MOST = 2048, 10_000
_METADATA_NAMES = ("process_name", "process_labels", "thread_name")
_PROCESS = re.compile(rb'"pid"\s*:\s*("(?:[^"\\\n]|\\.){1,256}")')
_NAMED = re.compile(rb'"(?:process_name|process_labels|thread_name)"')
_LABEL = re.compile(r"([A-Za-z]*)[\s_.:#=-]*(\d{1,9})")
#: Words whose numbers are labels of ranks, and words whose numbers are none.
_RANK_WORDS = frozenset({"rank", "r", "tp", "dp", "pp", "ep", "cp", "sp", "node", "host"})
_NO_LABELS = frozenset({"gpu", "cpu", "cuda", "npu", "xpu", "hpu", "tpu", "hip", "device", "stream", "pid", "python"})


class LaneRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The regular expressions of ``[lanes]``, which `datasets/formats/kineto.toml` explains."""

    devices: tuple[str, ...]
    streams: tuple[str, ...]
    operations: tuple[str, ...]
    sums: str
    encloses: str
    copies: str
    syncs: str
    work: str
    calls: str
    looks: str


class EventLane(NamedTuple):
    """What a lane says of an event.

    Parameters
    ----------
    kind : str
        Kind of event, as in `profilers.trace.schema.KINDS`.
    device, stream : int, optional
        Device and stream, for an event that does not name its own.
    origin : str
        Category or process of an event that no rule reads; else "".
    is_unread : bool
        Whether such an event looks like work of a device.
    """

    kind: str
    device: int | None = None
    stream: int | None = None
    origin: str = ""
    is_unread: bool = False


@dataclass
class Metadata:
    """The names that a file gives to its processes and threads.

    Parameters
    ----------
    pids : set of str
        Processes whose number is a text.
    processes, labels, threads : dict of str to str, and of (str, str) to str
        Names and labels by process, and names by process and thread.
    """

    pids: set[str] = field(default_factory=set)
    processes: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    threads: dict[tuple[str, str], str] = field(default_factory=dict)


def read_metadata(stream: Bytes) -> Metadata:
    """Return the metadata of a file, found by its text, wherever it stands.

    Parameters
    ----------
    stream : Bytes
        Text of the file, read to its end; 1 s a GB.
    """
    metadata, buffer, kept = Metadata(), bytearray(_BLOCK + 4 * _AROUND), 0
    while count := stream.readinto(memoryview(buffer)[kept:]):
        text = bytes(memoryview(buffer)[: kept + count])
        _find(text, metadata)
        tail = text[-2 * _AROUND :]
        kept = len(tail)
        buffer[:kept] = tail
    return metadata


def _find(text: bytes, metadata: Metadata) -> None:
    """Add the metadata of a piece of text; pieces overlap, so that some of it is read twice."""
    for pid in set(_PROCESS.findall(text)):
        if len(metadata.pids) < _MOST:
            with suppress(ValueError):
                metadata.pids.add(json.loads(pid.decode("utf-8", "replace"), strict=False))
    for match in _NAMED.finditer(text):
        event = _event_around(text, match.start(), match.end())
        name, args = event.get("name"), event.get("args")
        text_of = args.get("labels" if name == "process_labels" else "name") if isinstance(args, dict) else None
        if not isinstance(text_of, str):
            continue
        pid, tid, label = _key(event.get("pid")), _key(event.get("tid")), plain_text(text_of)
        if name == "process_labels" and len(metadata.labels) < _MOST:
            metadata.labels[pid] = label
        if name == "process_name" and len(metadata.processes) < _MOST:
            metadata.processes[pid] = label
        elif name == "thread_name" and len(metadata.threads) < _MOST:
            metadata.threads[pid, tid] = label


def _event_around(text: bytes, start: int, end: int) -> dict[str, Any]:
    """Return the event whose name stands between two positions, empty if it cannot be decoded."""
    opening, decoder = start, json.JSONDecoder(strict=False)
    for _ in range(4):  # the arguments may stand before the name
        opening = text.rfind(b"{", max(start - _AROUND, 0), opening)
        if opening < 0:
            break
        piece = text[opening : end + _AROUND].decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            event, _ = decoder.raw_decode(piece)
            if isinstance(event, dict) and event.get("name") in _METADATA_NAMES:
                return event
    return {}


def _key(value: Any) -> str:
    """Return a process or thread as a text, in which 7 and "7" are the same."""
    return plain_text(value)


def label_ranks(pids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the rank and number of each process whose text has a label of a rank; empty for fewer than two ranks.

    A label is a number behind a word such as "rank", "TP" or "node", or else all numbers before the last, unless they
    are of devices or programs. If every label has one number, or "rank" alone tells them apart, that is the rank. Else
    ranks are in the order of the numbers.

    Parameters
    ----------
    pids : iterable of str
        Processes of a file.

    Examples
    --------
    >>> label_ranks(["[TP00] 4000", "[TP00] 0", "4000 [TP3]", "Spans"])
    {'[TP00] 4000': (0, 4000), '[TP00] 0': (0, 0), '4000 [TP3]': (3, 4000)}
    >>> label_ranks(["[DP1 TP0] 7", "[DP0 TP1] 7"])
    {'[DP1 TP0] 7': (1, 7), '[DP0 TP1] 7': (0, 7)}
    >>> label_ranks(["GPU 0 (pid 4000)", "GPU 1 (pid 4000)", "python3.10 4000"])
    {}
    """
    labels: dict[str, tuple[tuple[tuple[str, int], ...], int]] = {}
    for pid in pids:
        parts = [(word.lower(), int(number)) for word, number in _LABEL.findall(pid)]
        named = [label for label in parts if label[0] in _RANK_WORDS]
        if not named and not any(word in _NO_LABELS for word, _ in parts):
            named = parts[:-1]
        rest = [number for word, number in parts if (word, number) not in named]
        if named:
            labels[pid] = tuple(named), rest[-1] if rest else named[-1][1]
    distinct = sorted({label for label, _ in labels.values()})
    if len(distinct) < 2:
        return {}
    by_word = [[number for word, number in label if word == "rank"] or [n for _, n in label] for label in distinct]
    single = all(len(numbers) == 1 for numbers in by_word) and len({numbers[0] for numbers in by_word}) == len(distinct)
    rank = {
        label: numbers[0] if single else i for i, (label, numbers) in enumerate(zip(distinct, by_word, strict=True))
    }
    return {pid: (rank[label], number) for pid, (label, number) in labels.items()}


class FileLanes:
    """Processes and threads of a file.

    Parameters
    ----------
    rules : LaneRules
        Regular expressions that tell devices and their work.
    kinds : mapping of str to str
        Kind of event by category in lower case.
    reopen : callable, optional
        Opens the file from its start, to search it for metadata; without it there is none.
    """

    def __init__(self, rules: LaneRules, kinds: Mapping[str, str], reopen: Callable[[], Bytes] | None = None) -> None:
        self._rules = rules
        self._kinds = kinds
        self._reopen = reopen
        self._lanes: dict[tuple[str, str, str, str], EventLane] = {}

    @cached_property
    def _metadata(self) -> Metadata:
        if self._reopen is None:
            return Metadata()
        with self._reopen() as stream:
            return read_metadata(stream)

    @cached_property
    def _labels(self) -> dict[str, tuple[int, int]]:
        """Rank and number of each process with a label, if the file holds several ranks."""
        return label_ranks(sorted(self._metadata.pids))

    def process(self, pid: Any) -> tuple[int | None, int | None]:
        """Return rank and number of a process, None for a rank that it has no label of, and for no number."""
        if not isinstance(pid, str) or not pid or pid.isdecimal():
            return None, identity(pid)
        number = identity(pid)
        if self._texts_of[number] > 1:  # such as "gpu-12:4000" and "gpu-13:4000", without labels that are understood
            number = unnumbered(pid)
        return self._labels.get(pid, (None, number))

    @cached_property
    def _texts_of(self) -> Counter[int | None]:
        """Number of processes whose text has each number."""
        return Counter(map(identity, self._metadata.pids))

    def lane(self, category: str, pid: Any, tid: Any, name: str) -> EventLane:
        """Return what is known of events of a category in lower case by process, thread and name."""
        key = (category, _key(pid), _key(tid), name)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._resolve(*key)
            if len(self._lanes) < _MOST:
                self._lanes[key] = lane
        return lane

    def _resolve(self, category: str, pid: str, tid: str, name: str) -> EventLane:
        if self._kinds.get(category) == "device":
            return EventLane(self._device_kind(name))
        if re.search(self._rules.work, name):
            return EventLane(self._device_kind(name))
        device, process = self._device(pid), self._metadata.processes.get(pid, "")
        if device is not None and not category:
            return self._on_device(device, pid, tid, name)
        if not category and re.search(self._rules.calls, name):
            return EventLane("launches")
        text = f"{category} {process} {self._metadata.threads.get((pid, tid), '')}"
        is_unread = re.search(self._rules.looks, text) is not None
        return EventLane("ranges", origin=category or process or "no category", is_unread=is_unread)

    def _on_device(self, device: int, pid: str, tid: str, name: str) -> EventLane:
        """Return the lane of an event without a category on a device."""
        process = self._metadata.processes[pid]
        streams, operations = self._threads.get(pid, ({}, {}))
        is_repeated = self._has_sums and not re.search(self._rules.sums, process)
        if is_repeated or (not streams and re.search(self._rules.encloses, name)):
            return EventLane("ranges", device)
        if pid not in self._threads:
            return EventLane(self._device_kind(name), device, identity(tid))
        work = streams or operations
        if tid in work:
            return EventLane(self._device_kind(name), device, work[tid])
        return EventLane("ranges", device) if work else EventLane("ranges", device, origin=process, is_unread=True)

    @cached_property
    def _has_sums(self) -> bool:
        """Whether a process holds the work of all streams of a device, which others repeat."""
        return any(re.search(self._rules.sums, name) for name in self._metadata.processes.values())

    @cached_property
    def _threads(self) -> dict[str, tuple[dict[str, int | None], dict[str, int | None]]]:
        """Number of the stream of each thread that is a stream, and that has operations, by process with such names."""
        threads: dict[str, tuple[dict[str, int | None], dict[str, int | None]]] = {}
        for (pid, tid), label in self._metadata.threads.items():
            streams, operations = threads.setdefault(pid, ({}, {}))
            if match := _first(self._rules.streams, label):
                streams[tid] = identity(match[1] if match.re.groups else tid)
            elif _first(self._rules.operations, label):
                operations[tid] = identity(tid)
        return threads

    def _device(self, pid: str) -> int | None:
        """Return the number of the device that a process is, None if it is none."""
        match = _first(self._rules.devices, self._metadata.processes.get(pid, ""))
        if match is None:
            return None
        number = match[1] if match.re.groups else None
        label = re.search(r"\d+", self._metadata.labels.get(pid, ""))
        return identity(number if number is not None else label[0] if label else pid)

    def _device_kind(self, name: str) -> str:
        """Return the kind of an event of a device by its name."""
        if re.search(self._rules.syncs, name):
            return "syncs"
        return "copies" if re.search(self._rules.copies, name) else "kernels"


def _first(patterns: Iterable[str], text: str) -> re.Match[str] | None:
    return next((match for pattern in patterns if (match := re.search(pattern, text))), None)
