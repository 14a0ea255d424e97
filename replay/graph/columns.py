"""What the tables of a graph hold: the columns of its tasks, and the kinds of its edges.

`datasets/graph.toml` has a sentence on each. `Tasks`, `Assembly` and the engine take names, types and defaults of
columns from it, and analyses what an edge joins and whose time its lag is.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from profilers.files import dataset_path, read_toml, typed_table

#: Resources that tasks share on a device. A demand is the share of a resource that a task uses when it runs alone.
#: `replay.engine.sharing` hands out compute units in the order of dispatch, shares bandwidths max-min fair, and lowers
#: the clock if the demand on power exceeds 1. `pim` are the units of processing in memory.
RESOURCES: tuple[str, ...] = ("cu", "l2", "hbm", "link", "dma", "power", "pim")


class TaskKind(IntEnum):
    """Kind of a task."""

    HOST = 0
    KERNEL = 1
    COPY = 2
    COLLECTIVE = 3
    MARK = 4  #: takes no time: an arrival, a rendezvous, the end of the host's step
    PIM = 5  #: processing in memory


class Basis(IntEnum):
    """Basis of a duration: how it is known."""

    MEASURED = 0  #: the trace has it
    DERIVED = 1  #: a measured duration scaled by figures that have a source
    MODELLED = 2  #: a duration that a model gives, where a scaled measurement would not do
    ASSUMED = 3  #: a figure that nobody measured or published for this case


class TaskColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of `Tasks`; `datasets/graph.toml` explains the keys."""

    type: Literal["int64", "float64", "bool"]
    default: float | int | bool
    engine: Literal["always", "rarely", "never"]
    about: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        return np.dtype(self.type)


class EdgeFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of edges; `datasets/graph.toml` explains the keys."""

    known: Literal["recorded", "inferred"]
    joins: str
    lag: str
    time_of: str
    about: str


class _GraphTables(msgspec.Struct, forbid_unknown_fields=True):
    columns: dict[str, TaskColumn]
    edges: dict[str, EdgeFacts]


_PATH = dataset_path("graph.toml")
_TABLES = typed_table(read_toml(_PATH, "columns of graphs"), _GraphTables, str(_PATH))
#: Columns of `Tasks` by name.
TASK_COLUMNS: Mapping[str, TaskColumn] = MappingProxyType(_TABLES.columns)


class EdgeKind(IntEnum):
    """Reason why one task waits for another; `EDGE_KINDS` has a sentence on each."""

    STREAM = 0
    LAUNCH = 1
    HOST = 2
    HANDOFF = 3
    WAIT = 4
    WAIT_INFERRED = 5
    SYNC = 6
    RENDEZVOUS = 7
    GRAPH_LAUNCH = 8
    AUTOGRAD = 9
    SYNC_INFERRED = 10
    GAP = 11
    BACKLOG = 12
    GRAPH_GAP = 13
    QUEUE = 14
    LOADER = 15
    SERIAL = 16
    POLL = 17
    PAUSE = 18


#: Kinds of edges.
EDGE_KINDS: Mapping[EdgeKind, EdgeFacts] = MappingProxyType({kind: _TABLES.edges[kind.name] for kind in EdgeKind})


def edges_that_join(*joins: str) -> frozenset[EdgeKind]:
    """Return the kinds of edges that join launches to work (``"launch"``), order streams (``"stream"``), and so on."""
    return frozenset(kind for kind, facts in EDGE_KINDS.items() if facts.joins in joins)


#: Kinds whose two ends a profiler records; other edges are inferred from the order of calls and from times.
RECORDED_EDGES = frozenset(kind for kind, facts in EDGE_KINDS.items() if facts.known == "recorded")
LAUNCH_EDGES, SYNC_EDGES = edges_that_join("launch"), edges_that_join("sync")
#: Kinds that order a stream, with both ends on it.
STREAM_EDGES = edges_that_join("stream")
#: Kinds whose lag is time on the host between its calls, or stands for it.
HOST_TIME_EDGES = frozenset(kind for kind, facts in EDGE_KINDS.items() if facts.lag in ("host", "gap for the host"))
