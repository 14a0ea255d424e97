"""Streams touch the bytes that a count by hand gives, write each result once, and stay inside of their arrays."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilers.errors import InvalidInputError, NotFoundError
from replay.costs.calls import Call
from replay.costs.operators import operator_of
from replay.graph.operators import Operator, attention, batched_matmul, convolution, rowwise, streaming
from replay.memory.accesses import Lines, Memory, Operand, Stream, bind, blocks, pieces, section
from replay.memory.streams import named_stream, named_streams, stream_kinds, stream_of
from replay.memory.streams.attention import Heads, naive_attention, tiled_attention
from replay.memory.streams.convolutions import ORDERS, ConvolutionShape, direct_convolution, implicit_product
from replay.memory.streams.passes import (
    ArrayPass,
    batch_norm,
    batch_norm_per_activation,
    drawn_indices,
    embedding,
    layer_norm,
    optimizer,
    reduction,
    softmax,
    streaming_pass,
)
from replay.memory.streams.products import LAYOUTS, Tiling, library_tiling, product, product_kernels, tile_order
from replay.memory.streams.recurrent import RecurrentLayer, cell, recurrent
from replay.memory.streams.windows import SlidingWindow, local_response_norm, pooling

FEW = settings(max_examples=25, deadline=None)
SMALL = st.integers(1, 70)


@dataclass
class Touched:
    """How often a stream reads and writes each byte of an operand."""

    reads: np.ndarray
    writes: np.ndarray

    @property
    def unique(self) -> int:
        return int(((self.reads > 0) | (self.writes > 0)).sum())


def touches(stream: Stream, workgroups: np.ndarray | None = None, step: int | None = None) -> dict[str, Touched]:
    """Return the touches of each operand; fail if one is outside of it or workgroups are out of order."""
    counts = {item.name: Touched(np.zeros(item.size, int), np.zeros(item.size, int)) for item in stream.operands}
    every = np.arange(stream.workgroups) if workgroups is None else workgroups
    for number in range(stream.steps) if step is None else [step]:
        tiles = stream.tiles(every, number)
        assert (np.diff(tiles.workgroup) >= 0).all()
        tile = np.repeat(np.arange(len(tiles)), tiles.rows)
        row = np.arange(len(tile)) - np.repeat(np.cumsum(tiles.rows) - tiles.rows, tiles.rows)
        begin, end = (start := tiles.address[tile] + row * tiles.pitch[tile]), start + tiles.width[tile]
        for index, item in enumerate(stream.operands):
            for is_write, kept in ((False, counts[item.name].reads), (True, counts[item.name].writes)):
                rows = (tiles.operand[tile] == index) & (tiles.is_write[tile] == is_write)
                first, last = begin[rows] - item.address, end[rows] - item.address
                assert (first >= 0).all() and (last <= item.size).all(), (stream.name, item.name)
                change = np.zeros(item.size + 1, int)
                np.add.at(change, first, 1)
                np.add.at(change, last, -1)
                kept += np.cumsum(change)[:-1]
    return counts


def sums(stream: Stream) -> dict[str, tuple[int, int]]:
    """Return the bytes that are read and written of each operand."""
    return {name: (int(of.reads.sum()), int(of.writes.sum())) for name, of in touches(stream).items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_reads_its_operands_once_for_each_tile_across(layout: str) -> None:
    stream = product((1, 256, 192, 64), 2, tiling=Tiling(64, 32, 16), layout=layout)
    assert (stream.workgroups, stream.steps, stream.flops) == (4 * 6, 4 + 1, 2.0 * 256 * 192 * 64)
    volume = 256 * 192 * 64 * 2
    assert sums(stream) == {"A": (volume // 32, 0), "B": (volume // 64, 0), "C": (0, 256 * 192 * 2)}


@FEW
@given(SMALL, SMALL, SMALL, st.integers(1, 3), st.sampled_from(LAYOUTS), st.integers(1, 3), st.integers(1, 4))
def test_products_of_any_shape(m: int, n: int, k: int, batch: int, layout: str, parts: int, group: int) -> None:
    tiling = Tiling(16, 32, 8, parts=min(parts, k), group=group)
    stream = product((batch, m, n, k), 4, tiling=tiling, layout=layout)
    counts = touches(stream)
    assert (counts["A"].reads == -(-n // 32)).all() and (counts["B"].reads == -(-m // 16)).all()
    result = counts["C" if tiling.parts == 1 else "partials"]
    assert (result.writes == 1).all() and not result.reads.any()
    assert len(result.writes) == 4 * batch * tiling.parts * m * n


def test_slices_of_a_product_by_hand() -> None:
    # Workgroup 1 of 2 x 2 tiles is column 0 of row 1 as both rows are in a group; step 1 is depth 16 to 20.
    stream = product((1, 96, 80, 20), 4, tiling=Tiling(64, 64, 16, group=2))
    tiles = stream.tiles(np.array([1]), 1)
    a, b = stream.operands[0].address, stream.operands[1].address
    rows = [(a + (64 * 20 + 16) * 4, 32, 20 * 4, 4 * 4), (b + 16 * 80 * 4, 4, 80 * 4, 64 * 4)]
    assert list(zip(tiles.address, tiles.rows, tiles.pitch, tiles.width, strict=True)) == rows


def test_tiles_go_row_by_row_without_groups() -> None:
    row, column = tile_order(np.arange(6), (2, 3), 1)
    assert row.tolist() == [0, 0, 0, 1, 1, 1] and column.tolist() == [0, 1, 2, 0, 1, 2]


@FEW
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_each_tile_is_dispatched_once(rows: int, columns: int, group: int) -> None:
    row, column = tile_order(np.arange(rows * columns), (rows, columns), group)
    assert sorted(zip(row, column, strict=True)) == [(i, j) for i in range(rows) for j in range(columns)]


@pytest.mark.parametrize(("workgroups", "tile"), [(1024, (128, 128)), (2048, (128, 64)), (256, (256, 256))])
def test_the_launch_tells_the_tile(workgroups: int, tile: tuple[int, int]) -> None:
    tiling = library_tiling((1, 4096, 4096, 4096), 2, workgroups=workgroups)
    assert sorted((tiling.rows, tiling.columns)) == sorted(tile) and tiling.parts == 1
    assert product((1, 4096, 4096, 4096), 2, tiling=tiling).workgroups == workgroups


def test_a_launch_that_no_tile_explains_changes_nothing() -> None:
    sizes = (1, 4096, 4096, 4096)
    assert library_tiling(sizes, 2, workgroups=108 * 7 + 1) == library_tiling(sizes, 2)


def test_depth_is_split_only_where_tiles_are_few_and_deep() -> None:
    assert library_tiling((1, 64, 64, 65536), 2).parts > 1
    assert library_tiling((1, 64, 64, 128), 2).parts == library_tiling((1, 8192, 8192, 65536), 2).parts == 1


def test_the_sum_of_partial_results_reads_what_the_product_wrote() -> None:
    split, total = product_kernels((1, 64, 48, 512), 2, tiling=Tiling(32, 32, 16, parts=4))
    written, read = (touches(stream) for stream in (split, total))
    assert split.operands[2].size == sum(of.reads.sum() for of in read.values()) == 4 * 64 * 48 * 4
    assert (written["partials"].writes == 1).all() and (read["C"].writes == 1).all()
    assert [item.address for item in total.operands[:4]] == [split.operands[2].address + i * 12288 for i in range(4)]


def test_an_elementwise_kernel_repeats_a_bias() -> None:
    stream = streaming_pass("add", ArrayPass({"x": 4000, "bias": 400}, {"y": 4000, "mask": 1000}, 1000))
    assert sums(stream) == {"x": (4000, 0), "bias": (4000, 0), "y": (0, 4000), "mask": (0, 1000)}
    assert (stream.workgroups, stream.steps, stream.in_flight) == (2, 1, 2)
    # The second workgroup begins at element 512, the 12th of the bias.
    bias = touches(stream, np.array([1]))["bias"].reads
    assert bias[:48].max() == 4 and bias[48:].min() == bias[48:].max() == 5


@FEW
@given(st.integers(1, 40_000), st.integers(0, 50), st.sampled_from([1, 2, 4, 8]))
def test_a_pass_touches_each_element_once(elements: int, workgroups: int, size: int) -> None:
    data = ArrayPass({"x": elements * size}, {"y": elements * size}, elements, size)
    for stream in (streaming_pass("copy", data, workgroups=workgroups), reduction("sum", data, workgroups=workgroups)):
        counts = touches(stream)
        assert (counts["x"].reads == 1).all() and (counts["y"].writes == 1).all()
        assert workgroups == 0 or stream.workgroups <= workgroups


def test_few_workgroups_advance_together() -> None:
    stream = streaming_pass("relu", ArrayPass({"x": 1 << 20}, {"y": 1 << 20}, 1 << 18), workgroups=4)
    assert (stream.workgroups, stream.steps) == (4, 128)
    assert stream.tiles(np.arange(4), 1).address[::2].tolist() == [8192, 10240, 12288, 14336]


def test_a_reduction_writes_its_results_once() -> None:
    assert sums(reduction("sum", ArrayPass({"x": 1 << 18}, {"y": 40}, 1 << 16))) == {"x": (1 << 18, 0), "y": (0, 40)}


def test_adam_reads_four_lists_and_writes_three() -> None:
    counts = sums(optimizer(100_000))
    assert [of[0] for of in counts.values()] == [400_000] * 4
    assert {name for name, of in counts.items() if of[1] == 400_000} == {"parameters", "moments", "second_moments"}


@pytest.mark.parametrize(
    ("stream", "reads"),
    [
        (softmax(11, 1000), {"x": 1}),
        (softmax(11, 100, backward=True), {"gradient": 1, "y": 1}),
        (softmax(11, 1500), {"x": 3}),
        (softmax(3, 9000, 2, backward=True), {"gradient": 2, "y": 2}),
        (softmax(11, 1000, registers=256), {"x": 3}),
        (softmax(11, 9000, registers=9000), {"x": 1}),
        (layer_norm(11, 1500), {"x": 2, "scale": 11, "shift": 11}),
        (layer_norm(11, 1500, registers=2048), {"x": 1, "scale": 11, "shift": 11}),
        (layer_norm(5, 300, backward=True), {"gradient": 2, "x": 2, "scale": 5}),
        (batch_norm((10, 3, 49)), {"x": 3}),
        (batch_norm((3, 3, 5000), backward=True), {"x": 2, "gradient": 2}),
        (batch_norm_per_activation((100, 300, 2)), {"x": 2}),
        (batch_norm_per_activation((5, 7, 9), passes=3, backward=True), {"x": 3, "gradient": 3}),
        (local_response_norm((2, 6, 3000)), {"x": 1}),
        (local_response_norm((2, 6, 100), backward=True), {"x": 1, "y": 1, "gradient": 1, "scale": 1}),
        (cell("lstm", 5, 300), {"input_gates": 1, "hidden_gates": 1, "cell": 1}),
        (cell("gru", 5, 300, backward=True), {"hidden_gradient": 1, "workspace": 1}),
    ],
)
def test_passes_over_rows(stream: Stream, reads: dict[str, int]) -> None:
    for name, of in touches(stream).items():
        assert (of.reads == reads.get(name, 0)).all(), name
        assert (of.writes == (name not in reads)).all(), name


def test_a_long_row_comes_back_after_the_row() -> None:
    # 24,000 elements of 2 bytes are three chunks of 16,384 bytes, the last of 15,232; every pass has the same.
    stream = softmax(2, 24_000, 2)
    widths = [stream.tiles(np.array([1]), step).width.tolist() for step in range(stream.steps)]
    assert widths == [[16384], [16384], [15232]] * 2 + [[16384] * 2, [16384] * 2, [15232] * 2]


def test_a_long_row_in_shared_memory_is_read_whole_before_it_is_written() -> None:
    operator = rowwise("softmax", 2, 24_000, 2)
    shared, again = stream_of(operator), stream_of(operator, kernel="cunn_SoftMaxForward<8, c10::Half>")
    assert shared is not None and again is not None
    assert sums(shared) == {"x": (96_000, 0), "y": (0, 96_000)} and sums(again)["x"] == (3 * 96_000, 0)
    assert [shared.tiles(np.array([0]), step).is_write.tolist() for step in range(6)] == [[False]] * 3 + [[True]] * 3
    longer = stream_of(rowwise("softmax", 2, 24_576, 2))
    assert longer is not None and sums(longer)["x"] == (3 * 2 * 24_576 * 2, 0)


WINDOWS = [
    ((2, 3, 17, 13), SlidingWindow.square(3, 2)),
    ((2, 3, 9, 7), SlidingWindow.square(3, 1, 1)),
    ((1, 2, 7, 7), SlidingWindow.square(7)),
    ((1, 2, 33, 300), SlidingWindow((3, 2), (2, 3), (1, 0))),
    ((1, 1, 64, 64), SlidingWindow.square(16, 16)),
]


def windows_of(shape: tuple[int, ...], window: SlidingWindow) -> np.ndarray:
    """Return how many windows hold each input, counted one by one."""
    n, c, h, w = shape
    height, width = window.output((h, w))
    counts = np.zeros((n * c, h, w), int)
    for y in range(height):
        for x in range(width):
            rows = [y * window.stride[0] - window.padding[0] + i for i in range(window.kernel[0])]
            columns = [x * window.stride[1] - window.padding[1] + j for j in range(window.kernel[1])]
            kept = np.ix_(range(n * c), [r for r in rows if 0 <= r < h], [q for q in columns if 0 <= q < w])
            counts[kept] += 1
    return counts


@pytest.mark.parametrize(("shape", "window"), WINDOWS)
def test_pooling_reads_each_window(shape: tuple[int, int, int, int], window: SlidingWindow) -> None:
    counts, expected = touches(pooling(shape, window)), windows_of(shape, window).ravel()
    reads = counts["x"].reads.reshape(-1, 4)[:, 0]
    assert (
        ((reads > 0) >= (expected > 0)).all()
        and (counts["y"].writes == 1).all()
        and (counts["index"].writes == 1).all()
    )
    if window.stride[1] == 1 or window.stride[1] * 4 > 32:
        assert (reads == expected).all()


@pytest.mark.parametrize(("shape", "window"), WINDOWS)
def test_the_gradient_of_pooling_reads_every_window_of_its_inputs(
    shape: tuple[int, int, int, int], window: SlidingWindow
) -> None:
    counts = touches(pooling(shape, window, backward=True))
    assert (counts["x_gradient"].writes == 1).all()
    assert (counts["gradient"].reads > 0).all() and (counts["index"].reads > 0).all()
    assert counts["gradient"].reads.sum() * 2 == counts["index"].reads.sum()


SHAPES = [
    ConvolutionShape((2, 6, 9, 11), 8, SlidingWindow.square(3, 1, 1)),
    ConvolutionShape((2, 6, 9, 11), 8, SlidingWindow.square(3, 2, 1), groups=2),
    ConvolutionShape((1, 3, 20, 20), 5, SlidingWindow((5, 3), (4, 1), (2, 0))),
    ConvolutionShape((2, 16, 7, 7), 8, SlidingWindow.square(1)),
    ConvolutionShape((1, 2, 40, 40), 3, SlidingWindow.square(4, 12)),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_convolution_gathers_each_window(shape: ConvolutionShape, order: str) -> None:
    # Tiles of 4 filters: every window is gathered once for each of them.
    stream = implicit_product(shape, 4, order=order, tiling=Tiling(32, 4, 8))
    counts = touches(stream)
    images = counts["x"].reads.reshape(-1, 4)[:, 0]
    n, c, h, w = shape.images
    images = images.reshape((n, h, w, c)).transpose(0, 3, 1, 2) if order == "nhwc" else images.reshape(shape.images)
    expected = windows_of(shape.images, shape.window).reshape(shape.images) * -(-shape.filters // shape.groups // 4)
    exact = order == "nhwc" or shape.window.stride[1] == 1 or shape.window.stride[1] * 4 > 32
    assert (images == expected).all() if exact else ((images > 0) >= (expected > 0)).all()
    assert (counts["weights"].reads == -(-shape.sizes[0] // 32)).all() and (counts["y"].writes == 1).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_a_convolution_gather_as_often_as_the_convolution(shape: ConvolutionShape, order: str) -> None:
    # The pairs of an output and an input are those of the forward pass, whichever side gathers.
    whole = Tiling(32, 1024, 8)
    pairs = windows_of(shape.images, shape.window).sum() * shape.filters // shape.images[1]
    counts = touches(implicit_product(shape, 4, direction="data", order=order, tiling=whole))
    assert counts["gradient"].reads.sum() == pairs * 4 and (counts["x_gradient"].writes == 1).all()
    counts = touches(implicit_product(shape, 4, direction="weight", order=order, tiling=Tiling(64, 16, 8, parts=3)))
    height, width = shape.output
    taps = shape.images[1] // shape.groups * shape.window.kernel[0] * shape.window.kernel[1]
    assert (counts["gradient"].reads == -(-taps // 16)).all() and (counts["partials"].writes == 1).all()
    assert counts["gradient"].reads.size == shape.images[0] * shape.filters * height * width * 4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_direct_convolution_reads_patches(shape: ConvolutionShape) -> None:
    counts = touches(direct_convolution(shape))
    expected = windows_of(shape.images, shape.window).ravel() > 0
    assert ((counts["x"].reads.reshape(-1, 4)[:, 0] > 0) >= expected).all()
    assert (counts["weights"].reads > 0).all() and (counts["y"].writes == 1).all()


def test_a_patch_by_hand() -> None:
    # 20 x 20 outputs with kernel 3 and padding 1: blocks of 16 and 4, whose patches have 17 and 5 rows and columns.
    counts = sums(direct_convolution(ConvolutionShape((1, 1, 20, 20), 1, SlidingWindow.square(3, 1, 1))))
    assert counts == {"x": ((17 + 5) ** 2 * 4, 0), "weights": (4 * 9 * 4, 0), "y": (0, 1600)}


def test_a_lookup_reads_the_rows_of_its_indices() -> None:
    indices = np.array([3, 0, 3, 9])
    counts = touches(embedding((10, 8), indices))
    rows = counts["table"].reads.reshape(10, 32)
    assert rows[:, 0].tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 0, 1] and (rows == rows[:, :1]).all()
    assert (counts["indices"].reads == 1).all() and (counts["y"].writes == 1).all()
    assert touches(embedding((10, 8), indices, backward=True))["table_gradient"].writes.sum() == 4 * 32


def test_drawn_indices() -> None:
    uniform, skewed = (drawn_indices(1000, 20_000, distribution=name) for name in ("uniform", "zipf"))
    assert np.bincount(uniform, minlength=1000).max() < 60
    # The share of rank 1 in a continuous power law of exponent 1.05 over 1,000 ranks.
    expected = (2**-0.05 - 1) / (1001**-0.05 - 1)
    assert np.bincount(skewed).max() / 20_000 == pytest.approx(expected, rel=0.1)
    assert (drawn_indices(1000, 50, seed=3) == drawn_indices(1000, 50, seed=3)).all()
    assert (drawn_indices(1000, 50, seed=3) != drawn_indices(1000, 50, seed=4)).any()
    assert len(np.unique(drawn_indices(7, 5000, distribution="zipf", exponent=1.0))) == 7


def test_attention_reads_keys_once_for_each_tile_of_queries() -> None:
    heads = Heads(4, 300, 200, 32)
    size = 4 * 200 * 32 * 2
    queries = 4 * 300 * 32 * 2
    assert sums(tiled_attention(heads)) == {
        "q": (queries, 0),
        "k": (3 * size, 0),
        "v": (3 * size, 0),
        "o": (0, queries),
    }
    # Four tiles of 64 keys pass over the queries.
    counts = sums(tiled_attention(heads, backward=True))
    assert counts["q"] == (4 * queries, 0) and counts["q_gradient"] == (8 * queries, 8 * queries)
    assert counts["k_gradient"] == counts["v_gradient"] == (0, size)


def test_causal_attention_skips_keys_behind() -> None:
    # Queries 0 to 127 see two tiles of keys, those up to 255 four; two heads share keys.
    heads = Heads(2, 256, 256, 64, shared=2, causal=True)
    assert sums(tiled_attention(heads))["k"] == (2 * (2 + 4) * 64 * 128, 0)
    assert tiled_attention(heads).operands[1].size == 256 * 128
    # Keys 0 to 127 are seen by both tiles of queries, the others by one.
    assert sums(tiled_attention(heads, backward=True))["q"] == (2 * (2 * 2 + 2 * 1) * 128 * 128, 0)


def test_naive_attention_writes_its_scores() -> None:
    scores, weights, result = naive_attention(Heads(4, 64, 64, 32))
    assert scores.operands[2].address == weights.operands[0].address
    assert weights.operands[1].address == result.operands[0].address
    assert all(touches(stream) for stream in (scores, weights, result))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_recurrent_layer_uses_its_weights_in_every_step(kind: str) -> None:
    network, gates = RecurrentLayer(kind, 4, 16, 32, 64), {"lstm": 4, "gru": 3}[kind]
    kernels = recurrent(network)
    products, cells = kernels[1::2], kernels[2::2]
    assert len({stream.operands[1].address for stream in products}) == 1
    hidden = [next(item.address for item in stream.operands if item.name == "hidden") for stream in cells]
    assert [stream.operands[0].address for stream in products[1:]] == hidden[:-1]
    both = recurrent(network, backward=True)
    product_flops = 2.0 * 4 * 16 * gates * 64 * (32 + 64)
    assert sum(stream.flops for stream in both if stream.name.startswith("product")) == 3 * product_flops
    for stream in both:
        counts = touches(stream)
        assert all(of.unique == len(of.reads) for of in counts.values()), stream.name


def test_bound_kernels_touch_the_given_arrays() -> None:
    memory = Memory()
    array = memory.array("h", 4096)
    assert memory.array("next", 1).address == 4096
    stream = bind(
        streaming_pass("relu", ArrayPass({"x": 1024}, {"y": 1024}, 256)), {"x": array, "y": section(array, 1024, 1024)}
    )
    assert stream.tiles(np.arange(1), 0).address.tolist() == [0, 1024]
    with pytest.raises(InvalidInputError, match="operand y has 1024 bytes, given none"):
        bind(stream, {"x": array})
    with pytest.raises(InvalidInputError, match="bytes 4000 to 5000 of h, which has 4096"):
        section(array, 4000, 1000)


def test_ranges_are_cut_at_rows() -> None:
    assert [column.tolist() for column in pieces([3, 5], [3, 11], 5)] == [[1, 1], [1, 2], [0, 0], [5, 1]]


NAMED = {
    "gemm": (100, 90, 70), "batched_gemm": (2, 100, 90, 70), "fully_connected": (10, 300, 40),
    "convolution": (2, 4, 9, 9, 8, 3, 1, 1), "reduction": (30_000, 3), "pooling": (2, 3, 9, 9, 3, 2),
    "pooling_backward": (2, 3, 9, 9, 3, 2), "embedding": (10, 20, 500), "embedding_backward": (10, 20, 500),
    "composed_model": (1, 3, 8, 8, 4, 8), "lrn": (2, 9, 10, 10), "lrn_backward": (2, 9, 10, 10),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [kind.name for kind in stream_kinds()])
def test_every_named_kind_touches_all_of_its_arrays(kind: str, dtype: str) -> None:
    row = next(item for item in stream_kinds() if item.name == kind)
    shape = NAMED.get(kind) or {1: (30_000,), 2: (7, 1500), 4: (2, 3, 40, 32)}[len(row.dims)]
    for stream in named_streams(kind, shape, dtype):
        for name, of in touches(stream).items():
            # Padding aside, a window of stride 2 may leave the last row and column of an image.
            assert of.unique == len(of.reads) or (kind, name) == ("composed_model", "x"), (stream.name, name)
            adds = kind in ("attention_backward", "embedding_backward") and name in ("q_gradient", "table_gradient")
            assert adds or of.writes.max() <= 1
        assert stream.assumptions


@pytest.mark.parametrize(
    ("kind", "shape", "options", "message"),
    [
        ("gem", (1, 2, 3), {}, "no operator 'gem' has a stream; did you mean gemm"),
        ("gemm", (1, 2), {}, "gemm takes m n k, given 2 numbers"),
        ("gemm", (1, 0, 3), {}, "gemm: n is 0; give m n k, each 1 or more"),
        ("convolution", (1, 2, 3, 4, 5), {}, r"convolution takes n c h w filters kernel \[stride\] \[padding\]"),
        ("convolution", (1, 2, 3, 4, 5, 7), {}, "a window of 7 x 7 on an image of 3 x 4"),
        ("convolution", (1, 2, 9, 9, 5, 3), {"order": "chwn"}, "order 'chwn'"),
        ("convolution", (1, 2, 9, 9, 5, 3), {"algorithm": "fft"}, "one of implicit, direct"),
        ("gemm", (1, 2, 3), {"tile": 3}, "gemm has no option 'tile'; its options: layout, rows"),
        ("gemm", (1, 2, 3), {"rows": "big"}, "option rows of gemm is 'big'; give a value like 0"),
        ("gemm", (1, 2, 3), {"layout": "xy"}, "layout 'xy' of a product; one of nn, nt, tn, tt"),
        ("batch_norm", (4, 5), {"mode": "channel"}, "one of spatial, per_activation"),
        ("embedding", (4, 5, 6), {"distribution": "normal"}, "one of uniform, zipf"),
        ("embedding", (4, 5, 6), {"distribution": "zipf", "exponent": -1.0}, "it must be above 0"),
        ("attention", (5, 5, 6, 8), {"shared": 2}, "5 heads of queries do not share keys by 2"),
        ("lstm", (4, 5, 6, 7), {"steps": 2}, "lstm has no option 'steps'; its options: none"),
    ],
)
def test_bad_input_is_one_clear_line(kind: str, shape: tuple[int, ...], options: dict, message: str) -> None:
    with pytest.raises((InvalidInputError, NotFoundError), match=message) as caught:
        named_streams(kind, shape, options=options)
    assert "\n" not in str(caught.value)


def test_a_kind_of_several_kernels_has_no_single_stream() -> None:
    with pytest.raises(InvalidInputError, match="has 5 kernels"):
        named_stream("lstm", (2, 4, 32, 32))
    with pytest.raises(InvalidInputError, match="dtype 'fp12'"):
        named_stream("copy", (10,), "fp12")


def of_call(name: str, shapes: list, dtypes: list | None = None, values: list | None = None) -> Operator:
    operator = operator_of(Call(f"aten::{name}", shapes, dtypes or ["float"] * len(shapes), values or []))
    assert operator is not None
    return operator


@pytest.mark.parametrize(
    ("operator", "extra"),
    [
        (batched_matmul(1, 100, 70, 90, 2), 0),
        (batched_matmul(3, 100, 70, 90), 0),
        (rowwise("softmax", 20, 300), 0),
        (rowwise("softmax", 4, 3000, 2, backward=True), 0),
        # Scale and shift are no bytes of the operator.
        (rowwise("normalization", 20, 300), 2 * 300 * 4),
        (rowwise("normalization", 20, 300, backward=True), 300 * 4),
        (of_call("native_batch_norm", [[4, 5, 6, 7], [5], [5]]), 0),
        (of_call("native_batch_norm", [[40, 50], [50], [50]]), 0),
        (of_call("add", [[40, 50], [50], []]), 0),
        (of_call("gelu", [[30, 70], []], ["c10::Half", ""]), 0),
        (of_call("cat", [[[3, 4], [5, 4]], []], ["float", ""]), 0),
        (of_call("fill_", [[30, 40], []]), 0),
        (of_call("sum", [[80, 90], [], []]), 0),
        (of_call("_thnn_fused_lstm_cell", [[2, 32], [2, 32], [2, 8]]), 0),
        (of_call("max_pool2d_with_indices", [[2, 3, 9, 9]], None, ["", "[3, 3]", "[2]", "[1]", "[1]", "False"]), 0),
        (of_call("avg_pool2d", [[2, 3, 8, 8]], ["c10::Half"], ["", "[2, 2]", "[]", "[0]", "False"]), 0),
        (of_call("max_pool2d_with_indices_backward", [[2, 3, 5, 5], [2, 3, 9, 9]], None,
                 ["", "", "[3]", "[2]", "[1]", "[1]", "False"]), 0),
        (attention((2, 3, 100, 32), (3, 80)), 0),
        (attention((2, 4, 100, 32), (2, 80), causal=True), 0),
        (of_call("conv2d", [[2, 6, 9, 9], [8, 6, 3, 3], []], None, ["", "", "", "[1]", "[1]", "[1]"]), 0),
        (of_call("conv1d", [[2, 6, 90], [8, 3, 3], []], None, ["", "", "", "[1]", "[1]", "[1]"]), 0),
    ],
)  # fmt: skip
def test_an_operator_of_a_trace_touches_the_bytes_that_it_counts(operator: Operator, extra: int) -> None:
    stream = stream_of(operator)
    assert stream is not None
    assert sum(of.unique for of in touches(stream).values()) == operator.bytes_moved + extra
    assert stream.flops == pytest.approx(operator.flops, rel=0.02)


def test_lists_that_an_optimizer_writes_count_twice() -> None:
    operator = of_call("_foreach_add_", [[[30, 4], [5]], [[30, 4], [5]], []])
    stream = stream_of(operator)
    assert stream is not None
    counts = sums(stream)
    assert sum(read for read, _ in counts.values()) == operator.bytes_read
    assert sum(written for _, written in counts.values()) == operator.bytes_written


def test_an_embedding_touches_at_most_its_lookups() -> None:
    operator = of_call("embedding", [[1000, 16], [4, 30], []], ["float", "long int", ""])
    stream = stream_of(operator)
    measured = stream_of(operator, indices=np.full(120, 7))
    assert stream is not None and measured is not None
    assert 100 * 64 < touches(stream)["table"].unique <= 120 * 64
    assert touches(measured)["table"].unique == 64


def test_the_kernel_tells_the_gradient_of_a_convolution() -> None:
    shapes = [[2, 16, 8, 8], [2, 4, 8, 8], [16, 4, 3, 3]]
    values = ["", "", "", "[16]", "[1, 1]", "[1, 1]", "[1, 1]", "False"]
    operator = of_call("convolution_backward", shapes, None, values)
    assert stream_of(operator) is None
    data = stream_of(operator, kernel="cudnn_dgrad_implicit_gemm_nhwc")
    weight = stream_of(operator, kernel="implicit_wgrad")
    assert data is not None and weight is not None
    assert (data.operands[2].name, data.operands[2].size) == ("x_gradient", 2 * 4 * 64 * 4)
    assert "NHWC" in data.assumptions and "NCHW" in weight.assumptions
    assert data.flops == weight.flops == operator.flops / 2


@pytest.mark.parametrize(
    "operator",
    [
        Operator("custom", 1.0, 1.0, 1.0, (3,)),
        Operator("matmul", 1.0, 1.0, 1.0, ()),
        Operator("matmul", 1.0, 1.0, 1.0, (1, 2)),
        Operator("softmax", 1.0, 1.0, 1.0, (3,)),
        Operator("attention", 1.0, 1.0, 1.0, (3, 4)),
        Operator("elementwise", 1.0, 1.0, 1.0, (0,)),
        streaming("embedding", 1, 1, 10),
        streaming("rnn", 1, 1, 10),
        convolution((1, 3, 8, 8), (16, 3, 3, 3), (1, 16, 8, 8)),
    ],
)
def test_an_operator_whose_shape_does_not_tell_has_no_stream(operator: Operator) -> None:
    assert stream_of(operator) is None


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("gemm", (8192, 8192, 8192)),
        ("convolution", (64, 64, 112, 112, 128, 3, 2, 1)),
        ("convolution", (64, 512, 7, 7, 512, 3, 1, 1)),
        ("elementwise", (1 << 30,)),
        ("softmax", (1 << 16, 1 << 16)),
        ("softmax", (1 << 20, 1000)),
        ("layer_norm", (1 << 16, 12288)),
        ("batch_norm", (256, 64, 112, 112)),
        ("batch_norm", (256, 512, 7, 7)),
        ("pooling", (100, 3, 256, 256, 3, 2)),
        ("pooling", (256, 2048, 7, 7, 7)),
        ("pooling_backward", (100, 64, 56, 56, 3, 2)),
        ("lrn", (100, 32, 256, 256)),
        ("attention", (512, 4096, 4096, 128)),
        ("optimizer", (1 << 30,)),
    ],
)
def test_a_step_of_a_large_kernel_is_small(kind: str, shape: tuple[int, ...]) -> None:
    stream = named_stream(kind, shape, "fp16")
    for step in {0, stream.steps // 2, stream.steps - 1}:
        tiles = stream.tiles(np.arange(32), step)
        assert (tiles.rows * tiles.width).sum() <= 32 * (128 << 10)
        assert len(tiles) <= 32 * 1100


def test_workgroups_touch_memory_in_the_order_of_dispatch() -> None:
    # Two units hold eight of 32 workgroups in turn; a unit takes every second of them.
    stream = streaming_pass("fill", ArrayPass({}, {"y": 1 << 16}, 1 << 14))
    (block,) = blocks(stream, Lines(128, 32, 2, 32))
    assert stream.workgroups == 32 and len(block) == (1 << 16) // 128
    workgroup = block.line // 16
    assert (workgroup % 2 == block.unit).all()
    assert sorted(block.line.tolist()) == list(range(512))


def test_operands_may_be_larger_than_the_array_of_a_part() -> None:
    with pytest.raises(InvalidInputError, match="given 10"):
        bind(product((1, 8, 8, 8)), {name: Operand(name, 10, 0) for name in "ABC"})
