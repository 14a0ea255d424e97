"""Part a2: kernels whose residency is known beside copies, a collective and one another.

How many workgroups of a kernel a compute unit holds follows from the launch: threads, registers and shared memory are
what is asked (`benchmarks.gpu.residency_kernels`). One of the three limits each kernel.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

from benchmarks.gpu.contention import CROWDS, Planned, crowd_group, pair_group
from benchmarks.gpu.occupancy import Residency, UnitLimits
from benchmarks.gpu.policies import Abilities
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.work import Work, chunked, multiplied

__all__ = ["PART", "groups", "residency_of", "sized"]

PART = "a2"
#: Threads and registers of a thread of which so many workgroups fit on a unit, by one of them.
BY_REGISTERS = {1: (384, 168), 2: (256, 128), 3: (256, 80), 4: (256, 64)}
BY_THREADS = {2: (896, 24), 3: (640, 24), 4: (512, 24)}
#: Of kernels that shared memory limits, and of copies.
BY_SHARED, COPY = (256, 32), Residency(512, 32)
#: A stand-in for a collective, as NCCL launches them.
COLLECTIVE, COLLECTIVE_BLOCKS = Residency(544, 96, 103_808), 24
#: Grids, of the workgroups that fit on the device at once. Two of half a wave are resident together.
HALF_WAVE, WAVES, CROWD_WAVES = 0.5, (0.5, 0.97, 1.03, 2.0), (0.25, 1.0)
CLUSTERS = (2, 4, 8)
#: Multiplications and additions that a unit does in a ns; a guess, that makes no kernel much longer than asked.
RATE = 225
#: Of the shapes and copies: those that meet everything, those that meet all main shapes, and those that meet the rest.
MAIN_SHAPES, FEW_COPIES, SOME_COPIES = slice(None, None, 3), slice(2, None, 3), slice(None, None, 2)


def groups(size: Size, abilities: Abilities) -> Iterator[Planned]:
    """Yield the groups of part a2, each once: on a small device, two grids can be the same."""
    seen = set()
    for entry in _all(size, abilities):
        name = entry[0] if isinstance(entry, tuple) else entry.name
        if name not in seen or isinstance(entry, tuple):
            yield entry
        seen.add(name)


def sized(size: Size) -> Size:
    """Return the size with half as long runs: launches are short, and so are their waits for one another."""
    return replace(size, target_ns=size.target_ns // 2)


def residency_of(limit: str, resident: int, unit: UnitLimits) -> Residency:
    """Return what workgroups hold of which so many fit on a unit, by one of its limits.

    Examples
    --------
    >>> residency_of("shared", 2, UnitLimits()), residency_of("registers", 1, UnitLimits()).registers
    (Residency(threads=256, registers=32, shared_bytes=115712, cluster=1), 168)
    """
    if limit == "shared":
        return Residency(*BY_SHARED, unit.shared_for(resident))
    return Residency(*(BY_REGISTERS if limit == "registers" else BY_THREADS)[resident])


def _all(size: Size, abilities: Abilities) -> Iterator[Planned]:
    shapes = [residency_of(*shape, abilities.unit) for shape in size.known_shapes]
    copies = [chunked("copy_kernel", blocks * size.known_bytes, blocks, COPY) for blocks in size.known_copies]
    few, main = copies[FEW_COPIES] or copies, shapes[MAIN_SHAPES]
    computing = [_computed(shape, size, abilities) for shape in shapes]
    streaming = [_streamed(shape, size, abilities) for shape in main]
    collective = _collective(size)
    pairs = [(work, copy) for work in computing[MAIN_SHAPES] for copy in copies]
    pairs += [(work, copy) for work in computing for copy in copies[SOME_COPIES]]
    pairs += [(work, copy) for work in streaming for copy in few]
    pairs += [(_computed(shape, size, abilities, waves), copy) for shape in main for waves in WAVES for copy in few]
    pairs += [(work, collective) for work in (*computing, *streaming)]
    pairs += [(copy, collective) for copy in few]
    clustered = [_computed(replace(shapes[-1], cluster=cluster), size, abilities) for cluster in CLUSTERS]
    pairs += [(work, other) for work in clustered for other in (*few, collective, computing[-1])]
    pairs += pairwise(computing[MAIN_SHAPES])
    pairs += combinations([_computed(shape, size, abilities, HALF_WAVE) for shape in main], 2)
    pairs += zip(computing[MAIN_SHAPES], reversed(streaming), strict=True)
    pairs += _configured(size, abilities, copies[-1])
    for a, b in pairs:
        yield from pair_group(a, b, abilities, part=PART)
    for shape in main:
        for waves in CROWD_WAVES:
            yield from crowd_group(_computed(shape, size, abilities, waves), max(CROWDS), abilities, PART)


def _computed(shape: Residency, size: Size, abilities: Abilities, waves: float = 1.0, hint: str = "") -> Work:
    """Return a kernel that computes, of so many waves on this device."""
    resident = abilities.unit.resident(shape)
    steps = round(size.wave_ns * RATE / (shape.threads * resident * shape.accumulators))
    return multiplied(shape, _grid(shape, abilities, waves), max(1, steps), hint)


def _streamed(shape: Residency, size: Size, abilities: Abilities) -> Work:
    """Return a kernel that goes through a buffer, of one wave on this device."""
    return chunked("update", 4 * size.rows * size.columns, _grid(shape, abilities, 1.0), shape)


def _grid(shape: Residency, abilities: Abilities, waves: float) -> int:
    """Return the workgroups of so many waves, in whole clusters."""
    workgroups = round(waves * abilities.units * abilities.unit.resident(shape))
    return max(1, workgroups // shape.cluster) * shape.cluster


def _collective(size: Size) -> Work:
    size_bytes = COLLECTIVE_BLOCKS * size.known_bytes
    return chunked("collective", size_bytes, COLLECTIVE_BLOCKS, COLLECTIVE, wait_ns=size.wave_ns)


def _configured(size: Size, abilities: Abilities, copy: Work) -> Iterator[tuple[Work, Work]]:
    """Yield pairs that have room beside each other, each twice: then, the one without shared memory asks for L1.

    Units are configured anew only when nothing runs on them.
    """
    shared, plain = (residency_of(limit, 2, abilities.unit) for limit in ("shared", "registers"))
    sharing = _computed(shared, size, abilities, HALF_WAVE)
    for hint in ("", "l1"):
        cached = _computed(plain, size, abilities, HALF_WAVE, hint)
        yield from ((sharing, cached), (sharing, replace(copy, hint=hint)), (cached, _collective(size)))
