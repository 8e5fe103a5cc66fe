"""Declaring experiments, and running them: trainings that can be stopped and resumed, their scores, the results.

An `Experiment` holds groups. A `Training` is a group of models of one shape, trained together as one population; an
`Evaluation` measures what others trained. Every model on every data set with every seed is a cell, and gives a result.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from pstn._checks import NotFiniteError, require_finite, require_positive_int
from pstn.data import KNOWN, MissingDataError, load
from pstn.data.split import Sized
from pstn.distributions import Point, Posterior, PosteriorFamily, StudentT
from pstn.files import inside, require_writable
from pstn.nn import PSTN, STN, Frozen, Pretrained, SpatialTransformer, TransformerClassifier, TransformerOutput
from pstn.noise import Samples, stream_keys, uniform
from pstn.processes import import_object
from pstn.provenance import provenance
from pstn.report.results import RUNS, Result, read_results
from pstn.report.tables import Metric, Study
from pstn.training import Member, Population, Progress, Recipe
from pstn.training.evaluate import score
from pstn.training.population.stack import precision_flags
from pstn.training.progress import Interrupt
from pstn.training.runs import checkpoint
from pstn.uncertainty import calibration_error, reliability_curve

ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
NLL = Metric("nll", "NLL")
ECE = Metric("ece", "calibration error, 15 bins", digits=4)
ECE10 = Metric("ece10", "calibration error, 10 bins", digits=4)
GAUSSIAN_ALPHA = 50.0
"""With 100 degrees of freedom a Student-t is a Gaussian for all that can be seen."""
SCORES = (ACCURACY, NLL, ECE)
"""Of the numbers that every training is measured by, those that most tables show."""

PAPER = Recipe(
    epochs=600, batch_size=8, accumulate=1, betas=(0.9, 0.999), eps=1e-8, clip_norm=None, lr_step=None, lr_gamma=0.1,
    precision="float32", patience=None, loss_limit=1e4,
)  # fmt: skip
"""How Table 1 is trained. Experiments state what differs: no default of the library changes a published number."""

# A quick run takes this many steps of each training, in batches no larger than this, tests on this many examples, and
# has this many seeds and variants.
_QUICK_STEPS, _QUICK_BATCH, _QUICK_TEST, _QUICK_SEEDS = 5, 16, 50, 2
_QUICK_NOTE = "A quick run: a few steps on the data that ship with the package. Not the paper's setting."
# The data of a quick run, by kind.
_SHIPPED = {"images": "digits", "series": "ItalyPowerDemand"}

T = TypeVar("T")
Measured = tuple[dict[str, float], dict[str, Any]]
"""Metrics and what the figures draw."""
Model = tuple[str, int]
"""Variant and seed of one model of a group."""


Evaluated = tuple[dict[str, float], dict[str, Any], dict[str, Any]]
"""Metrics, what the figures draw, and settings."""


class Stopped(Exception):
    """Raised after Ctrl-C or SIGTERM: everything is saved, and the same command resumes."""


@dataclass
class RunContext:
    """The settings of a run, apart from those of the experiment.

    Args:
        results: folder of the result files.
        device: where to train and test.
        quick: a short run on the data that ship with the package, to see that everything works.
        compile: fuse small GPU kernels before training, also where the trainer would not by itself.
        backbone: the network for the traffic signs; when None, ResNet-18 without weights, or a small one where
            torchvision does not import.
        together: how many groups train side by side: small networks leave most of a GPU idle.
        save_every: seconds between checkpoints.
        log: where messages go.
        needed_seeds: those of the cells that this run lacks: groups whose weights are kept train no others. All when
            None.

    Example:
        >>> RunContext(Path("results"), quick=True).folder.as_posix()
        'results/quick'
    """

    results: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    quick: bool = False
    compile: bool = False
    backbone: Pretrained | None = None
    together: int = 1
    save_every: float = 30.0
    log: Callable[[str], None] = print
    needed_seeds: Collection[int] | None = None
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_positive_int("together", self.together)

    @property
    def folder(self) -> Path:
        """Where the result files go: quick ones apart, so that no report mixes them up."""
        return self.results / "quick" if self.quick else self.results

    @property
    def work(self) -> Path:
        """Where checkpoints and trained classifiers lie while experiments run."""
        return self.folder / ".work"

    def seeds(self, count: int = RUNS) -> range:
        """The seeds, or folds, of this run, where an experiment has `count`."""
        return range(min(_QUICK_SEEDS, count) if self.quick else count)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` returns, made once for each experiment."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def data(self, name: str, **settings: Any) -> tuple[Any, Any, Any]:
        """Training, validation and test part of a known data set on the device; None for a part that is not there.

        In a quick run it is the data set of its kind that ships with the package, with few examples to score on.
        """
        if self.quick:
            name = _SHIPPED[KNOWN[name].kind]
            settings = {k: v for k, v in settings.items() if k == "normalise" and name == "digits"}
        key = (name, *sorted(settings.items()))
        train, *scored = self.cached(key, lambda: tuple(load(name, **settings).to(self.device)))
        return (train, *(part and self.quick_subset(part) for part in scored))  # type: ignore[return-value]

    def quick_subset(self, test: Sized) -> Any:
        """Examples to score on: all, or in a quick run the first few."""
        return test.take(range(min(_QUICK_TEST, len(test)))) if self.quick else test

    def missing_data(self, names: Iterable[str]) -> list[str]:
        """Those of the data sets that this run needs and that are not here."""
        return [] if self.quick else [name for name in dict.fromkeys(names) if KNOWN[name].where() is None]

    def shorten(self, recipe: Recipe, examples: int) -> Recipe:
        """The recipe as this run takes it: on a CPU in float32, in a quick run for a few steps.

        Args:
            recipe: as declared.
            examples: how many there are to train on.
        """
        if recipe.precision == "tf32" and self.device.type != "cuda":
            recipe = replace(recipe, precision="float32")
        if not self.quick:
            return recipe
        batch = min(recipe.batch_size, _QUICK_BATCH, examples)
        return replace(recipe, epochs=1, steps_per_epoch=min(_QUICK_STEPS, examples // batch), batch_size=batch)

    @property
    def departures(self) -> list[str]:
        """Where this run leaves what is declared, in sentences."""
        return [_QUICK_NOTE] if self.quick else []


@dataclass(frozen=True)
class Task:
    """Data to train and test on, on the device.

    Args:
        x: (M, C, *size), training examples.
        y: (M,), their classes.
        test: what to test on.
        name: where the examples come from.
        train: the examples that a seed trains on; all where it returns None.
        batch: test examples at a time.
        classes: K.
        notes: what is unusual about the data, for the results.
    """

    x: Tensor
    y: Tensor
    test: Sized
    name: str
    train: Callable[[int], Tensor | None] = lambda seed: None
    batch: int = 1000
    classes: int = 10
    notes: tuple[str, ...] = ()


class Predictions(NamedTuple):
    """A model's predictions for a test set.

    Args:
        log_probs: (N, K).
        y: (N,), the true classes.
        theta: (N, D), the mode of the posterior; None for a model without a transformer.
        beta: (N, D), where the posterior has one.
        truth: (N, D), how each example was made, where that is known.
    """

    log_probs: Tensor
    y: Tensor
    theta: Tensor | None = None
    beta: Tensor | None = None
    truth: Tensor | None = None


class ModelUnderTest(NamedTuple):
    """A trained model with its predictions: what a measure of a `Training` gets."""

    context: RunContext
    task: Task
    model: nn.Module
    predictions: Predictions
    cell: Result

    @property
    def transformations(self) -> tuple[Tensor, Tensor]:
        """The recovered theta and the one that each test example was made with, (N, D) each."""
        theta, truth = self.predictions.theta, self.predictions.truth
        assert theta is not None
        assert truth is not None
        return theta, truth

    def sample(self, examples: int, samples: int) -> tuple[Tensor, TransformerOutput]:
        """The first test examples, and samples of them, always the same: what figures show."""
        x, layer = self.task.test.batch(range(examples)).x.cpu(), self.model.get_submodule("layer")
        with torch.no_grad():
            return x, layer(x, samples=samples, generator=torch.Generator().manual_seed(0))


@contextmanager
def seeded(context: RunContext | None, seed: int) -> Iterator[None]:
    """Torch's random state set to a seed in the block, also on the device of a run, and as before after it."""
    cuda = [context.device] if context and context.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield


def same(make: Callable[[], nn.Module]) -> Callable[[RunContext, int], nn.Module]:
    """A network that is made alike for every seed, but for its random weights."""
    return lambda context, seed: make()


def in_front_of(
    classifier: Training, layer: Callable[[], SpatialTransformer], *, dropout: bool = True
) -> Callable[[RunContext, int], nn.Module]:
    """An STN or a P-STN, of ten samples, in front of the seed's frozen classifier.

    Args:
        classifier: whose models are frozen; declared with `keep=True`.
        layer: makes the transformer.
        dropout: whether dropout and batch statistics of the classifier stay active while the localizer trains.
    """

    def make(context: RunContext, seed: int) -> nn.Module:
        made, head = layer(), trained(context, classifier, seed).requires_grad_(False)
        return transformer_model(made, head if dropout else Frozen(head))

    return make


def paper_posterior(probabilistic: bool, var_init: float = -5.0) -> PosteriorFamily:
    """The P-STN's posterior in the paper, or the STN's point, whatever the defaults of the library.

    Args:
        probabilistic: whether it is the P-STN's.
        var_init: where the variance head starts.

    Example:
        >>> paper_posterior(True).alpha
        1.0
    """
    return StudentT(alpha=1.0, var_init=var_init) if probabilistic else Point()


def inverse_softplus(value: float) -> float:
    """What softplus makes `value` of: where a variance head must start.

    Example:
        >>> round(inverse_softplus(math.log1p(math.exp(-5.0))), 12)
        -5.0
    """
    return value + math.log(-math.expm1(-value))


def transformer_model(layer: SpatialTransformer, classifier: nn.Module) -> nn.Module:
    """A P-STN of ten samples in training and at test, or an STN, as the layer is."""
    return PSTN(layer, classifier, train_samples=10, test_samples=10) if layer.probabilistic else STN(layer, classifier)


@dataclass(frozen=True)
class Training:
    """Models of one shape that train together: every variant with every seed, a result each.

    Args:
        experiment: its name.
        model: "CNN", "STN", "P-STN", ...
        data: what the table calls the data.
        task: loads it.
        make: an untrained network for a seed; called with torch's random state set to that seed.
        recipe: how to train.
        variants: KL weight by variant, None where the loss takes none; one variant without a name, and a weight of 0,
            when not given.
        lr: learning rate of the classifier.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        measures: what is measured besides classification.
        also: other data to test the trained models on, by name: a result each.
        aliases: further variants under which the same results are filed.
        departures: where the declaration leaves the paper, in sentences.
        keep: whether the weights stay in the work folder, for other groups to build on.
        stacked: whether the models step as one stack; large ones are faster each on a stream of its own.
        seeds: how many models of each variant; as many as the experiment's own `seeds`.
    """

    experiment: str
    model: str
    data: str
    task: Callable[[RunContext], Task]
    make: Callable[[RunContext, int], nn.Module]
    recipe: Recipe
    variants: Mapping[str, float | None] = field(default_factory=lambda: {"": 0.0})
    lr: float = 1e-3
    localizer_factor: float = 0.1
    weight_decay: float = 0.0
    measures: tuple[Callable[[ModelUnderTest], Measured], ...] = ()
    also: Mapping[str, Callable[[RunContext], Task]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    keep: bool = False
    stacked: bool = True
    seeds: int = RUNS

    @property
    def name(self) -> str:
        """What tells the group from the others of its experiment."""
        return Result(self.experiment, self.model, self.data, 0, next(iter(self.variants))).name.removesuffix("-0")

    def cells_of(self, variant: str, seed: int) -> list[Result]:
        """The results that one trained model gives, still empty: on its own data first."""
        data, variants = (self.data, *self.also), (variant, *self.aliases)
        return [Result(self.experiment, self.model, name, seed, filed) for name in data for filed in variants]

    def models(self, context: RunContext) -> list[Model]:
        """Variant and seed of every model."""
        variants = list(self.variants)[: _QUICK_SEEDS if context.quick else None]
        return [(variant, seed) for variant in variants for seed in context.seeds(self.seeds)]

    def cells(self, context: RunContext) -> list[Result]:
        """All results of the group, still empty."""
        return [cell for model in self.models(context) for cell in self.cells_of(*model)]


@dataclass(frozen=True)
class Evaluation:
    """Results that take no training of their own, one for each seed.

    Args:
        experiment: its name.
        model: "STN", "P-STN", ...
        data: what the table calls the data.
        measure: returns metrics, figure and settings for a cell.
        variant: its variant.
        departures: where the declaration leaves the paper, in sentences.
        seeds: how many results; as many as the experiment's own `seeds`.
    """

    experiment: str
    model: str
    data: str
    measure: Callable[[RunContext, Result], Evaluated]
    variant: str = ""
    departures: tuple[str, ...] = ()
    seeds: int = RUNS

    @property
    def name(self) -> str:
        """What tells the group from the others of its experiment."""
        return Result(self.experiment, self.model, self.data, 0, self.variant).name.removesuffix("-0")

    def cells(self, context: RunContext) -> list[Result]:
        """All results of the group, still empty."""
        seeds = context.seeds(self.seeds)
        return [Result(self.experiment, self.model, self.data, seed, self.variant) for seed in seeds]


@dataclass(frozen=True)
class Joint:
    """Cells of several data sets, models and settings that one function computes together.

    Args:
        experiment: its name.
        name: what tells the group from the others of its experiment.
        results: all of the group, still empty.
        compute: returns those of the cells that are given, with metrics, settings and departures, as they come.
        data: the data set that it needs; all of the experiment's when empty.
        quick: how many of the cells a quick run takes.
    """

    experiment: str
    name: str
    results: Sequence[Result]
    compute: Callable[[RunContext, Sequence[Result]], Iterable[Result]]
    data: str = ""
    quick: int = 2

    def cells(self, context: RunContext) -> list[Result]:
        """The results of the group in a run, still empty."""
        return list(self.results[: self.quick if context.quick else None])


def description_of(docstring: str | None, paragraph: int = 1) -> str:
    """A paragraph of a module's docstring as one line: the second describes its experiment, the next its figures."""
    return " ".join(" ".join((docstring or "").split("\n\n")[paragraph : paragraph + 1]).split())


@dataclass(frozen=True)
class Experiment(Study):
    """An experiment: what is trained and measured, and what the report shows of it.

    Args:
        name: on the command line and in the results.
        title: for people.
        description: what is claimed, in sentences.
        tables: its numbers.
        claims: what is claimed to be better than what.
        figures: its figures.
        search: a choice that was made on validation data beforehand.
        seeds: how many runs every cell has, numbered from 0; its groups say the same.
        from_paper: whether the claims are the paper's.
        holm: whether the p-values of the claims are corrected for their number, by Holm's method.
        summary: one line about it, for the list of experiments.
        needs: names of the data sets, as `pstn data list` has them.
        groups: everything that is trained and measured.
        quick: what of it a quick run takes, by the name of the group; all when None.
        extra: whether it runs only when asked for by name or with --search.
    """

    summary: str = ""
    needs: tuple[str, ...] = ()
    groups: tuple[Training | Evaluation | Joint, ...] = ()
    quick: tuple[str, ...] | None = None
    extra: bool = False

    def __post_init__(self) -> None:
        for group in self.groups:
            seeds = getattr(group, "seeds", self.seeds)
            if (group.experiment, seeds) != (self.name, self.seeds):
                wanted = f"groups must be of the experiment {self.name} and have seeds={self.seeds}"
                raise ValueError(f"{wanted}, got {group.name} of {group.experiment} with seeds={seeds}")


# --- Scores ----------------------------------------------------------------------------------------------------------


def predict(
    model: nn.Module, test: Sized, *, seed: int = 0, samples: Samples | None = None, batch: int = 1000
) -> Predictions:
    """A model's predictions for every test example.

    Args:
        model: a classifier, or an STN or P-STN; left as it is.
        test: the examples, on the device to use.
        seed: of the posterior's samples. Noise goes by an example's place in the test set: neither the size of the
            batches nor the device changes it.
        samples: S, or "modes"; the model's own `test_samples` when None.
        batch: examples at a time.

    Raises:
        NotFiniteError: when the predictions are not finite: the model diverged.

    Example:
        >>> digits = pstn.data.load("digits").test.take(range(20))
        >>> predict(pstn.nn.mnist_pstn(), digits).log_probs.shape
        torch.Size([20, 10])
    """
    device = test.batch([0]).x.device
    model = copy.deepcopy(model).to(device).eval()
    keys = stream_keys([seed], "evaluate", device=device)
    parts: list[Predictions] = []
    with torch.no_grad():
        for at in torch.arange(len(test)).split(batch):
            examples = test.batch(at)
            if isinstance(model, TransformerClassifier):
                noise = None
                if model.layer.probabilistic and samples != "modes":
                    shape = (samples or model.test_samples, 1, model.layer.noise_width)
                    each = uniform(keys, int(at[0]), len(at), shape, model.layer.sampling)  # (b, 1, S, 1, D)
                    noise = each[:, 0, :, 0].transpose(0, 1)
                answer = model(examples.x, "modes" if samples == "modes" else None, noise=noise)
                q = answer.posterior
                beta = q.beta if isinstance(q, Posterior) else None
                parts.append(Predictions(answer.log_probs, examples.y, q.mode, beta, examples.theta))
            else:
                log_probs = model(examples.x).float().log_softmax(-1)
                require_finite("log_probs", log_probs, "the classifier returned them")
                parts.append(Predictions(log_probs, examples.y, truth=examples.theta))
    columns: list[Any] = [None if c[0] is None else torch.cat(c) for c in zip(*parts, strict=True)]
    return Predictions(*columns)


def classification_scores(predictions: Predictions) -> dict[str, float]:
    """Accuracy, negative log-likelihood, and calibration error in 15 and in 10 bins, as fractions."""
    log_probs, y = predictions.log_probs, predictions.y
    ece10 = float(calibration_error(log_probs.exp(), y, bins=10))
    return {**dict(zip(("accuracy", "nll", "ece"), score(log_probs, y), strict=True)), "ece10": ece10}


def scores_of(model: nn.Module, test: Sized, **options: Any) -> dict[str, float]:
    """The `classification_scores` of what a model predicts; the options are those of `predict`."""
    return classification_scores(predict(model, test, **options))


def reliability(predictions: Predictions) -> dict[str, list[Any]]:
    """Confidence, accuracy and number of predictions in 15 bins; empty bins hold null."""
    curve = reliability_curve(predictions.log_probs.exp(), predictions.y)
    count = (curve.weight * len(predictions.y)).round().long().tolist()
    confidence, accuracy = (
        [v if n else None for v, n in zip(rounded(values), count, strict=True)]
        for values in (curve.confidence, curve.accuracy)
    )
    return {"confidence": confidence, "accuracy": accuracy, "count": count}


def rounded(values: Tensor, digits: int = 4) -> list[Any]:
    """A tensor as nested lists of short numbers, for result files."""
    return torch.round(values.detach().double().cpu(), decimals=digits).tolist()


def as_pixels(images: Tensor) -> list[Any]:
    """Images with pixels from 0 to 1 as whole numbers from 0 to 255."""
    return (images.detach() * 255).round().clamp(0, 255).to(torch.uint8).cpu().tolist()


# --- Training --------------------------------------------------------------------------------------------------------


def be_deterministic() -> None:
    """Choose deterministic kernels, so that runs on the same GPU with the same versions should give the same numbers.

    That they do has not been measured on a GPU. For the rest of this process, and before it uses the GPU. Operations
    that have no deterministic form warn: of these, the models of the paper use the gradient of `grid_sample`, and not
    the part of it that is random, which is that of the image.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of tensors and their names.

    Example:
        >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> digest(one.state_dict()) == digest(one.state_dict()), digest(one.state_dict()) == digest(other.state_dict())
        (True, False)
    """
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class _Job:
    """The training of a group's models, from its beginning or from its checkpoint.

    A checkpoint is resumed if it holds at least these models, and each has the same identity: how and on which data
    it is trained, and the weights that it starts from, be they random, of a file, or of another training.

    Args:
        context: of the run.
        group: what to train.
        pairs: the models that are wanted.
    """

    def __init__(self, context: RunContext, group: Training, pairs: Sequence[Model]) -> None:
        self.context, self.group = context, group
        self.path, self._saved = context.work / group.experiment / f"{group.name}.safetensors", time.monotonic()
        if self.path.exists():
            try:
                held: Any = checkpoint.read_about(self.path)["settings"]
                models = [(variant, seed) for variant, seed in held["pairs"]]
                if not set(pairs) <= set(models) <= set(group.models(context)) or held != self._prepare(models):
                    raise ValueError(f"{self.path} is of other settings")
                checkpoint.load_checkpoint(self.path, self.population)
                return
            except (KeyError, TypeError, ValueError) as error:
                context.log(f"{error}: starting over")
                self.path.unlink()
        self._prepare(pairs)

    def _prepare(self, pairs: Sequence[Model]) -> dict[str, Any]:
        """Make the models and their population; returns what tells this training from others."""
        context, group, task = self.context, self.group, self.group.task(self.context)
        self.members = {
            (variant, seed): Member(
                seed, group.lr, group.localizer_factor, group.variants[variant], group.weight_decay, task.train(seed)
            )
            for variant, seed in pairs
        }
        subset = self.members[pairs[0]].train
        self.recipe = context.shorten(group.recipe, len(task.x) if subset is None else len(subset))
        # The labels identify the data cheaply.
        data, models, identities = [recipe_settings(self.recipe), task.name, *task.notes, digest({"y": task.y})], [], []
        for member in self.members.values():
            with seeded(None, member.seed):
                models.append(group.make(context, member.seed))
            weights = digest(models[-1].state_dict())
            identities.append(json.dumps([*data, checkpoint.member_summary(member), repr(models[-1]), weights]))
        self.population = Population(
            models, task.x, task.y, list(self.members.values()), self.recipe, device=context.device,
            compile=context.compile or None, groups=None if group.stacked else len(models),
        )  # fmt: skip
        self.about = {"pairs": [list(pair) for pair in pairs], "identities": identities}
        return self.about

    @property
    def steps_left(self) -> int:
        """Steps to go."""
        return self.population.total_steps - self.population.progress.step

    def run(self, interrupt: Interrupt) -> None:
        """Train to the end, or until a signal comes; saves."""

        def after_round(progress: Progress) -> bool:
            if time.monotonic() - self._saved >= self.context.save_every:
                self._save()
                self.context.log(f"  {self.group.name}: {progress.step / self.population.total_steps:.0%}")
            return interrupt.asked

        self.population.fit(after_round)
        self._save()

    def _save(self) -> None:
        checkpoint.save_checkpoint(self.path, self.population, self.about)
        self._saved = time.monotonic()

    def finish(self, share: float) -> None:
        """Take the models to the CPU, with what went wrong with which, and leave the device.

        Args:
            share: of its time on the clock, where other trainings ran beside it.
        """
        progress, pairs = self.population.progress, list(self.members)
        self.models = dict(zip(pairs, self.population.models(), strict=True))
        self.epochs, self.seconds = progress.epoch, progress.seconds * share / len(pairs)  # of each model
        self.notes = {
            pairs[failure.model]: [
                f"Stopped in training at step {failure.step}: loss {failure.loss:g}, gradient norm "
                f"{failure.grad_norm:g}. The weights are those before that step."
            ]
            for failure in progress.failures
        }
        del self.population


def _train(context: RunContext, wanted: Sequence[tuple[Training, Sequence[Model]]]) -> list[_Job]:
    """Train the models of each group that are wanted, all groups at once, each on streams of its own.

    Raises:
        Stopped: after Ctrl-C or SIGTERM, with everything saved.
    """
    jobs = [_Job(context, group, pairs) for group, pairs in wanted]
    with ExitStack() as stack:
        for job in jobs:
            stack.enter_context(job.population)
        with Interrupt() as interrupt:
            for job in jobs:
                context.log(f"  {job.group.name}: {len(job.members)} models, {job.steps_left:,} steps")
                if len(jobs) > 1:  # nothing else may run while a GPU graph is captured: one job after the other
                    job.population.prepare()
            if len(jobs) == 1:
                jobs[0].run(interrupt)
            else:
                with ThreadPoolExecutor(len(jobs)) as pool:
                    list(pool.map(lambda job: job.run(interrupt), jobs))
        if interrupt.asked and any(job.steps_left for job in jobs):
            raise Stopped
        # Trainings side by side take as long as the longest one: each gets its share of that time.
        times = [job.population.progress.seconds for job in jobs]
        for job in jobs:
            job.finish(max(times) / max(sum(times), 1e-9))
    return jobs


def _kept(context: RunContext, group: Training) -> _Job:
    """The models of a group whose checkpoint is kept, of all seeds that are needed: trained now, unless before."""
    seeds = context.needed_seeds
    pairs = [model for model in group.models(context) if seeds is None or model[1] in seeds]
    return context.cached(("trained", group.experiment, group.name), lambda: _train(context, [(group, pairs)])[0])


def trained(context: RunContext, group: Training, seed: int) -> nn.Module:
    """A copy of a model of a group whose weights are kept: trained now, unless it was before.

    Args:
        context: of the run.
        group: declared with `keep=True`.
        seed: which of its models.
    """
    assert group.keep, group.name
    return copy.deepcopy(_kept(context, group).models[next(iter(group.variants)), seed])


# --- Running groups --------------------------------------------------------------------------------------------------


class Planned(NamedTuple):
    """A group with the cells of it that are asked for."""

    group: Training | Evaluation | Joint
    cells: list[Result]


def run_groups(context: RunContext, planned: Sequence[Planned]) -> None:
    """Measure the cells of an `Evaluation`, or train groups side by side and test them; write a result for each cell.

    Args:
        context: of the run.
        planned: groups, with those of their cells whose results are missing: several only if all are trainings whose
            weights are not kept.
    """
    wanted = []
    for group, cells in planned:
        if isinstance(group, Evaluation):
            for cell in cells:
                cell = replace(cell, training=cell.name, departures=[*group.departures, *context.departures])
                _record(context, [cell], partial(group.measure, context, cell))
        elif isinstance(group, Joint):
            started = time.perf_counter()
            for cell in group.compute(context, cells):  # written as they come: a run may be cut off
                ended = time.perf_counter()
                _write(context, replace(cell, training=cell.name, seconds=ended - started))
                started = ended
        else:
            names = {cell.name for cell in cells}
            wanted.append((group, [p for p in group.models(context) if names & {c.name for c in group.cells_of(*p)}]))
    if wanted:
        jobs = [_kept(context, wanted[0][0])] if wanted[0][0].keep else _train(context, wanted)
        names = {cell.name for _, cells in planned for cell in cells}
        for job, (group, pairs) in zip(jobs, wanted, strict=True):
            for pair in pairs:
                _test(context, job, pair, names)
            if not group.keep:
                job.path.unlink(missing_ok=True)
    if context.device.type == "cuda":
        torch.cuda.empty_cache()


def _test(context: RunContext, job: _Job, pair: Model, wanted: set[str]) -> None:
    """Test one model on each of its data sets, and write what is wanted."""
    group, given, model = job.group, job.group.cells_of(*pair), job.models[pair]

    def measure(task: Task, cell: Result) -> Evaluated:
        predictions = predict(model, task.test, seed=cell.seed, batch=task.batch)
        tested = ModelUnderTest(context, task, model, predictions, cell)
        metrics, figure = classification_scores(predictions), dict[str, Any]()
        for more, drawn in (each(tested) for each in group.measures):
            metrics |= more
            figure |= drawn
        return metrics, figure, cell.settings

    for data, read in {group.data: group.task, **group.also}.items():
        if cells := [cell for cell in given if cell.data == data and cell.name in wanted]:
            task = read(context)
            task = replace(task, test=context.quick_subset(task.test))
            notes = [*group.departures, *task.notes, *context.departures, *job.notes.get(pair, ())]
            # One training and one test may fill several cells: each has its share, so that their sum is what it took.
            shared: dict[str, Any] = {"departures": notes, "training": given[0].name}
            shared |= {"settings": _settings(context, job, pair, len(task.test)), "seconds": job.seconds / len(given)}
            cells = [replace(cell, **shared) for cell in cells]
            _record(context, cells, partial(measure, task, cells[0]))


def _record(context: RunContext, cells: Sequence[Result], measure: Callable[[], Evaluated]) -> None:
    """Measure once, and write it for each of the cells."""
    found: Evaluated = {}, {}, cells[0].settings
    started, notes = time.perf_counter(), list(cells[0].departures)
    try:
        with precision_flags(Recipe(), tune=True):
            found = measure()
    except NotFiniteError as error:
        notes.append(f"No numbers: this model diverged. When it was tested, {error}.")
    held: dict[str, Any] = dict(zip(("metrics", "figure", "settings"), found, strict=True)) | {"departures": notes}
    spent = (time.perf_counter() - started) / len(cells)
    for cell in cells:
        _write(context, replace(cell, **held, seconds=cell.seconds + spent))


def _write(context: RunContext, result: Result) -> None:
    metrics = {name: value for name, value in result.metrics.items() if math.isfinite(value)}
    lost = [f"{name} is {value}: left out." for name, value in result.metrics.items() if name not in metrics]
    result = replace(
        result, metrics=metrics, departures=[*result.departures, *lost], quick=context.quick,
        seconds=round(result.seconds, 3), **context.cached("provenance", provenance),
    )  # fmt: skip
    result.write(context.folder)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or result.departures[-1]
    context.log(f"  {result.name}: {shown}")


def recipe_settings(recipe: Recipe) -> dict[str, Any]:
    """A recipe as results have it: functions by their names, random transforms as they are written."""
    plain = (bool, int, float, str, tuple, type(None))
    held = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
    return {k: v if isinstance(v, plain) else getattr(v, "__name__", repr(v)) for k, v in held.items()}


def _settings(context: RunContext, job: _Job, pair: Model, tests: int) -> dict[str, Any]:
    """How a model was trained, whole."""
    # What it was trained on, whatever it is tested on.
    task, model, member = job.group.task(context), job.models[pair], job.members[pair]
    settings: dict[str, Any] = {
        "source": task.name,
        "train_examples": len(task.x) if member.train is None else len(member.train),
        "test_examples": tests,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "recipe": recipe_settings(job.recipe), "epochs_run": job.epochs, "lr": member.lr,
        "localizer_factor": member.localizer_factor, "kl_weight": member.kl_weight, "weight_decay": member.weight_decay,
    }  # fmt: skip
    if isinstance(model, TransformerClassifier):
        layer = model.layer
        settings |= {
            "transform": type(layer.transform).__name__,
            "samples_train": (job.recipe.samples or model.train_samples) if layer.probabilistic else 1,
            "samples_test": model.test_samples, "sampling": layer.sampling,
            "alpha": getattr(layer.posterior, "alpha", 1.0),
            "precision": getattr(layer.posterior, "precision", "per-parameter"), "padding_mode": layer.padding_mode,
            "fill": layer.fill.tolist() if isinstance(layer.fill, Tensor) else layer.fill,
        }  # fmt: skip
    settings["network"] = {name: list(p.shape) for name, p in model.named_parameters()}
    settings["weights"] = digest(model.state_dict())  # identifies the model in later evaluations
    return settings


# --- Running experiments ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One of several machines that share the work.

    Args:
        index: which one, counted from 1.
        count: how many there are.

    Example:
        >>> Shard.parse("3/8")
        Shard(index=3, count=8)
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "3/8"."""
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise ValueError(f"shard must be i/n with i from 1 to n, such as 3/8, got {text!r}")
        return cls(int(first), int(second))


def choose(names: Sequence[str], known: Mapping[str, Experiment], *, search: bool = False) -> list[Experiment]:
    """The experiments called by `names`; "all" is the paper, with the searches for w only if they are asked for.

    Args:
        names: of experiments, or "all", or "MODULE:NAME" for an experiment of the user's, as Python imports it, also
            from the current folder.
        known: all of the package's.
        search: whether "all" has the searches too, and a name stands for its search as well.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name == "all":
            chosen |= {n: e for n, e in known.items() if search or not e.extra}
        elif ":" in name:
            found = import_object(name, "experiment")
            if not isinstance(found, Experiment):
                raise ValueError(f"experiment {name} must be a pstn.experiments.Experiment, got {type(found).__name__}")
            chosen[found.name] = found
        elif name in known:
            chosen[name] = known[name]
            if search and f"{name}-search" in known:
                chosen[f"{name}-search"] = known[f"{name}-search"]
        else:
            raise ValueError(f"experiment must be one of {', '.join(known)}, all, or MODULE:NAME, got {name!r}")
    return list(chosen.values())


def unavailable(experiments: Sequence[Experiment], context: RunContext) -> dict[str, list[str]]:
    """The experiments whose data are not here and cannot be downloaded, with the names of those data."""
    missing = {experiment.name: context.missing_data(experiment.needs) for experiment in experiments}
    return {name: data for name, data in missing.items() if any(KNOWN[d].by_hand for d in data)}


def plan(
    experiments: Sequence[Experiment], context: RunContext, shard: Shard | None = None, cells: Sequence[str] = ()
) -> list[Planned]:
    """The groups of these experiments that are this shard's, with the cells that match.

    Args:
        experiments: what to run.
        context: of the run: a quick one has fewer seeds and groups.
        shard: which machine this is. Groups are dealt out in order, whatever is done already.
        cells: patterns such as "mnist100-p-stn-*" or "calibration/*"; a cell is taken if it matches any.

    Raises:
        ValueError: when no cell of any shard matches.
    """

    def matches(cell: Result) -> bool:
        return not cells or any(fnmatch(name, p) for name in (cell.name, cell.full_name) for p in cells)

    planned = [
        Planned(group, [cell for cell in group.cells(context) if matches(cell)])
        for experiment in experiments
        for group in experiment.groups
        if not context.quick or experiment.quick is None or group.name in experiment.quick
    ]
    if not any(piece.cells for piece in planned):
        raise ValueError(f"no cell matches {', '.join(cells)}: --list without --cells shows them all")
    shard = shard or Shard()
    return [piece for piece in planned[shard.index - 1 :: shard.count] if piece.cells]


def done_cells(context: RunContext, planned: Sequence[Planned]) -> set[str]:
    """The full names of the cells that are done, in the experiments of these groups.

    Raises:
        ValueError: for a result that cannot be read, naming its file and line.
    """
    names = {group.experiment for group, _ in planned}
    return {result.full_name for name in names for result in read_results(context.folder, name)}


def _trains_beside(piece: Planned) -> tuple[str, ...]:
    """Equal for groups that may run side by side: trainings of one experiment, if no others build on them."""
    group = piece.group
    alone = not isinstance(group, Training) or group.keep
    return (group.experiment, group.name) if alone else (group.experiment,)


def reproduce(
    experiments: Sequence[Experiment],
    context: RunContext,
    shard: Shard | None = None,
    cells: Sequence[str] = (),
    leave_out: Collection[str] = (),
) -> int:
    """Run what is missing of these experiments.

    Args:
        experiments: what to run.
        context: of the run.
        shard: which machine this is.
        cells: patterns of cells; all when empty.
        leave_out: names of experiments to skip; the division into shards stays the same.

    Returns:
        How many results were written.

    Raises:
        MissingDataError: before anything is trained.
        ValueError: for a result that cannot be read, naming its file and line; when no cell matches.
        DataError: when a folder in it is a link that leads out of it, before anything is trained.
        OSError: when nothing can be written to the folder, before anything is trained.
        Stopped: after Ctrl-C or SIGTERM, with everything saved.
    """
    planned = [piece for piece in plan(experiments, context, shard, cells) if piece.group.experiment not in leave_out]
    needs = {experiment.name: experiment.needs for experiment in experiments}
    # A group that is called after a data set needs that one alone.
    data = [(g.data,) if g.data in needs[g.experiment] else needs[g.experiment] for g, _ in planned]
    if missing := context.missing_data(name for names in data for name in names):
        advice = "set PSTN_DATA to a folder that holds it, run `pstn data get NAME`, or add --quick"
        raise MissingDataError(", ".join(missing), f"not found: {advice}")
    for name in {group.experiment for group, _ in planned}:
        for folder in (context.folder, context.work):  # no link may lead out of the folder of results
            inside(context.results, (folder / name).relative_to(context.results).as_posix())
    done, pending = done_cells(context, planned), list[list[Planned]]()
    left = [Planned(group, [cell for cell in cells if cell.full_name not in done]) for group, cells in planned]
    for _, run in groupby((piece for piece in left if piece.cells), _trains_beside):
        pieces = list(run)
        pending += [pieces[at : at + context.together] for at in range(0, len(pieces), context.together)]
    if pending:
        require_writable(context.work, "--results")
    context = replace(context, needed_seeds={cell.seed for piece in left for cell in piece.cells})
    current = ""
    for pieces in pending:
        if current != (current := pieces[0].group.experiment):
            context.cache.clear()  # the next experiment has other data
        context.log(f"{current}: {', '.join(piece.group.name for piece in pieces)}")
        run_groups(context, pieces)
    return sum(len(piece.cells) for pieces in pending for piece in pieces)
