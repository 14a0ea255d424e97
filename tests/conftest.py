"""Hypothesis as the tests use it: what is slow is measured in `benchmarks/`, never asserted."""

from hypothesis import HealthCheck, settings

settings.register_profile("no times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no times")
