"""Table 2 and its figure: CNN, STN and P-STN on series of the UCR archive (section 5.2.2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from pstn.data import DataWarning, Split, stratified_indices
from pstn.experiments.declare import Experiment, Probe, Task, Training
from pstn.experiments.lab import Lab
from pstn.experiments.mnist_subsets import PRECISIONS, as_validation
from pstn.experiments.scores import Found, rounded
from pstn.nn import PSTN, STN, SeriesClassifier, SeriesLocalizer, SpatialTransformer
from pstn.training import Recipe
from pstn.training.runs.sweep import AUTHORS_KL_WEIGHTS
from pstn.transforms import CPAB

__all__ = ["NO_TEST", "SEARCH", "TIME_SERIES", "make_cnn", "make_pstn", "make_stn"]

# "which we use to find the optimal w via grid-search; those are [0.0001, 1e-05, 0.001, 0.0, 0.0001]"
WEIGHTS = {
    "FaceAll": 1e-4, "Wafer": 1e-5, "UWaveGestureLibraryX": 1e-3, "TwoPatterns": 0.0, "PhalangesOutlinesCorrect": 1e-4,
}  # fmt: skip
RECIPE = Recipe(epochs=200, batch_size=16, samples=10, precision="tf32")
LR, LOCALIZER_LR, WEIGHT_DECAY = 1e-3, 0.1, 0.0
VALIDATION = 0.25
# The classifier gives up filters for what the localizer takes: about 1.2 million parameters each.
WITH_LOCALIZER = (196, 256, 256, 256, 64)

_DEPARTURES = ("Matrix products are in TF32 on the GPU, in float32 elsewhere.",)
NO_TEST = "Trained on 75% of the training part and tested on the other 25%: the archive's test part was not to be had."


def _parts(lab: Lab, name: str, *, search: bool) -> tuple[Split, Split, list[str]]:
    """What to train on, what to measure on, and what is odd about the files."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        train, validation, test = lab.data(name, validation=VALIDATION, need_test=False, fetch=False)
    # A warning names the file, then says what is odd: the path is nobody's business.
    notes = [
        f"One file of the data {str(w.message).split(': ', 1)[-1]}."
        for w in caught
        if issubclass(w.category, DataWarning)
    ]
    if not search:
        return (train, test, notes) if test is not None else (train, validation, [*notes, NO_TEST])
    if test is None:  # the validation part is the test part then: the search has to make do with the rest
        rest, held_out = stratified_indices(train.y, VALIDATION)
        return train.take(rest), train.take(held_out), notes
    return train, validation, notes


def series(name: str, *, search: bool = False) -> Callable[[Lab], Task]:
    """Three quarters of the training part to learn from; the test part to measure on, in a search the last quarter."""

    def load(lab: Lab) -> Task:
        def make() -> Task:
            train, test, notes = _parts(lab, name, search=search)
            return Task(train.x, train.y, test, train.name, batch=100, notes=tuple(notes), classes=len(train.classes))

        return lab.keep(("series", name, search), make)

    return load


def _padded(length: int) -> bool:
    """The authors' convolutions have no padding; the 24 values of the set that ships with the package need some."""
    return length < sum(kernel - 1 for kernel in (8, 8, 5, 5, 3)) + 1


def make_cnn(classes: int, length: int) -> nn.Module:
    """The classifier alone."""
    return SeriesClassifier(1, classes, padded=_padded(length))


def _layer(length: int, *, probabilistic: bool) -> SpatialTransformer:
    """1-D CPAB in 10 cells with a zero boundary, D = 9; the mean starts at 1e-5, the variance at softplus(-5)."""
    layer = SpatialTransformer(
        CPAB(tess=10, zero_boundary=True), SeriesLocalizer(1, padded=_padded(length)), (length,),
        probabilistic=probabilistic, var_init=-5.0, padding_mode="border",
    )  # fmt: skip
    nn.init.constant_(layer.mean_head.last.bias, 1e-5)
    return layer


def make_stn(classes: int, length: int) -> nn.Module:
    """The STN."""
    return STN(_layer(length, probabilistic=False), _reader(classes, length))


def _reader(classes: int, length: int) -> SeriesClassifier:
    return SeriesClassifier(1, classes, filters=WITH_LOCALIZER, padded=_padded(length))


def make_pstn(classes: int, length: int) -> nn.Module:
    """The P-STN, ten samples in training and at test."""
    return PSTN(_layer(length, probabilistic=True), _reader(classes, length), train_samples=10, test_samples=10)


def _augmentations(probe: Probe) -> Found:
    """One test series and three samples of it, for the figure."""
    if probe.cell.seed != 0:
        return {}, {}
    x = probe.task.test.batch([0]).x.cpu()
    layer = probe.model.get_submodule("layer")
    with torch.no_grad():
        warped = layer(x, samples=3, generator=torch.Generator().manual_seed(0)).warped  # (3, 1, 1, L)
    return {}, {"series": rounded(x[0, 0]), "warped": rounded(warped[:, 0, 0])}


def _of_set(name: str, weight: float) -> tuple[Training, ...]:
    task = series(name)

    def sizes(lab: Lab) -> tuple[int, int]:
        loaded = task(lab)
        return loaded.classes, loaded.x.shape[-1]

    cnn = Training(
        "time-series", "CNN", name, task, lambda lab, seed: make_cnn(*sizes(lab)), RECIPE,
        lr=LR, localizer_factor=LOCALIZER_LR, weight_decay=WEIGHT_DECAY, stacked=False,
        departures=_DEPARTURES,
    )  # fmt: skip
    stn = replace(cnn, model="STN", make=lambda lab, seed: make_stn(*sizes(lab)))
    pstn = replace(
        cnn, model="P-STN", make=lambda lab, seed: make_pstn(*sizes(lab)), variants={"": weight},
        measures=(_augmentations,), departures=(*_DEPARTURES, PRECISIONS),
    )  # fmt: skip
    return cnn, stn, pstn


def _search(name: str) -> Training:
    pstn = _of_set(name, 0.0)[-1]
    return replace(
        pstn, experiment="time-series-search", task=series(name, search=True), measures=(as_validation,),
        variants={f"w={w:g}": w for w in AUTHORS_KL_WEIGHTS},
    )  # fmt: skip


TIME_SERIES = Experiment(
    "time-series",
    "Table 2: accuracy on five sets of the UCR archive, five repetitions each",
    needs=tuple(WEIGHTS),
    groups=tuple(group for name, weight in WEIGHTS.items() for group in _of_set(name, weight)),
    quick=("faceall-cnn", "faceall-stn", "faceall-p-stn"),
)
SEARCH = Experiment(
    "time-series-search",
    "The KL weight w of Table 2, searched on a quarter of the training part",
    needs=tuple(WEIGHTS),
    groups=tuple(_search(name) for name in WEIGHTS),
    quick=("faceall-p-stn-w=0",),
    extra=True,
)
