"""The products that a schedule cuts a product into, and what cutting costs."""

from dataclasses import dataclass, replace

from profilers.devices import Device
from replay.durations import predict
from replay.overlap.ficco.distance import distance_factor
from replay.overlap.ficco.schedules import Schedule
from replay.overlap.ficco.workload import Scenario
from replay.overlap.products import Product, product_columns, product_ns
from replay.parameters import Parameters, load_parameters

__all__ = ["Piece", "decomposition_loss", "piece_columns", "piece_ns", "pieces_of"]

#: Memory so fast that it never binds, GB/s.
_BOUNDLESS_GBPS = 1e6
#: How sharply the slower of computing and moving rules, as in `replay.overlap.products`.
_SHARPNESS = 3.0


@dataclass(frozen=True)
class Piece:
    """A product that is part of a larger one.

    Parameters
    ----------
    product : Product
    whole : Product
        Where its operands lie: their rows are as far apart as those of the whole's.
    sums : bool
        Whether it adds to a result that is there: what it writes, it reads before.
    step : int
        Of the transfer, that it waits for; -1 for what is there at the start.
    peer : int
        Whose piece of that step it waits for, and on whose stream it runs; -1 for all of them, on the first stream.
    """

    product: Product
    whole: Product
    sums: bool = False
    step: int = -1
    peer: int = -1


def pieces_of(scenario: Scenario, schedule: Schedule) -> tuple[Piece, ...]:
    """Return the products of a schedule in the order in which they are launched.

    Examples
    --------
    >>> from replay.overlap.ficco.schedules import find_schedule
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> scenario = load_scenarios()["g1"]
    >>> [(piece.product.m, piece.step) for piece in pieces_of(scenario, find_schedule("hetero_fused_1d"))][:3]
    [(2048, -1), (1792, 0), (1792, 1)]
    """
    whole, n = scenario.product, scenario.topology.n_workers
    if schedule.transfer == "whole":
        return (Piece(whole, whole, step=0),)
    local, fine = replace(whole, m=whole.m // n), replace(whole, m=whole.m // n**2)
    if schedule.transfer == "shards":
        return (Piece(local, whole), *(Piece(local, whole, step=i) for i in range(n - 1)))
    if schedule.shape == "2D":
        deep = replace(whole, k=whole.k // n)
        return tuple(Piece(deep, whole, sums=i > 0, step=i) for i in range(n))
    if schedule.order == "uniform":
        return tuple(Piece(local, whole, step=i) for i in range(n))
    if schedule.kernels == "unfused":
        pairs = ((i, peer) for i in range(n) for peer in range(n - 1))
        return (Piece(local, whole), *(Piece(fine, whole, step=i, peer=peer) for i, peer in pairs))
    remote = replace(whole, m=fine.m * (n - 1))
    return (Piece(local, whole), *(Piece(remote, whole, step=i) for i in range(n)))


def piece_ns(piece: Piece) -> float:
    """Return how long a piece takes alone, ns.

    As a product of its size whose rows lie as far apart as the whole's (`distance_factor`). One that adds reads its
    result first, in the time that `replay.durations` gives a stream of as many elements, beside what it computes.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> whole, part = (Product(8192, 8192, k, find_device("MI300X")) for k in (8192, 256))
    >>> first, later = (piece_ns(Piece(part, whole, sums=sums)) for sums in (False, True))
    >>> bool(first < later < 2 * first)
    True
    """
    product = piece.product
    apart = distance_factor(piece.whole) / distance_factor(product)
    alone = product_ns(product) * apart
    if not piece.sums:
        return alone
    arithmetic = min(product_ns(replace(product, device=_boundless(product.device))) * apart, alone)
    moving = (alone**_SHARPNESS - arithmetic**_SHARPNESS) ** (1 / _SHARPNESS) + _stream_ns(product)
    return float((arithmetic**_SHARPNESS + moving**_SHARPNESS) ** (1 / _SHARPNESS))


def piece_columns(piece: Piece, parameters: Parameters | None = None) -> dict[str, float]:
    """Return a piece as columns of `replay.assembly.Assembly.tasks`, what it adds to counted as memory traffic.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> product = Product(8192, 8192, 1024, find_device("MI300X"))
    >>> alone, adding = (piece_columns(Piece(product, product, sums=sums)) for sums in (False, True))
    >>> adding["hbm"] > alone["hbm"] and adding["hit_share"] < alone["hit_share"]
    True
    """
    known = parameters or load_parameters()
    columns, device = product_columns(piece.product, known), piece.product.device
    before, after = columns["duration_ns"], piece_ns(piece)
    if not piece.sums:
        return {**columns, "duration_ns": after, "hbm": columns["hbm"] * before / after}
    read, rate = piece.product.operand_bytes[2], device.memory_bytes_per_s * known["memory_efficiency_mixed"]
    memory = columns["hbm"] * before * rate / 1e9
    cached = memory / (1.0 - columns["hit_share"])
    busy = piece_ns(replace(piece, sums=False)) / after
    enough = min(columns["occupies"] * known["cu_share_saturating_memory"], columns["cu"])
    return {
        **columns,
        "duration_ns": after,
        "cu": max(columns["cu"] * busy, enough),
        "hbm": min((memory + read) / after * 1e9 / rate, 1.0),
        "hit_share": 1.0 - (memory + read) / (cached + read),
    }


def decomposition_loss(scenario: Scenario, schedule: Schedule) -> float:
    """Return DIL, the time of the pieces one after another, alone, over that of the whole product.

    Source: ``sum T_iso(pieces) / T_iso(whole)``, arXiv 2512.10236.

    Examples
    --------
    >>> from replay.overlap.ficco.schedules import find_schedule
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> scenario = load_scenarios()["g3"]
    >>> fused, unfused = (find_schedule(f"hetero_{name}_1d") for name in ("fused", "unfused"))
    >>> bool(1 < decomposition_loss(scenario, fused) < decomposition_loss(scenario, unfused))
    True
    """
    pieces = pieces_of(scenario, schedule)
    alike = {(piece.product, piece.sums): piece for piece in pieces}
    times = {key: piece_ns(piece) for key, piece in alike.items()}
    return sum(times[piece.product, piece.sums] for piece in pieces) / product_ns(scenario.product)


def _stream_ns(product: Product) -> float:
    """Return how long the result takes through memory once, ns."""
    found = predict("elementwise", [[product.m * product.n, 1]], product.device, dtype=product.dtype)
    return float(found.seconds[0] - found.start_s) * 1e9


def _boundless(device: Device) -> Device:
    figures = dict(device.figures)
    figures["memory_gbps"] = replace(figures["memory_gbps"], value=_BOUNDLESS_GBPS)
    return replace(device, figures=figures)
