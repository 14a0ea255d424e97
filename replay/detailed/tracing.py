"""Record what warps execute, for the timing model: basic blocks, active lanes, and where each access goes.

A record stands in an array of int32: number of the basic block, active lanes, distance to the next record of the warp
(0 at its end), and an element for each access to memory. Such an element is 0 if no lane took part; minus the passes
that an access to shared or constant memory needs; or the distance to the sectors of an access to global memory: their
number, and the number of each. A sector is 32 bytes.
"""

import numpy as np

from profilers.trace.compiled import bare, compiled
from replay.detailed import program as low
from replay.detailed.arguments import ADDRESSES, texels_of
from replay.detailed.memory import BLOCK, LOCAL_BYTES, WARPS

#: Elements of a record before those of its accesses.
BLOCK_NUMBER, LANES, NEXT, ACCESSES = range(4)
#: Elements of the marks: end of the trace, first record of the block's warps in `firsts`, and last record by warp.
END, FIRST, LAST = range(3)
#: Most elements of an access in the trace, and more than a record has besides: `wmma` takes 16 sectors of each lane.
_ROOM = 520
#: First sector of local memory, which each warp has for itself.
LOCAL_SECTOR = 1 << 29
#: Lanes of a shift into the count of sectors that an atomic access keeps the most lanes of an address in.
SAME_ADDRESS = 16


@compiled
def grown(trace, marks):  # type: ignore[no-untyped-def]
    """Return a copy of the trace that is twice as long."""
    larger = np.empty(2 * len(trace), np.int32)
    larger[: marks[END]] = trace[: marks[END]]
    return larger


@bare
def begin_record(row, mask, warp, recording):  # type: ignore[no-untyped-def]
    """Begin the record of a basic block; return whether there was room."""
    trace, marks, firsts = recording[0], recording[1], recording[2]
    at, last = marks[END], marks[LAST + warp]
    if at + ACCESSES + (row[low.MEMORIES] + 1) * _ROOM > len(trace):
        return False
    trace[at + BLOCK_NUMBER], trace[at + NEXT] = row[low.LEADER], 0
    lanes = 0
    for lane in range(32):
        lanes += mask >> lane & 1
    trace[at + LANES] = lanes
    for slot in range(row[low.MEMORIES]):
        trace[at + ACCESSES + slot] = 0
    marks[END] = at + ACCESSES + row[low.MEMORIES]
    if last < 0:
        firsts[marks[FIRST] + warp] = at
    else:
        trace[last + NEXT] = at - last
    marks[LAST + warp] = at
    return True


@bare
def _passes(addresses, size, seen, counts):  # type: ignore[no-untyped-def]
    """Return the passes of an access to shared memory: the most words that lanes want of a bank at a time.

    There are 32 banks of 4 bytes. Lanes that want 8 or 16 bytes take part by halves and quarters of a warp (CUDA C
    Programming Guide, shared memory).
    """
    words = max(size >> 2, 1)
    total, together = 0, 32 // words
    for begin in range(0, 32, together):
        counts[:] = 0
        n_seen, most = 0, 0
        for lane in range(begin, begin + together):
            if addresses[lane] < 0:
                continue
            first = addresses[lane] >> 2
            known = False
            for k in range(n_seen):
                if seen[k] == first:
                    known = True
                    break
            if known:
                continue
            seen[n_seen] = first
            n_seen += 1
            for word in range(first, first + words):
                counts[word & 31] += 1
                most = max(most, counts[word & 31])
        total += most
    return max(total, 1)


@bare
def _sectors(addresses, size, trace, at):  # type: ignore[no-untyped-def]
    """Write the sectors of an access behind the trace, sorted by their first lane; return their number."""
    n = 0
    for lane in range(32):
        if addresses[lane] < 0:
            continue
        for sector in range(addresses[lane] >> 5, (addresses[lane] + size - 1 >> 5) + 1):
            known = False
            for k in range(n - 1, -1, -1):
                if trace[at + 1 + k] == sector:
                    known = True
                    break
            if not known:
                n += 1
                trace[at + n] = sector
    return n


@bare
def _most_alike(addresses):  # type: ignore[no-untyped-def]
    """Return how many lanes use the same address at most."""
    most = 1
    for lane in range(32):
        if addresses[lane] < 0:
            continue
        count = 0
        for other in range(32):
            count += addresses[other] == addresses[lane]
        most = max(most, count)
    return most


@bare
def _addresses(row, registers, mask, base, offset, addresses):  # type: ignore[no-untyped-def]
    for lane in range(32):
        addresses[lane] = np.int64(registers[base, lane]) + offset if mask >> lane & 1 else -1


@bare
def record_access(row, registers, mask, warp, geometry, report, recording):  # type: ignore[no-untyped-def]
    """Write where an access to memory goes into the record of its basic block."""
    trace, marks, _, scratch = recording
    if row[low.SLOT] < 0 or mask == 0:
        return
    at = marks[LAST + warp]
    element, kind, space = at + ACCESSES + row[low.SLOT], row[low.KIND], row[low.SPACE]
    addresses, seen, counts, rows = scratch[0], scratch[1], scratch[2], scratch[3]
    size = (row[low.BITS] >> 3) * (1 if kind == low.ATOMIC else row[low.COUNT])
    _addresses(row, registers, mask, row[low.A], row[low.OFFSET], addresses)
    if kind == low.LDMATRIX or kind == low.STMATRIX:
        trace[element] = -_matrix_passes(row, addresses, rows, seen, counts)
        return
    if kind == low.COPY:
        size, space, copied = row[low.COUNT], low.GLOBAL, 0
        for lane in range(32):
            # Lanes that copy no bytes only write zeros to shared memory.
            if row[low.B] >= 0 and registers[row[low.B], lane] == 0:
                addresses[lane] = -1
            copied += addresses[lane] >= 0
        if copied == 0:
            return
    if space == low.GENERIC:
        space, window = low.GLOBAL, 0
        for lane in range(32):
            if addresses[lane] >= low.LOCAL_WINDOW:
                space, window = low.LOCAL, low.LOCAL_WINDOW
            elif addresses[lane] >= low.SHARED_WINDOW:
                space, window = low.SHARED, low.SHARED_WINDOW
        for lane in range(32):
            addresses[lane] -= window if addresses[lane] >= 0 else 0
    elif space == low.SHARED or space == low.LOCAL:
        for lane in range(32):
            addresses[lane] &= 0xFFFFFFFF if addresses[lane] >= 0 else -1
    if space == low.SHARED:
        passes = _passes(addresses, size, seen, counts)
        trace[element] = -(max(passes, _most_alike(addresses)) if kind == low.ATOMIC else passes)
        return
    if space == low.CONSTANT:
        trace[element] = -_distinct(addresses)
        return
    for lane in range(32):
        if addresses[lane] < 0:
            continue
        if space == low.LOCAL:
            # Local memory is interleaved: the same word of all lanes is contiguous.
            word = (addresses[lane] >> 2) * 128 + 4 * lane
            number = report[BLOCK] * geometry[WARPS] + warp
            addresses[lane] = (LOCAL_SECTOR << 5) + (number * geometry[LOCAL_BYTES] * 32 + word) % (1 << 33)
        else:
            addresses[lane] -= low.GLOBAL_BASE
    end = marks[END]
    words = max(size >> 2, 1) if space == low.LOCAL else 1
    n = 0
    if words > 1:
        for lane in range(32):
            if addresses[lane] >= 0:
                for word in range(words):
                    n = _add(trace, end, n, addresses[lane] + 128 * word >> 5)
    else:
        n = _sectors(addresses, size, trace, end)
    trace[end] = n | (_most_alike(addresses) << SAME_ADDRESS if kind == low.ATOMIC else 0)
    trace[element] = end - at
    marks[END] = end + 1 + n


@bare
def _add(trace, at, n, sector):  # type: ignore[no-untyped-def]
    for k in range(n):
        if trace[at + 1 + k] == sector:
            return n
    trace[at + 1 + n] = sector
    return n + 1


@bare
def _distinct(addresses):  # type: ignore[no-untyped-def]
    """Return the number of words that lanes read."""
    n = 0
    for lane in range(32):
        if addresses[lane] < 0:
            continue
        new = True
        for other in range(lane):
            new = new and addresses[other] >> 2 != addresses[lane] >> 2
        n += new
    return n


@bare
def _matrix_passes(row, addresses, rows, seen, counts):  # type: ignore[no-untyped-def]
    """Return the passes of ``ldmatrix``: eight rows of 16 bytes for each matrix."""
    total = 0
    for matrix in range(row[low.COUNT]):
        for lane in range(32):
            rows[lane] = addresses[8 * matrix + lane] & 0xFFFFFFFF if lane < 8 else -1
        total += _passes(rows, np.int64(16), seen, counts)
    return total


@bare
def record_fragment(row, lists, registers, mask, warp, recording):  # type: ignore[no-untyped-def]
    """Write where ``wmma.load`` or ``wmma.store`` goes: each lane accesses the elements of a run at once."""
    trace, marks, _, scratch = recording
    at, end = marks[LAST + warp], marks[END]
    addresses, seen, counts = scratch[0], scratch[1], scratch[2]
    size, run, space, n, passes = row[low.BITS] >> 3, row[low.TO], row[low.SPACE], 0, 0
    for first in range(0, row[low.COUNT] * max(32 // row[low.BITS], 1), run):
        for lane in range(32):
            addresses[lane] = -1
            if mask >> lane & 1:
                position, leading = lists[row[low.E] + 32 * first + lane], np.int64(registers[row[low.B], lane])
                line, column = position >> 8, position & 255
                element = column * leading + line if row[low.HOW] else line * leading + column
                addresses[lane] = np.int64(registers[row[low.A], lane]) + row[low.OFFSET] + size * element
                if space == low.GENERIC:
                    space = low.SHARED if low.SHARED_WINDOW <= addresses[lane] < low.LOCAL_WINDOW else low.GLOBAL
                addresses[lane] = (
                    addresses[lane] & 0xFFFFFFFF if space == low.SHARED else addresses[lane] - low.GLOBAL_BASE
                )
        if space == low.SHARED:
            passes += _passes(addresses, size * run, seen, counts)
            continue
        for lane in range(32):
            if addresses[lane] >= 0:
                for sector in range(addresses[lane] >> 5, (addresses[lane] + size * run - 1 >> 5) + 1):
                    n = _add(trace, end, n, sector)
    if space == low.SHARED:
        trace[at + ACCESSES + row[low.SLOT]] = -passes
        return
    trace[end], trace[at + ACCESSES + row[low.SLOT]], marks[END] = n, end - at, end + 1 + n


@bare
def record_texture(row, registers, mask, warp, launch, recording):  # type: ignore[no-untyped-def]
    """Write which sectors ``tex`` reads."""
    textures, tile = launch.allocations[3], launch.tiles[0]
    trace, marks = recording[0], recording[1]
    at, end, n = marks[LAST + warp], marks[END], np.int64(0)
    for lane in range(32):
        if mask >> lane & 1:
            for tap in range(texels_of(row, registers, lane, textures, tile)):
                if tile[ADDRESSES, tap] >= 0:
                    n = _add(trace, end, n, np.int64(tile[ADDRESSES, tap]) >> 5)
    trace[end], trace[at + ACCESSES + row[low.SLOT]], marks[END] = n, end - at, end + 1 + n
