"""Nsight Systems: its SQLite export, and its export to a folder of tables (Parquet or Arrow)."""

from profilers.readers.nsys.reader import NsysReader, NsysTablesReader

__all__ = ["NsysReader", "NsysTablesReader"]
