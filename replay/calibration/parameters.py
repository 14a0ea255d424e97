"""Parameters of the models, and files of fitted ones.

`Parameters` hold a value, a range and a source for every figure that models use, draw values from the ranges, and carry
the calibrations that models use beside them. `conformal_bound` gives the spread of predictions.

A calibration file holds fitted models of kernels, collectives, training, contention or GEMMs, in one JSON layout. It is
an envelope, `CalibrationFile`: what was fitted, on which devices, from which measurements. Inside is the fit, whose
layout the module of its kind defines as a msgspec struct. `CalibrationLayout` joins the two: it reads a file, checks
every key against the structs, and builds the fitted model. It writes a file only if it can read it back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Generic, Literal, TypeVar
from zlib import crc32

import msgspec
import numpy as np

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import key_first, read_toml, replaced_file
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


#: What can be calibrated: the subcommands of `seqpoint calibrate`.
Kind = Literal["kernels", "collectives", "training", "contention", "gemms"]
Fit = TypeVar("Fit")
Model = TypeVar("Model")
#: Version of the layout that this version writes and reads.
VERSION = 1
#: The largest file that is written has some hundred thousand digests of 17 bytes.
_LIMIT_BYTES = 2**24


class CalibrationFile(msgspec.Struct, Generic[Fit], frozen=True, forbid_unknown_fields=True):
    """The content of a calibration file.

    Parameters
    ----------
    kind : str
        What was fitted: ``"kernels"``, ``"collectives"``, ``"training"``, ``"contention"`` or ``"gemms"``.
    version : int
        Version of the layout.
    devices : tuple of str
        Devices that were measured, by the catalogue's names.
    source : str
        Measurements that were fitted, in words.
    fit : struct
        Fitted parameters, in the layout of the kind.
    """

    kind: Kind
    version: int
    devices: tuple[str, ...]
    source: str
    fit: Fit


@dataclass(frozen=True)
class CalibrationLayout(Generic[Fit, Model]):
    """How the files of one kind are read and written.

    Parameters
    ----------
    kind : str
        What is fitted.
    fit : type
        msgspec struct of the fitted parameters.
    build : callable
        Makes the fitted model from a file's content. It raises ValueError or SeqPointError where a figure cannot be.
    """

    kind: Kind
    fit: type[Fit]
    build: Callable[[CalibrationFile[Fit]], Model]

    def read(self, path: str | Path) -> Model:
        """Read a calibration file and return the fitted model.

        Parameters
        ----------
        path : str or Path
            JSON file that `write` wrote, of at most 16 MiB.

        Raises
        ------
        NotFoundError
            The file does not exist.
        InvalidInputError
            The file is no calibration of this kind; the message names the key.
        """
        file = Path(path)
        if not file.is_file():
            raise NotFoundError(f"{file}: no such calibration; `seqpoint calibrate {self.kind}` writes one")
        try:
            with file.open("rb") as stream:
                content = stream.read(_LIMIT_BYTES + 1)
            if len(content) > _LIMIT_BYTES:
                raise ValueError(f"larger than {_LIMIT_BYTES} bytes")
            return self._decoded(content)
        except (ValueError, RecursionError, OSError, SeqPointError) as error:
            reason = key_first(str(error))
            raise InvalidInputError(
                f"{file}: not what `seqpoint calibrate {self.kind}` writes ({reason}); make the file anew with it"
            ) from error

    def write(self, path: Path, fit: Fit, *, devices: Sequence[str], source: str) -> None:
        """Write a calibration file, whole or not at all.

        Parameters
        ----------
        path : Path
            JSON file to write or replace.
        fit : struct
            Fitted parameters.
        devices : sequence of str
            Devices that were measured, by the catalogue's names.
        source : str
            Measurements that were fitted, in words.

        Raises
        ------
        InvalidInputError
            `read` would refuse the content, for example a number that is not finite; or the file cannot be written.
        """
        content = CalibrationFile(self.kind, VERSION, tuple(devices), source, fit)
        try:
            text = msgspec.json.format(msgspec.json.encode(content), indent=1)
            self._decoded(text)
        except (ValueError, SeqPointError) as error:
            raise InvalidInputError(f"{path}: not written: {error}") from error
        with replaced_file(path) as stream:
            stream.write(text + b"\n")

    def _decoded(self, text: bytes) -> Model:
        """Return the model that a file's text holds; the kind is checked before the fit's layout."""
        envelope = msgspec.json.decode(text, type=CalibrationFile[msgspec.Raw])
        if envelope.kind != self.kind:
            raise ValueError(f"it is a calibration of {envelope.kind}")
        if envelope.version != VERSION:
            raise ValueError(f"its layout is version {envelope.version}; this program reads version {VERSION}")
        return self.build(msgspec.json.decode(text, type=CalibrationFile[self.fit]))  # type: ignore[name-defined]
