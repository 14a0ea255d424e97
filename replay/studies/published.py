"""Figures that papers report, with the evidence for each, and the figures that our simulations of them give."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Annotated

import msgspec

from profilers.errors import BrokenFileError, InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml
from replay.calibration.parameters import Parameters
from replay.workloads.architecture import named_tables

#: By system, the function that works out what the paper reports, and the functions that load its published set-up.
SYSTEMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "c3": ("replay.studies.c3:reproduce", "replay.studies.c3:load_scenarios"),
        "t3": ("replay.studies.t3:reproduce", "replay.studies.t3:load_workload"),
        "ficco": (
            "replay.studies.ficco:reproduce",
            "replay.studies.ficco:load_scenarios",
            "replay.what_ifs.chooser:load_chooser",
        ),
        "fused": ("replay.studies.fused:reproduce", "replay.studies.fused:load_workloads"),
        "goldyloc": ("replay.studies.goldyloc:reproduce", "replay.studies.goldyloc:load_workloads"),
        "caching": ("replay.studies.caching:reproduce", "replay.studies.workloads:load_study"),
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
        Name of the figure in its file.
    paper, setting, quantity : str
        Paper, set-up, and quantity that the figure is of.
    value : float
        The published value, in `unit`.
    unit : str
        ``"cases"``: in how many of `value` cases something holds.
    grade : str
        Its evidence: ``"A"`` abstract of the paper, ``"S"`` a public source, ``"D"`` arithmetic, ``"W"`` a secondary
        description, ``"M"`` recollection. The last two are shown and not gated.
    limit : float
        Largest difference of ours that is accepted.
    limit_is : str
        ``"absolute"``, in the unit, or ``"relative"``.
    fitted : bool
        Whether a parameter was fitted on it; otherwise ours is a prediction.
    source : str
        Where the value stands, in words.
    """

    name: str
    paper: str
    setting: str
    quantity: str
    value: float
    unit: str
    grade: str
    limit: Annotated[float, msgspec.Meta(ge=0)]
    limit_is: str
    fitted: bool
    source: str

    def __post_init__(self) -> None:
        if self.grade not in _GRADES or self.limit_is not in _LIMITS:
            raise InvalidInputError(
                f"{self.name}: a grade is one of {', '.join(_GRADES)}, a limit one of {', '.join(_LIMITS)}"
            )
        if self.value == 0 and self.limit_is == "relative":
            raise InvalidInputError(f"{self.name}: the limit of a value of 0 is absolute")

    @property
    def gated(self) -> bool:
        """Whether it decides anything."""
        return self.grade in ("A", "S", "D")

    @property
    def scale(self) -> float:
        """Scale of errors: the value, or 1 if that is 0."""
        return abs(self.value) or 1.0

    @property
    def relative_limit(self) -> float:
        """`limit` as a share of `scale`."""
        return self.limit if self.limit_is == "relative" else self.limit / self.scale


def published_figures(system: str) -> tuple[PublishedFigure, ...]:
    """Return the published figures of one of `SYSTEMS`.

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
    """Read published figures.

    Parameters
    ----------
    file : Path
        TOML file in the layout of `datasets/published`.

    Raises
    ------
    BrokenFileError
        An entry lacks a key, has one too many, or one of the wrong kind; the message names it.
    """
    try:
        return tuple(named_tables(read_toml(file, "published figures"), "figures", PublishedFigure, file).values())
    except InvalidInputError as error:
        raise BrokenFileError(str(error)) from error


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
    reproduce, *loaders = map(resolve_name, SYSTEMS[system])
    figures: dict[str, float] = reproduce(parameters, *(load() for load in loaders))
    return figures
