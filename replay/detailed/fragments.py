"""Which element of a matrix each lane of a warp holds, for ``wmma`` (PTX ISA, warp-level matrix instructions).

The ISA leaves the layout open. That of FP16 and of the sums is the one of sm_70. Four octets of eight lanes compute 8
by 8 elements each, as four ``mma.m8n8k4`` in a row (PTX ISA, fragments of mma.m8n8k4; Raihan, Goli and Aamodt,
Modeling Deep Learning Accelerator Enabled GPUs, ISPASS 2019). That of BF16 is the one of ``mma.m16n8k16``, tile by
tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilers.trace.arrays import Ints

#: Rows of the left matrix, columns of the right one, and depth.
_SHAPES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}
_BITS = {"f16": 16, "bf16": 16, "f32": 32}


@dataclass(frozen=True)
class Fragment:
    """Elements of a matrix that lanes hold.

    Parameters
    ----------
    places : array of int64, shape (elements, 32)
        Row times 256 plus column of each element, by lane.
    bits : int
        Bits of an element.
    by_column : bool
        Whether columns are contiguous in memory.
    leading : int
        Distance between rows, or columns, in elements if the instruction has none.
    """

    places: Ints
    bits: int
    by_column: bool
    leading: int

    @property
    def holders(self) -> Ints:
        """Element times 32 plus lane of one that holds each element of the matrix, row by row."""
        _, first = np.unique(self.places, return_index=True)
        return np.asarray(first, dtype=np.int64)

    @property
    def registers(self) -> int:
        """Registers of 32 bits that a lane needs."""
        return len(self.places) * self.bits // 32

    @property
    def run(self) -> int:
        """Elements that each lane accesses at once: those that follow one another in memory, up to 16 bytes."""
        step = 256 if self.by_column else 1
        for run in (128 // self.bits, 64 // self.bits, 2):
            if len(self.places) % run == 0:
                groups = self.places.reshape(-1, run, 32)
                if np.all(np.diff(groups, axis=1) == step):
                    return run
        return 1


@dataclass(frozen=True)
class Product:
    """Shape and operands of ``wmma.mma``.

    Parameters
    ----------
    shape : (int, int, int)
        Rows, columns and depth.
    fragments : tuple of Fragment
        Result, left matrix, right matrix and sums.
    is_brain : bool
        Whether the matrices are BF16.
    """

    shape: tuple[int, int, int]
    fragments: tuple[Fragment, ...]
    is_brain: bool


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


def product_of(opcode: Sequence[str]) -> Product:
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
    kinds = list(opcode[7:])
    result, left, right, sums = kinds if len(kinds) == 4 else (kinds[0], "f16", "f16", *kinds[1:])
    if opcode[2:4] != ["sync", "aligned"] or left != right:
        raise KeyError(opcode)
    shape, layouts = _SHAPES[opcode[6]], [("row", "col").index(layout) == 1 for layout in opcode[4:6]]
    fragments = (
        _fragment("d", shape, False, result), _fragment("a", shape, layouts[0], left),
        _fragment("b", shape, layouts[1], right), _fragment("c", shape, False, sums),
    )  # fmt: skip
    return Product(shape, fragments, left == "bf16")


def _fragment(operand: str, shape: tuple[int, int, int], by_column: bool, kind: str) -> Fragment:
    rows, columns, depth = shape
    is_sum = operand in ("c", "d")
    if operand not in ("a", "b", "c", "d") or kind not in (("f16", "f32") if is_sum else ("f16", "bf16")):
        raise KeyError(operand, kind)
    if is_sum:
        row, column = _sums(shape, kind)
        leading = rows if by_column else columns
    else:
        side = rows if operand == "a" else columns
        across, deep = _brain(side) if kind == "bf16" else _half(operand, shape, by_column)
        row, column = (across, deep) if operand == "a" else (deep, across)
        leading = (side if by_column else depth) if operand == "a" else (depth if by_column else side)
    return Fragment(np.asarray(256 * row + column, dtype=np.int64), _BITS[kind], by_column, leading)


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


def _brain(side: int) -> tuple[Ints, Ints]:
    """Return where the BF16 elements of a lane lie, across the depth and along it."""
    element = np.arange(side // 2)[:, None]
    return (_LANE >> 2) + 8 * (element >> 2), 2 * (_LANE & 3) + (element & 1) + 8 * (element >> 1 & 1)


def _sums(shape: tuple[int, int, int], kind: str) -> tuple[Ints, Ints]:
    """Return row and column of the sums of a lane."""
    element = np.arange(8)[:, None]
    row, column = _corner(shape)
    if kind == "f16":
        return np.broadcast_to(row + (_LANE & 3) + _UPPER, (8, 32)), column + element
    return row + (_LANE & 1) + (element & 2) + _UPPER, column + (element & 4) + (_LANE & 2) + (element & 1)
