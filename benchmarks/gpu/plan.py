"""`plan`: everything that is recorded, in order: the same for the same device, size and seed."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
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
WORK_SECONDS = 0.15


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are recorded, and (what, missing feature) for what the device cannot."""

    steps: tuple[Step, ...]
    left_out: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...] = ()


def plan(facts: Mapping[str, Any], size: str, seed: int = 0, *, parts: str = PARTS) -> Plan:
    """Return the plan for a device.

    Parameters
    ----------
    facts : mapping
        As `Machine.facts` gives them.
    size : str
        A key of `SIZES`.
    seed : int
        Of the order within part a: what a device does as it warms up should fall on no kind of scenario alone.
    parts : str
        Letters of those that are wanted; e and f need PyTorch. A step is the same whatever else is wanted.
    """
    numbers = SIZES[size]
    abilities = Abilities.of(facts, numbers.cache_bytes)
    planned = [*_shuffled(contention.groups(numbers, abilities), seed), *resource_sweeps(numbers, abilities)]
    planned += [*decomposition.groups(numbers, abilities), *cache_sweeps(numbers, abilities)]
    left_out = tuple(entry for entry in planned if isinstance(entry, tuple))
    recorded = [entry for entry in planned if not isinstance(entry, tuple) and entry.part in parts]
    steps = [_step(entry, numbers) for entry in recorded]
    # A profiler that ran once slows the launches of its process even after it has ended, so what needs it comes last.
    trained = _steps_of("training", facts, size) if "e" in parts else []
    steps += [step for step in trained if "profiler" not in step.needs]
    steps += _works_steps(recorded)
    steps += _steps_of("operators", facts, size) if "f" in parts else []
    steps += [step for step in trained if "profiler" in step.needs]
    repeated = {step.key for step in steps if sum(other.key == step.key for other in steps) > 1}
    if repeated:
        raise ValueError(f"steps of the same key: {', '.join(sorted(repeated))}")
    return Plan(tuple(steps), left_out, tuple(entry for entry in recorded if isinstance(entry, Group)))


def _steps_of(module: str, facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the steps of part e or f, whose module needs PyTorch to be read."""
    return list(import_module(f"benchmarks.gpu.{module}").steps(dict(facts), size))


def _shuffled(entries: Iterable[Any], seed: int) -> list[Any]:
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def _step(entry: Group | Sweep, size: Size) -> Step:
    return group_step(entry, size) if isinstance(entry, Group) else sweep_step(entry, size)


def _works_steps(recorded: Iterable[Group | Sweep]) -> Iterator[Step]:
    """Yield what describes each work."""
    parts: dict[Work, str] = {}
    for entry in sorted(recorded, key=lambda entry: entry.part):
        for work in entry.works:
            parts.setdefault(work, entry.part)
    for work, part in sorted(parts.items(), key=lambda item: (item[1], item[0].name)):
        run: Callable[[Machine, Path], Tables] = partial(_described, work=work)
        yield Step(f"works:{work.name}", part, WORK_SECONDS, run)


def _described(machine: Machine, _: Path, *, work: Work) -> Tables:
    return {"works": [work.row() | machine.kernel_of(work)]}
