"""Part c: a product cut into pieces, alone and beside a transfer that is cut alike."""

from collections.abc import Iterator

from benchmarks.gpu.contention import Planned
from benchmarks.gpu.policies import LAG_NS, Abilities
from benchmarks.gpu.scenarios import Group, Scenario
from benchmarks.gpu.sizes import Product, Size
from benchmarks.gpu.step import Member
from benchmarks.gpu.work import Work, copied, gemm, moved

__all__ = ["groups"]

CUT_COPY_BLOCKS = 16


def groups(size: Size, abilities: Abilities) -> Iterator[Planned]:
    """Yield the groups of part c: each product beside each carrier; the pieces alone are recorded with them."""
    blocks = min(CUT_COPY_BLOCKS, abilities.units)
    for product in size.split_products:
        for transfer in (moved("copy_engine", "h2d", size.link_bytes), copied(size.copy_bytes, blocks)):
            name = f"{gemm(*product).name} cut beside {transfer.name}"
            lacking = abilities.lacks(transfer)
            yield (name, lacking) if lacking else _group(name, product, transfer, size)


def _group(name: str, product: Product, transfer: Work, size: Size) -> Group:
    whole = gemm(*product)
    scenarios = [_scenario("whole", whole, transfer, 1)]
    for pieces in size.pieces:
        for along, piece in _cuts(product, pieces):
            scenarios.append(_scenario(f"{along} {pieces}", piece, _piece(transfer, pieces), pieces))
    return Group("c", name, (whole, transfer), tuple(scenarios))


def _scenario(policy: str, piece: Work, transfer: Work, pieces: int) -> Scenario:
    members = ((0, Member(piece, pieces)), (1, Member(transfer, pieces, lag_ns=LAG_NS)))
    return Scenario(policy, members)


def _cuts(product: Product, pieces: int) -> Iterator[tuple[str, Work]]:
    """Yield a piece of a product along rows, along the sum (it adds to its result), and along both."""
    m, n, k, dtype = product
    if m % pieces == 0:
        yield "M", gemm(m // pieces, n, k, dtype)
    if k % pieces == 0:
        yield "K", gemm(m, n, k // pieces, dtype, accumulate=True)
    rows = 2 ** (pieces.bit_length() // 2)
    if rows < pieces and m % rows == 0 and k % (pieces // rows) == 0:
        yield "MK", gemm(m // rows, n, k // (pieces // rows), dtype, accumulate=True)


def _piece(transfer: Work, pieces: int) -> Work:
    if transfer.kind == "copy_engine":
        return moved("copy_engine", transfer.direction, transfer.host_bytes // pieces)
    return copied(transfer.bytes_read // pieces, transfer.blocks)
