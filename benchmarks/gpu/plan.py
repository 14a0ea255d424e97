"""`plan`: everything that is recorded, in order: the same for the same device, size and seed."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu import contention, decomposition, ptx_launches, residency
from benchmarks.gpu.policies import Abilities
from benchmarks.gpu.scenarios import Group, group_step
from benchmarks.gpu.sizes import SIZES, Size
from benchmarks.gpu.step import Machine, Step, Tables
from benchmarks.gpu.sweeps import Sweep, cache_sweeps, resource_sweeps, sweep_step
from benchmarks.gpu.work import Work

__all__ = ["BY_DEFAULT", "PARTS", "Plan", "parts_of", "plan"]

PARTS = ("a", "a2", "b", "c", "d", "e", "f", "g", "h")
#: Parts that are recorded if none are named: h takes as long again.
BY_DEFAULT = "".join(PARTS[:-1])
#: Works whose kernels are looked up by one pass of the profiler, and what that is guessed to take.
WORKS_A_PASS = 32
PASS_SECONDS, WORK_SECONDS = 1.0, 0.05


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are recorded, and (what, missing feature) for what the device cannot."""

    steps: tuple[Step, ...]
    left_out: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...] = ()


def parts_of(text: str) -> tuple[str, ...]:
    """Return the parts that a text names, one behind the other.

    Raises
    ------
    ValueError
        It names none, or something else.

    Examples
    --------
    >>> parts_of("aa2b"), parts_of("a2")
    (('a', 'a2', 'b'), ('a2',))
    """
    named = re.findall("|".join(sorted(PARTS, key=len, reverse=True)), text)
    if not text or "".join(named) != text:
        raise ValueError(f"{text!r}: give some of {', '.join(PARTS)}")
    return tuple(named)


def plan(
    facts: Mapping[str, Any], size: str, seed: int = 0, *, parts: str = BY_DEFAULT, ptx: Path = ptx_launches.FOLDER
) -> Plan:
    """Return the plan for a device.

    Parameters
    ----------
    facts : mapping
        As `Machine.facts` gives them.
    size : str
        A key of `SIZES`.
    seed : int
        Of the order within parts a and a2: what a device does as it warms up should fall on no kind of scenario alone.
    parts : str
        The wanted parts, as `parts_of` reads them; e, f and h need PyTorch. A step is the same whatever else is
        wanted. Which kernels did the works of a to d is looked up with f, whether that is wanted or not.
    ptx : Path
        Folder with the plans of part g.
    """
    numbers = SIZES[size]
    abilities, wanted = Abilities.of(facts, numbers.cache_bytes), parts_of(parts)
    planned = [*_shuffled(contention.groups(numbers, abilities), seed), *resource_sweeps(numbers, abilities)]
    planned += _shuffled(residency.groups(numbers, abilities), seed)
    planned += [*decomposition.groups(numbers, abilities), *cache_sweeps(numbers, abilities)]
    left_out = tuple(entry for entry in planned if isinstance(entry, tuple))
    recorded = [entry for entry in planned if not isinstance(entry, tuple) and entry.part in wanted]
    # A recording that is cut short is of use only with what its works are, so that comes first.
    steps = [*_works_steps(recorded), *(_step(entry, numbers) for entry in recorded)]
    # A profiler that ran once slows the launches of its process even after it has ended, so what needs it comes last.
    trained = _steps_of("training", facts, size) if "e" in wanted else []
    trained += _steps_of("pairs", facts, size) if "h" in wanted else []
    steps += [step for step in trained if "profiler" not in step.needs]
    # A kernel that somebody gives may leave the device in error, so all that is timed otherwise comes before.
    steps += ptx_launches.steps(facts, size, ptx) if "g" in wanted else []
    steps += _kernel_steps(recorded)
    steps += _steps_of("operators", facts, size) if "f" in wanted else []
    steps += [step for step in trained if "profiler" in step.needs]
    repeated = {step.key for step in steps if sum(other.key == step.key for other in steps) > 1}
    if repeated:
        raise ValueError(f"steps of the same key: {', '.join(sorted(repeated))}")
    return Plan(tuple(steps), left_out, tuple(entry for entry in recorded if isinstance(entry, Group)))


def _steps_of(module: str, facts: Mapping[str, Any], size: str) -> list[Step]:
    """Return the steps of part e, f or h, whose module needs PyTorch to be read."""
    return list(import_module(f"benchmarks.gpu.{module}").steps(dict(facts), size))


def _shuffled(entries: Iterable[Any], seed: int) -> list[Any]:
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    return shuffled


def _step(entry: Group | Sweep, size: Size) -> Step:
    if isinstance(entry, Sweep):
        return sweep_step(entry, size)
    return group_step(entry, residency.sized(size) if entry.part == residency.PART else size)


def _works(recorded: Iterable[Group | Sweep]) -> Iterator[tuple[str, list[Work]]]:
    """Yield each part with its works; one that two parts have is of both."""
    entries = list(recorded)
    for part in sorted({entry.part for entry in entries}):
        works = {work for entry in entries if entry.part == part for work in entry.works}
        yield part, sorted(works, key=lambda work: work.name)


def _works_steps(recorded: Iterable[Group | Sweep]) -> Iterator[Step]:
    """Yield what says what each work is."""
    for part, works in _works(recorded):
        run: Callable[[Machine, Path], Tables] = partial(_known, works=works)
        yield Step(f"works:{part}", part, 0.0, run)


def _known(machine: Machine, _: Path, *, works: Sequence[Work]) -> Tables:
    """Return what each work is; of those of known residency, also what the driver says of it."""
    held = [work for work in works if work.residency is not None]
    found = dict(zip(held, machine.residency_of(held) if held else (), strict=True))
    return {"works": [work.row() | found.get(work, {}) for work in works]}


def _kernel_steps(recorded: Iterable[Group | Sweep]) -> Iterator[Step]:
    """Yield what says which kernel did each work: the same rows again, with more in them."""
    for part, works in _works(recorded):
        for at in range(0, len(works), WORKS_A_PASS):
            some = works[at : at + WORKS_A_PASS]
            run: Callable[[Machine, Path], Tables] = partial(_described, works=some)
            seconds = PASS_SECONDS + WORK_SECONDS * len(some)
            yield Step(f"kernels:{part}:{at // WORKS_A_PASS}", "f", round(seconds, 3), run)


def _described(machine: Machine, _: Path, *, works: Sequence[Work]) -> Tables:
    found = zip(works, machine.kernels_of(works), strict=True)
    return {"works": [work.row() | kernel for work, kernel in found]}
