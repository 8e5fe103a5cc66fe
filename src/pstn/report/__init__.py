"""Tables and figures from result files."""

from pstn.report import pictures

__all__ = ["pictures"]
