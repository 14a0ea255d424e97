"""Read PTX: the entries of a file, their parameters, registers, variables and instructions, each with its line.

`parse_ptx` takes what NVRTC and Triton emit. What it cannot read is refused with the line, before anything runs.
"""

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from profilers.errors import InvalidInputError

#: Bytes of a fundamental type, by its name without the dot.
TYPE_BYTES: Mapping[str, int] = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "e4m3x2": 2, "e5m2x2": 2,
}  # fmt: skip
_TOKEN = re.compile(r'"[^"]*"|[A-Za-z_$%.][\w$.]*(?:::[\w$.]+)*|\d[\w.+]*|<|>|\S')
_NAME = re.compile(r"[A-Za-z_$%][\w$]*$")
_POINTER = re.compile(r"(generic\()?(?P<name>[A-Za-z_$%][\w$]*)(?(1)\))(?:\+(?P<plus>\d{1,9}))?")
_DIRECTIVE = re.compile(r"\.[^.]*")
#: Directives before the body of an entry that change nothing that it computes.
_HINTS = (
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".pragma", ".noreturn", ".maxclusterrank",
)  # fmt: skip
#: Directives of clusters of blocks; only clusters of one block are supported.
_CLUSTERS = (".explicitcluster", ".reqnctapercluster")
_MOST_BYTES = 1 << 26
#: Alignments of variables.
_ALIGNMENTS = frozenset(str(1 << power) for power in range(17))


@dataclass(frozen=True)
class Instruction:
    """An instruction as it is written.

    Parameters
    ----------
    line : int
        Line of the file, from 1.
    opcode : str
        Opcode with its modifiers, such as ``"ld.global.v4.f32"``.
    operands : tuple of str
        Operands; a vector keeps its braces and an address its brackets.
    guard : str
        Predicate register, with a leading ``!`` if it is negated; empty without one.
    """

    line: int
    opcode: str
    operands: tuple[str, ...]
    guard: str = ""


@dataclass(frozen=True)
class Variable:
    """A variable in memory.

    Parameters
    ----------
    name, space, type : str
        Name, state space (``"shared"``, ``"global"``, ``"const"``, ``"local"``, ``"param"``) and type of an element.
    align, size : int
        Alignment and size, bytes; the size of dynamic shared memory is 0.
    content : bytes
        Initial content; zeros if empty.
    pointers : tuple of (int, str, int)
        Addresses in the initial content: the byte at which one stands, the variable, and what is added.
    """

    name: str
    space: str
    type: str
    align: int
    size: int
    content: bytes = b""
    pointers: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class Entry:
    """A kernel, or a function that kernels call.

    Parameters
    ----------
    name : str
        Name.
    parameters : tuple of Variable
        Parameters, in order.
    registers : mapping of str to str
        Type of each declared register; ranges such as ``%r<9>`` are kept as ``"%r"``.
    variables : tuple of Variable
        Variables of the kernel.
    code : tuple of Instruction
        Instructions.
    labels : mapping of str to int
        Position of the instruction that a label stands before.
    line : int
        Line on which it begins.
    results : tuple of Variable
        Results, if it is a function that entries call.
    block : tuple of int
        Threads of a block that a launch must have (``.reqntid``); empty for any.
    most_threads : int
        Most threads of a block (``.maxntid``); 0 for any number.
    """

    name: str
    parameters: tuple[Variable, ...]
    registers: Mapping[str, str]
    variables: tuple[Variable, ...]
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]
    line: int
    results: tuple[Variable, ...] = ()
    block: tuple[int, ...] = ()
    most_threads: int = 0


@dataclass(frozen=True)
class Module:
    """A PTX file.

    Parameters
    ----------
    source : str
        Name of the file, for messages.
    version, target : str
        PTX version and target architecture.
    entries : mapping of str to Entry
        Kernels by name.
    variables : tuple of Variable
        Variables of the module.
    functions : mapping of str to Entry
        Functions by name; functions that are only declared are left out.
    """

    source: str
    version: str
    target: str
    entries: Mapping[str, Entry]
    variables: tuple[Variable, ...]
    functions: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def globals(self) -> tuple[Variable, ...]:
        """Variables in global and constant memory."""
        return tuple(variable for variable in self.variables if variable.space in ("global", "const"))

    def entry(self, name: str = "") -> Entry:
        """Return an entry by its name, or by that in the source if only one has it; without a name, the only one.

        C++ puts the length before each name that it encodes: ``scale`` becomes ``_Z5scalePfi``.

        Raises
        ------
        InvalidInputError
            There is no such entry, or there are several and no name.
        """
        if not name and len(self.entries) == 1:
            return next(iter(self.entries.values()))
        if name not in self.entries:
            pattern = re.compile(rf"_Z(?:.*\D)??{len(name)}{re.escape(name)}")
            encoded = [entry for entry in self.entries if name and pattern.match(entry)]
            if len(encoded) == 1:
                return self.entries[encoded[0]]
            number = "several entries are" if encoded else "no entry is"
            problem = f"{number} called {name!r:.60}" if name else "several entries; name one"
            raise InvalidInputError(f"{self.source}: {problem}; there are {', '.join(self.entries) or 'none'}")
        return self.entries[name]


@dataclass
class _Reader:
    """A position in the tokens of a file."""

    source: str
    tokens: list[tuple[str, int]]
    at: int = 0
    variables: list[Variable] = field(default_factory=list)
    #: Functions that were defined or declared.
    functions: set[str] = field(default_factory=set)
    #: New names of what is declared within braces, by brace; ``%r<`` stands for ``%r1`` and so on.
    scopes: list[dict[str, str]] = field(default_factory=list)
    count: int = 0

    @property
    def line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)][1] if self.tokens else 1

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        if self.at >= len(self.tokens):
            raise self.refusal("the file ends in the middle of a statement")
        token, _ = self.tokens[self.at]
        if expected and token != expected:
            raise self.refusal(f"expected {expected!r}, found {token!r}")
        self.at += 1
        return token

    def until(self, *ends: str) -> list[str]:
        """Take the tokens before one of `ends`, and that one."""
        taken: list[str] = []
        while (token := self.take()) not in ends:
            taken.append(token)
        return taken

    def declare(self, name: str, is_range: bool = False) -> str:
        """Return the name by which a name that is declared here is known; another one within braces."""
        if not self.scopes:
            return name
        self.count += 1
        new = f"{name}${self.count}$"
        self.scopes[-1][f"{name}<" if is_range else name] = new
        return new

    def known(self, token: str) -> str:
        """Return the name by which a token is known."""
        base = token.rstrip("0123456789")
        for scope in reversed(self.scopes):
            if token in scope:
                return scope[token]
            if f"{base}<" in scope:
                return scope[f"{base}<"] + token[len(base) :]
        return token

    def skip_line(self) -> None:
        """Take the rest of the line of the last token."""
        line = self.tokens[self.at - 1][1]
        while self.at < len(self.tokens) and self.tokens[self.at][1] == line:
            self.at += 1

    def skip_braces(self) -> None:
        """Take all up to a brace and what is in it."""
        self.until("{")
        depth = 1
        while depth:
            token = self.take()
            depth += (token == "{") - (token == "}")

    def refusal(self, problem: str) -> InvalidInputError:
        return InvalidInputError(f"{self.source}: line {self.line}: {problem}")


def parse_ptx(text: str, source: str = "PTX") -> Module:
    """Return the module that a PTX text describes.

    Parameters
    ----------
    text : str
        PTX.
    source : str
        Name for messages.

    Raises
    ------
    InvalidInputError
        The text is not PTX, ends early, or has a directive that is not supported; with the line.

    Examples
    --------
    >>> parse_ptx(".version 8.8 .target sm_70 .address_size 64 .visible .entry k() { ret; }").target
    'sm_70'
    """
    if len(text) > _MOST_BYTES:
        raise InvalidInputError(f"{source}: {len(text)} bytes of PTX; {_MOST_BYTES} are the most")
    reader = _Reader(source, list(_tokens(text)))
    facts, entries, functions = {"version": "", "target": ""}, {}, {}
    while reader.peek():
        token = reader.take()
        if token in (".version", ".target"):
            facts[token[1:]] = _version(reader) if token == ".version" else _target(reader)
        elif token == ".address_size":
            if reader.take() != "64":
                raise reader.refusal("addresses must have 64 bits")
        elif token in (".visible", ".weak", ".extern", ".common"):
            continue
        elif token == ".file":
            reader.skip_line()
        elif token == ".section":
            reader.skip_braces()
        elif token == ".entry":
            if not facts["version"]:
                raise reader.refusal("an entry before .version: this is no PTX file")
            if entry := _entry(reader):
                entries[entry.name] = entry
        elif token == ".func":
            if function := _function(reader):
                functions[function.name] = function
        elif token in (".global", ".const", ".shared"):
            reader.variables.append(_variable(reader, token[1:]))
        else:
            raise reader.refusal(f"{token!r} is not supported outside an entry")
    if not facts["version"]:
        raise InvalidInputError(f"{source}: line 1: no .version: this is no PTX file")
    return Module(source, facts["version"], facts["target"], entries, tuple(reader.variables), functions)


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a text with their lines, without comments."""
    without = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(without.split("\n"), 1):
        for match in _TOKEN.finditer(line.split("//", 1)[0]):
            # Directives may follow one another without a blank, as in ``.reg.b32``.
            for part in _DIRECTIVE.findall(match[0]) if match[0].startswith(".") else (match[0],):
                yield part, number


def _version(reader: _Reader) -> str:
    version = reader.take()
    if not re.fullmatch(r"\d+\.\d+", version) or not 6 <= float(version) < 10:
        raise reader.refusal(f"PTX version {version!r}; 6.0 to 9.9 can be read")
    return version


def _target(reader: _Reader) -> str:
    target = reader.take()
    if not re.fullmatch(r"sm_\d+[af]?", target):
        raise reader.refusal(f"target {target!r}; sm_70 to sm_90 are supported")
    while reader.peek() == ",":
        reader.take()
        reader.take()
    return target


def _entry(reader: _Reader) -> Entry | None:
    line, name = reader.line, reader.take()
    return _body(reader, name, line, _parameters(reader), ())


def _function(reader: _Reader) -> Entry | None:
    """Return a function; None if it is only declared."""
    line, results = reader.line, _parameters(reader)
    name = reader.take()
    reader.functions.add(name)
    return _body(reader, name, line, _parameters(reader), results)


def _parameters(reader: _Reader) -> tuple[Variable, ...]:
    """Return the parameters in parentheses, if there are any here."""
    parameters: list[Variable] = []
    if reader.peek() == "(":
        reader.take()
        while reader.peek() != ")":
            reader.take(".param")
            parameters.append(_declared(reader, "param", reader.until(",", ")")))
            reader.at -= reader.tokens[reader.at - 1][0] == ")"
        reader.take(")")
    return tuple(parameters)


def _body(
    reader: _Reader, name: str, line: int, parameters: tuple[Variable, ...], results: tuple[Variable, ...]
) -> Entry | None:  # fmt: skip
    """Return an entry or a function; None if it is only declared."""
    sizes: dict[str, tuple[int, ...]] = {}
    while reader.peek() not in ("{", ";"):
        hint = reader.take()
        numbers: list[int] = []
        while re.fullmatch(r"\d{1,9}|,", reader.peek()):
            numbers += [int(text) for text in (reader.take(),) if text != ","]
        if hint in _CLUSTERS and set(numbers) - {1}:
            raise reader.refusal("clusters of several blocks are not supported")
        if hint not in (*_HINTS, *_CLUSTERS) and not (hint.startswith('"') and sizes):
            raise reader.refusal(f"{hint!r} is not supported before the body of an entry")
        sizes[hint] = tuple(numbers)
    if reader.take() == ";":
        return None
    registers: dict[str, str] = {}
    variables: list[Variable] = []
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    ended = False
    while not ended:
        token = reader.take()
        if token == "{":
            reader.scopes.append({})
        elif token == "}":
            ended = not reader.scopes
            del reader.scopes[-1:]
        elif token == ".reg":
            _registers(reader, registers)
        elif token in (".shared", ".local", ".param"):
            variable = _variable(reader, token[1:])
            variables.append(replace(variable, name=reader.declare(variable.name)))
        elif token == ".pragma":
            reader.until(";")
        elif token == ".loc":
            reader.skip_line()
        elif reader.peek() == ":" and _NAME.match(token):
            reader.take()
            if reader.peek() == ".callprototype":
                reader.until(";")
            elif token in labels:
                raise reader.refusal(f"label {token} stands twice")
            labels[token] = len(code)
        elif token.startswith("."):
            raise reader.refusal(f"directive {token!r} is not supported")
        else:
            reader.at -= 1
            code.append(_instruction(reader))
    most = math.prod(sizes.get(".maxntid", ())) if ".maxntid" in sizes else 0
    return Entry(
        name,
        parameters,
        registers,
        tuple(variables),
        tuple(code),
        labels,
        line,
        results,
        sizes.get(".reqntid", ()),
        most,
    )


def _registers(reader: _Reader, registers: dict[str, str]) -> None:
    kind = reader.take().removeprefix(".")
    if kind not in TYPE_BYTES:
        raise reader.refusal(f"registers of type .{kind} are not supported")
    for name in "".join(reader.until(";")).split(","):
        plain = re.sub(r"<\d+>$", "", name)
        known = reader.declare(plain, is_range=plain != name)
        if registers.setdefault(known, kind) != kind:
            raise reader.refusal(f"register {plain} is declared again with another type")


def _instruction(reader: _Reader) -> Instruction:
    line, guard = reader.line, ""
    if reader.peek() == "@":
        reader.take()
        guard = reader.take()
        guard = f"!{reader.known(reader.take())}" if guard == "!" else reader.known(guard)
    opcode = reader.take()
    if not re.match(r"[a-z]", opcode):
        raise reader.refusal(f"{opcode!r} is no instruction")
    tokens = reader.until(";")
    return Instruction(line, opcode, _operands([reader.known(t) for t in tokens] if reader.scopes else tokens), guard)


def _operands(tokens: list[str]) -> tuple[str, ...]:
    """Split the tokens of an instruction at the commas outside braces and brackets."""
    operands, depth = [""], 0
    for token in tokens:
        depth += (token in "{[(") - (token in "}])")
        if (token == "," and not depth) or (token == "|" and not depth):
            operands.append("")
        else:
            operands[-1] += token
    return tuple(operands) if tokens else ()


def _variable(reader: _Reader, space: str) -> Variable:
    return _declared(reader, space, reader.until(";"))


def _declared(reader: _Reader, space: str, tokens: list[str]) -> Variable:
    """Return the variable of a declaration such as ``.align 4 .f32 x[8] = {…}``."""
    align, kind, rest = 0, "", list(tokens)
    while rest and rest[0].startswith("."):
        token = rest.pop(0)[1:]
        if token == "align" and rest and rest[0] in _ALIGNMENTS:
            align = int(rest.pop(0))
        elif token in TYPE_BYTES:
            kind = token
        elif token not in ("ptr", "global", "const", "shared", "local", "generic", "managed", "attribute"):
            raise reader.refusal(f".{token} is not supported in a declaration")
    match = re.fullmatch(r"([\w$%]+)((?:\[\d{0,18}\])*)(?:=(.*))?", "".join(rest))
    if not match or not kind:
        raise reader.refusal(f"this is no declaration: {' '.join(tokens)}")
    count = 1
    for size in re.findall(r"\[(\d*)\]", match[2]):
        count *= int(size or 0)
    size, each = count * TYPE_BYTES[kind], TYPE_BYTES[kind]
    if size > _MOST_BYTES:
        raise reader.refusal(f"{match[1]} has {size} bytes; {_MOST_BYTES} are the most")
    content, pointers = bytearray(), []
    for text in match[3].strip("{}").split(",") if match[3] else ():
        pointer = _POINTER.fullmatch(text) if each == 8 else None
        if pointer and pointer["name"] not in reader.functions:
            pointers.append((len(content), pointer["name"], int(pointer["plus"] or 0)))
        # The address of a function is 0: a call by it is refused.
        content += bytes(each) if pointer else _value(reader, text, kind)
    declared = {variable.name for variable in reader.variables}
    if missing := [name for _, name, _ in pointers if name not in declared]:
        raise reader.refusal(f"{missing[0]:.60} is no variable, so that {match[1]} cannot begin with its address")
    if content and match[2] == "[]":
        size = len(content)
    if len(content) > size:
        raise reader.refusal(f"{match[1]} has {size} bytes, and initial values of {len(content)}")
    return Variable(match[1], space, kind, max(align, each), size, bytes(content), tuple(pointers))


def _value(reader: _Reader, text: str, kind: str) -> bytes:
    """Return an initial value as bytes."""
    size = TYPE_BYTES[kind]
    try:
        bits = literal_bits(text, kind)
    except ValueError:
        raise reader.refusal(f"{text!r} is no initial value of type .{kind}") from None
    return (bits & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def literal_bits(text: str, kind: str) -> int:
    """Return the bits of a literal as a value of a type.

    Parameters
    ----------
    text : str
        Literal: an integer, ``0fXXXXXXXX``, ``0dXXXXXXXXXXXXXXXX`` or a decimal fraction.
    kind : str
        Type, without the dot.

    Raises
    ------
    ValueError
        The text is no literal.

    Examples
    --------
    >>> hex(literal_bits("0f3F800000", "f32")), literal_bits("-1", "s32") & 0xFFFFFFFF
    ('0x3f800000', 4294967295)
    """
    sign, plain = (-1, text[1:]) if text.startswith("-") else (1, text)
    if plain[:2] in ("0f", "0F") and len(plain) == 10:
        return int(plain[2:], 16) ^ (0x80000000 if sign < 0 else 0)
    if plain[:2] in ("0d", "0D") and len(plain) == 18:
        bits = int(plain[2:], 16) ^ ((1 << 63) if sign < 0 else 0)
        return bits if kind != "f32" else _float_bits(struct.unpack("<d", bits.to_bytes(8, "little"))[0], kind)
    if kind in ("f32", "f64", "f16", "bf16"):
        return _float_bits(sign * float(plain), kind)
    plain = plain.rstrip("U")
    if re.fullmatch(r"0[0-7]+", plain):
        return sign * int(plain, 8)
    return sign * int(plain, 0)


def _float_bits(value: float, kind: str) -> int:
    if kind == "bf16":
        return int.from_bytes(struct.pack("<f", value), "little") >> 16
    return int.from_bytes(struct.pack({"f32": "<f", "f64": "<d", "f16": "<e"}[kind], value), "little")


def global_layout(variables: tuple[Variable, ...], begin: int = 0) -> tuple[dict[str, int], int]:
    """Return the offset of each variable, 256 bytes apart at least, and the end of the last."""
    offsets, end = {}, begin
    for variable in variables:
        offsets[variable.name] = end
        end += -(-max(variable.size, 1) // 256) * 256 + 256
    return offsets, end


def variable_layout(modules: Iterable[Module]) -> tuple[dict[str, dict[str, int]], int]:
    """Return the offset of each variable of each module, by its source, behind all parameters; then their end."""
    files = list(modules)
    sizes = [packed_layout(entry.parameters)[1] for module in files for entry in module.entries.values()]
    offsets, end = {}, -(-max([*sizes, 1]) // 256) * 256 + 256
    for module in files:
        offsets[module.source], end = global_layout(module.globals, end)
    return offsets, end


def packed_layout(variables: tuple[Variable, ...]) -> tuple[tuple[int, ...], int]:
    """Return the offset of each variable, one after the other, and the end of the last."""
    offsets, end = [], 0
    for variable in variables:
        end = -(-end // max(variable.align, 1)) * max(variable.align, 1)
        offsets.append(end)
        end += variable.size
    return tuple(offsets), end
