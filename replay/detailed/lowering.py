"""Lower a PTX entry to flat arrays: an instruction a row, registers by number, branches with reconvergence points.

Whatever is not supported is refused here, with its line, before anything runs.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.detailed import lanes
from replay.detailed.control_flow import joins, leaders
from replay.detailed.fragments import Fragment, Product, fragment_of, mma_of, product_of
from replay.detailed.functions import with_calls_replaced
from replay.detailed.ptx import (
    TYPE_BYTES,
    Entry,
    Instruction,
    Module,
    Variable,
    global_layout,
    literal_bits,
    packed_layout,
)

#: Kinds of instructions.
(
    INT, F32, F64, HALF, SETP_INT, SETP_F32, SETP_F64, SETP_HALF, SELECT, CONVERT, LOAD, STORE, BRANCH, EXIT, BARRIER,
    SHUFFLE, VOTE, ATOMIC, PACK, UNPACK, LDMATRIX, COPY, NOTHING, MASK,
    FRAGMENT_LOAD, FRAGMENT_STORE, PRODUCT, TEXTURE, TRAP,
) = range(29)  # fmt: skip
#: Columns of `Program.code`. VECTOR is the position of the first register of a vector in `Program.lists`. The first
#: instruction of a basic block has the block's number in LEADER, and the count of its memory accesses in MEMORIES; SLOT
#: numbers these accesses.
(
    KIND, OP, BITS, SIGNED, D, A, B, C, E, GUARD, NEGATED, TARGET, JOIN, OFFSET, COUNT, SPACE, FROM, TO, HOW, SATURATE,
    D2, VECTOR, LEADER, SLOT, MEMORIES, LINE,
) = range(26)  # fmt: skip
#: State spaces. GENERIC addresses name any of them; parameters and constants lie in global memory.
GLOBAL, SHARED, LOCAL, GENERIC, PARAMETER, CONSTANT = range(6)
#: Kinds of number in conversions.
WHOLE, FP16, BF16, FP32, FP64 = range(5)
#: Roundings of conversions.
NEAREST, ZERO, DOWN, UP = range(4)
#: First generic address of shared and of local memory, and of global memory.
SHARED_WINDOW, LOCAL_WINDOW, GLOBAL_BASE = 1 << 44, 1 << 45, 1 << 32
#: Handle of the first texture of a launch.
TEXTURE_BASE = 1 << 48
#: Operations of ATOMIC beyond those of `lanes`.
EXCHANGE, COMPARE, INCREMENT, DECREMENT = range(100, 104)
#: Special registers by number; the compiled code sets them when a block begins.
SPECIAL = (
    "%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%ntid.x", "%ntid.y", "%ntid.z",
    "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%smid", "%lanemask_lt", "%lanemask_le",
    "%lanemask_eq", "%lanemask_ge", "%lanemask_gt", "%clock", "%clock64", "%globaltimer",
)  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_UNSIGNED_COMPARISONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_ATOMICS: Mapping[str, int] = {
    "add": lanes.ADD, "min": lanes.MIN, "max": lanes.MAX, "and": lanes.AND, "or": lanes.OR, "xor": lanes.XOR,
    "exch": EXCHANGE, "cas": COMPARE, "inc": INCREMENT, "dec": DECREMENT,
}  # fmt: skip
_ROUNDINGS = {"rn": NEAREST, "rni": NEAREST, "rz": ZERO, "rzi": ZERO, "rm": DOWN, "rmi": DOWN, "rp": UP, "rpi": UP}
_SPACES = {
    "global": GLOBAL, "const": CONSTANT, "param": PARAMETER, "shared": SHARED, "shared::cta": SHARED, "local": LOCAL,
}  # fmt: skip
_NUMBERS = {"f16": FP16, "bf16": BF16, "f32": FP32, "f64": FP64}
#: Modifiers that change neither result nor order here: rounding to nearest, cache hints, approximations, scopes.
_IGNORED = {
    "rn", "approx", "full", "ftz", "sync", "aligned", "uni", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile",
    "relaxed", "acquire", "release", "acq_rel", "gpu", "cta", "sys", "weak", "global", "shared", "local", "const",
    "param", "to", "wrap", "L1", "no_allocate", "evict_last", "evict_first", "evict_normal", "L2", "b16",
    "shared::cta", "all", "any", "ballot", "NaN",
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """An entry as arrays.

    Parameters
    ----------
    module, entry : Module, Entry
        What it was lowered from.
    code : array of int64, shape (n, 26)
        Instructions; columns as in this module.
    lists : array of int64
        Registers of vectors.
    registers : int
        Registers of a thread, constants and special registers included.
    constants : array of int64, shape (m, 2)
        Registers that hold a constant, and its bits.
    special : array of int64, shape (k, 2)
        Registers that hold a special register, and its number in `SPECIAL`.
    shared_bytes, local_bytes, parameter_bytes : int
        Static shared memory of a block, local memory of a thread, and parameters.
    parameter_offset : tuple of int
        Offset of each parameter.
    globals : tuple of Variable
        Variables in global and constant memory.
    widths : tuple of int
        32-bit registers of the machine that each register takes; 0 for predicates and constants.
    """

    module: Module
    entry: Entry
    code: Ints
    lists: Ints
    registers: int
    constants: Ints
    special: Ints
    shared_bytes: int
    local_bytes: int
    parameter_bytes: int
    parameter_offset: tuple[int, ...]
    globals: tuple[Variable, ...]
    widths: tuple[int, ...]


class _Lowering:
    """Registers, constants and symbols while an entry is lowered."""

    def __init__(self, module: Module, entry: Entry) -> None:
        self.module, self.entry = module, entry
        self.numbers: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        self.constants: dict[int, int] = {}
        self.lists: list[int] = []
        self.tables: dict[bytes, int] = {}
        self.count = 0
        self.globals = tuple(v for v in (*module.variables, *entry.variables) if v.space in ("global", "const"))
        self.symbols: dict[str, tuple[int, int]] = {}
        self.parameter_offset, self.parameter_bytes = packed_layout(entry.parameters)
        parameters = {p.name: o for p, o in zip(entry.parameters, self.parameter_offset, strict=True)}
        self.symbols.update({name: (GLOBAL, GLOBAL_BASE + offset) for name, offset in parameters.items()})
        begin = -(-self.parameter_bytes // 256) * 256 + 256
        offsets, _ = global_layout(self.globals, begin)
        self.symbols.update({name: (GLOBAL, GLOBAL_BASE + offset) for name, offset in offsets.items()})
        self.shared_bytes = self._place("shared", (*module.variables, *entry.variables), SHARED)
        self.local_bytes = self._place("local", entry.variables, LOCAL)

    def _place(self, space: str, variables: tuple[Variable, ...], number: int) -> int:
        """Give each variable of a space its address; dynamic shared memory begins where the static ends."""
        chosen = [v for v in variables if v.space == space]
        end, align = 0, 1
        for variable in sorted(chosen, key=lambda v: v.size == 0):
            if variable.size == 0:
                align = max(align, variable.align)
                end = -(-end // align) * align
            end = -(-end // variable.align) * variable.align
            self.symbols[variable.name] = (number, end)
            end += variable.size
        return end

    def register(self, name: str, line: int) -> int:
        """Return the number of a register, a special register or a constant."""
        if name in self.numbers:
            return self.numbers[name]
        if name not in SPECIAL and name not in ("%_", "_") and self.kind(name) == "":
            raise self.refusal(line, f"register {name} is not declared")
        self.numbers[name] = self.count
        self.count += 1
        return self.numbers[name]

    def kind(self, name: str) -> str:
        """Return the declared type of a register; empty if it has none."""
        registers = self.entry.registers
        return registers.get(name) or registers.get(name.rstrip("0123456789"), "")

    def widths(self) -> tuple[int, ...]:
        """Return the 32-bit registers of the machine that each register takes."""
        sizes = {"pred": 0, "b64": 2, "u64": 2, "s64": 2, "f64": 2}
        named = {number: sizes.get(self.kind(name), 1) for name, number in self.numbers.items()}
        return tuple(named.get(number, 0) for number in range(self.count))

    def operand(self, text: str, kind: str, line: int) -> int:
        """Return the register of an operand; a literal or an address becomes a constant."""
        negative = text.startswith("!")
        if negative:
            raise self.refusal(line, f"operand {text} is not supported")
        if text in SPECIAL or text.startswith("%") or text == "_" or self.kind(text):
            return self.register(text, line)
        symbol, _, offset = text.partition("+")
        if symbol in self.symbols:
            return self.constant(self.symbols[symbol][1] + int(offset or "0", 0))
        try:
            bits = literal_bits(text, kind)
        except ValueError:
            raise self.refusal(line, f"{text!r} is neither a register nor a variable nor a number") from None
        width = 8 * TYPE_BYTES.get(kind, 8) if kind != "pred" else 1
        return self.constant(bits & ((1 << width) - 1))

    def constant(self, bits: int) -> int:
        """Return the register that holds a constant."""
        if bits not in self.constants:
            self.constants[bits] = self.count
            self.count += 1
        return self.constants[bits]

    def vector(self, text: str, kind: str, line: int) -> tuple[int, int]:
        """Return the position and the length of the registers of a vector, or of a single operand."""
        names = text[1:-1].split(",") if text.startswith("{") else [text]
        position = len(self.lists)
        self.lists += [self.operand(name, kind, line) for name in names]
        return position, len(names)

    def table(self, fragment: Fragment) -> int:
        """Return the position of the places of a fragment, which stand once in the lists."""
        key = fragment.places.tobytes()
        if key not in self.tables:
            self.tables[key] = len(self.lists)
            self.lists += fragment.places.reshape(-1).tolist()
        return self.tables[key]

    def address(self, text: str, line: int) -> tuple[int, int]:
        """Return the register and the offset of an address in brackets."""
        match = re.fullmatch(r"\[([\w$%.]+)(?:\+(-?\w{1,16}))?(-\w{1,16})?\]", text)
        if not match:
            raise self.refusal(line, f"address {text:.60} is not supported")
        return self.operand(match[1], "u64", line), int(match[2] or match[3] or "0", 0)

    def refusal(self, line: int, problem: str) -> InvalidInputError:
        return InvalidInputError(f"{self.module.source}: line {line}: {problem}")


def lower(module: Module, name: str = "") -> Program:
    """Return the program of an entry.

    Parameters
    ----------
    module : Module
        PTX file.
    name : str
        Entry; may be empty if there is only one.

    Raises
    ------
    InvalidInputError
        The entry is missing, or has an instruction that is not supported; with its line.
    """
    entry = with_calls_replaced(module, module.entry(name))
    state = _Lowering(module, entry)
    rows = [_row(state, instruction) for instruction in entry.code] or [{KIND: EXIT}]
    rows.append({KIND: EXIT, LINE: entry.code[-1].line if entry.code else entry.line})
    code = np.full((len(rows), LINE + 1), -1, dtype=np.int64)
    code[:, [NEGATED, SIGNED, SATURATE, HOW, OFFSET, SPACE, MEMORIES]] = 0
    for number, row in enumerate(rows):
        for column, value in row.items():
            code[number, column] = value
    branches, exits = code[:, KIND] == BRANCH, code[:, KIND] == EXIT
    code[:, JOIN] = joins(branches, exits, code[:, GUARD] >= 0, code[:, TARGET])
    _number_blocks(code, leaders(branches, exits, code[:, TARGET]))
    special = [(state.numbers[s], i) for i, s in enumerate(SPECIAL) if s in state.numbers]
    constants = [(register, _as_signed(bits)) for bits, register in state.constants.items()]
    return Program(
        module, entry, code, np.array(state.lists or [0], dtype=np.int64), max(state.count, 1),
        np.array(constants, dtype=np.int64).reshape(-1, 2), np.array(special, dtype=np.int64).reshape(-1, 2),
        state.shared_bytes, state.local_bytes, state.parameter_bytes, state.parameter_offset, state.globals,
        state.widths(),
    )  # fmt: skip


def _number_blocks(code: Ints, begins: list[int]) -> None:
    """Number the basic blocks, and the accesses to memory of each."""
    accesses = np.isin(code[:, KIND], (LOAD, STORE, ATOMIC, LDMATRIX, COPY, FRAGMENT_LOAD, FRAGMENT_STORE, TEXTURE))
    accesses &= code[:, SPACE] != PARAMETER
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(code)], strict=True)):
        inside = np.flatnonzero(accesses[begin:end]) + begin
        code[begin, LEADER], code[begin, MEMORIES] = number, len(inside)
        code[inside, SLOT] = np.arange(len(inside))


def _as_signed(bits: int) -> int:
    return (bits & (1 << 64) - 1) - (1 << 64 if bits >> 63 & 1 else 0)


def _row(state: _Lowering, instruction: Instruction) -> dict[int, int]:
    """Return the columns of an instruction."""
    opcode, line = instruction.opcode.split("."), instruction.line
    if "L2::cache_hint" in opcode:
        instruction = replace(instruction, operands=instruction.operands[:-1])
    row = {LINE: line}
    if instruction.guard:
        row |= {GUARD: state.register(instruction.guard.removeprefix("!"), line)}
        row |= {NEGATED: int(instruction.guard.startswith("!"))}
    try:
        lowered = _LOWERED.get(opcode[0], _arithmetic)(state, instruction, opcode)
    except (AttributeError, IndexError, KeyError, ValueError, StopIteration):
        raise state.refusal(line, f"{instruction.opcode} is not supported") from None
    return row | lowered


def _arithmetic(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower an operation with one result and up to four operands."""
    name, kind = opcode[0], opcode[-1]
    product = ".".join(opcode[:2])
    if kind not in TYPE_BYTES:
        raise KeyError(kind)
    if kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2") and name != "mov":
        return _floating(state, i, opcode)
    op = lanes.PRODUCTS[product] if product in lanes.PRODUCTS else lanes.INTEGERS[name]
    if op == lanes.BFIND and "shiftamt" in opcode:
        op = lanes.BFIND_SHIFT
    extra = set(opcode[1:-1]) - {"lo", "hi", "wide", "l", "r", "wrap", "clamp", "shiftamt", "b32"}
    if extra:
        raise KeyError(extra)
    if name == "mov" and any(text.startswith("{") for text in i.operands):
        return _packing(state, i, kind)
    bits = 1 if kind == "pred" else 8 * TYPE_BYTES[kind]
    wide = op in (lanes.MUL_WIDE, lanes.MAD_WIDE)
    row = _operands(state, i, kind, {lanes.SHL: {2: "u32"}, lanes.SHR: {2: "u32"}}.get(op, {}))
    if op == lanes.MAD_WIDE:
        row[C] = state.operand(i.operands[3], {"u32": "u64", "s32": "s64"}.get(kind, "s32"), i.line)
    if op in (lanes.SHF_L, lanes.SHF_R):
        row[E] = state.constant(int("clamp" in opcode))
    out = 32 if op in (lanes.POPC, lanes.CLZ, lanes.BFIND, lanes.BFIND_SHIFT) else 2 * bits if wide else bits
    return row | {KIND: INT, OP: op, BITS: bits, SIGNED: int(kind[0] == "s"), TO: out}


def _operands(state: _Lowering, i: Instruction, kind: str, kinds: Mapping[int, str] | None = None) -> dict[int, int]:
    columns, kinds = (D, A, B, C, E), kinds or {}
    if not 2 <= len(i.operands) <= 5:
        raise ValueError(i.operands)
    return {
        columns[n]: state.operand(text, kinds.get(n, kind), i.line) for n, text in enumerate(i.operands)
    }  # fmt: skip


def _floating(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    name, kind, modifiers = opcode[0], opcode[-1], set(opcode[1:-1])
    op = lanes.REALS[f"{name}.NaN" if "NaN" in modifiers else name]
    directed = modifiers & {"rz", "rm", "rp"}
    if directed:
        if kind != "f32" or op != lanes.F_FMA:
            raise KeyError(directed)
        op = {"rm": lanes.F_FMA_RM, "rp": lanes.F_FMA_RP, "rz": lanes.F_FMA_RZ}[directed.pop()]
    if modifiers - {"rn", "rz", "rm", "rp", "approx", "full", "ftz", "sat", "NaN"}:
        raise KeyError(modifiers)
    which = {"f32": F32, "f64": F64}.get(kind, HALF)
    saturate = int("sat" in modifiers)
    if saturate and which != F32:
        raise KeyError("sat")
    row = _operands(state, i, kind)
    packed = int(kind.endswith("x2"))
    return row | {KIND: which, OP: op, COUNT: 1 + packed, SIGNED: int(kind.startswith("bf")), SATURATE: saturate}


def _packing(state: _Lowering, i: Instruction, kind: str) -> dict[int, int]:
    """Lower a move between a register and a vector of narrower ones."""
    bits = 8 * TYPE_BYTES[kind]
    if i.operands[1].startswith("{"):
        position, count = state.vector(i.operands[1], "b64", i.line)
        row = {KIND: PACK, VECTOR: position, COUNT: count, BITS: bits // count}
        return row | {D: state.register(i.operands[0], i.line)}
    position, count = state.vector(i.operands[0], "b64", i.line)
    return {KIND: UNPACK, VECTOR: position, COUNT: count, BITS: bits // count, A: state.register(i.operands[1], i.line)}


def _setp(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    kind, modifiers = opcode[-1], [m for m in opcode[2:-1] if m not in ("ftz", "sync")]
    how = _COMPARISONS.index(_UNSIGNED_COMPARISONS.get(opcode[1], opcode[1]))
    combined = [m for m in modifiers if m in ("and", "or", "xor")]
    operands = list(i.operands)
    plain = 3 + len(combined)
    row: dict[int, int] = {}
    if len(operands) == plain + 1:
        row[D2] = state.register(operands.pop(1), i.line)
    elif len(operands) != plain:
        raise ValueError(operands)
    if combined:
        negated = operands[3].startswith("!")
        row |= {C: state.operand(operands[3].removeprefix("!"), "pred", i.line), SATURATE: int(negated)}
        row[OP] = lanes.INTEGERS[combined[0]]
    which = {"f32": SETP_F32, "f64": SETP_F64, "f16": SETP_HALF, "bf16": SETP_HALF}.get(kind, SETP_INT)
    row |= {KIND: which, HOW: how, BITS: 8 * TYPE_BYTES[kind], SIGNED: int(kind[0] == "s" or kind == "bf16")}
    row |= {D: state.register(operands[0], i.line), A: state.operand(operands[1], kind, i.line)}
    return row | {B: state.operand(operands[2], kind, i.line)}


def _selp(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    row = _operands(state, i, opcode[-1], {3: "pred"})
    return row | {KIND: SELECT}


def _cvt(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    source, target, modifiers = opcode[-1], opcode[-2], set(opcode[1:-2])
    if modifiers - {*_ROUNDINGS, "sat", "ftz"}:
        raise KeyError(modifiers)
    how = next((_ROUNDINGS[m] for m in opcode if m in _ROUNDINGS), NEAREST)
    whole = int(any(m in ("rni", "rzi", "rmi", "rpi") for m in modifiers))
    packed = target in ("f16x2", "bf16x2")
    if (packed and source != "f32") or ("16" in target and target[0] in "fb" and how != NEAREST and not whole):
        raise KeyError(source)
    row = {KIND: CONVERT, D: state.register(i.operands[0], i.line), A: state.operand(i.operands[1], source, i.line)}
    row |= {FROM: _NUMBERS.get(source, WHOLE), TO: _NUMBERS.get(target.removesuffix("x2"), WHOLE), HOW: how, OP: whole}
    if packed:
        row |= {B: state.operand(i.operands[2], source, i.line)}
    row |= {BITS: 8 * TYPE_BYTES[source], SIGNED: int(source[0] == "s"), COUNT: 8 * TYPE_BYTES[target]}
    # A signed result is extended to the width of its register.
    return row | {OFFSET: 8 * TYPE_BYTES[state.kind(i.operands[0])] * (target[0] == "s"), SATURATE: "sat" in modifiers}


def _space(opcode: list[str]) -> int:
    return next((_SPACES[m] for m in opcode[1:] if m in _SPACES), GENERIC)


def _known(opcode: list[str], more: set[str]) -> None:
    rest = {m for m in opcode[1:] if m not in _IGNORED and m not in more and m not in TYPE_BYTES}
    if any(not m.startswith("L2::") and not m.startswith("L1::") for m in rest):
        raise KeyError(rest)


def _load(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    _known(opcode, {"v2", "v4"})
    store = opcode[0] == "st"
    kind, target, place = opcode[-1], i.operands[int(store)].strip("{}"), i.operands[1 - int(store)]
    target = f"{{{target}}}" if "," in target else target
    position, count = state.vector(target, kind, i.line)
    base, offset = state.address(place, i.line)
    row = {KIND: STORE if store else LOAD, VECTOR: position, COUNT: count, BITS: 8 * TYPE_BYTES[kind]}
    if not store and count == 1:
        row[TO] = 8 * TYPE_BYTES[state.kind(target)]
    return row | {A: base, OFFSET: offset, SPACE: _space(opcode), SIGNED: int(kind[0] == "s"), LINE: i.line}


def _cvta(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    window = {SHARED: SHARED_WINDOW, LOCAL: LOCAL_WINDOW}.get(_space(opcode), 0)
    row = {KIND: INT, OP: lanes.SUB if "to" in opcode else lanes.ADD, BITS: 64, TO: 64}
    row |= {D: state.register(i.operands[0], i.line), A: state.operand(i.operands[1], "u64", i.line)}
    return row | {B: state.constant(window)}


def _branch(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if set(opcode[1:]) - {"uni"}:
        raise KeyError(opcode)
    if i.operands[0] not in state.entry.labels:
        raise state.refusal(i.line, f"there is no label {i.operands[0]}")
    return {KIND: BRANCH, TARGET: state.entry.labels[i.operands[0]]}


def _exit(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: EXIT}


def _trap(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: TRAP}


def _policy(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower ``createpolicy``: hints for caches are not followed."""
    row = {KIND: INT, OP: lanes.MOV, BITS: 64, TO: 64, D: state.register(i.operands[0], i.line)}
    return row | {A: state.constant(0)}


def _nothing(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: NOTHING}


def _barrier(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if "red" in opcode or "arrive" in opcode or "cluster" in opcode:
        raise KeyError(opcode)
    if opcode[:2] in (["bar", "warp"], ["barrier", "warp"]):
        return {KIND: NOTHING}
    if len(i.operands) > 1 or (i.operands and i.operands[0] != "0"):
        raise state.refusal(i.line, f"{i.opcode} {', '.join(i.operands)}: only barrier 0 of a whole block is supported")
    return {KIND: BARRIER}


def _shfl(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    operands, row = list(i.operands), {KIND: SHUFFLE, OP: ("up", "down", "bfly", "idx").index(opcode[2])}
    if opcode[1] != "sync" or opcode[-1] != "b32":
        raise KeyError(opcode)
    if len(operands) == 6:
        row[D2] = state.register(operands.pop(1), i.line)
    row |= {D: state.register(operands[0], i.line), A: state.operand(operands[1], "b32", i.line)}
    return row | {B: state.operand(operands[2], "u32", i.line), C: state.operand(operands[3], "u32", i.line)}


def _vote(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    which = ("all", "any", "uni", "ballot").index(opcode[2])
    negated = i.operands[1].startswith("!")
    row = {KIND: VOTE, OP: which, SATURATE: int(negated), D: state.register(i.operands[0], i.line)}
    return row | {A: state.operand(i.operands[1].removeprefix("!"), "pred", i.line)}


def _activemask(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: MASK, D: state.register(i.operands[0], i.line)}


def _atom(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    name = next(m for m in opcode[1:] if m in _ATOMICS)
    _known(opcode, {*_ATOMICS, "noftz"})
    kind, reduces = opcode[-1], opcode[0] == "red"
    if kind.endswith("16") or kind.endswith("x2") or "v2" in opcode or "v4" in opcode:
        raise KeyError(kind)
    operands = i.operands if not reduces else ("_", *i.operands)
    base, offset = state.address(operands[1], i.line)
    row = {KIND: ATOMIC, OP: _ATOMICS[name], A: base, OFFSET: offset, SPACE: _space(opcode)}
    row |= {D: -1 if operands[0] == "_" else state.register(operands[0], i.line), BITS: 8 * TYPE_BYTES[kind]}
    row |= {B: state.operand(operands[2], kind, i.line), SIGNED: int(kind[0] == "s"), FROM: _NUMBERS.get(kind, WHOLE)}
    return row | ({C: state.operand(operands[3], kind, i.line)} if name == "cas" else {})


def _ldmatrix(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if "m8n8" not in opcode or opcode[-1] != "b16":
        raise KeyError(opcode)
    position, count = state.vector(i.operands[0], "b32", i.line)
    base, offset = state.address(i.operands[1], i.line)
    row = {KIND: LDMATRIX, VECTOR: position, COUNT: count, A: base, OFFSET: offset, SPACE: SHARED}
    return row | {OP: int("trans" in opcode)}


def _mma(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return _product(state, i, mma_of(opcode))


def _product(state: _Lowering, i: Instruction, product: Product) -> dict[int, int]:
    positions = [state.vector(text, "b32", i.line) for text in i.operands]
    if [count for _, count in positions] != [fragment.registers for fragment in product.fragments]:
        raise ValueError(i.operands)
    facts = [(state.table(fragment), len(fragment.places), fragment.type) for fragment in product.fragments]
    row = {KIND: PRODUCT, E: len(state.lists), COUNT: math.prod(product.shape), SATURATE: int(product.saturates)}
    state.lists += [*product.shape, *(fact for three in facts for fact in three)]
    return row | dict(zip((D, A, B, C), (position for position, _ in positions), strict=True))


def _wmma(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if opcode[1] == "mma":
        return _product(state, i, product_of(opcode))
    stores, fragment, space = opcode[1] == "store", fragment_of(opcode), _space(opcode)
    names, place, *stride = (i.operands[1], i.operands[0], *i.operands[2:]) if stores else i.operands
    position, count = state.vector(names, "b32", i.line)
    if stores != (opcode[2] == "d") or count != fragment.registers or space not in (GLOBAL, SHARED, GENERIC):
        raise ValueError(opcode)
    base, offset = state.address(place, i.line)
    row = {KIND: FRAGMENT_STORE if stores else FRAGMENT_LOAD, VECTOR: position, COUNT: count, A: base, OFFSET: offset}
    row |= {B: state.operand(stride[0] if stride else str(fragment.leading), "u32", i.line), E: state.table(fragment)}
    return row | {SPACE: space, BITS: fragment.bits, HOW: int(fragment.by_column), TO: fragment.run}


def _tex(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower ``tex.{1d,2d}.v4.{u32,s32,f32}.{s32,f32}`` with the handle of a texture object."""
    (geometry, vector, result, kind), names = opcode[1:], i.operands[0]
    handle, _, place = i.operands[1].removeprefix("[").partition(",")
    if vector != "v4" or result not in ("u32", "s32", "f32") or kind not in ("s32", "f32") or len(i.operands) != 2:
        raise KeyError(opcode)
    coordinates = [state.operand(text, kind, i.line) for text in place.strip("{}]").split(",")]
    if len(coordinates) != {"1d": 1, "2d": 2}[geometry]:
        raise ValueError(place)
    row = {KIND: TEXTURE, A: state.operand(handle, "u64", i.line), B: coordinates[0], SPACE: GLOBAL, BITS: 32}
    row |= {C: coordinates[1]} if len(coordinates) > 1 else {}
    position, count = state.vector(names, "b32", i.line)
    if count != 4:
        raise ValueError(names)
    return row | {VECTOR: position, COUNT: count, FROM: _NUMBERS.get(kind, WHOLE), TO: _NUMBERS.get(result, WHOLE)}


def _cp_async(state: _Lowering, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if "bulk" in opcode or "mbarrier" in opcode:
        raise KeyError(opcode)
    if opcode[2] in ("commit_group", "wait_group", "wait_all"):
        return {KIND: NOTHING}
    (target, at), (source, offset) = (state.address(text, i.line) for text in i.operands[:2])
    row = {KIND: COPY, D: target, E: at, A: source, OFFSET: offset, COUNT: int(i.operands[2], 0)}
    return row | ({B: state.operand(i.operands[3], "u32", i.line)} if len(i.operands) > 3 else {})


_LOWERED = {
    "setp": _setp, "selp": _selp, "cvt": _cvt, "ld": _load, "ldu": _load, "st": _load, "cvta": _cvta, "bra": _branch,
    "ret": _exit, "exit": _exit, "bar": _barrier, "barrier": _barrier, "shfl": _shfl, "vote": _vote, "atom": _atom,
    "red": _atom, "ldmatrix": _ldmatrix, "mma": _mma, "cp": _cp_async, "membar": _nothing, "fence": _nothing,
    "activemask": _activemask, "prefetch": _nothing, "nanosleep": _nothing, "wmma": _wmma, "tex": _tex,
    "trap": _trap, "brkpt": _nothing, "createpolicy": _policy, "griddepcontrol": _nothing, "discard": _nothing,
    "applypriority": _nothing, "prefetchu": _nothing,
}  # fmt: skip
