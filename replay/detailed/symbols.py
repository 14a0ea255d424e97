"""Registers, constants, variables and tables of an entry, by the names that its instructions use."""

import re
from collections.abc import Mapping

from profilers.errors import InvalidInputError
from replay.detailed.fragments import Fragment
from replay.detailed.program import CONSTANT, GENERIC, GLOBAL, GLOBAL_BASE, LOCAL, PARAMETER, SHARED, SPECIAL
from replay.detailed.ptx import TYPE_BYTES, Entry, Module, Variable, literal_bits, packed_layout

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
        """Return the error for what is not supported on a line."""
        return InvalidInputError(f"{self.module.source}: line {line}: {problem}")


def space_of(opcode: list[str]) -> int:
    """Return the state space that an opcode names; GENERIC without one."""
    return next((_SPACES[m] for m in opcode[1:] if m in _SPACES), GENERIC)
