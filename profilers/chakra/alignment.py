"""Which event of a timeline is which node, where neither names the other: both threads call the same in one order."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["align", "by_thread", "pair_threads"]

#: How far two sequences may run apart, and how many names in a row must agree to go on.
_LOOK_AHEAD = 32
_RUN = 3
#: Share of the shorter sequence that must agree, below which they are not the same thread.
_SAME_THREAD = 0.5

Sequences = Mapping[int, Sequence[str]]


def align(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of places with the same name, ascending on both sides; either side may have some more.

    Linear in the length where the sequences agree; about 500 comparisons at each place where they do not.

    Examples
    --------
    >>> align(["step", "a", "b", "c", "d"], ["a", "b", "c", "x", "d"])
    [(1, 0), (2, 1), (3, 2), (4, 4)]
    """
    pairs = []
    i = j = 0
    while i < len(first) and j < len(second):
        if first[i] == second[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        i, j = next(_steps(first, second, i, j), (i + 1, j + 1))
    return pairs


def _steps(first: Sequence[str], second: Sequence[str], i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yield the next places at which a few names agree, the nearest first."""
    for far in range(1, _LOOK_AHEAD + 1):
        for skipped in range(far + 1):
            a, b = i + skipped, j + far - skipped
            run = min(_RUN, len(first) - a, len(second) - b)
            if run > 0 and first[a : a + run] == second[b : b + run]:
                yield a, b


def pair_threads(first: Sequences, second: Sequences) -> list[tuple[int, int]]:
    """Return which thread of `first` is which of `second`, by the names that they call.

    Examples
    --------
    >>> pair_threads({7: ["a", "b"], 8: ["c"]}, {1: ["c"], 2: ["a", "b"]})
    [(7, 2), (8, 1)]
    """
    named = {thread: Counter(names) for thread, names in second.items()}
    pairs = []
    for thread, names in sorted(first.items(), key=lambda item: (-len(item[1]), item[0])):
        own = Counter(names)
        alike = {other: sum((own & known).values()) for other, known in named.items()}
        best = max(alike, key=lambda other: (alike[other], -other), default=None)
        if best is not None and alike[best] >= _SAME_THREAD * min(len(names), len(second[best])) > 0:
            pairs.append((thread, best))
            del named[best]
    return pairs


def by_thread(threads: Sequence[int], names: Sequence[str]) -> tuple[dict[int, list[str]], dict[int, list[int]]]:
    """Return names, and their places, of each thread in the order given."""
    called: dict[int, list[str]] = defaultdict(list)
    places: dict[int, list[int]] = defaultdict(list)
    for place, (thread, name) in enumerate(zip(threads, names, strict=True)):
        called[thread].append(name)
        places[thread].append(place)
    return called, places
