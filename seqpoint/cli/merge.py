"""`seqpoint merge`."""

import click

from seqpoint.cli.options import as_json
from seqpoint.cli.output import print_json, say


@click.command("merge")
@click.argument("traces", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@click.option("--as-ranks", "renumber", is_flag=True, help="Number the traces as ranks 0, 1, ... in their order.")
@as_json
def command(traces: tuple[str, ...], output: str, renumber: bool, json_: bool) -> None:
    """Put TRACES of different ranks together: ids of their own, one clock, collectives matched anew.

    \b
    seqpoint merge node0.trace node1.trace -o job.trace
    seqpoint merge run-a.trace run-b.trace --as-ranks -o both.trace
    """
    from profilers.collect import open_trace
    from profilers.merging import as_ranks, merge
    from profilers.store import save_trace
    from seqpoint.cli.ingest import summary

    opened = [open_trace(path) for path in traces]
    merged = merge(as_ranks(opened) if renumber else opened)
    path = save_trace(merged, output)
    if json_:
        rows = {kind: table.num_rows for kind, table in merged.tables.items()}
        print_json({"path": str(path), **summary(merged.meta, rows)})
    else:
        say(
            f"{path}: ranks {list(merged.meta.ranks)}, {merged.meta.quality['collectives_matched']} collectives matched"
        )
