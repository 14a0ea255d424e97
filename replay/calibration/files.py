"""Calibration files: fitted models of kernels, collectives, training, contention and GEMMs, in one JSON layout.

A file is an envelope, `CalibrationFile`: what was fitted, on which devices, from which measurements. Inside is the fit,
whose layout the module of its kind defines as a msgspec struct. `CalibrationLayout` joins the two: it reads a file,
checks every key against the structs, and builds the fitted model. It writes a file only if it can read it back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec

from profilers.errors import InvalidInputError, NotFoundError, SeqPointError
from profilers.files import key_first, replaced_file

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
