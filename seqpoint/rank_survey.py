"""A large job by its ranks: how they are spread, which cards, nodes and links are slow, and which ranks stand for all.

`survey` reads the facts of every rank (`seqpoint.rank_facts`) and compares them. A rank's kernels are compared with the
same kernels on the other ranks, its host with theirs, and the transfers of a process group with those of equal groups.
A part is slow if it is beyond the scatter of the others. `representatives` are the few ranks that other commands read:
typical ones, and those that they wait for.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.activity import LateRank, late_ranks
from profilers.trace.arrays import MISSING, Bools, Floats, Ints, arrow_array, ends, integers, row_keys, strings
from profilers.trace.quality import WARNING, quality_notes
from profilers.trace.store import load_trace, read_meta
from profilers.trace.trace import Trace, TraceMeta
from seqpoint.notebook import DataFrame, Result, Table, counted, data_frame, table_of
from seqpoint.rank_facts import FactsOfRanks, Progress, RankFacts, facts_of_ranks
from seqpoint.units import duration

#: Least share by which a slow part takes longer than the median, and scatters (from the median deviation) it is beyond.
_SLOWER, _SCATTERS = 0.05, 6.0
#: Least share of a step that a slow host or link costs. Chosen.
_COSTS = 0.01
#: Fewest parts that can be compared, most worst ranks in a cell, and most representatives of a kind.
_FEWEST, _WORST, _MOST = 3, 3, 3
#: From this share of the ranks on, slow ones are a pattern of the job, not single machines.
_PATTERN = 0.05
#: Kernels with this share of a rank's time tell which ranks do the same work.
_TELLING = 0.02
_QUANTILES: Mapping[str, float] = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "most": 1.0}


@dataclass(frozen=True)
class SlowPart:
    """A card, node, link or host that is slower than the others.

    Parameters
    ----------
    kind : str
        ``"card"``, ``"node"``, ``"link"`` or ``"host"``.
    name : str
        Which it is.
    ranks : tuple of int
        Its ranks.
    factor : float, optional
        How many times as long as the median its kernels or transfers take; None for a host.
    cost_ns : float
        What it takes longer than the median, a step.
    why : str
        What was compared.
    """

    kind: str
    name: str
    ranks: tuple[int, ...]
    factor: float | None
    cost_ns: float
    why: str


@dataclass(frozen=True, repr=False)
class RankSurvey(Result):
    """Survey of the ranks of a job.

    Parameters
    ----------
    meta : TraceMeta
        Description of the trace.
    facts : FactsOfRanks
        Facts of its ranks.
    name : str
        Path of the trace, for the commands that it names.
    """

    heading = "Ranks"

    meta: TraceMeta
    facts: FactsOfRanks
    name: str = ""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each rank and device: its place in the job, and its times a step in ns."""
        nodes = _nodes(self.facts.rows)
        slowdown, waited = _slowdowns(self.facts.rows), {row.rank: row.waited_ns for row in self._late}
        rows = []
        for each, node, slower in zip(self.facts.rows, nodes, slowdown.tolist(), strict=True):
            steps, times = max(len(each.step_ns), 1), each.times
            rows.append({
                "rank": each.rank, "device": each.device, "node": node, "steps": len(each.step_ns),
                "step_ns": each.median_step_ns, "elapsed_ns": each.elapsed_ns / steps,
                "compute_ns": each.compute_ns / steps,
                "busy_share": times.busy_ns / max(each.elapsed_ns, 1), "slowdown": slower,
                "exposed_ns": times.exposed_ns / steps, "transfer_ns": times.exposed_transfer_ns / steps,
                "waiting_ns": None if times.exposed_waiting_ns is None else times.exposed_waiting_ns / steps,
                "host_ns": each.host_ns / steps, "waited_ns": waited.get(each.rank, 0) / steps,
            })  # fmt: skip
        return rows

    @cached_property
    def _collectives(self) -> pa.Table:
        """Collectives of the steps, or of the recording if it has none."""
        in_step = integers(self.facts.collectives, "iteration") != MISSING
        return self.facts.collectives.filter(arrow_array(in_step)) if in_step.any() else self.facts.collectives

    @cached_property
    def _late(self) -> tuple[LateRank, ...]:
        return late_ranks(Trace(self.meta, {"collectives": self._collectives}))

    @cached_property
    def slow_parts(self) -> tuple[SlowPart, ...]:
        """Slow cards, nodes and links, then hosts, those that cost most first."""
        rows = self.rows
        machines = [*_slow_machines(rows), *_slow_links(self._collectives, rows, self.places)]
        order = [*sorted(machines, key=lambda part: -part.cost_ns), *_slow_hosts(rows, self.places)]
        return tuple(order)

    @cached_property
    def places(self) -> dict[str, dict[int, int]]:
        """The place of each rank by dimension: its node, card in the node, and place in each kind of process group."""
        return _places(self.facts, self.rows)

    @cached_property
    def representatives(self) -> tuple[int, ...]:
        """The ranks that stand for all: typical ones of each kind of work, and those that they and most wait for."""
        slow = {rank for part in self.slow_parts for rank in part.ranks}
        typical = _typical(self.facts.rows, slow)
        late = [*(_awaited(self._collectives, typical[0]) if typical else ()), *(row.rank for row in self._late[:1])]
        return tuple(sorted({*typical, *late} & {row.rank for row in self.facts.rows}))

    def trace(self, ranks: Sequence[int] | None = None) -> Trace:
        """Return the events of some ranks, by default of those that stand for all.

        Collectives of the trace wait for these ranks alone.

        Raises
        ------
        SeqPointError
            The job has not one of the ranks, or its tables are damaged.
        """
        if ranks is not None and not len(ranks):
            raise InvalidInputError(f"{self.name}: no rank is named")
        return load_trace(self.name, ranks=self.representatives if ranks is None else ranks)

    def verdict(self) -> str:
        """Return one sentence on which parts of the job are slow, or that none is."""
        parts = [part for part in self.slow_parts if part.kind != "host"]
        ranks, nodes = len({row["rank"] for row in self.rows}), len({row["node"] for row in self.rows} - {None})
        where = f"{ranks:,} ranks" + (f" on {nodes:,} nodes" if nodes > 1 else "")
        if parts:
            hosts = " and late hosts" if len(parts) < len(self.slow_parts) else ""
            named = ", ".join(part.name for part in parts[:4])
            return f"{counted(len(parts), 'slow part')}{hosts} among {where}: {named}"
        return f"no card, node or link of {where} is {100 * _SLOWER:.0f} % slower than the others, beyond their scatter"

    def parts_text(self, most: int = 5) -> list[str]:
        """Return the verdict, and a line for each of the slowest parts."""
        parts = [f"{part.name}: {part.why}, {duration(part.cost_ns)} a step" for part in self.slow_parts[:most]]
        return [self.verdict() + self._waits(), *(f"{n}. {text}" for n, text in enumerate(parts, 1))]

    def heads(self) -> tuple[str, ...]:
        """Return what is slow, and which ranks stand for all, for the head of an answer on those."""
        chosen = ", ".join(map(str, self.representatives))
        return (*self.parts_text(), f"The rest is of ranks {chosen}, which stand for all (--ranks names others).")

    def summary(self) -> list[str]:
        """Return the verdict, what is slow, and the facts of the trace."""
        lines = self.parts_text()
        names = sorted({device.name for device in self.meta.devices if device.name}) or ["not named in the trace"]
        lines.append(
            f"{self.meta.format}: {counted(len(self.meta.ranks), 'rank')}"
            + (f" of {self.meta.world_size}" if self.meta.world_size else "")
            + f", {sum(self._counts().values()):,} events, {', '.join(names)}"
        )
        chosen = ",".join(map(str, self.representatives))
        lines.append(f"ranks that stand for all: {chosen} (other commands read these; --ranks names others)")
        return lines

    def _waits(self) -> str:
        """Return what ranks wait for each other."""
        waits = [row["waiting_ns"] / row["elapsed_ns"] for row in self.rows if row["waiting_ns"] and row["elapsed_ns"]]
        late = f", most for rank {self._late[0].rank}" if self._late else ""
        return f"; ranks wait {100 * float(np.median(waits)):.0f} % of a step for others{late}" if waits else ""

    def quantiles(self) -> list[dict[str, Any]]:
        """Return the spread of each figure over the ranks: quantiles, and the ranks with most."""
        rows = []
        for key, text in _FIGURES.items():
            known = [(row[key], row["rank"]) for row in self.rows if row[key] is not None and row[key] == row[key]]
            if known and any(value for value, _ in known):
                values = np.array([value for value, _ in known])
                spread = {name: float(np.quantile(values, q)) for name, q in _QUANTILES.items()}
                worst = [rank for _, rank in sorted(known, key=lambda pair: (-pair[0], pair[1]))[:_WORST]]
                rows.append({"figure": text, **spread, "most_at": worst})
        return rows

    def by_place(self) -> list[dict[str, Any]]:
        """Return medians over the ranks of each node, card and place in a process group, the slowest first."""
        by_rank = {row["rank"]: row for row in self.rows}
        result = []
        for dimension, places in self.places.items():
            groups: dict[int, list[dict[str, Any]]] = {}
            for rank, place in places.items():
                groups.setdefault(place, []).append(by_rank[rank])
            of_dimension = [{
                "by": dimension, "place": place, "ranks": len(members),
                **{key: _median([row[key] for row in members]) for key in ("compute_ns", "host_ns", "waiting_ns")},
                "slowdown": _median([row["slowdown"] for row in members]),
                "waited_ns": sum(row["waited_ns"] for row in members),
            } for place, members in groups.items()]  # fmt: skip
            result += sorted(of_dimension, key=lambda row: (-row["compute_ns"], row["place"]))
        return result

    def classes(self) -> list[dict[str, Any]]:
        """Return number and time of the kernels of all ranks by class, longest first."""
        total: Counter[str] = Counter()
        number: Counter[str] = Counter()
        for classes in {row.rank: row.classes for row in self.facts.rows}.values():
            for name, (kernels, time_ns) in classes.items():
                total[name] += time_ns
                number[name] += kernels
        whole = max(sum(total.values()), 1)
        return [{"class": name, "kernels": number[name], "time_ns": time_ns, "share": time_ns / whole}
                for name, time_ns in total.most_common()]  # fmt: skip

    def table(self, by: str = "rank") -> DataFrame:
        """Return a row for each rank and device; ``by="place"``, for each node, card and place in a process group.

        Raises
        ------
        InvalidInputError
            There is no such table.
        """
        if by not in ("rank", "place"):
            raise InvalidInputError(f"by {by!r}: there is no such table; choose of rank, place")
        return data_frame(self.by_place() if by == "place" else self.rows)

    def tables(self) -> tuple[Table, ...]:
        """Return the quantiles over ranks, the worst places of each dimension, and the kernels by class."""
        quantiles = {"figure~": "{figure}", **{name: f"{{{name}}}" for name in _QUANTILES}, "most at ranks~": "{ranks}"}
        shown = [
            row | {name: _cell(row["figure"], row[name]) for name in _QUANTILES}
            | {"ranks": ", ".join(map(str, row["most_at"]))}
            for row in self.quantiles()
        ]  # fmt: skip
        places = self.by_place()
        worst = [row for d in self.places for row in [row for row in places if row["by"] == d][:_WORST]]
        columns = {
            "by~": "{by}", "place": "{place}", "ranks": "{ranks}", "compute": "{compute_ns:time}",
            "kernels slower %": "{slowdown:.1%}", "host late": "{host_ns:time}",
            "others wait, added up": "{waited_ns:time}",
        }  # fmt: skip
        classes = {"class~": "{class}", "kernels": "{kernels:,}", "time": "{time_ns:time}", "share %": "{share:.1%}"}
        tables = (
            table_of("Spread over ranks, a step", quantiles, shown),
            table_of("Slowest places, medians over their ranks, a step", columns, worst),
            table_of("Kernels by class, all ranks, whole recording", classes, self.classes()),
        )
        return tuple(table for table in tables if table.rows)

    def _counts(self) -> Counter[str]:
        """Return the number of rows by kind of event."""
        total: Counter[str] = Counter()
        for rows in {row.rank: row.rows for row in self.facts.rows}.values():
            total.update(rows)
        return total

    def notes(self) -> list[str]:
        """Return warnings on the data, which ranks are damaged or did nothing, and how the nodes were found."""
        quality = quality_notes(self.meta.quality, self._counts())
        notes = [f"{each.meaning}: {each.n:,}; {each.consequence}" for each in quality if each.severity == WARNING]
        idle = sorted(set(self.meta.ranks) - {row.rank for row in self.facts.rows} - set(self.facts.damaged))
        if idle:
            listed = ", ".join(map(str, idle[:_WORST])) + (", ..." if len(idle) > _WORST else "")
            notes.append(f"no work on a device of {counted(len(idle), 'rank')} ({listed}): their files may be cut off")
        notes += [f"rank {rank} is left out: {why}" for rank, why in self.facts.damaged.items()]
        if "node" in self.places:
            notes.append("nodes follow from the numbers of devices: ranks in order, as many a node as it has devices")
        return notes

    def plot(self) -> Any:
        """Return the heat map of the compute time of each rank in each step, as a HoloViews object."""
        from seqpoint.plots import rank_steps

        return rank_steps([(row.rank, row.iterations, row.step_compute_ns) for row in self.facts.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint describe --json` prints of a trace of many ranks."""
        return {
            "verdict": self.verdict(),
            "slow_parts": [asdict(part) for part in self.slow_parts],
            "n_ranks": len(self.meta.ranks),
            "world_size": self.meta.world_size,
            "representatives": list(self.representatives),
            "quantiles": self.quantiles(),
            "places": self.by_place(),
            "kernel_classes": self.classes(),
            "damaged": {str(rank): why for rank, why in self.facts.damaged.items()},
            "ranks": self.rows,
            "notes": self.notes(),
        }


#: Figures whose spread over ranks is shown, by their keys.
_FIGURES: Mapping[str, str] = {
    "step_ns": "median step time",
    "compute_ns": "compute",
    "slowdown": "kernels slower than the median %",
    "host_ns": "device waits for its host",
    "waiting_ns": "waiting for other ranks",
    "transfer_ns": "exposed transfer",
    "waited_ns": "others wait for it, added up",
    "busy_share": "busy %",
}


def _cell(figure: str, value: float) -> str:
    return f"{100 * value:.1f}" if figure.endswith("%") else duration(value)


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else 0.0


def survey(
    trace: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    skip_damaged: bool = False,
    progress: Progress | None = None,
) -> RankSurvey:
    """Return the survey of the ranks of a ``.trace`` folder; the parameters are those of `facts_of_ranks`.

    Raises
    ------
    SeqPointError
        The folder is no trace, or a table of a rank is damaged.
    """
    facts = facts_of_ranks(trace, executor=executor, skip_damaged=skip_damaged, progress=progress)
    return RankSurvey(read_meta(Path(trace)), facts, os.fspath(trace))


def _nodes(rows: Sequence[RankFacts]) -> list[int | None]:
    """Return the node of each rank, if ranks use the devices of their node in order; None otherwise."""
    devices = max((row.device for row in rows), default=-1) + 1
    if devices < 2 or any(row.device != row.rank % devices for row in rows):
        return [None] * len(rows)
    return [row.rank // devices for row in rows]


def _slowdowns(rows: Sequence[RankFacts]) -> Floats:
    """Return how much longer the kernels of each rank take than the same kernels at the median of the ranks."""
    kinds = [row.kernel_kinds for row in rows]
    if not any(map(len, kinds)):
        return np.full(len(rows), np.nan)
    rank = np.repeat(np.arange(len(rows)), [len(each) for each in kinds])
    key, calls, time = np.concatenate(kinds).T
    _, kind = np.unique(key, return_inverse=True)
    mean, order = time / np.maximum(calls, 1), np.lexsort((time / np.maximum(calls, 1), kind))
    counts: Ints = np.bincount(kind)
    first = np.cumsum(counts) - counts
    low, high = (mean[order[first + each]] for each in ((counts - 1) // 2, counts // 2))
    usual = ((low + high) / 2)[kind]
    common = counts[kind] >= min(_FEWEST, len(rows))
    own, typical = (
        np.bincount(rank[common], weights=each[common], minlength=len(rows)) for each in (time, calls * usual)
    )
    return np.asarray(own / np.where(typical > 0, typical, np.nan) - 1)


def _beyond(values: Floats, least: float) -> Bools:
    """Return which values are above the median by some least difference, and beyond the scatter of all."""
    known = np.isfinite(values)
    if known.sum() < _FEWEST:
        return np.zeros(len(values), dtype=bool)
    centre = np.median(values[known])
    scatter = 1.4826 * np.median(np.abs(values[known] - centre))
    return np.asarray(known & (values - centre > max(least, _SCATTERS * scatter)))


def _slow_machines(rows: Sequence[Mapping[str, Any]]) -> list[SlowPart]:
    """Return nodes and cards whose kernels take longer than the same kernels elsewhere; a slow node's cards are one."""
    slowdown = np.array([row["slowdown"] for row in rows], np.float64)
    work, rank = (np.array([row[name] for row in rows], np.float64) for name in ("compute_ns", "rank"))
    node = np.array([MISSING if row["node"] is None else row["node"] for row in rows])
    parts, told = [], np.zeros(len(rows), dtype=bool)
    numbers = np.unique(node[node != MISSING])
    of_node = [np.flatnonzero(node == number) for number in numbers.tolist()]
    medians = np.array([np.median(slowdown[members]) for members in of_node])
    for at in np.flatnonzero(_beyond(medians, _SLOWER)).tolist():
        members, factor = of_node[at], 1 + float(medians[at])
        if len(members) > 1:
            told[members] = True
            cost = float(np.median(work[members])) * (1 - 1 / factor)
            why = (
                f"the kernels of its {len(members)} cards take {factor:.2f} times as long as the same kernels elsewhere"
            )
            parts.append(
                SlowPart("node", f"node {numbers[at]}", tuple(rank[members].astype(int).tolist()), factor, cost, why)
            )
    for at in np.flatnonzero(_beyond(slowdown, _SLOWER) & ~told).tolist():
        factor, where = 1 + float(slowdown[at]), "" if node[at] == MISSING else f" (node {node[at]})"
        why = f"its kernels take {factor:.2f} times as long as the same kernels on other ranks"
        cost = float(work[at]) * (1 - 1 / factor)
        parts.append(SlowPart("card", f"card of rank {int(rank[at])}{where}", (int(rank[at]),), factor, cost, why))
    return parts


def _slow_links(
    table: pa.Table, rows: Sequence[Mapping[str, Any]], places: Mapping[str, Mapping[int, int]]
) -> list[SlowPart]:
    """Return process groups whose transfers take longer than equal transfers of groups of the same size."""
    match, bytes_, size = (integers(table, name) for name in ("match_id", "bytes", "group_size"))
    kept = np.flatnonzero((match != MISSING) & (bytes_ != MISSING) & (size > 1))
    if not len(kept):
        return []
    table = table.take(kept)
    names, kinds = strings(table, "group_name"), strings(table, "collective")
    _, first, meeting, members = np.unique(match[kept], return_index=True, return_inverse=True, return_counts=True)
    begun, done = np.full(len(first), np.iinfo(np.int64).min), np.full(len(first), np.iinfo(np.int64).max)
    np.maximum.at(begun, meeting, integers(table, "start_ns"))
    np.minimum.at(done, meeting, ends(table))
    transfer = np.maximum(done - begun, 0).astype(np.float64)
    _, group = np.unique(names[first].astype(str), return_inverse=True)
    _, kind = np.unique(kinds[first].astype(str), return_inverse=True)
    equal = row_keys(kind, bytes_[kept][first], size[kept][first])
    usual, groups_of = np.zeros(len(first)), np.zeros(len(first), np.int64)
    for each in np.unique(equal).tolist():  # kinds and sizes: some tens
        rows_of = np.flatnonzero(equal == each)
        medians = {g: float(np.median(transfer[rows_of[group[rows_of] == g]])) for g in np.unique(group[rows_of])}
        usual[rows_of], groups_of[rows_of] = np.median(list(medians.values())), len(medians)
    # Without one of its ranks, nobody knows when a group has begun.
    comparable = (groups_of >= _FEWEST) & (members >= size[kept][first])
    count = int(group.max()) + 1
    took, expected = (
        np.bincount(group[comparable], weights=each[comparable], minlength=count) for each in (transfer, usual)
    )
    factor = took / np.where(expected > 0, expected, np.nan)
    steps = max((row["steps"] for row in rows), default=1) or 1
    step_ns = _median([row["elapsed_ns"] for row in rows]) or 1.0
    parts = []
    for at in np.flatnonzero(_beyond(factor, _SLOWER)).tolist():
        cost = float(took[at] - expected[at]) / steps
        if cost > _COSTS * step_ns:
            one = group[meeting] == at
            ranks = tuple(sorted(set(integers(table, "rank")[one].tolist())))
            why = f"its transfers take {factor[at]:.2f} times as long as equal ones of other groups"
            parts.append(SlowPart("link", f"links of {_group_name(names[one][0], ranks, places)}", ranks,
                                  float(factor[at]), cost, why))  # fmt: skip
    return parts


def _group_name(name: str | None, ranks: Sequence[int], places: Mapping[str, Mapping[int, int]]) -> str:
    """Return the name of a process group: its node if all of its ranks are of one."""
    nodes = {places["node"].get(rank) for rank in ranks} if "node" in places else {None}
    if len(nodes) == 1 and None not in nodes:
        return f"node {nodes.pop()}"
    listed = ", ".join(map(str, ranks[:_WORST])) + (", ..." if len(ranks) > _WORST else "")
    return f"group {name or 'without a name'} (ranks {listed})"


def _slow_hosts(rows: Sequence[Mapping[str, Any]], places: Mapping[str, Mapping[int, int]]) -> list[SlowPart]:
    """Return hosts for which their devices wait longer than others do, one for those of a common place."""
    rank = np.array([row["rank"] for row in rows])
    host, elapsed = (np.array([row[name] for row in rows], np.float64) for name in ("host_ns", "elapsed_ns"))
    share = host / np.maximum(elapsed, 1)
    slow = np.flatnonzero(_beyond(share, _SLOWER))
    cost = {int(rank[at]): float(host[at] - np.median(host)) for at in slow.tolist()}
    parts = []
    for dimension in ("card", "node"):
        place = places.get(dimension, {})
        numbers = Counter(place[r] for r in cost if r in place)
        for number, count in numbers.items():
            members = [r for r in cost if place.get(r) == number]
            if count > 1 and count >= sum(each == number for each in place.values()) / 2:
                name = f"hosts of {dimension} {number}" + (" of the nodes" if dimension == "card" else "")
                parts.append(_host_part(name, members, cost))
    told = {r for part in parts for r in part.ranks}
    others = sorted(set(cost) - told, key=lambda r: -cost[r])
    if len(others) > max(_PATTERN * len(rows), _MOST):
        parts.append(_host_part(f"hosts of {counted(len(others), 'rank')}", others, cost))
    else:
        parts += [_host_part(f"host of rank {r}", [r], cost) for r in others]
    return sorted(parts, key=lambda part: -part.cost_ns)


def _host_part(name: str, ranks: Sequence[int], cost: Mapping[int, float]) -> SlowPart:
    listed = f" ({', '.join(map(str, ranks[:_WORST]))}, ...)" if len(ranks) > _WORST else ""
    why = "devices wait longer for their hosts than the median"
    return SlowPart("host", name + listed, tuple(ranks), None, float(np.median([cost[r] for r in ranks])), why)


def _places(facts: FactsOfRanks, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """Return the places of ranks by dimension; a kind of process group is one if the job has several of it."""
    places: dict[str, dict[int, int]] = {}
    if len({row["node"] for row in rows} - {None}) > 1:
        places["node"] = {row["rank"]: row["node"] for row in rows}
        places["card"] = {row["rank"]: row["device"] for row in rows}
    described = {name: text for row in facts.rows for name, text in row.groups.items()}
    names, rank = strings(facts.collectives, "group_name"), integers(facts.collectives, "rank")
    members: dict[str, set[int]] = {}
    for name, number in set(zip(names.tolist(), rank.tolist(), strict=True)):
        if name is not None:
            members.setdefault(name, set()).add(number)
    kinds: dict[str, list[list[int]]] = {}
    for name, ranks in members.items():
        kinds.setdefault(described.get(name) or re.sub(r"[\d_\W]+$", "", name), []).append(sorted(ranks))
    known = {row["rank"] for row in rows}
    for kind, groups in sorted(kinds.items()):
        place = {rank: at for group in groups for at, rank in enumerate(group) if rank in known}
        if kind and len(groups) > 1 and len(place) == len(known) and place not in places.values():
            places[f"place in {kind}"] = place
    return places


def _typical(rows: Sequence[RankFacts], slow: set[int]) -> list[int]:
    """Return a rank of each kind of work, up to three, whose compute time and host time are nearest to the medians."""
    kinds: dict[frozenset[int], list[RankFacts]] = {}
    for row in rows:
        key, _, time = row.kernel_kinds.T
        kinds.setdefault(frozenset(key[time > _TELLING * max(time.sum(), 1)].tolist()), []).append(row)
    chosen = []
    for members in sorted(kinds.values(), key=len, reverse=True)[:_MOST]:
        work, host = (
            np.array([getattr(row, name) for row in members], np.float64) for name in ("compute_ns", "host_ns")
        )
        apart = np.abs(work - np.median(work)) + np.abs(host - np.median(host))
        apart += [np.inf if row.rank in slow and len(slow) < len(members) else 0 for row in members]
        if len(members) >= _FEWEST or len(rows) < _FEWEST:
            chosen.append(members[int(apart.argmin())].rank)
    return chosen or [rows[0].rank] if rows else []


def _awaited(table: pa.Table, rank: int) -> list[int]:
    """Return the rank for which a rank waits longest in its collectives."""
    match, ranks, start = (integers(table, name) for name in ("match_id", "rank", "start_ns"))
    mine = np.flatnonzero((ranks == rank) & (match != MISSING))
    theirs = np.flatnonzero(np.isin(match, match[mine]))
    theirs = theirs[np.lexsort((-start[theirs], match[theirs]))]
    last = theirs[np.diff(match[theirs], prepend=MISSING - 1) != 0]
    own = dict(zip(match[mine].tolist(), start[mine].tolist(), strict=True))
    waits: Counter[int] = Counter()
    for row in last.tolist():
        waits[int(ranks[row])] += int(start[row]) - own[int(match[row])]
    return [each for each, waited in waits.most_common(1) if waited > 0 and each != rank]
