"""Pipeline schedules: the order in which a stage runs its micro-batches, and when each is done.

A stage has two clocks, host and device. The host calls what a micro-batch runs; the device starts no earlier than its
call, and is done no earlier than the last call. Where one is slower, the other waits or runs ahead. In Megatron-LM the
host waits for the device before each forward pass, where it reads the sizes of the batch back, and between stages,
whose exchanges synchronise: it cannot run ahead further than from a forward pass to the backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Duration", "Finished", "StageTime", "one_forward_one_backward", "run_schedule"]


@dataclass(frozen=True)
class Duration:
    """What a piece of work takes of host and device.

    A host that is free at h is free again at ``h + host_s``, and a device that is free at d is done at the later of
    ``d + device_s`` and ``h + reach_s``.

    Parameters
    ----------
    host_s, device_s : float
        Calls, and kernels.
    reach_s : float
        From the first call to the end, on a device that is free: 0 is taken for the longer of the two.

    Examples
    --------
    >>> slow, heavy = Duration(2.0, 1.0), Duration(1.0, 3.0)
    >>> slow.then(heavy).reach_s, heavy.then(slow).reach_s  # the heavy part has to wait for its calls, or hides others'
    (5.0, 4.0)
    """

    host_s: float
    device_s: float
    reach_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach_s", max(self.reach_s, self.host_s, self.device_s))

    def then(self, other: "Duration") -> "Duration":
        """Return what this takes with `other` after it."""
        reach = max(self.reach_s + other.device_s, self.host_s + other.reach_s)
        return Duration(self.host_s + other.host_s, self.device_s + other.device_s, reach)

    def times(self, count: int) -> "Duration":
        """Return what it takes `count` times, one after the other."""
        more = (count - 1) * max(self.host_s, self.device_s)
        return Duration(count * self.host_s, count * self.device_s, self.reach_s + more)


@dataclass(frozen=True)
class StageTime:
    """A stage's durations, forward and backward."""

    forward: Duration
    backward: Duration


@dataclass(frozen=True)
class Finished:
    """When each stage is done, and for how long its device worked, in s."""

    ends_s: tuple[float, ...]

    @property
    def end_s(self) -> float:
        """When all are."""
        return max(self.ends_s)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the order of a stage: forward passes until the first gradient can come, then one of each, then the rest.

    Source: PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473, figure 4.

    Examples
    --------
    >>> one_forward_one_backward(0, 2, 2)
    [('forward', 0), ('forward', 1), ('backward', 0), ('backward', 1)]
    >>> one_forward_one_backward(1, 2, 2)
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    ahead = min(stages - stage - 1, micro_batches)
    order = [("forward", i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        order += [("forward", ahead + i), ("backward", i)]
    return order + [("backward", i) for i in range(micro_batches - ahead, micro_batches)]


def run_schedule(stages: Sequence[StageTime], micro_batches: int, exchange_s: float = 0.0) -> Finished:
    """Run one-forward-one-backward.

    Parameters
    ----------
    stages : sequence of StageTime
    micro_batches : int
    exchange_s : float
        From when one stage is done with a micro-batch and the next asks for it until that can start with it.

    Notes
    -----
    Stages that take the same time, f forward and b backward, and exchange in none are done after
    ``(micro_batches + stages - 1) * (f + b)`` (arXiv 2104.04473, section 2.2).

    Examples
    --------
    >>> stage = StageTime(Duration(0.0, 1.0), Duration(0.0, 2.0))
    >>> run_schedule([stage] * 2, 3).end_s
    12.0
    """
    n = len(stages)
    orders = [one_forward_one_backward(i, n, micro_batches) for i in range(n)]
    host, device, position = [0.0] * n, [0.0] * n, [0] * n
    done: dict[tuple[int, str, int], float] = {}
    left = 2 * n * micro_batches
    while left:
        for i in range(n):
            while position[i] < len(orders[i]):
                way, number = orders[i][position[i]]
                before = i - 1 if way == "forward" else i + 1
                if 0 <= before < n and (before, way, number) not in done:
                    break
                began = max(host[i], device[i] if way == "forward" else 0.0)  # it reads the batch's sizes back
                if 0 <= before < n:
                    began = max(began, done[before, way, number]) + exchange_s
                took = stages[i].forward if way == "forward" else stages[i].backward
                host[i] = began + took.host_s
                device[i] = max(device[i] + took.device_s, began + took.reach_s)
                if n > 1:
                    host[i] = device[i]  # it waits for what it sends
                done[i, way, number] = device[i]
                position[i] += 1
                left -= 1
    return Finished(tuple(device))
