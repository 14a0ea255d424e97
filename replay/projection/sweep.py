"""A sweep: many independent runs over the same graphs in threads, since compiled functions release the lock."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from profilers.errors import InvalidInputError
from replay.engine.layout import ACTIVE_TASK
from replay.graph.graph import KernelGraph

T = TypeVar("T")
Progress = Callable[[int, int, str], None]

#: Bytes of memory a task takes in a run: its row of the table of active tasks, its times, edges and events, and its
#: columns in two graphs.
_TASK_BYTES = ACTIVE_TASK.itemsize + 6 * 8 + 4 * 16 + 2 * 33 * 8
#: Share of the free memory that runs may take.
_MEMORY_SHARE = 0.5
#: Seconds between two checks for an interrupt while waiting.
_LOOK_UP_S = 0.2


class ProgressSteps:
    """Steps of all threads: counted, reported one at a time, and ended if the sweep is to stop."""

    def __init__(self, total: int, tell: Progress | None = None) -> None:
        self._total, self._tell, self._done = total, tell, 0
        self._lock, self._stop = threading.Lock(), threading.Event()

    def next(self, what: str) -> None:
        """Report that a step begins.

        Raises
        ------
        InterruptedError
            `stop` was called.
        """
        if self._stop.is_set():
            raise InterruptedError("the sweep was stopped")
        with self._lock:
            if self._tell is not None:
                self._tell(self._done, self._total, what)
            self._done += 1

    def stop(self) -> None:
        """End every thread at its next step."""
        self._stop.set()


def sweep(runs: Sequence[Callable[[], T]], jobs: int, steps: ProgressSteps) -> list[T]:
    """Return the results of `runs` in order, with `jobs` runs at a time; the same for any number of jobs.

    Threads share the graphs. An error of a run, or an interrupt, stops all runs at their next step. The error of the
    first failed run, in their order, is raised.

    Parameters
    ----------
    runs : sequence of callable
        Independent runs; each calls ``steps.next`` now and then.
    jobs : int
        Runs at a time, 1 or more.
    steps : ProgressSteps
        Steps of the runs.

    Raises
    ------
    InvalidInputError
        `jobs` is not above zero.
    """
    if jobs < 1:
        raise InvalidInputError(f"{jobs} jobs: give one or more")
    if jobs == 1 or len(runs) < 2:
        return [run() for run in runs]
    with ThreadPoolExecutor(jobs, "sweep") as pool:
        futures = [pool.submit(run) for run in runs]
        try:
            _wait(futures)
        finally:
            if not all(future.done() and future.exception() is None for future in futures):
                steps.stop()
                pool.shutdown(wait=True, cancel_futures=True)
        errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, InterruptedError)), errors[0])
        return [future.result() for future in futures]


def _wait(futures: "Sequence[Future[T]]") -> None:
    """Wait until all runs are done or one has failed, open to interrupts."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_UP_S, return_when=FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done):
            return


def jobs_for(graphs: Sequence[KernelGraph], jobs: int = 0, *, cycles: int = 1) -> int:
    """Return the number of runs at a time: as asked, or one a core as far as the free memory allows.

    Parameters
    ----------
    graphs : sequence of KernelGraph
        Graphs of the runs.
    jobs : int
        Number that the user asked for; 0 to choose.
    cycles : int
        Number of times that a run repeats its graph.
    """
    if jobs:
        return jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    run_bytes = max((len(graph.tasks) * _TASK_BYTES + len(graph.edges) * 80 for graph in graphs), default=1)
    return max(min(cores, int(_MEMORY_SHARE * _free_bytes() / max(run_bytes * cycles, 1))), 1)


def _free_bytes() -> float:
    """Return the free memory; infinite if the system does not tell."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return float("inf")
