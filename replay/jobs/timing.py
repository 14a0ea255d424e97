"""How long the operators of a job take on a device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilers.devices import Device
from replay.durations import MODELS, Calibration, load_calibration, predict
from replay.operators import Operator

__all__ = ["Timed", "time_operators"]

Floats = npt.NDArray[np.float64]
#: Of a kernel that waits in its stream behind another, the start costs this much, s: what is fitted is the time of one
#: operator that is waited for.
_QUEUED_S = 3e-6
#: Share of an operator's spread that all operators of its kind have in common; the rest averages out over a job. Of the
#: runs of six devices in `tests/accuracy/models.csv`, each device left out, nine in ten are then in their interval.
_SHARED = 0.5


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

    def interval(self) -> tuple[float, float]:
        """Return the interval of the total: operators of one kind err together in part, kinds on their own."""
        kinds = np.array(self.kinds)
        down = [_SHARED * float((self.seconds - self.low)[kinds == kind].sum()) for kind in set(self.kinds)]
        up = [_SHARED * float((self.high - self.seconds)[kinds == kind].sum()) for kind in set(self.kinds)]
        return self.total - float(np.hypot.reduce(down)), self.total + float(np.hypot.reduce(up))


def time_operators(
    operators: Sequence[Operator],
    device: Device,
    *,
    dtype: str = "fp32",
    calibration: Calibration | None = None,
    without: Sequence[str] = (),
) -> Timed:
    """Predict operators that follow one another on a stream.

    Parameters
    ----------
    operators : sequence of Operator
    device : Device
    dtype : str
        What is computed in.
    calibration : Calibration, optional
    without : sequence of str
        Devices whose fits are not used.

    Notes
    -----
    A kind without a model counts as a stream of its bytes.
    """
    known = calibration or load_calibration()
    modelled = {kind for kind in MODELS if known.knows(kind, dtype)}
    kinds = [one.kind if one.kind in modelled else "elementwise" for one in operators]
    found = np.zeros((3, len(operators)))
    for kind in sorted(set(kinds)):
        mine = [i for i, one in enumerate(kinds) if one == kind]
        unique, which = np.unique([_dims(kind, operators[i]) for i in mine], axis=0, return_inverse=True)
        each = predict(kind, unique, device, element_bytes=_bytes(operators, mine), dtype=dtype, calibration=known,
                       without=without)  # fmt: skip
        start = max(each.start_s - _QUEUED_S, 0.0)
        for row, values in enumerate((each.seconds, each.low, each.high)):
            found[row, mine] = np.maximum(values - start * values / each.seconds, 0.0)[which.reshape(-1)]
    return Timed(found[0], found[1], found[2], tuple(kinds))


def _bytes(operators: Sequence[Operator], rows: Sequence[int]) -> int:
    return max(operators[i].element_bytes for i in rows)


def _dims(kind: str, operator: Operator) -> tuple[float, ...]:
    if MODELS[kind].dims == ("elements", "arrays"):
        return max(operator.bytes_moved / operator.element_bytes, 1.0), 1.0
    return tuple(float(value) for value in operator.dims)
