"""Processing in memory: banks of a DRAM that compute, the commands that drive them, and when each can be issued.

In PIM mode a command goes to all banks of a channel. A unit between two banks reads the open row of either, computes,
and writes the open row of the other. `find_pim` returns the PIM of a device, `issue_times` replays commands by the
timing of the DRAM, and `Pim.switch_ns` is the time of the commands that enter PIM mode and leave it.

`pim_quantization` returns the time of quantising weights into low-precision copies. A unit reads values of high
precision from the open row of one bank and finds the largest exponent of each block. It scales, rounds and packs the
values, and writes the copies to the same row of the other bank. `add_pim_tasks` adds such tasks to a graph.

    normal mode ──▶ enter ──▶ activate ─▶ read, execute, write ... ─▶ precharge ──▶ leave ──▶ normal mode
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml
from profilers.trace.arrays import Floats, Ints
from replay.graph.assembly import Assembly
from replay.graph.graph import PIM_STREAM, Basis, EdgeKind, Edges, KernelGraph, Lane, TaskKind
from replay.memory.dram import Dram, DramFigure, find_dram
from replay.memory.system import memory_system

#: Commands. `EXECUTE` is a column command that runs an instruction on registers alone.
COMMANDS = ("activate", "read", "execute", "write", "precharge", "refresh")
ACTIVATE, READ, EXECUTE, WRITE, PRECHARGE, REFRESH = COMMANDS
_COLUMN = (READ, EXECUTE, WRITE)
#: Bank of a command that goes to all banks of a channel.
ALL_BANKS = -1


class Command(NamedTuple):
    """A command to a channel.

    Parameters
    ----------
    kind : str
        One of `COMMANDS`.
    bank : int
        Number of the bank in the channel; the banks of a group adjoin. `ALL_BANKS` for all of them.
    """

    kind: str
    bank: int = ALL_BANKS


@dataclass(frozen=True)
class Pim:
    """Units of computation beside the banks of a DRAM.

    Parameters
    ----------
    dram : Dram
        Memory, with all channels of the device.
    units : int
        Units of a channel.
    lanes, lane_bits : int
        SIMD lanes of a unit, and their width.
    registers : int
        Vector registers of a unit, each of the bytes of an access.
    clock_hz : float
        Clock of the units. A unit takes `lanes` values of `lane_bits` a cycle.
    instructions : int
        Instructions that scale, round and pack the values of one access for one copy. Commercial HBM-PIM adds and
        multiplies only; quantisation needs such an instruction, as JIT-Q assumes. 0 if the write itself does it.
    program_writes : int
        Writes that load the program of the units when PIM mode begins.
    share : float
        Share of the time, refreshes aside, in which the PIM holds the channels; kernels have them for the rest.

    Raises
    ------
    InvalidInputError
        A figure is out of range, or the share leaves no time after the switch of modes.

    Notes
    -----
    Sources: HBM-PIM (Lee et al., Hardware Architecture and Software Stack for PIM Based on Commercial DRAM Technology,
    ISCA 2021); timing of JIT-Q (arXiv 2311.05034).

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> pim = find_pim(find_device("MI210"))
    >>> round(pim.dram.bandwidth / 1e9), round(pim.internal_bandwidth / 1e9)
    (1638, 6552)
    """

    dram: Dram
    units: int = 8
    lanes: int = 16
    lane_bits: int = 16
    registers: int = 16
    clock_hz: float = 250e6
    instructions: int = 1
    program_writes: int = 4
    share: float = 1.0

    def __post_init__(self) -> None:
        banks = self.dram.bank_groups * self.dram.banks
        if self.units < 1 or banks % (2 * self.units):
            raise InvalidInputError(f"{self.units} PIM units for {banks} banks: each needs an equal, even number")
        if min(self.lanes, self.lane_bits, self.registers) < 1 or min(self.instructions, self.program_writes) < 0:
            raise InvalidInputError("a PIM unit needs 1 or more lanes, bits and registers, and 0 or more instructions")
        if not (math.isfinite(self.clock_hz) and self.clock_hz > 0):
            raise InvalidInputError(f"a PIM clock of {self.clock_hz} Hz: give a positive one")
        if not 0 < self.share <= 1:
            raise InvalidInputError(f"a PIM share of {self.share} of the channels: give more than 0, 1 at most")
        if self.slot_ns <= 0:
            least = (self.switch_ns + self.row_ns) / self._unrefreshed_ns
            raise InvalidInputError(f"a PIM share of {self.share}: switching modes takes {least:.2f}; give more")

    @property
    def column_ns(self) -> float:
        """Time of a column command to all banks: its spacing, or the cycles of a unit on one access if longer."""
        cycles = math.ceil(8 * self.dram.access_bytes / (self.lanes * self.lane_bits))
        return max(self.dram.timing.ccd_l_ns, 1e9 * cycles / self.clock_hz)

    @property
    def internal_bandwidth(self) -> float:
        """Peak bandwidth of all units to their banks, bytes/s: an access of each unit in each column command."""
        return 1e9 * self.dram.channels * self.units * self.dram.access_bytes / self.column_ns

    @property
    def accesses_of_row(self) -> int:
        """Accesses that a row holds."""
        return self.dram.row_bytes // self.dram.access_bytes

    @property
    def write_recovery_ns(self) -> float:
        """Time from a write to a precharge."""
        ns, burst_ns = self.dram.timing, 1e9 * self.dram.burst_cycles / self.dram.clock_hz
        return max(ns.cwl_ns + burst_ns + ns.wr_ns, self.column_ns)

    @property
    def row_ns(self) -> float:
        """Time of opening and closing a row, beside its column commands; the last of them is a write."""
        return self.dram.timing.rcd_ns + self.write_recovery_ns - self.column_ns + self.dram.timing.rp_ns

    @cached_property
    def switch_ns(self) -> float:
        """Time of entering PIM mode and leaving it."""
        return sum(issue_times(self, commands)[1] for commands in (self.entry_commands(), exit_commands()))

    @property
    def _unrefreshed_ns(self) -> float:
        """Time between two refreshes."""
        timing = self.dram.timing
        return (timing.refi_ns or math.inf) - timing.rfc_ns

    @property
    def slot_ns(self) -> float:
        """Time for rows and columns between two refreshes: the PIM enters its mode, opens a row, and leaves once."""
        if not self.dram.timing.refi_ns:
            return math.inf
        return self.share * self._unrefreshed_ns - self.switch_ns - self.row_ns

    def entry_commands(self) -> tuple[Command, ...]:
        """Return the commands that enter PIM mode.

        All rows are closed. Writes to reserved rows of four banks let commands go to all banks. Then the program of
        the units is written, and a register that lets column commands run it.
        """
        half = self.dram.bank_groups // 2 * self.dram.banks
        banks = (0, 1, half, half + 1) if self.dram.banks > 1 else (0, half)
        by_kind = (Command(kind, bank) for kind in (ACTIVATE, WRITE, PRECHARGE) for bank in banks)
        program = (Command(WRITE),) * (self.program_writes + 1)
        return (Command(PRECHARGE), *by_kind, Command(ACTIVATE), *program, Command(PRECHARGE))


def exit_commands() -> tuple[Command, ...]:
    """Return the commands that leave PIM mode: writes to one register and to the reserved rows of two banks."""
    return (Command(ACTIVATE), Command(WRITE), Command(PRECHARGE)) * 3


class _Clock:
    """Times of the latest commands of a channel, ns."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, int], float] = {}
        self.now = 0.0
        self.column: tuple[int, float] | None = None
        self.activates: list[tuple[int, float]] = []

    def last(self, kind: str, bank: int) -> float:
        """Return when the bank had its latest command of a kind; a command to all banks counts for each of them."""
        banks = {at for key, at in self.times if key == kind} if bank == ALL_BANKS else {bank, ALL_BANKS}
        return max((self.times.get((kind, each), -math.inf) for each in banks), default=-math.inf)


def issue_times(pim: Pim, commands: Sequence[Command]) -> tuple[Floats, float]:
    """Return when each command of one channel is issued, and when the next activate could be.

    Commands are issued in order, each as early as the timing of the DRAM allows. A loop over the commands: it shows
    and tests schedules, and `pim_quantization` has closed forms of the same.

    Parameters
    ----------
    pim : Pim
        Memory and its units.
    commands : sequence of Command
        Commands in order, from a channel whose rows are closed for long. Commands to single banks are ordinary ones.

    Returns
    -------
    issue_ns : array of float64, shape (commands,)
        Times.
    end_ns : float
        Time of the next activate: after the latest precharge or refresh.

    Raises
    ------
    InvalidInputError
        A command is unknown.

    Examples
    --------
    >>> from replay.memory.dram import find_dram
    >>> pim = Pim(find_dram("HBM_PIM"))
    >>> row = [Command("activate"), Command("read"), Command("execute"), Command("write"), Command("precharge")]
    >>> issue_times(pim, row)
    (array([ 0., 14., 18., 22., 44.]), 58.0)
    """
    clock, timing, issued = _Clock(), pim.dram.timing, []
    for kind, bank in commands:  # a step a command
        if kind not in COMMANDS:
            raise InvalidInputError(f"DRAM command {kind!r}; one of {', '.join(COMMANDS)}")
        at = max(clock.now, _earliest(pim, clock, Command(kind, bank)))
        clock.now, clock.times[kind, bank] = at, at
        if kind in _COLUMN:
            clock.column = bank, at
        elif kind == ACTIVATE:
            clock.activates.append((bank, at))
        issued.append(at)
    end = max(
        clock.now,
        clock.last(PRECHARGE, ALL_BANKS) + timing.rp_ns,
        clock.last(REFRESH, ALL_BANKS) + timing.rfc_ns,
    )
    return np.array(issued), end


def _earliest(pim: Pim, clock: _Clock, command: Command) -> float:
    """Return the earliest time of a command after those before it."""
    ns, (kind, bank) = pim.dram.timing, command
    if kind in (ACTIVATE, REFRESH):
        ready = clock.last(PRECHARGE, bank) + ns.rp_ns, clock.last(REFRESH, bank) + ns.rfc_ns
        return max(*ready, _after_activates(pim, clock, bank) if kind == ACTIVATE else -math.inf)
    column_end = -math.inf
    if clock.column is not None:
        before, at = clock.column
        # The precharge of all banks waits for the instruction that runs; an ordinary one waits for its bank alone.
        if kind in _COLUMN or bank == ALL_BANKS:
            column_end = at + _column_gap(pim, before, bank)
    if kind in _COLUMN:
        return max(column_end, clock.last(ACTIVATE, bank) + ns.rcd_ns if kind != EXECUTE else column_end)
    recovered = clock.last(READ, bank) + ns.rtp_ns, clock.last(WRITE, bank) + pim.write_recovery_ns
    return max(clock.last(ACTIVATE, bank) + ns.ras_ns, *recovered, column_end)


def _column_gap(pim: Pim, before: int, bank: int) -> float:
    """Return the time between two column commands."""
    if ALL_BANKS in (before, bank):
        return pim.column_ns
    same_group = before // pim.dram.banks == bank // pim.dram.banks
    return pim.dram.timing.ccd_l_ns if same_group else pim.dram.timing.ccd_s_ns


def _after_activates(pim: Pim, clock: _Clock, bank: int) -> float:
    """Return the earliest time of an activate after the activates before it; one of all banks is a command of its own.

    HBM-PIM activates all banks at once, so that the window of four activates holds in normal mode only.
    """
    ns, earlier = pim.dram.timing, [each for each in clock.activates if each[0] != ALL_BANKS]
    if bank == ALL_BANKS or not earlier:
        return -math.inf
    before, at = earlier[-1]
    gap = ns.rrd_l_ns if before // pim.dram.banks == bank // pim.dram.banks else ns.rrd_s_ns
    return max(at + gap, earlier[-4][1] + ns.faw_ns if len(earlier) >= 4 else -math.inf)


def row_commands(columns: Iterable[str]) -> tuple[Command, ...]:
    """Return the commands that open a row in all banks, run column commands on it, and close it."""
    return (Command(ACTIVATE), *map(Command, columns), Command(PRECHARGE))


class _PimStandard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    dram: str
    figures: dict[str, DramFigure]


@cache
def load_pims() -> Mapping[str, Pim]:
    """Return the PIM standards of `datasets/pim.toml` by name, each on one stack at its nominal clock."""
    file = dataset_path("pim.toml")
    try:
        content = msgspec.convert(read_toml(file, "PIM standards"), dict[str, _PimStandard])
    except msgspec.ValidationError as problem:
        raise InvalidInputError(f"{file}: {problem}") from None
    return MappingProxyType({name: _standard(standard) for name, standard in content.items()})


def _standard(standard: _PimStandard) -> Pim:
    figures = {name: figure.value for name, figure in standard.figures.items()}
    clock_hz = 1e6 * figures.pop("clock_mhz")
    return Pim(find_dram(standard.dram), clock_hz=clock_hz, **{name: int(value) for name, value in figures.items()})


def find_pim(device: Device, standard: str = "HBM_PIM") -> Pim:
    """Return the PIM that a device would have if its memory computed.

    No device of the catalogue has such memory. The result has the channels and the bandwidth of the device, and the
    standard's units, rows and times in ns. What counts cycles scales with the clock: the spacing of column commands,
    and the clock of the units. The ratio of internal to external bandwidth stays.

    Parameters
    ----------
    device : Device
        Device of the catalogue, with stacked memory (HBM).
    standard : str
        Name in `datasets/pim.toml`.

    Raises
    ------
    NotFoundError
        There is no such standard, or the memory of the device is unknown.
    InvalidInputError
        The device has no stacked memory.
    """
    pim = load_pims().get(standard)
    if pim is None:
        raise NotFoundError(f"no PIM standard {standard!r}; there is {', '.join(load_pims())}")
    memory = memory_system(device).dram
    if not memory.name.startswith("HBM"):
        raise InvalidInputError(f"{device.name} has {memory.name}; {standard} needs stacked memory (HBM)")
    faster = memory.bandwidth / memory.channels / (pim.dram.bandwidth / pim.dram.channels)
    timing = pim.dram.timing
    timing = replace(timing, ccd_s_ns=timing.ccd_s_ns / faster, ccd_l_ns=timing.ccd_l_ns / faster)
    dram = replace(pim.dram, channels=memory.channels, clock_hz=pim.dram.clock_hz * faster, timing=timing)
    return replace(pim, dram=dram, clock_hz=pim.clock_hz * faster)


#: Parts of the time, in the order of tables.
PARTS = ("activate", "read", "compute", "write", "refresh", "mode_switch", "other_use")
_Item = TypeVar("_Item")
#: Most bits of a value.
_MOST_BITS = 64


@dataclass(frozen=True)
class CopyLayout:
    """Blocks of the copies, and how the values of a weight lie in the rows of the memory.

    Parameters
    ----------
    block : int
        Values that share an exponent: 16 for MX9, MX6 and MX4, 32 for the formats of OCP.
    transposed : int
        How many copies, of the last ones, have their blocks along the columns: those of the transposed weight.
    tiled : bool
        Whether a row of memory holds square tiles of `block` by `block` values. Then the blocks of both directions lie
        in an open row. Otherwise it holds values of one row of the weight, and a block along a column is spread over
        `block` rows of memory.

    Raises
    ------
    InvalidInputError
        The block is below 1, or the number of transposed copies is negative.
    """

    block: int = 16
    transposed: int = 0
    tiled: bool = True

    def __post_init__(self) -> None:
        if self.block < 1 or self.transposed < 0:
            raise InvalidInputError(f"blocks of {self.block} values and {self.transposed} transposed copies")


@dataclass(frozen=True)
class PimTime:
    """Time of tensors on the PIM of a device, alone on its memory. Arrays have the shape of `elements`.

    Parameters
    ----------
    seconds : array of float64
        Time of each tensor.
    parts : mapping of str to array of float64
        The same by `PARTS`, in seconds; they add up to `seconds`. All channels work at the same time, so that a part
        is that of a channel. ``other_use`` is the time in which the PIM leaves the channels to kernels by its share.
    share : float
        Share of the time, refreshes aside, in which the PIM holds the channels.
    basis : Basis
        How the times are known: no device of the catalogue has such memory.
    """

    seconds: Floats
    parts: Mapping[str, Floats]
    share: float = 1.0
    basis: Basis = Basis.ASSUMED


@dataclass(frozen=True)
class _Counts:
    """Commands of a unit: arrays of float64, one value a tensor.

    Parameters
    ----------
    reads, executes, writes : array
        Column commands.
    rows : array
        Rows that are opened; the last command of each is a write.
    single_rows : array
        Rows that are opened for one access.
    """

    reads: Floats
    executes: Floats
    writes: Floats
    rows: Floats
    single_rows: Floats


def pim_quantization(
    elements: npt.ArrayLike,
    source_bits: float,
    target_bits: Sequence[float],
    device: Device | Pim,
    layout: CopyLayout | None = None,
) -> PimTime:
    """Return how long the PIM of a device takes to make low-precision copies of tensors.

    Parameters
    ----------
    elements : int or array of int
        Values of each tensor, which is spread over all units of the device.
    source_bits : float
        Bits of a value that is read, such as 32.
    target_bits : sequence of float
        Bits of a value in each copy, such as ``(9, 9)`` for a weight and its transpose in MX9.
    device : Device or Pim
        Device of the catalogue, whose hypothetical PIM `find_pim` returns; or a PIM.
    layout : CopyLayout, optional
        Blocks and rows; by default blocks of 16 in tiles, without transposed copies.

    Returns
    -------
    PimTime
        Seconds, and their parts.

    Raises
    ------
    InvalidInputError
        Elements or bits are out of range, there is no copy, or there are more transposed copies than copies.

    Notes
    -----
    In units of column commands, of `Pim.column_ns` each: a unit with a accesses of source reads them once for each
    direction, to find the exponents. Each copy takes ``a * instructions`` commands more, and its own accesses to
    write. For a transposed copy those commands read the bank again, at least once, and take as long. A row costs
    `Pim.row_ns` on top. Between two refreshes the PIM enters its mode and leaves it once, and opens a row again. Time
    is divided by ``1 - tRFC / tREFI`` for refreshes, and by the share of the PIM.

    Source of the steps: JIT-Q (arXiv 2311.05034). Commands do not overlap with the opening of rows.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> time = pim_quantization([4096 * 4096, 4096 * 16384], 32, (9, 9), find_device("MI210"))
    >>> (1e6 * time.seconds).round(1).tolist()
    [51.7, 206.0]
    """
    pim = find_pim(device) if isinstance(device, Device) else device
    layout = layout or CopyLayout()
    counts = _counts(_checked(elements, source_bits, target_bits, layout), source_bits, target_bits, (pim, layout))
    ns = pim.dram.timing
    single_ns = max(ns.ras_ns, ns.rcd_ns + max(pim.column_ns, ns.rtp_ns)) + ns.rp_ns - pim.column_ns
    columns = {"read": counts.reads, "compute": counts.executes, "write": counts.writes}
    parts = {name: count * pim.column_ns for name, count in columns.items()}
    parts["activate"] = counts.rows * pim.row_ns + counts.single_rows * single_ns
    rows_ns = _total(parts)
    slots = np.ceil(rows_ns / pim.slot_ns - 1e-9) if math.isfinite(pim.slot_ns) else np.sign(rows_ns)
    parts["activate"] += np.maximum(slots - 1.0, 0.0) * pim.row_ns
    parts["mode_switch"] = slots * pim.switch_ns
    held_ns = _total(parts)
    parts["other_use"] = held_ns * (1.0 / pim.share - 1.0)
    refreshed = ns.rfc_ns / ns.refi_ns if ns.refi_ns else 0.0
    parts["refresh"] = held_ns / pim.share * refreshed / (1.0 - refreshed)
    seconds = MappingProxyType({name: 1e-9 * parts[name] for name in PARTS})
    return PimTime(_total(seconds), seconds, pim.share)


def _total(parts: Mapping[str, Floats]) -> Floats:
    """Return the sum of parts."""
    return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float64)


def _checked(elements: npt.ArrayLike, source_bits: Any, target_bits: Any, layout: CopyLayout) -> Floats:
    """Return the elements as floats."""
    if np.ndim(target_bits) != 1:
        raise InvalidInputError(f"bits of copies are {target_bits!r:.40}; give a value for each copy, such as (9, 9)")
    if not len(target_bits):
        raise InvalidInputError("no copy to quantise to; give the bits of a value of each copy, such as (9, 9)")
    for bits in (source_bits, *target_bits):
        if isinstance(bits, bool) or not isinstance(bits, Real):
            raise InvalidInputError(f"the bits of a value are a number, and not {bits!r:.40}")
        if not 0 < float(bits) <= _MOST_BITS:
            raise InvalidInputError(f"values of {bits} bits; give more than 0, {_MOST_BITS} at most")
    if layout.transposed > len(target_bits):
        raise InvalidInputError(f"{layout.transposed} transposed copies of {len(target_bits)}")
    try:
        numbers = np.asarray(elements, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"elements of tensors are {elements!r:.60}; give whole numbers") from None
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise InvalidInputError("elements of tensors must be finite and not negative")
    return numbers


def _counts(elements: Floats, source_bits: float, target_bits: Sequence[float], how: tuple[Pim, CopyLayout]) -> _Counts:
    """Return the commands of the unit with the most elements of each tensor."""
    pim, layout = how
    of_unit = np.ceil(elements / (pim.dram.channels * pim.units))
    access_bits = 8.0 * pim.dram.access_bytes
    accesses = np.ceil(of_unit * source_bits / access_bits)
    writes = np.ceil(of_unit[..., None] * np.asarray(target_bits, np.float64) / access_bits).sum(axis=-1)
    plain = len(target_bits) - layout.transposed
    directions = (plain > 0) + (layout.transposed > 0)
    # Values of a transposed block do not fit the registers beside its exponents: the bank is read again.
    executes = accesses * (plain * pim.instructions + layout.transposed * max(pim.instructions, 1))
    passes, singles = 1, 0
    if layout.transposed and not layout.tiled:
        # Values of a block that the registers cannot hold beside its exponents are fetched twice.
        passes, singles = int(plain > 0), 1 if layout.block < pim.registers else 2
    elif layout.transposed and layout.block**2 * source_bits > 8 * pim.dram.row_bytes:
        passes = 2  # a tile is spread over rows: one pass finds the exponents, the next one scales
    rows = np.maximum(np.ceil(accesses / pim.accesses_of_row) * passes, np.ceil(writes / pim.accesses_of_row))
    return _Counts(accesses * directions, executes, writes, rows, accesses * singles)


def pim_columns(time: PimTime) -> dict[str, Any]:
    """Return columns of PIM tasks for `replay.graph.Assembly.tasks`.

    A task demands all units, and its share of the memory's bandwidth: in PIM mode a channel serves no ordinary access.
    A kernel and the task slow each other as two kernels with these demands do. Copies of several layers queue.

    Examples
    --------
    A task of 100 us beside a kernel of 200 us that uses all of the memory. They share it until the task ends.

    >>> from replay.engine import simulate
    >>> from replay.graph.graph import PIM_STREAM, Basis, EdgeKind, Edges, KernelGraph, Lane, TaskKind
    >>> assembly = Assembly()
    >>> time = PimTime(np.array(1e-4), {})
    >>> task = assembly.tasks("quantise", assembly.lane(device=0, stream=PIM_STREAM), pim_columns(time))
    >>> kernel = assembly.tasks("copy", assembly.lane(device=0, stream=7), {"duration_ns": 2e5, "hbm": 1.0})
    >>> simulate(assembly.graph())[1].tolist()
    [200000.0, 300000.0]
    """
    return {
        "kind": int(TaskKind.PIM),
        "duration_ns": 1e9 * time.seconds,
        "pim": 1.0,
        "hbm": time.share,
        "basis": int(time.basis),
    }


def add_pim_tasks(
    graph: KernelGraph, names: Sequence[str], time: PimTime, triggers: npt.ArrayLike, consumers: npt.ArrayLike
) -> KernelGraph:
    """Return a graph with PIM tasks that make the copies of a tensor just in time.

    Each task may begin when its trigger starts, and its consumer waits for it. Tasks of a device run in the order
    in which they are given, on a lane of their own. They belong to the iteration and phase of their consumers.

    Parameters
    ----------
    graph : KernelGraph
        Graph to extend.
    names : sequence of str, length n
        Names of the tasks.
    time : PimTime
        Their times, shape (n,).
    triggers, consumers : array of int, shape (n,)
        Tasks of the graph: the one whose start lets the copies be made, such as the product of the layer before, and
        the one that reads them. -1 as a trigger: nothing to wait for.

    Raises
    ------
    InvalidInputError
        Lengths differ, or a task is not in the graph, or a consumer is on no device.

    Examples
    --------
    >>> from replay.engine import simulate
    >>> assembly = Assembly()
    >>> layers = assembly.tasks("layer", assembly.lane(device=0), {"duration_ns": [3e4, 3e4], "cu": 1.0, "hbm": 0.2})
    >>> assembly.chain(layers)
    >>> graph = add_pim_tasks(assembly.graph(), ["weights"], PimTime(np.array([1e-5]), {}), layers[:1], layers[1:])
    >>> simulate(graph)[1].tolist()  # for 12 us, both the first layer and the PIM run at 1 / 1.2
    [32000.0, 62000.0, 12000.0]
    """
    trigger, consumer = (np.asarray(rows, dtype=np.int64) for rows in (triggers, consumers))
    n, count = len(graph.tasks), len(names)
    if not len(trigger) == len(consumer) == count == len(time.seconds):
        raise InvalidInputError(f"{count} PIM tasks: give as many times, triggers and consumers")
    if not count:
        return graph
    if consumer.min() < 0 or max(consumer.max(), trigger.max()) >= n or trigger.min() < -1:
        raise InvalidInputError(f"PIM tasks: triggers and consumers must be tasks of the graph, 0 to {n - 1}")
    device = graph.tasks.device[consumer]
    if device.min() < 0:
        raise InvalidInputError(f"task {consumer[np.argmin(device)]} waits for a PIM task, but is on no device")
    of_devices = [Lane(rank, number, PIM_STREAM) for rank, number in graph.devices]
    lanes, lane = _numbered(graph.lanes, [of_devices[each] for each in device.tolist()])
    known, name = _numbered(graph.names, names)
    template = Assembly()
    columns = {"iteration": graph.tasks.iteration[consumer], "phase": graph.tasks.phase[consumer], "event": -1}
    template.tasks("", template.lane(device=0), {**pim_columns(time), **columns})
    tasks = replace(template.graph().tasks, lane=lane, device=device, name=name)
    new, waits, order = n + np.arange(count), trigger >= 0, np.argsort(device, kind="stable")
    same = device[order[1:]] == device[order[:-1]]
    edges = graph.edges.joined(
        Edges.of(trigger[waits], new[waits], kind=EdgeKind.WAIT_INFERRED, from_start=True),
        Edges.of(new, consumer, kind=EdgeKind.WAIT_INFERRED),
        Edges.of(new[order[:-1][same]], new[order[1:][same]], kind=EdgeKind.STREAM),
    )
    changed = replace(graph, tasks=graph.tasks.joined(tasks), edges=edges, names=known, lanes=lanes)
    # The engine knows the start of a trigger once it has units: no time may pass before.
    start_ns = changed.tasks.start_ns.copy()
    start_ns[trigger[waits]] = 0.0
    return changed.with_tasks(start_ns=start_ns)


def _numbered(known: tuple[_Item, ...], items: Sequence[_Item]) -> tuple[tuple[_Item, ...], Ints]:
    """Return distinct items with new ones behind the known, and the number of each item."""
    numbers = {item: number for number, item in enumerate(known)}
    rows = [numbers.setdefault(item, len(numbers)) for item in items]
    return tuple(numbers), np.array(rows, dtype=np.int64)
