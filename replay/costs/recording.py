"""Cost of a recording: how much of the host's time PyTorch's profiler itself may have taken.

`recording_cost` counts what the profiler wrote in the iterations. `RecordingCost.share` gives the share of the host's
time by parameters, and `cost_note` tells it. A projection draws those parameters and takes the share off the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profilers.trace.arrays import MISSING, Bools, Ints, integers
from profilers.trace.columns import overhead_rows
from profilers.trace.schema import PYTHON_FUNCTION
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters

#: Format of the traces of PyTorch's profiler, whose costs were measured.
_FORMAT = "kineto"
#: Parameters: cost of an operator, of the shapes of an operator, of a Python function, and of a call of the runtime.
COSTS = ("recording_operator_ns", "recording_shapes_ns", "recording_frame_ns", "recording_call_ns")
#: Largest share that is taken off. The most that was measured is 0.65: a DLRM on an H100, with shapes (`seqpoint
#: validate pairs`).
_MOST_SHARE = 0.7
#: Words of a note for the counts of `cost_facts`.
_COUNTED = {
    "python_functions": "Python functions",
    "operators": "operators",
    "operators_with_shapes": "lists of shapes",
    "calls": "calls",
    "overhead_us": "us of overhead",
}
#: Share of the host's time from which the cost counts.
_NOTED = 0.05


@dataclass(frozen=True)
class RecordingCost:
    """What a profiler wrote on the host, a step: means over the iterations of all ranks.

    Parameters
    ----------
    frames, operators, shapes, calls : float
        Python functions, operators, operators with shapes, and calls of the runtime or driver.
    overhead_ns : float
        Time of the profiler's records of its own overhead.
    host_ns : float
        Time of the iteration on the host, without calls that wait for the device.
    """

    frames: float
    operators: float
    shapes: float
    calls: float
    overhead_ns: float
    host_ns: float

    def share(self, values: Mapping[str, float]) -> float:
        """Return the share of the host's time that the recording took.

        Parameters
        ----------
        values : mapping of str to float
            Values of the parameters, with those of `COSTS`.

        Examples
        --------
        >>> cost = RecordingCost(frames=100, operators=10, shapes=0, calls=20, overhead_ns=0, host_ns=1e6)
        >>> cost.share(dict(zip(COSTS, (2000, 500, 500, 250))))
        0.075
        """
        counts = (self.operators, self.shapes, self.frames, self.calls)
        cost_ns = self.overhead_ns + sum(n * values[name] for n, name in zip(counts, COSTS, strict=True))
        return min(cost_ns / self.host_ns, _MOST_SHARE) if self.host_ns > 0 else 0.0

    def range(self, parameters: Parameters) -> tuple[float, float]:
        """Return the ends of the share of the host's time.

        The deviations that each parameter causes alone are added in quadrature, since they are independent.
        """
        value, known, ends = self.share(parameters.values), parameters.known, []
        for end in ("low", "high"):
            each = [{**parameters.values, name: getattr(known[name], end)} for name in COSTS]
            ends.append(float(np.linalg.norm([self.share(values) - value for values in each])))
        return max(value - ends[0], 0.0), min(value + ends[1], _MOST_SHARE)


def recording_cost(trace: Trace, parameters: Parameters, iterations: Sequence[int] = ()) -> RecordingCost | None:
    """Return what recording a trace cost its host; None if it is less than 5 % of its time, or unknown.

    Parameters
    ----------
    trace : Trace
        The trace. Only for those of PyTorch's profiler the costs are known.
    parameters : Parameters
        Costs of an operator, of its shapes, of a Python function and of a call.
    iterations : sequence of int
        Iterations to count; all if empty.
    """
    steps = _in_steps(trace.iterations, iterations)
    if trace.meta.format != _FORMAT or not steps.any():
        return None
    in_ranges, in_ops, in_calls = (_in_steps(table, iterations) for table in (trace.ranges, trace.ops, trace.launches))
    category, (_, overhead) = trace.ranges["category"].cast(pa.string()), overhead_rows(trace.ranges)
    waits = in_calls & _mask(pc.match_substring(trace.launches["name"].cast(pa.string()), "Synchronize"))
    counts = (
        (in_ranges & _mask(pc.equal(category, PYTHON_FUNCTION))).sum(),
        in_ops.sum(),
        (in_ops & _mask(trace.ops["shapes"].is_valid())).sum(),
        in_calls.sum(),
        _time_ns(trace.ranges, overhead[in_ranges[overhead]]),
        _time_ns(trace.iterations, steps) - _time_ns(trace.launches, waits),
    )
    cost = RecordingCost(*(float(count) / int(steps.sum()) for count in counts))
    return cost if cost.share(parameters.values) >= _NOTED else None


def _in_steps(table: pa.Table, iterations: Sequence[int]) -> Bools:
    """Return which rows are in some iterations, or in any if none are named."""
    of_row = integers(table, "iteration")
    return np.isin(of_row, iterations) if len(iterations) else np.asarray(of_row != MISSING)


def _mask(column: pa.ChunkedArray) -> Bools:
    """Return a column of truth values; null is false."""
    return np.asarray(pc.fill_null(column, False).to_numpy(), dtype=bool)


def _time_ns(table: pa.Table, rows: Bools | Ints) -> int:
    time = integers(table, "dur_ns")[rows]
    return int(time[time != MISSING].sum())


def cost_facts(cost: RecordingCost, parameters: Parameters) -> dict[str, float]:
    """Return the counts of a step, and the share of the host's time, as JSON with stable keys."""
    low, high = cost.range(parameters)
    return {
        "python_functions": cost.frames,
        "operators": cost.operators,
        "operators_with_shapes": cost.shapes,
        "calls": cost.calls,
        "overhead_us": cost.overhead_ns / 1e3,
        "host_share_low": low,
        "host_share_high": high,
    }


def cost_note(facts: Mapping[str, float]) -> str:
    """Return a note on what a recording cost its host.

    Parameters
    ----------
    facts : mapping of str to float
        Facts of the recording, as `cost_facts` returns them.

    Examples
    --------
    >>> facts = {"python_functions": 1385, "operators": 479, "host_share_low": 0.1, "host_share_high": 0.6}
    >>> cost_note(facts)
    "recorded with 1,385 Python functions and 479 operators a step, which may be 10 to 60 % of the host's time"
    """
    texts = [f"{facts[key]:,.0f} {name}" for key, name in _COUNTED.items() if facts.get(key, 0) >= 0.5]
    listed = " and ".join([*([", ".join(texts[:-1])] if len(texts) > 1 else []), *texts[-1:]])
    low, high = (f"{100 * facts[f'host_share_{end}']:.0f}" for end in ("low", "high"))
    share = f"{low} to {high} %" if low != high else f"{low} % or more"
    return f"recorded with {listed} a step, which may be {share} of the host's time"
