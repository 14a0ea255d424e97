"""Programs of kernels and waits on each rank, and the times at which they run.

A `SyntheticJob` is plain data: the kernels, collectives and waits of each step and rank, with their durations.
`run_step` times a step: hosts call in order, streams run in order, and the members of a collective start together.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profilers.errors import InvalidInputError


@dataclass(frozen=True)
class Collective:
    """The collective that a `KernelCall` executes.

    Parameters
    ----------
    kind : str
        ``"all_reduce"`` and so on, as `profilers.ingest.collectives` names them.
    elements : int
        Elements of the input and of the output on each rank.
    group : str
        Name of the group of ranks.
    size : int
        Ranks of the group, whether or not all of them are in the trace.
    meets : str
        Key that the members of one collective share; each rank has it once a step. They start together. Empty if no
        other member is in the trace.
    """

    kind: str
    elements: int
    group: str
    size: int
    meets: str = ""


@dataclass(frozen=True)
class KernelCall:
    """A kernel or collective, and the call that launches it.

    Parameters
    ----------
    name, op : str
        Name of the kernel, and of the operator that launches it.
    duration_ns : int
        Duration of the kernel alone; that of a collective counts from the arrival of its last member.
    host_ns : int
        Time on the host from its call to the next call.
    stream : int
        Stream of the kernel.
    shape : tuple of int
        Shape of the operator's input.
    operands : tuple of tuple of int
        Shapes of its further arguments, such as the right matrix of a product. Without them, FLOP are unknown.
    workgroups : int
        Workgroups of the kernel.
    after : tuple of int
        Positions, in the program of the rank, of earlier kernels on other streams for which it waits.
    exchange : Collective, optional
        The collective that it executes; None for a kernel that computes.
    lag_ns : int
        Time from when it could start to its start: a launch that did not overlap, or a wait for another stream.
    """

    name: str
    op: str
    duration_ns: int
    host_ns: int
    stream: int = 7
    shape: tuple[int, ...] = ()
    workgroups: int = 1
    after: tuple[int, ...] = ()
    exchange: Collective | None = None
    operands: tuple[tuple[int, ...], ...] = ()
    lag_ns: int = 0

    @property
    def meets(self) -> str:
        """The key of the collective that it executes; empty if no other member is in the trace."""
        return self.exchange.meets if self.exchange else ""


@dataclass(frozen=True)
class Wait:
    """A call in which the host waits for the device.

    Parameters
    ----------
    stream : int, optional
        Stream for which the host waits; by default all streams.
    host_ns : int
        Time on the host from the return of the call to the next call.
    returns_ns : int
        Time from the end of the device work to the return of the call.
    """

    stream: int | None = None
    host_ns: int = 0
    returns_ns: int = 0


@dataclass(frozen=True)
class SyntheticStep:
    """One iteration of a synthetic job.

    Parameters
    ----------
    name : str
        Text of its annotation in the trace.
    sequence_length, batch : int
        Tokens of a sequence, and sequences.
    programs : sequence of sequence of KernelCall or Wait
        Program of each rank, in the order of its calls.
    launch_ns : int
        Time from a call to the start of its kernel, if the kernel waits for nothing else.
    """

    name: str
    sequence_length: int
    batch: int
    programs: Sequence[Sequence[KernelCall | Wait]]
    launch_ns: int = 8_000


@dataclass(frozen=True)
class SyntheticJob:
    """A job that nobody ran, as programs of its ranks.

    Parameters
    ----------
    description, version : str
        Source and version that the trace states.
    steps : sequence of SyntheticStep
        Iterations, all with the same number of ranks.
    world_size : int
        Ranks of the job. The trace may hold one rank for several that do the same.
    dtype : str
        Element type of the operators and collectives, as profilers name it.
    element_bytes : int
        Bytes of an element.
    """

    description: str
    version: str
    steps: Sequence[SyntheticStep]
    world_size: int
    dtype: str = "BFloat16"
    element_bytes: int = 2


@dataclass
class Timing:
    """Times of a rank's program in ns, by position in the program.

    Parameters
    ----------
    host_ns : int
        Time at which the host is free.
    called, returned : dict
        Start of each call, and return of each wait.
    started, ended : dict
        Start and end of each kernel. A collective starts when its rank arrives, before the other members do.
    """

    host_ns: int
    called: dict[int, int] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)


@dataclass
class _Rank:
    """State of a rank: its position in the program, and the kernels that were called and have not run."""

    program: Sequence[KernelCall | Wait]
    timing: Timing
    free: dict[int, int]
    launch_ns: int
    queues: dict[int, list[int]] = field(default_factory=dict)
    position: int = 0

    def advance(self) -> bool:
        """Make all calls up to the next wait that blocks; return whether there was one."""
        before = self.position
        while self.position < len(self.program) and self._call(self.program[self.position]):
            self.position += 1
        return self.position > before

    def _call(self, item: KernelCall | Wait) -> bool:
        timing, position = self.timing, self.position
        if isinstance(item, KernelCall):
            timing.called[position] = timing.host_ns
            timing.host_ns += item.host_ns
            self.queues.setdefault(item.stream, []).append(position)
            return True
        if any(queue for stream, queue in self.queues.items() if item.stream in (None, stream)):
            return False
        busy = [end for stream, end in self.free.items() if item.stream in (None, stream)]
        timing.called[position] = timing.host_ns
        timing.returned[position] = max([timing.host_ns, *(end + item.returns_ns for end in busy)])
        timing.host_ns = timing.returned[position] + item.host_ns
        return True

    def heads(self) -> list[tuple[int, int]]:
        """Return the next kernel of each stream and the time at which it is ready, if that is known."""
        ready_kernels = []
        for stream, queue in self.queues.items():
            if queue and all(position in self.timing.ended for position in self.kernel(queue[0]).after):
                after = [self.timing.ended[position] for position in self.kernel(queue[0]).after]
                ready = max([self.timing.called[queue[0]] + self.launch_ns, self.free.get(stream, 0), *after])
                ready_kernels.append((queue[0], ready + self.kernel(queue[0]).lag_ns))
        return ready_kernels

    def kernel(self, position: int) -> KernelCall:
        """Return the kernel or collective at a position of the program."""
        item = self.program[position]
        assert isinstance(item, KernelCall)
        return item

    def finish(self, position: int, started: int, ended: int) -> None:
        """Record when the next kernel of a stream ran."""
        stream = self.kernel(position).stream
        self.timing.started[position], self.timing.ended[position] = started, ended
        self.free[stream] = ended
        self.queues[stream].pop(0)


def run_step(
    step: SyntheticStep, hosts: Sequence[int], streams: Sequence[Mapping[int, int]]
) -> tuple[list[Timing], list[dict[int, int]]]:
    """Return the times of a step, and the times at which the streams are free after it.

    Parameters
    ----------
    step : SyntheticStep
        Programs of all ranks.
    hosts : sequence of int
        Time at which the host of each rank starts, ns.
    streams : sequence of mapping
        Time at which each stream of each rank is free, ns.

    Returns
    -------
    list of Timing, list of dict
        Times of each rank's program, and the time at which each of its streams is free, ns.

    Raises
    ------
    InvalidInputError
        Ranks wait for one another for ever; the message names the first kernel that does.
    """
    members = Counter(item.meets for program in step.programs for item in program if isinstance(item, KernelCall))
    ranks = [
        _Rank(program, Timing(host), dict(free), step.launch_ns)
        for program, host, free in zip(step.programs, hosts, streams, strict=True)
    ]
    moved = True
    while moved:
        moved = False
        arrived: dict[str, list[tuple[int, int, int]]] = {}
        for number, rank in enumerate(ranks):
            moved |= rank.advance()
            for position, ready in rank.heads():
                kernel = rank.kernel(position)
                if kernel.meets:
                    arrived.setdefault(kernel.meets, []).append((number, position, ready))
                else:
                    rank.finish(position, ready, ready + kernel.duration_ns)
                    moved = True
        for key, arrivals in arrived.items():
            if len(arrivals) == members[key]:
                last_arrival = max(ready for _, _, ready in arrivals)
                for number, position, ready in arrivals:
                    kernel = ranks[number].kernel(position)
                    ranks[number].finish(position, ready, last_arrival + kernel.duration_ns)
                moved = True
    for number, rank in enumerate(ranks):
        if left := sorted(position for queue in rank.queues.values() for position in queue):
            kernel = rank.kernel(left[0])
            raise InvalidInputError(f"step {step.name!r}: rank {number} waits for ever at work {left[0]}, {kernel}")
    return [rank.timing for rank in ranks], [rank.free for rank in ranks]
