"""`NcuReader`: what ``ncu --csv`` prints, a metric a line or (``--page raw``) a kernel a line.

Nsight Compute prints numbers as the locale has them. The whole file is read in one way: a comma is the decimal sign
where some number can only be read so (``0,53``, ``1.234,5``) and none the other way. Where only groups of three
digits follow commas (``1,234``), they are thousands, as in the locale C.UTF-8 and English ones; a German file that
holds nothing but such numbers is read wrongly, and only the locale under which it was written could tell.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Any

from profilers.readers.common.csv_rows import check_not_empty, csv_rows, distinct
from profilers.readers.common.numbers import TIMES_NS, whole
from profilers.readers.common.reader import Head, Sink
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import Quality, TraceMeta

_NARROW = 1 << 31
_BATCH_METRICS = 65536
#: What every line says of its kernel; columns that are none of these are metrics, or belong to a metric.
_KERNEL = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
    *(
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
        "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",
    ),
)
_METRIC = ("Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type", "Rule Description")
_SIGN = ("ID", "Process ID", "Kernel Name")
#: Metrics that a column holds too, by the names of the raw and of the details page.
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max", "Duration")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
    "workgroups": ("launch__grid_size", "Grid Size"),
    "workgroup_size": ("launch__block_size", "Block Size"),
    "lds_bytes": ("launch__shared_mem_per_block",),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
}
_IN_32_BITS = frozenset({"registers", "workgroup_size"})
_NUMBER = re.compile(r"[-+]?[\d.,'’\s]+(?:[eE][-+]?\d{1,3})?")
_LONGEST_NUMBER = 40
#: Powers of ten that fit float64 whatever the prefix of the unit.
_SMALLEST, _LARGEST = 250, 250
#: Numbers that can only be read with a comma, or with a point, as the decimal sign.
_COMMA_SURELY = re.compile(r",(?!\d{3}(?!\d))|^[-+]?0?,|\.\d+,|\.\d{3}\.")
_POINT_SURELY = re.compile(r"\.(?!\d{3}(?!\d))|^[-+]?0?\.|,\d+\.|,\d{3},")
#: Metrics of one kernel, and text of one value, beyond which a file is damaged.
_MOST_METRICS = 65536
_LONGEST_TEXT, _MOST_TEXTS = 4096, 1000
_BATCH_BYTES = 32 << 20
_PREFIXES = {"n": -9, "u": -6, "m": -3, "K": 3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BASES = {"second": "second", "s": "second", "byte": "byte", "B": "byte", "hz": "hz", "Hz": "hz"} | {
    name: name for name in ("cycle", "inst", "sector", "thread", "warp", "block", "request", "bit", "flop")
}


class NcuReader:
    """Nsight Compute's CSV (ncu --csv), in long form or of --page raw: kernels with their metrics as counters."""

    name = "ncu"

    def sniff(self, head: Head) -> bool:
        """Return whether a line near the start of a file names Nsight Compute's columns."""
        return any(all(f'"{name}"' in line for name in _SIGN) for line in _first_lines(head.start))

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the kernels and metrics of one file to `sink`.

        Nsight Compute runs one kernel at a time and writes no clock: each starts where the one before it ends.

        Raises
        ------
        BrokenFileError
            It holds no line that can be used.
        """
        (path,) = files
        counts: Counter[str] = Counter()
        with csv_rows(path, sink, Counter()) as rows:
            survey = _survey(rows)
        with csv_rows(path, sink, counts) as rows:
            kernels = _Kernels(sink, counts, survey)
            for name, line in _metrics(rows, counts):
                kernels.add(name, line)
            kernels.flush()
        check_not_empty(path, counts)
        ranks = tuple(range(len(survey.ranks))) if len(survey.ranks) > 1 else ()
        form = "long" if survey.long else "raw"
        return TraceMeta(self.name, f"csv {form}", (path.name,), ranks, quality=Quality({**counts}))


def _first_lines(start: bytes) -> list[str]:
    return start.decode("utf-8", "replace").splitlines()


@dataclass
class _Survey:
    """What must be known of a file before its first row is given on.

    Parameters
    ----------
    ranks : dict of str to int
        Process to rank, in the order in which they come.
    decimal : str
        The decimal sign.
    long : bool
        Whether a line is a metric.
    """

    ranks: dict[str, int] = field(default_factory=dict)
    decimal: str = "."
    long: bool = False


def _survey(rows: Iterator[list[str]]) -> _Survey:
    found = _Survey()
    comma = point = False
    for kernel, metrics in _metrics(rows, Counter()):
        found.ranks.setdefault(kernel.process, len(found.ranks))
        found.long |= kernel.long
        for metric in metrics:
            if metric.is_number:
                comma = comma or _COMMA_SURELY.search(metric.value) is not None
                point = point or _POINT_SURELY.search(metric.value) is not None
    found.decimal = "," if comma and not point else "."
    return found


@dataclass(frozen=True)
class _Metric:
    """One measured value as it is printed."""

    name: str
    unit: str
    value: str

    @property
    def is_number(self) -> bool:
        """Whether the value is printed as a number."""
        return len(self.value) <= _LONGEST_NUMBER and _NUMBER.fullmatch(self.value) is not None


@dataclass(frozen=True)
class _Kernel:
    """What a line says of the kernel that it belongs to."""

    cells: Mapping[str, str]

    @property
    def process(self) -> str:
        """The process that launched it."""
        return self.cells["Process ID"]

    @property
    def long(self) -> bool:
        """Whether each of its metrics has a line."""
        return "Metric Name" in self.cells

    def continues(self, other: "_Kernel") -> bool:
        """Return whether this line and the one before it, `other`, are of one kernel."""
        return self.long and all(self.cells[name] == other.cells.get(name) for name in _SIGN)


def _metrics(rows: Iterator[list[str]], counts: Counter[str]) -> Iterator[tuple[_Kernel, list[_Metric]]]:
    """Yield each line's kernel and metrics; what the profiled program printed before the header is no line."""
    header: list[str] = []
    units: dict[str, str] = {}
    for row in rows:  # a Python loop over the lines, about 10 us each and 3 us a metric
        if all(name in row for name in _SIGN):
            header, units = distinct(row), {}
        elif not header or row[0].startswith("=="):
            continue
        elif len(row) != len(header):
            counts["events"] += 1
            counts["dropped_broken"] += 1
        else:
            cells = dict(zip(header, row, strict=True))
            if not cells["ID"] and not cells["Kernel Name"]:
                units = cells
                continue
            yield _Kernel(cells), _of_line(cells, units, counts)


def _of_line(cells: Mapping[str, str], units: Mapping[str, str], counts: Counter[str]) -> list[_Metric]:
    if "Metric Name" not in cells:
        wide = ((name, text) for name, text in cells.items() if name not in _KERNEL and text)
        return [_Metric(name, units.get(name, ""), text) for name, text in wide]
    if cells["Metric Name"]:
        return [_Metric(cells["Metric Name"], cells.get("Metric Unit", ""), cells.get("Metric Value", ""))]
    counts["events"] += 1
    counts["skipped_advice"] += 1
    return []


class _Kernels:
    """Collects the metrics of a kernel, then gives both to the sink."""

    def __init__(self, sink: Sink, counts: Counter[str], survey: _Survey) -> None:
        self._sink = sink
        self._counts = counts
        self._survey = survey
        self._now: dict[int, int] = {}
        self._kernel: _Kernel | None = None
        self._values: dict[str, tuple[Decimal, str]] = {}
        self._texts: dict[str, str] = {}
        self._kernels: list[dict[str, Any]] = []
        self._counters: list[tuple[int, str, float, str]] = []
        self._bytes = self._measured = 0

    def add(self, kernel: _Kernel, metrics: Sequence[_Metric]) -> None:
        """Take one line."""
        if self._kernel is None or not kernel.continues(self._kernel):
            self._finish()
            self._kernel = kernel
        for metric in metrics:
            self._counts["events"] += 1
            number = _number(metric, self._survey.decimal)
            if number is not None and self._measured < _MOST_METRICS:
                self._measured += 1
                value, unit = base_unit(number, metric.unit)
                self._values.setdefault(metric.name, (value, unit))
                self._counters.append((len(self._kernels), metric.name, float(value), unit))
            elif number is None and 0 < len(metric.value) < _LONGEST_TEXT and len(self._texts) < _MOST_TEXTS:
                self._texts[metric.name] = metric.value
                self._counts["skipped_text"] += 1
            else:
                self._counts["dropped_no_value"] += 1

    def flush(self) -> None:
        """Give everything to the sink."""
        self._finish()
        self._write()

    def _finish(self) -> None:
        kernel = self._kernel
        if kernel is None:
            return
        self._counts["events"] += 1
        rank = self._survey.ranks.get(kernel.process, 0) if len(self._survey.ranks) > 1 else OWN_RANK
        start = self._now.get(rank, 0)
        duration = next((_ns(*self._values[name]) for name in _DURATION if name in self._values), None)
        if duration is not None and not (duration >= 0 and start + duration in TIMES_NS):
            duration = None
        self._now[rank] = start + (duration or 0)
        self._counts["assumed_start"] += 1
        self._counts["missing_duration"] += duration is None
        own = {"rank": rank, "start_ns": start, "dur_ns": duration}
        self._kernels.append(own | _columns(kernel, self._values) | _described(kernel, self._texts, self._counts))
        self._kernel, self._values, self._texts, self._measured = None, {}, {}, 0
        self._bytes += len(self._kernels[-1]["name"]) + len(self._kernels[-1]["args"])
        if len(self._counters) + len(self._kernels) >= _BATCH_METRICS or self._bytes >= _BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._kernels:
            return
        columns = {name: [row[name] for row in self._kernels] for name in self._kernels[0]}
        ids = self._sink.write("kernels", columns)
        self._counts["kept"] += len(ids)
        counters: dict[str, list[Any]] = {
            name: [] for name in ("rank", "start_ns", "kernel_id", "name", "value", "unit")
        }
        for at, name, value, unit in self._counters:
            row = {**{key: self._kernels[at][key] for key in ("rank", "start_ns")}, "kernel_id": int(ids[at])}
            for key, one in {**row, "name": name, "value": value, "unit": unit or None}.items():
                counters[key].append(one)
        self._counts["kept"] += len(self._sink.write("counters", counters))
        self._kernels, self._counters, self._bytes = [], [], 0


def _columns(kernel: _Kernel, values: Mapping[str, tuple[Decimal, str]]) -> dict[str, Any]:
    """Return the typed columns of a kernel, from its metrics or from what every line says."""
    found: dict[str, Any] = {}
    for column, names in _COLUMNS.items():
        value = next((values[name][0] for name in names if name in values), None)
        if column == "occupancy":
            found[column] = None if value is None else float(value)
        else:
            found[column] = None if value is None else whole(value)
    for column, name in (("workgroups", "Grid Size"), ("workgroup_size", "Block Size")):
        if found[column] is None:
            extents = [int(n) for n in re.findall(r"\d{1,10}", kernel.cells.get(name, "")[:64])]
            found[column] = whole(prod(extents)) if extents else None
    found |= {"stream": whole(kernel.cells.get("Stream")), "device": whole(kernel.cells.get("Device"))}
    for column in (*_IN_32_BITS, "device"):
        if found[column] is not None and not 0 <= found[column] < _NARROW:
            found[column] = None
    return found


def _described(kernel: _Kernel, texts: Mapping[str, str], counts: Counter[str]) -> dict[str, Any]:
    name = kernel.cells.get("Kernel Name", "")
    counts["missing_name"] += not name
    named = ("ID", "Process ID", "Context", "CC", "Grid Size", "Block Size")
    args = {key: kernel.cells[key] for key in named if kernel.cells.get(key)} | dict(texts)
    return {"name": name or "unknown", "args": json.dumps(args, separators=(",", ":"))}


def _number(metric: _Metric, sign: str) -> Decimal | None:
    if not metric.is_number:
        return None
    text = re.sub(r"[\s'’]", "", metric.value)
    text = text.replace("." if sign == "," else ",", "").replace(sign, ".")
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    return number if -_SMALLEST < number.adjusted() < _LARGEST else None


def _ns(value: Decimal, unit: str) -> int | None:
    return round(value) if unit == "ns" and abs(value) < TIMES_NS.stop else None


def base_unit(value: Decimal, unit: str) -> tuple[Decimal, str]:
    """Return a value in the unit without its prefix: bytes, hertz, cycles; a time in ns.

    Prefixes are powers of 1000, as Nsight Compute means them. A unit that is not known stays as it is.

    Examples
    --------
    >>> base_unit(Decimal("12.5"), "usecond"), base_unit(Decimal(2), "Kbyte/block")
    ((Decimal('12500.0'), 'ns'), (Decimal('2000'), 'byte/block'))
    >>> base_unit(Decimal("1.5"), "cycle/nsecond")
    (Decimal('1500000000.0'), 'cycle/second')
    """
    over, slash, under = unit.partition("/")
    power, over = _plain(over)
    below, under = _plain(under)
    if not slash and over == "second":
        power, over = power + 9, "ns"
    return _scaled(value, power - below), over + slash + under


def _plain(unit: str) -> tuple[int, str]:
    if unit in _BASES:
        return 0, _BASES[unit]
    if unit[:1] in _PREFIXES and unit[1:] in _BASES:
        return _PREFIXES[unit[0]], _BASES[unit[1:]]
    return 0, unit


def _scaled(value: Decimal, power: int) -> Decimal:
    return value * Decimal(10**power) if power >= 0 else value / Decimal(10**-power)
