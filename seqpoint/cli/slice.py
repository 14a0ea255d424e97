"""`seqpoint slice`."""

import re
from decimal import Decimal

import click

from profilers.errors import InvalidInputError
from seqpoint.cli.options import as_json
from seqpoint.cli.output import print_json, say

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def parse_time(text: str) -> int:
    """Return a time written as 1.5ms, in ns.

    Raises
    ------
    InvalidInputError
        It is no time.

    Examples
    --------
    >>> parse_time("1.5ms"), parse_time("20")
    (1500000, 20)
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ns|us|ms|s)?", text.strip())
    if found is None:
        raise InvalidInputError(f"{text!r} is no time; write it as 1.5ms or 200us")
    return int(Decimal(found.group(1)) * _UNITS[found.group(2) or "ns"])


@click.command("slice")
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@click.option("--iteration", "iterations", multiple=True, type=int, help="May be given several times.")
@click.option("--rank", "ranks", multiple=True, type=int, help="May be given several times.")
@click.option("--from", "first", metavar="TIME", help="From the start of the trace, as 1.5ms; ns without a unit.")
@click.option("--to", "last", metavar="TIME", help="As --from.")
@as_json
def command(
    trace: str,
    output: str,
    iterations: tuple[int, ...],
    ranks: tuple[int, ...],
    first: str | None,
    last: str | None,
    json_: bool,
) -> None:
    """Keep some iterations, ranks or a time of TRACE; an event that overlaps the time is kept whole.

    \b
    seqpoint slice job.trace --iteration 10 --rank 0 -o step.trace
    seqpoint slice job.trace --from 1.5ms --to 3ms -o part.trace
    """
    from profilers.arrays import integers
    from profilers.collect import open_trace
    from profilers.schema import KINDS
    from profilers.slicing import SliceOptions, slice_trace
    from profilers.store import save_trace
    from seqpoint.cli.ingest import summary

    whole = open_trace(trace)
    starts = [int(integers(whole.tables[kind], "start_ns").min()) for kind in KINDS if whole.tables[kind].num_rows]
    base = min(starts, default=0)
    options = SliceOptions(
        frozenset(iterations) or None,
        frozenset(ranks) or None,
        None if first is None else base + parse_time(first),
        None if last is None else base + parse_time(last),
    )
    part = slice_trace(whole, options)
    path = save_trace(part, output)
    rows = {kind: table.num_rows for kind, table in part.tables.items()}
    if json_:
        print_json({"path": str(path), **summary(part.meta, rows)})
    else:
        kept = sum(n for kind, n in rows.items() if kind != "iterations")
        say(f"{path}: {kept} events, ranks {list(part.meta.ranks)}, {rows['iterations']} iterations")
