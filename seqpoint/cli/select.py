"""Commands on iterations: `iterations` lists them, `select` chooses points, and `estimate` totals a run from them."""

from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from profilers.errors import InvalidInputError, NotFoundError
from seqpoint import front_door
from seqpoint.cli.options import (
    as_json,
    keep_outliers_option,
    load,
    marker_option,
    max_iterations_option,
    max_points_option,
    output_options,
    refuse_options,
    trace_argument,
)
from seqpoint.cli.output import print_json, print_lines, print_result, print_tables
from seqpoint.front_door import is_log
from seqpoint.iteration_table import UNITS
from seqpoint.length_candidates import LengthCandidates
from seqpoint.notebook import table_of
from seqpoint.selection.selecting import SelectionResult

#: Headings of statistics in the table, if not their names; JSON and `--statistic` use the names.
_HEADINGS = {"duration": "step time"}


@click.command("iterations")
@trace_argument
@output_options
def iterations_command(trace: str, marker: str, length: str | None, json_: bool) -> None:
    """List the iterations of TRACE with their sequence lengths and statistics.

    The step time ("duration" in JSON) is the time from the completion of the iteration before to its own, so step times
    add up to the elapsed time. The latency counts from the start of the iteration on the host.

    \b
    seqpoint iterations job.trace
    """
    result = front_door.iterations(load(trace, marker, length)).to_dict()
    if json_:
        print_json(result)
        return
    times = [name for name, unit in UNITS.items() if unit == "ns"]
    columns = {"rank": "{rank}", "iteration": "{iteration}", "length": "{sequence_length}"}
    columns |= {_HEADINGS.get(name, name.replace("_", " ")): f"{{{name}:time}}" for name in times}
    columns |= {"kernels": "{kernels:.0f}", "found by~": "{found_by}"}
    columns |= {"file~": "{file}"} if any(row["file"] for row in result["iterations"]) else {}
    rows = [row | {"file": row["file"] or None} for row in result["iterations"]]
    print_tables([table_of("Iterations", columns, rows)])


@click.command("lengths")
@click.argument("trace", type=click.Path())
@marker_option
@output_options
def lengths_command(trace: str, marker: str, json_: bool) -> None:
    """List the dimensions of operators' inputs in TRACE that could be its sequence length, the best first.

    Each differs between iterations. The correlations are Spearman's, between the dimension and the time of iterations.
    --length takes the candidate as it is printed.

    \b
    seqpoint lengths traces/ --iterations file
    """
    print_result(front_door.lengths(load(trace, marker, None)), json_, _show_lengths)


def _show_lengths(result: LengthCandidates) -> None:
    """Print the candidates for the sequence length."""
    if result.candidates:
        columns = {
            "--length~": "{rule}", "distinct": "{distinct}", "from": "{low}", "to": "{high}",
            "known in": f"{{known}} of {result.iterations}", "with step time": "{step_time_correlation:+.2f}",
            "with kernel time": "{kernel_time_correlation:+.2f}", "alike": "{alike}",
        }  # fmt: skip
        print_tables([table_of("Candidates for the sequence length", columns, result.candidates)])
    print_lines(*result.advice())


class _Share(click.ParamType[float]):
    """Share such as ``1%`` or ``0.01``, below one and above zero, or zero if that is allowed."""

    name = "share"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1 or (share == 0 and not self._zero):
            self.fail(f"{value!r} is no share between 0 and 1; write 1% or 0.01 for one in a hundred", param, ctx)
        return share


@click.command("select")
@trace_argument
@click.option(
    "--statistic",
    metavar="NAME",
    help="Statistic to total: kernel_time (default, if the trace has kernels), duration, or a column of the log.",
)
@max_points_option(None, "  [default: 10, or as many as --target-error needs]")
@click.option(
    "--target-error",
    type=_Share(),
    metavar="X",
    help="Standard error of the total, such as 1%, for which the number of iterations is chosen: two of three runs as "
    "noisy as this one err by less.",
)
@click.option(
    "--tolerance",
    default=0.01,
    show_default=True,
    type=_Share(zero=True),
    metavar="X",
    help="Relative error of the total at which SeqPoint stops to add points.",
)
@click.option(
    "--confidence",
    default=0.95,
    show_default=True,
    type=click.FloatRange(0.5, 0.999),
    help="Confidence level of the interval.",
)
@click.option("--rank", type=click.IntRange(0), help="Rank whose iterations are selected.  [default: the lowest]")
@click.option(
    "--selector",
    default="seqpoint",
    show_default=True,
    metavar="NAME",
    help="Selector of iterations: seqpoint, stratified, k-medoids, random, or another of `seqpoint selectors`.",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME",
    help="Statistic that tells iterations apart besides the length, for stratified and k-medoids; may be repeated.",
)
@max_iterations_option
@keep_outliers_option
@output_options
def select_command(trace: str, marker: str, length: str | None, json_: bool, **choice: Any) -> None:
    """Select the iterations that stand for the run in TRACE (SeqPoints), with their weights.

    TRACE is a trace, or a log (.csv or .parquet) with a column sequence_length and at least one statistic. The total of
    the run is estimated from the selected iterations, with an interval, and compared with that of the baselines.

    \b
    seqpoint select epoch.trace --max-points 8
    seqpoint select log.csv --statistic duration --json > points.json
    seqpoint select log.csv --target-error 1%
    seqpoint select log.csv --selector stratified --feature batch --max-points 20
    seqpoint select epoch.trace --selector k-medoids       # groups of iterations with like times in each kernel
    """
    _refuse_idle_options(trace, choice["selector"])
    if choice["target_error"] is not None:
        refuse_options(("max_iterations",), "beside --target-error, which chooses the number of iterations")
    source = trace if is_log(trace) else load(trace, marker, length)
    print_result(front_door.select(source, **choice), json_, show)


#: Options of a selector that has its own number of points, and selectors that draw until they have enough.
_BUDGET = ("max_points", "max_iterations", "target_error", "tolerance")
_DRAWN = ("stratified", "k-medoids", "random")
_ROWS = "on a log, whose rows are the iterations with their lengths; leave it out"


def _refuse_idle_options(trace: str, selector: str) -> None:
    """Refuse options that cannot have an effect on a log, or on the selector."""
    from seqpoint.selection.selecting import BASELINES

    if is_log(trace):
        refuse_options(("marker", "length", "classes"), _ROWS)
        if "rank" not in _log_columns(trace):
            refuse_options(("rank",), "on a log without a column rank; leave it out")
    if selector in _DRAWN:
        refuse_options(("tolerance",), f"on the selector {selector}, which draws --max-points iterations")
    if selector in BASELINES:
        refuse_options(_BUDGET, f"on the selector {selector}, which sets its own number of points")


def _log_columns(path: str) -> list[str]:
    from seqpoint.validation.suites import table_columns

    return table_columns(Path(path))


def show(result: SelectionResult) -> None:
    """Print a selection as tables."""
    print_lines(*result.headlines())
    print_tables(result.tables())
    print_lines(*result.notes())


@click.command("estimate")
@click.argument("selection", type=click.Path())
@click.argument("trace", metavar="RUN", type=click.Path())
@click.option(
    "--from",
    "base",
    required=True,
    metavar="TRACE",
    type=click.Path(),
    help="Trace or log that the selection was made on.",
)
@click.option("--statistic", metavar="NAME", help="Statistic to total.  [default: that of the selection]")
@click.option(
    "--iterations",
    "marker",
    default="auto",
    show_default=True,
    metavar="HOW",
    help="How iterations are found, as for ingest.",
)
@click.option("--length", metavar="RULE", help="Where sequence lengths come from, as for ingest.")
@as_json
def estimate_command(selection: str, trace: str, base: str, json_: bool, **how: Any) -> None:
    """Estimate the total of RUN from the iterations in SELECTION, the output of `seqpoint select --json`.

    RUN is a trace or log that holds at least the selected iterations, matched by their numbers. If it holds the whole
    epoch, the measured total is shown beside the estimate.

    \b
    seqpoint select base.trace --json > points.json
    seqpoint estimate points.json faster.trace --from base.trace
    """
    if is_log(trace) and is_log(base):
        refuse_options(("marker", "length"), _ROWS)
    points = _read(Path(selection))
    origin, run = (
        front_door.iterations(path if is_log(path) else load(path, how["marker"], how["length"]))
        for path in (base, trace)
    )
    result = front_door.estimate(points, run, base=origin, statistic=how["statistic"])
    print_result(result, json_, lambda estimate: print_lines(*estimate.summary()))


class _Point(msgspec.Struct):
    """A selected iteration."""

    iteration: int
    rank: int
    weight: Annotated[float, msgspec.Meta(gt=0)]


class _Outlier(msgspec.Struct):
    """An iteration that no selected one stands for."""

    iteration: int


class _Selection(msgspec.Struct):
    """The keys of a selection that an estimate reads."""

    points: Annotated[list[_Point], msgspec.Meta(min_length=1)]
    statistic: str
    confidence: float = 0.95
    outliers: list[_Outlier] = []


def _read(path: Path) -> dict[str, Any]:
    """Return the selection in a file that `select --json` wrote."""
    if not path.is_file():
        raise NotFoundError(f"{path}: no such selection; write one with `seqpoint select TRACE --json > {path}`")
    try:
        return dict(msgspec.to_builtins(msgspec.json.decode(path.read_bytes(), type=_Selection)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInputError(
            f"{path}: not the output of `seqpoint select --json`, which has points with weights above zero ({error})"
        ) from error
