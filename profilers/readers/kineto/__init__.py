"""JSON traces of the PyTorch profiler (Kineto), of every version and vendor.

Read `reader` first, then `scanner`, the compiled scanner of events, and `rows`, the slow path for damaged events.
"""

from profilers.readers.kineto.reader import KinetoReader

__all__ = ["KinetoReader"]
