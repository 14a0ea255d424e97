"""Names of devices that are short enough for a table."""

from collections.abc import Iterable


def short_devices(names: Iterable[str]) -> dict[str, str]:
    """Return for each name its first parts, as many as tell it from the others.

    Examples
    --------
    >>> short_devices(["A100-PCIE-40GB", "A100-SXM4-80GB", "V100-PCIE-32GB", "T4"])
    {'A100-PCIE-40GB': 'A100-PCIE', 'A100-SXM4-80GB': 'A100-SXM4', 'V100-PCIE-32GB': 'V100', 'T4': 'T4'}
    """
    every = list(dict.fromkeys(names))
    return {name: _short(name, [other for other in every if other != name]) for name in every}


def _short(name: str, others: list[str]) -> str:
    parts = name.split("-")
    for count in range(1, len(parts)):
        if not any(other.split("-")[:count] == parts[:count] for other in others):
            return "-".join(parts[:count])
    return name
