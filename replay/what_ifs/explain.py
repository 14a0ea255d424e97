"""What a what-if does to each collective, or why nothing and what would have to change; and to weights of layers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from profilers.trace.arrays import Floats, Ints
from replay.calibration.parameters import Parameters
from replay.engine.engine import simulate
from replay.graph.graph import COLLECTIVE_KINDS, KernelGraph
from replay.what_ifs.targets import Targets
from replay.what_ifs.what_if import LayerQuantization, WhatIf, single_steps

_TIMES = ("before_ns", "after_ns")


@dataclass(frozen=True)
class CollectiveEffect:
    """Effect of a what-if on a collective of one rank.

    Parameters
    ----------
    what_if : str
        The what-if, or the steps of a composition up to the one that acts on the collective.
    rank, iteration : int
        Rank and iteration of the collective.
    name, kind : str
        Name of its kernel, and kind.
    bytes, ranks : int
        Bytes of its whole buffer and ranks of its group; 0 if unknown.
    kernel : str
        Name of the kernel that computes or reads its data; empty if the what-if does not apply, or needs none.
    before_ns, after_ns : float
        From the begin of the first of kernel and collective to the end of both, unchanged and under the what-if; NaN if
        it does not apply.
    reason, advice : str
        Why it does not apply, and what would have to change; empty if it applies.
    """

    what_if: str
    rank: int
    iteration: int
    name: str
    kind: str
    bytes: int
    ranks: int
    kernel: str = ""
    before_ns: float = float("nan")
    after_ns: float = float("nan")
    reason: str = ""
    advice: str = ""

    @property
    def applies(self) -> bool:
        """Whether the what-if applies to the collective."""
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        """Return the effect as JSON; times that are unknown are null."""
        times = {name: None if math.isnan(getattr(self, name)) else getattr(self, name) for name in _TIMES}
        return {**asdict(self), **times, "applies": self.applies}


def explain(what_if: WhatIf, graph: KernelGraph, parameters: Parameters) -> list[CollectiveEffect]:
    """Return the effect of a what-if on each collective of a graph, for each of its steps that acts on collectives.

    Parameters
    ----------
    what_if : WhatIf
        A what-if, or a composition; each step sees the graph that the steps before it leave.
    graph : KernelGraph
        Graph of one or more iterations.
    parameters : Parameters
        With calibrations of kernels and collectives.
    """
    effects, steps = [], single_steps(what_if)
    for number, step in enumerate(steps):
        changed = step(graph, parameters)
        if step.targets is not None:
            name = "+".join(each.name for each in steps[: number + 1])
            effects += _effects(name, graph, changed, step.targets(graph, parameters))
        graph = changed
    return effects


def explain_layers(what_if: WhatIf, graph: KernelGraph, parameters: Parameters) -> list[LayerQuantization]:
    """Return the times of the layers whose weights a what-if quantises, for each of its steps that does.

    Parameters
    ----------
    what_if : WhatIf
        A what-if, or a composition; each step sees the graph that the steps before it leave.
    graph : KernelGraph
        Graph of one or more iterations.
    parameters : Parameters
        With calibrations of kernels and collectives.
    """
    times, steps = list[LayerQuantization](), single_steps(what_if)
    for number, step in enumerate(steps):
        if step.layers is not None:
            name = "+".join(each.name for each in steps[: number + 1])
            times += [replace(each, what_if=name) for each in step.layers(graph, parameters)]
        graph = step(graph, parameters)
    return times


#: What a what-if does in an iteration.
_Fact = TypeVar("_Fact", CollectiveEffect, LayerQuantization)


def all_effects(
    what_ifs: Sequence[WhatIf], graphs: Sequence[KernelGraph], iterations: Sequence[int], parameters: Parameters
) -> tuple[CollectiveEffect, ...]:
    """Return what what-ifs do to the collectives of some iterations, as `explain` does for one.

    The same steps of several compositions count once for each graph.
    """
    return _all(explain, what_ifs, graphs, (iterations, parameters))


def all_layers(
    what_ifs: Sequence[WhatIf], graphs: Sequence[KernelGraph], iterations: Sequence[int], parameters: Parameters
) -> tuple[LayerQuantization, ...]:
    """Return the times of the layers whose weights what-ifs quantise in some iterations, as `explain_layers` does."""
    return _all(explain_layers, what_ifs, graphs, (iterations, parameters))


def _all(
    explain: Callable[[WhatIf, KernelGraph, Parameters], Sequence[_Fact]],
    what_ifs: Sequence[WhatIf],
    graphs: Sequence[KernelGraph],
    given: tuple[Sequence[int], Parameters],
) -> tuple[_Fact, ...]:
    iterations, parameters = given
    facts: list[_Fact] = []
    told: set[tuple[int, str]] = set()
    for what_if, (number, graph) in product(what_ifs, enumerate(graphs)):
        found = [each for each in explain(what_if, graph, parameters) if each.iteration in iterations]
        facts += [each for each in found if (number, each.what_if) not in told]
        told |= {(number, each.what_if) for each in found}
    return tuple(facts)


def _effects(what_if: str, graph: KernelGraph, changed: KernelGraph, targets: Targets) -> list[CollectiveEffect]:
    rows = [(*target.kernels, target.collective) for target in targets.found]
    before, after = (_spans(each, graph, rows) for each in (graph, changed))
    effects = {}
    for i, target in enumerate(targets.found):
        kernel = graph.names[graph.tasks.name[target.kernel]] if target.kernels else ""
        facts = _facts(what_if, graph, target.collective)
        effects[target.collective] = replace(facts, kernel=kernel, before_ns=float(before[i]), after_ns=float(after[i]))
    for miss in targets.misses:
        facts = _facts(what_if, graph, miss.collective)
        effects[miss.collective] = replace(facts, reason=miss.reason, advice=miss.advice)
    return [effects[row] for row in sorted(effects)]


def _facts(what_if: str, graph: KernelGraph, row: int) -> CollectiveEffect:
    tasks = graph.tasks
    return CollectiveEffect(
        what_if=what_if,
        rank=int(graph.ranks()[row]),
        iteration=graph.iterations[tasks.iteration[row]],
        name=graph.names[tasks.name[row]],
        kind=COLLECTIVE_KINDS[tasks.collective[row]] if tasks.collective[row] >= 0 else "unknown",
        bytes=int(tasks.bytes[row]),
        ranks=int(tasks.ranks[row]),
    )


def _spans(graph: KernelGraph, original: KernelGraph, rows: Sequence[Sequence[int]]) -> Floats:
    """Return the time from the first start to the last end of each group of rows, with their pieces in `graph`.

    A piece has the event, the device and the iteration of a row.
    """
    start, end = simulate(graph)
    group = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    row = np.array([task for each in rows for task in each], dtype=np.int64)
    keys, piece_keys = _keys(original, row), _keys(graph, np.arange(len(graph.tasks)))
    order = np.argsort(keys)
    at = np.minimum(np.searchsorted(keys[order], piece_keys), max(len(order) - 1, 0))
    pieces = np.flatnonzero((keys[order][at] == piece_keys) & graph.on_device()) if len(order) else np.zeros(0, int)
    first, last = np.full(len(rows), np.inf), np.full(len(rows), -np.inf)
    np.minimum.at(first, group[order][at[pieces]], start[pieces])
    np.maximum.at(last, group[order][at[pieces]], end[pieces])
    np.maximum.at(last, group, end[row])
    return np.asarray(np.where(np.isfinite(first), last - first, np.nan))


def _keys(graph: KernelGraph, rows: Ints) -> Ints:
    """Return a number for the event, device and iteration of tasks; different negative ones for marks without event."""
    tasks = graph.tasks
    key = (tasks.event[rows] * (len(graph.devices) + 1) + tasks.device[rows]) * len(graph.iterations)
    return np.where(tasks.event[rows] >= 0, key + tasks.iteration[rows], -1 - rows)
