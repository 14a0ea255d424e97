"""Traces: reading the files of profilers, recording, synthesising and writing.

In the order of reading: `trace` is the data model, `readers` has one reader a format, `ingest` turns files into a
trace. `record` records iterations of a running job, `synthetic` makes traces of jobs that nobody ran, `writers` cuts,
merges and exports traces, `devices` is the catalogue of GPUs.
"""
