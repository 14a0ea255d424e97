"""`Columns`: the arrays that the scanner fills, emptied into a sink batch by batch.

Texts are numbers of strings until a batch is written, and become dictionary-encoded Arrow columns then.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profilers.readers.common.numbers import IN_WORK_ITEMS, Grids, finite_number, identity, plain_text
from profilers.readers.common.reader import Sink
from profilers.readers.kineto import tokens
from profilers.readers.kineto.lanes import EventLane, FileLanes
from profilers.readers.kineto.lexing import StringTable, empty_strings, find, text_of
from profilers.readers.kineto.rows import (
    ARGUMENTS,
    DEVICE_KINDS,
    DEVICES,
    HOST_KINDS,
    KIND_OF,
    SYNC_COLUMNS,
    direction,
    launch_extents,
)
from profilers.readers.kineto.tokens import (
    CATEGORY,
    DURATION,
    EVENT_LANE,
    EVENT_NAME,
    OTHER_ARGS,
    PROCESS,
    RANK,
    START,
    THREAD,
)
from profilers.trace.arrays import MISSING, Ints, arrow_array, text_array
from profilers.trace.schema import OWN_RANK

#: Kinds of event in the order of their numbers in the scanner.
_KINDS = ("ops", "launches", "kernels", "copies", "syncs", "ranges", "counters")
_STORAGE: Mapping[str, int] = {
    "integer": tokens.INTEGER,
    "narrow": tokens.NARROW,
    "float": tokens.FLOAT,
    "json": tokens.JSON,
    "identity": tokens.IDENTITY,
}
_GRID = (("grid", tokens.EXTENTS), ("block", tokens.EXTENTS))
#: Arguments without a column of their own, and how the scanner keeps them, by kind.
_OTHER_ARGUMENTS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "kernels": (*_GRID, ("kernel_details", tokens.WORD)),
    "launches": _GRID,
    "copies": (("kind", tokens.WORD), ("direction", tokens.WORD)),
    "syncs": (("cuda_sync_kind", tokens.WORD),),
}
_KEYS, _CATEGORIES, _IDS, _LANES = 2048, 512, 1 << 13, 1 << 14
_STRINGS, _ARENA = 1 << 17, 16 << 20
_SCRATCH = 4 << 20
#: State of a process or thread whose text the caller has not seen.
_UNKNOWN = -2


class Columns:
    """Rows of every kind as flat arrays, emptied into a sink when they are full.

    Parameters
    ----------
    sink : Sink
        Takes the rows.
    lanes : FileLanes
        Processes and threads of the file.
    capacity : int
        Most rows of a kind in a batch.
    """

    def __init__(self, sink: Sink, lanes: FileLanes, capacity: int = 16384) -> None:
        self._sink = sink
        self._lanes = lanes
        self._known_ids = 0
        self._known_lanes: list[EventLane] = []
        self._capacity = capacity
        self.grids = Grids()
        self.counts: Counter[str] = Counter()
        self._slots: list[dict[str, int]] = []
        self.scan = self._arrays()

    def _arrays(self) -> tokens.Scan:
        kinds = len(_KINDS)
        slots, types = np.zeros((kinds, _KEYS), np.int64), np.zeros((kinds, _KEYS), np.int64)
        keys, top = empty_strings(_KEYS, 64 * _KEYS), empty_strings(128, 128 * 64)
        categories, strings = empty_strings(_CATEGORIES, 1 << 16), empty_strings(_STRINGS, _ARENA)
        ids, lanes = empty_strings(_IDS, 64 * _IDS), empty_strings(_LANES, 128 * _LANES)
        for table in (keys, categories, strings):
            _intern(table, "")
        for name in tokens.TOP_KEYS:
            _intern(top, name)
        widths = np.zeros(kinds, np.int64)
        for kind, name in enumerate(_KINDS):
            layout, widths[kind] = _layout(name, keys, slots[kind], types[kind])
            self._slots.append(layout)
        return tokens.Scan(
            values=np.empty((kinds, int(widths.max()), self._capacity + tokens.SPARE), np.int64),
            rows=np.zeros(kinds, np.int64),
            slots=slots,
            types=types,
            widths=widths,
            kinds=np.full(_CATEGORIES, -1, np.int64),
            id_numbers=np.full((2, _IDS), MISSING),
            id_states=np.full((2, _IDS), _UNKNOWN),
            lane_kinds=np.full(_LANES, -1, np.int64),
            nans=np.zeros(2, np.int64),
            follow=np.full((2, _KEYS), -1, np.int64),
            counts=np.zeros(5, np.int64),
            recent=np.full(_STRINGS, -1, np.int64),
            recent_rest=np.full(_STRINGS, -1, np.int64),
            tokens=np.zeros((tokens.TOKENS + 1, 7), np.int64),
            head=np.zeros(9, np.int64),
            scratch=np.zeros(_SCRATCH, np.uint8),
            top=top,
            keys=keys,
            categories=categories,
            ids=ids,
            lanes=lanes,
            strings=strings,
        )

    def add_categories(self) -> None:
        """Assign a kind to every category that the scanner has read."""
        categories, kinds = self.scan.categories, self.scan.kinds
        for number in range(int(categories.meta[0])):
            name = self._category(number)
            kind = KIND_OF.get(name, "device")
            by_lane = tokens.MARKER if name == "trace" else tokens.BY_LANE
            kinds[number] = by_lane if kind == "device" else _KINDS.index(kind)

    def add_ids(self) -> None:
        """Give a number, and a process its rank, to every process and thread that is a text."""
        states, numbers = self.scan.id_states, self.scan.id_numbers
        for number in range(self._known_ids, int(self.scan.ids.meta[0])):
            text = _decoded(text_of(self.scan.ids, number))
            (rank, process), thread = self._lanes.process(text), identity(text)
            states[:, number] = -1 if rank is None else rank, -1
            numbers[:, number] = [MISSING if value is None else value for value in (process, thread)]
        self._known_ids = int(self.scan.ids.meta[0])

    def add_lanes(self) -> None:
        """Assign a kind to every lane that the scanner has read."""
        for number in range(len(self._known_lanes), int(self.scan.lanes.meta[0])):
            raw = text_of(self.scan.lanes, number)
            pid, tid, name = map(_decoded, raw[3:].split(b"\0"))
            category = self._category(raw[0] + 256 * raw[1])
            lane = self._lanes.lane(category, pid, tid, plain_text(name))
            self._known_lanes.append(lane)
            self.scan.lane_kinds[number] = _KINDS.index(lane.kind)

    def _category(self, number: int) -> str:
        return text_of(self.scan.categories, number).decode("utf-8", "replace").lower()

    def flush(self) -> None:
        """Give all rows to the sink and clear the table of strings, which makes room for others."""
        for kind in range(len(_KINDS)):
            self.flush_kind(kind)
        strings = self.scan.strings
        strings.hashes[:] = 0
        strings.meta[:] = 0
        _intern(strings, "")
        self.scan.recent[:] = -1
        self.scan.recent_rest[:] = -1
        self.scan.counts[tokens.LAST] = 0

    def flush_full(self) -> None:
        """Give the rows of full kinds to the sink."""
        for kind in np.flatnonzero(self.scan.rows == self._capacity):
            self.flush_kind(int(kind))

    def flush_kind(self, kind: int) -> None:
        """Give the rows of one kind to the sink."""
        rows = int(self.scan.rows[kind])
        if not rows:
            return
        values = self.scan.values[kind, :, :rows]
        name = _KINDS[kind]
        columns: dict[str, Any] = {
            "rank": np.where(values[RANK] == MISSING, OWN_RANK, values[RANK]),
            "name": self._texts(values[EVENT_NAME]),
            "start_ns": values[START].copy(),
            "dur_ns": values[DURATION].copy(),
            "args": self._json(values[OTHER_ARGS]),
        }
        if name in HOST_KINDS:
            columns |= {"process": values[PROCESS].copy(), "thread": values[THREAD].copy()}
        elif name in DEVICE_KINDS:
            self._place(values, self._slots[kind])
        if name == "ranges":
            self._count_unread(
                values[EVENT_LANE], values[self._slots[kind]["device"]], values[self._slots[kind]["stream"]]
            )
        for column, argument in ARGUMENTS[name].items():
            numbers = values[self._slots[kind][column]]
            if argument.what == "json":
                columns[column] = self._json(numbers)
            elif argument.what == "float":
                columns[column] = self._floats(numbers, values[self._slots[kind][column] + 1])
            else:
                columns[column] = numbers.copy()
        self._special(kind, values, columns)
        self._sink.write(name, columns)
        self.scan.rows[kind] = 0

    def _floats(self, bits: Ints, texts: Ints) -> pa.Array:
        """Return floats from their bits, or from their texts; one that is not finite is null."""
        rows = np.flatnonzero(texts != MISSING)
        if len(rows):
            long = self._json(texts[rows])
            numbers = [finite_number(text) for text in long.dictionary.to_pylist()]
            known = np.array([np.nan if number is None else number for number in numbers])[long.indices.to_numpy()]
            bits[rows] = np.where(np.isnan(known), MISSING, known.view(np.int64))
        return arrow_array(bits.view(np.float64), bits == MISSING)

    def _place(self, values: Ints, slots: Mapping[str, int]) -> None:
        """Complete streams and devices in place: those of the lane, or else queue, thread and process."""
        stream, device, lane = values[slots["stream"]], values[slots["device"]], values[EVENT_LANE]
        stream[stream == -1] = MISSING
        on_lane = np.flatnonzero(lane != MISSING)
        numbers = lane[on_lane]
        of_lane = np.full((2, len(lane)), MISSING)
        if len(on_lane):
            pairs = [(known.stream, known.device) for known in self._known_lanes]
            known = np.array([[MISSING if n is None else n for n in pair] for pair in pairs], np.int64)
            of_lane[:, on_lane] = known[numbers].T
        process = np.where((values[PROCESS] >= 0) & (values[PROCESS] < DEVICES), values[PROCESS], MISSING)
        for column, choices in (
            (stream, (values[slots["queue"]], of_lane[0], values[THREAD])),
            (device, (of_lane[1], process)),
        ):
            for choice in choices:
                np.copyto(column, choice, where=column == MISSING)

    def _count_unread(self, lanes: Ints, device: Ints, stream: Ints) -> None:
        """Count the events of each category that look like work of a device, or name one, and are not read."""
        placed = (device != MISSING) | (stream != MISSING)
        for is_placed in (True, False):
            numbers, counts = np.unique(lanes[(placed == is_placed) & (lanes != MISSING)], return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                lane = self._known_lanes[number]
                if lane.is_unread or (is_placed and lane.origin):
                    self.counts[f"unread_device[{lane.origin}]"] += count

    def _special(self, kind: int, values: Ints, columns: dict[str, Any]) -> None:
        """Add the columns that only some kinds have, and collect grids."""
        name, slots = _KINDS[kind], self._slots[kind]
        if name in ("launches", "ranges", "counters"):
            columns["api" if name == "launches" else "category"] = self._categories(values[CATEGORY])
        if name == "copies":
            word = np.where(values[slots["kind"]] == MISSING, values[slots["direction"]], values[slots["kind"]])
            columns["direction"] = self._directions(columns["name"], self._texts(word))
        elif name == "syncs":
            word = values[slots["cuda_sync_kind"]]
            columns["sync"] = self._texts(np.where(word == MISSING, values[EVENT_NAME], word))
            for column in SYNC_COLUMNS:
                columns[column] = np.where(columns[column] == -1, MISSING, columns[column])
        elif name in ("launches", "kernels"):
            extents = values[slots["grid"] : slots["grid"] + 6].T.copy()
            extents[(extents == MISSING).any(axis=1)] = MISSING
            if name == "kernels":
                self._add_details(extents, values[slots["kernel_details"]])
            if name == "kernels":
                self.grids.add_kernels(columns["rank"], columns["correlation"], extents)
            else:
                items = find(self.scan.strings, *_bytes(IN_WORK_ITEMS))
                self.grids.add_launches(columns["rank"], columns["correlation"], extents, values[EVENT_NAME] == items)

    def _add_details(self, extents: Ints, words: Ints) -> None:
        """Complete the grids of kernels in place, from the text in which XLA states them."""
        rows = np.flatnonzero((words != MISSING) & (extents[:, 0] == MISSING))
        if len(rows):
            texts = self._texts(words[rows])
            known = np.array([launch_extents(text) for text in texts.dictionary.to_pylist()], np.int64)
            extents[rows] = known[texts.indices.to_numpy()]

    def _categories(self, numbers: Ints) -> pa.DictionaryArray:
        names = text_array([self._category(number) for number in range(int(self.scan.categories.meta[0]))])
        return pa.DictionaryArray.from_arrays(arrow_array(numbers.astype(np.int32)), names)

    def _directions(self, names: pa.DictionaryArray, words: pa.DictionaryArray) -> list[str]:
        """Return the direction of each copy; one Python call for each distinct pair of name and word."""
        pairs = list(zip(names.to_pylist(), words.to_pylist(), strict=True))
        directions = {pair: direction(pair[0], {"kind": pair[1]}) for pair in set(pairs)}
        return [directions[pair] for pair in pairs]

    def _texts(self, numbers: Ints) -> pa.DictionaryArray:
        """Return the strings with these numbers, with escapes resolved."""
        column = self._json(numbers)
        texts = column.dictionary
        data = texts.buffers()[2]
        if data is None or b"\\" not in data.to_pybytes():
            return column
        plain = [json.loads(f'"{text}"', strict=False) if "\\" in text else text for text in texts.to_pylist()]
        return pa.DictionaryArray.from_arrays(column.indices, text_array(plain))

    def _json(self, numbers: Ints) -> pa.DictionaryArray:
        """Return the strings with these numbers as the file spells them; invalid UTF-8 is replaced and counted."""
        strings = self.scan.strings
        codes = arrow_array(numbers, numbers < 0).dictionary_encode()
        count = int(strings.meta[0])
        buffers = pa.py_buffer(strings.offsets[: count + 1]), pa.py_buffer(strings.arena)
        texts = pa.LargeStringArray.from_buffers(count, *buffers).take(codes.dictionary)
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            self.counts["repaired_utf8"] = 1
            texts = pa.array([text_of(strings, n).decode("utf-8", "replace") for n in codes.dictionary.to_pylist()])
        return pa.DictionaryArray.from_arrays(codes.indices, texts.cast(pa.string()))

    def totals(self) -> Counter[str]:
        """Return the counts of events so far."""
        counts = self.scan.counts
        entries = {"kept": tokens.KEPT, "skipped_marker": tokens.MARKERS, "skipped_flow": tokens.FLOWS}
        totals = Counter({name: int(counts[entry]) for name, entry in entries.items()})
        totals["events"] = sum(totals.values())
        totals.update(missing_duration=int(counts[tokens.UNTIMED]), repaired_nan=int(self.scan.nans[1]))
        return totals + self.counts


def _layout(kind: str, keys: StringTable, slots: Ints, types: Ints) -> tuple[dict[str, int], int]:
    """Assign slots to the arguments of a kind; return them by column, and their number; fill `slots` and `types`."""
    arguments = [(column, argument.keys, _STORAGE[argument.what]) for column, argument in ARGUMENTS[kind].items()]
    arguments += [(name, (name,), storage) for name, storage in _OTHER_ARGUMENTS.get(kind, ())]
    layout: dict[str, int] = {}
    width = tokens.FIXED
    for column, spellings, storage in arguments:
        layout[column] = width
        for spelling in spellings:
            number = _intern(keys, spelling)
            slots[number], types[number] = width, storage
        width += {tokens.EXTENTS: 3, tokens.FLOAT: 2}.get(storage, 1)
    rank = _intern(keys, "rank")
    slots[rank], types[rank] = RANK, tokens.RANKED
    return layout, width


def _decoded(token: bytes) -> Any:
    """Return the value of a JSON token, None for an empty one."""
    text = token.decode("utf-8", "replace")
    try:
        return json.loads(text, strict=False, parse_float=str) if text else None
    except ValueError:
        return text


def _bytes(text: str) -> tuple[npt.NDArray[np.uint8], int, int]:
    raw = text.encode()
    return np.frombuffer(raw + bytes(16), np.uint8), 0, len(raw)


def _intern(table: StringTable, text: str) -> int:
    return int(find(table, *_bytes(text)))
