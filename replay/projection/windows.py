"""Windows of steps: consecutive iterations that are replayed together, and how some of them stand for others."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from replay.calibration.parameters import Parameters
from replay.costs.demand import isolate
from replay.costs.host import RecordingCost
from replay.engine.steady import (
    Change,
    SteadyState,
    StepPattern,
    cycle_of,
    each_steady_state,
    steady_states,
    unchanged,
)
from replay.graph.edit import host_time_edges, with_host_time
from replay.graph.graph import KernelGraph


@dataclass(frozen=True)
class SampledStep:
    """A step that stands for others.

    Parameters
    ----------
    position : float
        Sequence length, or number of the step: steps of neighbouring positions are alike.
    deviation : float
        Relative standard deviation of the steps that it stands for.
    """

    position: float
    deviation: float


@dataclass(frozen=True)
class StepWindow:
    """Consecutive iterations that are replayed together, and the steps asked for.

    Parameters
    ----------
    graph : KernelGraph
        Graph of the iterations asked for, and of earlier ones whose device work was not done when they started.
    pattern : StepPattern, optional
        Pattern in which the iterations repeat; None for a single iteration without a neighbour in the trace.
    chosen : tuple of int
        Positions in `KernelGraph.iterations` of the steps asked for.
    weights : tuple of float
        Number of steps that each of these stands for.
    measured_ns : tuple of float
        Measured step time of each; 0 if it was not measured.
    sampled : tuple of SampledStep
        How each of these stands for others; empty if each stands for itself.
    recording : RecordingCost, optional
        What the recording cost the host; None if that is little or unknown.
    """

    graph: KernelGraph
    pattern: StepPattern | None
    chosen: tuple[int, ...]
    weights: tuple[float, ...]
    measured_ns: tuple[float, ...]
    sampled: tuple[SampledStep, ...] = ()
    recording: RecordingCost | None = None

    @classmethod
    def of(
        cls, graph: KernelGraph, chosen: Sequence[int], *, weights: Sequence[float], measured_ns: Sequence[float]
    ) -> "StepWindow":
        """Return the window of a graph, with the pattern of its iterations."""
        return cls(graph, cycle_of(graph), tuple(chosen), tuple(weights), tuple(measured_ns))

    @classmethod
    def alone(cls, graph: KernelGraph, weight: float = 1.0) -> "StepWindow":
        """Return the window of a graph of a single iteration, without neighbours."""
        return cls(graph, None, (0,), (weight,), (graph.measured_ns,))

    @property
    def measured_total_ns(self) -> float:
        """Weighted sum of the measured step times."""
        return fsum(w * m for w, m in zip(self.weights, self.measured_ns, strict=True))

    def isolated(self, parameters: Parameters) -> "StepWindow":
        """Return the window with isolated durations under `parameters`."""
        return replace(self, graph=isolate(self.graph, parameters))

    def drawn(self, parameters: Parameters) -> "StepWindow":
        """Return the window isolated under drawn `parameters`, without what the recording cost the host by them."""
        window = self.isolated(parameters)
        if self.recording is None:
            return window
        factor = 1 - self.recording.share(parameters.values)
        pattern = self.pattern and replace(self.pattern, edges=host_time_edges(self.pattern.edges, factor))
        return replace(window, graph=with_host_time(window.graph, factor), pattern=pattern)

    def steady(self, change: Change = unchanged) -> SteadyState:
        """Return the steady state of the window's iterations under `change`."""
        return self.steady_all([change])[0]

    def steady_all(self, changes: Sequence[Change]) -> list[SteadyState]:
        """Return the steady state of the window's iterations under each change."""
        return steady_states(self.graph, self.pattern, changes)

    def steady_each(self, changes: Sequence[Change]) -> Iterator[tuple[int, SteadyState]]:
        """Yield the number of each change with the steady state under it, one replayed graph at a time."""
        return each_steady_state(self.graph, self.pattern, changes)

    def total_ns(self, state: SteadyState) -> float:
        """Return the weighted sum of the steps asked for, in a steady state."""
        return fsum(w * float(state.step_ns[position]) for w, position in zip(self.weights, self.chosen, strict=True))

    def device_ns(self, state: SteadyState) -> float:
        """Return the weighted time of the steps asked for during which a device is busy: mean over the devices.

        NaN without a device.
        """
        if not self.graph.devices:
            return math.nan
        busy = state.timeline.busy_within(state.intervals_ns[list(self.chosen)]).mean(axis=1)
        return fsum(w * ns for w, ns in zip(self.weights, busy.tolist(), strict=True))
