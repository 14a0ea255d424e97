"""`NcuReader`: output of ``ncu --csv``, with a metric in each line, or a kernel in each line (``--page raw``).

Nsight Compute prints numbers in the locale of the user, so a file is read twice. The first pass (`_survey`) finds the
decimal sign of the whole file. It is a comma if some number can only be read so (``0,53``, ``1.234,5``) and none the
other way. If all commas are followed by groups of three digits (``1,234``), they separate thousands, as in English
locales and in C.UTF-8. So a German file that has only such numbers is read wrongly; it does not state its locale.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from profilers.files import shipped_table
from profilers.readers.common.csv_rows import CountedKernels, check_not_empty, csv_rows, distinct
from profilers.readers.common.numbers import INT32_LIMIT, TIMES_NS, integer
from profilers.readers.common.reader import Head, Sink
from profilers.trace.quality import Quality
from profilers.trace.schema import OWN_RANK
from profilers.trace.trace import TraceMeta


class _NcuFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `datasets/formats/ncu.toml`."""

    kernel: frozenset[str]
    duration: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    prefixes: dict[str, int]
    units: dict[str, str]


_FORMAT = shipped_table("formats/ncu.toml", "words of Nsight Compute", _NcuFormat)
_SIGN = ("ID", "Process ID", "Kernel Name")
_IN_32_BITS = frozenset({"registers", "workgroup_size"})
_NUMBER = re.compile(r"[-+]?[\d.,'’\s]+(?:[eE][-+]?\d{1,3})?")
_LONGEST_NUMBER = 40
#: Largest power of ten, and largest negative one, that fits float64 with any prefix of a unit.
_LARGEST_EXPONENT = 250
#: Numbers whose decimal sign can only be a comma, and only a point.
_COMMA_SURELY = re.compile(r",(?!\d{3}(?!\d))|^[-+]?0?,|\.\d+,|\.\d{3}\.")
_POINT_SURELY = re.compile(r"\.(?!\d{3}(?!\d))|^[-+]?0?\.|,\d+\.|,\d{3},")
#: Most metrics of a kernel, characters of a text and texts of a kernel; a file with more is damaged.
_MOST_METRICS = 65536
_LONGEST_TEXT, _MOST_TEXTS = 4096, 1000

Cells = Mapping[str, str]
#: Name, unit and value of a metric, as they are printed.
Metric = tuple[str, str, str]


class NcuReader:
    """Nsight Compute's CSV (ncu --csv), in long form or of --page raw: kernels with their metrics as counters."""

    name = "ncu"

    def sniff(self, head: Head) -> bool:
        """Return whether a line near the start of a file names Nsight Compute's columns."""
        lines = head.start.decode("utf-8", "replace").splitlines()
        return any(all(f'"{name}"' in line for name in _SIGN) for line in lines)

    def read(self, files: Sequence[Path], sink: Sink) -> TraceMeta:
        """Give the kernels and metrics of one file to `sink`.

        Nsight Compute runs one kernel at a time and records no clock, so each kernel starts where the last one ends.

        Raises
        ------
        BrokenFileError
            The file holds no line that can be used.
        """
        (path,) = files
        with csv_rows(path, sink, Counter()) as rows:
            ranks, decimal, form = _survey(rows)
        counts: Counter[str] = Counter()
        with csv_rows(path, sink, counts) as rows:
            kernels = _Kernels(sink, counts, ranks, decimal)
            for cells, metrics in _metrics(rows, counts):
                kernels.add(cells, metrics)
            kernels.flush()
        check_not_empty(path, counts)
        numbers = tuple(ranks.values()) if len(ranks) > 1 else ()
        return TraceMeta(self.name, f"csv {form}", (path.name,), numbers, quality=Quality(counts))


def _survey(rows: Iterator[list[str]]) -> tuple[dict[str, int], str, str]:
    """Return the rank of each process in their order, the decimal sign of the numbers, and the form of the file."""
    ranks: dict[str, int] = {}
    form = "raw"
    comma = point = False
    for cells, metrics in _metrics(rows, Counter()):
        ranks.setdefault(cells["Process ID"], len(ranks))
        form = "long" if "Metric Name" in cells else form
        for _, _, value in metrics:
            if _is_number(value):
                comma = comma or _COMMA_SURELY.search(value) is not None
                point = point or _POINT_SURELY.search(value) is not None
    return ranks, "," if comma and not point else ".", form


def _is_number(text: str) -> bool:
    """Return whether a value is printed as a number."""
    return len(text) <= _LONGEST_NUMBER and _NUMBER.fullmatch(text) is not None


def _metrics(rows: Iterator[list[str]], counts: Counter[str]) -> Iterator[tuple[Cells, list[Metric]]]:
    """Yield cells and metrics of each line; output of the profiled program before the header is skipped."""
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
            yield cells, _line_metrics(cells, units, counts)


def _line_metrics(cells: Cells, units: Cells, counts: Counter[str]) -> list[Metric]:
    """Return the metrics of a line; a line of advice has none and is counted."""
    if "Metric Name" not in cells:
        return [
            (name, units.get(name, ""), text) for name, text in cells.items() if name not in _FORMAT.kernel and text
        ]
    if cells["Metric Name"]:
        return [(cells["Metric Name"], cells.get("Metric Unit", ""), cells.get("Metric Value", ""))]
    counts["events"] += 1
    counts["skipped_advice"] += 1
    return []


class _Kernels:
    """Kernels with their metrics, collected line by line and given to a sink in batches."""

    def __init__(self, sink: Sink, counts: Counter[str], ranks: Mapping[str, int], decimal: str) -> None:
        self._kernels = CountedKernels(sink, counts)
        self._counts = counts
        self._ranks = ranks
        self._decimal = decimal
        self._end_ns: dict[int, int] = {}
        #: Cells, numbers and texts of the current kernel, whose last line was not read yet.
        self._cells: Cells = {}
        self._values: dict[str, tuple[Decimal, str]] = {}
        self._texts: dict[str, str] = {}
        self._metric_count = 0

    def add(self, cells: Cells, metrics: Sequence[Metric]) -> None:
        """Add one line, which belongs to the kernel of the line before if both name the same."""
        if "Metric Name" not in cells or any(cells[name] != self._cells.get(name) for name in _SIGN):
            self._finish()
            self._cells = cells
        for name, printed_unit, text in metrics:
            self._counts["events"] += 1
            number = _number(text, self._decimal)
            if number is not None and self._metric_count < _MOST_METRICS:
                self._metric_count += 1
                value, unit = base_unit(number, printed_unit)
                self._values.setdefault(name, (value, unit))
                self._kernels.add_counter({"name": name, "value": float(value), "unit": unit or None})
            elif number is None and 0 < len(text) < _LONGEST_TEXT and len(self._texts) < _MOST_TEXTS:
                self._texts[name] = text
                self._counts["skipped_text"] += 1
            else:
                self._counts["dropped_no_value"] += 1

    def flush(self) -> None:
        """Give all kernels collected to the sink."""
        self._finish()
        self._kernels.flush()

    def _finish(self) -> None:
        """Complete the current kernel, whose last line was read."""
        if not self._cells:
            return
        cells = self._cells
        rank = self._ranks.get(cells["Process ID"], 0) if len(self._ranks) > 1 else OWN_RANK
        start = self._end_ns.get(rank, 0)
        value, unit = next((self._values[name] for name in _FORMAT.duration if name in self._values), (Decimal(-1), ""))
        duration = round(value) if unit == "ns" and round(value) in range(TIMES_NS.stop - start) else None
        self._end_ns[rank] = start + (duration or 0)
        name = cells.get("Kernel Name", "")
        keys = ("ID", "Process ID", "Context", "CC", "Grid Size", "Block Size")
        args = json.dumps({key: cells[key] for key in keys if cells.get(key)} | self._texts, separators=(",", ":"))
        time = {"rank": rank, "start_ns": start, "dur_ns": duration}
        self._kernels.add({**time, **_columns(cells, self._values), "name": name or "unknown", "args": args})
        self._counts["events"] += 1
        self._counts["assumed_start"] += 1
        self._counts["missing_duration"] += duration is None
        self._counts["missing_name"] += not name
        self._cells, self._values, self._texts, self._metric_count = {}, {}, {}, 0


def _columns(cells: Cells, values: Mapping[str, tuple[Decimal, str]]) -> dict[str, Any]:
    """Return the typed columns of a kernel, from its metrics or else from the cells of its lines."""
    columns: dict[str, Any] = {"stream": integer(cells.get("Stream")), "device": integer(cells.get("Device"))}
    for column, names in _FORMAT.columns.items():
        value = next((values[name][0] for name in names if name in values), None)
        columns[column] = None if value is None else float(value) if column == "occupancy" else integer(value)
    for column, name in (("workgroups", "Grid Size"), ("workgroup_size", "Block Size")):
        if columns[column] is None:
            extents = [int(n) for n in re.findall(r"\d{1,10}", cells.get(name, "")[:64])]
            columns[column] = integer(prod(extents)) if extents else None
    for column in (*_IN_32_BITS, "device"):
        if columns[column] is not None and not 0 <= columns[column] < INT32_LIMIT:
            columns[column] = None
    return columns


def _number(text: str, decimal: str) -> Decimal | None:
    """Return the value of a metric, None if it is no number; `decimal` is the decimal sign."""
    if not _is_number(text):
        return None
    plain = re.sub(r"[\s'’]", "", text).replace("." if decimal == "," else ",", "").replace(decimal, ".")
    try:
        number = Decimal(plain)
    except ArithmeticError:
        return None
    return number if -_LARGEST_EXPONENT < number.adjusted() < _LARGEST_EXPONENT else None


def base_unit(value: Decimal, unit: str) -> tuple[Decimal, str]:
    """Return a value in the unit without prefix, such as byte, hz or cycle, and that unit; times are in ns.

    Prefixes are powers of 1000, as in Nsight Compute. An unknown unit stays as it is.

    Parameters
    ----------
    value : Decimal
        Value in `unit`.
    unit : str
        Unit as Nsight Compute prints it, such as ``Kbyte/block``.

    Examples
    --------
    >>> base_unit(Decimal("12.5"), "usecond"), base_unit(Decimal(2), "Kbyte/block")
    ((Decimal('12500.0'), 'ns'), (Decimal('2000'), 'byte/block'))
    >>> base_unit(Decimal("1.5"), "cycle/nsecond")
    (Decimal('1500000000.0'), 'cycle/second')
    """
    numerator, slash, denominator = unit.partition("/")
    power, numerator = _without_prefix(numerator)
    denominator_power, denominator = _without_prefix(denominator)
    if not slash and numerator == "second":
        power, numerator = power + 9, "ns"
    power -= denominator_power
    scale = Decimal(10 ** abs(power))
    return value * scale if power >= 0 else value / scale, numerator + slash + denominator


def _without_prefix(unit: str) -> tuple[int, str]:
    """Return the power of ten of a unit's prefix, and the unit without it."""
    prefixes, units = _FORMAT.prefixes, _FORMAT.units
    if unit in units:
        return 0, units[unit]
    if unit[:1] in prefixes and unit[1:] in units:
        return prefixes[unit[0]], units[unit[1:]]
    return 0, unit
