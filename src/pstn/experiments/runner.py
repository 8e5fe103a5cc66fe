"""Declaring experiments, and running them: trainings that can be stopped and resumed, their scores, the results."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from pstn._checks import NotFiniteError, require_finite, require_positive_int
from pstn.data import KNOWN, MissingDataError, Splits, load
from pstn.data.split import Sized
from pstn.distributions import Posterior
from pstn.experiments.backbones import Backbone
from pstn.files import FileError, inside, parse_json, require_regular_file, require_writable
from pstn.nn import Prediction, TransformerClassifier
from pstn.provenance import provenance
from pstn.report.results import SHORTENED, Result, read_results
from pstn.report.tables import Metric
from pstn.training import Failure, Member, Population, Progress, Recipe
from pstn.training.checkpoint import (
    CheckpointError,
    load_checkpoint,
    member_summary,
    read_about,
    save_checkpoint,
    save_weights,
)
from pstn.training.group import precision_flags
from pstn.training.interrupt import Interrupt
from pstn.training.noise import stream_keys, uniform
from pstn.uncertainty import calibration_error, negative_log_likelihood, reliability_curve

__all__ = [
    "ACCURACY",
    "ECE",
    "ECE10",
    "NLL",
    "QUICK_SEEDS",
    "SCORES",
    "SEEDS",
    "Answers",
    "Evaluation",
    "Experiment",
    "Found",
    "Group",
    "Job",
    "Lab",
    "Measure",
    "Piece",
    "Probe",
    "Shard",
    "Stopped",
    "Task",
    "Training",
    "as_pixels",
    "carry_out",
    "choose",
    "classify",
    "digest",
    "done_cells",
    "fit",
    "identity",
    "out_of_reach",
    "plan",
    "predict",
    "reliability",
    "reproduce",
    "rounded",
    "same",
    "trained",
]


ACCURACY = Metric("accuracy", "accuracy (%)", scale=100, digits=2, higher_is_better=True)
NLL = Metric("nll", "NLL")
ECE = Metric("ece", "calibration error, 15 bins", digits=4)
ECE10 = Metric("ece10", "calibration error, 10 bins", digits=4)
SCORES = (ACCURACY, NLL, ECE)


Found = tuple[dict[str, float], dict[str, Any]]
"""Metrics and what the figures draw."""


class Answers(NamedTuple):
    """What a model says to a test set."""

    log_probs: Tensor
    """(N, K)."""
    y: Tensor
    """(N,), the truth."""
    loc: Tensor | None
    """(N, D), the mean of theta; None for a model without a transformer."""
    beta: Tensor | None
    """(N, D), where the posterior has one."""
    truth: Tensor | None
    """(N, D), how each example was made, where that is known."""


def predict(
    model: nn.Module,
    test: Sized,
    *,
    seed: int = 0,
    samples: int | None = None,
    batch: int = 1000,
) -> Answers:
    """Ask a model about every test example.

    Args:
        model: a classifier, or an STN or P-STN; left as it is.
        test: the examples, on the device to use.
        seed: of the posterior's samples. Noise goes by an example's place in the test set: neither the size of the
            batches nor the device changes it.
        samples: S; the model's own `test_samples` when None.
        batch: examples at a time.

    Raises:
        NotFiniteError: when the model's answers are not finite: it diverged.

    Example:
        >>> digits = pstn.data.load("digits").test.take(range(20))
        >>> predict(pstn.nn.mnist_pstn(), digits).log_probs.shape
        torch.Size([20, 10])
    """
    index = torch.arange(len(test))
    device = test.batch(index[:1]).x.device
    model = copy.deepcopy(model).to(device).eval()
    keys = stream_keys([seed], "evaluate", device=device)
    parts: list[Answers] = []
    with torch.no_grad():
        for at in index.split(batch):
            examples = test.batch(at)
            loc = beta = None
            if isinstance(model, TransformerClassifier):
                shape = (samples or model.test_samples, 1, model.layer.noise_width)
                each = uniform(keys, int(at[0]), len(at), shape, model.layer.sampling)  # (b, 1, S, 1, D)
                noise = each[:, 0, :, 0].transpose(0, 1) if model.layer.probabilistic else None
                answer: Prediction = model(examples.x, noise=noise)
                log_probs, loc = answer.log_probs, answer.posterior.mode
                if isinstance(answer.posterior, Posterior):
                    beta = answer.posterior.beta
            else:
                log_probs = model(examples.x).float().log_softmax(-1)
                require_finite("log_probs", log_probs, "the classifier returned them")
            parts.append(Answers(log_probs, examples.y, loc, beta, examples.theta))
    columns: list[Any] = [None if c[0] is None else torch.cat(c) for c in zip(*parts, strict=True)]
    return Answers(*columns)


def classify(answers: Answers) -> dict[str, float]:
    """Accuracy, negative log-likelihood, and calibration error in 15 and in 10 bins, as fractions."""
    probs = answers.log_probs.exp()
    return {
        "accuracy": float((answers.log_probs.argmax(1) == answers.y).double().mean()),
        "nll": float(negative_log_likelihood(answers.log_probs, answers.y)),
        "ece": float(calibration_error(probs, answers.y)),
        "ece10": float(calibration_error(probs, answers.y, bins=10)),
    }


def reliability(answers: Answers) -> dict[str, list[Any]]:
    """Confidence, accuracy and number of predictions in 15 bins; empty bins hold null."""
    curve = reliability_curve(answers.log_probs.exp(), answers.y)
    count = (curve.weight * len(answers.y)).round().long().tolist()

    def column(values: Tensor) -> list[float | None]:
        return [v if n else None for v, n in zip(rounded(values), count, strict=True)]

    return {"confidence": column(curve.confidence), "accuracy": column(curve.accuracy), "count": count}


def rounded(values: Tensor, digits: int = 4) -> list[Any]:
    """A tensor as nested lists of short numbers, for result files."""
    return torch.round(values.detach().double().cpu(), decimals=digits).tolist()


def as_pixels(images: Tensor) -> list[Any]:
    """Images with pixels from 0 to 1 as whole numbers from 0 to 255."""
    return (images.detach() * 255).round().clamp(0, 255).to(torch.uint8).cpu().tolist()


SEEDS = 5
"""Folds or repetitions of every experiment in the paper."""

# A quick run takes this many steps of each training, in batches no larger than this, looks at this many test examples,
# and has this many seeds and variants.
_QUICK_STEPS, _QUICK_BATCH, _QUICK_TEST, QUICK_SEEDS = 5, 16, 50, 2
# What stands in for data that do not ship with the package.
_SHIPPED = {"images": "digits", "series": "ItalyPowerDemand"}

T = TypeVar("T")


@dataclass
class Lab:
    """Everything about a run that is not the experiment.

    Args:
        results: folder of the result files.
        device: where to train and test.
        quick: a minute of everything on the data that ship with the package, which shows only that it runs.
        epochs_scale: what epochs, and the steps of learning-rate schedules, are multiplied with; trainings that
            others build on stay whole.
        compile: fuse small GPU kernels before training, also where the trainer would not by itself.
        backbone: the network for the traffic signs; when not given, ResNet-18 without weights, or a small one where
            torchvision does not import.
        together: how many groups train side by side: small networks leave most of a GPU idle.
        save_every: seconds between checkpoints.
        say: where messages go.

    Example:
        >>> Lab(Path("results"), quick=True).folder.as_posix()
        'results/quick'
    """

    results: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    quick: bool = False
    epochs_scale: float = 1.0
    compile: bool = False
    backbone: Backbone | None = None
    together: int = 1
    save_every: float = 30.0
    say: Callable[[str], None] = print
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.epochs_scale <= 1:
            raise ValueError(f"epochs_scale must lie above 0 and be at most 1, got {self.epochs_scale}")
        require_positive_int("together", self.together)

    @property
    def folder(self) -> Path:
        """Where the result files go: quick ones apart, so that no report mixes them up."""
        return self.results / "quick" if self.quick else self.results

    @property
    def work(self) -> Path:
        """Where checkpoints and trained classifiers lie while experiments run."""
        return self.folder / ".work"

    @property
    def seeds(self) -> range:
        """The seeds, or folds, of this run."""
        return range(QUICK_SEEDS if self.quick else SEEDS)

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` returns, made once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def forget(self) -> None:
        """Let go of what was kept: the next experiment has other data."""
        self._kept.clear()

    def data(self, name: str, **settings: Any) -> tuple[Any, Any, Any]:
        """Training, validation and test part of a known data set on the device; None for a part that is not there.

        In a quick run it is the data set of its kind that ships with the package.
        """

        def read() -> Splits[Any]:
            if self.quick:
                shipped = _SHIPPED[KNOWN[name].kind]
                allowed = {k: v for k, v in settings.items() if k == "normalise" and shipped == "digits"}
                return load(shipped, **allowed).to(self.device)
            return load(name, **settings).to(self.device)

        train, validation, test = self.keep((name, *sorted(settings.items())), read)
        return train, validation, test

    def few(self, test: Sized) -> Any:
        """The test examples that this run looks at: all, or in a quick run the first few."""
        return test.take(range(min(_QUICK_TEST, len(test)))) if self.quick else test

    def absent(self, names: Iterable[str]) -> list[str]:
        """Those of the data sets that this run needs and that are not here."""
        return [] if self.quick else [name for name in dict.fromkeys(names) if KNOWN[name].where() is None]

    def require_data(self, names: Iterable[str]) -> None:
        """Refuse to start without the data, before anything is trained."""
        missing = self.absent(names)
        if missing:
            raise MissingDataError(
                ", ".join(missing),
                "not found: set PSTN_DATA to a folder that holds it (docs/data.md has the layout), get it with "
                "`pstn data get NAME` where it can be had, or add --quick, which needs no data",
            )

    def shorten(self, recipe: Recipe, examples: int, *, whole: bool = False) -> Recipe:
        """The recipe as this run takes it.

        Args:
            recipe: as declared.
            examples: how many there are to train on.
            whole: leave its epochs as they are, whatever `epochs_scale`.
        """
        if recipe.precision == "tf32" and self.device.type != "cuda":
            recipe = dataclasses.replace(recipe, precision="float32")
        if self.quick:
            batch = min(recipe.batch_size, _QUICK_BATCH, examples)
            steps = min(_QUICK_STEPS, examples // batch)
            return dataclasses.replace(recipe, epochs=1, steps_per_epoch=steps, batch_size=batch)
        if self.epochs_scale == 1 or whole:
            return recipe
        step = None if recipe.lr_step is None else max(1, round(recipe.lr_step * self.epochs_scale))
        return dataclasses.replace(recipe, epochs=max(1, round(recipe.epochs * self.epochs_scale)), lr_step=step)

    def departures(self, declared: Recipe, taken: Recipe) -> list[str]:
        """Where this run leaves the declared recipe, in sentences."""
        if self.quick:
            return ["A quick run: a few steps on the data that ship with the package. Not the paper's setting."]
        if declared.epochs == taken.epochs:
            return []
        steps = "" if taken.lr_step is None else f", the learning rate's steps every {taken.lr_step} epochs"
        return [f"{SHORTENED} {taken.epochs} epochs instead of {declared.epochs}{steps}."]


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
        notes: what is odd about the data, for the results.
    """

    x: Tensor
    y: Tensor
    test: Sized
    name: str
    train: Callable[[int], Tensor | None] = lambda seed: None
    batch: int = 1000
    classes: int = 10
    notes: tuple[str, ...] = ()


class Probe(NamedTuple):
    """A trained model with its answers, for the measures."""

    lab: Lab
    task: Task
    model: nn.Module
    answers: Answers
    cell: Result


Measure = Callable[[Probe], Found]


def same(make: Callable[[], nn.Module]) -> Callable[[Lab, int], nn.Module]:
    """A network that is made alike for every seed, but for its random weights."""
    return lambda lab, seed: make()


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
        variants: KL weight by variant; one variant without a name, and a weight of 0, when not given.
        lr: learning rate of the classifier; a function where it depends on how the lab is equipped.
        localizer_factor: what it is multiplied with for the localizer.
        weight_decay: Adam's L2 term.
        measures: what is measured besides classification.
        also: other data to test the trained models on, by name: a result each.
        aliases: further variants under which the same results are filed.
        departures: where the declaration leaves the paper, in sentences.
        keep: whether the weights stay in the work folder, for other groups to build on.
        stacked: whether the models step as one stack; large ones are faster each on a stream of its own.
    """

    experiment: str
    model: str
    data: str
    task: Callable[[Lab], Task]
    make: Callable[[Lab, int], nn.Module]
    recipe: Recipe
    variants: Mapping[str, float] = field(default_factory=lambda: {"": 0.0})
    lr: float | Callable[[Lab], float] = 1e-3
    localizer_factor: float = 0.1
    weight_decay: float = 0.0
    measures: tuple[Measure, ...] = ()
    also: Mapping[str, Callable[[Lab], Task]] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    keep: bool = False
    stacked: bool = True

    @property
    def name(self) -> str:
        """What tells the group from the others of its experiment."""
        return self._cell(next(iter(self.variants)), 0).name.removesuffix("-0")

    def _cell(self, variant: str, seed: int, data: str | None = None) -> Result:
        return Result(self.experiment, self.model, data or self.data, seed, variant)

    def of_model(self, variant: str, seed: int) -> list[Result]:
        """The results that one trained model gives, still empty: on its own data first."""
        names = [variant, *self.aliases]
        return [self._cell(name, seed, data) for data in (self.data, *self.also) for name in names]

    def pairs(self, lab: Lab) -> list[tuple[str, int]]:
        """Variant and seed of every model."""
        variants = list(self.variants)[: QUICK_SEEDS if lab.quick else None]
        return [(variant, seed) for variant in variants for seed in lab.seeds]

    def cells(self, lab: Lab) -> list[Result]:
        """All results of the group, still empty."""
        return [cell for pair in self.pairs(lab) for cell in self.of_model(*pair)]


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
    """

    experiment: str
    model: str
    data: str
    measure: Callable[[Lab, Result], tuple[dict[str, float], dict[str, Any], dict[str, Any]]]
    variant: str = ""
    departures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What tells the group from the others of its experiment."""
        return Result(self.experiment, self.model, self.data, 0, self.variant).name.removesuffix("-0")

    def cells(self, lab: Lab) -> list[Result]:
        """All results of the group, still empty."""
        return [Result(self.experiment, self.model, self.data, seed, self.variant) for seed in lab.seeds]


Group = Training | Evaluation


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper, or one beyond it.

    Args:
        name: on the command line and in the results.
        title: one line about it.
        needs: names of the data sets, as `pstn data list` has them.
        groups: everything that is trained and measured.
        quick: what of it a quick run takes, by the name of the group; all when None.
        extra: whether it runs only when asked for by name or with --search.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    groups: tuple[Group, ...]
    quick: tuple[str, ...] | None = None
    extra: bool = False

    def needs_of(self, group: Group) -> tuple[str, ...]:
        """The data sets that one of its groups needs: its own where it is called after one, else all."""
        return (group.data,) if group.data in self.needs else self.needs


def identity(recipe: Recipe, member: Member, task: Task, untrained: nn.Module) -> str:
    """One line of JSON that is the same for the same training.

    It holds how and on which data the network is trained, and the weights that it starts from, whether those are
    random, of a file such as a backbone's, or of another training.

    Args:
        recipe: as it is run.
        member: what sets the model apart.
        task: the data, with what is odd about them.
        untrained: the network before its first step.

    Example:
        >>> task = Task(torch.zeros(1, 2), torch.zeros(1), None, "none")
        >>> one, other = (identity(Recipe(), Member(lr=lr), task, nn.Linear(2, 2)) for lr in (1e-3, 1e-4))
        >>> one == other
        False
    """
    return json.dumps(
        {
            "recipe": repr(recipe), "member": member_summary(member), "data": [task.name, *task.notes],
            # Labels tell other files, and other examples of them, at next to no cost.
            "labels": digest({"y": task.y}), "network": repr(untrained), "start": digest(untrained.state_dict()),
        }
    )  # fmt: skip


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A number for what these hold, as SHA-256 makes it.

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


# Seconds between lines that say how far a training is.
_TELL_EVERY = 20.0


class Stopped(Exception):
    """Ctrl-C or SIGTERM came: everything is saved, and the same command goes on."""


class Job:
    """A population with the place of its checkpoint.

    Args:
        lab: says how often to save, and where messages go.
        name: of the group, for messages.
        population: what to train, from wherever it stands.
        path: of its checkpoint.
        about: what to keep beside it.
    """

    def __init__(self, lab: Lab, name: str, population: Population, path: Path, about: dict[str, Any]) -> None:
        self.population, self.name = population, name
        self._lab, self._path, self._about = lab, path, about
        self._saved = self._told = time.monotonic()
        self._first: tuple[float, int] | None = None

    @property
    def left(self) -> int:
        """Steps to go."""
        return self.population.total_steps - self.population.progress.step

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self._path, self.population, self._about)
        self._saved = time.monotonic()

    def look(self, progress: Progress, asked: bool) -> bool:
        """Between rounds: save, and tell, if it is time; returns whether to stop."""
        now = time.monotonic()
        if asked or now - self._saved >= self._lab.save_every:
            self.save()
        if self._first is None:  # speed is counted from here: the first round compiled, or went by in another run
            self._first, self._told = (now, progress.step), now
        if now - self._told >= _TELL_EVERY:
            began, before = self._first
            speed = (progress.step - before) / (now - began)
            share = progress.step / self.population.total_steps
            self._lab.say(f"  {self.name}: {share:.0%}, {speed:,.0f} steps/s, {self.left / speed:,.0f} s to go")
            self._told = now
        return asked


def fit(lab: Lab, jobs: Sequence[Job]) -> None:
    """Train populations to their end, all at once: each steps on streams of its own.

    Raises:
        Stopped: after Ctrl-C or SIGTERM, with everything saved.
    """
    with Interrupt() as interrupt:
        for job in jobs:
            lab.say(f"  {job.name}: {len(job.population.members)} models, {job.left:,} steps")
        if len(jobs) > 1:
            for job in jobs:  # while a GPU graph is captured nothing else may go on: one after the other, before all
                job.population.fit(until=job.population.progress.step + 1)

        def run(job: Job) -> None:
            job.population.fit(lambda progress: job.look(progress, interrupt.asked))
            job.save()

        if len(jobs) == 1:
            run(jobs[0])
        else:
            with ThreadPoolExecutor(len(jobs)) as pool:
                list(pool.map(run, jobs))
    if interrupt.asked and any(job.left for job in jobs):
        raise Stopped


Pair = tuple[str, int]
"""Variant and seed: which model of a group."""


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a training came to."""

    models: dict[Pair, nn.Module]
    """On the CPU."""
    recipe: Recipe
    seconds: float
    """Of each model: an equal share."""
    notes: dict[Pair, list[str]]
    """What went wrong with a model, for its results."""
    epochs: int


def carry_out(lab: Lab, pieces: Sequence[tuple[Group, Sequence[Result]]]) -> None:
    """Train groups side by side, measure what is wanted of each, and write a result for each cell.

    Args:
        lab: where.
        pieces: groups, with those of their cells whose results are missing.
    """
    trainings = [
        (group, _pairs_of(lab, group, wanted))
        for group, wanted in pieces
        if isinstance(group, Training) and not group.keep
    ]
    runs = dict(zip((g.name for g, _ in trainings), _train(lab, trainings), strict=True)) if trainings else {}
    for group, wanted in pieces:
        if isinstance(group, Evaluation):
            _evaluate(lab, group, wanted)
            continue
        run = _kept(lab, group) if group.keep else runs[group.name]
        for variant, seed in _pairs_of(lab, group, wanted):
            _test(lab, group, run, variant, seed, {cell.name for cell in wanted})
        _checkpoint(lab, group).unlink(missing_ok=True)
    if lab.device.type == "cuda":
        torch.cuda.empty_cache()


def _pairs_of(lab: Lab, group: Training, wanted: Sequence[Result]) -> list[Pair]:
    """The models that give the wanted cells."""
    names = {cell.name for cell in wanted}
    return [pair for pair in group.pairs(lab) if any(cell.name in names for cell in group.of_model(*pair))]


def trained(lab: Lab, group: Training, seed: int) -> nn.Module:
    """A copy of a model of a group whose weights are kept: trained now, unless it was before.

    Args:
        lab: where.
        group: declared with `keep=True`.
        seed: which of its models.
    """
    assert group.keep, group.name
    return copy.deepcopy(_kept(lab, group).models[next(iter(group.variants)), seed])


def _kept(lab: Lab, group: Training) -> _Run:
    return lab.keep(("trained", group.experiment, group.name), lambda: _load_or_train(lab, group))


def _load_or_train(lab: Lab, group: Training) -> _Run:
    from safetensors import safe_open

    pairs, recipe = group.pairs(lab), _recipe(lab, group)
    folder = lab.work / group.experiment
    paths = [folder / f"{group.of_model(*pair)[0].name}.weights.safetensors" for pair in pairs]
    models = {pair: _make(lab, group, pair[1]) for pair in pairs}
    origins = _identities(lab, group, recipe, models)
    held = [_about(path) for path in paths]
    if [about.get("identity") for about in held] != origins:
        (run,) = _train(lab, [(group, pairs)])
        for pair, path, origin in zip(pairs, paths, origins, strict=True):
            told = {"seconds": str(run.seconds), "notes": json.dumps(run.notes.get(pair, []))}
            save_weights(path, run.models[pair].state_dict(), {"identity": origin, **told})
        _checkpoint(lab, group).unlink(missing_ok=True)
        return run
    for pair, path in zip(pairs, paths, strict=True):
        with safe_open(str(path), framework="pt") as stream:
            models[pair].load_state_dict({name: stream.get_tensor(name) for name in stream.keys()})  # noqa: SIM118  # no dict
        models[pair].eval()
    notes = {pair: parse_json(about["notes"], path) for pair, about, path in zip(pairs, held, paths, strict=True)}
    return _Run(models, recipe, float(held[0]["seconds"]), notes, recipe.epochs)


def _about(path: Path) -> dict[str, str]:
    """What stands beside the weights in a file; nothing where there is none, or none that can be read."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return {}
    try:
        require_regular_file(path)
        with safe_open(str(path), framework="pt") as stream:
            return stream.metadata() or {}
    except (SafetensorError, FileError):
        return {}


def _identities(lab: Lab, group: Training, recipe: Recipe, untrained: dict[Pair, nn.Module]) -> list[str]:
    task = group.task(lab)
    members = _members(lab, group, task, list(untrained))
    return [identity(recipe, m, task, model) for m, model in zip(members, untrained.values(), strict=True)]


def _make(lab: Lab, group: Training, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return group.make(lab, seed)


def _recipe(lab: Lab, group: Training) -> Recipe:
    task = group.task(lab)
    subset = task.train(0)
    return lab.shorten(group.recipe, len(task.x) if subset is None else len(subset), whole=group.keep)


def _members(lab: Lab, group: Training, task: Task, pairs: Sequence[Pair]) -> list[Member]:
    lr = group.lr(lab) if callable(group.lr) else group.lr
    return [
        Member(seed, lr, group.localizer_factor, group.variants[variant], group.weight_decay, task.train(seed))
        for variant, seed in pairs
    ]


def _train(lab: Lab, trainings: Sequence[tuple[Training, list[Pair]]]) -> list[_Run]:
    """Train the models of each group that are asked for, or those that a stopped run has begun."""
    started = [_start(lab, group, pairs) for group, pairs in trainings]
    with ExitStack() as stack:
        for job, _ in started:
            stack.enter_context(job.population)
        fit(lab, [job for job, _ in started])
        times = [job.population.progress.seconds for job, _ in started]
        # Side by side they take as long as the longest: that time is shared out, so that the shares add up to it.
        share = max(times) / max(sum(times), 1e-9)
        runs = []
        for job, pairs in started:
            progress = job.population.progress
            made = dict(zip(pairs, job.population.models(), strict=True))
            seconds = progress.seconds * share / len(pairs)
            notes = {pairs[failure.model]: [_told(failure)] for failure in progress.failures}
            runs.append(_Run(made, job.population.recipe, seconds, notes, progress.epoch))
    return runs


def _told(failure: Failure) -> str:
    """Why a model was stopped, for its own results."""
    return (
        f"Stopped in training at step {failure.step}: loss {failure.loss:g}, gradient norm {failure.grad_norm:g}. "
        f"{failure.found} The weights are those before that step."
    )


def _start(lab: Lab, group: Training, pairs: list[Pair]) -> tuple[Job, list[Pair]]:
    """A population at its beginning, or where its checkpoint left it, and what its models are."""
    task, recipe = group.task(lab), _recipe(lab, group)
    held = _held(lab, group, recipe, pairs)
    pairs = pairs if held is None else held
    models = {pair: _make(lab, group, pair[1]) for pair in pairs}
    population = Population(
        list(models.values()), task.x, task.y, _members(lab, group, task, pairs), recipe, device=lab.device,
        compile=lab.compile or None,
        groups=None if group.stacked else len(models),
    )  # fmt: skip
    path = _checkpoint(lab, group)
    if held is not None:
        load_checkpoint(path, population)
    about = {"pairs": [list(pair) for pair in pairs], "identities": _identities(lab, group, recipe, models)}
    return Job(lab, group.name, population, path, about), pairs


def _checkpoint(lab: Lab, group: Training) -> Path:
    return lab.work / group.experiment / f"{group.name}.safetensors"


def _held(lab: Lab, group: Training, recipe: Recipe, pairs: list[Pair]) -> list[Pair] | None:
    """The models in the checkpoint of a stopped run, if it is one of this training; None where there is none."""
    path = _checkpoint(lab, group)
    if not path.exists():
        return None
    try:
        settings = read_about(path)["settings"]
        there = [(variant, seed) for variant, seed in settings["pairs"]]
        known = set(there) <= set(group.pairs(lab))
    except (CheckpointError, KeyError, TypeError, ValueError) as error:
        lab.say(f"{error}: starting anew")
        path.unlink()
        return None
    if known and set(pairs) <= set(there):
        models = {pair: _make(lab, group, pair[1]) for pair in there}
        if settings.get("identities") == _identities(lab, group, recipe, models):
            return there
    lab.say(f"{path} is of other settings: starting anew")
    path.unlink()
    return None


def _test(lab: Lab, group: Training, run: _Run, variant: str, seed: int, wanted: set[str]) -> None:
    """Test one model on each of its data sets, and write what is wanted."""
    model, given = run.models[variant, seed], group.of_model(variant, seed)
    for data, read in {group.data: group.task, **group.also}.items():
        cells = [c for c in given if c.data == data and c.name in wanted]
        if not cells:
            continue
        started, task = time.perf_counter(), read(lab)
        test = lab.few(task.test)
        notes = [*group.departures, *task.notes, *lab.departures(group.recipe, run.recipe)]
        notes += run.notes.get((variant, seed), [])
        try:
            metrics, figure = _measure(lab, group, dataclasses.replace(task, test=test), model, cells[0])
        except NotFiniteError as error:
            metrics, figure = {}, {}
            notes.append(_diverged(error))
        # One training and one test may fill several cells: each has its share, so that their sum is what it took.
        seconds = run.seconds / len(given) + (time.perf_counter() - started) / len(cells)
        settings = _settings(lab, group, run, model, variant, seed, len(test))
        for cell in cells:
            named = dataclasses.replace(cell, training=given[0].name)
            _write(lab, named, (metrics, figure), settings, notes, seconds)


def _measure(lab: Lab, group: Training, task: Task, model: nn.Module, cell: Result) -> Found:
    """The scores of a model and all else that its group measures."""
    with precision_flags(Recipe(), tune=True):
        answers = predict(model, task.test, seed=cell.seed, batch=task.batch)
        probe = Probe(lab, task, model, answers, cell)
        metrics: dict[str, float] = dict(classify(answers))
        figure: dict[str, Any] = {}
        for measure in group.measures:
            more, drawn = measure(probe)
            metrics |= more
            figure |= drawn
    return metrics, figure


def _diverged(error: NotFiniteError) -> str:
    return f"No numbers: this model diverged. When it was tested, {error}."


def _write(
    lab: Lab, cell: Result, found: Found, settings: dict[str, Any], departures: list[str], seconds: float
) -> None:
    measured, figure = found
    metrics = {name: value for name, value in measured.items() if math.isfinite(value)}
    departures = departures + [f"{name} is {measured[name]}: left out." for name in measured if name not in metrics]
    result = dataclasses.replace(
        cell, metrics=metrics, figure=figure, settings=settings, departures=departures, quick=lab.quick,
        seconds=round(seconds, 3), **lab.keep("provenance", provenance),
    )  # fmt: skip
    result.write(lab.folder)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or departures[-1]
    lab.say(f"  {cell.name}: {shown}")


def _settings(
    lab: Lab, group: Training, run: _Run, model: nn.Module, variant: str, seed: int, tests: int
) -> dict[str, Any]:
    task = group.task(lab)  # what it was trained on, whatever it is tested on
    member = _members(lab, group, task, [(variant, seed)])[0]
    subset = member.train
    recipe = {f.name: getattr(run.recipe, f.name) for f in dataclasses.fields(run.recipe)}
    recipe["augment"] = None if run.recipe.augment is None else repr(run.recipe.augment)
    settings: dict[str, Any] = {
        "source": task.name,
        "train_examples": len(task.x) if subset is None else len(subset),
        "test_examples": tests,
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "recipe": recipe,
        "epochs_run": run.epochs,
        "lr": member.lr, "localizer_factor": member.localizer_factor, "kl_weight": member.kl_weight,
        "weight_decay": member.weight_decay,
    }  # fmt: skip
    if isinstance(model, TransformerClassifier):
        layer = model.layer
        drawn = (run.recipe.samples or model.train_samples) if layer.probabilistic else 1
        settings |= {
            "transform": type(layer.transform).__name__, "samples_train": drawn,
            "samples_test": model.test_samples, "sampling": layer.sampling,
            "alpha": getattr(layer.posterior, "alpha", 1.0),
            "precision": getattr(layer.posterior, "precision", "per-parameter"), "padding_mode": layer.padding_mode,
            "fill": layer.fill.tolist() if isinstance(layer.fill, Tensor) else layer.fill,
        }  # fmt: skip
    settings["network"] = {name: list(p.shape) for name, p in model.named_parameters()}
    settings["weights"] = digest(model.state_dict())  # for those who test the model again, later
    return settings


def _evaluate(lab: Lab, group: Evaluation, wanted: Sequence[Result]) -> None:
    for cell in wanted:
        started = time.perf_counter()
        notes = [*group.departures, *lab.departures(Recipe(), Recipe())]
        settings: dict[str, Any] = {}
        try:
            with precision_flags(Recipe(), tune=True):
                metrics, figure, settings = group.measure(lab, cell)
        except NotFiniteError as error:
            metrics, figure = {}, {}
            notes.append(_diverged(error))
        seconds = time.perf_counter() - started
        named = dataclasses.replace(cell, training=cell.name)
        _write(lab, named, (metrics, figure), settings, notes, seconds)


@dataclasses.dataclass(frozen=True)
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

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A group with the cells of it that are asked for."""

    group: Group
    cells: list[Result]


def choose(names: Sequence[str], known: dict[str, Experiment], *, search: bool = False) -> list[Experiment]:
    """The experiments called by `names`; "all" is the paper, with the searches for w only if they are asked for.

    Args:
        names: of experiments, or "all".
        known: all of them.
        search: whether "all" has the searches too, and a name stands for its search as well.
    """
    chosen: dict[str, Experiment] = {}
    for name in names:
        if name == "all":
            chosen |= {n: e for n, e in known.items() if search or not e.extra}
        elif name in known:
            chosen[name] = known[name]
            if search and f"{name}-search" in known:
                chosen[f"{name}-search"] = known[f"{name}-search"]
        else:
            raise ValueError(f"experiment must be one of {', '.join(known)}, or all, got {name!r}")
    return list(chosen.values())


def out_of_reach(experiments: Sequence[Experiment], lab: Lab) -> dict[str, list[str]]:
    """The experiments whose data are not here and cannot be downloaded, with the names of those data."""
    absent = {experiment.name: lab.absent(experiment.needs) for experiment in experiments}
    return {name: data for name, data in absent.items() if any(KNOWN[d].by_hand for d in data)}


def plan(
    experiments: Sequence[Experiment], lab: Lab, shard: Shard | None = None, cells: Sequence[str] = ()
) -> list[Piece]:
    """The groups of these experiments that are this shard's, with the cells that match.

    Args:
        experiments: what to run.
        lab: where: a quick run has fewer seeds and groups.
        shard: which machine this is. Groups are dealt out in order, whatever is done already.
        cells: patterns such as "mnist100-p-stn-*" or "calibration/*"; a cell is taken if it matches any.

    Raises:
        ValueError: when no cell of any shard matches.
    """
    dealt = [Piece(group, _matching(group.cells(lab), cells)) for group in _groups(experiments, lab)]
    if not any(piece.cells for piece in dealt):
        raise ValueError(f"no cell matches {', '.join(cells)}: --list without --cells shows them all")
    shard = shard or Shard()
    return [piece for piece in dealt[shard.index - 1 :: shard.count] if piece.cells]


def _groups(experiments: Sequence[Experiment], lab: Lab) -> Iterator[Group]:
    for experiment in experiments:
        for group in experiment.groups:
            if not lab.quick or experiment.quick is None or group.name in experiment.quick:
                yield group


def _matching(cells: list[Result], patterns: Sequence[str]) -> list[Result]:
    def wanted(cell: Result) -> bool:
        return any(fnmatch(cell.name, p) or fnmatch(cell.full_name, p) for p in patterns)

    return [cell for cell in cells if not patterns or wanted(cell)]


def done_cells(lab: Lab, pieces: Sequence[Piece]) -> set[str]:
    """The full names of the cells that are done, in the experiments of these pieces.

    Where nothing is to be shortened, cells that were are not done.

    Raises:
        ValueError: for a result that cannot be read, naming its file and line.
    """
    asked = sorted({piece.group.experiment for piece in pieces})
    found = (result for name in asked for result in read_results(lab.folder, name))
    return {result.full_name for result in found if lab.epochs_scale < 1 or not result.shortened}


def reproduce(
    experiments: Sequence[Experiment],
    lab: Lab,
    shard: Shard | None = None,
    cells: Sequence[str] = (),
    leave_out: Collection[str] = (),
) -> int:
    """Run what is missing of these experiments.

    Args:
        experiments: what to run.
        lab: where.
        shard: which machine this is.
        cells: patterns of cells; all when empty.
        leave_out: names of experiments that other machines are to run: they keep their share of the work.

    Returns:
        How many results were written.

    Raises:
        MissingDataError: before anything is trained.
        ValueError: for a result that cannot be read, naming its file and line; when no cell matches.
        FileError: when a folder in it is a link that leads out of it, before anything is trained.
        OSError: when nothing can be written to the folder, before anything is trained.
        Stopped: after Ctrl-C or SIGTERM, with everything saved.
    """
    pieces = [piece for piece in plan(experiments, lab, shard, cells) if piece.group.experiment not in leave_out]
    if not pieces:  # more parts than groups: some machines of a job array have nothing to do
        lab.say(f"Part {shard} has nothing to do.")
        return 0
    named = {experiment.name: experiment for experiment in experiments}
    lab.require_data(need for p in pieces for need in named[p.group.experiment].needs_of(p.group))
    for experiment in {piece.group.experiment for piece in pieces}:
        for folder in (lab.folder, lab.work):  # what is replaced or removed there must be this folder's own
            inside(lab.results, (folder / experiment).relative_to(lab.results).as_posix())
    done = done_cells(lab, pieces)
    pending = [
        Piece(piece.group, missing)
        for piece in pieces
        if (missing := [cell for cell in piece.cells if cell.full_name not in done])
    ]
    if pending:
        require_writable(lab.work, "--results")
    before = ""
    for batch in _batches(pending, lab.together):
        if batch[0].group.experiment != before:
            lab.forget()
            before = batch[0].group.experiment
        lab.say(f"{before}: {', '.join(piece.group.name for piece in batch)}")
        started = time.perf_counter()
        carry_out(lab, [(piece.group, piece.cells) for piece in batch])
        lab.say(f"  {sum(len(piece.cells) for piece in batch)} results in {time.perf_counter() - started:.1f} s")
    return sum(len(piece.cells) for piece in pending)


def _batches(pieces: Sequence[Piece], together: int) -> Iterator[list[Piece]]:
    """Pieces that run side by side: trainings of one experiment, and no others build on them."""
    batch: list[Piece] = []
    for piece in pieces:
        alone = isinstance(piece.group, Evaluation) or piece.group.keep
        if batch and (alone or len(batch) == together or batch[0].group.experiment != piece.group.experiment):
            yield batch
            batch = []
        if alone:
            yield [piece]
        else:
            batch.append(piece)
    if batch:
        yield batch
