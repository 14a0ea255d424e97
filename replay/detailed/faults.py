"""Say in a line why a kernel was stopped: what it accessed, where, and by which thread."""

from typing import TYPE_CHECKING

from profilers.trace.arrays import Ints
from replay.detailed import memory as at
from replay.detailed import program as low
from replay.detailed.program import Program

if TYPE_CHECKING:
    from replay.detailed.launch import DeviceMemory, KernelCall


def fault_of(
    program: Program, call: "KernelCall", memory: "DeviceMemory", report: Ints, limit: int
) -> str:  # fmt: skip
    """Return what went wrong, with kernel, block, thread and line.

    Parameters
    ----------
    program, call, memory : Program, KernelCall, DeviceMemory
        Launch.
    report : array of int64
        What `run_blocks` reported.
    limit : int
        Most instructions of a warp.
    """
    line = int(program.code[report[at.AT], -1])
    x, y, _ = call.grid
    number = int(report[at.BLOCK])
    block = (number % x, number // x % y, number // (x * y))
    bx, by, _ = call.block
    thread = int(report[at.THREAD])
    where = f"{program.module.source}: line {line}: {program.entry.name}, block {block}"
    lane = f", thread {(thread % bx, thread // bx % by, thread // (bx * by))}"
    address = f"address {int(report[at.ADDRESS]):#x}"
    outside = _outside(program, call, memory, int(report[at.ADDRESS]), program.code[report[at.AT]])
    texts = {
        at.OUT_OF_BOUNDS: f"{where}{lane}: {outside}",
        at.MISALIGNED: f"{where}{lane}: {address} is not aligned to the access",
        at.RACE: f"{where}{lane}: two warps use the same byte of shared memory without a barrier between, one writes"
        f"{_variable_at(program, int(report[at.ADDRESS]))}; to go on, allow races",
        at.ENDLESS: f"{where}: more than {limit} instructions of a warp: an endless loop, or it waits for a block or "
        "a warp that runs later; or set a higher limit",
        at.NO_TEXTURE: f"{where}{lane}: the first operand is no texture of the launch",
        at.TRAPPED: f"{where}{lane}: the kernel gives up: a failed assertion, or trap",
        at.OTHER_BARRIER: f"{where}{lane}: only barrier 0 is supported",
        at.NESTED: f"{where}: branches are nested too deeply",
    }
    return texts[int(report[at.PROBLEM])]


def _variable_at(program: Program, address: int) -> str:
    """Return which variable of shared memory lies at an address, as words to add."""
    offset = address & 0xFFFFFFFF
    before = [(begin, name) for name, begin in program.shared_offsets.items() if begin <= offset]
    begin, name = max(before, default=(0, ""))
    return f", byte {offset - begin} of {name}" if name else ""


def _outside(program: Program, call: "KernelCall", memory: "DeviceMemory", address: int, row: Ints) -> str:
    """Return where an address lies that nothing lies at."""
    shared = program.shared_bytes + call.shared_bytes
    is_shared = (
        row[low.SPACE] == low.SHARED
        or row[low.KIND] == low.GROUP_PRODUCT
        or low.SHARED_WINDOW <= address < low.LOCAL_WINDOW
    )
    if row[low.KIND] == low.COPY and address < low.GLOBAL_BASE:
        is_shared = True
    if is_shared:
        return (
            f"address {address % low.SHARED_WINDOW:#x} is outside the {shared} bytes of shared memory of a block, "
            f"{call.shared_bytes} of them dynamic"
        )
    offset = address - low.GLOBAL_BASE
    before = [(end, name) for name, (_, end) in memory.extents.items() if end <= offset]
    text = f"address {address:#x} is outside all buffers"
    if not before or offset > memory.end:
        return text
    end, name = max(before)
    return f"{text}, {offset - end} bytes behind the end of {name}"
