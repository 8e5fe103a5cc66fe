"""The population trainer: many models of one shape, trained together."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn

from pstn._checks import require_choice
from pstn.defaults import default_kl_weight
from pstn.objective import LossFunction, TrainingLoss
from pstn.threads import choose_threads
from pstn.training.population.convolution import CONV_KINDS, ConvKind
from pstn.training.population.group import Group, GroupScores
from pstn.training.population.planning import (
    check_population,
    check_precision,
    check_validation,
    choose_compile,
    choose_conv,
    choose_groups,
    count_steps,
    count_work,
)
from pstn.training.population.recipe import Member, Recipe
from pstn.training.population.runners import LocalRunner, Runner, WorkerRunner
from pstn.training.population.stacking import require_one_shape
from pstn.training.population.step import METRICS

__all__ = ["Failure", "Population", "Progress"]

# Seconds between reads of the metrics, which stall the device. Where a run is cut into rounds changes no bit of it.
_ROUND = 2.0
# Starting a process takes seconds: below this many model-steps one process is faster.
_WORTH_WORKERS = 1000


@dataclass(frozen=True)
class Failure:
    """Why a model was stopped."""

    model: int
    step: int
    loss: float
    grad_norm: float
    found: str = ""
    """Which part went wrong and where theta was."""

    def __str__(self) -> str:
        return (
            f"model {self.model} stopped at step {self.step}: loss {self.loss:g}, gradient norm {self.grad_norm:g}. "
            f"{self.found} Its weights are those before that step; the other models go on."
        )


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
        y: (M,), their classes, int64; or, with a loss for them, (M, ...), targets in floating point.
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
        y: Tensor,
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
        self.recipe = recipe or Recipe()
        if loss is not None:
            self.recipe = dataclasses.replace(self.recipe, loss=loss)
        members = [Member(seed=i) for i in range(len(models))] if members is None else members
        training_loss = TrainingLoss(self.recipe.loss)
        self.members = [_with_kl_weight(member, training_loss, len(x)) for member in members]
        self.device = torch.device(x.device if device is None else device)
        check_population(models, self.members, x, y, weights, floats=self.recipe.loss is not None)
        check_validation(self.members, self.recipe)
        check_precision(self.recipe, self.device)
        if weights is not None:
            training_loss.require_weights()
        smallest = min(len(x) if m.train is None else len(m.train) for m in self.members)
        self.recipe = self.recipe.for_examples(smallest)
        if conv is not None:
            require_choice("conv", conv, CONV_KINDS)
        self.steps_per_epoch = count_steps(self.members, len(x), self.recipe)
        self._models = [copy.deepcopy(m).cpu() for m in models]
        x, y = x.to(self.device).contiguous(), y.to(self.device)
        weights = None if weights is None else weights.to(self.device, torch.float32)
        self._touch(x)
        require_one_shape(self._models)
        work = self._count_work(x)
        count = choose_groups(len(models), self.device, work, self.recipe) if groups is None else groups
        if not 1 <= count <= len(models):
            raise ValueError(f"groups must lie between 1 and the number of models, {len(models)}, got {groups}")
        if count < len(models) and self.recipe.precision == "bf16" and self.device.type == "cpu":
            raise ValueError(f"groups must be as many as models for bf16 on the CPU, {len(models)}, got {groups}")
        self.compiles = choose_compile(self.total_steps * count, self.device) if compile is None else compile
        bounds = [len(models) * g // count for g in range(count + 1)]
        self._spans = [slice(a, b) for a, b in pairwise(bounds)]
        kind = conv or choose_conv(-(-len(models) // count), self.device, work, self.recipe)
        self.groups = [
            Group(self._models[s], self.members[s], x, y, self.recipe, self.steps_per_epoch, kind, weights)
            for s in self._spans
        ]
        self.progress = Progress(best=[math.inf] * len(models), waited=[0] * len(models))
        steps = self.total_steps * len(models)
        self._workers = (steps >= _WORTH_WORKERS and self._picklable()) if workers is None else workers
        self._runners: list[Runner] = []
        self._torn = False  # whether a round was begun and not finished
        self._programs: dict[Hashable, Callable[..., Tensor]] = {}
        self._best: list[dict[str, Tensor]] = []

    def _picklable(self) -> bool:
        """Whether the loss and the schedules can be sent to another process: a lambda cannot."""
        try:
            pickle.dumps((self.recipe.loss, [m.kl_weight for m in self.members]))
        except Exception:
            return False
        return True

    def _example(self, x: Tensor) -> Tensor:
        """One input as the models are given it, on the CPU."""
        augment = self.recipe.augment
        return (x[:1] if augment is None else augment(x[:1], torch.zeros(1, augment.width, device=x.device))).cpu()

    def _count_work(self, x: Tensor) -> int:
        """Multiplications in one model's forward pass over a batch; computed on CUDA only."""
        return count_work(self._models[0], self._example(x), self.recipe) if self.device.type == "cuda" else 0

    def _touch(self, x: Tensor) -> None:
        """Let layers of unknown width find it: all models need their parameters now."""
        for model in self._models:
            if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
                with torch.no_grad():
                    model.eval()(self._example(x))

    @property
    def alive(self) -> list[bool]:
        """Which models still train."""
        return [bool(a) for group in self.groups for a in group.state.alive.tolist()]

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
            on_round: called after every round; returning True stops there.
            until: stop after this step instead of the recipe's end.
            seconds: about how long a round takes. Rounds also end where models are validated.
        """
        if self._torn:
            raise RuntimeError(
                "training was interrupted in the middle of a round, so that its models may be at different steps: "
                "load a checkpoint or make the population anew; to stop where it can go on, return True from on_round"
            )
        end = self.total_steps if until is None else min(until, self.total_steps)
        every = self.recipe.validate_every or 1
        stride = every * self.steps_per_epoch if self.recipe.validates else self.total_steps
        count = 1
        while self.progress.step < end and any(self.alive):
            step, before = self.progress.step, self.progress.seconds
            taken = min(count, end - step, stride - step % stride)
            self._advance(taken)
            if self.recipe.validates and self.progress.step % stride == 0:
                self._validate()
            if on_round is not None and on_round(self.progress):
                break
            spent = max(self.progress.seconds - before, 1e-6)
            # At most ten times the last round: the first one also traces and captures.
            count = max(1, int(min(taken * seconds / spent, 10 * max(taken, count))))
        return self.progress

    def _advance(self, count: int) -> None:
        started, step = time.perf_counter(), self.progress.step
        if not self._runners:
            self._runners = [self._make_runner(group) for group in self.groups]
        self._torn = True
        for runner in self._runners:
            runner.launch(step, count)
        metrics = torch.cat([runner.collect() for runner in self._runners], dim=1)
        self._torn = False
        self.progress.step += count
        self.progress.epoch = self.progress.step // self.steps_per_epoch
        self.progress.seconds += time.perf_counter() - started
        self._record(step, metrics)

    def _make_runner(self, group: Group) -> Runner:
        if self.device.type == "cuda":
            from pstn.training.population.runners import CudaRunner

            return CudaRunner(group, compile=self.compiles, programs=self._programs)
        if self._workers and len(self.groups) > 1:
            return WorkerRunner(group, self.compiles)
        work = count_work(self._models[0], self._example(group.constants.x), self.recipe) * len(group.members)
        return LocalRunner(group, self.compiles, choose_threads(work))

    def _record(self, start: int, metrics: Tensor) -> None:
        """Add (count, N, 5) metrics to the history, epoch by epoch, and record models that failed."""
        spe, at = self.steps_per_epoch, 0
        while at < len(metrics):
            epoch, offset = divmod(start + at, spe)
            part = metrics[at : at + spe - offset].double()
            total = part.sum(0) + (torch.tensor(self.progress.partial, dtype=torch.float64) if offset else 0)
            self.progress.partial = total.tolist()
            if offset + len(part) == spe:
                entry = {name: (total[:, i] / spe).tolist() for i, name in enumerate(METRICS)}
                kept = {name: values for name, values in entry.items() if not self._missing(name, values)}
                self.progress.history.append({"epoch": epoch + 1, **kept})
            at += len(part)
        known = {failure.model for failure in self.progress.failures}
        ok = torch.isfinite(metrics[..., 0] + metrics[..., 4]) & (metrics[..., 0] < self.recipe.loss_limit)
        for model in (~ok).any(0).nonzero().flatten().tolist():
            if model not in known and model not in self._stopped:
                first = int((~ok[:, model]).nonzero()[0])
                self._fail(model, start + first, metrics[first, model])

    def _missing(self, name: str, values: list[float]) -> bool:
        """Whether a metric is one that the loss does not report, or that needs classes: not just a broken model's."""
        return name in ("nll", "kl", "accuracy") and all(math.isnan(v) for v in values) and any(self.alive)

    @property
    def _stopped(self) -> set[int]:
        patience = self.recipe.patience
        return {i for i, w in enumerate(self.progress.waited) if patience is not None and w >= patience}

    def _fail(self, model: int, step: int, metrics: Tensor) -> None:
        from pstn.training.diagnose import diagnose

        group, row = self._locate(model)
        found = diagnose(group, row, step, float(metrics[0]))
        self.progress.failures.append(Failure(model, step, float(metrics[0]), float(metrics[4]), found))

    def _locate(self, model: int) -> tuple[Group, int]:
        for group, span in zip(self.groups, self._spans, strict=True):
            if span.start <= model < span.stop:
                return group, model - span.start
        raise IndexError(f"model must lie between 0 and {len(self.members) - 1}, got {model}")

    def _validate(self) -> None:
        """Score every model on its validation examples; keep the best weights, stop models that wait too long."""
        scores = self.evaluate_members()
        self.progress.history[-1].update({f"valid_{k}": v for k, v in scores.items()})
        if self.recipe.patience is None:
            return
        if not self._best:
            self._best = [{k: t.clone() for k, t in group.tensors().items()} for group in self.groups]
        losses = scores["nll"] if "nll" in scores else scores["loss"]
        for model, (loss, alive) in enumerate(zip(losses, self.alive, strict=True)):
            if not alive:
                continue
            group, row = self._locate(model)
            if loss < self.progress.best[model]:
                self.progress.best[model], self.progress.waited[model] = loss, 0
                for name, tensor in group.tensors().items():
                    self._best[self.groups.index(group)][name][row] = tensor[row]
            else:
                self.progress.waited[model] += 1
                if self.progress.waited[model] >= self.recipe.patience:
                    group.state.alive[row] = False

    def evaluate_members(self, samples: int | None = None, batch: int = 500) -> GroupScores:
        """Each model, as it stands, on its own validation examples: {"nll": [...], "accuracy": [...], "ece": [...]}.

        The recipe's augmentation changes them as it changes training examples, by a draw that stays the same.
        """
        return _join([group.evaluate(group.tensors(), None, samples, batch) for group in self.groups])

    def evaluate(
        self, x: Tensor, y: Tensor, samples: int | None = None, batch: int = 500, *, best: bool = True
    ) -> GroupScores:
        """Every model on the same examples, taken as they are.

        Args:
            x: (M, C, *size).
            y: (M,).
            samples: S; the models' own `test_samples` when None.
            batch: examples at a time, at most; fewer where all models together would take too much memory.
            best: with early stopping, at their lowest validation loss rather than at the last step.

        Returns:
            {"nll": [...], "accuracy": [...], "ece": [...]}, one number per model; {"loss": [...]} for targets that are
            no classes.
        """
        x, y = x.to(self.device), y.to(self.device)
        held = self._held(best)
        return _join([g.evaluate(h, (x, y), samples, batch) for g, h in zip(self.groups, held, strict=True)])

    def _held(self, best: bool) -> list[dict[str, Tensor]]:
        """Each group's state: the best with early stopping, if asked for, else the current one."""
        return self._best if best and self._best else [group.tensors() for group in self.groups]

    def models(self, *, best: bool = True) -> list[nn.Module]:
        """Copies of the models as they stand, on the CPU in evaluation mode.

        Args:
            best: with early stopping, at their lowest validation loss rather than at the last step.
        """
        made = []
        for model, start in enumerate(self._models):
            group, row = self._locate(model)
            held = self._held(best)[self.groups.index(group)]
            buffers = [held[f"buffer.{name}"] for name in group.stack.buffers]
            trained = copy.deepcopy(start)
            trained.load_state_dict({**trained.state_dict(), **group.module(row, held["rows"], buffers)})
            made.append(trained.eval())
        return made

    def tensors(self) -> dict[str, Tensor]:
        """All state by name, N models in front of each tensor, on the CPU: what a checkpoint holds."""
        sources = {"": [g.tensors() for g in self.groups], "best.": self._best}
        return {
            prefix + name: torch.cat([part[name].cpu() for part in parts])
            for prefix, parts in sources.items()
            if parts
            for name in parts[0]
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` returned."""
        if self._torn:  # what is still under way is to write nothing more
            self.close()
            self._torn = False
        if "best.rows" in tensors:
            self._best = [{k: t.clone() for k, t in group.tensors().items()} for group in self.groups]
        for prefix, parts in (("", [g.tensors() for g in self.groups]), ("best.", self._best)):
            for span, part in zip(self._spans, parts, strict=False):
                for name, held in part.items():
                    held.copy_(tensors[prefix + name][span])

    def close(self) -> None:
        """Let go of processes and graphs; training can go on afterwards."""
        for runner in self._runners:
            runner.close()
        self._runners = []

    def __enter__(self) -> Population:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _with_kl_weight(member: Member, loss: TrainingLoss, examples: int) -> Member:
    """The member with its weight of the KL term, if the loss takes one."""
    if not loss.takes_kl_weight:
        loss.choose_kl_weight(member.kl_weight, 0.0)  # refuses one
        return member
    default = default_kl_weight(examples if member.train is None else len(member.train))
    return member if member.kl_weight is not None else dataclasses.replace(member, kl_weight=default)


def _join(parts: list[GroupScores]) -> GroupScores:
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
