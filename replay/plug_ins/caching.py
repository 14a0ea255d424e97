"""Cache what-ifs: another policy, larger caches, another address mapping, and simulated sharing of caches.

Traces hold no addresses. The addresses of a kernel of known operator and shape are made from them (`replay.memory`),
run through caches and DRAM, before and after, and the difference is put into the graph.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np

from replay.calibration.parameters import Parameters
from replay.graph.graph import KernelGraph, TaskKind
from replay.memory.dram import find_dram
from replay.memory.graphs import CACHES, MAPPING, MOST_APART, POLICY, TIMES, simulated_kernels, with_memory
from replay.memory.system import find_policy
from replay.what_ifs.what_if import Argument, WhatIf, check_factor, recipe, unknown_name, what_if_text


@recipe(
    "device",
    "cache_policy:CacheRW-AB-CR-PCby",
    Argument("policy", "name of a policy (docs/systems/caching.md lists them)"),
    Argument("file", "TOML file of policies to use instead of the shipped ones", default=""),
)
def cache_policy(policy: str, file: str = "") -> WhatIf:
    """Re-time kernels of known operators with caches that keep other accesses.

    The accesses of each kernel are made from its operator, shape, type and grid, and run through the caches and the
    DRAM of the device, under its present policy (``Device``) and under POLICY. The simulated time is exchanged; the
    rest of the traced time stays. Kernels of unknown operators, and those whose simulated time is more than 1.5 times
    the traced one or less than that share of it, keep their time; a note has the shares. The same policy twice changes
    nothing.

    A time step of a recurrent network, a product and its cell (``aten::_thnn_fused_lstm_cell``, ``_gru_cell``), finds
    what the step before left in the caches: weights, gates and states, as far as the policy keeps them.

    Not modelled: other data that a kernel leaves in a cache for the next, and the tile that a library really chose.

    Source: the policies of arXiv 1910.00134; `replay.memory`.

    Raises
    ------
    NotFoundError, InvalidInputError
        The policy or its file does not exist, or the file has other keys.
    """
    find_policy(policy, file or None)
    value = f"{policy}\n{file}" if file else policy
    return _changing(what_if_text("cache_policy", policy, *([file] if file else [])), {POLICY: value})


@recipe(
    "device",
    "scale_cache:L2:2",
    Argument("cache", "L1, L2 or LLC (the last-level cache behind the L2)"),
    Argument("factor", "new size over old", "number"),
)
def scale_cache(cache: str, factor: float) -> WhatIf:
    """Re-time kernels of known operators with a cache of FACTOR times the size: more sets, the same ways.

    As `cache_policy`, with other sizes instead of another policy. Latency and bandwidth of the cache stay.

    Not modelled: a longer latency of a larger cache; tiles that a library would choose for it.

    Source: `replay.memory`.

    Raises
    ------
    NotFoundError, InvalidInputError
        The cache is none of these, the device has no such cache, or the factor is not within 1e-6 to 1e6.
    """
    if cache.lower() not in CACHES:
        raise unknown_name("no cache is called", cache, [name.upper() for name in CACHES])
    check_factor("scale_cache", factor)
    return _changing(what_if_text("scale_cache", cache, factor), {cache.lower(): factor})


@recipe("device", "memory_mapping:xor", Argument("mapping", "xor, or the order of address bits, such as rorabgbachco"))
def memory_mapping(mapping: str) -> WhatIf:
    """Re-time kernels of known operators with another mapping of addresses to channels, banks and rows of the DRAM.

    As `cache_policy`, with another mapping. ``xor`` hashes bits of the row into channel and bank; a text such as
    ``rorabgbachco`` is the order of address bits from high to low: ro row, ra rank, ba bank, bg bank group, ch channel,
    co column.

    Not modelled: the mapping of the device as it is, which vendors do not publish (docs/systems/caching.md has ours).

    Source: `replay.memory.dram`.

    Raises
    ------
    InvalidInputError
        The mapping misses bits of the address, or has them twice.
    """
    _ = find_dram("HBM2").with_mapping(mapping).address_mapping
    return _changing(what_if_text("memory_mapping", mapping), {MAPPING: mapping})


@recipe("device", "simulated_caches")
def simulated_caches() -> WhatIf:
    """Share caches by simulated footprints and hit rates, and move kernels to other devices by simulated times.

    Durations of tasks that run alone stay. Kernels of known operators get the footprint and the hit share of their
    simulation, in place of constants of their class, and so do they on devices that later steps name
    (``simulated_caches+scale_device:MI300X``). There, those that are bound by memory take the ratio of simulated times
    instead of the ratio of bandwidths.

    Not modelled: which lines of two kernels fall into the same set; they share the cache by their footprints.

    Source: `replay.memory`; sharing as in docs/contention.md.
    """
    return _changing("simulated_caches", {TIMES: "simulated"})


def _changing(name: str, changes: Mapping[str, str | float]) -> WhatIf:
    return WhatIf(name, partial(_changed, name=name.partition(":")[0], changes=changes), retimes=True)


def _changed(
    graph: KernelGraph, parameters: Parameters, *, name: str, changes: Mapping[str, str | float]
) -> KernelGraph:
    changed = with_memory(graph, changes, parameters)
    return changed.with_notes([f"{name}: {_coverage(graph, parameters)}"])


def _coverage(graph: KernelGraph, parameters: Parameters) -> str:
    """Return which share of the kernels' time was simulated, and how well simulated times agree with traced ones."""
    tasks = graph.tasks
    kernels = (tasks.kind == TaskKind.KERNEL) & graph.on_device() & (tasks.duration_ns > 0)
    simulated = simulated_kernels(graph, parameters)
    known = kernels & simulated.known
    near, total = known & simulated.near(tasks.duration_ns), max(tasks.duration_ns[kernels].sum(), 1e-9)
    share, near_share = (100 * tasks.duration_ns[mask].sum() / total for mask in (known, near))
    text = f"{int(known.sum())} of {int(kernels.sum())} kernels, {share:.0f} % of the kernels' time, were simulated"
    text += f", of which {near_share:.0f} % within a factor of {MOST_APART:g} of the trace; the others keep their time"
    if not known.any():
        return f"{text}; shapes of operators are missing (record_shapes=True)"
    ratios = np.quantile(simulated.time_ns[known] / tasks.duration_ns[known], (0.1, 0.5, 0.9))
    error, steps = 100 * float(np.max(simulated.error[known])), int((known & simulated.in_step).sum())
    if steps:
        text += f"; {steps} of them are time steps of recurrent networks, which find weights and states in the L2"
    return (
        f"{text}; simulated over traced time is {ratios[1]:.2f} at the median and {ratios[0]:.2f} to {ratios[2]:.2f} "
        f"for eight in ten; sampling of large kernels adds {error:.1f} % at most"
    )
