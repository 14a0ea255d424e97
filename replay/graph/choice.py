"""`TaskChoice`: the one grammar by which what-ifs and analyses choose tasks.

A choice is one or more terms, joined by ``,``, and a task has to fit them all: ``gemm,rank=0,phase=backward``. Before
a key, ``@`` is the same as ``,``: ``gemm@rank=0``. A term is ``KEY=VALUE`` (`KEYS`), or a plain word: ``all``,
``kernels``, ``collectives``, ``copies``, or a class. The first may also be the name of a task with ``*`` and ``?``. A
value that is no name may be several, joined by ``/``, of which a task has to fit one: ``class=elementwise/dropout``. A
choice that fits no task is an error that lists what would fit.
"""

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.arrays import Bools, Ints
from profilers.trace.kernels import CLASSES
from replay.graph.graph import COLLECTIVE_KINDS, COPY_DIRECTIONS, PHASES, EdgeKind, KernelGraph, TaskKind

#: Most names that are compared and that a message shows, and most characters of each. A trace has any number of names.
_MAX_COMPARED, _MAX_COMPARED_LENGTH, _MAX_SHOWN, _MAX_SHOWN_LENGTH = 2000, 120, 12, 60


def unknown_name(what: str, name: str, known: Iterable[str]) -> NotFoundError:
    """Return the error for an unknown name, with the nearest known names.

    Parameters
    ----------
    what : str
        Beginning of the message, such as ``"no class is called"``.
    name : str
        The unknown name.
    known : iterable of str
        The names that exist; the first 2,000 are compared.

    Examples
    --------
    >>> print(unknown_name("no class is called", "GEM", ["gemm", "softmax"]))
    no class is called 'GEM'; did you mean gemm?
    """
    names = [text[:_MAX_COMPARED_LENGTH] for text in islice(dict.fromkeys(known), _MAX_COMPARED)]
    spelled = {text.lower(): text for text in reversed(names)}
    nearest = [
        spelled[text]
        for text in difflib.get_close_matches(name[:_MAX_COMPARED_LENGTH].lower(), spelled, n=3, cutoff=0.4)
    ]
    if nearest:
        return NotFoundError(f"{what} {name!r}; did you mean {', '.join(map(_shorten, nearest))}?")
    return NotFoundError(f"{what} {name!r}; there {'is' if len(names) == 1 else 'are'} {_listed(names)}")


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_SHOWN_LENGTH else f"{name[: _MAX_SHOWN_LENGTH - 3]}..."


def _listed(names: Sequence[str]) -> str:
    return (", ".join(map(_shorten, names[:_MAX_SHOWN])) + (", ..." if len(names) > _MAX_SHOWN else "")) or "none"


def name_fits(pattern: str, name: str) -> bool:
    """Return whether a name fits a pattern with ``*`` and ``?``; brackets are themselves, since C++ names have them."""
    return re.match(fnmatch.translate(pattern.replace("[", "[[]")), name) is not None


#: Kinds of tasks that run on a device, by the words for them.
KIND_WORDS: Mapping[str, TaskKind] = {
    "kernels": TaskKind.KERNEL,
    "collectives": TaskKind.COLLECTIVE,
    "copies": TaskKind.COPY,
}
DEVICE_KINDS: tuple[TaskKind, ...] = tuple(KIND_WORDS.values())
_ALL, _KIND = "all", "kind"
_SEND_RECV = COLLECTIVE_KINDS.index("send_recv")
#: Between values of one term that is no name: tasks have to fit one of them.
_OR = "/"
#: Most characters and stars of a pattern, since it is matched with every name of a trace.
_MAX_PATTERN, _MAX_STARS = 200, 16


def _kinds(graph: KernelGraph) -> Ints:
    """Return the kind of each task; kernels of collectives that no profiler recorded as such count as collectives."""
    return np.where(graph.collectives(), int(TaskKind.COLLECTIVE), graph.tasks.kind)


def _fitting(graph: KernelGraph, numbers: Ints, pattern: str) -> Bools:
    """Return which rows of a column of names fit a pattern."""
    fits = np.zeros(len(graph.names) + 1, dtype=bool)
    used = np.unique(numbers[numbers >= 0])
    fits[used] = [name_fits(pattern, graph.names[number]) for number in used.tolist()]
    return np.asarray(fits[numbers])


def _lane_numbers(graph: KernelGraph, name: str) -> Ints:
    """Return the rank, the device or the stream of each task; -1 for marks between lanes."""
    numbers = [-1 if (value := getattr(lane, name)) is None else value for lane in graph.lanes]
    return np.array([*numbers, -1], dtype=np.int64)[graph.tasks.lane]


@dataclass(frozen=True)
class _Key:
    """A key of a term: how its values are spelled, which tasks they fit, and which values a graph has.

    Parameters
    ----------
    about : str
        Meaning of the term, for people.
    known : tuple of str
        Values that are allowed; empty if the value is a pattern or a number.
    number : bool
        Whether the value is a whole number.
    fits : callable
        Takes a graph and a value, and returns the mask of tasks that fit.
    values : callable
        Takes a graph and a mask of tasks, and returns the values that those tasks have.
    """

    about: str
    fits: Callable[[KernelGraph, str], Bools]
    values: Callable[[KernelGraph, Bools], list[str]]
    known: tuple[str, ...] = ()
    number: bool = False


def _indexed(about: str, known: tuple[str, ...], column: str) -> _Key:
    """Return the key of a column that is an index into `known`."""

    def numbers(graph: KernelGraph) -> Ints:
        return np.asarray(getattr(graph.tasks, column))

    def values(graph: KernelGraph, rows: Bools) -> list[str]:
        present = np.unique(numbers(graph)[rows])
        return [known[number] for number in present[present >= 0].tolist()]

    def fits(graph: KernelGraph, value: str) -> Bools:
        return np.asarray(np.isin(numbers(graph), [known.index(each) for each in value.split(_OR)]))

    return _Key(about, fits, values, known)


def _on_lane(about: str, name: str) -> _Key:
    """Return the key of a number of the lane of a task."""

    def values(graph: KernelGraph, rows: Bools) -> list[str]:
        return [str(number) for number in np.unique(_lane_numbers(graph, name)[rows]).tolist()]

    def fits(graph: KernelGraph, value: str) -> Bools:
        return np.asarray(np.isin(_lane_numbers(graph, name), [int(each) for each in value.split(_OR)]))

    return _Key(about, fits, values, number=True)


def pipeline_stages(graph: KernelGraph) -> Ints:
    """Return the pipeline stage of each task, by the transfers between ranks; -1 if nothing tells it.

    The first transfer between two ranks carries activations, from a stage to the next one. Senders and receivers are
    told apart by the operator that launched them (``nccl:send``, ``nccl:recv``).
    """
    tasks, edges, ranks = graph.tasks, graph.edges, graph.ranks()
    arrival, stages = graph.arrival_marks(), np.full(int(ranks.max(initial=-1)) + 2, -1)
    rows = np.flatnonzero((arrival >= 0) & (tasks.collective == _SEND_RECV) & (tasks.launched_by >= 0))
    meeting = np.full(len(tasks), -1)
    meets = (edges.kind == EdgeKind.RENDEZVOUS) & (tasks.lane[edges.target] < 0)
    meeting[edges.source[meets]] = edges.target[meets]
    pairs: dict[int, dict[str, int]] = {}
    for row in rows[np.argsort(tasks.measured_start_ns[rows], kind="stable")].tolist():  # transfers, about 1 us each
        name = graph.names[tasks.launched_by[row]].lower()
        way = "send" if "send" in name else "recv" if "recv" in name else ""
        pairs.setdefault(int(meeting[arrival[row]]), {})[way] = int(ranks[row])
    for pair in pairs.values():
        if len(pair) == 2 and "" not in pair:
            sender, receiver = pair["send"], pair["recv"]
            stages[sender] = max(stages[sender], 0)
            if stages[receiver] < 0:
                stages[receiver] = stages[sender] + 1
    return np.asarray(stages[ranks])


def _staged(about: str) -> _Key:
    """Return the key of the pipeline stage."""

    def values(graph: KernelGraph, rows: Bools) -> list[str]:
        stages = np.unique(pipeline_stages(graph)[rows])
        return [str(stage) for stage in stages[stages >= 0].tolist()]

    def fits(graph: KernelGraph, value: str) -> Bools:
        return np.asarray(np.isin(pipeline_stages(graph), [int(each) for each in value.split(_OR)]))

    return _Key(about, fits, values, number=True)


def _named(about: str, column: str) -> _Key:
    """Return the key of a column of names, whose values are patterns."""

    def values(graph: KernelGraph, rows: Bools) -> list[str]:
        numbers = np.unique(getattr(graph.tasks, column)[rows])
        return [graph.names[number] for number in numbers[numbers >= 0].tolist()]

    return _Key(about, lambda graph, value: _fitting(graph, getattr(graph.tasks, column), value), values)


#: Keys of the terms of a choice.
KEYS: Mapping[str, _Key] = {
    "class": _indexed("class of kernel", CLASSES, "class_"),
    "name": _named("name of the task, with * and ?", "name"),
    "operator": _named("operator that launched the task, with * and ?", "launched_by"),
    "copies": _indexed("copies in a direction", COPY_DIRECTIONS, "direction"),
    "collectives": _indexed("collectives of a kind", COLLECTIVE_KINDS, "collective"),
    "rank": _on_lane("rank", "rank"),
    "device": _on_lane("number of the device", "device"),
    "stream": _on_lane("number of the stream", "number"),
    "stage": _staged("pipeline stage, from 0, by the transfers between ranks"),
    "phase": _indexed("phase of a training step", PHASES, "phase"),
}
#: Names of the keys; behind an ``@``, which stands for the ``,`` between terms, only these are keys.
_NAMES = "|".join(KEYS)
#: Start of a term that is no name: a key and ``=``, or a whole word for a kind or a class.
_TERM = re.compile(
    rf"(?:^|,)\s*(?:([a-z_]+)=|({'|'.join((_ALL, *KIND_WORDS, *CLASSES))})\s*(?=,|@(?:{_NAMES})=|$))|@({_NAMES})=",
    re.ASCII,
)
#: Keys that say nothing of the kind of the task.
_OF_ANY_KIND = frozenset({_ALL, "rank", "device", "stream", "stage", "phase"})
#: Reasons why no task of a graph has a value of a key.
_WITHOUT_VALUES = {
    "operator": "the trace does not say which operators launched its kernels and copies",
    "phase": "the trace does not tell the phases of its steps: it has neither sequence numbers of autograd, nor "
    "operators such as Optimizer.step, nor annotations such as forward and backward",
    "stage": "the trace has no sends and receives between ranks, named by the operators that launched them",
    "collectives": "the trace has no collective",
    "copies": "the trace has no copy whose direction is known",
    "class": "the trace has no kernel",
}


@dataclass(frozen=True)
class TaskChoice:
    """A choice of tasks on devices.

    Parameters
    ----------
    text : str
        Terms joined by ``,``, of which a task has to fit all. A term is ``all``; ``kernels``, ``collectives`` or
        ``copies``; a class of `profilers.trace.kernels.CLASSES`; or ``KEY=VALUE`` with one of `KEYS`: ``class``,
        ``name``, ``operator``, ``copies``, ``collectives``, ``rank``, ``device``, ``stream``, ``stage`` or ``phase``.
        Before a key, ``@`` is the same as ``,``. The first term may be the name of a task as the trace writes it, in
        which ``*`` stands for any text and ``?`` for any character. A ``,`` that no other term follows belongs to the
        name. Values other than names may be several, joined by ``/``.
    kinds : tuple of TaskKind
        Kinds of tasks for which ``all`` and terms that say nothing of the kind stand, such as ``rank=0``.
    allowed : tuple of TaskKind
        Kinds of tasks that can be chosen at all.

    Raises
    ------
    InvalidInputError, NotFoundError
        A term is empty, longer than 200 characters, or has more than 16 stars; or there is no such key or value.

    Examples
    --------
    >>> TaskChoice("gemm, rank=0").terms
    (('class', 'gemm'), ('rank', '0'))
    >>> TaskChoice("gemm@rank=3").terms
    (('class', 'gemm'), ('rank', '3'))
    >>> TaskChoice("*tile<64, 2>*,copies=dtoh").terms
    (('name', '*tile<64, 2>*'), ('copies', 'DtoH'))
    >>> TaskChoice("class=elementwise/dropout,rank=0/3").terms
    (('class', 'elementwise/dropout'), ('rank', '0/3'))
    """

    text: str
    kinds: tuple[TaskKind, ...] = DEVICE_KINDS
    allowed: tuple[TaskKind, ...] = DEVICE_KINDS

    def __post_init__(self) -> None:
        _ = self.terms  # an error in the text shows when the choice is made

    @cached_property
    def terms(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a key and a value; a plain word has the key ``all``, ``kind``, ``class`` or ``name``."""
        starts = list(_TERM.finditer(self.text))
        plain = self.text[: starts[0].start()] if starts else self.text
        terms = [] if starts and not starts[0].start() else [_plain_term(plain.strip())]
        ends = [*(match.start() for match in starts[1:]), len(self.text)]
        for match, end in zip(starts, ends, strict=False):
            value = self.text[match.end() : end].strip()
            key = match[1] or match[3]
            terms.append(_plain_term(match[2]) if match[2] else (key, _checked_value(key, value)))
        return tuple(terms)

    def rows(self, graph: KernelGraph) -> Bools:
        """Return which tasks of `graph` are chosen, as an array of bool, shape (n_tasks,)."""
        rows = graph.on_device() & np.isin(_kinds(graph), self._chosen_kinds())
        for term in self.terms:
            rows &= _term_rows(graph, term)
        return np.asarray(rows)

    def _chosen_kinds(self) -> tuple[TaskKind, ...]:
        of_any_kind = all(key in _OF_ANY_KIND for key, _ in self.terms)
        return tuple(kind for kind in (self.kinds if of_any_kind else DEVICE_KINDS) if kind in self.allowed)

    def check(self, graphs: Sequence[KernelGraph]) -> None:
        """Raise an error if the choice fits no task of any graph.

        Parameters
        ----------
        graphs : sequence of KernelGraph
            Graphs of the chosen iterations.

        Raises
        ------
        NotFoundError
            No task fits. The message names the term that fits none, with the nearest or all values that there are.
        """
        if any(self.rows(graph).any() for graph in graphs):
            return
        for term in self.terms:
            if not any((graph.on_device() & _term_rows(graph, term)).any() for graph in graphs):
                raise self._unknown(term, graphs)
        raise self._nothing_in_common(graphs)

    def _nothing_in_common(self, graphs: Sequence[KernelGraph]) -> NotFoundError:
        """Return the error for terms that fit only tasks that cannot be chosen."""
        kinds, counts = self._chosen_kinds(), _counts(TaskChoice(self.text), graphs)
        if counts:
            acts_on = " and ".join(word for word, kind in KIND_WORDS.items() if kind in kinds)
            return NotFoundError(f"{self.text!r} fits {counts}, and only {acts_on} can be chosen here")
        alone = (f"{_term_text(term)} ({_counts(TaskChoice(_term_text(term)), graphs)})" for term in self.terms)
        return NotFoundError(f"no task fits all terms of {self.text!r}; alone they fit: {', '.join(alone)}")

    def _unknown(self, term: tuple[str, str], graphs: Sequence[KernelGraph]) -> NotFoundError:
        """Return the error for a term that fits no task, with values that fit some."""
        key, value = term
        if key in (_ALL, _KIND, "class", "name"):
            return self._unknown_word(term, graphs)
        present = self._values(key, graphs)
        if not present and key in _WITHOUT_VALUES:
            return NotFoundError(f"no task fits {key}={value}: {_WITHOUT_VALUES[key]}")
        if key == "operator":
            return _unknown_pattern("no operator that launched a task is called", value, (present, []))
        return NotFoundError(f"no task of the iterations has {key}={value}; {key} can be {_listed(present)}")

    def _unknown_word(self, term: tuple[str, str], graphs: Sequence[KernelGraph]) -> NotFoundError:
        """Return the error for a kind, class or name that fits no task, with words that fit some."""
        key, value = term
        kinds = [word for word in KIND_WORDS if _counts(TaskChoice(word, allowed=self.allowed), graphs)]
        if key in (_ALL, _KIND):
            what = "task on a device" if key == _ALL else value
            return NotFoundError(f"the iterations have no {what}; there are {_listed(kinds)}")
        directions = [f"copies={direction}" for direction in self._values("copies", graphs)]
        words = [*kinds, *self._values("class", graphs), *directions]
        if key == "class":
            return unknown_name("no kernel of the iterations has the class", value, words)
        names = self._values("name", graphs)
        return _unknown_pattern("no class or kernel of the trace is called", value, (names, [_ALL, *words]))

    def _values(self, key: str, graphs: Sequence[KernelGraph]) -> list[str]:
        """Return the values of a key that tasks have, of the kinds that can be chosen."""
        values: dict[str, None] = {}
        for graph in graphs:
            rows = graph.on_device() & np.isin(_kinds(graph), self.allowed)
            values.update(dict.fromkeys(KEYS[key].values(graph, rows)))
        return sorted(values, key=int) if KEYS[key].number else list(values)


def _unknown_pattern(what: str, pattern: str, known: tuple[list[str], list[str]]) -> NotFoundError:
    """Return the error for a pattern that fits no name, with a pattern or names that differ in stars or case alone.

    `known` has the names, and further words that could have been meant.
    """
    names, words = known
    wider = f"*{pattern.strip('*')}*"
    if fitting := [name for name in names if name_fits(wider, name)]:
        return NotFoundError(f"{what} {pattern!r}; did you mean {wider}, as in {_shorten(fitting[0])}?")
    alike = [name for name in names if name_fits(wider.lower(), name.lower())]
    return unknown_name(what, pattern, alike or [*words, *names])


def _plain_term(word: str) -> tuple[str, str]:
    """Return the term of a plain word."""
    if word in (_ALL, "*"):
        return _ALL, word
    if word in KIND_WORDS:
        return _KIND, word
    return ("class", word) if word in CLASSES else ("name", _checked_pattern(word))


def _checked_value(key: str, value: str) -> str:
    """Return the value of a key as the trace spells it."""
    if key not in KEYS:
        raise unknown_name("tasks are not chosen by", key, KEYS)
    kind = KEYS[key]
    if _OR in value and (kind.number or kind.known):
        return _OR.join(_checked_value(key, each.strip()) for each in value[:_MAX_PATTERN].split(_OR))
    if kind.number:
        if not (value.isascii() and value.isdecimal() and len(value) < 19):
            raise InvalidInputError(f"{key}={value[:40]}: give the number of a {key}, as in {key}=0")
        return value
    if not kind.known:
        return _checked_pattern(value)
    spelled = {_plain_spelling(text): text for text in kind.known}
    if _plain_spelling(value) not in spelled:
        raise unknown_name(f"{key} cannot be", value, kind.known)
    return spelled[_plain_spelling(value)]


def _plain_spelling(text: str) -> str:
    return re.sub(r"[_\- ]", "", text).lower()


def _checked_pattern(text: str) -> str:
    if not text or len(text) > _MAX_PATTERN or text.count("*") > _MAX_STARS:
        raise InvalidInputError(
            f"{text[:60]!r} chooses no kernels: give a class, or a name with * and ?, of 1 to "
            f"{_MAX_PATTERN} characters and {_MAX_STARS} stars at most"
        )
    return text


def _term_text(term: tuple[str, str]) -> str:
    key, value = term
    return value if key in (_ALL, _KIND) else f"{key}={value}"


def _term_rows(graph: KernelGraph, term: tuple[str, str]) -> Bools:
    """Return which tasks fit a term, those on the host included."""
    key, value = term
    if key == _ALL:
        return np.ones(len(graph.tasks), dtype=bool)
    if key == _KIND:
        return np.asarray(_kinds(graph) == KIND_WORDS[value])
    return KEYS[key].fits(graph, value)


def _counts(choice: TaskChoice, graphs: Sequence[KernelGraph]) -> str:
    """Return how many tasks of each kind a choice fits, as text; empty if there are none."""
    counts = dict.fromkeys(KIND_WORDS, 0)
    for graph in graphs:
        kinds = _kinds(graph)[choice.rows(graph)]
        for word, kind in KIND_WORDS.items():
            counts[word] += int((kinds == kind).sum())
    return " and ".join(f"{count} {word}" for word, count in counts.items() if count)
