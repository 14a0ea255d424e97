"""Profiler traces of single iterations, marked so that `seqpoint ingest` finds each and its length.

A profiler slows the launches of its process even after it has ended (CUPTI stays, where PyTorch does not take it down:
pytorch issue 144455), so whatever is timed against the host's pace comes before the first trace of a process.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from benchmarks.gpu.clock import synchronize
from profilers.record.profiling import ProfiledWindow, settings

__all__ = ["RECORDINGS", "Marked", "record", "trace_path"]

#: What the profiler writes of operators, by name: their names alone, with shapes, or with shapes and Python stacks.
RECORDINGS: Mapping[str, Mapping[str, bool]] = {
    "on": {"record_shapes": False},
    "shapes": {"record_shapes": True},
    "stacks": {"record_shapes": True, "with_stack": True},
}
#: No trace that is larger is kept: what is recorded is to be small enough to be shipped.
LARGEST_BYTES = 6_000_000


@dataclass(frozen=True)
class Marked:
    """An iteration of a trace.

    Parameters
    ----------
    number : int
        Of the iteration in its run; rising within a trace.
    run : callable
    sequence_length, batch : int or None
    """

    number: int
    run: Callable[[], object]
    sequence_length: int | None = None
    batch: int | None = None

    @property
    def text(self) -> str:
        """What `profilers.record.profile_at` writes, and `profilers.ingest.lengths` reads."""
        length = "" if self.sequence_length is None else f" sequence_length={self.sequence_length}"
        return f"iteration{length}" + ("" if self.batch is None else f" batch={self.batch}")


def trace_path(files: Path, name: str) -> Path:
    """Return where a trace is put."""
    return files / "traces" / f"{name}.pt.trace.json.gz"


def record(device: str, files: Path, name: str, iterations: Sequence[Marked], how: str = "shapes") -> Path:
    """Record iterations by a setting of `RECORDINGS` and write the trace, whole or not at all.

    Everything has run before (`iterations` are warm), and the device is idle when the recording begins.

    Raises
    ------
    RuntimeError
        The trace is larger than `LARGEST_BYTES`.
    """
    path = trace_path(files, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    made_with = settings(torch, None, True) | RECORDINGS[how]
    _first_window()
    window = ProfiledWindow(torch, made_with)
    try:
        iterations[0].run()  # the profiler is prepared by now, and slows the first launches behind that
        synchronize(device)
        window.start()
        _run(device, iterations)
        synchronize(device)
    except BaseException:
        window.drop()
        raise
    window.write(path)
    if (size := path.stat().st_size) > LARGEST_BYTES:
        path.unlink()
        raise RuntimeError(f"{path.name} would have {size:,} bytes, more than {LARGEST_BYTES:,}: left out")
    return path


@cache
def _first_window() -> None:
    """Open and drop the first window of this process: it initialises the profiler."""
    ProfiledWindow(torch, settings(torch, None, True)).drop()


def _run(device: str, iterations: Sequence[Marked]) -> None:
    """Run iterations inside marks of PyTorch and, on a GPU, inside NVTX ranges, which Nsight Systems records."""
    mark = torch.profiler.record_function
    for one in iterations:
        with _nvtx(device, one.text), mark(f"ProfilerStep#{one.number}"), mark(one.text):
            one.run()


def _nvtx(device: str, text: str) -> AbstractContextManager[object]:
    return torch.cuda.nvtx.range(text) if torch.device(device).type == "cuda" else nullcontext()
