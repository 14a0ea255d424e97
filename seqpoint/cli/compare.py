"""The command `compare`: what changed between two traces or groups of runs, and whether it is more than noise."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from profilers.trace.trace import Trace
from seqpoint import front_door
from seqpoint.cli.options import load, output_options, reading_options, refuse_options
from seqpoint.cli.output import message, print_lines, print_result, print_tables
from seqpoint.comparison import UNKNOWN, Comparison
from seqpoint.notebook import TOP

#: Word between the runs before and after.
_BETWEEN = "to"


class _Percent(click.ParamType[float]):
    """Percentage such as ``2`` or ``2%``, as a share."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share."""
        if isinstance(value, float):
            return value
        try:
            share = float(str(value).strip().removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < float("inf"):
            self.fail(f"{value!r} is no percentage; write 2% for two in a hundred", param, ctx)
        return share


@click.command("compare")
@click.argument("traces", nargs=-1, required=True, metavar="BEFORE... [to] AFTER...")
@click.option(
    "--fail-if-slower",
    "limit",
    type=_Percent(),
    metavar="PERCENT",
    help="Exit with status 1 if the step is slower beyond noise, and by more than this. If nothing can be told, the "
    "status is 0, and a line on stderr says so.",
)
@click.option(
    "--what-if",
    "-w",
    metavar="NAME:ARGUMENT[+...]",
    help="Project the runs before with this what-if, such as scale_device:V100, and tell how far that is from the runs "
    "after.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="Device that the projected traces were recorded on, if they do not say.",
)
@click.option("--same-job", is_flag=True, help="Judge the step times even if the sides run different operators.")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=0.99,
    show_default=True,
    help="Confidence level of the noise.",
)
@click.option(
    "--top", type=click.IntRange(1), default=TOP, show_default=True, help="Most rows of a table; --json has all."
)
@click.option("--plot", metavar="FILE.html", type=click.Path(), help="Write the chart of changes by operator.")
@reading_options
@output_options
def command(traces: tuple[str, ...], marker: str, length: str | None, json_: bool, **how: Any) -> None:
    """Show what changed between two traces or groups of runs, where, and whether it is more than noise.

    Each file or folder is a run. The word "to" stands between the runs before and after; two traces need none. The
    first step of a recording and outliers are left out. Read the files of several ranks with `seqpoint ingest` first.

    With --what-if the steps before are a projection: is the measured step time after within its interval, and which
    parts, classes and operators are off?

    With --json: verdict (faster, slower, no difference beyond noise, as projected, cannot tell), reason, confidence,
    unit (steps, paired steps or runs), likeness, step, before, after, projection (what_if, step_ns, low_ns, high_ns,
    confidence, notes; or null), parts, path, classes, operators, kernels, notes. `step` and each of `parts`, `path`,
    `classes` and `operators` have name, before_ns, after_ns, noise_ns, beyond_noise, change_ns, change (over
    before). Operators also have shapes, matched_by, before_kernels, after_kernels, before_kernel, after_kernel. Each of
    `kernels` has kernel, class, side (appeared or vanished), kernels, time_ns. Times are a step's; null is unknown.

    \b
    seqpoint compare before.trace after.trace
    seqpoint compare before/*.json to after/*.json --fail-if-slower 2%
    seqpoint compare a100.trace v100.trace --what-if scale_device:V100
    """
    before, after = _sides(traces)
    if how["plot"]:
        from seqpoint.plots.saving import page_to_write

        page_to_write(how["plot"])
    groups = [_loaded(names, marker, length) for names in (before, after)]
    if how["what_if"] is None:
        refuse_options(("device",), "without --what-if; a comparison takes the devices from the traces")
    options = {name: how[name] for name in ("what_if", "device", "same_job", "confidence")}
    result = front_door.compare(*groups, **options)
    if how["plot"]:
        result.plot(how["top"]).save(how["plot"])
        message(f"wrote {how['plot']}")
    print_result(result, json_, partial(_show, top=how["top"]))
    if how["limit"] is not None:
        if result.verdict == UNKNOWN:
            message(f"note: --fail-if-slower cannot tell: {result.reason}")
        click.get_current_context().exit(int(result.slower_by(how["limit"])))


def _sides(traces: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names before and after the word between them; of two names, each."""
    if _BETWEEN not in traces and len(traces) == 2:
        return traces[:1], traces[1:]
    if traces.count(_BETWEEN) != 1:
        if len(traces) == 1:
            raise click.UsageError("name two traces, before and after")
        raise click.UsageError(f"put the word {_BETWEEN!r} once between the runs before and after")
    at = traces.index(_BETWEEN)
    if not traces[:at] or not traces[at + 1 :]:
        raise click.UsageError(f"name a run on each side of {_BETWEEN!r}")
    return traces[:at], traces[at + 1 :]


def _loaded(names: tuple[str, ...], marker: str, length: str | None) -> Iterator[Trace]:
    """Yield each run, so that one trace at a time is in memory."""
    for name in names:
        yield load(name, marker, length)


def _show(result: Comparison, top: int) -> None:
    print_lines(*result.summary())
    print_tables(result.tables(top))
    print_lines(*(f"note: {note}" for note in result.notes()))
