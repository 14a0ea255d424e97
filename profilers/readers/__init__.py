"""Readers of trace files, one format a module, behind the entry points `seqpoint.readers`."""
