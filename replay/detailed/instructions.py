"""What each instruction of PTX becomes in `Program.code`; what is not supported is refused with its line."""

from collections.abc import Mapping
from dataclasses import replace

from replay.detailed import lanes
from replay.detailed.program import (
    ATOMIC,
    AWAY,
    BF16,
    BITS,
    BRANCH,
    CARRY,
    COMPARE,
    CONVERT,
    COPY,
    COUNT,
    D2,
    DECREMENT,
    DOWN,
    E4M3,
    E5M2,
    EXCHANGE,
    EXIT,
    F32,
    F64,
    FP16,
    FP32,
    FP64,
    FROM,
    GLOBAL,
    GUARD,
    HALF,
    HOW,
    INCREMENT,
    INT,
    KIND,
    LINE,
    LOAD,
    LOCAL,
    LOCAL_WINDOW,
    NEAREST,
    NEGATED,
    NOTHING,
    OFFSET,
    OP,
    PACK,
    SATURATE,
    SELECT,
    SETP_F32,
    SETP_F64,
    SETP_HALF,
    SETP_INT,
    SHARED,
    SHARED_WINDOW,
    SIGNED,
    SPACE,
    STORE,
    TARGET,
    TEXTURE,
    TF32,
    TO,
    TRAP,
    UNPACK,
    UP,
    VECTOR,
    WHOLE,
    ZERO,
    A,
    B,
    C,
    D,
    E,
    Symbols,
    space_of,
)
from replay.detailed.ptx import (
    TYPE_BYTES,
    Instruction,
)
from replay.detailed.warp_instructions import WARP_INSTRUCTIONS

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_UNSIGNED_COMPARISONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_ATOMICS: Mapping[str, int] = {
    "add": lanes.ADD, "min": lanes.MIN, "max": lanes.MAX, "and": lanes.AND, "or": lanes.OR, "xor": lanes.XOR,
    "exch": EXCHANGE, "cas": COMPARE, "inc": INCREMENT, "dec": DECREMENT,
}  # fmt: skip
_ROUNDINGS = {
    "rn": NEAREST, "rni": NEAREST, "rz": ZERO, "rzi": ZERO, "rm": DOWN, "rmi": DOWN, "rp": UP, "rpi": UP, "rna": AWAY,
}  # fmt: skip
_NUMBERS = {"f16": FP16, "bf16": BF16, "f32": FP32, "f64": FP64, "tf32": TF32, "e4m3": E4M3, "e5m2": E5M2}
#: Conversions to and from two FP8 numbers: source and target.
_EIGHT_BITS = {(s, t) for t in ("e4m3x2", "e5m2x2") for s in ("f32", "f16x2")} | {
    (s, "f16x2") for s in ("e4m3x2", "e5m2x2")
}
#: Modifiers that change neither result nor order here: rounding to nearest, cache hints, approximations, scopes.
_IGNORED = {
    "rn", "approx", "full", "ftz", "sync", "aligned", "uni", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile",
    "relaxed", "acquire", "release", "acq_rel", "gpu", "cta", "sys", "weak", "global", "shared", "local", "const",
    "param", "to", "wrap", "L1", "no_allocate", "evict_last", "evict_first", "evict_normal", "L2", "b16",
    "shared::cta", "all", "any", "ballot", "NaN",
}  # fmt: skip


def row_of(state: Symbols, instruction: Instruction) -> dict[int, int]:
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


def _arithmetic(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower an operation with one result and up to four operands."""
    name, kind = opcode[0], opcode[-1]
    product = ".".join(opcode[:2])
    if kind not in TYPE_BYTES:
        raise KeyError(kind)
    if name in ("addc", "subc", "madc") or "cc" in opcode:
        return _carry(state, i, opcode)
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


def _operands(state: Symbols, i: Instruction, kind: str, kinds: Mapping[int, str] | None = None) -> dict[int, int]:
    columns, kinds = (D, A, B, C, E), kinds or {}
    if not 2 <= len(i.operands) <= 5:
        raise ValueError(i.operands)
    return {
        columns[n]: state.operand(text, kinds.get(n, kind), i.line) for n, text in enumerate(i.operands)
    }  # fmt: skip


def _carry(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower a sum that takes a carry in, with a ``c`` in its name, or gives one out, with ``.cc``."""
    name = opcode[0].removesuffix("c")
    flag = state.flag()
    if set(opcode[1:-1]) - {"cc", "lo", "hi"}:
        raise KeyError(opcode)
    row = _operands(state, i, opcode[-1]) | {KIND: CARRY, BITS: 8 * TYPE_BYTES[opcode[-1]]}
    row |= {E: flag} if opcode[0].endswith("c") else {}
    row |= {D2: flag} if "cc" in opcode else {}
    op = lanes.PRODUCTS[f"mad.{opcode[1]}"] if name == "mad" else {"add": lanes.ADD, "sub": lanes.SUB}[name]
    return row | {OP: op, SIGNED: int(opcode[-1][0] == "s")}


def _dot(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower ``dp4a.u32.s32`` and ``dp2a.lo.u32.s32``."""
    op = lanes.DP4A if opcode[0] == "dp4a" else {"lo": lanes.DP2A_LO, "hi": lanes.DP2A_HI}[opcode[1]]
    types = [("u32", "s32").index(kind) for kind in opcode[-2:]]
    return _operands(state, i, "s32") | {KIND: INT, OP: op, BITS: 32, TO: 32, SIGNED: types[0] + 2 * types[1]}


def _floating(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    name, kind, modifiers = opcode[0], opcode[-1], set(opcode[1:-1])
    op = lanes.REALS[f"{name}.NaN" if "NaN" in modifiers else name]
    if directed := modifiers & {"rz", "rm", "rp"}:
        if kind != "f32" or op not in (lanes.F_ADD, lanes.F_SUB, lanes.F_MUL, lanes.F_FMA):
            raise KeyError(directed)
        return _directed(state, i, op, directed.pop(), int("sat" in modifiers))
    if modifiers - {"rn", "rz", "rm", "rp", "approx", "full", "ftz", "sat", "NaN"}:
        raise KeyError(modifiers)
    which = {"f32": F32, "f64": F64}.get(kind, HALF)
    saturate = int("sat" in modifiers)
    if saturate and which != F32:
        raise KeyError("sat")
    row = _operands(state, i, kind)
    packed = int(kind.endswith("x2"))
    return row | {KIND: which, OP: op, COUNT: 1 + packed, SIGNED: int(kind.startswith("bf")), SATURATE: saturate}


def _directed(state: Symbols, i: Instruction, op: int, how: str, saturate: int) -> dict[int, int]:
    """Lower an FP32 operation that is not rounded to nearest, as a multiply-add."""
    operands = [state.operand(text, "f32", i.line) for text in i.operands]
    one, minus_one, minus_zero = (state.constant(bits) for bits in (0x3F800000, 0xBF800000, 0x80000000))
    a, b, *c = operands[1:]
    factors = {
        lanes.F_ADD: (a, one, b), lanes.F_SUB: (b, minus_one, a), lanes.F_MUL: (a, b, minus_zero),
        lanes.F_FMA: (a, b, *c),
    }[op]  # fmt: skip
    op = {"rm": lanes.F_FMA_RM, "rp": lanes.F_FMA_RP, "rz": lanes.F_FMA_RZ}[how]
    return dict(zip((D, A, B, C), (operands[0], *factors), strict=True)) | {KIND: F32, OP: op, SATURATE: saturate}


def _packing(state: Symbols, i: Instruction, kind: str) -> dict[int, int]:
    """Lower a move between a register and a vector of narrower ones."""
    bits = 8 * TYPE_BYTES[kind]
    if i.operands[1].startswith("{"):
        position, count = state.vector(i.operands[1], "b64", i.line)
        row = {KIND: PACK, VECTOR: position, COUNT: count, BITS: bits // count}
        return row | {D: state.register(i.operands[0], i.line)}
    position, count = state.vector(i.operands[0], "b64", i.line)
    return {KIND: UNPACK, VECTOR: position, COUNT: count, BITS: bits // count, A: state.register(i.operands[1], i.line)}


def _setp(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
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
    plain_kind, packed = kind.removesuffix("x2"), kind.endswith("x2")
    which = {"f32": SETP_F32, "f64": SETP_F64, "f16": SETP_HALF, "bf16": SETP_HALF}.get(plain_kind, SETP_INT)
    row |= {KIND: which, HOW: how, BITS: 8 * TYPE_BYTES[kind], SIGNED: int(kind[0] == "s" or plain_kind == "bf16")}
    row |= {COUNT: 1 + packed}
    row |= {D: state.register(operands[0], i.line), A: state.operand(operands[1], kind, i.line)}
    return row | {B: state.operand(operands[2], kind, i.line)}


def _selp(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    row = _operands(state, i, opcode[-1], {3: "pred"})
    return row | {KIND: SELECT}


def _cvt(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    source, target, modifiers = opcode[-1], opcode[-2], set(opcode[1:-2])
    if modifiers - {*_ROUNDINGS, "sat", "satfinite", "ftz"}:
        raise KeyError(modifiers)
    how = next((_ROUNDINGS[m] for m in opcode if m in _ROUNDINGS), NEAREST)
    whole = int(any(m in ("rni", "rzi", "rmi", "rpi") for m in modifiers))
    short = target in ("f16", "bf16", "f16x2", "bf16x2") and not whole
    is_eight = target.startswith("e") or source.startswith("e")
    if (short and how not in (NEAREST, ZERO)) or (how == AWAY and target != "tf32"):
        raise KeyError(how)
    if is_eight and (source, target) not in _EIGHT_BITS:
        raise KeyError(source)
    if target in ("f16x2", "bf16x2") and source != "f32" and not is_eight:
        raise KeyError(source)
    if len(i.operands) != 2 + (source == "f32" and target.endswith("x2")):
        raise ValueError(i.operands)
    row = {KIND: CONVERT, D: state.register(i.operands[0], i.line), A: state.operand(i.operands[1], source, i.line)}
    row |= {FROM: _NUMBERS.get(source.removesuffix("x2"), WHOLE), TO: _NUMBERS.get(target.removesuffix("x2"), WHOLE)}
    row |= {HOW: how, OP: whole}
    if len(i.operands) > 2:
        row |= {B: state.operand(i.operands[2], source, i.line)}
    row |= {BITS: 8 * TYPE_BYTES[source], SIGNED: int(source[0] == "s"), COUNT: 8 * TYPE_BYTES[target]}
    # A signed result is extended to the width of its register.
    return row | {OFFSET: 8 * TYPE_BYTES[state.kind(i.operands[0])] * (target[0] == "s"), SATURATE: "sat" in modifiers}


def _known(opcode: list[str], more: set[str]) -> None:
    rest = {m for m in opcode[1:] if m not in _IGNORED and m not in more and m not in TYPE_BYTES}
    if any(not m.startswith("L2::") and not m.startswith("L1::") for m in rest):
        raise KeyError(rest)


def _load(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    _known(opcode, {"v2", "v4"})
    store = opcode[0] == "st"
    kind, target, address = opcode[-1], i.operands[int(store)].strip("{}"), i.operands[1 - int(store)]
    target = f"{{{target}}}" if "," in target else target
    position, count = state.vector(target, kind, i.line)
    base, offset = state.address(address, i.line)
    row = {KIND: STORE if store else LOAD, VECTOR: position, COUNT: count, BITS: 8 * TYPE_BYTES[kind]}
    if not store and count == 1:
        row[TO] = 8 * TYPE_BYTES[state.kind(target)]
    return row | {A: base, OFFSET: offset, SPACE: space_of(opcode), SIGNED: int(kind[0] == "s"), LINE: i.line}


def _cvta(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    window = {SHARED: SHARED_WINDOW, LOCAL: LOCAL_WINDOW}.get(space_of(opcode), 0)
    row = {KIND: INT, OP: lanes.SUB if "to" in opcode else lanes.ADD, BITS: 64, TO: 64}
    row |= {D: state.register(i.operands[0], i.line), A: state.operand(i.operands[1], "u64", i.line)}
    return row | {B: state.constant(window)}


def _branch(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if set(opcode[1:]) - {"uni"}:
        raise KeyError(opcode)
    if i.operands[0] not in state.entry.labels:
        raise state.refusal(i.line, f"there is no label {i.operands[0]}")
    return {KIND: BRANCH, TARGET: state.entry.labels[i.operands[0]]}


def _exit(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: EXIT}


def _trap(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: TRAP}


def _policy(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower ``createpolicy``: hints for caches are not followed."""
    row = {KIND: INT, OP: lanes.MOV, BITS: 64, TO: 64, D: state.register(i.operands[0], i.line)}
    return row | {A: state.constant(0)}


def _nothing(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: NOTHING}


def _atom(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    name = next(m for m in opcode[1:] if m in _ATOMICS)
    _known(opcode, {*_ATOMICS, "noftz"})
    kind, reduces = opcode[-1], opcode[0] == "red"
    real = _NUMBERS.get(kind.removesuffix("x2"), WHOLE)
    if "v2" in opcode or "v4" in opcode or "v8" in opcode or (real != WHOLE and name != "add"):
        raise KeyError(kind)
    if TYPE_BYTES[kind] < 4 and real == WHOLE and (name, kind) != ("cas", "b16"):
        raise KeyError(kind)
    operands = i.operands if not reduces else ("_", *i.operands)
    base, offset = state.address(operands[1], i.line)
    row = {KIND: ATOMIC, OP: _ATOMICS[name], A: base, OFFSET: offset, SPACE: space_of(opcode)}
    row |= {D: -1 if operands[0] == "_" else state.register(operands[0], i.line), BITS: 8 * TYPE_BYTES[kind]}
    row |= {B: state.operand(operands[2], kind, i.line), SIGNED: int(kind[0] == "s"), FROM: real}
    return row | ({C: state.operand(operands[3], kind, i.line)} if name == "cas" else {})


def _tex(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower ``tex.{1d,2d}.v4.{u32,s32,f32}.{s32,f32}`` with the handle of a texture object."""
    (geometry, vector, result, kind), names = opcode[1:], i.operands[0]
    handle, _, texel = i.operands[1].removeprefix("[").partition(",")
    if vector != "v4" or result not in ("u32", "s32", "f32") or kind not in ("s32", "f32") or len(i.operands) != 2:
        raise KeyError(opcode)
    coordinates = [state.operand(text, kind, i.line) for text in texel.strip("{}]").split(",")]
    if len(coordinates) != {"1d": 1, "2d": 2}[geometry]:
        raise ValueError(texel)
    row = {KIND: TEXTURE, A: state.operand(handle, "u64", i.line), B: coordinates[0], SPACE: GLOBAL, BITS: 32}
    row |= {C: coordinates[1]} if len(coordinates) > 1 else {}
    position, count = state.vector(names, "b32", i.line)
    if count != 4:
        raise ValueError(names)
    return row | {VECTOR: position, COUNT: count, FROM: _NUMBERS.get(kind, WHOLE), TO: _NUMBERS.get(result, WHOLE)}


def _cp_async(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if "bulk" in opcode or "mbarrier" in opcode:
        raise KeyError(opcode)
    if opcode[2] in ("commit_group", "wait_group", "wait_all"):
        return {KIND: NOTHING}
    (target, at), (source, offset) = (state.address(text, i.line) for text in i.operands[:2])
    row = {KIND: COPY, D: target, E: at, A: source, OFFSET: offset, COUNT: int(i.operands[2], 0)}
    return row | ({B: state.operand(i.operands[3], "u32", i.line)} if len(i.operands) > 3 else {})


#: By the first part of the opcode; all others are arithmetic.
_LOWERED = {
    **WARP_INSTRUCTIONS,
    "setp": _setp, "selp": _selp, "cvt": _cvt, "ld": _load, "ldu": _load, "st": _load, "cvta": _cvta, "bra": _branch,
    "ret": _exit, "exit": _exit, "trap": _trap, "atom": _atom, "red": _atom, "cp": _cp_async, "tex": _tex,
    "dp4a": _dot, "dp2a": _dot, "createpolicy": _policy,
    **dict.fromkeys(
        ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "brkpt", "griddepcontrol", "discard",
         "applypriority"),
        _nothing,
    ),
}  # fmt: skip
