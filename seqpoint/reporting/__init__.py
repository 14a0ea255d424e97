"""Reports: a self-contained page of HTML on traces, selections and projections, without access to the network."""

from seqpoint.reporting.page import ReportContent, ReportSection, write_report

__all__ = ["ReportContent", "ReportSection", "write_report"]
