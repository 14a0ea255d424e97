"""Commands on what-ifs: `what-ifs` lists them, `project` projects their gain, and `report` writes a page of HTML."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from replay.projection import EVIDENCE, SIDES, ProjectionRow
from replay.what_ifs import Recipe, recipe_named, registry
from seqpoint import front_door
from seqpoint.breakdown import LIMITS_EXPLAINED, limits_table
from seqpoint.choosing import ChosenIterations
from seqpoint.cli.options import (
    classes_file,
    hardware_option,
    iteration_option,
    keep_outliers_option,
    load,
    max_points_option,
    output_options,
    perfetto_option,
    refuse_options,
    trace_argument,
    what_if_option,
)
from seqpoint.cli.output import (
    clean,
    message,
    print_json,
    print_lines,
    print_result,
    print_table,
    print_tables,
    progress,
    working,
    write_timelines,
)
from seqpoint.projecting import TraceProjection, read_result
from seqpoint.units import duration

if TYPE_CHECKING:
    from replay.contention import ContentionFit


#: Relative change of the device time up to which it is not shown.
_SAME_TIME = 1e-4


#: What an interval holds: of all iterations, and of selected ones.
_INTERVAL = "ranges of the parameters, and error of the replay"
_INTERVAL_OF_POINTS = "ranges of the parameters, errors of the replay and of the selection"


@click.command("what-ifs")
@click.argument("name", required=False)
@output_options
def what_ifs_command(name: str | None, json_: bool) -> None:
    """List the what-ifs by group, or show the full description of the what-if NAME.

    \b
    seqpoint what-ifs
    seqpoint what-ifs change_stream
    """
    warn_of_left_out()
    chosen = list(registry().recipes.values()) if name is None else [recipe_named(name)]
    if not any(name is None or recipe.arguments for recipe in chosen):
        refuse_options(("explain",), f"on {name}, which has no arguments and so no table")
    if json_:
        rows = [_content(recipe) for recipe in chosen]
        print_json(rows if name is None else rows[0])
    elif name is None:
        _list(chosen)
    else:
        _show(chosen[0])


def warn_of_left_out() -> None:
    """Print on stderr which what-ifs of other packages are left out, and why."""
    for name, problem in registry().problems.items():
        message(f"warning: the what-if {name} is left out: {problem}")


def _content(recipe: Recipe) -> dict[str, Any]:
    return {
        **{key: getattr(recipe, key) for key in ("name", "group", "form")},
        "arguments": [
            {name: getattr(argument, name) for name in ("name", "kind", "about")}
            | {"choices": list(argument.choices), "default": argument.default}
            for argument in recipe.arguments
        ],
        **{key: getattr(recipe, key) for key in ("summary", "example", "documentation")},
        "package": recipe.package or "seqpoint",
    }


def _list(recipes: list[Recipe]) -> None:
    """Print a table for each group of what-ifs."""
    for group in dict.fromkeys(recipe.group for recipe in recipes):
        rows = [
            (recipe.form, recipe.summary + (f" (package {recipe.package})" if recipe.package else ""), recipe.example)
            for recipe in recipes
            if recipe.group == group
        ]
        print_table(f"What-ifs: {group}", ("syntax~", "effect~", "example~"), rows)


def _show(recipe: Recipe) -> None:
    """Print the full description of a what-if."""
    print_lines(f"{recipe.form}: {recipe.summary}")
    for line in ["", *recipe.documentation.removeprefix(recipe.summary).strip().splitlines(), ""]:
        click.echo(clean(line))
    rows = [
        (row.name, row.kind, ": ".join(filter(None, (row.about, ", ".join(row.choices)))), _default(row.default))
        for row in recipe.arguments
    ]
    if rows:
        print_table("Arguments", ("name~", "kind~", "meaning~", "default~"), rows)
    print_lines(f"example: seqpoint project job.trace -w '{recipe.example}'")
    if recipe.package:
        print_lines(f"from the package {recipe.package}")


def _default(text: str | None) -> str:
    return "required" if text is None else text or "-"


@click.command("project")
@trace_argument
@what_if_option
@iteration_option
@max_points_option(8)
@keep_outliers_option
@click.option(
    "--draws",
    default=32,
    show_default=True,
    type=click.IntRange(8, 10000),
    help="Number of draws of the parameters, for the interval.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the draws.")
@click.option(
    "--host",
    metavar="keep|FACTOR|DEVICE",
    help="Host of each scale_device: the traced one (keep), a factor of host time, or a device's typical launch cost."
    "  [default: the traced one, with the spread between machines]",
)
@click.option(
    "--job",
    metavar="FILE.toml",
    type=click.Path(),
    help="File with a table [job]: sizes that the trace does not tell, for what-ifs that edit the job.",
)
@click.option("--jobs", "-j", type=click.IntRange(1, 1024), help="Draws at a time.  [default: one for each core]")
@click.option(
    "--contention",
    metavar="FILE.json",
    type=click.Path(),
    help="Contention parameters to use instead of the shipped ones, as `seqpoint calibrate contention` writes them.",
)
@click.option(
    "--from",
    "result",
    metavar="RESULT.json",
    help="Result of an earlier `seqpoint project --json`, to compute again and compare; exit 1 if a number differs.",
)
@click.option("--why", is_flag=True, help="Say what each what-if does to collectives and to weights of layers.")
@perfetto_option
@hardware_option
@output_options
def project_command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Project what each what-if would gain on the iterations of TRACE.

    Each iteration is replayed in a steady state, unchanged and under the what-if. The speed-up is the ratio of the two
    step times. The interval covers the ranges of the models' parameters.

    Of the projected time, kept is as recorded, scaled is recorded times a ratio with a source, modelled is by a model,
    and assumed is what nobody measured. In --json, kept_share is also measured_share, its first name.

    \b
    seqpoint project job.trace -w dma_collectives -w scale_device:MI355X -w dma_collectives+scale_device:MI355X
    seqpoint project job.trace -w overlap:all
    seqpoint project job.trace -w t3 -w ficco --why
    seqpoint project job.trace -w @plan.toml --json > result.json
    seqpoint project job.trace --contention mine.json
    seqpoint project job.trace --from result.json
    """
    warn_of_left_out()
    options["jobs"] = options["jobs"] or 0
    if (recorded := options.pop("result")) is not None:
        _again(trace, recorded, options, json_)
        return
    if options["iterations"]:
        refuse_options(("max_points", "keep_outliers"), "beside --iteration, which names the iterations")
    fit = _calibrated(options)
    perfetto, texts = options.pop("perfetto"), options.pop("texts")
    result = front_door.project(load(trace, marker, length), texts, **options, progress=progress("projecting"))
    result = result.with_facts({"reading": {"iterations": marker, "length": length}})
    device = result.provenance["device"]
    if fit is not None:
        facts = {"device": fit.device, "scenarios": fit.scenarios, "source": fit.source, "sha256": fit.digest}
        result = result.with_facts({"contention": facts})
        if device != fit.device:
            message(f"note: contention was calibrated on {fit.device}, the trace is of another device or does not say")
    if result.provenance["device_known_by"] == "file name":
        message(f"note: the device {device} is a guess from the file's name (see --device)")
    write_timelines(perfetto, result.timelines)
    print_result(result, json_, show)


def _calibrated(options: dict[str, Any]) -> "ContentionFit | None":
    """Replace the path of a calibration in the options by its parameters, and return the calibration."""
    if (path := options.pop("contention")) is None:
        return None
    from replay.contention import read_contention_fit
    from replay.costs.shipped import load_parameters

    fit = read_contention_fit(path)
    options["parameters"] = fit.parameters(load_parameters())
    return fit


def _again(trace: str, result: str, options: Mapping[str, Any], json_: bool) -> None:
    """Compute a result again, print the differences, and exit 1 if there are any."""
    context = click.get_current_context()
    for name in set(context.params) - {"trace", "jobs", "result", "json_"}:
        if classes_file() is not None or context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError("--from takes all other options from the result; give only TRACE and --jobs with it")
    recorded = read_result(result)
    reading = recorded["provenance"].get("reading") or {}
    loaded = load(trace, reading.get("iterations") or "auto", reading.get("length"))
    check = front_door.reproduce(loaded, recorded, jobs=options["jobs"], progress=progress("projecting"))
    if json_:
        differences = [dict(zip(("where", "recorded", "now"), row, strict=True)) for row in check.differences]
        content = {"identical": check.identical, "compared": check.compared}
        print_json({**content, "differences": differences, "notes": list(check.notes)})
    else:
        if check.differences:
            print_table("Differences", ("where~", "recorded~", "now~"), check.differences)
        verdict = "identical, bit for bit" if check.identical else "not identical"
        print_lines(f"{check.compared} numbers and texts of {result}: {verdict}")
        print_lines(*(f"note: {note}" for note in check.notes))
    if not check.identical:
        context.exit(1)


def show(result: TraceProjection) -> None:
    """Print a projection as tables."""
    print_lines(*result.summary())
    _show_points(result.chosen)
    confidence = 100 * result.provenance["confidence"]
    print_table(
        f"What-ifs ({confidence:g} % interval: {_INTERVAL_OF_POINTS if result.chosen.sampled else _INTERVAL})",
        ("what-if~", "speed-up", "low", "high", "projected", *(f"{kind} %" for kind in EVIDENCE)),
        [_figures(row) for row in result.rows],
    )
    _show_sides([row for row in result.rows if row.applied], confidence)
    print_tables([limits_table(result.projection.limits)])
    print_lines(LIMITS_EXPLAINED)
    refused = [(_name(row), row.reason) for row in result.rows if not row.applied]
    if refused:
        print_table("Not applicable", ("what-if~", "reason~"), refused)
    communication = result.communication()
    if communication.rows:
        print_tables([communication])
    if result.effects is not None:
        print_tables(result.why())
    print_lines(*result.notes())


def _show_points(chosen: ChosenIterations) -> None:
    """Print the replayed iterations if files name them."""
    if chosen.files:
        rows = [
            (row["iteration"], f"{row['weight']:g}", duration(row["measured_ns"]), row["file"]) for row in chosen.rows()
        ]
        print_table("Replayed iterations", ("iteration", "weight", "step time", "file~"), rows)


def _name(row: ProjectionRow) -> str:
    return row.title or " + ".join(row.what_if)


def _figures(row: ProjectionRow) -> tuple[str, ...]:
    """Return the cells of a what-if; one that is not applicable has no figures."""
    if row.evidence is None:
        return _name(row), "n/a", *"-" * (3 + len(EVIDENCE))
    shares = [f"{100 * row.evidence.share(kind):.0f}" for kind in EVIDENCE]
    speedups = [f"{value:.3f}" for value in (row.speedup, row.low, row.high)]
    return _name(row), *speedups, duration(row.projected_ns), *shares


def _show_sides(rows: Sequence[ProjectionRow], confidence: float) -> None:
    """Print where the projected time is spent, and the device time of what-ifs that change it."""
    if not rows:
        return
    changed = [abs(row.device_after_ns - row.device_before_ns) > _SAME_TIME * row.device_before_ns for row in rows]
    times = ("device before", "device after", "low", "high") if any(changed) else ()
    print_table(
        "Where the projected time is spent" + (f", and device time ({confidence:g} % interval)" if times else ""),
        ("what-if~", *(f"{side} %" for side in SIDES), *times, "limited by~"),
        [
            (
                *(_name(row), *_sides(row), *(_device_times(row) if is_changed else "-" * len(times))),
                " and ".join(row.limited_by),
            )
            for row, is_changed in zip(rows, changed, strict=True)
        ],
    )


def _sides(row: ProjectionRow) -> list[str]:
    return [] if row.evidence is None else [f"{100 * row.evidence.side(side):.0f}" for side in SIDES]


def _device_times(row: ProjectionRow) -> list[str]:
    times = (row.device_before_ns, row.device_after_ns, row.device_low_ns, row.device_high_ns)
    return [duration(time) for time in times]


@click.command("report")
@trace_argument
@click.option("-o", "--output", default="report.html", show_default=True, type=click.Path(), help="File to write.")
@what_if_option
@max_points_option(8)
@click.option("--title", help="Title of the page.  [default: the name of the trace]")
@hardware_option
def report_command(trace: str, marker: str, length: str | None, output: str, **options: Any) -> None:
    """Write a report on TRACE as a self-contained page of HTML.

    It shows the sequence lengths and selected iterations, kernels by class, timelines, what-ifs, and the quality of
    the data.

    \b
    seqpoint report job.trace -w dma_collectives -w scale_device:MI355X -o job.html
    """
    loaded = load(trace, marker, length)
    options["title"] = options["title"] or Path(trace).name
    with working("drawing"):
        front_door.report(loaded, output, options.pop("texts"), **options, progress=progress("projecting"))
    if not np.isfinite(front_door.iterations(loaded).sequence_length).any():
        message("note: no iteration has a sequence length (--length), so nothing is selected")
    print_lines(f"report: {output}")
