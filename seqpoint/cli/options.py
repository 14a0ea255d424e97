"""Options and arguments of the commands: each has its sentence, its type and its default in one place.

An option that is a parameter of a function, or a field of frozen options, is made from its signature and its NumPy
docstring (`options_of`). `FORMS` says how such a parameter is written on the command line, if not by its name. The
other options have their sentence here, if several commands share them, or at their command.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from profilers.devices.catalogue import find_device
from profilers.errors import DependencyError, InvalidInputError
from seqpoint import front_door
from seqpoint.cli.output import VIEW, byte_progress, explain_tables, message, progress, saved_tables

if TYPE_CHECKING:
    from profilers.trace import Trace
    from seqpoint.rank_survey import RankSurvey

F = TypeVar("F", bound=Callable[..., Any])
_POSITIVE = click.IntRange(1)


class Share(click.ParamType[float]):
    """Share such as ``1%`` or ``0.01``, below one and above zero, or zero if that is allowed."""

    name = "share"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1 or (share == 0 and not self._zero):
            self.fail(f"{value!r} is no share between 0 and 1; write 1% or 0.01 for one in a hundred", param, ctx)
        return share


def _what_ifs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the what-ifs that begin like the last of those given, for the completion of a shell."""
    from seqpoint import what_ifs

    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in what_ifs() if name.startswith(last)]


def _devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the devices of the catalogue that begin so, in any case."""
    from seqpoint import devices

    return [name for name in devices() if name.lower().startswith(incomplete.lower())]


_WHAT_IF: Mapping[str, Any] = {
    "flags": ("--what-if", "-w"), "metavar": "NAME:ARGUMENT[+...]", "shell_complete": _what_ifs
}  # fmt: skip
_FILES: Mapping[str, Any] = {"metavar": "FILE", "type": click.Path()}
#: How a parameter is written on the command line: its flags, and settings of click.
FORMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "arguments": {"flags": ("--arg",), "metavar": "VALUE"},
        "block": {"metavar": "X[,Y[,Z]]"},
        "caches": {"flags": ("--cache",), "metavar": "CACHE=FACTOR"},
        "captures": {"flags": ("--capture",), **_FILES},
        "checkpoint": {"metavar": "FILE.npz", "type": click.Path()},
        "clock_mhz": {"flags": ("--clock",), "metavar": "MHZ"},
        "confidence": {"type": click.FloatRange(0.5, 0.999)},
        "counters": _FILES,
        "device": {"metavar": "NAME", "shell_complete": _devices},
        "draws": {"type": click.IntRange(8, 10000)},
        "dtype": {"metavar": "TYPE"},
        "entry": {"metavar": "NAME"},
        "execution_traces": {"flags": ("--execution-trace",), **_FILES},
        "features": {"flags": ("--feature",), "metavar": "NAME"},
        "grid": {"metavar": "X[,Y[,Z]]"},
        "host": {"metavar": "keep|FACTOR|DEVICE"},
        "iteration": {"flags": ("--iteration", "-i")},
        "iterations": {"flags": ("--iteration", "-i")},
        "job": {"metavar": "FILE.toml", "type": click.Path()},
        "jobs": {"flags": ("--jobs", "-j"), "type": click.IntRange(1, 1024), "default": None},
        "limit": {"metavar": "N", "type": _POSITIVE},
        "mapping": {"metavar": "NAME"},
        "max_accesses": {"flags": ("--accesses",), "type": click.IntRange(0)},
        "max_iterations": {"type": _POSITIVE},
        "max_points": {"flags": ("--max-points", "--points", "-n"), "type": _POSITIVE},
        "memory_gbps": {"flags": ("--bandwidth",), "metavar": "GBPS"},
        "dram": {"metavar": "STANDARD[:GBPS]"},
        "of_operator": {"flags": ("--option",), "metavar": "NAME=VALUE"},
        "policies": {"flags": ("--policy",), "metavar": "NAME"},
        "policy_file": {"metavar": "FILE.toml", "type": click.Path()},
        "rank": {"type": click.IntRange(0)},
        "registers": {"type": click.IntRange(1, 255)},
        "scheduler": {"type": click.Choice(["gto", "lrr"])},
        "seed": {"type": click.IntRange(0)},
        "selector": {"metavar": "NAME"},
        "shared_bytes": {"type": click.IntRange(0)},
        "statistic": {"metavar": "NAME"},
        "target_error": {"type": Share(), "metavar": "X"},
        "tasks": {"metavar": "CHOICE"},
        "tolerance": {"type": Share(zero=True), "metavar": "X"},
        "variables": {"flags": ("--variable",), "metavar": "NAME=VALUE"},
        "warm": {"metavar": "OPERAND"},
        "waves": {"type": click.IntRange(0)},
        "what_if": _WHAT_IF,
        "what_ifs": _WHAT_IF,
    }
)
#: Types of numbers by their names in a signature.
_TYPES: Mapping[str, type] = MappingProxyType({"int": int, "float": float})


def options_of(source: Callable[..., Any], *names: str, **changes: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator that adds an option for each named parameter of `source`, from its signature and docstring.

    Parameters
    ----------
    source : callable
        A function, or a class of frozen options.
    *names : str
        Names of its parameters, in the order of the help.
    **changes : mapping
        Settings of click by the name of a parameter, which replace those of `FORMS`.
    """
    sentences, signature = parameter_sentences(source), inspect.signature(source).parameters
    options = []
    for name in names:
        form = {"help": sentences[name], **_settings(signature[name]), **FORMS.get(name, {}), **changes.get(name, {})}
        flags = form.pop("flags", (f"--{name.replace('_', '-')}",))
        if form.get("multiple"):
            form["help"] += "  May be repeated."
        if "show_default" not in form and form.get("default") not in (None, ""):
            form["show_default"] = not form.get("is_flag")
        options.append(click.option(*flags, form.pop("name", name), **form))

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _settings(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the settings of an option that follow from a signature."""
    annotation = parameter.annotation
    text = annotation.__name__ if annotation in (bool, int, float, str) else str(annotation)
    if text == "bool":
        return {"is_flag": True}
    if "Mapping[" in text:
        return {"multiple": True}
    kind = next((_TYPES[name] for name in _TYPES if re.search(rf"\b{name}\b", text)), str)
    if "Sequence[" in text or text.startswith("tuple["):
        return {"type": kind, "multiple": True}
    default = parameter.default
    return {"type": kind, "default": default if isinstance(default, str | int | float) else None}


def parameter_sentences(source: Callable[..., Any]) -> dict[str, str]:
    """Return the text on each parameter of a NumPy docstring, for the command line.

    Examples
    --------
    >>> def cut(length: int) -> None:
    ...     '''Cut.
    ...
    ...     Parameters
    ...     ----------
    ...     length : int
    ...         Length of ``"one"`` piece.
    ...     '''
    >>> parameter_sentences(cut)
    {'length': 'Length of one piece.'}
    """
    text = inspect.getdoc(source) or ""
    section = re.search(r"Parameters\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", text, re.DOTALL)
    sentences: dict[str, str] = {}
    for match in re.finditer(r"^(\w[\w, ]*) : .*\n((?:[ \t]+.*\n?|\n(?=[ \t]))+)", section[1] if section else "", re.M):
        sentence = re.sub(r"``\"?(.*?)\"?``", r"\1", " ".join(match[2].split()))
        for name in match[1].split(", "):
            sentences[name] = re.sub(r"`(?:\w+\.)*(\w+)`", r"\1", sentence)
    return sentences


_READING = "seqpoint.reading"


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep an option of reading in the context of the command, from which `load` takes it."""
    context.meta.setdefault(_READING, {})[parameter.name] = value


def reading() -> dict[str, Any]:
    """Return the options by which this command reads files: ``marker``, ``length`` and ``classes``."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.meta.get(_READING, {})
    return {
        "marker": "auto",
        "length": None,
        "classes": None,
        "ranks": None,
        "skip_damaged": False,
        "cluster": None,
    } | given


_HIDDEN: Mapping[str, Any] = {"expose_value": False, "callback": _keep}
_MARKER: Mapping[str, Any] = {"flags": ("--iterations",), "name": "marker", "metavar": "HOW", **_HIDDEN}
_LENGTH: Mapping[str, Any] = {"metavar": "RULE", **_HIDDEN}
marker_option = options_of(front_door.open, "iterations", iterations=_MARKER)
length_options = options_of(front_door.open, "iterations", "length", iterations=_MARKER, length=_LENGTH)
#: The options by which files are read: --iterations, --length and --classes; and those of a job of many ranks.
reading_options = options_of(
    front_door.open, "iterations", "length", "classes",
    iterations=_MARKER, length=_LENGTH, classes={"metavar": "FILE.toml", "type": click.Path(), **_HIDDEN},
)  # fmt: skip


cluster_option = click.option(
    "--cluster", metavar="ADDRESS", help="Dask scheduler whose workers read, such as tcp://host:8786.", **_HIDDEN
)
_many = click.option(
    "--ranks", metavar="N,...|all", **_HIDDEN,
    help="Ranks to read of a .trace folder, such as 0,8,16-23. They stand for the others, so that collectives wait for "
    "these alone. By default all, and of more than 32 those that describe names.",
)  # fmt: skip
skip_option = click.option(
    "--skip-damaged",
    is_flag=True,
    **_HIDDEN,
    help="Leave out damaged files or ranks and name them, instead of an error.",
)


def trace_argument(function: F) -> F:
    """Add the argument TRACE, the options by which a raw file is read, and those of a job of many ranks."""
    return click.argument("trace", type=click.Path())(reading_options(_many(skip_option(cluster_option(function)))))


#: Where the context of a command keeps the ranks of its first trace, of which others are read, too.
_RANKS = "seqpoint.ranks"


def load(trace: str) -> "Trace":
    """Return the trace that an argument names, read by the options of the command."""
    how, survey = reading(), surveyed(trace)
    context = click.get_current_context(silent=True)
    earlier = () if context is None else context.meta.get(_RANKS, ())
    if survey is not None:
        loaded = survey.trace(earlier if earlier and set(earlier) <= set(survey.meta.ranks) else None)
        message(f"{len(survey.meta.ranks):,} ranks: read {', '.join(map(str, loaded.meta.ranks))}, which stand for all")
    elif how["ranks"] not in (None, "all"):
        from profilers.trace.store import is_trace, load_trace
        from seqpoint.opening import many_ranks, rank_numbers

        ranks, folder = rank_numbers(how["ranks"]), trace if is_trace(trace) else many_ranks(trace)
        if folder is None:
            raise InvalidInputError(f"{trace}: --ranks is of a .trace folder; ingest the files first")
        loaded = load_trace(folder, ranks=ranks)
    else:
        from seqpoint.opening import ready

        is_plain = (how["marker"], how["length"], how["classes"]) == ("auto", None, None)
        loaded = front_door.open(
            ready(trace) if is_plain else trace, iterations=how["marker"], length=how["length"], classes=how["classes"],
            progress=byte_progress("reading"),
        )  # fmt: skip
    if context is not None:
        context.meta.setdefault(_RANKS, loaded.meta.ranks)
    return loaded


def surveyed(trace: str) -> "RankSurvey | None":
    """Return the survey of a trace of more than 32 ranks; None for fewer, and if the command names ranks."""
    how = reading()
    if how["ranks"] is not None or (how["marker"], how["length"], how["classes"]) != ("auto", None, None):
        return None
    from seqpoint import opening

    with dask_executor(how["cluster"]) as executor:
        survey = opening.surveyed(
            trace, executor=executor, skip_damaged=how["skip_damaged"], progress=progress("reading ranks")
        )
    for problem in ingested.left_out if (ingested := opening.temporary_ingest(trace)) else ():
        message(f"left out: {problem}")
    return survey


@contextmanager
def dask_executor(address: str | None) -> Iterator[Executor | None]:
    """Connect to a Dask scheduler, and yield its executor; None without an address."""
    if not address:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise DependencyError("--cluster needs dask.distributed: pip install 'seqpoint[cluster]'") from error
    try:
        client = Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"--cluster {address}: no scheduler answers there ({error})") from error
    with client:
        yield client.get_executor(pure=False)


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


def _see(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep an option on how much is printed in the context of the command, from which `print_result` takes it."""
    if parameter.name in ("everything", "wide", "notes") and value and context.params.get("json_"):
        raise click.UsageError(f"{parameter.opts[0]} is on tables, and --json has all; leave out one")
    context.meta.setdefault(VIEW, {})[parameter.name] = value


def _view_option(flag: str, name: str, sentence: str) -> Callable[[F], F]:
    return click.option(flag, name, is_flag=True, expose_value=False, callback=_see, help=sentence)


def output_options(function: F) -> F:
    """Add the options of a command that prints a result: how much of it, in which form."""
    top = click.option(
        "--top", type=_POSITIVE, expose_value=False, callback=_see,
        help="Most rows of a table, and of a list in --json; tables are not cut to a screen then.",
    )  # fmt: skip
    everything = _view_option("--all", "everything", "Print all tables, rows and notes, beyond a screen too.")
    wide = _view_option("--wide", "wide", "Print names as long as they are.")
    notes = _view_option("--notes", "notes", "Print all notes.")
    saved = click.option(
        "--save-tables", metavar="FILE.xlsx|.md|.csv", type=click.Path(),
        help="Write the tables too, with all rows and columns.",
    )  # fmt: skip
    return saved(top(everything(notes(wide(explain_option(as_json(_saving(function))))))))


def _saving(function: F) -> F:
    """Return a command that writes its tables to the file of --save-tables."""

    @wraps(function)
    def command(*arguments: Any, save_tables: str | None, **options: Any) -> Any:
        if save_tables and options.get("json_"):
            raise click.UsageError("--save-tables is on tables, and --json prints none; leave out one")
        with saved_tables(save_tables):
            return function(*arguments, **options)

    return cast(F, command)


hardware_option = options_of(front_door.analyze, "device")
gate_option = click.option("--gate", is_flag=True, help="Exit with status 1 if a limit is not met.")
verbose_option = click.option(
    "--verbose", "-v", is_flag=True, help="Print errors by size and the names of the files too."
)
perfetto_option = click.option(
    "--perfetto",
    metavar="FILE.json",
    type=click.Path(),
    help="Write the timelines to this file, for https://ui.perfetto.dev.",
)


def _page(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Refuse a page that cannot be written, before anything is computed."""
    if path:
        from seqpoint.plots.saving import page_to_write

        page_to_write(path)
    return path


def plot_option(sentence: str) -> Callable[[F], F]:
    """Return a decorator that adds the option --plot, which names a page for charts."""
    return click.option("--plot", metavar="FILE.html", type=click.Path(), callback=_page, help=sentence)


def output_option(metavar: str, sentence: str, **changes: Any) -> Callable[[F], F]:
    """Return a decorator that adds the option --output, which is required unless settings say otherwise."""
    settings: dict[str, Any] = {"required": True, "metavar": metavar, "type": click.Path()} | changes
    return click.option("-o", "--output", help=sentence, **settings)


class Price(click.ParamType[tuple[str, float]]):
    """US dollars for an hour of a GPU, such as ``H100-SXM5-80GB=2.5``."""

    name = "device=usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the name of the device in the catalogue, and its price."""
        name, _, text = str(value).rpartition("=")
        try:
            price = float(text)
        except ValueError:
            price = 0.0
        if not name or not _CHEAPEST <= price <= _DEAREST:
            self.fail(f"{value!r} is no price of an hour of a GPU such as H100-SXM5-80GB=2.5", param, ctx)
        return find_device(name).name, price


#: US dollars for an hour of a GPU; beyond them is a mistake.
_CHEAPEST, _DEAREST = 1e-3, 1e4


def price_option(function: F) -> F:
    """Add ``--price DEVICE=USD``, which may be given for several devices; the value is a dict by device."""
    text = "US dollars for an hour of a GPU; shows tokens per $. Repeat it for other devices."
    option = click.option(
        "--price", "prices", metavar="DEVICE=USD", help=text, type=Price(), multiple=True,
        callback=lambda _context, _option, value: dict(value),
    )  # fmt: skip
    return option(function)


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
    given = set(given_options())
    options = {parameter.name: parameter.opts[0] for parameter in click.get_current_context().command.params}
    if refused := [name for name in names if name in given]:
        raise click.UsageError(f"{' and '.join(options[name] for name in refused)}: no effect {reason}")


def given_options() -> list[str]:
    """Return the names of the parameters that the command line gives, in the order of the help."""
    context = click.get_current_context()
    names = [str(parameter.name) for parameter in context.command.params]
    return [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
