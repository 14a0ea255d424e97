"""Reports: a self-contained page of HTML on traces, selections and projections, without access to the network."""

from seqpoint.reporting.page import write_report
from seqpoint.reporting.tables import ReportContent, ReportSection

__all__ = ["ReportContent", "ReportSection", "write_report"]
