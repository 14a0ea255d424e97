"""Quantise weights by processing in memory: the time of making low-precision copies, and its tasks in a graph.

A unit reads values of high precision from the open row of one bank and finds the largest exponent of each block. It
scales, rounds and packs the values, and writes the copies to the same row of the other bank. `pim_quantization` returns
the time by part, `quantization_commands` the commands of one channel, and `add_pim_tasks` a graph with such tasks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from replay.graph.assembly import Assembly
from replay.graph.graph import PIM_STREAM, Basis, EdgeKind, Edges, KernelGraph, Lane, TaskKind
from replay.memory.pim import EXECUTE, READ, WRITE, Command, Pim, find_pim, row_commands

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
        Rows that are opened, of which the last command is a write.
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


def quantization_commands(
    elements: int, source_bits: float, target_bits: Sequence[float], pim: Pim
) -> Iterator[Command]:
    """Yield the commands of one channel that quantise a tensor of plain copies, between the switches of modes.

    The last command of each row is a write. A loop over accesses, for tests and figures: `pim_quantization` has
    the time of the same commands in closed form.

    Parameters
    ----------
    elements : int
        Values of the tensor on all channels.
    source_bits, target_bits : float, sequence of float
        As in `pim_quantization`.
    pim : Pim
        Memory and its units.

    Examples
    --------
    >>> from replay.memory.dram import find_dram
    >>> [command.kind for command in quantization_commands(16 * 8 * 16, 32, (9,), Pim(find_dram("HBM_PIM")))]
    ['activate', 'read', 'read', 'execute', 'execute', 'write', 'precharge']
    """
    counts = _counts(np.asarray(float(elements)), source_bits, target_bits, (pim, CopyLayout()))
    rows, reads, writes, executes = (
        int(value) for value in (counts.rows, counts.reads, counts.writes, counts.executes)
    )
    limits = [[total * row // rows for row in range(rows + 1)] for total in (reads, executes, writes)]
    for bounds in zip(*map(pairwise, limits), strict=True):
        kinds = zip((READ, EXECUTE, WRITE), bounds, strict=True)
        yield from row_commands(kind for kind, (begin, end) in kinds for _ in range(end - begin))


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
    return replace(graph, tasks=graph.tasks.joined(tasks), edges=edges, names=known, lanes=lanes)


def _numbered(known: tuple[_Item, ...], items: Sequence[_Item]) -> tuple[tuple[_Item, ...], Ints]:
    """Return distinct items with new ones behind the known, and the number of each item."""
    numbers = {item: number for number, item in enumerate(known)}
    rows = [numbers.setdefault(item, len(numbers)) for item in items]
    return tuple(numbers), np.array(rows, dtype=np.int64)
