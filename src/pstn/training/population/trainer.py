"""The population trainer: many models of one shape, trained together."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import math
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

from pstn._checks import require_choice
from pstn.defaults import default_kl_weight
from pstn.nn.classifier import TransformerModel
from pstn.noise import Samples
from pstn.objective import LossFunction, TrainingLoss
from pstn.threads import choose_threads, count_multiplications
from pstn.training.diagnose import failed_models
from pstn.training.evaluate import score
from pstn.training.population.convolution import CONV_KINDS, ConvKind
from pstn.training.population.recipe import Localizing, Member, Recipe, Teaching
from pstn.training.population.stack import Stack, Tensors, require_one_shape
from pstn.training.population.step import METRICS, CudaRunner, LocalRunner, Runner, Step, WorkerRunner

ModelScores = dict[str, list[float]]
"""{"nll": [...], "accuracy": [...], "ece": [...]}, one number per model; {"loss": [...]} where there are no classes."""

# Seconds between reads of the metrics, which stall the device. Where a run is cut into rounds changes no bit of it.
_ROUND = 2.0
# Starting a process takes seconds: below this many model-steps one process is faster.
_WORTH_WORKERS = 1000
# On CUDA, multiplications in one model's forward pass over a batch, from which on the model fills the device by itself.
# Measured on an H200 (benchmarks/training.py): a stack of 5 is the faster at 4e6, 5 streams at 6e8 and beyond.
_FILLS_DEVICE = 100_000_000
# From here on convolutions of few channels are worth cutting into blocks for tensor cores. Measured on an H200 in TF32,
# in ms a step with and without: the paper's P-STN for rotated MNIST (6e8) 0.50 and 0.57, for images on a canvas of 96
# by 96 pixels (1.8e9) 0.83 and 1.13.
_WORTH_CUTTING = 500_000_000
# Compiling takes about 15 s, once for all stacks of one size, and saves a third of each step of a stack, which is near
# 1 ms or below.
_WORTH_COMPILING = 40_000
# Batch normalisation takes squares, which are infinite in float32 from 2e19 on: this leaves layers room to multiply.
_LARGEST = 1e15


@dataclass(frozen=True)
class Failure:
    """Why a model was stopped."""

    model: int
    step: int
    loss: float
    grad_norm: float

    def __str__(self) -> str:
        figures = f"loss {self.loss:g}, gradient norm {self.grad_norm:g}"
        return f"model {self.model} stopped at step {self.step}: {figures}. Its weights are those before that step."


@dataclass
class Progress:
    """Where a population stands."""

    step: int = 0
    epoch: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry per epoch: means over its steps, one number per model, by the names of `METRICS`."""
    failures: list[Failure] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    """Each model's lowest validation loss."""
    waited: list[int] = field(default_factory=list)
    """Validations since then."""
    partial: list[list[float]] = field(default_factory=list)
    """Sums of the metrics over the unfinished epoch, (N, 5)."""


@final
class Population:
    """N models of one shape (other folds, seeds, KL weights, learning rates, subsets), trained together.

    On a CUDA device a step is a CUDA graph; models are stacked, or stepped on streams side by side. On the CPU models
    are stacked, one stack per core. Each model has its own noise, counted from its own seed: it takes the same steps
    whether it trains alone or beside others, up to the rounding of float32 sums taken in another order.

    Args:
        models: their starting points, one shape; left as they are.
        x: (M, C, *size), all examples.
        y: (M,), their classes, int64; or, with a loss for them, (M, ...), targets in floating point. Where the
            recipe only teaches the pose, it is not used.
        members: what sets each model apart; seeds 0, 1, 2, ... when not given.
        recipe: how to train.
        device: where to train; where `x` is when not given.
        groups: into how many stacks the models are split; chosen by device and number when None.
        workers: on the CPU, whether each stack has a process of its own; None decides by the amount of work.
        compile: fuse small operations with torch.compile, which takes 10 to 30 s at the start; None does so on a CUDA
            device for runs that are long enough to gain by it.
        conv: how convolutions are computed, "library", "matmul", "rows" or "blocks"; chosen by device, stack and size
            when None.
        weights: (M,), how much each example counts in the training loss, at least 0; all 1 when None. Validation
            counts every example once.
        loss: what to minimise, instead of the recipe's `loss`.

    Example:
        >>> from pstn.training import make_members
        >>> x, y = torch.rand(32, 1, 28, 28), torch.arange(32) % 10
        >>> models = [pstn.nn.mnist_pstn() for _ in range(3)]
        >>> population = Population(models, x, y, make_members(3, kl_weight=[0.0, 1e-4, 1e-3]), Recipe(epochs=1))
        >>> progress = population.fit()
        >>> progress.step, len(population.models())
        (4, 3)
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        x: Tensor,
        y: Tensor | None = None,
        members: Sequence[Member] | None = None,
        recipe: Recipe | None = None,
        *,
        device: torch.device | str | None = None,
        groups: int | None = None,
        workers: bool | None = None,
        compile: bool | None = None,
        conv: ConvKind | None = None,
        weights: Tensor | None = None,
        loss: LossFunction | None = None,
    ) -> None:
        recipe = recipe or Recipe()
        if loss is not None:
            recipe = dataclasses.replace(recipe, loss=loss)
        self.device = torch.device(x.device if device is None else device)
        members = [Member(seed=i) for i in range(len(models))] if members is None else members
        loss_called = recipe.training_loss()
        y = None if loss_called.only_teaches else y
        self.members = [_with_kl_weight(member, loss_called, len(x)) for member in members]
        self.recipe = recipe
        self._check(models, x, y, weights)
        sizes = [len(x) if m.train is None else len(m.train) for m in self.members]
        self.recipe = recipe = recipe.for_examples(min(sizes), recipe.as_seen(x[:1]).shape[2:])
        self.steps_per_epoch = _count_steps(sizes, recipe)
        self._models = [copy.deepcopy(m).cpu() for m in models]
        example = recipe.as_seen(x[:1]).cpu()
        for model in self._models:  # layers of unknown width find it: all models need their parameters now
            if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
                with torch.no_grad():
                    model.eval()(example)
        require_one_shape(self._models)
        first = self._models[0]
        options, called = dict[str, Any](), first
        if loss_called.only_teaches:
            called = Localizing(first)
        elif isinstance(first, TransformerModel):
            options["samples"] = recipe.samples or first.train_samples
        # Multiplications in one model's forward pass over a batch.
        self._work = count_multiplications(called, example, **options) * recipe.batch_size
        count = choose_groups(len(models), self.device, self._work, recipe) if groups is None else groups
        if not 1 <= count <= len(models):
            raise ValueError(f"groups must lie between 1 and the number of models, {len(models)}, got {groups}")
        if count < len(models) and recipe.precision == "bf16" and self.device.type == "cpu":
            raise ValueError(f"groups must be as many as models for bf16 on the CPU, {len(models)}, got {groups}")
        self.compiles = choose_compile(self.total_steps * count, self.device) if compile is None else compile
        if conv is not None:
            require_choice("conv", conv, CONV_KINDS)
        kind = conv or choose_conv(-(-len(models) // count), self.device, self._work, recipe)
        data = {"x": x.to(self.device).contiguous()}
        if y is not None:
            data["y"] = y.to(self.device)
        if weights is not None:
            data["weights"] = weights.to(self.device, torch.float32)
        self._spans = [slice(a, b) for a, b in pairwise(len(models) * g // count for g in range(count + 1))]
        self.stacks = [
            Stack(self._models[s], self.members[s], data, recipe, self.steps_per_epoch, kind) for s in self._spans
        ]
        self._places = [(stack, row) for stack in self.stacks for row in range(len(stack.members))]
        self.progress = Progress(best=[math.inf] * len(models), waited=[0] * len(models))
        if workers is None and (workers := self.total_steps * len(models) >= _WORTH_WORKERS):
            try:  # a lambda as a loss or a schedule cannot be sent to another process
                pickle.dumps((recipe, self.members))
            except Exception:
                workers = False
        self._workers = workers
        self._runners: list[Runner] = []
        self._torn = False  # whether a round was begun and not finished
        self._steps_per_round = 1
        self._programs: dict[Hashable, Step] = {}
        self._best: Tensors = {}

    def _check(self, models: Sequence[nn.Module], x: Tensor, y: Tensor | None, weights: Tensor | None) -> None:
        """Refuse what cannot be trained together."""
        recipe, loss = self.recipe, self.recipe.training_loss()
        if not models:
            raise ValueError("models must hold at least one model, got none")
        if len(self.members) != len(models):
            raise ValueError(f"members must hold one entry for each of {len(models)} models, got {len(self.members)}")
        if not x.is_floating_point():
            raise TypeError(f"x must be a floating-point tensor, got {x.dtype}: convert it first, e.g. x.float() / 255")
        if not loss.only_teaches:
            other = recipe.loss is not None and y is not None and y.is_floating_point() and y.shape[:1] == x.shape[:1]
            if not other and (y is None or y.dtype != torch.int64 or y.shape != x.shape[:1]):
                found = "nothing" if y is None else f"{y.dtype} of {tuple(y.shape)}"
                wanted = f"int64 of shape ({len(x)},), or with loss= floating-point targets"
                raise ValueError(f"y must be classes, {wanted}, got {found}")
        if not x.numel():
            raise ValueError(f"x must hold examples, got shape {tuple(x.shape)}")
        if recipe.teach is not None:
            Teaching(recipe.teach, models[0]).check(x[:1])
        largest = max(abs(float(end)) for end in torch.aminmax(x))  # no copy of all data, and NaN where there is one
        if not largest <= _LARGEST:
            raise ValueError(f"x must be finite and lie within {_LARGEST:g}, got up to {largest:g}")
        if weights is not None:
            if not loss.takes_weights:
                raise ValueError("weights must be left out: this loss has no parameter weights")
            fits = weights.shape == x.shape[:1] and weights.is_floating_point()
            if not (fits and bool((torch.isfinite(weights) & (weights >= 0)).all())):
                found = f"{weights.dtype} of {tuple(weights.shape)}"
                raise ValueError(f"weights must be {len(x)} finite floats of at least 0, got {found}")
        for number, member in enumerate(self.members):
            for name, subset in (("train", member.train), ("valid", member.valid)):
                if subset is not None and not 0 <= int(subset.min()) <= int(subset.max()) < len(x):
                    found = f"{int(subset.min())} to {int(subset.max())}"
                    raise ValueError(f"{name} of member {number} must index {len(x)} examples, got {found}")
            if recipe.validates and member.valid is None:
                asked = "validate_every" if recipe.patience is None else "patience"
                raise ValueError(f"{asked} needs examples to validate on: give valid, which member {number} has not")
        if recipe.precision == "tf32" and self.device.type != "cuda":
            raise ValueError(f"precision must be 'float32' or 'bf16' on {self.device}, got 'tf32': CUDA alone has it")

    @property
    def alive(self) -> list[bool]:
        """Which models still train."""
        return [bool(a) for stack in self.stacks for a in stack.state["alive"].tolist()]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.recipe.epochs * self.steps_per_epoch

    def fit(
        self,
        on_round: Callable[[Progress], bool | None] | None = None,
        *,
        until: int | None = None,
        seconds: float = _ROUND,
    ) -> Progress:
        """Train to the end of the recipe, from wherever the population stands.

        Args:
            on_round: called after every round; returning True stops there. It is then the caller's to say which models
                failed.
            until: stop after this step instead of the recipe's end.
            seconds: about how long a round takes. Rounds also end where models are validated.

        Warns:
            UserWarning: without `on_round`, at the end of the round in which a model was stopped, or is seen to have
                learned nothing: once for each.
        """
        if self._torn:
            raise RuntimeError("training was interrupted in the middle of a round: load a checkpoint, or start anew")
        end = self.total_steps if until is None else min(until, self.total_steps)
        every = self.recipe.validate_every or 1
        stride = every * self.steps_per_epoch if self.recipe.validates else self.total_steps
        if self.recipe.patience is not None and self.progress.step == 0:
            self._validate()  # training may make worse what starts well, as on a pretrained network
        count, told = self._steps_per_round, set(failed_models(self))
        while self.progress.step < end and any(self.alive):
            step, before = self.progress.step, self.progress.seconds
            taken = min(count, end - step, stride - step % stride)
            self._advance(taken)
            if self.recipe.validates and self.progress.step % stride == 0:
                self._validate()
            if on_round is None:
                for number, text in failed_models(self).items():
                    if number not in told:
                        told.add(number)
                        warnings.warn(f"model {number}, step {self.progress.step:,} of {self.total_steps:,}: {text}")
            elif on_round(self.progress):
                break
            spent = max(self.progress.seconds - before, 1e-6)
            # At most ten times the last round: the first one also traces and captures.
            count = self._steps_per_round = max(1, int(min(taken * seconds / spent, 10 * max(taken, count))))
        return self.progress

    def prepare(self) -> None:
        """Start processes or capture graphs now rather than at the first step, and raise what forbids it."""
        self._advance(0)

    def _advance(self, count: int) -> None:
        started, step = time.perf_counter(), self.progress.step
        self._runners = self._runners or [self._make_runner(stack) for stack in self.stacks]
        self._torn = True
        for runner in self._runners:
            runner.launch(step, count)
        metrics = torch.cat([runner.collect() for runner in self._runners], dim=1)
        self._torn = False
        self.progress.step += count
        self.progress.epoch = self.progress.step // self.steps_per_epoch
        self.progress.seconds += time.perf_counter() - started
        self._record(step, metrics)

    def _make_runner(self, stack: Stack) -> Runner:
        if self.device.type == "cuda":
            return CudaRunner(stack, self.compiles, self._programs)
        if self._workers and len(self.stacks) > 1:
            return WorkerRunner(stack, self.compiles)
        return LocalRunner(stack, self.compiles, choose_threads(self._work * len(stack.members)))

    def _record(self, start: int, metrics: Tensor) -> None:
        """Add (count, N, 5) metrics to the history, epoch by epoch, and record models that failed."""
        progress, spe, at = self.progress, self.steps_per_epoch, 0
        while at < len(metrics):
            epoch, offset = divmod(start + at, spe)
            part = metrics[at : at + spe - offset].double()
            total = part.sum(0) + (torch.tensor(progress.partial, dtype=torch.float64) if offset else 0)
            progress.partial = total.tolist()
            if offset + len(part) == spe:
                means = {name: (total[:, i] / spe).tolist() for i, name in enumerate(METRICS)}
                # What the loss does not report, or what needs classes, is NaN for all models.
                for name in ("nll", "kl", "accuracy"):
                    if all(map(math.isnan, means[name])) and any(self.alive):
                        del means[name]
                progress.history.append({"epoch": epoch + 1, **means})
            at += len(part)
        patience = math.inf if self.recipe.patience is None else self.recipe.patience
        known = {f.model for f in progress.failures} | {i for i, w in enumerate(progress.waited) if w >= patience}
        ok = torch.isfinite(metrics[..., 0] + metrics[..., 4]) & (metrics[..., 0] < self.recipe.loss_limit)
        for model in (~ok).any(0).nonzero().flatten().tolist():
            if model not in known:
                first = int((~ok[:, model]).nonzero()[0])
                loss, norm = float(metrics[first, model, 0]), float(metrics[first, model, 4])
                progress.failures.append(Failure(model, start + first, loss, norm))

    def _validate(self) -> None:
        """Score every model on its validation examples; keep the best weights, stop models that wait too long."""
        scores, progress = self.evaluate_members(), self.progress
        if progress.history:
            progress.history[-1].update({f"valid_{k}": v for k, v in scores.items()})
        if self.recipe.patience is None:
            return
        state = self._state(best=False)
        self._best = self._best or {name: t.clone() for name, t in state.items()}
        losses = scores["nll"] if "nll" in scores else scores["loss"]
        for model, (loss, alive) in enumerate(zip(losses, self.alive, strict=True)):
            if alive and loss < progress.best[model]:
                progress.best[model], progress.waited[model] = loss, 0
                for name, tensor in state.items():
                    self._best[name][model] = tensor[model]
            elif alive:
                progress.waited[model] += 1
                if progress.waited[model] >= self.recipe.patience:
                    stack, row = self._places[model]
                    stack.state["alive"][row] = False

    def evaluate_members(self, samples: Samples | None = None, batch: int = 500) -> ModelScores:
        """Each model, as it stands, on its own validation examples: {"nll": [...], "accuracy": [...], "ece": [...]}.

        The recipe's augmentation changes them as it changes training examples, by a draw that stays the same.
        """
        return self._evaluate(None, samples, batch, best=False)

    def evaluate(
        self, x: Tensor, y: Tensor, samples: Samples | None = None, batch: int = 500, *, best: bool = True
    ) -> ModelScores:
        """Every model on the same examples, taken as they are.

        Args:
            x: (M, C, *size).
            y: (M,).
            samples: S, or "modes"; the models' own `test_samples` when None.
            batch: examples at a time, at most; fewer where all models together would take too much memory.
            best: with early stopping, at their lowest validation loss rather than at the last step.

        Returns:
            {"nll": [...], "accuracy": [...], "ece": [...]}, one number per model; {"loss": [...]} for targets that are
            no classes.
        """
        return self._evaluate((x.to(self.device), y.to(self.device)), samples, batch, best=best)

    def predict(self, x: Tensor, samples: Samples | None = None, batch: int = 500) -> list[Tensor]:
        """The log-probabilities (M, K) of every model for the same examples; the arguments are those of `evaluate`."""
        examples = x.to(self.device), torch.zeros(len(x), dtype=torch.int64, device=self.device)
        return [log_probs for log_probs, _ in self._predict(examples, samples, batch, best=True)]

    def _evaluate(
        self, examples: tuple[Tensor, Tensor] | None, samples: Samples | None, batch: int, *, best: bool
    ) -> ModelScores:
        found = self._predict(examples, samples, batch, best=best)
        if found[0][0].dim() == 1:
            return {"loss": [float(losses.mean()) for losses, _ in found]}
        scores = [score(p, y) for p, y in found]
        names = {"nll": "nll", "accuracy": "accuracy", "ece": "calibration_error"}
        return {name: [getattr(each, field) for each in scores] for name, field in names.items()}

    def _predict(
        self, examples: tuple[Tensor, Tensor] | None, samples: Samples | None, batch: int, *, best: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """What `Stack.predict` has of every model."""
        state, found = self._state(best), list[tuple[Tensor, Tensor]]()
        for stack, span in zip(self.stacks, self._spans, strict=True):
            own = {name: tensor[span] for name, tensor in state.items()}
            found += stack.predict(own, examples, samples, batch)
        return found

    def _state(self, best: bool) -> Tensors:
        """The state of all models: the best with early stopping, if asked for, else the current one."""
        if best and self._best:
            return self._best
        return {name: torch.cat([stack.state[name] for stack in self.stacks]) for name in self.stacks[0].state}

    def models(self, *, best: bool = True) -> list[nn.Module]:
        """Copies of the models as they stand, on the CPU in evaluation mode.

        Args:
            best: with early stopping, at their lowest validation loss rather than at the last step.
        """
        made = [copy.deepcopy(start) for start in self._models]
        for number, model in enumerate(made):
            self.load_into(model.eval(), number, best=best)
        return made

    def load_into(self, model: nn.Module, number: int = 0, *, best: bool = True) -> None:
        """Give a model of this shape, on any device, the weights and running statistics that one has now.

        Args:
            model: changed in place.
            number: which of the population's models.
            best: with early stopping, at the lowest validation loss rather than at the last step.
        """
        stack, state = self.stacks[0], self._state(best)
        values = {**stack.parameters(state["rows"]), **{name: state[f"buffer.{name}"] for name in stack.buffers}}
        model.load_state_dict({**model.state_dict(), **{name: tensor[number] for name, tensor in values.items()}})

    def renew_patience(self) -> None:
        """Let models that early stopping stopped train on; those that broke stay stopped."""
        failed = {failure.model for failure in self.progress.failures}
        for model, (stack, row) in enumerate(self._places):
            if model not in failed:
                stack.state["alive"][row], self.progress.waited[model] = True, 0

    def start(self, number: int) -> nn.Module:
        """A copy of a model as it was before training, on the CPU."""
        return copy.deepcopy(self._models[number])

    def tensors(self) -> Tensors:
        """All state by name, N models in front of each tensor, on the CPU: what a checkpoint holds."""
        best = {f"best.{name}": tensor.cpu() for name, tensor in self._best.items()}
        return {**{name: t.cpu() for name, t in self._state(best=False).items()}, **best}

    def load_tensors(self, tensors: Tensors) -> None:
        """Put back what `tensors` returned."""
        if self._torn:  # what is still under way is to write nothing more
            self.close()
            self._torn = False
        for stack, span in zip(self.stacks, self._spans, strict=True):
            for name, held in stack.state.items():
                held.copy_(tensors[name][span])
        best = {name: tensors[f"best.{name}"] for name in self.stacks[0].state if f"best.{name}" in tensors}
        self._best = {name: tensor.to(self.device, copy=True) for name, tensor in best.items()}

    def close(self) -> None:
        """Let go of processes and graphs; training can go on afterwards."""
        for runner in self._runners:
            runner.close()
        self._runners = []

    def __enter__(self) -> Population:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def choose_groups(models: int, device: torch.device, work: int, recipe: Recipe) -> int:
    """Into how many stacks to split a population.

    Args:
        models: how many there are.
        device: where they train.
        work: multiplications in one model's forward pass over a batch.
        recipe: says in which precision.
    """
    if device.type == "cuda":
        return models if work >= _FILLS_DEVICE else 1
    # On a CPU, what stacks are computed with has no autocast.
    return models if recipe.precision == "bf16" else min(models, count_cores())


def count_cores() -> int:
    """Cores that this process may use: on a cluster, not all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_conv(stacked: int, device: torch.device, work: int, recipe: Recipe) -> ConvKind:
    """How a stack of so many models computes its convolutions; the arguments are those of `choose_groups`."""
    if stacked > 1:
        return "matmul" if device.type == "cuda" else "rows"
    cuts = device.type == "cuda" and recipe.precision == "tf32" and work >= _WORTH_CUTTING
    return "blocks" if cuts else "library"


def choose_compile(steps: int, device: torch.device) -> bool:
    """Whether to compile the step of a run this long: so many steps, of all stacks together.

    Not where torch is to be deterministic: kernels are chosen by their speed, and sums are taken in their order.
    """
    if device.type != "cuda" or steps < _WORTH_COMPILING or torch.are_deterministic_algorithms_enabled():
        return False
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


def make_device(name: str) -> torch.device:
    """The device called `name`; "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or another that torch knows, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be one that is here, got {name!r}: torch finds no GPU")
    return device


def _with_kl_weight(member: Member, loss: TrainingLoss, examples: int) -> Member:
    """The member with its weight of the KL term, if the loss takes one."""
    default = default_kl_weight(examples if member.train is None else len(member.train))
    weight = loss.choose_kl_weight(member.kl_weight, default if loss.takes_kl_weight else None)
    return dataclasses.replace(member, kl_weight=weight)


def _count_steps(sizes: Sequence[int], recipe: Recipe) -> int:
    """Steps in one epoch: what every training set of these sizes allows."""
    batch = recipe.batch_size * recipe.accumulate
    possible = sorted({size // batch for size in sizes})
    if possible[0] < 1:
        raise ValueError(f"batch_size times accumulate must be at most {min(sizes)}, the examples, got {batch}")
    if recipe.steps_per_epoch is None and len(possible) > 1:
        raise ValueError(f"steps_per_epoch must be given: subsets allow different numbers of steps, {possible}")
    if (recipe.steps_per_epoch or 0) > possible[0]:
        raise ValueError(f"steps_per_epoch must be at most {possible[0]}, got {recipe.steps_per_epoch}")
    return recipe.steps_per_epoch or possible[0]
