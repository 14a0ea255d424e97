"""`KernelGraph`: tasks, edges, and the demand of each task on its device.

Read `graph` first, then `operators` (FLOP and bytes of an operator). `choice` is the grammar by which tasks are chosen.
`assembly` builds graphs block by block, without a trace.
"""

from replay.graph.assembly import Assembly
from replay.graph.choice import TaskChoice
from replay.graph.graph import (
    Basis,
    EdgeKind,
    Edges,
    Hardware,
    KernelGraph,
    Lane,
    SharingPolicy,
    TaskKind,
    Tasks,
    hardware_of,
    used_devices,
)
from replay.graph.operators import Operator

__all__ = [
    "Assembly",
    "Basis",
    "EdgeKind",
    "Edges",
    "Hardware",
    "KernelGraph",
    "Lane",
    "Operator",
    "SharingPolicy",
    "TaskChoice",
    "TaskKind",
    "Tasks",
    "hardware_of",
    "used_devices",
]
