"""`ContentionFit`: parameters of the contention model as they were fitted, and the file that holds them."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.atomic import write_text
from profilers.errors import InvalidInputError
from replay.calibration_file import read_calibration_file
from replay.parameters import Parameters, load_parameters

__all__ = ["BOUNDS", "CHOICES", "ContentionFit", "FittedRange", "read_contention_fit", "write_contention_fit"]

#: What is fitted, and within what: wide enough that an end of it says that the model lacks something.
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "cu_share_saturating_memory": (0.02, 1.0),
        "cu_share_saturating_compute": (0.2, 1.0),
        "cu_share_held_compute": (0.2, 1.0),
        "cu_share_held_memory": (0.1, 1.0),
        "memory_efficiency_shared": (0.3, 1.2),
        "hit_share_compute_bound": (0.02, 0.95),
        "hit_share_memory_bound": (0.01, 0.9),
        "hit_share_resident": (0.0, 0.98),
        "l2_bandwidth_ratio": (1.0, 12.0),
        "workgroups_per_unit_max": (1.0, 64.0),
    }
)
#: What is chosen rather than fitted: 1 or 0.
CHOICES = ("dispatch_in_order", "dispatch_whole_waves")
_GROUPS, _SCENARIOS, _TEXT = 100_000, 10**7, 2000
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class FittedRange:
    """A fitted parameter; `low` to `high` is believed to hold it nine times in ten."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ContentionFit:
    """What was fitted, and to what.

    Parameters
    ----------
    device : str
        That was recorded.
    ranges : mapping of str to FittedRange
        Parameters that the recordings determined. A choice is 0 or 1 and has no width.
    undetermined : tuple of str
        Those that kept their shipped value and range, since the recordings do not tell.
    spread : float
        Of nine in ten scenarios that were left out of a fit, the logarithm of measured over predicted time is within
        this.
    scenarios : int
        That were fitted.
    groups : tuple of str
        Digests of what was fitted (`ContentionRecording.digests_of`).
    source : str
    """

    device: str
    ranges: Mapping[str, FittedRange]
    undetermined: tuple[str, ...]
    spread: float
    scenarios: int
    groups: tuple[str, ...]
    source: str

    def parameters(self, known: Parameters | None = None) -> Parameters:
        """Return parameters with the fitted values and ranges in place of the shipped ones; draws are from those."""
        base = known or load_parameters()
        new = {
            name: replace(
                base.known[name],
                value=one.value,
                low=one.low,
                high=one.high,
                certainty="fitted",
                source=f"works side by side on {self.device}: {self.source}",
            )
            for name, one in self.ranges.items()
        }
        merged = {**base.known, **new}
        values = {**base.values, **{name: one.value for name, one in self.ranges.items()}}
        return Parameters(MappingProxyType(merged), MappingProxyType(values))

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, however the file is laid out."""
        content = {**asdict(replace(self, ranges={})), "ranges": {n: asdict(r) for n, r in sorted(self.ranges.items())}}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_contention_fit(path: Path, fit: ContentionFit) -> None:
    """Write a fit as JSON."""
    content = {
        "device": fit.device,
        "parameters": {name: asdict(one) for name, one in fit.ranges.items()},
        "undetermined": list(fit.undetermined),
        "spread": fit.spread,
        "scenarios": fit.scenarios,
        "source": fit.source,
        "groups": " ".join(fit.groups),
    }
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_contention_fit(path: str | Path) -> ContentionFit:
    """Read what `write_contention_fit` wrote.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, or it is no such fit: what is wrong is named.
    """
    absent = "no such file; `seqpoint calibrate contention` writes one"
    return read_calibration_file(path, absent, "no calibration of contention", _fit_of)


def _fit_of(content: Mapping[str, Any]) -> ContentionFit:
    ranges = {str(name): _range(str(name), row) for name, row in dict(content["parameters"]).items()}
    spread, groups = float(content["spread"]), str(content["groups"]).split()
    undetermined = tuple(str(name) for name in content["undetermined"])
    if not (isfinite(spread) and 0 <= spread < 10):
        raise InvalidInputError(f"spread is {spread:g}; it must be finite, and not negative")
    if unknown := sorted(set(undetermined) - {*BOUNDS, *CHOICES}):
        raise InvalidInputError(f"no parameter {unknown[0][:60]!r} is fitted")
    if not 0 < len(groups) <= _GROUPS or not all(map(_DIGEST.fullmatch, groups)):
        raise InvalidInputError(f"groups are 1 to {_GROUPS} digests of 16 characters")
    if len(set(undetermined)) != len(undetermined):
        raise InvalidInputError("undetermined names a parameter twice")
    scenarios = content["scenarios"]
    if type(scenarios) is not int or not 0 < scenarios <= _SCENARIOS:
        raise InvalidInputError(f"scenarios is {scenarios!r:.60}; it must be 1 to {_SCENARIOS}")
    device, source = (_text(name, content[name]) for name in ("device", "source"))
    return ContentionFit(device, MappingProxyType(ranges), undetermined, spread, scenarios, tuple(groups), source)


def _text(name: str, found: object) -> str:
    if not isinstance(found, str) or len(found) > _TEXT:
        raise InvalidInputError(f"{name} is {found!r:.60}; it must be a text of at most {_TEXT} characters")
    return found


def _range(name: str, row: Mapping[str, Any]) -> FittedRange:
    value, low, high = (float(row[key]) for key in ("value", "low", "high"))
    if name in CHOICES:
        if value not in (0.0, 1.0) or not low == value == high:
            raise InvalidInputError(f"{name} is {value:g}, from {low:g} to {high:g}; it is 0 or 1")
        return FittedRange(value, low, high)
    if name not in BOUNDS:
        raise InvalidInputError(f"no parameter {name[:60]!r} is fitted; there are {', '.join((*BOUNDS, *CHOICES))}")
    least, most = BOUNDS[name]
    if not least <= low <= value <= high <= most:
        raise InvalidInputError(
            f"{name} is {value:g}, from {low:g} to {high:g}; in that order, they must be within {least:g} to {most:g}"
        )
    return FittedRange(value, low, high)
