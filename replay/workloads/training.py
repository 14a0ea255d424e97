"""Time of a parallel training step.

Pipeline schedules: the order in which a stage runs its micro-batches, and when each is done.

A stage has two clocks, host and device. The host calls the operators of a micro-batch; the device starts no earlier
than its call, and is done no earlier than the last call. Where one is slower, the other waits or runs ahead. In
Megatron-LM the host waits for the device before each forward pass, where it reads the sizes of the batch back, and
between stages, whose exchanges synchronise: it cannot run ahead further than from a forward pass to the backward pass.

`Load`: calls and device time of a part of a training step, before any parameter of training is applied.

`TrainingCosts`: the few parameters of training that no data sheet gives, and the time of a step from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from profilers.devices.catalogue import Device
from replay.calibration.parameters import Parameters
from replay.costs.collectives import CollectiveCalibration, Topology, predict_collective
from replay.graph.operators import Operator, streaming
from replay.workloads.architecture import Step, time_operators
from replay.workloads.jobs import PRECISIONS, OptimizerPass, TrainingJob
from replay.workloads.transformer import (
    Block,
    Pass,
    embedding_block,
    head_block,
    layer_block,
    padded_vocabulary,
)


@dataclass(frozen=True)
class Duration:
    """Time of host and device for a part of a step.

    A host that is free at h is free again at ``h + host_s``. A device that is free at d is done at the later of
    ``d + device_s`` and ``h + reach_s``.

    Parameters
    ----------
    host_s, device_s : float
        Calls, and kernels.
    reach_s : float
        From the first call to the end, on a device that is free: 0 is taken for the longer of the two.

    Examples
    --------
    >>> slow, heavy = Duration(2.0, 1.0), Duration(1.0, 3.0)
    >>> slow.then(heavy).reach_s, heavy.then(slow).reach_s  # the heavy part has to wait for its calls, or hides others'
    (5.0, 4.0)
    """

    host_s: float
    device_s: float
    reach_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach_s", max(self.reach_s, self.host_s, self.device_s))

    def then(self, other: "Duration") -> "Duration":
        """Return the duration of this with `other` after it."""
        reach = max(self.reach_s + other.device_s, self.host_s + other.reach_s)
        return Duration(self.host_s + other.host_s, self.device_s + other.device_s, reach)

    def times(self, count: int) -> "Duration":
        """Return the duration of `count` repetitions, one after the other."""
        more = (count - 1) * max(self.host_s, self.device_s)
        return Duration(count * self.host_s, count * self.device_s, self.reach_s + more)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the order of a stage: forward passes until the first gradient can come, then one of each, then the rest.

    Source: PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473, figure 4.

    Examples
    --------
    >>> one_forward_one_backward(0, 2, 2)
    [('forward', 0), ('forward', 1), ('backward', 0), ('backward', 1)]
    >>> one_forward_one_backward(1, 2, 2)
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    ahead = min(stages - stage - 1, micro_batches)
    order = [("forward", i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        order += [("forward", ahead + i), ("backward", i)]
    return order + [("backward", i) for i in range(micro_batches - ahead, micro_batches)]


def run_schedule(
    stages: Sequence[Mapping[str, Duration]], micro_batches: int, exchange_s: float = 0.0
) -> tuple[float, ...]:
    """Run one-forward-one-backward; return when each stage is done, s.

    Parameters
    ----------
    stages : sequence of mapping of str to Duration
        Durations ``"forward"`` and ``"backward"`` of each pipeline stage, in order.
    micro_batches : int
        Number of micro-batches of a step.
    exchange_s : float
        From when one stage is done with a micro-batch and the next asks for it until that can start with it.

    Notes
    -----
    If all stages take f forward and b backward, and exchanges no time, they are done after
    ``(micro_batches + stages - 1) * (f + b)`` (arXiv 2104.04473, section 2.2).

    Examples
    --------
    >>> stage = {"forward": Duration(0.0, 1.0), "backward": Duration(0.0, 2.0)}
    >>> run_schedule([stage] * 2, 3)
    (12.0, 10.0)
    """
    n = len(stages)
    orders = [one_forward_one_backward(i, n, micro_batches) for i in range(n)]
    host, device, position = [0.0] * n, [0.0] * n, [0] * n
    done: dict[tuple[int, str, int], float] = {}
    left = 2 * n * micro_batches
    while left:
        for i in range(n):
            while position[i] < len(orders[i]):
                way, number = orders[i][position[i]]
                before = i - 1 if way == "forward" else i + 1
                if 0 <= before < n and (before, way, number) not in done:
                    break
                began = max(host[i], device[i] if way == "forward" else 0.0)  # it reads the batch's sizes back
                if 0 <= before < n:
                    began = max(began, done[before, way, number]) + exchange_s
                took = stages[i][way]
                host[i] = began + took.host_s
                device[i] = max(device[i] + took.device_s, began + took.reach_s)
                if n > 1:
                    host[i] = device[i]  # it waits for what it sends
                done[i, way, number] = device[i]
                position[i] += 1
                left -= 1
    return tuple(device)


#: Parameters that one launch of a multi-tensor kernel covers: 320 blocks of 65,536 (NVIDIA Apex, csrc).
_LAUNCH_PARAMETERS = 320 * 65_536
#: A step, and the time that it takes on the device alone, s.
TimedStep = tuple[Step, float]
#: Name of a part of a stage, and the steps of a micro-batch forward and backward.
StagePart = tuple[str, list[TimedStep], list[TimedStep]]


@dataclass(frozen=True)
class Load:
    """Calls and device time of a part of a step.

    Parameters
    ----------
    operators, collectives : int
        Number of operators and collectives that the host calls.
    products_s, streams_s, communication_s : float
        Time of matrix products, of other kernels, and of collectives, each running alone.
    """

    operators: int = 0
    collectives: int = 0
    products_s: float = 0.0
    streams_s: float = 0.0
    communication_s: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        """Return the load of both."""
        return Load(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __mul__(self, times: int) -> "Load":
        """Return the load of it so many times."""
        return Load(*(value * times for value in vars(self).values()))


@dataclass(frozen=True)
class PartLoad:
    """A part of the model for one micro-batch, so many times one after the other.

    Parameters
    ----------
    forward, backward : Load
        Loads of one micro-batch in each direction.
    count : int
        How often the part occurs in the stage.
    weights, tensors : int
        Elements of its parameters on a rank, and parameters; of the part once.
    again : bool
        Whether the forward pass is run again before the backward pass.
    """

    forward: Load
    backward: Load
    count: int
    weights: int
    tensors: int
    again: bool = False

    @property
    def total(self) -> Load:
        """All that a micro-batch asks of it."""
        return (self.forward * (1 + self.again) + self.backward) * self.count


@dataclass(frozen=True)
class StageLoad:
    """A pipeline stage: one micro-batch forward and backward, then what follows the last.

    Parameters
    ----------
    parts : tuple of PartLoad
        In forward order.
    reduce_s : float
        All-reduce of its gradients over replicas.
    update_s : tuple of float
        Time of each pass of the optimizer over its weights.
    weights, tensors : int
        Elements of its parameters on a rank, and parameters.
    launches : int
        Kernels of each pass of the optimizer.
    """

    parts: tuple[PartLoad, ...]
    reduce_s: float
    update_s: tuple[float, ...]
    weights: int
    tensors: int
    launches: int


@dataclass(frozen=True)
class JobLoad:
    """A training step.

    Parameters
    ----------
    stages : tuple of StageLoad
        One for each pipeline stage, in order.
    micro_batches : int
        Number of micro-batches of a step.
    transfer_s : float
        Time to send activations from one stage to the next; 0 with one stage.
    tied_s : float
        All-reduce of the embedding's gradients between the first and the last stage; 0 of one stage.
    tied_elements : int
        Number of elements of the tied weights whose gradients are summed.
    ranks : int
        Number of ranks of a tensor-parallel group.
    """

    stages: tuple[StageLoad, ...]
    micro_batches: int
    transfer_s: float
    tied_s: float
    tied_elements: int
    ranks: int


def _counts(job: TrainingJob, stage: int) -> dict[str, int]:
    """Return the parts of a stage in forward order, and how many there are of each."""
    layout = job.layout
    first, last = {"embedding": 1} if stage == 0 else {}, {"head": 1} if stage == layout.pipeline - 1 else {}
    return {**first, "layer": job.model.layers // layout.pipeline, **last}


def _block(job: TrainingJob, name: str) -> Block:
    layout = job.layout
    run = Pass(job.micro_batch, job.length, training=True, size=job.element_bytes, ranks=layout.tensor,
               sequence_parallel=layout.sequence_parallel)  # fmt: skip
    if name == "head":
        return head_block(job.model, run, shared=job.layout.pipeline == 1)
    return embedding_block(job.model, run) if name == "embedding" else layer_block(job.model, run)


def timed_steps(steps: Sequence[Step], job: TrainingJob, device: Device, parameters: Parameters) -> list[TimedStep]:
    """Return the steps with the time that each takes on the device alone, s."""
    seconds = np.zeros(len(steps))
    meetings = [i for i, step in enumerate(steps) if step.collective]
    kernels: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        if not step.collective:
            kernels.setdefault(_computed_in(step.operator, job.precision), []).append(i)
    for dtype, rows in kernels.items():
        operators = [steps[i].operator for i in rows]
        seconds[rows] = time_operators(operators, device, parameters=parameters, dtype=dtype).seconds
    if meetings:
        topology, fits = job.layout.topology("tensor"), parameters.calibration(CollectiveCalibration)
        for kind in sorted({steps[i].collective for i in meetings}):
            of_kind = [i for i in meetings if steps[i].collective == kind]
            sizes = [steps[i].operator.bytes_read for i in of_kind]
            seconds[of_kind] = predict_collective(kind, sizes, topology, device, fits).seconds
    return list(zip(steps, seconds.tolist(), strict=True))


def _computed_in(operator: Operator, precision: str) -> str:
    """Return the type that an operator computes in: TF32 is of matrix products alone."""
    return "fp32" if precision == "tf32" and operator.kind not in ("matmul", "batched_matmul") else precision


def stage_parts(job: TrainingJob, stage: int, device: Device, parameters: Parameters) -> list[StagePart]:
    """Return the parts of a stage in forward order: name, and the timed steps of a micro-batch in each direction."""
    parts = []
    for name, count in _counts(job, stage).items():
        block = _block(job, name)
        forward, backward = (timed_steps(steps, job, device, parameters) for steps in (block.forward, block.backward))
        parts += [(name, forward, backward)] * count
    return parts


class _Timer:
    """Times the parts of jobs on a device; what several have in common once."""

    def __init__(self, device: Device, parameters: Parameters) -> None:
        self.device = device
        self.parameters = parameters
        self.part = cache(self._part)
        self.collective = cache(self._collective)
        self.update = cache(self._update)

    def _part(self, job: TrainingJob, name: str) -> PartLoad:
        block = _block(job, name)
        forward, backward = (self._load(steps, job) for steps in (block.forward, block.backward))
        return PartLoad(forward, backward, 1, block.weights, block.tensors)

    def _load(self, steps: Sequence[Step], job: TrainingJob) -> Load:
        timed = timed_steps(steps, job, self.device, self.parameters)
        exchanges = [seconds for step, seconds in timed if step.collective]
        products = sum(seconds for step, seconds in timed if step.operator.kind == "matmul")
        streams = sum(seconds for _, seconds in timed) - sum(exchanges) - products
        return Load(len(timed) - len(exchanges), len(exchanges), products, streams, sum(exchanges))

    def _collective(self, kind: str, moved: float, topology: Topology) -> float:
        fits = self.parameters.calibration(CollectiveCalibration)
        return float(predict_collective(kind, [moved], topology, self.device, fits).seconds[0])

    def _update(self, weights: int, passes: tuple[OptimizerPass, ...], precision: str) -> tuple[float, ...]:
        operators = [
            streaming("optimizer", weights * each.read, weights * each.written, weights, PRECISIONS[precision])
            for each in passes
        ]
        dtype = _computed_in(operators[0], precision)
        return tuple(time_operators(operators, self.device, parameters=self.parameters, dtype=dtype).seconds.tolist())


def job_loads(jobs: Sequence[TrainingJob], device: Device, parameters: Parameters) -> list[JobLoad]:
    """Return the loads of each job; parts that several jobs share are timed once.

    Parameters
    ----------
    jobs : sequence of TrainingJob
        Training jobs on one kind of device.
    device : Device
        Device that all ranks run on.
    parameters : Parameters
        With calibrations of kernels and collectives.

    Raises
    ------
    InvalidInputError
        The catalogue lacks a figure of the device.
    """
    timer = _Timer(device, parameters)
    return [_job_load(job, timer) for job in jobs]


def _job_load(job: TrainingJob, timer: _Timer) -> JobLoad:
    layout = job.layout
    stages = tuple(_stage(job, stage, timer) for stage in range(layout.pipeline))
    if layout.pipeline == 1:
        return JobLoad(stages, job.micro_batches, 0.0, 0.0, 0, layout.tensor)
    neighbours = layout.topology("pipeline")
    elements = padded_vocabulary(job.model, layout.tensor) // layout.tensor * job.model.hidden
    transfer = timer.collective("send_recv", float(activation_bytes(job)), neighbours)
    tied = timer.collective("all_reduce", float(elements * job.element_bytes), neighbours)
    return JobLoad(stages, job.micro_batches, transfer, tied, elements, layout.tensor)


def activation_bytes(job: TrainingJob) -> int:
    """Return the bytes that a rank sends to the next stage for a micro-batch."""
    return job.micro_batch * job.length * job.model.hidden * job.element_bytes


def _stage(job: TrainingJob, stage: int, timer: _Timer) -> StageLoad:
    counts, alike = _counts(job, stage), _alike(job)
    parts = tuple(
        replace(timer.part(alike, name), count=count, again=job.recompute and name == "layer")
        for name, count in counts.items()
    )
    weights, tensors = (sum(getattr(part, n) * part.count for part in parts) for n in ("weights", "tensors"))
    reduced = timer.collective("all_reduce", float(weights * job.element_bytes), job.layout.topology("data"))
    # The fitted costs of a launch are those of Adam, whose fit takes a call for each parameter.
    launches = tensors if job.optimizer == "adam" else -(-weights // _LAUNCH_PARAMETERS)
    return StageLoad(
        parts, reduced, timer.update(weights, job.optimizer_passes, job.precision), weights, tensors, launches
    )


def _alike(job: TrainingJob) -> TrainingJob:
    """Return a job whose parts take as long: fewer layers, one micro-batch, in the same places."""
    stages = min(job.layout.pipeline, 2)
    layout = replace(job.layout, pipeline=stages, data=1)
    return replace(job, model=replace(job.model, layers=stages), global_batch=job.micro_batch, layout=layout,
                   recompute=False)  # fmt: skip


def _cost(prior: float, spread: float) -> Any:
    """Return a field of `TrainingCosts` with its entry of `PRIORS`."""
    return field(metadata={"prior": (prior, spread)})


@dataclass(frozen=True)
class TrainingCosts:
    """Costs of host and of running together.

    Parameters
    ----------
    forward_call_s, backward_call_s : float
        Host time of an operator.
    collective_call_s : float
        Host time of a collective.
    micro_batch_s, step_s : float
        Host time of each micro-batch, and of each step, whatever the model.
    exchange_s : float
        Host time that an exchange between stages costs.
    products, streams, links : float
        Time that weights' matrix products, other kernels and collectives take in a job, over that of each alone: clocks
        fall under load, caches are shared.
    waiting : float
        Share by which the host of a tensor-parallel group is slower for each doubling of its ranks: each collective
        waits for the last one to call it.
    update_call_s : float
        Host time of the optimizer for each parameter.
    """

    forward_call_s: float = _cost(3e-5, 1.0)
    backward_call_s: float = _cost(2e-5, 1.0)
    collective_call_s: float = _cost(5e-5, 1.0)
    micro_batch_s: float = _cost(1e-3, 1.0)
    step_s: float = _cost(5e-3, 1.0)
    exchange_s: float = _cost(3e-4, 1.0)
    products: float = _cost(1.05, 0.05)
    streams: float = _cost(1.2, 0.4)
    links: float = _cost(1.2, 0.5)
    waiting: float = _cost(0.03, 1.0)
    update_call_s: float = _cost(2e-5, 1.0)

    def kernel_s(self, load: Load) -> float:
        """Return the time of a load's kernels, s, collectives apart."""
        return self.products * load.products_s + self.streams * load.streams_s


#: Value that a cost is taken for where data do not tell, and the standard deviation of its logarithm.
PRIORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {cost.name: cost.metadata["prior"] for cost in fields(TrainingCosts)}
)


@dataclass(frozen=True)
class BreakDown:
    """Where the time of a step goes, in s; all but `host_bound_s` add up to `total_s`.

    Parameters
    ----------
    total_s : float
        Time of the step.
    compute_s : float
        Kernels of the slowest stage.
    tensor_s : float
        Its tensor-parallel collectives, which do not overlap.
    host_s : float
        Its device waits for the host's calls.
    bubble_s : float
        Stages wait for one another, and for their exchanges.
    data_s : float
        All-reduce of gradients, of replicas and of the embedding that two stages share.
    optimizer_s : float
        Time of the optimizer's update.
    """

    total_s: float
    compute_s: float
    tensor_s: float
    host_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float


def step_time(load: JobLoad, costs: TrainingCosts) -> BreakDown:
    """Return how long a step takes, and where its time goes.

    The schedule of `run_schedule`; then gradients are summed over replicas and the embedding's between first and last
    stage, and the optimizer runs.
    """
    times = [_stage_time(stage, load, costs) for stage in load.stages]
    exchange = load.transfer_s * costs.links + costs.exchange_s if len(times) > 1 else 0.0
    piped = max(run_schedule(times, load.micro_batches, exchange))
    data = costs.links * (max(stage.reduce_s for stage in load.stages) + load.tied_s)
    optimizer = max(sum(max(each, costs.update_call_s * stage.launches) for each in stage.update_s)
                    for stage in load.stages)  # fmt: skip
    alone = [run_schedule([time], load.micro_batches)[0] for time in times]
    slowest = alone.index(max(alone))
    total = sum((part.total for part in load.stages[slowest].parts), Load())
    compute = costs.kernel_s(total) * load.micro_batches
    tensor = costs.links * total.communication_s * load.micro_batches
    return BreakDown(
        piped + data + optimizer + costs.step_s,
        compute,
        tensor,
        alone[slowest] - compute - tensor + costs.step_s,
        piped - alone[slowest],
        data,
        optimizer,
    )


def host_slowdown(load: JobLoad, costs: TrainingCosts) -> float:
    """Return how much longer a host takes beside others of its tensor-parallel group."""
    return 1 + costs.waiting * (load.ranks - 1)


def _stage_time(stage: StageLoad, load: JobLoad, costs: TrainingCosts) -> dict[str, Duration]:
    slower = host_slowdown(load, costs)

    def took(part: Load, call_s: float) -> Duration:
        host = (part.operators * call_s + part.collectives * costs.collective_call_s) * slower
        return Duration(host, costs.kernel_s(part) + costs.links * part.communication_s)

    ahead, back = Duration(costs.micro_batch_s * slower, 0.0), Duration(0.0, 0.0)
    for part in stage.parts:
        ahead = ahead.then(took(part.forward, costs.forward_call_s).times(part.count))
    for part in reversed(stage.parts):
        each = took(part.backward, costs.backward_call_s)
        if part.again:
            each = took(part.forward, costs.forward_call_s).then(each)
        back = back.then(each.times(part.count))
    return {"forward": ahead, "backward": back}
