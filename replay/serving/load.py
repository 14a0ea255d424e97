"""An inference engine by arrival rate: percentiles of its times, and the rate that saturates it."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from replay.serving.engine import EngineLimits, Served, simulate
from replay.serving.requests import Requests, with_rate
from replay.serving.step_times import EngineStepTimes

#: Percentiles of a table.
LEVELS = (50, 90, 99)
#: The sample is repeated until it fills the slots of the engine this many times, or has this many requests.
_FILLINGS, _MOST_REPEATED = 100, 1_000_000


def saturation_rate(requests: Requests, times: EngineStepTimes, limits: EngineLimits) -> float:
    """Return the requests per second of an engine that always has requests waiting.

    A queue drains at this rate, so it is stable with fewer arrivals a second and grows with more (the saturation rule
    of Baccelli and Foss, Journal of Applied Probability 32, 1995). All requests are there at 0 s, and the sample is
    repeated. The time of half as many repeats is subtracted, and with it the time to fill and to drain the engine.

    Parameters
    ----------
    requests : Requests
        Sample of requests; their arrivals do not count.
    times : EngineStepTimes
        Time of a step.
    limits : EngineLimits
        Limits of the engine.

    Raises
    ------
    InvalidInputError
        A request never fits the cache.

    Examples
    --------
    Eight slots, and ten steps of 0.1 s for each request.

    >>> from replay.serving.step_times import TimeCurve
    >>> flat, zero = TimeCurve(np.ones(1), np.full(1, 1e8)), TimeCurve(np.ones(1), np.zeros(1))
    >>> sample = Requests(None, np.full(4, 1), np.full(4, 10))
    >>> round(saturation_rate(sample, EngineStepTimes(flat, zero, zero), EngineLimits(8, 64, 1000)), 6)
    8.0
    """
    repeats = -(-min(_FILLINGS * limits.most_requests, _MOST_REPEATED) // len(requests))
    half, whole = (_busy_s(requests, count, times, limits) for count in (repeats, 2 * repeats))
    return repeats * len(requests) / (whole - half)


def _busy_s(requests: Requests, repeats: int, times: EngineStepTimes, limits: EngineLimits) -> float:
    """Return the time that an engine takes for a sample that is repeated, with all requests there at 0 s."""
    prompt, output = (np.tile(each, repeats) for each in (requests.prompt_tokens, requests.output_tokens))
    return simulate(Requests(np.zeros(len(prompt)), prompt, output), times, limits).busy_s


def load_table(
    requests: Requests,
    times: EngineStepTimes,
    limits: EngineLimits,
    rates: Sequence[float],
    *,
    seed: int | None = None,
    factors: tuple[float, float] = (1.0, 1.0),
) -> pa.Table:
    """Return percentiles of time to first token and per output token, and throughput, for each arrival rate.

    Columns: ``rate`` (requests/s), ``utilization`` (the rate over `saturation_rate`), ``stable`` (utilization below 1),
    ``requests_per_s``, ``tokens_per_s``, ``busy_share``, and ``ttft_pN_s`` and ``tpot_pN_s`` for N of 50, 90 and 99.
    The utilization and each time have an interval, such as ``ttft_p50_low_s`` and ``ttft_p50_high_s``. Times per output
    token are null if all requests have one token. Percentiles of an unstable queue grow with the number of requests.

    Parameters
    ----------
    requests : Requests
        Sample of requests.
    times : EngineStepTimes
        Time of a step.
    limits : EngineLimits
        Limits of the engine.
    rates : sequence of float
        Arrivals per second.
    seed : int, optional
        Seed of Poisson arrivals; without it the arrivals of `requests` are scaled, as in `with_rate`.
    factors : tuple of float
        Interval of the step times: factors of at most and at least 1. All steps move together.

    Raises
    ------
    InvalidInputError
        A factor or rate is out of range, arrivals are unknown, or a request never fits the cache.
    """
    low, high = factors
    if not (0 < low <= 1 <= high < np.inf):
        raise InvalidInputError(f"an interval of step times from {low} to {high} times; it must hold 1")
    saturation = saturation_rate(requests, times, limits)
    scaled = [times.scaled(factor) for factor in dict.fromkeys((1.0, low, high))]
    rows = []
    for rate in rates:
        arrived = with_rate(requests, rate, seed)
        served = [simulate(arrived, each, limits) for each in scaled]
        load = {"rate": rate} | _interval("utilization", rate / saturation * np.array([1.0, low, high]))
        rows.append(load | {"stable": rate < saturation} | _throughput(served[0]) | _times(served))
    return pa.Table.from_pylist(rows)


def _throughput(served: Served) -> dict[str, float]:
    return {name: getattr(served, name) for name in ("requests_per_s", "tokens_per_s", "busy_share")}


def _times(served: Sequence[Served]) -> dict[str, float | None]:
    """Return the percentiles of the first simulation, and their interval over all simulations."""
    percentiles = [each.percentiles(LEVELS) for each in served]
    columns: dict[str, float | None] = {}
    for name in ("ttft", "tpot"):
        for i, level in enumerate(LEVELS):
            columns |= _interval(f"{name}_p{level}", np.array([each[f"{name}_s"][i] for each in percentiles]), "_s")
    return columns


def _interval(name: str, values: Floats, unit: str = "") -> dict[str, float | None]:
    """Return the first value, the least and the largest, as columns; None for NaN."""
    low, high = float(values.min()), float(values.max())
    columns = {f"{name}{unit}": float(values[0]), f"{name}_low{unit}": low, f"{name}_high{unit}": high}
    return {key: None if np.isnan(value) else value for key, value in columns.items()}
