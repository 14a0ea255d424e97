"""`Group`: the same work on two or more streams, under policies that are to be compared; and how it is recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu.counts import MOST_LAUNCHES, remembered
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.step import Machine, Member, Row, Step, Tables
from benchmarks.gpu.work import Work

__all__ = ["Group", "Scenario", "alone_rows", "group_step", "launches_for"]

#: All streams together take so many launches before the host has to wait.
MOST_LAUNCHES_TOGETHER = 900
#: Launches, and times, by which a work is sized up before it is timed.
FIRST_LAUNCHES = 4
FIRST_REPETITIONS = 2
#: Building buffers and waiting, a scenario and a group; a guess.
SCENARIO_SECONDS = 0.004
GROUP_SECONDS = 0.1


@dataclass(frozen=True)
class Scenario:
    """Members in the order of their dispatch, each of a side of its group; `launches` counts per launch of the side."""

    policy: str
    members: tuple[tuple[int, Member], ...]


@dataclass(frozen=True)
class Group:
    """The same work under several policies.

    Parameters
    ----------
    part, name : str
    sides : tuple of Work
        What each side launches; how often follows from what it takes alone, so that all sides last equally long.
    scenarios : tuple of Scenario
    needs : frozenset of str
        Features.
    """

    part: str
    name: str
    sides: tuple[Work, ...]
    scenarios: tuple[Scenario, ...]
    needs: frozenset[str] = frozenset()

    @property
    def works(self) -> set[Work]:
        """All that is launched."""
        return {member.work for scenario in self.scenarios for _, member in scenario.members} | set(self.sides)


def group_step(group: Group, size: Size) -> Step:
    """Return the step that records a group: each of its works alone, then every scenario."""
    runs = len(group.scenarios) + len(group.works)
    seconds = GROUP_SECONDS + runs * (size.repetitions + 1) * (SCENARIO_SECONDS + 3e-9 * size.target_ns)

    def run(machine: Machine, folder: Path) -> Tables:
        key = f"{group.part}:{group.name}"
        sides = len(group.sides)
        counts = remembered(folder, key, sides, lambda: _counts(machine, group, size.target_ns))
        return _recorded(machine, group, size, counts)

    return Step(f"{group.part}:{group.name}", group.part, round(seconds, 3), run, group.needs)


def launches_for(machine: Machine, work: Work, units: int, target_ns: int) -> int:
    """Return how many launches of a work on so many units (0: all) take about so long, from 1 to `MOST_LAUNCHES`."""
    return max(1, min(MOST_LAUNCHES, round(target_ns / _single_ns(machine, work, units))))


def alone_rows(machine: Machine, part: str, member: Member, repetitions: int) -> list[Row]:
    """Return rows of the table `alone`."""
    return [
        {
            "part": part, "work": member.work.name, "units": member.units or None, "repetition": repetition,
            "launches": member.launches, "duration_ns": duration_ns,
        }
        for repetition, duration_ns in enumerate(machine.alone(replace(member, priority=0, lag_ns=0), repetitions))
    ]  # fmt: skip


def _recorded(machine: Machine, group: Group, size: Size, counts: Sequence[int]) -> Tables:
    scenarios = [
        (scenario.policy, [replace(m, launches=m.launches * counts[side]) for side, m in scenario.members])
        for scenario in group.scenarios
    ]
    alone = {(m.work, m.units): m for _, members in scenarios for m in members}
    alone |= {(w, 0): Member(w, counts[side]) for side, w in enumerate(group.sides) if (w, 0) not in alone}
    # A partition's own time is read beside that of the whole device.
    alone |= {(m.work, 0): replace(m, units=0) for m in alone.values() if (m.work, 0) not in alone}
    rows = [row for member in alone.values() for row in alone_rows(machine, group.part, member, size.repetitions)]
    together = [
        row
        for policy, members in scenarios
        for row in _together_rows(group, policy, members, machine.together(members, size.repetitions))
    ]
    return {"alone": rows, "together": together}


def _counts(machine: Machine, group: Group, target_ns: int) -> list[int]:
    """Return launches a side, so that each takes as long as the target, or as the longest single launch."""
    singles = {work: _single_ns(machine, work, 0) for work in set(group.sides)}
    target_ns = max(target_ns, *singles.values())
    most_members = max(len(scenario.members) for scenario in group.scenarios)
    counts = []
    for side, work in enumerate(group.sides):
        pieces = max((m.launches for s in group.scenarios for at, m in s.members if at == side), default=1)
        most = max(1, min(MOST_LAUNCHES, MOST_LAUNCHES_TOGETHER // most_members) // pieces)
        counts.append(max(1, min(most, round(target_ns / singles[work]))))
    return counts


def _single_ns(machine: Machine, work: Work, units: int) -> int:
    took_ns = min(machine.alone(Member(work, FIRST_LAUNCHES, units=units), FIRST_REPETITIONS))
    return max(1, took_ns // FIRST_LAUNCHES)


def _together_rows(
    group: Group, policy: str, members: Sequence[Member], runs: Sequence[Sequence[tuple[int, int]]]
) -> list[Row]:
    return [
        _row(group, policy, member) | {"repetition": repetition, "member": at, "start_ns": times[0], "end_ns": times[1]}
        for repetition, run in enumerate(runs)
        for at, (member, times) in enumerate(zip(members, run, strict=True))
    ]


def _row(group: Group, policy: str, member: Member) -> dict[str, object]:
    return {
        "part": group.part, "group": group.name, "scenario": f"{group.name} | {policy}", "policy": policy,
        "work": member.work.name, "launches": member.launches, "priority": member.priority,
        "units": member.units or None, "lag_ns": member.lag_ns,
    }  # fmt: skip
