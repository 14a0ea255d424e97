"""The parameters of the models: value, range, source; and draws from their ranges."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from zlib import crc32

import numpy as np

from profilers.datasets import dataset_path
from profilers.errors import InvalidInputError

__all__ = ["Parameter", "Parameters", "load_parameters"]

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

        A parameter that cannot be negative is drawn on a logarithmic scale. Of a share, what is beyond `high` ends
        half-way to 1.

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
    """Values of all parameters: the nominal ones, or one draw.

    Parameters
    ----------
    known : mapping of str to Parameter
    values : mapping of str to float
        What the models use.
    """

    known: Mapping[str, Parameter]
    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def with_values(self, values: Iterable[tuple[str, float]]) -> "Parameters":
        """Return parameters of which some have these values, in place of their own or drawn ones."""
        given = dict(values)
        return Parameters(self.known, {**self.values, **given}) if given else self

    def drawn(self, random: np.random.Generator) -> "Parameters":
        """Return parameters whose values are drawn from their ranges, each from numbers of its own.

        So a parameter that is added, or used nowhere, changes no other's.
        """
        key = int(random.integers(2**63))
        streams = {name: np.random.default_rng((key, crc32(name.encode()))) for name in self.known}
        return Parameters(self.known, {name: p.draw(streams[name]) for name, p in self.known.items()})


@cache
def load_parameters() -> Parameters:
    """Return the shipped parameters at their nominal values.

    Examples
    --------
    >>> load_parameters()["dma_command_ns"]
    5500.0
    """
    with dataset_path("parameters.toml").open("rb") as stream:
        content = tomllib.load(stream)["parameters"]
    known = {
        name: Parameter(
            value=float(row["value"]),
            low=float(row["low"]),
            high=float(row["high"]),
            unit=row["unit"],
            source=row["source"],
            certainty=row["certainty"],
        )
        for name, row in content.items()
    }
    return Parameters(MappingProxyType(known), MappingProxyType({name: p.value for name, p in known.items()}))
