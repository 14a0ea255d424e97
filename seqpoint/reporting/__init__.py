"""One HTML file that shows what was read, chosen and projected; it asks the network for nothing."""

from seqpoint.reporting.page import write_report
from seqpoint.reporting.tables import ReportContent, ReportSection

__all__ = ["ReportContent", "ReportSection", "write_report"]
