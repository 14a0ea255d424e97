"""A product whose result is reduced around a ring while it runs: the pattern of T3 (arXiv 2401.16677).

A `TiledProduct` says what each stage of a product reads from memory and writes, chunk by chunk. `ring_pattern` makes
the finer graph: stages, the chunks that leave for the next rank when they are complete, and the memory that adds what
comes to what is there. All ranks do the same at the same time, so a ring of one rank, whose next is itself, stands for
one of any number: at each step it receives the message that it sends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from profilers.trace.arrays import Floats, Ints
from profilers.trace.kernels import CLASSES
from replay.costs.kernels.models import TILES
from replay.graph.graph import COPY_DIRECTIONS, TaskKind
from replay.what_ifs.splice import COLLECTIVE_STREAM, KERNEL_STREAM, PatternBuilder, SplicePattern

#: Tile where the trace does not tell it, and rows of tiles that workgroups go over column by column before they come to
#: the next: what AMD's library of products does by default (WorkGroupMapping).
_TILE, _PANELS = (128, 128), 8
#: Depth of the product for which operands are read at a time, and bytes in which transfers are read, sent and written.
_SLICE_DEPTH, _BLOCK_BYTES, _MOST_BLOCKS = 128, 2**18, 4096
#: Blocks that a sender has read, and a receiver has not yet written, at most.
_BUFFERED = 4
#: Stages whose results the last-level cache holds until they have left for the next rank.
_HELD_STAGES = 2
#: Tasks of a block, of a stage with one slice, and of the begins and ends.
_OF_BLOCK, _OF_STAGE, _MARKS = 3, 3, 4
#: Names of tasks. Those of `MOVEMENTS` read or write memory.
PRODUCT_READS, PRODUCT_WRITES, REDUCE_READS, REDUCE_WRITES = (
    *("T3 reads of the product", "T3 writes of the product"),
    *("T3 reads of the reduce-scatter", "T3 writes of the reduce-scatter"),
)
MOVEMENTS: tuple[str, ...] = (PRODUCT_READS, PRODUCT_WRITES, REDUCE_READS, REDUCE_WRITES)
_COMPUTES, _SENDS, _STORES, _GATHERS = "T3 product", "T3 chunk", "T3 store to the next rank", "T3 all-gather"
_READS, _WRITES = COLLECTIVE_STREAM + 1, COLLECTIVE_STREAM + 2


@dataclass(frozen=True)
class TiledProduct:
    """A matrix product, stage after stage, its result in chunks of rows in the order in which they are sent.

    Parameters
    ----------
    rows, columns, depth : int
        Sizes of the product.
    chunks : int
        Number of chunks: the ranks of the ring.
    units : int
        Tiles that run at a time, which are a stage.
    cache_bytes : float
        Size of the last-level cache.
    tile : (int, int)
        Rows and columns of the result that a workgroup computes.
    element_bytes : int
        Bytes of an element.
    left_bytes : float
        Bytes of the operand of rows; 0 for rows x depth. A convolution uses each of its images several times.
    """

    rows: int
    columns: int
    depth: int
    chunks: int
    units: int
    cache_bytes: float
    tile: tuple[int, int] = _TILE
    element_bytes: int = 2
    left_bytes: float = 0.0

    @property
    def output_bytes(self) -> float:
        """Bytes of the whole result, of which every rank has a partial sum."""
        return float(self.element_bytes * self.rows * self.columns)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return ceil(int(self._starts[-1]) / self.units)

    @property
    def slices(self) -> int:
        """Slices of the depth that a stage reads and computes one after the other."""
        return ceil(self.depth / _SLICE_DEPTH)

    @property
    def chunk_ends(self) -> Ints:
        """Number of the stage behind the last tile of each chunk."""
        tiles = int(self._starts[-1]) // self.chunks * np.arange(1, self.chunks + 1)
        return np.asarray(-(-tiles // self.units))

    @cached_property
    def _groups(self) -> tuple[Ints, Floats]:
        """Rows of tiles and rows of elements of each group of tiles, all chunks after another."""
        height = self.rows / self.chunks
        panels = max(ceil(height / self.tile[0]), 1)
        first = np.arange(0, panels, _PANELS)
        last = np.minimum(first + _PANELS, panels)
        heights = np.minimum(last * self.tile[0], height) - first * self.tile[0]
        return np.tile(last - first, self.chunks), np.tile(heights, self.chunks)

    @cached_property
    def _starts(self) -> Ints:
        """Tiles before each group, and all tiles."""
        return np.append(0, np.cumsum(self._groups[0] * ceil(self.columns / self.tile[1])))

    def read_bytes(self, bounds: Ints, *, caches_result: bool) -> Floats:
        """Return the bytes that are read from memory between stages, shape (len(bounds) - 1,).

        Rows of the left operand are read once. Columns of the right one are read once, and again for every later group
        unless the cache keeps them beside the rows of the group and its result: the least recently used line goes, so
        no line of a stream that does not fit stays.

        Parameters
        ----------
        bounds : array of int64
            Numbers of stages.
        caches_result : bool
            Whether the result is written through the cache. T3 writes it around the cache.
        """
        tallest = float(self._groups[1].max())
        operands = self.element_bytes * self.depth * (self.columns + tallest)
        result = self.element_bytes * tallest * self.columns if caches_result else 0.0
        again = float(operands + result > self.cache_bytes)
        rows, first, later, _ = self._before(bounds)
        row_bytes = (self.left_bytes or float(self.element_bytes * self.depth * self.rows)) / self.rows
        return np.asarray(np.diff(rows) * row_bytes + self.element_bytes * self.depth * np.diff(first + again * later))

    def written_bytes(self, bounds: Ints, chunks: Ints) -> Floats:
        """Return the bytes of the result between stages, by group of chunks: (len(bounds) - 1, len(chunks) - 1)."""
        done = self._before(bounds)[-1][:, None] * self.element_bytes
        ends = self.output_bytes * chunks / self.chunks
        return np.diff(np.clip(done, ends[:-1], ends[1:]), axis=0)

    def _before(self, stages: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """Return what is done before stages: rows read, columns read first, columns read again, elements written."""
        (panels, heights), starts = self._groups, self._starts
        top = np.append(0.0, np.cumsum(heights))
        tile = np.minimum(stages * self.units, starts[-1])
        group = np.minimum(np.searchsorted(starts, tile, "right") - 1, len(panels) - 1)
        offset = tile - starts[group]
        column, beyond = np.divmod(offset, panels[group])
        left, right = (np.minimum((column + i) * self.tile[1], self.columns) for i in (0, 1))
        written = top[group] * self.columns + heights[group] * left + beyond * self.tile[0] * (right - left)
        rows = top[group] + np.minimum(np.minimum(offset, panels[group]) * self.tile[0], heights[group])
        touched = np.where(beyond > 0, right, left)
        later = np.where(group > 0, (group - 1) * self.columns + touched, 0)
        return rows, np.where(group > 0, self.columns, touched).astype(np.float64), later.astype(np.float64), written


def tile_of(rows: int, columns: int, workgroups: int) -> tuple[int, int]:
    """Return the tile of a library's product that has so many workgroups; 128 x 128 if none has.

    Parameters
    ----------
    rows, columns : int
        Sizes of the result.
    workgroups : int
        Workgroups of the kernel; 0 if unknown.

    Examples
    --------
    >>> tile_of(8192, 8192, 1024), tile_of(8192, 8192, 132)
    ((256, 256), (128, 128))
    """
    fitting = (tile for tile in (_TILE, *TILES) if ceil(rows / tile[0]) * ceil(columns / tile[1]) == workgroups)
    return next(fitting, _TILE)


@dataclass(frozen=True)
class RingTimes:
    """Traced times that a ring is derived from, and costs.

    Parameters
    ----------
    product_ns : float
        Duration of the product, and of the kernels that pack its result.
    reduce_ns : float
        Duration of the reduce-scatter.
    byte_ns : float
        Time of the memory for a byte.
    latency_ns : float
        From a chunk that is complete, or a block that is on the link, to the next rank.
    update_cost : float
        Time of the memory for a byte that is added to what is there, over that of a plain write.
    """

    product_ns: float
    reduce_ns: float
    byte_ns: float
    latency_ns: float
    update_cost: float

    def link_ns(self, chunks: int, chunk_bytes: float) -> float:
        """Return how long the link carries a chunk.

        A ring takes chunks - 1 steps of a chunk and a latency each. At the end it reads two chunks and writes one for
        the last addition. At least half of the traced time is taken for the bytes on the link.
        """
        fixed = (chunks - 1) * self.latency_ns + 3 * chunk_bytes * self.byte_ns
        return max(self.reduce_ns - fixed, self.reduce_ns / 2) / (chunks - 1)


@dataclass(frozen=True)
class RingColumns:
    """Columns of the tasks of a ring.

    Parameters
    ----------
    kernel : mapping
        Compute units of the product, by column: `cu`, `occupies` and so on.
    link : mapping
        Link to the next rank: `link` and `link_number`.
    gather : mapping
        The all-gather half of an all-reduce, with its duration; empty for a reduce-scatter.
    defers : int
        1 if the memory accesses of communication yield to those of the product, as in T3-MCA.
    """

    kernel: Mapping[str, Any]
    link: Mapping[str, Any]
    gather: Mapping[str, Any] = field(default_factory=dict)
    defers: int = 0


class _Transfer(NamedTuple):
    """Tasks of a message of every rank to the next, shape (members,) each."""

    first: Ints  #: by sender: must wait for the data
    left: Ints  #: by sender: the last block on the link
    came: Ints  #: by receiver: the last block that is written
    latency_ns: float


def ring_pattern(
    product: TiledProduct, times: RingTimes, columns: RingColumns, *, members: int, budget: int
) -> SplicePattern:
    """Return the finer graph of a product and its reduce-scatter.

    Each rank computes the chunks in the order in which it sends them. The first is stored straight to the next rank.
    The others are added to local memory. A copy engine sends a chunk on when its tiles are complete and the partial sum
    of the rank before has arrived; the last chunk stays.

    Parameters
    ----------
    product : TiledProduct
        Product whose result is reduced.
    times : RingTimes
        Traced times and costs.
    columns : RingColumns
        Columns of the tasks.
    members : int
        Ranks of the ring that are in the graph; 1 stands for all.
    budget : int
        Tasks for each rank. Blocks, slices, stages and chunks are merged to fit; the first and the last chunk stay.

    Notes
    -----
    The time of the product's stages alone, with the result written through the cache, is the traced one: memory is used
    in bursts at its full bandwidth, and the rest of the time is computing. If the bursts alone take longer than the
    trace says, they are shortened. The part of a stage's result that stays is in memory before the next stage reads.
    What goes to the next rank leaves beside later stages, while the last-level cache holds what two of them computed.
    """
    ring = _Ring(PatternBuilder(members), product, times, columns, budget)
    builder = ring.builder
    done, stores = ring.compute()
    arrivals, complete = stores, done[ring.chunk_stages]
    for chunk, size in enumerate(ring.written.sum(axis=0).tolist()[1:-1], 1):
        sent = ring.send(size, arrivals[-1], int(np.diff(ring.chunks)[chunk]))
        builder.edges(complete[chunk], sent.first)
        for arrival in arrivals:
            ring.wait_for(arrival, sent.first)
        arrivals = [sent]
    reduced = builder.mark("T3 reduced", COLLECTIVE_STREAM)
    for arrival in arrivals:
        ring.wait_for(arrival, reduced)
    builder.edges(done[-1], builder.kernel_end)
    builder.edges(done[-1], reduced)
    ring.gather(reduced)
    return builder.build()


@dataclass
class _Ring:
    """Tasks of all members of a ring under construction, one of each kind at a time for all of them."""

    builder: PatternBuilder
    product: TiledProduct
    times: RingTimes
    columns: RingColumns
    budget: int

    def __post_init__(self) -> None:
        product, half = self.product, max(self.budget // 2, 1)
        kept = int(np.clip((self.budget - _MARKS) // (_OF_BLOCK + _OF_STAGE), min(3, product.chunks), product.chunks))
        #: Chunks that are sent together, as bounds: the first and the last alone.
        self.chunks = np.unique(np.append(0, np.rint(np.linspace(1, product.chunks - 1, kept - 1)).astype(np.int64)))
        self.chunks = np.append(self.chunks, product.chunks)
        self.most_blocks = int(np.clip(half // (_OF_BLOCK * kept), 1, _MOST_BLOCKS))
        ends, n_stages = product.chunk_ends[self.chunks[1:] - 1], min(half // _OF_STAGE, product.stages)
        n_between = n_stages if n_stages == product.stages else max(n_stages - len(ends), 1)
        between = np.rint(np.linspace(0, product.stages, n_between + 1))
        #: Stages that run together, as bounds.
        self.bounds = np.unique(np.concatenate([[0], ends, between])).astype(np.int64)
        self.slices = int(np.clip((half // (len(self.bounds) - 1) - 1) // 2, 1, product.slices))
        self.chunk_stages = np.searchsorted(self.bounds, ends) - 1
        self.written = product.written_bytes(self.bounds, self.chunks)
        chunk_bytes = product.output_bytes / product.chunks
        self.link_ns = self.times.link_ns(product.chunks, chunk_bytes) / chunk_bytes

    def compute(self) -> tuple[Ints, list[_Transfer]]:
        """Append the stages; return the last task of each, shape (stages, members), and the stores of the first chunk.

        A stage reads operands and computes, slice by slice of the depth, and writes.
        """
        builder, (compute_ns, stretch) = self.builder, self._compute_ns()
        n, slices = len(self.bounds) - 1, self.slices
        sizes = self.product.read_bytes(self.bounds, caches_result=False)
        reads = self._bursts(PRODUCT_READS, np.repeat(sizes / slices, slices), stretch).reshape(n, slices, -1)
        share = np.diff(self.bounds) / self.product.stages / slices
        computing = {**self.columns.kernel, "duration_ns": np.repeat(compute_ns * share, slices)}
        computed = self._tasks(KERNEL_STREAM, _COMPUTES, computing, "kernel").reshape(n, slices, -1)
        away, stays = self.written[:, 0], self.written[:, 1:].sum(axis=1)
        local, done = np.flatnonzero(stays), computed[:, -1].copy()
        done[local] = self._bursts(PRODUCT_WRITES, stays[local], stretch * self.times.update_cost)
        builder.edges(builder.kernel_begin, reads[0, 0])
        builder.edges(reads, computed)
        builder.edges(computed[:, :-1], reads[:, 1:])
        builder.edges(computed[local, -1], done[local])
        builder.edges(done[:-1], reads[1:, 0])
        stores: list[_Transfer] = []
        for stage in np.flatnonzero(away).tolist():  # the stages of one chunk
            stores.append(self.send(float(away[stage]), stores[-1] if stores else None, stores=True))
            builder.edges(computed[stage, -1], stores[-1].first)
            if stage + _HELD_STAGES + 1 < n:
                builder.edges(stores[-1].left, reads[stage + _HELD_STAGES + 1, 0])
        builder.edges(builder.collective_begin, stores[0].first)
        return done, stores

    def _compute_ns(self) -> tuple[float, float]:
        """Return how long the product computes, and the factor on the time of its bursts."""
        product, total_ns = self.product, self.times.product_ns
        moved = product.read_bytes(self.bounds, caches_result=True).sum() + product.output_bytes
        bursts_ns = float(moved) * self.times.byte_ns
        return max(total_ns - bursts_ns, 0.0), total_ns / max(bursts_ns, total_ns, 1e-9)

    def send(self, size_bytes: float, before: _Transfer | None, chunks: int = 1, *, stores: bool = False) -> _Transfer:
        """Append a message of each member to the next one, after its transfer `before`.

        It goes block by block: read, over the link, added to memory. A block is passed on as it comes, so that the link
        starts with the read of a block and the addition a latency after the link. A sender reads no more than four
        blocks ahead, and the link waits for a receiver that lags by four. Stores come from the cache: nothing is read.
        """
        builder, lag = self.builder, chunks * self.times.latency_ns
        n = int(np.clip(round(size_bytes / _BLOCK_BYTES), 1, self.most_blocks))
        crossing = {**self.columns.link, "kind": int(TaskKind.COPY), "direction": COPY_DIRECTIONS.index("PtoP")}
        crossing["ranks"] = self.product.chunks
        crossing["duration_ns"] = np.full(n, self.link_ns * size_bytes / n)
        links = self._blocks(COLLECTIVE_STREAM, _STORES if stores else _SENDS, crossing)
        writes = self._accesses(_WRITES, REDUCE_WRITES, (size_bytes, n), self.times.update_cost)
        there = np.roll(writes, -1, axis=1)  # written by the receiver of each link
        builder.edges(links, there, lag_ns=lag, from_start=True)
        builder.edges(there[:-_BUFFERED], links[_BUFFERED:], lag_ns=lag)
        first = links[0]
        if before is not None:
            builder.edges(before.left, first)
        if not stores:
            reads = self._accesses(_READS, REDUCE_READS, (size_bytes, n), 1.0)
            builder.edges(reads, links, from_start=True)
            builder.edges(links[:-_BUFFERED], reads[_BUFFERED:], from_start=True)
            first = reads[0]
        return _Transfer(first, links[-1], writes[-1], lag)

    def wait_for(self, arrival: _Transfer, tasks: Ints) -> None:
        """Let tasks wait until a transfer to their member has arrived."""
        self.builder.edges(arrival.came, tasks)
        self.builder.edges(np.roll(arrival.left, 1), tasks, lag_ns=arrival.latency_ns)

    def gather(self, reduced: Ints) -> None:
        """Append the all-gather of an all-reduce, for which all members meet, and the end of the collective."""
        builder = self.builder
        if not self.columns.gather:
            builder.edges(reduced, builder.collective_end)
            return
        meeting = builder.tasks("T3 all reduced", builder.lanes(COLLECTIVE_STREAM)[:1], {"kind": int(TaskKind.MARK)})
        gathers = builder.tasks(_GATHERS, builder.lanes(COLLECTIVE_STREAM), self.columns.gather, scale="transfer")
        builder.edges(reduced, meeting)
        builder.edges(meeting, gathers)
        builder.edges(gathers, builder.collective_end)

    def _bursts(self, name: str, sizes: Floats, cost: float) -> Ints:
        """Append accesses of the product, at the full bandwidth; its workgroups stay on their units."""
        held = {**self.columns.kernel, "cu": 0.0, "power": 0.0, "hbm": 1.0, "class_": CLASSES.index("copy")}
        held |= {"duration_ns": cost * self.times.byte_ns * sizes, "bytes": _whole(sizes)}
        return self._tasks(KERNEL_STREAM, name, held, "kernel")

    def _accesses(self, stream: int, name: str, size: tuple[float, int], cost: float) -> Ints:
        """Append accesses of communication in blocks, one after the other; return them, shape (blocks, members)."""
        size_bytes, n = size
        sizes = np.full(n, size_bytes / n)
        columns: dict[str, Any] = {"kind": int(TaskKind.COPY), "direction": COPY_DIRECTIONS.index("DtoD"), "hbm": 1.0}
        columns |= {"duration_ns": cost * self.times.byte_ns * sizes, "bytes": _whole(sizes)}
        columns["defers"] = float(self.columns.defers)
        return self._blocks(stream, name, columns)

    def _blocks(self, stream: int, name: str, columns: Mapping[str, Any]) -> Ints:
        """Append blocks of a transfer, one after the other; return them, shape (blocks, members)."""
        blocks = self._tasks(stream, name, columns, "transfer")
        self.builder.edges(blocks[:-1], blocks[1:])
        return blocks

    def _tasks(self, stream: int, name: str, columns: Mapping[str, Any], scale: str) -> Ints:
        """Append tasks on a stream of all members; return them, shape (times, members)."""
        members, times = self.builder.members, len(columns["duration_ns"])
        each: dict[str, npt.ArrayLike] = {
            key: np.repeat(value, members) if np.ndim(value) else value for key, value in columns.items()
        }
        lanes = np.tile(self.builder.lanes(stream), times)
        return self.builder.tasks(name, lanes, each, scale=scale).reshape(times, members)


def _whole(sizes: Floats) -> Ints:
    """Return sizes in whole bytes whose sums differ from those of `sizes` by less than one."""
    return np.asarray(np.diff(np.rint(np.append(0.0, np.cumsum(sizes))).astype(np.int64)))
