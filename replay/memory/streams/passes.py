"""Streams of kernels that pass over their data once, or over rows or channels several times.

Elementwise kernels, copies, fills, reductions, optimisers and lookups pass once. Lookups are embeddings, whose indices
are uniform, skewed, or measured. Softmax, layer norm and batch norm need a sum over a row or channel before they can
write it. Short rows stay in registers in between. Longer rows are read again in every pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import (
    STEP_BYTES,
    Operand,
    Stream,
    Tiles,
    Walk,
    checked_sizes,
    operands,
    pieces,
    resident_workgroups,
)

#: Bytes of an index: 64-bit, as PyTorch's embeddings take by default.
_INDEX_BYTES = 8
#: Part of the table by which ranks are scattered: the golden ratio spreads neighbours evenly.
_SCATTER = 0.6180339887498949
DISTRIBUTIONS = ("uniform", "zipf")


def drawn_indices(
    rows: int, lookups: int, *, distribution: str = "uniform", exponent: float = 1.05, seed: int = 0
) -> Ints:
    """Return indices of a table, uniform or skewed.

    Parameters
    ----------
    rows, lookups : int
        Rows of the table, and indices to draw.
    distribution : str
        ``uniform``, or ``zipf``: the row of rank r is drawn in proportion to ``r ** -exponent``.
    exponent : float
        Skew of a Zipf distribution, above 0. Indices of recommendation data have 0.6 to 1.2.
    seed : int
        Seed of the generator.

    Returns
    -------
    array of int64, shape (lookups,)
        Popular rows lie scattered in the table, as identifiers of users and items do.

    Raises
    ------
    InvalidInputError
        A size is below 1, the distribution is unknown, or its exponent is not above 0.

    Notes
    -----
    A Zipf rank is the whole part of a continuous power law on [1, rows + 1), by inversion of its distribution function.

    Examples
    --------
    >>> skewed = drawn_indices(1000, 10_000, distribution="zipf", exponent=1.2)
    >>> bool(np.bincount(skewed).max() > 1000), bool(0 <= skewed.min() <= skewed.max() < 1000)
    (True, True)
    """
    checked_sizes(rows=rows, lookups=lookups)
    if distribution not in DISTRIBUTIONS:
        raise InvalidInputError(f"distribution {distribution!r} of indices; one of {', '.join(DISTRIBUTIONS)}")
    generator = np.random.default_rng(seed)
    if distribution == "uniform":
        return generator.integers(0, rows, lookups, dtype=np.int64)
    if not exponent > 0:
        raise InvalidInputError(f"a Zipf distribution of exponent {exponent}; it must be above 0")
    share, power = generator.random(lookups), 1.0 - exponent
    if abs(power) < 1e-9:
        rank = np.exp(share * np.log(rows + 1.0))
    else:
        rank = (1.0 + share * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    ranks = np.clip(rank.astype(np.int64) - 1, 0, rows - 1)
    return np.asarray(ranks * _coprime(rows) % rows, dtype=np.int64)


def _coprime(rows: int) -> int:
    """Return a factor that permutes the rows: near the golden ratio of them, without a common divisor."""
    factor = max(int(rows * _SCATTER), 1)
    while gcd(factor, rows) != 1:
        factor += 1
    return factor


def embedding(
    table: tuple[int, int], indices: Ints, element_bytes: int = 4, *, backward: bool = False, vector_bytes: int = 16
) -> Stream:
    """Return the stream of a lookup of rows in a table.

    A workgroup handles 16 KiB of the output. It reads its indices and their rows, and writes its output. Backward, it
    reads the incoming gradient and adds it to the rows of the table's gradient, which it reads and writes.

    Parameters
    ----------
    table : tuple of int
        Rows and columns.
    indices : array of int64, shape (lookups,)
        Rows to look up, measured or from `drawn_indices`.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.
    vector_bytes : int
        Bytes that a thread loads at a time.

    Raises
    ------
    InvalidInputError
        A size is below 1, or an index lies outside of the table.

    Examples
    --------
    >>> stream = embedding((1000, 64), drawn_indices(1000, 4096))
    >>> stream.workgroups, [operand.name for operand in stream.operands]
    (64, ['indices', 'table', 'y'])
    """
    rows, columns = table
    checked_sizes(rows=rows, columns=columns, lookups=len(indices))
    if indices.min() < 0 or indices.max() >= rows:
        raise InvalidInputError(f"indices from {indices.min()} to {indices.max()} of a table of {rows} rows")
    width, lookups = columns * element_bytes, len(indices)
    names = ("table_gradient", "gradient") if backward else ("table", "y")
    arrays = operands(indices=lookups * _INDEX_BYTES, **{names[0]: rows * width, names[1]: lookups * width})
    group_lookups = max(STEP_BYTES // width, 1)
    # By lookup: its index, then loads and stores. A third column is a store that the forward pass does not have.
    operand = np.array([0, 2, 1, 1] if backward else [0, 1, 2])
    is_write = np.array([False, False, False, True] if backward else [False, False, True])

    def tiles(workgroups: Ints, step: int) -> Tiles:
        number = (workgroups[:, None] * group_lookups + np.arange(group_lookups)).ravel()
        number, group = number[number < lookups], np.repeat(workgroups, group_lookups)[number < lookups]
        in_order = {0: number * _INDEX_BYTES, 1: indices[number] * width, 2: number * width}
        address = np.stack([arrays[index].address + in_order[index] for index in operand.tolist()], axis=1)
        return Tiles.of(group[:, None], address, operand, width=np.where(operand == 0, _INDEX_BYTES, width),
                        is_write=is_write)  # fmt: skip

    distinct = len(np.unique(indices))
    return Stream(
        f"embedding{' backward' if backward else ''} {lookups} of {rows} x {columns}",
        arrays,
        workgroups=-(-lookups // group_lookups),
        steps=1,
        tiles=tiles,
        flops=float(lookups * columns) if backward else 0.0,
        threads=_THREADS,
        vector_bytes=min(vector_bytes, width),
        residency=resident_workgroups(_THREADS),
        in_flight=2,
        element_bytes=element_bytes,
        assumptions=(f"{distinct} of {rows} rows are touched", f"{group_lookups} lookups a workgroup"),
    )


#: Threads of a workgroup and elements of a thread, as in PyTorch's elementwise kernels (`CUDALoops.cuh`).
_THREADS, _PER_THREAD = 128, 4
#: The same of its reductions (`Reduce.cuh`), and most workgroups of one.
_REDUCTION_THREADS, _REDUCTION_CHUNK = 512, 1 << 14
#: Threads, chunk and unrolling of its kernels over lists of tensors (`MultiTensorApply.cuh`).
_LIST_THREADS, _LIST_CHUNK, _LIST_PER_THREAD = 512, 65536, 4
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class ArrayPass:
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


def streaming_pass(name: str, data: ArrayPass, *, workgroups: int = 0) -> Stream:
    """Return the stream of an elementwise kernel, a copy or a fill.

    Parameters
    ----------
    name : str
        Name of the kernel.
    data : ArrayPass
        Arrays and elements.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown. With so few workgroups that each has more than 16 KiB of
        elements, they advance together in a grid-stride loop. By default each computes 512 elements, as in PyTorch.

    Examples
    --------
    >>> stream = streaming_pass("relu", ArrayPass({"x": 8192}, {"y": 8192}, 2048))
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


def reduction(name: str, data: ArrayPass, *, workgroups: int = 0) -> Stream:
    """Return the stream of a reduction: each workgroup reads a contiguous chunk and writes its share of the results.

    Parameters
    ----------
    name : str
        Name of the kernel.
    data : ArrayPass
        Arrays; its elements are the elements that are read.
    workgroups : int
        Workgroups of the recorded launch; 0 if unknown: then each reads 16,384 elements.

    Examples
    --------
    >>> reduction("sum", ArrayPass({"x": 1 << 20}, {"y": 4}, 1 << 18)).workgroups
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
    data = ArrayPass(
        dict.fromkeys(names, size), dict.fromkeys(written, size), elements, element_bytes, flops * elements
    )
    walk = Walk.chunks(elements, min(_LIST_CHUNK, elements), _LIST_THREADS * _LIST_PER_THREAD)
    return _passing(f"optimizer {elements}", data, walk, threads=_LIST_THREADS)


def _passing(name: str, data: ArrayPass, walk: Walk, *, threads: int) -> Stream:
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

    def __init__(self, data: ArrayPass, walk: Walk, arrays: tuple[Operand, ...]) -> None:
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


#: Longest row that PyTorch's softmax keeps in registers (`PersistentSoftmax.cuh`), elements, and the rows of one of its
#: workgroups of 128 threads; each wavefront has a row, or two if they are short.
REGISTER_ELEMENTS = 1024
_SHORTEST_ROW, _ROWS_OF_SHORTEST = 128, 2
_MOST_THREADS, _SHARED_BYTES, _SUM_BYTES = 1024, 48 << 10, 128
#: Wavefronts of a workgroup of a layer norm (``num_threads() / warp_size`` of `layer_norm_kernel.cu`).
_NORM_WAVEFRONTS = 4
#: Threads of a wavefront of CDNA, and slots of issue of a thread of a softmax of long rows there, fixed and for each of
#: its elements; a slot is worth two FLOP. Counted from PyTorch's source and the instruction set, exact to a third: 30
#: for addresses, 70 for each of two reductions; of an element 10, 30 and 48 in the three passes, 17 of them for an
#: exponential and 14 for the division.
_AMD_WAVEFRONT, _ISSUE_SLOTS = 64, (170.0, 88.0)
#: Threads of a workgroup of a batch norm (MIOpen's `BatchNormFwdTrain*`).
_BATCH_THREADS = 256
#: FLOP of an element forward and backward (`replay.graph.operators.rowwise`).
_SOFTMAX_FLOPS, _NORM_FLOPS = (5, 4), (8, 11)


@dataclass(frozen=True)
class RowSweep:
    """A pass of a workgroup over its rows: names of the arrays that it reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()


def softmax(
    rows: int,
    columns: int,
    element_bytes: int = 4,
    *,
    backward: bool = False,
    registers: int = REGISTER_ELEMENTS,
    wavefront: int = 32,
) -> Stream:
    """Return the stream of a softmax of each row.

    Rows of up to `registers` elements are read once, each by a wavefront of a workgroup of 128 threads. A longer row
    has its own workgroup, which reads it three times forward (maximum, sum, result), and twice backward (sum, result).
    With wavefronts of 32, each maximum and sum is a reduction in shared memory, for which a compute unit stands still
    for as many cycles as the workgroup has threads: a thread adds up the values of a wavefront, which lie in one bank
    for all these threads. With wavefronts of 64, a workgroup has up to 1,024 threads, and a reduction is by shuffles.

    Parameters
    ----------
    rows, columns : int
        Shape of the matrix.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass, which reads the result and its gradient.
    registers : int
        Longest row that stays in registers or shared memory: 1,024 in older PyTorch, 256 in
        MIOpen, `shared_memory_row` in PyTorch 2.
    wavefront : int
        Threads of a wavefront.

    Notes
    -----
    Source: ``softmax_warp_forward``, ``cunn_SoftMaxForward`` and ``blockReduce`` of PyTorch 2.1; for wavefronts of 64
    ``SoftMaxForward_getBlockSize`` and ``blockReduceWarp`` of later ones.

    Examples
    --------
    >>> softmax(64, 1000).steps, softmax(64, 8192).steps
    (1, 6)
    """
    checked_sizes(rows=rows, columns=columns, wavefront=wavefront)
    result = RowSweep(("gradient", "y"), ("x_gradient",)) if backward else RowSweep(("x",), ("y",))
    again = [RowSweep(result.reads)] * (1 if backward else 2)
    flops = _SOFTMAX_FLOPS[backward] * rows * columns
    sweeps = _once(result, columns, element_bytes) if columns <= registers else [*again, result]
    plan = _RowSweeps(rows, columns, element_bytes, float(flops), sweeps)
    name = f"softmax{' backward' if backward else ''} {rows} x {columns}"
    if columns > min(registers, REGISTER_ELEMENTS):
        return _long_rows(name, plan, wavefront, reductions=1 if backward else 2)
    short = max(_THREADS // wavefront, 1) * (_ROWS_OF_SHORTEST if columns <= _SHORTEST_ROW else 1)
    return _over_rows(name, plan, rows_a_group=short, threads=_THREADS)


def _long_rows(name: str, plan: "_RowSweeps", wavefront: int, *, reductions: int) -> Stream:
    """Return a softmax whose rows do not stay in registers, each by a workgroup of its own."""
    if wavefront < _AMD_WAVEFRONT:
        threads = _row_threads(plan.columns, plan.element_bytes)
        stream = _over_rows(name, plan, rows_a_group=1, threads=threads)
        return replace(stream, idle_cycles=float(reductions * threads))
    threads = min(1 << (plan.columns - 1).bit_length(), _MOST_THREADS)
    fixed, per_element = (slots * reductions / 2 for slots in _ISSUE_SLOTS)
    slots = (fixed + per_element * -(-plan.columns // threads)) * threads * plan.rows
    return _over_rows(name, replace(plan, flops=max(2.0 * slots, plan.flops)), rows_a_group=1, threads=threads)


def shared_memory_row(columns: int, element_bytes: int) -> int:
    """Return the longest row of a softmax that PyTorch 2 keeps on the chip, for rows of so many elements.

    Rows that whole vectors of 16 bytes make up stay in 48 KiB of shared memory, beside the 128 bytes of a sum
    (``cunn_SoftMaxForwardSmem``). Others stay in registers, as far as these hold them.

    Examples
    --------
    >>> shared_memory_row(8192, 2), shared_memory_row(8191, 2)
    (24512, 1024)
    """
    whole = columns * element_bytes % _VECTOR_BYTES == 0
    return (_SHARED_BYTES - _SUM_BYTES) // element_bytes if whole else REGISTER_ELEMENTS


def layer_norm(
    rows: int,
    columns: int,
    element_bytes: int = 4,
    *,
    backward: bool = False,
    registers: int = 0,
    wavefront: int = 32,
) -> Stream:
    """Return the stream of a layer norm: a workgroup reads its row for mean and variance, and again for the result.

    A workgroup has four wavefronts, however long its row is.

    Parameters
    ----------
    rows, columns : int
        Shape of the matrix.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the kernel of the gradient of the input; it reads the input and the incoming gradient twice.
    registers : int
        Longest row that stays in registers or shared memory; PyTorch keeps none.
    wavefront : int
        Threads of a wavefront.

    Notes
    -----
    Source: ``vectorized_layer_norm_kernel`` and ``layer_norm_grad_input_kernel_vectorized`` of PyTorch.

    Examples
    --------
    >>> layer_norm(64, 1024).steps, layer_norm(64, 1024, registers=1024).steps
    (2, 1)
    """
    checked_sizes(rows=rows, columns=columns, wavefront=wavefront)
    statistics = RowSweep(("gradient", "x")) if backward else RowSweep(("x",))
    result = (
        RowSweep(("gradient", "x", "scale"), ("x_gradient",)) if backward else RowSweep(("x", "scale", "shift"), ("y",))
    )
    sweeps = _once(result, columns, element_bytes) if columns <= registers else [statistics, result]
    plan = _RowSweeps(rows, columns, element_bytes, float(_NORM_FLOPS[backward] * rows * columns), sweeps)
    name = f"layer norm{' backward' if backward else ''} {rows} x {columns}"
    return _over_rows(name, plan, rows_a_group=1, threads=_NORM_WAVEFRONTS * wavefront)


def _once(sweep: RowSweep, columns: int, element_bytes: int) -> list[RowSweep]:
    """Return the sweeps over a row that stays on the chip: a longer row is read whole before it is written."""
    if columns * element_bytes <= STEP_BYTES // len(sweep.reads):
        return [sweep]
    return [RowSweep(sweep.reads), RowSweep((), sweep.writes)]


@dataclass(frozen=True)
class _RowSweeps:
    """A matrix, and the sweeps of a kernel over each row of it; scale and shift are a row that all share."""

    rows: int
    columns: int
    element_bytes: int
    flops: float
    sweeps: Sequence[RowSweep]

    @property
    def arrays_read(self) -> int:
        """Most arrays that a sweep reads."""
        return max(len(sweep.reads) for sweep in self.sweeps)

    @property
    def passes(self) -> int:
        """Sweeps that read."""
        return sum(bool(sweep.reads) for sweep in self.sweeps)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each array."""
        names = [name for sweep in self.sweeps for name in (*sweep.reads, *sweep.writes)]
        row = self.columns * self.element_bytes
        return {name: row if name in ("scale", "shift") else row * self.rows for name in names}


def _over_rows(name: str, plan: _RowSweeps, *, rows_a_group: int, threads: int) -> Stream:
    """Return a kernel whose workgroups sweep over whole rows."""
    arrays = operands(**plan.sizes)
    index = {array.name: number for number, array in enumerate(arrays)}
    row_bytes = plan.columns * plan.element_bytes
    chunk = min(STEP_BYTES // plan.arrays_read // plan.element_bytes * plan.element_bytes, row_bytes)
    if rows_a_group > 1:
        chunk = row_bytes
    chunks = -(-row_bytes // chunk)

    def tiles(workgroups: Ints, step: int) -> Tiles:
        sweep, (first, count) = plan.sweeps[step // chunks], (workgroups * rows_a_group, rows_a_group)
        begin = step % chunks * chunk
        width = min(chunk, row_bytes - begin)
        several = []
        for array in (*sweep.reads, *sweep.writes):
            shared = array in ("scale", "shift")
            several.append(
                Tiles.of(
                    workgroups,
                    arrays[index[array]].address + begin + (0 if shared else first * row_bytes),
                    index[array],
                    rows=1 if shared else np.minimum(count, plan.rows - first),
                    pitch=row_bytes,
                    width=width,
                    is_write=array in sweep.writes,
                )
            )
        return Tiles.joined(*several)

    passes = "stay on the chip" if plan.passes == 1 else f"are read in {plan.passes} passes"
    return Stream(
        name,
        arrays,
        workgroups=-(-plan.rows // rows_a_group),
        steps=chunks * len(plan.sweeps),
        tiles=tiles,
        flops=plan.flops,
        threads=threads,
        vector_bytes=plan.element_bytes if rows_a_group > 1 else _VECTOR_BYTES,
        residency=resident_workgroups(threads),
        in_flight=_in_flight(plan, threads, rows_a_group),
        element_bytes=plan.element_bytes,
        assumptions=(f"{rows_a_group} rows a workgroup of {threads} threads", f"rows {passes}"),
    )


def _in_flight(plan: _RowSweeps, threads: int, rows_a_group: int) -> int:
    """Return the loads of a thread that wait together: a row in registers is loaded whole, longer ones by vectors."""
    arrays = plan.arrays_read
    return max(rows_a_group * plan.columns // threads, 1) * arrays if rows_a_group > 1 else 2 * arrays


def _row_threads(columns: int, element_bytes: int) -> int:
    """Return the threads for a row of a softmax: a power of two, so that half of a vector or more is left to each.

    Source: ``SoftMax_getBlockSize`` of PyTorch.
    """
    wanted = max(min(columns * element_bytes // _VECTOR_BYTES, _MOST_THREADS) // 2, 32)
    return 1 << (wanted - 1).bit_length()


def batch_norm(
    shape: tuple[int, int, int], element_bytes: int = 4, *, backward: bool = False, passes: int = 0
) -> Stream:
    """Return the stream of a batch norm in training, with a workgroup for each channel of a tensor in NCHW order.

    Forward, a workgroup reads its channel of all images for the mean, for the variance, and for the result. Backward,
    it reads the input and the incoming gradient for two sums, and again for the result.

    Parameters
    ----------
    shape : tuple of int
        (images, channels, elements of a channel of an image).
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.
    passes : int
        Passes over the data; the last one writes. By default 3 forward and 2 backward.

    Examples
    --------
    >>> stream = batch_norm((100, 64, 1024))
    >>> stream.workgroups, stream.steps
    (64, 75)
    """
    images, channels, extent = shape
    checked_sizes(images=images, channels=channels, extent=extent)
    chunk = min(STEP_BYTES // element_bytes, images * extent)
    plan = _Channels(shape, element_bytes, backward, passes or (2 if backward else 3), channels, chunk, 1)
    name = f"batch norm{' backward' if backward else ''} {images} x {channels} x {extent}"
    return plan.stream(name, "a workgroup of 256 threads for each channel")


def batch_norm_per_activation(
    shape: tuple[int, int, int], element_bytes: int = 4, *, backward: bool = False, passes: int = 2
) -> Stream:
    """Return the stream of a batch norm of each activation: a thread sums one activation over all images.

    Parameters
    ----------
    shape : tuple of int
        (images, channels, elements of a channel of an image).
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.
    passes : int
        Passes over the data; the last one writes. MIOpen has 2: it sums mean and variance together.

    Examples
    --------
    >>> stream = batch_norm_per_activation((100, 1000, 1))
    >>> stream.workgroups, stream.steps
    (4, 14)
    """
    images, channels, extent = shape
    checked_sizes(images=images, channels=channels, extent=extent)
    rows = max(STEP_BYTES // (_BATCH_THREADS * element_bytes), 1)
    groups = -(-channels * extent // _BATCH_THREADS)
    plan = _Channels(shape, element_bytes, backward, passes, groups, rows, _BATCH_THREADS)
    name = f"batch norm per activation{' backward' if backward else ''} {images} x {channels} x {extent}"
    return plan.stream(name, "a thread for each activation")


@dataclass(frozen=True)
class _Channels:
    """A batch norm: `chunk` elements of a channel in a step, or images if a workgroup has `activations` of each."""

    shape: tuple[int, int, int]
    element_bytes: int
    backward: bool
    passes: int
    workgroups: int
    chunk: int
    activations: int

    @property
    def chunks(self) -> int:
        """Steps of a pass."""
        images, _, extent = self.shape
        return -(-(images if self.activations > 1 else images * extent) // self.chunk)

    def stream(self, name: str, assumption: str) -> Stream:
        """Return the stream."""
        checked_sizes(passes=self.passes)
        images, channels, extent = self.shape
        size = images * channels * extent * self.element_bytes
        names = ("x", "gradient", "x_gradient") if self.backward else ("x", "y")
        return Stream(
            name,
            operands(**dict.fromkeys(names, size)),
            workgroups=self.workgroups,
            steps=self.passes * self.chunks,
            tiles=self.tiles,
            flops=float(_NORM_FLOPS[self.backward] * images * channels * extent),
            threads=_BATCH_THREADS,
            vector_bytes=self.element_bytes,
            residency=resident_workgroups(_BATCH_THREADS),
            in_flight=4 * (len(names) - 1),
            element_bytes=self.element_bytes,
            assumptions=(assumption, f"{self.passes} passes over the data"),
        )

    def tiles(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        last, begin = step // self.chunks == self.passes - 1, step % self.chunks * self.chunk
        blocks = self._activations if self.activations > 1 else self._channel
        group, offset, rows, width = blocks(workgroups, begin)
        images, channels, extent = self.shape
        pitch = channels * extent * self.element_bytes
        reads = 2 if self.backward else 1
        addresses = [array.address for array in operands(**dict.fromkeys("abc", images * pitch))]
        several = [
            Tiles.of(group, addresses[number] + offset, number, rows=rows, pitch=pitch, width=width,
                     is_write=number == reads)
            for number in range(reads + last)
        ]  # fmt: skip
        return Tiles.joined(*several)

    def _channel(self, workgroups: Ints, begin: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return workgroup, offset, rows and width of the blocks of each workgroup's channel."""
        images, channels, extent = self.shape
        end = min(begin + self.chunk, images * extent)
        _, image, first, last = pieces([begin], [end], extent)
        offset = (image * channels * extent + first)[None, :] + (workgroups * extent)[:, None]
        group, rows = np.broadcast_arrays(workgroups[:, None], 1 + 0 * offset)
        width = np.broadcast_to(last - first, offset.shape)
        return (
            np.array(group).ravel(),
            offset.ravel() * self.element_bytes,
            np.array(rows).ravel(),
            width.ravel() * self.element_bytes,
        )

    def _activations(self, workgroups: Ints, begin: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return workgroup, offset, rows and width of the blocks of each workgroup's activations."""
        images, channels, extent = self.shape
        first = workgroups * self.activations
        width = np.minimum(self.activations, channels * extent - first)
        rows = np.full_like(first, min(self.chunk, images - begin))
        offset = begin * channels * extent + first
        return workgroups, offset * self.element_bytes, rows, width * self.element_bytes
