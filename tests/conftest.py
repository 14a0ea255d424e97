"""What all tests share: Hypothesis without deadlines, and no notice of compilation in compared output."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("no times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no times")


@pytest.fixture(autouse=True)
def compile_log() -> Iterator[logging.Logger]:
    """Silence the log of compilations, whose notice would depend on which test of a process comes first."""
    logger = logging.getLogger("profilers.trace.compiled")
    logger.disabled = True
    yield logger
    logger.disabled = False
