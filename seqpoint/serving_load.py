"""What `seqpoint serving` shows: the steps by phase, and one engine under load.

`serving_phases` sums the steps of a trace by phase, and their kernels by class. Under load, steps of a trace that are
replayed at other sizes serve requests with continuous batching:
`serving_load` times a step of each phase at other batches and lengths (`batch`, `context`), with and without its
attention. That gives the three curves of `replay.serving.EngineStepTimes`. Attention of a phase that the trace lacks is
modelled from its heads. Then `replay.serving` runs the requests through an engine at several rates of arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from profilers.devices.catalogue import Device
from profilers.errors import InvalidInputError
from profilers.trace.arrays import Floats
from profilers.trace.serving import PhaseTokens, ServingStep
from profilers.trace.steps import step_times
from profilers.trace.trace import Trace
from replay.graph.graph import given_hardware
from replay.graph.operators import SERVING_ATTENTION, AttentionHeads, Operator, by_phase, request_attention
from replay.projection.rows import NO_EFFECT, NOTHING_CHANGES
from replay.serving import EngineLimits, EngineStepTimes, Requests, TimeCurve, load_table, saturation_rate
from replay.what_ifs import parse_what_if
from replay.workloads import time_operators
from seqpoint.characterization import Characterization
from seqpoint.kernel_facts import KERNEL_PHASES, KernelFacts, kernel_facts
from seqpoint.notebook import DataFrame, Result, Table, counted, data_frame, table_of
from seqpoint.projecting import ProjectOptions, project_trace
from seqpoint.serving import ServingRow, serving_table, steps_of_iterations
from seqpoint.units import duration
from seqpoint.work_rows import WorkRow, work_table

#: Shares of the rate that saturates the engine, at which it is simulated by default.
_LOADS, _HALF = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95), 0.5
#: Share of a device's memory that an engine uses (vLLM's gpu_memory_utilization), for weights and cache.
_MEMORY = 0.9
#: Points of a curve; contexts of decode over that of the trace; draws of the parameters for each point.
_POINTS, _CONTEXTS, _DRAWS = 6, (0.25, 1.0, 4.0, 16.0), 8
#: What-if that leaves attention out.
_WITHOUT = "scale_kernels:attention:0"


@dataclass(frozen=True, repr=False)
class ServingPhases(Result):
    """Steps of serving by phase, and where the time of each phase goes.

    Parameters
    ----------
    rows : tuple of ServingRow
        A row for each phase.
    classes : mapping of str to tuple of WorkRow
        Kernels of each phase by class, most time first; shares are of the phase.
    """

    heading = "Serving"

    rows: tuple[ServingRow, ...]
    classes: dict[str, tuple[WorkRow, ...]]

    def summary(self) -> list[str]:
        """Return a sentence for each phase."""
        if self.rows:
            return [row.sentence() for row in self.rows]
        return [
            "no annotation of the trace states the requests of a step; docs/serving.md says how vLLM, SGLang, ATOM and "
            "TensorRT-LLM write them"
        ]

    def table(self) -> DataFrame:
        """Return a row for each phase."""
        return data_frame([row.to_dict() for row in self.rows])

    def tables(self) -> list[Table]:
        """Return the phases, and the classes of kernels in each."""
        of_classes = [
            replace(work_table("class", rows), title=f"Classes by time, {phase}")
            for phase, rows in self.classes.items()
        ]
        return [serving_table(self.rows), *of_classes] if self.rows else []

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint serving --json` prints."""
        classes = {phase: [row.to_dict() for row in rows] for phase, rows in self.classes.items()}
        return {"serving": [row.to_dict() for row in self.rows], "classes": classes}


def serving_phases(whole: Characterization) -> ServingPhases:
    """Return the steps of serving of a trace, and where the time of each phase goes.

    Parameters
    ----------
    whole : Characterization
        The trace by operators.
    """
    classes = {}
    for row in whole.serving:
        mine = np.flatnonzero(whole.facts.phase == KERNEL_PHASES.index(row.phase))
        classes[row.phase] = replace(whole, facts=whole.facts.of_rows(mine)).rows("class")
    return ServingPhases(whole.serving, classes)


@dataclass(frozen=True, repr=False)
class ServingLoad(Result):
    """Times to first token and per output token of one engine, by rate of arrival.

    Parameters
    ----------
    loads : Table
        A row for each rate, as `replay.serving.load_table` returns it.
    saturation : float
        Requests a second that the engine can serve at most.
    requests : Requests
        The requests.
    times : EngineStepTimes
        Times of a step.
    limits : EngineLimits
        Limits of the engine.
    remarks : tuple of str
        How the times of steps were found.
    """

    heading = "Engine under load"

    loads: pa.Table
    saturation: float
    requests: Requests
    times: EngineStepTimes
    limits: EngineLimits
    remarks: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each rate, with stable keys."""
        return list(self.loads.to_pylist())

    def summary(self) -> list[str]:
        """Return what the engine can serve, and its times at the rate nearest to half of that."""
        tokens = self.saturation * float(self.requests.output_tokens.mean())
        lines = [f"one engine serves at most {self.saturation:.3g} requests/s, {tokens:,.0f} output tokens/s"]
        stable = [row for row in self.rows() if row["stable"]]
        if stable:
            row = min(stable, key=lambda each: abs(each["utilization"] - _HALF))
            token = (
                "" if row["tpot_p50_s"] is None else f", a token in {duration(1e9 * row['tpot_p50_s'])} at the median"
            )
            first = (
                f"first token in {duration(1e9 * row['ttft_p50_s'])} at the median, {duration(1e9 * row['ttft_p99_s'])}"
            )
            lines.append(f"at {row['rate']:.3g} requests/s: {first} at p99{token}")
        return lines

    def notes(self) -> list[str]:
        """Return the limits of the engine, how its steps were timed, and what is not modelled."""
        limits, sample = self.limits, self.requests
        prompt, output = (f"{each.mean():,.0f}" for each in (sample.prompt_tokens, sample.output_tokens))
        size = f"{limits.most_tokens:,} tokens a step, a cache of {limits.kv_tokens:,} tokens"
        return [
            f"engine: {counted(limits.most_requests, 'slot')}, {size}",
            f"{counted(len(sample), 'request')}, of {prompt} prompt and {output} output tokens on average",
            *self.remarks,
            "not modelled: preemption, prefix caching, speculative decoding, several engines",
        ]

    def table(self) -> DataFrame:
        """Return a row for each rate."""
        return data_frame(self.rows())

    def tables(self) -> Sequence[Table]:
        """Return the table of text."""
        columns = {
            "requests/s": "{rate:rate}", "of limit %": "{utilization:.0%}", "stable": "{stable}",
            "tokens/s": "{tokens_per_s:,.0f}",
        } | {
            f"{name} p{level}": f"{{{key}_p{level}_ns:time}}"
            for name, key in (("first", "ttft"), ("token", "tpot")) for level in (50, 90, 99)
        }  # fmt: skip
        columns |= {"first p99 low": "{ttft_p99_low_ns:time}", "first p99 high": "{ttft_p99_high_ns:time}"}
        return [table_of("One engine by rate of arrival", columns, [_cells(row) for row in self.rows()])]

    def plot(self) -> Any:
        """Return the percentiles of both times over the rate, as a HoloViews object."""
        from seqpoint.plots import load_curves

        return load_curves(self.table())

    def to_dict(self) -> dict[str, Any]:
        """Return what `seqpoint serving --json` prints."""
        curves = ("linear_ns", "context_ns", "generation_ns")
        times = {name: [curve.size.tolist(), curve.time_ns.tolist()] for name in curves
                 for curve in [getattr(self.times, name)]}  # fmt: skip
        limits = {name: getattr(self.limits, name) for name in ("most_requests", "most_tokens", "kv_tokens")}
        return {"saturation_per_s": self.saturation, "limits": limits, "times": times, "rows": self.rows(),
                "notes": self.notes()}  # fmt: skip


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its times in ns, and words for a flag."""
    times = {
        f"{key[:-2]}_ns": None if value is None else 1e9 * value for key, value in row.items() if key.endswith("_s")
    }
    return row | times | {"stable": "yes" if row["stable"] else "NO"}


def serving_load(
    traces: Sequence[Trace],
    requests: Requests,
    *,
    rates: Sequence[float] = (),
    most_requests: int = 256,
    most_tokens: int = 8192,
    kv_tokens: int | None = None,
    seed: int | None = None,
    device: str | None = None,
) -> ServingLoad:
    """Serve requests with an engine whose steps take the times of a trace's.

    Parameters
    ----------
    traces : sequence of Trace
        Traces of one engine with steps of serving; best with steps of decode and of prefill.
    requests : Requests
        Lengths and arrivals of requests.
    rates, most_requests, most_tokens, kv_tokens, seed, device
        As in `seqpoint.front_door.serve`.

    Raises
    ------
    InvalidInputError
        A trace has no step of decode or prefill with known requests, or another device than the others; or requests or
        limits are out of range.
    """
    engine = _TracedEngine(traces, device)
    cache = engine.kv_tokens() if kv_tokens is None else kv_tokens
    limits = EngineLimits(most_requests, most_tokens, cache)
    times, factors = engine.times(limits)
    saturation = saturation_rate(requests, times, limits)
    if requests.arrival_s is None and seed is None:
        seed = 0
    given = "" if requests.arrival_s is None else f"; those given come at {requests.rate:.3g} requests/s"
    drawn = "those given, scaled to each rate" if seed is None else f"Poisson with seed {seed}"
    chosen = list(rates) or [saturation * share for share in _LOADS]
    loads = load_table(requests, times, limits, chosen, seed=seed, factors=factors)
    return ServingLoad(loads, saturation, requests, times, limits, (*engine.remarks, f"arrivals: {drawn}{given}"))


class _TracedEngine:
    """The step times and the memory of an engine, from the steps of a trace."""

    def __init__(self, traces: Sequence[Trace], device: str | None) -> None:
        self.remarks, self.options = list[str](), ProjectOptions(device=device, draws=_DRAWS)
        self.sources: dict[str, _TracedPhase] = {}
        devices: dict[str, Device] = {}
        for trace in traces:
            facts = kernel_facts(trace, given_hardware(device))
            if facts.hardware.device is None:
                raise InvalidInputError("the trace does not name its device; give --device")
            self.device = devices.setdefault(facts.hardware.device.name, facts.hardware.device)
            steps = _typical(trace, facts)
            if not steps:
                raise InvalidInputError(
                    "no step of decode or prefill alone with known attention: the annotations of each trace have to "
                    "state the requests (sq, sk, sqsq, sqsk), and graphs need their --capture; `seqpoint characterize "
                    "TRACE` shows what is known"
                )
            self.sources = steps | self.sources
        if len(devices) > 1:
            raise InvalidInputError(f"traces of one engine are of one device, not of {' and '.join(sorted(devices))}")

    def kv_tokens(self) -> int:
        """Return the tokens whose keys and values fit beside the weights."""
        operators = self._operators()
        attention, layers = self._attention(operators)
        _, _, tokens, _, kv_heads, width, _ = attention.dims
        each, weights = layers * 2 * kv_heads * width * attention.element_bytes, sum(map(_weights, operators))
        device = self.device
        free = _MEMORY * device.value("memory_gb") * 2**30 - weights
        sizes = f"{max(free, 0.0) / 2**30:.0f} GiB beside weights of {weights / 2**30:.0f} GiB"
        if free < each * tokens:
            raise InvalidInputError(f"a cache of {sizes} on {device.name} is too small; give --kv-tokens")
        self.remarks.append(f"cache: {sizes}, of {100 * _MEMORY:.0f} % of the memory of {device.name}")
        return int(free // each)

    def _operators(self) -> list[Operator]:
        """Return the operator of each call of a step on one rank, in which the FLOP of a call count once."""
        source = next(iter(self.sources.values()))
        facts = source.facts
        mine = (facts.iteration == source.iteration) & (facts.rank == source.rank) & (facts.work >= 0)
        return [facts.operators[number] for number in facts.work[mine & (facts.flops > 0)].tolist()]

    @staticmethod
    def _attention(operators: Sequence[Operator]) -> tuple[Operator, int]:
        """Return the attention of most work as that of one phase, and the calls of attention."""
        calls = [each for each in operators if each.kind in SERVING_ATTENTION]
        parts = [part for each in calls for part in by_phase(each)]
        return max(parts, key=lambda each: (each.flops, each.dims)), len(calls)

    def times(self, limits: EngineLimits) -> tuple[EngineStepTimes, tuple[float, float]]:
        """Return the curves of a step, and the interval of their times as factors."""
        linear, attention, factors = dict[float, float](), dict[str, TimeCurve](), list[tuple[float, float]]()
        most = {"decode": limits.most_requests, "prefill": limits.most_tokens}
        for phase in ("decode", "prefill"):
            source = self.sources.get(phase)
            if source is None:
                continue
            if len(self.sources) == 1:
                most[phase] = limits.most_tokens
            points, curve, spread = self._phase(phase, source, most[phase])
            linear |= {
                size: time for size, time in points.items() if phase == "decode" or size > max(linear, default=0)
            }
            attention[phase] = curve
            factors += spread
        for phase in ("decode", "prefill"):
            if phase not in attention:
                attention[phase] = self._modelled(phase, limits)
                self.remarks.append(
                    f"the trace has no step of {phase}: its attention is modelled, the rest is that of the other"
                )
        sizes = np.array(sorted(linear))
        grown = np.maximum.accumulate([linear[size] for size in sizes.tolist()])
        low, high = (float(np.mean([pair[side] for pair in factors])) for side in (0, 1))
        times = EngineStepTimes(TimeCurve(sizes, grown), attention["prefill"], attention["decode"])
        return times, (min(low, 1.0), max(high, 1.0))

    def _phase(
        self, phase: str, source: "_TracedPhase", most: int
    ) -> tuple[dict[float, float], TimeCurve, list[tuple[float, float]]]:
        """Return the times without attention by tokens, the curve of attention, and the intervals of a phase, ns."""
        step = source.step
        side = step.decode if phase == "decode" else step.prefill
        queries = (side.query_tokens or side.requests) / side.requests
        context = (side.pairs or 0.0) / max(side.query_tokens or 1, 1) + (queries - 1) / 2
        if phase == "decode":
            numbers = _grid(1, most)
            without = {float(n * queries): f"batch:{n}+{_WITHOUT}" for n in numbers}
            lengths = sorted({max(round(context * share), 1) for share in _CONTEXTS})
            amounts = [side.requests * float(length) for length in lengths]
            whole = [f"context:{length}" for length in lengths]
            bare = [_WITHOUT] * len(lengths)
        else:
            lengths = sorted({max(each // side.requests, 1) for each in _grid(64, most)})
            without = {float(side.requests * n): f"context:{n}+{_WITHOUT}" for n in lengths}
            prefix = max(context - queries, 0.0)
            amounts = [side.requests * n * (prefix + (n + 1) / 2) for n in lengths]
            whole = [f"context:{length}" for length in lengths]
            bare = list(without.values())
        texts = list(dict.fromkeys([*without.values(), *whole, *bare]))
        timed = self._timed(source, texts)
        points = {size: timed[text][0] for size, text in without.items() if text in timed}
        of_attention = [max(timed[full][0] - timed[rest][0], 0.0) for full, rest in zip(whole, bare, strict=True)]
        curve = TimeCurve(np.array(amounts), np.maximum.accumulate(of_attention))
        self.remarks.append(
            f"{phase}: iteration {source.iteration} of {step.requests} requests, at {len(points)} sizes"
        )
        return points, curve, [pair for _, pair in timed.values()]

    def _timed(self, source: "_TracedPhase", texts: Sequence[str]) -> dict[str, tuple[float, tuple[float, float]]]:
        """Return the time of an iteration under what-ifs, ns, and its interval as factors; unchanged if none acts."""
        options = replace(self.options, iterations=(source.iteration,))
        result = project_trace(source.trace, [parse_what_if(text) for text in texts], options)
        base, timed = float(result.projection.baseline_ns), dict[str, tuple[float, tuple[float, float]]]()
        for text, row in zip(texts, result.rows, strict=True):
            if row.applied:
                timed[text] = float(row.projected_ns), (row.speedup / row.high, row.speedup / row.low)
            elif row.reason.startswith((NOTHING_CHANGES, NO_EFFECT)):
                timed[text] = base, (1.0, 1.0)
            else:
                raise InvalidInputError(row.reason)
        return timed

    def _modelled(self, phase: str, limits: EngineLimits) -> TimeCurve:
        """Return the curve of the attention of a phase by its model, from the heads of the other."""
        attention, layers = self._attention(self._operators())
        query, kv, width, window = attention.dims[3:7]
        heads = AttentionHeads(query, kv, width, width, window=window)
        sizes = _grid(256, limits.most_tokens if phase == "prefill" else min(limits.kv_tokens, 1 << 20))
        calls, amounts = [], []
        for size in sizes:
            if phase == "prefill":
                calls.append(
                    request_attention(PhaseTokens(1, size, size, size * size, size * size), PhaseTokens(), heads)
                )
                amounts.append(size * (size + 1) / 2)
            else:
                count = max(size // 1024, 1)
                calls.append(request_attention(PhaseTokens(), PhaseTokens(count, count, size), heads))
                amounts.append(float(size))
        timed = time_operators(calls, self.device, parameters=self.options.parameters, dtype="bf16")
        seconds: Floats = timed.seconds
        return TimeCurve(np.array(amounts), np.maximum.accumulate(1e9 * layers * seconds))


def _grid(least: int, most: int) -> list[int]:
    """Return whole numbers from `least` to `most` in equal ratios."""
    return sorted({round(each) for each in np.geomspace(min(least, most), most, _POINTS)})


@dataclass(frozen=True)
class _TracedPhase:
    """A step of a trace whose times at other sizes are those of the engine."""

    trace: Trace
    facts: KernelFacts
    rank: int
    iteration: int
    step: ServingStep


def _typical(trace: Trace, facts: KernelFacts) -> dict[str, _TracedPhase]:
    """Return the step of the median time of each phase, of those whose attention is known."""
    times = step_times(trace)
    keys = zip(times.rank.tolist(), times.iteration.tolist(), strict=True)
    length = dict(zip(keys, times.step_ns.tolist(), strict=True))
    of_phase: dict[str, list[tuple[int, int, int, ServingStep]]] = {}
    attends = np.array([each.kind in SERVING_ATTENTION for each in facts.operators] or [False])
    known = (facts.work >= 0) & attends[np.maximum(facts.work, 0)]
    with_attention = set(zip(facts.rank[known].tolist(), facts.iteration[known].tolist(), strict=True))
    for key, steps in steps_of_iterations(facts).items():
        if len(steps) == 1 and key in with_attention and steps[0].phase != "mixed":
            of_phase.setdefault(steps[0].phase, []).append((length.get(key, 0), *key, steps[0]))
    chosen = {}
    for phase, several in of_phase.items():
        _, rank, iteration, step = sorted(several, key=lambda each: each[:3])[len(several) // 2]
        chosen[phase] = _TracedPhase(trace, facts, rank, iteration, step)
    return chosen


def _weights(operator: Operator) -> float:
    """Return the bytes of the weights of a product or of a layer of experts; 0 of anything else.

    A layer of experts reads as many bytes as it writes beside its weights, and the weights of the chosen experts alone.
    """
    if operator.kind == "matmul":
        _, m, _, k = operator.dims
        return operator.bytes_read - m * k * operator.element_bytes
    if operator.kind == "experts":
        tokens, _, _, topk, experts, *_ = operator.dims
        return (operator.bytes_read - operator.bytes_written) / (1 - (1 - min(topk / experts, 1.0)) ** tokens)
    return 0.0
