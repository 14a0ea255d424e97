"""Arguments of a launch: values and structures in the memory of parameters, and textures, read by coordinates.

Texels lie row by row in a buffer; devices order them in tiles that are not documented. Filters are those of the CUDA
Programming Guide, appendix Texture Fetching.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from profilers.trace.compiled import bare, inlined
from replay.detailed.lanes import half_to_float
from replay.detailed.memory import NO_TEXTURE, fails, read
from replay.detailed.program import COUNT, FP32, FROM, GLOBAL_BASE, TEXTURE_BASE, TO, VECTOR, A, B, C, Program
from replay.detailed.ptx import TYPE_BYTES

FILTERS = ("point", "linear")
ADDRESSINGS = ("clamp", "border", "wrap", "mirror")
#: Columns of the table of textures.
_BASE, _WIDTH, _HEIGHT, _CHANNELS, _BYTES, _FORMAT, _FILTER, _ADDRESSING, _NORMALIZED = range(9)
#: Formats of texels.
_UNSIGNED, _SIGNED, _REAL = range(3)
#: Rows of the scratch tile: weight and address of each texel that a fetch takes part of.
WEIGHTS, ADDRESSES = range(2)
_CLAMP, _BORDER, _WRAP, _MIRROR = range(4)
#: Coordinates beyond are cut.
_FAR = 1e9
#: Steps of the weights of a linear filter (CUDA C Programming Guide: 8 bits of fraction).
_STEPS = 256.0


@dataclass(frozen=True)
class Texture:
    """A texture object, as an argument of a kernel.

    Parameters
    ----------
    buffer : str
        Buffer with the texels, of shape (width,), (height, width) or (height, width, channels). Types are FP16, FP32
        and integers of 8, 16 and 32 bits. Integers that are fetched as FP32 are divided by the largest of their type.
    filtering : str
        ``"point"`` or ``"linear"``. Only what is fetched as FP32 is filtered.
    addressing : str
        What lies outside: ``"clamp"`` the texel at the edge, ``"border"`` zeros, ``"wrap"`` or ``"mirror"`` the texture
        again. The last two need normalized coordinates; without them they clamp, as in CUDA.
    normalized : bool
        Whether coordinates from 0 to 1 span the texture.
    """

    buffer: str
    filtering: str = "point"
    addressing: str = "clamp"
    normalized: bool = False

    def __post_init__(self) -> None:
        if self.filtering not in FILTERS or self.addressing not in ADDRESSINGS:
            raise InvalidInputError(
                f"texture of {self.buffer!r:.60}: filtering {self.filtering!r:.40} and addressing "
                f"{self.addressing!r:.40}; {', '.join(FILTERS)}, and {', '.join(ADDRESSINGS)}"
            )


def texture_table(
    textures: Sequence[Texture],
    buffers: Mapping[str, NDArray[Any]],
    extents: Mapping[str, tuple[int, int]],
    where: str,
) -> Ints:
    """Return the textures of a launch as rows for the compiled code.

    Parameters
    ----------
    textures : sequence of Texture
        Textures.
    buffers : mapping of str to array
        Buffers.
    extents : mapping of str to (int, int)
        First byte and end of each buffer.
    where : str
        Place, for messages.

    Raises
    ------
    InvalidInputError
        A buffer is missing, or has a shape or a type that a texture cannot have.
    """
    table = np.zeros((len(textures), _NORMALIZED + 1), dtype=np.int64)
    for row, texture in zip(table, textures, strict=True):
        if texture.buffer not in buffers:
            raise InvalidInputError(f"{where}: there is no buffer {texture.buffer!r:.60} for a texture")
        texels = buffers[texture.buffer]
        shape = texels.shape if texels.ndim > 1 else (1, *texels.shape)
        kind, size = texels.dtype.kind, texels.dtype.itemsize
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 2, 4)) or not texels.size:
            raise InvalidInputError(
                f"{where}: buffer {texture.buffer!r:.60} of shape {texels.shape} is no texture; (height, width) or "
                "(height, width, channels) with 1, 2 or 4 channels"
            )
        if kind not in "uif" or size > 4:
            raise InvalidInputError(f"{where}: no textures of {texels.dtype}; FP16, FP32 and integers of up to 32 bits")
        row[[_BASE, _HEIGHT, _WIDTH]] = extents[texture.buffer][0], *shape[:2]
        row[[_CHANNELS, _BYTES, _FORMAT]] = shape[2] if len(shape) == 3 else 1, size, "uif".index(kind)
        row[[_FILTER, _NORMALIZED]] = FILTERS.index(texture.filtering), texture.normalized
        row[_ADDRESSING] = ADDRESSINGS.index(texture.addressing)
        if not texture.normalized and row[_ADDRESSING] in (_WRAP, _MIRROR):
            row[_ADDRESSING] = _CLAMP
    return table


@inlined
def _inside(index, size, addressing):  # type: ignore[no-untyped-def]
    """Return the index of the texel that an index stands for; -1 for the border."""
    if 0 <= index < size:
        return index
    if addressing == _BORDER:
        return np.int64(-1)
    if addressing == _WRAP:
        return index % size
    if addressing == _MIRROR:
        turn = index % (2 * size)
        return turn if turn < size else 2 * size - 1 - turn
    return max(min(index, size - 1), np.int64(0))


@inlined
def _coordinate(bits, is_real, size, normalized):  # type: ignore[no-untyped-def]
    """Return a coordinate in texels; an integer names the middle of its texel."""
    if not is_real:
        return np.float64(np.int32(np.uint32(bits))) + 0.5
    value = np.float64(np.uint32(bits).view(np.float32))
    if value != value:
        value = np.float64(0.0)
    if normalized:
        value *= size
    return min(max(value, -_FAR), _FAR)


@bare
def texels_of(row, registers, lane, textures, scratch):  # type: ignore[no-untyped-def]
    """Write weights and addresses of the texels that a lane fetches to `scratch`; return their number.

    It is 0 without a texture. The address of the border is -1.
    """
    number = np.int64(registers[row[A], lane]) - TEXTURE_BASE
    if number < 0 or number >= len(textures):
        return 0
    facts = textures[number]
    is_real = row[FROM] == FP32
    x = _coordinate(registers[row[B], lane], is_real, facts[_WIDTH], facts[_NORMALIZED])
    y = 0.5
    if row[C] >= 0:
        y = _coordinate(registers[row[C], lane], is_real, facts[_HEIGHT], facts[_NORMALIZED])
    count, right, down = 1, 0.0, 0.0
    if facts[_FILTER] == 1 and is_real and row[TO] == FP32:
        x, y = x - 0.5, y - 0.5
        right = np.floor((x - np.floor(x)) * _STEPS + 0.5) / _STEPS
        down = np.floor((y - np.floor(y)) * _STEPS + 0.5) / _STEPS
        count = 4
    first, top = np.int64(np.floor(x)), np.int64(np.floor(y))
    n = 0
    for tap in range(count):
        weight = (right if tap & 1 else 1.0 - right) * (down if tap & 2 else 1.0 - down)
        if weight == 0.0:
            continue
        i = _inside(first + (tap & 1), facts[_WIDTH], facts[_ADDRESSING])
        j = _inside(top + (tap >> 1), facts[_HEIGHT], facts[_ADDRESSING])
        address = facts[_BASE] + (j * facts[_WIDTH] + i) * facts[_CHANNELS] * facts[_BYTES]
        scratch[WEIGHTS, n] = weight
        scratch[ADDRESSES, n] = np.float64(address) if i >= 0 and j >= 0 else -1.0
        n += 1
    return n


@inlined
def _texel(memory, address, size, form):  # type: ignore[no-untyped-def]
    """Return the bits of an element of a texel, integers with their sign."""
    bits = read(memory, address, size)
    if form != _SIGNED or size == 4:
        return bits
    return np.uint64(np.int64(np.int16(bits) if size == 2 else np.int8(bits)))


@inlined
def _real(bits, size, form):  # type: ignore[no-untyped-def]
    """Return an element of a texel as a number; an integer over the largest of its type."""
    if form == _REAL:
        if size == 2:
            return np.float64(half_to_float(bits))
        return np.float64(np.uint32(bits).view(np.float32))
    if form == _UNSIGNED:
        return np.float64(bits) / (2.0 ** (8 * size) - 1.0)
    value = np.float64(np.int32(np.uint32(bits & np.uint64(0xFFFFFFFF))))
    return max(value / (2.0 ** (8 * size - 1) - 1.0), -1.0)


@bare
def fetch(row, lists, registers, mask, warp, launch):  # type: ignore[no-untyped-def]
    """Execute ``tex``; return whether it ended without a problem. Channels that texels do not have are 0."""
    textures, scratch = launch.allocations[3], launch.tiles[0]
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        count = texels_of(row, registers, lane, textures, scratch)
        if count == 0:
            return fails(launch, NO_TEXTURE, warp * 32 + lane, np.int64(0))
        facts = textures[np.int64(registers[row[A], lane]) - TEXTURE_BASE]
        size, form = facts[_BYTES], facts[_FORMAT]
        for channel in range(row[COUNT]):
            total, whole = 0.0, np.uint64(0)
            for n in range(count):
                address = np.int64(scratch[ADDRESSES, n])
                if address < 0 or channel >= facts[_CHANNELS]:
                    continue
                whole = _texel(launch.memory, address + channel * size, size, form)
                total += scratch[WEIGHTS, n] * _real(whole, size, form)
            if row[TO] == FP32:
                whole = np.uint64(np.float32(total).view(np.uint32))
            registers[lists[row[VECTOR] + channel], lane] = whole & np.uint64(0xFFFFFFFF)
    return True


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
        width = TYPE_BYTES[kind]
        begin, align = -(-end // width) * width, max(align, width)
        end = begin + width
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
