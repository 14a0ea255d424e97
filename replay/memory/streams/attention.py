"""Streams of attention that keeps no matrix of scores in memory: tiles of queries pass over tiles of keys."""

from dataclasses import dataclass

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Ints
from replay.memory.accesses import Memory, Stream, Tiles, bind, checked_sizes, operands
from replay.memory.streams.passes import softmax
from replay.memory.streams.products import bind_product, product_kernels

#: Queries and keys of a tile (FlashAttention-2 for widths up to 128; arXiv 2307.08691).
_QUERIES, _KEYS = 128, 64
_THREADS = 128
_GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Heads:
    """Shape of an attention.

    Parameters
    ----------
    heads : int
        Heads of queries of all sequences together.
    queries, keys, width : int
        Length of queries, length of keys, and elements of a head.
    shared : int
        Heads of queries that share a head of keys: 1, or more for grouped queries.
    causal : bool
        Whether a query sees no keys behind its position.

    Raises
    ------
    InvalidInputError
        A size is below 1, or heads do not divide by `shared`.
    """

    heads: int
    queries: int
    keys: int
    width: int
    shared: int = 1
    causal: bool = False

    def __post_init__(self) -> None:
        checked_sizes(heads=self.heads, queries=self.queries, keys=self.keys, width=self.width, shared=self.shared)
        if self.heads % self.shared:
            raise InvalidInputError(f"{self.heads} heads of queries do not share keys by {self.shared}")

    @property
    def flops(self) -> float:
        """Floating-point operations of the forward pass."""
        return 4.0 * self.heads * self.queries * self.keys * self.width * (0.5 if self.causal else 1.0)

    def sizes(self, element_bytes: int) -> tuple[int, int]:
        """Return bytes of the queries, and of the keys."""
        row = self.width * element_bytes
        return self.heads * self.queries * row, self.heads // self.shared * self.keys * row

    def __str__(self) -> str:
        return f"{self.heads} x {self.queries} x {self.keys} x {self.width}" + (" causal" if self.causal else "")


def tiled_attention(
    heads: Heads, element_bytes: int = 2, *, backward: bool = False, tile: tuple[int, int] = (_QUERIES, _KEYS)
) -> Stream:
    """Return the stream of a fused attention.

    Forward, a workgroup reads a tile of queries, then tiles of keys and values, a tile in each step, and writes its
    result. Backward, a workgroup holds a tile of keys and values and passes over queries, results' gradients and
    gradients of queries, which it reads, adds to and writes, in 4 bytes.

    Parameters
    ----------
    heads : Heads
        Shape.
    element_bytes : int
        Bytes of an element.
    backward : bool
        Whether to return the backward pass.
    tile : tuple of int
        Queries and keys of a tile.

    Notes
    -----
    Source: FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2. Statistics of rows are left out: they are less than
    a hundredth of the bytes.

    Examples
    --------
    >>> stream = tiled_attention(Heads(16, 1024, 1024, 64))
    >>> stream.workgroups, stream.steps
    (128, 17)
    """
    checked_sizes(queries=tile[0], keys=tile[1])
    plan = _AttentionTiles(heads, element_bytes, tile, _BACKWARD if backward else _FORWARD)
    return Stream(
        f"attention{' backward' if backward else ''} {heads}",
        plan.arrays,
        workgroups=plan.workgroups,
        steps=plan.steps,
        tiles=plan,
        flops=heads.flops * (2.5 if backward else 1.0),
        threads=_THREADS,
        vector_bytes=16,
        residency=max(min(128 // heads.width, 4), 1),
        in_flight=8,
        matrix=element_bytes <= 2,
        element_bytes=element_bytes,
        assumptions=(
            f"tiles of {tile[0]} queries and {tile[1]} keys",
            "scores stay in registers",
            "heads lie one after another",
        ),
    )


@dataclass(frozen=True)
class _AttentionPass:
    """The loop nest of a pass: a workgroup holds a tile of one side, and a step has a tile of the other.

    Parameters
    ----------
    names : tuple of str
        Operands.
    outer, inner : int
        Side of the tile of a workgroup and of a step: 0 for queries, 1 for keys.
    held, read, updated, results : tuple of str
        Operands that are read in the first step, read in each step, written in each step, and written at the end.
    """

    names: tuple[str, ...]
    outer: int
    inner: int
    held: tuple[str, ...]
    read: tuple[str, ...]
    updated: tuple[str, ...]
    results: tuple[str, ...]


_FORWARD = _AttentionPass(("q", "k", "v", "o"), 0, 1, ("q",), ("k", "v"), (), ("o",))
_BACKWARD = _AttentionPass(
    ("q", "k", "v", "gradient", "q_gradient", "k_gradient", "v_gradient"), 1, 0, ("k", "v"),
    ("q", "gradient", "q_gradient"), ("q_gradient",), ("k_gradient", "v_gradient"),
)  # fmt: skip


class _AttentionTiles:
    """The tiles of a pass, by workgroup and step: a workgroup for each tile of a head, and a last step for results."""

    def __init__(self, heads: Heads, element_bytes: int, tile: tuple[int, int], nest: _AttentionPass) -> None:
        self.heads, self.tile, self.nest, self.row_bytes = heads, tile, nest, heads.width * element_bytes
        self.lengths = (heads.queries, heads.keys)
        counts = [-(-length // size) for length, size in zip(self.lengths, tile, strict=True)]
        self.blocks, self.steps = counts[nest.outer], counts[nest.inner] + 1
        self.workgroups = heads.heads * self.blocks
        query_bytes, key_bytes = heads.sizes(element_bytes)
        sizes = dict.fromkeys(("q", "gradient", "o"), query_bytes) | dict.fromkeys(("k", "v"), key_bytes)
        sizes |= dict.fromkeys(("k_gradient", "v_gradient"), heads.heads * heads.keys * self.row_bytes)
        sizes["q_gradient"] = query_bytes // element_bytes * _GRADIENT_BYTES
        self.arrays = operands(**{name: sizes[name] for name in nest.names})

    def __call__(self, workgroups: Ints, step: int) -> Tiles:
        """Return the tiles of workgroups in a step."""
        nest = self.nest
        head, number = np.divmod(workgroups, self.blocks)
        outer = number * self.tile[nest.outer]
        if step == self.steps - 1:
            return Tiles.joined(*self._blocks(nest.results, workgroups, head, outer, is_write=True))
        inner = np.full_like(outer, step * self.tile[nest.inner])
        if self.heads.causal:
            queries, keys = (outer, inner) if nest.outer == 0 else (inner, outer)
            last = np.minimum(queries + self.tile[0], self.heads.queries) - 1 + self.heads.keys - self.heads.queries
            inner[keys > last] = self.lengths[nest.inner]
        held = self._blocks(nest.held if step == 0 else (), workgroups, head, outer)
        read = self._blocks(nest.read, workgroups, head, inner)
        return Tiles.joined(*held, *read, *self._blocks(nest.updated, workgroups, head, inner, is_write=True))

    def _blocks(
        self, names: tuple[str, ...], workgroups: Ints, head: Ints, first: Ints, *, is_write: bool = False
    ) -> list[Tiles]:
        """Return the tiles of rows of a head, from row `first` on; a row beyond the last makes no tile."""
        several = []
        for name in names:
            side = int(name in ("k", "v", "k_gradient", "v_gradient"))
            owner = head // self.heads.shared if name in ("k", "v") else head
            width = self.heads.width * _GRADIENT_BYTES if name == "q_gradient" else self.row_bytes
            rows = np.clip(self.lengths[side] - first, 0, self.tile[side])
            index = self.nest.names.index(name)
            address = self.arrays[index].address + (owner * self.lengths[side] + first) * width
            several.append(Tiles.of(workgroups, address, index, width=rows * width, is_write=is_write))
        return several


def naive_attention(heads: Heads, element_bytes: int = 2) -> tuple[Stream, ...]:
    """Return the streams of an attention in three kernels, which write and read its matrix of scores.

    Parameters
    ----------
    heads : Heads
        Shape. Masked scores are computed, too. Heads that share keys read copies of them.
    element_bytes : int
        Bytes of an element.

    Returns
    -------
    tuple of Stream
        Product of queries and keys, softmax, product of scores and values. They have the scores in common.

    Examples
    --------
    >>> [stream.name for stream in naive_attention(Heads(16, 128, 128, 64))]
    ['product 16 x 128 x 128 x 64', 'softmax 2048 x 128', 'product 16 x 128 x 64 x 128']
    """
    (batch, m, n, width), size = (heads.heads, heads.queries, heads.keys, heads.width), element_bytes
    memory = Memory()
    q, o = (memory.array(name, batch * m * width * size) for name in ("q", "o"))
    k, v = (memory.array(name, batch * n * width * size) for name in ("k", "v"))
    scores, weights = (memory.array(name, batch * m * n * size) for name in ("scores", "weights"))
    first = product_kernels((batch, m, n, width), size, layout="nt")
    second = product_kernels((batch, m, width, n), size)
    return (
        *bind_product(memory, first, (q, k, scores)),
        bind(softmax(batch * m, n, size), {"x": scores, "y": weights}),
        *bind_product(memory, second, (weights, v, o)),
    )
