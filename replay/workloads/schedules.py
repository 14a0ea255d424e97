"""Pipeline schedules: the order in which a stage runs its micro-batches, and when each is done.

`schedule_order` returns the passes of a stage in order, and `run_schedule` runs them on all stages. A stage has two
clocks, host and device. The host calls the operators of a micro-batch; the device starts no earlier than its call, and
is done no earlier than the last call. Where one is slower, the other waits or runs ahead. In Megatron-LM the host waits
for the device before each forward pass, where it reads the sizes of the batch back, and between stages, whose exchanges
synchronise: it cannot run ahead further than from a forward pass to the backward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Duration:
    """Time of host and device for a part of a step.

    A host that is free at h is free again at ``h + host_s``. A device that is free at d is done at the later of
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
        """Return the duration of this with `other` after it."""
        reach = max(self.reach_s + other.device_s, self.host_s + other.reach_s)
        return Duration(self.host_s + other.host_s, self.device_s + other.device_s, reach)

    def times(self, count: int) -> "Duration":
        """Return the duration of `count` repetitions, one after the other."""
        more = (count - 1) * max(self.host_s, self.device_s)
        return Duration(count * self.host_s, count * self.device_s, self.reach_s + more)


@dataclass(frozen=True)
class StagePass:
    """A micro-batch that passes a chunk of a stage.

    Parameters
    ----------
    way : str
        ``"forward"``, ``"backward"``, or ``"weights"``: the gradients of weights, where the backward pass leaves them
        out.
    micro_batch, chunk : int
        Numbers from 0.
    """

    way: str
    micro_batch: int
    chunk: int = 0


def schedule_order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> list[StagePass]:
    """Return the passes of a stage in order.

    Parameters
    ----------
    schedule : str
        One of `replay.workloads.SCHEDULES`.
    stage, stages : int
        Number of the stage from 0, and of all.
    micro_batches : int
        Number of micro-batches of a step; with chunks, a multiple of the stages.
    chunks : int
        Chunks of layers in a stage.

    Notes
    -----
    Before the first gradient can come, a stage runs forward passes; then one forward and one backward; then the rest.
    ``"1f1b"``: PipeDream-Flush, arXiv 2006.09503. ``"interleaved"``: arXiv 2104.04473, section 2.2, in the order of
    Megatron-LM: as many micro-batches as stages pass one chunk, then the next. ``"zero_bubble"``: ZB-H1, arXiv
    2401.10241, section 2.1: gradients of weights wait for as many micro-batches as there are stages before this one,
    and then fill the time in which a stage waits for gradients.

    Examples
    --------
    >>> [(each.way, each.micro_batch) for each in schedule_order("1f1b", 0, 2, 2)]
    [('forward', 0), ('forward', 1), ('backward', 0), ('backward', 1)]
    >>> [(each.way[0], each.micro_batch) for each in schedule_order("zero_bubble", 1, 2, 2)]
    [('f', 0), ('b', 0), ('f', 1), ('b', 1), ('w', 0), ('w', 1)]
    """
    total = micro_batches * chunks
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, total)
    forward = [_numbered("forward", i, stages, chunks) for i in range(total)]
    backward = [_numbered("backward", i, stages, chunks) for i in range(total)]
    weights = [StagePass("weights", i) for i in range(micro_batches)] if schedule == "zero_bubble" else []
    order, late = forward[:ahead], 0
    for i in range(total):
        order += [*forward[ahead + i : ahead + i + 1], backward[i]]
        is_draining = ahead + i >= total
        if weights and (i - late >= stage or is_draining):
            order.append(weights[late])
            late += 1
    return order + weights[late:]


def _numbered(way: str, number: int, stages: int, chunks: int) -> StagePass:
    """Return the pass of a number in a direction: a group of micro-batches passes chunk after chunk."""
    if chunks == 1:
        return StagePass(way, number)
    group, within = divmod(number, stages * chunks)
    chunk = within // stages
    return StagePass(way, group * stages + within % stages, chunk if way == "forward" else chunks - 1 - chunk)


@lru_cache(256)
def _orders(schedule: str, stages: int, micro_batches: int, chunks: int) -> list[list[StagePass]]:
    """Return the passes of each stage in order."""
    return [schedule_order(schedule, i, stages, micro_batches, chunks) for i in range(stages)]


#: Rounds of as many micro-batches as stages after which a schedule repeats itself.
_FULL = 4


def run_schedule(
    parts: Sequence[Mapping[str, Duration]],
    micro_batches: int,
    exchange_s: float = 0.0,
    *,
    schedule: str = "1f1b",
    chunks: int = 1,
) -> tuple[float, ...]:
    """Run the micro-batches of a step; return when each stage is done, s.

    Parameters
    ----------
    parts : sequence of mapping of str to Duration
        Durations ``"forward"``, ``"backward"`` and, of the schedule ``"zero_bubble"``, ``"weights"`` of each stage in
        order of the model; with chunks, the first chunk of each stage, then the second, and so on.
    micro_batches : int
        Number of micro-batches of a step.
    exchange_s : float
        From when one stage is done with a micro-batch and the next asks for it until that can start with it.
    schedule : str
        One of `replay.workloads.SCHEDULES`.
    chunks : int
        Chunks of layers in a stage.

    Notes
    -----
    Stages that all take f forward and b backward idle for ``(stages - 1) * (f + b)``, with chunks for the `chunks`-th
    part of it (arXiv 2104.04473, section 2.2). With zero bubble, and w beside b for gradients of weights, they idle for
    ``(stages - 1) * (f + b - w)`` (arXiv 2401.10241, section 2). This needs exchanges that take no time, w no longer
    than f and b, and no fewer micro-batches than stages. Of many micro-batches, the first rounds are run and the others
    added; where stages differ, the end is off by 1 % at most.

    Examples
    --------
    >>> stage = {"forward": Duration(0.0, 1.0), "backward": Duration(0.0, 2.0)}
    >>> run_schedule([stage] * 2, 3)
    (12.0, 10.0)
    """
    n = len(parts) // chunks
    if micro_batches > _FULL * n:  # once all stages are busy, each further round of n micro-batches takes as long
        fewer = _FULL * n - n + (micro_batches - 1) % n + 1
        first, last = (
            run_schedule(parts, count, exchange_s, schedule=schedule, chunks=chunks) for count in (fewer - n, fewer)
        )
        rounds = (micro_batches - fewer) // n
        return tuple(end + rounds * (end - begin) for begin, end in zip(first, last, strict=True))
    orders = _orders(schedule, n, micro_batches, chunks)
    host, device, position = [0.0] * n, [0.0] * n, [0] * n
    done: dict[tuple[int, str, int], float] = {}
    left = sum(map(len, orders))
    while left:  # each pass once, in some order that its inputs allow
        for i in range(n):
            while position[i] < len(orders[i]):
                each = orders[i][position[i]]
                part = each.chunk * n + i
                before = {"forward": part - 1, "backward": part + 1}.get(each.way, -1)
                waits = 0 <= before < len(parts)
                key = (before, each.way, each.micro_batch)
                if waits and key not in done:
                    break
                began = max(host[i], device[i] if each.way == "forward" else 0.0)  # it reads the batch's sizes back
                if waits:
                    began = max(began, done[key]) + exchange_s
                took = parts[part][each.way]
                host[i] = began + took.host_s
                device[i] = max(device[i] + took.device_s, began + took.reach_s)
                if n > 1 and each.way != "weights":
                    host[i] = device[i]  # it waits for what it sends
                done[part, each.way, each.micro_batch] = device[i]
                position[i] += 1
                left -= 1
    return tuple(device)
