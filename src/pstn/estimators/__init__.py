"""Estimators for scikit-learn: classifiers of images and series in arrays."""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("the estimators need scikit-learn 1.6 or newer: pip install 'pstn[sklearn]'") from error

from pstn.estimators.aligning import ClassAverages, SeriesAligner, Warps
from pstn.estimators.augmenting import Augmenter
from pstn.estimators.classifiers import CNNClassifier, PSTNClassifier, STNClassifier, Uncertainty

__all__ = [
    "Augmenter", "CNNClassifier", "ClassAverages", "PSTNClassifier", "STNClassifier", "SeriesAligner", "Uncertainty",
    "Warps",
]  # fmt: skip
