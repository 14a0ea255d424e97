"""The command `demo`: first answers on a training that was recorded on an H100, and a synthetic study of overlap."""

from pathlib import Path

import click

from profilers.errors import InvalidInputError
from profilers.files import dataset_path
from profilers.trace.store import save_trace
from replay.workloads import Layout, TrainingJob, Transformer
from replay.writers.perfetto import write_perfetto
from seqpoint import front_door
from seqpoint.cli.options import output_option
from seqpoint.cli.output import message, print_lines
from seqpoint.projecting import TraceProjection
from seqpoint.reporting import ReportContent, ReportSection, write_report
from seqpoint.units import duration

_H200 = "scale_device:H200-SXM-141GB"
#: What-ifs of the synthetic study, with their names, and draws of the parameters: few, to keep the demo short.
_OVERLAPS = {
    "overlap:ideal": "ideal overlap",
    "t3:mca": "T3",
    "ficco": "FiCCO",
    "t3:mca+ficco": "both",
    "scale_links:2": "links twice as fast",
}
_DRAWS = 12
_DEVICE = "MI300X"
_LAYOUT = Layout(tensor=4, data=2, sequence_parallel=True)
_JOB = TrainingJob(Transformer("gpt", "megatron", 4, 4096, 32, 16384, 51200), 2048, 4, 2, _LAYOUT)


@click.command("demo")
@output_option(
    "DIR", "Folder for the traces, the timeline and the report.", required=False, default="seqpoint-demo",
    show_default=True,
)  # fmt: skip
def command(output: str) -> None:
    """Run the whole path on the data that the project ships, without a GPU or a network.

    It advises on a training step that was recorded on an H100, selects iterations of an epoch there, predicts the epoch
    on an H200 from them, and projects overlaps of a synthetic job. The first call after an installation compiles for
    some seconds.

    \b
    seqpoint demo
    """
    folder, samples = Path(output), dataset_path("samples/h100")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"{folder}: cannot be created ({error.strerror}); choose another with --output"
        ) from error
    message("1/4 what limits a training step of a language model, recorded on an H100, and what to do")
    trace = front_door.open(samples / "language_step.pt.trace.json.gz")
    save_trace(trace, folder / "h100.trace")
    print_lines("1. A training step of a language model, recorded on an H100")
    advice = front_door.advise(folder / "h100.trace")
    print_lines(*advice.summary())
    message("2/4 which iterations stand for an epoch of 320, and how long it takes on an H200")
    epoch, other = (samples / f"epoch_{name}.parquet" for name in ("h100", "h200"))
    selection = front_door.select(epoch)
    estimate = front_door.estimate(selection, other, base=epoch)
    measured = estimate.measured or estimate.estimate
    print_lines("", "2. An epoch of it on the H100: sentences of 32 to 768 tokens", *selection.summary()[:1])
    print_lines(
        f"on an H200, estimated from these iterations alone: {duration(estimate.estimate)}, measured "
        f"{duration(measured)} (error {100 * (estimate.error or 0.0):.2f} %)"
    )
    message("3/4 the same step on an H200, from the H100's trace")
    step = front_door.project(trace, [_H200], draws=_DRAWS)
    print_lines("", "3. The step on an H200, projected from the H100's trace", _line(step, {_H200: "H200"}))
    print_lines(f"measured, over the epoch: {(selection.measured or 0.0) / measured:.2f}")
    message(f"4/4 how much overlap gains in a transformer on 4 x {_DEVICE} (synthetic)")
    job = front_door.synthesize(_JOB, _DEVICE)
    save_trace(job, folder / "synthetic.trace")
    overlaps = front_door.project(job, tuple(_OVERLAPS), draws=_DRAWS)
    print_lines("", f"4. Overlap in a transformer on 4 x {_DEVICE} (synthetic: nobody measured these times)")
    print_lines(_line(overlaps, _OVERLAPS))
    timelines, after = overlaps.projection.timelines, "overlap:ideal"
    write_perfetto(folder / "before_after.json", {"before": timelines["baseline"], f"after {after}": timelines[after]})
    sections = (
        ReportSection("A language model on an H100", "", front_door.describe(trace), None, step, advice=advice),
        ReportSection(f"Transformer on 4 x {_DEVICE}", "synthetic", front_door.describe(job), None, overlaps),
    )
    path = write_report(ReportContent("seqpoint demo", sections), folder / "report.html")
    print_lines(f"timeline for https://ui.perfetto.dev: {folder / 'before_after.json'}")
    print_lines("Next: seqpoint YOUR_TRACE.json.gz; its report: seqpoint report YOUR_TRACE.json.gz")
    print_lines(f"report: {path}")


def _line(projected: TraceProjection, names: dict[str, str]) -> str:
    """Return the speed-ups of what-ifs and their intervals, in one line."""
    pairs = zip(names.values(), projected.rows, strict=True)
    return "; ".join(f"{name} {row.speedup:.2f} ({row.low:.2f} - {row.high:.2f})" for name, row in pairs)
