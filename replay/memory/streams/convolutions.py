"""Streams of convolutions of images: as a product whose first operand is gathered, and directly.

A convolution is a product of (pixels, taps) by (taps, filters). A tap is a position of the kernel in an input channel.
The implicit product never stores the first matrix: a workgroup gathers its tile from the image.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import Stream, Tiles, checked_sizes, operands, pieces, resident_workgroups
from replay.memory.streams.products import PARTIAL_BYTES, Tiling, library_tiling, tile_order
from replay.memory.streams.windows import Shape4, SlidingWindow, runs

ORDERS = ("nchw", "nhwc")
PASSES = ("forward", "data", "weight")
#: Rows and columns of outputs, filters and input channels of a workgroup of a direct convolution.
_DIRECT_PIXELS, _DIRECT_FILTERS, _DIRECT_CHANNELS = (16, 16), 16, 4
_DIRECT_THREADS = 256


@dataclass(frozen=True)
class ConvolutionShape:
    """Shapes of a convolution.

    Parameters
    ----------
    images : tuple of int
        (images, channels, rows, columns).
    filters : int
        Output channels.
    window : SlidingWindow
        Kernel, stride and padding.
    groups : int
        Groups of channels that do not see each other.

    Raises
    ------
    InvalidInputError
        A size is below 1, the window does not fit, or groups do not divide the channels.
    """

    images: Shape4
    filters: int
    window: SlidingWindow
    groups: int = 1

    def __post_init__(self) -> None:
        images, channels, rows, columns = self.images
        checked_sizes(images=images, channels=channels, rows=rows, columns=columns, filters=self.filters)
        checked_sizes(groups=self.groups)
        if channels % self.groups or self.filters % self.groups:
            raise InvalidInputError(f"{self.groups} groups of {channels} channels and {self.filters} filters")
        self.window.output((rows, columns))

    @cached_property
    def output(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        return self.window.output(self.images[2:])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Pixels of the output, filters of a group, and taps of a filter."""
        images, channels, _, _ = self.images
        height, width = self.output
        kernel = self.window.kernel
        return images * height * width, self.filters // self.groups, channels // self.groups * kernel[0] * kernel[1]

    @property
    def flops(self) -> float:
        """Floating-point operations of one pass."""
        pixels, filters, taps = self.sizes
        return 2.0 * pixels * filters * taps * self.groups

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of the input, the weights and the output."""
        pixels, filters, taps = self.sizes
        return int(np.prod(self.images)), self.groups * filters * taps, pixels * self.filters

    def __str__(self) -> str:
        return (
            " x ".join(map(str, self.images))
            + f", {self.filters} filters of {self.window.kernel[0]} x {self.window.kernel[1]}"
        )


def implicit_product(
    convolution: ConvolutionShape,
    element_bytes: int = 4,
    *,
    direction: str = "forward",
    order: str = "nchw",
    tiling: Tiling | None = None,
) -> Stream:
    """Return the stream of a convolution as an implicit product.

    Parameters
    ----------
    convolution : ConvolutionShape
        Shapes.
    element_bytes : int
        Bytes of an element.
    direction : str
        ``forward``; ``data``, the gradient of the input, which gathers from the gradient of the output; or ``weight``,
        the gradient of the weights, whose depth is the pixels.
    order : str
        ``nchw`` or ``nhwc``: order of the dimensions in memory.
    tiling : Tiling, optional
        Tiles of the product; by default `library_tiling`. Its depth is not split, but for the gradient of the weights.

    Raises
    ------
    InvalidInputError
        The direction or the order is unknown.

    Examples
    --------
    >>> shape = ConvolutionShape((16, 64, 56, 56), 64, SlidingWindow.square(3, 1, 1))
    >>> stream = implicit_product(shape, 2, tiling=Tiling(128, 64, 32))
    >>> stream.workgroups, stream.steps, stream.flops
    (392, 19, 3699376128.0)
    """
    if order not in ORDERS or direction not in PASSES:
        raise InvalidInputError(
            f"a convolution in order {order!r}, direction {direction!r}; orders are {', '.join(ORDERS)}, "
            f"directions {', '.join(PASSES)}"
        )
    gather = _Gather(convolution, order, element_bytes, reverse=direction == "data")
    plan = (_WeightGradient if direction == "weight" else _GatheredProduct)(gather, tiling)
    suffix = "" if direction == "forward" else f", gradient of the {direction}"
    return Stream(
        f"convolution {convolution}{suffix}",
        plan.arrays,
        workgroups=plan.workgroups,
        steps=plan.slices + 1,
        tiles=plan,
        flops=convolution.flops,
        threads=plan.tiling.threads,
        vector_bytes=16 if order == "nhwc" else element_bytes,
        residency=plan.tiling.residency,
        in_flight=plan.tiling.loads(element_bytes),
        matrix=element_bytes <= 2,
        element_bytes=element_bytes,
        assumptions=("implicit product", str(plan.tiling), order.upper(), plan.assumption),
    )


class _Gather:
    """The image that a convolution gathers from: the input, or for its gradient the gradient of the output."""

    def __init__(self, convolution: ConvolutionShape, order: str, element_bytes: int, *, reverse: bool) -> None:
        self.convolution, self.order, self.element_bytes, self.reverse = convolution, order, element_bytes, reverse
        self.window, self.groups = convolution.window, convolution.groups
        images, channels, rows, columns = convolution.images
        extent, output = (rows, columns), convolution.output
        self.images = images
        self.channels, self.filters = (convolution.filters, channels) if reverse else (channels, convolution.filters)
        self.extent, self.targets = (output, extent) if reverse else (extent, output)
        self.pixels = images * self.targets[0] * self.targets[1]
        self.taps = self.channels // self.groups * self.window.kernel[0] * self.window.kernel[1]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Pixels that are computed, filters of a group, and taps of a filter."""
        return self.pixels, self.filters // self.groups, self.taps

    def tiles(self, group: Ints, pixels: tuple[Ints, Ints], taps: tuple[Ints, Ints]) -> tuple[Ints, ...]:
        """Return number of the range, offset, rows, pitch and width of what ranges of pixels and taps touch.

        Parameters
        ----------
        group : array of int64, shape (n,)
            Group of channels.
        pixels, taps : tuple of arrays of int64, shape (n,)
            Half-open ranges. Taps are numbered by channel, kernel row and kernel column in NCHW order, else by kernel
            row, kernel column and channel.
        """
        channels, (height, width) = self.channels // self.groups, self.window.kernel
        runs_of_taps = pieces(*taps, 1 if self.order == "nchw" else channels)
        number, segment, tap = _pairs(pieces(*pixels, self.targets[1]), runs_of_taps)
        row, first, last = segment
        image, y = np.divmod(row, self.targets[0])
        if self.order == "nchw":
            (channel, position), count = np.divmod(tap[0], height * width), np.ones_like(row)
        else:
            position, channel, count = tap[0], tap[1], tap[2] - tap[1]
        i, j = np.divmod(position, width)
        ahead, rows = self._reached(y, y + 1, i, 0)
        left, columns = self._reached(first, last, j, 1)
        columns = columns * rows
        channel = channel + group[number] * channels
        stride = 1 if self.reverse else self.window.stride[1]
        if self.order == "nhwc":
            offset = ((image * self.extent[0] + ahead) * self.extent[1] + left) * self.channels + channel
            pitch = np.full_like(offset, stride * self.channels * self.element_bytes)
            return number, offset * self.element_bytes, columns, pitch, count * self.element_bytes
        offset = ((image * self.channels + channel) * self.extent[0] + ahead) * self.extent[1] + left
        blocks = runs(offset * self.element_bytes, columns, stride=stride, element_bytes=self.element_bytes)
        return number, *blocks

    def results(self, group: Ints, pixels: tuple[Ints, Ints], filters: tuple[Ints, Ints]) -> tuple[Ints, ...]:
        """Return number of the range, offset, rows, pitch and width of the results of ranges of pixels.

        Parameters
        ----------
        group : array of int64, shape (n,)
            Group of channels.
        pixels : tuple of arrays of int64, shape (n,)
            Half-open ranges of pixels.
        filters : tuple of arrays of int64, shape (n,)
            First filter in the group, and number of filters.
        """
        size, plane = self.element_bytes, self.targets[0] * self.targets[1]
        channel = group * (self.filters // self.groups) + filters[0]
        if self.order == "nhwc":
            offset = (pixels[0] * self.filters + channel) * size
            pitch = np.full_like(offset, self.filters * size)
            return np.arange(len(group)), offset, pixels[1] - pixels[0], pitch, filters[1] * size
        number, image, first, last = pieces(*pixels, plane)
        offset = ((image * self.filters + channel[number]) * plane + first) * size
        return number, offset, filters[1][number], np.full_like(offset, plane * size), (last - first) * size

    def _reached(self, first: Ints, last: Ints, tap: Ints, axis: int) -> tuple[Ints, Ints]:
        reach = self.window.outputs if self.reverse else self.window.inputs
        return reach(first, last, tap, axis=axis, extent=self.extent[axis])


def _pairs(
    segments: tuple[Ints, ...], taps: tuple[Ints, ...]
) -> tuple[Ints, list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]:
    """Return all pairs of rows of two tables with equal first column, which ascends: the column, and both rests."""
    begin, end = (np.searchsorted(taps[0], segments[0], side) for side in ("left", "right"))
    count = end - begin
    row = np.repeat(np.arange(len(count)), count)
    other = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - begin, count)
    return segments[0][row], [column[row] for column in segments[1:]], [column[other] for column in taps[1:]]


class _GatheredProduct:
    """A product of gathered pixels by weights, whose tiles lie on pixels and filters."""

    assumption = "weights lie in the order in which they are read, filter by filter"

    def __init__(self, gather: _Gather, tiling: Tiling | None) -> None:
        pixels, filters, taps = gather.sizes
        groups, size = gather.groups, gather.element_bytes
        self.gather, self.tiling = gather, tiling or library_tiling((groups, pixels, filters, taps), size, most_parts=1)
        self.grid = -(-pixels // self.tiling.rows), -(-filters // self.tiling.columns)
        self.workgroups = groups * self.grid[0] * self.grid[1]
        self.slices = -(-taps // self.tiling.depth)
        source = gather.images * gather.channels * gather.extent[0] * gather.extent[1]
        names = ("gradient", "weights", "x_gradient") if gather.reverse else ("x", "weights", "y")
        counts = (source, groups * filters * taps, pixels * gather.filters)
        self.arrays = operands(**{name: count * size for name, count in zip(names, counts, strict=True)})

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        (pixels, filters, taps), size = self.gather.sizes, self.gather.element_bytes
        group, number = np.divmod(workgroups, self.grid[0] * self.grid[1])
        row, column = tile_order(number, self.grid, self.tiling.group)
        begin, left = row * self.tiling.rows, column * self.tiling.columns
        end = np.minimum(begin + self.tiling.rows, pixels)
        count = np.minimum(self.tiling.columns, filters - left)
        if step == self.slices:
            owner, offset, rows, pitch, width = self.gather.results(group, (begin, end), (left, count))
            address = self.arrays[2].address + offset
            return Tiles.of(workgroups[owner], address, 2, rows=rows, pitch=pitch, width=width, is_write=True)
        first = np.full_like(begin, step * self.tiling.depth)
        last = np.minimum(first + self.tiling.depth, taps)
        owner, offset, rows, pitch, width = self.gather.tiles(group, (begin, end), (first, last))
        images = Tiles.of(workgroups[owner], self.arrays[0].address + offset, 0, rows=rows, pitch=pitch, width=width)
        weights = self.arrays[1].address + ((group * filters + left) * taps + first) * size
        return Tiles.joined(
            images, Tiles.of(workgroups, weights, 1, rows=count, pitch=taps * size, width=(last - first) * size)
        )


class _WeightGradient:
    """A product of the output's gradient by gathered pixels, whose tiles lie on filters and taps."""

    assumption = "another kernel adds partial sums"

    def __init__(self, gather: _Gather, tiling: Tiling | None) -> None:
        pixels, filters, taps = gather.sizes
        groups, size = gather.groups, gather.element_bytes
        self.gather, self.tiling = gather, tiling or library_tiling((groups, filters, taps, pixels), size)
        self.grid = -(-filters // self.tiling.rows), -(-taps // self.tiling.columns)
        self.workgroups = groups * self.tiling.parts * self.grid[0] * self.grid[1]
        self.share = -(-pixels // self.tiling.parts)
        self.slices = -(-self.share // self.tiling.depth)
        self.written_bytes = size if self.tiling.parts == 1 else max(size, PARTIAL_BYTES)
        inputs, weights, outputs = gather.convolution.elements
        name = "weight_gradient" if self.tiling.parts == 1 else "partials"
        result = {name: self.tiling.parts * weights * self.written_bytes}
        self.arrays = operands(gradient=outputs * size, x=inputs * size, **result)

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        pixels, filters, taps = self.gather.sizes
        item, number = np.divmod(workgroups, self.grid[0] * self.grid[1])
        group, part = np.divmod(item, self.tiling.parts)
        row, column = tile_order(number, self.grid, self.tiling.group)
        top, left = row * self.tiling.rows, column * self.tiling.columns
        count, across = np.minimum(self.tiling.rows, filters - top), np.minimum(self.tiling.columns, taps - left)
        if step == self.slices:
            offset = (((part * self.gather.groups + group) * filters + top) * taps + left) * self.written_bytes
            pitch, width = taps * self.written_bytes, across * self.written_bytes
            address = self.arrays[2].address + offset
            return Tiles.of(workgroups, address, 2, rows=count, pitch=pitch, width=width, is_write=True)
        bound = np.minimum((part + 1) * self.share, pixels)
        begin = np.minimum(part * self.share + step * self.tiling.depth, bound)
        span = begin, np.minimum(begin + self.tiling.depth, bound)
        several = []
        for index, blocks in enumerate(
            (self.gather.results(group, span, (top, count)), self.gather.tiles(group, span, (left, left + across)))
        ):
            owner, offset, rows, pitches, widths = blocks
            address = self.arrays[index].address + offset
            several.append(Tiles.of(workgroups[owner], address, index, rows=rows, pitch=pitches, width=widths))
        return Tiles.joined(*several)


def direct_convolution(convolution: ConvolutionShape, element_bytes: int = 4) -> Stream:
    """Return the stream of a direct convolution in NCHW order.

    A workgroup computes a block of 16 x 16 outputs of 16 filters. In each step it reads the block's patch of four input
    channels, with the rows and columns that the kernel adds at the edge, and their weights.

    Parameters
    ----------
    convolution : ConvolutionShape
        Shapes.
    element_bytes : int
        Bytes of an element.

    Examples
    --------
    >>> stream = direct_convolution(ConvolutionShape((16, 64, 56, 56), 64, SlidingWindow.square(3, 1, 1)))
    >>> stream.workgroups, stream.steps
    (1024, 17)
    """
    plan = _Direct(convolution, element_bytes)
    return Stream(
        f"direct convolution {convolution}",
        plan.arrays,
        workgroups=plan.workgroups,
        steps=plan.slices + 1,
        tiles=plan,
        flops=convolution.flops,
        threads=_DIRECT_THREADS,
        vector_bytes=element_bytes,
        residency=resident_workgroups(_DIRECT_THREADS),
        in_flight=_DIRECT_CHANNELS,
        element_bytes=element_bytes,
        assumptions=(
            "direct: 16 x 16 outputs of 16 filters a workgroup",
            f"{_DIRECT_CHANNELS} channels a step",
            "NCHW",
        ),
    )


class _Direct:
    """The tiles of a direct convolution."""

    def __init__(self, convolution: ConvolutionShape, element_bytes: int) -> None:
        self.convolution, self.size = convolution, element_bytes
        inputs, weights, outputs = (count * element_bytes for count in convolution.elements)
        self.arrays = operands(x=inputs, weights=weights, y=outputs)
        self.filters, self.channels = (
            count // convolution.groups for count in (convolution.filters, convolution.images[1])
        )
        self.blocks = tuple(-(-size // side) for size, side in zip(convolution.output, _DIRECT_PIXELS, strict=True))
        self.filter_blocks = -(-self.filters // _DIRECT_FILTERS)
        planes = convolution.images[0] * convolution.groups * self.filter_blocks
        self.workgroups = planes * self.blocks[0] * self.blocks[1]
        self.slices = -(-self.channels // _DIRECT_CHANNELS)

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        plane, block = np.divmod(workgroups, self.blocks[0] * self.blocks[1])
        block_row, block_column = np.divmod(block, self.blocks[1])
        image, part = np.divmod(plane, self.convolution.groups * self.filter_blocks)
        group, filter_block = np.divmod(part, self.filter_blocks)
        corner = block_row * _DIRECT_PIXELS[0], block_column * _DIRECT_PIXELS[1]
        first = filter_block * _DIRECT_FILTERS
        count = np.minimum(_DIRECT_FILTERS, self.filters - first)
        if step == self.slices:
            channel = group * self.filters + first
            return self._written(workgroups, image * self.convolution.filters + channel, count, corner)
        begin = step * _DIRECT_CHANNELS
        taken = min(_DIRECT_CHANNELS, self.channels - begin)
        taps = self.convolution.window.kernel[0] * self.convolution.window.kernel[1]
        weights = ((group * self.filters + first) * self.channels + begin) * taps * self.size
        source = (image * self.convolution.groups + group) * self.channels + begin
        return Tiles.joined(
            self._patch(workgroups, source[:, None] + np.arange(taken), corner),
            Tiles.of(
                workgroups, self.arrays[1].address + weights, 1,
                rows=count, pitch=self.channels * taps * self.size, width=taken * taps * self.size,
            ),
        )  # fmt: skip

    def _patch(self, workgroups: Ints, plane: Ints, corner: tuple[Ints, Ints]) -> Tiles:
        """Return the inputs that a block of outputs needs, of each channel; `plane` numbers images and channels."""
        (_, _, *extent), window = self.convolution.images, self.convolution.window
        low, high = [], []
        for axis in (0, 1):
            last = np.minimum(corner[axis] + _DIRECT_PIXELS[axis], self.convolution.output[axis]) - 1
            begin = corner[axis] * window.stride[axis] - window.padding[axis]
            end = last * window.stride[axis] - window.padding[axis] + window.kernel[axis]
            low.append(np.clip(begin, 0, extent[axis])[:, None])
            high.append(np.clip(end, 0, extent[axis])[:, None])
        offset = (plane * extent[0] + low[0]) * extent[1] + low[1]
        return Tiles.of(workgroups[:, None], self.arrays[0].address + offset * self.size, 0, rows=high[0] - low[0],
                        pitch=extent[1] * self.size, width=(high[1] - low[1]) * self.size)  # fmt: skip

    def _written(self, workgroups: Ints, plane: Ints, count: Ints, corner: tuple[Ints, Ints]) -> Tiles:
        """Return the outputs of a block, of each of its filters; `plane` numbers images and filters."""
        height, width = self.convolution.output
        each = np.arange(_DIRECT_FILTERS)
        offset = ((plane[:, None] + each) * height + corner[0][:, None]) * width + corner[1][:, None]
        rows = np.minimum(_DIRECT_PIXELS[0], height - corner[0])[:, None] * (each < count[:, None])
        return Tiles.of(workgroups[:, None], self.arrays[2].address + offset * self.size, 2, rows=rows,
                        pitch=width * self.size, is_write=True,
                        width=(np.minimum(_DIRECT_PIXELS[1], width - corner[1]) * self.size)[:, None])  # fmt: skip
