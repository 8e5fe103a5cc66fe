"""What is compared with what beyond the paper: each choice of the ablations, in a table of its own."""

from __future__ import annotations

from functools import partial

from pstn.experiments.runner import SCORES
from pstn.report import figures
from pstn.report.tables import Drawing, Study

__all__ = ["ABLATIONS"]

_ABLATED = {
    "MNIST100": (
        ("STN", "posterior=point"), ("P-STN", "posterior=global"), ("P-STN", "posterior=per-input"),
        ("P-STN", "precision=per-input"), ("P-STN", "precision=per-parameter"),
        ("P-STN", "noise=gaussian"), ("P-STN", "noise=student-t"),
        ("CNN", "augmentation=none"), ("CNN", "augmentation=fixed"), ("P-STN", "augmentation=learned"),
        ("P-STN", "sampling=iid"), ("P-STN", "sampling=sobol"),
    ),
    "rotated": (("P-STN", "dropout=on"), ("P-STN", "dropout=off")),
}  # fmt: skip

ABLATIONS = Study(
    "ablations",
    "Ablations",
    "Beyond the paper: what each choice is worth, one changed at a time. A point, a global and a per-input posterior; "
    "one precision per input or per parameter; Gaussian or Student-t; no augmentation, a fixed one with as many "
    "copies in training and testing, or the learned one; independent or Sobol samples; dropout in the frozen "
    "classifier; the number of samples in testing.",
    by_variant=SCORES,
    variants=tuple((data, model, variant) for data, cells in _ABLATED.items() for model, variant in cells),
    drawings=(
        Drawing(
            "ablations",
            "Each variant, mean ± one standard deviation over five runs. The P-STN’s posterior per input, precision "
            "per parameter, Student-t noise and learned augmentation are the same five runs under four names.",
            partial(figures.draw_variants, metrics=SCORES),
        ),
        Drawing(
            "ablations-samples",
            "Scores by the number of samples in testing, mean ± one standard deviation over the runs that are named.",
            partial(figures.draw_samples_at_test, metrics=SCORES),
        ),
    ),
)
