"""The demo: selection on a recorded epoch, and projection on a synthetic multi-GPU job, from shipped data."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.ingest.pipeline import collect
from profilers.synthetic import TransformerJob, synthesize
from profilers.trace.store import save_trace
from profilers.trace.trace import Trace
from replay.what_ifs import parse_what_if
from seqpoint.description import Description, describe
from seqpoint.iteration_table import iteration_table
from seqpoint.projecting import ProjectOptions, TraceProjection, project_trace
from seqpoint.selection.selecting import RunEstimate, SelectionResult, estimate_run, select

#: What-ifs that the demo projects on the synthetic job.
DEMO_WHAT_IFS = (
    "overlap:none",
    "overlap:no_contention",
    "overlap:ideal",
    "scale_links:2",
    "scale_kernels:gemm:0.8",
    "scale_device:MI355X",
    "overlap:ideal+scale_device:MI355X",
)
_DEVICE = "MI300X"


@dataclass(frozen=True)
class Demo:
    """Results of the demo.

    Parameters
    ----------
    epoch : Description
        Description of the recorded epoch, on one thread.
    selection : SelectionResult
        Points selected on that epoch.
    other : RunEstimate
        Estimate of the same epoch on two threads, from those points.
    job : Description
        Description of the synthetic job.
    job_selection : SelectionResult
        Points selected on the synthetic job.
    projection : TraceProjection
        The what-ifs on the synthetic job.
    """

    epoch: Description
    selection: SelectionResult
    other: RunEstimate
    job: Description
    job_selection: SelectionResult
    projection: TraceProjection


def run_demo(folder: Path, tell: Callable[[str], None]) -> Demo:
    """Run the demo, write its traces into a folder, and return its results.

    Parameters
    ----------
    folder : Path
        Folder for the traces; created if it does not exist.
    tell : callable
        Called with a sentence at the start of each step.

    Raises
    ------
    InvalidInputError
        The folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{folder}: cannot be created ({error.strerror}); choose another with --output"
        ) from error
    tell("1/4 reading an epoch of training that was recorded with the PyTorch profiler on a CPU, 112 iterations")
    epochs = [_recorded(threads, folder) for threads in (1, 2)]
    tell("2/4 choosing the iterations that stand for it, and predicting the run on two threads from them")
    tables = [iteration_table(epoch) for epoch in epochs]
    selection = select(tables[0])
    estimate = estimate_run(selection.to_dict(), (tables[0], tables[1]))
    tell(f"3/4 synthesising a transformer on 4 x {_DEVICE} with tensor-parallel all-reduce (synthetic, not measured)")
    job = synthesize(TransformerJob(), _DEVICE)
    save_trace(job, folder / "synthetic.trace")
    tell(f"4/4 replaying its selected iterations under {len(DEMO_WHAT_IFS)} what-ifs")
    job_selection = select(iteration_table(job))
    what_ifs = [parse_what_if(text) for text in DEMO_WHAT_IFS]
    projection = project_trace(job, what_ifs, ProjectOptions(max_points=len(job_selection.rows)))
    return Demo(describe(epochs[0]), selection, estimate, describe(job), job_selection, projection)


def _recorded(threads: int, folder: Path) -> Trace:
    trace = collect([dataset_path(f"samples/cpu_epoch/epoch_threads{threads}.pt.trace.json.gz")])
    save_trace(trace, folder / f"epoch_threads{threads}.trace")
    return trace
