"""`build_graph`: consecutive iterations of a trace as a `KernelGraph`."""

from collections.abc import Sequence
from dataclasses import replace

from profilers.errors import InvalidInputError
from profilers.trace import Trace
from replay.build.clocks import clock_notes
from replay.build.device import add_device
from replay.build.draft import Draft
from replay.build.host import add_host, add_returns
from replay.build.index import TraceIndex, index_trace
from replay.build.window import open_window
from replay.demand import isolate
from replay.graph import Basis, Hardware, KernelGraph
from replay.parameters import load_parameters

__all__ = ["build_graph"]


def build_graph(
    trace: Trace | TraceIndex, iterations: int | Sequence[int], hardware: Hardware | None = None
) -> KernelGraph:
    """Return the graph of one iteration, or of consecutive ones, on all their ranks.

    Host calls are ordered on their threads, kernels and copies on their streams, also from one iteration to the next;
    launches, event waits, synchronisations and collectives join them. Device work of earlier iterations that still
    runs when the first one starts is part of the graph but of none of its iterations. Durations are isolated:
    contention that was measured is taken out, so that replaying the graph puts it back.

    Parameters
    ----------
    trace : Trace or TraceIndex
        The index of a trace, where several graphs are built from it.
    iterations : int or sequence of int
        Consecutive numbers, in order.
    hardware : Hardware, optional
        What the devices are, where the trace does not say.

    Raises
    ------
    InvalidInputError
        The trace lacks one of the iterations, or none is named.
    """
    numbers = (iterations,) if isinstance(iterations, int) else tuple(iterations)
    if not numbers:
        raise InvalidInputError("a graph needs at least one iteration")
    index = trace if isinstance(trace, TraceIndex) else index_trace(trace)
    window = open_window(index, numbers)
    draft = Draft(notes=clock_notes(window))
    host = add_host(draft, window)
    device = add_device(draft, window, host)
    add_returns(draft, window, host, device)
    graph = draft.freeze(hardware or index.hardware, numbers)
    origin = Basis.ASSUMED if index.trace.meta.synthetic else Basis.MEASURED
    return isolate(replace(graph, origin=origin), load_parameters())
