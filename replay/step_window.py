"""`StepWindow`: consecutive iterations that are replayed together, and which of their steps are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

from replay.demand import isolate
from replay.graph import KernelGraph
from replay.parameters import Parameters
from replay.repeat import Pattern, pattern_of
from replay.steady import Change, SteadyState, steady_states, unchanged

__all__ = ["StepWindow"]


@dataclass(frozen=True)
class StepWindow:
    """Consecutive iterations that are replayed together, and which of their steps are asked for.

    Parameters
    ----------
    graph : KernelGraph
        Of the iterations asked for and of those before them that the hosts had not waited for.
    pattern : Pattern, optional
        How they repeat; None for a single iteration without a neighbour in the trace.
    chosen : tuple of int
        Positions in `KernelGraph.iterations` of the steps asked for.
    weights : tuple of float
        How many steps each of these stands for.
    measured_ns : tuple of float
        Their step times as measured; zeros if nobody measured them.
    """

    graph: KernelGraph
    pattern: Pattern | None
    chosen: tuple[int, ...]
    weights: tuple[float, ...]
    measured_ns: tuple[float, ...]

    @classmethod
    def of(
        cls, graph: KernelGraph, chosen: Sequence[int], *, weights: Sequence[float], measured_ns: Sequence[float]
    ) -> "StepWindow":
        """Return the window of a graph, with how its iterations repeat."""
        return cls(graph, pattern_of(graph), tuple(chosen), tuple(weights), tuple(measured_ns))

    @classmethod
    def alone(cls, graph: KernelGraph, weight: float = 1.0) -> "StepWindow":
        """Return the window of a graph of one iteration whose neighbours nobody knows."""
        return cls(graph, None, (0,), (weight,), (graph.measured_ns,))

    @property
    def measured_total_ns(self) -> float:
        """The measured step times, weighted."""
        return fsum(w * m for w, m in zip(self.weights, self.measured_ns, strict=True))

    def isolated(self, parameters: Parameters) -> "StepWindow":
        """Return the window with durations from which `parameters` take the measured contention."""
        return replace(self, graph=isolate(self.graph, parameters))

    def steady(self, change: Change = unchanged) -> SteadyState:
        """Return the steady state of its iterations, unchanged or as `change` leaves them."""
        return self.steady_all([change])[0]

    def steady_all(self, changes: Sequence[Change]) -> list[SteadyState]:
        """Return the steady states of its iterations as each change leaves them."""
        return steady_states(self.graph, self.pattern, changes)

    def total_ns(self, state: SteadyState) -> float:
        """Return the step times asked for in a steady state, weighted."""
        return fsum(w * float(state.step_ns[at]) for w, at in zip(self.weights, self.chosen, strict=True))
