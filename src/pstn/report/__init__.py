"""Tables and figures from result files, and what declares them."""

from pstn.report import figures, pictures
from pstn.report.results import Result, read_results
from pstn.report.statistics import Published, Summary, equivalence, holm, non_inferiority, paired
from pstn.report.tables import Claim, FigureSpec, Line, Metric, Search, Table, claim_order, lines, published_lines

# isort: split
from pstn.report.tables import variant_tables

__all__ = ["Claim", "FigureSpec", "Line", "Metric", "Published", "Result", "Search", "Summary", "Table", "claim_order",
           "equivalence", "figures", "holm", "lines", "non_inferiority", "paired", "pictures", "published_lines",
           "read_results", "variant_tables"]  # fmt: skip
