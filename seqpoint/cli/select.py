"""Commands that list, select and estimate iterations.

`seqpoint iterations`.

`seqpoint select`.

`seqpoint estimate`.
"""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from profilers.trace.trace import Trace
from seqpoint.cli.options import as_json, load, max_iterations_option, max_points_option, trace_argument
from seqpoint.cli.output import print_json, print_table, say
from seqpoint.iterations import UNITS, IterationTable, iteration_table, read_log
from seqpoint.selection.selecting import SelectionResult, SelectOptions, estimate_run, select
from seqpoint.selection.stratified import kernel_profiles
from seqpoint.units import duration

#: How statistics are called in the table; in JSON, and for `--statistic`, they keep their names.
_HEADINGS = {"duration": "step time"}


@click.command("iterations")
@trace_argument
@as_json
def iterations_command(trace: str, marker: str, length: str | None, json_: bool) -> None:
    """List the iterations of TRACE with their sequence lengths and statistics.

    The step time (duration in JSON) is the time from the completion of the iteration before to its own, so step times
    add up to the elapsed time. The latency counts from the start of the iteration on the host.

    \b
    seqpoint iterations job.trace
    """
    table = iteration_table(load(trace, marker, length))
    rows = [
        {
            "rank": int(table.rank[i]),
            "iteration": int(table.iteration[i]),
            "start_ns": int(table.start_ns[i]),
            "sequence_length": None
            if table.sequence_length[i] != table.sequence_length[i]
            else int(table.sequence_length[i]),
            **{name: float(values[i]) for name, values in table.statistics.items()},
            "found_by": table.found_by[i],
            "length_found_by": table.length_found_by[i],
        }
        for i in range(len(table))
    ]
    if json_:
        print_json({"units": dict(UNITS), "iterations": rows})
        return
    times = [name for name, unit in UNITS.items() if unit == "ns"]
    print_table(
        "Iterations",
        (
            "rank",
            "iteration",
            "length",
            *(_HEADINGS.get(name, name.replace("_", " ")) for name in times),
            "kernels",
            "found by~",
        ),
        [
            (
                row["rank"],
                row["iteration"],
                "-" if row["sequence_length"] is None else row["sequence_length"],
                *(duration(float(str(row[name]))) for name in times),
                int(float(str(row["kernels"]))),
                row["found_by"],
            )
            for row in rows
        ],
    )


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
    metavar="NAME",
    help="Selector of iterations: seqpoint, stratified, k-medoids, random, or another of `seqpoint selectors`.",
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
def select_command(trace: str, marker: str, length: str | None, json_: bool, **choice: Any) -> None:
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


@click.command("estimate")
@click.argument("selection", type=click.Path())
@click.argument("run", type=click.Path())
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="TRACE",
    type=click.Path(),
    help="What the selection was made on.",
)
@click.option("--statistic", metavar="NAME", help="By default that of the selection.")
@click.option("--iterations", "marker", default="auto", show_default=True, metavar="HOW", help="As for ingest.")
@click.option("--length", metavar="RULE", help="As for ingest.")
@as_json
def estimate_command(selection: str, run: str, origin: str, json_: bool, **how: Any) -> None:
    """Estimate the total of RUN from the iterations that SELECTION chose (the output of `select --json`).

    RUN needs only the chosen iterations, matched by their number; where it holds all of the epoch, the
    measured total is shown beside the estimate.

    \b
    seqpoint select base.trace --json > points.json
    seqpoint estimate points.json faster.trace --from base.trace
    """
    points = _read(Path(selection))
    tables = [table_of(place, how["marker"], how["length"]) for place in (origin, run)]
    result = estimate_run(points, (tables[0], tables[1]), how["statistic"])
    if json_:
        print_json(result)
        return
    number = duration if result["unit"] == "ns" else "{:.6g}".format
    percent = 100 * result["confidence"]
    say(
        f"{result['statistic']}: estimated {number(result['estimate'])} "
        f"[{number(result['low'])}, {number(result['high'])}] "
        f"at {percent:g} % from {len(points['points'])} iterations"
    )
    speedup = [result[name] for name in ("speedup", "speedup_low", "speedup_high")]
    if None not in speedup:
        value, low, high = speedup
        say(f"speed-up over the run that was selected on: {value:.4f} [{low:.4f}, {high:.4f}]")
    say(f"SeqPoint's weighted sum of the points: {number(result['seqpoint_sum'])}")
    if result["measured"] is not None:
        error = abs(result["estimate"] / result["measured"] - 1)
        say(f"measured: {number(result['measured'])} (error {100 * error:.3f} %)")


def _read(path: Path) -> dict[str, Any]:
    """Return a selection as `select --json` wrote it."""
    if not path.is_file():
        raise NotFoundError(f"{path}: no such selection; write one with `seqpoint select TRACE --json > {path}`")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        points = [
            {"iteration": int(p["iteration"]), "rank": int(p["rank"]), "weight": float(p["weight"])}
            for p in content["points"]
        ]
        statistic = str(content["statistic"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{path}: not the output of `seqpoint select --json` ({error})") from error
    if not points or not all(np.isfinite(p["weight"]) and p["weight"] > 0 for p in points):
        raise InvalidInputError(f"{path}: a selection needs points with weights above zero")
    return {"points": points, "statistic": statistic, "confidence": content.get("confidence", 0.95)}
