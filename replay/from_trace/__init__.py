"""From a `Trace` to a `KernelGraph`."""

from replay.from_trace.index import TraceIndex, index_trace
from replay.from_trace.tasks import build_graph

__all__ = ["TraceIndex", "build_graph", "index_trace"]
