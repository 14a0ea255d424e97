"""Readers of trace files, one format a module, behind the entry points `seqpoint.readers`.

Read `common.reader` first: what a reader is, and what it is given. Then a small one: `plain_csv`.
"""

from profilers.readers.common.reader import GroupReader, Head, Reader, Sink, find_reader, readers

__all__ = ["GroupReader", "Head", "Reader", "Sink", "find_reader", "readers"]
