"""The population trainer: many models of one shape, trained together."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from pstn.training.convolution import ConvKind
from pstn.training.group import Group
from pstn.training.noise import stream_keys
from pstn.training.program import METRICS
from pstn.training.recipe import Member, Recipe
from pstn.training.runners import LocalRunner, Runner, WorkerRunner
from pstn.training.stacking import require_one_shape
from pstn.uncertainty import calibration_error

__all__ = ["Failure", "Population", "Progress"]

# Steps between looks at the metrics when nothing else asks for one: reading them stalls the device.
_ROUND = 1000
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


@final
class Population:
    """N models of one shape (other folds, seeds, KL weights, learning rates, subsets), trained together.

    On a CUDA device a step is a CUDA graph; models are stacked, or stepped on streams side by side. On the CPU models
    are stacked, one stack per core. Each model has its own noise, counted from its own seed: it takes the same steps
    whether it trains alone or beside others, up to the rounding of float32 sums taken in another order.

    Args:
        models: their starting points, one shape; left as they are.
        x: (M, C, *size), all examples.
        y: (M,), their classes, int64.
        members: what sets each model apart; seeds 0, 1, 2, ... when not given.
        recipe: how to train.
        device: where to train; where `x` is when not given.
        groups: into how many stacks the models are split; chosen by device and number when None.
        workers: on the CPU, whether each stack has a process of its own; None decides by the amount of work.
        compile: on CUDA, fuse small kernels with torch.compile; costs up to a minute at the start.
        conv: how convolutions are computed, "library" or "matmul"; chosen by device and stack when None.

    Example:
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
        compile: bool = False,
        conv: ConvKind | None = None,
    ) -> None:
        self.recipe = recipe or Recipe()
        self.members = [Member(seed=i) for i in range(len(models))] if members is None else list(members)
        self.device = torch.device(x.device if device is None else device)
        _check_population(models, self.members, x, y)
        self.steps_per_epoch = _steps_per_epoch(self.members, len(x), self.recipe)
        self._models, self._compile = [copy.deepcopy(m).cpu() for m in models], compile
        x, y = x.to(self.device).contiguous(), y.to(self.device)
        self._touch(x)
        require_one_shape(self._models)
        count = groups or _choose_groups(len(models), self.device)
        if not 1 <= count <= len(models):
            raise ValueError(f"groups must lie between 1 and the number of models, {len(models)}, got {groups}")
        bounds = [len(models) * g // count for g in range(count + 1)]
        self._spans = [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
        kind = conv or _choose_conv(-(-len(models) // count), self.device)
        self.groups = [
            Group(self._models[s], self.members[s], x, y, self.recipe, self.steps_per_epoch, kind) for s in self._spans
        ]
        self.progress = Progress(best=[math.inf] * len(models), waited=[0] * len(models))
        work = self.recipe.epochs * self.steps_per_epoch * len(models)
        self._workers = (work >= _WORTH_WORKERS) if workers is None else workers
        self._runners: list[Runner] = []
        self._programs: dict[int, Callable[..., Tensor]] = {}
        self._best: list[dict[str, Tensor]] = []

    def _touch(self, x: Tensor) -> None:
        """Let layers of unknown width find it: all models need their parameters now."""
        for model in self._models:
            lazy = [p for p in model.parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
            if lazy:
                sample = x[:1] if self.recipe.augment is None else self.recipe.augment(
                    x[:1], torch.zeros(1, self.recipe.augment.width, device=x.device))  # fmt: skip
                with torch.no_grad():
                    model.eval()(sample.cpu())

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
        every: int | None = None,
    ) -> Progress:
        """Train to the end of the recipe, from wherever the population stands.

        Args:
            on_round: called after each round of epochs; returning True stops after it.
            until: stop after this step instead of the recipe's end.
            every: epochs in a round; as many as make about a thousand steps when not given.
        """
        end = self.total_steps if until is None else min(until, self.total_steps)
        epochs = every or max(1, _ROUND // self.steps_per_epoch)
        if self._validates:
            epochs = self.recipe.validate_every
        while self.progress.step < end and any(self.alive):
            step = self.progress.step
            boundary = (step // self.steps_per_epoch // epochs + 1) * epochs * self.steps_per_epoch
            self._advance(min(boundary, end) - step)
            if self._validates and self.progress.step % (epochs * self.steps_per_epoch) == 0:
                self._validate()
            if on_round is not None and on_round(self.progress):
                break
        return self.progress

    @property
    def _validates(self) -> bool:
        return self.recipe.patience is not None or all(m.valid is not None for m in self.members)

    def _advance(self, count: int) -> None:
        started, step = time.perf_counter(), self.progress.step
        if not self._runners:
            self._runners = [self._make_runner(group) for group in self.groups]
        for runner in self._runners:
            runner.launch(step, count)
        metrics = torch.cat([runner.collect() for runner in self._runners], dim=1)
        self.progress.step += count
        self.progress.epoch = self.progress.step // self.steps_per_epoch
        self.progress.seconds += time.perf_counter() - started
        self._record(step, metrics)

    def _make_runner(self, group: Group) -> Runner:
        if self.device.type == "cuda":
            from pstn.training.cuda import CudaRunner

            return CudaRunner(group, compile=self._compile, programs=self._programs)
        return WorkerRunner(group) if self._workers and len(self.groups) > 1 else LocalRunner(group)

    def _record(self, start: int, metrics: Tensor) -> None:
        """Add (count, N, 5) metrics to the history, epoch by epoch, and look for models that broke."""
        for at in range(0, len(metrics), max(1, self.steps_per_epoch)):
            epoch, offset = divmod(start + at, self.steps_per_epoch)
            del offset
            part = metrics[at : at + self.steps_per_epoch].double().mean(0)
            entry = {name: part[:, i].tolist() for i, name in enumerate(METRICS)}
            self.progress.history.append({"epoch": epoch + 1, **entry})
        known = {failure.model for failure in self.progress.failures}
        ok = torch.isfinite(metrics[..., 0] + metrics[..., 4]) & (metrics[..., 0] < self.recipe.loss_limit)
        for model in (~ok).any(0).nonzero().flatten().tolist():
            if model not in known and model not in self._stopped:
                first = int((~ok[:, model]).nonzero()[0])
                self._fail(model, start + first, metrics[first, model])

    @property
    def _stopped(self) -> set[int]:
        patience = self.recipe.patience
        return {i for i, w in enumerate(self.progress.waited) if patience is not None and w >= patience}

    def _fail(self, model: int, step: int, metrics: Tensor) -> None:
        from pstn.training.watchdog import diagnose

        group, row = self._locate(model)
        found = diagnose(group, row, step)
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
        for model, (loss, alive) in enumerate(zip(scores["nll"], self.alive, strict=True)):
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

    def evaluate_members(self, samples: int | None = None, batch: int = 500) -> dict[str, list[float]]:
        """Each model on its own validation examples: {"nll": [...], "accuracy": [...], "ece": [...]}."""
        scores: dict[str, list[float]] = {"nll": [], "accuracy": [], "ece": []}
        for group in self.groups:
            if any(m.valid is None for m in group.members):
                raise ValueError("valid must be given for every member to validate")
            subsets = [m.valid for m in group.members if m.valid is not None]
            longest = max(len(s) for s in subsets)
            index = torch.stack([torch.cat([s, s[:1].expand(longest - len(s))]) for s in subsets]).to(self.device)
            constants = group.constants
            parts = [
                group.log_probs(constants.x[part], self._eval_keys(group), at, samples, shared=False)
                for at, part in enumerate(index.split(batch, dim=1))
            ]
            log_probs = torch.cat(parts, dim=1)
            for row, subset in enumerate(subsets):
                _score(scores, log_probs[row, : len(subset)], constants.y[subset.to(self.device)])
        return scores

    def evaluate(self, x: Tensor, y: Tensor, samples: int | None = None, batch: int = 500) -> dict[str, list[float]]:
        """Every model on the same examples.

        Args:
            x: (M, C, *size).
            y: (M,).
            samples: S; the models' own `test_samples` when None.
            batch: examples at a time.

        Returns:
            {"nll": [...], "accuracy": [...], "ece": [...]}, one number per model.
        """
        scores: dict[str, list[float]] = {"nll": [], "accuracy": [], "ece": []}
        x, y = x.to(self.device), y.to(self.device)
        for group in self.groups:
            keys = self._eval_keys(group)
            parts = [group.log_probs(part, keys, at, samples, shared=True) for at, part in enumerate(x.split(batch))]
            for log_probs in torch.cat(parts, dim=1):
                _score(scores, log_probs, y)
        return scores

    def _eval_keys(self, group: Group) -> Tensor:
        return stream_keys([m.seed for m in group.members], "evaluate", device=self.device)

    def models(self, *, best: bool = True) -> list[nn.Module]:
        """Copies of the models as they stand, on the CPU in evaluation mode.

        Args:
            best: with early stopping, at their lowest validation loss rather than at the last step.
        """
        made = []
        for model, start in enumerate(self._models):
            group, row = self._locate(model)
            held = self._best[self.groups.index(group)] if best and self._best else group.tensors()
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


def _score(scores: dict[str, list[float]], log_probs: Tensor, y: Tensor) -> None:
    scores["nll"].append(float(-log_probs.gather(1, y[:, None]).mean()))
    scores["accuracy"].append(float((log_probs.argmax(1) == y).double().mean()))
    finite = bool(torch.isfinite(log_probs).all())
    scores["ece"].append(float(calibration_error(log_probs.exp(), y)) if finite else math.nan)


def _choose_groups(models: int, device: torch.device) -> int:
    if device.type == "cuda":
        # Measured on an H200 (benchmarks/training.py): streams win while there are few models, stacks beyond.
        return models if models <= 16 else max(1, models // 25)
    return min(models, os.cpu_count() or 1)


def _choose_conv(stacked: int, device: torch.device) -> ConvKind:
    return "matmul" if device.type == "cuda" and stacked > 1 else "library"


def _check_population(models: Sequence[nn.Module], members: Sequence[Member], x: Tensor, y: Tensor) -> None:
    if not models:
        raise ValueError("models must hold at least one model, got none")
    if len(members) != len(models):
        raise ValueError(f"members must hold one entry for each of {len(models)} models, got {len(members)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be a floating-point tensor, got {x.dtype}: convert it first, e.g. x.float() / 255")
    if y.dtype != torch.int64 or y.shape != x.shape[:1]:
        raise ValueError(f"y must be int64 of shape ({len(x)},), got {y.dtype} of {tuple(y.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("x must be finite: clean or mask missing values before training")
    for number, member in enumerate(members):
        for name in ("train", "valid"):
            subset = getattr(member, name)
            if subset is not None and not 0 <= int(subset.min()) <= int(subset.max()) < len(x):
                raise ValueError(f"{name} of member {number} must index {len(x)} examples, got up to {int(subset.max())}")


def _steps_per_epoch(members: Sequence[Member], examples: int, recipe: Recipe) -> int:
    batch = recipe.batch_size * recipe.accumulate
    possible = [(examples if m.train is None else len(m.train)) // batch for m in members]
    if min(possible) < 1:
        raise ValueError(
            f"batch_size times accumulate must not exceed the smallest training subset, got {batch} for "
            f"{examples if members[0].train is None else min(len(m.train) for m in members if m.train is not None)}"
        )
    if recipe.steps_per_epoch is None:
        if len(set(possible)) > 1:
            raise ValueError(
                f"subsets give different numbers of steps per epoch, {sorted(set(possible))}: pass steps_per_epoch"
            )
        return possible[0]
    if recipe.steps_per_epoch > min(possible):
        raise ValueError(f"steps_per_epoch must be at most {min(possible)}, got {recipe.steps_per_epoch}")
    return recipe.steps_per_epoch
