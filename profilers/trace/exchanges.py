"""Sizes of all-to-alls: the elements that each rank sends and receives.

`exchange_sizes` finds them in what a profiler recorded of a call: the totals of the messages, or the lists of split
sizes with an element for each rank (all-to-all-v). `exchange_directions` tells which side of an exchange is uneven.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from profilers.trace.arrays import MISSING, Bools, Ints, arrow_array, integers, strings
from profilers.trace.columns import lookup
from profilers.trace.trace import Trace

#: Directions of an exchange: which side differs more between ranks. Numbers of `exchange_directions` are indices.
DIRECTIONS: Final = ("even", "dispatch", "combine", "unknown")
EVEN, DISPATCH, COMBINE, UNKNOWN = range(len(DIRECTIONS))
#: Keys of the split sizes in the arguments of a kernel or operator, as PyTorch's profiler writes them.
_SPLITS: Final = ("In split size", "Out split size")
#: Key of what an execution trace knows of an operator.
_NODE: Final = "execution_trace"
#: Elements are below this.
_LIMIT: Final = 1 << 62


@dataclass(frozen=True)
class ExchangeSizes:
    """Elements that the all-to-alls of a trace move, one row a collective of the trace.

    Parameters
    ----------
    sent, received : array of int64
        Elements that the rank sends and receives, its own share included; `MISSING` if unknown, and for others.
    bytes : array of int64
        Bytes of the larger of both; those of the trace for other collectives.
    is_exchange : array of bool
        Whether the collective is an all-to-all.
    unread : mapping of str to int
        Calls whose lists of split sizes are ``"truncated"`` or ``"malformed"``; totals then come from the messages.
    """

    sent: Ints
    received: Ints
    bytes: Ints
    is_exchange: Bools
    unread: Mapping[str, int] = field(default_factory=dict)


def exchange_sizes(trace: Trace) -> ExchangeSizes:
    """Return the elements that each all-to-all of a trace sends and receives.

    A total of the message counts first. A total that the trace lacks is the sum of the split sizes, which count rows
    of equal width. Lists that are no counts, one for each rank, are ignored and counted. PyTorch truncates lists of
    more than 30 ranks.

    Parameters
    ----------
    trace : Trace
        The trace; joined execution traces have split sizes, too.
    """
    table = trace.collectives
    is_exchange = strings(table, "collective") == "all_to_all"
    totals = np.stack([integers(table, name) for name in ("elements_in", "elements_out")])
    sizes, moved = np.where(is_exchange, totals, MISSING), integers(table, "bytes").copy()
    rows, unread = np.flatnonzero(is_exchange), Counter[str]()
    texts = [_arguments(trace, table, rows, *owner) for owner in (("kernels", "kernel_id"), ("ops", "op_id"))]
    ranks = integers(table, "group_size")[rows].tolist()
    for row, size, *arguments in zip(rows.tolist(), ranks, *texts, strict=True):  # all-to-alls, about 10 us each
        splits, problem = _splits(arguments, size)
        unread[problem] += bool(problem)
        if splits is not None:
            sizes[:, row] = _with_splits(totals[0, row], totals[1, row], splits)
    recorded, largest = np.maximum(totals[0], totals[1]), np.maximum(sizes[0], sizes[1])
    grown = is_exchange & (moved > 0) & (recorded > 0) & (largest > recorded)
    moved[grown] = moved[grown] // recorded[grown] * largest[grown]
    return ExchangeSizes(sizes[0], sizes[1], moved, is_exchange, +unread)


def _arguments(trace: Trace, table: Any, rows: Ints, kind: str, key: str) -> list[str | None]:
    """Return the arguments of the kernel or operator of some collectives."""
    owners = trace.tables[kind]
    at = lookup(integers(owners, "id"), np.arange(owners.num_rows), integers(table, key)[rows])
    return owners["args"].take(arrow_array(at, at == MISSING)).to_pylist()  # type: ignore[no-any-return]


def _splits(arguments: list[str | None], ranks: int) -> tuple[tuple[int, int] | None, str]:
    """Return the sums of the split sizes that are sent and received, or None and why they cannot be read."""
    problem = ""
    for text in arguments:
        if (lists := _recorded_lists(text)) is None:
            continue
        sent, received = map(_counts, lists)
        lengths = {-1 if each is None else len(each) for each in (sent, received)}
        if sent is not None and received is not None and len(lengths) == 1 and lengths <= {0, max(ranks, *lengths)}:
            return (sum(sent), sum(received)), ""
        is_truncated = any(isinstance(each, str) and "..." in each for each in lists)
        problem = problem or ("truncated" if is_truncated else "malformed")
    return None, problem


def _recorded_lists(text: str | None) -> tuple[Any, Any] | None:
    """Return the lists of split sizes, sent and received, that arguments have; None without any."""
    if text is None or not any(f'"{key}"' in text for key in (*_SPLITS, _NODE)):
        return None
    try:
        arguments = json.loads(text)
        if any(key in arguments for key in _SPLITS):
            return arguments.get(_SPLITS[0]), arguments.get(_SPLITS[1])
        values = arguments[_NODE]["inputs"]["values"]
        name = next(at for at, each in enumerate(values) if isinstance(each, str) and each.startswith("all_to_all"))
        return values[name + 1], values[name + 2]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration, RecursionError):
        return None


def _counts(value: Any) -> list[int] | None:
    """Return a list of counts, or its text as JSON; None if it is something else."""
    try:
        counts = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    valid = isinstance(counts, list) and all(type(each) is int and each >= 0 for each in counts)
    return counts if valid and sum(counts) < _LIMIT else None


def _with_splits(sent: int, received: int, sums: tuple[int, int]) -> tuple[int, int]:
    """Return the elements sent and received, with unknown ones from the sums of split sizes."""
    if not any(sums) and max(sent, received) > 0:  # without split sizes, all ranks get equal shares
        return max(sent, received), max(sent, received)
    pairs = [(int(total), rows) for total, rows in zip((sent, received), sums, strict=True)]
    widths = [total // rows for total, rows in pairs if total > 0 and rows and not total % rows]
    width = widths[0] if widths else 1 if max(sent, received) < 0 else 0
    known = [total if total >= 0 else rows * width if width or not rows else MISSING for total, rows in pairs]
    return min(known[0], _LIMIT), min(known[1], _LIMIT)


def exchange_directions(operation: Ints, sent: Ints, received: Ints) -> Ints:
    """Return the direction of the exchange that each row takes part in, as an index into `DIRECTIONS`.

    Tokens are dispatched to their experts, or ids to the owner of their table, if the largest share that a rank
    receives is above the largest that one sends. They are combined in the opposite case.

    Parameters
    ----------
    operation : array of int64, shape (n,)
        Number of the exchange, the same on all its ranks; `MISSING` if it is not known or not complete.
    sent, received : array of int64, shape (n,)
        Elements, or `MISSING`.

    Examples
    --------
    >>> directions = exchange_directions(np.array([0, 0, 1, 1]), np.array([4, 4, 2, 6]), np.array([6, 2, 4, 4]))
    >>> [DIRECTIONS[each] for each in directions]
    ['dispatch', 'dispatch', 'combine', 'combine']
    """
    result = np.full(len(operation), UNKNOWN)
    rows = np.flatnonzero(operation != MISSING)
    _, group, members = np.unique(operation[rows], return_inverse=True, return_counts=True)
    unsized = np.bincount(group, weights=np.minimum(sent[rows], received[rows]) < 0, minlength=len(members)) > 0
    most = np.zeros((2, len(members)), dtype=np.int64)
    for largest, elements in zip(most, (sent, received), strict=True):
        np.maximum.at(largest, group, elements[rows])
    direction = np.where(most[1] > most[0], DISPATCH, np.where(most[1] < most[0], COMBINE, EVEN))
    result[rows] = np.where(unsized | (members < 2), UNKNOWN, direction)[group]
    return result
