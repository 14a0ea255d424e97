"""From trace files to a `Trace`.

`pipeline` drives it. `recording` finds the files that are read together and reads them into a `stage`, where `linking`
and `collectives` connect the events. `assembly` puts the recordings of all ranks together, with `duplicates`,
`iterations` and `lengths`. `join` adds execution traces, and `counters` adds counters.
"""

from profilers.ingest.pipeline import IngestOptions, Summary, collect, ingest, open_trace

__all__ = ["IngestOptions", "Summary", "collect", "ingest", "open_trace"]
