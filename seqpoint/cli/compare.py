"""The command `compare`: what changed between two traces or groups of runs, and whether it is more than noise."""

from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli.options import (
    load,
    output_options,
    parameters,
    plot_option,
    reading_options,
    refuse_options,
    top_option,
)
from seqpoint.cli.output import message, print_result, save_plot
from seqpoint.comparison import UNKNOWN

#: Levels of confidence of the noise.
_CONFIDENCE = {"type": click.FloatRange(0.5, 0.9999)}
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
@parameters(front_door.compare, "what_if", "device", "same_job", "confidence", confidence=_CONFIDENCE)
@top_option
@plot_option("Write the chart of changes by operator.")
@reading_options
@output_options
def command(traces: tuple[str, ...], limit: float | None, top: int, plot: str | None, json_: bool, **how: Any) -> None:
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
    groups = [map(load, names) for names in (before, after)]  # one trace at a time is in memory
    if how["what_if"] is None:
        refuse_options(("device",), "without --what-if; a comparison takes the devices from the traces")
    result = front_door.compare(*groups, **how)
    save_plot(lambda: result.plot(top), plot)
    print_result(result, json_, lambda: result.tables(top))
    if limit is not None:
        if result.verdict == UNKNOWN:
            message(f"note: --fail-if-slower cannot tell: {result.reason}")
        click.get_current_context().exit(int(result.slower_by(limit)))


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
