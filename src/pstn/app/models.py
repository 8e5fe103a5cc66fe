"""The page's models: those that `pstn demo` left, those of an earlier start, or new ones, trained while one waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import pstn
from pstn.app.inputs import SIDE
from pstn.app.looks import Trio
from pstn.data import cache_folder, load_italy_power_demand
from pstn.demo import DEMO_MODELS, DemoData, DemoModel, demo_about, demo_data, evaluate, train
from pstn.nn import PSTN, STN, About, ModelFileError, SeriesClassifier, SeriesLocalizer, Shareable, SpatialTransformer
from pstn.transforms import CPAB

__all__ = ["SEASONS", "SERIES_MODELS", "Plan", "Workshop", "load_trio", "plan_digits", "plan_series", "season_data"]

DEMO_FOLDER = Path("pstn-demo")
HOURS = 24
# The archive calls them 1 and 2: days from October to March, whose evening peak comes early, and the other ones.
SEASONS = ("winter", "summer")
Report = Callable[[str, float], None]


class Plan(NamedTuple):
    """How three models come to be."""

    models: Mapping[str, DemoModel]
    data: Callable[[], DemoData]
    about: Callable[[Any], About]
    """From a model's score."""
    epochs: int
    kl_weight: float


def plan_digits(epochs: int = 100) -> Plan:
    """The models of `pstn demo`, on 100 digits, with fewer passes over them."""
    return Plan(DEMO_MODELS, demo_data, lambda score: demo_about(score, seed=0), epochs, 3e-4)


def season_data() -> DemoData:
    """Days of electricity demand in Italy: 67 to learn from, 1,029 to be tested on."""
    splits = load_italy_power_demand(validation=0.0)
    test = splits.test
    assert test is not None
    return DemoData(splits.train.x, splits.train.y, test.x, test.y, test.x)


def _time_warp(probabilistic: bool) -> SpatialTransformer:
    localizer = SeriesLocalizer(1, filters=(16, 32, 16), kernels=(7, 5, 3))
    return SpatialTransformer(
        CPAB(tess=5), localizer, HOURS, probabilistic=probabilistic, padding_mode="border"
    )  # fmt: skip


def _reader() -> SeriesClassifier:
    return SeriesClassifier(1, len(SEASONS), filters=(16, 32, 32), kernels=(7, 5, 3))


SERIES_MODELS = {
    "cnn": DemoModel("CNN", _reader, 3e-3),
    "stn": DemoModel("STN", lambda: STN(_time_warp(False), _reader()), 3e-3),
    "pstn": DemoModel("P-STN", lambda: PSTN(_time_warp(True), _reader()), 3e-3),
}


def plan_series(epochs: int = 60) -> Plan:
    """Small models of a day's electricity demand; their transformations pull hours apart and push them together."""

    def about(score: Any) -> About:
        metrics = {"accuracy": score.accuracy, "nll": score.nll, "ece": score.calibration_error}
        return About(SEASONS, 1, (HOURS,), kl_weight=1e-3, data="ItalyPowerDemand", metrics=metrics)

    return Plan(SERIES_MODELS, season_data, about, epochs, 1e-3)


def load_trio(folder: Path, size: tuple[int, ...]) -> Trio:
    """The three models in the subfolders cnn, stn and pstn, as `pstn demo` writes them.

    Args:
        folder: where.
        size: what they must take, with one channel.

    Raises:
        ModelFileError: one is missing, damaged, or takes something else.
    """
    for name in DEMO_MODELS:
        # from_pretrained would ask the Hub for what is not here, and this page asks nobody.
        if not (folder / name).is_dir():
            raise ModelFileError(f"{folder} must hold the folders cnn, stn and pstn, as `pstn demo` writes them")
    found: dict[str, Shareable] = {name: pstn.from_pretrained(folder / name) for name in DEMO_MODELS}
    for name, kind in (("stn", STN), ("pstn", PSTN)):
        if not isinstance(found[name], kind):
            raise ModelFileError(f"{folder / name} holds a {type(found[name]).__name__}, not a {kind.__name__}")
    classes = {model.about.classes for model in found.values() if model.about}
    shapes = {(model.about.channels, model.about.size) for model in found.values() if model.about}
    if len(classes) > 1 or shapes != {(1, size)}:
        wanted = " × ".join(map(str, size))
        raise ModelFileError(f"{folder} must hold three models of the same classes, for grey input of {wanted}")
    return Trio(**cast(Any, found))


@final
class Workshop:
    """Where the page's models are, and how far their training is; the page asks while they are being made.

    Args:
        models: a folder with the digits' models, as `pstn demo` writes them; `pstn-demo` or the cache when not given.
        digits: how to train them where there are none.
        series: likewise those of the series.

    Attributes:
        digits: the digits' models, once they are ready.
        series: the series' models, once they are ready.
        doing: what is going on.
        fraction: how much of that is done.

    Raises:
        ModelFileError: there are no such models in the folder that was named.
    """

    def __init__(
        self, models: Path | None = None, *, digits: Plan | None = None, series: Plan | None = None
    ) -> None:  # fmt: skip
        self._digits_plan, self._series_plan = digits or plan_digits(), series or plan_series()
        self._cache = cache_folder() / "app" / pstn.__version__
        self.digits: Trio | None = None
        self.series: Trio | None = _ready(self._cache / "series", (HOURS,))
        if models is None and (DEMO_FOLDER / "pstn").is_dir():
            models = DEMO_FOLDER
        digits_size = (SIDE, SIDE)
        kept = self._cache / "digits"
        self.digits = _ready(kept, digits_size) if models is None else load_trio(models, digits_size)
        self.doing, self.fraction = "Getting ready", 0.0

    @property
    def ready(self) -> bool:
        """Whether there is nothing left to train."""
        return self.digits is not None and self.series is not None

    def work(self, report: Report = lambda doing, fraction: None) -> None:
        """Train what is missing and keep it for the next start.

        Args:
            report: told what is being done, and how much of it is done, after every pass over the data.
        """

        def tell(doing: str, fraction: float) -> None:
            self.doing, self.fraction = doing, fraction
            report(doing, fraction)

        if self.digits is None:
            self.digits = _make(self._digits_plan, self._cache / "digits", "digits", tell)
        if self.series is None:
            self.series = _make(self._series_plan, self._cache / "series", "series", tell)


def _ready(folder: Path, size: tuple[int, ...]) -> Trio | None:
    try:
        return load_trio(folder, size)
    except (ModelFileError, OSError):
        return None


def _make(plan: Plan, folder: Path, what: str, tell: Report) -> Trio:
    data = plan.data()
    made: dict[str, Shareable] = {}
    for number, (name, entry) in enumerate(plan.models.items()):
        passes = 0

        def after_pass(loss: float, number: int = number, label: str = entry.label) -> None:
            nonlocal passes
            passes += 1
            share = (number + passes / plan.epochs) / len(plan.models)
            tell(f"Training the {label} for {what}", share)

        model = train(entry, data, epochs=plan.epochs, kl_weight=plan.kl_weight, progress=after_pass)
        model.about = plan.about(evaluate(model, data))
        made[name] = model
    try:
        for name, model in made.items():
            model.save_pretrained(folder / name)
    except OSError as error:
        tell(f"Cannot keep the models for the next start ({error})", 1.0)
    return Trio(**cast(Any, made))
