"""Compare predicted times of training steps with those measured in PATH.

PATH holds tables of five kinds. Megatron-LM in 16 bits: # GPUs, global batch, micro batch, hidden size, attention
heads, # layers, sequence length, tensor parallelism, data parallelism, pipeline parallelism, iteration time (ms). Runs
of MLPerf Training: benchmark, submitter, system, accelerator, their layout and step_time_median_s. SimuMax's steps on
B200: model, layout and step_time_real_ms. FSDP runs of MPT: model, device, batches, sequence_length_tokens and
tokens_per_second_per_gpu. Throughput of BERT: framework, gpu, precision, batches and step_time_s. Steps
that the costs were fitted to are marked, and are in no figure that has a limit. Without --device, a step ran on the
device that its table names, or else on that of the costs.

\b
seqpoint validate training megatron_a100_single_node.csv --gate
seqpoint validate training measured.csv --device H100-SXM5-80GB --json
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from profilers.devices.catalogue import Device, find_device
from replay import workloads
from replay.calibration.parameters import Parameters
from replay.workloads.training_fits import COLUMNS
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
from seqpoint.validation.training_tables import (
    MeasuredSteps,
    RatioScore,
    StepScore,
    read_table,
    scale_ratios,
    table_kind,
    throughput_ratios,
)

#: Name of the figure of each kind of table, and its limit. That of Megatron-LM is the mean error that vTrain's authors
#: give for their simulator.
_LIMITS = MappingProxyType(
    {
        "Megatron": ("mean", 0.084),
        "MLPerf": ("median", 0.15),
        "SimuMax": ("mean", 0.15),
    }
)
#: Ratios of each kind of table, and the limit of their median error.
RATIOS: Mapping[str, tuple[Callable[[Sequence[StepScore]], list[RatioScore]], float]] = MappingProxyType(
    {"MLPerf": (scale_ratios, 0.08), "BERT": (throughput_ratios, 0.15)}
)
#: Steps in the table of the largest errors.
_WORST = 10


def _case(job: workloads.TrainingJob) -> str:
    """Return the sizes and the parallelism of a step."""
    layout = job.layout
    return (
        f"{job.model.layers} layers of {job.model.hidden}, {job.global_batch} x {job.length} by {job.micro_batch}, "
        f"TP {layout.tensor} DP {layout.data} PP {layout.pipeline}"
    )


def _name(step: workloads.MeasuredStep) -> str:
    """Return the name of a step: what ran where, if its table says so."""
    if not step.system:
        return _case(step.job)
    job, layout = step.job, step.job.layout
    return f"{step.run}, {step.system}, {layout.devices} x {step.device}, {job.precision}, {job.length} tokens"


def score_steps(
    measured: Sequence[workloads.MeasuredStep],
    device: Device | None,
    fit: workloads.TrainingFit | None,
    parameters: Parameters,
) -> list[StepScore]:
    """Predict every measured step.

    Parameters
    ----------
    measured : sequence of MeasuredStep
        Steps, with their times.
    device : Device, optional
        Device that they ran on; by default the device of each step.
    fit : TrainingFit, optional
        Costs to predict with; by default the shipped ones. Where the table names no device, it does not
        say either whether layers are recomputed: they are, or not, as in the runs that were fitted.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.
    """
    scores, costs = {}, fit or workloads.load_training()
    names = [device.name if device else step.device for step in measured]
    for name in dict.fromkeys(names):
        rows = [i for i, each in enumerate(names) if each == name]
        steps = [measured[i] for i in rows]
        jobs = [step.job if step.device else replace(step.job, recompute=costs.recompute) for step in steps]
        predicted = workloads.predict_steps(jobs, device or find_device(name), fit=costs, parameters=parameters)
        for i, step, ours in zip(rows, steps, predicted, strict=True):
            fitted = step.digest in costs.digests
            scores[i] = StepScore(_name(step), step, ours.basis, ours.seconds, ours.low_s, ours.high_s, fitted)
    return [scores[i] for i in range(len(measured))]


def training_groups(scores: Sequence[StepScore]) -> dict[str, list[StepScore]]:
    """Return the scores by property of the step: hidden size, each parallelism, micro-batch, devices."""
    groups: dict[str, list[StepScore]] = {}
    for score in scores:
        job, layout = score.measured.job, score.measured.job.layout
        properties = {
            "hidden": job.model.hidden,
            "TP": layout.tensor,
            "DP": layout.data,
            "PP": layout.pipeline,
            "micro-batch": job.micro_batch,
            "micro-batches": job.micro_batches,
            "devices": layout.devices,
        }
        for name, value in properties.items():
            groups.setdefault(f"{name} {value}", []).append(score)
    order = {name.rsplit(" ", 1)[0]: i for i, name in reversed(list(enumerate(groups)))}
    return dict(sorted(groups.items(), key=lambda kv: (order[kv[0].rsplit(" ", 1)[0]], int(kv[0].rsplit(" ", 1)[1]))))


def run_groups(scores: Sequence[StepScore]) -> dict[str, list[StepScore]]:
    """Return the scores by what was run, device and precision."""
    groups: dict[str, list[StepScore]] = {}
    for score in scores:
        step = score.measured
        for name in (step.run, step.device, step.job.precision):
            groups.setdefault(name, []).append(score)
    return groups


def training_rows(scores: Sequence[StepScore], kind: str = "Megatron") -> list[ValidationRow]:
    """Return a row for each step, then the error of the steps that were not fitted.

    Parameters
    ----------
    scores : sequence of StepScore
        Scores of one table.
    kind : str
        Kind of the table.
    """
    rows = [score.row() for score in scores]
    errors = [score.error for score in scores if not score.fitted]
    if errors and kind in _LIMITS:
        figure, limit = _LIMITS[kind]
        name = "steps not fitted" if kind == "Megatron" else f"{kind}: steps not fitted"
        rows.append(summary_row(f"{name}: {figure}", float(getattr(np, figure)(errors)), limit))
    return rows


def ratio_rows(ratios: Sequence[RatioScore], kind: str) -> list[ValidationRow]:
    """Return the median error of the ratios of each kind of which one step was not fitted."""
    kinds = grouped((ratio for ratio in ratios if not ratio.fitted), lambda ratio: ratio.kind)
    return [
        summary_row(f"{kind}: ratio of {name}: median", float(np.median([r.error for r in some])), RATIOS[kind][1])
        for name, some in kinds.items()
    ]


def _scored(tables: Sequence[MeasuredSteps], options: SuiteOptions) -> SuiteResult:
    """Score steps with the shipped or the given costs."""
    fit = workloads.read_training_fit(options.calibration) if options.calibration else None
    rows, shown, notes = [], [], []
    scores: list[StepScore] = []
    ratios: list[RatioScore] = []
    for table in tables:
        is_unnamed = not any(step.device for step in table.steps)
        name = options.device or ((fit or workloads.load_training()).device if is_unnamed else "")
        some = score_steps(table.steps, find_device(name) if name else None, fit, options.parameters)
        between = RATIOS[table.kind][0](some) if table.kind in RATIOS else []
        rows += training_rows(some, table.kind) + ratio_rows(between, table.kind)
        shown += _tables(some, table.kind)
        notes += [f"{table.kind}: {count} of {table.rows} rows skipped: {why}" for why, count in table.skipped.items()]
        scores, ratios = scores + some, ratios + between
    details = {
        "scores": [{**score.content(), "fitted": score.fitted} for score in scores],
        "ratios": [{**vars(ratio), "error": ratio.error} for ratio in ratios],
    }
    return SuiteResult(rows, details, shown, scores, notes)


def _tables(scores: Sequence[StepScore], kind: str) -> list[Table]:
    """Return the tables of scores: errors by group, and the largest."""
    fitted, rest = ([s for s in scores if s.fitted is which] for which in (True, False))
    totals = {name: some for name, some in (("fitted", fitted), ("not fitted", rest)) if some}
    groups = training_groups(rest) if kind == "Megatron" else run_groups(rest)
    means = [
        {"name": name, "n": len(some)}
        | {key: sum(getattr(s, key) for s in some) / len(some) for key in ("error", "ratio", "covered")}
        for name, some in (totals | groups).items()
    ]
    by_group = {
        "steps~": "{name}", "n": "{n}", "error %": "{error:.1%}", "bias": "{ratio:.2f}",
        "in interval %": "{covered:.0%}",
    }  # fmt: skip
    by_step = {
        "step~": "{case}", "measured ms": "{measured.seconds:.1ms}", "predicted ms": "{seconds:.1ms}",
        "interval ms": "{low:.0ms} - {high:.0ms}", "error %": "{error:.1%}",
    }  # fmt: skip
    title = f"Predicted against measured times of steps, {kind}; below the first rows, those not fitted"
    worst = sorted(scores, key=lambda s: -s.error)[:_WORST]
    return [table_of(title, by_group, means), table_of(f"The worst, {kind}", by_step, worst)]


def _read(sources: Sequence[Path], options: SuiteOptions) -> list[MeasuredSteps]:
    return [read_table(path, table_kind(table_columns(path)), options.node_devices) for path in sources]


SUITE = Suite(
    name="training",
    description=__doc__,
    needs=f"CSV file of measured training steps (columns {', '.join(COLUMNS)}, or those of another table)",
    source=lambda file: file if file.suffix == ".csv" and table_kind(table_columns(file)) else None,
    read=_read,
    score=_scored,
    options=("calibration", "device", "node_devices"),
)
