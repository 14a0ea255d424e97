"""Time a launch: feed traces of its blocks to the compute units, and read what they counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.detailed.launch import BlockRunner
from replay.detailed.timing import state as at
from replay.detailed.timing.assembly import AssembledKernel, assemble
from replay.detailed.timing.engine import DONE, NEEDS_BLOCKS, run
from replay.detailed.timing.expansion import ComputeUnits, core_of
from replay.memory.banks import DramState
from replay.memory.dram import Dram, DramCounters, counters_of, new_dram_state
from replay.memory.system import MemorySystem, memory_system

#: Rules by which a scheduler chooses a warp: in turn, or the same as long as it can, and then the oldest. Schedulers of
#: NVIDIA are greedy (Huerta et al., Analyzing Modern NVIDIA GPU Cores, arXiv 2503.20481).
POLICIES = ("lrr", "gto")
#: Cycles of the way from a compute unit to L2, and between looks at the progress.
_HOP, _PERIOD = 40, 4096
#: What schedulers do in a cycle, in the order of `LaunchTiming.by_unit`.
DOINGS = ("issues", "waits for a unit", "waits for a result", "waits for memory", "waits at a barrier", "has no warp")
#: Requests to DRAM that wait or are on their way at most, by channel.
_DRAM_WINDOW = 64
#: Cycles by which accesses may be ahead of the memory pipeline.
_QUEUE = 16
#: Cycles in which the constant cache serves a word.
_CONSTANT_CYCLES = 2
#: Elements of a trace beyond which blocks that have ended are dropped.
_LONG_TRACE = 1 << 26
#: Data that pass L2 until its state is steady, over its size; and how many times the blocks may become for them.
_TURNS, _MOST_MORE = 1.5, 64
#: Cycles without an instruction after which the simulation has a defect.
_STANDS_STILL = 1 << 26
#: Blocks that are timed by default for each slot of a compute unit: others take as long.
WAVES = 8


@dataclass(frozen=True)
class TimedDevice:
    """A device on which kernels are timed.

    Parameters
    ----------
    core : ComputeUnits
        Compute units.
    memory : MemorySystem
        Caches and DRAM.
    policy : str
        One of `POLICIES`.
    """

    core: ComputeUnits
    memory: MemorySystem
    policy: str = "gto"

    @classmethod
    def of(
        cls,
        device: Device,
        *,
        clock_mhz: float | None = None,
        memory_gbps: float | None = None,
        mapping: str | None = None,
        policy: str = "gto",
    ) -> "TimedDevice":
        """Return a device of the catalogue as a target.

        Parameters
        ----------
        device : Device
            Device of the catalogue.
        clock_mhz : float, optional
            Clock of compute units, 100 to 10,000 MHz; by default the highest of the catalogue.
        memory_gbps : float, optional
            Peak bandwidth of its memory, 10 to 100,000 GB/s; by default that of the catalogue.
        mapping : str, optional
            Mapping of addresses to channels and banks (`replay.memory.mapping.NAMED`).
        policy : str
            One of `POLICIES`.

        Raises
        ------
        NotFoundError
            The device does not run PTX, or its caches are not known.
        InvalidInputError
            A figure is out of range, or the policy is unknown.
        """
        if policy not in POLICIES:
            raise InvalidInputError(f"scheduling policy {policy!r}; one of {', '.join(POLICIES)}")
        if clock_mhz is not None and not 100 <= clock_mhz <= 10_000:
            raise InvalidInputError(f"a clock of {clock_mhz} MHz; 100 to 10,000 MHz are possible")
        if memory_gbps is not None and not 10 <= memory_gbps <= 100_000:
            raise InvalidInputError(f"a memory bandwidth of {memory_gbps} GB/s; 10 to 100,000 GB/s are possible")
        system = memory_system(device)
        dram = system.dram
        if memory_gbps:
            dram = replace(dram, clock_hz=dram.clock_hz * memory_gbps * 1e9 / dram.bandwidth)
        if mapping:
            dram = dram.with_mapping(mapping)
        core = core_of(device, clock_mhz * 1e6 if clock_mhz else None)
        return cls(core, replace(system, dram=dram, clock_hz=core.clock_hz), policy)


@dataclass(frozen=True)
class LaunchTiming:
    """How long a launch took, and what it did.

    Parameters
    ----------
    cycles : int
        Cycles of the compute units' clock, start and end included; of all blocks.
    cycles_error : float
        Stated error of `cycles`, relative; 0 if all blocks were timed.
    seconds : float
        The same as time.
    timed_blocks, blocks : int
        Blocks that were timed, and all. Counters are those of the timed blocks.
    resident_blocks : int
        Blocks of a compute unit at a time.
    registers : int
        Registers of a thread.
    issued : int
        Instructions of the machine that were issued, by warp.
    counters : dict of str to int
        Sectors and accesses by name (`state.COUNTERS`).
    dram : DramCounters
        What DRAM counted.
    span_cycles : int
        Length of a window of the series.
    by_unit : array of int64, shape (units, 6)
        Cycles of schedulers: issuing, waiting for a unit, a result, memory, a barrier, without warps.
    series : array of int64, shape (windows, 6)
        The same over time.
    unit_series, slice_series : array of int64, shape (windows, units) and (windows, slices)
        Cycles in which schedulers issued, and sectors that L2 served.
    """

    cycles: int
    cycles_error: float
    seconds: float
    timed_blocks: int
    blocks: int
    resident_blocks: int
    registers: int
    issued: int
    counters: dict[str, int]
    dram: DramCounters
    span_cycles: int
    by_unit: Ints
    series: Ints
    unit_series: Ints
    slice_series: Ints

    @property
    def l2_read_hit_rate(self) -> float:
        """Sectors read that were in L2, or on their way to it, over all that were asked of it; 0 without any."""
        hits, misses = self.counters["l2_read_hits"], self.counters["l2_read_misses"]
        return hits / max(hits + misses, 1)


class TimedLaunch:
    """A launch that is timed, some blocks at a time.

    Parameters
    ----------
    runner : BlockRunner
        Executes its blocks.
    target : TimedDevice
        Device.
    registers : int, optional
        Registers of a thread; by default estimated.
    waves : int, optional
        Blocks that are timed for each slot of a compute unit; None for all.
    """

    def __init__(
        self, runner: BlockRunner, target: TimedDevice, registers: int | None = None, waves: int | None = WAVES
    ) -> None:
        if waves is not None and waves < 1:
            raise InvalidInputError(f"{waves} waves; 1 or more, or None for all")
        self.runner, self.target, self.waves = runner, target, waves
        self._turned, self._others = 0, 0
        self._issued = (0, 0)
        self.assembly: AssembledKernel = assemble(runner.program, target.core)
        self.registers = registers or self.assembly.registers
        shared = runner.program.shared_bytes + runner.call.shared_bytes
        fit = target.core.resident_blocks(32 * runner.warps, self.registers, shared)
        self.resident = min(fit, ceil(runner.blocks / target.core.units))
        self.slots = self.resident * target.core.units
        self.timed = runner.blocks if waves is None else min(runner.blocks, waves * self.slots)
        self.state = _state(runner, target, self.assembly, self.resident, shared, self.timed)
        self.dram: DramState = new_dram_state(target.memory.dram, _requests(target), None, True)
        self._trace: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._firsts: Ints = np.zeros(0, dtype=np.int64)
        self._progress: list[tuple[int, int]] = [(0, 0)]

    def run(self, progress: Callable[[int, int], None] | None = None, execute_all: bool = True) -> LaunchTiming:
        """Time all blocks that are to be timed, and execute the others.

        Parameters
        ----------
        progress : callable, optional
            Called with (blocks done, blocks in all), when `arrays` can be taken.
        execute_all : bool
            Whether blocks that are not timed are executed, so that the buffers are complete.
        """
        while not (self._is_timed() or self.advance()):
            if progress:
                progress(self.timed - int(self.state.now[at.LEFT]), self.runner.blocks)
        step = max(self.runner.blocks // 100, 1)
        while execute_all and self.timed + self._others < self.runner.blocks:
            begin = self.timed + self._others
            end = min(begin + step, self.runner.blocks)
            self.runner.run(np.arange(begin, end, dtype=np.int64))
            self._others += end - begin
            if progress:
                progress(end, self.runner.blocks)
        return self._result()

    def _is_timed(self) -> bool:
        """Return whether all blocks that are to be timed have ended."""
        return bool(self.state.now[at.FED] > 0 and self.state.now[at.LEFT] == 0)

    def advance(self, cycles: int = _PERIOD) -> bool:
        """Simulate some cycles; return whether all blocks that are to be timed have ended."""
        now = self.state.now
        if now[at.FED] == 0:
            self._feed(self.slots)
        until = int(now[at.CYCLE]) + cycles
        while True:
            assembly = self.assembly
            code = at.WarpCode(self._trace, self._firsts, assembly.operations, assembly.lists, assembly.blocks)
            why = run(self.state, self.dram, code, until)
            self._progress.append((int(now[at.CYCLE]), self.timed - int(now[at.LEFT])))
            self._check_it_moves()
            self._time_more()
            if why != NEEDS_BLOCKS:
                return bool(why == DONE)
            self._feed(max(self.slots // 4, 1))

    def _check_it_moves(self) -> None:
        """Raise an error if no warp has issued for long: the simulation would never end."""
        now = self.state.now
        cycle, issued = int(now[at.CYCLE]), int(now[at.INSTRUCTIONS])
        if issued != self._issued[1] or now[at.LEFT] == 0:
            self._issued = (cycle, issued)
        elif cycle - self._issued[0] > _STANDS_STILL:
            raise RuntimeError(f"no warp has issued since cycle {self._issued[0]}: a defect of the simulator")

    def _time_more(self) -> None:
        """Time more blocks if the timed blocks move too little data to fill L2, changed lines included."""
        now, s = self.state.now, self.state.counters
        done = self.timed - int(now[at.LEFT])
        if self._turned or done < min(self.slots, self.timed) or now[at.LEFT] == 0:
            return
        moved = 32 * int(s[at.L2_READ_MISSES] + s[at.L2_WRITES]) / done
        self._turned = max(ceil(_TURNS * self.target.memory.l2.size / max(moved, 1)), 1)
        if self.waves is not None:
            more = min(self.runner.blocks, max(self.timed, self.slots + 2 * self._turned), self.timed * _MOST_MORE)
            now[at.BLOCKS] += more - self.timed
            now[at.LEFT] += more - self.timed
            self.timed = more

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all of the state by name, memory included, from which `restore` goes on bit for bit."""
        arrays = {f"state.{name}": value for name, value in self.state._asdict().items()}
        arrays |= {f"dram.{name}": value for name, value in self.dram._asdict().items()}
        return arrays | {
            "trace": self._trace, "firsts": self._firsts, "progress": np.array(self._progress, dtype=np.int64),
            "memory": self.runner.memory.bytes, "executed": np.array([self.runner.warp_instructions]),
            "turned": np.array([self._turned]), "others": np.array([self._others]),
        }  # fmt: skip

    def restore(self, saved: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from the state that `arrays` returned, of a launch of the same kernel, arguments and device.

        Raises
        ------
        ValueError, KeyError
            It is none of `arrays`.
        """
        for name, value in self.state._asdict().items():
            restore_array(value, saved[f"state.{name}"])
        for name, value in self.dram._asdict().items():
            restore_array(value, saved[f"dram.{name}"])
        restore_array(self.runner.memory.bytes, saved["memory"])
        self._trace, self._firsts = saved["trace"], saved["firsts"]
        self.timed, self._turned = int(self.state.now[at.BLOCKS]), int(saved["turned"][0])
        self._others = int(saved["others"][0])
        self._progress = [(int(a), int(b)) for a, b in saved["progress"]]
        self.runner.resume(int(saved["executed"][0]))

    def _feed(self, count: int) -> None:
        """Execute the next blocks, and append their traces."""
        now = self.state.now
        fed = int(now[at.FED])
        count = min(count, self.timed - fed)
        trace, firsts = self.runner.run(np.arange(fed, fed + count, dtype=np.int64), record=True)
        if len(self._trace) > _LONG_TRACE:
            self._forget()
        self._firsts = np.concatenate([self._firsts, firsts + len(self._trace)])
        self._trace = np.concatenate([self._trace, trace])
        now[at.FED] = fed + count

    def _forget(self) -> None:
        """Drop the traces of blocks that have ended."""
        now, warps = self.state.now, self.state.warp
        lives = warps[:, at.LIVE] != at.ABSENT
        waiting = (int(now[at.NEXT_BLOCK]) - int(now[at.FIRST_BLOCK])) * self.runner.warps
        begins = [*warps[lives, at.RECORD].tolist(), *self._firsts[waiting:].tolist()]
        first = min(begins, default=len(self._trace))
        self._trace = self._trace[first:]
        warps[lives, at.RECORD] -= first
        self._firsts = self._firsts[waiting:] - first
        now[at.FIRST_BLOCK] = now[at.NEXT_BLOCK]

    def _result(self) -> LaunchTiming:
        now, s = self.state.now, self.state
        core = self.target.core
        busy = max(int(now[at.CYCLE]), int(now[at.LAST_STORE]))
        cycles, error = float(busy), 0.0
        if self.timed < self.runner.blocks:
            cycles, error = self._extrapolated(busy)
        cycles += core.figures.start
        windows = (busy >> int(now[at.SPAN_BITS])) + 1
        dram = counters_of(self.dram, self.target.memory.dram)
        # Of the time of the launch, with its start, not of that until the last burst.
        in_all = max((busy + core.figures.start) * self.target.memory.dram.clock_hz / core.clock_hz, dram.cycles)
        dram = replace(dram, utilisation=dram.utilisation * dram.cycles / in_all)
        return LaunchTiming(
            cycles=round(cycles), cycles_error=error, seconds=float(cycles / core.clock_hz), timed_blocks=self.timed,
            blocks=self.runner.blocks, resident_blocks=self.resident, registers=self.registers,
            issued=int(now[at.INSTRUCTIONS]), counters=dict(zip(at.COUNTERS, s.counters.tolist(), strict=True)),
            dram=dram, span_cycles=1 << int(now[at.SPAN_BITS]),
            by_unit=s.by_unit, series=s.series[:windows], unit_series=s.unit_series[:windows],
            slice_series=s.slice_series[:windows],
        )  # fmt: skip

    def _extrapolated(self, busy: int) -> tuple[float, float]:
        """Return the cycles of all blocks, by the rate at which the timed ones ended, and the error of it."""
        points = np.array(self._progress, dtype=float)
        last = self.timed - self.slots
        first = min(max(self.slots, self._turned), last / 2)
        steady = points[(points[:, 1] >= first) & (points[:, 1] <= last)]
        if len(steady) < 3 or steady[-1, 1] <= steady[0, 1]:
            steady = points[[0, -1]]
        slope = (steady[-1, 0] - steady[0, 0]) / (steady[-1, 1] - steady[0, 1])
        middle = len(steady) // 2
        halves = [steady[: middle + 1], steady[middle:]]
        slopes = [(h[-1, 0] - h[0, 0]) / (h[-1, 1] - h[0, 1]) for h in halves if len(h) > 1 and h[-1, 1] > h[0, 1]]
        spread = (max(slopes) - min(slopes)) / slope if len(slopes) > 1 else 0.5
        rest = (self.runner.blocks - self.timed) * slope
        return busy + rest, float((spread + 0.02) * rest / (busy + rest))


def restore_array(array: npt.NDArray[Any], saved: npt.NDArray[Any]) -> None:
    """Fill an array with a saved one; a ValueError says that it has another shape or type."""
    if array.shape != saved.shape or array.dtype != saved.dtype:
        raise ValueError(f"an array of {saved.shape} {saved.dtype}, not {array.shape} {array.dtype}")
    array[...] = saved


def _requests(target: TimedDevice) -> int:
    """Return the requests that can be on their way at most."""
    return target.core.units * target.memory.l1.misses + target.memory.dram.channels * _DRAM_WINDOW + (1 << 16)


def _list_of_free(count: int, columns: int) -> Ints:
    table = np.zeros((count, columns), dtype=np.int64)
    table[:, 0] = np.arange(1, count + 1)
    table[-1, 0] = -1
    return table


def _state(
    runner: BlockRunner, target: TimedDevice, assembly: AssembledKernel, resident: int, shared: int, blocks: int
) -> at.TimingState:  # fmt: skip
    """Return the state before the first cycle."""
    core, memory = target.core, target.memory
    dram: Dram = memory.dram
    figures, units, warps = core.figures, core.units, runner.warps
    l1, l2 = memory.l1, memory.l2
    ways = l1.ways
    l1_sets = max(core.cache_bytes(l1.size, resident * shared) // (ways * l1.line_bytes), 1)
    ratio = dram.clock_hz / core.clock_hz
    t = dram.timing
    unloaded = (dram.cycles(t.rcd_ns) + dram.cycles(t.cl_ns) + dram.burst_cycles + 3) / ratio
    hop = min(_HOP, l2.latency // 4)
    rule = np.zeros(32, dtype=np.int64)
    rules: dict[int, float] = {
        at.UNITS: units, at.SCHEDULERS: figures.schedulers, at.RESIDENT: resident, at.WARPS: warps,
        at.L1_SETS: l1_sets, at.L1_WAYS: ways, at.L1_LATENCY: l1.latency, at.L2_SLICES: l2.slices,
        at.L2_SETS: l2.sets, at.L2_WAYS: l2.ways, at.L2_RETURN: l2.latency - hop - 2, at.HOP: hop,
        at.MEMORY_LATENCY: max(l2.latency + memory.memory_latency - 2 * hop - 12 - unloaded, 1),
        at.CHANNELS: dram.channels, at.BANKS_OF_CHANNEL: dram.bank_groups * dram.banks, at.BANKS_OF_GROUP: dram.banks,
        at.ACCESS_BYTES: dram.access_bytes, at.SPLIT_AT: dram.address_mapping.split_at,
        at.GREEDY: POLICIES.index(target.policy), at.BRANCH_AFTER: figures.branch, at.QUEUE: _QUEUE,
        at.DRAM_WINDOW: dram.channels * _DRAM_WINDOW - 64, at.SLICE_TENTHS: round(10 * l2.line_cycles / 4),
        at.L1_MISSES: l1.misses, at.BARRIER_AFTER: figures.barrier, at.CONSTANT_CYCLES: _CONSTANT_CYCLES,
        at.PASS_CYCLES: round(l1.line_cycles),
    }  # fmt: skip
    for key, value in rules.items():
        rule[key] = round(value)
    now = np.zeros(16, dtype=np.int64)
    now[[at.BLOCKS, at.LEFT, at.SPAN_BITS]] = blocks, blocks, 6
    slots = units * resident
    n_warps = slots * warps
    warp = at.zeros(n_warps, 11)
    warp[:, at.AT] = at.NEVER
    residents = at.zeros(slots, 4)
    residents[:, at.BLOCK_NUMBER] = -1
    scheduler = at.zeros(units * figures.schedulers, at.UNIT_FREE + 8)
    scheduler[:, at.WAKE], scheduler[:, at.LAST_WARP] = at.NEVER, -1
    scheduler[:, at.DID] = at.EMPTY
    n_requests = _requests(target)
    n_waiters = n_requests + n_warps * 32 * 16
    waiter = at.zeros(n_waiters, 2)
    waiter[:, 1] = np.arange(1, n_waiters + 1)
    l1_frames, l2_frames = units * l1_sets * ways, l2.slices * l2.sets * l2.ways

    def filled(*shape: int) -> Any:
        return np.full(shape, -1, dtype=np.int64)

    return at.TimingState(
        rule=rule, now=now, warp=warp, ready=at.zeros(n_warps, max(assembly.scoreboard, 1)), resident=residents,
        scheduler=scheduler, pipeline=at.zeros(units, 4), l1_line=filled(l1_frames), l1_state=at.zeros(l1_frames, 4),
        l1_wait=filled(4 * l1_frames), l2_line=filled(l2_frames), l2_state=at.zeros(l2_frames, 4),
        l2_wait=filled(4 * l2_frames), slice_free=at.zeros(l2.slices), load=_list_of_free(n_warps * 16, 5),
        request=_list_of_free(n_requests, 8), waiter=waiter, ring=filled(1 << 14), chain=filled(1 << 14),
        mapping=dram.address_mapping.table, ratio=np.array([ratio]), counters=at.zeros(len(at.COUNTERS)),
        by_unit=at.zeros(units, 6), series=at.zeros(at.WINDOWS, 6), unit_series=at.zeros(at.WINDOWS, units),
        slice_series=at.zeros(at.WINDOWS, l2.slices),
    )  # fmt: skip
