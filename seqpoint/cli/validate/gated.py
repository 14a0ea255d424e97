"""Rows that have a limit."""

from collections.abc import Sequence

import click

from seqpoint.cli.output import message, print_table
from seqpoint.validation.rows import ValidationRow, all_met


def show_gated(rows: Sequence[ValidationRow]) -> None:
    """Print the rows that have a limit, if there are any."""
    gated = [row for row in rows if row.limit is not None]
    if not gated:
        return
    print_table(
        "Limits",
        ("case~", "ours", "limit", "met"),
        [
            (
                row.case,
                # A count stays one, however large.
                f"{row.ours:.0f}" if row.ours >= 1000 else f"{row.ours:.3g}",
                f"{'>=' if row.least else '<='} {row.limit:g}",
                "yes" if row.met else "NO",
            )
            for row in gated
        ],
    )


def exit_unless_met(context: click.Context, rows: Sequence[ValidationRow]) -> None:
    """Exit 1 where a limit is missed; say so where nothing has one."""
    if all(row.limit is None for row in rows):
        message("note: no limit applies to these measurements, so --gate checks nothing")
    if not all_met(rows):
        context.exit(1)
