"""Compare predicted times of training steps with those measured in PATH.

Columns are # GPUs, global batch, micro batch, hidden size, attention heads, # layers, sequence length, tensor
parallelism, data parallelism, pipeline parallelism, iteration time (ms): Megatron-LM in 16 bits. Steps that the
costs were fitted to are marked, and are not in the mean that has a limit. Without --device, the steps ran on the
device of the costs.

\b
seqpoint validate training megatron_a100_single_node.csv --gate
seqpoint validate training measured.csv --device H100-SXM5-80GB --json
"""

from collections.abc import Sequence

import numpy as np

from profilers.devices.catalogue import Device, find_device
from replay import workloads
from replay.costs.shipped import load_parameters
from replay.workloads.training_fits import COLUMNS
from seqpoint.notebook import Table, table_of
from seqpoint.validation.rows import TimedScore, ValidationRow, summary_row
from seqpoint.validation.suites import Suite, SuiteOptions, SuiteResult, table_columns

#: Mean error over all steps that were not fitted: the figure that vTrain's authors give for their simulator.
_LIMIT = 0.084
#: Steps in the table of the largest errors.
_WORST = 10


#: A measured step with its prediction.
StepScore = TimedScore[workloads.MeasuredStep]


def _case(job: workloads.TrainingJob) -> str:
    """Return the sizes and the parallelism of a step."""
    layout = job.layout
    return (
        f"{job.model.layers} layers of {job.model.hidden}, {job.global_batch} x {job.length} by {job.micro_batch}, "
        f"TP {layout.tensor} DP {layout.data} PP {layout.pipeline}"
    )


def score_steps(
    measured: Sequence[workloads.MeasuredStep], device: Device, fit: workloads.TrainingFit
) -> list[StepScore]:
    """Predict every measured step; layers are recomputed, or not, as in the runs that were fitted.

    Parameters
    ----------
    measured : sequence of MeasuredStep
        Steps, with their times.
    device : Device
        Device that they ran on.
    fit : TrainingFit
        Costs to predict with.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.
    """
    jobs = workloads.as_measured([step.job for step in measured], fit)
    predicted = workloads.predict_steps(jobs, device, fit=fit, parameters=load_parameters())
    digests = set(fit.digests)
    return [
        StepScore(_case(step.job), step, ours.basis, ours.seconds, ours.low_s, ours.high_s, step.digest in digests)
        for step, ours in zip(measured, predicted, strict=True)
    ]


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


def training_rows(scores: Sequence[StepScore]) -> list[ValidationRow]:
    """Return a row for each step, then the mean over the steps that were not fitted."""
    rows = [score.row() for score in scores]
    errors = [score.error for score in scores if not score.fitted]
    if errors:
        rows.append(summary_row("steps not fitted: mean", float(np.mean(errors)), _LIMIT))
    return rows


def _scored(measured: Sequence[workloads.MeasuredStep], options: SuiteOptions) -> SuiteResult:
    """Score steps with the shipped or the given costs."""
    fit = workloads.read_training_fit(options.calibration) if options.calibration else workloads.load_training()
    scores = score_steps(measured, find_device(options.device or fit.device), fit)
    details = {"scores": [{**score.content(), "fitted": score.fitted} for score in scores]}
    return SuiteResult(training_rows(scores), details, _tables(scores), scores)


def _tables(scores: Sequence[StepScore]) -> list[Table]:
    """Return the tables of scores: errors by group, and the largest."""
    fitted, rest = ([s for s in scores if s.fitted is which] for which in (True, False))
    totals = {name: some for name, some in (("fitted", fitted), ("not fitted", rest)) if some}
    means = [
        {"name": name, "n": len(some)}
        | {key: sum(getattr(s, key) for s in some) / len(some) for key in ("error", "ratio", "covered")}
        for name, some in (totals | training_groups(rest)).items()
    ]
    by_group = {
        "steps~": "{name}", "n": "{n}", "error %": "{error:.1%}", "bias": "{ratio:.2f}",
        "in interval %": "{covered:.0%}",
    }  # fmt: skip
    by_step = {
        "step~": "{case}", "measured ms": "{measured.seconds:.1ms}", "predicted ms": "{seconds:.1ms}",
        "interval ms": "{low:.0ms} - {high:.0ms}", "error %": "{error:.1%}",
    }  # fmt: skip
    title = "Predicted against measured times of steps; below the first rows, those not fitted"
    worst = sorted(scores, key=lambda s: -s.error)[:_WORST]
    return [table_of(title, by_group, means), table_of("The worst", by_step, worst)]


SUITE = Suite(
    name="training",
    description=__doc__,
    needs=f"CSV file of measured training steps (columns {', '.join(COLUMNS)})",
    source=lambda file: file if file.suffix == ".csv" and set(COLUMNS) <= set(table_columns(file)) else None,
    read=lambda sources, options: [
        step for path in sources for step in workloads.read_steps(path, options.node_devices)
    ],
    score=_scored,
    options=("calibration", "device", "node_devices"),
)
