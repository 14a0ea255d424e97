"""What each algorithm of a collective sends: steps one after another, and bytes over the links that are busiest."""

from collections.abc import Callable
from dataclasses import dataclass

from profilers.errors import InvalidInputError
from replay.collectives.topology import Topology

__all__ = ["KINDS", "Phase", "algorithms_of", "busiest_volume", "phases_of", "ring_steps"]

#: Collectives; their size is that of one worker's whole buffer: what is reduced, what was gathered, what is scattered,
#: all that a worker sends.
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


@dataclass(frozen=True)
class Phase:
    """A part of an algorithm.

    Parameters
    ----------
    level : str
        What carries it: ``"port"``, all links of a device; ``"peer"``, its links to one other; ``"network"``, all
        adapters of a node; ``"network tree"``, they too, with the latency of a tree's step.
    steps : float
        Messages that wait for each other.
    volume : float
        Bytes that the busiest link of the level carries, over the size of the buffer; of a node for a network. What
        goes over one adapter of several counts as if each carried as much.
    """

    level: str
    steps: float
    volume: float


def phases_of(kind: str, algorithm: str, topology: Topology) -> tuple[Phase, ...]:
    """Return what an algorithm does, phase after phase.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    algorithm : str
        One of `algorithms_of`.
    topology : Topology

    Raises
    ------
    InvalidInputError
        There is no such collective, or no such algorithm of it on this topology.

    Notes
    -----
    The alpha-beta costs of Thakur, Rabenseifner and Gropp (2005), with n workers: ring all-reduce 2(n-1) steps and
    2(n-1)/n of the buffer, half of each for all-gather and reduce-scatter; tree all-reduce 2 log2(n) steps and twice
    the buffer, between nodes 2 log2(nodes) steps and 2(g-1) in each of g devices (NCCL, src/graph/tuning.cc), whose
    bytes flow at the same time; one-shot one step and the buffer to every peer, two-shot two steps and 2/n of it. In a
    hierarchy, nodes reduce-scatter, exchange over the network, and gather.

    Examples
    --------
    >>> phases_of("all_reduce", "ring", Topology(4))
    (Phase(level='port', steps=6, volume=1.5),)
    """
    known = algorithms_of(kind, topology)
    if algorithm not in known:
        raise InvalidInputError(f"no algorithm {algorithm!r} of {kind} here; there are {', '.join(known)}")
    if topology.n_workers == 1:
        return ()
    return _PHASES[kind][algorithm](topology)


def algorithms_of(kind: str, topology: Topology) -> tuple[str, ...]:
    """Return the algorithms that a library can choose from.

    Raises
    ------
    InvalidInputError
        There is no such collective.

    Examples
    --------
    >>> algorithms_of("all_reduce", Topology(8, fabric="mesh"))
    ('ring', 'tree', 'one-shot', 'two-shot')
    >>> algorithms_of("all_reduce", Topology(16, 8))
    ('ring', 'tree', 'hierarchical')
    """
    if kind not in KINDS:
        raise InvalidInputError(f"no collective is called {kind!r}; there are {', '.join(KINDS)}")
    if topology.nodes > 1:
        return tuple(
            name for name in _PHASES[kind] if name not in ("one-shot", "two-shot", "direct") or _pairwise(kind)
        )
    meshed = topology.fabric == "mesh" or topology.n_workers == 2
    far = () if meshed or _pairwise(kind) else ("one-shot", "two-shot", "direct")
    return tuple(name for name in _PHASES[kind] if name not in far and name != "hierarchical")


def busiest_volume(kind: str, topology: Topology) -> float:
    """Return bytes over the busiest link (of a node for a network) over the size, of the ring or the direct exchange.

    Examples
    --------
    >>> busiest_volume("all_gather", Topology(4)), busiest_volume("send_recv", Topology(2))
    (0.75, 1.0)
    """
    return sum(phase.volume for phase in phases_of(kind, algorithms_of(kind, topology)[0], topology))


def ring_steps(kind: str, n_workers: int) -> int:
    """Return how many messages of a ring, or of a direct exchange, wait for each other.

    Examples
    --------
    >>> ring_steps("all_reduce", 8), ring_steps("send_recv", 2), ring_steps("all_reduce", 1)
    (14, 1, 0)
    """
    if n_workers == 1:
        return 0
    if _pairwise(kind):
        return 1
    return (2 if kind == "all_reduce" else 1) * (n_workers - 1)


def _pairwise(kind: str) -> bool:
    return kind in ("all_to_all", "send_recv")


def _level(topology: Topology) -> str:
    return "network" if topology.nodes > 1 else "port"


def _ring(kind: str) -> Callable[[Topology], tuple[Phase, ...]]:
    def phases(topology: Topology) -> tuple[Phase, ...]:
        n, steps = topology.n_workers, ring_steps(kind, topology.n_workers)
        return (Phase(_level(topology), steps, 1.0 if kind == "broadcast" else steps / n),)

    return phases


def _tree(passes: int) -> Callable[[Topology], tuple[Phase, ...]]:
    def phases(topology: Topology) -> tuple[Phase, ...]:
        if topology.nodes == 1:
            return (Phase("port", passes * (topology.n_workers - 1).bit_length(), float(passes)),)
        between = Phase("network tree", passes * (topology.nodes - 1).bit_length(), float(passes))
        inside = passes * (topology.devices_per_node - 1)
        return (between, Phase("port", inside, 0.0)) if inside else (between,)

    return phases


def _shot(steps: int, volume: Callable[[int], float]) -> Callable[[Topology], tuple[Phase, ...]]:
    return lambda topology: (Phase("peer", steps, volume(topology.n_workers)),)


def _exchange(topology: Topology) -> tuple[Phase, ...]:
    """All-to-all: on a mesh each pair has its links, on a switch a device sends all over its own."""
    n, nodes = topology.n_workers, topology.nodes
    if nodes > 1:
        return (Phase("network", 1, topology.devices_per_node * (nodes - 1) / nodes),)
    return (Phase("peer", 1, 1 / n),) if topology.fabric == "mesh" else (Phase("port", 1, (n - 1) / n),)


def _send(topology: Topology) -> tuple[Phase, ...]:
    if topology.nodes > 1:
        return (Phase("network", 1, float(topology.nics_used)),)  # one message, one adapter
    return (Phase("peer" if topology.fabric == "mesh" else "port", 1, 1.0),)


def _hierarchy(kind: str) -> Callable[[Topology], tuple[Phase, ...]]:
    passes = 2 if kind == "all_reduce" else 1

    def phases(topology: Topology) -> tuple[Phase, ...]:
        g, nodes = topology.devices_per_node, topology.nodes
        inside = Phase("port", passes * (g - 1), passes * (g - 1) / g)
        return (inside, Phase("network", passes * (nodes - 1), passes * (nodes - 1) / nodes))

    return phases


_PHASES: dict[str, dict[str, Callable[[Topology], tuple[Phase, ...]]]] = {
    "all_reduce": {
        "ring": _ring("all_reduce"),
        "tree": _tree(2),
        "one-shot": _shot(1, lambda n: 1.0),
        "two-shot": _shot(2, lambda n: 2 / n),
        "hierarchical": _hierarchy("all_reduce"),
    },
    "all_gather": {
        "ring": _ring("all_gather"),
        "direct": _shot(1, lambda n: 1 / n),
        "hierarchical": _hierarchy("all_gather"),
    },
    "reduce_scatter": {
        "ring": _ring("reduce_scatter"),
        "direct": _shot(1, lambda n: 1 / n),
        "hierarchical": _hierarchy("reduce_scatter"),
    },
    "all_to_all": {"direct": _exchange},
    "broadcast": {"ring": _ring("broadcast"), "tree": _tree(1), "direct": _shot(1, lambda n: 1.0)},
    "send_recv": {"direct": _send},
}
