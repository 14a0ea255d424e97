"""Commands that project what-ifs and report them.

`seqpoint what-ifs`.

`seqpoint project`.

`seqpoint report`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from profilers.files import file_to_write
from replay.contention import ContentionFit, read_contention_fit
from replay.costs.shipped import load_parameters
from replay.projection.projection import Projection, with_provenance
from replay.what_ifs import Recipe, recipe_named, registry
from replay.writers.perfetto import write_perfetto
from seqpoint.cli.options import (
    as_json,
    hardware_option,
    iteration_option,
    load,
    max_points_option,
    perfetto_option,
    trace_argument,
    what_if_option,
)
from seqpoint.cli.output import clean, message, print_json, print_table, progress, say, working
from seqpoint.describe import Description, describe
from seqpoint.projecting import (
    ALL_OVERLAPS,
    DEFAULT_WHAT_IFS,
    ProjectOptions,
    asked_what_ifs,
    pace_lines,
    project_trace,
    ranked,
    read_result,
    reproduce,
    result_of,
)
from seqpoint.report import ReportContent, ReportSection, write_report
from seqpoint.selection.selecting import SelectionResult, SelectOptions, select
from seqpoint.units import duration


@click.command("what-ifs")
@click.argument("name", required=False)
@as_json
def what_ifs_command(name: str | None, json_: bool) -> None:
    """List the what-ifs by group, with a sentence and an example each; or say all of NAME.

    \b
    seqpoint what-ifs
    seqpoint what-ifs change_stream
    """
    warn_of_left_out()
    chosen = list(registry().recipes.values()) if name is None else [recipe_named(name)]
    if json_:
        rows = [_content(recipe) for recipe in chosen]
        print_json(rows if name is None else rows[0])
    elif name is None:
        _list(chosen)
    else:
        _show(chosen[0])


def warn_of_left_out() -> None:
    """Say on stderr which what-ifs of other packages are left out, and why."""
    for place, why in registry().problems.items():
        message(f"warning: the what-if {place} is left out: {why}")


def _content(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "group": recipe.group,
        "form": recipe.form,
        "arguments": [
            {
                "name": one.name,
                "kind": one.kind,
                "about": one.about,
                "choices": list(one.choices),
                "default": one.default,
            }
            for one in recipe.arguments
        ],
        "summary": recipe.summary,
        "example": recipe.example,
        "documentation": recipe.documentation,
        "package": recipe.package or "seqpoint",
    }


def _list(recipes: list[Recipe]) -> None:
    """Print a table a group."""
    for group in dict.fromkeys(recipe.group for recipe in recipes):
        mine = [recipe for recipe in recipes if recipe.group == group]
        rows = [
            (one.form, one.summary + (f" (package {one.package})" if one.package else ""), one.example) for one in mine
        ]
        print_table(f"What-ifs: {group}", ("how it is written~", "what it does~", "example~"), rows)


def _show(recipe: Recipe) -> None:
    """Print all of one what-if."""
    say(f"{recipe.form}: {recipe.summary}")
    for line in ["", *recipe.documentation.splitlines(), ""]:
        click.echo(clean(line))
    rows = [
        (one.name, one.kind, one.about, "needed" if one.default is None else one.default or "-")
        for one in recipe.arguments
    ]
    if rows:
        print_table("Arguments", ("name~", "kind~", "what it is~", "left out~"), rows)
    say(f"example: seqpoint project job.trace -w '{recipe.example}'")
    if recipe.package:
        say(f"from the package {recipe.package}")


@click.command("project")
@trace_argument
@what_if_option
@iteration_option
@max_points_option(8)
@click.option("--draws", default=32, show_default=True, type=click.IntRange(8, 10000), help="For the interval.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the draws.")
@click.option("--jobs", "-j", type=click.IntRange(1, 1024), help="Draws at a time.  [default: one a core]")
@click.option(
    "--contention", metavar="FILE.json", type=click.Path(), help="Of `seqpoint calibrate contention`: its parameters."
)
@click.option("--from", "result", metavar="RESULT.json", help="Compute this result of --json again, and compare.")
@perfetto_option
@hardware_option
@as_json
def project_command(trace: str, marker: str, length: str | None, json_: bool, **options: Any) -> None:
    """Project what each what-if would gain on the iterations of TRACE.

    \b
    seqpoint project job.trace -w dma_collectives -w scale_device:MI355X -w dma_collectives+scale_device:MI355X
    seqpoint project job.trace -w overlap:all
    seqpoint project job.trace -w @plan.toml --json > result.json
    seqpoint project job.trace --contention mine.json
    seqpoint project job.trace --from result.json
    """
    warn_of_left_out()
    options["jobs"] = options["jobs"] or 0
    if (result := options.pop("result")) is not None:
        _again(trace, result, options, json_)
        return
    fit = _calibrated(options)
    texts = options.pop("texts") or DEFAULT_WHAT_IFS
    what_ifs = asked_what_ifs(texts)
    perfetto = options.pop("perfetto")
    loaded = load(trace, marker, length)
    projection = project_trace(loaded, what_ifs, ProjectOptions(**options, progress=progress("projecting")))
    projection = with_provenance(projection, {"reading": {"iterations": marker, "length": length}})
    if fit is not None:
        facts = {"device": fit.device, "scenarios": fit.scenarios, "source": fit.source, "sha256": fit.digest}
        projection = with_provenance(projection, {"contention": facts})
        if projection.provenance["device"] != fit.device:
            message(f"note: contention was calibrated on {fit.device}, the trace is of another device or does not say")
    if projection.provenance["device_known_by"] == "file name":
        message(f"note: the device {projection.provenance['device']} is a guess from the file's name (see --device)")
    projection = ranked(projection) if ALL_OVERLAPS in texts else projection
    if perfetto:
        lines, after = projection.timelines, projection.rows[0].label
        write_perfetto(Path(perfetto), {"before": lines["baseline"], f"after {after}": lines[after]})
        message(f"wrote {perfetto}")
    if json_:
        print_json(result_of(projection))
    else:
        show(projection)


def _calibrated(options: dict[str, Any]) -> ContentionFit | None:
    """Take the calibration out of the options, and put its parameters in."""
    if (path := options.pop("contention")) is None:
        return None
    fit = read_contention_fit(path)
    options["parameters"] = fit.parameters(load_parameters())
    return fit


def _again(trace: str, result: str, options: Mapping[str, Any], json_: bool) -> None:
    """Compute a result again, print whether it is the same, and exit 1 where it is not."""
    context = click.get_current_context()
    for name in (
        "texts",
        "iterations",
        "max_points",
        "contention",
        "draws",
        "seed",
        "device",
        "perfetto",
        "marker",
        "length",
    ):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError("--from takes what was asked from the result; give it beside TRACE and --jobs only")
    recorded = read_result(result)
    reading = recorded["provenance"].get("reading") or {}
    loaded = load(trace, reading.get("iterations") or "auto", reading.get("length"))
    found = reproduce(loaded, recorded, jobs=options["jobs"], progress=progress("projecting"))
    if json_:
        differences = [dict(zip(("where", "recorded", "now"), one, strict=True)) for one in found.differences]
        content = {"identical": found.identical, "compared": found.compared}
        print_json({**content, "differences": differences, "notes": list(found.notes)})
    else:
        if found.differences:
            print_table("Differences", ("where~", "recorded~", "now~"), found.differences)
        what = "identical, bit for bit" if found.identical else "not identical"
        say(f"{found.compared} numbers and texts of {result}: {what}")
        for note in found.notes:
            say(f"note: {note}")
    if not found.identical:
        context.exit(1)


def show(projection: Projection) -> None:
    """Print a projection for people."""
    facts = projection.provenance
    device = facts["device"] or "unknown device"
    label, known = (" (synthetic)", "synthesised") if facts["synthetic"] else ("", "measured")
    n = len(facts["iterations"])
    say(
        f"baseline {duration(projection.baseline_ns)}, {known}: the step times of {n} iteration{'s' * (n != 1)} "
        f"({facts['iterations_chosen']}), {duration(projection.baseline_ns / sum(facts['weights']))} each, "
        f"on {device}{label}"
    )
    print_table(
        f"What-ifs (interval: central {100 * facts['confidence']:g} % over the parameters' ranges)",
        ("what-if~", "speed-up", "low", "high", "projected", "measured %", "derived %", "assumed %"),
        [
            (
                row.title or " + ".join(row.what_if),
                f"{row.speedup:.3f}",
                f"{row.low:.3f}",
                f"{row.high:.3f}",
                duration(row.projected_ns),
                *(f"{100 * share:.0f}" for share in (row.measured_share, row.derived_share, row.assumed_share)),
            )
            for row in projection.rows
        ],
    )
    for line in pace_lines(projection):
        say(line)
    for note in dict.fromkeys(note for row in projection.rows for note in row.notes):
        say(f"note: {note}")


@click.command("report")
@trace_argument
@click.option("-o", "--output", default="report.html", show_default=True, type=click.Path(), help="File to write.")
@what_if_option
@max_points_option(8)
@click.option("--title", help="By default the trace's name.")
@hardware_option
def report_command(trace: str, marker: str, length: str | None, output: str, **options: Any) -> None:
    """Write a self-contained HTML report on TRACE: lengths, classes, timelines, what-ifs, quality.

    \b
    seqpoint report job.trace -w dma_collectives -w scale_device:MI355X -o job.html
    """
    target = file_to_write(Path(output))
    loaded = load(trace, marker, length)
    title = options["title"] or Path(trace).name
    with working("describing"):
        description = describe(loaded)
        selection = _selection(description, options["max_points"])
    what_ifs = asked_what_ifs(options["texts"] or DEFAULT_WHAT_IFS)
    how = ProjectOptions(max_points=options["max_points"], device=options["device"], progress=progress("projecting"))
    projection = project_trace(loaded, what_ifs, how)
    projection = ranked(projection) if ALL_OVERLAPS in options["texts"] else projection
    label = "synthetic" if loaded.meta.synthetic else ""
    section = ReportSection(title, label, description, selection, projection)
    with working("drawing"):
        write_report(ReportContent(title, (section,)), target)
    say(f"report: {output}")


def _selection(description: Description, max_points: int) -> SelectionResult | None:
    table = description.iterations
    if not np.isfinite(table.sequence_length).any():
        message("note: no iteration has a sequence length (--length), so nothing is selected")
        return None
    return select(table, SelectOptions(max_points=max_points))
