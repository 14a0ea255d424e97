"""Times as people read them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time and how many ns it has."""

    name: str
    ns: float


_UNITS = (TimeUnit("s", 1e9), TimeUnit("ms", 1e6), TimeUnit("us", 1e3), TimeUnit("ns", 1.0))

_RESIDUE = 0.0005


def time_unit(ns: float) -> TimeUnit:
    """Return the unit in which a time of `ns` has one to three digits before the point.

    Examples
    --------
    >>> time_unit(2_500_000)
    TimeUnit(name='ms', ns=1000000.0)
    """
    return next((unit for unit in _UNITS if abs(ns) >= unit.ns), _UNITS[-1])


def duration(ns: float) -> str:
    """Return a time, four digits; what is below 0.0005 ns is the residue of rounding, and nothing.

    Examples
    --------
    >>> duration(1_234_567)
    '1.235 ms'
    """
    if abs(ns) < _RESIDUE:
        return "0 ns"
    unit = time_unit(ns)
    return f"{ns / unit.ns:.4g} {unit.name}"
