"""Steps of serving by phase: tokens, time, rates, and how much of the device they use.

A row of `serving_rows` sums the steps of one phase. Model FLOP utilisation (MFU) compares the FLOP of matrix kernels to
the peak in the time of the steps, model bandwidth utilisation (MBU) their bytes to the memory bandwidth: weights, and
keys and values of the cache.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from profilers.trace.arrays import Bools, Floats, Ints, dense_keys, row_keys
from profilers.trace.serving import SERVING_PHASES, ServingStep
from profilers.trace.steps import StepTimes
from seqpoint.kernel_facts import KERNEL_PHASES, KernelFacts
from seqpoint.notebook import Table, counted, table_of
from seqpoint.units import duration
from seqpoint.work_rows import BOUNDS


@dataclass(frozen=True)
class ServingRow:
    """Steps of one phase of serving; times in ns.

    Parameters
    ----------
    phase : str
        ``"prefill"``, ``"decode"`` or ``"mixed"``.
    steps : int
        Number of steps.
    requests, tokens : float, optional
        Mean of the requests and tokens of a step; tokens are None if a step does not state them.
    kv_tokens : float, optional
        Mean of the tokens that a request attends to; None if unknown.
    step_ns : float
        Median time of a step, from the completion of the step before.
    elapsed_ns : int
        Sum of the times of the steps, mean over ranks.
    tokens_per_s : float, optional
        Tokens computed a second.
    token_ns : float, optional
        Time a token: of a step that gives each request a new token, its time.
    kernel_share : float
        Share of the time of all kernels.
    mfu, mbu : float, optional
        Model FLOP and model bandwidth utilisation; None if the device or the work is unknown.
    known_share : float
        Share of the kernel time of the phase whose FLOP or bytes are known.
    bound : str
        What bounds most of the kernel time: ``"compute"``, ``"memory"``, ``"latency"``, ``"inefficient"``,
        ``"unknown"``.
    """

    phase: str
    steps: int
    requests: float
    tokens: float | None
    kv_tokens: float | None
    step_ns: float
    elapsed_ns: int
    tokens_per_s: float | None
    token_ns: float | None
    kernel_share: float
    mfu: float | None
    mbu: float | None
    known_share: float
    bound: str

    def sentence(self) -> str:
        """Return the row as a sentence."""
        size = f"{self.requests:,.0f} requests" + ("" if self.tokens is None else f" and {self.tokens:,.0f} tokens")
        rate = "" if self.tokens_per_s is None else f", {self.tokens_per_s:,.0f} tokens/s"
        use = [f"{name} {100 * value:.0f} %" for name, value in (("MFU", self.mfu), ("MBU", self.mbu)) if value]
        text = f"{self.phase}: {counted(self.steps, 'step')} of {size}, {duration(self.step_ns)} each{rate}"
        return "; ".join([text, ", ".join(use)] if use else [text]) + f"; bound by {self.bound}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON with stable keys."""
        return asdict(self)


def serving_rows(
    facts: KernelFacts, times: StepTimes, limits_ns: tuple[Floats, Floats], is_matrix: Bools, bounds: Ints
) -> tuple[ServingRow, ...]:
    """Return a row for each phase of serving in a trace; none if no annotation states one.

    Parameters
    ----------
    facts : KernelFacts
        Kernels of the trace.
    times : StepTimes
        Steps of the trace.
    limits_ns : (array, array)
        Least time of the arithmetic and of the memory traffic of each kernel; NaN if unknown.
    is_matrix : array of bool
        Kernels whose FLOP and bytes count for utilisation.
    bounds : array of int64
        What bounds each kernel, as an index into `seqpoint.work_rows.BOUNDS`.
    """
    step_of = {} if not len(facts.steps) else steps_of_iterations(facts)
    rows = []
    for phase in SERVING_PHASES:
        keys = [key for key, steps in step_of.items() if _phase(steps) == phase]
        if keys:
            rows.append(_row(phase, keys, step_of, (facts, times, limits_ns, is_matrix, bounds)))
    return tuple(rows)


def steps_of_iterations(facts: KernelFacts) -> dict[tuple[int, int], list[ServingStep]]:
    """Return the steps of serving of each rank and iteration that has kernels."""
    known = (facts.serving >= 0) & (facts.iteration >= 0)
    columns = np.stack([facts.rank[known], facts.iteration[known], facts.serving[known]])
    result: dict[tuple[int, int], list[ServingStep]] = {}
    for rank, iteration, row in np.unique(columns, axis=1).T.tolist():  # 1 us a step
        result.setdefault((rank, iteration), []).append(facts.steps.step(row))
    return result


def _phase(steps: Sequence[ServingStep]) -> str:
    phases = {step.phase for step in steps}
    return phases.pop() if len(phases) == 1 else "mixed"


_Measured = tuple[KernelFacts, StepTimes, tuple[Floats, Floats], Bools, Ints]


def _row(
    phase: str, keys: Sequence[tuple[int, int]], step_of: dict[tuple[int, int], list[ServingStep]], measured: _Measured
) -> ServingRow:
    facts, times, (arithmetic, memory), is_matrix, bounds = measured
    # Ranks that share a layer run the same requests; others run their own.
    of_iteration: dict[int, list[ServingStep]] = {}
    for rank, iteration in keys:
        if iteration not in of_iteration or of_iteration[iteration] != step_of[rank, iteration]:
            of_iteration[iteration] = of_iteration.get(iteration, []) + step_of[rank, iteration]
    steps = [step for several in of_iteration.values() for step in several]
    chosen = np.array(keys, dtype=np.int64).T
    of_times, of_phase = dense_keys((times.rank, times.iteration), (chosen[0], chosen[1]))
    step_ns = times.step_ns[np.isin(of_times, of_phase)]
    ranks, rows = len(np.unique(chosen[0])), np.flatnonzero(facts.phase == KERNEL_PHASES.index(phase))
    elapsed, devices = int(step_ns.sum() / ranks), len(np.unique(row_keys(facts.rank[rows], facts.device[rows]))) or 1
    tokens = _total([step.tokens for step in steps])
    kv_tokens = _total([side.kv_tokens for step in steps for side in (step.prefill, step.decode)])
    requests, count = sum(step.requests for step in steps), len(of_iteration)
    time = facts.duration_ns[rows]
    has_work = np.isfinite(facts.flops[rows]) | np.isfinite(facts.bytes[rows])
    known = float(time[has_work].sum()) / max(float(time.sum()), 1.0)
    matrix = rows[is_matrix[rows]]
    per_request = phase == "decode" and tokens is not None and elapsed
    return ServingRow(
        phase,
        count,
        requests / count,
        None if tokens is None else tokens / count,
        None if kv_tokens is None else kv_tokens / max(requests, 1),
        float(np.median(step_ns)) if len(step_ns) else 0.0,
        elapsed,
        1e9 * tokens / elapsed if tokens is not None and elapsed else None,
        elapsed * requests / (tokens * count) if per_request and tokens else None,
        float(time.sum()) / max(facts.total_ns, 1),
        _use(arithmetic, matrix, elapsed * devices),
        _use(memory, matrix, elapsed * devices),
        known,
        BOUNDS[int(np.bincount(bounds[rows], weights=time, minlength=len(BOUNDS)).argmax())],
    )


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _use(limits_ns: Floats, rows: Ints, elapsed_ns: float) -> float | None:
    """Return the least time of some kernels over the time that passed; None if it is known for none."""
    known = limits_ns[rows][np.isfinite(limits_ns[rows])]
    return float(known.sum()) / elapsed_ns if len(known) and elapsed_ns else None


def serving_table(rows: Sequence[ServingRow]) -> Table:
    """Return the rows as a table of text."""
    columns = {
        "phase~": "{phase}", "steps": "{steps}", "requests": "{requests:,.1f}", "tokens": "{tokens:,.0f}",
        "context": "{kv_tokens:,.0f}", "step": "{step_ns:time}", "time a token": "{token_ns:time}",
        "tokens/s": "{tokens_per_s:,.0f}", "MFU %": "{mfu:.1%}", "MBU %": "{mbu:.1%}",
        "kernels %": "{kernel_share:.0%}", "bound~": "{bound}", "known %": "{known_share:.0%}",
    }  # fmt: skip
    return table_of("Steps of serving by phase", columns, rows)
