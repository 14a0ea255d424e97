"""How the time of a job, and the share of its communication, scale: `scaling`.

A scenario changes sizes of the job (its hidden size, its GPUs, how it is split), or how fast compute is beside the same
network. Each scenario of a `ScenarioGrid` is replayed: a job as the synthetic trace of its step, a trace under
what-ifs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, SeqPointError
from profilers.trace.arrays import Floats
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters
from replay.costs.shipped import load_parameters
from replay.engine.steady import SteadyState
from replay.engine.timeline import Timeline
from replay.graph.graph import COLLECTIVE_KINDS, Basis, KernelGraph, hardware_of
from replay.projection.scenarios import step_of_job
from replay.projection.windows import StepWindow
from replay.studies.comp_vs_comm import faster_compute
from replay.what_ifs import WhatIf, parse_what_if, with_job
from replay.workloads import (
    EDITS,
    JobTimer,
    PredictedStep,
    TrainingJob,
    edit_job,
    load_training,
    predict_steps,
    read_job,
)
from replay.workloads.job_memory import FITS, fitting_changes, job_memory, memory_fit, usable_bytes
from replay.workloads.traced_job import TracedJob, find_job
from seqpoint import front_door
from seqpoint.front_door import Paths
from seqpoint.graphs import step_windows, typical_iteration
from seqpoint.notebook import DataFrame, Result, Table, data_frame, table_of
from seqpoint.units import tokens_per_dollar

#: Axes beside the edits of a job: GPUs of the job, and how much faster compute is.
GPUS, COMPUTE = "gpus", "compute"
#: Axes of a grid. Edits come in this order, so that replicas are counted last.
AXES = (
    *("hidden", "layers", "sequence_length", "micro_batch", "tensor_parallel", "context_parallel"),
    *("expert_parallel", "pipeline_parallel", "data_parallel", GPUS, COMPUTE),
)
#: Most scenarios of a grid, and the factors of compute.
_MOST, _FACTORS = 1_000, (1e-3, 1e3)
#: Values of a scenario by axis, and of a grid.
Scenario = Mapping[str, float]
Axes = Mapping[str, Sequence[float]]
#: A bubble of less than this share of the step is a rounding error.
_ROUNDING = 1e-6
#: Parts of a step that a chart shows.
_PARTS = ("compute_ns", "hidden_ns", "exposed_ns", "bubble_ns", "idle_ns")
#: Word for whether a job fits.
_FITS = {FITS[0]: "yes", FITS[1]: "tight", FITS[2]: "NO", "": "-"}
#: Device of a job that names none.
_DEVICE = "A100-SXM4-80GB"


@dataclass(frozen=True)
class ScenarioGrid:
    """Scenarios: all combinations of the values of each axis.

    Parameters
    ----------
    axes : mapping of str to sequence of float
        Values by axis, one of `AXES`. Values of ``"compute"`` are factors; all others are whole numbers.

    Raises
    ------
    InvalidInputError
        An axis is unknown or has no value, a value is out of range, or there are more than 1000 scenarios.

    Examples
    --------
    >>> [dict(each) for each in ScenarioGrid({"compute": [1, 2], "hidden": [4096]}).scenarios]
    [{'hidden': 4096, 'compute': 1}, {'hidden': 4096, 'compute': 2}]
    """

    axes: Axes

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if name not in AXES:
                raise InvalidInputError(f"no axis {name!r:.40}; there are {', '.join(AXES)}")
            if not values:
                raise InvalidInputError(f"axis {name} has no value")
            for value in values:
                if name == COMPUTE and not _FACTORS[0] <= value <= _FACTORS[1]:
                    raise InvalidInputError(f"compute {value:g} times as fast; give {_FACTORS[0]:g} to {_FACTORS[1]:g}")
                if name != COMPUTE and (value != int(value) or value < 1):
                    raise InvalidInputError(f"{name} is {value:g}; it must be a whole number of 1 or more")
        count = int(np.prod([len(values) for values in self.axes.values()]))
        if count > _MOST:
            raise InvalidInputError(f"{count:,} scenarios; at most {_MOST:,}: `seqpoint sweep` is made for more")

    @property
    def names(self) -> tuple[str, ...]:
        """The axes in the order of `AXES`."""
        return tuple(name for name in AXES if name in self.axes)

    @property
    def scenarios(self) -> list[Scenario]:
        """All combinations; the last axis changes fastest."""
        values = product(*(self.axes[name] for name in self.names))
        return [dict(zip(self.names, each, strict=True)) for each in values]


@dataclass(frozen=True)
class ScalingRow:
    """A scenario and its time; times are means over the devices that were replayed, in ns.

    Parameters
    ----------
    scenario : mapping of str to float
        Values by axis.
    gpus : int
        GPUs of the job.
    global_batch, tokens : int
        Sequences and tokens of a step; 0 if unknown.
    is_baseline : bool
        Whether the scenario is the trace as it is.
    step_ns : float
        Step time; NaN, as the other times, if the scenario is not possible.
    low_ns, high_ns : float
        Interval of the step time of a job, which is meant to hold nine in ten; NaN on a trace.
    basis : str
        ``"fitted"`` if steps on the device were measured with as many GPUs or more, ``"carried"`` if the models are
        carried over to it; empty on a trace.
    busy_ns : float
        Time with anything on the device.
    communication_ns, exposed_ns : float
        Time in which a collective transfers, and with nothing else on the device. A wait for other ranks, as far as the
        replay knows them, is no communication.
    bubble_ns : float
        Time with nothing on the device but collectives that wait for other ranks: for other pipeline stages, or for
        slower ranks of a trace.
    memory_bytes : int
        Bytes that the rank with the largest peak reserves; 0 if unknown, as on a trace.
    fit : str
        Whether that fits on the device, one of `replay.workloads.FITS`; empty if unknown.
    reason : str
        Why the scenario is not possible; empty if it is.
    price : float
        US dollars for an hour of a GPU; NaN if unknown.
    """

    scenario: Scenario
    gpus: int = 0
    global_batch: int = 0
    tokens: int = 0
    is_baseline: bool = False
    step_ns: float = float("nan")
    low_ns: float = float("nan")
    high_ns: float = float("nan")
    busy_ns: float = float("nan")
    communication_ns: float = float("nan")
    exposed_ns: float = float("nan")
    bubble_ns: float = float("nan")
    basis: str = ""
    memory_bytes: int = 0
    fit: str = ""
    reason: str = ""
    price: float = float("nan")

    @property
    def hidden_ns(self) -> float:
        """Communication beside compute."""
        return self.communication_ns - self.exposed_ns

    @property
    def compute_ns(self) -> float:
        """Time with anything but collectives on the device."""
        return self.busy_ns - self.exposed_ns - self.bubble_ns

    @property
    def idle_ns(self) -> float:
        """Time with nothing on the device."""
        return max(self.step_ns - self.busy_ns, 0.0)

    @property
    def share(self) -> float:
        """Share of the step in which communication is exposed."""
        return self.exposed_ns / self.step_ns

    @property
    def tokens_per_gpu_s(self) -> float:
        """Tokens of a step over its time and the GPUs; NaN if unknown."""
        return 1e9 * self.tokens / self.step_ns / self.gpus if self.tokens and self.gpus else float("nan")

    @property
    def tokens_per_dollar(self) -> float:
        """Tokens of a step over the price of its GPU hours; NaN if unknown."""
        return tokens_per_dollar(self.tokens_per_gpu_s, self.price)

    def label(self, axes: Sequence[str]) -> str:
        """Return the values of some axes as text."""
        return scenario_text({axis: self.scenario[axis] for axis in axes if axis in self.scenario}) if axes else ""

    @property
    def fits(self) -> bool | None:
        """Whether the memory fits, tight or not; None if unknown."""
        return self.fit != FITS[2] if self.fit else None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON."""
        times = (
            *("step_ns", "low_ns", "high_ns", "compute_ns", "communication_ns", "exposed_ns", "hidden_ns"),
            *("bubble_ns", "idle_ns", "share", "tokens_per_gpu_s", "tokens_per_dollar"),
        )
        values = {name: getattr(self, name) for name in times}
        figures = {name: None if np.isnan(value) else value for name, value in values.items()}
        figures |= {"basis": self.basis or None, "memory_bytes": self.memory_bytes or None, "fits": self.fits}
        figures |= {"fit": self.fit or None}
        return {"scenario": dict(self.scenario), "baseline": self.is_baseline, "gpus": self.gpus or None,
                "global_batch": self.global_batch or None, "applied": not self.reason,
                "reason": self.reason or None, **figures}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Scaling(Result):
    """Step time and communication by scenario.

    Parameters
    ----------
    rows : tuple of ScalingRow
        Rows in the order of the grid.
    axes : tuple of str
        Axes of the grid.
    of : str
        Job or trace, in words.
    device : str
        Device that the job runs on; "" if unknown.
    remarks : tuple of str
        What holds for all rows.
    """

    heading = "Scaling"

    rows: tuple[ScalingRow, ...]
    axes: tuple[str, ...]
    of: str
    device: str
    remarks: tuple[str, ...] = ()

    @property
    def applied(self) -> tuple[ScalingRow, ...]:
        """Rows of possible scenarios."""
        return tuple(row for row in self.rows if not row.reason)

    @property
    def varied(self) -> tuple[str, ...]:
        """Axes with several values among possible scenarios."""
        values = {axis: {row.scenario.get(axis) for row in self.applied} - {None} for axis in self.axes}
        return tuple(axis for axis in self.axes if len(values[axis]) > 1)

    def title(self, axis: str) -> str:
        """Return the heading of an axis, in the table and in charts."""
        return f"{_title(axis)} x" if axis == COMPUTE else _title(axis)

    def table(self) -> DataFrame:
        """Return a row for each scenario: axes, times in ns, and the share of exposed communication."""
        cells = [row.to_dict() for row in self.rows]
        return data_frame([{**each.pop("scenario"), **each} for each in cells])

    def tables(self) -> list[Table]:
        """Return the scenarios as text, and those that are not possible, which have dashes, with the reason."""
        rows, columns = self.rows, {self.title(name): f"{{{name}}}" for name in self.axes}
        columns |= {} if GPUS in self.axes else {"GPUs": "{gpus}"}
        columns |= {"global batch": "{global_batch}"} if len({row.global_batch for row in self.applied}) > 1 else {}
        columns["step"] = "{step_ns:time}"
        if any(row.low_ns > 0 for row in rows):
            columns |= {"low": "{low_ns:time}", "high": "{high_ns:time}"}
        columns |= {"compute": "{compute_ns:time}", "exposed": "{exposed_ns:time}", "hidden comm.": "{hidden_ns:time}"}
        columns |= {"bubble": "{bubble_ns:time}"} if any(row.bubble_ns > 0 for row in rows) else {}
        columns |= {"idle": "{idle_ns:time}", "exposed %": "{share:.1%}"}
        if any(row.tokens for row in rows):
            columns["tokens/s per GPU"] = "{tokens_per_gpu_s:,.0f}"
        if any(row.tokens_per_dollar > 0 for row in rows):
            columns["tokens per $"] = "{tokens_per_dollar:,.0f}"
        if any(row.memory_bytes for row in rows):
            columns |= {"memory GB": "{gb:.1f}", "fits~": "{fitting}"}
        cells = [
            {**dict.fromkeys(self.axes), **row.to_dict(), "gb": row.memory_bytes / 1e9 or None}
            | {"fitting": _FITS[row.fit], **{name: f"{value:g}" for name, value in row.scenario.items()}}
            for row in rows
        ]
        refused = Table("Not possible", ("scenario~", "reason~"), self.refused())
        return [table_of("Scaling", columns, cells), *([refused] if refused.rows else [])]

    def refused(self) -> list[tuple[str, str]]:
        """Return the scenarios that are not possible, as text, with the reason."""
        return [(scenario_text(row.scenario), row.reason) for row in self.rows if row.reason]

    def plot(self) -> Any:
        """Return the chart of the share of exposed communication, by the first axis that varies."""
        from seqpoint.plots import communication_share

        if not self.varied:
            raise InvalidInputError("no axis has two possible values, so there is no line to draw")
        axis, *others = self.varied
        rows = [
            {"x": row.scenario[axis], "line": row.label(others) or "exposed communication"}
            | {name: getattr(row, name) for name in ("share", "step_ns", "fits")}
            for row in self.applied
            if axis in row.scenario
        ]
        return communication_share(data_frame(rows), self.title(axis), self._subject())

    def _subject(self) -> str:
        """Return the job or trace, and its device."""
        return self.of + (f" on {self.device}" if self.device else "")

    def plot_times(self) -> Any:
        """Return the chart of the time of each scenario: compute, hidden and exposed communication, idle."""
        from seqpoint.plots import scaling_times

        axes = self.varied or self.axes
        rows = [
            {"label": row.label(axes) + " (as traced)" * row.is_baseline + " (does not fit)" * (row.fits is False)}
            | {name: getattr(row, name) for name in ("step_ns", *_PARTS)}
            for row in self.applied
        ]
        return scaling_times(data_frame(rows), self._subject())

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint scaling --json` prints."""
        return {"of": self.of, "device": self.device or None, "axes": list(self.axes), "notes": list(self.remarks),
                "rows": [row.to_dict() for row in self.rows]}  # fmt: skip

    def summary(self) -> list[str]:
        """Return what was scaled, and the range of the shares, in a sentence each."""
        lines = [self._subject()]
        rows = self.applied
        if len(rows) > 1:
            low, high = (choose(rows, key=lambda row: row.share) for choose in (min, max))
            lines.append(
                f"exposed communication: {100 * low.share:.1f} % of the step ({low.label(self.axes)}) to "
                f"{100 * high.share:.1f} % ({high.label(self.axes)})"
            )
        lines += [f"as traced: {row.label(self.axes)}" for row in rows if row.is_baseline and len(rows) > 1]
        if any(row.bubble_ns > 0 for row in rows):
            most = max(rows, key=lambda row: row.bubble_ns / row.step_ns)
            lines.append(f"bubble: up to {100 * most.bubble_ns / most.step_ns:.1f} % ({most.label(self.axes)})")
        if carried := sum(row.basis == "carried" for row in rows):
            many = "" if carried == len(rows) else f" of {carried} scenarios"
            lines.append(f"wider interval{many}: no steps were measured on {self.device} with as many GPUs")
        if large := sum(row.fits is False for row in rows):
            many = "none fits" if large == len(rows) else f"{large} of {len(rows)} scenarios do not fit"
            lines.append(f"{many} into the memory of {self.device}")
        return [*lines, *(f"note: {note}" for note in self.remarks)]


def scenario_text(scenario: Scenario) -> str:
    """Return a scenario as text.

    Examples
    --------
    >>> scenario_text({"hidden": 4096, "compute": 2}), scenario_text({})
    ('hidden 4096, compute 2x', 'as it is')
    """
    words = [f"{_title(name)} {value:g}{'x' * (name == COMPUTE)}" for name, value in scenario.items()]
    return ", ".join(words) or "as it is"


def _title(axis: str) -> str:
    """Return the name of an axis as text."""
    return "GPUs" if axis == GPUS else axis.replace("_", " ")


#: Window of a scenario, its what-if, its row without times, and the step that closed forms predict for a job.
_Case = tuple[StepWindow, WhatIf, ScalingRow, PredictedStep | None]


def scaling(
    job: TrainingJob | Trace | Paths,
    axes: Axes,
    *,
    device: str | None = None,
    iteration: int | None = None,
    sizes: str | None = None,
    price: float | None = None,
) -> Scaling:
    """Return how step time and communication scale with the size of a job, its GPUs and its hardware.

    Parameters
    ----------
    job : TrainingJob, Trace, path or sequence of paths
        A job, whose step is predicted: scenarios change its sizes as `edit_job` does. Or the trace of a job that ran:
        each axis is the what-if of its name. GPUs are added as replicas, each with the batch that it has, so that the
        global batch grows.
    axes : mapping of str to sequence of float
        Values by axis, such as ``{"hidden": [4096, 8192], "gpus": [8, 64], "compute": [1, 2]}``; all combinations are
        replayed. Axes are those of `AXES`. ``"compute"`` is faster compute beside the same network.
    device : str, optional
        Device of the job, by default an A100; or that the trace was recorded on, if the trace does not name it.
    iteration : int, optional
        Iteration of the trace; by default that of median step time.
    sizes : str, optional
        TOML file with a table ``[job]``: sizes that the trace does not tell.
    price : float, optional
        US dollars for an hour of a GPU: rows then have tokens per $.

    Raises
    ------
    SeqPointError
        An axis, the device or the iteration is unknown, or the trace names another device. Or no scenario is possible;
        the message is that of the first.
    """
    grid = ScenarioGrid(axes)
    if isinstance(job, TrainingJob):
        scaled = _scale_job(job, grid, find_device(device or _DEVICE))
    else:
        trace = job if isinstance(job, Trace) else front_door.open(job)
        scaled = _scale_trace(trace, grid, (device, iteration, sizes))
    priced = tuple(replace(row, price=float("nan") if price is None else price) for row in scaled.rows)
    return replace(scaled, rows=priced)


def _scale_job(job: TrainingJob, grid: ScenarioGrid, device: Device) -> Scaling:
    parameters, fit = load_parameters(), load_training()
    timer = JobTimer(device, parameters)
    is_known = "memory_gb" in device.figures

    @cache
    def window_of(edited: TrainingJob) -> StepWindow:
        return step_of_job(edited, timer, fit=fit)

    @cache
    def step_of(edited: TrainingJob) -> PredictedStep:
        (step,) = predict_steps([edited], device, fit=fit, parameters=parameters, timer=timer)
        return step

    def case_of(scenario: Scenario) -> _Case:
        edited = edited_job(job, scenario)
        change, batch = parse_what_if(faster_compute(scenario.get(COMPUTE, 1))), edited.global_batch
        row = ScalingRow(scenario, edited.layout.devices, batch, batch * edited.length)
        memory = job_memory(edited)
        row = replace(row, memory_bytes=memory.reserved, fit=memory_fit(memory, device) if is_known else "")
        return window_of(edited), change, row, step_of(edited)

    rows, model = _rows(grid.scenarios, case_of, parameters), job.model
    notes = [_before((model.layers, model.hidden, job.length, job.global_batch, job.layout.devices))]
    if is_known:
        notes.append(f"usable memory of {device.name}: {usable_bytes(device) / 1e9:.1f} GB")
        notes += _what_fits(job, rows, device)
    when = "beside" if job.overlap_gradients else "after"
    of_job = f"overlap_gradients is {str(job.overlap_gradients).lower()}"
    notes += _weak(grid, f"replicas exchange gradients {when} the backward pass: {of_job}")
    return Scaling(rows, grid.names, f"predicted step of {model.name}", device.name, tuple(notes))


def _before(sizes: tuple[int, int, int, int, int], where: str = "") -> str:
    """Return the note on the sizes before scaling: layers, hidden size, tokens, global batch and GPUs."""
    layers, hidden, length, batch, gpus = sizes
    return f"before scaling: {layers} layers of {hidden}{where}, {length} tokens, global batch: {batch}, GPUs: {gpus}"


def _weak(grid: ScenarioGrid, gradients: str) -> list[str]:
    """Return the notes on grids that add replicas."""
    if not {GPUS, "data_parallel"} & set(grid.axes):
        return []
    weak = "each replica keeps its batch, so the global batch grows (weak scaling)"
    return [f"{weak}; `gpus` of `seqpoint sweep` keeps the global batch", gradients]


def _what_fits(job: TrainingJob, rows: Sequence[ScalingRow], device: Device) -> list[str]:
    """Return a note on the changes that make the smallest scenario fit, if none does."""
    timed = [row for row in rows if not row.reason]
    if any(row.fits for row in timed):
        return []
    least = min(timed, key=lambda row: (row.memory_bytes, -row.gpus))
    edited = edited_job(job, least.scenario)
    found = [
        f"{key} = {value if key != 'recompute' else 'true'} ({memory.reserved / 1e9:.1f} GB)"
        for key, value, memory in fitting_changes(edited, device)
    ]
    helps = f"one of these makes it fit: {', '.join(found)}" if found else (
        "flash attention, recompute, sharding or more tensor-parallel ranks alone do not make it fit; combine them"
    )  # fmt: skip
    return [f"{scenario_text(least.scenario)} needs least, {least.memory_bytes / 1e9:.1f} GB; {helps}"]


def edited_job(job: TrainingJob, scenario: Scenario) -> TrainingJob:
    """Return a job with the sizes of a scenario.

    Raises
    ------
    InvalidInputError
        The sizes make no job, or the GPUs are no multiple of those of a replica.
    """
    for name, value in scenario.items():
        if name in EDITS:
            job = edit_job(job, name, int(value))
    if GPUS not in scenario:
        return job
    return edit_job(job, "data_parallel", _replicas(int(scenario[GPUS]), job))


def _replicas(gpus: int, job: TrainingJob) -> int:
    """Return the replicas of a job on a number of GPUs."""
    of_replica = job.layout.devices // job.layout.data
    if gpus % of_replica:
        raise _no_multiple(gpus, of_replica)
    return gpus // of_replica


def _no_multiple(gpus: int, of_replica: int) -> InvalidInputError:
    return InvalidInputError(f"{gpus} GPUs; a replica takes {of_replica}, so give a multiple of that")


@dataclass(frozen=True)
class _TracedStep:
    """A traced step: its GPUs, and its job if that is a transformer."""

    gpus: int
    job: TracedJob | None

    @property
    def values(self) -> Scenario:
        """Values of the axes before any change; those of a job are left out if it is unknown."""
        others = {GPUS: self.gpus, COMPUTE: 1}
        if (job := self.job) is None:
            return others
        sizes = {"hidden": job.sizes["hidden"], "layers": job.layers, "sequence_length": job.sizes["length"]}
        ranks = {"tensor_parallel": job.tensor, "context_parallel": 1, "pipeline_parallel": 1}
        return {**sizes, "micro_batch": job.sizes["batch"], **ranks, "data_parallel": job.data, **others}

    def row(self, scenario: Scenario) -> tuple[ScalingRow, int]:
        """Return a row without times, and the replicas of the scenario.

        Raises
        ------
        InvalidInputError
            The GPUs are no multiple of those of a replica.
        """
        before = {name: value for name, value in self.values.items() if name in scenario}
        values = {**self.values, **scenario}
        if (job := self.job) is None:
            gpus = int(values[GPUS])
            replicas = int(scenario.get("data_parallel", 1 if gpus == self.gpus else gpus))
            # The what-if of a job's axis says why it cannot be applied.
            return ScalingRow(scenario, gpus, is_baseline=dict(scenario) == before), replicas
        ranks = ("tensor_parallel", "context_parallel", "pipeline_parallel")
        growth = np.prod([values[name] / self.values[name] for name in ranks])
        of_replica = max(round(self.gpus * growth / job.data), 1)
        replicas = int(values["data_parallel"])
        if GPUS in scenario:
            replicas, rest = divmod(int(scenario[GPUS]), of_replica)
            if rest:
                raise _no_multiple(int(scenario[GPUS]), of_replica)
        batch = int(values["micro_batch"]) * job.micro_batches * replicas
        tokens = batch * int(values["sequence_length"])
        return ScalingRow(scenario, of_replica * replicas, batch, tokens, dict(scenario) == before), replicas


def _scale_trace(trace: Trace, grid: ScenarioGrid, given: tuple[str | None, int | None, str | None]) -> Scaling:
    """Scale a trace; `given` are device, iteration, and file of sizes."""
    device, iteration, sizes = given
    _check_device(trace, device)
    parameters, number = load_parameters(), typical_iteration(trace) if iteration is None else iteration
    (window,) = step_windows(trace, [number], device=device, parameters=parameters)
    traced = _traced(window.graph, trace.meta.world_size or 0, sizes)

    def case_of(scenario: Scenario) -> _Case:
        row, replicas = traced.row(scenario)
        kept = {name: value for name, value in scenario.items() if name not in (GPUS, "data_parallel")}
        if replicas != (traced.job.data if traced.job else 1) or "data_parallel" in scenario:
            kept["data_parallel"] = replicas
        edits = {name: kept[name] for name in AXES if name in kept}
        change = parse_what_if(what_if_of(edits)) if edits and not row.is_baseline else parse_what_if("nothing")
        is_edit = sizes is not None and not row.is_baseline and any(name != COMPUTE for name in edits)
        return window, with_job([change], str(sizes))[0] if is_edit else change, row, None

    rows, known = _rows(grid.scenarios, case_of, parameters), window.graph.hardware.device
    if not any(row.is_baseline for row in rows):
        before = {name: traced.values[name] for name in grid.names if name in traced.values}
        rows = (*_rows([before], case_of, parameters), *rows)
    of = f"iteration {number} of a {'synthetic ' * trace.meta.synthetic}trace, GPUs: {traced.gpus}"
    return Scaling(rows, grid.names, of, known.name if known else "", _trace_notes(traced, grid))


def _check_device(trace: Trace, device: str | None) -> None:
    """Raise an error if the trace names another device than the user."""
    named, given = hardware_of(trace), None if device is None else find_device(device)
    if given is None or named.known_by != "trace" or named.device is None or named.device.name == given.name:
        return
    raise InvalidInputError(
        f"the trace was recorded on {named.device.name}, and --device names {given.name}; for times there: "
        f"`seqpoint project TRACE -w scale_device:{given.name}`"
    )


def _traced(graph: KernelGraph, world: int, sizes: str | None) -> _TracedStep:
    """Return the traced step of a graph."""
    try:
        job = find_job(graph, None if sizes is None else read_job(sizes))
    except InvalidInputError:
        return _TracedStep(max(world, 1), None)
    return _TracedStep(world or job.tensor * job.data, job)


def _trace_notes(traced: _TracedStep, grid: ScenarioGrid) -> tuple[str, ...]:
    """Return the notes on the sizes of a traced job, and on its replicas."""
    job = traced.job
    if job is None:
        return ()
    row, _ = traced.row({})
    before = _before(
        (job.layers, job.sizes["hidden"], job.sizes["length"], row.global_batch, traced.gpus), " on a rank"
    )
    gradients = (
        "collectives of gradients overlap as in the trace" if job.data > 1
        else "all-reduces of gradients are added beside the backward pass, as in PyTorch DDP" if job.training
        else "replicas of an inference step exchange nothing"
    )  # fmt: skip
    return (before, *_weak(grid, gradients))


def what_if_of(scenario: Scenario) -> str:
    """Return the what-if of a scenario on a trace: each axis is the what-if of its name.

    Examples
    --------
    >>> what_if_of({"hidden": 8192, "data_parallel": 8, "compute": 2})
    'hidden:8192+data_parallel:8+scale_kernels:kernels:0.5'
    """
    steps = [faster_compute(value) if name == COMPUTE else f"{name}:{int(value)}" for name, value in scenario.items()]
    return "+".join(step for step in steps if step != "nothing") or "nothing"


def _rows(
    scenarios: Sequence[Scenario], case_of: Callable[[Scenario], _Case], parameters: Parameters
) -> tuple[ScalingRow, ...]:
    """Return the row of each scenario; raise the first error if none is possible."""
    rows, errors = [], list[SeqPointError]()
    for scenario in scenarios:
        try:
            window, change, row, step = case_of(scenario)
            state = window.steady(partial(change, parameters=parameters))
            row = _timed(row, state, window.chosen[0])
            if step is not None:
                low, high = (row.step_ns * end / step.seconds for end in (step.low_s, step.high_s))
                row = replace(row, low_ns=low, high_ns=high, basis=step.basis)
            rows.append(row)
        except SeqPointError as error:
            errors.append(error)
            rows.append(ScalingRow(scenario, reason=str(error)))
    if len(errors) == len(rows):
        raise errors[0]
    return tuple(rows)


def _timed(row: ScalingRow, state: SteadyState, position: int) -> ScalingRow:
    """Return a row with the times of a step."""
    line = state.at_step(position)
    times = [
        (each.busy_ns, each.transfer_ns - wait, each.exposed_transfer_ns - wait, each.exposed_ns)
        for each, wait in zip(line.device_times(), _stage_waits_ns(line), strict=True)
    ]
    busy, transfer, exposed, alone = np.mean(times, axis=0).tolist() if times else (0.0, 0.0, 0.0, 0.0)
    step_ns, bubble = float(state.step_ns[position]), alone - exposed
    bubble *= bubble > _ROUNDING * step_ns  # a difference of sums of times
    return replace(row, step_ns=step_ns, busy_ns=busy, communication_ns=transfer, exposed_ns=exposed, bubble_ns=bubble)


def _stage_waits_ns(line: Timeline) -> Floats:
    """Return for each device the time of tasks that stand for a wait for other stages: receives of no bytes."""
    graph, tasks, shown = line.graph, line.graph.tasks, line.clipped()
    waits = graph.collectives() & (tasks.collective == COLLECTIVE_KINDS.index("send_recv")) & (tasks.bytes == 0)
    waits &= tasks.basis == Basis.MODELLED
    time_ns = (shown.end_ns - shown.start_ns)[waits]
    return np.bincount(tasks.device[waits], time_ns, minlength=len(graph.devices)).astype(np.float64)
