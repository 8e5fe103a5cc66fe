"""A group: models that step as one stack, with their data, noise and state."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pstn.nn.classifier import Prediction, TransformerModel
from pstn.objective import TrainingLoss
from pstn.training.evaluate import score
from pstn.training.population.convolution import ConvKind
from pstn.training.population.noise import BatchOrder, stream_keys, uniform
from pstn.training.population.recipe import Member, Recipe, kl_weight_at, learning_rates, progress_at
from pstn.training.population.stacking import make_stack, make_template, view_rows
from pstn.training.population.step import Constants, State, StepNoise

__all__ = ["Group", "GroupScores", "precision_flags"]


GroupScores = dict[str, list[float]]
"""{"nll": [...], "accuracy": [...], "ece": [...]}, one number per model; {"loss": [...]} where there are no classes."""

# How many numbers all inputs of all models under all samples may hold at a time. A network's activations take some tens
# of times the memory of its inputs: stacks of many models would otherwise not fit.
_INPUT = {"cpu": 1 << 22, "cuda": 1 << 27}


@final
class Group:
    """N models of one shape that step as one.

    Args:
        models: their starting points; left as they are.
        members: what sets each apart.
        x: (M, C, *size), all examples, on the device to train on.
        y: (M,), their classes, or (M, ...), other targets in floating point.
        recipe: how to train.
        steps_per_epoch: steps in one epoch.
        conv: how convolutions are computed.
        weights: (M,), how much each example counts; all the same when None.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        members: Sequence[Member],
        x: Tensor,
        y: Tensor,
        recipe: Recipe,
        steps_per_epoch: int,
        conv: ConvKind = "library",
        weights: Tensor | None = None,
    ) -> None:
        device, seeds = x.device, [m.seed for m in members]
        self.members, self.recipe, self.steps_per_epoch = list(members), recipe, steps_per_epoch
        example = x[: recipe.batch_size]
        if recipe.augment is not None:
            example = recipe.augment(example, torch.zeros(len(example), recipe.augment.width, device=device))
        self.template = make_template(models[0], example, recipe.samples, conv)
        if not y.is_floating_point() and not 0 <= int(y.min()) <= int(y.max()) < self.template.classes:
            raise ValueError(
                f"y must hold classes from 0 to {self.template.classes - 1}, as many as the models tell apart, "
                f"got {int(y.min())} to {int(y.max())}"
            )
        self.stack, rows, buffers = make_stack(models, self.template, device)
        self.state = State(
            rows, torch.zeros_like(rows), torch.zeros_like(rows),
            torch.ones(len(models), dtype=torch.bool, device=device), buffers,
        )  # fmt: skip
        self.constants = self._constants(x, y, [] if weights is None else [weights])
        batch = recipe.batch_size * recipe.accumulate
        subsets = [torch.arange(len(x)) if m.train is None else m.train for m in members]
        self._order = BatchOrder(seeds, subsets, batch, steps_per_epoch, device)
        self._keys = {name: stream_keys(seeds, name, device=device) for name in ("theta", "dropout", "augment")}

    def _constants(self, x: Tensor, y: Tensor, weights: list[Tensor]) -> Constants:
        rows = self.state.rows
        rates = torch.zeros_like(rows)
        for row, member in enumerate(self.members):
            views = view_rows(self.stack, rates)
            for name, rate in learning_rates(self.template.module, self.stack.names, member).items():
                views[name][row] = rate

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=rows.device)

        return Constants(
            x, y, weights, rates,
            column([m.weight_decay for m in self.members])[:, None],
            column([kl_weight_at(m.kl_weight, 0.0) for m in self.members]),
            list(self.stack.frozen.values()), list(self.stack.shared.values()),
        )  # fmt: skip

    @property
    def noise_per_step(self) -> int:
        """How many random numbers one step of the whole group takes."""
        shapes = [*self.template.dropout, *([self.template.theta] if self.template.theta else [])]
        augment = 0 if self.recipe.augment is None else self.recipe.augment.width * self.recipe.batch_size
        per_pass = sum(math.prod(shape) for shape in shapes) + augment + self.recipe.batch_size
        return per_pass * self.recipe.accumulate * len(self.members)

    def draw(self, start: int, count: int) -> StepNoise:
        """The noise of `count` steps from step `start`."""
        recipe, passes = self.recipe, self.recipe.accumulate
        index = self._order.draw(start, count).unflatten(2, (passes, recipe.batch_size))
        theta = None
        if self.template.theta is not None:
            shape = (passes, *self.template.theta)
            theta = uniform(self._keys["theta"], start, count, shape, self.template.method)
        dropout = [
            # Each dropout has its own part of the stream: 2**56 numbers.
            uniform(self._keys["dropout"] + (call << 56), start, count, (passes, *shape))
            for call, shape in enumerate(self.template.dropout)
        ]
        augment = None
        if recipe.augment is not None:
            shape = (passes, recipe.batch_size, recipe.augment.width)
            augment = uniform(self._keys["augment"], start, count, shape)
        return StepNoise(index, self._schedule(start, count), theta, dropout, augment, self._kl_weights(start, count))

    def _kl_weights(self, start: int, count: int) -> Tensor | None:
        """(count, N), where some model's weight of the KL term follows a schedule; the constants hold it elsewhere."""
        if not any(callable(m.kl_weight) for m in self.members):
            return None
        epochs, batches = self.recipe.epochs, self.steps_per_epoch
        done = [progress_at(0, step, epochs, batches) for step in range(start, start + count)]
        rows = [[kl_weight_at(m.kl_weight, progress) for m in self.members] for progress in done]
        return torch.tensor(rows, dtype=torch.float32).to(self.state.rows.device)

    def _schedule(self, start: int, count: int) -> Tensor:
        beta1, beta2 = self.recipe.betas
        rows = [
            (
                self.recipe.lr_factor(step // self.steps_per_epoch) / (1 - beta1 ** (step + 1)),
                1 / math.sqrt(1 - beta2 ** (step + 1)),
            )
            for step in range(start, start + count)
        ]
        return torch.tensor(rows, dtype=torch.float32).to(self.state.rows.device)

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, for checkpoints: N models in front of each."""
        state = self.state
        named = {"rows": state.rows, "mean": state.mean, "square": state.square, "alive": state.alive}
        return {**named, **{f"buffer.{n}": b for n, b in zip(self.stack.buffers, state.buffers, strict=True)}}

    def module(self, index: int, rows: Tensor, buffers: Sequence[Tensor]) -> dict[str, Tensor]:
        """The parameters and running statistics of one model, by the names that its state dict has."""
        views = view_rows(self.stack, rows)
        weights = {name: view[index].clone() for name, view in views.items()}
        return {**weights, **{name: b[index].clone() for name, b in zip(self.stack.buffers, buffers, strict=True)}}

    def predict(
        self,
        x: Tensor,
        y: Tensor,
        keys: Tensor,
        first: int,
        samples: int | None,
        tensors: dict[str, Tensor],
        *,
        shared: bool,
    ) -> Tensor:
        """Predictions in evaluation mode, without gradients.

        Args:
            x: inputs of one batch, (b, C, *size) if shared by all models, else (N, b, C, *size).
            y: their classes, or targets in floating point, likewise.
            keys: (N,), the stream to draw theta from.
            first: place of the first example among all. Noise is a function of an example's place: neither the size of
                batches nor the examples of other models change it.
            samples: S; the model's own `test_samples` when None.
            tensors: weights and running statistics, as `tensors` names them.
            shared: whether all models see the same examples.

        Returns:
            (N, b, K), log-probabilities of the classes; for other targets (N, b), the loss of each example, without the
            KL term if the loss weighs it.
        """
        module = copy.deepcopy(self.template.module).eval()
        held = {**{name: tensors[f"buffer.{name}"] for name in self.stack.buffers}, **self.stack.frozen}
        noise = None
        if self.template.theta is not None and isinstance(module, TransformerModel):
            shape = (module.test_samples if samples is None else samples, 1, self.template.theta[2])
            each = uniform(keys, first, x.shape[0 if shared else 1], shape, self.template.method)  # (b, N, S, 1, W)
            noise = each.squeeze(3).permute(1, 2, 0, 3)
        training_loss = TrainingLoss(self.recipe.loss)

        def call(state: dict[str, Tensor], x: Tensor, noise: Tensor | None) -> Any:
            options = {} if noise is None else {"noise": noise}
            return functional_call(module, {**state, **self.stack.shared}, (x,), options)

        def log_probs(state: dict[str, Tensor], x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
            output = call(state, x, noise)
            return output.log_probs if isinstance(output, Prediction) else output.float().log_softmax(-1)

        def losses(state: dict[str, Tensor], x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
            def loss(x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
                output = call(state, x[None], None if noise is None else noise[:, None])
                made = training_loss(output, y[None], 0.0, None)
                return made.total if made.nll is None else made.nll

            return vmap(loss, in_dims=(0, 0, None if noise is None else 1))(x, y, noise)

        own = None if shared else 0
        state = {**view_rows(self.stack, tensors["rows"]), **held}
        with torch.no_grad(), precision_flags(self.recipe):
            one = losses if y.is_floating_point() else log_probs
            return vmap(one, in_dims=(0, own, own, None if noise is None else 0))(state, x, y, noise)

    def evaluate(
        self, tensors: dict[str, Tensor], examples: tuple[Tensor, Tensor] | None, samples: int | None, batch: int
    ) -> GroupScores:
        """Score all models on the same examples, or each on its own validation examples.

        Validation examples are changed by the recipe's augmentation as in training, by a draw that stays the same.

        Args:
            tensors: the models' weights, as `tensors` names them.
            examples: x (M, C, *size) and y (M, ...), taken as they are; None for each model's validation examples.
            samples: S; the models' own `test_samples` when None.
            batch: examples at a time, at most; fewer where all models together would take too much memory.
        """
        device, seeds, augment = self.state.rows.device, [m.seed for m in self.members], self.recipe.augment
        keys = stream_keys(seeds, "evaluate", device=device)
        module = self.template.module
        drawn = samples or (module.test_samples if isinstance(module, TransformerModel) else 1)
        one_example = math.prod(self.template.example) * len(seeds) * drawn
        batch = max(1, min(batch, _INPUT.get(device.type, _INPUT["cpu"]) // one_example))
        if examples is not None:
            x, y = examples
            lengths = [len(x)] * len(seeds)
            targets = [y] * len(seeds)
        else:
            subsets = [m.valid.to(device) for m in self.members if m.valid is not None]
            if len(subsets) < len(seeds):
                raise ValueError("valid must be given for every member to validate")
            lengths = [len(s) for s in subsets]
            targets = [self.constants.y[s] for s in subsets]
            # Shorter subsets are filled up with their first example, which is not counted.
            index = torch.stack([torch.cat([s, s[:1].expand(max(lengths) - len(s))]) for s in subsets])
        parts = []
        for first in range(0, max(lengths), batch):
            if examples is not None:
                x_part, y_part = x[first : first + batch], y[first : first + batch]
            else:
                at = index[:, first : first + batch]
                x_part, y_part = self.constants.x[at], self.constants.y[at]
                if augment is not None:
                    u = uniform(stream_keys(seeds, "validate", device=device), first, at.shape[1], (augment.width,))
                    x_part = vmap(augment)(x_part, u.transpose(0, 1))
            parts.append(self.predict(x_part, y_part, keys, first, samples, tensors, shared=examples is not None))
        found = [answers[:length] for answers, length in zip(torch.cat(parts, dim=1), lengths, strict=True)]
        if targets[0].is_floating_point():
            return {"loss": [float(losses.mean()) for losses in found]}
        scores = [score(log_probs, y) for log_probs, y in zip(found, targets, strict=True)]
        names = {"nll": "nll", "accuracy": "accuracy", "ece": "calibration_error"}
        return {name: [getattr(s, field) for s in scores] for name, field in names.items()}


@contextmanager
def precision_flags(recipe: Recipe, *, tune: bool = False) -> Iterator[None]:
    """Set torch's TF32 switches as the recipe says, and put them back.

    Args:
        recipe: says which precision.
        tune: let cuDNN try all of its kernels instead of guessing; at shapes this small its guesses can be far off.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    limit = cudnn.benchmark_limit if tune else 0
    matmul.allow_tf32 = cudnn.allow_tf32 = recipe.precision == "tf32"
    if tune:
        cudnn.benchmark, cudnn.benchmark_limit = True, 0
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
        if tune:
            cudnn.benchmark_limit = limit
