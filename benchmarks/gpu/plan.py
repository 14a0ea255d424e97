"""`plan`: everything that is recorded, in order: the same for the same device, size and seed."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import contention, decomposition
from benchmarks.gpu.policies import Abilities
from benchmarks.gpu.scenarios import Group, group_step
from benchmarks.gpu.sizes import SIZES, Size
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.sweeps import Sweep, cache_sweeps, resource_sweeps, sweep_step
from benchmarks.gpu.work import Work

__all__ = ["PARTS", "Plan", "plan"]

PARTS = "abcdef"
WORKS_A_STEP = 16
WORK_SECONDS = 0.15


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are recorded, and (what, missing feature) for what the device cannot."""

    steps: tuple[Step, ...]
    left_out: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...] = ()


def plan(facts: Mapping[str, Any], size: str, seed: int = 0) -> Plan:
    """Return the plan for a device.

    Parameters
    ----------
    facts : mapping
        As `Machine.facts` gives them.
    size : str
        A key of `SIZES`.
    seed : int
        Of the order within part a: what a device does as it warms up should fall on no kind of scenario alone.
    """
    numbers = SIZES[size]
    abilities = Abilities.of(facts, numbers.cache_bytes)
    planned = [*_shuffled(contention.groups(numbers, abilities), seed), *resource_sweeps(numbers, abilities)]
    planned += [*decomposition.groups(numbers, abilities), *cache_sweeps(numbers, abilities)]
    left_out = tuple(entry for entry in planned if isinstance(entry, tuple))
    recorded = [entry for entry in planned if not isinstance(entry, tuple)]
    steps = [_step(entry, numbers) for entry in recorded]
    steps += _works_steps(recorded)
    for part_steps in (_training_steps, _operator_steps):
        steps += part_steps(dict(facts), size)
    repeated = {step.key for step in steps if sum(other.key == step.key for other in steps) > 1}
    if repeated:
        raise ValueError(f"steps of the same key: {', '.join(sorted(repeated))}")
    return Plan(tuple(steps), left_out, tuple(entry for entry in recorded if isinstance(entry, Group)))


def _training_steps(facts: dict[str, Any], size: str) -> list[Step]:
    """Return part e."""
    return []


def _operator_steps(facts: dict[str, Any], size: str) -> list[Step]:
    """Return part f."""
    return []


def _shuffled(entries: Iterable[Any], seed: int) -> list[Any]:
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def _step(entry: Group | Sweep, size: Size) -> Step:
    return group_step(entry, size) if isinstance(entry, Group) else sweep_step(entry, size)


def _works_steps(recorded: Iterable[Group | Sweep]) -> Iterator[Step]:
    """Yield what describes the works of all parts, last: a profiler that ran once may cost later launches time."""
    parts: dict[Work, str] = {}
    for entry in recorded:
        for work in sorted(entry.works, key=lambda work: work.name):
            parts.setdefault(work, entry.part)
    for part in sorted(set(parts.values())):
        works = [work for work, first in parts.items() if first == part]
        for at in range(0, len(works), WORKS_A_STEP):
            chosen = tuple(works[at : at + WORKS_A_STEP])
            run: Callable[[Machine, Path], Tables] = partial(_described, works=chosen)
            yield Step(f"{part}:works {chosen[0].name} and on", part, WORK_SECONDS * len(chosen), run)


def _described(machine: Machine, _: Path, *, works: tuple[Work, ...]) -> Tables:
    return {"works": [work.row() | machine.kernel_of(work) for work in works]}
