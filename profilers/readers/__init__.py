"""Readers of trace files, one format a module, behind the entry points `seqpoint.readers`.

Read `common.reader` first, the protocol of a reader and of its sink. Then a small reader: `plain_csv`.
"""

from profilers.readers.common.reader import GroupReader, Head, Reader, Sink, find_reader, readers

__all__ = ["GroupReader", "Head", "Reader", "Sink", "find_reader", "readers"]
