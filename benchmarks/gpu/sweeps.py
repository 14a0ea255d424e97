"""Parts b and d: one work alone, over a range of something: compute units, workgroups, bytes, working set."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gpu.counts import remembered
from benchmarks.gpu.policies import Abilities
from benchmarks.gpu.scenarios import alone_rows, launches_for
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.step import Machine, Member, Row, Step, Tables
from benchmarks.gpu.work import Work, copied, gemm, moved, streamed

__all__ = ["Sweep", "cache_sweeps", "resource_sweeps", "sweep_step"]

POINT_SECONDS = 0.05


@dataclass(frozen=True)
class Sweep:
    """Points that are recorded in one step, each a work on so many units (0: all)."""

    part: str
    name: str
    points: tuple[tuple[Work, int], ...]

    @property
    def works(self) -> set[Work]:
        """All that is launched."""
        return {work for work, _ in self.points}


def sweep_step(sweep: Sweep, size: Size) -> Step:
    """Return the step that records a sweep."""
    seconds = len(sweep.points) * (POINT_SECONDS + size.repetitions * 3e-9 * size.target_ns)
    return Step(f"{sweep.part}:{sweep.name}", sweep.part, round(seconds, 3), partial(_recorded, sweep=sweep, size=size))


def resource_sweeps(size: Size, abilities: Abilities) -> Iterator[Sweep | tuple[str, str]]:
    """Yield part b: products by compute units, copies by workgroups, copy commands by size."""
    parts = sorted({units for split in abilities.partitions for units in split})
    for product in size.products:
        work = gemm(*product)
        name = f"{work.name} by compute units"
        yield Sweep("b", name, tuple((work, units) for units in (0, *parts))) if parts else (name, "partitions")
    doubled = {2**power for power in range(11)} | {abilities.units, 2 * abilities.units}
    copies = [copied(size.copy_bytes, blocks) for blocks in sorted(doubled) if blocks <= 2 * abilities.units]
    yield _sweep("b", "copy by workgroups", copies, abilities)
    for direction in ("h2d", "d2h", "d2d"):
        works = [moved("copy_engine", direction, count) for count in size.command_bytes]
        yield _sweep("b", f"copy command {direction} by size", works, abilities)
        if direction != "d2d":
            carried = [moved("zero_copy", direction, size.link_bytes, blocks) for blocks in (1, 2, 4, 8, 16, 32, 64)]
            yield _sweep("b", f"zero copy {direction} by workgroups", carried, abilities)


def cache_sweeps(size: Size, abilities: Abilities) -> Iterator[Sweep | tuple[str, str]]:
    """Yield part d: passes over the same buffer, smaller and larger than the L2 cache."""
    for kind in ("read", "update"):
        for hint in ("", "streaming"):
            # Whole KiB, so that vector accesses are the same at every size.
            kibs = [max(1, round(step * abilities.cache_bytes) >> 10) for step in size.cache_steps]
            works = [streamed(kind, 256 * kib, hint=hint) for kib in kibs]
            yield _sweep("d", f"{kind} {hint or 'kept'} by working set", works, abilities)


def _sweep(part: str, name: str, works: list[Work], abilities: Abilities) -> Sweep | tuple[str, str]:
    lacking = abilities.lacks(works[-1])
    return (name, lacking) if lacking else Sweep(part, name, tuple((work, 0) for work in works))


def _recorded(machine: Machine, folder: Path, *, sweep: Sweep, size: Size) -> Tables:
    key = f"{sweep.part}:{sweep.name}"
    points = sweep.points
    counts = remembered(
        folder, key, len(points), lambda: [launches_for(machine, *point, size.target_ns) for point in points]
    )
    rows: list[Row] = []
    for (work, units), launches in zip(sweep.points, counts, strict=True):
        rows += alone_rows(machine, sweep.part, Member(work, launches, units=units), size.repetitions)
    return {"alone": rows}
