"""A product as waves of workgroups: which chunk of the result each stage adds to, and what it moves."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import lambertw

from profilers.errors import InvalidInputError
from replay.durations import predict
from replay.overlap.t3.workload import SubLayer, System

__all__ = ["Product", "cached_share", "product_of"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Tiles of a product, and slices of all its stages, at most: some hundred times the largest that was studied.
_MOST_TILES, _MOST_SLICES = 2**20, 2**20


@dataclass(frozen=True)
class Product:
    """A product on one GPU, stage after stage.

    Parameters
    ----------
    launch_ns : float
        Before its first stage.
    compute_ns : float
        Of each stage, without the time in which it reads operands or writes its part of the result.
    read_bytes : array of float64, shape (stages,)
        From memory: what the last-level cache did not keep.
    written_bytes : array of float64, shape (stages, chunks)
        Of the result, by chunk in the order in which they are produced.
    tiles : array of int64, shape (stages, chunks)
        Workgroups, in the same order.
    slices : int
        Of the depth, after another: each is read, then computed.
    """

    launch_ns: float
    compute_ns: float
    read_bytes: Floats
    written_bytes: Floats
    tiles: Ints
    slices: int = 1

    def last_stages(self) -> Ints:
        """Return for each chunk, in the order of production, the stage of its last workgroups."""
        stages, chunks = np.nonzero(self.tiles)
        last = np.zeros(self.tiles.shape[1], np.int64)
        np.maximum.at(last, chunks, stages)
        return last


def cached_share(footprint: float, replacement: str) -> float:
    """Return which share of accesses hit, of a stream that goes over `footprint` times the size of a cache in circles.

    Parameters
    ----------
    footprint : float
    replacement : str
        One of `replay.overlap.t3.workload.REPLACEMENTS`.

    Notes
    -----
    A line that was least recently used is always the next that is needed, so nothing of a stream that does not fit is
    kept. With random replacement a line is still there after the F (1 - h) misses of a round with probability
    (1 - 1/C)^(F (1 - h)), so h = exp(-(F/C) (1 - h)), whose root below one is -W(-x exp(-x)) / x for x = F/C. At best
    one part of the stream stays, C/F.

    Examples
    --------
    >>> cached_share(0.5, "lru"), [round(cached_share(1.5, name), 3) for name in ("lru", "random", "best")]
    (1.0, [0.0, 0.417, 0.667])
    """
    if footprint <= 1.0:
        return 1.0
    if replacement == "random":
        return float(-lambertw(-footprint * np.exp(-footprint)).real / footprint)
    return 1.0 / footprint if replacement == "best" else 0.0


def product_of(sublayer: SubLayer, system: System, output_in_cache: float) -> Product:
    """Return the product of a sub-layer, its result in one chunk of rows for each worker.

    Parameters
    ----------
    sublayer : SubLayer
    system : System
    output_in_cache : float
        Share of the result that takes room in the last-level cache from operands that are read again: 1 where it is
        written through it, 0 around it, as T3 does.

    Raises
    ------
    InvalidInputError
        The rows of tiles cannot be divided among the workers, or the product has more than a million tiles, or of
        slices in all its stages.

    Notes
    -----
    Without T3 (the result in the cache) all takes what `replay.durations` says. Workgroups of a stage run together:
    they read a slice of the operands and compute, slice by slice, and write. Memory is taken to be used in bursts at
    its full bandwidth, beside which nothing is computed; what is left of the time is computing, the same in every
    stage. Rows of the first operand are read once; columns of the second once too, and again for every later group
    as far as the cache has not kept them, while it also had to hold the rows of the group and its result.

    Examples
    --------
    >>> from replay.overlap.t3.workload import find_sublayer, load_workload
    >>> one = product_of(find_sublayer("t_nlg/fc2/8"), load_workload().system, 0.0)
    >>> int(one.tiles.sum()), one.last_stages()[:3].tolist()
    (2176, [3, 6, 10])
    """
    grid = _grid(sublayer, system)
    read = _read(grid, sublayer, system, output_in_cache)
    memory_ns = system.memory_ns(_read(grid, sublayer, system, 1.0).sum() + sublayer.output_bytes)
    shape = [[1, sublayer.tokens, sublayer.hidden, sublayer.depth]]
    whole = predict("matmul", shape, system.device, dtype="fp16")
    compute_ns = max(float(whole.seconds[0] - whole.start_s) * 1e9 - memory_ns, 0.0) / grid.stages
    sizes = 2.0 * system.tile_rows * grid.widths[grid.column]
    written, tiles = np.zeros((grid.stages, sublayer.workers)), np.zeros((grid.stages, sublayer.workers), np.int64)
    np.add.at(written, (grid.stage, grid.chunk), sizes)
    np.add.at(tiles, (grid.stage, grid.chunk), 1)
    slices = -(-sublayer.depth // system.slice_depth)
    if slices * grid.stages > _MOST_SLICES:
        raise InvalidInputError(
            f"{sublayer.label}: {grid.stages} stages of {slices} slices; at most {_MOST_SLICES:,} in all: "
            "raise slice_depth"
        )
    return Product(1e9 * whole.start_s, compute_ns, read, written, tiles, slices)


@dataclass(frozen=True)
class _Grid:
    """Tiles in the order of their workgroups, shape (tiles,) each; widths of the columns of tiles, in elements."""

    chunk: Ints
    group: Ints
    column: Ints
    panel: Ints
    stage: Ints
    widths: Ints

    @property
    def stages(self) -> int:
        return int(self.stage[-1]) + 1


def _grid(sublayer: SubLayer, system: System) -> _Grid:
    rows = sublayer.workers * system.tile_rows
    if sublayer.tokens % rows:
        raise InvalidInputError(
            f"{sublayer.label}: {sublayer.tokens} tokens are not whole tiles of {system.tile_rows} rows for each of "
            f"{sublayer.workers} workers; take a multiple of {rows}"
        )
    panels, columns = sublayer.tokens // system.tile_rows, -(-sublayer.hidden // system.tile_columns)
    if panels * columns > _MOST_TILES:
        raise InvalidInputError(
            f"{sublayer.label}: {panels} x {columns} tiles; at most {_MOST_TILES:,}: raise tile_rows"
        )
    panel, column = (one.ravel() for one in np.indices((panels, columns)))
    of_chunk = panels // sublayer.workers
    chunk, within = panel // of_chunk, panel % of_chunk // system.panels_in_group
    group = chunk * -(-of_chunk // system.panels_in_group) + within
    order = np.lexsort((panel, column, group))
    widths = np.full(columns, system.tile_columns)
    widths[-1] = sublayer.hidden - (columns - 1) * system.tile_columns
    stage = np.arange(len(order)) // system.device.compute_units
    return _Grid(chunk[order], group[order], column[order], panel[order], stage, widths)


def _read(grid: _Grid, sublayer: SubLayer, system: System, output_in_cache: float) -> Floats:
    """Return what each stage reads from memory, bytes."""
    row_bytes = 2.0 * sublayer.depth
    _, panels = np.unique(grid.panel, return_index=True)
    passes, columns = np.unique(np.stack([grid.group, grid.column]), axis=1, return_index=True)
    rows_of_group = system.tile_rows * min(system.panels_in_group, len(panels) // sublayer.workers)
    footprint = (sublayer.hidden + rows_of_group) * row_bytes + output_in_cache * 2.0 * rows_of_group * sublayer.hidden
    hits = cached_share(footprint / (system.device.value("l2_mb") * 2**20), system.replacement)
    again = np.where(passes[0] == 0, 1.0, 1.0 - hits)
    read = np.bincount(grid.stage[panels], minlength=grid.stages) * system.tile_rows * row_bytes
    columns_read = np.bincount(grid.stage[columns], grid.widths[grid.column[columns]] * row_bytes * again, grid.stages)
    return np.asarray(read + columns_read, dtype=np.float64)
