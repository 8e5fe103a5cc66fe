"""A stack: models of one shape that step as one, with parameters side by side, their data, noise and state."""

from __future__ import annotations

import copy
import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from pstn.distributions import PosteriorFamily
from pstn.nn.classifier import TransformerModel
from pstn.noise import BatchOrder, Samples, stream_keys, uniform
from pstn.objective import pose_loss
from pstn.training.evaluate import log_probs_of
from pstn.training.population.convolution import ConvKind, stand_in
from pstn.training.population.recipe import Localizing, Member, Recipe, Teaching, kl_weight_at, progress_at

Tensors = dict[str, Tensor]

# Parameters start at multiples of 16 bytes within a row, which is what fast matrix kernels want.
_ALIGN = 4
# What the names of a layer's parameters begin with in every model.
_LAYER = "layer."
# How many numbers all inputs of all models under all samples may hold at a time. A network's activations take some tens
# of times the memory of its inputs: stacks of many models would otherwise not fit.
_INPUT = {"cpu": 1 << 22, "cuda": 1 << 27}


@final
class PassedDropout(nn.Module):
    """Dropout whose uniform noise is passed in, so that a stack of models can be captured and replayed.

    Args:
        p: probability of dropping.
        whole_channels: drop channels rather than single values, as nn.Dropout1d, 2d and 3d do.
    """

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.whole_channels, self.noise = p, whole_channels, list[Tensor]()

    def noise_shape(self, x: Tensor) -> tuple[int, ...]:
        """Shape of the noise for an input."""
        return (*x.shape[:2], *[1] * (x.dim() - 2)) if self.whole_channels else tuple(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Drop, in training, by the first tensor of `noise`, which is removed."""
        if not self.training or self.p == 0:
            return x
        return x * ((self.noise.pop(0) >= self.p).to(x.dtype) / (1 - self.p))


class Constants(NamedTuple):
    """What training reads and does not change."""

    data: Tensors
    """All examples: "x" (M, C, *size), "y" (M, ...), and "weights" (M,) where they do not all count the same."""
    rates: Tensor
    """(N, P), each parameter's learning rate."""
    decay: Tensor
    """(N, 1), weight decay."""
    kl_weight: Tensor
    """(N,)."""
    frozen: Tensors
    """(N, ...) each: frozen parameters that differ between models."""
    shared: Tensors
    """Frozen parameters and constants that all models have in common."""


@final
class Stack:
    """N models of one shape that step as one.

    Attributes:
        module: a model whose parameters and noise are passed in.
        theta: (S, B, W), the noise of a micro-batch with W numbers for one sample; None if nothing is sampled.
        dropout: shapes of the noise of each call of a dropout, in order.
        state: what training changes, (N, ...) each, all of it in checkpoints: "rows" (N, P), the parameters; "mean" and
            "square", Adam's running means; "alive" (N,), which models still train; "buffer.NAME", running statistics.
        constants: what training reads.

    Args:
        models: their starting points; left as they are.
        members: what sets each apart.
        data: as in `Constants`, on the device to train on.
        recipe: how to train.
        steps_per_epoch: steps in one epoch.
        conv: how convolutions are computed.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        members: Sequence[Member],
        data: Tensors,
        recipe: Recipe,
        steps_per_epoch: int,
        conv: ConvKind = "library",
    ) -> None:
        self.members, self.recipe, self.steps_per_epoch = list(members), recipe, steps_per_epoch
        self.loss = recipe.training_loss()
        self.device, seeds = data["x"].device, [m.seed for m in members]
        self._prepare(models[0], data["x"][: recipe.batch_size], conv)
        y = data.get("y")
        if y is not None and not y.is_floating_point() and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            found = f"{int(y.min())} to {int(y.max())}"
            raise ValueError(f"y must hold classes from 0 to {self.classes - 1}, as the models do, got {found}")
        self._lay_out(models, data)
        subsets = [torch.arange(len(data["x"])) if m.train is None else m.train for m in members]
        self._order = BatchOrder(seeds, subsets, recipe.batch_size * recipe.accumulate, steps_per_epoch, self.device)
        self._keys = {name: stream_keys(seeds, name, device=self.device) for name in ("theta", "dropout", "augment")}

    def _prepare(self, model: nn.Module, x: Tensor, conv: ConvKind) -> None:
        """Make the module that all models share, and find the shapes of its noise with one micro-batch."""
        self.module = _swap(copy.deepcopy(model), conv).to(x.device).train()
        self.teaching = None if self.recipe.teach is None else Teaching(self.recipe.teach, self.module)
        x = self.recipe.as_seen(x)
        self.theta: tuple[int, ...] | None = None
        self.dropout: list[tuple[int, ...]] = []
        self.example = tuple(x.shape[1:])
        if isinstance(self.module, TransformerModel):
            if self.module.chunk_size is not None:
                raise ValueError("chunk_size must be None to train together; LitPSTN trains one model in chunks")
            if self.module.layer.probabilistic and not self.loss.only_teaches:
                samples = self.recipe.samples or self.module.train_samples
                self.theta = (samples, x.shape[0], self.module.layer.noise_width)

        def record(module: PassedDropout, inputs: tuple[Tensor]) -> None:
            if module.training and module.p:
                self.dropout.append(module.noise_shape(inputs[0]))
                module.noise = [torch.ones(self.dropout[-1], device=x.device)]

        probe = copy.deepcopy(self.module)  # a forward pass would move the running statistics of batch norm
        for part in probe.modules():
            if isinstance(part, PassedDropout):
                part.register_forward_pre_hook(record)
        options = {} if self.theta is None else {"noise": torch.full(self.theta, 0.5, device=x.device)}
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.device.type == "cuda" else []), _Draws() as draws:
            output = self.call(probe, {}, x, **options)
        if draws.seen:
            hint = "train this model with LitPSTN, or make its dropouts nn.Dropout"
            raise ValueError(f"{type(model).__name__} draws random numbers by itself: {hint}")
        scores = getattr(output, "log_probs", output)
        self.classes = scores.shape[-1] if isinstance(scores, Tensor) else 0

    def call(self, module: nn.Module, tensors: Tensors, x: Tensor, **options: Any) -> Any:
        """What `module` returns in training with one model's tensors: a posterior, where nothing else is taught."""
        if self.loss.only_teaches:
            module, tensors = Localizing(module), {n: t for n, t in tensors.items() if n.startswith(_LAYER)}
        return functional_call(module, tensors, (x,), options)

    def change(self, x: Tensor, u: Tensor) -> Tensors:
        """Inputs of one model (B, C, *size) as the recipe changes them by noise u (B, width), and the pose."""
        if self.teaching is not None:
            return dict(zip(("x", "pose"), self.teaching(x, u), strict=True))
        return {"x": x if self.recipe.augment is None else self.recipe.augment(x, u)}

    def _lay_out(self, models: Sequence[nn.Module], data: Tensors) -> None:
        """Put the tensors of the models side by side."""
        held = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in models]
        only = _LAYER if self.loss.only_teaches else ""
        trainable = [n for n, p in models[0].named_parameters() if p.requires_grad and n.startswith(only)]
        if not trainable:
            raise ValueError("models must have something to train: every parameter is frozen")
        self.buffers = _changing_buffers(self.module)

        def stacked(name: str) -> Tensor:
            return torch.stack([tensors[name].detach().to(self.device) for tensors in held])

        frozen, shared = Tensors(), Tensors()
        for name in [name for name in held[0] if name not in (*trainable, *self.buffers)]:
            values = stacked(name)
            if bool((values == values[:1]).all()):
                shared[name] = values[0].clone()
            else:
                frozen[name] = values
        self.layout: list[tuple[str, int, torch.Size]] = []
        width = 0
        for name in trainable:
            self.layout.append((name, width, held[0][name].shape))
            width += -(-held[0][name].numel() // _ALIGN) * _ALIGN
        rows = torch.zeros(len(models), width, device=self.device)
        for name, view in self.parameters(rows).items():
            view.copy_(stacked(name))
        self.state: Tensors = {
            "rows": rows, "mean": torch.zeros_like(rows), "square": torch.zeros_like(rows),
            "alive": torch.ones(len(models), dtype=torch.bool, device=self.device),
            **{f"buffer.{name}": stacked(name) for name in self.buffers},
        }  # fmt: skip
        slower = self.teaching is None
        rates = torch.zeros_like(rows)
        for row, (model, member) in enumerate(zip(models, self.members, strict=True)):
            groups: list[Any] = []
            if slower and isinstance(model, TransformerModel):
                groups = model.parameter_groups(member.lr, localizer_factor=member.localizer_factor)
            own = {id(p): group["lr"] for group in groups for p in group["params"]}
            for name, view in self.parameters(rates).items():
                view[row] = own.get(id(model.get_parameter(name)), member.lr)
        numbers = [[m.weight_decay, kl_weight_at(m.kl_weight, 0.0)] for m in self.members]
        decay, weight = torch.tensor(numbers, dtype=torch.float32, device=self.device).T
        self.constants = Constants(data, rates, decay[:, None].clone(), weight.clone(), frozen, shared)

    def parameters(self, rows: Tensor) -> Tensors:
        """The parameters within rows (N, P): views (N, *shape) by name."""
        return {n: rows[:, at : at + shape.numel()].view(rows.shape[0], *shape) for n, at, shape in self.layout}

    def join(self, parts: Tensors) -> Tensor:
        """The inverse of `parameters`: (N, *shape) by name -> (N, P), zero in the gaps."""
        pieces: list[Tensor] = []
        for name, _, shape in self.layout:
            pieces.append(parts[name].reshape(parts[name].shape[0], -1))
            if gap := -shape.numel() % _ALIGN:
                pieces.append(pieces[-1].new_zeros(pieces[-1].shape[0], gap))
        return torch.cat(pieces, dim=1)

    def supply_dropout(self, noise: list[Tensor]) -> None:
        """Hand these tensors to the dropouts, in the order of their calls."""
        for module in self.module.modules():
            if isinstance(module, PassedDropout):
                module.noise = noise

    def draw(self, start: int, count: int) -> Tensors:
        """The noise of `count` steps from step `start`, with A micro-batches in a step.

        Returns:
            Tensors with the steps in front: "examples" (count, N, A, B), their indices; "schedule" (count, 2), the
            schedule's factor over Adam's first bias correction, and one over the root of its second. Where the models
            use them: "theta" (count, N, A, S, B, W), "dropoutI" (count, N, A, ...) for each call, "augment" (count, N,
            A, B, width), and "kl_weight" (count, N), where some model's weight follows a schedule.
        """
        recipe, passes, steps = self.recipe, self.recipe.accumulate, range(start, start + count)
        (beta1, beta2), spe = recipe.betas, self.steps_per_epoch
        schedule = [
            (recipe.lr_factor(k, spe) / (1 - beta1 ** (k + 1)), 1 / math.sqrt(1 - beta2 ** (k + 1))) for k in steps
        ]
        noise = {
            "examples": self._order.draw(start, count).unflatten(2, (passes, recipe.batch_size)),
            "schedule": torch.tensor(schedule, dtype=torch.float32).to(self.device),
        }
        if self.theta is not None and isinstance(self.module, TransformerModel):
            shape = (passes, *self.theta)
            noise["theta"] = uniform(self._keys["theta"], start, count, shape, self.module.layer.sampling)
        for call, wanted in enumerate(self.dropout):
            # Each dropout has its own part of the stream: 2**56 numbers.
            keys = self._keys["dropout"] + (call << 56)
            noise[f"dropout{call}"] = uniform(keys, start, count, (passes, *wanted))
        if recipe.noise_width:
            shape = (passes, recipe.batch_size, recipe.noise_width)
            noise["augment"] = uniform(self._keys["augment"], start, count, shape)
        if any(callable(m.kl_weight) for m in self.members):
            done = [progress_at(0, k, recipe.epochs, spe) for k in steps]
            rows = [[kl_weight_at(m.kl_weight, progress) for m in self.members] for progress in done]
            noise["kl_weight"] = torch.tensor(rows, dtype=torch.float32).to(self.device)
        return noise

    @property
    def noise_per_step(self) -> int:
        """How many random numbers one step takes."""
        per_pass = sum(math.prod(shape) for shape in (*self.dropout, self.theta or (0,)))
        per_pass += (1 + self.recipe.noise_width) * self.recipe.batch_size
        return per_pass * self.recipe.accumulate * len(self.members)

    def predict(
        self, state: Tensors, examples: tuple[Tensor, Tensor] | None, samples: Samples | None, batch: int
    ) -> list[tuple[Tensor, Tensor]]:
        """The log-probabilities (N, K) of each model, or losses (N,), and the classes.

        Validation examples are changed as in training, by a draw that stays the same; their score is the loss of the
        pose where nothing else is taught. The noise is a function of an example's place: neither the size of batches
        nor other models' examples change it.

        Args:
            state: the models' weights and running statistics, as in `state`.
            examples: x (M, C, *size) and y (M, ...), taken as they are; None for each model's validation examples.
            samples: S, or "modes"; the models' own `test_samples` when None.
            batch: examples at a time, at most; fewer where all models together would take too much memory.
        """
        module, seeds = copy.deepcopy(self.module).eval(), [m.seed for m in self.members]
        if isinstance(module, TransformerModel):
            samples = samples or module.test_samples
        one_example = math.prod(self.example) * len(seeds) * (samples if isinstance(samples, int) else 1)
        batch = max(1, min(batch, _INPUT.get(self.device.type, _INPUT["cpu"]) // one_example))
        keys = {name: stream_keys(seeds, name, device=self.device) for name in ("evaluate", "validate")}
        data, taught = self.constants.data, self.loss.only_teaches and examples is None
        x, y = examples or (data["x"], data.get("y", data["x"]))  # y is not read where the pose alone is taught
        subsets = [torch.arange(len(x), device=self.device) if examples else m.valid for m in self.members]
        longest = max(0 if s is None else len(s) for s in subsets)
        # Shorter subsets are filled up with their first example, which is not counted.
        filled = [torch.cat([s, s[:1].expand(longest - len(s))]) for s in subsets if s is not None]
        if len(filled) < len(seeds):
            raise ValueError("valid must be given for every member to validate")
        index = filled[0] if examples else torch.stack(filled).to(self.device)
        buffers, modes = {name: state[f"buffer.{name}"] for name in self.buffers}, samples == "modes"
        held = {**self.parameters(state["rows"]), **buffers, **self.constants.frozen}

        def call(own: Tensors, x: Tensor, noise: Tensor | None) -> Any:
            options: dict[str, Any] = {"samples": "modes"} if modes else {} if noise is None else {"noise": noise}
            return functional_call(module, {**own, **self.constants.shared}, (x,), options)

        def log_probs(own: Tensors, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
            return log_probs_of(call(own, x, noise))

        def losses(own: Tensors, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
            # Without the KL term, if the loss weighs it.
            def loss(x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
                made = self.loss(call(own, x[None], None if noise is None else noise[:, None]), y[None], 0.0, None)
                return made.total if made.nll is None else made.nll

            return vmap(loss, in_dims=(0, 0, None if noise is None else 1))(x, y, noise)

        def poses(own: Tensors, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
            return pose_loss(self.call(module, {**own, **self.constants.shared}, x), y)

        augment = self.recipe.augment
        changed = self.recipe.noise_width and examples is None and (augment is None or augment.in_use)
        predict = poses if taught else losses if y.is_floating_point() else log_probs
        layer = module.layer if isinstance(module, TransformerModel) and not taught else None
        own_inputs = None if examples else 0
        parts = []
        for first in range(0, longest, batch):
            at = index[..., first : first + batch]
            part, noise = {"x": x[at]}, None
            if changed:
                u = uniform(keys["validate"], first, at.shape[1], (self.recipe.noise_width,))
                part = vmap(self.change)(part["x"], u.transpose(0, 1))
            if layer is not None and layer.probabilistic and samples != "modes":
                shape = (samples or 1, 1, layer.noise_width)
                drawn = uniform(keys["evaluate"], first, at.shape[-1], shape, layer.sampling)  # (b, N, S, 1, W)
                noise = drawn.squeeze(3).permute(1, 2, 0, 3)
            target = part["pose"] if taught else y[at]
            with torch.no_grad(), precision_flags(self.recipe):
                dims = (0, own_inputs, own_inputs, None if noise is None else 0)
                parts.append(vmap(predict, in_dims=dims)(held, part["x"], target, noise))
        found = zip(torch.cat(parts, dim=1), subsets, strict=True)
        return [(each[: len(s)], y[s.to(self.device)]) for each, s in found if s is not None]


class _Draws(TorchDispatchMode):
    """Sees whether random numbers are drawn in this thread; generators would also show what other threads draw."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, kwargs = dict(zip((a.name for a in func._schema.arguments), args, strict=False)), kwargs or {}
        # Attention is tagged so for its dropout, whether there is any or not.
        without = any(a.name == "dropout_p" for a in func._schema.arguments) and not (given | kwargs).get("dropout_p")
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags and not without
        return func(*args, **kwargs)


def _swap(module: nn.Module, conv: ConvKind) -> nn.Module:
    for name, child in module.named_children():
        made: nn.Module | None = stand_in(child, conv)
        if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            made = PassedDropout(child.p, not isinstance(child, nn.Dropout)).train(child.training)
        setattr(module, name, _swap(child, conv) if made is None else made)
    return module


def _changing_buffers(model: nn.Module) -> list[str]:
    """Names of buffers that a training step changes: the running statistics of norms in training mode."""
    norms = {
        prefix: module
        for prefix, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.training and module.track_running_stats
    }
    return [name for prefix, norm in norms.items() for name, _ in norm.named_buffers(prefix, recurse=False)]


def signature(model: nn.Module) -> dict[str, Any]:
    """Shapes of tensors, types and settings of modules: one program, of the first model, runs all of them."""
    plain = (bool, int, float, str, tuple, type(None), PosteriorFamily)
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():
        found[f"the type of {prefix or 'the model'}"] = type(module)
        for name, value in vars(module).items():
            if name != "training" and not name.startswith("_") and isinstance(value, plain):
                found[f"{prefix}.{name}" if prefix else name] = repr(value)
    parts = {name: (tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()}
    return {**found, **parts, **{name: tuple(b.shape) for name, b in model.named_buffers()}}


def require_one_shape(models: Sequence[nn.Module]) -> None:
    """Refuse models that cannot be stacked, naming the first difference."""
    expected = signature(models[0])
    for index, model in enumerate(models[1:], start=1):
        found = signature(model)
        for name in {**expected, **found}:
            if expected.get(name) != found.get(name):
                difference = f"in {name!r}, {found.get(name)} against {expected.get(name)}"
                raise ValueError(f"models must have one shape: model {index} differs from model 0 {difference}")


# The switches of all blocks of `precision_flags` that are open, in the order in which they were entered, behind those
# that were set before: populations that train in several threads leave their blocks in any order.
_SWITCHES: list[list[bool]] = []
_SWITCHING = threading.Lock()


def _set_switches(values: Sequence[bool]) -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = values


@contextmanager
def precision_flags(recipe: Recipe, *, tune: bool = False) -> Iterator[None]:
    """Set torch's TF32 switches as the recipe says, and put them back; silent on attention, which vmap takes in turns.

    Args:
        recipe: says which precision.
        tune: let cuDNN try all of its kernels instead of guessing; at shapes this small its guesses can be far off.
            Not where torch is to be deterministic: what is fastest is not the same in every run.
    """
    tune = tune and not torch.are_deterministic_algorithms_enabled()
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    limit = cudnn.benchmark_limit if tune else 0
    with _SWITCHING:
        own = [matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark or tune]
        if not _SWITCHES:
            _SWITCHES.append([matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark])
        if recipe.precision is not None:
            own[:2] = [recipe.precision == "tf32"] * 2
        _SWITCHES.append(own)
        _set_switches(own)
    if tune:
        cudnn.benchmark_limit = 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="There is a performance drop .* batching rule for aten::_scaled_dot"
            )
            yield
    finally:
        with _SWITCHING:
            _SWITCHES[:] = [switches for switches in _SWITCHES if switches is not own]
            _set_switches(_SWITCHES[-1])
            if len(_SWITCHES) == 1:
                _SWITCHES.clear()
        if tune:
            cudnn.benchmark_limit = limit
