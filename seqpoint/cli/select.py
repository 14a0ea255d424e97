"""`seqpoint select`."""

from pathlib import Path
from typing import Any

import click

from profilers.trace import Trace
from seqpoint.cli.options import as_json, load, max_iterations_option, max_points_option, trace_argument
from seqpoint.cli.output import duration, print_json, print_table, say
from seqpoint.iterations import IterationTable, iteration_table, read_log
from seqpoint.sampling import kernel_profiles
from seqpoint.selecting import SelectionResult, SelectOptions, select

_LOGS = (".csv", ".parquet")


@click.command("select")
@trace_argument
@click.option("--statistic", metavar="NAME", help="What to sum; time in kernels where there is any, else the duration.")
@max_points_option(10)
@click.option(
    "--tolerance",
    default=0.01,
    show_default=True,
    type=click.FloatRange(0),
    help="Relative error to stop at.",
)
@click.option(
    "--confidence",
    default=0.95,
    show_default=True,
    type=click.FloatRange(0.5, 0.999),
    help="Of the interval.",
)
@click.option("--rank", type=click.IntRange(0), help="By default the lowest rank.")
@click.option(
    "--selector",
    default="seqpoint",
    show_default=True,
    type=click.Choice(["seqpoint", "stratified", "k-medoids", "random"]),
    help="SeqPoint's bins of the length, strata or groups of several features, or at random.",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME",
    help="Beside the length, for stratified and k-medoids; may repeat.",
)
@max_iterations_option
@as_json
def command(trace: str, marker: str, length: str | None, json_: bool, **choice: Any) -> None:
    """Choose the iterations that stand for the run in TRACE (a trace, or a log as .csv or .parquet).

    \b
    seqpoint select epoch.trace --max-points 8
    seqpoint select log.csv --statistic duration --json > points.json
    seqpoint select log.csv --selector stratified --feature batch --max-points 20
    seqpoint select epoch.trace --selector k-medoids       # groups of iterations with like times in each kernel
    """
    options = SelectOptions(**choice)
    if options.selector == "k-medoids" and not options.features and not _is_log(trace):
        result = _by_profiles(load(trace, marker, length), options)
    else:
        result = select(table_of(trace, marker, length), options)
    if json_:
        print_json(content(result))
    else:
        show(result)


def table_of(trace: str, marker: str, length: str | None) -> IterationTable:
    """Return the iterations of a trace, or of a log."""
    return read_log(trace) if _is_log(trace) else iteration_table(load(trace, marker, length))


def _is_log(trace: str) -> bool:
    path = Path(trace)
    return path.suffix.lower() in _LOGS and not path.is_dir()


def _by_profiles(trace: Trace, options: SelectOptions) -> SelectionResult:
    """Group the iterations of a trace by the time in each kernel."""
    table = iteration_table(trace)
    rank = min(table.rank.tolist(), default=0) if options.rank is None else options.rank
    return select(table, options, kernel_profiles(trace, rank))


def content(result: SelectionResult) -> dict[str, Any]:
    """Return a selection as JSON with stable keys."""
    table = result.table
    return {
        "n_iterations": len(table),
        "selector": result.selector,
        "statistic": result.statistic,
        "unit": result.unit,
        "measured": result.measured,
        "estimate": result.estimate.value,
        "low": result.estimate.low,
        "high": result.estimate.high,
        "confidence": result.estimate.confidence,
        "error": result.error,
        "sequential_reduction": result.sequential_reduction,
        "parallel_reduction": result.parallel_reduction,
        "without_length": result.without_length,
        "points": [
            {
                "iteration": int(table.iteration[row]),
                "rank": int(table.rank[row]),
                "sequence_length": int(table.sequence_length[row]),
                "weight": float(weight),
                "value": float(table.statistic(result.statistic)[row]),
            }
            for row, weight in zip(result.rows.tolist(), result.weights.tolist(), strict=True)
        ],
        "baselines": [
            {"name": b.name, "points": b.points, "estimate": b.estimate, "error": b.error} for b in result.baselines
        ],
    }


def show(result: SelectionResult) -> None:
    """Print a selection for people."""
    number = duration if result.unit == "ns" else lambda value: f"{value:.6g} {result.unit}".strip()
    estimate = result.estimate
    say(
        f"{result.statistic}: measured {number(result.measured)}, estimated {number(estimate.value)} "
        f"[{number(estimate.low)}, {number(estimate.high)}] at {100 * estimate.confidence:g} % "
        f"from {len(result.rows)} of {len(result.table)} iterations (error {100 * result.error:.3f} %)"
    )
    say(
        f"profiling shrinks {result.sequential_reduction:.1f}x (total over the sum of the points), "
        f"{result.parallel_reduction:.1f}x (total over the longest point)"
    )
    table = result.table
    print_table(
        "SeqPoints" if result.selector == "seqpoint" else "Points",
        ("iteration", "rank", "length", "weight", result.statistic),
        [
            (
                table.iteration[r],
                table.rank[r],
                f"{table.sequence_length[r]:g}",
                f"{w:g}",
                number(table.statistic(result.statistic)[r]),
            )
            for r, w in zip(result.rows.tolist(), result.weights.tolist(), strict=True)
        ],
    )
    rows = [(result.selector, len(result.rows), estimate.value, result.error)]
    rows += [(b.name, b.points, b.estimate, b.error) for b in result.baselines]
    print_table(
        "Against the baselines",
        ("selector~", "points", "estimate", "error %"),
        [(n, p, number(v), f"{100 * e:.3f}") for n, p, v, e in rows],
    )
    if result.without_length:
        say(f"{result.without_length} iterations were left out: their length is unknown")
