"""Traces: reading the files of profilers, recording and writing.

    files of a profiler --readers--> batches of events --ingest--> Trace --writers--> files for other tools

In the order of reading: `trace` is the data model, `readers` has one reader a format, `ingest` turns files into a
trace. `record` records iterations of a running job, `writers` cuts, merges and exports traces, `devices` is the
catalogue of GPUs. Traces of jobs that nobody ran are those of `replay.workloads`.
"""
