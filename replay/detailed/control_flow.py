"""Find where the two ways of a branch meet again: its immediate post-dominator."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Ints

Mask = npt.NDArray[np.bool_]


def leaders(branches: Mask, exits: Mask, targets: Ints) -> list[int]:
    """Return the first instruction of each basic block; arguments as those of `joins`."""
    starts = {0} | {int(t) for t in targets[branches]}
    starts |= {int(p) + 1 for p in np.flatnonzero(branches | exits) if p + 1 < len(branches)}
    return sorted(starts)


def following_blocks(branches: Mask, exits: Mask, guarded: Mask, targets: Ints) -> list[list[int]]:
    """Return the basic blocks that may follow each, by number; the number of blocks stands for the end of a thread.

    Arguments are those of `joins`.
    """
    begins = leaders(branches, exits, targets)
    number = {begin: k for k, begin in enumerate(begins)}
    leave = len(begins)
    following: list[list[int]] = []
    for k in range(leave):
        last = (begins[k + 1] if k + 1 < leave else len(branches)) - 1
        through = [min(k + 1, leave)]
        if branches[last]:
            to = [number[int(targets[last])]]
            following.append(to + through if guarded[last] else to)
        elif exits[last]:
            following.append([leave, *through] if guarded[last] else [leave])
        else:
            following.append(through)
    return following


def joins(branches: Mask, exits: Mask, guarded: Mask, targets: Ints) -> Ints:
    """Return for each branch the instruction at which its two ways meet; -1 for other instructions.

    Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm (2001), on the reversed graph of basic blocks.

    Parameters
    ----------
    branches, exits, guarded : array of bool, shape (n,)
        Which instructions are branches, which end a thread, and which have a guard.
    targets : array of int64, shape (n,)
        Target of each branch.
    """
    n = len(branches)
    begins = leaders(branches, exits, targets)
    leave = len(begins)
    meet = _post_dominators(following_blocks(branches, exits, guarded, targets), leave)
    meeting = np.full(n, -1, dtype=np.int64)
    for k in range(leave):
        last = (begins[k + 1] if k + 1 < leave else n) - 1
        if branches[last]:
            meeting[last] = begins[meet[k]] if 0 <= meet[k] < leave else n
    return meeting


def _post_dominators(following: list[list[int]], leave: int) -> list[int]:
    """Return the immediate post-dominator of each block; `leave` is the exit, -1 if a block never ends."""
    before: list[list[int]] = [[] for _ in range(leave + 1)]
    for k, nexts in enumerate(following):
        for other in nexts:
            before[other].append(k)
    order, seen, stack = [], {leave}, [(leave, iter(before[leave]))]
    while stack:
        node, rest = stack[-1]
        step = next((k for k in rest if k not in seen), None)
        if step is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(step)
            stack.append((step, iter(before[step])))
    rank = {node: position for position, node in enumerate(order)}
    meet = [-1] * leave + [leave]
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            found = -1
            for other in following[node]:
                if other == leave or meet[other] >= 0:
                    found = other if found < 0 else _common(meet, rank, found, other)
            if found != meet[node]:
                meet[node], changed = found, True
    return meet


def _common(meet: list[int], rank: Mapping[int, int], a: int, b: int) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = meet[a]
        while rank[b] < rank[a]:
            b = meet[b]
    return a
