"""Parameters of the models, and tables of measurements.

`Parameters` hold a value, a range and a source for every figure that models use, draw values from the ranges, and carry
the calibrations that models use beside them. `measured_rows` reads the CSV tables that calibrations are fitted to; an
error names the file and the row.
"""

import csv
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from zlib import crc32

import msgspec
import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import read_toml

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
        kept = tuple(other for other in self.calibrations if type(other) is not type(calibration))
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

        So a parameter that is added, or used nowhere, changes no other's.
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
    known = msgspec.convert(read_toml(path, "parameters")["parameters"], dict[str, Parameter])
    values = {name: parameter.value for name, parameter in known.items()}
    return Parameters(MappingProxyType(known), MappingProxyType(values))


#: Texts by column; None where a line is short.
Row = Mapping[str, str | None]
T = TypeVar("T")
#: Of a whole number, at most, and of a text that a message repeats.
_DIGITS, _SHOWN_CHARACTERS = 9, 40


def measured_rows(path: str | Path, columns: Sequence[str], read: Callable[[str, Row], T]) -> list[T]:
    """Return what `read` makes of every row.

    Parameters
    ----------
    path : str or Path
        A CSV file in UTF-8 with these columns; or a folder, in which files with other columns are passed over.
    columns : sequence of str
        Columns that the file must have.
    read : callable
        ``(place, row)``, with the place (file and row, from 1) for messages; a row that it refuses ends the reading.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; there is no row; or a row is no CSV in UTF-8: it is named.
    """
    root = Path(path)
    if root.is_dir():
        files = [file for file in sorted(root.rglob("*.csv")) if _is_file(file) and set(columns) <= set(_header(file))]
        if not files:
            raise NotFoundError(f"{root}: no CSV file with the columns {', '.join(columns)}")
        return [found for file in files for found in _read(file, read)]
    if not root.is_file():
        raise NotFoundError(f"{root}: no such file")
    if missing := sorted(set(columns) - set(_header(root))):
        raise InvalidInputError(f"{root}: lacks {', '.join(missing)}; needed are {', '.join(columns)}")
    return _read(root, read)


def _is_file(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError as error:  # a link to nothing or to itself
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error


def _header(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            return next(csv.reader(stream), [])
    except csv.Error:
        return []
    except OSError as error:
        raise InvalidInputError(f"{file}: cannot be read ({error.strerror})") from error


def _read(file: Path, read: Callable[[str, Row], T]) -> list[T]:
    found = [read(place, row) for place, row in _rows(file)]
    if not found:
        raise InvalidInputError(f"{file}: there is no row below the header")
    return found


def _rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Yield place and row; about 5 us each."""
    place = f"{file}: row 1"
    try:
        # Bytes that are no UTF-8 become lone surrogates, so that the row that has them can be named.
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream), 1):
                "".join(text for text in row.values() if isinstance(text, str)).encode()
                yield place, row
                place = f"{file}: row {number + 1}"
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{place}: no UTF-8; save the file in that encoding") from error
    except csv.Error as error:
        raise InvalidInputError(f"{place}: no CSV ({error})") from error
    except OSError as error:
        raise InvalidInputError(f"{place}: cannot be read ({error.strerror})") from error


def measured_count(row: Row, name: str, digits: int = _DIGITS) -> int:
    """Return a whole number of 1 or more.

    Raises
    ------
    InvalidInputError
        It is none, or has more digits.

    Examples
    --------
    >>> measured_count({"batch": " 8"}, "batch")
    8
    """
    text = (row[name] or "").strip()
    # Digits of other scripts and powers (`²`) count as digits for Python.
    if not (text.isascii() and text.isdigit() and len(text) <= digits) or int(text) < 1:
        shown = text[:_SHOWN_CHARACTERS]
        raise InvalidInputError(f"{name} is {shown!r}; it must be a whole number of 1 or more, of {digits} digits")
    return int(text)
