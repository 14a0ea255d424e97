"""Processing in memory: banks of a DRAM that compute, the commands that drive them, and when each can be issued.

In PIM mode a command goes to all banks of a channel. A unit between two banks reads the open row of either, computes,
and writes the open row of the other. `find_pim` returns the PIM of a device, `issue_times` replays commands by the
timing of the DRAM, and `Pim.switch_ns` is the time of the commands that enter PIM mode and leave it.

    normal mode ──▶ enter ──▶ activate ─▶ read, execute, write ... ─▶ precharge ──▶ leave ──▶ normal mode
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml
from profilers.trace.arrays import Floats
from replay.memory.dram import Dram, find_dram
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
        """Time of opening and closing a row, beside its column commands of which the last is a write."""
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


class _Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: Annotated[float, msgspec.Meta(gt=0)]
    unit: str
    source: str
    certainty: str


class _Standard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    dram: str
    figures: dict[str, _Figure]


@cache
def load_pims() -> Mapping[str, Pim]:
    """Return the PIM standards of `datasets/pim.toml` by name, each on one stack at its nominal clock."""
    file = dataset_path("pim.toml")
    try:
        content = msgspec.convert(read_toml(file, "PIM standards"), dict[str, _Standard])
    except msgspec.ValidationError as problem:
        raise InvalidInputError(f"{file}: {problem}") from None
    return MappingProxyType({name: _standard(standard) for name, standard in content.items()})


def _standard(standard: _Standard) -> Pim:
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
