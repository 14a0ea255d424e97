"""Programs of host calls and kernels, and the clock that times them.

What a synthetic trace is written from: for every rank, the works and waits of each step, with their durations.

Plain data: who makes it knows operators and times, who writes it knows events.

When the works of a step run: hosts call them in order, streams run them in order, and partners meet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profilers.errors import InvalidInputError


@dataclass(frozen=True)
class Exchange:
    """What makes a work a collective.

    Parameters
    ----------
    kind : str
        ``"all_reduce"`` and so on, as `profilers.ingest.collectives` names them.
    elements : int
    group : str
        Name of the group of ranks.
    size : int
        Ranks of the group, whether or not all of them are in the trace.
    meets : str
        Works of several ranks with this key, which one step has once a rank, start together; empty without partner.
    """

    kind: str
    elements: int
    group: str
    size: int
    meets: str = ""


@dataclass(frozen=True)
class Work:
    """A kernel or collective, and the call that launches it.

    Parameters
    ----------
    name, op : str
        Of the kernel, and of the operator that launches it.
    duration_ns : int
        Alone, from when all that it needs is there.
    host_ns : int
        From its call to the next.
    stream : int
    shape : tuple of int
    workgroups : int
    after : tuple of int
        Positions in the rank's program of works on other streams that it waits for, each before it.
    exchange : Exchange, optional
    """

    name: str
    op: str
    duration_ns: int
    host_ns: int
    stream: int = 7
    shape: tuple[int, ...] = ()
    workgroups: int = 1
    after: tuple[int, ...] = ()
    exchange: Exchange | None = None


@dataclass(frozen=True)
class Wait:
    """The host waits for the device.

    Parameters
    ----------
    stream : int, optional
        For this stream alone; else for all.
    host_ns : int
        What the host then does before its next call.
    returns_ns : int
        From the end of the work to the return of the call.
    """

    stream: int | None = None
    host_ns: int = 0
    returns_ns: int = 0


@dataclass(frozen=True)
class SyntheticStep:
    """One iteration.

    Parameters
    ----------
    name : str
    sequence_length, batch : int
    programs : sequence of sequence of Work or Wait
        Of each rank.
    """

    name: str
    sequence_length: int
    batch: int
    programs: Sequence[Sequence[Work | Wait]]


@dataclass(frozen=True)
class SyntheticJob:
    """What to write.

    Parameters
    ----------
    description, version : str
        For the trace's source and version.
    steps : sequence of SyntheticStep
        All of as many ranks.
    world_size : int
        Ranks of the job, of which the trace may hold one of several that do the same.
    dtype : str
        Of what is computed, as profilers name it.
    element_bytes : int
    """

    description: str
    version: str
    steps: Sequence[SyntheticStep]
    world_size: int
    dtype: str = "BFloat16"
    element_bytes: int = 2


#: Time from a call to its kernel, where nothing else holds it up.
LAUNCH_NS = 8_000


@dataclass
class Timing:
    """When what a rank's program has is called and runs, in ns; by position in the program.

    Parameters
    ----------
    called, returned : dict
        Of calls; those of a wait return when the device is done.
    started, ended : dict
        Of works: a collective starts when it arrives, and works once its partners are there.
    host_ns : int
        When the host is free.
    """

    host_ns: int
    called: dict[int, int] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


@dataclass
class _Rank:
    """What is still to be done of a rank's program."""

    program: Sequence[Work | Wait]
    timing: Timing
    free: dict[int, int]
    queues: dict[int, list[int]] = field(default_factory=dict)
    position: int = 0

    def advance(self) -> bool:
        """Call what can be called; return whether anything was."""
        before = self.position
        while self.position < len(self.program) and self._call(self.program[self.position]):
            self.position += 1
        return self.position > before

    def _call(self, item: Work | Wait) -> bool:
        timing, at = self.timing, self.position
        if isinstance(item, Work):
            timing.called[at] = timing.host_ns
            timing.host_ns += item.host_ns
            self.queues.setdefault(item.stream, []).append(at)
            return True
        if any(queue for stream, queue in self.queues.items() if item.stream in (None, stream)):
            return False
        busy = [end for stream, end in self.free.items() if item.stream in (None, stream)]
        timing.called[at] = timing.host_ns
        timing.returned[at] = max([timing.host_ns, *(end + item.returns_ns for end in busy)])
        timing.host_ns = timing.returned[at] + item.host_ns
        return True

    def heads(self) -> list[tuple[int, int]]:
        """Return, of each stream, the work that is next and when it is ready, where that is known."""
        found = []
        for stream, queue in self.queues.items():
            if queue and all(other in self.timing.ended for other in self._work(queue[0]).after):
                after = [self.timing.ended[other] for other in self._work(queue[0]).after]
                ready = max([self.timing.called[queue[0]] + LAUNCH_NS, self.free.get(stream, 0), *after])
                found.append((queue[0], ready))
        return found

    def _work(self, position: int) -> Work:
        item = self.program[position]
        assert isinstance(item, Work)
        return item

    def finish(self, position: int, started: int, ended: int) -> None:
        """Note when the next work of a stream ran."""
        stream = self._work(position).stream
        self.timing.started[position], self.timing.ended[position] = started, ended
        self.free[stream] = ended
        self.queues[stream].pop(0)


def run_step(
    step: SyntheticStep, hosts: Sequence[int], streams: Sequence[Mapping[int, int]]
) -> tuple[list[Timing], list[dict[int, int]]]:
    """Return when all of a step runs, and when each rank's streams are free after it.

    Parameters
    ----------
    step : SyntheticStep
    hosts : sequence of int
        When each rank's host starts, ns.
    streams : sequence of mapping
        When each rank's streams are free, ns.

    Raises
    ------
    InvalidInputError
        Ranks wait for one another for ever; the first work that does is named.
    """
    members = _members(step)
    ranks = [
        _Rank(program, Timing(host), dict(free))
        for program, host, free in zip(step.programs, hosts, streams, strict=True)
    ]
    moved = True
    while moved:
        moved = False
        arrived: dict[str, list[tuple[int, int, int]]] = {}
        for number, rank in enumerate(ranks):
            moved |= rank.advance()
            for position, ready in rank.heads():
                work = rank.program[position]
                assert isinstance(work, Work)
                if work.exchange and work.exchange.meets:
                    arrived.setdefault(work.exchange.meets, []).append((number, position, ready))
                else:
                    rank.finish(position, ready, ready + work.duration_ns)
                    moved = True
        for key, several in arrived.items():
            if len(several) == members[key]:
                _meet(ranks, several)
                moved = True
    for number, rank in enumerate(ranks):
        if left := sorted(position for queue in rank.queues.values() for position in queue):
            work = rank.program[left[0]]
            raise InvalidInputError(f"step {step.name!r}: rank {number} waits for ever at work {left[0]}, {work}")
    return [rank.timing for rank in ranks], [rank.free for rank in ranks]


def _members(step: SyntheticStep) -> dict[str, int]:
    found: dict[str, int] = {}
    for program in step.programs:
        for item in program:
            if isinstance(item, Work) and item.exchange and item.exchange.meets:
                found[item.exchange.meets] = found.get(item.exchange.meets, 0) + 1
    return found


def _meet(ranks: Sequence[_Rank], several: Sequence[tuple[int, int, int]]) -> None:
    met = max(ready for _, _, ready in several)
    for number, position, ready in several:
        work = ranks[number].program[position]
        assert isinstance(work, Work)
        ranks[number].finish(position, ready, met + work.duration_ns)
