"""Rows of work: what kernels that have something in common did, in which time, against the roofline.

A rate, an intensity, a share of the roof and a bound stand for a row if they are known for half of its time or more.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from seqpoint.kernel_facts import TENSORS
from seqpoint.notebook import COMMON, Table, table_of

#: What bounds a kernel.
BOUNDS: Final = ("compute", "memory", "latency", "inefficient", "unknown")
#: Least share of the time of a row for which a figure must be known to stand for the row.
LEAST_KNOWN: Final = 0.5
#: Known share of a row from which it shows as 100 %.
_ALL: Final = 0.995
#: Layout of an input that needs no mark.
_CONTIGUOUS: Final = "contiguous"
#: What can make a row faster than its roof, with the mark in its text and the note on it.
ABOVE: Final = {
    "cache": ("cached", "caches of {cache:,.0f} MB serve operands, or a part of them"),
    "tf32": ("TF32?", "products of FP32 may run in TF32"),
    "device": ("device?", "the device or its clock is another one, or the operators move fewer bytes than counted"),
}


@dataclass(frozen=True)
class WorkRow:
    """Kernels that have something in common; times in ns.

    Parameters
    ----------
    name : str
        What they have in common: the name of an operator, a kernel, a class, a phase or a module.
    shapes : str
        Shapes of the inputs of the operator, as the profiler wrote them; empty if the table has none.
    class_ : str
        Class of kernels with most of the time.
    calls : int
        Number of calls of operators that launched them; a kernel without one counts as a call.
    kernels : int
        Number of kernels.
    time_ns : int
        Sum of their durations.
    share : float
        Share of the time of all kernels.
    min_ns, median_ns, max_ns : float
        Least, median and largest time of a call.
    known_ns : int
        Time of kernels whose FLOP and bytes are known.
    flops, bytes : float
        FLOP and bytes of these.
    moved_ns : int
        Time of kernels whose bytes are known, whether their FLOP are or not.
    moved_bytes : float
        Bytes of these.
    roof_ns : float, optional
        Least time in which the device could do the work of these; None if the device is unknown. Where FLOP are
        unknown, it is the time of the bytes.
    bound : str
        What bounds most of the time of kernels of known bytes, one of `BOUNDS`; unknown if these take less than half
        of the time.
    waves : float, optional
        Median of workgroups over compute units; None if unknown.
    layout : str
        How each input lies in memory (contiguous, strided, expanded), if the time of the operator and shapes depends
        on it; else empty.
    above : str
        Likely cause of a row above its roof, a key of `ABOVE`; else empty.
    """

    name: str
    shapes: str
    class_: str
    calls: int
    kernels: int
    time_ns: int
    share: float
    min_ns: float
    median_ns: float
    max_ns: float
    known_ns: int
    flops: float
    bytes: float
    moved_ns: int
    moved_bytes: float
    roof_ns: float | None
    bound: str
    waves: float | None
    layout: str = ""
    above: str = ""

    @property
    def has_flops(self) -> bool:
        """Whether FLOP are known for half of the time or more."""
        return 0 < self.known_ns >= LEAST_KNOWN * self.time_ns

    @property
    def has_bytes(self) -> bool:
        """Whether bytes are known for half of the time or more."""
        return 0 < self.moved_ns >= LEAST_KNOWN * self.time_ns

    @property
    def known_share(self) -> float:
        """Share of the time that the figures of a row of text stand for."""
        return (self.known_ns if self.has_flops else self.moved_ns) / max(self.time_ns, 1)

    @property
    def flops_per_s(self) -> float | None:
        """FLOP over the time of kernels of known work; None without any."""
        return 1e9 * self.flops / self.known_ns if self.known_ns else None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes over the time of kernels of known bytes; None without any."""
        return 1e9 * self.moved_bytes / self.moved_ns if self.moved_ns else None

    @property
    def intensity(self) -> float | None:
        """FLOP over bytes; None without bytes."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def roof_share(self) -> float | None:
        """Least time over the time that kernels of known bytes took; None if unknown for over half of the time."""
        return self.roof_ns / self.moved_ns if self.roof_ns is not None and self.has_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        facts = {name.rstrip("_"): value for name, value in asdict(self).items()}
        names = ("flops_per_s", "bytes_per_s", "intensity", "roof_share")
        return facts | {name: getattr(self, name) for name in names}


def work_table(by: str, rows: Sequence[WorkRow]) -> Table:
    """Return the table of text of some rows.

    Parameters
    ----------
    by : str
        What a row stands for, one of `seqpoint.characterization.BY`.
    rows : sequence of WorkRow
        The rows.
    """
    shown = [_cells(row) for row in rows]
    columns = {f"{'operator' if by == 'shape' else by}~": "{name}"}
    if by == "shape":
        columns["shapes~"] = "{shapes}"
    elif by not in ("class", "phase"):
        columns["class~"] = "{row.class_}"
    columns |= {
        "kernels" if by == "kernel" else "calls": "{row.calls}", "time": "{row.time_ns:time}",
        "share %": "{row.share:.1%}",
    }  # fmt: skip
    if by in ("shape", "kernel"):
        columns["median"] = "{row.median_ns:time}"
    if by not in ("shape", "kernel"):
        columns["FLOP/B"] = "{intensity:rate}"
    if by != "kernel":
        columns |= {"TFLOP/s": "{tflops:rate}", "GB/s": "{gb:rate}"}
    columns |= {"of roof %": "{row.roof_share:.0%}", "bound~": "{bound}"}
    if any(LEAST_KNOWN <= row.known_share < _ALL for row in rows):
        columns["known %"] = "{row.known_share:.0%}"
    if by in ("shape", "kernel"):
        columns["waves"] = "{row.waves:.2f}"
    title = {"shape": "Operators with their shapes", "class": "Classes"}.get(by, f"{by.capitalize()}s")
    return table_of(f"{title} by time, whole recording", columns, shown)


def _cells(row: WorkRow) -> dict[str, Any]:
    """Return the cells of a row of text."""
    return {
        "row": row,
        "name": COMMON.sub("", row.name),
        "shapes": shapes_text(row.shapes, row.layout),
        "intensity": row.intensity if row.has_flops else None,
        "tflops": (row.flops_per_s or 0.0) / 1e12 if row.has_flops else None,
        "gb": (row.bytes_per_s or 0.0) / 1e9 if row.has_bytes else None,
        "bound": f"{row.bound}, {ABOVE[row.above][0]}" if row.above else row.bound,
    }


def shapes_text(shapes: str, layout: str = "") -> str:
    """Return the shapes of inputs in short: those of scalars are left out. Inputs that are not contiguous are marked.

    Examples
    --------
    >>> shapes_text("[[768],[788,768],[768,768],[],[]]")
    '768, 788x768, 768x768'
    >>> shapes_text("[[4,8],[4,8]]", "contiguous, strided")
    '4x8, 4x8 strided'
    """
    texts = [re.sub(r"\s*,\s*", "x", each.strip()) for each in TENSORS.findall(shapes)]
    marks = ("" if mark == _CONTIGUOUS else f" {mark}" for mark in layout.split(", "))
    return ", ".join(map("".join, zip(texts, marks, strict=False)) if layout else texts)
