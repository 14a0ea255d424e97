"""Compare predicted times of whole transformers with those measured in PATH.

Columns are device, model, mode (inf or train), seq_len, batch, e2e_ms, and option if operators were fused; FP32.
Each device is predicted with its own fits, if it has fits, and as if it had never been seen.

\b
seqpoint validate models measured.csv --json
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError
from replay import workloads
from replay.calibration.parameters import Parameters
from replay.calibration.tables import Row, measured_count, measured_number, measured_rows
from replay.costs.kernels import KernelCalibration, read_calibration
from replay.graph.operators import Operator
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import (
    Progress,
    Suite,
    SuiteOptions,
    SuiteResult,
    TimedScore,
    ValidationRow,
    followed,
    short_devices,
    summary_row,
    table_columns,
)

_COLUMNS = ("device", "model", "mode", "seq_len", "batch", "e2e_ms")
_MODES, _OPTIONS = ("inf", "train"), ("", "fusion")
#: Mean error over all runs whose device is left out.
_LIMIT = 0.07
#: Characters of a text that a message repeats.
_SHOWN = 40
#: No name of a device or a model is longer.
_NAME = 200


@dataclass(frozen=True)
class MeasuredModel:
    """A measured run of a model.

    Parameters
    ----------
    device : Device
        Device that it ran on.
    model : Transformer
        Model that ran.
    run : Pass
        Batch, sequence length, and whether the backward pass ran too.
    fused : bool
        Whether a compiler fused its operators.
    seconds : float
        Measured time of a forward pass, and in training of its backward pass too.
    source : str
        File and row.
    """

    device: Device
    model: workloads.Transformer
    run: workloads.DecoderPass
    fused: bool
    seconds: float
    source: str

    @property
    def name(self) -> str:
        """Model, kind of pass, batch and length."""
        kind = ("training" if self.run.training else "inference") + (", fused" if self.fused else "")
        return f"{self.model.name} {kind}, {self.run.batch} x {self.run.length}"


#: A run with its prediction.
ModelScore = TimedScore[MeasuredModel]


def read_models(path: str | Path, models: Mapping[str, workloads.Transformer] | None = None) -> list[MeasuredModel]:
    """Read measured runs of models, from a CSV file or every fitting CSV file in a folder.

    Columns: ``device``, ``model``, ``mode`` (inf or train), ``seq_len``, ``batch``, ``e2e_ms``, and ``option`` (empty
    or fusion), which may be absent. FP32.

    Parameters
    ----------
    path : str or Path
        The file or folder.
    models : mapping of str to Transformer, optional
        Models by name; by default the shipped ones.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file; a column or all rows are missing; or a row is wrong: the message names it, and the
        accepted values.
    """
    models_by_name = workloads.load_transformers() if models is None else models
    return measured_rows(path, _COLUMNS, lambda where, row: _row(where, row, models_by_name))


def _row(where: str, row: Row, models: Mapping[str, workloads.Transformer]) -> MeasuredModel:
    mode, option = row["mode"] or "", row.get("option") or ""
    if mode not in _MODES or option not in _OPTIONS:
        raise InvalidInputError(
            f"mode {mode[:_SHOWN]!r}, option {option[:_SHOWN]!r}; modes are inf, train, options none, fusion"
        )
    run = workloads.DecoderPass(measured_count(row, "batch"), measured_count(row, "seq_len"), mode == "train")
    device, model = find_device(_name(row, "device")), workloads.find_transformer(_name(row, "model"), models)
    return MeasuredModel(device, model, run, option == "fusion", measured_number(row, "e2e_ms") / 1e3, where)


def _name(row: Row, column: str) -> str:
    """Return the name in a column, cut to the longest known length."""
    return (row[column] or "")[:_NAME]


def score_models(
    measured: Sequence[MeasuredModel], parameters: Parameters, progress: Progress | None = None
) -> list[ModelScore]:
    """Predict every run twice: with the fits of its device, and as if the device had never been measured.

    Parameters
    ----------
    measured : sequence of MeasuredModel
        Runs, with their times.
    parameters : Parameters
        With a calibration of kernels.
    progress : callable, optional
        Called with (runs done, runs in all, what).

    Notes
    -----
    Equal runs, and equal operators of a run, are predicted once, and all operators of a device together. 20,000 equal
    rows, or 10,000 equal layers, take little longer than one.
    """
    fits = parameters.calibration(KernelCalibration).fits
    fitted = {device for _, device, dtype, _ in fits if dtype == "fp32"}
    tallies = _tallies(measured, progress)
    groups: dict[tuple[Device, str], dict[_Job, None]] = {}
    for run in measured:
        for basis in ("fitted", "carried") if run.device.name in fitted else ("carried",):
            groups.setdefault((run.device, basis), {})[_job(run)] = None
    timed: dict[tuple[str, str, _Job], tuple[float, float, float]] = {}
    for (device, basis), jobs in groups.items():
        without = (device.name,) if basis == "carried" else ()
        times = _together({job: tallies[job] for job in jobs}, device, parameters, without)
        timed |= {(device.name, basis, job): (time.total, *time.interval()) for job, time in times.items()}
    keys = [(run, basis, (run.device.name, basis, _job(run))) for run in measured for basis in ("fitted", "carried")]
    return [ModelScore(run.name, run, basis, *timed[key]) for run, basis, key in keys if key in timed]


#: A run on any device: the model, its pass, and whether operators are fused.
_Job = tuple[workloads.Transformer, workloads.DecoderPass, bool]


def _job(measured: MeasuredModel) -> _Job:
    return measured.model, measured.run, measured.fused


def _tallies(measured: Sequence[MeasuredModel], progress: Progress | None) -> dict[_Job, workloads.Tally]:
    """Count the operators of every different run; a Python loop over them, about 2 ms each."""
    jobs = followed(dict.fromkeys(map(_job, measured)), progress, lambda job: job[0].name)
    return {job: workloads.tally(job[0], partial(_steps, *job[1:])) for job in jobs}


def _steps(run: workloads.DecoderPass, fusing: bool, model: workloads.Transformer) -> list[workloads.Step]:
    steps = workloads.forward(model, run)
    first = workloads.fused(steps) if fusing else steps
    return [*first, *workloads.backward(steps)] if run.training else first


def _together(
    jobs: Mapping[_Job, workloads.Tally], device: Device, parameters: Parameters, without: tuple[str, ...]
) -> dict[_Job, workloads.Timed]:
    """Time the operators of several jobs; an operator of several jobs is timed once."""
    index: dict[Operator, int] = {}
    for counted in jobs.values():
        for operator in counted.operators:
            index.setdefault(operator, len(index))
    timed = workloads.time_operators(list(index), device, parameters=parameters, without=without)
    return {job: timed.picked([index[o] for o in counted.operators], counted.counts) for job, counted in jobs.items()}


def model_rows(scores: Sequence[ModelScore]) -> list[ValidationRow]:
    """Return a row for each run, then the mean over the runs whose device was left out."""
    rows = [score.row(f"{score.case}, {score.measured.device.name}, {score.basis}") for score in scores]
    carried = [score.error for score in scores if score.basis == "carried"]
    if carried:
        rows.append(summary_row("each device left out: mean", float(np.mean(carried)), _LIMIT))
    return rows


def _scored(measured: Sequence[MeasuredModel], options: SuiteOptions) -> SuiteResult:
    """Score runs with the shipped or the given calibration."""
    parameters = options.parameters
    if options.calibration:
        parameters = parameters.with_calibration(read_calibration(options.calibration))
    scores = score_models(measured, parameters, options.progress("counting operators"))
    details = {"scores": [{**score.content(), "device": score.measured.device.name} for score in scores]}
    return SuiteResult(model_rows(scores), details, [_table(scores)], scores)


def _table(scores: Sequence[ModelScore]) -> Table:
    """Return the table of runs."""
    short = short_devices(s.measured.device.name for s in scores)
    columns = {
        "run~": "{run}", "device~": "{device}", "basis~": "{s.basis}", "took": "{s.measured.seconds:.0ms}",
        "ours": "{s.seconds:.0ms}", "90 %": "{s.low:.0ms}-{s.high:.0ms}", "err %": "{s.error:.1%}",
    }  # fmt: skip
    names = [{"s": s, "run": _short_name(s.measured), "device": short[s.measured.device.name]} for s in scores]
    return table_of("Predicted against measured times, in ms", columns, names)


def _short_name(measured: MeasuredModel) -> str:
    """Return the name of a run for a narrow column."""
    words = (measured.model.name, "train" if measured.run.training else "inf", *(["fused"] if measured.fused else []))
    return f"{' '.join(words)} {measured.run.batch}x{measured.run.length}"


SUITE = Suite(
    name="models",
    description=__doc__,
    needs=f"CSV file of measured models (columns {', '.join(_COLUMNS)})",
    source=lambda file: file if file.suffix == ".csv" and set(_COLUMNS) <= set(table_columns(file)) else None,
    read=lambda sources, options: [
        run for source in sources for run in read_models(source, workloads.load_transformers(options.models))
    ],
    score=_scored,
    options=("models", "calibration"),
)
