"""What is shown while numba compiles: the first call after an installation takes up to a minute."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from numba.core.event import Event, Listener, install_listener

__all__ = ["compile_notice"]


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
