"""`Held`: buffers that were made are kept and used again, the longest unused going first."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from benchmarks.gpu.kernels import Bound
from benchmarks.gpu.step import Member
from benchmarks.gpu.work import Work

__all__ = ["Held", "slots_of"]


def slots_of(members: Sequence[Member]) -> list[int]:
    """Return, by member, how many before it have the same work: each of them has buffers of its own."""
    return [sum(other.work == member.work for other in members[:at]) for at, member in enumerate(members)]


class Held:
    """Bound works by work and slot.

    Parameters
    ----------
    make : callable
        Binds a work, settled and checked.
    most_bytes : int
        What is held beyond what is asked for together.
    """

    def __init__(self, make: Callable[[Work], Bound], most_bytes: int) -> None:
        self._make, self._most_bytes = make, most_bytes
        self._bound: OrderedDict[tuple[Work, int], Bound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bound)

    def of(self, wanted: Sequence[tuple[Work, int]]) -> list[Bound]:
        """Return works with buffers of their own, made where there are none; others make room."""
        for key in wanted:
            if key in self._bound:
                self._bound.move_to_end(key)
            else:
                self._bound[key] = self._make(key[0])
        while sum(one.held_bytes for one in self._bound.values()) > self._most_bytes:
            if next(iter(self._bound)) in wanted:
                break
            self._bound.popitem(last=False)
        return [self._bound[key] for key in wanted]

    def clear(self) -> None:
        """Give all back."""
        self._bound.clear()
