"""Score predicted times of whole models against measured ones, with each device's own fits and without."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from profilers.devices import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.durations import Calibration, load_calibration
from replay.jobs import Pass, Step, Timed, Transformer, backward, find_transformer, forward, fused, time_operators
from seqpoint.validation.rows import ValidationRow

__all__ = ["MeasuredModel", "ModelScore", "model_rows", "read_models", "score_models"]

_COLUMNS = ("device", "model", "mode", "seq_len", "batch", "e2e_ms")
_MODES, _OPTIONS = ("inf", "train"), ("", "fusion")
#: Mean error over all runs whose device is left out.
_LIMIT = 0.09


@dataclass(frozen=True)
class MeasuredModel:
    """A measured run of a model.

    Parameters
    ----------
    device : Device
    model : Transformer
    run : Pass
    fused : bool
        Whether a compiler fused its operators.
    seconds : float
        Of a forward pass, in training with its backward pass.
    source : str
        File and row.
    """

    device: Device
    model: Transformer
    run: Pass
    fused: bool
    seconds: float
    source: str

    @property
    def name(self) -> str:
        """What is run."""
        kind = ("training" if self.run.training else "inference") + (", fused" if self.fused else "")
        return f"{self.model.name} {kind}, {self.run.batch} x {self.run.length}"


@dataclass(frozen=True)
class ModelScore:
    """A run, predicted.

    Parameters
    ----------
    measured : MeasuredModel
    basis : str
        ``"fitted"``: fits of its device were used where there are any; ``"carried"``: none were.
    seconds, low, high : float
        Predicted, with the interval that is meant to hold nine in ten.
    """

    measured: MeasuredModel
    basis: str
    seconds: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs(self.seconds / self.measured.seconds - 1)

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured.seconds <= self.high


def read_models(path: str | Path, known: Mapping[str, Transformer] | None = None) -> list[MeasuredModel]:
    """Read measured runs of models, from a CSV file or every fitting one in a folder.

    Columns: ``device``, ``model``, ``mode`` (inf or train), ``seq_len``, ``batch``, ``e2e_ms``, and ``option`` (empty
    or fusion) where there is one. FP32.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column is missing; or a row cannot be: it is named, with what is accepted.
    """
    root = Path(path)
    if root.is_dir():
        files = [file for file in sorted(root.rglob("*.csv")) if set(_COLUMNS) <= set(_header(file))]
        if not files:
            raise NotFoundError(f"{root}: no CSV file with the columns {', '.join(_COLUMNS)}")
        return [row for file in files for row in _rows(file, known)]
    if not root.is_file():
        raise NotFoundError(f"{root}: no such file")
    if missing := sorted(set(_COLUMNS) - set(_header(root))):
        raise InvalidInputError(f"{root}: lacks {', '.join(missing)}; needed are {', '.join(_COLUMNS)}")
    return _rows(root, known)


def _header(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream), [])
    except (UnicodeDecodeError, csv.Error):
        return []


def _rows(file: Path, known: Mapping[str, Transformer] | None) -> list[MeasuredModel]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        return [_row(f"{file}: row {i}", row, known) for i, row in enumerate(csv.DictReader(stream), 1)]


def _row(place: str, row: Mapping[str, str | None], known: Mapping[str, Transformer] | None) -> MeasuredModel:
    mode, option = row["mode"] or "", row.get("option") or ""
    if mode not in _MODES or option not in _OPTIONS:
        raise InvalidInputError(
            f"{place}: mode {mode!r}, option {option!r}; modes are inf, train, options none, fusion"
        )
    try:
        run = Pass(_number(place, row, "batch"), _number(place, row, "seq_len"), mode == "train")
        device, model = find_device(row["device"] or ""), find_transformer(row["model"] or "", known)
    except (NotFoundError, InvalidInputError) as error:
        raise InvalidInputError(f"{place}: {error}") from error
    try:
        milliseconds = float(row["e2e_ms"] or "")
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        raise InvalidInputError(f"{place}: e2e_ms is {row['e2e_ms']!r}; it must be a number above zero")
    return MeasuredModel(device, model, run, option == "fusion", milliseconds / 1e3, place)


def _number(place: str, row: Mapping[str, str | None], name: str) -> int:
    text = row[name] or ""
    if not text.isdigit() or int(text) < 1:
        raise InvalidInputError(f"{name} is {text!r}; it must be a whole number of 1 or more")
    return int(text)


def score_models(measured: Sequence[MeasuredModel], calibration: Calibration | None = None) -> list[ModelScore]:
    """Predict every run twice: with the fits of its device, and as if that had never been measured.

    Parameters
    ----------
    measured : sequence of MeasuredModel
    calibration : Calibration, optional
        By default the shipped one.
    """
    known = calibration or load_calibration()
    found = []
    for one in measured:
        if any(device == one.device.name for _, device, _ in known.fits):
            found.append(_score(one, "fitted", (), known))
        found.append(_score(one, "carried", (one.device.name,), known))
    return found


def _score(measured: MeasuredModel, basis: str, without: tuple[str, ...], known: Calibration) -> ModelScore:
    steps = forward(measured.model, measured.run)
    run = fused(steps) if measured.fused else steps
    run = [*run, *backward(steps)] if measured.run.training else run
    timed = _timed(run, measured.device, without, known)
    return ModelScore(measured, basis, timed.total, *timed.interval())


def _timed(run: Sequence[Step], device: Device, without: tuple[str, ...], known: Calibration) -> Timed:
    return time_operators([step.operator for step in run], device, calibration=known, without=without)


def model_rows(scores: Sequence[ModelScore]) -> list[ValidationRow]:
    """Return a row a run, then the mean over all whose device was left out."""
    rows = [
        ValidationRow(
            f"{one.measured.name}, {one.measured.device.name}, {one.basis}",
            one.measured.seconds,
            one.seconds,
            one.error,
            source=one.measured.source,
        )
        for one in scores
    ]
    left_out = [one.error for one in scores if one.basis == "carried"]
    if left_out:
        mean = float(np.mean(left_out))
        rows.append(ValidationRow("each device left out: mean", None, mean, mean, _LIMIT, source="the cases above"))
    return rows
