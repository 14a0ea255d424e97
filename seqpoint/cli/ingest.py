"""`seqpoint ingest`."""

from typing import Any

import click

from profilers.collect import CollectOptions, collect
from profilers.schema import KINDS
from profilers.store import save_trace
from profilers.trace import Trace
from seqpoint.cli.options import as_json, reading_options
from seqpoint.cli.output import print_json, print_table, progress, say


@click.command("ingest")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@reading_options
@as_json
def command(files: tuple[str, ...], output: str, marker: str, length: str | None, json_: bool) -> None:
    """Read FILES (PyTorch profiler .json or .json.gz, or folders of them) into one .trace folder.

    \b
    seqpoint ingest rank*.json.gz -o job.trace
    seqpoint ingest epoch/ --iterations file --length aten::embedding:1:1 -o epoch.trace
    """
    trace = collect(files, CollectOptions(marker, length, progress("reading")))
    path = save_trace(trace, output)
    if json_:
        print_json({"path": str(path), **summary(trace)})
        return
    counts = summary(trace)
    say(f"{path}: {len(trace.meta.sources)} files, ranks {counts['ranks']}, {counts['iterations']} iterations")
    print_table("Events", ("kind~", "rows"), [(kind, n) for kind, n in counts["events"].items()])
    print_table("Quality", ("count~", "n", "meaning~"), list(trace.meta.quality.rows()))


def summary(trace: Trace) -> dict[str, Any]:
    """Return what was read, as JSON."""
    return {
        "sources": list(trace.meta.sources),
        "ranks": list(trace.meta.ranks),
        "world_size": trace.meta.world_size,
        "iterations": trace.iterations.num_rows,
        "events": {kind: trace.tables[kind].num_rows for kind in KINDS},
        "quality": dict(trace.meta.quality.counts),
        "fingerprint": trace.meta.fingerprint,
    }
