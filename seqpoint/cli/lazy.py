"""Commands whose modules load when they are called, and the notice while code is compiled.

The notice that functions are compiled: the first call after an installation takes several seconds.

`LazyGroup`: a group of commands whose modules, and the libraries they need, load when they are called.
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
    """Writes one line to stderr at the first compilation."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._written = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless it has been written."""
        if not self._written:
            self._written = True
            click.echo("compiling, once after an installation: up to 10 s", err=True)


@contextmanager
def compile_notice() -> Iterator[None]:
    """Say once on stderr that functions are compiled. Functions that load from disk cause no notice."""
    notice, level = _Notice(), _LOGGER.level
    _LOGGER.addHandler(notice)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(notice)
        _LOGGER.setLevel(level)


class LazyGroup(click.Group):
    """A group whose commands load when they are called.

    Parameters
    ----------
    places : mapping of str to (str, str)
        Of a command, ``module:name`` and its line in the help.
    """

    def __init__(self, *arguments: Any, places: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of a user's work."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return one command."""
        if cmd_name not in self._places:
            return None
        module, _, name = self._places[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        ctx.with_resource(compile_notice())
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._places.items()])
