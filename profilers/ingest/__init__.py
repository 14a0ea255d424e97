"""From trace files to a `Trace`.

`pipeline` drives it: `part` reads one rank with a reader, `stage` keeps its rows on disk, `linking` and `collectives`
join events, `assembly` puts the ranks together, `iterations` and `lengths` cut the run into steps.
"""

from profilers.ingest.pipeline import CollectOptions, Summary, collect, ingest, open_trace

__all__ = ["CollectOptions", "Summary", "collect", "ingest", "open_trace"]
