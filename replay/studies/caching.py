"""The study of cache policies: `cache_policy` on the traces of 17 workloads (arXiv 1910.00134).

`outcomes` applies each policy to the trace of each workload, one by one, and keeps what is done in a file. `reproduce`
returns our figure for each published one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np

from profilers.errors import BrokenFileError
from profilers.files import replaced_file
from replay.calibration.parameters import Parameters
from replay.engine.timeline import replay
from replay.graph.graph import KernelGraph, TaskKind
from replay.memory.graphs import known_operators, memory_of_kernels
from replay.memory.system import memory_system
from replay.studies.workloads import CLASSES, Workload
from replay.what_ifs import parse_what_if

#: Policies that keep the same for all workloads, and those with optimisations; each of these adds to the one before.
STATIC = ("Uncached", "CacheR", "CacheRW")
OPTIMISED = ("CacheRW-AB", "CacheRW-AB-CR", "CacheRW-AB-CR-PCby")
#: Share of the time by which two policies differ if a workload is sensitive to them; the threshold is ours.
NEAR = 0.02
#: Accesses of a kernel that are simulated for the published figures; half of them move times by up to 3 %.
_ACCESSES = 2_000_000.0
#: Workloads of a single kernel that reads its operands again, and whose operands fit the L2.
_FITTING = ("FwBN", "BwBN")
_COUNTERS = ("dram_reads", "dram_writes", "dram_row_hits", "l1_stall_cycles", "l2_stall_cycles")


@dataclass(frozen=True)
class CachingOutcome:
    """A workload under a policy.

    Parameters
    ----------
    workload, policy : str
        Names.
    settings : int
        Checksum of the workload and of the parameters.
    ns : float
        Time from the start of the first kernel to the end of the last, ns.
    row_hit_rate : float
        Row hits over requests to memory.
    stall_cycles : float
        Cycles in which misses waited for a way or a fill.
    reads_of_unique : float
        Bytes read from memory over those of the operands that the kernels read, each counted once a kernel.
    """

    workload: str
    policy: str
    settings: int
    ns: float
    row_hit_rate: float
    stall_cycles: float
    reads_of_unique: float


def outcome(workload: Workload, policy: str, *, graph: KernelGraph, parameters: Parameters) -> CachingOutcome:
    """Return what `cache_policy` makes of a workload.

    Parameters
    ----------
    workload : Workload
        Workload.
    policy : str
        Name of a policy.
    graph : KernelGraph
        Its graph (`Workload.graph`).
    parameters : Parameters
        With a calibration of kernels.
    """
    changed = parse_what_if(f"cache_policy:{policy}")(graph, parameters)
    timeline, kernels = replay(changed), changed.tasks.kind == TaskKind.KERNEL
    memories = memory_of_kernels(changed, parameters)
    total = dict.fromkeys(_COUNTERS, 0.0)
    for simulation, count in zip(memories.results, np.bincount(memories.number), strict=True):
        for name in _COUNTERS:
            total[name] += float(count) * simulation.counters[name] if simulation else 0.0
    unique = float(sum(changed.operators[i].bytes_read for i in known_operators(changed)[kernels]))
    access_bytes = memory_system(workload.device).dram.access_bytes
    requests = max(total["dram_reads"] + total["dram_writes"], 1.0)
    return CachingOutcome(
        workload.name,
        policy,
        _settings(workload, parameters),
        float(timeline.end_ns[kernels].max() - timeline.start_ns[kernels].min()),
        total["dram_row_hits"] / requests,
        total["l1_stall_cycles"] + total["l2_stall_cycles"],
        total["dram_reads"] * access_bytes / unique,
    )


def outcomes(
    workloads: Mapping[str, Workload], parameters: Parameters, *, policies: Sequence[str], file: Path | None = None
) -> Iterator[CachingOutcome]:
    """Yield the outcome of each workload under each policy, in this order, as soon as it is known.

    A thread for each core simulates policies.

    Parameters
    ----------
    workloads : mapping of str to Workload
        Workloads.
    parameters : Parameters
        With a calibration of kernels.
    policies : sequence of str
        Names of policies.
    file : Path, optional
        JSON lines, to which each outcome is appended. Outcomes of equal workloads and parameters that it holds are not
        simulated again; a last line that an interruption cut is dropped. Delete the file if models or policies change.

    Raises
    ------
    BrokenFileError
        A line of the file is no outcome.
    """
    known = _kept(file) if file else {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for workload in workloads.values():
            keys = [(workload.name, policy, _settings(workload, parameters)) for policy in policies]
            missing = [policy for policy, key in zip(policies, keys, strict=True) if key not in known]
            simulated: Iterator[CachingOutcome] = iter(())
            if missing:
                graph = workload.graph(parameters)
                simulated = pool.map(partial(outcome, workload, graph=graph, parameters=parameters), missing)
            for key in keys:
                result = known.get(key) or next(simulated)
                if file and key not in known:
                    with file.open("ab") as lines:
                        lines.write(msgspec.json.encode(result) + b"\n")
                yield result


def _kept(file: Path) -> dict[tuple[str, str, int], CachingOutcome]:
    """Return the outcomes of a file, without a last line that was cut, which is taken away."""
    content = file.read_bytes() if file.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with replaced_file(file) as new:
            new.write(whole)
    kept = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            result = msgspec.json.decode(line, type=CachingOutcome)
        except msgspec.DecodeError as error:
            raise BrokenFileError(f"{file}: line {number} is no outcome of a workload ({error}); delete it") from error
        kept[result.workload, result.policy, result.settings] = result
    return kept


def _settings(workload: Workload, parameters: Parameters) -> int:
    """Return a checksum of all that an outcome depends on."""
    values = [parameters[name] for name in ("memory_simulation_accesses", "memory_simulation_share")]
    return crc32(repr((workload, values)).encode())


def reproduce(parameters: Parameters, workloads: Mapping[str, Workload], file: Path | None = None) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/caching.toml`.

    Parameters
    ----------
    parameters : Parameters
        With a calibration of kernels.
    workloads : mapping of str to Workload
        Workloads.
    file : Path, optional
        File of outcomes, as `outcomes` takes it.
    """
    fewer = parameters.with_values([("memory_simulation_accesses", _ACCESSES)])
    by: dict[str, dict[str, CachingOutcome]] = {name: {} for name in workloads}
    for each in outcomes(workloads, fewer, policies=(*STATIC, *OPTIMISED), file=file):
        by[each.workload][each.policy] = each
    return figures(workloads, by)


def figures(workloads: Mapping[str, Workload], by: Mapping[str, Mapping[str, CachingOutcome]]) -> dict[str, float]:
    """Return our figure for every name in `datasets/published/caching.toml`, from the outcomes by workload and policy.

    Parameters
    ----------
    workloads : mapping of str to Workload
        Workloads.
    by : mapping
        Outcomes of all policies by workload and policy.
    """
    best = {name: min(each[policy].ns for policy in STATIC) for name, each in by.items()}
    near = {
        policy: sum(each[policy].ns <= (1 + NEAR) * best[name] for name, each in by.items())
        for policy in (*STATIC, OPTIMISED[-1])
    }
    listed = {kind: [name for name, each in workloads.items() if each.class_ == kind] for kind in CLASSES}
    ab, cr, _ = OPTIMISED
    kinds = {name: class_of(each) for name, each in by.items()}
    return {
        "static_winners": float(sum(near[policy] == len(by) for policy in STATIC)),
        "optimised_matches": float(near[OPTIMISED[-1]]),
        **{kind.replace("-", "_"): float(sum(kinds[n] == kind for n in names)) for kind, names in listed.items()},
        "gemm_spread": 100 * max(spread(by[name]) for name in ("SGEMM", "DGEMM")),
        "streaming_stores": float(sum(_hurts_until_optimised(by[name]) for name in ("FwAct", "BwAct"))),
        "rinsing_row_hits": float(sum(each[cr].row_hit_rate >= each[ab].row_hit_rate for each in by.values())),
        "bypass_stalls": float(sum(each[ab].stall_cycles <= each["CacheRW"].stall_cycles for each in by.values())),
        "unique_reads": max(by[name]["CacheR"].reads_of_unique for name in _FITTING),
    }


def spread(by: Mapping[str, CachingOutcome]) -> float:
    """Return by which share of its time the slowest static policy is slower than the fastest."""
    times = [by[policy].ns for policy in STATIC]
    return max(times) / min(times) - 1.0


def class_of(by: Mapping[str, CachingOutcome]) -> str:
    """Return the class of a workload by its times under the static policies.

    It is insensitive if they are within 2 %, sensitive to reuse if a cache gains more than that, and else sensitive to
    throughput, as caches cost time.
    """
    if spread(by) <= NEAR:
        return CLASSES[0]
    cached = min(by["CacheR"].ns, by["CacheRW"].ns)
    return CLASSES[1] if cached < by["Uncached"].ns / (1 + NEAR) else CLASSES[2]


def _hurts_until_optimised(by: Mapping[str, CachingOutcome]) -> bool:
    """Return whether keeping stores gains nothing without optimisations, and costs nothing with them."""
    uncached = by["Uncached"].ns
    return by["CacheRW"].ns >= uncached and by["CacheRW-AB-CR"].ns <= (1 + NEAR) * uncached
