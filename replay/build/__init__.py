"""From a trace to the graph of one of its iterations."""

from replay.build.graph_of import build_graph
from replay.build.index import TraceIndex, index_trace

__all__ = ["TraceIndex", "build_graph", "index_trace"]
