"""Turn a lowered PTX entry into the operations that a compute unit issues, as the assembler of the vendor would.

PTX is not what runs: its assembler (ptxas) removes moves, folds address arithmetic, merges loads of shared memory,
expands divisions, and orders instructions. `assemble` does the same by general rules, so that instructions and
accesses are counted as the machine counts them.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from profilers.trace.arrays import Ints
from replay.detailed import program as low
from replay.detailed.lowering import following_blocks
from replay.detailed.program import Operands, Program, operands_of, single_definitions
from replay.detailed.timing.expansion import (
    INTEGER,
    NO_UNIT,
    SHARED_LOAD,
    SHARED_STORE,
    SPECIAL,
    ComputeUnits,
    Expansion,
    Operation,
    expansion_of,
    ordered,
)

#: Columns of `AssembledKernel.operations`. SOURCES, TARGETS and SLOTS are positions in `AssembledKernel.lists`; each is
#: followed by its end.
(
    UNIT, ISSUES, INTERVAL, LATENCY, ROLE, SOURCES, SOURCES_END, TARGETS, TARGETS_END, SLOTS, SLOTS_END, WIDTH, LINE,
) = range(13)  # fmt: skip
#: Instructions whose operand A is an address of the space that they name.
_ADDRESSED = (low.LOAD, low.STORE, low.ATOMIC, low.FRAGMENT_LOAD, low.FRAGMENT_STORE)
#: Largest power of two that is of interest as an alignment.
_MOST_ALIGNED = 1 << 16
#: Registers of 32 bit that a thread has at most.
_MOST_REGISTERS = 255
#: Registers that the assembler takes beside the live ones.
_SPARE_REGISTERS = 6


@dataclass(frozen=True)
class AssembledKernel:
    """Operations of an entry.

    Parameters
    ----------
    operations : array of int64, shape (n, 13)
        Operations; columns as in this module.
    blocks : array of int64, shape (m + 1,)
        First operation of each basic block.
    lists : array of int64
        Registers of the scoreboard, and numbers of accesses.
    scoreboard : int
        Registers of the scoreboard.
    registers : int
        Estimated 32-bit registers of a thread.
    """

    operations: Ints
    blocks: Ints
    lists: Ints
    scoreboard: int
    registers: int


def assemble(program: Program, core: ComputeUnits) -> AssembledKernel:
    """Return the operations of an entry on a device.

    Parameters
    ----------
    program : Program
        Entry.
    core : ComputeUnits
        Compute unit of the device.
    """
    operands = operands_of(program)
    blocks = [*np.flatnonzero(program.code[:, low.LEADER] >= 0).tolist(), len(program.code)]
    listed: list[list[Operation]] = []
    folded = _Folding(program, operands)
    for begin, end in pairwise(blocks):
        operations = [operation for row in range(begin, end) if (operation := folded.operation(row, core)) is not None]
        listed.append(ordered(_merged(operations, folded)))
    return _packed(listed, program, blocks)


class _Folding:
    """Which instructions vanish into others, and under which name their results are known."""

    def __init__(self, program: Program, operands: list[Operands]) -> None:
        self.program, self.operands = program, operands
        self.code = program.code
        self.opcodes = [i.opcode for i in program.entry.code]
        self.defined, self.uses = single_definitions(operands)
        self.alias: dict[int, int] = {}
        self.constant = {int(register) for register, _ in program.constants}
        self.value = {int(register): int(bits) for register, bits in program.constants}
        self.gone: set[int] = set()
        self.extra: dict[int, tuple[int, ...]] = {}
        self.narrow = self._shared_addresses()
        self.special = {int(register) for register, _ in program.special}
        self.aligned = self._alignments()
        for row in range(len(self.opcodes)):
            self._fold(row)

    def name(self, register: int) -> int:
        """Return the register that holds the value of another; -1 for a constant."""
        while register in self.alias:
            register = self.alias[register]
        return -1 if register in self.constant else register

    def _shared_addresses(self) -> set[int]:
        """Return 64-bit registers that serve for addresses of shared memory alone: the machine has them in 32 bits."""
        wide: set[int] = set()
        feeds: dict[int, set[int]] = {}
        for row, item in enumerate(self.operands):
            code = self.code[row]
            is_address = code[low.KIND] in _ADDRESSED and code[low.SPACE] == low.SHARED
            passes = code[low.KIND] == low.INT and self.opcodes[row : row + 1] and code[low.TO] == 64
            for source in item.sources:
                if is_address and source == code[low.A]:
                    continue
                if passes and item.targets:
                    feeds.setdefault(source, set()).update(item.targets)
                else:
                    wide.add(source)
        everything = {s for item in self.operands for s in (*item.sources, *item.targets)}
        narrow = everything - wide
        while True:
            kept = {r for r in narrow if feeds.get(r, set()) <= narrow}
            if kept == narrow:
                return narrow
            narrow = kept

    def _fold(self, row: int) -> None:
        """Let an instruction vanish if the machine needs none for it."""
        item, code, opcode = self.operands[row], self.code[row], self.opcodes[row]
        if len(item.targets) != 1 or code[low.GUARD] >= 0:
            return
        target = item.targets[0]
        once = self.defined.get(target, -1) == row
        kind = opcode.split(".")[0]
        if code[low.KIND] == low.LOAD and code[low.SPACE] == low.PARAMETER:
            if once:
                self.constant.add(target)
                self.gone.add(row)
            return
        moves = kind in ("mov", "cvta") or opcode in ("cvt.u64.u32", "cvt.u32.u64", "abs.f32", "neg.f32")
        moves = moves or (opcode == "cvt.s64.s32" and target in self.narrow)
        if moves and code[low.KIND] in (low.INT, low.CONVERT, low.F32) and once:
            source = int(code[low.A])
            if self.name(source) < 0:
                self.constant.add(target)
            elif source in self.special:
                return
            elif self.defined.get(self.name(source), -1) >= 0:
                self.alias[target] = source
            else:
                return
            self.gone.add(row)
            return
        self._fold_into_user(row, target, opcode, once)

    def _fold_into_user(self, row: int, target: int, opcode: str, once: bool) -> None:
        """Let the machine's operations of three inputs take in two of PTX."""
        users = self.uses.get(target, [])
        if not once or not users:
            return
        add64 = {"add.s64", "add.u64"}
        if opcode.startswith("mul.wide") or opcode in ("shl.b64",):
            if all(self._plain(user) and self.opcodes[user] in add64 for user in users) and target not in self.narrow:
                self._absorb(row, users, wide=opcode.startswith("mul.wide"))
            elif target in self.narrow and all(self.opcodes[user] in add64 for user in users) and len(users) == 1:
                self._absorb(row, users, wide=True)
            return
        if len(users) != 1:
            return
        user = users[0]
        if not self._plain(user) or not self._same_block(row, user):
            return
        other = self.opcodes[user]
        logic = ("and.b32", "or.b32", "xor.b32", "not.b32")
        add = ("add.s32", "add.u32", "sub.s32", "sub.u32")
        fits = len(self._inputs(row) | self._inputs(user) - {target}) <= 3
        pairs = (opcode in logic and other in logic) or (opcode in add and other in add)
        pairs = pairs or (opcode == "shl.b32" and other in add) or (opcode.startswith("mul.lo") and other in add)
        if pairs and fits:
            self._absorb(row, users, wide=False)

    def _plain(self, row: int) -> bool:
        return row < len(self.opcodes) and row not in self.gone and self.code[row, low.GUARD] < 0

    def _same_block(self, row: int, user: int) -> bool:
        return user > row and not np.any(self.code[row + 1 : user + 1, low.LEADER] >= 0)

    def _inputs(self, row: int) -> set[int]:
        registers = {*self.operands[row].sources, *self.extra.get(row, ())}
        return {self.name(register) for register in registers} - {-1}

    def _absorb(self, row: int, users: list[int], wide: bool) -> None:
        for user in users:
            self.extra[user] = (*self.extra.get(user, ()), *self._inputs(row))
            if wide:
                self.extra[user] = (*self.extra[user], -2)
        self.gone.add(row)

    def operation(self, row: int, core: ComputeUnits) -> Operation | None:
        """Return the operation of an instruction; None if it needs none."""
        if row in self.gone:
            return None
        code = self.code[row]
        opcode = self.opcodes[row] if row < len(self.opcodes) else "exit"
        item = self.operands[row]
        if code[low.KIND] == low.NOTHING:
            return None
        extra = self.extra.get(row, ())
        sources = {self.name(s) for s in (*item.sources, *(e for e in extra if e >= 0))} - {-1} - self.special
        expansion = expansion_of(code, opcode, core.figures)
        if expansion.issues == 2 and (-2 in extra or any(t in self.narrow for t in item.targets)):
            expansion = Expansion(INTEGER, 1, core.figures.integer.interval, core.figures.integer.latency)
        is_free_move = opcode.startswith(("mov", "cvta")) and code[low.KIND] == low.INT
        if is_free_move and int(code[low.A]) not in self.special:
            expansion = Expansion(NO_UNIT, 0, 0, 0)
        if is_free_move and int(code[low.A]) in self.special:
            expansion = Expansion(SPECIAL, 1, 2, core.figures.special.latency)
        slots = (int(code[low.SLOT]),) if code[low.SLOT] >= 0 else ()
        width = max(int(code[low.BITS]) // 8, 1) * max(int(code[low.COUNT]), 1) if slots else 4
        return Operation(
            expansion.unit, expansion.role, expansion.issues, expansion.interval, expansion.latency,
            tuple(sorted(sources)), item.targets, slots, width, int(code[low.LINE]), row, _touched(code),
        )  # fmt: skip

    def _alignments(self) -> dict[int, int]:
        """Return a power of two that divides each register, whatever way it was set."""
        powers = {register: _power(value) for register, value in self.value.items()}
        changed = True
        while changed:
            changed = False
            for row, opcode in enumerate(self.opcodes):
                for target in self.operands[row].targets:
                    power = min(powers.get(target, _MOST_ALIGNED), self._alignment(row, opcode.split("."), powers))
                    changed = changed or power != powers.get(target)
                    powers[target] = power
        return powers

    def _alignment(self, row: int, opcode: list[str], powers: dict[int, int]) -> int:
        """Return a power of two that divides the result of an instruction; unknown operands are divided by all."""
        code, name = self.code[row], opcode[0]
        a, b, c = (powers.get(int(code[column]), _MOST_ALIGNED) for column in (low.A, low.B, low.C))
        if int(code[low.A]) in self.special or code[low.KIND] not in (low.INT, low.CONVERT):
            return 1
        if name in ("mov", "cvta", "cvt"):
            return a
        if name in ("add", "sub", "or", "xor"):
            return min(a, b)
        # The assembler follows pointers around a loop, but no index that is multiplied afterwards.
        once = [self.defined.get(int(code[column]), 0) >= 0 for column in (low.A, low.B)]
        a, b = (power if single else 1 for power, single in zip((a, b), once, strict=True))
        if name == "shl":
            return min(a << min(self.value.get(int(code[low.B]), 0), 16), _MOST_ALIGNED)
        if name == "and":
            return max(a, b)
        if name in ("mul", "mad") and "hi" not in opcode:
            return min(a * b, _MOST_ALIGNED, c if name == "mad" else _MOST_ALIGNED)
        return 1


def _power(value: int) -> int:
    return min(value & -value, _MOST_ALIGNED) if value else _MOST_ALIGNED


def _touched(code: Ints) -> frozenset[int]:
    """Return the spaces that an instruction accesses; GENERIC touches all."""
    kind, space = code[low.KIND], int(code[low.SPACE])
    if kind in (*_ADDRESSED, low.LDMATRIX, low.STMATRIX):
        return frozenset({low.GLOBAL, low.SHARED, low.LOCAL} if space == low.GENERIC else {space})
    if kind == low.GROUP_PRODUCT:
        return frozenset({low.SHARED})
    return frozenset({low.GLOBAL, low.SHARED}) if kind in (low.COPY, low.BARRIER) else frozenset()


def _merged(operations: list[Operation], folding: _Folding) -> list[Operation]:
    """Merge loads, and stores, of neighbouring words of shared memory into those of 8 and 16 bytes.

    The words must lie in a piece of 16 bytes whose alignment is known, and nothing between may write the memory.
    """
    merged: list[Operation] = []
    for role in (SHARED_LOAD, SHARED_STORE):
        merged = []
        open_groups: dict[tuple[int, int, int], int] = {}
        for operation in operations:
            if operation.role != role or operation.width >= 16:
                if low.SHARED in operation.spaces and operation.role != role:
                    open_groups = {}
                merged.append(operation)
                continue
            code = folding.code[operation.row]
            base, offset = int(code[low.A]), int(code[low.OFFSET])
            aligned = folding.aligned.get(base, 1)
            if base in folding.value:
                offset, base, aligned = offset + folding.value[base], -1, _MOST_ALIGNED
            wide = min(16, aligned)
            key = (base, offset // wide, wide)
            if wide <= operation.width or code[low.GUARD] >= 0:
                merged.append(operation)
                continue
            if key in open_groups:
                at = open_groups[key]
                first = merged[at]
                joined = replace(
                    first, targets=(*first.targets, *operation.targets), slots=(*first.slots, *operation.slots),
                    sources=tuple(sorted({*first.sources, *operation.sources})), width=first.width + operation.width,
                )  # fmt: skip
                if role == SHARED_STORE:
                    # The store takes place where its last word is known.
                    merged[at] = replace(first, unit=-1)
                    open_groups[key] = len(merged)
                    merged.append(joined)
                else:
                    merged[at] = joined
            else:
                open_groups[key] = len(merged)
                merged.append(operation)
        operations = [operation for operation in merged if operation.unit >= 0]
    return operations


def _packed(listed: list[list[Operation]], program: Program, blocks: list[int]) -> AssembledKernel:
    """Return the operations as arrays, their registers renamed to few."""
    everything = [operation for operations in listed for operation in operations]
    names = _allocated(listed, program, blocks)
    registers = min(_most_live(listed, program) + _SPARE_REGISTERS, _MOST_REGISTERS)
    table = np.zeros((len(everything), LINE + 1), dtype=np.int64)
    lists: list[int] = []
    for number, operation in enumerate(everything):
        spans: list[int] = []
        for group in (operation.sources, operation.targets):
            spans.append(len(lists))
            lists += sorted({names[register] for register in group if register in names})
            spans.append(len(lists))
        spans.append(len(lists))
        lists += operation.slots
        spans.append(len(lists))
        table[number] = (
            operation.unit, operation.issues, operation.interval, operation.latency, operation.role, *spans,
            operation.width, operation.line,
        )  # fmt: skip
    firsts = np.cumsum([0, *(len(operations) for operations in listed)])
    count = max([0, *names.values()]) + 1
    return AssembledKernel(table, firsts.astype(np.int64), np.array(lists or [0], dtype=np.int64), count, registers)


def _most_live(listed: list[list[Operation]], program: Program) -> int:
    """Return the most 32-bit registers whose values are needed at the same time.

    A value is needed from its definition to its last use, on all ways through the program (Muchnick, Advanced Compiler
    Design and Implementation, 1997, section 14.1). Parameters and constants are in no register.
    """
    code, widths = program.code, _widths(program)
    kinds, guarded = code[:, low.KIND], code[:, low.GUARD] >= 0
    following = following_blocks(kinds == low.BRANCH, kinds == low.EXIT, guarded, code[:, low.TARGET])
    defined = {target for operations in listed for operation in operations for target in operation.targets}
    needed: list[set[int]] = [set() for _ in range(len(following) + 1)]
    changes, most = True, 0
    while changes:
        changes, most = False, 0
        for number in range(len(following) - 1, -1, -1):
            live = set().union(*(needed[other] for other in following[number]))
            for operation in reversed(listed[number]):
                most = max(most, sum(widths.get(register, 1) for register in live.union(operation.targets)))
                live = live.difference(operation.targets) | defined.intersection(operation.sources)
            changes = changes or live != needed[number]
            needed[number] = live
    return most


def _allocated(listed: list[list[Operation]], program: Program, blocks: list[int]) -> dict[int, int]:
    """Give registers whose values do not live at the same time one name; return the names.

    A register lives from its first to its last use. If it is used in a loop and lives before the loop, it lives to the
    loop's end (linear scan; Poletto and Sarkar, TOPLAS 1999).
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    at, begins = 0, []
    for operations in listed:
        begins.append(at)
        for operation in operations:
            for register in (*operation.sources, *operation.targets):
                first.setdefault(register, at)
                last[register] = at
            at += 1
    begins.append(at)
    number = {row: k for k, row in enumerate(blocks)}
    branches = np.flatnonzero(program.code[:, low.KIND] == low.BRANCH)
    starts = np.array(blocks)
    loops = []
    for row in branches:
        to, own = int(program.code[row, low.TARGET]), int(np.searchsorted(starts, row, "right")) - 1
        if to <= row:
            loops.append((begins[number[to]], begins[own + 1]))
    for begin, end in sorted(loops, key=lambda loop: loop[1] - loop[0]):
        for register in first:
            if first[register] < begin <= last[register] < end:
                last[register] = end
    events = sorted(first, key=lambda register: first[register])
    free: list[int] = []
    active: list[tuple[int, int]] = []
    names: dict[int, int] = {}
    given = 0
    for register in events:
        still = []
        for end, name in active:
            if end < first[register]:
                free.append(name)
            else:
                still.append((end, name))
        active = still
        names[register] = free.pop() if free else given
        given = max(given, names[register] + 1)
        active.append((last[register], names[register]))
    return names


def _widths(program: Program) -> dict[int, int]:
    """Return the 32-bit registers that each register takes: none for a predicate."""
    return dict(enumerate(program.widths))
