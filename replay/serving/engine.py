"""An inference engine with continuous batching and chunked prefill: which tokens each step holds.

The rules are those of vLLM's scheduler (V1), first come first served:

1. Every decoding request gets one token in every step.
2. The remaining tokens of the step go to prompts in the order of arrival, in chunks.
3. A request is admitted when it has arrived, all before it are admitted, a slot is free, and the cache has room for its
   prompt and its output. The whole length is reserved, so that no request is ever preempted. vLLM reserves less and
   preempts, which matters when its cache is full.
4. The step that ends a prompt gives its first token. A request with one token of output ends then.

Requests that arrive during a step wait for the next one. If no request is there, the clock jumps to the next arrival.
Prefix caching, speculative decoding, priorities, and separate engines for prefill are not modelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats, Ints
from profilers.trace.compiled import compiled, inlined
from replay.serving.requests import Requests
from replay.serving.step_times import EngineStepTimes, curve_ns

#: Elements of `_Engine.counts`: requests that were admitted, whose prompt is done, that ended; cached tokens of the
#: prompt that is in progress; decoding requests, and cached tokens that they read; reserved tokens, and their peak;
#: steps.
_ADMITTED, _PREFILLED, _FINISHED, _CACHED, _DECODING, _READ, _RESERVED, _PEAK, _STEPS = range(9)
#: Elements of `_Engine.limit`.
_REQUESTS, _TOKENS, _KV = range(3)


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an inference engine.

    Parameters
    ----------
    most_requests : int
        Requests that are in progress at once, vLLM's ``max_num_seqs``.
    most_tokens : int
        Tokens of a step, vLLM's ``max_num_batched_tokens``; not below `most_requests`.
    kv_tokens : int
        Tokens that the cache of keys and values holds.

    Raises
    ------
    InvalidInputError
        A limit is below 1, or `most_tokens` is below `most_requests`.

    Examples
    --------
    >>> EngineLimits(256, 8192, 400_000).most_tokens
    8192
    """

    most_requests: int
    most_tokens: int
    kv_tokens: int

    def __post_init__(self) -> None:
        for name in ("most_requests", "most_tokens", "kv_tokens"):
            if not 1 <= getattr(self, name) < 1 << 62:
                raise InvalidInputError(f"{name} of the engine is {getattr(self, name)}; it must be from 1 to 2^62")
        if self.most_tokens < self.most_requests:
            raise InvalidInputError(
                f"an engine of {self.most_requests} requests needs as many tokens a step, not {self.most_tokens}"
            )


@dataclass(frozen=True)
class Served:
    """Requests that an engine has served.

    Parameters
    ----------
    requests : Requests
        The requests, whose order the arrays follow.
    admitted_s : array of float64
        Start of the first step that holds tokens of each request, in seconds.
    first_token_s : array of float64
        End of the step that gives the first token.
    finished_s : array of float64
        End of the step that gives the last token.
    steps : int
        Steps of the engine.
    busy_s : float
        Sum of the times of all steps.
    peak_kv_tokens : int
        Most tokens of the cache that were reserved at once.
    """

    requests: Requests
    admitted_s: Floats
    first_token_s: Floats
    finished_s: Floats
    steps: int
    busy_s: float
    peak_kv_tokens: int

    @property
    def ttft_s(self) -> Floats:
        """Time to first token: from the arrival of each request to its first token."""
        return self.first_token_s - self.requests.observed_arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token: mean time of the tokens after the first; NaN for requests of one token."""
        gaps = self.requests.output_tokens - 1
        return np.where(gaps > 0, (self.finished_s - self.first_token_s) / np.maximum(gaps, 1), np.nan)

    @property
    def latency_s(self) -> Floats:
        """Time from the arrival of each request to its last token."""
        return self.finished_s - self.requests.observed_arrival_s

    @property
    def span_s(self) -> float:
        """Time from the first arrival to the last token of all."""
        return float(self.finished_s.max() - self.requests.observed_arrival_s[0])

    @property
    def tokens_per_s(self) -> float:
        """Throughput in output tokens per second."""
        return float(self.requests.output_tokens.sum()) / self.span_s

    @property
    def requests_per_s(self) -> float:
        """Throughput in requests per second."""
        return len(self.requests) / self.span_s

    @property
    def busy_share(self) -> float:
        """Share of the time from the first arrival to the last token in which a step runs."""
        return self.busy_s / self.span_s

    def percentiles(self, levels: Sequence[float] = (50, 90, 99)) -> dict[str, Floats]:
        """Return percentiles of ``ttft_s``, ``tpot_s`` and ``latency_s`` over the requests, by these names.

        Parameters
        ----------
        levels : sequence of float
            Percentiles, from 0 to 100. Requests of one token do not count in ``tpot_s``, which is NaN without others.
        """
        times = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "latency_s": self.latency_s}
        present = {name: values[~np.isnan(values)] for name, values in times.items()}
        unknown = np.full(len(levels), np.nan)
        return {name: np.percentile(values, levels) if len(values) else unknown for name, values in present.items()}


def simulate(requests: Requests, times: EngineStepTimes, limits: EngineLimits) -> Served:
    """Return when an engine serves each request. A step takes 10 to 50 ns, whatever the number of its requests.

    Parameters
    ----------
    requests : Requests
        Requests with arrivals.
    times : EngineStepTimes
        Time of a step.
    limits : EngineLimits
        Limits of the engine.

    Raises
    ------
    InvalidInputError
        Arrivals are unknown, or a request never fits the cache.

    Notes
    -----
    Times are in proportion: with steps and arrivals `factor` times as long, everything takes `factor` times as long.
    Slower steps alone delay every request if there is one slot, or if all arrive at once. In general they can bring
    a single request forward: it may just miss the start of a fast step, and catch that of a slow one.

    Examples
    --------
    A prompt of 6 tokens in chunks of 4 gives its first token after two steps, and two more tokens in two steps.

    >>> from replay.serving.step_times import TimeCurve
    >>> flat, zero = TimeCurve(np.ones(1), np.full(1, 1e9)), TimeCurve(np.ones(1), np.zeros(1))
    >>> request = Requests(np.zeros(1), np.array([6]), np.array([3]))
    >>> served = simulate(request, EngineStepTimes(flat, zero, zero), EngineLimits(1, 4, 9))
    >>> served.first_token_s.tolist(), served.finished_s.tolist()
    ([2.0], [4.0])
    """
    length = requests.prompt_tokens + requests.output_tokens
    if (length > limits.kv_tokens).any():
        row = int(np.argmax(length > limits.kv_tokens))
        raise InvalidInputError(
            f"request {row} by arrival needs {length[row]:,} tokens of the cache, which holds {limits.kv_tokens:,}"
        )
    prompt, output = (np.ascontiguousarray(each, np.int64) for each in (requests.prompt_tokens, requests.output_tokens))
    engine = _Engine(
        arrival_s=np.ascontiguousarray(requests.observed_arrival_s, np.float64),
        prompt=prompt,
        output=output,
        curves=(times.linear_ns.points, times.context_ns.points, times.generation_ns.points),
        limit=np.array([limits.most_requests, limits.most_tokens, limits.kv_tokens]),
        counts=np.zeros(9, np.int64),
        at_s=np.zeros((3, len(prompt))),
        following=np.full(len(prompt), -1),
        ending=np.full(int(output.max()), -1),
    )
    busy_s = float(_run(engine))
    admitted_s, first_token_s, finished_s = engine.at_s
    steps, peak = int(engine.counts[_STEPS]), int(engine.counts[_PEAK])
    return Served(requests, admitted_s, first_token_s, finished_s, steps, busy_s, peak)


class _Engine(NamedTuple):
    """The state of an engine."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    curves: Any  #: sizes and times of the three curves of a step
    limit: Ints
    counts: Ints
    at_s: Floats  #: by request: admission, first token, end
    following: Ints  #: by request: the next one that ends in the same step
    ending: Ints  #: by step, modulo its length: the first request that ends in it; -1 for none


@compiled
def _run(e):  # type: ignore[no-untyped-def]
    """Run steps until all requests have ended; return the sum of their times in seconds."""
    now = busy = 0.0
    while e.counts[_FINISHED] < len(e.prompt):
        if e.counts[_ADMITTED] == e.counts[_FINISHED]:
            now = max(now, e.arrival_s[e.counts[_ADMITTED]])
        first, decoding = e.counts[_PREFILLED], e.counts[_DECODING]
        tokens, pairs = _prefill(e, now, e.limit[_TOKENS] - decoding)
        (linear, linear_ns), (context, context_ns), (generation, generation_ns) = e.curves
        step_ns = curve_ns(linear, linear_ns, float(tokens + decoding))
        step_ns += curve_ns(context, context_ns, pairs)
        step_ns += curve_ns(generation, generation_ns, float(e.counts[_READ]))
        now += step_ns / 1e9
        busy += step_ns / 1e9
        e.counts[_STEPS] += 1
        _generate(e, now)
        for i in range(first, e.counts[_PREFILLED]):
            _start_decoding(e, i, now)
    return busy


@inlined
def _prefill(e, now, room):  # type: ignore[no-untyped-def]
    """Put chunks of prompts into a step with room for some tokens; return their tokens and pairs of query and key."""
    tokens, pairs = 0, 0.0
    while tokens < room:
        i = e.counts[_PREFILLED]
        if i == e.counts[_ADMITTED] and not _admit(e, now):
            break
        cached = e.counts[_CACHED]
        chunk = min(room - tokens, e.prompt[i] - cached)
        tokens += chunk
        pairs += float(chunk) * cached + 0.5 * chunk * (chunk + 1.0)
        e.counts[_CACHED] += chunk
        if e.counts[_CACHED] == e.prompt[i]:
            e.counts[_PREFILLED] += 1
            e.counts[_CACHED] = 0
    return tokens, pairs


@inlined
def _admit(e, now):  # type: ignore[no-untyped-def]
    """Admit the next request if it has arrived, and a slot and the cache have room; return whether it was admitted."""
    i = e.counts[_ADMITTED]
    if i == len(e.prompt) or e.arrival_s[i] > now or i - e.counts[_FINISHED] == e.limit[_REQUESTS]:
        return False
    reserved = e.counts[_RESERVED] + e.prompt[i] + e.output[i]
    if reserved > e.limit[_KV]:
        return False
    e.counts[_ADMITTED] += 1
    e.counts[_RESERVED] = reserved
    e.counts[_PEAK] = max(e.counts[_PEAK], reserved)
    e.at_s[0, i] = now
    return True


@inlined
def _generate(e, now):  # type: ignore[no-untyped-def]
    """Give each decoding request a token, and finish the requests that have all of theirs."""
    e.counts[_READ] += e.counts[_DECODING]
    slot = e.counts[_STEPS] % len(e.ending)
    i = e.ending[slot]
    e.ending[slot] = -1
    while i >= 0:
        e.counts[_DECODING] -= 1
        e.counts[_READ] -= e.prompt[i] + e.output[i]
        _finish(e, i, now)
        i = e.following[i]


@inlined
def _start_decoding(e, i, now):  # type: ignore[no-untyped-def]
    """Give a request its first token, and list it in the step that gives its last."""
    e.at_s[1, i] = now
    if e.output[i] == 1:
        _finish(e, i, now)
        return
    e.counts[_DECODING] += 1
    e.counts[_READ] += e.prompt[i] + 1
    slot = (e.counts[_STEPS] + e.output[i] - 1) % len(e.ending)
    e.following[i] = e.ending[slot]
    e.ending[slot] = i


@inlined
def _finish(e, i, now):  # type: ignore[no-untyped-def]
    """Free the slot and the cache of a request."""
    e.at_s[2, i] = now
    e.counts[_FINISHED] += 1
    e.counts[_RESERVED] -= e.prompt[i] + e.output[i]
