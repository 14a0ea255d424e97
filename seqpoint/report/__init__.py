"""One HTML file that shows what was read, chosen and projected; it asks the network for nothing."""

from seqpoint.report.page import write_report
from seqpoint.report.tables import ReportContent, ReportSection

__all__ = ["ReportContent", "ReportSection", "write_report"]
