"""Streams of kernels that pass over their data once: elementwise, copies, fills, reductions, optimisers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profilers.trace.arrays import Ints
from replay.memory.accesses import Operand, Stream, Tiles, operands
from replay.memory.streams.splitting import STEP_BYTES, Walk, checked_sizes, pieces, resident_workgroups

#: Threads of a workgroup and elements of a thread, as in PyTorch's elementwise kernels (`CUDALoops.cuh`).
_THREADS, _PER_THREAD = 128, 4
#: The same of its reductions (`Reduce.cuh`), and most workgroups of one.
_REDUCTION_THREADS, _REDUCTION_CHUNK = 512, 1 << 14
#: Threads, chunk and unrolling of its kernels over lists of tensors (`MultiTensorApply.cuh`).
_LIST_THREADS, _LIST_CHUNK, _LIST_PER_THREAD = 512, 65536, 4
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Pass:
    """Arrays that a kernel passes over once, element by element.

    Parameters
    ----------
    reads, writes : mapping of str to int
        Bytes of each array. An array of fewer bytes than elements is repeated if it is read, as a bias is; if it is
        written, each of its elements is a result of several.
    elements : int
        Elements computed.
    element_bytes : int
        Bytes of an element.
    flops : float
        Floating-point operations.
    """

    reads: Mapping[str, int]
    writes: Mapping[str, int]
    elements: int
    element_bytes: int = 4
    flops: float = 0.0

    def __post_init__(self) -> None:
        checked_sizes(elements=self.elements, element_bytes=self.element_bytes, **{**self.reads, **self.writes})


def streaming_pass(name: str, data: Pass, *, workgroups: int = 0) -> Stream:
    """Return the stream of an elementwise kernel, a copy or a fill.

    Parameters
    ----------
    name : str
        Name of the kernel.
    data : Pass
        Arrays and elements.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown. With so few workgroups that each has more than 16 KiB of
        elements, they advance together in a grid-stride loop. By default each computes 512 elements, as in PyTorch.

    Examples
    --------
    >>> stream = streaming_pass("relu", Pass({"x": 8192}, {"y": 8192}, 2048))
    >>> stream.workgroups, stream.steps
    (4, 1)
    """
    slice_ = _THREADS * _PER_THREAD
    walk = Walk.chunks(data.elements, slice_)
    if workgroups:
        chunk = -(-data.elements // workgroups)
        walk = Walk.chunks(data.elements, chunk)
        if chunk * data.element_bytes > STEP_BYTES:
            walk = Walk.grid_stride(data.elements, workgroups, slice_)
    return _passing(name, data, walk, threads=_THREADS)


def reduction(name: str, data: Pass, *, workgroups: int = 0) -> Stream:
    """Return the stream of a reduction: each workgroup reads a contiguous chunk and writes its share of the results.

    Parameters
    ----------
    name : str
        Name of the kernel.
    data : Pass
        Arrays; elements are those that are read.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown: then each reads 16,384 elements.

    Examples
    --------
    >>> reduction("sum", Pass({"x": 1 << 20}, {"y": 4}, 1 << 18)).workgroups
    16
    """
    chunk = -(-data.elements // workgroups) if workgroups else _REDUCTION_CHUNK
    walk = Walk.chunks(data.elements, min(chunk, data.elements), STEP_BYTES // data.element_bytes)
    return _passing(name, data, walk, threads=_REDUCTION_THREADS)


def optimizer(elements: int, element_bytes: int = 4, *, lists: int = 4, writes: int = 3, flops: float = 12.0) -> Stream:
    """Return the stream of an optimizer step over lists of tensors, in chunks of 65,536 elements as in PyTorch.

    Parameters
    ----------
    elements : int
        Elements of a list.
    element_bytes : int
        Bytes of an element.
    lists, writes : int
        Lists that are read, and how many of them are written: for Adam 4 and 3, the parameters and two moments.
    flops : float
        FLOP for each element.

    Examples
    --------
    >>> stream = optimizer(1 << 20)
    >>> stream.workgroups, stream.steps, len(stream.operands)
    (16, 32, 4)
    """
    checked_sizes(elements=elements, element_bytes=element_bytes, lists=lists)
    names = ["parameters", "gradients", "moments", "second_moments"][:lists]
    names += [f"list_{number}" for number in range(len(names), lists)]
    size = elements * element_bytes
    written = [name for name in names if name != "gradients"][:writes]
    data = Pass(dict.fromkeys(names, size), dict.fromkeys(written, size), elements, element_bytes, flops * elements)
    walk = Walk.chunks(elements, min(_LIST_CHUNK, elements), _LIST_THREADS * _LIST_PER_THREAD)
    return _passing(f"optimizer {elements}", data, walk, threads=_LIST_THREADS)


def _passing(name: str, data: Pass, walk: Walk, *, threads: int) -> Stream:
    """Return the stream of a pass; an array that is both read and written is one operand."""
    arrays = operands(**{**data.reads, **data.writes})
    loop = f"each of {walk.workgroups} workgroups computes {walk.slice_} elements in a step"
    return Stream(
        name,
        arrays,
        workgroups=walk.workgroups,
        steps=walk.steps,
        tiles=_PassTiles(data, walk, arrays),
        flops=data.flops,
        threads=threads,
        vector_bytes=min(_VECTOR_BYTES, _PER_THREAD * data.element_bytes),
        residency=resident_workgroups(threads),
        in_flight=max(len(data.reads), 1),
        element_bytes=data.element_bytes,
        assumptions=(loop + ("" if walk.chunk else ", in a grid-stride loop"),),
    )


class _PassTiles:
    """The tiles of a pass over arrays, by workgroup and step."""

    def __init__(self, data: Pass, walk: Walk, arrays: tuple[Operand, ...]) -> None:
        self.data, self.walk = data, walk
        self.number = {array.name: (index, array) for index, array in enumerate(arrays)}

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step: all that is read, then all that is written."""
        begin, end = self.walk.ranges(workgroups, step)
        return Tiles.joined(
            *(self._shares(name, workgroups, begin, end, is_write=False) for name in self.data.reads),
            *(self._shares(name, workgroups, begin, end, is_write=True) for name in self.data.writes),
        )

    def _shares(self, name: str, workgroups: Ints, begin: Ints, end: Ints, *, is_write: bool) -> Tiles:
        index, array = self.number[name]
        elements, size = self.data.elements, self.data.element_bytes
        if array.size >= elements or is_write:
            unit = array.size // elements or (size if array.size % size == 0 else 1)
            count = -(-array.size // unit)
            shares = (begin, end) if count == elements else (bound * count // elements for bound in (begin, end))
            first, last = (np.minimum(share * unit, array.size) for share in shares)
            return Tiles.of(workgroups, array.address + first, index, width=last - first, is_write=is_write)
        number, _, first, last = pieces(begin * size, end * size, array.size)
        return Tiles.of(workgroups[number], array.address + first, index, width=last - first)
