"""Where the time of a trace goes: operators, shapes, kernels, modules and phases, each against the roofline.

`characterize_trace` sums the columns of `seqpoint.kernel_facts`. Every table has each kernel in exactly one row, so its
times add up to the time of all kernels. Rates compare FLOP and bytes of the operators to the device's peaks
(Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.files import replaced_file
from profilers.trace.arrays import MISSING, Floats, Ints, row_keys
from profilers.trace.columns import row_groups
from profilers.trace.exchanges import ExchangeSizes, exchange_sizes
from profilers.trace.kernels import COLLECTIVE
from profilers.trace.steps import step_times
from profilers.trace.trace import Trace
from replay.graph.graph import given_hardware
from seqpoint.communication import (
    CollectiveRow,
    ExchangeRow,
    LaunchQueue,
    RankRow,
    collective_rows,
    exchange_rows,
    launch_queues,
    rank_rows,
    straggler_line,
)
from seqpoint.description import cost_notes
from seqpoint.kernel_facts import (
    KERNEL_PHASES,
    KernelFacts,
    Texts,
    input_layouts,
    kernel_facts,
    matrix_peaks,
    operators_or_reasons,
    peak_of,
)
from seqpoint.notebook import DataFrame, Result, Table, by_rank, counted, data_frame, table_of
from seqpoint.serving import ServingRow, serving_rows, serving_table
from seqpoint.units import duration
from seqpoint.work_rows import ABOVE, BOUNDS, LEAST_KNOWN, WorkRow, work_table

if TYPE_CHECKING:
    from seqpoint.plots.frame import Chart

#: What a table can have rows of.
BY: Final = ("operator", "shape", "kernel", "class", "phase", "module")
#: Kinds of charts.
CHARTS: Final = ("roofline", "treemap", "icicle")
#: Tables that the command prints.
SHOWN: Final = ("operator", "class", "shape", "phase", "module")
#: Classes of kernels whose FLOP count for model FLOP utilisation.
_MATRIX: Final = ("gemm", "convolution", "attention", "rnn")
#: Least share of the time of such kernels with known FLOP, for a figure of all.
_ENOUGH: Final = 0.8
#: Time of a kernel without work, ns: a few us from its launch on the device to its end.
_EMPTY_NS: Final = 3e3
#: Longest time that latency alone explains, ns, and share of its roof below which a longer kernel is inefficient.
_LATENCY_NS, _INEFFICIENT = 1e4, 0.1
#: Share of the roof below which a kernel that could be shorter than an empty one is bound by latency.
_FAR: Final = 0.5
#: Share of the kernel time without a launch from which a note tells.
_LOST: Final = 0.01
#: A share of the roof above this says that the device, a type, a shape or a cache makes a figure wrong.
_ABOVE: Final = 1.02
#: Name of kernels outside of modules.
_NO_MODULE: Final = "(no module)"
#: Bytes of a megabyte of a cache.
_MB: Final = 1 << 20
#: Times of one operator and shapes differ by layout from this ratio of their means.
_LAYOUT_RATIO: Final = 1.1
#: Most classes that the first sentence names.
_MOST_CLASSES: Final = 4


@dataclass(frozen=True)
class Utilisation:
    """Model FLOP utilisation: FLOP of matrix kernels over what the devices could do in the time of the steps.

    Parameters
    ----------
    share : float
        The utilisation. Chowdhery et al., PaLM (arXiv 2204.02311), appendix B.
    known : float
        Share of the time of matrix kernels whose FLOP are known; below 1, the utilisation is a lower bound.
    """

    share: float
    known: float


@dataclass(frozen=True, repr=False)
class Characterization(Result):
    """Where the time of a trace goes.

    Parameters
    ----------
    trace : Trace
        The trace.
    facts : KernelFacts
        Its kernels.
    """

    heading = "Characterisation"

    trace: Trace
    facts: KernelFacts

    def rows(self, by: str = "operator") -> tuple[WorkRow, ...]:
        """Return a row for each operator, operator with shapes, kernel, class, phase or module, most time first.

        Parameters
        ----------
        by : str
            One of `BY`.

        Raises
        ------
        InvalidInputError
            `by` is none of them.
        """
        keys, *texts = self._keys(by)
        by_call = np.argsort(self._calls, kind="stable")
        groups = (by_call[group] for group in row_groups(*keys[:, by_call]))
        rows = [self._row([text[group[0]] for text in texts], group) for group in groups]
        return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.name, row.shapes, row.layout)))

    def _keys(self, by: str) -> tuple[Ints, Sequence[str], Sequence[str], Sequence[str]]:
        """Return what tells the kernels of a table's rows apart, and the name, shapes and layout of each kernel."""
        facts = self.facts
        empty = Texts(np.full(len(facts), -1), (), "")
        columns: dict[str, tuple[Ints, tuple[str, ...]]] = {
            "operator": self._operators,
            "shape": self._operators,
            "kernel": (facts.name, facts.names),
            "class": (facts.class_, facts.classes),
            "phase": (facts.phase, KERNEL_PHASES),
            "module": (self._module_types[0], self._module_types[1]),
        }
        if by not in columns:
            raise InvalidInputError(f"a table by {by!r}: it is by one of {', '.join(BY)}")
        codes, texts = columns[by]
        names = Texts(codes, texts, _NO_MODULE)
        if by != "shape":
            return codes[None], names, empty, empty
        layout, layouts = self._layouts
        keys = np.stack([codes, facts.shape, layout])
        return keys, names, Texts(facts.shape, facts.shapes, ""), Texts(layout, layouts, "")

    @cached_property
    def _operators(self) -> tuple[Ints, tuple[str, ...]]:
        """Operator of each kernel, or why it has none, as codes, and their names."""
        return operators_or_reasons(self.trace, self.facts)

    @cached_property
    def _layouts(self) -> tuple[Ints, tuple[str, ...]]:
        """Layout of the inputs of each kernel if the time of its operator and shapes depends on it, and their texts."""
        facts, (layout, texts) = self.facts, input_layouts(self.trace, self.facts)
        same = np.unique(row_keys(facts.operator, facts.shape), return_inverse=True)[1]
        _, first, group = np.unique(row_keys(same, layout), return_index=True, return_inverse=True)
        first_of_call = np.unique(self._calls, return_index=True)[1]
        calls = np.bincount(group[first_of_call], minlength=len(first))
        mean = np.bincount(group, weights=facts.duration_ns, minlength=len(first)) / np.maximum(calls, 1)
        least, most = np.full(len(facts), np.inf), np.zeros(len(facts))
        np.minimum.at(least, same[first], mean)
        np.maximum.at(most, same[first], mean)
        return np.where((most > _LAYOUT_RATIO * least)[same], layout, -1), texts

    @cached_property
    def _module_types(self) -> tuple[Ints, tuple[str, ...]]:
        """Type of the module of each kernel, without the number that the profiler adds to each instance."""
        types = [name.rsplit("_", 1)[0] if name.rsplit("_", 1)[-1].isdigit() else name for name in self.facts.modules]
        distinct = tuple(dict.fromkeys(types))
        code = np.array([*(distinct.index(each) for each in types), -1], dtype=np.int64)
        return code[self.facts.module], distinct

    @cached_property
    def _calls(self) -> Ints:
        """Call of each kernel; a kernel without one has a negative number of its own."""
        return np.where(self.facts.call >= 0, self.facts.call, -2 - np.arange(len(self.facts)))

    def _row(self, texts: Sequence[str], rows: Ints) -> WorkRow:
        """Return the row of some kernels, which are ordered by call, from its name, shapes and layout."""
        facts, time = self.facts, self.facts.duration_ns[rows]
        by_call = np.add.reduceat(time, np.flatnonzero(np.diff(self._calls[rows], prepend=MISSING)))
        known, moved = np.isfinite(facts.flops[rows]), np.isfinite(facts.bytes[rows])
        by_class = np.bincount(facts.class_[rows], weights=time, minlength=len(facts.classes))
        device, total = facts.hardware.device, int(time.sum())
        grid, moved_ns = facts.workgroups[rows], int(time[moved].sum())
        roof_ns = None if device is None else float(self._roof_ns[rows][moved].sum())
        return WorkRow(
            texts[0],
            texts[1],
            facts.classes[int(by_class.argmax())],
            len(by_call),
            len(rows),
            total,
            total / max(facts.total_ns, 1),
            float(by_call.min()),
            float(np.median(by_call)),
            float(by_call.max()),
            int(time[known].sum()),
            float(facts.flops[rows][known].sum()),
            float(facts.bytes[rows][known].sum()),
            moved_ns,
            float(facts.bytes[rows][moved].sum()),
            roof_ns,
            self._bound(rows[moved]) if moved_ns >= LEAST_KNOWN * total else BOUNDS[-1],
            float(np.median(grid[grid > 0])) / facts.hardware.compute_units if device and (grid > 0).any() else None,
            texts[2],
            self._above(rows[moved]) if (roof_ns or 0.0) > _ABOVE * moved_ns >= _ABOVE * LEAST_KNOWN * total else "",
        )

    def _above(self, rows: Ints) -> str:
        """Return the likely cause why some kernels are faster than their roof, a key of `ABOVE`.

        A cache can hold its size of what a kernel reads, and again of what it writes, so that memory moves less.
        """
        facts, (arithmetic, memory) = self.facts, (limits[rows] for limits in self._limits_ns)
        excess = np.maximum(self._roof_ns[rows] - facts.duration_ns[rows], 0.0)
        is_cached = facts.bytes[rows] * excess <= 2 * _MB * self._cache_mb * memory
        is_fp32 = facts.in_classes(_MATRIX)[rows] & (facts.dtype[rows] == tuple(DTYPES).index("fp32"))
        cause = np.where(arithmetic >= memory, np.where(is_fp32, 1, 2), np.where(is_cached, 0, 2))
        return tuple(ABOVE)[int(np.bincount(cause, weights=excess).argmax())]

    @property
    def _cache_mb(self) -> float:
        """Size of the last cache of the device in MB; 0 if unknown."""
        figures = self.facts.hardware.device.figures if self.facts.hardware.device else {}
        return max((figures[name].value for name in ("l2_mb", "llc_mb") if name in figures), default=0.0)

    def _bound(self, rows: Ints) -> str:
        """Return what bounds most of the time of some kernels."""
        if not len(rows):
            return BOUNDS[-1]
        time = np.bincount(self._bounds[rows], weights=self.facts.duration_ns[rows], minlength=len(BOUNDS))
        return BOUNDS[int(time.argmax())]

    @cached_property
    def _limits_ns(self) -> tuple[Floats, Floats]:
        """Time of the arithmetic and of the memory traffic of each kernel at the peaks; NaN if unknown."""
        facts = self.facts
        result = np.full((2, len(facts)), np.nan)
        if facts.hardware.device is None:
            return result[0], result[1]
        peaks = matrix_peaks(facts.hardware.device)
        is_matrix = facts.in_classes(_MATRIX)
        peak = np.where(is_matrix, peaks[facts.dtype], peak_of(facts.hardware.device, "fp32"))
        return 1e9 * facts.flops / peak, 1e9 * facts.bytes / facts.hardware.device.memory_bytes_per_s

    @cached_property
    def _roof_ns(self) -> Floats:
        arithmetic, memory = self._limits_ns
        return np.where(np.isnan(self.facts.flops), memory, np.maximum(arithmetic, memory))

    @cached_property
    def _bounds(self) -> Ints:
        """What bounds each kernel, as an index into `BOUNDS`."""
        arithmetic, memory = self._limits_ns
        time = self.facts.duration_ns
        bound = np.where(arithmetic >= memory, BOUNDS.index("compute"), BOUNDS.index("memory"))
        short = (self._roof_ns < _EMPTY_NS) & (self._roof_ns < _FAR * time) & (time <= _LATENCY_NS)
        bound[(time > _LATENCY_NS) & (self._roof_ns < _INEFFICIENT * time)] = BOUNDS.index("inefficient")
        bound[short & (self._roof_ns > 0)] = BOUNDS.index("latency")
        unsure = np.isnan(self.facts.flops) & ~(self._roof_ns >= _FAR * time) & ~short
        bound[unsure | ~(self._roof_ns > 0)] = BOUNDS.index("unknown")
        return np.asarray(bound)

    @cached_property
    def bound_shares(self) -> dict[str, float]:
        """Share of the time of all kernels that each of `BOUNDS` bounds."""
        time = np.bincount(self._bounds, weights=self.facts.duration_ns, minlength=len(BOUNDS))
        return {name: float(each) / max(self.facts.total_ns, 1) for name, each in zip(BOUNDS, time, strict=True)}

    @cached_property
    def utilisation(self) -> Utilisation | None:
        """Model FLOP utilisation of the steps; None without steps, a device, or matrix kernels of known FLOP."""
        facts, steps = self.facts, step_times(self.trace)
        is_matrix = facts.in_classes(_MATRIX)
        inside = is_matrix & (facts.iteration >= 0)
        total = float(facts.duration_ns[inside].sum())
        known = inside & np.isfinite(self._limits_ns[0])
        if not known.any() or not total or facts.hardware.device is None:
            return None
        devices = len(np.unique(row_keys(facts.rank[inside], facts.device[inside])))
        ranks = len(np.unique(steps.rank)) or 1
        elapsed = float(steps.step_ns.sum()) * devices / ranks
        if not elapsed:
            return None
        share = float(self._limits_ns[0][known].sum()) / elapsed
        return Utilisation(share, float(facts.duration_ns[known].sum()) / total)

    @cached_property
    def serving(self) -> tuple[ServingRow, ...]:
        """Steps of serving by phase; empty if no annotation states their requests."""
        is_matrix = self.facts.in_classes(_MATRIX)
        return serving_rows(self.facts, step_times(self.trace), self._limits_ns, is_matrix, self._bounds)

    @cached_property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Collectives by kind and size, most time first."""
        return collective_rows(self.trace)

    @cached_property
    def exchange_sizes(self) -> ExchangeSizes:
        """Elements that the all-to-alls move."""
        return exchange_sizes(self.trace)

    @cached_property
    def exchanges(self) -> tuple[ExchangeRow, ...]:
        """All-to-alls by group of ranks and direction, with the shares of their ranks."""
        return exchange_rows(self.trace, self.exchange_sizes)

    @cached_property
    def ranks(self) -> tuple[RankRow, ...]:
        """Time of each device by cause, and how its rank holds others up."""
        return rank_rows(self.trace, self.facts)

    @cached_property
    def launches(self) -> tuple[LaunchQueue, ...]:
        """Launches and the queue of each device."""
        return launch_queues(self.trace)

    def roofs(self) -> dict[str, float]:
        """Return the peak of each data type of matrix kernels with known FLOP, in FLOP/s, and of FP32 outside them."""
        facts, device = self.facts, self.facts.hardware.device
        if device is None:
            return {}
        is_matrix = facts.in_classes(_MATRIX)
        used = np.unique(facts.dtype[is_matrix & (facts.flops > 0)]).tolist()
        peaks, vector = matrix_peaks(device), peak_of(device, "fp32")
        roofs = {tuple(DTYPES)[code]: float(peaks[code]) for code in used if code >= 0}
        if roofs.get("fp32", vector) != vector:
            roofs["fp32 matrix"] = roofs["fp32"]
        return {name: peak for name, peak in (roofs | {"fp32": vector}).items() if np.isfinite(peak)}

    def nested(self, levels: Sequence[str]) -> dict[tuple[str, ...], int]:
        """Return the time of kernels by what they have in common, level by level, ns.

        Parameters
        ----------
        levels : sequence of str
            What tells kernels apart at each level, each one of `BY`.

        Returns
        -------
        dict of tuple of str to int
            Time by path; parents before their children, and those of one parent by time.
        """
        keys = [self._keys(level) for level in levels]
        result: dict[tuple[str, ...], int] = {}

        def fill(path: tuple[str, ...], rows: Ints) -> None:
            if len(path) == len(levels):
                return
            codes, names, *_ = keys[len(path)]
            _, first, group = np.unique(codes[0][rows], return_index=True, return_inverse=True)
            times = np.bincount(group, weights=self.facts.duration_ns[rows])
            for number in np.argsort(-times, kind="stable").tolist():
                child = (*path, names[rows[first[number]]])
                result[child] = int(times[number])
                fill(child, rows[group == number])

        fill((), np.arange(len(self.facts)))
        return result

    def table(self, by: str = "operator") -> DataFrame:
        """Return a row for each operator, or what `by` names, most time first; times in ns."""
        return data_frame([row.to_dict() for row in self.rows(by)])

    def save(self, path: str | Path, by: str = "operator") -> Path:
        """Write `table` to a file, its kind told by the name; an older file stays until the new one is complete.

        A name that ends in ``.xlsx`` or ``.md`` gives all tables, as of any result.

        Raises
        ------
        InvalidInputError
            The name ends in none of ``.csv``, ``.parquet``, ``.xlsx`` and ``.md``, or the file cannot be written.
        """
        file, table = Path(path), self.table(by)
        if file.suffix in (".xlsx", ".md"):
            return super().save(file)
        if file.suffix not in (".csv", ".parquet"):
            raise InvalidInputError(f"{file}: a table is written as .csv or .parquet, all tables as .xlsx or .md")
        with replaced_file(file) as stream:
            if file.suffix == ".csv":
                table.to_csv(stream, index=False)
            else:
                table.to_parquet(stream, index=False)
        return file

    def plot(self, kind: str = "roofline") -> "Chart":
        """Return a chart as a HoloViews object.

        Parameters
        ----------
        kind : str
            ``"roofline"``, ``"treemap"`` (operators by time) or ``"icicle"`` (phases, classes and operators).

        Raises
        ------
        InvalidInputError
            There is no such kind, or nothing to draw.
        """
        from seqpoint.plots.operators import operator_treemap, phase_icicle, roofline

        if kind not in CHARTS:
            raise InvalidInputError(f"a chart {kind!r}: it is one of {', '.join(CHARTS)}")
        if kind == "roofline":
            return roofline(self.table("shape"), self.facts.hardware.device, self.roofs())
        if kind == "treemap":
            return operator_treemap(self.table(), [row.name for row in self.rows("class")])
        return phase_icicle(self.nested(("phase", "class", "operator")))

    def summary(self) -> list[str]:
        """Return how much time kernels take, what bounds them, and how much of the peak the steps use."""
        facts, shares = self.facts, self.bound_shares
        if not len(facts):
            return ["the trace holds no kernel of a GPU; `seqpoint describe TRACE` shows what it holds"]
        device = facts.hardware.device
        largest = [f"{row.name} {100 * row.share:.0f} %" for row in self.rows("class")[:_MOST_CLASSES]]
        lines = [f"{counted(len(facts), 'kernel')} take {duration(facts.total_ns)}: {', '.join(largest)}"]
        lines = [row.sentence() for row in self.serving] + lines
        line = None if self.trace.meta.represents_others else straggler_line(self.ranks)
        lines += [] if line is None else [line]
        if device is not None:
            peaks = ", ".join(f"{peak / 1e12:,.1f} TFLOP/s in {name}" for name, peak in self.roofs().items())
            lines.append(f"roofs of {device.name}: {peaks}; {device.memory_bytes_per_s / 1e9:,.0f} GB/s")
        if device is not None and shares["unknown"] < 1:
            moving = float(facts.duration_ns[facts.in_classes((COLLECTIVE,))].sum()) / max(facts.total_ns, 1)
            shown = {
                "bound by compute": shares["compute"],
                "by memory": shares["memory"],
                "by latency": shares["latency"],
            }
            shown |= {"far below the roof": shares["inefficient"]} if shares["inefficient"] else {}
            shown |= {"communication": moving} if moving else {}
            shown |= {"unknown": shares["unknown"] - moving}
            bounds = ", ".join(f"{100 * share:.0f} % {text}" for text, share in shown.items())
            lines.append(f"of their time, {bounds}")
        if self.utilisation is not None:
            use = self.utilisation
            least = (
                "" if use.known > _ENOUGH else f" at least: FLOP are known for {100 * use.known:.0f} % of their time"
            )
            lines.append(f"matrix kernels use {100 * use.share:.1f} % of the peak in the time of the steps{least}")
        return lines

    def notes(self) -> tuple[str, ...]:
        """Return what the trace does not tell, and figures that cannot be right."""
        facts, notes = self.facts, []
        if not len(facts):
            return ()
        share, moved = (
            facts.duration_ns[np.isfinite(figures)].sum() / max(facts.total_ns, 1)
            for figures in (facts.flops, facts.bytes)
        )
        orphan = facts.launch < 0
        if (lost := facts.duration_ns[orphan].sum() / max(facts.total_ns, 1)) > _LOST:
            lack = f"{100 * lost:.0f} % of the kernel time has no launch in the trace"
            notes.append(f"{lack}: start to profile before the first step")
        missing = (self.trace.meta.world_size or 0) - len(self.trace.meta.ranks)
        if missing > 0 and facts.in_classes((COLLECTIVE,)).any():
            notes.append(f"{missing} ranks were not recorded or read: times of collectives contain the wait for them")
        if facts.hardware.device is None:
            notes.append("the trace does not name its device, so rates have no roof; add --device NAME")
        if not any(facts.shapes):
            notes.append("no operator has shapes, so FLOP and bytes are unknown; record with record_shapes=True")
        elif share < _FAR:
            flop, bytes_ = f"FLOP are known for {100 * share:.0f} %", f"bytes for {100 * moved:.0f} %"
            notes.append(f"{flop} and {bytes_} of the kernel time (operators with shapes)")
        if not facts.modules:
            notes.append("the trace names no module; record with with_modules=True or with_stack=True")
        notes += [*self._exchange_notes(), *cost_notes(self.trace)]
        above = [row for row in self.rows("shape") if row.above]
        for cause, (_, why) in ABOVE.items():
            if named := [f"{row.name} {row.shapes}".strip() for row in above if row.above == cause]:
                rows = f"{counted(len(named), 'row')} of operators and shapes above the roof, such as {named[0][:80]}"
                notes.append(f"{rows}: {why.format(cache=self._cache_mb)}")
        return tuple(notes)

    def _exchange_notes(self) -> list[str]:
        """Return a note on all-to-alls of unknown sizes."""
        unknown, calls = (sum(getattr(row, name) for row in self.exchanges) for name in ("unknown", "calls"))
        lists = [f"{count} lists of split sizes are {problem}" for problem, count in self.exchange_sizes.unread.items()]
        if unknown:
            more = "execution traces have them (`seqpoint ingest --execution-trace`)"
            lists.append(f"{unknown} of {calls} all-to-alls are of unknown sizes, so shares of ranks are, too; {more}")
        return ["; ".join(lists)] if lists else []

    def tables(self, by: Sequence[str] = ()) -> tuple[Table, ...]:
        """Return the tables of text.

        Parameters
        ----------
        by : sequence of str
            Tables to return, each one of `BY`; by default those that the trace tells.
        """
        tables = [] if by else [serving_table(self.serving)]
        tables += [self.text_table(each) for each in by or self._told()]
        tables += [self.ranks_table(), self._collectives_text(), self._exchanges_text(), self._launches_text()]
        return tuple(table for table in tables if table.rows)

    def _told(self) -> tuple[str, ...]:
        """Return the tables to show: those that the trace tells, and kernels by name if it tells no operator."""
        facts = self.facts
        told = {
            "phase": (facts.phase < len(KERNEL_PHASES) - 1).any(),
            "module": bool(facts.modules),
            "operator": (facts.operator >= 0).any(),
            "shape": any(facts.shapes),
        }
        shown = tuple(each for each in SHOWN if told.get(each, True))
        return shown if told["operator"] else (*shown, "kernel")

    def ranks_table(self) -> Table:
        """Return the time of each device by cause as text; those that others wait for come first in brief."""
        columns = {
            "rank": "{rank}", "device": "{device}", "elapsed": "{elapsed_ns:time}", "compute": "{compute_ns:time}",
            "transfer": "{transfer_ns:time}", "waiting": "{waiting_ns:time}", "host": "{host_ns:time}",
            "other idle": "{idle_ns:time}",
        }  # fmt: skip
        if len({row.rank for row in self.ranks}) > 1:
            columns |= {
                "slower %": "{slowdown:+.1%}", "slowest class~": "{slowest}", "late": "{late}",
                "others wait": "{waited_ns:time}",
            }  # fmt: skip
        table = table_of("Time of each device by cause, whole recording", columns, self.ranks)
        return by_rank(table, [row.waited_ns for row in self.ranks])

    def _collectives_text(self) -> Table:
        columns = {
            "kind~": "{kind}", "size": "{size}", "ranks": "{ranks}", "calls": "{calls}", "time": "{time_ns:time}",
            "median": "{median_ns:time}", "waiting %": "{waiting_share:.0%}", "skew": "{skew_ns:time}",
            "bus GB/s": "{gb_per_s:rate}",
        }  # fmt: skip
        return table_of("Collectives by kind and size", columns, self.collectives)

    def _exchanges_text(self) -> Table:
        columns = {
            "group~": "{group}", "direction~": "{direction}", "calls": "{calls}", "unknown": "{unknown}",
            "imbalance": "{imbalance:.2f}", "lasting": "{lasting:.2f}", "busiest rank~": "{busiest}",
            "received by rank~": "{histograms[0]}", "sent by rank~": "{histograms[1]}",
        }  # fmt: skip
        uneven = any(row.direction in ("dispatch", "combine") for row in self.exchanges)
        return table_of("Shares of ranks in all-to-alls", columns, self.exchanges if uneven else ())

    def _launches_text(self) -> Table:
        columns = {
            "rank": "{rank}", "device": "{device}", "launches": "{launches}", "delay": "{delay_ns:time}",
            "queue": "{queue:.1f}", "longest queue": "{longest_queue}", "starts idle %": "{idle_share:.0%}",
            "idle %": "{gap_share:.1%}",
        }  # fmt: skip
        table = table_of("Launches and queues, whole recording", columns, self.launches)
        return by_rank(table, [row.gap_share for row in self.launches])

    def text_table(self, by: str = "operator") -> Table:
        """Return one table of text.

        Parameters
        ----------
        by : str
            One of `BY`.
        """
        return work_table(by, self.rows(by))

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint characterize --json` prints."""
        device = self.facts.hardware.device
        return {
            "device": device.name if device else None,
            "known_by": self.facts.hardware.known_by,
            "kernels": len(self.facts),
            "kernel_ns": self.facts.total_ns,
            "bound_shares": self.bound_shares,
            "utilisation": None if self.utilisation is None else asdict(self.utilisation),
            "serving": [row.to_dict() for row in self.serving],
            "rows": [row.to_dict() for row in self.rows()],
            "by": {each: [row.to_dict() for row in self.rows(each)] for each in BY if each != "operator"},
            "collectives": [row.to_dict() for row in self.collectives],
            "exchanges": [row.to_dict() for row in self.exchanges],
            "launches": [asdict(row) for row in self.launches],
            "ranks": [asdict(row) for row in self.ranks],
            "notes": list(self.notes()),
        }


def characterize_trace(trace: Trace, *, device: str | None = None) -> Characterization:
    """Return where the time of a trace goes.

    Parameters
    ----------
    trace : Trace
        The trace; kernels outside of iterations count, too.
    device : str, optional
        Device that the trace was recorded on, if the trace does not say.

    Raises
    ------
    NotFoundError
        The device is unknown.
    """
    asked = trace.without_context()
    return Characterization(asked, kernel_facts(asked, given_hardware(device)))
