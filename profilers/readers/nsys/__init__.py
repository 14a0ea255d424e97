"""Exports of Nsight Systems: a SQLite file, or a folder of tables (Parquet or Arrow)."""

from profilers.readers.nsys.reader import NsysReader, NsysTablesReader

__all__ = ["NsysReader", "NsysTablesReader"]
