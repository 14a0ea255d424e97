"""Score predicted times of whole models against measured ones, with each device's own fits and without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from replay.calibration.parameters import Row, measured_count, measured_rows
from replay.costs.kernels import Calibration, load_calibration
from replay.costs.shipped import load_parameters
from replay.graph.operators import Operator
from replay.workloads import (
    Pass,
    Step,
    Tally,
    Timed,
    Transformer,
    backward,
    find_transformer,
    forward,
    fused,
    load_transformers,
    tally,
    time_operators,
)
from seqpoint.validation.rows import ValidationRow

_COLUMNS = ("device", "model", "mode", "seq_len", "batch", "e2e_ms")
_MODES, _OPTIONS = ("inf", "train"), ("", "fusion")
#: Mean error over all runs whose device is left out.
_LIMIT = 0.09
#: Characters of a text that a message repeats.
_SHOWN = 40
#: No name of a device or a model is longer.
_NAME = 200
#: Called with (done, in all, what).
Progress = Callable[[int, int, str], None]


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
        There is no such file; a column is missing; there is no row; or a row cannot be: it is named, with what is
        accepted.
    """
    models = load_transformers() if known is None else known
    return measured_rows(path, _COLUMNS, lambda place, row: _row(place, row, models))


def _row(place: str, row: Row, known: Mapping[str, Transformer]) -> MeasuredModel:
    mode, option = row["mode"] or "", row.get("option") or ""
    if mode not in _MODES or option not in _OPTIONS:
        raise InvalidInputError(
            f"{place}: mode {mode[:_SHOWN]!r}, option {option[:_SHOWN]!r}; modes are inf, train, options none, fusion"
        )
    try:
        run = Pass(measured_count(row, "batch"), measured_count(row, "seq_len"), mode == "train")
        device, model = find_device(_name(row, "device")), find_transformer(_name(row, "model"), known)
    except (NotFoundError, InvalidInputError) as error:
        raise InvalidInputError(f"{place}: {error}") from error
    try:
        milliseconds = float(row["e2e_ms"] or "")
    except ValueError:
        milliseconds = 0.0
    if not (isfinite(milliseconds) and milliseconds > 0):
        shown = (row["e2e_ms"] or "")[:_SHOWN]
        raise InvalidInputError(f"{place}: e2e_ms is {shown!r}; it must be a number above zero")
    return MeasuredModel(device, model, run, option == "fusion", milliseconds / 1e3, place)


def _name(row: Row, column: str) -> str:
    """Return a name; of one that is longer than any, the beginning."""
    return (row[column] or "")[:_NAME]


def score_models(
    measured: Sequence[MeasuredModel], calibration: Calibration | None = None, progress: Progress | None = None
) -> list[ModelScore]:
    """Predict every run twice: with the fits of its device, and as if that had never been measured.

    Parameters
    ----------
    measured : sequence of MeasuredModel
    calibration : Calibration, optional
        By default the shipped one.
    progress : callable, optional
        Called with (runs done, runs in all, what).

    Notes
    -----
    Runs that are equal are predicted once, of a run only operators that differ, and all of a device together: 20,000
    equal rows, or 10,000 layers, take little longer than one of each.
    """
    known = calibration or load_calibration()
    fitted = {device for _, device, _ in known.fits}
    listed = _listed(measured, progress)
    groups: dict[tuple[Device, str], dict[_Job, None]] = {}
    for one in measured:
        for basis in ("fitted", "carried") if one.device.name in fitted else ("carried",):
            groups.setdefault((one.device, basis), {})[_job(one)] = None
    timed: dict[tuple[str, str, _Job], tuple[float, float, float]] = {}
    for (device, basis), jobs in groups.items():
        without = (device.name,) if basis == "carried" else ()
        each = _together({job: listed[job] for job in jobs}, device, known, without)
        timed |= {(device.name, basis, job): (one.total, *one.interval()) for job, one in each.items()}
    keys = [(one, basis, (one.device.name, basis, _job(one))) for one in measured for basis in ("fitted", "carried")]
    return [ModelScore(one, basis, *timed[key]) for one, basis, key in keys if key in timed]


#: What is run, wherever: the model, how, and whether operators are fused.
_Job = tuple[Transformer, Pass, bool]


def _job(one: MeasuredModel) -> _Job:
    return one.model, one.run, one.fused


def _listed(measured: Sequence[MeasuredModel], progress: Progress | None) -> dict[_Job, Tally]:
    """Count the operators of every different run; a Python loop over them, about 2 ms each."""
    jobs = list(dict.fromkeys(map(_job, measured)))
    found = {}
    for number, (model, run, fusing) in enumerate(jobs):
        if progress:
            progress(number, len(jobs), model.name)
        found[model, run, fusing] = tally(model, partial(_steps, run, fusing))
    return found


def _steps(run: Pass, fusing: bool, model: Transformer) -> list[Step]:
    steps = forward(model, run)
    first = fused(steps) if fusing else steps
    return [*first, *backward(steps)] if run.training else first


def _together(
    jobs: Mapping[_Job, Tally], device: Device, known: Calibration, without: tuple[str, ...]
) -> dict[_Job, Timed]:
    """Time the operators of several jobs, each that is in several once."""
    place: dict[Operator, int] = {}
    for one in jobs.values():
        for operator in one.operators:
            place.setdefault(operator, len(place))
    parameters = load_parameters().with_calibration(known)
    timed = time_operators(list(place), device, parameters=parameters, without=without)
    return {job: timed.picked([place[o] for o in one.operators], one.counts) for job, one in jobs.items()}


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
