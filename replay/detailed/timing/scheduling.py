"""Order the operations of a basic block: the longest chain of dependent operations first."""

from dataclasses import dataclass, field

from replay.detailed import program as low
from replay.detailed.timing.expansion import (
    ATOMIC,
    BARRIER,
    BRANCH,
    COPY,
    EXIT,
    GLOBAL_STORE,
    PLAIN,
    SHARED_STORE,
)

#: Operations that are considered at a time, so that values do not live too long.
_WINDOW = 48
#: Cycles that the order expects of a load.
_EXPECTED = {low.GLOBAL: 200, low.SHARED: 25, low.LOCAL: 60, low.CONSTANT: 30}


@dataclass
class Operation:
    """An operation before it has its place."""

    unit: int
    role: int = PLAIN
    issues: int = 1
    interval: int = 1
    latency: int = 1
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    width: int = 4
    line: int = 0
    row: int = -1
    spaces: frozenset[int] = field(default_factory=frozenset)

    @property
    def stores(self) -> bool:
        """Whether it changes memory, or waits for others that do."""
        return self.role in (GLOBAL_STORE, SHARED_STORE, ATOMIC, COPY, BARRIER)

    @property
    def ends_block(self) -> bool:
        """Whether nothing of its basic block may follow it."""
        return self.role in (BRANCH, EXIT)


def ordered(operations: list[Operation]) -> list[Operation]:
    """Return the operations of a basic block in the order of a list scheduler.

    An operation is free when those whose results it needs, and accesses to memory that it must not pass, stand before
    it. Of the free ones in a window, that with the longest chain behind it comes first (Gibbons and Muchnick, 1986).

    Parameters
    ----------
    operations : list of Operation
        Operations of a basic block in the order of PTX.
    """
    before = _dependences(operations)
    n = len(operations)
    behind: list[list[int]] = [[] for _ in range(n)]
    for number, earlier in enumerate(before):
        for other in earlier:
            behind[other].append(number)
    height = [0] * n
    for number in range(n - 1, -1, -1):
        longest = max((height[other] for other in behind[number]), default=0)
        height[number] = longest + _latency(operations[number])
    left = [len(earlier) for earlier in before]
    done = [False] * n
    order: list[int] = []
    oldest = 0
    while oldest < n:
        best = -1
        for number in range(oldest, min(oldest + _WINDOW, n)):
            if not done[number] and left[number] == 0 and (best < 0 or height[number] > height[best]):
                best = number
        done[best] = True
        order.append(best)
        for other in behind[best]:
            left[other] -= 1
        while oldest < n and done[oldest]:
            oldest += 1
    return [operations[number] for number in order]


def _latency(operation: Operation) -> int:
    if operation.targets and operation.slots:
        return max((_EXPECTED.get(space, 30) for space in operation.spaces), default=30)
    return max(operation.latency, 1)


def _dependences(operations: list[Operation]) -> list[set[int]]:
    """Return for each operation those that must stand before it."""
    before: list[set[int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    last_store: dict[int, int] = {}
    loads: dict[int, list[int]] = {}
    for number, operation in enumerate(operations):
        needs: set[int] = set()
        for source in operation.sources:
            if source in writer:
                needs.add(writer[source])
        for target in operation.targets:
            if target in writer:
                needs.add(writer[target])
            needs.update(readers.get(target, ()))
        writes = operation.stores
        for space in operation.spaces:
            if space in last_store:
                needs.add(last_store[space])
            if writes:
                needs.update(loads.get(space, ()))
        if operation.ends_block:
            needs.update(range(number))
        for space in operation.spaces:
            if writes:
                last_store[space], loads[space] = number, []
            else:
                loads.setdefault(space, []).append(number)
        for source in operation.sources:
            readers.setdefault(source, []).append(number)
        for target in operation.targets:
            writer[target], readers[target] = number, []
        needs.discard(number)
        before.append(needs)
    return before
