"""Execute the instructions of a warp that access memory, compiled: loads, stores, atomics, asynchronous copies.

Every access is checked: bounds of buffers, alignment, and races between the warps of a block in shared memory.
"""

from typing import Any, NamedTuple

import numpy as np

from profilers.trace.compiled import bare, inlined
from replay.detailed import program as low
from replay.detailed.lanes import (
    ADD,
    AND,
    F_ADD,
    MAX,
    MIN,
    OR,
    XOR,
    half_operation,
    integer,
    signed,
)

#: Elements of the geometry of a launch. TRUE_LANES counts for ``bar.red``, by the parity of the epoch. A warp may
#: execute LIMIT instructions; STOP_AT is the same counted as EXECUTED is, which counts those of all warps.
(
    GRID_X, GRID_Y, GRID_Z, BLOCK_X, BLOCK_Y, BLOCK_Z, SHARED_AT, SHARED_BYTES, LOCAL_AT, LOCAL_BYTES, WARPS, LIMIT,
    EPOCH, EXECUTED, TRUE_LANES, _, STOP_AT, MAY_RACE,
) = range(18)  # fmt: skip
#: Problems that end a run.
NO_PROBLEM, OUT_OF_BOUNDS, MISALIGNED, RACE, ENDLESS, NESTED, NO_TEXTURE, TRAPPED, OTHER_BARRIER = range(9)
#: Elements of the report of a problem.
PROBLEM, AT, BLOCK, THREAD, ADDRESS = range(5)


class LaunchState(NamedTuple):
    """What all warps of a block share, for compiled code."""

    memory: Any  #: memory as bytes and as words of 2, 4 and 8 bytes
    geometry: Any  #: (18,): shape of the launch, and where its blocks' memory lies
    allocations: Any  #: first byte and end of each allocation, the allocation of each 256 bytes, and the textures
    shadow: Any  #: (2, shared bytes): last writer and reader of each byte of shared memory
    tiles: Any  #: (3, 256, 32): room for matrix products
    report: Any  #: (8,): what went wrong


@inlined
def fails(launch, problem, thread, address):  # type: ignore[no-untyped-def]
    """Report a problem that ends the run; return False."""
    launch.report[PROBLEM], launch.report[THREAD], launch.report[ADDRESS] = problem, thread, address
    return False


@inlined
def _byte_at(launch, space, address, size, thread):  # type: ignore[no-untyped-def]
    """Return the byte of memory at an address, or minus the problem."""
    geometry, allocations = launch.geometry, launch.allocations
    starts, ends, owner = allocations[0], allocations[1], allocations[2]
    if space == low.GENERIC:
        space = low.GLOBAL
        if address >= low.LOCAL_WINDOW:
            space, address = low.LOCAL, address - low.LOCAL_WINDOW
        elif address >= low.SHARED_WINDOW:
            space, address = low.SHARED, address - low.SHARED_WINDOW
    if address & (size - 1):
        return -MISALIGNED
    if space == low.SHARED:
        if address < 0 or address + size > geometry[SHARED_BYTES]:
            return -OUT_OF_BOUNDS
        return geometry[SHARED_AT] + address
    if space == low.LOCAL:
        if address < 0 or address + size > geometry[LOCAL_BYTES]:
            return -OUT_OF_BOUNDS
        return geometry[LOCAL_AT] + thread * geometry[LOCAL_BYTES] + address
    at = address - low.GLOBAL_BASE
    if at < 0 or at >= len(owner) * 256 or at >= len(launch.memory[0]):
        return -OUT_OF_BOUNDS
    number = owner[at >> 8]
    if number < 0 or at < starts[number] or at + size > ends[number]:
        return -OUT_OF_BOUNDS
    return at


@inlined
def read(memory, at, size):  # type: ignore[no-untyped-def]
    """Return the bits of 1, 2, 4 or 8 bytes of memory."""
    if size == 4:
        return np.uint64(memory[2][at >> 2])
    if size == 8:
        return memory[3][at >> 3]
    if size == 2:
        return np.uint64(memory[1][at >> 1])
    return np.uint64(memory[0][at])


@inlined
def _write(memory, at, size, value):  # type: ignore[no-untyped-def]
    if size == 4:
        memory[2][at >> 2] = np.uint32(value & np.uint64(0xFFFFFFFF))
    elif size == 8:
        memory[3][at >> 3] = value
    elif size == 2:
        memory[1][at >> 1] = np.uint16(value & np.uint64(0xFFFF))
    else:
        memory[0][at] = np.uint8(value & np.uint64(0xFF))


@inlined
def _races(launch, at, size, warp, is_write, changes):  # type: ignore[no-untyped-def]
    """Return whether bytes of shared memory are used by two warps between barriers, one of them changing them."""
    geometry, shadow = launch.geometry, launch.shadow
    first = at - geometry[SHARED_AT]
    if geometry[MAY_RACE] != 0 or first < 0 or first >= geometry[SHARED_BYTES]:
        return False
    mine, epoch = geometry[EPOCH] << 8 | warp, geometry[EPOCH]
    for byte in range(first, first + size):
        writer, reader = shadow[0, byte], shadow[1, byte]
        if changes and writer >> 8 == epoch and writer != mine:
            return True
        if is_write:
            if changes and reader >> 8 == epoch and reader != mine:
                return True
            if writer >> 8 != epoch:
                shadow[0, byte] = mine
        else:
            shadow[1, byte] = mine if reader >> 8 != epoch or reader == mine else epoch << 8 | 255
    return False


@inlined
def _holds_same(row, lists, registers, lane, launch, at):  # type: ignore[no-untyped-def]
    """Return whether memory already holds what a store writes; warps of Triton store the same values."""
    size = row[low.BITS] >> 3
    cut = ~np.uint64(0) >> np.uint64(64 - row[low.BITS])
    for element in range(row[low.COUNT]):
        if read(launch.memory, at + element * size, size) != registers[lists[row[low.VECTOR] + element], lane] & cut:
            return False
    return True


@bare
def access(row, lists, registers, mask, warp, launch):  # type: ignore[no-untyped-def]
    """Execute a load or a store; return whether it ended without a problem."""
    size, count, space = row[low.BITS] >> 3, row[low.COUNT], row[low.SPACE]
    is_store, first = row[low.KIND] == low.STORE, row[low.VECTOR]
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        thread = warp * 32 + lane
        address = np.int64(registers[row[low.A], lane]) + row[low.OFFSET]
        if space == low.SHARED or space == low.LOCAL:
            address &= 0xFFFFFFFF
        at = _byte_at(launch, space, address, size * count, thread)
        if at < 0:
            return fails(launch, -at, thread, address)
        if space == low.SHARED:
            changes = not (is_store and _holds_same(row, lists, registers, lane, launch, at))
            if _races(launch, at, size * count, warp, is_store, changes):
                return fails(launch, RACE, thread, address)
        for element in range(count):
            register, here = lists[first + element], at + element * size
            if is_store:
                _write(launch.memory, here, size, registers[register, lane])
            else:
                value = read(launch.memory, here, size)
                if row[low.SIGNED] and size < 8:
                    value = np.uint64(signed(value, size * 8))
                    if row[low.TO] == 32 or (row[low.TO] < 0 and size == 4):
                        value &= np.uint64(0xFFFFFFFF)
                registers[register, lane] = value
    return True


@bare
def access_fragment(row, lists, registers, mask, warp, launch):  # type: ignore[no-untyped-def]
    """Execute ``wmma.load`` or ``wmma.store``; return whether it ended without a problem."""
    size, space, is_store = row[low.BITS] >> 3, row[low.SPACE], row[low.KIND] == low.FRAGMENT_STORE
    parts, run, column_step = max(32 // row[low.BITS], 1), row[low.TO], row[low.HOW] != 0
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        thread, base = warp * 32 + lane, np.int64(registers[row[low.A], lane]) + row[low.OFFSET]
        leading = np.int64(registers[row[low.B], lane])
        for first in range(0, row[low.COUNT] * parts, run):
            position = lists[row[low.E] + 32 * first + lane]
            line, column = position >> 8, position & 255
            address = base + size * (column * leading + line if column_step else line * leading + column)
            if space == low.SHARED:
                address &= 0xFFFFFFFF
            at = _byte_at(launch, space, address, size, thread)
            end = _byte_at(launch, space, address + size * (run - 1), size, thread)
            if at < 0 or end < 0:
                return fails(launch, -at if at < 0 else -end, thread, address)
            if space == low.SHARED and _races(launch, at, size * run, warp, is_store, np.bool_(True)):
                return fails(launch, RACE, thread, address)
            for element in range(run):
                number, here = first + element, at + size * element
                register, part = lists[row[low.VECTOR] + number // parts], number % parts
                shift = np.uint64(row[low.BITS] * part)
                if is_store:
                    _write(launch.memory, here, size, registers[register, lane] >> shift)
                elif part > 0:
                    registers[register, lane] |= read(launch.memory, here, size) << shift
                else:
                    registers[register, lane] = read(launch.memory, here, size)
    return True


@bare
def atomic(row, registers, mask, warp, launch):  # type: ignore[no-untyped-def]
    """Execute an atomic operation, lane after lane; return whether it ended without a problem."""
    size, op = row[low.BITS] >> 3, row[low.OP]
    cut = ~np.uint64(0) if size == 8 else np.uint64(0xFFFFFFFF)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        address, thread = np.int64(registers[row[low.A], lane]) + row[low.OFFSET], warp * 32 + lane
        if row[low.SPACE] == low.SHARED:
            address &= 0xFFFFFFFF
        at = _byte_at(launch, row[low.SPACE], address, size, thread)
        if at < 0:
            return fails(launch, -at, thread, address)
        old, value = read(launch.memory, at, size), registers[row[low.B], lane]
        if row[low.FROM] == low.FP32:
            total = np.uint32(old).view(np.float32) + np.uint32(value).view(np.float32)
            new = np.uint64(np.float32(total).view(np.uint32))
        elif row[low.FROM] == low.FP16 or row[low.FROM] == low.BF16:
            new = np.uint64(0)
            for part in range(size >> 1):
                shift, sixteen = np.uint64(16 * part), np.uint64(0xFFFF)
                x, y = (old >> shift) & sixteen, (value >> shift) & sixteen
                new |= half_operation(np.int64(F_ADD), x, y, x, np.int64(row[low.FROM] == low.BF16)) << shift
        elif row[low.FROM] == low.FP64:
            new = np.float64(np.uint64(old).view(np.float64) + np.uint64(value).view(np.float64)).view(np.uint64)
        elif op == low.EXCHANGE:
            new = value
        elif op == low.COMPARE:
            new = registers[row[low.C], lane] if old == value else old
        elif op == low.INCREMENT:
            new = np.uint64(0) if old >= value else old + np.uint64(1)
        elif op == ADD or op == MIN or op == MAX or op == AND or op == OR or op == XOR:
            new = integer(op, old, value, value, value, row[low.BITS], row[low.SIGNED]) & cut
        else:
            new = value if old == 0 or old > value else old - np.uint64(1)
        _write(launch.memory, at, size, new)
        if row[low.D] >= 0:
            registers[row[low.D], lane] = old
    return True


@bare
def copy(row, registers, mask, warp, launch):  # type: ignore[no-untyped-def]
    """Execute ``cp.async``: the copy is complete at once."""
    # Typed, as all numbers that functions are called with: a literal would have numba compile the function once more.
    word, writes = np.int64(4), np.bool_(True)
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        target = (np.int64(registers[row[low.D], lane]) + row[low.E]) & 0xFFFFFFFF
        source, thread = np.int64(registers[row[low.A], lane]) + row[low.OFFSET], warp * 32 + lane
        given = np.int64(registers[row[low.B], lane]) if row[low.B] >= 0 else row[low.COUNT]
        for byte in range(0, row[low.COUNT], 4):
            to = _byte_at(launch, low.SHARED, target + byte, word, thread)
            value, at = np.uint64(0), np.int64(0)
            if byte < given:
                at = _byte_at(launch, low.GLOBAL, source + byte, word, thread)
            if to < 0 or at < 0:
                wrong, address = (-to, target) if to < 0 else (-at, source)
                return fails(launch, wrong, thread, address + byte)
            if byte < given:
                value = read(launch.memory, at, word)
            if _races(launch, to, word, warp, writes, writes):
                return fails(launch, RACE, thread, target + byte)
            _write(launch.memory, to, word, value)
    return True


@bare
def move_matrices(row, lists, registers, warp, launch):  # type: ignore[no-untyped-def]
    """Execute ``ldmatrix`` or ``stmatrix``: lanes 8m to 8m + 7 give the rows of matrix m (PTX ISA, matrix load)."""
    count, first, size = row[low.COUNT], row[low.VECTOR], np.int64(2)
    for matrix in range(count):
        for lane in range(32):
            value = np.uint64(0)
            for part in range(2):
                line, column = lane >> 2, 2 * (lane & 3) + part
                if row[low.OP]:
                    line, column = column, line
                source = matrix * 8 + line
                address = (np.int64(registers[row[low.A], source]) + row[low.OFFSET] + 2 * column) & 0xFFFFFFFF
                at = _byte_at(launch, low.SHARED, address, size, warp * 32 + source)
                if at < 0:
                    return fails(launch, -at, warp * 32 + source, address)
                if row[low.KIND] == low.STMATRIX:
                    _write(launch.memory, at, size, registers[lists[first + matrix], lane] >> np.uint64(16 * part))
                else:
                    value |= read(launch.memory, at, size) << np.uint64(16 * part)
            registers[lists[first + matrix], 32 + lane] = value
    for matrix in range(count if row[low.KIND] == low.LDMATRIX else 0):
        for lane in range(32):
            registers[lists[first + matrix], lane] = registers[lists[first + matrix], 32 + lane]
    return True
