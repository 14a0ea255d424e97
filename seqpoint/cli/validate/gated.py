"""Rows that have a limit."""

from collections.abc import Sequence

from seqpoint.cli.output import print_table
from seqpoint.validation.rows import ValidationRow

__all__ = ["show_gated"]


def show_gated(rows: Sequence[ValidationRow]) -> None:
    """Print the rows that have a limit."""
    print_table(
        "Limits",
        ("case~", "ours", "limit", "met", "from~"),
        [
            (
                row.case,
                f"{row.ours:.4g}",
                f"{'>=' if row.least else '<='} {row.limit:g}",
                "yes" if row.met else "NO",
                row.source,
            )
            for row in rows
            if row.limit is not None
        ],
    )
