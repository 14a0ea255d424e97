"""The command line: parse, one library call, print.

Data goes to stdout, messages and progress to stderr. Exit 0; 1 for a `SeqPointError`, in one line; 2 for
usage; 130 when interrupted. A command's module, and the libraries it needs, load when it is called (`LazyGroup`).
Compilation, which takes up to half a minute on the first call after an installation, is announced on stderr.
"""

import gc
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from profilers.errors import SeqPointError

__all__ = ["COMMANDS", "LazyGroup", "cli", "main"]

#: The logger of `profilers.trace.compiled`, by name: importing the module would load Arrow.
_LOGGER = logging.getLogger("profilers.trace.compiled")


class _Notice(logging.Handler):
    """Log handler that prints a line on stderr at the first compilation."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._written = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line, unless it has been printed."""
        if not self._written:
            self._written = True
            click.echo("compiling, once after an installation: up to a minute", err=True)


@contextmanager
def compile_notice() -> Iterator[None]:
    """Print once on stderr that functions are compiled. Functions that load from disk cause no notice."""
    notice, level = _Notice(), _LOGGER.level
    _LOGGER.addHandler(notice)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(notice)
        _LOGGER.setLevel(level)


class LazyGroup(click.Group):
    """Group of commands whose modules load when they are called.

    Parameters
    ----------
    modules : mapping of str to (str, str)
        By name of the command: ``module:name`` of its function in this package, and its line in the help. Without a
        module, the function is here.
    """

    #: Heading of the list of commands.
    heading = "Commands"

    def __init__(self, *arguments: Any, modules: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of a user's tasks."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return a command."""
        if cmd_name not in self._modules:
            return None
        module, _, name = self._modules[cmd_name][0].partition(":")
        command = getattr(import_module(f".{module}", __name__), name)
        assert isinstance(command, click.Command)
        if ctx.parent is None:
            ctx.with_resource(compile_notice())
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, without loading any; options, and files for a trace without a command."""
        found = [
            CompletionItem(name, help=text) for name, (_, text) in self._modules.items() if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without loading any."""
        with formatter.section(self.heading):
            formatter.write_dl([(name, text) for name, (_, text) in self._modules.items()])


#: By name of a command: its function, and its line in the help, as `LazyGroup` takes them.
COMMANDS: dict[str, tuple[str, str]] = {
    "ingest": ("traces:ingest_command", "Read trace files into a .trace folder."),
    "merge": ("traces:merge_command", "Merge traces of different ranks."),
    "slice": ("traces:slice_command", "Cut iterations, ranks or a time span out of a trace."),
    "export": ("traces:export_command", "Write a trace for Perfetto, or as Chakra execution traces."),
    "advise": ("analyze:advise_command", "Say what limits the step, what to do first, what is not worth it."),
    "describe": ("analyze:describe_command", "Show devices, steps, kernels by class, overlap and data quality."),
    "characterize": (
        "analyze:characterize_command",
        "Show where the time goes: operators, shapes, modules, phases.",
    ),
    "sql": ("agents:sql_command", "Run a SELECT of SQL over the events of a trace."),
    "iterations": ("select:iterations_command", "List the iterations with their lengths and statistics."),
    "lengths": ("select:lengths_command", "List what could be the sequence length, by its correlation with time."),
    "select": ("select:select_command", "Select the iterations that stand for the run (SeqPoints)."),
    "estimate": ("select:estimate_command", "Estimate a run's total from a selection made on another run."),
    "replay": ("analyze:replay_command", "Replay iterations unchanged, and compare with what was measured."),
    "analyze": ("analyze:analyze_command", "Show the critical path, overlap and idle time of a step."),
    "gemms": (
        "analyze:gemms_command",
        "List the GEMMs of a trace: efficiency, waves, tail, why they are slow.",
    ),
    "compare": ("analyze:compare_command", "Show what changed between two traces, and whether it is more than noise."),
    "serving": ("serving:command", "Show prefill and decode of an engine, and the engine under load."),
    "project": ("project:project_command", "Project the speed-up of what-ifs, with intervals."),
    "what-ifs": ("project:what_ifs_command", "List the what-ifs, or describe one."),
    "sweep": ("scaling:sweep_command", "Time thousands of scenarios: sizes of a job, devices, what-ifs."),
    "synthesize": ("synthesize:command", "Predict a training job without running it, and write its trace."),
    "scaling": (
        "scaling:scaling_command",
        "Scale a job or a trace: hidden size, GPUs, hardware; share of communication.",
    ),
    "simulate": (":simulate", "Simulate caches and memory under an operator, without a trace."),
    "validate": ("validate:command", "Score predictions against measurements."),
    "calibrate": ("calibrate:command", "Fit models to your own measurements."),
    "devices": ("listings:devices_command", "List the device catalogue."),
    "readers": ("listings:readers_command", "List the trace formats that can be read."),
    "selectors": ("listings:selectors_command", "List the selectors of iterations."),
    "doctor": ("listings:doctor_command", "Check the installation: versions, extras, tools, caches."),
    "completion": (":completion", "Print the completion of commands for bash, zsh or fish."),
    "formats": ("listings:formats_command", "List the data formats, or what each makes of an array."),
    "report": ("project:report_command", "Write a report as a self-contained page of HTML."),
    "mcp": ("agents:mcp_command", "Serve a folder of traces to agents (Model Context Protocol)."),
    "demo": ("demo:command", "Run the whole path on the data that the project ships."),
}


class _Commands(LazyGroup):
    """The commands; a trace without a command is advised on."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments."""
        is_path = Path(args[0]).exists() or not {".", "/", os.sep}.isdisjoint(args[0])
        is_trace = is_path and args[0] not in self.list_commands(ctx)
        return super().resolve_command(ctx, ["advise", *args] if is_trace else args)


@click.group(cls=_Commands, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seqpoint")
def cli() -> None:
    """Profile GPU jobs from their traces: select iterations, replay them, and project what-ifs.

    Start with `seqpoint TRACE.json.gz`: what limits the step, and what to do first. `seqpoint demo` shows the rest on
    data that the project ships.
    """


@click.group(
    "simulate",
    cls=LazyGroup,
    modules={
        "memory": ("simulate_memory:memory", "Run the accesses of an operator through caches and DRAM."),
        "kernel": ("simulate_kernel:kernel", "Execute and time kernels in PTX."),
    },
)
def simulate() -> None:
    """Simulate an operator of known shape, or a kernel in PTX, without a trace and without the device.

    \b
    seqpoint simulate memory gemm 4096 4096 4096 --device A100-SXM4-80GB
    seqpoint simulate kernel softmax.toml --device V100-SXM2-16GB
    """


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion of commands, options, what-ifs and devices for a shell, to be read when it starts.

    \b
    seqpoint completion bash >> ~/.bashrc
    seqpoint completion zsh >> ~/.zshrc
    seqpoint completion fish > ~/.config/fish/completions/seqpoint.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "seqpoint", "_SEQPOINT_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    # Imports make a million objects that stay. Collecting garbage among them took a twelfth of the start-up time.
    gc.set_threshold(100_000, 20, 20)
    try:
        status = cli.main(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except SeqPointError as error:
        printable = "".join(c if c.isprintable() else " " for c in str(error))
        click.echo(f"seqpoint: {' '.join(printable.split())}", err=True)
        status = 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("seqpoint: interrupted", err=True)
        status = 130
    except BrokenPipeError:
        # The reader of our output went away (`seqpoint ... | head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status if isinstance(status, int) else 0)
