"""`simulate`: members that run side by side on a virtual device, workgroup by workgroup."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu.kernels import sets_of
from benchmarks.gpu.step import Member
from benchmarks.gpu.virtual.board import GRID, Board, board
from benchmarks.gpu.virtual.device import VirtualDevice
from benchmarks.gpu.virtual.events import pop, push
from benchmarks.gpu.virtual.memory import cross, reach
from benchmarks.gpu.virtual.program import Program, program
from benchmarks.gpu.virtual.workgroups import ask, compute, dispatch_all, leave, received, store
from profilers.trace.compiled import bare, compiled

__all__ = ["Ran", "simulate"]

#: Bytes of a piece of a transfer, and of what a workgroup has under way across the host link.
_PIECE = 64 * 2**10
_HOST_UNDER_WAY = 8 * 2**10
#: How long the use of the tensor units and of the memory is looked at before the clock is set, ns; and how far the
#: clock goes at once towards what it is to be. Chosen.
_WINDOW_NS = 20_000.0
_STEP = 0.3
_GROUP = 8
#: Who the memory serves in turns, an engine among them; SMs are several to one. Chosen.
_CLIENTS = 9
_ENGINE, _TO_DEVICE, _FROM_DEVICE, _WITHIN = 1, 0, 1, 2


@dataclass(frozen=True)
class Ran:
    """What a member did, in ns from its release or the first start, and in bytes.

    Parameters
    ----------
    start_ns, end_ns : float
    loaded, stored, over_link : float
        Bytes that its SMs or engine asked for.
    missed, written_back : float
        Bytes that the memory served.
    math_ns : float
        Of arithmetic, all workgroups together, at full clock.
    """

    start_ns: float
    end_ns: float
    loaded: float
    stored: float
    over_link: float
    missed: float
    written_back: float
    math_ns: float


def simulate(device: VirtualDevice, members: Sequence[Member]) -> list[Ran]:
    """Return when each member began and ended, and what it moved.

    Parameters
    ----------
    device : VirtualDevice
    members : sequence of Member
        Let go in this order, `VirtualDevice.skew_ns` apart and `Member.lag_ns` later. Those with `units` get SMs of
        their own, as long as there are any; others may use all.

    Raises
    ------
    ValueError
        The partitions have more SMs than the device.
    """
    grids = np.zeros(len(members), GRID)
    chunks, next_sm = 0, 0
    for i, member in enumerate(members):
        grids[i]["release_ns"] = member.lag_ns + i * device.skew_ns
        grids[i]["launches"], grids[i]["priority"] = member.launches, member.priority
        own = 0 if member.work.kind == "copy_engine" else member.units
        grids[i]["first_sm"] = next_sm if own else 0
        grids[i]["sms"] = own or device.sms
        next_sm += own
        chunks = _fill(grids[i], member, device, chunks)
    if next_sm > device.sms:
        raise ValueError(f"partitions of {next_sm} compute units; {device.name} has {device.sms}")
    sizes = [grids["loads"].ravel(), grids["stores"], grids["added"]]
    smallest = min((s for s in np.concatenate(sizes) if s > 0), default=1.0)
    s = board(device, grids, chunks, smallest)
    _run(s)
    first = grids["start_ns"].min()
    return [
        Ran(
            float(g["start_ns"] - first), float(g["end_ns"] - first),
            *(float(g[n]) for n in ("loaded", "stored", "over_link", "missed", "written_back", "math_done")),
        )
        for g in grids
    ]  # fmt: skip


def _fill(row: Any, member: Member, device: VirtualDevice, chunks: int) -> int:
    """Write what a member's launches do; return how many chunks there are now."""
    work = member.work
    if work.kind == "copy_engine":
        return _fill_transfer(row, member, chunks)
    p = program(work, device)
    same = ("blocks", "phases", "threads", "shared", "registers", "added", "stores", "reads_host", "writes_host")
    for name in (*same, "math_ns", "least_ns", "issue_ns", "tensor", "under_way", "keeps"):
        row[name] = getattr(p, name)
    row["host_under_way"] = _HOST_UNDER_WAY
    row["loads"][: len(p.loads)] = p.loads
    row["tiles_m"], row["tiles_n"] = p.tiles or (0, 0)
    row["group"] = _GROUP
    needs = _chunks(p)
    row["base"] = chunks + np.cumsum([0, *needs[:-1]])
    row["span"], row["sets"] = sum(needs), sets_of(work, device.l2_bytes)
    if p.in_place:
        row["base"][2] = row["base"][0]
    return chunks + int(row["span"] * row["sets"])


def _chunks(p: Program) -> tuple[int, int, int]:
    """Return the chunks of each operand."""
    if p.tiles:
        return p.tiles[0] * p.phases, p.tiles[1] * p.phases, p.blocks
    linear = p.blocks * p.phases
    return linear, linear if len(p.loads) > 1 else 0, linear if p.stores and not p.in_place else 0


def _fill_transfer(row: Any, member: Member, chunks: int) -> int:
    work = member.work
    moved = work.host_bytes or work.bytes_read
    row["kind"], row["blocks"], row["phases"] = _ENGINE, 1, max(-(-moved // _PIECE), 1)
    row["direction"] = {"h2d": _TO_DEVICE, "d2h": _FROM_DEVICE, "d2d": _WITHIN}[work.direction]
    row["stores"] = moved / row["phases"]
    row["under_way"] = row["host_under_way"] = 1.0
    row["base"] = chunks, chunks, chunks + row["phases"]
    return chunks + 2 * int(row["phases"])


@compiled
def _run(s: Board):  # type: ignore[no-untyped-def]
    """Go from event to event; each is a workgroup that goes on, a piece of a transfer, or a launch."""
    places = len(s.blocks)
    b = s.b[0]
    b.window = _WINDOW_NS
    b.live = len(s.grids)
    for m in range(len(s.grids)):
        s.grids[m].start_ns = s.grids[m].release_ns
        push(s, s.grids[m].release_ns + s.c[0].launch_ns, places + m)
    while b.live > 0:
        t, item = pop(s)
        if t >= b.window:
            _set_clock(s, t)
        if item < places:
            _go_on(s, t, item)
        elif s.grids[item - places].kind == 0:
            _launch(s, t, item - places)
        else:
            _transfer(s, t, item - places)


@bare
def _set_clock(s, t):  # type: ignore[no-untyped-def]
    """Lower the clock where tensor units and memory together drew more than the device may, and raise it again."""
    b, c = s.b[0], s.c[0]
    span = t - b.window + _WINDOW_NS
    tensor = b.tensor_used / (span * len(s.sms))
    b.busy = min(b.hbm_used / span, 1.0)
    drawn = c.power_tensor * tensor + c.power_hbm * b.busy
    wanted = max(1.0 - c.slope * max(drawn - c.power_free, 0.0), c.least)
    b.clock += _STEP * (wanted - b.clock)
    b.tensor_used, b.hbm_used, b.window = 0.0, 0.0, t + _WINDOW_NS


@bare
def _launch(s, t, m):  # type: ignore[no-untyped-def]
    """Put a member's next grid in line."""
    g, b = s.grids[m], s.b[0]
    g.dispatched, g.done, g.waits, g.arrival = 0, 0, 1, b.arrivals
    b.arrivals += 1
    dispatch_all(s, t)


@bare
def _go_on(s, t, place):  # type: ignore[no-untyped-def]
    """Take a workgroup one phase on: what it loaded is there at t, and what it computed before is done."""
    block = s.blocks[place]
    m = block.grid
    g = s.grids[m]
    if block.phase < 0:  # it has just been dispatched
        block.phase = 0
        ask(s, t, place, t)
    elif block.phase < g.phases:
        received(s, t, place)
        done = compute(s, t, place)
        if block.phase + 1 < g.phases:
            stored = store(s, t, place) if g.tiles_m == 0 else t
            block.phase += 1
            ask(s, t, place, max(done, stored))
        else:
            block.phase = g.phases
            push(s, done, place)
    elif block.phase == g.phases:
        block.phase = g.phases - 1  # what it stores is of its last phase
        stored = store(s, t, place)
        block.phase = g.phases + 1
        push(s, stored, place)
    elif leave(s, t, place):
        _ended(s, t, m)


@bare
def _ended(s, t, m):  # type: ignore[no-untyped-def]
    """Go to a member's next launch, or note when it ended."""
    g, b = s.grids[m], s.b[0]
    g.launches -= 1
    g.turn = (g.turn + 1) % max(g.sets, 1)
    if g.launches > 0:
        push(s, t + s.c[0].gap_ns, len(s.blocks) + m)
    else:
        g.end_ns = t
        b.live -= 1


@bare
def _transfer(s, t, m):  # type: ignore[no-untyped-def]
    """Take a transfer one piece on; it waits where every copy engine is taken."""
    g, b = s.grids[m], s.b[0]
    if g.dispatched == 0:
        if b.engines == 0:
            g.waits = 1
            return
        b.engines -= 1
    if g.dispatched == g.phases:
        g.dispatched = 0
        b.engines += 1
        _ended(s, t, m)
        for other in range(len(s.grids)):
            if s.grids[other].kind == _ENGINE and s.grids[other].waits == 1:
                s.grids[other].waits = 0
                push(s, t, len(s.blocks) + other)
                break
        return
    done = _piece(s, t, m)
    g.dispatched += 1
    push(s, done, len(s.blocks) + m)


@bare
def _piece(s, t, m):  # type: ignore[no-untyped-def]
    """Return when a piece has been read on one side and written on the other.

    It goes past the cache, and the memory serves an engine in turn with SMs, so that these do not hold it up.
    """
    g, c = s.grids[m], s.c[0]
    size = g.stores
    done = t + size / c.engine if g.direction == _WITHIN else cross(s, t, m, size, g.direction)
    if g.direction != _TO_DEVICE:
        g.loaded += size
        g.missed += size
        came, took = reach(s, t, size, 3 * m, 0)
        done = max(done, min(came, t + _CLIENTS * took))
    if g.direction != _FROM_DEVICE:
        g.stored += size
        g.written_back += size
        came, took = reach(s, t, size, 3 * m + 2, 1)
        done = max(done, min(came, t + _CLIENTS * took))
    return done
