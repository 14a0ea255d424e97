"""Reads and writes of workgroups: port of the SM, cache, memory, host link; each takes requests in turn.

A request is a chunk of an operand. Every server is busy until some time, and a request waits for it: bandwidth goes to
whoever has more under way, which is not max-min fair. The cache holds chunks and evicts, of four that it looks at by
chance, the one that was not touched for longest; what was stored goes to memory when it is evicted.
"""

from benchmarks.gpu.virtual.board import Board
from profilers.trace.compiled import bare

__all__ = ["cross", "fetch", "put", "reach"]

_RECENT = 16
_SAMPLES = 4


@bare
def reach(s: Board, t, size, stream, writes):  # type: ignore[no-untyped-def]
    """Return when the memory has served a request, and how long that took of it.

    It takes longer where the last 16 requests were of many streams (rows of the banks are opened again), and where some
    read and some wrote (the bus turns around).
    """
    b, c = s.b[0], s.c[0]
    at = b.at % _RECENT
    old, new = b.last[at], 2 * stream + writes
    if old >= 0:
        s.recent[old // 2] -= 1
        b.streams -= s.recent[old // 2] == 0
        b.writes -= old % 2
    b.streams += s.recent[stream] == 0
    s.recent[stream] += 1
    b.writes += writes
    b.last[at] = new
    b.at += 1
    wrote = b.writes / min(b.at, _RECENT)
    slower = 1.0 + c.row * (b.streams - 1) + c.turn * 4.0 * wrote * (1.0 - wrote)
    took = size / c.hbm * slower
    b.hbm_used += took
    b.hbm = max(t, b.hbm) + took
    return b.hbm, took


@bare
def _evict(s: Board, t):  # type: ignore[no-untyped-def]
    """Take one chunk out of the cache; return when the memory has what was stored to it."""
    b = s.b[0]
    victim = -1
    for _ in range(_SAMPLES):
        x = b.random
        x ^= (x << 13) & 0x7FFFFFFFFFFFFFFF
        x ^= x >> 7
        x ^= (x << 17) & 0x7FFFFFFFFFFFFFFF
        b.random = x
        k = x % b.lines
        if victim < 0 or s.lines[k].touched < s.lines[victim].touched:
            victim = k
    line = s.lines[victim]
    done = t
    if line.dirty:
        s.grids[line.stream // 3].written_back += line.bytes
        done, _ = reach(s, t, line.bytes, line.stream, 1)
    s.where[line.chunk] = -1
    b.held -= line.bytes
    b.lines -= 1
    if victim != b.lines:
        s.lines[victim] = s.lines[b.lines]
        s.where[s.lines[victim].chunk] = victim
    return done


@bare
def _keep(s: Board, t, chunk, size):  # type: ignore[no-untyped-def]
    """Make room for a chunk and take it in; return its line, and when what was evicted is written."""
    b = s.b[0]
    done = t
    while b.lines > 0 and (b.held + size > s.c[0].cache_bytes or b.lines >= len(s.lines)):
        done = max(done, _evict(s, t))
    k = b.lines
    b.lines += 1
    b.held += size
    line = s.lines[k]
    line.chunk, line.bytes, line.touched, line.dirty, line.arrives = chunk, size, t, 0, t
    s.where[chunk] = k
    return k, done


@bare
def _through(s: Board, t, sm, size, way):  # type: ignore[no-untyped-def]
    """Return when a request has passed the cache's port and that of its SM: 0 in, 1 out.

    `size` is of both: what the cache gives, which may go to several SMs at once, and what the SM gets.
    """
    b, c, row = s.b[0], s.c[0], s.sms[sm]
    given, got = size
    b.l2 = max(t, b.l2) + given / c.l2
    row.port[way] = max(t, row.port[way]) + got / c.port
    return max(row.port[way], b.l2)


@bare
def fetch(s: Board, t, sm, what):  # type: ignore[no-untyped-def]
    """Return when a chunk has come to an SM, and the latency of what it came from.

    `what` is the member, the operand (0 to 2), the chunk and its bytes.
    """
    member, operand, chunk, size = what
    g, c, b = s.grids[member], s.c[0], s.b[0]
    g.loaded += size
    shared = c.multicast if g.tiles_m > 0 else 1.0
    done = _through(s, t, sm, (size / shared, size), 0)
    k = s.where[chunk]
    if k >= 0:
        s.lines[k].touched = t
        return max(done, s.lines[k].arrives) + c.l2_ns, c.l2_ns
    g.missed += size
    stream = 3 * member + operand
    if g.keeps:
        k, _ = _keep(s, t, chunk, size)
        s.lines[k].stream = stream
    came, _ = reach(s, t, size, stream, 0)
    if g.keeps:
        s.lines[k].arrives = came
    latency = c.hbm_ns * (1.0 + c.growth * b.busy * b.busy)
    return max(done, came) + latency, latency


@bare
def put(s: Board, t, sm, what):  # type: ignore[no-untyped-def]
    """Return when a chunk has been taken from an SM: into the cache, and what it pushes out into memory."""
    member, operand, chunk, size = what
    g = s.grids[member]
    g.stored += size
    done = _through(s, t, sm, (size, size), 1)
    stream = 3 * member + operand
    k = s.where[chunk]
    if not g.keeps and k < 0:
        g.written_back += size
        return max(done, reach(s, t, size, stream, 1)[0])
    if k < 0:
        k, pushed = _keep(s, t, chunk, size)
        s.lines[k].stream = stream
        done = max(done, pushed)
    line = s.lines[k]
    line.touched, line.dirty = t, 1
    return done


@bare
def cross(s: Board, t, member, size, direction):  # type: ignore[no-untyped-def]
    """Return when a request has crossed the host link: 0 to the device, 1 from it."""
    b = s.b[0]
    s.grids[member].over_link += size
    b.link[direction] = max(t, b.link[direction]) + size / s.c[0].link
    return b.link[direction]
