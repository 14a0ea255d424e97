"""Start-up of the command line: commands load when they are called, and compilation is announced.

`LazyGroup` knows the commands by name and imports the module of a command, and the libraries it needs, when it is
called. `compile_notice` prints a line on stderr if functions are compiled meanwhile, which takes up to half a minute on
the first call after an installation.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

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
        By name of the command: ``module:name`` of its function, and its line in the help.
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
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        if ctx.parent is None:
            ctx.with_resource(compile_notice())
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without loading any."""
        with formatter.section(self.heading):
            formatter.write_dl([(name, text) for name, (_, text) in self._modules.items()])
