"""`seqpoint export`."""

from pathlib import Path

import click

from profilers.errors import InvalidInputError
from seqpoint.cli.options import as_json
from seqpoint.cli.output import print_json, say


@click.command("export")
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(), help=".json, .json.gz or .et")
@as_json
def command(trace: str, output: str, json_: bool) -> None:
    """Write TRACE for other tools: JSON for ui.perfetto.dev, or Chakra execution traces, a file a rank.

    A .trace folder is Parquet and needs no export for pandas, polars or duckdb.

    \b
    seqpoint export job.trace -o job.json.gz
    seqpoint export job.trace -o job.et
    """
    from profilers.chakra.writer import export_chakra
    from profilers.collect import open_trace
    from profilers.perfetto_json import export_perfetto

    path = Path(output)
    if path.name.endswith((".json", ".json.gz")):
        export_perfetto(open_trace(trace), path)
        written = [path]
    elif path.suffix == ".et":
        written = export_chakra(open_trace(trace), path)
    else:
        raise InvalidInputError(f"{output}: the name must end in .json, .json.gz or .et, which says the format")
    sizes = {str(one): one.stat().st_size for one in written}
    if json_:
        print_json({"files": sizes})
    else:
        for name, size in sizes.items():
            say(f"{name}: {size:,} bytes")
