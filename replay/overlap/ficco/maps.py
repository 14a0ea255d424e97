"""Which schedule is the fastest over a plane of shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from profilers.errors import InvalidInputError
from replay.overlap.ficco.features import features_of
from replay.overlap.ficco.schedules import CANDIDATES
from replay.overlap.ficco.training import candidate_times_ns
from replay.overlap.ficco.workload import Scenario
from replay.parameters import Parameters

__all__ = ["ScheduleMap", "schedule_map"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScheduleMap:
    """The fastest schedule of each of some shapes.

    Parameters
    ----------
    m, k : array of int64, shape (n,)
    otb : array of float64, shape (n,)
        FLOP per byte of one device's product.
    mt : array of float64, shape (n,)
        Elements of its operands and result.
    best : array of str, shape (n,)
    speedup : array of float64, shape (n,)
        Of the best, over one after the other.
    """

    m: npt.NDArray[np.int64]
    k: npt.NDArray[np.int64]
    otb: Floats
    mt: Floats
    best: npt.NDArray[np.str_]
    speedup: Floats


def schedule_map(
    like: Scenario, rows: Sequence[int], depths: Sequence[int], parameters: Parameters | None = None
) -> ScheduleMap:
    """Simulate all schedules over a grid of rows and depths.

    Parameters
    ----------
    like : Scenario
        Its device, topology, data type, collective and columns.
    rows, depths : sequence of int
        m and k of the product; each m with each k.
    parameters : Parameters, optional

    Raises
    ------
    InvalidInputError
        There is no shape, or pieces need multiples that one is not.

    Examples
    --------
    >>> from replay.overlap.ficco.workload import load_scenarios
    >>> found = schedule_map(load_scenarios()["g1"], [16384, 131072], [4096, 131072])
    >>> found.best.shape, found.m.tolist(), bool((found.speedup > 1).all())
    ((4,), [16384, 16384, 131072, 131072], True)
    """
    scenarios = [replace(like, name=f"{m} x {k}", m=m, k=k) for m in rows for k in depths]
    if not scenarios:
        raise InvalidInputError("a map of no shape; give rows and depths")
    times, features = candidate_times_ns(scenarios, parameters), [features_of(one) for one in scenarios]
    fastest = times.argmin(axis=1)
    return ScheduleMap(
        m=np.array([one.m for one in scenarios]),
        k=np.array([one.k for one in scenarios]),
        otb=np.exp2([one["otb"] for one in features]),
        mt=np.exp2([one["mt"] for one in features]),
        best=np.array(CANDIDATES)[fastest],
        speedup=times[:, CANDIDATES.index("serial")] / times.min(axis=1),
    )
