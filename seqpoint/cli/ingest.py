"""`seqpoint ingest`."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from profilers.errors import DependencyError, InvalidInputError
from seqpoint.cli.options import as_json, reading_options
from seqpoint.cli.output import byte_progress, message, print_json, print_table, say

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """Return a size written as 500MB or 8G.

    Raises
    ------
    InvalidInputError
        It is no size.

    Examples
    --------
    >>> parse_bytes("8GB"), parse_bytes("0.5 m")
    (8000000000, 500000)
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise InvalidInputError(f"{text!r} is no size; write it as 500MB or 8GB")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """Connect to a Dask scheduler."""
    try:
        from distributed import Client
    except ImportError as error:
        raise DependencyError("--cluster needs dask.distributed: pip install 'seqpoint[cluster]'") from error
    try:
        client = Client(address, timeout="10s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"--cluster {address}: no scheduler answers there ({error})") from error
    with client:
        yield client.get_executor(pure=False)  # type: ignore[no-untyped-call]


@click.command("ingest")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, metavar="NAME.trace", type=click.Path(), help="Folder to write.")
@reading_options
@click.option("--limit", default="8GB", show_default=True, metavar="SIZE", help="What a packed file may unpack to.")
@click.option("--counters", multiple=True, metavar="FILE", type=click.Path(), help="Nsight Compute or rocprof-compute.")
@click.option(
    "--execution-trace", "traces", multiple=True, metavar="FILE", type=click.Path(), help="Chakra, a rank each."
)
@click.option("--cluster", metavar="ADDRESS", help="Read on the workers of this Dask scheduler, as tcp://host:8786.")
@as_json
def command(files: tuple[str, ...], output: str, marker: str, length: str | None, **more: Any) -> None:
    """Read FILES (or folders of them) of any profiler into one .trace folder; `seqpoint readers` lists the formats.

    Memory stays bounded whatever the size, several files are read at a time, and what was read before an
    interruption is not read again.

    \b
    seqpoint ingest rank*.json.gz -o job.trace
    seqpoint ingest epoch/ --iterations file --length aten::embedding:1:1 -o epoch.trace
    """
    # Arrow reads this when it loads; the system's allocator keeps less of what is free than Arrow's own.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from profilers.collect import CollectOptions
    from profilers.compiled import without_blas
    from profilers.ingest import ingest

    options = CollectOptions(marker, length, byte_progress("reading"), parse_bytes(more["limit"]))
    with without_blas(), _cluster(more["cluster"]) if more["cluster"] else nullcontext() as executor:
        found = ingest(files, output, options, executor=executor)
    if more["counters"] or more["traces"]:
        found = _joined(found, more["counters"], more["traces"], options)
    if found.resumed:
        message(f"{found.resumed} of {len(found.meta.sources)} files had been read before")
    if more["json_"]:
        print_json({"path": str(found.path), **summary(found.meta, found.rows)})
        return
    sources = len(found.meta.sources)
    say(f"{found.path}: {sources} files, ranks {list(found.meta.ranks)}, {found.rows['iterations']} iterations")
    print_table("Events", ("kind~", "rows"), [(kind, n) for kind, n in found.rows.items() if kind != "iterations"])
    print_table("Quality", ("count~", "n", "meaning~"), list(found.meta.quality.rows()))


def _joined(found: Any, counters: tuple[str, ...], traces: tuple[str, ...], options: Any) -> Any:
    """Join counters and execution traces to the trace just written; this holds it in memory."""
    from dataclasses import replace

    from profilers.chakra import join_execution_trace
    from profilers.collect import collect
    from profilers.counters import join_counters
    from profilers.store import load_trace, save_trace

    trace = load_trace(found.path)
    for path in counters:
        trace = join_counters(trace, collect([path], options))
    if traces:
        trace = join_execution_trace(trace, collect(traces, options))
    save_trace(trace, found.path)
    return replace(found, meta=trace.meta, rows={kind: table.num_rows for kind, table in trace.tables.items()})


def summary(meta: Any, rows: dict[str, int]) -> dict[str, Any]:
    """Return what was read, as JSON."""
    return {
        "sources": list(meta.sources),
        "ranks": list(meta.ranks),
        "world_size": meta.world_size,
        "iterations": rows["iterations"],
        "events": {kind: n for kind, n in rows.items() if kind != "iterations"},
        "quality": dict(meta.quality.counts),
        "fingerprint": meta.fingerprint,
    }
