"""What a synthetic trace is written from: for every rank, the works and waits of each step, with their durations.

Plain data: who makes it knows operators and times, who writes it knows events.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Exchange", "SyntheticJob", "SyntheticStep", "Wait", "Work"]


@dataclass(frozen=True)
class Exchange:
    """What makes a work a collective.

    Parameters
    ----------
    kind : str
        ``"all_reduce"`` and so on, as `profilers.collectives` names them.
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
