"""Parameters of the models.

`Parameters` hold a value, a range and a source for every figure that models use, draw values from the ranges, and carry
the calibrations that models use beside them. `conformal_bound` gives the spread of predictions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from zlib import crc32

import msgspec
import numpy as np

from profilers.errors import InvalidInputError
from profilers.files import read_toml
from profilers.trace.arrays import Floats

Content = TypeVar("Content")
#: Half-width of the central 90 % of a normal distribution, in standard deviations.
_Z90 = 1.6448536269514722


@dataclass(frozen=True)
class Parameter:
    """A figure of a model.

    Parameters
    ----------
    value, low, high : float
        `low` to `high` is believed to hold the true value nine times in ten.
    unit, source, certainty : str
        `certainty` is ``"published"``, ``"fitted"`` or ``"assumed"``.
    """

    value: float
    low: float
    high: float
    unit: str
    source: str
    certainty: str

    def draw(self, random: np.random.Generator) -> float:
        """Return a value from the range: normal on each side of `value`, cut at one and a half times its width.

        A parameter that cannot be negative is drawn on a logarithmic scale. A share is cut half-way from `high` to 1.

        Raises
        ------
        InvalidInputError
            The range is so wide that a value beyond it is no number.
        """
        step = float(np.clip(random.standard_normal() / _Z90, -1.5, 1.5))
        side = self.high if step > 0 else self.low
        if self.low > 0:
            try:
                drawn = float(self.value * (side / self.value) ** abs(step))
            except OverflowError as error:
                raise InvalidInputError(f"{self.low:g} to {self.high:g} is too wide a range to draw from") from error
            return min(drawn, (1 + self.high) / 2) if self.unit.startswith("share") else drawn
        return self.value + abs(step) * (side - self.value)


@dataclass(frozen=True)
class Parameters:
    """Values of all parameters, nominal or drawn, and the calibrations that models use beside them.

    Parameters
    ----------
    known : mapping of str to Parameter
        Every parameter by name, with its range and source.
    values : mapping of str to float
        The values that models use, by name.
    calibrations : tuple
        Fitted models, one of a type, such as `replay.costs.kernels.Calibration`.
    """

    known: Mapping[str, Parameter]
    values: Mapping[str, float]
    calibrations: tuple[object, ...] = ()

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def calibration(self, kind: type[Content]) -> Content:
        """Return the calibration of a type.

        Parameters
        ----------
        kind : type
            Type of the calibration.

        Raises
        ------
        InvalidInputError
            The parameters hold no calibration of this type.
        """
        for calibration in self.calibrations:
            if isinstance(calibration, kind):
                return calibration
        raise InvalidInputError(f"the parameters hold no {kind.__name__}; add one by Parameters.with_calibration")

    def with_calibration(self, calibration: object) -> "Parameters":
        """Return parameters with a calibration in place of the one of its type.

        Parameters
        ----------
        calibration : object
            Fitted models of any type.
        """
        kept = tuple(each for each in self.calibrations if type(each) is not type(calibration))
        return replace(self, calibrations=(*kept, calibration))

    def with_values(self, values: Iterable[tuple[str, float]]) -> "Parameters":
        """Return parameters with other values for some of them; ranges stay.

        Parameters
        ----------
        values : iterable of (str, float)
            Name and value of each parameter to change.
        """
        changes = dict(values)
        return replace(self, values={**self.values, **changes}) if changes else self

    def drawn(self, random: np.random.Generator) -> "Parameters":
        """Return parameters whose values are drawn from their ranges, each from numbers of its own.

        So adding a parameter changes no other parameter's values.
        """
        key = int(random.integers(2**63))
        streams = {name: np.random.default_rng((key, crc32(name.encode()))) for name in self.known}
        return replace(self, values={name: p.draw(streams[name]) for name, p in self.known.items()})


def read_parameters(path: Path) -> Parameters:
    """Read parameters at their nominal values, without calibrations.

    Parameters
    ----------
    path : Path
        TOML file in the layout of `datasets/parameters.toml`.

    Examples
    --------
    >>> from profilers.files import dataset_path
    >>> read_parameters(dataset_path("parameters.toml"))["dma_command_ns"]
    5500.0
    """
    parameters = msgspec.convert(read_toml(path, "parameters")["parameters"], dict[str, Parameter])
    values = {name: parameter.value for name, parameter in parameters.items()}
    return Parameters(MappingProxyType(parameters), MappingProxyType(values))


def conformal_bound(errors: Floats, confidence: float) -> float:
    """Return the bound on a new absolute error: of m errors in order, the one at ``(m + 1) * confidence``.

    Parameters
    ----------
    errors : array of float64, shape (m,)
        Errors of predictions that were not fitted, one or more.
    confidence : float
        Confidence level of the bound.

    Notes
    -----
    Split conformal prediction: Lei et al., JASA 113 (2018), 1094.

    Examples
    --------
    >>> conformal_bound(np.array([0.3, -0.1, 0.2, -0.4]), 0.6)
    0.3
    """
    ordered = np.sort(np.abs(errors))
    return float(ordered[min(int(np.ceil((len(ordered) + 1) * confidence)), len(ordered)) - 1])
