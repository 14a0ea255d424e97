"""Align the kernels of graphs with the launches of captures, by the names of the kernels and their order.

`CapturedNames.alignments` returns the best alignments of a graph. Names that differ in numbers only are similar, since
libraries and compilers choose variants of a kernel by size. Kernels between two matched ones are matched too if both
sides have as many, of the same classes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from profilers.ingest.capture import CapturedSequence, Captures, identifier, is_mangled, loose_name
from profilers.ingest.join import align, plain_name
from profilers.trace.arrays import Ints, encode_text
from profilers.trace.kernels import classify

#: Score of two kernels with one name, and with names that differ in numbers only. Pairs lose up to `_FAR` points by
#: their distance from the diagonal, so that of equally long alignments the straightest is taken.
_SAME, _SIMILAR, _FAR = 4096, 3072, 512
#: Cells of the table of an alignment; larger ones are aligned by `profilers.ingest.join.align`.
_MOST_CELLS = 20_000_000
#: Distinct sequences that are aligned with a graph, those with the most names in common.
_MOST_ALIGNED = 16
#: A sequence is searched for the place of a graph if it is so many times longer.
_LONGER = 1.5
#: Least share of launches of recurring calls that launch the same kernel, for a sequence without names.
_CONSISTENT = 0.95
#: Most places by which a kernel may run before or after its turn.
_MOVED = 64
#: Least share of matched kernels with the same names for an alignment without other names.
_ALIKE = 0.95
#: Most kernels between two matched ones that are matched by their place and class.
_MOST_BETWEEN = 4

#: Positions in two sequences.
_Pairs = tuple[Ints, Ints]


@dataclass(frozen=True)
class KernelNames:
    """Kernels of a sequence as numbers of their names, equal for equal names.

    Parameters
    ----------
    exact, loose : array of int64
        Number of the name, and of the name without numbers; -1 if unknown.
    """

    exact: Ints
    loose: Ints

    def __len__(self) -> int:
        return len(self.exact)

    def part(self, rows: slice) -> "KernelNames":
        """Return the names of some kernels."""
        return KernelNames(self.exact[rows], self.loose[rows])


def longest_alignment(first: KernelNames, second: KernelNames, offset: int = 0) -> _Pairs:
    """Return the positions of the kernels that two sequences have in common, ascending in both.

    The pairs have the largest sum of scores: a longest common subsequence in which equal names count more than
    similar ones. Time and memory grow with the product of the lengths: 10 ms for two sequences of 1000 kernels.

    Parameters
    ----------
    first, second : KernelNames
        The sequences.
    offset : int
        Position in `second` at which `first` is expected to begin.
    """
    n, m = len(first), len(second)
    if n * m > _MOST_CELLS:
        found = align(first.loose.tolist(), second.loose.tolist())
        left, right = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return left, right
    best = np.zeros((n + 1, m + 1), np.int32)
    position = np.arange(m) - offset
    for i in range(n):  # a Python loop over kernels, 10 us each
        distance = np.minimum(np.abs(position - i), _FAR)
        score = np.where(second.exact == first.exact[i], _SAME, _SIMILAR) - distance
        score[(second.loose != first.loose[i]) | (second.loose < 0)] = 0
        row = np.maximum(best[i, 1:], best[i, :-1] + score)
        np.maximum.accumulate(row, out=best[i + 1, 1:])
    pairs, i, j = [], n, m
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    left, right = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2).T
    return left, right


@dataclass(frozen=True)
class Alignment:
    """A graph launch aligned with sequences of one content.

    Parameters
    ----------
    graph, launch : array of int64
        Positions of the matched kernels in the graph, ascending, and of their launches in the sequence.
    score : int
        Sum of the scores of the pairs.
    sequences : array of int64
        Sequences that have this content, ascending.
    is_named : bool
        Whether the sequences state the names of their kernels.
    """

    graph: Ints
    launch: Ints
    score: int
    sequences: Ints
    is_named: bool = True

    @property
    def has_same_names(self) -> bool:
        """Whether nearly all matched kernels have the same names, and not only similar ones, as far as they are known.

        Libraries choose other variants of a kernel, such as larger tiles, for another batch.
        """
        return not self.is_named or self.score >= (_ALIKE * _SAME + (1 - _ALIKE) * _SIMILAR) * len(self.graph)


class CapturedNames:
    """The contents of the sequences of captures, to be aligned with graphs.

    Parameters
    ----------
    captures : Captures
        The captures.
    names : sequence of str
        Distinct names of the kernels of the trace. If only one side mangles names, similar names have one identifier.
    """

    def __init__(self, captures: Captures, names: Sequence[str] = ()) -> None:
        mangled = {any(map(is_mangled, of_side)) for of_side in (captures.names, names)}
        self._similar = identifier if len(mangled) > 1 else loose_name
        self.captures = captures
        self._exact: dict[str, int] = {}
        self._loose: dict[str, int] = {}
        self._classes: list[str] = []
        captured = self.of([*captures.names])
        self._names = [self._taken(captured, sequence.name) for sequence in captures.sequences]
        _, call = np.unique(self._texts_of_calls(), axis=1, return_inverse=True)
        self._call_kind = np.append(np.asarray(call, np.int64).ravel(), -1)
        contents: dict[tuple[bytes, bytes], list[int]] = defaultdict(list)
        for number, (sequence, of_names) in enumerate(zip(captures.sequences, self._names, strict=True)):
            # Sequences without names are told apart by their calls.
            calls = b"" if sequence.is_named else self._call_kind[sequence.call].tobytes()
            contents[of_names.exact.tobytes(), calls].append(number)
        self._contents = [np.array(numbers) for numbers in contents.values()]

    def of(self, names: Sequence[str]) -> KernelNames:
        """Return distinct names as numbers."""
        exact = [self._exact.setdefault(plain_name(name), len(self._exact)) for name in names]
        loose = [self._loose.setdefault(self._similar(name), len(self._loose)) for name in names]
        return KernelNames(np.array(exact, np.int64), np.array(loose, np.int64))

    @staticmethod
    def _taken(names: KernelNames, rows: Ints) -> KernelNames:
        return KernelNames(np.append(names.exact, -1)[rows], np.append(names.loose, -1)[rows])

    def _texts_of_calls(self) -> Ints:
        calls = self.captures.calls
        return np.stack([encode_text(calls[name])[0] for name in ("name", "shapes")])

    def alignments(self, graph: KernelNames) -> list[Alignment]:
        """Return the alignments with the best score: one for each content that has it; nothing if none fits."""
        scored = [each for numbers in self._closest(graph) for each in self._aligned(graph, numbers)]
        best = max((each.score for each in scored), default=0)
        return [each for each in scored if each.score == best > 0]  # a score has at least a pair

    def _closest(self, graph: KernelNames) -> list[Ints]:
        """Return the contents with the most names in common with a graph, and those without names."""
        counts = Counter(graph.loose.tolist())
        shared = []
        for numbers in self._contents:  # a Python loop over distinct contents
            names = self._names[numbers[0]]
            if np.array_equal(names.exact, graph.exact):
                return [numbers]
            if not self.captures.sequences[numbers[0]].is_named:
                shared.append((len(graph) * (len(names) == len(graph)), numbers))
                continue
            values, times = np.unique(names.loose[names.loose >= 0], return_counts=True)
            common = sum(min(counts[v], t) for v, t in zip(values.tolist(), times.tolist(), strict=True))
            shared.append((common, numbers))
        ordered = sorted(shared, key=lambda pair: (-pair[0], int(pair[1][0])))
        return [numbers for common, numbers in ordered[:_MOST_ALIGNED] if common]

    def _aligned(self, graph: KernelNames, numbers: Ints) -> Iterator[Alignment]:
        sequence, names = self.captures.sequences[numbers[0]], self._names[numbers[0]]
        if not sequence.is_named:
            rows = self._by_recurring_calls(graph, sequence)
            yield Alignment(rows, rows, _SIMILAR * len(rows), numbers, is_named=False)
            return
        for place, offset in _places(graph, names):
            pairs = _pairs_at(graph, names.part(place), offset)
            first, second = self._with_neighbours(graph, names, pairs, place.start)
            pairs = _with_moved(graph, names, (first, second), place)
            yield Alignment(*pairs, _score(graph, names, pairs), numbers)

    def _by_recurring_calls(self, graph: KernelNames, sequence: CapturedSequence) -> Ints:
        """Return the positions at which a call launches the kernel that it launches most often; none if few are."""
        if len(sequence) != len(graph):
            return np.zeros(0, np.int64)
        kind = self._call_kind[sequence.call]  # -1 without an operator, of which nothing can be said
        ordinal = _ordinals(sequence.call)
        keys: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        triples = list(zip(kind.tolist(), ordinal.tolist(), graph.loose.tolist(), strict=True))
        for call, position, name in triples:  # a Python loop over kernels
            keys[call, position][name] += 1
        usual = {key: min(names, key=lambda name: (-names[name], name)) for key, names in keys.items()}
        agrees = np.array([usual[call, position] == name for call, position, name in triples], dtype=bool)
        known = kind >= 0
        consistent = known.any() and agrees[known].mean() >= _CONSISTENT
        return np.flatnonzero(agrees & known) if consistent else np.zeros(0, np.int64)

    def _with_neighbours(self, graph: KernelNames, names: KernelNames, pairs: _Pairs, first: int) -> _Pairs:
        """Return pairs with those of as many kernels of equal classes between two matched ones."""
        left, right = pairs[0], pairs[1] + first
        gap = np.diff(left) - 1
        rows = np.flatnonzero((gap > 0) & (gap <= _MOST_BETWEEN) & (gap == np.diff(right) - 1))
        added: list[tuple[int, int]] = []
        for row in rows.tolist():  # a Python loop over gaps
            places = [(int(left[row]) + k, int(right[row]) + k) for k in range(1, int(gap[row]) + 1)]
            classes = [(self._class(graph.loose[i]), self._class(names.loose[j])) for i, j in places]
            if all(a == b and a not in ("", "other") for a, b in classes):
                added += places
        if not added:
            return left, right
        more = np.array(added).T
        order = np.argsort(np.append(left, more[0]))
        return np.append(left, more[0])[order], np.append(right, more[1])[order]

    def _class(self, code: int) -> str:
        if len(self._classes) < len(self._loose):
            self._classes = [classify(name) for name in self._loose]
        return self._classes[code] if code >= 0 else ""


def _pairs_at(graph: KernelNames, names: KernelNames, offset: int) -> _Pairs:
    if np.array_equal(graph.exact, names.exact):
        return np.arange(len(graph)), np.arange(len(graph))
    return longest_alignment(graph, names, offset)


def _with_moved(graph: KernelNames, names: KernelNames, pairs: _Pairs, place: slice) -> _Pairs:
    """Return pairs with those of the kernels that ran in another order than they were launched, on another stream.

    If both sides lack as many kernels of a name, the first on one is the first on the other, and so on.
    """
    left = np.setdiff1d(np.arange(len(graph)), pairs[0])
    right = np.setdiff1d(np.arange(place.start, place.stop), pairs[1])
    added = [pairs]
    for code in np.intersect1d(graph.exact[left], names.exact[right]).tolist():  # a Python loop over distinct names
        first, second = left[graph.exact[left] == code], right[names.exact[right] == code]
        if code >= 0 and len(first) == len(second) and (np.abs(first + place.start - second) <= _MOVED).all():
            added.append((first, second))
    graph_rows, rows = (np.concatenate([pair[side] for pair in added]) for side in (0, 1))
    order = np.argsort(graph_rows)
    return graph_rows[order], rows[order]


def _score(graph: KernelNames, names: KernelNames, pairs: _Pairs) -> int:
    same = int((graph.exact[pairs[0]] == names.exact[pairs[1]]).sum())
    return _SAME * same + _SIMILAR * (len(pairs[0]) - same)


def _places(graph: KernelNames, names: KernelNames) -> Iterator[tuple[slice, int]]:
    """Yield the parts of a sequence in which a graph may lie, and the expected begin in each: all of a short one.

    In a long one, it lies where most kernels of the graph have the name of the launch at the same distance.
    """
    n, m = len(graph), len(names)
    if m <= _LONGER * n:
        yield slice(0, m), 0
        return
    votes = np.zeros(n + m, np.int64)
    for code in np.unique(graph.loose).tolist():  # a Python loop over distinct names
        positions = np.flatnonzero(names.loose == code)
        for place in np.flatnonzero(graph.loose == code).tolist():
            votes[positions - place + n] += 1
    slack = 16 + n // 10
    for _ in range(_MOST_ALIGNED):
        peak = int(votes.argmax())
        if votes[peak] * 4 < n:
            break
        begin = max(peak - n - slack, 0)
        yield slice(begin, min(peak + slack, m)), peak - n - begin
        votes[max(peak - n // 2, 0) : peak + n // 2 + 1] = 0


def _ordinals(call: Ints) -> Ints:
    """Return how many launches of the same call come before each launch."""
    seen: Counter[int] = Counter()
    result = []
    for each in call.tolist():  # a Python loop over launches
        result.append(seen[each])
        seen[each] += each >= 0
    return np.array(result, dtype=np.int64)
