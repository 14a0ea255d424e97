"""How many operations of which unit the machine needs for an instruction of PTX.

Counts of longer sequences are those that the assembler of CUDA 12 emits for sm_70, rounded.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.detailed import lanes
from replay.detailed import program as low

if TYPE_CHECKING:
    from profilers.trace.arrays import Ints
    from replay.detailed.timing.cores import CoreFigures, Unit

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


def expansion_of(code: "Ints", opcode: str, core: "CoreFigures") -> Expansion:
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


def _access(code: "Ints", kind: int, core: "CoreFigures") -> Expansion:
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


def _times(unit: int, figures: "Unit", count: int) -> Expansion:
    """Return a chain of operations of a unit, each of which needs the one before."""
    count = max(count, 1)
    return Expansion(unit, count, figures.interval * count, figures.latency + (count - 1) * figures.latency)


def _chain(unit: int, figures: "Unit", count: int, special: int, core: "CoreFigures") -> Expansion:
    """Return a chain that visits the special unit, too."""
    latency = count * figures.latency + special * core.special.latency
    interval = max(count * figures.interval, special * core.special.interval)
    if count == 0:
        return Expansion(SPECIAL, special, special * core.special.interval, latency)
    if special and special * core.special.interval >= count * figures.interval:
        return Expansion(SPECIAL, count + special, interval, latency)
    return Expansion(unit, count + special, interval, latency)


def _floating(code: "Ints", opcode: str, core: "CoreFigures") -> Expansion:
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


def _integer(code: "Ints", opcode: str, core: "CoreFigures") -> Expansion:
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


def _conversion(code: "Ints", opcode: str, core: "CoreFigures") -> Expansion:
    source, target = int(code[low.FROM]), int(code[low.TO])
    if source == low.WHOLE and target == low.WHOLE:
        narrowing = code[low.COUNT] <= code[low.BITS] and code[low.COUNT] >= 32
        return Expansion(NO_UNIT, 0, 0, 0) if narrowing else _times(INTEGER, core.integer, 1)
    if source in (low.FP16, low.BF16) and target == low.FP32:
        return _times(FP32, core.fp32, 1)
    return Expansion(SPECIAL, 1, core.special.interval, core.special.latency)


def _tensor(products: int, opcode: str, core: "CoreFigures") -> Expansion:
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
