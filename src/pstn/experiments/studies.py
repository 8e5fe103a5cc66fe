"""What is compared with what: each experiment with the paper's claims, its tables beside the published, its figures."""

from __future__ import annotations

from functools import partial

from pstn.experiments import published
from pstn.experiments.ablations_study import ABLATIONS
from pstn.experiments.metrics import ACCURACY, ECE, ECE10, NLL, SCORES
from pstn.experiments.time_series import NO_TEST
from pstn.report import figures
from pstn.report.study import Drawing, Line, Mean, Metric, Order, Paper, Search, Study, Table
from pstn.training.runs.sweep import AUTHORS_KL_WEIGHTS

__all__ = ["INTRODUCTION", "STUDIES", "TITLE"]

TITLE = "Probabilistic Spatial Transformer Networks, reproduced"
INTRODUCTION = (
    "The experiments of “Probabilistic Spatial Transformer Networks” (Schwöbel, Warburg, Jørgensen, Madsen and "
    "Hauberg, UAI 2022): our runs beside the published numbers."
)

MODELS = ("CNN", "STN", "P-STN")
TRANSFORMERS = MODELS[1:]


def _unpublished(metric: Metric, data: tuple[str, ...], models: tuple[str, ...] = MODELS) -> tuple[Line, ...]:
    return tuple(Line(model, name, metric) for name in data for model in models)


# --- Rotated MNIST -------------------------------------------------------------------------------------------------

_WRAPPED = Metric("error_wrapped", "error of the angle, wrapped", digits=2)
_LARGER = Metric(
    "larger_variance", "larger variance where badly localised (%)", scale=100, digits=1, higher_is_better=None
)
_ROTATED = {
    (model, data): Line(model, data, ACCURACY, paper=paper) for (model, data), paper in published.ROTATED.items()
}
_ANGLE_ERROR = {
    model: Line(model, "rotated", Metric("error_mod_pi", "error of the angle, mod π", digits=2), paper=paper)
    for model, paper in published.ROTATED_ERROR.items()
}
_WRAPPED_ERROR = {model: Line(model, "rotated", _WRAPPED) for model in TRANSFORMERS}

ROTATED_MNIST = Study(
    "rotated-mnist",
    "Rotated MNIST, frozen classifier",
    "A classifier trained on upright digits is frozen; localizers of about 72 thousand parameters learn to undo "
    "rotations with nothing but the class labels. The paper claims that the P-STN localises better than the STN and "
    "is more accurate, and that its variance is larger, by 17%, where it localises badly.",
    tables=(
        Table(
            "Rotated MNIST",
            (
                *_ROTATED.values(), *_ANGLE_ERROR.values(), *_WRAPPED_ERROR.values(),
                Line("P-STN", "rotated", _LARGER, paper=published.ROTATED_LARGER_VARIANCE),
            ),
            notes=(
                "The paper’s error is the mean of |true angle − recovered angle| mod π, which scores a small error "
                "across the wrap as 3.1 and an upside-down digit as 0. The wrapped error is the distance on the "
                "circle.",
            ),
        ),
    ),
    orders=(
        Order(_ROTATED["P-STN", "rotated"], _ROTATED["STN", "rotated"]),
        Order(_ROTATED["STN", "rotated"], _ROTATED["CNN", "rotated"]),
        Order(_ANGLE_ERROR["P-STN"], _ANGLE_ERROR["STN"]),
        Order(_WRAPPED_ERROR["P-STN"], _WRAPPED_ERROR["STN"], claimed=False),
    ),
    drawings=(
        Drawing(
            "rotated-mnist",
            "Left: true against recovered angle for 1,000 test images; on the dotted line it is recovered exactly. "
            "Right: eight inputs, and each under five samples of the P-STN’s transformation. Below: the variance β of "
            "the better (filled) and the worse localised half (hatched).",
            figures.draw_angles,
        ),
    ),
)  # fmt: skip

# --- Random placement FashionMNIST ---------------------------------------------------------------------------------

_PLACED = {(model, data): Line(model, data, ACCURACY, paper=paper) for (model, data), paper in published.PLACED.items()}

_POSITION = Metric("position_error", "error of the position (pixels)", digits=2)
_SCALE = Metric("scale_error", "error of the scale")

PLACED_FASHION = Study(
    "placed-fashion",
    "Random placement FashionMNIST, frozen classifier",
    "A garment is placed at random on a larger black canvas; localizers of about 193 thousand parameters learn to find "
    "it for a frozen classifier. The paper claims that both succeed, the P-STN slightly better.",
    tables=(
        Table(
            "Random placement FashionMNIST",
            (
                *_PLACED.values(),
                *_unpublished(_POSITION, ("placed",), TRANSFORMERS),
                *_unpublished(_SCALE, ("placed",), TRANSFORMERS),
            ),
        ),
    ),
    orders=(Order(_PLACED["P-STN", "placed"], _PLACED["STN", "placed"]),),
    drawings=(
        Drawing(
            "placed-fashion",
            "Inputs with the outlines that the P-STN sampled, and below what the classifier saw through five of them.",
            figures.draw_placed,
        ),
    ),
)  # fmt: skip

# --- Traffic signs -------------------------------------------------------------------------------------------------

_PHOTOS = "stand-in photos"
_SIGNS = {
    (model, metric.name): Line(model, _PHOTOS, metric, paper=paper)
    for at, metric in enumerate((ACCURACY, NLL))
    for model, paper in ((model, numbers[at]) for model, numbers in published.TRAFFIC_SIGNS.items())
}
_IOU = Metric("iou", "overlap with the true box (IoU)", higher_is_better=True)

TRAFFIC_SIGNS = Study(
    "traffic-signs",
    "Traffic signs, on stand-in photos (not MTSD)",
    "A ResNet-18 trained on tight crops is frozen; localizers learn to find the sign in a larger crop. The paper uses "
    "the Mapillary Traffic Sign Dataset (MTSD) and claims that the P-STN is ahead of the STN, and both far ahead of "
    "the CNN. These are other photos, with their own classes, counts and splits: the paper’s numbers are shown for "
    "orientation, and nothing is tested against them.",
    tables=(
        Table(
            "Traffic signs, stand-in photos",
            (
                *(Line("classifier", "tight boxes", metric) for metric in (ACCURACY, NLL)),
                *_SIGNS.values(),
                *_unpublished(_IOU, (_PHOTOS,), TRANSFORMERS),
            ),
            incomparable={_PHOTOS: "other data"},
        ),
    ),
    orders=tuple(
        Order(_SIGNS[better, metric.name], _SIGNS[worse, metric.name], comparable=False)
        for metric in (ACCURACY, NLL)
        for better, worse in (("P-STN", "STN"), ("STN", "CNN"))
    ),
    drawings=(Drawing("traffic-signs", "Test photos with the boxes that the P-STN sampled.", figures.draw_boxes),),
)

# --- Table 1: MNIST subsets ----------------------------------------------------------------------------------------

_SUBSETS = {
    (model, name): Line(model, name, ACCURACY, paper=papers[model])
    for name, papers in published.TABLE_1.items()
    for model in MODELS
}
_SIZES = tuple(published.TABLE_1)
_TABLE_1 = Table("MNIST subsets", tuple(_SUBSETS.values()))
_VALIDATION = (
    Metric("valid_nll", "validation NLL"),
    Metric("valid_accuracy", "validation accuracy (%)", scale=100, higher_is_better=True),
)

MNIST_SUBSETS = Study(
    "mnist-subsets",
    "MNIST subsets",
    "CNN, STN and P-STN of about 28 thousand parameters learn from 30 to 10,000 digits, five folds each. The paper "
    "claims that the P-STN is the most accurate on small sets and that the differences vanish on large ones, that the "
    "STN stays behind the CNN, and that the optimal w falls as the data grow.",
    tables=(_TABLE_1, *(Table("MNIST subsets", _unpublished(metric, _SIZES)) for metric in (NLL, ECE))),
    orders=(
        # By the bold numbers of its table: the P-STN's is the best alone on the small sets, together with the CNN on
        # the large ones, and the CNN is ahead of the STN on all.
        *(Order(_SUBSETS["P-STN", name], _SUBSETS["CNN", name]) for name in _SIZES[:3]),
        *(Order(_SUBSETS[model, name], _SUBSETS["STN", name]) for model in ("P-STN", "CNN") for name in _SIZES),
    ),
    drawings=(
        Drawing(
            "mnist-subsets",
            "Test accuracy by the number of training images, mean ± one standard deviation over five folds; hollow: "
            "the paper’s. The scale is that of the errors’ logarithm, which spreads out what is near 100%.",
            partial(figures.draw_by_size, table=_TABLE_1),
        ),
    ),
    search=Search("mnist-subsets-search", "w", _VALIDATION, published.TABLE_1_W, AUTHORS_KL_WEIGHTS),
)

# --- Table 2: UCR time series --------------------------------------------------------------------------------------

_SERIES = {
    (model, name): Line(model, name, ACCURACY, paper=papers[model])
    for name, papers in published.TABLE_2.items()
    for model in MODELS
}
_SETS = tuple(published.TABLE_2)
_OTHER_TEST_PART = "UWaveGestureLibraryX"


def _means(row: str, names: tuple[str, ...], papers: dict[str, Paper]) -> dict[str, Mean]:
    return {model: Mean(tuple(_SERIES[model, name] for name in names), row, papers.get(model)) for model in MODELS}


_MEAN = _means("Mean", _SETS, published.TABLE_2_MEAN)
_MEAN_OF_FOUR = _means("Mean of the other four", tuple(name for name in _SETS if name != _OTHER_TEST_PART), {})

TIME_SERIES = Study(
    "time-series",
    "UCR time series",
    "CNN, STN and P-STN of about 1.2 million parameters classify series; the transformations are diffeomorphisms of "
    "time. The paper claims the highest mean accuracy for the P-STN, then the STN, then the CNN.",
    tables=(
        Table(
            "UCR series",
            (*_SERIES.values(), *_MEAN.values(), *_MEAN_OF_FOUR.values()),
            incomparable_where={NO_TEST: "other test part"},
            notes=(
                f"The last row leaves out {_OTHER_TEST_PART}, whose test part is not in every copy of the archive. A "
                "set without one is trained and tested on a split of its training part, and is then not tested against "
                "the paper’s, nor is the mean that holds it.",
            ),
        ),
        *(Table("UCR series", _unpublished(metric, _SETS)) for metric in (NLL, ECE)),
    ),
    orders=tuple(
        Order(mean[better], mean[worse], claimed=mean is _MEAN)
        for mean in (_MEAN, _MEAN_OF_FOUR)
        for better, worse in (("P-STN", "STN"), ("STN", "CNN"))
    ),
    drawings=(
        Drawing("time-series", "A test series of each set, and three samples of it by the P-STN.", figures.draw_series),
    ),
    search=Search("time-series-search", "w", _VALIDATION, published.TABLE_2_W, AUTHORS_KL_WEIGHTS),
)

# --- Calibration ---------------------------------------------------------------------------------------------------

_CALIBRATION = {
    (model, variant): Line(model, "MNIST100", ECE10, variant, paper)
    for (model, variant), paper in published.CALIBRATION_ERROR.items()
}

CALIBRATION = Study(
    "calibration",
    "Calibration on MNIST100",
    "Confidence against accuracy of the models trained on 100 digits. The paper claims that both P-STNs, the more "
    "accurate (w = 0.0003) and the better calibrated (w = 0.0001), are better calibrated than the CNN and the STN.",
    tables=(
        Table(
            "MNIST100",
            tuple(_CALIBRATION.values()),
            notes=("The paper does not say how many bins it took; it is compared with ours in 10 bins.",),
        ),
        Table(
            "MNIST100",
            tuple(
                Line(model, "MNIST100", metric, variant, row=f"{model} {variant}".strip(), column=metric.label,
                     rivals=metric.name)
                for model, variant in _CALIBRATION for metric in SCORES
            ),
            row_label="model",
        ),
    ),
    orders=tuple(
        Order(_CALIBRATION["P-STN", variant], _CALIBRATION[other, ""])
        for variant in ("w=0.0003", "w=0.0001") for other in ("CNN", "STN")
    ),
    drawings=(
        Drawing(
            "calibration",
            "Accuracy by confidence in 15 bins, five folds together; dotted: perfect calibration. Below: the share of "
            "the predictions in each bin. The calibration errors (ECE) are those of the table, in 10 bins.",
            figures.draw_reliability,
        ),
    ),
)  # fmt: skip

# --- Failure mode by depth -----------------------------------------------------------------------------------------

_DEPTHS = range(1, 6)


def _by_depth(metric: Metric, columns: dict[str, tuple[str, str]]) -> dict[tuple[str, int], Line]:
    """A line for each depth and column; a column is a model on data."""
    return {
        (column, depth): Line(
            model, data, metric, f"depth={depth}", row=f"{depth} layer{'s' * (depth > 1)}", column=column
        )
        for depth in _DEPTHS
        for column, (model, data) in columns.items()
    }


_LOCALIZED = {"STN": ("STN", "rotated"), "P-STN": ("P-STN", "rotated")}
_ALONE = {"NN, upright": ("NN", "upright"), "NN, rotated": ("NN", "rotated")}
_ACCURACY_BY_DEPTH = _by_depth(ACCURACY, _ALONE | _LOCALIZED)
_ANGLES_BY_DEPTH = _by_depth(
    Metric("angle_variance", "variance of the recovered angle", higher_is_better=True), _LOCALIZED
)
_DEPTH_TABLES = tuple(
    Table("Failure mode", tuple(lines.values()), "classifier", robust=True, bold=False)
    for lines in (_ACCURACY_BY_DEPTH, _ANGLES_BY_DEPTH)
)

FAILURE_MODE = Study(
    "failure-mode",
    "A typical failure mode: the identity",
    "Nothing is frozen; classifiers of one to five linear layers learn rotated MNIST. The paper claims that the STN "
    "comes to apply the identity, the sooner the deeper the classifier, and that the P-STN stays above it. It gives a "
    "figure, no numbers.",
    tables=_DEPTH_TABLES,
    orders=tuple(Order(_ACCURACY_BY_DEPTH["P-STN", d], _ACCURACY_BY_DEPTH["STN", d], robust=True) for d in _DEPTHS),
    drawings=(
        Drawing(
            "failure-mode",
            "Accuracy and the variance of the recovered angle by the depth of the classifier, median ± one median "
            "absolute deviation over five runs. A variance near 0 is the identity.",
            partial(figures.draw_by_depth, tables=_DEPTH_TABLES),
        ),
    ),
)

# --- Loss landscape ------------------------------------------------------------------------------------------------

_LANDSCAPES = {
    (model, data, metric.name): Line(model, data, metric)
    for metric in (
        Metric("minima", "local minima per image", digits=2),
        Metric("roughness", "ups and downs of the loss per image (nats)", digits=1),
    )
    for data in ("angle", "translation")
    for model in TRANSFORMERS
}

LOSS_LANDSCAPE = Study(
    "loss-landscape",
    "Loss landscape",
    "The loss of a fixed classifier over one parameter of the transformation. The paper claims that the P-STN’s, which "
    "averages over nearby transformations, is smoother and has fewer local minima. It gives a figure, no numbers; here "
    "they are counted.",
    tables=(Table("Loss landscape", tuple(_LANDSCAPES.values())),),
    orders=tuple(
        Order(line, _LANDSCAPES["STN", data, name])
        for (model, data, name), line in _LANDSCAPES.items()
        if model == "P-STN"
    ),
    drawings=(
        Drawing(
            "loss-landscape",
            "For four test images, the loss along the angle (rotated images) and along a translation (upright ones): "
            "of the STN at that point, and of the P-STN’s average around it.",
            figures.draw_landscapes,
        ),
    ),
)

STUDIES = (
    ROTATED_MNIST, PLACED_FASHION, TRAFFIC_SIGNS, MNIST_SUBSETS, TIME_SERIES, CALIBRATION, FAILURE_MODE,
    LOSS_LANDSCAPE, ABLATIONS,
)  # fmt: skip
"""All experiments, in the paper's order."""
