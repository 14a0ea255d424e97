"""Compare the predicted memory of training jobs with what was measured in PATH.

PATH holds SimuMax's runs on B200, with memory_allocated_rank0_mib to rank7 and memory_reserved_rank0_mib to rank7 of
each memory_source_case, or runs of MLPerf Training with max_memory_allocated_gib; both with the columns of their steps.
A run of several pipeline stages is a case for each. Allocated bytes have no fitted parameter. The share that the
allocator reserves besides was fitted to half of SimuMax's runs, which are marked. MLPerf's logs do not say which rank
they are of: it is taken to be one of the last stage, and has no limit.

\b
seqpoint validate job_memory simumax_b200_steps_memory.csv --gate
seqpoint validate job_memory ../shared/data/training --json
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from profilers.devices.catalogue import find_device
from profilers.errors import InvalidInputError
from replay.calibration.tables import Row, measured_number, measured_rows, note_row
from replay.workloads import TrainingJob, fits, job_memory, memory_by_stage
from replay.workloads.training_fits import is_fitted_system
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import (
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    grouped,
    summary_row,
    table_columns,
)
from seqpoint.validation.training_tables import step_of_row, table_kind, table_needs

#: Mean error of the allocated bytes, and of the reserved ones of runs that were not fitted.
_LIMIT = 0.08
_RANKS = 8
_ALLOCATED, _RESERVED = (
    tuple(f"memory_{name}_rank{i}_mib" for i in range(_RANKS)) for name in ("allocated", "reserved")
)
#: Columns of memory by kind of table.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "SimuMax": ("case", "memory_source_case", *_ALLOCATED, *_RESERVED),
    "MLPerf": ("max_memory_allocated_gib",),
}
_NEEDS = "CSV file of training jobs with their memory (memory_allocated_rank0_mib or max_memory_allocated_gib)"


@dataclass(frozen=True)
class MeasuredMemory:
    """Memory of a training job.

    Parameters
    ----------
    kind : str
        Table that it is of.
    case : str
        Name of the run.
    job : TrainingJob
        The job.
    device : str
        Device that it ran on.
    allocated_gib : tuple of float
        Largest allocated memory of the ranks of each pipeline stage, or of one rank of the last stage.
    reserved_gib : float
        Largest reserved memory of all ranks; NaN if unknown.
    source : str
        File and row.
    """

    kind: str
    case: str
    job: TrainingJob
    device: str
    allocated_gib: tuple[float, ...]
    reserved_gib: float
    source: str


@dataclass(frozen=True)
class MemoryScore:
    """A measured memory with the predicted one.

    Parameters
    ----------
    group : str
        Table, and what is compared: ``"SimuMax, allocated"``.
    case : str
        Run, and pipeline stage.
    measured, predicted : float
        GiB.
    fits : bool
        Whether the job is said to fit the device that it ran on.
    fitted : bool
        Whether a parameter was fitted to the run.
    source : str
        File and row.
    """

    group: str
    case: str
    measured: float
    predicted: float
    fits: bool
    fitted: bool
    source: str

    @property
    def error(self) -> float:
        """``|predicted - measured| / measured``."""
        return abs(self.ratio - 1)

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured

    def row(self) -> ValidationRow:
        """Return the row of the validation."""
        return ValidationRow(
            f"{self.group}: {self.case}", self.measured, self.predicted, self.error, fitted=self.fitted,
            source=self.source,
        )  # fmt: skip


@dataclass(frozen=True)
class MeasuredMemories:
    """Runs of all tables, and rows without one, by reason."""

    runs: tuple[MeasuredMemory, ...]
    skipped: Mapping[str, int]


def read_memory(sources: Sequence[Path]) -> MeasuredMemories:
    """Read the runs of tables; equal ones of MLPerf are one, with their largest memory.

    Parameters
    ----------
    sources : sequence of Path
        CSV files.

    Raises
    ------
    InvalidInputError
        There is no such file, it has no memory, or a row is refused; the message names it.
    """
    runs: dict[tuple[object, ...], MeasuredMemory] = {}
    skipped: Counter[str] = Counter()
    for path in sources:
        kind = memory_kind(path)
        if not kind:
            raise InvalidInputError(f"{path}: no {_NEEDS}")

        def run(where: str, row: Row, kind: str = kind) -> MeasuredMemory | None:
            if kind == "SimuMax" and row["case"] != row["memory_source_case"]:
                return None  # its memory is that of another row
            if kind == "MLPerf" and not (row["max_memory_allocated_gib"] or "").strip():
                return None
            step = step_of_row(kind, where, row)
            if isinstance(step, str):
                skipped[step] += 1
                note_row(where, step)
                return None
            common = (step.job, step.device)
            if kind == "MLPerf":
                return MeasuredMemory(kind, f"{step.run}, {step.system}", *common,
                                      (measured_number(row, "max_memory_allocated_gib"),), math.nan, where)  # fmt: skip
            if step.job.layout.devices != _RANKS:
                raise InvalidInputError(f"the layout is of {step.job.layout.devices} devices; memory is of {_RANKS}")
            allocated = [measured_number(row, name) / 1024 for name in _ALLOCATED]
            stages = np.reshape(allocated, (step.job.layout.pipeline, -1)).max(axis=1)
            reserved = max(measured_number(row, name) / 1024 for name in _RESERVED)
            return MeasuredMemory(kind, row["case"] or "", *common, tuple(stages.tolist()), reserved, where)

        for each in measured_rows(path, [*table_needs(kind), *_COLUMNS[kind]], run):
            if each is not None:
                key = (each.kind, each.case if each.kind == "SimuMax" else each.job, each.device)
                if key not in runs or each.allocated_gib > runs[key].allocated_gib:
                    runs[key] = each
    return MeasuredMemories(tuple(runs.values()), dict(skipped))


def score_memory(runs: Sequence[MeasuredMemory]) -> list[MemoryScore]:
    """Predict the memory of every run, by stage, and what its largest stage reserves.

    Parameters
    ----------
    runs : sequence of MeasuredMemory
        Runs, with their memory.
    """
    scores = []
    for run in runs:
        common = (fits(run.job, find_device(run.device)), False, run.source)
        stages = memory_by_stage(run.job)[-len(run.allocated_gib) :]
        for measured, ours in zip(run.allocated_gib, stages, strict=True):
            case = f"{run.case}, stage {ours.stage}" if run.job.layout.pipeline > 1 else run.case
            scores.append(MemoryScore(f"{run.kind}, allocated", case, measured, ours.total / 2**30, *common))
        if run.reserved_gib == run.reserved_gib:
            fitted = is_fitted_system(run.case)
            reserved = job_memory(run.job).reserved / 2**30
            group = f"{run.kind}, reserved, {'' if fitted else 'not '}fitted"
            scores.append(MemoryScore(group, run.case, run.reserved_gib, reserved, common[0], fitted, run.source))
    return scores


def fit_reserved(runs: Sequence[MeasuredMemory]) -> float:
    """Return the mean of reserved over allocated bytes of the largest rank, over the runs that are fitted.

    Parameters
    ----------
    runs : sequence of MeasuredMemory
        Runs; those without reserved bytes are left out.
    """
    fitted = [run for run in runs if run.reserved_gib == run.reserved_gib and is_fitted_system(run.case)]
    return float(np.mean([run.reserved_gib / max(run.allocated_gib) for run in fitted]))


def memory_rows(scores: Sequence[MemoryScore]) -> list[ValidationRow]:
    """Return a row for each score, then the means that have a limit, and the share of SimuMax's runs said to fit."""
    rows = [score.row() for score in scores]
    groups = grouped(scores, attrgetter("group"))
    for name in ("SimuMax, allocated", "SimuMax, reserved, not fitted"):
        if some := groups.get(name):
            rows.append(summary_row(f"{name}: mean", float(np.mean([score.error for score in some])), _LIMIT))
    if some := groups.get("SimuMax, allocated"):
        share = float(np.mean([score.fits for score in some]))
        rows.append(summary_row("SimuMax: share said to fit", share, 1.0, least=True))
    return rows


def _scored(measured: MeasuredMemories, options: SuiteOptions) -> SuiteResult:
    scores = score_memory(measured.runs)
    notes = [f"{count} rows are left out: {reason}" for reason, count in measured.skipped.items()]
    return SuiteResult(memory_rows(scores), {"skipped": dict(measured.skipped)}, _tables(scores), scores, notes)


def memory_groups(scores: Sequence[MemoryScore]) -> list[dict[str, Any]]:
    """Return the number of scores, mean and largest error, bias and the share said to fit, of each group."""
    return [
        {
            "name": name,
            "n": len(some),
            "error": float(np.mean([score.error for score in some])),
            "worst": max(score.error for score in some),
            "ratio": float(np.exp(np.mean(np.log([score.ratio for score in some])))),
            "fits": float(np.mean([score.fits for score in some])),
        }
        for name, some in grouped(scores, attrgetter("group")).items()
    ]


def _tables(scores: Sequence[MemoryScore]) -> list[Table]:
    """Return the tables of errors by group, and of all cases."""
    by_group = {
        "memory~": "{name}", "n": "{n}", "error %": "{error:.1%}", "worst %": "{worst:.1%}", "bias": "{ratio:.3f}",
        "fits %": "{fits:.0%}",
    }  # fmt: skip
    by_case = {
        "memory~": "{group}: {case}", "measured GiB": "{measured:.2f}", "predicted GiB": "{predicted:.2f}",
        "error %": "{error:.1%}",
    }  # fmt: skip
    return [
        table_of("Predicted against measured memory by group", by_group, memory_groups(scores)),
        table_of("Predicted against measured memory", by_case, scores, verbose=True),
    ]


def memory_kind(path: Path) -> str:
    """Return the kind of a table that has memory; empty for any other file."""
    columns = set(table_columns(path))
    kind = table_kind(columns)
    return kind if kind in _COLUMNS and set(_COLUMNS[kind]) <= columns else ""


SUITE = Suite(
    name="job_memory",
    description=__doc__,
    needs=_NEEDS,
    source=lambda file: file if file.suffix == ".csv" and memory_kind(file) else None,
    read=lambda sources, options: read_memory(sources),
    score=_scored,
)
