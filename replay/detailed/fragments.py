"""Which element of a matrix each lane of a warp holds, for ``mma`` and ``wmma``.

The PTX ISA, warp-level matrix instructions, gives the layouts of ``mma`` and leaves those of ``wmma`` open. That of
FP16 and of sums of 16 columns or rows is the one of sm_70. Four octets of eight lanes compute 8 by 8 elements each, as
four ``mma.m8n8k4`` in a row (PTX ISA, fragments of mma.m8n8k4; Raihan, Goli and Aamodt, Modeling Deep Learning
Accelerator Enabled GPUs, ISPASS 2019). That of other factors is the one of ``mma``, tile by tile.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilers.trace.arrays import Ints

#: Rows of the left matrix, columns of the right one, and depth, of ``wmma``; and the types of its factors by depth.
_SHAPES = {
    "m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16), "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}  # fmt: skip
_FACTORS = {16: ("f16", "bf16", "s8", "u8"), 8: ("tf32",), 4: ("f64",)}
#: Types of elements by number, and their bits. FP64 and wider sums take a register each.
FLOAT16, BRAIN16, FLOAT32, TENSOR32, FLOAT64, SIGNED8, UNSIGNED8, SIGNED32, E4M3, E5M2 = range(10)
_TYPES = {
    "f16": FLOAT16, "bf16": BRAIN16, "f32": FLOAT32, "tf32": TENSOR32, "f64": FLOAT64, "s8": SIGNED8, "u8": UNSIGNED8,
    "s32": SIGNED32, "e4m3": E4M3, "e5m2": E5M2,
}  # fmt: skip
_BITS = {"f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "s32": 32, "e4m3": 8, "e5m2": 8}
#: Bits of a type by its number.
BITS_OF = tuple(_BITS[name] for name in _TYPES)
#: Types of factors and their depth in ``wgmma``: 32 bytes.
_GROUP_TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8")
#: Types of sums by that of the factors, and depths of ``mma`` with 16 rows and with 8.
_SUMS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",), "s8": ("s32",), "u8": ("s32",),
    "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
}  # fmt: skip
_DEPTHS = {
    "f16": ((8, 16), ()), "bf16": ((8, 16), ()), "tf32": ((4, 8), ()), "f64": ((4, 8, 16), (4,)),
    "s8": ((16, 32), (16,)), "u8": ((16, 32), (16,)), "e4m3": ((16, 32), ()), "e5m2": ((16, 32), ()),
}  # fmt: skip


@dataclass(frozen=True)
class Fragment:
    """Elements of a matrix that lanes hold.

    Parameters
    ----------
    positions : array of int64, shape (elements, 32)
        Row times 256 plus column of each element, by lane.
    bits : int
        Bits of an element.
    by_column : bool
        Whether columns are contiguous in memory.
    leading : int
        Distance between rows, or columns, in elements if the instruction has none.
    type : int
        Type of the elements.
    """

    positions: Ints
    bits: int
    by_column: bool
    leading: int
    type: int

    @property
    def registers(self) -> int:
        """Registers that a lane needs."""
        return len(self.positions) * min(self.bits, 32) // 32

    @property
    def run(self) -> int:
        """Number of elements that each lane accesses at once: neighbours in memory, up to 16 bytes."""
        step = 256 if self.by_column else 1
        for run in (128 // self.bits, 64 // self.bits, 32 // self.bits):
            if run > 1 and len(self.positions) % run == 0:
                groups = self.positions.reshape(-1, run, 32)
                if np.all(np.diff(groups, axis=1) == step):
                    return run
        return 1


@dataclass(frozen=True)
class FragmentProduct:
    """Shape and operands of a product.

    Parameters
    ----------
    shape : (int, int, int)
        Rows, columns and depth.
    fragments : tuple of Fragment
        Result, left matrix, right matrix and sums.
    saturates : bool
        Whether integers that do not fit are clamped.
    """

    shape: tuple[int, int, int]
    fragments: tuple[Fragment, ...]
    saturates: bool = False


def fragment_of(opcode: Sequence[str]) -> Fragment:
    """Return the fragment that an instruction such as ``wmma.load.a.sync.aligned.row.m16n16k16.shared.f16`` moves.

    Parameters
    ----------
    opcode : sequence of str
        Parts of the opcode.

    Raises
    ------
    KeyError, ValueError
        It is not supported.

    Examples
    --------
    >>> fragment = fragment_of("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16".split("."))
    >>> fragment.registers, fragment.run
    (8, 8)
    """
    operand, layout, shape, kind = opcode[2], opcode[5], opcode[6], opcode[-1]
    if opcode[3:5] != ["sync", "aligned"] or len(opcode) > 9:
        raise KeyError(opcode)
    return _fragment(operand, _SHAPES[shape], ("row", "col").index(layout) == 1, kind)


def product_of(opcode: Sequence[str]) -> FragmentProduct:
    """Return the operands of an instruction such as ``wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32``.

    Parameters
    ----------
    opcode : sequence of str
        Parts of the opcode.

    Raises
    ------
    KeyError, ValueError
        It is not supported.
    """
    kinds = [kind for kind in opcode[7:] if kind not in ("rn", "satfinite")]
    result, left, right, sums = kinds if len(kinds) == 4 else (kinds[0], "f16", "f16", *kinds[1:])
    if opcode[2:4] != ["sync", "aligned"] or left != right or not {result, sums} <= {*_SUMS[left]}:
        raise KeyError(opcode)
    saturates = "satfinite" in opcode
    if saturates and sums != "s32":
        raise KeyError(opcode)
    shape, layouts = _SHAPES[opcode[6]], [("row", "col").index(layout) == 1 for layout in opcode[4:6]]
    fragments = (
        _fragment("d", shape, False, result), _fragment("a", shape, layouts[0], left),
        _fragment("b", shape, layouts[1], right), _fragment("c", shape, False, sums),
    )  # fmt: skip
    return FragmentProduct(shape, fragments, saturates)


def mma_of(opcode: Sequence[str]) -> FragmentProduct:
    """Return the operands of an instruction such as ``mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32``.

    Parameters
    ----------
    opcode : sequence of str
        Parts of the opcode.

    Raises
    ------
    KeyError, ValueError
        It is not supported.

    Examples
    --------
    >>> product = mma_of("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32".split("."))
    >>> product.shape, [fragment.registers for fragment in product.fragments]
    ((16, 8, 16), [4, 4, 2, 4])
    """
    result, left, right, sums = opcode[-4:]
    rows, columns, depth = (int(size) for size in re.split("[mnk]", opcode[3])[1:])
    modifiers = opcode[6:-4]
    if opcode[1:3] != ["sync", "aligned"] or opcode[4:6] != ["row", "col"] or set(modifiers) - {"satfinite", "rn"}:
        raise KeyError(opcode)
    if result != sums or sums not in _SUMS[left] or _SUMS[left] != _SUMS[right] or _DEPTHS[left] != _DEPTHS[right]:
        raise KeyError(opcode)
    if columns != 8 or rows not in (8, 16) or depth not in _DEPTHS[left][rows == 8]:
        raise KeyError(opcode)
    fragments = (
        _sums_of_mma(rows, result), _factors_of_mma(rows, depth, left, False), _factors_of_mma(8, depth, right, True),
        _sums_of_mma(rows, sums),
    )  # fmt: skip
    return FragmentProduct((rows, columns, depth), fragments, "satfinite" in modifiers)


@dataclass(frozen=True)
class GroupProduct:
    """Shape and types of ``wgmma.mma_async``; each of its four warps computes 16 rows.

    Parameters
    ----------
    columns, depth : int
        Columns of the right matrix, and depth.
    left : Fragment
        The 16 rows of a warp of the left matrix as registers hold them, which is as in ``mma``.
    right, sums : int
        Types of the elements.
    registers : int
        Registers of the sums of a lane.
    """

    columns: int
    depth: int
    left: Fragment
    right: int
    sums: int
    registers: int


def group_product_of(opcode: Sequence[str]) -> GroupProduct:
    """Return the shape and the types of an instruction such as ``wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16``.

    Parameters
    ----------
    opcode : sequence of str
        Parts of the opcode.

    Raises
    ------
    KeyError, ValueError
        It is not supported.

    Examples
    --------
    >>> product = group_product_of("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16".split("."))
    >>> product.columns, product.depth, product.registers
    (64, 16, 32)
    """
    rows, columns, depth = (int(size) for size in re.split("[mnk]", opcode[4])[1:])
    sums, left, right = (kind for kind in opcode[5:] if kind != "satfinite")
    if opcode[1:4] != ["mma_async", "sync", "aligned"] or sums not in _SUMS[left] or _SUMS[left] != _SUMS[right]:
        raise KeyError(opcode)
    if left not in _GROUP_TYPES or _BITS[left] != _BITS[right] or depth * _BITS[left] != 256:
        raise KeyError(opcode)
    if rows != 64 or columns % 8 or not 8 <= columns <= 256:
        raise KeyError(opcode)
    registers = columns * min(_BITS[sums], 32) // 64
    fragment = _factors_of_mma(16, depth, left, False)
    return GroupProduct(columns, depth, fragment, _TYPES[right], _TYPES[sums], registers)


def _factors_of_mma(across: int, depth: int, kind: str, is_right: bool) -> Fragment:
    """Return a factor of ``mma``: registers of neighbours along the depth, first rows 8 apart, then depths."""
    together = max(32 // _BITS[kind], 1)
    element = np.arange(across * depth // 32)[:, None]
    register, part = element // together, element % together
    parts_across = across // 8
    line = (_LANE >> 2) + 8 * (register % parts_across)
    deep = together * (_LANE & 3) + part + 4 * together * (register // parts_across)
    positions = 256 * deep + line if is_right else 256 * line + deep
    return Fragment(np.asarray(positions, dtype=np.int64), _BITS[kind], is_right, depth, _TYPES[kind])


def _sums_of_mma(rows: int, kind: str) -> Fragment:
    element = np.arange(rows // 4)[:, None]
    positions = 256 * ((_LANE >> 2) + 8 * (element >> 1)) + 2 * (_LANE & 3) + (element & 1)
    return Fragment(np.asarray(positions, dtype=np.int64), _BITS[kind], False, 8, _TYPES[kind])


def _fragment(operand: str, shape: tuple[int, int, int], by_column: bool, kind: str) -> Fragment:
    rows, columns, depth = shape
    is_sum = operand in ("c", "d")
    kinds = {sums for factor in _FACTORS[depth] for sums in _SUMS[factor]} if is_sum else _FACTORS[depth]
    if operand not in ("a", "b", "c", "d") or kind not in kinds:
        raise KeyError(operand, kind)
    lines, elements = (rows, columns) if is_sum else (rows, depth) if operand == "a" else (depth, columns)
    if is_sum and rows * columns == 64:
        positions = _sums_of_mma(rows, kind).positions
    elif is_sum:
        row, column = _sums(shape, kind)
        positions = 256 * row + column
    elif kind == "f16":
        across, deep = _half(operand, shape, by_column)
        positions = 256 * across + deep if operand == "a" else 256 * deep + across
    else:
        side = rows if operand == "a" else columns
        positions = _factors_of_mma(side, depth, kind, operand == "b").positions
    leading = lines if by_column else elements
    return Fragment(np.asarray(positions, dtype=np.int64), _BITS[kind], by_column, leading, _TYPES[kind])


_LANE = np.arange(32)
#: First lanes of the upper half of an octet hold its last four rows, or columns.
_OCTET, _UPPER = _LANE >> 2 & 3, _LANE >> 4 << 2


def _corner(shape: tuple[int, int, int]) -> tuple[Ints, Ints]:
    """Return the first row and the first column of the octet of each lane."""
    rows, columns, _ = shape
    none = np.zeros(32, dtype=np.int64)
    if rows == columns:
        return 8 * (_OCTET & 1), 8 * (_OCTET >> 1)
    return (8 * _OCTET, none) if rows > columns else (none, 8 * _OCTET)


def _half(operand: str, shape: tuple[int, int, int], by_column: bool) -> tuple[Ints, Ints]:
    """Return where the FP16 elements of a lane lie, across the depth and along it; two or more lanes hold each."""
    element = np.arange(16)[:, None]
    begin = _corner(shape)[operand == "b"]
    if by_column == (operand == "b"):
        return np.broadcast_to(begin + (_LANE & 3) + _UPPER, (16, 32)), np.broadcast_to(element, (16, 32))
    return begin + (element & 3) + _UPPER, (_LANE & 3) + (element >> 2 << 2)


def _sums(shape: tuple[int, int, int], kind: str) -> tuple[Ints, Ints]:
    """Return row and column of the sums of a lane."""
    element = np.arange(8)[:, None]
    row, column = _corner(shape)
    if kind == "f16":
        return np.broadcast_to(row + (_LANE & 3) + _UPPER, (8, 32)), column + element
    return row + (_LANE & 1) + (element & 2) + _UPPER, column + (element & 4) + (_LANE & 2) + (element & 1)
