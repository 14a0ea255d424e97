"""Compare slow-downs by stragglers with published ones of the jobs in PATH, a table of operations and its answers.

`straggler_traces.parquet` has the columns of a table of operations (job, optype, dp_rank_index, pp_stage_index,
step_index, op_sequence_index, model_chunk_index, micro_batch_index, start_s, duration_s), and `straggler_answers.json`
beside it the answers of arXiv 2505.05713: step times, slow-downs by rank, stage and operation, M_S and M_W.

\b
seqpoint validate stragglers ../shared/data/jobs
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from profilers.errors import BrokenFileError, NotFoundError
from profilers.trace.arrays import Floats
from replay.analysis.stragglers import LAST_STAGE, WORST_WORKERS, Stragglers, operation_stragglers
from replay.calibration.tables import refuse_row
from replay.workloads.operations import Operations, is_operations, read_operations
from seqpoint.notebook import Table, table_of
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, ValidationRow, followed, summary_row

_TABLE, _ANSWERS = "straggler_traces.parquet", "straggler_answers.json"
#: Largest error of a slow-down or a share.
_LIMIT = 0.03
#: Dimensions of an attribution, by the words of the answers.
_DIMENSIONS: Mapping[str, str] = {"dp_rank": "rank", "stage": "stage", "optype": "operation"}


class _Result(msgspec.Struct, frozen=True):
    """Step times in s, by step, and slow-downs by name; those by step have a mapping for each step."""

    step_t_base: dict[int, float]
    step_t_nodelay: dict[int, float]
    step_t_noblk: dict[int, float]
    launch_slowdown: float
    blocking_slowdown: float
    blocking_step_slowdown: dict[int, float]
    blocking_decompose_by_dp_rank: dict[str, float]
    blocking_decompose_by_stage: dict[str, float]
    blocking_decompose_by_optype: dict[str, float]
    blocking_decompose_by_dp_rank_per_step: dict[int, dict[str, float]]
    blocking_decompose_by_stage_per_step: dict[int, dict[str, float]]
    blocking_decompose_by_optype_per_step: dict[int, dict[str, float]]


class _RecoveredShare(msgspec.Struct, frozen=True):
    """Share of the slow-down that a fix recovers."""

    rem: float


class _Answer(msgspec.Struct, frozen=True):
    """Answers for a job: the result, and the shares of the last stage and of the worst workers."""

    result: _Result
    ms: _RecoveredShare
    mw: _RecoveredShare


@dataclass(frozen=True)
class AnsweredJob:
    """A training job with its published answers.

    Parameters
    ----------
    operations : Operations
        Its operations.
    answer : _Answer
        Published slow-downs.
    source : str
        Name of the file of the answers.
    """

    operations: Operations
    answer: _Answer
    source: str


def read_jobs(path: Path) -> list[AnsweredJob]:
    """Read a table of operations and the answers beside it.

    Parameters
    ----------
    path : Path
        The table.

    Raises
    ------
    SeqPointError
        The table or the answers are missing or damaged, or a job has no answer.
    """
    answers = path.with_name(_ANSWERS)
    if not answers.is_file():
        raise NotFoundError(f"{answers}: no such file; the answers lie beside the table of operations")
    try:
        known = msgspec.json.decode(answers.read_bytes(), type=dict[str, _Answer])
    except (msgspec.DecodeError, OSError) as error:
        raise BrokenFileError(f"{answers}: no answers on stragglers ({error})") from error
    jobs = read_operations(path)
    answered = []
    for name, operations in jobs.items():
        if name not in known:
            refuse_row(answers, f"job {name[:40]}", f"no answer; there are answers for {', '.join(known)}")
        elif set(operations.steps) != set(known[name].result.step_t_base):
            refuse_row(answers, f"job {name[:40]}", "the answer has other steps than the operations")
        else:
            answered.append(AnsweredJob(operations, known[name], answers.name))
    return answered


def _error(ours: float, reference: float) -> float:
    return abs(ours / reference - 1) if reference else abs(ours)


def _rows(job: AnsweredJob, ours: Stragglers) -> Iterator[ValidationRow]:
    """Yield a row for each answer: step times, slow-downs, shares, and the order of the slowest."""
    result, name = job.answer.result, ours.job

    def row(case: str, reference: float, value: float, limit: float | None = _LIMIT) -> ValidationRow:
        return ValidationRow(f"{name}: {case}", reference, value, _error(value, reference), limit, source=job.source)

    def mean(by_step: Mapping[int, float]) -> float:
        return float(np.mean([by_step[step] for step in ours.steps]))

    yield row("slow-down", result.blocking_slowdown, ours.slowdown)
    yield row("recorded step, s", mean(result.step_t_base), float(ours.recorded_ns.mean()) / 1e9)
    yield row("step without launch delays, s", mean(result.step_t_nodelay), float(ours.base_ns.mean()) / 1e9)
    yield row("balanced step, s", mean(result.step_t_noblk), float(ours.balanced_ns.mean()) / 1e9)
    delays = float(ours.recorded_ns.mean() / ours.base_ns.mean())
    yield row("slow-down by launch delays", result.launch_slowdown, delays)
    yield row("share of the last stage, M_S", job.answer.ms.rem, ours.recovered(LAST_STAGE))
    yield row("share of the worst workers, M_W", job.answer.mw.rem, ours.recovered(WORST_WORKERS))
    for word, dimension in _DIMENSIONS.items():
        answers: dict[str, float] = getattr(result, f"blocking_decompose_by_{word}")
        found = {each.name: each.slowdown for each in ours.of(dimension)}
        for key, reference in answers.items():
            yield row(f"{dimension} {key}", reference, found.get(key, float("nan")))
        slowest = next(iter(answers)) == next(iter(found))
        yield summary_row(f"{name}: slowest {dimension} is the same", float(slowest), 1.0, least=True)
    yield from _step_rows(job, ours)


def _step_rows(job: AnsweredJob, ours: Stragglers) -> Iterator[ValidationRow]:
    """Yield the largest error of any step: of its slow-down, and of that by rank, stage and operation."""
    result = job.answer.result
    ratio = ours.base_ns / ours.balanced_ns
    yield _worst(ours, "slow-down", [(ratio, [result.blocking_step_slowdown[step] for step in ours.steps])])
    for word, dimension in _DIMENSIONS.items():
        by_step: dict[int, dict[str, float]] = getattr(result, f"blocking_decompose_by_{word}_per_step")
        pairs = [
            (each.step_ns / ours.balanced_ns, [by_step[step].get(each.name, float("nan")) for step in ours.steps])
            for each in ours.of(dimension)
        ]
        yield _worst(ours, f"slow-down by {dimension}", pairs)


def _worst(ours: Stragglers, case: str, pairs: Sequence[tuple[Floats, Sequence[float]]]) -> ValidationRow:
    error = max(float(np.abs(values / np.array(references) - 1).max()) for values, references in pairs)
    count = len(pairs) * len(ours.steps)
    return summary_row(f"{ours.job}: {case}, worst of {count:,} by step", error, _LIMIT, source=_ANSWERS)


def _scored(jobs: Sequence[AnsweredJob], options: SuiteOptions) -> SuiteResult:
    """Score jobs against their answers."""
    found = [
        operation_stragglers(job.operations)
        for job in followed(jobs, options.progress("attributing"), lambda job: job.operations.job)
    ]
    rows = [row for job, ours in zip(jobs, found, strict=True) for row in _rows(job, ours)]
    operations = sum(len(job.operations) for job in jobs)
    notes = [f"{operations:,} operations of {len(jobs)} jobs", *(n for ours in found for n in ours.notes)]
    return SuiteResult(rows, {}, [_table(jobs, found)], notes=notes)


def _table(jobs: Sequence[AnsweredJob], found: Sequence[Stragglers]) -> Table:
    """Return the table of jobs, with the slowest of each."""
    columns = {
        "job~": "{job}", "published": "{published:.3f}", "ours": "{ours:.3f}", "err %": "{error:.4%}",
        "rank~": "{rank}", "stage~": "{stage}", "operation~": "{operation}",
    }  # fmt: skip
    rows = [
        {"job": ours.job, "published": job.answer.result.blocking_slowdown, "ours": ours.slowdown}
        | {"error": _error(ours.slowdown, job.answer.result.blocking_slowdown)}
        | {dimension: ours.of(dimension)[0].name for dimension in _DIMENSIONS.values()}
        for job, ours in zip(jobs, found, strict=True)
    ]
    return table_of("Slow-down of training jobs, and who causes most", columns, rows)


def _source(file: Path) -> Path | None:
    """Return the table of operations that a file is, or that it has the answers for."""
    if file.name == _ANSWERS:
        table = file.with_name(_TABLE)
        return table if is_operations(table) else None
    return file if file.name == _TABLE and is_operations(file) else None


SUITE = Suite(
    name="stragglers",
    description=__doc__,
    needs=f"table of operations {_TABLE} with {_ANSWERS} beside it",
    source=_source,
    read=lambda sources, options: [job for source in sources for job in read_jobs(source)],
    score=_scored,
)
