"""Text of times, in the unit that gives one to three digits before the point."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TimeUnit:
    """Unit of time: its name, and its length in ns."""

    name: str
    ns: float


_UNITS = (TimeUnit("s", 1e9), TimeUnit("ms", 1e6), TimeUnit("us", 1e3), TimeUnit("ns", 1.0))

#: Times below this, in ns, are residues of rounding and count as zero.
_RESIDUE_NS = 0.0005


def time_unit(ns: float) -> TimeUnit:
    """Return the unit in which a time has one to three digits before the point.

    Parameters
    ----------
    ns : float
        The time in ns.

    Examples
    --------
    >>> time_unit(2_500_000)
    TimeUnit(name='ms', ns=1000000.0)
    """
    return next((unit for unit in _UNITS if abs(ns) >= unit.ns), _UNITS[-1])


def duration(ns: float) -> str:
    """Return a time as text with four digits; below 0.0005 ns, which is a residue of rounding, it is zero.

    Parameters
    ----------
    ns : float
        The time in ns.

    Examples
    --------
    >>> duration(1_234_567)
    '1.235 ms'
    """
    if abs(ns) < _RESIDUE_NS:
        return "0 ns"
    unit = time_unit(ns)
    return f"{ns / unit.ns:.4g} {unit.name}"


def signed(ns: float) -> str:
    """Return a difference of times as text, with its sign.

    Examples
    --------
    >>> signed(1_234_567), signed(-2_000), signed(0)
    ('+1.235 ms', '-2 us', '0 ns')
    """
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"


def quantity(value: float, unit: str) -> str:
    """Return the value of a statistic with its unit, as text; a unit of ``"1"`` is not shown.

    Examples
    --------
    >>> quantity(2e9, "ns"), quantity(12.0, "1"), quantity(0.5, "GB")
    ('2 s', '12', '0.5 GB')
    """
    return duration(value) if unit == "ns" else f"{value:.6g} {'' if unit == '1' else unit}".strip()


def percent(share: float) -> str:
    """Return a share of zero or more as a percentage with two digits; below 0.01 % it is zero.

    Examples
    --------
    >>> percent(0.1), percent(0.00287), percent(2.347), percent(0.00001)
    ('10 %', '0.29 %', '235 %', '0 %')
    """
    return f"{100 * share:.2g} %" if 1e-4 <= share < 0.995 else f"{100 * share:.0f} %"


def tokens_per_dollar(tokens_per_gpu_s: float, price: float) -> float:
    """Return tokens per US dollar, of tokens per second and GPU and of a price of an hour of a GPU.

    Examples
    --------
    >>> tokens_per_dollar(1000.0, 2.5)
    1440000.0
    """
    return 3600 * tokens_per_gpu_s / price
