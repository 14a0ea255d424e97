"""Record a run for SeqPoint: log an epoch without a profiler, then profile only the iterations that were chosen."""

from profilers.record.log import IterationLog, LightningHooks, TimedIteration, lightning_callback
from profilers.record.profiling import PointProfiler, profile_at

__all__ = ["IterationLog", "LightningHooks", "PointProfiler", "TimedIteration", "lightning_callback", "profile_at"]
