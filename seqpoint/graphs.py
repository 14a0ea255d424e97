"""The graphs of a trace's iterations."""

from collections.abc import Callable, Sequence

from profilers.devices import find_device
from profilers.errors import InvalidInputError
from profilers.trace import Trace
from replay.build import build_graph, index_trace
from replay.graph import KernelGraph
from replay.hardware import hardware_named

__all__ = ["all_iterations", "graphs_of"]

Progress = Callable[[int, int, str], None]


def all_iterations(trace: Trace) -> list[int]:
    """Return the numbers of a trace's iterations.

    Raises
    ------
    InvalidInputError
        It has none.
    """
    have = sorted(set(trace.iterations["iteration"].to_pylist()))
    if not have:
        raise InvalidInputError("the trace has no iteration")
    return have


def graphs_of(
    trace: Trace, iterations: Sequence[int], device: str | None = None, progress: Progress | None = None
) -> list[KernelGraph]:
    """Return the graphs of some iterations.

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or an iteration is unknown.
    """
    hardware = None if device is None else hardware_named(find_device(device), "user")
    graphs, index = [], index_trace(trace)
    for number, iteration in enumerate(iterations):
        if progress:
            progress(number, len(iterations), f"graph of iteration {iteration}")
        graphs.append(build_graph(index, iteration, hardware))
    return graphs
