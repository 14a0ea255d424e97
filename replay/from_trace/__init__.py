"""From a `Trace` to a `KernelGraph`.

`index` arranges a trace once. `window` cuts consecutive iterations out of it. `tasks.build_graph` then appends their
tasks and edges to a `replay.graph.Assembly`: host calls (`host`), device work and collectives (`tasks`), and the edges
into each kernel (`starts`).
"""

from replay.from_trace.index import TraceIndex, index_trace
from replay.from_trace.tasks import build_graph, distinct_calls, kernel_dtypes, kernel_operators

__all__ = ["TraceIndex", "build_graph", "distinct_calls", "index_trace", "kernel_dtypes", "kernel_operators"]
