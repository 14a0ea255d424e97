"""Replace each call of a function by the body of the function, so that an entry is one sequence of instructions.

What a call passes lies in registers. A structure, and what is accessed in parts, lies in local memory. `printf` prints
nothing, and `assert` ends the run if it fails.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from profilers.errors import InvalidInputError
from replay.detailed.ptx import TYPE_BYTES, Entry, Instruction, Module, Variable

_NAME = re.compile(r"(?<![\w$%.])[A-Za-z_$%][\w$]*")
_DIGITS = "0123456789"
#: Most instructions of an entry, with all that it calls.
_MOST = 1 << 20


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
    body = _Body(module, dict(entry.registers), list(entry.variables))
    body.add(entry, {}, (entry.name,), "")
    return body.finished(entry)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an operand with other names for registers, labels and variables; ``%f`` stands for ``%f1`` and so on."""

    def other(match: re.Match[str]) -> str:
        name = match[0]
        base = name.rstrip(_DIGITS)
        return names[name] if name in names else names[base] + name[len(base) :] if base in names else name

    return _NAME.sub(other, text) if names else text


@dataclass
class _Body:
    """Instructions of an entry, with those of the functions that it calls."""

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
            if len(self.code) > _MOST:
                raise self.refusal(i.line, f"with all that it calls, the entry has more than {_MOST} instructions")
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
            self._body(i, name, results, passed, callers, end)
        self.labels[end] = len(self.code)

    def _body(
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
        accesses = [_place(i) if i.opcode.startswith(("ld.param", "st.param")) else ("", 0, 0) for i in self.code]
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


def _place(i: Instruction) -> tuple[str, int, int]:
    """Return name, offset and bytes of an access to a parameter; -1 bytes for a vector."""
    address = i.operands[int(i.opcode.startswith("ld"))] if len(i.operands) > 1 else ""
    # What does not match is refused when it is lowered.
    match = re.fullmatch(r"\[?([^+\]]*)(?:\+(0x[\da-fA-F]{1,8}|0|[1-9]\d{0,8}))?\]?", address)
    name, offset = (match[1], int(match[2] or "0", 0)) if match else ("", 0)
    kind = i.opcode.split(".")[-1]
    is_vector = any(text.startswith("{") for text in i.operands)
    return name, offset, -1 if is_vector else TYPE_BYTES.get(kind, -1)
