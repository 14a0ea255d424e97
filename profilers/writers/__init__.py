"""Writers: Perfetto JSON and Chakra; and traces cut, merged or without private names."""

from profilers.writers.anonymous import anonymous_trace
from profilers.writers.chakra import export_chakra
from profilers.writers.perfetto import export_perfetto
from profilers.writers.slicing import SliceOptions, merge, slice_trace

__all__ = ["SliceOptions", "anonymous_trace", "export_chakra", "export_perfetto", "merge", "slice_trace"]
