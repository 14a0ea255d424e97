"""A PTX entry as flat arrays: an instruction a row, registers by number.

The columns, their values, and the registers that each instruction reads and writes. `Symbols` finds registers,
constants, variables and tables by the names that instructions use.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.detailed.fragments import BITS_OF, Fragment
from replay.detailed.ptx import TYPE_BYTES, Entry, Module, Variable, literal_bits, packed_layout

#: Kinds of instructions.
(
    INT, F32, F64, HALF, SETP_INT, SETP_F32, SETP_F64, SETP_HALF, SELECT, CONVERT, LOAD, STORE, BRANCH, EXIT, BARRIER,
    SHUFFLE, VOTE, ATOMIC, PACK, UNPACK, LDMATRIX, COPY, NOTHING, MASK,
    FRAGMENT_LOAD, FRAGMENT_STORE, PRODUCT, TEXTURE, TRAP, CARRY,
    REDUCED, GROUP_PRODUCT, STMATRIX,
) = range(33)  # fmt: skip
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
WHOLE, FP16, BF16, FP32, FP64, TF32, E4M3, E5M2 = range(8)
#: Roundings of conversions; AWAY is to nearest, ties away from zero.
NEAREST, ZERO, DOWN, UP, AWAY = range(5)
#: First generic address of shared and of local memory, and of global memory.
SHARED_WINDOW, LOCAL_WINDOW, GLOBAL_BASE = 1 << 44, 1 << 45, 1 << 32
#: Handle of the first texture of a launch.
TEXTURE_BASE = 1 << 48
#: Operations of ATOMIC beyond those of `lanes`.
EXCHANGE, COMPARE, INCREMENT, DECREMENT = range(100, 104)
#: Operations of VOTE. REDUCE has an operation of `lanes` in HOW.
VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT, MATCH_ANY, MATCH_ALL, REDUCE, ELECT = range(8)
#: Operations of BARRIER, and of REDUCED, which gives what a barrier counted.
PLAIN_BARRIER, COUNT_TRUE, ALL_TRUE, ANY_TRUE = range(4)
#: Operation of MASK that gives the instructions of warps until now, for a clock. Without one, it gives active lanes.
COUNT_INSTRUCTIONS = 1
#: Special registers by number; the compiled code sets them when a block begins.
SPECIAL = (
    "%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%ntid.x", "%ntid.y", "%ntid.z",
    "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%smid", "%lanemask_lt", "%lanemask_le",
    "%lanemask_eq", "%lanemask_ge", "%lanemask_gt", "%clock", "%clock64", "%globaltimer",
)  # fmt: skip


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
    variable_offsets, shared_offsets : mapping of str to int
        Offset of each variable in global and constant memory, and of each in shared memory.
    unset : tuple of str
        Variables in constant memory that the code uses and that the file gives no content.
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
    variable_offsets: Mapping[str, int]
    shared_offsets: Mapping[str, int]
    unset: tuple[str, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Operands:
    """Registers of an instruction.

    Parameters
    ----------
    sources, targets : tuple of int
        Registers that it reads, its guard included, and that it writes.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]


def operands_of(program: Program) -> list[Operands]:
    """Return the registers of each instruction of a program."""
    return [_operands(row, program.lists) for row in program.code]


def _operands(row, lists) -> Operands:  # type: ignore[no-untyped-def]
    kind = row[KIND]
    sources = [int(row[GUARD])]
    vector = [int(r) for r in lists[row[VECTOR] : row[VECTOR] + row[COUNT]]] if row[VECTOR] >= 0 else []
    plain = [int(row[column]) for column in (A, B, C, E)]
    target = [int(row[D]), int(row[D2])]
    if kind in (LOAD, LDMATRIX):
        sources, target = [*sources, int(row[A])], vector
    elif kind in (STORE, STMATRIX, PACK):
        sources += [int(row[A]), *vector]
    elif kind == UNPACK:
        sources, target = [*sources, int(row[A])], vector
    elif kind == PRODUCT:
        facts = int(row[E]) + 3
        held = []
        for number, column in enumerate((D, A, B, C)):
            count, element = int(lists[facts + 3 * number + 1]), int(lists[facts + 3 * number + 2])
            held.append([int(lists[row[column] + n]) for n in range(count * min(BITS_OF[element], 32) // 32)])
        sources, target = [*sources, *held[1], *held[2], *held[3]], held[0]
    elif kind == GROUP_PRODUCT:
        # Sums are added to in the tensor cores: a product does not wait for the one before.
        left = [int(lists[row[A] + n]) for n in range(4)] if row[HOW] else [int(row[A])]
        sources += [*left, int(row[B]), int(row[C])]
        target = [int(lists[row[D] + n]) for n in range(int(lists[row[E] + 9]))]
    elif kind in (TEXTURE, FRAGMENT_LOAD):
        sources, target = [*sources, *plain[: 2 + (kind == TEXTURE)]], vector
    elif kind == FRAGMENT_STORE:
        sources, target = [*sources, *plain[:2], *vector], []
    elif kind == COPY:
        sources, target = [*sources, int(row[D]), *plain[:2]], []
    else:
        sources += plain
    if kind in (STORE, STMATRIX):
        target = []
    return Operands(tuple(s for s in sources if s >= 0), tuple(t for t in target if t >= 0))


def single_definitions(operands: list[Operands]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the instruction that defines each register, -1 if several do, and the instructions that read it."""
    defined: dict[int, int] = {}
    uses: dict[int, list[int]] = {}
    for row, item in enumerate(operands):
        for target in item.targets:
            defined[target] = -1 if target in defined else row
        for source in set(item.sources):
            uses.setdefault(source, []).append(row)
    return defined, uses


_SPACES = {
    "global": GLOBAL, "const": CONSTANT, "param": PARAMETER, "shared": SHARED, "shared::cta": SHARED, "local": LOCAL,
}  # fmt: skip

#: What has the same value in all launches: one compute unit, a cluster of one block, and shared memory that the driver
#: reserves, which lies beyond that of the block.
_FIXED = {
    "WARP_SZ": 32, "%nsmid": 1, "%gridid": 0, "%is_explicit_cluster": 0,
    **{f"%cluster_{name}": value for name, value in (("ctarank", 0), ("nctarank", 1))},
    **{f"%cluster_{name}.{axis}": value for name, value in (("ctaid", 0), ("nctaid", 1)) for axis in "xyz"},
    **{f"%reserved_smem_offset_{name}": 1 << 20 for name in ("begin", "end", "cap", "0", "1")},
}  # fmt: skip


class Symbols:
    """Registers, constants and symbols while an entry is lowered."""

    def __init__(self, module: Module, entry: Entry, variable_offsets: Mapping[str, int]) -> None:
        self.module, self.entry, self.variable_offsets = module, entry, variable_offsets
        self.numbers: dict[str, int] = {}
        self.constants: dict[int, int] = {}
        self.lists: list[int] = []
        self.tables: dict[bytes, int] = {}
        self.count = 0
        self.used: set[str] = set()
        self.symbols: dict[str, tuple[int, int]] = {}
        self.parameter_offset, self.parameter_bytes = packed_layout(entry.parameters)
        parameters = {p.name: o for p, o in zip(entry.parameters, self.parameter_offset, strict=True)}
        self.symbols.update({name: (GLOBAL, GLOBAL_BASE + offset) for name, offset in parameters.items()})
        self.symbols.update({name: (GLOBAL, GLOBAL_BASE + offset) for name, offset in variable_offsets.items()})
        self.shared_bytes = self._allocate("shared", (*module.variables, *entry.variables), SHARED)
        self.local_bytes = self._allocate("local", entry.variables, LOCAL)

    def _allocate(self, space: str, variables: tuple[Variable, ...], number: int) -> int:
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
            raise self.refusal(line, f"{name} is no declared register, and no special one that is supported")
        self.numbers[name] = self.count
        self.count += 1
        return self.numbers[name]

    def flag(self) -> int:
        """Return the register of the carry flag."""
        if "" not in self.numbers:
            self.numbers[""] = self.count
            self.count += 1
        return self.numbers[""]

    def kind(self, name: str) -> str:
        """Return the declared type of a register; empty if it has none."""
        registers = self.entry.registers
        return registers.get(name) or registers.get(name.rstrip("0123456789"), "")

    def widths(self) -> tuple[int, ...]:
        """Return the 32-bit registers of the machine that each register takes."""
        sizes = {"pred": 0, "b64": 2, "u64": 2, "s64": 2, "f64": 2}
        named = {number: sizes.get(self.kind(name), 1) for name, number in self.numbers.items()}
        return tuple(named.get(number, 0) for number in range(self.count))

    def shared_offsets(self) -> dict[str, int]:
        """Return the offset of each variable in shared memory."""
        return {name: offset for name, (space, offset) in self.symbols.items() if space == SHARED}

    def unset(self) -> tuple[str, ...]:
        """Return the variables in constant memory that were used and have no content."""
        found = (v for v in self.module.globals if v.space == "const" and not v.content)
        return tuple(variable.name for variable in found if variable.name in self.used)

    def operand(self, text: str, kind: str, line: int) -> int:
        """Return the register of an operand; a literal or an address becomes a constant."""
        if text.startswith("!"):
            raise self.refusal(line, f"operand {text} is not supported")
        if text in _FIXED:
            return self.constant(_FIXED[text])
        if text in SPECIAL or text.startswith("%") or text == "_" or self.kind(text):
            return self.register(text, line)
        symbol, _, offset = text.partition("+")
        if symbol in self.symbols:
            self.used.add(symbol)
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
        """Return where the positions of a fragment stand in the lists; equal fragments share them."""
        key = fragment.positions.tobytes()
        if key not in self.tables:
            self.tables[key] = len(self.lists)
            self.lists += fragment.positions.reshape(-1).tolist()
        return self.tables[key]

    def address(self, text: str, line: int) -> tuple[int, int]:
        """Return the register and the offset of an address in brackets."""
        match = re.fullmatch(r"\[([\w$%.]+)(?:\+(-?\w{1,16}))?(-\w{1,16})?\]", text)
        if not match:
            raise self.refusal(line, f"address {text:.60} is not supported")
        return self.operand(match[1], "u64", line), int(match[2] or match[3] or "0", 0)

    def refusal(self, line: int, problem: str) -> InvalidInputError:
        """Return the error for what is not supported on a line."""
        return InvalidInputError(f"{self.module.source}: line {line}: {problem}")


def space_of(opcode: list[str]) -> int:
    """Return the state space that an opcode names; GENERIC without one."""
    return next((_SPACES[m] for m in opcode[1:] if m in _SPACES), GENERIC)
