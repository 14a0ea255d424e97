"""Write the arguments of a launch to the memory of parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.detailed.program import GLOBAL_BASE, TEXTURE_BASE, Program
from replay.detailed.ptx import TYPE_BYTES
from replay.detailed.textures import Texture

#: NumPy types of parameters.
_SCALARS = {
    "f16": "<f2", "f32": "<f4", "f64": "<f8", "s8": "i1", "s16": "<i2", "s32": "<i4", "s64": "<i8",
    "u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "b8": "u1", "b16": "<u2", "b32": "<u4", "b64": "<u8",
}  # fmt: skip


@dataclass(frozen=True)
class Structure:
    """A structure that a kernel gets by value, with the alignment of C.

    Parameters
    ----------
    members : tuple of (str, str, int or float)
        Type of PTX of each member, such as ``"f32"`` or ``"u64"``, and its value: a number, or the name of the buffer
        that it points to.
    """

    members: tuple[tuple[str, str | int | float], ...]


Argument = str | int | float | Texture | Structure
#: First byte and end of each buffer.
Extents = Mapping[str, tuple[int, int]]


def pass_parameters(
    program: Program, arguments: Sequence[Argument], memory: npt.NDArray[Any], buffers: Extents
) -> None:
    """Write the arguments of a launch to the first bytes of memory.

    Parameters
    ----------
    program : Program
        Kernel.
    arguments : sequence
        One a parameter.
    memory : array of uint8
        Memory of the device.
    buffers : mapping of str to (int, int)
        First byte and end of each buffer.

    Raises
    ------
    InvalidInputError
        A value does not fit its parameter, or names no buffer.
    """
    textures = 0
    facts = zip(program.entry.parameters, program.parameter_offset, arguments, strict=True)
    for number, (parameter, offset, value) in enumerate(facts):
        where = f"{program.module.source}: {program.entry.name}: parameter {number}"
        is_structure = parameter.size != TYPE_BYTES[parameter.type]
        if is_structure != isinstance(value, Structure):
            kind = f"a structure of {parameter.size} bytes" if is_structure else f"no structure, but .{parameter.type}"
            raise InvalidInputError(f"{where} is {kind}")
        if isinstance(value, Structure):
            content = _structure(value, parameter.size, buffers, where)
        elif isinstance(value, Texture):
            if parameter.type not in ("u64", "b64", "s64"):
                raise InvalidInputError(f"{where} has type .{parameter.type}, no texture")
            content = _scalar(TEXTURE_BASE + textures, parameter.type, where)
            textures += 1
        else:
            content = _value(value, parameter.type, buffers, where)
        memory[offset : offset + parameter.size] = content


def write_variables(
    program: Program, contents: Mapping[str, Argument], memory: npt.NDArray[Any], buffers: Extents
) -> None:
    """Write the content of variables before a launch; a text names a buffer, which is copied.

    The other arguments are those of `pass_parameters`.

    Raises
    ------
    InvalidInputError
        There is no such variable or buffer, or the content does not fit.
    """
    declared = {variable.name: variable for variable in program.module.globals}
    for name, value in contents.items():
        where = f"{program.module.source}: variable {name:.60}"
        if name not in declared:
            raise InvalidInputError(f"{where} is not in the file; there are {', '.join(declared) or 'none'}")
        variable = declared[name]
        if isinstance(value, str):
            begin, end = _extent(value, buffers, where)
            content = memory[begin:end]
        elif isinstance(value, Structure):
            content = _structure(value, variable.size, buffers, where)
        elif isinstance(value, Texture) or variable.size != TYPE_BYTES[variable.type]:
            raise InvalidInputError(f"{where} has {variable.size} bytes; give a buffer or a structure")
        else:
            content = _scalar(value, variable.type, where)
        if len(content) > variable.size:
            raise InvalidInputError(f"{where} has {variable.size} bytes, and the buffer {value} {len(content)}")
        offset = program.variable_offsets[name]
        memory[offset : offset + len(content)] = content


def read_variables(
    program: Program, contents: Mapping[str, Argument], memory: npt.NDArray[Any], buffers: Extents
) -> None:
    """Copy variables back to the buffers that gave their content, as `write_variables`, after a launch."""
    for name, value in contents.items():
        if isinstance(value, str):
            (begin, end), offset = buffers[value], program.variable_offsets[name]
            memory[begin:end] = memory[offset : offset + end - begin]


def _extent(name: str, buffers: Extents, where: str) -> tuple[int, int]:
    if name not in buffers:
        raise InvalidInputError(f"{where}: there is no buffer {name!r:.60}")
    return buffers[name]


def _structure(given: Structure, size: int, buffers: Extents, where: str) -> npt.NDArray[np.uint8]:
    content, end, align = np.zeros(size, dtype=np.uint8), 0, 1
    for number, (kind, value) in enumerate(given.members):
        if kind not in _SCALARS:
            raise InvalidInputError(f"{where}: member {number}: type {kind!r:.20}; one of {', '.join(_SCALARS)}")
        each = TYPE_BYTES[kind]
        begin, align = -(-end // each) * each, max(align, each)
        end = begin + each
        if end <= size:
            content[begin:end] = _value(value, kind, buffers, f"{where}: member {number}")
    if -(-end // align) * align != size:
        raise InvalidInputError(f"{where}: the members take {-(-end // align) * align} bytes, the structure has {size}")
    return content


def _value(value: str | float, kind: str, buffers: Extents, where: str) -> npt.NDArray[np.uint8]:
    """Return a number, or the address of a buffer, as bytes."""
    if not isinstance(value, str):
        return _scalar(value, kind, where)
    begin, _ = _extent(value, buffers, where)
    if TYPE_BYTES[kind] != 8:
        raise InvalidInputError(f"{where} has type .{kind}, no pointer")
    return _scalar(GLOBAL_BASE + begin, kind, where)


def _scalar(value: float, type_: str, where: str) -> npt.NDArray[np.uint8]:
    """Return a number as the bytes of a parameter."""
    kind = np.dtype(_SCALARS[type_])
    is_real = kind.kind == "f"
    if (isinstance(value, int) and is_real and abs(value) > 1e300) or (not is_real and not abs(value) < np.inf):
        shown = value if isinstance(value, float) else "a number beyond 1e300"
        raise InvalidInputError(f"{where}: {shown} does not fit type .{type_}")
    if not is_real:
        if value != int(value) or not -(1 << 8 * kind.itemsize - 1) <= value < 1 << 8 * kind.itemsize:
            raise InvalidInputError(f"{where}: {value} does not fit type .{type_}")
        return np.array([int(value) % (1 << 8 * kind.itemsize)], dtype=f"<u{kind.itemsize}").view(np.uint8)
    return np.array([value], dtype=kind).view(np.uint8)
