"""Advice on a trace: what limits the step, what to do first, what is not worth it, and what stands against the answer.

`advise_trace` replays every action of `datasets/advice.toml` for which the bound of its resource leaves room. It takes
the one that gains most, and replays the others on top of it, until none gains: so gains add up. Each is the gain of
`seqpoint project` with the what-ifs that the advice names. What-ifs that only scale something come last.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from itertools import combinations
from math import fsum
from textwrap import wrap
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from profilers.devices.catalogue import DTYPES
from profilers.errors import InvalidInputError
from profilers.trace.kernels import CLASSES
from profilers.trace.serving import serving_steps
from profilers.trace.trace import Trace
from replay.analysis.critical_path import HOST, LABELS, task_labels
from replay.engine.timeline import Timeline
from replay.graph.graph import TaskKind
from replay.projection.evidence import EVIDENCE
from replay.projection.pacing import class_times
from replay.projection.rows import ProjectionRow
from replay.what_ifs import WhatIf
from seqpoint.actions import OF_RANK, WORTH, Action, actions, possible_actions
from seqpoint.breakdown import frame_of
from seqpoint.notebook import DataFrame, Result, data_frame, without_middle
from seqpoint.projecting import ProjectOptions, TraceProjection, TraceWindows, pace_lines, parse_what_ifs

#: Draws for the intervals of what is printed, and of the best action of a search, which is dropped if it may lose.
_DRAWS, _SEARCH_DRAWS = 32, 8
#: Work counts as shorter if it takes this share less of its time.
_SHORTER = 0.1
#: Most actions, kernels that an action names, classes in the first sentence, and remarks against the answer.
_MOST_ACTIONS, _MOST_NAMED, _MOST_CLASSES, _MOST_AGAINST = 5, 2, 3, 4
#: Characters of a line and of the name of a kernel, and lines in all.
WIDTH, _NAME, _MOST_LINES = 100, 32, 25
#: What stands against it that is always told.
_FIRST_AGAINST = 2
#: Classes of kernels below this share of the step are not named, nor evidence below this share.
_LEAST_SHARE, _SHOWN = 0.05, 0.005
#: Share of the time of products in FP32 up to which a job runs in smaller types already. Chosen.
_FEW = 0.1
#: Notes on the graph that stand against the answer, at most.
_MOST_OF_GRAPH = 2
#: Most pairs of actions that are replayed, which bounds the time of a search. Chosen.
_MOST_PAIRS = 24
#: Kernel time of a rank over the median of all from which the rank is slow. Chosen above the scatter of equal GPUs.
_SLOW = 1.05
#: Share of the critical path from which a second resource is named, and busy share below which a device is idle.
_SECOND, _IDLE = 0.2, 0.01
#: Classes of kernels that compute or copy.
_KERNELS = frozenset(CLASSES) - {"collective"}
#: Classes of work on devices.
_ON_DEVICE = frozenset(LABELS) - {HOST}
#: What steps are called by the resource that limits them.
_BOUND_BY = {
    "kernels": "GPU-bound",
    "device": "GPU-bound",
    "communication": "communication-bound",
    "copies": "bound by copies",
    "host": "host-bound",
    "loader": "bound by the input pipeline",
}


@dataclass(frozen=True)
class Advice:
    """An action worth its while.

    Parameters
    ----------
    action : str
        What to do.
    what_if : str
        The what-ifs up to this one, as `seqpoint project` takes them.
    gain : float
        How many times as fast steps become beyond the actions before.
    speedup, low, high : float
        How many times as fast they are with all actions up to this one, with its 90 % interval.
    takes : str
        A flag, code, a library or hardware.
    evidence : mapping of str to float
        Shares of the projected time that are kept, scaled, modelled and assumed.
    where : tuple of str
        Names of the work that becomes shorter, most time first.
    frame : str
        Python function that calls it, with file and line; "" if unknown.
    error : float, optional
        Median error of measured gains of this kind; None if none was measured.
    """

    action: str
    what_if: str
    gain: float
    speedup: float
    low: float
    high: float
    takes: str
    evidence: dict[str, float]
    where: tuple[str, ...]
    frame: str = ""
    error: float | None = None

    @property
    def figures(self) -> str:
        """Gain, and speed-up with all actions up to this one with its interval."""
        return f"{self.gain:.2f} -> {self.speedup:.2f} ({self.low:.2f} - {self.high:.2f})"

    @property
    def basis(self) -> str:
        """What it takes, and what the gain rests on."""
        rests = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in self.evidence.items() if share >= _SHOWN)
        error = "never measured" if self.error is None else f"{100 * self.error:.0f} % off where measured"
        return f"takes {self.takes}; time {rests}; {error}"

    def location(self, most: int = _NAME) -> str:
        """Return the Python function that calls the work, and the work that becomes shorter; "" if neither is known.

        Parameters
        ----------
        most : int
            Most characters of a name; the function has twice as many.
        """
        names = ", ".join(without_middle(name, most) for name in self.where)
        frame = f"in {without_middle(self.frame, 2 * most)}" if self.frame else ""
        return "; ".join(filter(None, [frame, f"shorter: {names}" if names else ""]))


@dataclass(frozen=True)
class Rejected:
    """An action that is not worth its while: its gain, or the bound of its resource if it was not replayed."""

    action: str
    what_if: str
    gain: float
    reason: str


@dataclass(frozen=True, repr=False)
class TraceAdvice(Result):
    """Advice on the steps of a trace.

    Parameters
    ----------
    verdict : str
        What limits the steps, and by how much.
    measured : str
        What was measured, on which device.
    actions : tuple of Advice
        What to do, first things first.
    not_worth : tuple of Rejected
        What gains nothing, or may lose.
    not_applicable : tuple of str
        Actions that there is nothing for in this trace.
    against : tuple of str
        What stands against the answer, most important first.
    command : str
        `seqpoint project` on the same iterations, without what-ifs.
    stragglers : str
        `seqpoint analyze --stragglers` on the trace, if ranks wait for a slow one; else "".
    no_action : mapping of str to float
        Classes of work on devices that no action makes shorter, with at least 5 % of the critical path: their shares.
    serving : str
        `seqpoint serving` on the trace, if its annotations state requests; else "".
    ranks : tuple of str
        What is slow among many ranks; the rest is of those that stand for all.
    """

    heading = "Advice"

    verdict: str
    measured: str
    actions: tuple[Advice, ...]
    not_worth: tuple[Rejected, ...]
    not_applicable: tuple[str, ...]
    against: tuple[str, ...]
    command: str
    stragglers: str = ""
    no_action: Mapping[str, float] = field(default_factory=dict)
    serving: str = ""
    ranks: tuple[str, ...] = ()

    def commands(self) -> dict[str, str]:
        """Return the commands that show more, by what they show more on."""
        first = self.actions[0].what_if if self.actions else ""
        more = {"1": f"{self.command} -w '{first}'"} if first else {}
        more |= {"1" if OF_RANK in first else "slow ranks": self.stragglers} if self.stragglers else {}
        return more | ({"prefill and decode": self.serving} if self.serving else {})

    def summary(self) -> list[str]:
        """Return the advice, at most 25 lines of 100 characters."""
        return self.lines()

    def lines(self, *, whole: bool = False, notes: bool = False, wide: bool = False) -> list[str]:
        """Return the advice as lines of 100 characters, about 25 by default beside what is slow among many ranks.

        Parameters
        ----------
        whole : bool
            Whether to return all of it.
        notes : bool
            Whether to return all that stands against it.
        wide : bool
            Whether names have up to 100 characters.
        """

        def wrapped(text: str, most: int | None, indent: str = "  ") -> list[str]:
            return _wrapped(text, None if whole else most, indent)

        lines = [*wrapped(self.verdict, 3), *wrapped(self.measured, 2), *([""] if self.actions else [])]
        if self.actions:
            lines.append("What to do, in this order: gain -> speed-up with all up to here, and its 90 % interval")
        elif self.not_worth:
            lines.append(f"Nothing that is known here gains {100 * (WORTH - 1):.1f} % or more.")
        against = [wrapped(f"But: {text}", None if notes else 2) for text in self.against]
        worthless = "; ".join(f"{each.action} {each.reason}" for each in self.not_worth)
        untouched = f"{_shares_text(self.no_action)} of the critical path"
        ends = wrapped(f"No action for: {untouched}", 1) if self.no_action else []
        ends += wrapped(f"Not worth it: {worthless}", 2) if worthless else []
        others = ", ".join(self.not_applicable)
        ends += wrapped(f"Not applicable: {others}", 1) if others else []
        fixed = len(lines) + 2 * len(self.actions) + sum(map(len, (self.commands(), ends, *against[:_FIRST_AGAINST])))
        for number, each in enumerate(self.actions, 1):
            lines += wrapped(f"{number}. {each.figures}  {each.action}", 1, "   ")
            lines += wrapped(f"   {each.basis}", 1, "   ")
            location = each.location(WIDTH if wide else _NAME)
            if location and (whole or wide or fixed < _MOST_LINES):
                lines += wrapped(f"   {location}", None if wide else 1, "   ")
                fixed += 1
        # Commands are whole, however long: they are copied.
        lines += [*(f"More on {what}: {command}" for what, command in self.commands().items()), *ends]
        for number, text in enumerate(against):
            fits = len(lines) + len(text) <= _MOST_LINES
            lines += text if whole or notes or number < _FIRST_AGAINST or fits else []
        first = [line for text in self.ranks for line in wrapped(text, 2)]
        return [*first, *([""] if first else []), *lines]

    def markdown(self) -> str:
        """Return the whole advice as Markdown, for an issue or a note."""
        steps = [
            f"{n}. **{each.action}**: {'; '.join(filter(None, [each.figures, each.basis, each.location(WIDTH)]))}"
            for n, each in enumerate(self.actions, 1)
        ]
        worthless = [f"- {each.action}: {each.reason}" for each in self.not_worth]
        more = [f"- `{command}`" for command in self.commands().values()]
        parts = {
            "What to do: gain, then speed-up with all up to here and its 90 % interval": [*steps, "", *more],
            "No action for, by share of the critical path": [_shares_text(self.no_action)] if self.no_action else [],
            "Not worth it": worthless,
            "What stands against it": [f"- {text}" for text in self.against],
        }
        first = ["\n".join(self.ranks)] if self.ranks else []
        texts = [f"## {self.verdict}", self.measured, *first, *(
            "\n".join([f"### {title}", "", *lines]).rstrip() for title, lines in parts.items() if any(lines)
        )]  # fmt: skip
        return "\n\n".join(re.sub(r"([<>|*_])", r"\\\1", text) if i < 2 else text for i, text in enumerate(texts))

    def table(self) -> DataFrame:
        """Return a row for each action."""
        rows = [{**asdict(each), **each.evidence} for each in self.actions]
        columns = ("action", "what_if", "gain", "speedup", "low", "high", "takes", *EVIDENCE)
        return data_frame([{name: row[name] for name in columns} for row in rows], columns=list(columns))

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint advise --json` prints: at most 8 kB."""
        return {
            "verdict": self.verdict,
            "measured": self.measured,
            "rows": [asdict(each) for each in self.actions],
            "not_worth": [asdict(each) for each in self.not_worth],
            "not_applicable": list(self.not_applicable),
            "against": list(self.against[:_MOST_AGAINST]),
            "command": self.command,
            "stragglers": self.stragglers,
            "no_action": dict(self.no_action),
            "serving": self.serving,
            "ranks": list(self.ranks),
        }

    def __repr__(self) -> str:
        """Return what the command prints."""
        return "\n".join(self.summary())

    def _repr_html_(self) -> str:
        return f"<div><h4>{self.heading}</h4><pre>{escape(repr(self))}</pre></div>"


def advise_trace(
    trace: Trace, *, name: str = "", minutes: float = 1.0, options: ProjectOptions | None = None
) -> TraceAdvice:
    """Return what limits the steps of a trace, and what to do about it.

    Parameters
    ----------
    trace : Trace
        The trace.
    name : str
        Path of the trace, for the commands that the advice names; by default that of its first file.
    minutes : float
        Time for the search; what was found by then is returned.
    options : ProjectOptions, optional
        Iterations and device.

    Raises
    ------
    SeqPointError
        The device or an iteration is unknown, or the trace cannot be replayed.
    """
    windows = TraceWindows.of(trace, options or ProjectOptions(max_points=2))
    return advise_windows(windows, name=name, minutes=minutes)[0]


def advise_windows(
    windows: TraceWindows, what_ifs: Sequence[WhatIf] = (), *, name: str = "", minutes: float = 1.0
) -> tuple[TraceAdvice, TraceProjection]:
    """Return the advice on the windows of a trace, and the projection of its actions and of other what-ifs.

    Parameters
    ----------
    windows : TraceWindows
        The windows.
    what_ifs : sequence of WhatIf
        What-ifs to project beside the actions.
    name, minutes
        As `advise_trace` takes them.

    Raises
    ------
    SeqPointError
        The trace cannot be replayed, or one of `what_ifs` cannot be applied.
    """
    trace, options, until = windows.trace, windows.options, monotonic() + 60 * minutes
    if not minutes > 0:
        raise InvalidInputError(f"minutes is {minutes:g}; it must be above 0")
    base = windows.project([])
    bounds, busy = base.projection.limits.bound, _busy_share(windows)
    has_survey = trace.meta.represents_others  # which compares the ranks, all of them
    every = [*_of_this_job(base), *([] if has_survey else _of_slow_ranks(base))]
    known = possible_actions(base.projection.limits, every) if "device" in bounds else []
    rejected = [
        Rejected(action.label, action.what_if, bounds[action.resource], f"{bounds[action.resource]:.3f} at most")
        for action in every
        if "device" in bounds and action.resource in bounds and action not in known
    ]
    search = _Search(windows, known, [action for action in every if action not in known and action.says_how])
    search.run(until)
    done = search.taken
    rejected = [each for each in rejected if each.what_if not in {action.what_if for action in done}]
    composed = _composed([done[: n + 1] for n in range(len(done))])
    others = [each for each in what_ifs if each.label not in {action.label for action in composed}]
    result = windows.project([*composed, *others], draws=_DRAWS)
    against = [f"{note.meaning}: {note.consequence} ({note.n:,})" for note in trace.warnings]
    against += [f"devices work {100 * busy:.1f} % of the step"] if busy < _IDLE and done else []
    against += [line.removeprefix("note: ") for line in pace_lines(result.projection) if line.startswith("note: ")]
    against += base.projection.timelines["baseline"].graph.notes[:_MOST_OF_GRAPH]
    if len(done) > 1:
        against.append("several of these actions together were never measured: trust the first gain most")
    if search.candidates and len(done) < _MOST_ACTIONS:
        why = "was interrupted" if search.interrupted else f"ended after {minutes:g} minutes"
        against.append(f"the search {why}: more time may find more")
    path = shlex.quote(name or next(iter(trace.meta.sources), "job.trace"))
    is_late = not has_survey and (any(OF_RANK in each.what_if for each in done) or bool(_late_rank(base)))
    advice = TraceAdvice(
        _verdict(windows, base),
        next(sentence for sentence in result.summary() if not sentence.startswith("pace: ")),
        tuple(_advices(trace, done, result)),
        tuple(sorted([*rejected, *search.rejected], key=lambda each: -each.gain)),
        tuple(action.label for action in search.not_applicable),
        tuple(against),
        f"seqpoint project {path} -n {options.max_points}",
        f"seqpoint analyze {path} --stragglers" if is_late else "",
        _without_action(windows, result, done),
        f"seqpoint serving {path}" if len(serving_steps(trace)) else "",
    )
    return advice, result


class _Search:
    """A greedy search: the action that gains most is taken, and the others are replayed on top of it.

    Attributes
    ----------
    taken : list of Action
        Actions to take, in order.
    candidates : list of Action
        Actions that may still gain.
    rejected : list of Rejected
        Actions that gain nothing, may lose, or gain only by themselves.
    not_applicable : list of Action
        Actions that there is nothing for.
    interrupted : bool
        Whether the user interrupted the search.
    """

    def __init__(self, windows: TraceWindows, candidates: list[Action], dependent: list[Action]) -> None:
        """Start a search; those of `dependent` cannot gain by themselves, but once another action is taken."""
        self.windows, self.dependent, self.interrupted = windows, dependent, False
        self.not_applicable = [action for action in candidates if not windows.has_work_for(action.what_if)]
        self.candidates = [action for action in candidates if action not in self.not_applicable]
        self.taken, self.rejected, self.speedup = list[Action](), list[Rejected](), 1.0
        self.singles, self.is_paired = dict[Action, ProjectionRow](), False

    def run(self, until: float) -> None:
        """Search until nothing gains, or a time of the clock; an interrupt ends it once an action is taken."""
        try:
            while self.candidates and len(self.taken) < _MOST_ACTIONS and (not self.taken or monotonic() < until):
                self._take_next()
        except KeyboardInterrupt:
            if not self.taken:
                raise
            self.interrupted = True
        told = {each.what_if for each in self.rejected} | {each.what_if for each in (*self.taken, *self.candidates)}
        self.rejected += [
            _rejected(action, row, " alone") for action, row in self.singles.items() if action.what_if not in told
        ]

    def _take_next(self) -> None:
        """Take the best candidate; if there is none, the best pair."""
        replayed = _rows(self.windows, [[*self.taken, action] for action in self.candidates])
        rows = {action: row for action, row in zip(self.candidates, replayed, strict=True) if row is not None}
        useless = [action for action, row in rows.items() if row.speedup < WORTH * self.speedup]
        if not self.taken:
            self.singles = rows
            self.rejected += [_rejected(action, rows[action], "") for action in useless]
            self.not_applicable += [action for action in self.candidates if action not in rows]
        self.candidates = [action for action in rows if action not in useless]
        for best in sorted(self.candidates, key=lambda action: (not action.says_how, -rows[action].speedup)):
            self.candidates.remove(best)
            if self._try([best]):
                if len(self.taken) == 1:
                    self.candidates += [each for each in self.dependent if self.windows.has_work_for(each.what_if)]
                break
            self.rejected += [_rejected(best, rows[best], ", may lose")] if not self.taken else []
        if not self.candidates and len(self.taken) < _MOST_ACTIONS - 1 and not self.is_paired:
            self.is_paired = True
            pair = _best_pair(self.windows, self.taken, self.singles)
            if pair and self._try(pair):
                self.candidates = [action for action in self.singles if action not in self.taken]
                of_pair = {action.what_if for action in pair}
                self.rejected = [each for each in self.rejected if each.what_if not in of_pair]

    def _try(self, more: list[Action]) -> bool:
        """Take actions unless they may lose, or gain too little; return whether they were taken."""
        (row,) = _rows(self.windows, [[*self.taken, *more]], _SEARCH_DRAWS)
        if row is None or row.low < 1.0 or row.speedup < WORTH * self.speedup:
            return False
        self.taken, self.speedup = [*self.taken, *more], row.speedup
        return True


def _best_pair(windows: TraceWindows, taken: list[Action], singles: Mapping[Action, ProjectionRow]) -> list[Action]:
    """Return the two actions on different resources that gain most together; [] if there are none.

    Both say how. Where two resources take nearly as long, neither gains alone.
    """
    left = [action for action in singles if action not in taken and action.says_how]
    pairs = [[*pair] for pair in combinations(left, 2) if pair[0].resource != pair[1].resource][:_MOST_PAIRS]
    rows = _rows(windows, [[*taken, *pair] for pair in pairs]) if pairs else []
    found = [(row.speedup, i) for i, row in enumerate(rows) if row is not None]
    return pairs[max(found)[1]] if found else []


def _of_this_job(base: TraceProjection) -> list[Action]:
    """Return the actions that are shipped; that on FP32 says so if products are in smaller types already."""
    tasks = base.projection.timelines["baseline"].graph.tasks
    products = tasks.class_ == CLASSES.index("gemm")
    large = products & np.isin(tasks.dtype, [list(DTYPES).index(name) for name in ("fp32", "tf32")])
    if not products.any() or tasks.duration_ns[large].sum() > _FEW * tasks.duration_ns[products].sum():
        return list(actions())
    text = "Run in BF16 what is still in FP32; matrix products are not"
    return [
        msgspec.structs.replace(action, text=text) if action.what_if == "change_dtype:fp32->bf16" else action
        for action in actions()
    ]


def _of_slow_ranks(base: TraceProjection) -> list[Action]:
    """Return the action on the rank with the longest kernels, if they are clearly longer than those of the others."""
    graph = base.projection.timelines["baseline"].graph
    kernels = (graph.tasks.kind == TaskKind.KERNEL) & graph.on_device() & ~graph.collectives()
    ranks = np.unique(graph.ranks()[kernels])
    times = [float(graph.tasks.duration_ns[kernels & (graph.ranks() == rank)].sum()) for rank in ranks]
    if len(ranks) < 2 or max(times) < _SLOW * float(np.median(times)):
        return []
    rank, factor = int(ranks[np.argmax(times)]), float(np.median(times)) / max(times)
    text = f"Find why kernels of rank {rank} take {1 / factor:.2f} times those of other ranks: clock, data, sharing"
    what_if = f"scale_kernels:kernels{OF_RANK}{rank}:{factor:.3f}"
    return [Action(what_if, f"rank {rank} as fast as the others", "kernels", "code", text)]


def _composed(choices: Sequence[Sequence[Action]]) -> list[Any]:
    """Return a what-if for each choice of actions."""
    return parse_what_ifs(["+".join(action.what_if for action in chosen) for chosen in choices])


def _rows(windows: TraceWindows, choices: Sequence[Sequence[Action]], draws: int = 0) -> list[ProjectionRow | None]:
    """Return the row of each choice; None for one that cannot be applied to this trace."""
    return [row if row.applied else None for row in windows.project(_composed(choices), draws=draws).rows]


def _rejected(action: Action, row: ProjectionRow, more: str) -> Rejected:
    return Rejected(action.label, action.what_if, row.speedup, f"{row.speedup:.3f}{more}")


def _advices(trace: Trace, done: Sequence[Action], result: TraceProjection) -> "list[Advice]":
    """Return the advice for each action that was taken, from the rows of all actions up to it."""
    before, told, earlier = result.projection.timelines["baseline"], list[Advice](), 1.0
    for action, row in zip(done, result.rows, strict=False):
        assert row.evidence is not None
        evidence = {kind: row.evidence.share(kind) for kind in EVIDENCE}
        where = _shorter(before, result.projection.timelines[row.label])
        before = result.projection.timelines[row.label]
        figures = (row.speedup / earlier, row.speedup, row.low, row.high)
        frame = frame_of(trace, where) if action.takes == "code" else ""
        places = tuple(without_middle(name, WIDTH) for name in where), frame
        advice = Advice(action.text, "+".join(row.what_if), *figures, action.takes, evidence, *places, action.error)
        told.append(advice)
        earlier = row.speedup
    return told


def _shorter(before: Timeline, after: Timeline) -> tuple[str, ...]:
    """Return the names of the work that takes less time by itself, most first."""
    saved, spent = defaultdict[str, float](float), defaultdict[str, float](float)
    for line, sign in ((before, 1.0), (after, -1.0)):
        names, time = line.graph.names, np.bincount(line.graph.tasks.name + 1, weights=line.graph.tasks.duration_ns)
        for name, ns in zip(names, time[1:].tolist(), strict=False):
            saved[name] += sign * ns
            spent[name] += max(sign, 0.0) * ns
    order = sorted(saved, key=lambda name: -saved[name])
    return tuple(name for name in order[:_MOST_NAMED] if saved[name] > _SHORTER * spent[name])


def _verdict(windows: TraceWindows, base: TraceProjection) -> str:
    """Return what limits the steps, in one sentence."""
    projection = base.projection
    limits, facts = projection.limits, projection.provenance
    first = limits.limiting[0] if limits.limiting else ""
    if not first or "device" not in limits.share:
        return "The trace has no work on a GPU: nothing is replayed, and nothing is advised."
    share = limits.share[first]
    words = [f"{first} {_take(first)} {100 * share:.0f} % of the critical path of {_named(facts['iterations'])}"]
    if first in ("kernels", "device"):
        words[0] += _classes(windows)
    if len(limits.limiting) > 1:
        words.append(f"{limits.limiting[1]} {_take(limits.limiting[1])} nearly as long")
    else:
        others = (name for name in limits.share if name not in (first, "device"))
        second = max(others, key=lambda name: limits.share[name], default=first)
        share = limits.share[second] if second != first else 0.0
        words += [f"{second} {100 * share:.0f} %"] if share >= _SECOND else []
    words += _late_rank(base)
    also = " or in collectives" * bool(projection.timelines["baseline"].graph.collectives().any())
    words.append(f"devices busy{also} {100 * _busy_share(windows):.0f} %")
    words += [facts["host"]] if facts.get("host") else []
    meta, read = windows.trace.meta, len(windows.trace.meta.ranks)
    is_part = (meta.world_size or 0) > read and not meta.represents_others
    tells = f", as far as {read} of {meta.world_size} ranks {'tells' if read == 1 else 'tell'}" * is_part
    return f"{_BOUND_BY.get(first, first)}{tells}: {'; '.join(words)}."


def _late_rank(base: TraceProjection) -> list[str]:
    """Return the sentence on the rank that the others wait for, if there is one."""
    return [line.removeprefix("pace: ") for line in pace_lines(base.projection) if line.startswith("pace: rank ")]


def _take(resource: str) -> str:
    return "take" if resource.endswith("s") else "takes"


def _named(iterations: Sequence[int]) -> str:
    """Return the numbers of iterations if they are few, else how many there are."""
    if len(iterations) > _MOST_CLASSES:
        return f"{len(iterations)} iterations"
    numbers = ", ".join(map(str, iterations)).rsplit(", ", 1)
    return f"iteration{'s' * (len(iterations) > 1)} {' and '.join(numbers)}"


def _busy_share(windows: TraceWindows) -> float:
    """Return the share of the steps, unchanged, in which a device works; 0 without devices."""
    base = windows.replays.base
    return fsum(base.device_ns) / max(fsum(base.steady_ns), 1.0) if base and windows.windows[0].graph.devices else 0.0


def _classes(windows: TraceWindows) -> str:
    """Return the classes of kernels with most of the critical path of the steps, in brackets."""
    shares = {name: share for name, share in _large_classes(windows).items() if name in _KERNELS}
    return f" ({_shares_text(shares, _MOST_CLASSES)})" if shares else ""


def _shares_text(shares: Mapping[str, float], most: int | None = None) -> str:
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in list(shares.items())[:most])


def _large_classes(windows: TraceWindows) -> dict[str, float]:
    """Return the classes of work on devices with 5 % of the critical path of the steps and more, most first."""
    times = class_times(windows.windows, windows.replays.base.states) if windows.replays.base else {}
    total = fsum(times.values())
    return {name: ns / total for name, ns in times.items() if name in _ON_DEVICE and ns >= _LEAST_SHARE * total > 0}


def _without_action(windows: TraceWindows, result: TraceProjection, done: Sequence[Action]) -> dict[str, float]:
    """Return the large classes whose time stays under all actions, by itself and on the critical path."""
    large, base = _large_classes(windows), windows.replays.base
    if not (large and base and done):
        return large
    change = partial(_composed([done])[0], parameters=windows.options.parameters)
    states = base.states, [window.steady(change) for window in windows.windows]
    lines = (result.projection.timelines[label] for label in ("baseline", result.rows[len(done) - 1].label))
    pairs = [class_times(windows.windows, each) for each in states], [_time_by_class(line) for line in lines]
    stays = 1 - _SHORTER
    return {name: share for name, share in large.items()
            if all(after.get(name, 0.0) > stays * before[name] for before, after in pairs)}  # fmt: skip


def _time_by_class(line: Timeline) -> dict[str, float]:
    """Return the time of the tasks of each class by themselves, over the number of streams that run them, in ns."""
    label, tasks = task_labels(line.graph), line.graph.tasks
    sums = np.bincount(label, weights=tasks.duration_ns, minlength=len(LABELS))
    streams = np.bincount(np.unique(np.stack([label, tasks.lane]), axis=1)[0], minlength=len(LABELS))
    return dict(zip(LABELS, (sums / np.maximum(streams, 1)).tolist(), strict=True))


def _wrapped(text: str, most: int | None, indent: str = "  ") -> list[str]:
    """Return a text in lines, at most so many; the last of them ends in dots if there were more."""
    lines = wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    if most is None or len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 3]}..."]
