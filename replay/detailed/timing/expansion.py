"""The compute units of a device, and the operations of each unit that an instruction of PTX needs.

`core_of` makes `ComputeUnits` from a device of the catalogue and from `datasets/cores.toml`, which holds what the
catalogue lacks: issue, latencies and limits of residence. `expansion_of` expands an instruction, and `ordered` orders
the operations of a basic block: the longest chain of dependent operations first.
Counts of longer sequences are rounded from what the assembler of CUDA 12 emits for sm_70.
"""

from dataclasses import dataclass, field
from functools import cache

import msgspec

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import shipped_table
from profilers.trace.arrays import Ints
from replay.detailed import lanes
from replay.detailed import program as low


class Unit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An execution unit of a scheduler.

    Parameters
    ----------
    interval : int
        Cycles in which it takes the instruction of a warp.
    latency : int
        Cycles until the result can be used.
    """

    interval: int
    latency: int


class CoreFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `datasets/cores.toml`, whose head explains its keys."""

    schedulers: int
    fp32: Unit
    integer: Unit
    fp64: Unit
    special: Unit
    memory: Unit
    tensor_fma: int
    tensor_latency: int
    shared_latency: int
    constant_latency: int
    branch: int
    barrier: int
    shared_kb: list[int]
    start: int
    source: str
    certainty: str


class _CoresFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    architectures: dict[str, CoreFigures]


@dataclass(frozen=True)
class ComputeUnits:
    """The compute units of a device; times are cycles of their clock.

    Parameters
    ----------
    units : int
        Compute units of the device.
    clock_hz : float
        Their clock.
    threads, registers, blocks, shared_bytes : int
        Most threads, 32-bit registers, blocks and bytes of shared memory at a time.
    figures : object
        Row of `datasets/cores.toml`.
    """

    units: int
    clock_hz: float
    threads: int
    registers: int
    blocks: int
    shared_bytes: int
    figures: CoreFigures

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return how many blocks a compute unit holds at a time.

        Registers are given to warps in units of 256, shared memory in units of 256 bytes (CUDA occupancy calculator).

        Parameters
        ----------
        threads : int
            Threads of a block.
        registers : int
            Registers of a thread.
        shared_bytes : int
            Shared memory of a block.

        Raises
        ------
        InvalidInputError
            Not one block fits.
        """
        warps = -(-threads // 32)
        of_warp = -(-max(registers, 16) * 32 // 256) * 256
        shared = -(-shared_bytes // 256) * 256
        limits = {
            "threads": self.threads // (32 * warps),
            "registers": self.registers // of_warp // warps,
            "shared memory": self.shared_bytes // shared if shared else self.blocks,
        }
        least = min(limits, key=lambda name: limits[name])
        if limits[least] < 1:
            raise InvalidInputError(
                f"a block of {threads} threads, {registers} registers a thread and {shared_bytes} bytes of shared "
                f"memory does not fit a compute unit: too much of {least}"
            )
        return min(self.blocks, *limits.values())

    def cache_bytes(self, l1_bytes: int, shared_bytes: int) -> int:
        """Return the bytes of L1 cache beside the shared memory that blocks take.

        The split is the smallest that holds the shared memory (CUDA C Programming Guide, unified data cache).
        """
        splits = sorted(self.figures.shared_kb)
        if len(splits) == 1:
            return l1_bytes
        taken = next((kb for kb in splits if kb * 1024 >= shared_bytes), splits[-1])
        return max(l1_bytes - taken * 1024, l1_bytes // 8)


@cache
def _shipped() -> _CoresFile:
    return shipped_table("cores.toml", "compute units", _CoresFile)


def core_of(device: Device, clock_hz: float | None = None) -> ComputeUnits:
    """Return the compute units of a device.

    Parameters
    ----------
    device : Device
        Device of the catalogue.
    clock_hz : float, optional
        Clock; by default that of the catalogue.

    Raises
    ------
    NotFoundError
        The compute units of its architecture are not known: PTX runs on devices of NVIDIA.
    """
    tables = _shipped().architectures
    if device.architecture not in tables:
        raise NotFoundError(
            f"no compute units of {device.name} ({device.architecture}) that run PTX; there are those of "
            f"{', '.join(tables)}"
        )
    return ComputeUnits(
        units=device.compute_units,
        clock_hz=clock_hz or device.value("clock_mhz") * 1e6,
        threads=int(device.value("unit_threads")),
        registers=int(device.value("unit_registers")),
        blocks=int(device.value("unit_workgroups")),
        shared_bytes=int(device.value("lds_kb") * 1024),
        figures=tables[device.architecture],
    )


#: Units of a scheduler. MEMORY leads to the pipeline of shared memory and L1 that the compute unit has once.
NO_UNIT, FP32, INTEGER, FP64, SPECIAL, MEMORY, TENSOR, CONTROL = range(8)
#: What an operation does beside arithmetic.
(
    PLAIN, GLOBAL_LOAD, GLOBAL_STORE, SHARED_LOAD, SHARED_STORE, CONSTANT_LOAD, ATOMIC, COPY, BARRIER, EXIT, BRANCH,
) = range(11)  # fmt: skip


@dataclass(frozen=True)
class Expansion:
    """Operations of an instruction.

    Parameters
    ----------
    unit : int
        Unit.
    issues : int
        Cycles in which the scheduler issues it.
    interval : int
        Cycles in which the unit is taken.
    latency : int
        Cycles to the result.
    role : int
        What it does beside arithmetic.
    """

    unit: int
    issues: int
    interval: int
    latency: int
    role: int = PLAIN


#: Instructions of FP32 by name: operations of the FP32 unit and of the special unit.
_SINGLE = {
    ("div", "rn"): (9, 1), ("div", "full"): (5, 1), ("div", "approx"): (3, 1), ("rcp", "rn"): (6, 1),
    ("rcp", "approx"): (1, 1), ("sqrt", "rn"): (8, 1), ("sqrt", "approx"): (1, 1), ("rsqrt", "approx"): (1, 1),
    ("sin", "approx"): (1, 1), ("cos", "approx"): (1, 1), ("ex2", "approx"): (1, 1), ("lg2", "approx"): (1, 1),
    ("tanh", "approx"): (0, 1),
}  # fmt: skip
#: The same for FP64.
_DOUBLE = {"div": (14, 1), "rcp": (8, 1), "sqrt": (14, 1), "rsqrt": (10, 1)}
#: Integer divisions by bits: operations of the integer unit and of the special unit.
_DIVISION = {16: (12, 3), 32: (14, 3), 64: (70, 4)}


def expansion_of(code: Ints, opcode: str, core: CoreFigures) -> Expansion:
    """Return the operations of an instruction.

    Parameters
    ----------
    code : array of int64
        Row of `Program.code`.
    opcode : str
        Opcode in PTX.
    core : object
        Figures of the compute unit.
    """
    kind = int(code[low.KIND])
    if kind in (low.F32, low.HALF):
        return _floating(code, opcode, core)
    if kind in (low.F64, low.SETP_F64):
        extra, special = _DOUBLE.get(opcode.split(".")[0], (1, 0))
        return _chain(FP64, core.fp64, extra, special, core)
    if kind == low.INT:
        return _integer(code, opcode, core)
    if kind in (low.SETP_INT, low.SETP_F32, low.SETP_HALF, low.SELECT, low.VOTE, low.MASK):
        return _times(INTEGER, core.integer, 2 if code[low.BITS] == 64 or opcode.endswith("64") else 1)
    if kind == low.CARRY:
        return _times(INTEGER, core.integer, int(code[low.BITS]) // 32 + (code[low.OP] > lanes.SUB))
    if kind == low.REDUCED:
        return _times(INTEGER, core.integer, 1)
    if kind in (low.TRAP, low.NOTHING):
        return Expansion(CONTROL, 1, 1, 1)
    if kind == low.CONVERT:
        return _conversion(code, opcode, core)
    if kind in (low.PACK, low.UNPACK):
        wide = code[low.BITS] >= 32
        return Expansion(NO_UNIT, 0, 0, 0) if wide else _times(INTEGER, core.integer, int(code[low.COUNT]) - 1)
    if kind in (low.PRODUCT, low.GROUP_PRODUCT):
        return _tensor(int(code[low.COUNT]), opcode, core)
    return _access(code, kind, core)


def _access(code: Ints, kind: int, core: CoreFigures) -> Expansion:
    interval, space = core.memory.interval, int(code[low.SPACE])
    if kind == low.SHUFFLE:
        return Expansion(MEMORY, 1, interval, core.memory.latency)
    if kind == low.BARRIER:
        return Expansion(CONTROL, 1, 1, core.barrier, BARRIER)
    if kind == low.EXIT:
        return Expansion(CONTROL, 1, 1, 1, EXIT)
    if kind == low.BRANCH:
        return Expansion(CONTROL, 1, 2, core.branch, BRANCH)
    if kind == low.TEXTURE:
        # A compute unit has four texture units, one beside each scheduler; each fetches a texel a cycle.
        return Expansion(MEMORY, 1, 32, core.shared_latency, GLOBAL_LOAD)
    if kind in (low.FRAGMENT_LOAD, low.FRAGMENT_STORE):
        count = int(code[low.COUNT]) * max(32 // int(code[low.BITS]), 1) // int(code[low.TO])
        is_store, is_shared = kind == low.FRAGMENT_STORE, space != low.GLOBAL
        roles = ((GLOBAL_LOAD, SHARED_LOAD), (GLOBAL_STORE, SHARED_STORE))
        return Expansion(MEMORY, count, interval * count, core.shared_latency, roles[is_store][is_shared])
    if kind in (low.LDMATRIX, low.STMATRIX):
        role = SHARED_LOAD if kind == low.LDMATRIX else SHARED_STORE
        return Expansion(MEMORY, 1, interval, core.shared_latency, role)
    if kind == low.COPY:
        return Expansion(MEMORY, 1, interval, 1, COPY)
    if kind == low.ATOMIC:
        return Expansion(MEMORY, 1, interval, core.shared_latency, ATOMIC)
    is_store = kind == low.STORE
    if space == low.SHARED:
        return Expansion(MEMORY, 1, interval, core.shared_latency, SHARED_STORE if is_store else SHARED_LOAD)
    if space in (low.CONSTANT, low.PARAMETER):
        return Expansion(MEMORY, 1, interval, core.constant_latency, CONSTANT_LOAD)
    return Expansion(MEMORY, 1, interval, core.shared_latency, GLOBAL_STORE if is_store else GLOBAL_LOAD)


def _times(unit: int, figures: Unit, count: int) -> Expansion:
    """Return a chain of operations of a unit; each operation needs the one before."""
    count = max(count, 1)
    return Expansion(unit, count, figures.interval * count, figures.latency * count)


def _chain(unit: int, figures: Unit, count: int, special: int, core: CoreFigures) -> Expansion:
    """Return a chain that visits the special unit, too."""
    latency = count * figures.latency + special * core.special.latency
    interval = max(count * figures.interval, special * core.special.interval)
    if count == 0:
        return Expansion(SPECIAL, special, special * core.special.interval, latency)
    if special and special * core.special.interval >= count * figures.interval:
        return Expansion(SPECIAL, count + special, interval, latency)
    return Expansion(unit, count + special, interval, latency)


def _floating(code: Ints, opcode: str, core: CoreFigures) -> Expansion:
    parts = opcode.split(".")
    how = next((p for p in parts[1:] if p in ("approx", "full")), "rn")
    if code[low.KIND] == low.F32 and (parts[0], how) in _SINGLE:
        count, special = _SINGLE[parts[0], how]
        count -= int("ftz" in parts and count == 1)
        return _chain(FP32, core.fp32, count, special, core)
    if parts[0] in ("ex2", "tanh", "rcp", "rsqrt", "sqrt"):
        return _chain(FP32, core.fp32, 1, int(code[low.COUNT]), core)
    if parts[0] in ("min", "max", "abs", "neg", "copysign"):
        return _times(INTEGER, core.integer, 1)
    return _times(FP32, core.fp32, 1)


def _integer(code: Ints, opcode: str, core: CoreFigures) -> Expansion:
    parts = opcode.split(".")
    name, bits = parts[0], int(code[low.BITS])
    wide = bits == 64
    if name in ("div", "rem"):
        count, special = _DIVISION[64 if wide else 32 if bits == 32 else 16]
        return _chain(INTEGER, core.integer, count + 2 * (name == "rem"), special, core)
    if name in ("popc", "clz", "bfind", "brev"):
        return Expansion(SPECIAL, 1 + wide, core.special.interval * (1 + wide), core.special.latency)
    if name in ("mul", "mad"):
        # Multiply-adds of integers run in the FP32 unit since Volta; the wide ones take it twice as long.
        if wide:
            return _times(FP32, core.fp32, 4)
        twice = 2 if {"wide", "hi"} & set(parts) and bits == 32 else 1
        return Expansion(FP32, 1, 2 * twice, core.fp32.latency + twice - 1)
    count = {"bfe": 2, "bfi": 3, "abs": 1, "sad": 2}.get(name, 1)
    return _times(INTEGER, core.integer, count * (2 if wide else 1))


def _conversion(code: Ints, opcode: str, core: CoreFigures) -> Expansion:
    source, target = int(code[low.FROM]), int(code[low.TO])
    if source == low.WHOLE and target == low.WHOLE:
        narrowing = code[low.COUNT] <= code[low.BITS] and code[low.COUNT] >= 32
        return Expansion(NO_UNIT, 0, 0, 0) if narrowing else _times(INTEGER, core.integer, 1)
    if source in (low.FP16, low.BF16) and target == low.FP32:
        return _times(FP32, core.fp32, 1)
    return Expansion(SPECIAL, 1, core.special.interval, core.special.latency)


def _tensor(products: int, opcode: str, core: CoreFigures) -> Expansion:
    """Return a matrix product of so many multiply-adds; without tensor cores, FP32 units do it.

    TF32 has half the rate of FP16, integers and FP8 twice, and FP64 a sixteenth (data sheets of A100 and H100).
    """
    parts = set(opcode.split("."))
    products = products * 16 if "f64" in parts else 2 * products if "tf32" in parts else products
    if parts & {"s8", "u8", "e4m3", "e5m2"}:
        products //= 2
    if not core.tensor_fma:
        return _times(FP32, core.fp32, products // 32)
    taken = max(1, products // core.tensor_fma)
    return Expansion(TENSOR, 1, taken, taken + core.tensor_latency)


#: Operations that are considered at a time, so that values do not live too long.
_WINDOW = 48
#: Cycles that the order expects of a load.
_EXPECTED = {low.GLOBAL: 200, low.SHARED: 25, low.LOCAL: 60, low.CONSTANT: 30}


@dataclass
class Operation:
    """An operation of a basic block."""

    unit: int
    role: int = PLAIN
    issues: int = 1
    interval: int = 1
    latency: int = 1
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    width: int = 4
    line: int = 0
    row: int = -1
    spaces: frozenset[int] = field(default_factory=frozenset)

    @property
    def stores(self) -> bool:
        """Whether it changes memory, or waits for others that do."""
        return self.role in (GLOBAL_STORE, SHARED_STORE, ATOMIC, COPY, BARRIER)

    @property
    def ends_block(self) -> bool:
        """Whether nothing of its basic block may follow it."""
        return self.role in (BRANCH, EXIT)


def ordered(operations: list[Operation]) -> list[Operation]:
    """Return the operations of a basic block in the order of a list scheduler.

    An operation is free when all operations whose results it needs, and all accesses to memory that it must not pass,
    stand before it. Of the free operations in a window, the one with the longest chain behind it comes first (Gibbons
    and Muchnick, 1986).

    Parameters
    ----------
    operations : list of Operation
        Operations of a basic block in the order of PTX.
    """
    before = _dependences(operations)
    n = len(operations)
    behind: list[list[int]] = [[] for _ in range(n)]
    for number, earlier in enumerate(before):
        for other in earlier:
            behind[other].append(number)
    height = [0] * n
    for number in range(n - 1, -1, -1):
        longest = max((height[other] for other in behind[number]), default=0)
        height[number] = longest + _latency(operations[number])
    left = [len(earlier) for earlier in before]
    done = [False] * n
    order: list[int] = []
    oldest = 0
    while oldest < n:
        best = -1
        for number in range(oldest, min(oldest + _WINDOW, n)):
            if not done[number] and left[number] == 0 and (best < 0 or height[number] > height[best]):
                best = number
        done[best] = True
        order.append(best)
        for other in behind[best]:
            left[other] -= 1
        while oldest < n and done[oldest]:
            oldest += 1
    return [operations[number] for number in order]


def _latency(operation: Operation) -> int:
    if operation.targets and operation.slots:
        return max((_EXPECTED.get(space, 30) for space in operation.spaces), default=30)
    return max(operation.latency, 1)


def _dependences(operations: list[Operation]) -> list[set[int]]:
    """Return for each operation the operations that must stand before it."""
    before: list[set[int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    last_store: dict[int, int] = {}
    loads: dict[int, list[int]] = {}
    for number, operation in enumerate(operations):
        needs: set[int] = set()
        for source in operation.sources:
            if source in writer:
                needs.add(writer[source])
        for target in operation.targets:
            if target in writer:
                needs.add(writer[target])
            needs.update(readers.get(target, ()))
        writes = operation.stores
        for space in operation.spaces:
            if space in last_store:
                needs.add(last_store[space])
            if writes:
                needs.update(loads.get(space, ()))
        if operation.ends_block:
            needs.update(range(number))
        for space in operation.spaces:
            if writes:
                last_store[space], loads[space] = number, []
            else:
                loads.setdefault(space, []).append(number)
        for source in operation.sources:
            readers.setdefault(source, []).append(number)
        for target in operation.targets:
            writer[target], readers[target] = number, []
        needs.discard(number)
        before.append(needs)
    return before
