"""Options and arguments that several commands share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from profilers.trace.trace import Trace
from seqpoint import front_door
from seqpoint.cli.output import byte_progress, explain_tables

F = TypeVar("F", bound=Callable[..., Any])


marker_option = click.option(
    "--iterations",
    "marker",
    default="auto",
    show_default=True,
    metavar="HOW",
    help="How iterations are found: auto (marks of the profiler, annotations, or the period of kernels), file "
    "(each file is an iteration), whole (everything is one iteration), or a regular expression that annotations "
    "match.",
)


def reading_options(function: F) -> F:
    """Add the options by which files are read: --iterations, --length and --classes."""
    length = click.option(
        "--length",
        metavar="RULE",
        help="Where sequence lengths come from: OPERATOR:ARGUMENT:DIMENSION, such as aten::embedding:1:1, or the name "
        "of a CSV file. `seqpoint lengths` lists candidates.",
    )
    classes = click.option(
        "--classes",
        metavar="FILE.toml",
        type=click.Path(),
        expose_value=False,
        callback=_keep_classes,
        help="Your own classes of kernels, which come first: [[classes]] tables, each with pattern = 'NAME*' and "
        "class = 'gemm'.",
    )
    return marker_option(length(classes(function)))


_CLASSES = "seqpoint.classes"


def _keep_classes(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Keep the file of --classes in the context of the command, from which `load` takes it."""
    context.meta[_CLASSES] = value


def classes_file() -> str | None:
    """Return the file that --classes names, or None."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_CLASSES)


def trace_argument(function: F) -> F:
    """Add the argument TRACE and the options by which a raw file is read."""
    return click.argument("trace", type=click.Path())(reading_options(function))


as_json = click.option(
    "--json",
    "json_",
    is_flag=True,
    is_eager=True,  # so that --explain sees it
    help="Print the result as JSON with stable keys, with all rows and digits.",
)


def _explain(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and context.params.get("json_"):
        raise click.UsageError("--explain explains the columns of tables, and --json prints none; leave out one")
    explain_tables(context, value)


explain_option = click.option(
    "--explain",
    is_flag=True,
    expose_value=False,
    callback=_explain,
    help="Print a sentence on each column below the tables.",
)


def output_options(function: F) -> F:
    """Add the options of a command that prints tables: --explain and --json."""
    return explain_option(as_json(function))


gate_option = click.option("--gate", is_flag=True, help="Exit with status 1 if a limit is not met.")

verbose_option = click.option(
    "--verbose", "-v", is_flag=True, help="Print errors by size and the names of the files too."
)

hardware_option = click.option(
    "--device",
    metavar="NAME",
    help="Device that the trace was recorded on, if the trace does not say; `seqpoint devices` lists the names.",
)

iteration_option = click.option(
    "--iteration",
    "-i",
    "iterations",
    multiple=True,
    type=int,
    help="Number of an iteration to use; may be repeated.  [default: all, or representatives]",
)


def max_points_option(default: int | None, note: str = "") -> Callable[[F], F]:
    """Return a decorator that adds the option --max-points, with its default, or a note on it."""
    return click.option(
        "--max-points",
        "--points",
        "-n",
        default=default,
        show_default=True,
        type=click.IntRange(1),
        help="Most lengths to select, or most strata." + note,
    )


max_iterations_option = click.option(
    "--max-iterations",
    type=click.IntRange(1),
    help="Most iterations of all points together. Several iterations of a length average its noise.  "
    "[default: one for each point]",
)

keep_outliers_option = click.option(
    "--keep-outliers",
    is_flag=True,
    help="Choose from outlying iterations, such as the warm-up, too. Without it no point stands for them, and each "
    "counts once.",
)

what_if_option = click.option(
    "--what-if",
    "-w",
    "texts",
    multiple=True,
    metavar="NAME:ARGUMENT[+...]",
    help="What-if to project; may be repeated. A + composes what-ifs, and @FILE.toml names a plan of several. "
    "`seqpoint what-ifs` lists them.  [default: five common ones]",
)

perfetto_option = click.option(
    "--perfetto",
    metavar="FILE.json",
    type=click.Path(),
    help="Write the timelines to this file, for https://ui.perfetto.dev.",
)


def refuse_options(names: Sequence[str], reason: str) -> None:
    """Refuse options of the command line that cannot have an effect.

    Parameters
    ----------
    names : sequence of str
        Names of parameters of the current command.
    reason : str
        Why they have no effect, and what to do.

    Raises
    ------
    click.UsageError
        One of them was given, even with its default.
    """
    context = click.get_current_context()
    given = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if given:
        raise click.UsageError(f"{' and '.join(options[name] for name in given)}: no effect {reason}")


def load(trace: str, marker: str, length: str | None) -> Trace:
    """Return the trace that the arguments name."""
    how: dict[str, Any] = {"classes": classes_file(), "progress": byte_progress("reading")}
    return front_door.open(trace, iterations=marker, length=length, **how)
