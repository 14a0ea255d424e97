"""Which lines of memory a kernel touches, and in which order: `Stream`, `Tiles`, `Accesses`.

A `Stream` describes a kernel by the tiles that each of its workgroups touches, step by step. `blocks` turns it into
accesses to cache lines. It dispatches workgroups in order and takes turns among the workgroups that are resident, as
the compute units of a GPU do. Only a block of accesses is in memory at a time.

`Walk` and `pieces` split a kernel's data over workgroups and steps. `Memory` places the arrays of a sequence of
kernels, and `bind` lets a stream use them: a kernel finds in a cache what the kernel before it left there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Bools, Ints
from profilers.trace.compiled import compiled

#: Bytes to which operands are aligned, as by the allocator of PyTorch.
ALIGNMENT = 512
#: Accesses of a block, unless a single step has more.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Operand:
    """An array in memory that a kernel reads or writes.

    Parameters
    ----------
    name : str
        Name, such as ``"A"``.
    size : int
        Bytes.
    address : int
        Address of the first byte.
    """

    name: str
    size: int
    address: int


def operands(**sizes: int) -> tuple[Operand, ...]:
    """Return operands of these bytes, one after another in memory, each aligned to 512 bytes.

    Examples
    --------
    >>> [operand.address for operand in operands(A=100, B=600, C=4)]
    [0, 512, 1536]
    """
    memory = Memory()
    return tuple(memory.array(name, size) for name, size in sizes.items())


@dataclass(frozen=True)
class Tiles:
    """Rectangles of memory: `rows` runs of `width` bytes, `pitch` bytes from one run to the next.

    All are arrays of shape (n,). The tiles of one workgroup stand together, in the order in which it touches them.

    Parameters
    ----------
    workgroup : array of int64
        Number of the workgroup that touches the tile, ascending.
    address : array of int64
        First byte of the first run.
    rows, pitch, width : array of int64
        Number of runs, bytes between the begins of two runs, bytes of a run.
    operand : array of int64
        Index of the operand in `Stream.operands`.
    is_write : array of bool
        Whether the tile is written; otherwise it is read.
    """

    workgroup: Ints
    address: Ints
    rows: Ints
    pitch: Ints
    width: Ints
    operand: Ints
    is_write: Bools

    @classmethod
    def of(
        cls,
        workgroup: npt.ArrayLike,
        address: npt.ArrayLike,
        operand: npt.ArrayLike,
        *,
        width: npt.ArrayLike,
        rows: npt.ArrayLike = 1,
        pitch: npt.ArrayLike = 0,
        is_write: npt.ArrayLike = False,
    ) -> "Tiles":
        """Return tiles from arrays or single values, which broadcast; tiles without rows or width are left out."""
        columns = np.broadcast_arrays(workgroup, address, rows, pitch, width, operand)
        groups, begins, counts, pitches, widths, numbers = (
            np.asarray(column, dtype=np.int64).ravel() for column in columns
        )
        written = np.broadcast_to(np.asarray(is_write, dtype=bool), columns[0].shape).ravel()
        kept = (counts > 0) & (widths > 0)
        return cls(groups, begins, counts, pitches, widths, numbers, written).select(kept)

    def select(self, rows: Bools | Ints) -> "Tiles":
        """Return the chosen tiles, by a mask or by their numbers."""
        return Tiles(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, *several: "Tiles") -> "Tiles":
        """Return all tiles, by workgroup; the tiles of a workgroup keep the order of the arguments."""
        columns = [np.concatenate([getattr(tiles, field.name) for tiles in several]) for field in fields(cls)]
        return cls(*columns).select(np.argsort(columns[0], kind="stable"))

    def __len__(self) -> int:
        return len(self.workgroup)


@dataclass(frozen=True)
class Stream:
    """A kernel as the tiles that its workgroups touch.

    Parameters
    ----------
    name : str
        Name of the operator, with its shape.
    operands : tuple of Operand
        Arrays that it touches.
    workgroups : int
        Number of workgroups.
    steps : int
        Number of steps of a workgroup. Steps of different workgroups run in turn.
    tiles : callable
        Takes the numbers of workgroups, shape (n,), and a step; returns the tiles that they touch in it.
    flops : float
        Floating-point operations of the kernel.
    threads : int
        Threads of a workgroup.
    vector_bytes : int
        Bytes that a thread loads or stores in one instruction.
    residency : int
        Workgroups that a compute unit holds at a time.
    in_flight : int
        Instructions of a wavefront that may wait for memory at a time: the unrolling of its loop.
    matrix : bool
        Whether the arithmetic runs on matrix units.
    element_bytes : int
        Bytes of an element.
    alike : int
        Number of first steps that all touch other data, in the same way: slices of the depth of a product. Some of
        them can stand for all. 0 if there are none.
    idle_cycles : float
        Cycles of a workgroup in which its compute unit issues no access, such as those of a reduction whose threads
        meet in the same bank of shared memory.
    assumptions : tuple of str
        What the trace does not tell and the stream assumes, such as ``"tile 128 x 128 x 32"``.
    """

    name: str
    operands: tuple[Operand, ...]
    workgroups: int
    steps: int
    tiles: Callable[[Ints, int], Tiles]
    flops: float = 0.0
    threads: int = 256
    vector_bytes: int = 16
    residency: int = 4
    in_flight: int = 4
    matrix: bool = False
    element_bytes: int = 4
    alike: int = 0
    idle_cycles: float = 0.0
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("workgroups", "steps", "threads", "vector_bytes", "residency", "in_flight"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{self.name}: {name} is {getattr(self, name)}; it must be 1 or more")

    def with_tiles(self, change: Callable[[Tiles], Tiles]) -> "Stream":
        """Return the stream with the tiles of each step changed."""
        return replace(self, tiles=lambda workgroups, step: change(self.tiles(workgroups, step)))

    @cached_property
    def footprint(self) -> int:
        """Bytes of all operands."""
        return sum(operand.size for operand in self.operands)


@dataclass(frozen=True)
class Accesses:
    """Accesses to cache lines, in order of issue. All are arrays of shape (n,).

    Parameters
    ----------
    line : array of int64
        Number of the line: address over the bytes of a line.
    sectors : array of uint32
        Bit i is set if sector i of the line is touched.
    is_write : array of uint8
        1 for a store, 0 for a load.
    operand : array of int16
        Index of the operand: the instruction that touches it, as far as a policy can tell.
    unit : array of int32
        Compute unit that issues the access.
    """

    line: Ints
    sectors: npt.NDArray[np.uint32]
    is_write: npt.NDArray[np.uint8]
    operand: npt.NDArray[np.int16]
    unit: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.line)


@dataclass(frozen=True)
class Lines:
    """How memory is cut into lines, and which units share it.

    Parameters
    ----------
    line_bytes, sector_bytes : int
        Bytes of a line, and of a sector of it. Powers of two, with 32 sectors or fewer in a line.
    units : int
        Compute units.
    wavefront : int
        Threads of a wavefront (warp), which issue an instruction together.
    """

    line_bytes: int
    sector_bytes: int
    units: int
    wavefront: int = 64

    def __post_init__(self) -> None:
        sizes = (self.line_bytes, self.sector_bytes)
        if min(sizes) < 1 or any(size & (size - 1) for size in sizes) or not 1 <= sizes[0] // sizes[1] <= 32:
            raise InvalidInputError(
                f"lines of {self.line_bytes} bytes in sectors of {self.sector_bytes}: both must be powers of two, "
                "with 1 to 32 sectors in a line"
            )


def waves(stream: Stream, units: int) -> int:
    """Return how many times the resident workgroups are exchanged: all over the resident ones, rounded up."""
    return -(-stream.workgroups // (units * stream.residency))


def blocks(stream: Stream, lines: Lines, chosen: Iterable[tuple[int, range]] | None = None) -> Iterator[Accesses]:
    """Yield the accesses of a kernel, a block at a time.

    Workgroup w runs on unit ``w % units``. A wave of resident workgroups ends before the next one starts. In each step
    the workgroups take turns: a turn is one instruction of all wavefronts of a workgroup.

    Parameters
    ----------
    stream : Stream
        Kernel.
    lines : Lines
        Lines and units.
    chosen : iterable of (int, range), optional
        Number of a wave and its steps to run, in this order; by default all steps of all waves.

    Yields
    ------
    Accesses
        Blocks of about a million accesses, or of one step if that has more.
    """
    resident = lines.units * stream.residency
    turn = stream.threads * stream.vector_bytes
    if chosen is None:
        chosen = ((wave, range(stream.steps)) for wave in range(waves(stream, lines.units)))
    kept: list[Accesses] = []
    count = 0
    for wave, steps in chosen:
        workgroups = np.arange(wave * resident, min((wave + 1) * resident, stream.workgroups), dtype=np.int64)
        for step in steps:
            kept.append(accesses_of(stream.tiles(workgroups, step), lines, turn))
            count += len(kept[-1])
            if count >= _BLOCK:
                yield _joined(kept)
                kept, count = [], 0
    if kept:
        yield _joined(kept)


def accesses_of(tiles: Tiles, lines: Lines, turn_bytes: int) -> Accesses:
    """Return the accesses of a step, in which workgroups take turns of `turn_bytes` bytes.

    Parameters
    ----------
    tiles : Tiles
        Tiles of all workgroups in this step.
    lines : Lines
        Lines and units.
    turn_bytes : int
        Bytes that a workgroup touches in a turn; at least one line is touched.
    """
    starts = np.flatnonzero(np.diff(tiles.workgroup, prepend=-1)).astype(np.int64)
    bounds = np.append(starts, len(tiles)).astype(np.int64)
    rectangles = tiles.address, tiles.rows, tiles.pitch, tiles.width, tiles.operand, tiles.is_write
    shifts = lines.line_bytes.bit_length() - 1, lines.sector_bytes.bit_length() - 1
    columns = _expand(rectangles, bounds, tiles.workgroup[starts] % lines.units, shifts, turn_bytes)
    return Accesses(*columns)


def _joined(several: list[Accesses]) -> Accesses:
    return Accesses(*(np.concatenate([getattr(block, field.name) for block in several]) for field in fields(Accesses)))


@compiled
def _expand(rectangles, bounds, unit, shifts, turn_bytes):  # type: ignore[no-untyped-def]
    """Return line, sectors, is_write, operand and unit of each access, with the workgroups in turn."""
    address, rows, pitch, width, operand, is_write = rectangles
    line_shift, sector_shift = shifts
    n_touches = 0
    for tile in range(len(address)):
        begin = address[tile]
        for _ in range(rows[tile]):
            n_touches += ((begin + width[tile] - 1) >> line_shift) - (begin >> line_shift) + 1
            begin += pitch[tile]
    line, sectors = np.empty(n_touches, np.int64), np.empty(n_touches, np.uint32)
    written, operands_ = np.empty(n_touches, np.uint8), np.empty(n_touches, np.int16)
    units = np.empty(n_touches, np.int32)
    groups = len(bounds) - 1
    # Groups with tiles left, in order; for each its tile, its row, and the first byte of the row that is not touched.
    waiting = np.arange(groups)
    tile_of, row_of, byte_of = bounds[:-1].copy(), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    last_in_line, filled, left = (1 << line_shift) - 1, 0, groups
    while left > 0:
        kept = 0
        for position in range(left):
            group = waiting[position]
            tile, row, byte, last_tile = tile_of[group], row_of[group], byte_of[group], bounds[group + 1]
            on, budget = unit[group], turn_bytes
            while budget > 0 and tile < last_tile:
                start = address[tile] + row * pitch[tile]
                begin, end = start + byte, start + width[tile]
                number, by = operand[tile], is_write[tile]
                while budget > 0 and begin < end:
                    stop = min((begin | last_in_line) + 1, end)
                    first = (begin & last_in_line) >> sector_shift
                    last = ((stop - 1) & last_in_line) >> sector_shift
                    line[filled] = begin >> line_shift
                    sectors[filled] = ((2 << (last - first)) - 1) << first
                    written[filled], operands_[filled], units[filled] = by, number, on
                    filled += 1
                    budget -= stop - begin
                    begin = stop
                byte = begin - start
                if begin == end:
                    byte = 0
                    row += 1
                    if row == rows[tile]:
                        row = 0
                        tile += 1
            tile_of[group], row_of[group], byte_of[group] = tile, row, byte
            if tile < last_tile:
                waiting[kept] = group
                kept += 1
        left = kept
    return line, sectors, written, operands_, units


#: Threads that a compute unit holds: 2,048 on NVIDIA since Kepler (CUDA programming guide) and on AMD CDNA (32
#: wavefronts of 64).
UNIT_THREADS = 2048
#: Most workgroups of a unit (CUDA programming guide, compute capability 7.0).
_MOST_RESIDENT = 32
#: Bytes that a workgroup touches of an array in a step, so that a block of accesses stays small.
STEP_BYTES = 16 << 10


def resident_workgroups(threads: int) -> int:
    """Return the workgroups that a compute unit holds, as far as threads limit them.

    Examples
    --------
    >>> resident_workgroups(256), resident_workgroups(32)
    (8, 32)
    """
    return max(min(UNIT_THREADS // threads, _MOST_RESIDENT), 1)


def checked_sizes(**sizes: int) -> None:
    """Check that all sizes are 1 or more.

    Raises
    ------
    InvalidInputError
        A size is below 1.
    """
    for name, size in sizes.items():
        if size < 1:
            raise InvalidInputError(f"{name} is {size}; a dimension must be 1 or more")


def pieces(begin: npt.ArrayLike, end: npt.ArrayLike, length: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut ranges at the multiples of a length.

    Parameters
    ----------
    begin, end : array of int64, shape (n,)
        Half-open ranges; an empty range has no pieces.
    length : int
        Distance between two cuts, such as the elements of a row.

    Returns
    -------
    tuple of arrays of int64
        For each piece, in order: number of its range, number of its row, first and end position in the row.

    Examples
    --------
    >>> [column.tolist() for column in pieces([0, 7], [7, 10], 5)]
    [[0, 0, 1], [0, 1, 1], [0, 0, 2], [5, 2, 5]]
    """
    begins, ends = np.broadcast_arrays(np.asarray(begin, np.int64), np.asarray(end, np.int64))
    counts = np.where(ends > begins, (ends - 1) // length - begins // length + 1, 0)
    number = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    ordinal = np.arange(len(number), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    row = begins[number] // length + ordinal
    first = np.maximum(begins[number] - row * length, 0)
    last = np.minimum(ends[number] - row * length, length)
    return number, row, first, last


@dataclass(frozen=True)
class Walk:
    """A loop of workgroups over elements.

    Parameters
    ----------
    elements : int
        Elements of the array.
    workgroups, steps : int
        Workgroups, and steps of each.
    slice_ : int
        Elements of a workgroup in a step.
    chunk : int
        Elements of the contiguous chunk of a workgroup; 0 if all workgroups advance together by the slices of a step
        (a grid-stride loop).
    """

    elements: int
    workgroups: int
    steps: int
    slice_: int
    chunk: int

    @classmethod
    def chunks(cls, elements: int, chunk: int, slice_: int = 0) -> "Walk":
        """Return a loop in which each workgroup passes over its own contiguous chunk, a slice in each step."""
        slice_ = min(slice_ or chunk, chunk)
        return cls(elements, -(-elements // chunk), -(-chunk // slice_), slice_, chunk)

    @classmethod
    def grid_stride(cls, elements: int, workgroups: int, slice_: int) -> "Walk":
        """Return a grid-stride loop of a number of workgroups."""
        return cls(elements, workgroups, -(-elements // (workgroups * slice_)), slice_, 0)

    def ranges(self, workgroups: Ints, step: int) -> tuple[Ints, Ints]:
        """Return the first and the end element of each workgroup in a step; empty ranges have equal ends."""
        if not self.chunk:
            begin = (step * self.workgroups + workgroups) * self.slice_
            bound = np.full_like(begin, self.elements)
        else:
            begin = workgroups * self.chunk + step * self.slice_
            bound = np.minimum((workgroups + 1) * self.chunk, self.elements)
        begin = np.minimum(begin, bound)
        return begin, np.minimum(begin + self.slice_, bound)


class Memory:
    """Addresses for the arrays of a sequence of kernels, one after another.

    Examples
    --------
    >>> memory = Memory()
    >>> memory.array("x", 100).address, memory.array("y", 100).address
    (0, 512)
    """

    def __init__(self) -> None:
        self._end = 0
        self._workspace: Operand | None = None

    def array(self, name: str, size: int) -> Operand:
        """Return a new array of so many bytes."""
        array = Operand(name, size, self._end)
        self._end += -(-size // ALIGNMENT) * ALIGNMENT
        return array

    def workspace(self, size: int) -> Operand:
        """Return the array for partial sums, which all kernels use again; a larger one replaces it."""
        if self._workspace is None or self._workspace.size < size:
            self._workspace = self.array("partials", size)
        return self._workspace


def section(array: Operand, begin: int, size: int) -> Operand:
    """Return `size` bytes of an array from byte `begin` on.

    Raises
    ------
    InvalidInputError
        The array ends before.

    Examples
    --------
    >>> section(Operand("x", 100, 512), 40, 20)
    Operand(name='x', size=20, address=552)
    """
    if not 0 <= begin <= begin + size <= array.size:
        raise InvalidInputError(f"bytes {begin} to {begin + size} of {array.name}, which has {array.size}")
    return Operand(array.name, size, array.address + begin)


def bind(stream: Stream, arrays: Mapping[str, Operand]) -> Stream:
    """Return a stream whose operands are arrays of a sequence.

    Parameters
    ----------
    stream : Stream
        Kernel.
    arrays : mapping of str to Operand
        An array for each operand, by the name of the operand.

    Raises
    ------
    InvalidInputError
        An operand has no array, or its array is smaller.

    Examples
    --------
    >>> from replay.memory.streams.passes import ArrayPass, streaming_pass
    >>> stream = streaming_pass("relu", ArrayPass({"x": 400}, {"y": 400}, 100))
    >>> hidden = Operand("hidden", 400, 8192)
    >>> bind(stream, {"x": hidden, "y": hidden}).tiles(np.arange(1), 0).address.tolist()
    [8192, 8192]
    """
    for operand in stream.operands:
        if operand.name not in arrays or arrays[operand.name].size < operand.size:
            given = arrays[operand.name].size if operand.name in arrays else "none"
            raise InvalidInputError(f"{stream.name}: operand {operand.name} has {operand.size} bytes, given {given}")
    bound = tuple(Operand(operand.name, operand.size, arrays[operand.name].address) for operand in stream.operands)
    shifts = np.array([new.address - old.address for new, old in zip(bound, stream.operands, strict=True)])
    shifted = stream.with_tiles(lambda tiles: replace(tiles, address=tiles.address + shifts[tiles.operand]))
    return replace(shifted, operands=bound)
