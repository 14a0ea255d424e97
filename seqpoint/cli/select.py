"""Commands on iterations: `iterations` lists them, `select` chooses points, and `estimate` totals a run from them."""

from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from profilers.errors import InvalidInputError, NotFoundError
from seqpoint import front_door
from seqpoint.cli.options import (
    as_json,
    length_options,
    load,
    marker_option,
    options_of,
    output_options,
    refuse_options,
    trace_argument,
)
from seqpoint.cli.output import print_result
from seqpoint.front_door import is_log
from seqpoint.selection.selecting import BASELINES_EXPLAINED, SelectOptions


@click.command("iterations")
@trace_argument
@output_options
def iterations_command(trace: str, json_: bool) -> None:
    """List the iterations of TRACE with their sequence lengths and statistics.

    The step time ("duration" in JSON) is the time from the completion of the iteration before to its own, so step times
    add up to the elapsed time. The latency counts from the start of the iteration on the host.

    \b
    seqpoint iterations job.trace
    """
    print_result(front_door.iterations(load(trace)), json_)


@click.command("lengths")
@click.argument("trace", type=click.Path())
@marker_option
@output_options
def lengths_command(trace: str, json_: bool) -> None:
    """List the dimensions of operators' inputs in TRACE that could be its sequence length, the best first.

    Each differs between iterations. The correlations are Spearman's, between the dimension and the time of iterations.
    --length takes the candidate as it is printed.

    \b
    seqpoint lengths traces/ --iterations file
    """
    print_result(front_door.lengths(load(trace)), json_)


@click.command("select")
@trace_argument
@options_of(
    SelectOptions, "statistic", "max_points", "target_error", "tolerance", "confidence", "rank", "selector", "features",
    "max_iterations", "keep_outliers",
)  # fmt: skip
@output_options
def select_command(trace: str, json_: bool, **choice: Any) -> None:
    """Select the iterations that stand for the run in TRACE (SeqPoints), with their weights.

    TRACE is a trace, or a log (.csv or .parquet) with a column sequence_length and at least one statistic. The total of
    the run is estimated from the selected iterations, with an interval, and compared with that of the baselines.

    With --json: n_iterations, statistic, unit, measured, estimate, low, high, confidence, error, cross_validated_error,
    scatter, from_neighbours, standard_error, target_error, points_for_target_error, tolerance, tolerance_met, points,
    outliers, baselines. Errors are shares. A point has iteration, rank, sequence_length, weight, value and file; of a
    serving run a phase, too. An outlier has a reason instead of a weight.

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
    source = trace if is_log(trace) else load(trace)
    result = front_door.select(source, options=SelectOptions(**choice))
    print_result(result, json_, lambda: [*result.tables(), BASELINES_EXPLAINED])


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
@options_of(front_door.estimate, "statistic")
@length_options
@as_json
def estimate_command(selection: str, trace: str, base: str, statistic: str | None, json_: bool) -> None:
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
    origin, run = (front_door.iterations(path if is_log(path) else load(path)) for path in (base, trace))
    result = front_door.estimate(points, run, base=origin, statistic=statistic)
    print_result(result, json_)


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
