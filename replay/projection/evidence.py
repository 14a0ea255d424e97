"""Evidence for a projected step time: how its pieces are known, what repeats it, and its error by selection.

`step_evidence` walks the critical path of a step in the steady state and sums its pieces by side and by `Basis`.
`Evidence` holds the shares of all steps together. `provenance_of` holds all that is needed to repeat a projection, bit
for bit. A selected step stands for others, whose times and gains nobody replayed: the error of that is here, too.
"""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Bools, Floats, Ints
from profilers.trace.trace import TraceMeta
from replay.analysis.critical_path import PATH_CAUSES, PIM, CriticalPath, Part, critical_path, path_causes
from replay.calibration.parameters import Parameters
from replay.engine.steady import SteadyState, StepPattern
from replay.engine.timeline import Timeline
from replay.graph.graph import HOST_TIME_EDGES, Basis, EdgeKind, Edges, KernelGraph, TaskKind
from replay.projection.windows import StepWindow
from replay.what_ifs.what_if import WhatIf

#: Seed of these draws, beside that of the projection.
_SEED = 20
#: Smallest ratio of times, so that its logarithm is finite.
_SMALLEST = 1e-9


def selection_factors(
    windows: Sequence[StepWindow], base_ns: Sequence[float], ratios: Sequence[float], *, draws: int, seed: int
) -> Floats:
    """Return the factor of the projected time in each draw, by the error of the selection.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of the selected steps.
    base_ns : sequence of float
        Weighted base time of each window.
    ratios : sequence of float
        Changed over unchanged time of each window.
    draws, seed : int
        Number of draws, and their seed.

    Returns
    -------
    ndarray of float64, shape (draws,)
        Ones if no step stands for others, or if all ratios are equal.
    """
    base, ratio = np.array(base_ns, dtype=np.float64), np.array(ratios, dtype=np.float64)
    if not any(window.sampled for window in windows) or base.sum() * (base @ ratio) <= 0:
        return np.ones(draws)
    errors = np.array([_window_error(window) for window in windows])
    positions, deviations, unseen = errors.T
    gain = _gain_deviation(ratio, positions)
    random = np.random.default_rng([seed, _SEED])
    first, second = random.standard_normal((2, draws, base.size))
    drawn = base * np.maximum(1 + deviations * first, 0.0)
    changed = drawn * ratio * np.maximum(1 + gain * unseen * second, 0.0)
    usual = float(base @ ratio) / float(base.sum())
    total = drawn.sum(axis=1)
    return np.asarray(np.where(total > 0, changed.sum(axis=1) / np.maximum(total, _SMALLEST) / usual, 1.0))


def _window_error(window: StepWindow) -> tuple[float, float, float]:
    """Return the position of a window, the relative error of its base time, and that of its gain over one step's."""
    if not window.sampled:
        return 0.0, 0.0, 0.0
    weight = np.array(window.weights)
    share = weight * np.array(window.measured_ns)
    share = share / share.sum() if share.sum() else np.full(weight.size, 1 / weight.size)
    unseen = np.sqrt(np.maximum(1 - 1 / np.maximum(weight, 1), 0.0))
    deviation = np.array([step.deviation for step in window.sampled])
    position = float(share @ np.array([step.position for step in window.sampled]))
    return position, float(np.linalg.norm(share * deviation * unseen)), float(np.linalg.norm(share * unseen))


def _gain_deviation(ratio: Floats, positions: Floats) -> float:
    """Return the relative standard deviation of gains between points of neighbouring positions."""
    if ratio.size < 2:
        return 0.0
    gains = np.log(np.maximum(ratio, _SMALLEST))[np.argsort(positions, kind="stable")]
    return float(np.sqrt(np.mean(np.diff(gains) ** 2) / 2))


#: Quantiles at the ends of intervals.
QUANTILES = (0.05, 0.95)
_LIBRARIES = ("numpy", "numba", "scipy")


def provenance_of(
    meta: TraceMeta,
    timelines: Sequence[Timeline],
    what_ifs: Sequence[WhatIf],
    nominal: Parameters,
    *,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Return the provenance of a projection.

    Parameters
    ----------
    meta : TraceMeta
        Metadata of the trace.
    timelines : sequence of Timeline
        The unchanged window first, then one of each what-if.
    what_ifs : sequence of WhatIf
        What-ifs that are projected.
    nominal : Parameters
        Nominal parameters, with their ranges and the calibrations that what-ifs use.
    draws : int
        Number of draws of the parameters.
    seed : int
        Seed of the draws.
    """
    hardware = timelines[0].graph.hardware
    devices = [line.graph.hardware.device for line in timelines]
    libraries = {name: version(name) for name in _LIBRARIES}
    parameters = {name: [p.value, p.low, p.high] for name, p in nominal.known.items()}
    return {
        "trace_fingerprint": meta.fingerprint,
        **({"class_rules": [list(rule) for rule in meta.class_rules]} if meta.class_rules else {}),
        "trace_format": meta.format,
        "sources": list(meta.sources),
        "synthetic": meta.synthetic,
        "device": hardware.device.name if hardware.device else None,
        "device_known_by": hardware.known_by,
        "version": version("seqpoint"),
        "libraries": {"python": platform.python_version(), **libraries, "machine": platform.machine()},
        # As a plan file has them.
        "what_ifs": [
            {"title": each.title, "steps": list(each.steps), "parameters": dict(each.parameters)} for each in what_ifs
        ],
        "parameters": parameters,
        "parameters_sha256": digest(parameters),
        "models_sha256": _models_digest(nominal, [device for device in devices if device is not None]),
        "draws": draws,
        "seed": seed,
        "confidence": round(QUANTILES[1] - QUANTILES[0], 6),
    }


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of `content` as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _models_digest(nominal: Parameters, devices: Sequence[Device]) -> str:
    """Return the digest of the calibrations, and of the figures of the devices that the graphs run on."""
    figures = {
        device.name: {name: figure.value for name, figure in device.figures.items()}
        | {"vendor_matrix_share": device.vendor_matrix_share}
        for device in devices
    }
    return hashlib.sha256(f"{nominal.calibrations!r}{digest(figures)}".encode()).hexdigest()


#: Causes of the time on a critical path by side. A gap that stands for a launch, and the input pipeline, are host time.
_CAUSES_OF_SIDE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "host": ("host", "gap for the host", "loader"),
        "device": ("kernel", "collective", "copy", PIM, "contention"),
        "delays": (
            *("launch lag", "stream lag", "wait lag", "inferred wait lag", "sync lag", "rendezvous lag", "backlog"),
            *("gap in a graph", "launch queue", "ready", "release"),
        ),
    }
)
#: Sides of a projected time, in the order of tables.
SIDES: tuple[str, ...] = tuple(_CAUSES_OF_SIDE)
#: Kinds of evidence, in the order of `Basis` and of tables.
EVIDENCE: tuple[str, ...] = ("kept", "scaled", "modelled", "assumed")
#: Kinds of task that are re-timed for another device; such a task is scaled there even if its time stays.
_RETIMED = (TaskKind.KERNEL, TaskKind.COLLECTIVE, TaskKind.PIM)
#: A span this close to the measured one is the measured one: absolute, in ns, and relative.
_SAME_NS, _SAME_SHARE = 1.0, 1e-3
#: Lags are compared in this unit, ns, and up to this number of units.
_LAG_UNIT_NS, _MOST_UNITS = 1e-3, 2.0**62


@dataclass(frozen=True)
class Evidence:
    """Shares of a projected time by side and by kind of evidence; they add up to 1.

    Parameters
    ----------
    shares : mapping of str to mapping of str to float
        For each of `SIDES`, the share of each kind in `EVIDENCE`.
    """

    shares: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, times_ns: Floats) -> "Evidence":
        """Return the evidence of times by side and basis; without any time, all of it is assumed away.

        Parameters
        ----------
        times_ns : array of float64, shape (len(SIDES), len(EVIDENCE))
            Time of each side on each basis.
        """
        total = float(times_ns.sum())
        if not total:
            times_ns, total = np.zeros_like(times_ns), 1.0
            times_ns[SIDES.index("device"), EVIDENCE.index("assumed")] = 1.0
        rows = (times_ns / total).tolist()
        return cls({side: dict(zip(EVIDENCE, row, strict=True)) for side, row in zip(SIDES, rows, strict=True)})

    def share(self, *kinds: str) -> float:
        """Return the share of the projected time that rests on `kinds` of evidence, over all sides."""
        return sum(of_side[kind] for of_side in self.shares.values() for kind in kinds)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return the shares as JSON, whose key for what is kept is ``"measured"``, its first name."""
        keys = {kind: "measured" if kind == "kept" else kind for kind in EVIDENCE}
        return {side: {keys[kind]: share for kind, share in kinds.items()} for side, kinds in self.shares.items()}

    def side(self, name: str) -> float:
        """Return the share of the projected time on a side, over all kinds of evidence."""
        return sum(self.shares[name].values())


def step_evidence(
    state: SteadyState, positions: Sequence[int], before: KernelGraph, pattern: StepPattern | None
) -> list[Floats]:
    """Return the shares of the time of some steps by side and basis; zeros for a step without time.

    Parameters
    ----------
    state : SteadyState
        Steady state under a what-if.
    positions : sequence of int
        Positions of the steps in the cycle.
    before : KernelGraph
        The unchanged graph of a cycle.
    pattern : StepPattern, optional
        Pattern of `before`.

    Returns
    -------
    list of array, shape (len(SIDES), len(EVIDENCE))
        A table of shares for each position.
    """
    path = critical_path(replace(state.timeline, interval=None))
    cell = path_sides(path) * len(Basis) + path_basis(path, before, pattern)
    tables = []
    for position in positions:
        step = state.at_step(position)
        ends = (np.clip(times, step.begin_ns, step.until_ns) for times in (path.begin_ns + path.ns, path.begin_ns))
        times = np.bincount(cell, weights=np.subtract(*ends), minlength=len(SIDES) * len(Basis))
        tables.append(times.reshape(len(SIDES), len(Basis)) / (times.sum() or 1.0))
    return tables


def path_sides(path: CriticalPath) -> Ints:
    """Return the side of every piece of a path, as an index into `SIDES`."""
    side = {cause: i for i, causes in enumerate(_CAUSES_OF_SIDE.values()) for cause in causes}
    return np.asarray(np.array([side[cause] for cause in PATH_CAUSES])[path_causes(path)])


def path_basis(path: CriticalPath, before: KernelGraph, pattern: StepPattern | None) -> Ints:
    """Return the `Basis` of every piece of a path.

    - A task whose span is the measured one is known as the trace is. Otherwise its isolated duration has the basis of
      the task: the trace's if the kernel ran alone in it, and this time agrees. The contention added to it is modelled.
    - A lag is known as the trace is if an edge of the unchanged graph between the same events has it. Otherwise it has
      the basis of the call it counts from if a what-if changed that too; else it is assumed.
    - A gap that stands for the host is assumed, and so is the host's time on a rank whose calls were not recorded.
    - The wait for compute units is modelled.
    - A release has the basis of its host call. On a device, and where the recording of a rank begins, it is known as
      the trace is.
    - On another device nothing was measured: kernels and collectives are scaled there at best. All other time that is
      left as recorded is assumed: the host's, copies, and lags.

    Parameters
    ----------
    path : CriticalPath
        Path of a timeline under a what-if.
    before : KernelGraph
        The unchanged graph of a cycle.
    pattern : StepPattern, optional
        Pattern of `before`.
    """
    line, graph = path.timeline, path.timeline.graph
    tasks, kept = graph.tasks, _kept_basis(graph)
    modelled = max(int(Basis.MODELLED), int(graph.origin))
    measured = (tasks.measured_end_ns - tasks.measured_start_ns)[path.task]
    off = np.abs((line.end_ns - line.start_ns)[path.task] - measured)
    as_measured = off <= np.maximum(_SAME_NS, _SAME_SHARE * measured)  # False if the task was not measured
    of_task = np.where(_without_calls(graph) & (tasks.device < 0), int(Basis.ASSUMED), tasks.basis)
    if _is_moved(graph):
        as_measured[:] = False
        of_task = np.maximum(of_task, np.where(np.isin(tasks.kind, _RETIMED), int(Basis.DERIVED), kept))
    by_part = {
        Part.WORK: np.where(as_measured, kept, of_task[path.task]),
        Part.CONTENTION: np.where(as_measured, kept, modelled),
        Part.LAG: _lag_basis(path, before, pattern),
        Part.READY: np.full(len(path), modelled),
        Part.RELEASE: np.where((tasks.device < 0) & ~graph.waits_for_recording(), of_task, kept)[path.task],
    }
    return np.asarray(np.choose(path.part, [by_part[part] for part in Part]))


def _kept_basis(graph: KernelGraph) -> int:
    """Return the basis of time that stays as recorded: that of the trace, and assumed on another device."""
    return int(Basis.ASSUMED if _is_moved(graph) else graph.origin)


def _is_moved(graph: KernelGraph) -> bool:
    """Return whether a what-if names another device than that of the trace."""
    hardware = graph.hardware
    return (hardware.base or hardware.device) != hardware.original.device


def _without_calls(graph: KernelGraph) -> Bools:
    """Return which tasks are of a rank with device work and without a recorded host call."""
    ranks = graph.ranks() + 1
    n = int(ranks.max(initial=0)) + 1
    has_call = np.bincount(ranks[graph.tasks.kind == TaskKind.HOST], minlength=n) > 0
    has_work = np.bincount(ranks[graph.tasks.device >= 0], minlength=n) > 0
    return np.asarray((has_work & ~has_call)[ranks])


def _lag_basis(path: CriticalPath, before: KernelGraph, pattern: StepPattern | None) -> Ints:
    """Return the basis of the pieces of a path that are lags; that of other pieces has no meaning."""
    graph, lags = path.timeline.graph, np.flatnonzero(path.part == Part.LAG)
    edges, kept = graph.edges.select(path.edge[lags]), _kept_basis(graph)
    event = before.tasks.event if pattern is None else before.tasks.event[pattern.tasks]
    is_guess = np.isin(edges.kind, sorted(HOST_TIME_EDGES)) & _without_calls(graph)[edges.source]
    is_guess |= edges.kind == EdgeKind.GAP
    is_unchanged = _has_lag(edges, graph.tasks.event, before.edges if pattern is None else pattern.edges, event)
    of_source = graph.tasks.basis[edges.source]
    changed = np.where(of_source > kept, of_source, int(Basis.ASSUMED))
    basis = np.full(len(path), kept)
    basis[lags] = np.where(is_guess, int(Basis.ASSUMED), np.where(is_unchanged, kept, changed))
    return basis


def _has_lag(edges: Edges, event: Ints, others: Edges, other_event: Ints) -> Bools:
    """Return which edges have the kind, the lag and the events of an edge of `others`.

    Parameters
    ----------
    edges, others : Edges
        Edges of two graphs.
    event, other_event : array of int64
        Event of each task of the two graphs.
    """
    known = np.zeros(2 + max(int(event.max(initial=-1)), int(other_event.max(initial=-1))), dtype=bool)
    known[event[edges.source] + 1] = True
    keys, other_keys = (
        _edge_keys(edges, event),
        _edge_keys(others.select(known[other_event[others.source] + 1]), other_event),
    )
    _, number = np.unique(np.concatenate([other_keys, keys]), axis=0, return_inverse=True)
    number = number.reshape(-1)
    is_other = np.zeros(int(number.max(initial=-1)) + 1, dtype=bool)
    is_other[number[: len(other_keys)]] = True
    return is_other[number[len(other_keys) :]]


def _edge_keys(edges: Edges, event: Ints) -> Ints:
    """Return the events, kind and lag of edges, shape (len(edges), 4)."""
    lag = np.minimum(edges.lag_ns / _LAG_UNIT_NS, _MOST_UNITS).round().astype(np.int64)
    return np.stack([event[edges.source], event[edges.target], edges.kind, lag], axis=1)
