"""`Board`: all state of a simulation as flat arrays, which the compiled functions share."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.virtual.device import VirtualDevice

__all__ = ["BOARD", "CONSTANTS", "GRID", "Board", "board"]


def _row(integers: str = "", floats: str = "", **arrays: tuple[type, int]) -> "np.dtype[np.void]":
    """Return a type of rows with these columns."""
    fields = [(name, np.int64) for name in integers.split()] + [(name, np.float64) for name in floats.split()]
    return np.dtype([*fields, *((name, of, length) for name, (of, length) in arrays.items())])


#: What is constant of a device, in ns and bytes.
CONSTANTS = _row(
    floats="port l2 hbm link engine l2_ns hbm_ns link_ns growth row turn launch_ns gap_ns dispatch_ns window multicast"
    " power_tensor power_hbm power_free slope least cache_bytes"
)
#: A member of a scenario: what each of its launches does, and how far it is. `kind` 0 is a kernel, 1 a copy engine's
#: transfer, which has one block and a phase for each piece. Chunks of its operands a, b, c have numbers from `base` on;
#: launches take turns with `sets` sets of them, `span` chunks apart.
GRID = _row(
    "kind launches priority first_sm sms blocks phases threads shared registers tensor keeps tiles_m tiles_n group"
    " direction dispatched done arrival waits span sets turn",
    "release_ns start_ns end_ns added stores reads_host writes_host math_ns least_ns issue_ns under_way host_under_way"
    " loaded stored missed written_back over_link math_done",
    base=(np.int64, 3),
    loads=(np.float64, 2),
)
#: A workgroup on an SM. `asked` is what it has under way of what its SM may have; `until` when it can go on, but for
#: its load; `behind` who waits for its SM's memory requests after it (-1: nobody).
_BLOCK = _row("grid number phase sm behind", "asked until")
#: What is left of an SM, who waits for its memory requests (first and last), what is under way of these, and until when
#: what it has is taken: its tensor units, other arithmetic, issue, and its port in and out.
_SM = _row("threads shared registers slots resident first last", "under_way tensor simd issue", port=(np.float64, 2))
#: A chunk in the cache: its number, whether the memory lacks what was stored to it, the stream it is of, its bytes,
#: when it was touched last, and when it has arrived.
_LINE = _row("chunk dirty stream", "bytes touched arrives")
#: What there is one of. `hbm`, `l2`, `dispatch` and `link` say until when they are taken; `last` is who used memory.
BOARD = _row(
    "random lines free events arrivals at streams writes engines live",
    "hbm l2 dispatch clock window tensor_used hbm_used busy held",
    link=(np.float64, 2),
    last=(np.int64, 16),
)


class Board(NamedTuple):
    """What the simulator reads and writes."""

    c: Any  #: one row of `CONSTANTS`
    b: Any  #: one row of `BOARD`
    grids: Any  #: of `GRID`, by member
    sms: Any  #: by SM
    blocks: Any  #: by place of a workgroup
    free: Any  #: places that are free; as many as ``b.free``
    lines: Any  #: of the cache; as many as ``b.lines``
    where: Any  #: by chunk: its line; -1 where the cache has it not
    recent: Any  #: by stream: how many of the last 16 accesses to the memory were its
    times: Any  #: heap of events: when
    items: Any  #: and what: a place, or the number of places and a member


def board(device: VirtualDevice, grids: Any, chunks: int, smallest: float) -> Board:
    """Return the state before anything has started: an empty cache, a full clock.

    Parameters
    ----------
    device : VirtualDevice
    grids : array of GRID
    chunks : int
        That the members' operands have together.
    smallest : float
        Bytes of the smallest chunk.
    """
    places = device.sms * device.slots
    sms = np.zeros(device.sms, _SM)
    for name in ("threads", "registers", "slots"):
        sms[name] = getattr(device, name)
    sms["shared"], sms["first"], sms["last"] = device.shared_bytes, -1, -1
    one = np.zeros(1, BOARD)
    one["clock"], one["random"], one["free"], one["engines"] = 1.0, 88172645463325252, places, device.copy_engines
    one["last"] = -1
    lines = int(min(device.l2_bytes / max(smallest, 1.0), chunks)) + 2
    room = places + len(grids) + 1
    return Board(
        c=_constants(device),
        b=one,
        grids=grids,
        sms=sms,
        blocks=np.zeros(places, _BLOCK),
        free=np.arange(places, dtype=np.int64)[::-1].copy(),
        lines=np.zeros(lines, _LINE),
        where=np.full(chunks + 1, -1, np.int64),
        recent=np.zeros(3 * len(grids) + 1, np.int64),
        times=np.zeros(room),
        items=np.zeros(room, np.int64),
    )


def _constants(device: VirtualDevice) -> Any:
    row = np.zeros(1, CONSTANTS)
    row["window"], row["port"] = device.under_way_bytes, device.port_per_clock * device.clock_ghz
    row["l2"], row["link"], row["engine"] = device.l2_gbps, device.link_gbps, device.engine_gbps
    row["multicast"] = device.multicast
    row["hbm"] = device.hbm_gbps * device.hbm_efficiency
    row["growth"], row["row"], row["turn"] = device.latency_growth, device.row_conflict, device.turnaround
    row["slope"], row["least"], row["cache_bytes"] = device.clock_slope, device.clock_least, device.l2_bytes
    same = ("l2_ns", "hbm_ns", "link_ns", "launch_ns", "gap_ns", "dispatch_ns", "power_tensor", "power_hbm")
    for name in (*same, "power_free"):
        row[name] = getattr(device, name)
    return row
