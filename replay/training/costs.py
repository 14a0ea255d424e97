"""`TrainingCosts`: the few parameters of training that no data sheet gives, and the time of a step from them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from replay.training.loads import JobLoad, Load, StageLoad
from replay.training.schedule import Duration, StageTime, run_schedule

__all__ = ["PRIORS", "BreakDown", "TrainingCosts", "host_slowdown", "step_time"]


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

    forward_call_s: float
    backward_call_s: float
    collective_call_s: float
    micro_batch_s: float
    step_s: float
    exchange_s: float
    products: float
    streams: float
    links: float
    waiting: float
    update_call_s: float

    def kernel_s(self, load: Load) -> float:
        """Return the time of a load's kernels, s, collectives apart."""
        return self.products * load.products_s + self.streams * load.streams_s


#: Value that a cost is taken for where data do not tell, and the standard deviation of its logarithm.
PRIORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "forward_call_s": (3e-5, 1.0),
        "backward_call_s": (2e-5, 1.0),
        "collective_call_s": (5e-5, 1.0),
        "micro_batch_s": (1e-3, 1.0),
        "step_s": (5e-3, 1.0),
        "exchange_s": (3e-4, 1.0),
        "products": (1.05, 0.05),
        "streams": (1.2, 0.4),
        "links": (1.2, 0.5),
        "waiting": (0.03, 1.0),
        "update_call_s": (2e-5, 1.0),
    }
)
assert tuple(PRIORS) == tuple(field.name for field in fields(TrainingCosts))


@dataclass(frozen=True)
class BreakDown:
    """Where the time of a step goes, in s; all but `host_bound_s` add up to `total_s`.

    Parameters
    ----------
    total_s : float
    compute_s : float
        Kernels of the slowest stage.
    tensor_s : float
        Its tensor-parallel collectives, none of which overlap.
    host_s : float
        Its device waits for the host's calls.
    bubble_s : float
        Stages wait for one another, and for their exchanges.
    data_s : float
        All-reduce of gradients, of replicas and of the embedding that two stages share.
    optimizer_s : float
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
    piped = run_schedule(times, load.micro_batches, exchange).end_s
    data = costs.links * (max(stage.reduce_s for stage in load.stages) + load.tied_s)
    updates = [max(one.update_s, costs.update_call_s * one.tensors) for one in load.stages]
    alone = [run_schedule([time], load.micro_batches).end_s for time in times]
    slowest = alone.index(max(alone))
    stage = sum((part.total for part in load.stages[slowest].parts), Load())
    compute = costs.kernel_s(stage) * load.micro_batches
    tensor = costs.links * stage.communication_s * load.micro_batches
    optimizer = max(updates)
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


def _stage_time(stage: StageLoad, load: JobLoad, costs: TrainingCosts) -> StageTime:
    slower = host_slowdown(load, costs)

    def took(one: Load, call_s: float) -> Duration:
        host = (one.operators * call_s + one.collectives * costs.collective_call_s) * slower
        return Duration(host, costs.kernel_s(one) + costs.links * one.communication_s)

    ahead, back = Duration(costs.micro_batch_s * slower, 0.0), Duration(0.0, 0.0)
    for part in stage.parts:
        ahead = ahead.then(took(part.forward, costs.forward_call_s).times(part.count))
    for part in reversed(stage.parts):
        each = took(part.backward, costs.backward_call_s)
        if part.again:
            each = took(part.forward, costs.forward_call_s).then(each)
        back = back.then(each.times(part.count))
    return StageTime(ahead, back)
