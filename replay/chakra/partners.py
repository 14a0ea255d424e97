"""Which communication nodes of several files belong together."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from profilers.chakra.nodes import COLLECTIVE, RECEIVE, SEND, Node
from profilers.errors import InvalidInputError
from profilers.kineto.numbers import whole

__all__ = ["Part", "collective_of", "communicates", "in_order", "partners"]

#: A node, and its rank.
Part = tuple[int, Node]
Key = tuple[str, str, str, str]

_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter"),
    *("reduce_scatter", "barrier"),
)


def communicates(node: Node) -> bool:
    """Return whether a node is communication of the device; some converters give that type to its call too."""
    return node.type in (COLLECTIVE, SEND, RECEIVE) and node.attributes.get("is_cpu_op") is not True


def collective_of(node: Node) -> str:
    """Return which of `replay.graph.COLLECTIVE_KINDS` a node of communication is."""
    if node.type != COLLECTIVE:
        return "send_recv"
    number = whole(node.attributes.get("comm_type"))
    return _COLLECTIVES[number] if number is not None and 0 <= number < len(_COLLECTIVES) else "unknown"


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes by start, as far as they say it, then by id."""
    return sorted(nodes, key=lambda node: (node.start_us or 0, node.id))


def partners(ranks: Mapping[int, Sequence[Node]]) -> list[list[Part]]:
    """Return the parts of each communication in which several of the ranks take part.

    The n-th collective of a process group is the same on all ranks that have the group, the n-th receive of a tag
    belongs to the n-th send.

    Parameters
    ----------
    ranks : mapping of int to sequence of Node

    Raises
    ------
    InvalidInputError
        A rank lacks its part, or has another collective at its place.
    """
    parts: dict[tuple[Key, int], list[Part]] = defaultdict(list)
    members: dict[Key, set[int]] = defaultdict(set)
    for rank, nodes in ranks.items():
        seen: Counter[Key] = Counter()
        for node in in_order([one for one in nodes if communicates(one)]):
            known = _key(node, rank)
            if known is None:
                continue
            key, expected = known
            members[key] |= expected & ranks.keys()
            parts[key, seen[key]].append((rank, node))
            seen[key] += 1
    for (key, _), found in parts.items():
        _check(found, members[key])
    return [found for found in parts.values() if len(found) > 1]


def _key(node: Node, rank: int) -> tuple[Key, set[int]] | None:
    """Return what the parts have in common and whose they are for certain; None where the node does not say it."""
    at = node.attributes
    if node.type == COLLECTIVE:
        return ("group", str(at.get("pg_name", at.get("comm_group", ""))), str(at.get("group_ranks", "")), ""), {rank}
    source = rank if node.type == SEND else whole(at.get("comm_src"))
    target = rank if node.type == RECEIVE else whole(at.get("comm_dst"))
    if source is None or target is None:
        return None
    return ("pair", str(source), str(target), str(at.get("comm_tag", ""))), {source, target}


def _check(found: Sequence[Part], members: set[int]) -> None:
    rank, node = found[0]
    what = f"{node.name[:60]} (node {node.id} of rank {rank})"
    if missing := members - {rank for rank, _ in found}:
        raise InvalidInputError(f"{what} has no part on rank {min(missing)}, which has fewer of this group")
    for other, one in found:
        if collective_of(one) != collective_of(node):
            raise InvalidInputError(
                f"{what} is {collective_of(node)}, at its place on rank {other} is {collective_of(one)} (node {one.id})"
            )
