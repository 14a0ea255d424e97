"""What limits steps: how much each resource could gain at most, how much slower it could be, and what limits then.

The gain of a resource is bounded by the steps in which it takes no time (`replay.graph.edit.without_time`). They are
computed as those of a what-if are, so no what-if that makes one resource faster gains more.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import fsum
from typing import Any, ClassVar

import numpy as np

from replay.analysis.critical_path import CriticalPath, attribution, critical_path
from replay.analysis.idle import PACE_RESOURCES, resources_of
from replay.engine.steady import Change, SteadyState, changed_period_ns, unchanged
from replay.graph.edit import LIMITING, scaled_time, without_time
from replay.graph.graph import KernelGraph
from replay.projection.windows import StepWindow

#: Share by which steps may grow in `Limits.room`.
ROOM_COST = 0.01
#: How often the range of factors is halved for `Limits.room`.
_HALVINGS = 5
#: A resource with this share of the critical path has no room: 4 %, what is told apart, would cost more than 1 %.
_NO_ROOM = 0.3
#: Below this speed-up without any time of a resource, another one takes nearly as long; and as long.
NEARLY, NO_GAIN = 1.1, 1.01
#: A resource with this share of the critical path is expected to gain.
_ON_PATH = 0.1


@dataclass(frozen=True)
class Limits:
    """What each resource of some steps could gain or lose: mappings by resource, of `LIMITING`.

    Parameters
    ----------
    share : mapping of str to float
        Share of the critical path of the steps.
    bound : mapping of str to float
        How many times as fast the steps would be if the resource took no time: the most that can be gained there.
    room : mapping of str to float
        Share by which the resource could become slower while the steps become at most 1 % longer; up to 3.
    then : mapping of str to str
        Resource that has most of the critical path if this one takes no time; "" if nothing is left.
    """

    #: Most that `room` looks for: four times the time.
    MOST_ROOM: ClassVar[float] = 3.0

    share: Mapping[str, float] = field(default_factory=dict)
    bound: Mapping[str, float] = field(default_factory=dict)
    room: Mapping[str, float] = field(default_factory=dict)
    then: Mapping[str, str] = field(default_factory=dict)

    @property
    def limiting(self) -> tuple[str, ...]:
        """The resource that limits the steps, and one that takes nearly as long, if there is one.

        That is the one with most of the critical path, unless steps are as long without it.
        """
        shares = {name: share for name, share in self.share.items() if name != "device"}
        if not shares:
            return ()
        first = max(shares, key=shares.__getitem__)
        second, gain = self.then.get(first, ""), self.bound.get(first, math.inf)
        return _limiting(first, second, gain, lambda: self.bound.get(second, math.inf))

    @property
    def in_vain(self) -> tuple[str, ...]:
        """The resources with a tenth of the critical path and more that gain nothing, since another takes as long."""
        return tuple(
            name
            for name, share in self.share.items()
            if name != "device" and share >= _ON_PATH and self.bound.get(name, math.inf) < NO_GAIN
        )


def limiting_name(resource: str) -> str:
    """Return the name of a resource of `PACE_RESOURCES` in `LIMITING`, where "device" is all work on devices."""
    return "kernels" if resource == "device" else resource


def path_shares(windows: Sequence[StepWindow], states: Sequence[SteadyState]) -> dict[str, float]:
    """Return the shares of resources in the critical path of weighted steps, by the names of `LIMITING`.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of steps.
    states : sequence of SteadyState
        Steady state of each.
    """
    time = defaultdict[str, float](float)
    for path, weight in _critical_paths(windows, states):
        ns = np.bincount(resources_of(path), weights=path.ns, minlength=len(PACE_RESOURCES))
        for name, total in zip(PACE_RESOURCES, ns.tolist(), strict=True):
            time[limiting_name(name)] += weight * total
    total = fsum(time.values())
    return {name: ns / total for name, ns in time.items() if ns} if total else {}


def class_times(windows: Sequence[StepWindow], states: Sequence[SteadyState]) -> dict[str, float]:
    """Return the time of classes of kernels, and of causes, on the critical path of weighted steps in ns, most first.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of steps.
    states : sequence of SteadyState
        Steady state of each.
    """
    time = defaultdict[str, float](float)
    for path, weight in _critical_paths(windows, states):
        for name, ns in attribution(path).by_class.items():
            time[name] += weight * ns
    return dict(sorted(time.items(), key=lambda item: (-item[1], item[0])))


def _critical_paths(
    windows: Sequence[StepWindow], states: Sequence[SteadyState]
) -> Iterator[tuple[CriticalPath, float]]:
    """Yield the critical path of each chosen step, and the steps that it stands for."""
    for window, state in zip(windows, states, strict=True):
        for position, weight in zip(window.chosen, window.weights, strict=True):
            yield critical_path(state.at_step(position)), weight


def limiting_resource(windows: Sequence[StepWindow], states: Sequence[SteadyState]) -> str:
    """Return the resource with most of the critical path of weighted steps; "" if they take no time."""
    shares = path_shares(windows, states)
    return max(shares, key=shares.__getitem__, default="")


def limiting_after(window: StepWindow, state: SteadyState, change: Change) -> tuple[str, ...]:
    """Return the resource that limits the steps of a window under a change, and one that takes nearly as long.

    Parameters
    ----------
    window : StepWindow
        The window.
    state : SteadyState
        Its steady state under the change.
    change : callable
        The change.
    """
    if not (first := limiting_resource([window], [state])):
        return ()
    without = window.steady(lambda graph: without_time(change(graph), first)) if first in LIMITING else state
    second, total_ns = limiting_resource([window], [without]), window.total_ns(state)

    def other() -> float:
        return total_ns / max(window.total_ns(window.steady(lambda graph: without_time(change(graph), second))), 1e-9)

    return _limiting(first, second, total_ns / max(window.total_ns(without), 1e-9), other)


def _limiting(first: str, second: str, gain: float, other: Callable[[], float]) -> tuple[str, ...]:
    """Return which of two resources limits steps, or both.

    Parameters
    ----------
    first, second : str
        Resource with most of the critical path, and that with most of it if the first takes no time.
    gain : float
        Speed-up if the first takes no time.
    other : callable
        Returns the speed-up if the second takes no time.
    """
    if gain >= NEARLY or second in ("", first):
        return (first,)
    if gain < NO_GAIN and second in LIMITING and other() >= NO_GAIN:
        return (second,)
    return first, second


#: Runs functions of no argument, some at a time, and returns their results in order.
Runner = Callable[[Sequence[Callable[[], Any]]], list[Any]]


def _one_by_one(runs: Sequence[Callable[[], Any]]) -> list[Any]:
    return [run() for run in runs]


def limits_of(
    windows: Sequence[StepWindow],
    states: Sequence[SteadyState],
    gain: Callable[[Sequence[float]], float],
    change: Change = unchanged,
    *,
    run: Runner = _one_by_one,
) -> Limits:
    """Return the limits of weighted steps.

    Parameters
    ----------
    windows : sequence of StepWindow
        Windows of steps.
    states : sequence of SteadyState
        Steady state of each under `change`.
    gain : callable
        Returns the speed-up of the steps from their changed time in each window.
    change : callable
        Change that comes first, by default none.
    run : callable
        Runs independent functions, by default one after another.
    """
    present = [name for name in LIMITING if any(_has(window.graph, name) for window in windows)]
    shares = path_shares(windows, states)
    shares["device"] = fsum(shares.get(name, 0.0) for name in ("kernels", "communication", "copies"))
    roomy = [name for name in present if shares.get(name, 0.0) < _NO_ROOM]
    runs = [partial(_without, windows, change, name) for name in present]
    results = run([*runs, *(partial(_room, windows, states, name) for name in roomy)])
    without, rooms = dict(zip(present, results, strict=False)), dict(zip(roomy, results[len(present) :], strict=True))
    bound = {name: max(gain(times_ns), 1.0) for name, (times_ns, _) in without.items()}
    if "device" in bound:  # a step that begins when the one before is complete can move if all devices take no time
        bound["device"] = max(bound[name] for name in ("device", "kernels", "communication", "copies") if name in bound)
    return Limits(
        {name: shares.get(name, 0.0) for name in (*present, "unexplained") if name in present or name in shares},
        bound,
        {name: rooms.get(name, 0.0) for name in present},
        {name: then for name, (_, then) in without.items()},
    )


def _has(graph: KernelGraph, resource: str) -> bool:
    """Return whether a graph has work of a resource."""
    return not scaled_time(graph, resource, 2.0).replays_like(graph)


def _without(windows: Sequence[StepWindow], change: Change, resource: str) -> tuple[list[float], str]:
    """Return the time of the steps of each window without a resource, and what limits them then."""
    states = [window.steady(lambda graph: without_time(change(graph), resource)) for window in windows]
    return [w.total_ns(state) for w, state in zip(windows, states, strict=True)], limiting_resource(windows, states)


def _room(windows: Sequence[StepWindow], states: Sequence[SteadyState], resource: str) -> float:
    """Return the share by which a resource could become slower while steps grow by at most 1 %: mean over steps.

    Its times are scaled by factors up to 4. The result is the largest factor, less 1; it is known to 4 %.
    """
    total = room_ns = 0.0
    for window, state in zip(windows, states, strict=True):
        ns = window.total_ns(state)
        total += ns
        room_ns += ns * _room_of_state(state, resource) if ns else 0.0
    return room_ns / total if total else 0.0


def _room_of_state(state: SteadyState, resource: str) -> float:
    limit = (1 + ROOM_COST) * state.period_ns

    def fits(factor: float) -> bool:
        return changed_period_ns(state, partial(scaled_time, resource=resource, factor=factor)) <= limit

    low, high = 0.0, math.log(1 + Limits.MOST_ROOM)
    if fits(1 + Limits.MOST_ROOM):
        return Limits.MOST_ROOM
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(math.exp(middle)) else (low, middle)
    return math.exp(low) - 1
