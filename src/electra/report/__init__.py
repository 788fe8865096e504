"""Run folders as pages for people."""

from electra.report.page import write_report

__all__ = ["write_report"]
