"""Rows of a projection: the speed-up, the evidence and the device time of a what-if, and its notes."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replay.graph.graph import KernelGraph
from replay.projection.evidence import Evidence
from replay.what_ifs.what_if import WhatIf, single_steps

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def joined_notes(notes: Sequence[Sequence[str]], iterations: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the notes of several iterations, with notes that differ only in whole numbers joined into one.

    A joined note has the range of each number, and the iterations it holds for.

    Parameters
    ----------
    notes : sequence of sequence of str
        Notes of each iteration.
    iterations : sequence of int
        Number of each iteration; empty if they have none.

    Examples
    --------
    >>> joined_notes([["change_dtype: 12 kernels in fp32"], ["change_dtype: 9 kernels in fp32", "odd"]], [4, 5])
    ('change_dtype: 9 to 12 kernels in fp32 (each of 2 iterations)', 'odd (iteration 5)')
    >>> joined_notes([["12 kernels"]])
    ('12 kernels',)
    """
    by_text: dict[str, dict[int, str]] = {}
    for position, of_iteration in enumerate(notes):
        for note in of_iteration:
            by_text.setdefault(_NUMBER.sub("#", note), {}).setdefault(position, note)
    return tuple(_join_note(alike, len(notes), iterations) for alike in by_text.values())


def _join_note(by_position: dict[int, str], n: int, iterations: Sequence[int]) -> str:
    """Return one of the joined notes, with ranges of its numbers and the iterations it holds for."""
    numbers = [[int(number) for number in _NUMBER.findall(note)] for note in by_position.values()]
    ranges = iter([(min(column), max(column)) for column in zip(*numbers, strict=True)])

    def shown(_: re.Match[str]) -> str:
        low, high = next(ranges)
        return str(low) if low == high else f"{low} to {high}"

    text = _NUMBER.sub(shown, next(iter(by_position.values())))
    if n == 1:
        return text
    if len(by_position) == n:
        return f"{text} (each of {n} iterations)"
    if not iterations:
        return f"{text} ({len(by_position)} of {n} iterations)"
    names = ", ".join(str(iterations[position]) for position in by_position)
    return f"{text} (iteration{'s' * (len(by_position) > 1)} {names})"


#: Relative difference of the steady state from the measurement, and share of communication, that a note tells.
_NOTED = 0.02


def recording_notes(steady: float, communication: float, *, world_size: int, ranks: int) -> list[str]:
    """Return notes on a recording that is not in a steady state, or lacks ranks.

    Parameters
    ----------
    steady : float
        Time of its repeated steps over their measured time.
    communication : float
        Share of communication in the critical path.
    world_size, ranks : int
        Ranks of the job, 0 if unknown, and of the recording.
    """
    notes, missing = [], world_size - ranks
    if abs(steady - 1) > _NOTED:
        change = f"{100 * abs(steady - 1):.1f} % {'longer' if steady > 1 else 'less'}"
        notes.append(
            f"repeated, these iterations take {change} than in the recording, which is not in a steady state: "
            "queues grow or shrink in it. Intervals are wider for that."
        )
    if missing > 0 and communication > _NOTED:
        notes.append(
            f"{missing} of {world_size} ranks were not recorded or read. What these ranks wait for is unknown, so "
            "pace and gains may be far off, also outside the interval; collectives contain the wait for absent ranks"
        )
    return notes


def work_notes(
    what_if: WhatIf, graphs: Sequence[tuple[float, KernelGraph]], before_ns: float, after_ns: float
) -> list[str]:
    """Return the time of a step over its tokens, before and after a what-if that changes the work; else nothing.

    Parameters
    ----------
    what_if : WhatIf
        The what-if.
    graphs : sequence of (float, KernelGraph)
        Graphs, each with the number of steps that it stands for.
    before_ns, after_ns : float
        Time of all these steps.
    """
    # A size that is changed again has the last value.
    named = {step.name.partition(":")[0]: step.tokens for step in single_steps(what_if)}
    edits = [tokens for tokens in named.values() if tokens]
    if not edits:
        return []
    before = after = 0.0
    for steps, graph in graphs:
        pairs = [tokens(graph) for tokens in edits]
        before += steps * pairs[0][0]
        after += steps * pairs[0][0] * math.prod(new / old for old, new in pairs)
    steps = math.fsum(steps for steps, _ in graphs)
    tokens = " and ".join(dict.fromkeys(f"{count / steps:,.0f}" for count in (before, after)))
    times = [f"{ns / count / 1e3:.4g} us" for ns, count in ((before_ns, before), (after_ns, after))]
    return [
        f"{what_if.label}: the job changes, so compare the time of a step over its tokens: {times[0]} before, "
        f"{times[1]} after ({tokens} tokens in a replica's step)"
    ]


#: Reason of a what-if that changes nothing.
NOTHING_CHANGES = "changes no task of these iterations"
#: Reason of a what-if that changes tasks, and no time.
NO_EFFECT = "no task of these iterations starts or ends at another time"


#: Numbers of a row, by their keys in JSON.
ROW_FIGURES = (
    *("projected_ns", "speedup", "low", "high", "kept_share", "measured_share", "derived_share", "assumed_share"),
    *("scaled_share", "modelled_share", "device_before_ns", "device_after_ns", "device_low_ns", "device_high_ns"),
    "energy",
)


@dataclass(frozen=True)
class ProjectionRow:
    """Projection of one what-if.

    A what-if that changes nothing, or cannot be applied, has no figures: its numbers are NaN and `reason` says why.

    Parameters
    ----------
    what_if : tuple of str
        Parts of the what-if, such as ``scale_host:0.5``.
    projected_ns : float
        Weighted sum of the projected step times.
    speedup : float
        Baseline over projected time.
    low, high : float
        Ends of the central 90 % of the speed-up over the draws of the parameters, and of the steps that selected ones
        stand for. They are widened by the error of the replay, and by the difference between the unchanged steady state
        and the measurement.
    evidence : Evidence, optional
        Shares of the projected time by side and by kind of evidence; None without figures.
    device_before_ns, device_after_ns : float
        Time of the steps during which a device is busy, unchanged and under the what-if: mean over the devices. NaN
        without a device.
    device_low_ns, device_high_ns : float
        Ends of the central 90 % of `device_after_ns` over the draws of the parameters.
    notes : tuple of str
        Notes of the what-if, for people.
    title : str
        Title in a plan file.
    reason : str
        Why the what-if is not applicable; empty if it is.
    limited_by : tuple of str
        Resource that limits the steps then, of `replay.graph.edit.LIMITING`, and one that takes nearly as long.
    energy : float
        Energy of the devices in these steps over that without the what-if, by assumed shares of their power limit. NaN
        of what-ifs that change neither the limit nor the device.
    """

    what_if: tuple[str, ...]
    projected_ns: float = math.nan
    speedup: float = math.nan
    low: float = math.nan
    high: float = math.nan
    evidence: Evidence | None = None
    device_before_ns: float = math.nan
    device_after_ns: float = math.nan
    device_low_ns: float = math.nan
    device_high_ns: float = math.nan
    notes: tuple[str, ...] = ()
    title: str = ""
    reason: str = ""
    limited_by: tuple[str, ...] = ()
    energy: float = math.nan

    @property
    def label(self) -> str:
        """Title of the what-if, or its parts in one line; its key in `Projection.timelines`."""
        return self.title or "+".join(self.what_if)

    @property
    def applied(self) -> bool:
        """Whether the what-if changed a step, so that the row has figures."""
        return not self.reason

    @property
    def kept_share(self) -> float:
        """Share of the projected time that stays as recorded."""
        return self._share("kept")

    @property
    def measured_share(self) -> float:
        """Share of the projected time that stays as recorded, under its first name."""
        return self.kept_share

    @property
    def scaled_share(self) -> float:
        """Share of the projected time that is scaled from a measurement, by figures that have a source."""
        return self._share("scaled")

    @property
    def modelled_share(self) -> float:
        """Share of the projected time that a model gives."""
        return self._share("modelled")

    @property
    def derived_share(self) -> float:
        """Share of the projected time that is scaled or modelled."""
        return self._share("scaled", "modelled")

    @property
    def assumed_share(self) -> float:
        """Share of the projected time that rests on assumptions."""
        return self._share("assumed")

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON; a number that is NaN is None."""
        figures = {name: getattr(self, name) for name in ROW_FIGURES}
        return {
            "title": self.title,
            "what_if": list(self.what_if),
            "applied": self.applied,
            "reason": self.reason or None,
            **{name: None if math.isnan(value) else value for name, value in figures.items()},
            "limited_by": list(self.limited_by),
            "evidence": None if self.evidence is None else self.evidence.to_dict(),
            "notes": list(self.notes),
        }

    def _share(self, *kinds: str) -> float:
        return math.nan if self.evidence is None else min(self.evidence.share(*kinds), 1.0)
