"""What instructions that the lanes of a warp execute together become in `Program.code`: barriers, votes, matrices."""

import math

from replay.detailed import lanes
from replay.detailed.fragments import SIGNED32, FragmentProduct, fragment_of, group_product_of, mma_of, product_of
from replay.detailed.program import (
    ALL_TRUE,
    ANY_TRUE,
    BARRIER,
    BITS,
    COUNT,
    COUNT_INSTRUCTIONS,
    COUNT_TRUE,
    D2,
    ELECT,
    FRAGMENT_LOAD,
    FRAGMENT_STORE,
    GENERIC,
    GLOBAL,
    GROUP_PRODUCT,
    HOW,
    KIND,
    LDMATRIX,
    MASK,
    MATCH_ALL,
    MATCH_ANY,
    NOTHING,
    OFFSET,
    OP,
    PLAIN_BARRIER,
    PRODUCT,
    REDUCE,
    REDUCED,
    SATURATE,
    SHARED,
    SHUFFLE,
    SIGNED,
    SPACE,
    STMATRIX,
    TO,
    VECTOR,
    VOTE,
    A,
    B,
    C,
    D,
    E,
    Symbols,
    space_of,
)
from replay.detailed.ptx import Instruction


def _barrier(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if "arrive" in opcode or "cluster" in opcode:
        raise KeyError(opcode)
    if opcode[:2] in (["bar", "warp"], ["barrier", "warp"]):
        return {KIND: NOTHING}
    row, operands = {KIND: BARRIER, OP: PLAIN_BARRIER}, list(i.operands)
    if "red" in opcode:
        given = operands.pop()
        del operands[0]
        row |= {OP: _reduction(opcode), A: state.operand(given.removeprefix("!"), "pred", i.line)}
        row |= {SATURATE: int(given.startswith("!"))}
    if len(operands) == 1 and operands[0].startswith("%"):
        row |= {B: state.operand(operands[0], "u32", i.line)}
    elif len(operands) > 1 or (operands and operands[0] != "0"):
        raise state.refusal(i.line, f"{i.opcode} {', '.join(i.operands)}: only barrier 0 of a whole block is supported")
    return row


def _reduction(opcode: list[str]) -> int:
    return next({"popc": COUNT_TRUE, "and": ALL_TRUE, "or": ANY_TRUE}[m] for m in opcode if m in ("popc", "and", "or"))


def _reduced(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower the second half of ``bar.red``, which stands behind the barrier and takes what was counted."""
    return {KIND: REDUCED, OP: _reduction(opcode), D: state.register(i.operands[0], i.line)}


def _shfl(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    operands, row = list(i.operands), {KIND: SHUFFLE, OP: ("up", "down", "bfly", "idx").index(opcode[2])}
    if opcode[1] != "sync" or opcode[-1] != "b32":
        raise KeyError(opcode)
    if len(operands) == 6:
        row[D2] = state.register(operands.pop(1), i.line)
    row |= {D: state.register(operands[0], i.line), A: state.operand(operands[1], "b32", i.line)}
    return row | {B: state.operand(operands[2], "u32", i.line), C: state.operand(operands[3], "u32", i.line)}


def _vote(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    which = ("all", "any", "uni", "ballot").index(opcode[2])
    negated = i.operands[1].startswith("!")
    row = {KIND: VOTE, OP: which, SATURATE: int(negated), D: state.register(i.operands[0], i.line)}
    row |= {A: state.operand(i.operands[1].removeprefix("!"), "pred", i.line)}
    return row | _members(state, i, 2, opcode[1] == "sync")


def _members(state: Symbols, i: Instruction, position: int, is_there: bool) -> dict[int, int]:
    """Return the operand that says which lanes take part."""
    return {E: state.operand(i.operands[position], "u32", i.line)} if is_there else {}


def _match(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    operands, row = list(i.operands), {KIND: VOTE, OP: {"any": MATCH_ANY, "all": MATCH_ALL}[opcode[1]]}
    if len(operands) == 4:
        row[D2] = state.register(operands.pop(1), i.line)
    row |= _members(state, i, len(i.operands) - 1, opcode[2] == "sync")
    return row | {D: state.register(operands[0], i.line), A: state.operand(operands[1], opcode[-1], i.line)}


def _redux(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    row = {KIND: VOTE, OP: REDUCE, HOW: lanes.INTEGERS[opcode[2]], SIGNED: int(opcode[-1] == "s32")}
    if opcode[1] != "sync" or opcode[2] not in ("add", "min", "max", "and", "or", "xor") or "32" not in opcode[-1]:
        raise KeyError(opcode)
    row |= _members(state, i, 2, True)
    return row | {D: state.register(i.operands[0], i.line), A: state.operand(i.operands[1], opcode[-1], i.line)}


def _elect(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if opcode[1:] != ["sync"]:
        raise KeyError(opcode)
    row = {KIND: VOTE, OP: ELECT, D: state.register(i.operands[0], i.line), D2: state.register(i.operands[1], i.line)}
    return row | _members(state, i, 2, True)


def _activemask(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: MASK, D: state.register(i.operands[0], i.line)}


def _clock(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return {KIND: MASK, OP: COUNT_INSTRUCTIONS, D: state.register(i.operands[0], i.line), BITS: int(opcode[-1][1:])}


def _ldmatrix(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if "m8n8" not in opcode or opcode[-1] != "b16":
        raise KeyError(opcode)
    stores = opcode[0] == "stmatrix"
    position, count = state.vector(i.operands[int(stores)], "b32", i.line)
    base, offset = state.address(i.operands[1 - int(stores)], i.line)
    if count != {"x1": 1, "x2": 2, "x4": 4}[next(part for part in opcode if part[0] == "x")]:
        raise ValueError(i.operands)
    row = {
        KIND: STMATRIX if stores else LDMATRIX,
        VECTOR: position,
        COUNT: count,
        A: base,
        OFFSET: offset,
        SPACE: SHARED,
    }
    return row | {OP: int("trans" in opcode)}


def _mma(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    return _product(state, i, mma_of(opcode))


def _product(state: Symbols, i: Instruction, product: FragmentProduct) -> dict[int, int]:
    positions = [state.vector(text, "b32", i.line) for text in i.operands]
    if [count for _, count in positions] != [fragment.registers for fragment in product.fragments]:
        raise ValueError(i.operands)
    facts = [(state.table(fragment), len(fragment.positions), fragment.type) for fragment in product.fragments]
    row = {KIND: PRODUCT, E: len(state.lists), COUNT: math.prod(product.shape), SATURATE: int(product.saturates)}
    state.lists += [*product.shape, *(fact for three in facts for fact in three)]
    return row | dict(zip((D, A, B, C), (position for position, _ in positions), strict=True))


def _wgmma(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    """Lower ``wgmma``, which is complete at once."""
    if opcode[1] in ("fence", "commit_group", "wait_group"):
        return {KIND: NOTHING}
    product, operands = group_product_of(opcode), list(i.operands)
    position, count = state.vector(operands[0], "b32", i.line)
    in_registers = operands[1].startswith("{")
    if in_registers:
        left, held = state.vector(operands[1], "b32", i.line)
    else:
        left, held = state.operand(operands[1], "b64", i.line), product.left.registers
    settings = [int(text, 0) for text in operands[4:]]
    # Integers have no signs, and only types of 16 bits can be transposed.
    signs = settings[:2] if product.sums != SIGNED32 else [1, 1]
    turns = [0] * in_registers + settings[2:] if product.depth == 16 else [0, 0]
    if count != product.registers or held != product.left.registers or len(turns) != 2 or len(signs) != 2:
        raise ValueError(i.operands)
    table = state.table(product.left)
    row = {KIND: GROUP_PRODUCT, D: position, A: left, B: state.operand(operands[2], "b64", i.line)}
    row |= {C: state.operand(operands[3], "pred", i.line), E: len(state.lists), HOW: int(in_registers)}
    row |= {COUNT: 16 * product.columns * product.depth}
    state.lists += [product.columns, product.depth, product.left.type, product.right, product.sums, *turns, *signs]
    state.lists += [count, table, len(product.left.positions), product.left.type]
    return row | {SATURATE: int("satfinite" in opcode)}


def _wmma(state: Symbols, i: Instruction, opcode: list[str]) -> dict[int, int]:
    if opcode[1] == "mma":
        return _product(state, i, product_of(opcode))
    stores, fragment, space = opcode[1] == "store", fragment_of(opcode), space_of(opcode)
    names, address, *stride = (i.operands[1], i.operands[0], *i.operands[2:]) if stores else i.operands
    position, count = state.vector(names, "b32", i.line)
    if stores != (opcode[2] == "d") or count != fragment.registers or space not in (GLOBAL, SHARED, GENERIC):
        raise ValueError(opcode)
    base, offset = state.address(address, i.line)
    row = {KIND: FRAGMENT_STORE if stores else FRAGMENT_LOAD, VECTOR: position, COUNT: count, A: base, OFFSET: offset}
    row |= {B: state.operand(stride[0] if stride else str(fragment.leading), "u32", i.line), E: state.table(fragment)}
    return row | {SPACE: space, BITS: fragment.bits, HOW: int(fragment.by_column), TO: fragment.run}


#: By the first part of the opcode.
WARP_INSTRUCTIONS = {
    "bar": _barrier, "barrier": _barrier, "reduced": _reduced, "shfl": _shfl, "vote": _vote, "match": _match,
    "redux": _redux, "activemask": _activemask, "elect": _elect, "clock": _clock, "ldmatrix": _ldmatrix,
    "stmatrix": _ldmatrix, "mma": _mma, "wmma": _wmma, "wgmma": _wgmma,
}  # fmt: skip
