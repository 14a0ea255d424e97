"""The nodes of one file of one rank, checked."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profilers.chakra.execution_trace import is_execution_trace
from profilers.chakra.nodes import CATEGORIES, COLLECTIVE, Node
from profilers.chakra.records import is_chakra, read_records
from profilers.errors import BrokenFileError, InvalidInputError, UnknownFormatError
from profilers.source import head, open_source

__all__ = ["RankFile", "open_rank"]

#: What simulators expect the file of a rank to be called.
_RANK = re.compile(r"\.(\d{1,9})\.et(?:\.\w+)?$")
_TYPES = frozenset({*range(COLLECTIVE + 1), *CATEGORIES})


@dataclass(frozen=True)
class RankFile:
    """One file.

    Parameters
    ----------
    path : Path
    rank : int, optional
        As the file's name states it.
    header : dict of str to Any
        What the file says of itself.
    nodes : tuple of Node
        In the order of the file.
    """

    path: Path
    rank: int | None
    header: dict[str, Any]
    nodes: tuple[Node, ...]


def open_rank(path: Path) -> RankFile:
    """Return the nodes of a file.

    Raises
    ------
    NotFoundError
        There is no such file.
    UnknownFormatError
        It is no Chakra file.
    BrokenFileError
        It is cut off or damaged, holds no node, one id twice, or a node of a type that the schema does not have.
    """
    start = head(path)
    if is_execution_trace(start):
        raise InvalidInputError(
            f"{path}: PyTorch's execution trace says no durations; collect a Kineto trace of the same steps instead"
        )
    if not is_chakra(start):
        raise UnknownFormatError(f"{path}: is no Chakra execution trace (protobuf, metadata and then nodes)")
    counts: Counter[str] = Counter()
    header: dict[str, Any] = {}
    with open_source(path) as stream:
        nodes = tuple(read_records(stream, header, counts))  # a Python loop over the nodes, about 20 us each
        truncated = getattr(stream, "truncated", False)
    if truncated or counts["truncated_files"]:
        raise BrokenFileError(f"{path}: is cut off or damaged behind node {len(nodes)}; write or copy it again")
    if counts["dropped_broken"]:
        raise BrokenFileError(f"{path}: {counts['dropped_broken']} of its nodes are damaged; write or copy it again")
    _check(path, nodes)
    match = _RANK.search(path.name)
    return RankFile(path, int(match[1]) if match else None, header, nodes)


def _check(path: Path, nodes: tuple[Node, ...]) -> None:
    if not nodes:
        raise BrokenFileError(f"{path}: holds no node")
    seen: set[int] = set()
    for node in nodes:
        if node.id in seen:
            raise BrokenFileError(f"{path}: two nodes have the id {node.id}")
        seen.add(node.id)
        if node.type not in _TYPES:
            raise BrokenFileError(f"{path}: node {node.id} is of type {node.type}, which Chakra's schema does not have")
    for node in nodes:
        for before in node.data_deps:
            if before not in seen:
                raise BrokenFileError(f"{path}: node {node.id} waits for node {before}, which the file does not hold")
