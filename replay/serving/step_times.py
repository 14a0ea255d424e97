"""How long a step of an inference engine takes, by the tokens, pairs and cache that it holds.

The time of a step is a sum of three curves: over its tokens (products, norms, host), over the pairs of query and key
of its prompts (attention of prefill), and over the cached tokens that its decoding requests read (attention of decode).
"""

from dataclasses import dataclass, replace

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from profilers.trace.compiled import bare


@bare
def curve_ns(size, time_ns, amount):  # type: ignore[no-untyped-def]
    """Return the time that a curve gives for an amount, as `TimeCurve.at`.

    Parameters
    ----------
    size, time_ns : array of float64, shape (n,)
        Points of the curve.
    amount : float
        Tokens or pairs.
    """
    if amount <= 0.0:
        return 0.0
    low, high = 0, len(size)
    while low < high:
        middle = (low + high) // 2
        if size[middle] < amount:
            low = middle + 1
        else:
            high = middle
    if low == 0 or len(size) == 1:
        return time_ns[0]
    right = min(low, len(size) - 1)
    slope = (time_ns[right] - time_ns[right - 1]) / (size[right] - size[right - 1])
    return time_ns[right - 1] + slope * (amount - size[right - 1])


@dataclass(frozen=True)
class TimeCurve:
    """A time as a piecewise-linear function of an amount of tokens or pairs.

    The time of nothing is 0. Below the first point it is that of the first point, and beyond the last point the last
    slope goes on.

    Parameters
    ----------
    size : array of float64, shape (n,)
        Amounts, increasing, from 0 on.
    time_ns : array of float64, shape (n,)
        Time of each amount in ns, 0 or more; the last is not below the one before it.

    Raises
    ------
    InvalidInputError
        The arrays do not fulfil this.

    Examples
    --------
    >>> curve = TimeCurve(np.array([64.0, 128.0]), np.array([1000.0, 1600.0]))
    >>> curve.at(0), curve.at(10), curve.at(96), curve.at(256)
    (0.0, 1000.0, 1300.0, 2800.0)
    """

    size: Floats
    time_ns: Floats

    def __post_init__(self) -> None:
        if not len(self.size) or len(self.size) != len(self.time_ns):
            raise InvalidInputError("a curve of times needs as many times as sizes, one or more")
        for name, values in (("sizes", self.size), ("times", self.time_ns)):
            if not (np.isfinite(values) & (values >= 0)).all():
                raise InvalidInputError(f"a curve of times has {name} that are negative or no number")
        if (np.diff(self.size) <= 0).any():
            raise InvalidInputError("a curve of times has sizes that do not increase")
        if len(self.time_ns) > 1 and self.time_ns[-1] < self.time_ns[-2]:
            raise InvalidInputError("a curve of times falls at its end, so that it cannot go on beyond")

    def at(self, amount: float) -> float:
        """Return the time of an amount in ns."""
        return float(curve_ns(*self.points, float(amount)))

    @property
    def points(self) -> tuple[Floats, Floats]:
        """Sizes and times, as compiled code takes them."""
        return np.ascontiguousarray(self.size, np.float64), np.ascontiguousarray(self.time_ns, np.float64)


@dataclass(frozen=True)
class EngineStepTimes:
    """The time of an engine's step: a sum of three curves.

    Parameters
    ----------
    linear_ns : TimeCurve
        Over the tokens of the step, which are those of prompts and one for each decoding request: all but attention.
        Above zero everywhere.
    context_ns : TimeCurve
        Over the pairs of query and key in the chunks of prompts. With causal attention, a chunk of q tokens after p
        cached ones has ``q * p + q * (q + 1) / 2`` pairs.
    generation_ns : TimeCurve
        Over the cached tokens that decoding requests read. A request that has a prompt of p tokens and has generated
        k of them reads p + k.

    Raises
    ------
    InvalidInputError
        A step could take no time.

    Examples
    --------
    >>> flat, zero = TimeCurve(np.ones(1), np.full(1, 5e6)), TimeCurve(np.ones(1), np.zeros(1))
    >>> EngineStepTimes(flat, zero, TimeCurve(np.array([0.0, 1e6]), np.array([0.0, 2e6]))).step_ns(8, 0, 5e5)
    6000000.0
    """

    linear_ns: TimeCurve
    context_ns: TimeCurve
    generation_ns: TimeCurve

    def __post_init__(self) -> None:
        if not (self.linear_ns.time_ns > 0).all():
            raise InvalidInputError("the time of a step's tokens must be above zero everywhere")

    def step_ns(self, tokens: float, pairs: float, cached_tokens: float) -> float:
        """Return the time of a step in ns.

        Parameters
        ----------
        tokens : float
            Tokens of prompts, and one for each decoding request.
        pairs : float
            Pairs of query and key in the chunks of prompts.
        cached_tokens : float
            Tokens that decoding requests read from the cache.
        """
        return self.linear_ns.at(tokens) + self.context_ns.at(pairs) + self.generation_ns.at(cached_tokens)

    def scaled(self, factor: float) -> "EngineStepTimes":
        """Return the times of steps that take `factor` times as long.

        Raises
        ------
        InvalidInputError
            The factor is not a positive number.
        """
        if not (np.isfinite(factor) and factor > 0):
            raise InvalidInputError(f"step times cannot be scaled by {factor}; give a number above zero")
        curves = (self.linear_ns, self.context_ns, self.generation_ns)
        return EngineStepTimes(*(replace(curve, time_ns=curve.time_ns * factor) for curve in curves))
