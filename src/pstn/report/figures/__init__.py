"""The figures. Each takes results of one experiment and returns a figure, or None where there is nothing to draw."""

from pstn.report.figures.calibration import draw_reliability
from pstn.report.figures.curves import draw_by_depth, draw_by_size, draw_samples_at_test, draw_variants
from pstn.report.figures.landscape import draw_landscapes
from pstn.report.figures.looks import draw_angles, draw_boxes, draw_placed
from pstn.report.figures.search import draw_search
from pstn.report.figures.series import draw_series

__all__ = [
    "draw_angles",
    "draw_boxes",
    "draw_by_depth",
    "draw_by_size",
    "draw_landscapes",
    "draw_placed",
    "draw_reliability",
    "draw_samples_at_test",
    "draw_search",
    "draw_series",
    "draw_variants",
]
