"""What papers report, with how far each figure can be trusted, beside what our models of their set-ups say."""

from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profilers.errors import BrokenFileError, NotFoundError
from profilers.files import dataset_path, parse_toml
from replay.calibration.parameters import Parameters

#: The systems, and the module that works out what each paper reports.
SYSTEMS = MappingProxyType(
    {
        "c3": "replay.studies.c3",
        "t3": "replay.studies.t3.study",
        "ficco": "replay.studies.ficco_chooser",
        "fused": "replay.studies.fused.study",
    }
)
#: By system, the module and the function of each part of the published set-up that `reproduce` takes.
_SETUPS = MappingProxyType(
    {
        "c3": (("replay.studies.c3", "load_scenarios"),),
        "t3": (("replay.studies.t3", "load_workload"),),
        "ficco": (("replay.studies.ficco", "load_scenarios"), ("replay.studies.ficco_chooser", "load_chooser")),
        "fused": (("replay.studies.fused", "load_workloads"),),
    }
)
#: Abstract of the paper, a public source that was read, derived by arithmetic, a secondary description, recollection.
_GRADES = ("A", "S", "D", "W", "M")
_LIMITS = ("absolute", "relative")


@dataclass(frozen=True)
class PublishedFigure:
    """A figure that a paper reports.

    Parameters
    ----------
    name : str
    paper, setting, quantity : str
    value : float
    unit : str
        ``"cases"``: in how many of `value` cases something holds.
    grade : str
        Its evidence: ``"A"`` abstract of the paper, ``"S"`` a public source, ``"D"`` arithmetic, ``"W"`` a secondary
        description, ``"M"`` recollection. The last two are shown and not gated.
    limit : float
        What ours may differ by.
    limit_is : str
        ``"absolute"``, in the unit, or ``"relative"``.
    fitted : bool
        Whether a parameter was fitted on it; otherwise ours is a prediction.
    source : str
    """

    name: str
    paper: str
    setting: str
    quantity: str
    value: float
    unit: str
    grade: str
    limit: float
    limit_is: str
    fitted: bool
    source: str

    @property
    def gated(self) -> bool:
        """Whether it decides anything."""
        return self.grade in ("A", "S", "D")

    @property
    def scale(self) -> float:
        """What errors are shares of: the value; 1 where that is 0."""
        return abs(self.value) or 1.0

    @property
    def relative_limit(self) -> float:
        """`limit` as a share of `scale`."""
        return self.limit if self.limit_is == "relative" else self.limit / self.scale


def published_figures(system: str) -> tuple[PublishedFigure, ...]:
    """Return what is published of one of `SYSTEMS`.

    Raises
    ------
    NotFoundError
        There is no such system.

    Examples
    --------
    >>> {figure.paper for figure in published_figures("t3")}
    {'arXiv 2401.16677'}
    """
    if system not in SYSTEMS:
        raise NotFoundError(f"no published system is called {system[:40]!r}; there are {', '.join(SYSTEMS)}")
    return read_figures(dataset_path(f"published/{system}.toml"))


@cache
def read_figures(file: Path) -> tuple[PublishedFigure, ...]:
    """Return the figures of a file.

    Raises
    ------
    BrokenFileError
        An entry lacks a field, has one too many, or one of the wrong kind.
    """
    try:
        entries = parse_toml(file.read_text(encoding="utf-8")).get("figures")
    except ValueError as error:
        raise BrokenFileError(f"{file}: no TOML: {error}") from error
    if not isinstance(entries, dict) or not entries:
        raise BrokenFileError(f"{file}: no table [figures.NAME]")
    return tuple(_figure(name, entry, f"{file}: figures.{name}") for name, entry in entries.items())


def _figure(name: str, entry: Any, place: str) -> PublishedFigure:
    wanted = {one.name: one.type for one in fields(PublishedFigure) if one.name != "name"}
    if not isinstance(entry, dict) or entry.keys() != wanted.keys():
        raise BrokenFileError(f"{place}: its fields are {', '.join(wanted)}")
    for field_, type_ in wanted.items():
        allowed = (int, float) if type_ is float else type_
        if not isinstance(entry[field_], allowed) or isinstance(entry[field_], bool) != (type_ is bool):  # type: ignore[arg-type]
            raise BrokenFileError(f"{place}: {field_} is {entry[field_]!r}")
    if entry["grade"] not in _GRADES or entry["limit_is"] not in _LIMITS or entry["limit"] < 0:
        raise BrokenFileError(f"{place}: a grade is one of {_GRADES}, a limit one of {_LIMITS} and not negative")
    if entry["value"] == 0 and entry["limit_is"] == "relative":
        raise BrokenFileError(f"{place}: the limit of a value of 0 is absolute")
    return PublishedFigure(name, **entry)


def reproduced(system: str, parameters: Parameters) -> dict[str, float]:
    """Return our figure for each published one of a system, by name.

    Parameters
    ----------
    system : str
        One of `SYSTEMS`.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    NotFoundError
        There is no such system.
    """
    published_figures(system)
    setup = [getattr(import_module(module), loader)() for module, loader in _SETUPS[system]]
    figures: dict[str, float] = import_module(SYSTEMS[system]).reproduce(parameters, *setup)
    return figures
