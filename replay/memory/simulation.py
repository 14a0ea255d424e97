"""The time of a kernel under a memory system: arithmetic, caches and stalls, DRAM, whichever takes longest.

`simulate` runs the accesses of a kernel through caches (`Hierarchy`) and their misses through DRAM (`DramSimulator`).
Of a large kernel it runs two groups of waves: the first ones, which find empty caches, and some from the middle, which
stand for all others. The difference between the halves of the second group gives the stated error.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from math import ceil

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import Lines, Stream, Tiles, blocks, waves
from replay.memory.caches import CacheCounters, Hierarchy, LevelCounters
from replay.memory.dram import DramCounters, DramSimulator
from replay.memory.system import CachePolicy, MemorySystem

#: Accesses that are simulated at most, unless a few waves have more.
MOST_ACCESSES = 2_000_000
#: Shares of these accesses: the first waves, and each half that is measured.
_FIRST, _HALF = 0.2, 0.2
#: Waves before the measured ones fill the caches again: what they bring in, over what caches hold, and how many times
#: the waves of a half they are at most.
_REFILL, _MOST_REFILL = 1.25, 4
#: Share of the accesses by which caches learn what they would know of a kernel, and its launches before this one.
_LEARNT, _LAUNCHES = 0.25, 32
#: Steps by which the data of a wave are estimated; the steps that stand for all touch less than a cache of their share
#: by this factor.
_PROBED, _ROOM = 4, 2.0
#: Stated error of waves that stand for others: their spread times the first, plus the second. The third is that of a
#: share of the depth. Nine in ten of the cases of benchmarks/memory/sampling.py are within them.
_SPREADS, _WAVES_ERROR, _DEPTH_ERROR = 3.0, 0.04, 0.2
#: Most requests that the memory takes at a time.
_MOST_WINDOW = 4096
_LEVELS = ("l1", "l2", "llc")
_COUNTS = tuple(field.name for field in fields(LevelCounters))


@dataclass(frozen=True)
class KernelMemory:
    """A kernel, or kernels one after another, under a memory system.

    Parameters
    ----------
    seconds : float
        Time without the launch: for each kernel the longest of the three times below, and the cycles in which its
        compute units issue no access (`Stream.idle_cycles`).
    compute_s : float
        Time of the arithmetic, in whole waves of workgroups.
    caches_s : float
        Time of the accesses by the virtual clock of the caches, stalls included, with memory at its peak.
    memory_s : float
        Time of the requests by the DRAM simulation.
    footprint : int
        Bytes of the operands.
    counters : mapping of str to float
        Counts over all waves: ``l1_loads``, ``l2_load_hits``, ... (`LevelCounters`), ``accesses``, ``dram_reads`` and
        ``dram_writes`` (requests), ``dram_row_hits`` and ``dram_bytes``, and ``l2_bytes`` (sectors asked of the L2).
    simulated_share : float
        Share of the workgroups that were simulated.
    sampling_error : float
        Stated error of the times of caches and memory from what was not simulated, as a share of them.
    dram : DramCounters
        Counters of the DRAM over the simulated waves, one after another, with their course over time.
    """

    seconds: float
    compute_s: float
    caches_s: float
    memory_s: float
    footprint: int
    counters: Mapping[str, float]
    simulated_share: float
    sampling_error: float
    dram: DramCounters

    @property
    def bound(self) -> str:
        """The longest of ``"compute"``, ``"caches"`` and ``"memory"``."""
        return max(
            ("compute", self.compute_s), ("caches", self.caches_s), ("memory", self.memory_s), key=lambda x: x[1]
        )[0]

    @property
    def error(self) -> float:
        """Stated error of the time, as a share of it: that of its accesses, as far as these can bound it."""
        accesses_s = max(self.caches_s, self.memory_s)
        return max(accesses_s * (1.0 + self.sampling_error) / max(accesses_s, self.compute_s, 1e-30) - 1.0, 0.0)

    def share(self, part: str, *whole: str) -> float:
        """Return a counter over the sum of others; 0 if that is 0."""
        return self.counters[part] / max(sum(self.counters[name] for name in whole), 1e-9)

    @property
    def hit_share(self) -> float:
        """Share of the bytes behind the L1 that caches serve, so that they do not go to memory."""
        return float(np.clip(1.0 - self.counters["dram_bytes"] / max(self.counters["l2_bytes"], 1e-9), 0.0, 1.0))


def simulate(
    streams: Sequence[Stream],
    system: MemorySystem,
    policy: CachePolicy,
    *,
    flops_per_s: float = float("inf"),
    most_accesses: int = MOST_ACCESSES,
    warm: Collection[str] = (),
    seed: int = 0,
) -> KernelMemory:
    """Simulate kernels that run one after another.

    Parameters
    ----------
    streams : sequence of Stream
        Kernels, in order. Equal addresses are the same data, which the L2 keeps from kernel to kernel.
    system : MemorySystem
        Device.
    policy : CachePolicy
        What its caches keep.
    flops_per_s : float
        Rate of the arithmetic on all compute units.
    most_accesses : int
        Accesses of a kernel beyond which waves of workgroups stand for others.
    warm : collection of str
        Operands that caches hold from an earlier launch, as far as they fit.
    seed : int
        Seed of random replacement.

    Returns
    -------
    KernelMemory
        Times, counters, and the stated error.

    Notes
    -----
    ``T = max(T_compute, T_caches, T_memory) + T_idle``, where the time of the caches has the stalls in it, and the time
    of the memory the row hits: the model of arXiv 1910.00134.

    Raises
    ------
    InvalidInputError
        There is no kernel.
    """
    if not streams:
        raise InvalidInputError("no kernel to simulate")
    if len(streams) == 1 and (part := _share_of_steps(streams[0], system, most_accesses))[0] < 1.0:
        share, smaller = part
        shorter = simulate(
            [_shortened(streams[0], share)], smaller, policy,
            flops_per_s=flops_per_s, most_accesses=most_accesses, warm=warm, seed=seed,
        )  # fmt: skip
        return _lengthened(shorter, streams[0], share)
    run = _Run.of(streams, system, policy, seed)
    if warm:
        for stream in streams:
            run.fill(stream, most_accesses)
        streams = _elsewhere(streams, warm)
    return _joined(run.kernels(streams, flops_per_s, most_accesses))


def simulate_each(
    streams: Sequence[Stream],
    system: MemorySystem,
    policy: CachePolicy,
    *,
    flops_per_s: float = float("inf"),
    most_accesses: int = MOST_ACCESSES,
) -> list[KernelMemory]:
    """Simulate kernels that run one after another, and return the result of each.

    The parameters and errors are those of `simulate`.
    """
    if not streams:
        raise InvalidInputError("no kernel to simulate")
    return _Run.of(streams, system, policy, 0).kernels(streams, flops_per_s, most_accesses)


def _with_own_operands(streams: Sequence[Stream]) -> list[Stream]:
    """Return kernels whose operands have numbers of their own: a policy tells instructions apart by them."""
    names = list(dict.fromkeys(stream.name for stream in streams))
    widths = {stream.name: len(stream.operands) for stream in streams}
    first = dict(zip(names, np.cumsum([0, *(widths[name] for name in names)]).tolist(), strict=False))
    return [_numbered(stream, first[stream.name]) if first[stream.name] else stream for stream in streams]


def _numbered(stream: Stream, first: int) -> Stream:
    """Return a kernel whose operands are numbered from `first` on."""
    return stream.with_tiles(lambda tiles: replace(tiles, operand=tiles.operand + first))


def _lines_in_flight(stream: Stream, system: MemorySystem) -> int:
    """Return the accesses that a compute unit waits for at a time: of each resident workgroup, some instructions.

    An instruction waits for all lines that it touches. Their number follows from the first step.
    """
    first = stream.tiles(np.arange(min(stream.workgroups, system.units), dtype=np.int64), 0)
    line = system.l1.line_bytes
    last = (first.address + first.width - 1) // line - first.address // line + 1
    touched = float((first.rows * last).sum())
    mean_bytes = float((first.rows * first.width).sum()) / max(touched, 1.0) if touched else float(line)
    resident = min(stream.residency, -(-stream.workgroups // system.units))
    return max(round(resident * stream.in_flight * stream.threads * stream.vector_bytes / mean_bytes), 1)


def _share_of_steps(stream: Stream, system: MemorySystem, most_accesses: int) -> tuple[float, MemorySystem]:
    """Return the share of the steps that are alike that stands for all, 1 if the kernel is small, and its caches.

    The caches shrink as the steps do, and must hold what the workgroups touch in a step. If a single step fills them
    twice, no step finds data of another, and they stay as they are.
    """
    if stream.alike <= _PROBED:
        return 1.0, system
    accesses, touched = _probed(stream, _lines(system))
    resident = min(stream.workgroups, system.units * stream.residency)
    every = accesses * stream.alike * stream.workgroups / resident
    held = system.l2.size * system.dies
    if touched > _ROOM * (held + (system.llc.size if system.llc else 0)):
        return min(max(most_accesses / every, 1.0 / stream.alike), 1.0), system
    least = max(_PROBED, _ROOM * touched * stream.alike / held)
    share = min(max(most_accesses / every, least / stream.alike), 1.0)
    return share, _with_share(system, share)


@lru_cache(64)
def _probed(stream: Stream, lines: Lines) -> tuple[float, float]:
    """Return the accesses of a step of the first wave, and the bytes of the lines that it touches.

    They are the same under every policy.
    """
    count, touched = 0, 0
    for block in blocks(stream, lines, [(0, range(_PROBED))]):
        count += len(block)
        # `np.unique` of as many integers takes ten times as long: it hashes them.
        touched += int(np.count_nonzero(np.diff(np.sort(block.line), prepend=-1)))
    return count / _PROBED, touched / _PROBED * lines.line_bytes


def _shortened(stream: Stream, share: float) -> Stream:
    """Return a kernel with a share of the steps that are alike, and of the rows that its other steps touch."""
    kept = max(round(stream.alike * share), 1)

    def tiles(workgroups: Ints, step: int) -> Tiles:
        if step < kept:
            return stream.tiles(workgroups, step)
        touched = stream.tiles(workgroups, step - kept + stream.alike)
        rows = np.maximum(np.round(touched.rows * share).astype(np.int64), 1)
        return replace(touched, rows=rows, pitch=touched.pitch * touched.rows // rows)

    steps, flops = kept + stream.steps - stream.alike, stream.flops * share
    return replace(stream, steps=steps, alike=0, tiles=tiles, flops=flops)


def _with_share(system: MemorySystem, share: float) -> MemorySystem:
    """Return a system with a share of the caches behind the L1."""
    smaller = system.scaled("l2", share)
    return smaller.scaled("llc", share) if system.llc else smaller


def _lengthened(kernel: KernelMemory, stream: Stream, share: float) -> KernelMemory:
    """Return the result of a kernel from that of a share of its steps."""
    counters = {name: value / share for name, value in kernel.counters.items()}
    times = (kernel.seconds / share, kernel.compute_s / share, kernel.caches_s / share, kernel.memory_s / share)
    error = kernel.sampling_error + _DEPTH_ERROR
    return KernelMemory(*times, stream.footprint, counters, kernel.simulated_share * share, error, kernel.dram)


def _lines(system: MemorySystem) -> Lines:
    """Return the lines of the L1 caches."""
    return Lines(system.l1.line_bytes, system.l1.sector_bytes, system.units, system.wavefront)


def _elsewhere(streams: Sequence[Stream], warm: Collection[str]) -> list[Stream]:
    """Return kernels whose arrays lie elsewhere, apart from the warm ones; arrays that kernels share stay shared."""
    every = [operand for stream in streams for operand in stream.operands]
    kept = {(operand.address, operand.address + operand.size) for operand in every if operand.name in warm}
    offset = -(-max(operand.address + operand.size for operand in every) // 2**21) * 2**21
    return [_moved(stream, kept, offset) for stream in streams]


def _moved(stream: Stream, kept: Collection[tuple[int, int]], offset: int) -> Stream:
    """Return a kernel with its arrays at an offset; arrays that begin within ranges of addresses stay."""
    is_kept = [any(begin <= operand.address < end for begin, end in kept) for operand in stream.operands]
    moved = np.where(is_kept, 0, offset).astype(np.int64)
    return stream.with_tiles(lambda tiles: replace(tiles, address=tiles.address + moved[tiles.operand]))


@dataclass(frozen=True)
class _Segment:
    """Waves that were simulated: workgroups, cycles of the caches, time of the memory, counters."""

    workgroups: float
    cycles: float
    memory_s: float
    counters: Mapping[str, float]
    dram: DramCounters | None

    def times(self, factor: float) -> "_Segment":
        counters = {name: factor * value for name, value in self.counters.items()}
        return _Segment(self.workgroups * factor, self.cycles * factor, self.memory_s * factor, counters, self.dram)

    def plus(self, other: "_Segment") -> "_Segment":
        names = {**self.counters, **other.counters}
        dram = self.dram.followed_by(other.dram) if self.dram and other.dram else self.dram or other.dram
        counters = {name: self.counters.get(name, 0.0) + other.counters.get(name, 0.0) for name in names}
        return _Segment(self.workgroups + other.workgroups, self.cycles + other.cycles,
                        self.memory_s + other.memory_s, counters, dram)  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """Caches, and the memory behind them, through which kernels run."""

    system: MemorySystem
    policy: CachePolicy
    caches: Hierarchy
    window: int
    earlier: Hierarchy | None = None

    @classmethod
    def of(cls, streams: Sequence[Stream], system: MemorySystem, policy: CachePolicy, seed: int) -> "_Run":
        """Return empty caches for kernels, and others in which their earlier launches run if the policy learns."""
        in_flight = max(_lines_in_flight(stream, system) for stream in streams)
        count = 2 if policy.operand_bypass else 1
        hierarchies = [Hierarchy(system, policy, in_flight=in_flight, seed=seed) for _ in range(count)]
        return cls(system, policy, hierarchies[0], min(system.units * in_flight, _MOST_WINDOW), *hierarchies[1:])

    def kernels(self, streams: Sequence[Stream], flops_per_s: float, most_accesses: int) -> list[KernelMemory]:
        """Return the result of each kernel; caches that learn from reuse know all of them from earlier launches."""
        numbered = _with_own_operands(streams)
        lessons = [self.lesson(stream, most_accesses) for stream in numbered] if self.earlier else []
        results = []
        for stream in numbered:
            if lessons:
                self.caches.teach(np.sum(lessons, axis=0), _LAUNCHES)
            results.append(self.kernel(stream, flops_per_s, most_accesses))
        return results

    def lesson(self, stream: Stream, most_accesses: int) -> Ints:
        """Return what an earlier launch teaches of reuse: the first waves of a kernel, in the other caches."""
        assert self.earlier is not None
        steps, accesses = range(stream.steps), 0
        chosen = [(wave, steps) for wave in range(waves(stream, self.system.units))]
        for block in blocks(stream, _lines(self.system), chosen):
            self.earlier.access(block)
            accesses += len(block)
            if accesses >= _LEARNT * most_accesses:
                break
        self.earlier.flush()
        return self.earlier.lesson

    def fill(self, stream: Stream, most_accesses: int) -> None:
        """Run the last waves of a kernel, so that caches hold what they would after it."""
        if self.earlier:
            self.lesson(stream, most_accesses)
        count = waves(stream, self.system.units)
        number = max(most_accesses // max(self.through_caches(stream, range(1)), 1), 1)
        self.through_caches(stream, range(max(count - number, 0), count))
        self.caches.flush()

    def through_caches(self, stream: Stream, chosen: range) -> int:
        """Run waves whose time does not matter, only what they leave in the caches; return their accesses."""
        steps, accesses = range(stream.steps), 0
        for block in blocks(stream, _lines(self.system), [(wave, steps) for wave in chosen]):
            self.caches.access(block)
            accesses += len(block)
        return accesses

    def kernel(self, stream: Stream, flops_per_s: float, most_accesses: int) -> KernelMemory:
        """Return the time of a kernel; if it has more accesses, some of its waves stand for others."""
        count = waves(stream, self.system.units)
        first = self.waves(stream, range(1), ends=count == 1)
        budget = most_accesses // max(int(first.counters["accesses"]), 1)
        half, begin = max(round(_HALF * budget), 1), max(int(_FIRST * budget), 1)
        refill = min(max(ceil(_REFILL * self._held / self._filled(first)), 1), max(half * _MOST_REFILL, 1))
        measured = refill + 2 * half
        whole_waves = count <= max(budget, begin + measured + 1)
        first = first.plus(self.waves(stream, range(1, count if whole_waves else begin), ends=whole_waves))
        if whole_waves:
            return self._result(stream, first, flops_per_s, error=0.0)
        middle = (begin + count - measured) // 2
        self.through_caches(stream, range(middle, middle + refill))
        early, late = (
            self.waves(stream, range(start, start + half)) for start in (middle + refill, middle + refill + half)
        )
        both = early.plus(late)
        whole = first.plus(both.times((stream.workgroups - first.workgroups) / both.workgroups))
        spread = max(_spread(early.cycles, late.cycles), _spread(early.memory_s, late.memory_s))
        simulated = (first.workgroups + both.workgroups) / stream.workgroups
        whole = whole.plus(self._last_writes(stream, whole))
        error = _SPREADS * spread + _WAVES_ERROR
        return self._result(stream, whole, flops_per_s, error=error, simulated=simulated)

    @property
    def _held(self) -> float:
        """Bytes that the caches behind the L1 hold."""
        return self.system.l2.size * self.system.dies + (self.system.llc.size if self.system.llc else 0)

    def _filled(self, wave: _Segment) -> float:
        """Return the bytes that a wave brings into the L2: what it fetches and what it stores."""
        sectors = wave.counters["l2_store_sectors"] - wave.counters["l2_store_sector_hits"]
        fetched = wave.counters["dram_reads"] * self.system.dram.access_bytes
        return max(fetched + sectors * self.system.l2.sector_bytes, 1.0)

    def _last_writes(self, stream: Stream, whole: _Segment) -> _Segment:
        """Return the write-back at the end of a sampled kernel; together no more is written than was stored."""
        last = self.segment(stream, [], ends=True)
        access = self.system.dram.access_bytes
        stored = whole.counters["l2_store_sectors"] * self.system.l2.sector_bytes
        left = stored - whole.counters["dram_writes"] * access
        return last.times(float(np.clip(left / max(last.counters["dram_writes"] * access, 1.0), 0.0, 1.0)))

    def waves(self, stream: Stream, chosen: range, *, ends: bool = False) -> _Segment:
        """Run waves of a kernel; with its end, L1 caches are emptied and dirty lines written back."""
        resident = self.system.units * stream.residency
        cost = self.segment(stream, [(wave, range(stream.steps)) for wave in chosen], ends=ends)
        workgroups = min(chosen.stop * resident, stream.workgroups) - chosen.start * resident if chosen else 0
        return replace(cost, workgroups=float(workgroups))

    def segment(self, stream: Stream, chosen: Sequence[tuple[int, range]], *, ends: bool = False) -> _Segment:
        """Run steps of waves; with the end of the kernel, L1 caches are emptied and dirty lines written back."""
        before = self.caches.counters
        memory = DramSimulator(self.system.dram, window=self.window)
        accesses = 0
        for block in blocks(stream, _lines(self.system), chosen):
            accesses += len(block)
            memory.serve(self.caches.access(block))
        cycles = self.caches.counters.cycles
        if ends:
            memory.serve(self.caches.flush())
        dram = memory.finish()
        counters = _difference(self.caches.counters, before)
        if not self.policy.waits_at_end:
            counters["cycles"] = cycles - before.cycles
        counters |= {
            "accesses": float(accesses),
            "dram_row_hits": float(dram.read_row_hits + dram.write_row_hits),
            "dram_bytes": float((dram.reads + dram.writes) * self.system.dram.access_bytes),
            "l2_bytes": (counters["l2_load_sectors"] + counters["l2_store_sectors"]) * self.system.l2.sector_bytes,
        }
        return _Segment(0.0, counters.pop("cycles"), dram.seconds, counters, dram)

    def _result(
        self, stream: Stream, whole: _Segment, flops_per_s: float, *, error: float, simulated: float = 1.0
    ) -> KernelMemory:
        units = self.system.units
        a_unit = -(-stream.workgroups // units)
        idle = units * a_unit / stream.workgroups
        times = stream.flops / flops_per_s * idle, whole.cycles / self.system.clock_hz, whole.memory_s
        assert whole.dram is not None
        seconds = max(times) + a_unit * stream.idle_cycles / self.system.clock_hz
        return KernelMemory(seconds, *times, stream.footprint, whole.counters, simulated, error, whole.dram)


def _difference(after: CacheCounters, before: CacheCounters) -> dict[str, float]:
    """Return the counters between two states, by name."""
    counts = {
        f"{level}_{name}": float(getattr(getattr(after, level), name) - getattr(getattr(before, level), name))
        for level in _LEVELS
        for name in _COUNTS
    }
    return counts | {
        "dram_reads": float(after.reads - before.reads),
        "dram_writes": float(after.writes - before.writes),
        "cycles": after.cycles - before.cycles,
    }


def _spread(first: float, second: float) -> float:
    """Return the difference of two values over their sum."""
    return abs(first - second) / max(first + second, 1e-30)


def _joined(kernels: Sequence[KernelMemory]) -> KernelMemory:
    """Return kernels that run one after another as a single result."""
    if len(kernels) == 1:
        return kernels[0]
    total = sum(kernel.seconds for kernel in kernels)
    weights = [kernel.seconds / total for kernel in kernels]
    return KernelMemory(
        seconds=total,
        compute_s=sum(kernel.compute_s for kernel in kernels),
        caches_s=sum(kernel.caches_s for kernel in kernels),
        memory_s=sum(kernel.memory_s for kernel in kernels),
        footprint=sum(kernel.footprint for kernel in kernels),
        counters={name: sum(kernel.counters[name] for kernel in kernels) for name in kernels[0].counters},
        simulated_share=sum(w * kernel.simulated_share for w, kernel in zip(weights, kernels, strict=True)),
        sampling_error=sum(w * kernel.sampling_error for w, kernel in zip(weights, kernels, strict=True)),
        dram=reduce(DramCounters.followed_by, (kernel.dram for kernel in kernels)),
    )
