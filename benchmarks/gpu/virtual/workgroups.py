"""Workgroups on SMs: who is let in, and what a phase takes.

The dispatcher gives out workgroups one by one, of the grid of highest priority that came first, and takes none back.
While the first in line still has workgroups that do not fit, nobody behind it is let in on its SMs.
"""

from benchmarks.gpu.virtual.board import Board
from benchmarks.gpu.virtual.events import push
from benchmarks.gpu.virtual.memory import cross, fetch, put
from profilers.trace.compiled import bare

__all__ = ["ask", "compute", "dispatch_all", "leave", "received", "store"]

#: Share of its time by which workgroups differ, so that they do not end as one. Chosen.
_UNEVEN = 0.03


@bare
def _first_in_line(s: Board, sm):  # type: ignore[no-untyped-def]
    """Return the member that the dispatcher serves next on an SM; -1 where there is none."""
    best = -1
    for m in range(len(s.grids)):
        g = s.grids[m]
        if g.kind != 0 or g.waits == 0 or sm < g.first_sm or sm >= g.first_sm + g.sms:
            continue
        if best < 0 or (g.priority, -g.arrival) > (s.grids[best].priority, -s.grids[best].arrival):
            best = m
    return best


@bare
def _dispatch_on(s: Board, t, sm):  # type: ignore[no-untyped-def]
    """Let one workgroup in on an SM; return whether one came in, and whether it was the last of its grid."""
    m = _first_in_line(s, sm)
    if m < 0:
        return False, False
    g, row = s.grids[m], s.sms[sm]
    fits = g.threads <= row.threads and g.shared <= row.shared and g.registers <= row.registers and row.slots > 0
    if not fits:
        return False, False
    row.threads -= g.threads
    row.shared -= g.shared
    row.registers -= g.registers
    row.slots -= 1
    row.resident += 1
    b = s.b[0]
    b.free -= 1
    place = s.free[b.free]
    block = s.blocks[place]
    block.grid, block.number, block.phase, block.sm = m, g.dispatched, -1, sm
    g.dispatched += 1
    last = g.dispatched == g.blocks
    if last:
        g.waits = 0
    b.dispatch = max(t, b.dispatch) + s.c[0].dispatch_ns
    push(s, b.dispatch, place)
    return True, last


@bare
def dispatch_all(s: Board, t):  # type: ignore[no-untyped-def]
    """Let workgroups in on all SMs, one on each in turn, until none fits."""
    came = True
    while came:
        came = False
        for sm in range(len(s.sms)):
            came |= _dispatch_on(s, t, sm)[0]


@bare
def leave(s: Board, t, place):  # type: ignore[no-untyped-def]
    """Free what a workgroup held, and let others in; return whether its grid is done."""
    block = s.blocks[place]
    g, row, sm, b = s.grids[block.grid], s.sms[block.sm], block.sm, s.b[0]
    row.threads += g.threads
    row.shared += g.shared
    row.registers += g.registers
    row.slots += 1
    row.resident -= 1
    s.free[b.free] = place
    b.free += 1
    g.done += 1
    done = g.done == g.blocks
    came, last = _dispatch_on(s, t, sm)
    while came and not last:
        came, last = _dispatch_on(s, t, sm)
    if last:  # whoever waited behind that grid may come in on any SM
        dispatch_all(s, t)
    return done


@bare
def _chunk(g, block, operand):  # type: ignore[no-untyped-def]
    """Return the chunk of an operand that a phase of a workgroup is about.

    The tiles of a product are walked in groups of rows, so that those which run together share operands.
    """
    first = g.base[operand] + g.turn * g.span
    if g.tiles_m == 0:
        return first + block.phase * g.blocks + block.number
    if operand == 2:
        return first + block.number
    band = block.number // (g.group * g.tiles_n)
    rows = min(g.tiles_m - band * g.group, g.group)
    inside = block.number - band * g.group * g.tiles_n
    tile = band * g.group + inside % rows if operand == 0 else inside // rows
    return first + tile * g.phases + block.phase


@bare
def _load(s: Board, t, place):  # type: ignore[no-untyped-def]
    """Return when what a phase needs is there.

    A workgroup has only so much under way (Little's law): more takes as many round trips.
    """
    block = s.blocks[place]
    member, g = block.grid, s.grids[block.grid]
    ready, trips = t, 0.0
    for operand in range(2):
        size = g.loads[operand]
        if size > 0.0:
            came, latency = fetch(s, t, block.sm, (member, operand, _chunk(g, block, operand), size))
            ready = max(ready, came)
            trips += size / g.under_way * latency
    if g.added > 0.0 and block.phase == g.phases - 1:
        came, latency = fetch(s, t, block.sm, (member, 2, _chunk(g, block, 2), g.added))
        ready = max(ready, came)
        trips += g.added / g.under_way * latency
    if g.reads_host > 0.0:
        ready = max(ready, cross(s, t, member, g.reads_host, 0) + s.c[0].link_ns)
        trips += g.reads_host / g.host_under_way * s.c[0].link_ns
    return max(ready, t + trips)


@bare
def ask(s: Board, t, place, until):  # type: ignore[no-untyped-def]
    """Request what a phase loads, and go on when it is there, not before `until`.

    An SM has only so much under way; who comes later waits until others have received theirs. Tiles do not count: they
    come into shared memory, of which the workgroup holds its part.
    """
    block = s.blocks[place]
    g, row = s.grids[block.grid], s.sms[block.sm]
    block.asked = min(g.loads[0] + g.loads[1], g.under_way) if g.tiles_m == 0 else 0.0
    block.until = until
    if block.asked > 0.0 and row.under_way > 0.0 and row.under_way + block.asked > s.c[0].window:
        block.behind = -1
        if row.first < 0:
            row.first = place
        else:
            s.blocks[row.last].behind = place
        row.last = place
        return
    row.under_way += block.asked
    push(s, max(until, _load(s, t, place)), place)


@bare
def received(s: Board, t, place):  # type: ignore[no-untyped-def]
    """Note that a workgroup has what it asked for, and let requests go that waited for it."""
    block = s.blocks[place]
    row = s.sms[block.sm]
    row.under_way -= block.asked
    block.asked = 0.0
    while row.first >= 0:
        waiting = row.first
        other = s.blocks[waiting]
        if row.under_way > 0.0 and row.under_way + other.asked > s.c[0].window:
            return
        row.first = other.behind
        row.under_way += other.asked
        push(s, max(other.until, _load(s, t, waiting)), waiting)


@bare
def store(s: Board, t, place):  # type: ignore[no-untyped-def]
    """Return when what a phase stores has been taken."""
    block = s.blocks[place]
    member, g = block.grid, s.grids[block.grid]
    done = t
    if g.stores > 0.0:
        done = put(s, t, block.sm, (member, 2, _chunk(g, block, 2), g.stores))
    if g.writes_host > 0.0:
        crossed = cross(s, t, member, g.writes_host, 1)
        done = max(done, crossed, t + g.writes_host / g.host_under_way * s.c[0].link_ns)
    return done


@bare
def _turn(t, taken, own, others):  # type: ignore[no-untyped-def]
    """Return when work is done on a unit that serves workgroups in turns, and until when the unit is taken.

    What is short waits for no more than one turn of each other workgroup at every turn of its own.
    """
    behind = max(taken - t, 0.0)
    return t + own + min(behind, own * others), max(taken, t) + own


@bare
def compute(s: Board, t, place):  # type: ignore[no-untyped-def]
    """Return when the arithmetic of a phase is done; others on the SM have their turns."""
    block = s.blocks[place]
    g, row, b = s.grids[block.grid], s.sms[block.sm], s.b[0]
    others = row.resident - 1.0
    done, row.issue = _turn(t, row.issue, g.issue_ns / b.clock, others)
    if g.math_ns <= 0.0:
        return done
    uneven = (block.number * 0.618034) % 1.0 - 0.5
    longer = (1.0 + 2.0 * _UNEVEN * uneven) / b.clock
    own, done = g.math_ns * longer, max(done, t + g.least_ns * longer)
    g.math_done += g.math_ns
    if g.tensor:
        counted, row.tensor = _turn(t, row.tensor, own, others)
        b.tensor_used += own
    else:
        counted, row.simd = _turn(t, row.simd, own, others)
    return max(done, counted)
