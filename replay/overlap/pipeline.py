"""Kernels and the collective that carries their data, piece by piece beside each other instead of one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from replay.graph import EdgeKind, Edges, KernelGraph
from replay.overlap.splitting import Split, split
from replay.overlap.targets import Target

__all__ = ["Pipeline", "receive_in_pieces", "send_in_pieces"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pipeline:
    """A graph in which targets run in pieces.

    Parameters
    ----------
    graph : KernelGraph
    kernels : tuple of array of int64, shape (n_kernels, n_pieces)
        Of each target, the pieces of its kernels.
    collectives : tuple of array of int64, shape (n_pieces + n_more,)
        Of each target, the pieces of its collective.
    """

    graph: KernelGraph
    kernels: tuple[Ints, ...]
    collectives: tuple[Ints, ...]


def send_in_pieces(
    graph: KernelGraph, targets: Sequence[Target], pieces: Sequence[int], more: Sequence[int] = ()
) -> Pipeline:
    """Return a graph in which a collective sends each piece of its data as soon as that is computed and packed.

    A piece is sent when all ranks that meet have computed theirs. What else a collective or kernel waited for, its
    first piece waits for.

    Parameters
    ----------
    graph : KernelGraph
    targets : sequence of Target
        As `replay.overlap.targets.producers` finds them.
    pieces : sequence of int
        Of each target.
    more : sequence of int, optional
        Of each target, pieces that its collective has behind those that carry data as it comes.
    """
    return _joined(graph, targets, (pieces, more or [0] * len(targets)), _send)


def receive_in_pieces(graph: KernelGraph, targets: Sequence[Target], pieces: Sequence[int]) -> Pipeline:
    """Return a graph in which kernels unpack and compute on each piece of data as soon as it is there.

    Parameters
    ----------
    graph : KernelGraph
    targets : sequence of Target
        As `replay.overlap.targets.consumers` finds them.
    pieces : sequence of int
        Of each target.
    """
    return _joined(graph, targets, (pieces, [0] * len(targets)), _receive)


#: Of one target, its pieces and the split graph: pairs of tasks of which the second waits for the first.
_Rewiring = Callable[[Target, Ints, Ints, Split], list[tuple[npt.ArrayLike, npt.ArrayLike]]]


def _joined(
    graph: KernelGraph, targets: Sequence[Target], counts: tuple[Sequence[int], Sequence[int]], rewire: _Rewiring
) -> Pipeline:
    parts: dict[int, int] = {}
    for target, count, more in zip(targets, *counts, strict=True):
        parts.update(dict.fromkeys(target.kernels, count))
        parts[target.collective] = count + more
        if rewire is _send and target.meeting >= 0:
            parts[target.meeting] = max(count, parts.get(target.meeting, 1))
    found = split(graph, list(parts), list(parts.values()))
    kernels = tuple(np.array([found.of(kernel) for kernel in target.kernels]) for target in targets)
    collectives = tuple(found.of(target.collective) for target in targets)
    new: list[tuple[npt.ArrayLike, npt.ArrayLike]] = []
    group = _groups(graph, targets, found)
    for target, rows, sent in zip(targets, kernels, collectives, strict=True):
        new += rewire(target, rows, sent, found)
    edges = found.graph.edges
    own = edges.source >= len(graph.tasks)  # of a piece to the next: they stay
    same = (group[edges.source] >= 0) & (group[edges.source] == group[edges.target]) & ~own & ~edges.from_start
    # What waited for the whole waits for the first piece, with the pause that there was.
    eased = same & (edges.kind != EdgeKind.LAUNCH)
    if rewire is _send:
        eased |= _met(graph, targets, found)
    edges = replace(edges, source=np.where(eased, found.first[edges.source], edges.source))
    return Pipeline(replace(found.graph, edges=edges.joined(_edges(new))), kernels, collectives)


def _groups(graph: KernelGraph, targets: Sequence[Target], found: Split) -> Ints:
    """Return for each task and piece the target that it is part of, with the arrival of its collective; -1 for none."""
    group = np.full(len(found.graph.tasks), -1)
    for number, target in enumerate(targets):
        group[graph.arrival_of(target.collective)] = number
        for task in (*target.kernels, target.collective):
            group[found.of(task)] = number
    return group


def _send(target: Target, kernels: Ints, sent: Ints, found: Split) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    last, pieces = kernels[-1], kernels.shape[1]
    new = _one_after_another(kernels)
    if target.meeting >= 0:
        meeting = found.of(target.meeting)[:pieces]
        new += [(last, meeting), (meeting, sent[:pieces])]
    else:
        new.append((last, sent[:pieces]))
    return new


def _receive(_target: Target, kernels: Ints, sent: Ints, _found: Split) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    return [(sent, kernels[0]), *_one_after_another(kernels)]


def _one_after_another(kernels: Ints) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    """Return the order of pieces on their stream: all kernels of one piece, then those of the next."""
    inside: list[tuple[npt.ArrayLike, npt.ArrayLike]] = list(pairwise(kernels))
    return [*inside, (kernels[-1][:-1], kernels[0][1:])]


def _met(graph: KernelGraph, targets: Sequence[Target], found: Split) -> npt.NDArray[np.bool_]:
    """Return the edges by which the collectives of targets waited for the whole of what all ranks bring."""
    meeting = np.full(len(found.graph.tasks), -2)
    for target in targets:
        if target.meeting >= 0:
            meeting[found.of(target.collective)[0]] = target.meeting
    edges = found.graph.edges
    return np.asarray((edges.kind == EdgeKind.RENDEZVOUS) & (meeting[edges.target] == edges.source))


def _edges(pairs: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]) -> Edges:
    source = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(one) for one, _ in pairs)])
    target = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(other) for _, other in pairs)])
    n = len(source)
    return Edges(source, target, np.zeros(n), np.zeros(n, dtype=np.bool_), np.full(n, int(EdgeKind.STREAM)))
