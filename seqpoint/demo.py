"""The main job on what the project ships: a recorded epoch and a synthetic multi-GPU job."""

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

#: What the demo asks of the synthetic job.
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
    """What the demo found.

    Parameters
    ----------
    epoch : Description
        Of the recorded epoch, one thread.
    selection : SelectionResult
    other : RunEstimate
        The estimate of the same epoch on two threads, from the points chosen on one.
    job : Description
        Of the synthetic job.
    job_selection : SelectionResult
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
    """Run the main job, write its traces into `folder`, and return what it found.

    Parameters
    ----------
    folder : Path
        Created if it is not there.
    tell : callable
        Told each step.

    Raises
    ------
    InvalidInputError
        The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"{folder}: cannot be made ({error.strerror}); choose another with --output") from error
    tell("1/4 reading an epoch of training that was recorded with the PyTorch profiler on a CPU, 112 iterations")
    epochs = [_recorded(threads, folder) for threads in (1, 2)]
    tell("2/4 choosing the iterations that stand for it, and predicting the run on two threads from them")
    tables = [iteration_table(epoch) for epoch in epochs]
    selection = select(tables[0])
    other = estimate_run(selection.to_dict(), (tables[0], tables[1]))
    tell(f"3/4 synthesising a transformer on 4 x {_DEVICE} with tensor-parallel all-reduce (synthetic, not measured)")
    job = synthesize(TransformerJob(), _DEVICE)
    save_trace(job, folder / "synthetic.trace")
    tell(f"4/4 replaying its selected iterations under {len(DEMO_WHAT_IFS)} what-ifs")
    job_selection = select(iteration_table(job))
    what_ifs = [parse_what_if(text) for text in DEMO_WHAT_IFS]
    projection = project_trace(job, what_ifs, ProjectOptions(max_points=len(job_selection.rows)))
    return Demo(describe(epochs[0]), selection, other, describe(job), job_selection, projection)


def _recorded(threads: int, folder: Path) -> Trace:
    trace = collect([dataset_path(f"samples/cpu_epoch/epoch_threads{threads}.pt.trace.json.gz")])
    save_trace(trace, folder / f"epoch_threads{threads}.trace")
    return trace
