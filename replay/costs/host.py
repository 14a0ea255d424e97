"""Host time on another machine, by the cost of launch calls, and the share of it that a recording takes.

The host of a device is not in its data sheet: machines with one device differ. `HostCosts` holds the measured cost of
launch calls, and `host_factor` reads what a user says of the host of another device.

`recording_cost` counts what PyTorch's profiler wrote in the iterations. `RecordingCost.share` gives the share of the
host's time by parameters, and `cost_note` tells it. A projection draws those parameters and takes the share off the
host.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import Device, find_device
from profilers.errors import InvalidInputError, NotFoundError
from profilers.files import dataset_path, read_toml, typed_table
from profilers.trace.arrays import MISSING, Bools, Ints, encode_text, integers
from profilers.trace.columns import overhead_rows
from profilers.trace.schema import PYTHON_FUNCTION
from profilers.trace.trace import Trace
from replay.calibration.parameters import Parameters

#: Text that keeps the host times of the traced machine.
KEEP = "keep"
#: Least and largest factor of host time.
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e3


class _LaunchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of `datasets/host_costs.toml`, whose head explains its keys."""

    device: str
    launches: int
    launch_us: float
    source: str
    host_us: float | None = None


class _HostFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    launches: list[_LaunchRow]


@dataclass(frozen=True)
class HostCosts:
    """Measured duration of launch calls.

    Parameters
    ----------
    launch_us : mapping of str to tuple of float
        Median duration of launch calls in each trace, us, by the device of the trace.
    """

    launch_us: Mapping[str, tuple[float, ...]] = field(hash=False)

    def typical_us(self, device: Device) -> float:
        """Return the median over traces of the duration of a launch call.

        Parameters
        ----------
        device : Device
            Device of the traces.

        Raises
        ------
        NotFoundError
            No trace of this device was measured; the message lists the devices that were.

        Examples
        --------
        >>> load_host_costs().typical_us(find_device("V100-SXM2-16GB"))
        8.0
        """
        if device.name not in self.launch_us:
            raise NotFoundError(
                f"what a launch costs was not measured on a machine with {device.name}, only with "
                f"{', '.join(self.launch_us)}; give keep or a factor of host time"
            )
        return float(np.median(self.launch_us[device.name]))


def read_host_costs(path: Path) -> HostCosts:
    """Read costs of launch calls.

    Parameters
    ----------
    path : Path
        TOML file in the layout of `datasets/host_costs.toml`.
    """
    rows = typed_table(read_toml(path, "host costs"), _HostFile, str(path)).launches
    devices = dict.fromkeys(row.device for row in rows)
    return HostCosts(
        MappingProxyType({device: tuple(row.launch_us for row in rows if row.device == device) for device in devices})
    )


@cache
def load_host_costs() -> HostCosts:
    """Return the shipped costs of launch calls."""
    return read_host_costs(dataset_path("host_costs.toml"))


@dataclass(frozen=True)
class HostChoice:
    """What a user says of the host of another device.

    Parameters
    ----------
    text : str
        Empty for the traced machine with the spread between machines, ``keep`` for the traced machine, a factor of host
        time, or the name of a device for what launches cost on machines with it.

    Raises
    ------
    InvalidInputError
        The text is a factor that is not within 0.001 to 1000.
    NotFoundError
        The text names no device of the catalogue.
    """

    text: str = ""

    def __post_init__(self) -> None:
        if self.text in ("", KEEP):
            return
        try:
            factor = float(self.text)
        except ValueError:
            try:
                find_device(self.text)
            except NotFoundError as error:
                raise NotFoundError(f"host {self.text!r} is not keep, no factor, and {error}") from error
            return
        if not (math.isfinite(factor) and _MIN_FACTOR <= factor <= _MAX_FACTOR):
            raise InvalidInputError(
                f"host: a factor of {factor:g}; give one from {_MIN_FACTOR:g} to {_MAX_FACTOR:g}, keep, or a device"
            )

    def factor(self, traced: Device, target: Device, parameters: Parameters) -> float:
        """Return the host time on the other machine over the host time of the trace.

        Parameters
        ----------
        traced : Device
            Device of the trace.
        target : Device
            Device to move to.
        parameters : Parameters
            `host_machine_ratio` is the spread between machines. With the costs of launch calls.

        Raises
        ------
        NotFoundError
            What launches cost was not measured for the device of the host or of the trace.
        """
        spread = parameters["host_machine_ratio"]
        if not self.text:
            return spread if target.name != traced.name else 1.0
        if self.text == KEEP:
            return 1.0
        try:
            return float(self.text)
        except ValueError:
            costs = parameters.calibration(HostCosts)
            return spread * costs.typical_us(find_device(self.text)) / costs.typical_us(traced)

    def note(self, traced: Device, parameters: Parameters) -> str:
        """Return what is taken for the host, for people.

        Parameters
        ----------
        traced : Device
            Device of the trace.
        parameters : Parameters
            As for `factor`.
        """
        known = parameters.known.get("host_machine_ratio")
        spread = "" if known is None else f" ({known.low:g} to {known.high:g} times)"
        if not self.text:
            return (
                f"the host keeps the times of the traced machine; the interval has the spread between machines{spread}"
                "; --host keep, a factor or a device says otherwise"
            )
        if self.text == KEEP:
            return "the host keeps the times of the traced machine, also in the interval"
        try:
            return f"host times are multiplied by {float(self.text):g}, as given"
        except ValueError:
            device, costs = find_device(self.text), parameters.calibration(HostCosts)
            new, old = costs.typical_us(device), costs.typical_us(traced)
            return (
                f"host times are multiplied by {new / old:.3g}: a launch typically takes {new:.3g} us on machines with "
                f"{device.name}, {old:.3g} us with {traced.name}; the interval has the spread between machines{spread}"
            )


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
    _, overhead = overhead_rows(trace.ranges)
    waits = in_calls & _mask(trace.launches["name"], lambda name: "Synchronize" in name)
    counts = (
        (in_ranges & _mask(trace.ranges["category"], lambda name: name == PYTHON_FUNCTION)).sum(),
        in_ops.sum(),
        (in_ops & (encode_text(trace.ops["shapes"])[0] >= 0)).sum(),
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


def _mask(column: pa.ChunkedArray, chosen: Callable[[str], bool]) -> Bools:
    """Return the mask of the texts of a column that are chosen; null is not."""
    codes, texts = encode_text(column)
    return np.array([*(chosen(str(text)) for text in texts), False], dtype=bool)[codes]


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
