"""Commands on what-ifs: `what-ifs` lists them, `project` projects their gain, and `report` writes a page of HTML."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from replay.what_ifs import Recipe, recipe_named, registry
from seqpoint import front_door
from seqpoint.cli.options import (
    given_options,
    load,
    options_of,
    output_option,
    output_options,
    perfetto_option,
    reading,
    refuse_options,
    trace_argument,
)
from seqpoint.cli.output import (
    byte_progress,
    clean,
    message,
    print_json,
    print_lines,
    print_result,
    print_table,
    progress,
    working,
    write_timelines,
)
from seqpoint.projecting import ProjectOptions

if TYPE_CHECKING:
    from replay.calibration import Parameters
    from replay.contention import ContentionFit


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
@options_of(front_door.project, "what_ifs")
@options_of(
    ProjectOptions, "iterations", "max_points", "keep_outliers", "draws", "seed", "host", "job", "jobs", "why", "device"
)
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
@perfetto_option
@output_options
def project_command(
    trace: str, what_ifs: tuple[str, ...], contention: str | None, result: str | None, perfetto: str | None,
    json_: bool, **options: Any,
) -> None:  # fmt: skip
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
    jobs = options.pop("jobs") or 0
    if result is not None:
        _again(trace, result, jobs, json_)
        return
    if options["iterations"]:
        refuse_options(("max_points", "keep_outliers"), "beside --iteration, which names the iterations")
    fit, parameters = _calibrated(contention)
    given = ProjectOptions(**options, jobs=jobs, parameters=parameters, progress=progress("projecting"))
    projected = front_door.project(load(trace), what_ifs, options=given)
    read = reading()
    projected = projected.with_facts({"reading": {"iterations": read["marker"], "length": read["length"]}})
    device = projected.provenance["device"]
    if fit is not None:
        facts = {"device": fit.device, "scenarios": fit.scenarios, "source": fit.source, "sha256": fit.digest}
        projected = projected.with_facts({"contention": facts})
        if device != fit.device:
            message(f"note: contention was calibrated on {fit.device}, the trace is of another device or does not say")
    if projected.provenance["device_known_by"] == "file name":
        message(f"note: the device {device} is a guess from the file's name (see --device)")
    write_timelines(perfetto, projected.timelines)
    print_result(projected, json_)


def _calibrated(path: str | None) -> "tuple[ContentionFit | None, Parameters]":
    """Return the calibration of a file, None without a file, and the parameters with it."""
    from replay.contention import read_contention_fit
    from replay.costs.shipped import load_parameters

    if path is None:
        return None, load_parameters()
    fit = read_contention_fit(path)
    return fit, fit.parameters(load_parameters())


def _again(trace: str, result: str, jobs: int, json_: bool) -> None:
    """Compute a result again, print the differences, and exit 1 if there are any."""
    if set(given_options()) - {"trace", "jobs", "result", "json_"}:
        raise click.UsageError("--from takes all other options from the result; give only TRACE and --jobs with it")
    from seqpoint.reproducing import read_result

    recorded = read_result(result)
    read = recorded["provenance"].get("reading") or {}
    how: dict[str, Any] = {"iterations": read.get("iterations") or "auto", "length": read.get("length")}
    loaded = front_door.open(trace, **how, progress=byte_progress("reading"))
    check = front_door.reproduce(loaded, recorded, jobs=jobs, progress=progress("projecting"))
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
        click.get_current_context().exit(1)


_EARLIER = {"flags": ("--compare",), "metavar": "TRACE"}


@click.command("report")
@trace_argument
@output_option("FILE", "File to write.", required=False, default="report.html", show_default=True)
@options_of(front_door.project, "what_ifs")
@options_of(front_door.report, "max_points", "title", "device", "earlier", earlier=_EARLIER)
def report_command(trace: str, output: str, what_ifs: tuple[str, ...], **options: Any) -> None:
    """Write a report on TRACE as a self-contained page of HTML.

    It says first what `seqpoint advise` says: what limits the steps and what to do. Then it shows where time goes,
    what sets the pace of steps, overlap, the selected iterations, what-ifs, and the quality of the data.

    \b
    seqpoint report job.trace -w dma_collectives -w scale_device:MI355X -o job.html
    """
    loaded = load(trace)
    options |= {"title": options["title"] or Path(trace).name, "name": trace}
    with working("projecting and drawing"):
        front_door.report(loaded, output, what_ifs, **options)
    if not np.isfinite(front_door.iterations(loaded).sequence_length).any():
        message("note: no iteration has a sequence length (--length), so nothing is selected")
    print_lines(f"report: {output}")
