"""Streams of kernels whose outputs read a neighbourhood: pooling, and normalisation across channels (LRN).

`SlidingWindow` is the neighbourhood; convolutions use it too.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.costs.operators import POSITION_BYTES
from replay.memory.accesses import STEP_BYTES, Stream, Tiles, checked_sizes, operands, pieces, resident_workgroups

Shape4 = tuple[int, int, int, int]
_THREADS = 256
#: Most tiles of a workgroup in a step, so that a step stays small where rows are short.
_MOST_TILES = 512
#: Bytes beyond which elements of a strided row are touched singly, not as a run: a sector of a line.
_SECTOR_BYTES = 32
#: Pixels of a thread in a normalisation across channels (MIOpen reads four at a time).
_PIXELS = 4


@dataclass(frozen=True)
class SlidingWindow:
    """The neighbourhood of an output: rows and columns of the kernel, its stride, and its padding.

    Examples
    --------
    >>> SlidingWindow((3, 3), (2, 2)).output((256, 256))
    (127, 127)
    """

    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        checked_sizes(kernel=min(self.kernel), stride=min(self.stride))
        if min(self.padding) < 0:
            raise InvalidInputError(f"padding is {min(self.padding)}; it must be 0 or more")

    @classmethod
    def square(cls, kernel: int, stride: int = 1, padding: int = 0) -> "SlidingWindow":
        """Return a window of equal height and width."""
        return cls((kernel, kernel), (stride, stride), (padding, padding))

    def output(self, extent: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the output of an image.

        Raises
        ------
        InvalidInputError
            The window is larger than the padded image.
        """
        height, width = (
            (extent[axis] + 2 * self.padding[axis] - self.kernel[axis]) // self.stride[axis] + 1 for axis in (0, 1)
        )
        if min(height, width) < 1:
            raise InvalidInputError(
                f"a window of {self.kernel[0]} x {self.kernel[1]} on an image of {extent[0]} x {extent[1]} "
                f"with padding {self.padding[0]} x {self.padding[1]}; it must fit"
            )
        return height, width

    def inputs(self, first: Ints, last: Ints, tap: npt.ArrayLike, *, axis: int, extent: int) -> tuple[Ints, Ints]:
        """Return the first input that outputs touch through a tap of the kernel, and how many, a stride apart.

        Parameters
        ----------
        first, last : array of int64
            Half-open range of outputs along the axis.
        tap : array of int64
            Position in the kernel.
        axis : int
            0 for rows, 1 for columns.
        extent : int
            Inputs along the axis; those beyond are padding, which touches no memory.
        """
        stride, shift = self.stride[axis], np.asarray(tap, np.int64) - self.padding[axis]
        low = np.maximum(first, -(shift // stride))
        high = np.minimum(last, (extent - 1 - shift) // stride + 1)
        return low * stride + shift, np.maximum(high - low, 0)

    def outputs(self, first: Ints, last: Ints, tap: npt.ArrayLike, *, axis: int, extent: int) -> tuple[Ints, Ints]:
        """Return the first output that inputs reach through a tap of the kernel, and how many.

        The parameters are those of `inputs`, with inputs and outputs exchanged.
        """
        stride, shift = self.stride[axis], self.padding[axis] - np.asarray(tap, np.int64)
        low = np.maximum(-((-first - shift) // stride), 0)
        high = np.minimum((last - 1 + shift) // stride + 1, extent)
        return low, np.maximum(high - low, 0)


def runs(
    address: Ints, count: Ints, *, stride: int, element_bytes: int
) -> tuple[Ints, Ints, npt.NDArray[np.int64], Ints]:
    """Return address, rows, pitch and width of tiles that touch `count` elements, a stride apart.

    Elements closer than a sector are a run, as they touch all of its sectors.
    """
    pitch = np.full_like(count, stride * element_bytes)
    if stride * element_bytes > _SECTOR_BYTES:
        return address, count, pitch, np.full_like(count, element_bytes)
    width = np.where(count > 0, ((count - 1) * stride + 1) * element_bytes, 0)
    return address, np.ones_like(count), pitch, width


def pooling(
    shape: Shape4,
    window: SlidingWindow,
    element_bytes: int = 4,
    *,
    backward: bool = False,
    index_bytes: int = POSITION_BYTES,
) -> Stream:
    """Return the stream of a pooling, with a thread for each output.

    Forward, a thread reads its window. Backward, a thread reads the gradients of all windows that hold its input, and
    for a maximum their positions.

    Parameters
    ----------
    shape : tuple of int
        (images, channels, rows, columns).
    window : SlidingWindow
        Kernel, stride and padding.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.
    index_bytes : int
        Bytes of the position of a maximum, which the forward pass writes; 0 for an average.

    Notes
    -----
    Source: ``max_pool_forward_nchw`` and ``max_pool_backward_nchw`` of PyTorch.

    Examples
    --------
    >>> stream = pooling((100, 3, 256, 256), SlidingWindow.square(3, 2))
    >>> stream.workgroups, [operand.name for operand in stream.operands]
    (18902, ['x', 'y', 'index'])
    """
    images, channels, rows, columns = shape
    checked_sizes(images=images, channels=channels, rows=rows, columns=columns)
    planes, (height, width) = images * channels, window.output((rows, columns))
    inputs, outputs = planes * rows * columns, planes * height * width
    names = ("x_gradient", "gradient") if backward else ("x", "y")
    sizes = {names[0]: inputs * element_bytes, names[1]: outputs * element_bytes}
    if index_bytes:
        sizes["index"] = outputs * index_bytes
    walk = _PoolingTiles(shape, window, (element_bytes, index_bytes), backward=backward)
    direction = " backward" if backward else ""
    return Stream(
        f"pooling{direction} {images} x {channels} x {rows} x {columns}",
        operands(**sizes),
        workgroups=-(-(inputs if backward else outputs) // _THREADS),
        steps=walk.steps,
        tiles=walk,
        flops=float(outputs * window.kernel[0] * window.kernel[1]),
        threads=_THREADS,
        vector_bytes=element_bytes,
        residency=resident_workgroups(_THREADS),
        in_flight=window.kernel[1],
        element_bytes=element_bytes,
        assumptions=(f"a thread for each {'input' if backward else 'output'}", "NCHW"),
    )


class _PoolingTiles:
    """The tiles of a pooling, by workgroup and step; a step has some of the loads of each thread."""

    def __init__(self, shape: Shape4, window: SlidingWindow, sizes: tuple[int, int], *, backward: bool) -> None:
        images, channels, self.rows, self.columns = shape
        self.window, (self.element_bytes, self.index_bytes) = window, sizes
        self.height, self.width = window.output((self.rows, self.columns))
        inputs, outputs = images * channels * self.rows * self.columns, images * channels * self.height * self.width
        arrays = {"a": inputs * sizes[0], "b": outputs * sizes[0], "c": max(outputs * sizes[1], 1)}
        self.addresses = [array.address for array in operands(**arrays)]
        self._reads, self._threads, length = self._windows, outputs, self.width
        #: Rows and columns of the loads of a thread: its window, or the windows that hold its input.
        self.taps = window.kernel
        if backward:
            self._reads, self._threads, length = self._holders, inputs, self.columns
            self.taps = -(-window.kernel[0] // window.stride[0]), -(-window.kernel[1] // window.stride[1])
        segments, loads = -(-_THREADS // length) + 1, self.taps[0] * self.taps[1]
        self._step_loads = max(min(loads, _MOST_TILES // segments), 1)
        self.steps = -(-loads // self._step_loads)
        self._results = ((0, sizes[0]),) if backward else ((1, sizes[0]), (2, sizes[1]))

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        begin = workgroups * _THREADS
        end = np.minimum(begin + _THREADS, self._threads)
        last = min((step + 1) * self._step_loads, self.taps[0] * self.taps[1])
        taps = np.divmod(np.arange(step * self._step_loads, last, dtype=np.int64), self.taps[1])
        reads = self._reads(workgroups, (begin, end), taps)
        if step < self.steps - 1:
            return reads
        writes = [
            Tiles.of(workgroups, self.addresses[index] + begin * size, index, width=(end - begin) * size, is_write=True)
            for index, size in self._results
        ]
        return Tiles.joined(reads, *writes)

    def _windows(self, workgroups: Ints, threads: tuple[Ints, Ints], taps: tuple[Ints, Ints]) -> Tiles:
        """Return the inputs that outputs touch through some positions of the kernel."""
        number, row, first, last = (column[:, None] for column in pieces(*threads, self.width))
        plane, y = np.divmod(row, self.height)
        ahead, inside = self.window.inputs(y, y + 1, taps[0], axis=0, extent=self.rows)
        left, count = self.window.inputs(first, last, taps[1], axis=1, extent=self.columns)
        offset = (plane * self.rows + ahead) * self.columns + left
        address, rows, pitch, width = runs(
            self.addresses[0] + offset * self.element_bytes,
            count * inside,
            stride=self.window.stride[1],
            element_bytes=self.element_bytes,
        )
        return Tiles.of(workgroups[number], address, 0, rows=rows, pitch=pitch, width=width)

    def _holders(self, workgroups: Ints, threads: tuple[Ints, Ints], taps: tuple[Ints, Ints]) -> Tiles:
        """Return the gradients of the windows that hold inputs, and for a maximum their positions."""
        number, row, first, last = (column[:, None, None] for column in pieces(*threads, self.columns))
        plane, y = np.divmod(row, self.rows)
        kernel, stride, padding = self.window.kernel, self.window.stride, self.window.padding
        top = (y + padding[0]) // stride[0] - taps[0][:, None]
        holds = (top >= 0) & (top < self.height) & (top * stride[0] - padding[0] + kernel[0] > y)
        left = np.maximum(-((kernel[1] - 1 - first - padding[1]) // stride[1]), 0)
        right = np.minimum((last - 1 + padding[1]) // stride[1] + 1, self.width)
        offset = (plane * self.height + top) * self.width + left
        arrays = [(1, self.element_bytes), *([(2, self.index_bytes)] if self.index_bytes else [])]
        index, size = (np.array(column) for column in zip(*arrays, strict=True))
        return Tiles.of(
            workgroups[number],
            np.array(self.addresses)[index] + offset * size,
            index,
            rows=holds.astype(np.int64),
            width=np.maximum(right - left, 0) * size,
        )


def local_response_norm(
    shape: tuple[int, int, int], element_bytes: int = 4, *, size: int = 5, backward: bool = False
) -> Stream:
    """Return the stream of a normalisation across channels (LRN) in training.

    A thread walks over the channels of its pixels and keeps the `size` channels around in registers, so that it reads
    each element once. Forward it also writes the scale. Backward it reads input, output, gradient and scale.

    Parameters
    ----------
    shape : tuple of int
        (images, channels, pixels).
    element_bytes : int
        Bytes of an element.
    size : int
        Channels of a neighbourhood.
    backward : bool
        Whether to return the backward pass.

    Notes
    -----
    Source: ``MIOpenLRNAcrossChannels4`` of MIOpen.

    Examples
    --------
    >>> stream = local_response_norm((100, 32, 65536))
    >>> stream.workgroups, stream.steps
    (6400, 8)
    """
    images, channels, extent = shape
    checked_sizes(images=images, channels=channels, pixels=extent, size=size)
    reads = ("x", "y", "gradient", "scale") if backward else ("x",)
    writes = ("x_gradient",) if backward else ("y", "scale")
    arrays = operands(**dict.fromkeys((*reads, *writes), images * channels * extent * element_bytes))
    pixels = min(_THREADS * _PIXELS, extent)
    groups, step_channels = -(-extent // pixels), max(STEP_BYTES // (pixels * element_bytes), 1)

    def tiles(workgroups: Ints, step: int) -> Tiles:
        image, first = workgroups // groups, workgroups % groups * pixels
        begin = step * step_channels
        offset = ((image * channels + begin) * extent + first) * element_bytes
        return Tiles.of(
            workgroups[:, None],
            np.array([array.address for array in arrays]) + offset[:, None],
            np.arange(len(arrays)),
            rows=min(step_channels, channels - begin),
            pitch=extent * element_bytes,
            width=(np.minimum(pixels, extent - first) * element_bytes)[:, None],
            is_write=np.arange(len(arrays)) >= len(reads),
        )

    return Stream(
        f"LRN{' backward' if backward else ''} {images} x {channels} x {extent}",
        arrays,
        workgroups=images * groups,
        steps=-(-channels // step_channels),
        tiles=tiles,
        flops=float((2 * size + 4) * images * channels * extent),
        threads=_THREADS,
        vector_bytes=_PIXELS * element_bytes,
        residency=resident_workgroups(_THREADS),
        in_flight=len(reads),
        element_bytes=element_bytes,
        alike=-(-channels // step_channels),
        assumptions=(f"{size} channels stay in registers", f"{pixels} pixels a workgroup"),
    )
