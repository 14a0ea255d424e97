"""Commands whose modules load when they are called, and the notice while code is compiled.

What is shown while numba compiles: the first call after an installation takes up to a minute.

`LazyGroup`: a group of commands whose modules, and the libraries they need, load when they are called.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from numba.core.event import Event, Listener, install_listener


class _Notice(Listener):  # type: ignore[misc]
    """Tells each outermost compilation on stderr; those of what is inlined lie within."""

    def __init__(self) -> None:
        self.depth = 0

    def on_start(self, event: Event) -> None:
        if not self.depth:
            name = event.data["dispatcher"].__name__
            click.echo(f"\r\x1b[Kcompiling {name.strip('_')}, once after an installation", nl=False, err=True)
        self.depth += 1

    def on_end(self, event: Event) -> None:
        self.depth -= 1
        if not self.depth:
            click.echo("\r\x1b[K", nl=False, err=True)


@contextmanager
def compile_notice() -> Iterator[Any]:
    """Show on stderr what is compiled; what was compiled before is loaded, and not shown."""
    with install_listener("numba:compile", _Notice()) as notice:
        yield notice


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
        if "numba" in sys.modules and sys.stderr.isatty():
            ctx.with_resource(import_module("seqpoint.cli.lazy").compile_notice())
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._places.items()])
