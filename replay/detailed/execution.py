"""Execute the blocks of a kernel, compiled: warp by warp, an instruction at a time over its active lanes.

A warp keeps a stack of (position, join, lanes). A branch on which lanes disagree pushes both ways; they meet again at
the immediate post-dominator. Warps of a block take turns at barriers.
"""

import numpy as np

from profilers.trace.compiled import bare, compiled
from replay.detailed import memory as at
from replay.detailed import program as low
from replay.detailed.arguments import fetch
from replay.detailed.exchange import (
    count_true,
    first_lane,
    lane_at_other_barrier,
    multiply_fragments,
    multiply_groups,
    shuffle,
    take_count,
    vote,
)
from replay.detailed.memory import access, access_fragment, atomic, copy, move_matrices
from replay.detailed.tracing import (
    FIRST,
    LAST,
    begin_record,
    grown,
    record_access,
    record_fragment,
    record_texture,
)
from replay.detailed.warp import arithmetic, carry, half, move, set_predicates


@bare
def _guarded(row, registers, mask):  # type: ignore[no-untyped-def]
    """Return the lanes of a mask whose guard lets them execute an instruction."""
    guard = row[low.GUARD]
    if guard < 0:
        return mask
    kept = np.int64(0)
    for lane in range(32):
        if (registers[guard, lane] != 0) != (row[low.NEGATED] != 0):
            kept |= np.int64(1) << lane
    return kept & mask


@bare
def _leave(stack, depth, gone):  # type: ignore[no-untyped-def]
    """Take lanes out of all entries of a stack; return its depth without empty and finished entries."""
    for level in range(depth):
        stack[level, 2] &= ~gone
    while depth > 0 and (stack[depth - 1, 2] == 0 or stack[depth - 1, 0] == stack[depth - 1, 1]):
        depth -= 1
    return depth


@bare
def _branch(stack, depth, row, position, taken):  # type: ignore[no-untyped-def]
    """Let a warp branch; return the new depth of its stack, or -1 if it is full."""
    top = depth - 1
    mask, join = stack[top, 2], row[low.JOIN]
    if taken == mask:
        stack[top, 0] = row[low.TARGET]
    elif taken == 0:
        stack[top, 0] = position + 1
    else:
        if stack[top, 1] == join:
            depth -= 1
        else:
            stack[top, 0] = join
        if depth + 2 > len(stack):
            return -1
        for way in range(2):
            to, lanes = (position + 1, mask & ~taken) if way == 0 else (row[low.TARGET], taken)
            if to != join:
                stack[depth, 0], stack[depth, 1], stack[depth, 2] = to, join, lanes
                depth += 1
    return _leave(stack, depth, np.int64(0))


@bare
def run_warp(program, registers, stack, depth, warp, launch, recording):  # type: ignore[no-untyped-def]
    """Execute a warp until a barrier or its end; return the depth of its stack, 0 at its end.

    It is -1 after a problem, and less than -1 if the trace is full: minus 1, minus the depth.
    """
    (code, lists), geometry, report = program, launch.geometry, launch.report
    tracing = len(recording[0]) > 0
    while depth > 0:
        position = stack[depth - 1, 0]
        row = code[position]
        kind = row[low.KIND]
        if tracing and row[low.LEADER] >= 0 and not begin_record(row, stack[depth - 1, 2], warp, recording):
            return -1 - depth
        geometry[at.EXECUTED] += 1
        report[at.AT] = position
        if geometry[at.EXECUTED] > geometry[at.STOP_AT]:
            report[at.PROBLEM] = at.ENDLESS
            return -1
        mask = _guarded(row, registers, stack[depth - 1, 2])
        if kind == low.BRANCH:
            depth = _branch(stack, depth, row, position, mask)
            if depth < 0:
                report[at.PROBLEM] = at.NESTED
                return -1
            continue
        if kind == low.EXIT:
            stack[depth - 1, 0] = position + 1
            depth = _leave(stack, depth, mask)
            continue
        fine = True
        if mask != 0:
            if tracing and row[low.SLOT] >= 0:
                if kind == low.TEXTURE:
                    record_texture(row, registers, mask, warp, launch, recording)
                elif kind == low.FRAGMENT_LOAD or kind == low.FRAGMENT_STORE:
                    record_fragment(row, lists, registers, mask, warp, recording)
                else:
                    record_access(row, registers, mask, warp, geometry, report, recording)
            if kind <= low.F64:
                arithmetic(row, registers, mask)
            elif kind == low.HALF:
                half(row, registers, mask)
            elif kind <= low.SETP_HALF:
                set_predicates(row, registers, mask)
            elif kind == low.SELECT or kind == low.CONVERT or kind == low.PACK or kind == low.UNPACK:
                move(row, lists, registers, mask)
            elif kind == low.LOAD or kind == low.STORE:
                fine = access(row, lists, registers, mask, warp, launch)
            elif kind == low.SHUFFLE:
                shuffle(row, registers, mask)
            elif kind == low.VOTE:
                vote(row, registers, mask)
            elif kind == low.ATOMIC:
                fine = atomic(row, registers, mask, warp, launch)
            elif kind == low.LDMATRIX or kind == low.STMATRIX:
                fine = move_matrices(row, lists, registers, warp, launch)
            elif kind == low.FRAGMENT_LOAD or kind == low.FRAGMENT_STORE:
                fine = access_fragment(row, lists, registers, mask, warp, launch)
            elif kind == low.PRODUCT:
                multiply_fragments(row, lists, registers, launch.tiles)
            elif kind == low.GROUP_PRODUCT:
                fine = multiply_groups(row, lists, registers, warp, launch)
            elif kind == low.TEXTURE:
                fine = fetch(row, lists, registers, mask, warp, launch)
            elif kind == low.COPY:
                fine = copy(row, registers, mask, warp, launch)
            elif kind == low.CARRY:
                carry(row, registers, mask)
            elif kind == low.REDUCED:
                take_count(row, registers, mask, geometry)
            elif kind == low.BARRIER and row[low.OP] != low.PLAIN_BARRIER:
                count_true(row, registers, mask, geometry)
            elif kind == low.TRAP:
                report[at.PROBLEM], report[at.THREAD] = at.TRAPPED, warp * 32 + first_lane(mask)
                fine = False
            elif kind == low.MASK:
                bits = geometry[at.EXECUTED] if row[low.OP] == low.COUNT_INSTRUCTIONS else mask
                if row[low.BITS] == 32:
                    bits &= 0xFFFFFFFF
                for lane in range(32):
                    registers[row[low.D], lane] = np.uint64(bits)
            if kind == low.BARRIER:
                lane = lane_at_other_barrier(row, registers, mask)
                if lane >= 0:
                    report[at.PROBLEM], report[at.THREAD] = at.OTHER_BARRIER, warp * 32 + lane
                    fine = False
        if not fine:
            return -1
        stack[depth - 1, 0] = position + 1
        depth = _leave(stack, depth, np.int64(0))
        if kind == low.BARRIER and mask != 0:
            return depth
    return 0


@bare
def _begin(constants, special, registers, block, geometry):  # type: ignore[no-untyped-def]
    """Set the registers of a block that hold constants and special registers."""
    bx, by = geometry[at.BLOCK_X], geometry[at.BLOCK_Y]
    x, y = block % geometry[at.GRID_X], block // geometry[at.GRID_X] % geometry[at.GRID_Y]
    for warp in range(len(registers)):
        registers[warp] = np.uint64(0)
        for n in range(len(constants)):
            registers[warp, constants[n, 0], :32] = np.uint64(constants[n, 1])
        for lane in range(32):
            thread = warp * 32 + lane
            for n in range(len(special)):
                which, one = special[n, 1], np.int64(1)
                value = np.int64(0)
                if which == 0:
                    value = thread % bx
                elif which == 1:
                    value = thread // bx % by
                elif which == 2:
                    value = thread // (bx * by)
                elif which == 3:
                    value = x
                elif which == 4:
                    value = y
                elif which == 5:
                    value = block // (geometry[at.GRID_X] * geometry[at.GRID_Y])
                elif which < 9:
                    value = geometry[at.BLOCK_X + which - 6]
                elif which < 12:
                    value = geometry[at.GRID_X + which - 9]
                elif which == 12:
                    value = np.int64(lane)
                elif which == 13:
                    value = np.int64(warp)
                elif which == 14:
                    value = np.int64(len(registers))
                elif which == 16:
                    value = (one << lane) - 1
                elif which == 17:
                    value = (one << (lane + 1)) - 1
                elif which == 18:
                    value = one << lane
                elif which == 19:
                    value = 0xFFFFFFFF & ~((one << lane) - 1)
                elif which == 20:
                    value = 0xFFFFFFFF & ~((one << (lane + 1)) - 1)
                registers[warp, special[n, 0], lane] = np.uint64(value)


@compiled
def run_blocks(program, fixed, registers, stacks, blocks, launch, recording):  # type: ignore[no-untyped-def]
    """Execute blocks, one after the other; return how many ended without a problem, and the trace.

    Parameters
    ----------
    program : (array, array)
        Instructions and lists of registers.
    fixed : (array, array)
        Constants and special registers.
    registers : array of uint64, shape (warps, registers, 64)
        Registers of a block; the upper 32 are room for exchanges between lanes.
    stacks : array of int64, shape (warps, depth, 3)
        Position, join and lanes.
    blocks : array of int64
        Blocks to execute, in order.
    launch : LaunchState
        Memory, geometry, and what went wrong.
    recording : (array of int32, array of int64, array of int64)
        Trace, empty if none is wanted; its marks; and the first record of each warp of each block
        (`replay.detailed.tracing`).
    """
    trace, marks, firsts = recording
    memory, geometry, report = launch.memory, launch.geometry, launch.report
    scratch = np.empty((4, 32), np.int64)
    warps = len(registers)
    threads = geometry[at.BLOCK_X] * geometry[at.BLOCK_Y] * geometry[at.BLOCK_Z]
    depths, spent = np.zeros(warps, np.int64), np.zeros(warps, np.int64)
    for number in range(len(blocks)):
        report[at.BLOCK] = blocks[number]
        _begin(fixed[0], fixed[1], registers, blocks[number], geometry)
        memory[0][geometry[at.SHARED_AT] : geometry[at.SHARED_AT] + geometry[at.SHARED_BYTES]] = 0
        for warp in range(warps):
            lanes = min(threads - 32 * warp, 32)
            stacks[warp, 0, 0], stacks[warp, 0, 1] = 0, -1
            stacks[warp, 0, 2] = (np.int64(1) << lanes) - 1
            depths[warp], spent[warp] = 1, 0
            marks[LAST + warp] = -1
        marks[FIRST] = number * warps
        left = warps
        while left > 0:
            geometry[at.EPOCH] += 1
            geometry[at.TRUE_LANES + (geometry[at.EPOCH] & 1)] = 0
            left = 0
            for warp in range(warps):
                while depths[warp] > 0:
                    before = geometry[at.EXECUTED]
                    geometry[at.STOP_AT] = before + geometry[at.LIMIT] - spent[warp]
                    depths[warp] = run_warp(
                        program, registers[warp], stacks[warp], depths[warp], warp, launch,
                        (trace, marks, firsts, scratch),
                    )  # fmt: skip
                    spent[warp] += geometry[at.EXECUTED] - before
                    if depths[warp] == -1:
                        return number, trace
                    if depths[warp] >= 0:
                        break
                    depths[warp] = -1 - depths[warp]
                    trace = grown(trace, marks)
                left += depths[warp] > 0
    return len(blocks), trace
