"""Scenarios of a sweep: the plan that lists them, and step times of many training jobs under what-ifs.

`read_plan` reads a plan: a training job or a trace, a grid of values, devices and what-ifs, and a search if the grid is
too large to time all of it. Scenarios are numbered: devices change slowest, then the values of the grid, what-ifs
fastest.

`predict_scenarios` times jobs on one device. Without a what-if, a step is predicted in closed form, and the parts that
jobs share are timed once. With one, the step is replayed as a trace of one rank for each class of ranks that do the
same: replicas, context-parallel ranks, and the tensor-parallel ranks of a stage. Once all stages of a pipeline are
busy, each further micro-batch adds the same time, so that two steps of few micro-batches stand for one of many. The
replayed speed-up then divides the predicted time.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from math import fsum, inf, nan, prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, SeqPointError
from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import Floats
from profilers.trace.store import load_trace
from replay.calibration.parameters import Parameters
from replay.engine.steady import unchanged
from replay.graph.choice import unknown_name
from replay.graph.graph import KernelGraph, TaskKind
from replay.projection.evidence import digest
from replay.projection.windows import StepWindow
from replay.what_ifs import WhatIf, parse_what_if
from replay.what_ifs.what_if import single_steps
from replay.workloads import (
    FITS,
    PredictedStep,
    TrainingFit,
    TrainingJob,
    edit_job,
    job_memory,
    job_sizes,
    load_training,
    memory_fit,
    predict_steps,
    training_job,
)
from replay.workloads.jobs import SIZES
from replay.workloads.program import step_graph
from replay.workloads.traced_job import find_job
from replay.workloads.training import JobTimer
from replay.workloads.training_trace import training_program

#: Text of a what-if that changes nothing.
UNCHANGED = "nothing"
#: Terms of a choice of tasks that tell ranks of a stage, or micro-batches, apart.
_OF_SOME = frozenset({"rank", "device", "micro_batch", "microbatch"})

#: Largest whole number of a grid.
_LARGEST = 2**63 - 1
#: Most scenarios of a grid.
MOST_SCENARIOS = 10_000_000
#: Key of a grid for all devices of a job: the replicas follow.
GPUS = "gpus"
#: Sizes of a model that follow its hidden size.
_WITH_HIDDEN = ("hidden", "heads", "kv_heads", "feedforward", "expert_feedforward")
#: Steps that stay at hand to be replayed: two of few micro-batches, with one rank of a stage or with all.
_WINDOWS = 4
#: Starting points of a search that go on side by side.
STARTS = 8
#: Columns of a result after the values of the grid, and their types.
COLUMNS = {
    "device": pa.string(),
    "what_if": pa.string(),
    "gpus": pa.int64(),
    "step_s": pa.float64(),
    "low_s": pa.float64(),
    "high_s": pa.float64(),
    "tokens_per_s": pa.float64(),
    "tokens_per_gpu_s": pa.float64(),
    "watts": pa.float64(),
    "memory_bytes": pa.int64(),
    "fits": pa.bool_(),
    "fit": pa.string(),
    "basis": pa.string(),
    "error": pa.string(),
}
Value = str | int | float | bool
Row = dict[str, Any]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class ScenarioTime:
    """Step time of a scenario.

    Parameters
    ----------
    step_s, low_s, high_s : float
        Time of a step and the ends of its interval, s; NaN if there is none.
    basis : str
        ``"fitted"`` or ``"carried"``, as `replay.workloads.PredictedStep` has it; with ``"+replayed"`` if a what-if was
        replayed; empty if there is no time.
    error : str
        Why there is no time; empty if there is one.
    watts : float, optional
        Mean power of a device; None under a what-if, or if the power limit of the device is unknown.
    """

    step_s: float = nan
    low_s: float = nan
    high_s: float = nan
    basis: str = ""
    error: str = ""
    watts: float | None = None


def predict_scenarios(
    scenarios: Sequence[tuple[TrainingJob, str]],
    device: Device,
    *,
    fit: TrainingFit,
    parameters: Parameters,
    timer: JobTimer | None = None,
) -> list[ScenarioTime]:
    """Return the step time of each scenario, in order; a scenario that has none says why.

    Scenarios of jobs that differ in their micro-batches alone share replays. The interval is that of the predicted
    step. It does not hold the ranges of a what-if's own parameters: project the few scenarios of interest for that.

    Parameters
    ----------
    scenarios : sequence of (TrainingJob, str)
        Job and text of a what-if; ``"nothing"`` for the job as it is.
    device : Device
        Device that all ranks run on.
    fit : TrainingFit
        Costs of host and optimizer.
    parameters : Parameters
        With calibrations of kernels and collectives.
    timer : JobTimer, optional
        Times of parts of earlier jobs on this device with these parameters.

    Raises
    ------
    SeqPointError
        A what-if is unknown.

    Examples
    --------
    >>> from profilers.devices import find_device
    >>> from replay.costs.shipped import load_parameters
    >>> from replay.workloads import load_training, training_job
    >>> job = training_job({"layers": 2, "hidden": 512, "heads": 8, "global_batch": 4})
    >>> shipped = {"fit": load_training(), "parameters": load_parameters()}
    >>> device = find_device("A100-SXM4-80GB")
    >>> before, after = predict_scenarios([(job, "nothing"), (job, "scale_kernels:all:0.5")], device, **shipped)
    >>> after.step_s < before.step_s, after.basis
    (True, 'fitted+replayed')
    """
    timer = timer or JobTimer(device, parameters)
    steps = {job: _predicted(job, timer, fit) for job in dict.fromkeys(job for job, _ in scenarios)}
    what_ifs = {text: parse_what_if(text) for text in dict.fromkeys(text for _, text in scenarios)}
    replayed, times = _ReplayedSteps(timer, fit), list[ScenarioTime]()
    for job, text in scenarios:
        step = steps[job]
        if isinstance(step, str):
            times.append(ScenarioTime(error=step))
            continue
        before = ScenarioTime(step.seconds, step.low_s, step.high_s, step.basis, watts=step.watts)
        times.append(before if text == UNCHANGED else _changed(before, replayed.ratio(job, what_ifs[text])))
    return times


def _predicted(job: TrainingJob, timer: JobTimer, fit: TrainingFit) -> PredictedStep | str:
    """Return the predicted step of a job, or why there is none."""
    try:
        return predict_steps([job], timer.device, fit=fit, parameters=timer.parameters, timer=timer)[0]
    except SeqPointError as error:
        return str(error)


def _changed(before: ScenarioTime, ratio: float | str) -> ScenarioTime:
    """Return the time under a what-if: that of before times a ratio of replayed times."""
    if isinstance(ratio, str):
        return ScenarioTime(error=ratio)
    step, low, high = (ratio * time for time in (before.step_s, before.low_s, before.high_s))
    return ScenarioTime(step, low, high, f"{before.basis}+replayed")


class _ReplayedSteps:
    """Replayed times of steps, unchanged and under what-ifs; each is replayed once.

    Jobs that differ in the number of their micro-batches alone rest on the same few steps.
    """

    def __init__(self, timer: JobTimer, fit: TrainingFit) -> None:
        self._timer = timer
        self._window = lru_cache(_WINDOWS)(partial(step_of_job, timer=timer, fit=fit))
        self._times: dict[tuple[TrainingJob, int, str], float | SeqPointError] = {}

    def ratio(self, job: TrainingJob, what_if: WhatIf) -> float | str:
        """Return the replayed step time of a job under a what-if over the unchanged one, or why there is none."""
        ranks, jobs = (job.layout.tensor, [(job, 1.0)]) if _tells_apart(what_if) else (1, fewer_micro_batches(job))
        try:
            base_ns = fsum(weight * self._step_ns(each, ranks, None) for each, weight in jobs)
            changed_ns = fsum(weight * self._step_ns(each, ranks, what_if) for each, weight in jobs)
        except SeqPointError as error:
            return str(error)
        return max(changed_ns, 0.0) / base_ns

    def _step_ns(self, job: TrainingJob, ranks: int, what_if: WhatIf | None) -> float:
        key = (job, ranks, what_if.name if what_if else UNCHANGED)
        if key not in self._times:
            try:
                window = self._window(job, tensor_ranks=ranks)
                change = unchanged if what_if is None else partial(what_if, parameters=self._timer.parameters)
                self._times[key] = window.total_ns(window.steady(change))
            except SeqPointError as error:
                self._times[key] = error
        time = self._times[key]
        if isinstance(time, SeqPointError):
            raise time
        return time


def _tells_apart(what_if: WhatIf) -> bool:
    """Return whether a what-if acts on some ranks or micro-batches only, so that they do not do the same."""
    keys = {key for step in single_steps(what_if) for choice in step.choices for key, _ in choice.terms}
    return not keys.isdisjoint(_OF_SOME)


def _changes_memory(what_if: WhatIf) -> bool:
    """Return whether a job under a what-if has other memory: one with copies of its weights, or with other sizes."""
    return any(step.layers is not None or step.tokens is not None for step in single_steps(what_if))


def fewer_micro_batches(job: TrainingJob) -> list[tuple[TrainingJob, float]]:
    """Return jobs of few micro-batches, with weights by which the sum of their step times is that of a job.

    With as many micro-batches as stages, all stages are busy. From there on each adds the time of the slowest stage.

    Parameters
    ----------
    job : TrainingJob
        The job.

    Examples
    --------
    >>> from replay.workloads import training_job
    >>> job = training_job({"pipeline": 4, "global_batch": 64, "micro_batch": 2})
    >>> [(each.micro_batches, weight) for each, weight in fewer_micro_batches(job)]
    [(4, -27.0), (5, 28.0)]
    """
    layout = job.layout
    few = layout.pipeline * (1 if layout.schedule == "1f1b" else 2)
    more = few + (layout.pipeline if layout.chunks > 1 else 1)
    if job.micro_batches <= more:
        return [(job, 1.0)]
    weight = (job.micro_batches - few) / (more - few)
    sequences = job.micro_batch * layout.data
    return [
        (replace(job, global_batch=few * sequences), 1 - weight),
        (replace(job, global_batch=more * sequences), weight),
    ]


def step_of_job(job: TrainingJob, timer: JobTimer, *, fit: TrainingFit, tensor_ranks: int = 1) -> StepWindow:
    """Return a training step to replay: one replica, and one tensor-parallel rank of each pipeline stage.

    Parameters
    ----------
    job : TrainingJob
        The job.
    timer : JobTimer
        Times of the parts of jobs on the device; jobs that share a timer share parts.
    fit : TrainingFit
        Costs of host and optimizer.
    tensor_ranks : int
        Tensor-parallel ranks of each stage; one stands for all, as long as nothing tells them apart.

    Raises
    ------
    InvalidInputError
        The step has too many kernels.
    """
    program = training_program(job, timer, fit.costs_of(job, timer.device), tensor_ranks=tensor_ranks)
    return StepWindow.alone(step_graph(program, timer.device, timer.parameters))


#: What-ifs that change the devices of a traced job, and those that change the tokens of its step.
_OF_DEVICES = ("tensor_parallel", "data_parallel", "pipeline_parallel", "context_parallel", "change_world_size")
_OF_TOKENS = ("micro_batch", "sequence_length", "data_parallel", "change_world_size")


@dataclass(frozen=True)
class TracedSizes:
    """Devices and tokens of a traced step, from which those of its edits follow.

    Parameters
    ----------
    gpus : int
        Devices of the traced job.
    tokens : int, optional
        Tokens of all sequences of a step; None if the step is no transformer whose sizes are known.
    traced : mapping of str to int
        Traced size by the what-if that changes it.
    """

    gpus: int
    tokens: int | None
    traced: Mapping[str, int]

    @classmethod
    def of_graph(cls, graph: KernelGraph, gpus: int) -> "TracedSizes":
        """Return the sizes of the graph of a step."""
        tasks = graph.tasks
        group = int(tasks.ranks[tasks.kind == TaskKind.COLLECTIVE].max(initial=1))
        traced = {**dict.fromkeys(_OF_DEVICES, 1), "change_world_size": group}
        try:
            job = find_job(graph)
        except InvalidInputError:
            return cls(max(gpus, group), None, traced)
        gpus = max(gpus, group, job.tensor * job.data)
        replicas = job.data if job.training else gpus // job.tensor
        batch, length = job.sizes["batch"], job.sizes["length"]
        traced |= {"tensor_parallel": job.tensor, "data_parallel": replicas, "micro_batch": batch}
        tokens = batch * length * job.micro_batches * replicas
        return cls(gpus, tokens, traced | {"sequence_length": length})

    def edited(self, what_if: WhatIf) -> tuple[int, int | None]:
        """Return devices and tokens under a what-if.

        Examples
        --------
        >>> sizes = TracedSizes(8, 1024, {"tensor_parallel": 2, "micro_batch": 4})
        >>> sizes.edited(parse_what_if("tensor_parallel:4+micro_batch:8"))
        (16, 2048)
        """
        steps = [step.name.split(":") for step in single_steps(what_if)]
        edits = {name: int(words[0]) for name, *words in steps if name in self.traced}
        gpus = self.gpus * _growth(self.traced, edits, _OF_DEVICES)
        tokens = None if self.tokens is None else round(self.tokens * _growth(self.traced, edits, _OF_TOKENS))
        return round(gpus), tokens


def _growth(before: Mapping[str, int], after: Mapping[str, int], names: Sequence[str]) -> Fraction:
    """Return the product of the ratios of sizes after and before."""
    return prod((Fraction(after[name], before[name]) for name in names if name in after), start=Fraction(1))


#: What a search makes small.
OBJECTIVES = ("time", "gpu_seconds")


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A search over a grid, by coordinate descent from random scenarios.

    Parameters
    ----------
    objective : str
        ``"time"`` of a step, or ``"gpu_seconds"``: the time of a step times its devices.
    evaluations : int
        Most scenarios that are timed.
    max_gpus : int, optional
        Scenarios of more devices are no solution.
    must_fit : bool
        Whether scenarios that do not fit into memory are no solution.
    seed : int
        Seed of the starting points.
    """

    objective: str = "time"
    evaluations: _Positive = 1000
    max_gpus: _Positive | None = None
    must_fit: bool = False
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InvalidInputError(f"objective is {self.objective!r:.40}; it can be {' or '.join(OBJECTIVES)}")

    def scores(self, rows: pa.Table) -> Floats:
        """Return what is to be small of each row; infinite for a row that is no solution."""
        gpus = rows["gpus"].fill_null(0).to_numpy()
        step_s = rows["step_s"].fill_null(inf).to_numpy()
        is_none = np.zeros(len(gpus), bool) if self.max_gpus is None else gpus > self.max_gpus
        if self.must_fit:
            is_none |= ~rows["fits"].fill_null(True).to_numpy()
        scores = step_s * gpus if self.objective == "gpu_seconds" else step_s
        return np.where(is_none | np.isinf(step_s), inf, scores)


class Descent:
    """Coordinate descent from several scenarios: along one axis after the other, to the best scenario of a line.

    A starting point that no axis improves is replaced by another, drawn at random.

    Parameters
    ----------
    axes : sequence of int
        Number of values of each axis.
    seed : int
        Seed of the starting points.
    """

    def __init__(self, axes: Sequence[int], seed: int) -> None:
        self._axes, self._random = axes, np.random.default_rng(seed)
        self._stays, self._at = [0] * STARTS, [self._drawn() for _ in range(STARTS)]
        self._turn = 0

    def _drawn(self) -> list[int]:
        return [int(self._random.integers(size)) for size in self._axes]

    def _line(self, at: Sequence[int]) -> list[int]:
        """Return the numbers of the scenarios along the axis of this turn."""
        axis = self._turn % len(self._axes)
        points = [[*at[:axis], i, *at[axis + 1 :]] for i in range(self._axes[axis])]
        return [int(np.ravel_multi_index(point, self._axes)) for point in points]

    def lines(self) -> list[int]:
        """Return the scenarios of this turn, each once."""
        return list(dict.fromkeys(number for at in self._at for number in self._line(at)))

    def move(self, found: Mapping[int, float]) -> None:
        """Move each point to the best scenario of its line; `found` holds the scores by number."""
        for i, at in enumerate(self._at):
            here = int(np.ravel_multi_index(at, self._axes))
            best = min((found.get(number, inf), number) for number in self._line(at))
            if best[0] < found.get(here, inf):
                self._at[i], self._stays[i] = [int(j) for j in np.unravel_index(best[1], self._axes)], 0
            elif self._stays[i] + 1 < len(self._axes):
                self._stays[i] += 1
            else:
                self._at[i], self._stays[i] = self._drawn(), 0
        self._turn += 1


class _SweepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a plan."""

    job: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    trace: str | msgspec.UnsetType = msgspec.UNSET
    grid: Any = msgspec.field(default_factory=dict)
    devices: list[str] | msgspec.UnsetType = msgspec.UNSET
    what_ifs: list[str] | msgspec.UnsetType = msgspec.UNSET
    search: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class SweepPlan:
    """Scenarios to time.

    Parameters
    ----------
    source : str
        File of the plan, for messages.
    job : mapping of str to object, optional
        Sizes of a job, as `replay.workloads.training_job` takes them; None for a trace.
    trace : str
        Path of a trace; empty for a job.
    grids : sequence of mapping of str to sequence
        Grids of values, one after the other; of each, all combinations. Of a job, values of its sizes, and ``"gpus"``;
        of a trace, arguments of what-ifs by their names.
    devices : sequence of str
        Names of devices; of a trace, empty for that of the trace.
    what_ifs : sequence of str
        What-ifs; ``"nothing"`` for none.
    search : Search, optional
        How to search the grid; None to time all of it.
    """

    source: str
    job: Mapping[str, Any] | None
    trace: str
    grids: Sequence[Mapping[str, Sequence[Value]]]
    devices: Sequence[str]
    what_ifs: Sequence[str]
    search: Search | None = None

    def __len__(self) -> int:
        return len(self.devices) * sum(self._points) * len(self.what_ifs)

    @cached_property
    def _points(self) -> tuple[int, ...]:
        """Number of combinations of each grid."""
        return tuple(prod(len(values) for values in grid.values()) for grid in self.grids)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys of all grids, in the order of the plan."""
        return tuple(dict.fromkeys(key for grid in self.grids for key in grid))

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Number of values of each axis of a plan of one grid: devices, keys, what-ifs."""
        return (len(self.devices), *(len(values) for values in self.grids[0].values()), len(self.what_ifs))

    def scenario(self, number: int) -> tuple[dict[str, Value], str, str]:
        """Return the values of the grid, the device and the what-if of a scenario."""
        rest, change = divmod(number, len(self.what_ifs))
        device, point = divmod(rest, sum(self._points))
        table = 0
        while point >= self._points[table]:
            point -= self._points[table]
            table += 1
        values: dict[str, Value] = {}
        for key in reversed(list(self.grids[table])):
            choices = self.grids[table][key]
            point, choice = divmod(point, len(choices))
            values[key] = choices[choice]
        return {key: values[key] for key in self.grids[table]}, self.devices[device], self.what_ifs[change]

    def job_of(self, values: Mapping[str, Value]) -> TrainingJob:
        """Return the job of some values of the grid.

        A hidden size keeps the width of a head, unless heads are given too. ``"gpus"`` sets the replicas.

        Raises
        ------
        InvalidInputError
            They make no job.
        """
        assert self.job is not None
        given = {key: value for key, value in values.items() if key != GPUS}
        sizes = dict(self.job) | given
        if "hidden" in given:
            model = {key: self.job[key] for key in ("model", *_WITH_HIDDEN) if key in self.job}
            scaled = job_sizes(edit_job(training_job(model), "hidden", _whole("hidden", given["hidden"])))
            sizes |= {key: scaled[key] for key in _WITH_HIDDEN} | given
        if GPUS in values:
            gpus, names = _whole(GPUS, values[GPUS]), ("tensor", "pipeline", "context")
            ranks = [_whole(name, sizes.get(name, 1)) for name in names]
            if gpus % max(prod(ranks), 1):
                split = " x ".join(f"{name} {count}" for name, count in zip(names, ranks, strict=True))
                raise InvalidInputError(f"{gpus} GPUs are no multiple of {split}")
            sizes["data"] = gpus // prod(ranks)
        return training_job(sizes)

    def schema(self) -> pa.Schema:
        """Return the columns of a result: values of the grid, then the others."""
        types = {key: _arrow_type([value for grid in self.grids for value in grid.get(key, ())]) for key in self.keys}
        return pa.schema([*types.items(), *(item for item in COLUMNS.items() if item[0] not in types)])

    def digest(self, parameters: Parameters) -> str:
        """Return a digest of all that the rows depend on, the parameters included."""
        content = [self.job, self.trace, [list(grid.items()) for grid in self.grids], self.devices, self.what_ifs]
        content.append(None if self.search is None else msgspec.to_builtins(self.search))
        content.append(_stamp(Path(self.trace)) if self.trace else None)
        figures = [{name: f.value for name, f in find_device(d).figures.items()} for d in self.devices if d]
        values = repr(sorted(parameters.values.items()))
        facts = {"plan": content, "figures": figures, "values": values, "models": _models_digest()}
        return digest(facts)[:20]


def job_rows(plan: SweepPlan, numbers: Sequence[int], timer_of: Callable[[str], JobTimer]) -> list[Row]:
    """Return the rows of scenarios of a job; those of a device and of the same costs are predicted together.

    Parameters
    ----------
    plan : SweepPlan
        Plan of a job.
    numbers : sequence of int
        Numbers of the scenarios.
    timer_of : callable
        Returns the timer of the device of a name.
    """
    rows, jobs = list[Row](), dict[tuple[Value, ...], TrainingJob | str]()
    waiting: dict[str, list[tuple[Row, TrainingJob]]] = {}
    for number in numbers:
        values, device, what_if = plan.scenario(number)
        rows.append({**values, "device": device, "what_if": what_if})
        key = tuple(values.values())
        if key not in jobs:
            try:
                jobs[key] = plan.job_of(values)
            except SeqPointError as error:
                jobs[key] = str(error)
        job = jobs[key]
        if isinstance(job, str):
            rows[-1]["error"] = job
        else:
            waiting.setdefault(device, []).append((rows[-1], job))
    without_memory = {text for text in plan.what_ifs if _changes_memory(parse_what_if(text))}
    for device, pairs in waiting.items():
        scenarios = [(job, row["what_if"]) for row, job in pairs]
        timer, memory, fit = timer_of(device), cache(job_memory), load_training()
        times = predict_scenarios(scenarios, timer.device, fit=fit, parameters=timer.parameters, timer=timer)
        for (row, job), time in zip(pairs, times, strict=True):
            row[GPUS] = job.layout.devices
            if row["what_if"] not in without_memory:
                row["memory_bytes"] = memory(job).reserved
                if "memory_gb" in timer.device.figures:
                    row |= {"fit": (verdict := memory_fit(memory(job), timer.device)), "fits": verdict != FITS[2]}
            row |= time_columns(time, job.layout.devices, job.global_batch * job.length)
    return rows


def time_columns(time: ScenarioTime, gpus: int, tokens: int | None) -> Row:
    """Return the columns of a time; those of a scenario without a time are its error.

    Parameters
    ----------
    time : ScenarioTime
        Time of a step.
    gpus : int
        Devices of the job.
    tokens : int, optional
        Tokens of all sequences of a step; None if they are unknown.
    """
    if time.error:
        return {"error": time.error}
    columns: Row = {name: getattr(time, name) for name in ("step_s", "low_s", "high_s", "basis", "watts")}
    if tokens is not None:
        columns |= {"tokens_per_s": tokens / time.step_s, "tokens_per_gpu_s": tokens / time.step_s / gpus}
    return columns


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInputError(f"{name} is {value!r:.40}; it is a whole number from 1")
    return value


def _arrow_type(values: Sequence[Value]) -> pa.DataType:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return pa.int64() if kinds == {int} else pa.float64()
    return pa.bool_() if kinds == {bool} else pa.string()


@cache
def _models_digest() -> str:
    """Return a digest of the code and the shipped fits."""
    found = hashlib.sha256()
    code = [Path(__file__).parents[2] / package for package in ("profilers", "replay", "seqpoint")]
    for folder in (*code, dataset_path("fits")):
        for file in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".json")):
            found.update(file.read_bytes())
    return found.hexdigest()


def _stamp(path: Path) -> list[list[Any]]:
    """Return names, sizes and times of the files of a trace."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return [[str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def read_plan(path: str | os.PathLike[str]) -> SweepPlan:
    """Read the plan of a sweep.

    Parameters
    ----------
    path : str or path
        TOML file. Its keys: a table ``[job]`` or ``trace = "NAME.trace"`` (from the folder of the file); tables
        ``[grid]`` or ``[[grid]]`` of lists; ``devices`` and ``what_ifs``, which are lists; ``[search]``.

    Raises
    ------
    NotFoundError, InvalidInputError
        There is no such file, a key or name is unknown, a list is empty or holds no values, or the grid has more than
        10 million scenarios. The message names file and key.
    """
    file = Path(path)
    content = typed_table(read_toml(file, "plans of sweeps"), _SweepFile, str(file))
    if isinstance(content.job, dict) == isinstance(content.trace, str):
        raise InvalidInputError(f"{file}: give a table [job] or trace = 'NAME.trace', and not both")
    grids = [content.grid] if isinstance(content.grid, dict) else content.grid or [{}]
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise InvalidInputError(f"{file}: grid is a table of lists, [grid], or several tables, [[grid]]")
    trace = str((file.parent / content.trace).resolve()) if isinstance(content.trace, str) else ""
    devices = content.devices if isinstance(content.devices, list) else ["" if trace else load_training().device]
    what_ifs = content.what_ifs if isinstance(content.what_ifs, list) else [UNCHANGED]
    for name, values in (("devices", devices), ("what_ifs", what_ifs)):
        _check_list(f"{file}: {name}", values)
    for i, grid in enumerate(grids, 1):
        where = f"{file}: grid" + (f" {i}" if len(grids) > 1 else "")
        for key, values in grid.items():
            _check_list(f"{where}: {key}", values)
    job = content.job if isinstance(content.job, dict) else None
    search = typed_table(content.search, Search, f"{file}: search") if isinstance(content.search, dict) else None
    plan = SweepPlan(str(file), job, trace, grids, devices, what_ifs, search)
    _check_keys(plan)
    if len(plan) > MOST_SCENARIOS:
        raise InvalidInputError(f"{file}: {len(plan):,} scenarios; at most {MOST_SCENARIOS:,}: take fewer values")
    if plan.search is not None and len(grids) > 1:
        raise InvalidInputError(f"{file}: search: it takes one table [grid], and the plan has {len(grids)}")
    _check_names(plan)
    return plan


def _check_list(where: str, values: object) -> None:
    if not isinstance(values, list) or not values:
        raise InvalidInputError(f"{where} is a list of one value or more")
    if any(not isinstance(value, Value) for value in values):
        raise InvalidInputError(f"{where} holds a value that is no text, number or boolean")
    if any(isinstance(value, int) and abs(value) > _LARGEST for value in values):
        raise InvalidInputError(f"{where} holds a number above {_LARGEST:,}")
    if len({(type(value), value) for value in values}) < len(values):
        raise InvalidInputError(f"{where} holds a value twice")


def _check_keys(plan: SweepPlan) -> None:
    """Raise an error for a key that a job does not have, and for values of a wrong type.

    The keys of a trace's grid are what-ifs.
    """
    for key in plan.keys:
        values = [value for grid in plan.grids for value in grid.get(key, ())]
        if len({_kind(value) for value in values}) > 1:
            kinds = " and ".join(sorted({_kind(value) for value in values}))
            raise InvalidInputError(f"{plan.source}: grid: {key} holds {kinds}; give values of one type")
    if plan.job is None:
        return
    flags = [name for name, value in job_sizes(training_job({})).items() if isinstance(value, bool)]
    for where, keys in (("job", plan.job), *(("grid", grid) for grid in plan.grids)):
        known = ("model", *SIZES, *((GPUS,) if where == "grid" else ()))
        for key in keys:
            if key not in known:
                raise unknown_name(f"{plan.source}: {where}: no key is called", key, known)
            for value in keys[key] if where == "grid" else [keys[key]]:
                if key in flags and not isinstance(value, bool):
                    raise InvalidInputError(f"{plan.source}: {where}: {key} is {value!r:.40}; it is true or false")
    if any(GPUS in grid and "data" in grid for grid in plan.grids):
        raise InvalidInputError(f"{plan.source}: grid: gpus sets the replicas; leave out data")


def _kind(value: Value) -> str:
    return "booleans" if isinstance(value, bool) else "texts" if isinstance(value, str) else "numbers"


def _check_names(plan: SweepPlan) -> None:
    """Raise an error for an unknown device or what-if, and for a trace that cannot be read."""
    argued = [] if plan.job is not None else [(k, f"{k}:{v}") for grid in plan.grids for k in grid for v in grid[k]]
    checks: list[tuple[str, Callable[[str], object], str]]
    checks = [("devices", find_device, name) for name in plan.devices if name or plan.job is not None]
    checks += [("what_ifs", parse_what_if, text) for text in plan.what_ifs]
    checks += [("trace", lambda path: load_trace(Path(path)), plan.trace)] if plan.trace else []
    checks += [(f"grid: {key}", parse_what_if, text) for key, text in argued]
    for where, check, text in checks:
        try:
            check(text)
        except SeqPointError as error:
            raise type(error)(f"{plan.source}: {where}: {error}") from error
