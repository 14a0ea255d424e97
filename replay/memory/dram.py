"""Simulate DRAM: banks with rows, channels with a scheduler, and the time that a sequence of requests takes.

`find_dram` returns a standard of `datasets/dram.toml`, and `scaled_dram` the memory of a device from its standard and
its bandwidth. `DramSimulator` serves requests block by block and returns `DramCounters`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml
from profilers.trace.arrays import Ints
from replay.memory import banks as at
from replay.memory.controller import run
from replay.memory.mapping import AddressMapping

#: Rules of rows: a row stays open until another is needed, or closes after each request.
PAGES = ("open", "closed")
#: Most banks of a channel, which the compiled code keeps in the bits of a number.
_MOST_BANKS = 32
#: Requests that enter all channels in a cycle, at least.
_ENTERING = 8
#: Requests that are decoded at a time, so that their fields stay in the caches.
_BLOCK = 1 << 14


@dataclass(frozen=True)
class Traffic:
    """Requests to DRAM, in order. Both are arrays of shape (n,).

    Parameters
    ----------
    address : array of int64
        First byte; a request has the bytes of one access of the DRAM (`Dram.access_bytes`).
    is_write : array of uint8
        1 for a write, 0 for a read.
    """

    address: Ints
    is_write: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class DramTiming:
    """Least times between commands, ns. The defaults are those of the reference, DRAMsim3's HBM2_8Gb_x128.

    Parameters
    ----------
    cl_ns, cwl_ns : float
        From a read, or a write, to its data.
    rcd_ns, rp_ns, ras_ns : float
        From an activate to a read or write; from a precharge to an activate; from an activate to a precharge.
    rrd_s_ns, rrd_l_ns : float
        Between activates of other bank groups, and of the same.
    faw_ns : float
        Window in which four activates are possible.
    ccd_s_ns, ccd_l_ns : float
        Between two reads or two writes, of other bank groups, and of the same.
    wtr_s_ns, wtr_l_ns : float
        From the end of written data to a read, of other bank groups, and of the same.
    rtw_ns : float
        From the end of read data to the begin of written data.
    wr_ns, rtp_ns : float
        From the end of written data, and from a read, to a precharge.
    rfc_ns, refi_ns : float
        Duration of a refresh of all banks, and time between two of them; no refresh if the latter is 0.
    """

    cl_ns: float = 14
    cwl_ns: float = 4
    rcd_ns: float = 14
    rp_ns: float = 14
    ras_ns: float = 34
    rrd_s_ns: float = 4
    rrd_l_ns: float = 6
    faw_ns: float = 30
    ccd_s_ns: float = 1
    ccd_l_ns: float = 2
    wtr_s_ns: float = 6
    wtr_l_ns: float = 8
    rtw_ns: float = 1
    wr_ns: float = 16
    rtp_ns: float = 6
    rfc_ns: float = 260
    refi_ns: float = 3900

    def __post_init__(self) -> None:
        if not all(0 <= getattr(self, item.name) < 1e9 for item in fields(self)):
            raise InvalidInputError("times of DRAM must be 0 to 1e9 ns")
        if self.refi_ns and self.refi_ns < 2 * (self.rfc_ns + self.ras_ns + self.rp_ns):
            raise InvalidInputError(f"refreshes every {self.refi_ns:g} ns that last {self.rfc_ns:g} ns leave no time")


@dataclass(frozen=True)
class Dram:
    """DRAM of a device: geometry, timing, and the order of address bits.

    Parameters
    ----------
    name : str
        Standard, such as ``"HBM2"``.
    channels : int
        Independent channels of the device; pseudo-channels count as channels.
    bank_groups, banks : int
        Bank groups of a channel, and banks of a group.
    rows, row_bytes : int
        Rows of a bank, and bytes of a row.
    access_bytes : int
        Bytes of a request: bus width times burst length.
    clock_hz : float
        Clock of commands.
    burst_cycles : float
        Cycles in which the data of a request occupy the bus of a channel; a whole number.
    timing : DramTiming
        Least times between commands.
    mapping : str
        Order of address bits, see `replay.memory.mapping.AddressMapping`.
    page : str
        One of `PAGES`.
    queue, commands : int
        Requests that wait in the read queue, and in the write buffer, of a channel; requests in the queue of a bank.
    command_buses : int
        2 if a row command and a column command can be issued in the same cycle.

    Raises
    ------
    InvalidInputError
        A figure is out of range, or the mapping does not fit.
    """

    name: str
    channels: int
    bank_groups: int
    banks: int
    rows: int
    row_bytes: int
    access_bytes: int
    clock_hz: float
    burst_cycles: float
    timing: DramTiming = field(default_factory=DramTiming)
    mapping: str = "interleaved"
    page: str = "open"
    queue: int = 32
    commands: int = 8
    command_buses: int = 2

    def __post_init__(self) -> None:
        sizes = ("bank_groups", "banks", "rows", "row_bytes", "access_bytes")
        for name in sizes:
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise InvalidInputError(f"{self.name}: {name} is {value}; it must be a power of two")
        if self.channels < 1 or self.queue < 1 or self.commands < 1:
            raise InvalidInputError(f"{self.name}: channels, queue and commands must be 1 or more")
        if self.bank_groups * self.banks > _MOST_BANKS or self.row_bytes < self.access_bytes:
            raise InvalidInputError(f"{self.name}: up to {_MOST_BANKS} banks, and rows that hold a request")
        if not (self.clock_hz > 0 and self.burst_cycles >= 1 and float(self.burst_cycles).is_integer()):
            raise InvalidInputError(f"{self.name}: the clock must be positive and burst_cycles a whole number")
        if self.page not in PAGES:
            raise InvalidInputError(f"{self.name}: page {self.page!r}; one of {', '.join(PAGES)}")
        _ = self.address_mapping

    @property
    def bandwidth(self) -> float:
        """Peak bandwidth of all channels, bytes/s."""
        return self.channels * self.access_bytes * self.clock_hz / self.burst_cycles

    @cached_property
    def address_mapping(self) -> AddressMapping:
        """Bits of an address by field."""
        power = self.channels & (self.channels - 1) == 0
        widths = {
            "ro": self.rows, "ra": 1, "ba": self.banks, "bg": self.bank_groups,
            "ch": self.channels if power else 1, "co": self.row_bytes // self.access_bytes,
        }  # fmt: skip
        bits = {name: size.bit_length() - 1 for name, size in widths.items()}
        return AddressMapping(self.mapping, MappingProxyType(bits), self.access_bytes, self.channels)

    def with_mapping(self, text: str) -> "Dram":
        """Return the same memory with another order of address bits, or a mapping with a name (`NAMED`).

        Raises
        ------
        InvalidInputError
            The mapping is unknown or does not fit.
        """
        return replace(self, mapping=text)

    def cycles(self, nanoseconds: float) -> int:
        """Return a time in cycles of the clock, rounded up."""
        return math.ceil(nanoseconds * self.clock_hz * 1e-9 - 1e-6)


@dataclass(frozen=True)
class DramCounters:
    """What a simulation of DRAM counted.

    Parameters
    ----------
    cycles : int
        Cycles until all data were moved.
    seconds : float
        Time.
    reads, writes : int
        Requests. `merged` of them needed no data of their own, as a request to the same address was waiting.
    merged : int
        Reads and writes that were merged with another.
    read_row_hits, write_row_hits : int
        Reads and writes of a row that was open, after the first one since it opened.
    activates, precharges, refreshes : int
        Commands.
    utilisation : float
        Share of the time in which the data buses were busy.
    efficiency : float
        Share of the time in which they were busy, of the time in which their channel had requests.
    bank_parallelism : float
        Mean number of banks of a channel with requests, while any bank of the channel has.
    mean_read_latency_cycles : float
        Cycles from a read's entry into its channel to its data.
    bytes_by_channel : array of int64, shape (channels,)
        Bytes that moved.
    window_seconds : float
        Length of a window of the series.
    bytes_over_time, row_hits_over_time : array of int64, shape (windows, channels)
        Bytes and row hits by window of time.
    """

    cycles: int
    seconds: float
    reads: int
    writes: int
    merged: int
    read_row_hits: int
    write_row_hits: int
    activates: int
    precharges: int
    refreshes: int
    utilisation: float
    efficiency: float
    bank_parallelism: float
    mean_read_latency_cycles: float
    bytes_by_channel: Ints
    window_seconds: float
    bytes_over_time: Ints
    row_hits_over_time: Ints

    @property
    def row_hits(self) -> int:
        """Row hits of reads and writes."""
        return self.read_row_hits + self.write_row_hits

    @property
    def row_hit_rate(self) -> float:
        """Row hits over requests; 0 without requests."""
        return self.row_hits / max(1, self.reads + self.writes)

    def followed_by(self, later: "DramCounters") -> "DramCounters":
        """Return the counters of two simulations of a memory, one after the other.

        Counts add up. Utilisation and bank parallelism are means over the cycles. The series continue in windows of the
        longer length, and windows are joined in pairs if they become too many.
        """
        cycles, moved = (self.cycles, later.cycles), (self.bytes_by_channel.sum(), later.bytes_by_channel.sum())
        waited = sum(size / side.efficiency for size, side in zip(moved, (self, later), strict=True) if size)
        window = max(self.window_seconds, later.window_seconds)
        series: dict[str, Any] = {
            name: np.concatenate(
                [_joined_windows(getattr(side, name), round(window / side.window_seconds)) for side in (self, later)]
            )
            for name in ("bytes_over_time", "row_hits_over_time")
        }
        while len(series["bytes_over_time"]) > at.WINDOWS:
            window, series = 2 * window, {name: _joined_windows(rows, 2) for name, rows in series.items()}
        added: dict[str, Any] = {name: getattr(self, name) + getattr(later, name) for name in _ADDED}
        return DramCounters(
            **added,
            utilisation=_mean((self.utilisation, later.utilisation), cycles),
            efficiency=float(sum(moved) / waited) if waited else 0.0,
            bank_parallelism=_mean((self.bank_parallelism, later.bank_parallelism), cycles),
            mean_read_latency_cycles=_mean(
                (self.mean_read_latency_cycles, later.mean_read_latency_cycles), (self.reads, later.reads)
            ),
            window_seconds=window,
            **series,
        )


#: Counters that add up over simulations.
_ADDED = (
    *("cycles", "seconds", "reads", "writes", "merged", "read_row_hits", "write_row_hits"),
    *("activates", "precharges", "refreshes", "bytes_by_channel"),
)


def _joined_windows(series: Ints, number: int) -> Ints:
    """Return a series over time in windows that are a number of times as long."""
    padded = np.pad(series, ((0, -len(series) % number), (0, 0)))
    return np.asarray(padded.reshape(-1, number, series.shape[1]).sum(axis=1), dtype=np.int64)


def _mean(values: tuple[float, float], weights: tuple[int, int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / max(sum(weights), 1)


class DramSimulator:
    """Serve requests in order, as many at a time as fit into a window.

    A read leaves the window when its data are there, a write when its channel accepts it. A request waits if the queue
    of its channel is full; later ones to other channels may pass it. State persists: call `serve` for block after
    block, with the same result as for all at once.

    Parameters
    ----------
    dram : Dram
        Memory.
    window : int
        Most requests that wait or are outstanding.
    entering : int, optional
        Most requests that enter the channels in a cycle; by default 8, or what the data buses of all channels need.

    Raises
    ------
    InvalidInputError
        Window or entering is below 1.
    """

    def __init__(self, dram: Dram, window: int = 1024, entering: int | None = None) -> None:
        if window < 1 or (entering is not None and entering < 1):
            raise InvalidInputError(f"window {window} and entering {entering}: both must be 1 or more")
        self.dram = dram
        self._state = new_dram_state(dram, window, entering)
        self._banks = dram.bank_groups * dram.banks

    def serve(self, traffic: Traffic) -> None:
        """Serve requests until the next one could enter the window.

        Raises
        ------
        InvalidInputError
            The arrays differ in length.
        """
        if len(traffic.address) != len(traffic.is_write):
            raise InvalidInputError(f"{len(traffic.address)} addresses and {len(traffic.is_write)} marks of writes")
        for begin in range(0, len(traffic), _BLOCK):
            address = np.ascontiguousarray(traffic.address[begin : begin + _BLOCK], dtype=np.int64)
            is_write = traffic.is_write[begin : begin + _BLOCK].astype(np.uint8)  # writable: another type to numba
            channel, group, bank, row = self.dram.address_mapping.decode(address)
            banks = channel * self._banks + group * self.dram.banks + bank
            run(self._state, banks, row, is_write, address & -self.dram.access_bytes, 0)

    def finish(self) -> DramCounters:
        """Serve what is left, writes in the buffers included, and return the counters since the beginning."""
        empty = np.empty(0, dtype=np.int64)
        run(self._state, empty, empty, np.empty(0, dtype=np.uint8), empty, 1)
        return counters_of(self._state, self.dram)


def counters_of(m: at.DramState, dram: Dram) -> DramCounters:
    """Return what a simulation counted until now.

    Parameters
    ----------
    m : DramState
        State.
    dram : Dram
        Memory.
    """
    total = m.channel.sum(axis=0)
    moved = m.channel[:, at.READ_COMMANDS] + m.channel[:, at.WRITE_COMMANDS]
    cycles = int(max(m.channel[:, at.DATA_END].max(), 0))
    until = np.where(m.channel[:, at.PENDING] > 0, m.channel[:, at.DATA_END], m.channel[:, at.PENDING_TO])
    pending = m.channel[:, at.PENDING_CYCLES] + np.maximum(until - m.channel[:, at.PENDING_FROM], 0)
    busy = int(moved.sum()) * int(dram.burst_cycles)
    span = 1 << int(m.now[at.SPAN_BITS])
    used = -(-cycles // span)
    return DramCounters(
        cycles=cycles,
        seconds=cycles / dram.clock_hz,
        reads=int(total[at.READS]),
        writes=int(total[at.WRITES]),
        merged=int(total[at.MERGED]),
        read_row_hits=int(total[at.READ_HITS]),
        write_row_hits=int(total[at.WRITE_HITS]),
        activates=int(total[at.ACTIVATES]),
        precharges=int(total[at.PRECHARGES]),
        refreshes=int(total[at.REFRESHES]),
        utilisation=busy / max(1, cycles * dram.channels),
        efficiency=busy / max(1, int(pending.sum())),
        bank_parallelism=float(total[at.BUSY_AREA] / max(1, total[at.BUSY_CYCLES])),
        mean_read_latency_cycles=float(total[at.LATENCY] / max(1, total[at.READS])),
        bytes_by_channel=moved * dram.access_bytes,
        window_seconds=span / dram.clock_hz,
        bytes_over_time=m.series[:used, :, 0] * dram.access_bytes,
        row_hits_over_time=m.series[:used, :, 1].copy(),
    )


def _rules(dram: Dram, window: int, entering: int) -> Ints:
    """Return the timing rules in cycles, in the order of `banks.RULES`."""
    ns, burst = dram.timing, int(dram.burst_cycles)
    in_cycles = {item.name.removesuffix("_ns"): dram.cycles(getattr(ns, item.name)) for item in fields(ns)}
    t = in_cycles
    rules = {
        at.CL: t["cl"], at.CWL: t["cwl"], at.BURST: burst, at.RCD: t["rcd"], at.RP: t["rp"], at.RAS: t["ras"],
        at.RC: t["ras"] + t["rp"], at.RRD_S: t["rrd_s"], at.RRD_L: t["rrd_l"], at.FAW: t["faw"],
        at.READ_S: max(burst, t["ccd_s"]), at.READ_L: max(burst, t["ccd_l"]),
        at.WRITE_S: max(burst, t["ccd_s"]), at.WRITE_L: max(burst, t["ccd_l"]),
        at.READ_WRITE: t["cl"] + burst - t["cwl"] + t["rtw"],
        at.WRITE_READ_S: t["cwl"] + burst + t["wtr_s"], at.WRITE_READ_L: t["cwl"] + burst + t["wtr_l"],
        at.WRITE_PRECHARGE: t["cwl"] + burst + t["wr"], at.READ_PRECHARGE: t["rtp"],
        at.RFC: t["rfc"], at.REFI: t["refi"], at.CHANNELS: dram.channels, at.BANKS: dram.bank_groups * dram.banks,
        at.GROUP_BANKS: dram.banks, at.QUEUE: dram.queue, at.COMMANDS: dram.commands,
        at.DUAL: int(dram.command_buses == 2), at.CLOSED_PAGE: int(dram.page == "closed"), at.WINDOW: window,
        at.ENTERING: entering, at.ACCESS_BITS: dram.access_bytes.bit_length() - 1,
        at.BANK_BITS: (dram.bank_groups * dram.banks).bit_length() - 1,
    }  # fmt: skip
    return np.array([rules[index] for index in at.RULES], dtype=np.int64)


def new_dram_state(dram: Dram, window: int, entering: int | None = None, listening: bool = False) -> at.DramState:
    """Return the state before the first request.

    Parameters
    ----------
    dram : Dram
        Memory.
    window : int
        Most requests that wait or are outstanding.
    entering : int, optional
        Most requests that enter the channels in a cycle; by default as `DramSimulator`.
    listening : bool
        Whether the caller wants to know when reads end (`replay.memory.controller.advance`).
    """
    if entering is None:
        entering = max(_ENTERING, math.ceil(dram.channels / dram.burst_cycles))
    per_channel = dram.bank_groups * dram.banks
    n_banks = dram.channels * per_channel
    rule = _rules(dram, window, entering)
    n_slots = window + dram.channels * (2 * dram.queue + per_channel * dram.commands) + 1
    slot = np.zeros((n_slots, at.SLOT_COLUMNS), dtype=np.int64)
    slot[:, at.FOLLOWING] = np.arange(1, n_slots + 1)
    channel = np.zeros((dram.channels, at.CHANNEL_COLUMNS), dtype=np.int64)
    channel[:, at.COMMAND_AT] = at.NEVER
    channel[:, at.REFRESH_AT] = rule[at.REFI] or at.NEVER
    queue = np.zeros((2 * dram.channels, 5), dtype=np.int64)
    queue[:, [at.ARRIVED_HEAD, at.ARRIVED_TAIL, at.LISTED]] = -1
    bank = np.zeros((n_banks, at.KEYS + 2 * dram.commands), dtype=np.int64)
    bank[:, [at.ROW, at.READ_HIT, at.WRITE_HIT, at.HEAD, at.WRITE_HEAD]] = -1
    bank[:, at.BIT] = 1 << (np.arange(n_banks) % per_channel)
    now = np.zeros(8, dtype=np.int64)
    now[at.SPAN_BITS] = 6
    bank[:, at.GROUP] = np.arange(n_banks) % per_channel // dram.banks * dram.banks
    longest = int(max(rule[at.CL], rule[at.CWL]) + rule[at.BURST]) + 3
    return at.DramState(
        rule=rule,
        now=now,
        channel=channel,
        next=channel[:, at.REFRESH_AT].copy(),
        queue=queue,
        bank=bank,
        can=np.full((dram.channels, 4, per_channel), at.NEVER),
        may=np.zeros((dram.channels, 3, per_channel), dtype=np.int64),
        slot=slot,
        bucket=np.full(1 << max(4, n_slots.bit_length()), -1),
        done=np.zeros(1 << longest.bit_length(), dtype=np.int64),
        listed=np.zeros(2 * dram.channels, dtype=np.int64),
        series=np.zeros((at.WINDOWS, dram.channels, 2), dtype=np.int64),
        finished=np.zeros((2 * n_slots if listening else 0, 2), dtype=np.int64),
    )


class DramFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of a standard."""

    value: Annotated[float, msgspec.Meta(ge=0)]
    unit: str
    source: str
    certainty: str


class _DramStandard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A standard of the file."""

    about: str
    figures: dict[str, DramFigure]


def load_drams(path: str | Path | None = None) -> Mapping[str, Dram]:
    """Return the DRAM standards of `datasets/dram.toml`, or of a file of the same layout, by name.

    Each has the channels of one stack (HBM) or chip (GDDR), at the nominal data rate.

    Raises
    ------
    InvalidInputError
        A standard lacks a figure, or has one that is unknown or out of range.
    NotFoundError
        There is no such file.
    """
    file = Path(path) if path else dataset_path("dram.toml")
    try:
        content = msgspec.convert(read_toml(file, "DRAM standards"), dict[str, _DramStandard])
    except msgspec.ValidationError as problem:
        raise InvalidInputError(f"{file}: {problem}") from None
    return MappingProxyType({name: _standard(name, standard, file) for name, standard in content.items()})


#: Figures of geometry that the file gives; the others are times.
_GEOMETRY = ("channels", "bank_groups", "banks", "rows", "row_bytes", "access_bytes", "burst_cycles", "command_buses")


def _standard(name: str, standard: _DramStandard, file: Path) -> Dram:
    times = tuple(item.name for item in fields(DramTiming))
    known = {*_GEOMETRY, "clock_mhz", *times}
    given = {key: figure.value for key, figure in standard.figures.items()}
    if odd := sorted(known ^ set(given)):
        problem = "is missing" if odd[0] in known else "is no figure of a standard"
        raise InvalidInputError(f"{file}: {name}: {odd[0]} {problem}")
    timing = DramTiming(**{key: given[key] for key in times})
    geometry: dict[str, Any] = {key: int(given[key]) for key in _GEOMETRY}
    return Dram(name=name, clock_hz=1e6 * given["clock_mhz"], timing=timing, **geometry)


def find_dram(name: str, path: str | Path | None = None) -> Dram:
    """Return a DRAM standard by its name, whatever its case.

    Raises
    ------
    NotFoundError
        There is no standard of that name.
    """
    drams = load_drams(path)
    for known, dram in drams.items():
        if known.casefold() == name.strip().casefold():
            return dram
    raise NotFoundError(f"no DRAM standard {name!r}; there are {', '.join(drams)}")


def scaled_dram(dram: Dram, bandwidth: float, stacks: int | None = None) -> Dram:
    """Return the memory of a device: stacks or chips of a standard whose peak is the bandwidth of the device.

    The clock is scaled so that all channels together reach the bandwidth; times in ns stay.

    Parameters
    ----------
    dram : Dram
        Standard, with the channels of one stack or chip at its nominal clock.
    bandwidth : float
        Peak bandwidth of the device, bytes/s.
    stacks : int, optional
        Stacks or chips; by default the power of two that brings the clock nearest to the nominal one.

    Raises
    ------
    InvalidInputError
        Bandwidth or stacks are not positive.
    """
    if not (math.isfinite(bandwidth) and bandwidth > 0) or (stacks is not None and stacks < 1):
        raise InvalidInputError(f"a memory of {bandwidth} bytes/s in {stacks} stacks: both must be positive")
    if stacks is None:
        stacks = 1 << max(0, round(math.log2(bandwidth / dram.bandwidth)))
    scaled = replace(dram, channels=stacks * dram.channels)
    return replace(scaled, clock_hz=dram.clock_hz * bandwidth / scaled.bandwidth)
