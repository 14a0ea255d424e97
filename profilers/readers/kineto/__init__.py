"""The PyTorch profiler's JSON (Kineto), of every age and vendor."""

from profilers.readers.kineto.reader import KinetoReader

__all__ = ["KinetoReader"]
