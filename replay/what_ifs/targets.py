"""Targets of a what-if: collectives whose data a kernel has just computed, or reads next.

`producers` and `consumers` search a graph. A `Target` is a collective with its kernels; a `Miss` is a collective
without, and says why and what would have to change. `t3`, `ficco` and `fuse_collectives` act on targets.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Ints
from profilers.trace.kernels import CLASSES
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, EdgeKind, KernelGraph, TaskKind
from replay.graph.operators import Operator

#: Classes of kernels that only move or convert data, and so may pack or unpack a buffer.
_PACKING = frozenset({"copy", "elementwise"})
#: Packing kernels that may stand between a collective and the kernel that computes.
_MOST_PACKING = 3
#: Bytes of a kernel and its collective agree within this factor. A collective that gathers or exchanges counts its
#: whole buffer, and one rank has a part of it.
_BYTES_FACTOR = 2.0
#: Mark of `_in_pieces` for a piece that is not the first.
_LATER_PIECE = 2
#: Kinds of edges that order device tasks.
_ORDER = frozenset(
    {
        EdgeKind.STREAM,
        EdgeKind.WAIT,
        EdgeKind.WAIT_INFERRED,
        EdgeKind.GAP,
        EdgeKind.BACKLOG,
        EdgeKind.GRAPH_GAP,
    }
)


@dataclass(frozen=True)
class Target:
    """A collective, and the kernels that compute or read its data.

    Parameters
    ----------
    collective : int
        Row of the collective.
    kernels : tuple of int
        Rows of the kernels, in the order in which they run. A producer computes first and packs then; a consumer
        unpacks first and computes then.
    meeting : int
        Row of the mark at which all ranks have arrived; -1 if the graph has none.
    by_order : bool
        Whether the match rests on the order of tasks alone, because shapes or sizes are unknown.
    sends : bool
        Whether the kernels compute what the collective sends; otherwise they read what it brings.
    """

    collective: int
    kernels: tuple[int, ...]
    meeting: int
    by_order: bool = False
    sends: bool = True

    @property
    def kernel(self) -> int:
        """Row of the kernel that computes."""
        return self.kernels[0 if self.sends else -1]

    @property
    def packing(self) -> tuple[int, ...]:
        """Rows of the kernels that pack or unpack the data."""
        return self.kernels[1:] if self.sends else self.kernels[:-1]


@dataclass(frozen=True)
class Miss:
    """A collective to which a what-if does not apply.

    Parameters
    ----------
    collective : int
        Row of the collective.
    reason : str
        Reason, in words that follow a number of collectives.
    advice : str
        What would have to change; empty if nothing is known.
    """

    collective: int
    reason: str
    advice: str = ""


@dataclass(frozen=True)
class Targets:
    """The targets of a search, and the collectives that are none.

    Parameters
    ----------
    found : tuple of Target
        Collectives that match, with their kernels.
    misses : tuple of Miss
        Collectives that do not match.
    """

    found: tuple[Target, ...]
    misses: tuple[Miss, ...] = ()

    @property
    def missed(self) -> Mapping[str, int]:
        """Number of collectives that do not match, by reason, the most frequent first."""
        return dict(Counter(miss.reason for miss in self.misses).most_common())

    @property
    def note(self) -> str:
        """Number of targets, number of those matched by order alone, and the reasons of the misses, as text."""
        reasons = "".join(f"; {count} not: {reason}" for reason, count in self.missed.items())
        by_order = sum(target.by_order for target in self.found)
        unconfirmed = f" ({by_order} by order alone: shapes or sizes are not known)" if by_order else ""
        return f"{len(self.found)} collectives matched{unconfirmed}{reasons}"

    def joined(self, others: "Targets") -> "Targets":
        """Return the targets of two searches of one graph.

        A miss of one search that is a target of the other goes. Of two misses, the one that says more than that the
        collective is of another kind stays.
        """
        found = (*self.found, *others.found)
        rows = {target.collective for target in found}
        misses: dict[int, Miss] = {}
        for miss in (*self.misses, *others.misses):
            if miss.collective not in misses or misses[miss.collective].reason.startswith(_OTHER_KIND):
                misses[miss.collective] = miss
        return Targets(found, tuple(misses[row] for row in sorted(misses.keys() - rows)))

    def without(self, targets: Sequence[Target], reason: str, advice: str = "") -> "Targets":
        """Return the targets without some, which are missed for `reason`."""
        rows = {target.collective for target in targets}
        misses = (*self.misses, *(Miss(row, reason, advice) for row in sorted(rows)))
        return Targets(tuple(target for target in self.found if target.collective not in rows), misses)


def producers(graph: KernelGraph, kinds: Collection[str], classes: Collection[str]) -> Targets:
    """Return the collectives whose data a kernel of some classes has just computed.

    The kernel is the last one on its device that the collective waits for. Up to three kernels that copy or convert may
    stand between. If shapes are known, the bytes that the kernel writes agree with the bytes sent, within a factor of
    two.

    Parameters
    ----------
    graph : KernelGraph
        The graph to search.
    kinds : collection of str
        Kinds of collectives, as in `COLLECTIVE_KINDS`. Collectives of other kinds are counted as missed.
    classes : collection of str
        Classes of kernels, as in `profilers.trace.kernels.CLASSES`.
    """
    return _TargetSearch(graph, backward=True).targets(kinds, classes)


def consumers(graph: KernelGraph, kinds: Collection[str], classes: Collection[str]) -> Targets:
    """Return the collectives whose data a kernel of some classes reads next; otherwise as `producers`."""
    return _TargetSearch(graph, backward=False).targets(kinds, classes)


class _TargetSearch:
    """A search along the edges of a graph, backward for producers or forward for consumers.

    A kernel belongs to one target at most, so the search keeps the kernels that it has assigned.
    """

    def __init__(self, graph: KernelGraph, *, backward: bool) -> None:
        self._graph, self._backward = graph, backward
        self._computes = 0 if backward else -1  # position in a path of the kernel that computes
        edges = graph.edges
        ordered = np.isin(edges.kind, sorted(_ORDER)) & ~edges.from_start
        start, neighbour = (edges.target, edges.source) if backward else (edges.source, edges.target)
        order = np.argsort(start[ordered], kind="stable")
        self._near_end, self._far_end = start[ordered][order], neighbour[ordered][order]
        forward = np.argsort(edges.source, kind="stable")
        self._source, self._target = edges.source[forward], edges.target[forward]
        self._inside = (np.isin(edges.kind, sorted(_ORDER)) | edges.from_start)[forward]
        self._arrival = graph.arrivals()
        self._meeting = np.full(len(graph.tasks), -1)
        meets = (edges.kind == EdgeKind.RENDEZVOUS) & (graph.tasks.kind[edges.target] == TaskKind.COLLECTIVE)
        self._meeting[edges.target[meets]] = edges.source[meets]
        tasks = graph.tasks
        self._may_match = np.isin(tasks.kind, (TaskKind.KERNEL, TaskKind.COPY)) & tasks.in_iteration
        closeness = tasks.measured_end_ns if backward else -tasks.measured_start_ns
        self._closeness = np.nan_to_num(closeness, nan=-np.inf)
        self._assigned: set[int] = set()
        self._in_pieces = _in_pieces(graph)

    @cached_property
    def _start(self) -> npt.NDArray[np.float64]:
        """Starts in a replay. Unlike measured starts, they are never before the end of a predecessor."""
        return simulate(self._graph)[0]

    def targets(self, kinds: Collection[str], classes: Collection[str]) -> Targets:
        """Search every collective of the iteration; a Python loop of about 100 us each."""
        tasks = self._graph.tasks
        rows = np.flatnonzero(
            (tasks.kind == TaskKind.COLLECTIVE) & tasks.in_iteration & (self._in_pieces < _LATER_PIECE)
        )
        matched: list[Target] = []
        misses: list[Miss] = []
        for row in rows.tolist():
            path = self._kernels_of(row, kinds, frozenset(classes))
            if isinstance(path, str):
                misses.append(Miss(row, path, _advice(path)))
                continue
            self._assigned.update(path)
            by_order = not self._has_sizes(row, path)
            matched.append(Target(row, path, int(self._meeting[row]), by_order, self._backward))
        return _whole_groups(Targets(tuple(matched), tuple(misses)), self._meeting[rows])

    def _kernels_of(self, row: int, kinds: Collection[str], classes: frozenset[str]) -> tuple[int, ...] | str:
        """Return the kernels of a target in the order in which they run; or why the collective is none."""
        tasks = self._graph.tasks
        kind = COLLECTIVE_KINDS[tasks.collective[row]] if tasks.collective[row] >= 0 else "unknown"
        if kind not in kinds:
            return _UNKNOWN_KIND if kind == "unknown" else f"{_OTHER_KIND} {kind}"
        if tasks.ranks[row] == 1:
            return _ALONE
        if self._in_pieces[row]:
            return "they are in pieces already"
        path = self._kernels_beside(row, classes)
        if isinstance(path, str):
            return path
        return self._bytes_mismatch(row, kind, path) or self._outside_wait(row, path) or path

    def _kernels_beside(self, collective: int, classes: frozenset[str]) -> tuple[int, ...] | str:
        """Return the kernels from the one of `classes` to the collective, as they run; or why there are none."""
        tasks = self._graph.tasks
        side = "before" if self._backward else "after"
        path: list[int] = []
        kernel = self._closest(int(self._arrival[collective]) if self._backward else collective, collective)
        while kernel >= 0 and kernel not in self._assigned:
            if self._in_pieces[kernel]:
                return f"what comes {side} them is in pieces already"
            path.append(kernel)
            label = CLASSES[tasks.class_[kernel]] if tasks.class_[kernel] >= 0 else "copy"
            if label in classes:
                return tuple(reversed(path)) if self._backward else tuple(path)
            if label not in _PACKING:
                return f"{label} comes {side} them"
            if len(path) > _MOST_PACKING:
                return f"more than {_MOST_PACKING} kernels {side} them only move data"
            kernel = self._closest(kernel, kernel)
        return f"no kernel {side} them" if kernel < 0 else f"the kernel {side} them is another's already"

    def _closest(self, task: int, collective: int) -> int:
        """Return the neighbour of `task` or `collective` that runs closest to them on the device; -1 for none."""
        device = self._graph.tasks.device
        ends = (np.searchsorted(self._near_end, (row, row + 1)) for row in {task, collective})
        neighbours = np.concatenate([self._far_end[first:last] for first, last in ends]).tolist()
        candidates = [row for row in neighbours if self._may_match[row] and device[row] == device[collective]]
        return max(candidates, key=lambda row: (self._closeness[row], row), default=-1)

    def _has_sizes(self, collective: int, path: tuple[int, ...]) -> bool:
        """Tell whether the bytes of the collective and the shapes of the kernel are known."""
        tasks = self._graph.tasks
        return bool(tasks.bytes[collective] > 0 and tasks.operator[path[self._computes]] >= 0)

    def _bytes_mismatch(self, collective: int, kind: str, path: tuple[int, ...]) -> str:
        """Return why the bytes of kernel and collective disagree; empty if they agree, or are unknown."""
        tasks = self._graph.tasks
        if not self._has_sizes(collective, path):
            return ""
        kernel, sent = path[self._computes], int(tasks.bytes[collective])
        operator: Operator = self._graph.operators[tasks.operator[kernel]]
        moved = operator.bytes_written if self._backward else operator.bytes_read
        parts = max(int(tasks.ranks[collective]), 1) if kind in ("all_gather", "reduce_scatter") else 1
        if sent / parts > _BYTES_FACTOR * moved or (self._backward and sent * _BYTES_FACTOR * parts < moved):
            return _OTHER_AMOUNT.format("writes" if self._backward else "reads")
        return ""

    def _outside_wait(self, collective: int, path: tuple[int, ...]) -> str:
        """Return why collective and kernels cannot run piece by piece; empty if they can.

        They cannot if another task waits for one of them, and a later one of them waits for that task. Only tasks that
        start before the last of them are visited: a handful.
        """
        arrival, meeting = int(self._arrival[collective]), int(self._meeting[collective])
        members = {*path, collective, arrival, *([meeting] if meeting >= 0 else [])}
        ends = [*path, arrival, collective] if self._backward else [collective, *path]
        start = self._start
        latest, seen = start[ends[-1]], set(members)
        pending = [(task, True) for task in ends[:-1] if task != arrival or not self._backward]
        while pending:
            task, inside = pending.pop()
            first, last = np.searchsorted(self._source, (task, task + 1))
            for edge in range(first, last):
                target = int(self._target[edge])
                if target in members and not (inside and self._inside[edge]):
                    return _OUTSIDE_WAIT
                if target not in seen and not start[target] > latest:
                    seen.add(target)
                    pending.append((target, False))
        return ""


_UNKNOWN_KIND, _OTHER_KIND = "their kind is not known", "they are"
_OUTSIDE_WAIT = "the host, or another stream, waits between the kernels beside them"
_OTHER_AMOUNT = "the kernel beside them {} another amount than is sent"
_ALONE = "their group is a single rank, which sends nothing"
#: Reason and advice of a what-if that needs the figures of the device.
UNKNOWN_DEVICE = ("the trace names no device of the catalogue", "name it: --device NAME; docs/devices.md adds one")
_INCOMPLETE = "not every rank of theirs has such a kernel"
#: What would have to change for a collective of a kind that a what-if does not act on.
_ADVICE_BY_KIND: Mapping[str, str] = {
    "all_reduce": "use sequence parallelism, which replaces the all-reduce by a reduce-scatter and an all-gather",
    "all_gather": "ficco and dma_collectives act on all-gathers",
    "reduce_scatter": "t3 and ficco act on reduce-scatters",
    "all_to_all": "fuse_collectives, ficco and dma_collectives act on all-to-alls",
    **dict.fromkeys(("broadcast", "gather", "scatter", "send_recv"), "dma_collectives acts on them"),
}
#: What would have to change, by the beginning of a reason.
_ADVICE: Mapping[str, str] = {
    _UNKNOWN_KIND: "record the collectives' arguments: newer PyTorch writes them, or a Chakra trace has them",
    "more than": "fuse the kernels that only move data, or let the library write where the collective reads",
    "no kernel": "put the product that computes or reads the data on the side of the collective",
    _OUTSIDE_WAIT: "launch both without a host wait between them, and without work of other streams that needs them",
    _OTHER_AMOUNT.format("writes"): "use buckets of the size of one product's result",
    _OTHER_AMOUNT.format("reads"): "gather what one product reads at a time",
    "the kernel": "use one collective for each product: smaller buckets",
    _INCOMPLETE: "record all ranks, and give them the same program",
    "they are in pieces": "apply one of the two what-ifs",
}


def _advice(reason: str) -> str:
    """Return what would have to change for a collective that is no target; empty if nothing is known."""
    if reason.startswith(f"{_OTHER_KIND} ") and (kind := reason.removeprefix(f"{_OTHER_KIND} ")) in COLLECTIVE_KINDS:
        return _ADVICE_BY_KIND.get(kind, "c3 acts on them if they run beside other work")
    if reason.endswith((" comes before them", " comes after them")):
        return "move the collective next to a matrix product: another what-if, or other buckets"
    return next((advice for text, advice in _ADVICE.items() if reason.startswith(text)), "")


def _whole_groups(targets: Targets, meetings: Ints) -> Targets:
    """Return the targets whose collectives are targets on all ranks that meet."""
    ranks = Counter(meetings[meetings >= 0].tolist())
    matched = Counter(target.meeting for target in targets.found)
    incomplete = [target for target in targets.found if matched[target.meeting] < ranks.get(target.meeting, 0)]
    return targets.without(incomplete, _INCOMPLETE, _ADVICE[_INCOMPLETE]) if incomplete else targets


def groups_of(graph: KernelGraph, targets: Sequence[Target]) -> list[list[Target]]:
    """Return the targets of each collective: those of all ranks at hand, in the order of ranks.

    A trace of a single rank has groups of one target, which stands for all ranks.
    """
    ranks = graph.ranks()
    groups: dict[tuple[int, int], list[Target]] = defaultdict(list)
    for target in targets:
        key = (target.meeting, -1) if target.meeting >= 0 else (-1, target.collective)
        groups[key].append(target)
    return [sorted(group, key=lambda target: int(ranks[target.collective])) for group in groups.values()]


def _in_pieces(graph: KernelGraph) -> Ints:
    """Mark tasks that another what-if has split: 1 for the first piece, 2 for later ones, 0 for whole tasks.

    Pieces of a task share its event, its lane and its iteration.
    """
    tasks = graph.tasks
    rows = np.flatnonzero(graph.on_device() & (tasks.event >= 0))
    key = tasks.event[rows] * (tasks.lane.max(initial=0) + 1) + tasks.lane[rows]
    key = key * len(graph.iterations) + tasks.iteration[rows]
    _, first, group, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    marks = np.zeros(len(tasks), dtype=np.int64)
    marks[rows[counts[group] > 1]] = _LATER_PIECE
    marks[rows[first[counts > 1]]] = 1
    return marks


def nothing_to_apply(graph: KernelGraph, name: str, targets: Targets) -> KernelGraph:
    """Return `graph` unchanged, with a note of the reason."""
    reason = targets.note.removeprefix("0 collectives matched").removeprefix("; ")
    return graph.with_notes([f"{name}: nothing to apply it to: {reason or 'the iteration has no collective'}"])
