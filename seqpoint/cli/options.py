"""Options and arguments that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from profilers.trace.trace import Trace
from seqpoint import front_door
from seqpoint.cli.output import byte_progress

F = TypeVar("F", bound=Callable[..., Any])


def reading_options(function: F) -> F:
    """Add the options by which raw files are read: --iterations and --length."""
    marker = click.option(
        "--iterations",
        "marker",
        default="auto",
        show_default=True,
        metavar="HOW",
        help="auto, file (each file is one iteration), whole (all is one), or a regular expression for annotations.",
    )
    length = click.option("--length", metavar="RULE", help="Sequence length: OP:ARGUMENT:DIMENSION, or a CSV file.")
    return marker(length(function))


def trace_argument(function: F) -> F:
    """Add the argument TRACE and the options by which a raw file is read."""
    return click.argument("trace", type=click.Path())(reading_options(function))


def as_json(function: F) -> F:
    """Add the option --json."""
    return click.option("--json", "json_", is_flag=True, help="Print JSON with stable keys.")(function)


def gate_option(function: F) -> F:
    """Add the option --gate."""
    return click.option("--gate", is_flag=True, help="Exit 1 where a limit is missed.")(function)


def verbose_option(function: F) -> F:
    """Add the option --verbose."""
    return click.option("--verbose", "-v", is_flag=True, help="Also errors by size, and the files.")(function)


def hardware_option(function: F) -> F:
    """Add the option --device."""
    return click.option(
        "--device", metavar="NAME", help="The device that the trace was recorded on, where it does not say."
    )(function)


def iteration_option(function: F) -> F:
    """Add the option --iteration."""
    return click.option(
        "--iteration", "-i", "iterations", multiple=True, type=int, help="Only this one; may be given several times."
    )(function)


def max_points_option(default: int) -> Callable[[F], F]:
    """Return what adds the option --max-points."""
    return click.option(
        "--max-points",
        "--points",
        "-n",
        default=default,
        show_default=True,
        type=click.IntRange(1),
        help="Lengths to choose at most, or strata.",
    )


def max_iterations_option(function: F) -> F:
    """Add the option --max-iterations."""
    return click.option(
        "--max-iterations",
        type=click.IntRange(1),
        help="Iterations of all points together: several of a length average its noise.  [default: one a point]",
    )(function)


def what_if_option(function: F) -> F:
    """Add the option --what-if."""
    return click.option(
        "--what-if",
        "-w",
        "texts",
        multiple=True,
        metavar="NAME:ARGUMENT[+...]",
        help="May be given several times; + composes; @FILE.toml is a plan. `seqpoint what-ifs` lists them.",
    )(function)


def perfetto_option(function: F) -> F:
    """Add the option --perfetto."""
    return click.option(
        "--perfetto", metavar="FILE.json", type=click.Path(), help="Write the first iteration for ui.perfetto.dev."
    )(function)


def load(trace: str, marker: str, length: str | None) -> Trace:
    """Return the trace that the arguments name."""
    return front_door.open(trace, iterations=marker, length=length, progress=byte_progress("reading"))
