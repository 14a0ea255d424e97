"""Windows of a trace's iterations in which their steps can be timed."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from profilers.devices import find_device
from profilers.errors import InvalidInputError
from profilers.steps import StepTimes, job_steps, step_times
from profilers.trace import Trace
from replay.build import build_graph, index_trace
from replay.graph import Hardware
from replay.hardware import hardware_named
from replay.step_window import StepWindow

__all__ = ["all_iterations", "given_hardware", "step_windows"]

Progress = Callable[[int, int, str], None]
#: Iterations before one that are replayed with it at most, with itself; and iterations in one window.
_LONGEST_RUN, _LONGEST_WINDOW = 16, 32


def all_iterations(trace: Trace) -> list[int]:
    """Return the numbers of a trace's iterations.

    Raises
    ------
    InvalidInputError
        It has none.
    """
    have = sorted(set(trace.iterations["iteration"].to_pylist()))
    if not have:
        raise InvalidInputError("the trace has no iteration")
    return have


def given_hardware(device: str | None) -> Hardware | None:
    """Return the hardware of a device that a user names; None where nobody names one.

    Raises
    ------
    NotFoundError
        The device is unknown.
    """
    return None if device is None else hardware_named(find_device(device), "user")


def step_windows(
    trace: Trace,
    iterations: Sequence[int],
    weights: Sequence[float] = (),
    *,
    device: str | None = None,
    progress: Progress | None = None,
) -> Iterator[StepWindow]:
    """Yield windows in which the steps of some iterations can be timed, one after another to hold one at a time.

    The window of an iteration begins with the iterations that its hosts had not waited for when it started, and holds
    at least one before it, if the trace does. The first iteration of a recording has the one behind it instead.
    Windows that overlap are one, up to 32 iterations.

    Parameters
    ----------
    trace : Trace
    iterations : sequence of int
    weights : sequence of float
        How many steps each iteration stands for; by default one.
    device : str, optional
        What the trace was recorded on, where it does not say.
    progress : callable, optional
        Called with (graphs built, graphs in all, what).

    Raises
    ------
    NotFoundError, InvalidInputError
        The device or an iteration is unknown.
    """
    steps = step_times(trace)
    of_job = job_steps(steps)
    row_of = {number: row for row, number in enumerate(of_job.iteration.tolist())}
    hardware, index = given_hardware(device), index_trace(trace)
    index.check_iterations(iterations)
    spans = _merged([_span(steps, of_job, row_of[n]) for n in sorted(set(iterations))])
    weight_of = dict(zip(iterations, weights or [1.0] * len(iterations), strict=True))
    taken: set[int] = set()
    for count, (first, last) in enumerate(spans):
        window = of_job.iteration[first : last + 1].tolist()
        if progress:
            progress(count, len(spans), f"graph of iteration {window[-1]}")
        graph = build_graph(index, window, hardware)
        asked = [p for p, n in enumerate(graph.iterations) if n in weight_of and n not in taken]
        numbers = [graph.iterations[p] for p in asked]
        taken.update(numbers)
        measured = [float(of_job.step_ns[first + p]) for p in asked]
        yield StepWindow.of(graph, asked, weights=[weight_of[n] for n in numbers], measured_ns=measured)


def _span(steps: StepTimes, of_job: StepTimes, row: int) -> tuple[int, int]:
    """Return the first and last row of the window of the iteration at `row`."""
    run = of_job.run_of(row)
    if row == run[0]:
        return (row, row + 1) if len(run) > 1 else (row, row)
    mine = steps.iteration == of_job.iteration[row]
    starts = dict(zip(steps.rank[mine].tolist(), steps.start_ns[mine].tolist(), strict=True))
    first = row - 1
    while first > run[0] and row - first < _LONGEST_RUN - 1:
        before = np.flatnonzero(steps.iteration == of_job.iteration[first - 1])
        pairs = zip(steps.rank[before].tolist(), steps.completion_ns[before].tolist(), strict=True)
        if not any(rank in starts and done > starts[rank] for rank, done in pairs):
            break
        first -= 1
    return first, row


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans with those joined that overlap, as long as they are not too long together."""
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1] and last - merged[-1][0] < _LONGEST_WINDOW:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
