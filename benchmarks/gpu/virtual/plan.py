"""What is recorded on a virtual device: products beside whatever else a training step runs, under several policies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from benchmarks.gpu.step import Machine, Member
from benchmarks.gpu.work import Work, copied, gemm, moved, streamed

__all__ = ["Scenario", "plan"]

_MIB = 2**20
#: How long each side of a pair is to last, ns, and how often it is launched at most.
_SIDE_NS = 1_500_000
_LAUNCHES = 200
_STREAMS = (2, 4, 8)


@dataclass(frozen=True)
class Scenario:
    """What runs side by side.

    Parameters
    ----------
    part : str
        ``"b"`` for pairs, ``"c"`` for streams of one product.
    group : str
        Scenarios of one group do the same work.
    policy : str
    members : tuple of Member
        In the order in which they are let go.
    """

    part: str
    group: str
    policy: str
    members: tuple[Member, ...]


def plan(machine: Machine, compute_units: int) -> Iterator[Scenario]:
    """Yield the scenarios, group by group; what runs first on the machine is every work alone, to balance the sides."""
    for one, other in _pairs():
        yield from _under_policies(_balanced(machine, (one, other)), compute_units)
    for product in _small():
        for count in _STREAMS:
            group = f"{product.name}*{count}"
            members = _balanced(machine, (product,) * count)
            yield Scenario("c", group, "order", members)
            own = tuple(replace(m, units=compute_units // count) for m in members)
            yield Scenario("c", group, f"partition_{compute_units // count}", own)


def _products() -> list[Work]:
    """Return products bound by arithmetic, in several numbers of waves, and by memory."""
    return [
        gemm(8192, 8192, 8192),
        gemm(4096, 4096, 4096),
        gemm(2048, 2560, 8192),
        gemm(4096, 4096, 4096, accumulate=True),
        gemm(2048, 2048, 4096, "fp32"),
        gemm(16, 16384, 16384),
        gemm(128, 8192, 16384),
    ]


def _small() -> list[Work]:
    """Return products that do not fill a device."""
    return [gemm(512, 512, 4096), gemm(1024, 1024, 8192), gemm(768, 1024, 4096, "fp32")]


def _beside() -> list[Work]:
    """Return what runs beside a product."""
    copies = [copied(256 * _MIB, blocks) for blocks in (8, 16, 32, 64)]
    size = 48 * _MIB
    links = [moved("copy_engine", "h2d", size), moved("copy_engine", "d2h", size)]
    links += [moved("zero_copy", "h2d", size, 16), moved("zero_copy", "d2h", size, 8)]
    return copies + links + _streaming()


def _streaming() -> list[Work]:
    return [
        streamed("elementwise", 64 * _MIB),
        streamed("softmax", 16384, 4096),
        streamed("read", 8 * _MIB),
        replace(streamed("update", 64 * _MIB), hint="streaming"),
    ]


def _pairs() -> Iterator[tuple[Work, Work]]:
    products = _products()
    yield from ((product, other) for product in products for other in _beside())
    yield from combinations([products[1], *products[-3:]], 2)
    for one in _streaming():
        yield one, copied(256 * _MIB, 32)
        yield one, moved("copy_engine", "d2h", 48 * _MIB)
    yield from combinations(_streaming(), 2)


def _balanced(machine: Machine, works: Sequence[Work]) -> tuple[Member, ...]:
    """Return members that last about equally long."""
    launches = [max(1, min(round(_SIDE_NS / _alone(machine, work)), _LAUNCHES)) for work in works]
    return tuple(Member(work, count) for work, count in zip(works, launches, strict=True))


def _alone(machine: Machine, work: Work) -> int:
    return min(machine.alone(Member(work), 1))


def _under_policies(members: tuple[Member, ...], compute_units: int) -> Iterator[Scenario]:
    """Yield a pair in order, in reverse, with priority for the second, and each on units of its own.

    The second gets as many units as it has workgroups, where it is throttled to some; else a quarter and a half.
    """
    first, second = members
    group = f"{first.work.name}+{second.work.name}"
    yield Scenario("b", group, "order", (first, second))
    yield Scenario("b", group, "reverse", (second, first))
    if second.work.kind == "copy_engine":
        return
    yield Scenario("b", group, "priority", (first, replace(second, priority=1)))
    for units in [second.work.blocks] if second.work.blocks else [compute_units // 4, compute_units // 2]:
        own = (replace(first, units=compute_units - units), replace(second, units=units))
        yield Scenario("b", group, f"partition_{units}", own)
