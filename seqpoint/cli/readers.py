"""`seqpoint readers`."""

import inspect
from importlib.metadata import entry_points

import click

from profilers.reader import Reader, readers
from seqpoint.cli.options import as_json
from seqpoint.cli.output import print_json, print_table

__all__ = ["command"]


@click.command("readers")
@as_json
def command(json_: bool) -> None:
    """List the trace formats that can be read, the package that brings each, and why one could not be loaded.

    A package adds a format by an entry point in the group `seqpoint.readers`.

    \b
    seqpoint readers
    seqpoint readers --json
    """
    brought = {p.name: p.dist.name if p.dist else None for p in entry_points(group="seqpoint.readers")}
    rows = [
        {
            "name": name,
            "formats": _formats(reader) if isinstance(reader, Reader) else None,
            "distribution": brought.get(name),
            "error": _why_not(reader),
        }
        for name, reader in readers().items()
    ]
    if json_:
        print_json(rows)
        return
    cells = [(r["name"], r["formats"] or f"cannot be loaded: {r['error']}", r["distribution"] or "-") for r in rows]
    print_table("Readers", ("name~", "formats~", "from~"), cells)


def _why_not(reader: object) -> str | None:
    """Return why there is no reader; None where there is one."""
    if isinstance(reader, Reader):
        return None
    return str(reader) if isinstance(reader, ImportError) else "has not what a reader has: name, sniff, read"


def _formats(reader: Reader) -> str:
    """Return the first line of what the reader's class says of itself."""
    return (inspect.getdoc(type(reader)) or "").split("\n", 1)[0].replace("`", "")
