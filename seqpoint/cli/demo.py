"""The command `demo`: the whole path on the data that the project ships."""

from pathlib import Path

import click

from replay.writers.perfetto import write_perfetto
from seqpoint.cli import project, select
from seqpoint.cli.output import message, say
from seqpoint.demo import Demo, run_demo
from seqpoint.reporting import ReportContent, ReportSection, write_report
from seqpoint.units import duration


@click.command("demo")
@click.option(
    "-o",
    "--output",
    default="seqpoint-demo",
    show_default=True,
    type=click.Path(),
    help="Folder for the traces, the timeline and the report.",
)
def command(output: str) -> None:
    """Run the whole path on the data that the project ships, without a GPU or a network.

    It selects iterations of a recorded epoch, predicts a run from them, and projects what-ifs on a synthetic job. The
    first call after an installation compiles for some seconds.

    \b
    seqpoint demo
    """
    folder = Path(output)
    demo = run_demo(folder, message)
    _show(demo)
    timelines = demo.projection.projection.timelines
    after = "overlap:ideal"
    write_perfetto(folder / "before_after.json", {"before": timelines["baseline"], f"after {after}": timelines[after]})
    job = (demo.job, demo.job_selection, demo.projection.projection)
    sections = (
        ReportSection("A recorded epoch of training on a CPU", "", demo.epoch, demo.selection, None),
        ReportSection("Transformer on 4 x MI300X", "synthetic", *job),
    )
    path = write_report(ReportContent("seqpoint demo", sections), folder / "report.html")
    say(f"timeline for https://ui.perfetto.dev: {folder / 'before_after.json'}")
    say(f"report: {path}")


def _show(demo: Demo) -> None:
    say("A recorded epoch of training on a CPU, one thread")
    select.show(demo.selection)
    estimate = demo.other
    measured, error = estimate.measured or 0.0, estimate.error or 0.0
    say(
        f"The same epoch on two threads, predicted from those iterations alone: {duration(estimate.estimate)}, "
        f"measured {duration(measured)} (error {100 * error:.2f} %); "
        f"speed-up {estimate.speedup:.3f} [{estimate.speedup_low:.3f}, {estimate.speedup_high:.3f}]"
    )
    say("")
    say("Transformer on 4 x MI300X (synthetic: nobody measured these times)")
    project.show(demo.projection)
