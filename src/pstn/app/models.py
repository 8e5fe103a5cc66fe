"""The page's models: those that `pstn demo` left, those of an earlier start, or new ones, trained while one waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import pstn
from pstn.app.inputs import SIDE
from pstn.app.looks import Trio
from pstn.data import cache_folder, load_italy_power_demand
from pstn.demo import DEMO_MODELS, DemoData, DemoModel, demo_about, demo_data, evaluate, train
from pstn.io import ModelFileError
from pstn.nn import (
    PSTN,
    STN,
    About,
    ConvClassifier,
    SeriesClassifier,
    SeriesLocalizer,
    SpatialTransformer,
)
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
    return DemoData(splits.train.x, splits.train.y, test.x, test.y)


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
    found: dict[str, Any] = {name: pstn.from_pretrained(folder / name) for name in DEMO_MODELS}
    kinds: dict[str, Any] = {"cnn": (ConvClassifier, SeriesClassifier), "stn": STN, "pstn": PSTN}
    for name, model in found.items():
        if not isinstance(model, kinds[name]):
            raise ModelFileError(f"{folder / name} must hold what its name says, not a {type(model).__name__}")
    classes = {model.about.classes for model in found.values()}
    shapes = {(model.about.channels, model.about.size) for model in found.values()}
    if len(classes) > 1 or shapes != {(1, size)}:
        wanted = " × ".join(map(str, size))
        raise ModelFileError(f"{folder} must hold three models of the same classes, for grey input of {wanted}")
    return Trio(**found)


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
        fraction: how much of all that is to be trained is done.
        problems: what went wrong without stopping anything.

    Raises:
        ModelFileError: there are no such models in the folder that was named.
    """

    def __init__(self, models: Path | None = None, *, digits: Plan | None = None, series: Plan | None = None) -> None:
        self._plans = {"digits": digits or plan_digits(), "series": series or plan_series()}
        self._cache = cache_folder() / "app" / pstn.__version__
        if models is None and (DEMO_FOLDER / "pstn").is_dir():
            models = DEMO_FOLDER
        self.digits = self._kept("digits", (SIDE, SIDE)) if models is None else load_trio(models, (SIDE, SIDE))
        self.series = self._kept("series", (HOURS,))
        self.doing, self.fraction = "Getting ready", 0.0
        self.problems: list[str] = []

    def _kept(self, what: str, size: tuple[int, ...]) -> Trio | None:
        """The models of an earlier start; the cache is ours, so what is damaged there is made anew."""
        try:
            return load_trio(self._cache / what, size)
        except (ModelFileError, OSError):
            return None

    def work(self, report: Report = lambda doing, fraction: None) -> None:
        """Train what is missing and keep it for the next start.

        Args:
            report: told what is being done, and how much of all is done, after every pass over the data.
        """
        missing = [what for what in self._plans if getattr(self, what) is None]
        for number, what in enumerate(missing):

            def tell(doing: str, fraction: float, number: int = number) -> None:
                self.doing, self.fraction = doing, (number + fraction) / len(missing)
                report(self.doing, self.fraction)

            trio = _make(self._plans[what], what, tell)
            setattr(self, what, trio)
            try:
                for name in DEMO_MODELS:
                    getattr(trio, name).save_pretrained(self._cache / what / name)
            except OSError as error:
                self.problems.append(f"The models for {what} are not kept for the next start: {error}")


def _make(plan: Plan, what: str, tell: Report) -> Trio:
    data = plan.data()
    made: dict[str, Any] = {}
    for number, (name, entry) in enumerate(plan.models.items()):
        losses: list[float] = []

        def after_pass(loss: float, number: int = number, label: str = entry.label, past: Any = losses) -> None:
            past.append(loss)
            tell(f"Training the {label} for {what}", (number + len(past) / plan.epochs) / len(plan.models))

        model = train(entry, data, epochs=plan.epochs, kl_weight=plan.kl_weight, progress=after_pass)
        model.about = plan.about(evaluate(model, data))
        made[name] = model
    return Trio(**made)
