"""`Node`: one node of an execution trace, whichever way it was written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CATEGORIES", "COLLECTIVE", "COMPUTE", "LOAD", "METADATA", "RECEIVE", "SEND", "STORE", "Node"]

#: Types of a node in the public schema (mlcommons/chakra, ``et_def.proto``).
METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
#: What later versions add; they are kept as ranges.
CATEGORIES: Mapping[int, str] = {8: "storage", 9: "batch", 10: "checkpoint"}


@dataclass(frozen=True)
class Node:
    """A node.

    Parameters
    ----------
    id : int
        Unique in its file.
    name : str
    type : int
        As in the public schema; 0 where the file says none.
    start_us, duration_us : int, optional
    ctrl_deps, data_deps : tuple of int
        Nodes that come before: the caller (or whatever else orders them), and who makes its inputs.
    attributes : mapping of str to Any
    inputs, outputs : mapping of str to Any
        ``values``, ``shapes``, ``types``, and in newer files ``strides``.
    """

    id: int
    name: str
    type: int = 0
    start_us: int | None = None
    duration_us: int | None = None
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
