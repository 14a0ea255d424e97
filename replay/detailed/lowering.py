"""Lower a PTX entry to flat arrays: an instruction a row, registers by number, branches with reconvergence points.

A call of a function is replaced by the function's body: what it passes lies in registers, and a structure, or what is
accessed in parts, in local memory. `printf` prints nothing, and `assert` ends the run if it fails.

Whatever is not supported is refused here, with its line, before anything runs. The two ways of a branch meet again at
its immediate post-dominator.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.detailed import program as low
from replay.detailed.instructions import row_of
from replay.detailed.program import Program, Symbols
from replay.detailed.ptx import TYPE_BYTES, Entry, Instruction, Module, Variable, variable_layout

#: Registers of the steps of ``set`` and ``isspacep``.
_OF_STEPS = {"%set$first": "pred", "%set$second": "pred", "%set$part": "b32", "%space$far": "b64"}
#: Generic addresses of each space.
_WINDOWS = {
    "global": (low.GLOBAL_BASE, low.SHARED_WINDOW),
    "shared": (low.SHARED_WINDOW, low.LOCAL_WINDOW),
    "local": (low.LOCAL_WINDOW, 1 << 62),
}
#: Instructions that access memory.
_ACCESSES = (
    low.LOAD, low.STORE, low.ATOMIC, low.LDMATRIX, low.STMATRIX, low.COPY, low.FRAGMENT_LOAD, low.FRAGMENT_STORE,
    low.TEXTURE,
)  # fmt: skip
_CLOCKS = ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo")


def lower(module: Module, name: str = "", variable_offsets: Mapping[str, int] | None = None) -> Program:
    """Return the program of an entry.

    Parameters
    ----------
    module : Module
        PTX file.
    name : str
        Entry; may be empty if there is only one.
    variable_offsets : mapping of str to int, optional
        Offset of each variable in global and constant memory; by default behind the parameters.

    Raises
    ------
    InvalidInputError
        The entry is missing, or has an instruction that is not supported; with its line.
    """
    entry = _in_steps(with_calls_replaced(module, module.entry(name)))
    if variable_offsets is None:
        variable_offsets = variable_layout([module])[0][module.source]
    state = Symbols(module, entry, variable_offsets)
    rows = [row_of(state, instruction) for instruction in entry.code] or [{low.KIND: low.EXIT}]
    rows.append({low.KIND: low.EXIT, low.LINE: entry.code[-1].line if entry.code else entry.line})
    code = np.full((len(rows), low.LINE + 1), -1, dtype=np.int64)
    code[:, [low.NEGATED, low.SIGNED, low.SATURATE, low.HOW, low.OFFSET, low.SPACE, low.MEMORIES]] = 0
    for number, row in enumerate(rows):
        for column, value in row.items():
            code[number, column] = value
    branches, exits = code[:, low.KIND] == low.BRANCH, code[:, low.KIND] == low.EXIT
    code[:, low.JOIN] = joins(branches, exits, code[:, low.GUARD] >= 0, code[:, low.TARGET])
    _number_blocks(code, leaders(branches, exits, code[:, low.TARGET]))
    special = [(state.numbers[s], i) for i, s in enumerate(low.SPECIAL) if s in state.numbers]
    constants = [(register, _as_signed(bits)) for bits, register in state.constants.items()]
    return Program(
        module, entry, code, np.array(state.lists or [0], dtype=np.int64), max(state.count, 1),
        np.array(constants, dtype=np.int64).reshape(-1, 2), np.array(special, dtype=np.int64).reshape(-1, 2),
        state.shared_bytes, state.local_bytes, state.parameter_bytes, state.parameter_offset,
        state.variable_offsets, state.shared_offsets(), state.unset(), state.widths(),
    )  # fmt: skip


def _in_steps(entry: Entry) -> Entry:
    """Return an entry whose instructions do one thing each.

    Behind each ``bar.red`` stands one that takes its result, once all warps were there. Atomics of vectors become one
    for each element, and ``set`` a comparison and a selection.
    """
    code: list[Instruction] = []
    begins = [0]
    for instruction in entry.code:
        try:
            code += _steps(instruction)
        except (KeyError, ValueError, IndexError):
            code.append(instruction)  # refused when it is lowered
        begins.append(len(code))
    labels = {label: begins[at] for label, at in entry.labels.items()}
    return replace(entry, code=tuple(code), labels=labels, registers={**_OF_STEPS, **entry.registers})


def _steps(i: Instruction) -> list[Instruction]:
    opcode = i.opcode.split(".")
    if opcode[0] in ("bar", "barrier") and "red" in opcode:
        return [i, replace(i, opcode=f"reduced.{i.opcode}", operands=i.operands[:1])]
    if opcode[0] == "set" and len(opcode) > 3:
        return _set(i, opcode)
    if opcode[0] == "mov" and len(i.operands) == 2 and i.operands[1] in _CLOCKS:
        return [replace(i, opcode=f"clock.{opcode[-1]}", operands=i.operands[:1])]
    if opcode[0] == "isspacep":
        return _is_in_space(i, opcode)
    vector = next((part for part in opcode if part in ("v2", "v4", "v8")), "")
    if opcode[0] not in ("atom", "red") or not vector or opcode[-1] not in TYPE_BYTES:
        return [i]
    *target, brackets, values = (_parts(text) for text in i.operands if text)
    base, size = brackets[0].strip("[]"), TYPE_BYTES[opcode[-1]]
    address, _, offset = base.partition("+")
    name = i.opcode.replace(f".{vector}", "", 1)
    return [
        replace(
            i, opcode=name, operands=(*(t[n] for t in target), f"[{address}+{int(offset or '0', 0) + n * size}]", v)
        )
        for n, v in enumerate(values)
    ]


def _set(i: Instruction, opcode: list[str]) -> list[Instruction]:
    """Return the steps of ``set.CMP.TYPE.TYPE``: the result is all ones, or 1.0, if the comparison holds, else 0."""
    result, *compared = i.operands
    kind, name = opcode[-2], ".".join(["setp", *opcode[1:-2], opcode[-1]])
    first, second, part, _ = _OF_STEPS
    if kind.endswith("x2"):
        one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}[kind]
        return [
            replace(i, opcode=name, operands=(first, second, *compared)),
            replace(i, opcode="selp.b32", operands=(part, str(one), "0", first)),
            replace(i, opcode="selp.b32", operands=(result, str(one << 16), "0", second)),
            replace(i, opcode="or.b32", operands=(result, result, part)),
        ]
    true = {"u32": "0xffffffff", "s32": "0xffffffff", "f32": "0f3F800000", "f16": "0x3C00", "bf16": "0x3F80"}[kind]
    return [
        replace(i, opcode=name, operands=(first, *compared)),
        replace(i, opcode=f"selp.b{8 * TYPE_BYTES[kind]}", operands=(result, true, "0", first)),
    ]


def _is_in_space(i: Instruction, opcode: list[str]) -> list[Instruction]:
    """Return the steps of ``isspacep``: whether an address is in the window of a space."""
    begin, end = _WINDOWS[opcode[1].split("::")[0]]
    return [
        replace(i, opcode="sub.u64", operands=("%space$far", i.operands[1], str(begin))),
        replace(i, opcode="setp.lt.u64", operands=(i.operands[0], "%space$far", str(end - begin))),
    ]


def _parts(text: str) -> list[str]:
    return text.strip("{}").split(",")


def _number_blocks(code: Ints, begins: list[int]) -> None:
    """Number the basic blocks, and the accesses to memory of each."""
    accesses = np.isin(code[:, low.KIND], _ACCESSES)
    accesses &= code[:, low.SPACE] != low.PARAMETER
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(code)], strict=True)):
        inside = np.flatnonzero(accesses[begin:end]) + begin
        code[begin, low.LEADER], code[begin, low.MEMORIES] = number, len(inside)
        code[inside, low.SLOT] = np.arange(len(inside))


def _as_signed(bits: int) -> int:
    return (bits & (1 << 64) - 1) - (1 << 64 if bits >> 63 & 1 else 0)


Mask = npt.NDArray[np.bool_]


def leaders(branches: Mask, exits: Mask, targets: Ints) -> list[int]:
    """Return the first instruction of each basic block; arguments as those of `joins`."""
    starts = {0} | {int(t) for t in targets[branches]}
    starts |= {int(p) + 1 for p in np.flatnonzero(branches | exits) if p + 1 < len(branches)}
    return sorted(starts)


def following_blocks(branches: Mask, exits: Mask, guarded: Mask, targets: Ints) -> list[list[int]]:
    """Return the basic blocks that may follow each, by number; the number of blocks stands for the end of a thread.

    Arguments are those of `joins`.
    """
    begins = leaders(branches, exits, targets)
    number = {begin: k for k, begin in enumerate(begins)}
    leave = len(begins)
    following: list[list[int]] = []
    for k in range(leave):
        last = (begins[k + 1] if k + 1 < leave else len(branches)) - 1
        through = [min(k + 1, leave)]
        if branches[last]:
            to = [number[int(targets[last])]]
            following.append(to + through if guarded[last] else to)
        elif exits[last]:
            following.append([leave, *through] if guarded[last] else [leave])
        else:
            following.append(through)
    return following


def joins(branches: Mask, exits: Mask, guarded: Mask, targets: Ints) -> Ints:
    """Return for each branch the instruction at which its two ways meet; -1 for other instructions.

    Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm (2001), on the reversed graph of basic blocks.

    Parameters
    ----------
    branches, exits, guarded : array of bool, shape (n,)
        Which instructions are branches, which end a thread, and which have a guard.
    targets : array of int64, shape (n,)
        Target of each branch.
    """
    n = len(branches)
    begins = leaders(branches, exits, targets)
    leave = len(begins)
    meet = _post_dominators(following_blocks(branches, exits, guarded, targets), leave)
    meeting = np.full(n, -1, dtype=np.int64)
    for k in range(leave):
        last = (begins[k + 1] if k + 1 < leave else n) - 1
        if branches[last]:
            meeting[last] = begins[meet[k]] if 0 <= meet[k] < leave else n
    return meeting


def _post_dominators(following: list[list[int]], leave: int) -> list[int]:
    """Return the immediate post-dominator of each block; `leave` is the exit, -1 if a block never ends."""
    before: list[list[int]] = [[] for _ in range(leave + 1)]
    for k, nexts in enumerate(following):
        for other in nexts:
            before[other].append(k)
    order, seen, stack = [], {leave}, [(leave, iter(before[leave]))]
    while stack:
        node, rest = stack[-1]
        step = next((k for k in rest if k not in seen), None)
        if step is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(step)
            stack.append((step, iter(before[step])))
    rank = {node: position for position, node in enumerate(order)}
    meet = [-1] * leave + [leave]
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            common = -1
            for other in following[node]:
                if other == leave or meet[other] >= 0:
                    common = other if common < 0 else _common_dominator(meet, rank, common, other)
            if common != meet[node]:
                meet[node], changed = common, True
    return meet


def _common_dominator(meet: list[int], rank: Mapping[int, int], a: int, b: int) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = meet[a]
        while rank[b] < rank[a]:
            b = meet[b]
    return a


_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$%][\w$]*")
_DIGITS = "0123456789"
#: Most instructions of an entry, with all that it calls.
_MOST_INSTRUCTIONS = 1 << 20


def with_calls_replaced(module: Module, entry: Entry) -> Entry:
    """Return an entry without calls.

    Parameters
    ----------
    module : Module
        PTX file with the functions.
    entry : Entry
        Kernel.

    Raises
    ------
    InvalidInputError
        A function calls itself, is called by an address, or is not in the file; with the line.
    """
    if not any(i.opcode.startswith("call") for i in entry.code):
        return entry
    inlined = _InlinedCode(module, dict(entry.registers), list(entry.variables))
    inlined.add(entry, {}, (entry.name,), "")
    return inlined.finished(entry)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an operand with other names for registers, labels and variables; ``%f`` stands for ``%f1`` and so on."""

    def other(match: re.Match[str]) -> str:
        name = match[0]
        base = name.rstrip(_DIGITS)
        return names[name] if name in names else names[base] + name[len(base) :] if base in names else name

    return _NAME.sub(other, text) if names else text


@dataclass
class _InlinedCode:
    """Instructions of an entry and of the functions that it calls."""

    module: Module
    registers: dict[str, str]
    variables: list[Variable]
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    def refusal(self, line: int, problem: str) -> InvalidInputError:
        return InvalidInputError(f"{self.module.source}: line {line}: {problem}")

    def add(self, function: Entry, names: Mapping[str, str], callers: tuple[str, ...], end: str) -> None:
        """Add a function with other names; its returns lead to the label `end`, if it has one."""
        at: dict[int, list[str]] = {}
        for label, position in function.labels.items():
            at.setdefault(position, []).append(names.get(label, label))
        for position, instruction in enumerate(function.code):
            self.labels |= dict.fromkeys(at.get(position, ()), len(self.code))
            i = replace(
                instruction,
                operands=tuple(_renamed(text, names) for text in instruction.operands),
                guard=_renamed(instruction.guard, names),
            )
            if i.opcode.split(".")[0] == "call":
                self._call(i, callers)
            elif i.opcode.split(".")[0] == "ret" and end:
                self.code.append(Instruction(i.line, "bra", (end,), i.guard))
            else:
                self.code.append(i)
            if len(self.code) > _MOST_INSTRUCTIONS:
                raise self.refusal(
                    i.line, f"with all that it calls, the entry has more than {_MOST_INSTRUCTIONS} instructions"
                )
        self.labels |= dict.fromkeys(at.get(len(function.code), ()), len(self.code))

    def _call(self, i: Instruction, callers: tuple[str, ...]) -> None:
        operands = list(i.operands)
        results = _names(operands.pop(0)) if operands and operands[0].startswith("(") else []
        name = operands.pop(0) if operands else ""
        passed = _names(operands.pop(0)) if operands and operands[0].startswith("(") else []
        self.calls += 1
        end = f"$call{self.calls}$end"
        if i.guard:
            opposite = i.guard[1:] if i.guard.startswith("!") else f"!{i.guard}"
            self.code.append(Instruction(i.line, "bra", (end,), opposite))
        if name == "vprintf":
            self.code += [Instruction(i.line, "st.param.b32", (f"[{result}]", "0")) for result in results]
        elif name == "__assertfail":
            self.code.append(Instruction(i.line, "trap", ()))
        else:
            self._inline(i, name, results, passed, callers, end)
        self.labels[end] = len(self.code)

    def _inline(
        self, i: Instruction, name: str, results: list[str], passed: list[str], callers: tuple[str, ...], end: str
    ) -> None:  # fmt: skip
        function = self.module.functions.get(name)
        if name.startswith("%"):
            raise self.refusal(i.line, "calls of a function by its address are not supported")
        if name in ("malloc", "free"):
            raise self.refusal(i.line, f"{name} in a kernel is not supported")
        if function is None:
            raise self.refusal(i.line, f"function {name} is called, but is not in the file")
        if name in callers:
            raise self.refusal(i.line, f"function {name} calls itself, which is not supported")
        if len(passed) != len(function.parameters) or len(results) != len(function.results):
            raise self.refusal(i.line, f"this call of {name} has other parameters than the function")
        prefix = f"$call{self.calls}$"
        names = {label: prefix + label for label in function.labels}
        for register, kind in function.registers.items():
            names[register] = f"%{prefix}{register.removeprefix('%')}"
            self.registers[names[register]] = kind
        for variable in function.variables:
            # Shared memory of a function is there once.
            names[variable.name] = f"{name}${variable.name}" if variable.space == "shared" else prefix + variable.name
            if variable.space != "shared" or names[variable.name] not in {v.name for v in self.variables}:
                self.variables.append(replace(variable, name=names[variable.name]))
        names |= {p.name: given for p, given in zip(function.parameters, passed, strict=True)}
        names |= {r.name: given for r, given in zip(function.results, results, strict=True)}
        self.add(function, names, (*callers, name), end)

    def _is_passed(self, i: Instruction, register: str, origins: Mapping[str, set[str]]) -> bool:
        """Return whether a register holds the address of what a call passes, and not of a parameter of the entry."""
        of_register = origins.get(register, set())
        if len(of_register) > 1:
            raise self.refusal(
                i.line, f"{register} is the address of a parameter here, and of what a call passes there"
            )
        return of_register == {"passed"}

    def finished(self, entry: Entry) -> Entry:
        """Return the entry, with what calls pass in registers or in local memory."""
        passed = {v.name: v for v in self.variables if v.space == "param"}
        parameters = {p.name for p in entry.parameters}
        accesses = [_parameter_access(i) for i in self.code]
        origins = _origins(self.code, parameters, set(passed))
        whole = {name for name, v in passed.items() if v.size == TYPE_BYTES[v.type]}
        for name, offset, size in accesses:
            if name in whole and (offset or size != passed[name].size):
                whole.discard(name)
        registers = {name: f"%in${name}$" for name in whole}
        kinds = {registers[name]: f"b{max(8 * passed[name].size, 16)}" for name in whole}
        code = list(self.code)
        for number, (name, _, _) in enumerate(accesses):
            i = code[number]
            if name in whole:
                operands = (
                    (registers[name], i.operands[1]) if i.opcode[:2] == "st" else (i.operands[0], registers[name])
                )
                code[number] = replace(i, opcode=f"mov.{kinds[registers[name]]}", operands=operands)
            elif name in passed or (name and name not in parameters and self._is_passed(i, name, origins)):
                code[number] = replace(i, opcode=i.opcode.replace(".param", ".local", 1))
        variables = [replace(v, space="local") if v.space == "param" else v for v in self.variables]
        return replace(
            entry, registers=self.registers | kinds, variables=tuple(v for v in variables if v.name not in whole),
            code=tuple(code), labels=self.labels,
        )  # fmt: skip


def _origins(code: list[Instruction], parameters: set[str], passed: set[str]) -> dict[str, set[str]]:
    """Return by register whether it holds addresses of parameters of the entry, of what calls pass, or of both."""
    origins = {name: {"parameter"} for name in parameters} | {name: {"passed"} for name in passed}
    moves = [i for i in code if i.opcode.startswith(("mov.", "add.", "sub.", "cvta.", "selp.")) and len(i.operands) > 1]
    changes = True
    while changes:
        changes = False
        for i in moves:
            target = origins.setdefault(i.operands[0], set())
            before = len(target)
            target.update(*(origins.get(text.partition("+")[0], ()) for text in i.operands[1:]))
            changes = changes or len(target) > before
    return origins


def _names(text: str) -> list[str]:
    return [name for name in text.strip("()").split(",") if name]


def _parameter_access(i: Instruction) -> tuple[str, int, int]:
    """Return name, offset and bytes of an access to a parameter; -1 bytes for a vector, no name for others."""
    if not i.opcode.startswith(("ld.param", "st.param")):
        return "", 0, 0
    address = i.operands[int(i.opcode.startswith("ld"))] if len(i.operands) > 1 else ""
    # What does not match is refused when it is lowered.
    match = re.fullmatch(r"\[?([^+\]]*)(?:\+(0x[\da-fA-F]{1,8}|0|[1-9]\d{0,8}))?\]?", address)
    name, offset = (match[1], int(match[2] or "0", 0)) if match else ("", 0)
    kind = i.opcode.split(".")[-1]
    is_vector = any(text.startswith("{") for text in i.operands)
    return name, offset, -1 if is_vector else TYPE_BYTES.get(kind, -1)
