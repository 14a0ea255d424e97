"""Sequences of kernels that share arrays: `Memory` places arrays, and `bind` lets a stream use them.

A kernel finds in a cache what the kernel before it left there, so arrays that both use must have the same addresses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import ALIGNMENT, Operand, Stream, Tiles
from replay.memory.streams.products import PARTIAL_BYTES, Tiling, product
from replay.memory.streams.streaming import Pass, streaming_pass


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
    >>> from replay.memory.streams.streaming import Pass, streaming_pass
    >>> stream = streaming_pass("relu", Pass({"x": 400}, {"y": 400}, 100))
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
    return replace(stream, operands=bound, tiles=_shifted(stream.tiles, shifts))


def product_kernels(
    sizes: tuple[int, int, int, int],
    element_bytes: int = 4,
    *,
    tiling: Tiling | None = None,
    layout: str = "nn",
    matrix: bool | None = None,
) -> tuple[Stream, ...]:
    """Return the kernels of a matrix product: the product, and the sum of its partial results if it splits its depth.

    The parameters are those of `replay.memory.streams.products.product`.

    Examples
    --------
    >>> [kernel.name for kernel in product_kernels((1, 64, 64, 8192), tiling=Tiling(64, 64, 16, parts=4))]
    ['product 64 x 64 x 8192', 'sum of 4 parts']
    """
    stream = product(sizes, element_bytes, tiling=tiling, layout=layout, matrix=matrix)
    partials = stream.operands[2]
    if partials.name != "partials":
        return (stream,)
    batch, m, n, _ = sizes
    # Each part of a product lies behind the part before it; a batch is summed as a longer product.
    elements, parts = batch * m * n, partials.size // (batch * m * n * max(element_bytes, PARTIAL_BYTES))
    size = partials.size // parts
    reads = {f"part_{number}": size for number in range(parts)}
    total = Pass(reads, {"C": elements * element_bytes}, elements, max(element_bytes, PARTIAL_BYTES), parts * elements)
    result = Operand("C", elements * element_bytes, partials.address - (-partials.size // ALIGNMENT) * ALIGNMENT)
    arrays = {f"part_{number}": section(partials, number * size, size) for number in range(parts)}
    return stream, bind(streaming_pass(f"sum of {parts} parts", total), {**arrays, "C": result})


def bind_product(memory: Memory, kernels: Sequence[Stream], arrays: Sequence[Operand]) -> tuple[Stream, ...]:
    """Return the kernels of a product on arrays A, B and C of a sequence; partial sums go to its workspace.

    Parameters
    ----------
    memory : Memory
        Memory of the sequence.
    kernels : sequence of Stream
        Kernels from `product_kernels`.
    arrays : sequence of Operand
        Arrays A, B and C.

    Raises
    ------
    InvalidInputError
        An array is too small.
    """
    names = dict(zip("ABC", arrays, strict=True))
    if len(kernels) == 1:
        return (bind(kernels[0], names),)
    before = kernels[0].operands[2]
    partials = memory.workspace(before.size)
    parts = {
        operand.name: section(partials, operand.address - before.address, operand.size)
        for operand in kernels[1].operands[:-1]
    }
    return bind(kernels[0], {**names, "partials": partials}), bind(kernels[1], {**parts, **names})


def _shifted(tiles: Callable[[Ints, int], Tiles], shifts: Ints) -> Callable[[Ints, int], Tiles]:
    """Return tiles whose addresses are shifted, by operand."""

    def shifted(workgroups: Ints, step: int) -> Tiles:
        original = tiles(workgroups, step)
        return replace(original, address=original.address + shifts[original.operand])

    return shifted
