"""`seqpoint estimate`."""

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from profilers.errors import InvalidInputError, NotFoundError
from seqpoint.cli.options import as_json
from seqpoint.cli.output import duration, print_json, say
from seqpoint.cli.select import table_of
from seqpoint.estimating import estimate_run


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
def command(selection: str, run: str, origin: str, json_: bool, **how: Any) -> None:
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
