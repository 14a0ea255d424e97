"""The command `demo`: the whole path on the data that the project ships.

It selects on a recorded epoch, and projects what-ifs on a synthetic multi-GPU job.
"""

from pathlib import Path

import click

from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.store import save_trace
from profilers.trace.trace import Trace
from replay.workloads import Dlrm, Layout, TrainingJob, Transformer
from replay.writers.perfetto import write_perfetto
from seqpoint import front_door
from seqpoint.cli.options import explain_option, output_option
from seqpoint.cli.output import message, print_lines, print_result
from seqpoint.gemm_table import TraceGemms
from seqpoint.reporting import ReportContent, ReportSection, write_report
from seqpoint.selection.another_run import RunEstimate
from seqpoint.units import duration

#: What-ifs that the demo projects on the synthetic transformer, and on the recommendation model.
_WHAT_IFS = (
    *("overlap:none", "overlap:ideal", "t3:mca", "ficco", "t3:mca+ficco", "scale_links:2", "t3:mca+scale_links:2"),
    *("scale_kernels:gemm:0.8", "scale_device:MI355X", "overlap:ideal+scale_device:MI355X"),
)
_OF_DLRM = (
    *("overlap:ideal", "fuse_collectives", "c3:dma", "concurrent_gemms", "scale_links:2"),
    "fuse_collectives+scale_links:2",
)
#: Draws of the parameters: few, to keep the demo short.
_DRAWS = 12
_DEVICE = "MI300X"
_LAYOUT = Layout(tensor=4, data=2, sequence_parallel=True)
_JOB = TrainingJob(Transformer("gpt", "megatron", 4, 4096, 32, 16384, 51200), 2048, 4, 2, _LAYOUT)
#: Sequence lengths of its iterations, tokens.
_LENGTHS = (1024, 2048, 1536, 1024, 512, 2048)


@click.command("demo")
@output_option(
    "DIR", "Folder for the traces, the timeline and the report.", required=False, default="seqpoint-demo",
    show_default=True,
)  # fmt: skip
@explain_option
def command(output: str) -> None:
    """Run the whole path on the data that the project ships, without a GPU or a network.

    It selects iterations of a recorded epoch, predicts a run from them, and projects what-ifs on a synthetic job. The
    first call after an installation compiles for some seconds.

    \b
    seqpoint demo
    """
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{folder}: cannot be created ({error.strerror}); choose another with --output"
        ) from error
    message("1/4 reading an epoch of training that was recorded with the PyTorch profiler on a CPU, 112 iterations")
    epoch, faster = (_recorded(threads, folder) for threads in (1, 2))
    message("2/4 choosing the iterations that stand for it, and predicting the run on two threads from them")
    selection = front_door.select(epoch)
    estimate = front_door.estimate(selection, faster, base=epoch)
    message(f"3/4 synthesising a transformer on 4 x {_DEVICE} and a recommendation model on 8 (not measured)")
    job = front_door.synthesize(_JOB, _DEVICE, lengths=_LENGTHS)
    dlrm = front_door.synthesize(Dlrm(), _DEVICE)
    for trace, name in ((job, "synthetic.trace"), (dlrm, "dlrm.trace")):
        save_trace(trace, folder / name)
    message(f"4/4 replaying iterations under {len(_WHAT_IFS) + len(_OF_DLRM)} what-ifs")
    job_selection = front_door.select(job)
    result = front_door.project(job, _WHAT_IFS, max_points=len(job_selection.rows), draws=_DRAWS)
    print_lines("A recorded epoch of training on a CPU, one thread")
    print_result(selection, json_=False)
    _show_estimate(estimate)
    print_lines("")
    print_lines(f"Transformer on 4 x {_DEVICE} (synthetic: nobody measured these times)")
    print_result(result, json_=False)
    print_lines("", f"Recommendation model on 8 x {_DEVICE} (synthetic)")
    print_result(front_door.project(dlrm, _OF_DLRM, draws=_DRAWS), json_=False)
    _show_gemms(front_door.gemms(dlrm))
    timelines, after = result.projection.timelines, "overlap:ideal"
    write_perfetto(folder / "before_after.json", {"before": timelines["baseline"], f"after {after}": timelines[after]})
    of_job = (front_door.describe(job), job_selection, result)
    sections = (
        ReportSection("A recorded epoch of training on a CPU", "", front_door.describe(epoch), selection),
        ReportSection(f"Transformer on 4 x {_DEVICE}", "synthetic", *of_job),
    )
    path = write_report(ReportContent("seqpoint demo", sections), folder / "report.html")
    print_lines(f"timeline for https://ui.perfetto.dev: {folder / 'before_after.json'}")
    print_lines(f"report: {path}")


def _recorded(threads: int, folder: Path) -> Trace:
    trace = front_door.open(dataset_path(f"samples/cpu_epoch/epoch_threads{threads}.pt.trace.json.zst"))
    save_trace(trace, folder / f"epoch_threads{threads}.trace")
    return trace


def _show_estimate(estimate: RunEstimate) -> None:
    measured, error = estimate.measured or 0.0, estimate.error or 0.0
    print_lines(
        f"The same epoch on two threads, predicted from those iterations alone: {duration(estimate.estimate)}, "
        f"measured {duration(measured)} (error {100 * error:.2f} %); "
        f"speed-up {estimate.speedup:.3f} [{estimate.speedup_low:.3f}, {estimate.speedup_high:.3f}]"
    )


def _show_gemms(gemms: TraceGemms) -> None:
    """Print how efficient the matrix products are, and what the group that gains most would gain side by side."""
    print_lines(*(f"GEMMs: {line}" for line in gemms.summary()))
    groups = () if gemms.step is None else gemms.step.rows
    if groups:
        best = max(groups, key=lambda row: row.gain_ns)
        print_lines(
            f"GEMMs: {best.label} do not depend on each other (evidence: {best.evidence}); side by side they take "
            f"{duration(best.concurrent_ns)} instead of {duration(best.sequential_ns)} (modelled)"
        )
