"""Part a: kernels beside kernels and transfers, on all that a GPU's streams share.

Compute units (products beside copies by few or many workgroups), memory (elementwise, softmax, copies), L2 (a buffer
that fits it beside one that does not), the link to the host (by copy engines, and by kernels that read its memory).
"""

from collections.abc import Iterator

from benchmarks.gpu.policies import LAG_NS, Abilities, paired
from benchmarks.gpu.scenarios import Group, Scenario
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.step import Member
from benchmarks.gpu.work import Work, copied, gemm, moved, streamed

__all__ = ["CROWDS", "Planned", "crowd_group", "groups", "pair_group"]

#: A group, or (group, what is missing) for what this machine cannot.
Planned = Group | tuple[str, str]
CROWDS = (2, 4, 8)
ZERO_COPY_BLOCKS = (8, 32)


def groups(size: Size, abilities: Abilities) -> Iterator[Planned]:
    """Yield the groups of part a."""
    for product in size.products:
        yield from _beside_copies(gemm(*product), size, abilities)
        yield from _beside_links(gemm(*product), size, abilities)
        yield from _beside_streams(gemm(*product), size, abilities)
    for product in size.crowds:
        for streams in CROWDS:
            yield from crowd_group(gemm(*product), streams, abilities)
    yield from _products_beside_products(size, abilities)
    yield from _memory(size, abilities)


def pair_group(a: Work, b: Work, abilities: Abilities, units: int = 0, part: str = "a") -> Iterator[Planned]:
    """Yield the group of two works under every policy."""
    found = list(paired((a, b), abilities, units=units))
    yield from _grouped(part, f"{a.name} beside {b.name}", (a, b), found, abilities)


def crowd_group(work: Work, streams: int, abilities: Abilities, part: str = "a") -> Iterator[Planned]:
    """Yield the group of one work on several streams; let go together, one after the other, or by rank."""
    found: list[Scenario | str] = [
        Scenario("at once", tuple((at, Member(work)) for at in range(streams))),
        Scenario("in order", tuple((at, Member(work, lag_ns=at * LAG_NS)) for at in range(streams))),
    ]
    ranked = tuple((at, Member(work, priority=int(at == 0))) for at in range(streams))
    found.append(Scenario("priority", ranked) if "priorities" in abilities.features else "priorities")
    yield from _grouped(part, f"{work.name} on {streams} streams", (work,) * streams, found, abilities)


def _grouped(
    part: str, name: str, sides: tuple[Work, ...], found: list[Scenario | str], abilities: Abilities
) -> Iterator[Planned]:
    lacking = ", ".join(sorted({lack for work in sides if (lack := abilities.lacks(work))}))
    if lacking:
        yield name, lacking
        return
    yield from ((name, missing) for missing in found if isinstance(missing, str))
    yield Group(part, name, sides, tuple(scenario for scenario in found if isinstance(scenario, Scenario)))


def _blocks(size: Size, abilities: Abilities) -> list[int]:
    """Return workgroups of copies; of a twin they are pieces, and there can be more pieces than units."""
    most = max(size.blocks) if abilities.twins else abilities.units
    return sorted({blocks for blocks in (*size.blocks, abilities.units) if blocks <= most})


def _beside_copies(product: Work, size: Size, abilities: Abilities) -> Iterator[Planned]:
    for blocks in _blocks(size, abilities):
        units = min(blocks, abilities.units // 2)
        yield from pair_group(product, copied(size.copy_bytes, blocks), abilities, units)


def _beside_links(product: Work, size: Size, abilities: Abilities) -> Iterator[Planned]:
    """Yield, a direction, one group of all that can carry the same bytes."""
    for direction in ("h2d", "d2h"):
        engine = moved("copy_engine", direction, size.link_bytes)
        name = f"{product.name} beside {size.link_bytes} bytes {direction}"
        found = list(paired((product, engine), abilities, "copy_engine"))
        for blocks in ZERO_COPY_BLOCKS:
            kernel = moved("zero_copy", direction, size.link_bytes, blocks)
            lacking = abilities.lacks(kernel)
            found += [lacking] if lacking else paired((product, kernel), abilities, f"zero_copy {blocks}", blocks)
        yield from _grouped("a", name, (product, engine), found, abilities)


def _beside_streams(product: Work, size: Size, abilities: Abilities) -> Iterator[Planned]:
    for kind in ("elementwise", "softmax"):
        yield from pair_group(product, streamed(kind, size.rows, size.columns), abilities, abilities.units // 4)


def _products_beside_products(size: Size, abilities: Abilities) -> Iterator[Planned]:
    """Yield each product beside the next one of the list, which is of another shape."""
    for first, second in zip(size.products, size.products[1:], strict=False):
        yield from pair_group(gemm(*first), gemm(*second), abilities, abilities.units // 4)


def _memory(size: Size, abilities: Abilities) -> Iterator[Planned]:
    """Yield what shares memory, L2 and link without a product."""
    elementwise, softmax = (streamed(kind, size.rows, size.columns) for kind in ("elementwise", "softmax"))
    resident = abilities.cache_bytes // 4
    kept = [streamed(kind, resident // 4) for kind in ("read", "update")]
    passing = [streamed(kind, 4 * abilities.cache_bytes // 4, hint=hint)
               for kind in ("read", "update") for hint in ("", "streaming")]  # fmt: skip
    copies = [copied(size.copy_bytes, blocks) for blocks in _blocks(size, abilities)]
    links = [moved("copy_engine", direction, size.link_bytes) for direction in ("h2d", "d2h")]
    pairs = [(elementwise, softmax), (kept[0], kept[1]), tuple(links)]
    pairs += [(stream, other) for stream in (elementwise, softmax) for other in (*copies, *links)]
    pairs += [(work, other) for work in kept for other in (*passing, elementwise, *copies, *links)]
    for a, b in pairs:
        yield from pair_group(a, b, abilities, min(b.blocks, abilities.units // 2))
