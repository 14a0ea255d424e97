"""What-ifs: pure functions from graph to graph, which compose.

Read `what_if` first (`WhatIf`, `Recipe`), then a small one: `scale`. `registry` lists, parses and
composes them; `plan` reads plan files. A what-if of another package needs the names that are exported here, and those
of `replay.graph`; docs/extending.md shows one.
"""

from replay.what_ifs.balance import balance_experts
from replay.what_ifs.c3 import c3
from replay.what_ifs.device import (
    limit_power,
    scale_clock,
    scale_compute_units,
    scale_device,
    scale_links,
    scale_memory_bandwidth,
    with_host,
)
from replay.what_ifs.dispatch import change_priority, cu_order, partition
from replay.what_ifs.dma import dma_collectives
from replay.what_ifs.dtype import change_dtype
from replay.what_ifs.explain import CollectiveEffect, all_effects, all_layers, explain, explain_layers
from replay.what_ifs.ficco import ficco
from replay.what_ifs.fuse import fuse
from replay.what_ifs.fuse_collectives import fuse_collectives
from replay.what_ifs.job import (
    context_parallel,
    data_parallel,
    expert_parallel,
    hidden,
    layers,
    micro_batch,
    pipeline_parallel,
    sequence_length,
    tensor_parallel,
    with_job,
)
from replay.what_ifs.overlap import OVERLAPS, overlap
from replay.what_ifs.plan import parse_plan, read_plan
from replay.what_ifs.registry import compose, parse_what_if, recipe_named, registry, what_ifs
from replay.what_ifs.scale import near_memory, remove_launch_overhead, scale_host, scale_kernels
from replay.what_ifs.serving import batch, context
from replay.what_ifs.stream import change_stream
from replay.what_ifs.swap import swap_kernel
from replay.what_ifs.t3 import t3
from replay.what_ifs.what_if import (
    Argument,
    LayerQuantization,
    Recipe,
    TaskChoice,
    WhatIf,
    check_choices,
    check_factor,
    tasks_argument,
)
from replay.what_ifs.world_size import change_world_size

__all__ = [
    "OVERLAPS",
    "Argument",
    "CollectiveEffect",
    "LayerQuantization",
    "Recipe",
    "TaskChoice",
    "WhatIf",
    "all_effects",
    "all_layers",
    "balance_experts",
    "batch",
    "c3",
    "change_dtype",
    "change_priority",
    "change_stream",
    "change_world_size",
    "check_choices",
    "check_factor",
    "compose",
    "context",
    "context_parallel",
    "cu_order",
    "data_parallel",
    "dma_collectives",
    "expert_parallel",
    "explain",
    "explain_layers",
    "ficco",
    "fuse",
    "fuse_collectives",
    "hidden",
    "layers",
    "limit_power",
    "micro_batch",
    "near_memory",
    "overlap",
    "parse_plan",
    "parse_what_if",
    "partition",
    "pipeline_parallel",
    "read_plan",
    "recipe_named",
    "registry",
    "remove_launch_overhead",
    "scale_clock",
    "scale_compute_units",
    "scale_device",
    "scale_host",
    "scale_kernels",
    "scale_links",
    "scale_memory_bandwidth",
    "sequence_length",
    "swap_kernel",
    "t3",
    "tasks_argument",
    "tensor_parallel",
    "what_ifs",
    "with_host",
    "with_job",
]
