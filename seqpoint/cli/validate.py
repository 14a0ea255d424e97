"""`seqpoint validate`: one suite of validation, or a scoreboard of all suites."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from profilers.devices.catalogue import DTYPES
from profilers.errors import NotFoundError
from profilers.files import file_to_write
from replay.costs.collectives import FABRICS
from seqpoint import front_door
from seqpoint.cli import LazyGroup
from seqpoint.cli.options import gate_option, options_of, output_options, verbose_option
from seqpoint.cli.output import message, print_json, print_lines, print_table, progress, working
from seqpoint.validation.suites import (
    PHASES,
    SUITES,
    Progress,
    Suite,
    SuiteOptions,
    SuiteResult,
    ValidationRow,
    all_met,
    load_suite,
)

F = TypeVar("F", bound=Callable[..., Any])

_SCOREBOARD = "scoreboard"
#: Names of unused files that a message shows.
_SHOWN = 5


class _SuiteGroup(LazyGroup):
    """The suites as commands. Without the name of a suite, the scoreboard is meant."""

    heading = "Suites"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the scoreboard in front of arguments that name no suite and ask for no help."""
        if not {*SUITES, *ctx.help_option_names, _SCOREBOARD} & set(args):
            args = [_SCOREBOARD, *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a suite and return its command."""
        if cmd_name == _SCOREBOARD:
            return _scoreboard
        return _command(load_suite(cmd_name)) if cmd_name in SUITES else None


_SUITES = {name: ("", text) for name, text in SUITES.items()}


@click.group("validate", cls=_SuiteGroup, modules=_SUITES, subcommand_metavar="[SUITE] [PATH]...")
def command() -> None:
    """Score what the toolkit says against what was measured or published.

    Without SUITE, a scoreboard has a line a suite. PATH is a file or a folder of any depth: a suite reads the files
    that it knows and names the others. Without PATH, the measurements that the project ships are read. --json prints
    every row. The exit status is 0 whatever the scores are, or with --gate 1 if a limit is not met.

    \b
    seqpoint validate
    seqpoint validate selection my_epochs/
    seqpoint validate kernels measured.parquet --gate
    """


_path_argument = click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))


@click.command(_SCOREBOARD)
@_path_argument
@gate_option
@output_options
@click.pass_context
def _scoreboard(context: click.Context, paths: tuple[Path, ...], gate: bool, json_: bool) -> None:
    """Run every suite on what it knows in PATH, or on what the project ships."""
    with _watching() as watch:
        validation = front_door.validate("", paths, progress=watch)
    _name_unused("any suite", validation.unused)
    for name, result in validation.results.items():
        for row in result.skipped[:_SHOWN]:
            message(f"{name} skipped {row}")
    if json_:
        print_json(validation.to_dict())
    else:
        cells = [tuple(line.values()) for line in validation.lines]
        print_table("Validation", ("suite~", "cases", "limits", "met", "note~"), cells)
    if gate:
        _exit_unless_met(context, validation.rows)


def _command(suite: Suite) -> click.Command:
    """Return the command of a suite, with the options that it reads."""

    def run(context: click.Context, /, paths: tuple[Path, ...], **given: Any) -> None:
        if suite.exclusive and all(given[name] for name in suite.exclusive[:2]):
            raise click.UsageError(suite.exclusive[2])
        json_, gate, verbose, plot = (given.pop(name, None) for name in ("json_", "gate", "verbose", "plot"))
        target = file_to_write(Path(plot)) if plot else None
        with _watching() as watch:
            validation = front_door.validate(suite.name, paths, options=given, progress=watch)
        result = validation.results[suite.name]
        _name_unused(suite.name, validation.unused, all_names=bool(verbose))
        for note in result.notes:
            message(f"note: {note}")
        if json_:
            print_json(validation.to_dict())
        else:
            _show(result, verbose=bool(verbose))
        if target is not None:
            from seqpoint.reporting.contention import write_contention_charts

            write_contention_charts(result.scores, target, result.notes)
            message(f"wrote {plot}")
        if gate and not result.rows:
            raise NotFoundError(f"{suite.name}: nothing to check; {' '.join(result.notes)}")
        if gate:
            _exit_unless_met(context, result.rows)

    decorated = click.pass_context(run)
    options = [_option(name) for name in (*suite.options, *(["plot"] if suite.charts else []))]
    for decorate in reversed([_path_argument, *options, verbose_option, gate_option, output_options]):
        decorated = decorate(decorated)
    return click.command(suite.name, help=suite.description)(decorated)


@contextmanager
def _watching() -> Iterator[Callable[[str], Progress | None]]:
    """Yield a function that shows on stderr what begins: with a clock, or with a count of steps."""
    with ExitStack() as shown:

        def watch(what: str) -> Progress | None:
            shown.close()  # a clock or a count takes the line of the clock before it
            if what not in PHASES:
                return progress(what)
            shown.enter_context(working(what))
            return None

        yield watch


def _name_unused(whom: str, files: Sequence[Path], *, all_names: bool = False) -> None:
    """Name some or all of the files that nobody reads."""
    if files:
        names = [file.name for file in (files if all_names else files[:_SHOWN])]
        more = [] if len(names) == len(files) else ["..."]
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        message(f"not used by {whom}: {count} ({', '.join([*names, *more])})")


def _show(result: SuiteResult, *, verbose: bool) -> None:
    """Print the tables of a suite and its limits."""
    for table in result.tables:
        if isinstance(table, str):
            print_lines(table)
        elif verbose or not table.verbose:
            print_table(table.title, table.columns, table.rows)
    show_limits(result.rows)


def show_limits(rows: Sequence[ValidationRow]) -> None:
    """Print the summaries that have a limit, if there are any. Cases with a limit are in the tables of a suite."""
    limited = [row for row in rows if row.limit is not None and row.reference is None]
    if limited:
        print_table("Limits", ("case~", "ours", "limit", "met"), [_limit(row) for row in limited])


def _limit(row: ValidationRow) -> tuple[str, ...]:
    """Return the cells of a row with a limit; a count stays a count, however large."""
    ours = f"{row.ours:.0f}" if row.ours >= 1000 else f"{row.ours:.3g}"
    return row.case, ours, f"{'>=' if row.least else '<='} {row.limit:g}", "yes" if row.met else "NO"


def _exit_unless_met(context: click.Context, rows: Sequence[ValidationRow]) -> None:
    """Exit 1 if a limit is not met; say so if no row has a limit."""
    if all(row.limit is None for row in rows):
        message("note: no limit applies to these measurements, so --gate checks nothing")
    if not all_met(rows):
        context.exit(1)


#: Settings of the options by the field of `SuiteOptions`, which has their sentences and defaults.
_FORMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "calibration": {"metavar": "FILE", "type": click.Path()},
        "models": {"metavar": "FILE", "type": click.Path()},
        "library": {"metavar": "NAME"},
        "dtype": {"type": click.Choice(list(DTYPES)), "metavar": None},
        "fabric": {"type": click.Choice(FABRICS)},
        "node_devices": {"type": click.IntRange(1)},
        "iterations": {"flags": ("--iterations",), "metavar": "HOW"},
    }
)


def _option(name: str) -> Callable[[F], F]:
    """Return what adds the option of a suite; `plot` is of suites with charts."""
    if name == "plot":
        text = "HTML file to write charts of predicted against measured times to."
        return click.option("--plot", help=text, metavar="FILE", type=click.Path())
    return options_of(SuiteOptions, name, **{name: _FORMS.get(name, {})})
