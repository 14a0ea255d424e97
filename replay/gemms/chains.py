"""Chains of products that repeat: the experts of a mixture, each of which reads rows of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from replay.gemms.gemm import Gemm

#: Most kernels of a chain after its first product, of the kernels that gather its rows, and between two chains.
_LONGEST, _MOST_GATHERS, _MOST_BETWEEN = 24, 2, 12
#: Fewest products of a chain.
_FEWEST: Final = 2


@dataclass(frozen=True)
class StreamKernels:
    """Kernels of a stream in the order in which they run: lists of equal length.

    Parameters
    ----------
    products : sequence of Gemm or None
        GEMM that each computes; None for other kernels.
    gathers : sequence of bool
        Whether each gathers rows of a tensor.
    continues : sequence of bool
        Whether each may stand in a chain or between chains: it is of the same step and phase as the kernel before, and
        no collective.
    """

    products: Sequence[Gemm | None]
    gathers: Sequence[bool]
    continues: Sequence[bool]


@dataclass(frozen=True)
class Chain:
    """Products, each after one whose result it reads; the last has the width that the first one read.

    Parameters
    ----------
    first, end : int
        Position of its first kernel, a gather or a product, and the position after its last product.
    products : tuple of int
        Positions of its products.
    weights : tuple of (int, int)
        Depth and columns of each product.
    rows : int
        Rows of its products.
    """

    first: int
    end: int
    products: tuple[int, ...]
    weights: tuple[tuple[int, int], ...]
    rows: int


def chain_at(kernels: StreamKernels, position: int) -> Chain | None:
    """Return the chain whose first product is at a position; None if there is none.

    Examples
    --------
    >>> products = [Gemm(64, 256, 128), None, Gemm(64, 128, 256)]
    >>> chain_at(StreamKernels(products, [False] * 3, [True] * 3), 0).products
    (0, 2)
    """
    begin = kernels.products[position]
    if begin is None or begin.batch > 1:
        return None
    first = position
    while first and position - first < _MOST_GATHERS and kernels.gathers[first - 1] and kernels.continues[first]:
        first -= 1
    members: list[int] = []
    weights: list[tuple[int, int]] = []
    for at in range(position, min(position + _LONGEST, len(kernels.products))):
        product = kernels.products[at]
        if at > position and not kernels.continues[at]:
            return None
        if product is None:
            continue
        if (product.batch, product.m) != (1, begin.m):
            return None
        members.append(at)
        weights.append((product.k, product.n))
        if len(members) >= _FEWEST and product.n == begin.k and product.k == begin.n:
            return Chain(first, at + 1, tuple(members), tuple(weights), begin.m)
    return None


def repeated_chains(kernels: StreamKernels, position: int) -> list[Chain]:
    """Return the chain at a position and the chains that follow it with the same shapes of weights, if any follow.

    Each chain gathers rows of its own. Without gathers, chains follow each other at once, and have different numbers of
    rows, which the next layer of a network would not.
    """
    chains: list[Chain] = []
    current = chain_at(kernels, position)
    while current is not None:
        if chains and not _follows(chains[-1], current):
            break
        chains.append(current)
        current = _next_chain(kernels, current)
    return chains if len(chains) > 1 else []


def _next_chain(kernels: StreamKernels, chain: Chain) -> Chain | None:
    """Return the chain after another, with other kernels between."""
    for at in range(chain.end, min(chain.end + _MOST_BETWEEN, len(kernels.products))):
        if not kernels.continues[at]:
            return None
        if kernels.products[at] is not None:
            return chain_at(kernels, at)
    return None


def _follows(before: Chain, chain: Chain) -> bool:
    """Tell whether two chains are taken to be independent."""
    gathered = all(each.first < each.products[0] for each in (before, chain))
    apart = chain.first == before.end and chain.rows != before.rows
    return chain.weights == before.weights and chain.first >= before.end and (gathered or apart)
