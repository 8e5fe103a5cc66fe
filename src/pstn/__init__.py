"""Probabilistic Spatial Transformer Networks: networks that learn a distribution over where to look."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pstn import bench as bench, data as data, estimators as estimators, experiments as experiments  # fmt: skip
    from pstn import export as export, predict as predict, report as report, training as training  # fmt: skip
    from pstn._public import *
    from pstn._public import __all__ as __all__
    from pstn.comparison import compare as compare

    # Not in __all__: a star-import would load them all, and need scikit-learn.
    from pstn.estimators import (
        CNNClassifier as CNNClassifier, PSTNClassifier as PSTNClassifier, STNClassifier as STNClassifier,
        Augmenter as Augmenter, SeriesAligner as SeriesAligner,
    )  # fmt: skip

__version__ = "0.2.0"

_MODULES = ("bench", "data", "experiments", "export", "predict", "report", "training")
_ESTIMATORS = ("CNNClassifier", "PSTNClassifier", "STNClassifier", "SeriesAligner", "Augmenter")


def __getattr__(name: str) -> Any:
    """Load what is asked for: torch takes seconds, which a server of ONNX files does without.

    The estimators need scikit-learn, which not everybody has.
    """
    if name in _ESTIMATORS:
        return getattr(import_module(f"{__name__}.estimators"), name)
    if name == "compare":  # few need it, and it loads much of the package
        return import_module(f"{__name__}.comparison").compare
    if not name.startswith("__") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    if name.startswith("__") and name != "__all__":  # what Python itself looks for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pstn import _public
    from pstn._deprecation import old_names

    globals().update({public: getattr(_public, public) for public in _public.__all__}, __all__=_public.__all__)
    return globals()[name] if name in globals() else old_names(__name__, {"About": "ModelMetadata"})(name)


def __dir__() -> list[str]:
    """The names that are there, and the modules; not the estimators: reading all names would need scikit-learn."""
    return sorted({*globals(), *__getattr__("__all__"), *_MODULES, "compare"})
