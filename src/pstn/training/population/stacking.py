"""Turning models of one shape into one stack: parameters side by side, randomness passed in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pstn.distributions import PosteriorFamily
from pstn.nn.classifier import TransformerModel
from pstn.noise import SamplingMethod
from pstn.training.population.convolution import ConvKind, stand_in

__all__ = [
    "PassedDropout",
    "Stack",
    "Template",
    "join_rows",
    "make_stack",
    "make_template",
    "require_one_shape",
    "view_rows",
]

# Parameters start at multiples of 16 bytes within a row, which is what fast matrix kernels want.
_ALIGN = 4
_DRAWS_ITS_OWN = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


@final
class PassedDropout(nn.Module):
    """Dropout whose uniform noise is passed in, so that a stack of models can be captured and replayed.

    Args:
        p: probability of dropping.
        whole_channels: drop channels rather than single values, as nn.Dropout1d, 2d and 3d do.
    """

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.whole_channels = p, whole_channels
        self.asked: Callable[[tuple[int, ...]], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop, in training; `asked(shape)` gives the noise."""
        if not self.training or self.p == 0 or self.asked is None:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.whole_channels else tuple(x.shape)
        return x * ((self.asked(shape) >= self.p).to(x.dtype) / (1 - self.p))


@dataclass
class Template:
    """A model whose parameters are passed in, and what noise one micro-batch of it takes."""

    module: nn.Module
    theta: tuple[int, ...] | None
    """(S, B, W) with W numbers for one sample, or None for a model that samples nothing."""
    method: SamplingMethod
    example: tuple[int, ...] = ()
    """(C, *size) of one input."""
    classes: int = 0
    """K; 0 for a model that tells no classes apart."""
    dropout: list[tuple[int, ...]] = field(default_factory=list)
    """Shapes of the noise of each call of a dropout, in order."""

    def supply(self, noise: Sequence[Tensor]) -> None:
        """Hand these tensors to the dropouts, in the order of their calls."""
        queue = iter(noise)
        for module in self.module.modules():
            if isinstance(module, PassedDropout):
                module.asked = lambda _: next(queue)


def make_template(model: nn.Module, x: Tensor, samples: int | None, conv: ConvKind = "library") -> Template:
    """Prepare a copy of `model` for stacking.

    Args:
        model: any classifier; left as it is.
        x: (B, C, *size), one micro-batch, for the shapes alone.
        samples: S in training; the model's own `train_samples` when None.
        conv: "library" keeps convolutions as they are; `ConvKind` says what the others do.
    """
    for name, module in model.named_modules():
        if isinstance(module, _DRAWS_ITS_OWN):
            raise ValueError(
                f"{name} draws random numbers by itself ({type(module).__name__}): train this model with LitPSTN, "
                "or replace it by nn.Dropout"
            )
    module = _swap(copy.deepcopy(model), conv).to(x.device).train()
    theta: tuple[int, ...] | None = None
    method: SamplingMethod = "iid"
    if isinstance(module, TransformerModel):
        if module.chunk_size is not None:
            raise ValueError("chunk_size must be None to train together; LitPSTN trains one model in chunks of samples")
        if module.layer.probabilistic:
            drawn = module.train_samples if samples is None else samples
            theta, method = (drawn, x.shape[0], module.layer.noise_width), module.layer.sampling
    template = Template(module, theta, method, tuple(x.shape[1:]))

    def record(shape: tuple[int, ...]) -> Tensor:
        template.dropout.append(shape)
        return torch.ones(shape, device=x.device)

    probe = copy.deepcopy(module)  # a forward pass would move the running statistics of batch norm
    for part in probe.modules():
        if isinstance(part, PassedDropout):
            part.asked = record
    options = {} if theta is None else {"noise": torch.full(theta, 0.5, device=x.device)}
    with torch.no_grad(), torch.random.fork_rng([x.device] if x.device.type == "cuda" else []), _Draws() as draws:
        output = probe(x, **options)
    if draws.seen:
        raise ValueError(
            f"{type(model).__name__} draws random numbers by itself in training: train this model with LitPSTN, or "
            "make its dropouts modules, nn.Dropout"
        )
    scores = getattr(output, "log_probs", output)
    template.classes = scores.shape[-1] if isinstance(scores, Tensor) else 0
    return template


class _Draws(TorchDispatchMode):
    """Sees whether random numbers are drawn in this thread; generators would also show what other threads draw."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _swap(module: nn.Module, conv: ConvKind) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            passed = PassedDropout(child.p, not isinstance(child, nn.Dropout))
            passed.training = child.training
            setattr(module, name, passed)
        elif (made := stand_in(child, conv)) is not None:
            setattr(module, name, made)
        else:
            _swap(child, conv)
    return module


@dataclass(frozen=True)
class Stack:
    """Where each parameter lies in a model's row, and what all models hold in common."""

    names: list[str]
    shapes: list[torch.Size]
    offsets: list[int]
    width: int
    """P, the length of a row: all trainable parameters and the gaps that align them."""
    buffers: list[str]
    frozen: dict[str, Tensor]
    """(N, ...): frozen parameters that differ between models."""
    shared: dict[str, Tensor]
    """Frozen parameters and constants that are equal in all models, held once."""


def make_stack(
    models: Sequence[nn.Module], template: Template, device: torch.device
) -> tuple[Stack, Tensor, list[Tensor]]:
    """Stack models of one shape.

    Returns:
        The layout, the rows (N, P), and the stacked buffers [(N, ...)] that training changes.
    """
    first = models[0]
    trainable = [name for name, p in first.named_parameters() if p.requires_grad]
    if not trainable:
        raise ValueError("models must have something to train: every parameter is frozen")
    changing = _changing_buffers(template.module)
    tensors = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in models]
    frozen, shared = {}, {}
    for name in tensors[0]:
        if name in trainable or name in changing:
            continue
        values = [t[name].detach().to(device) for t in tensors]
        if all(torch.equal(values[0], value) for value in values[1:]):
            shared[name] = values[0].clone()
        else:
            frozen[name] = torch.stack(values)
    shapes = [tensors[0][name].shape for name in trainable]
    offsets, width = [], 0
    for shape in shapes:
        offsets.append(width)
        width += -(-shape.numel() // _ALIGN) * _ALIGN
    stack = Stack(trainable, shapes, offsets, width, changing, frozen, shared)
    rows = torch.zeros(len(models), width, device=device)
    views = view_rows(stack, rows)
    for row, held in enumerate(tensors):
        for name in trainable:
            views[name][row].copy_(held[name].detach())
    buffers = [torch.stack([t[name].detach().to(device) for t in tensors]) for name in changing]
    return stack, rows, buffers


def view_rows(stack: Stack, rows: Tensor) -> dict[str, Tensor]:
    """The parameters within rows (N, P): views (N, *shape) by name."""
    located = zip(stack.names, stack.shapes, stack.offsets, strict=True)
    return {name: rows[:, at : at + shape.numel()].view(rows.shape[0], *shape) for name, shape, at in located}


def join_rows(stack: Stack, parts: dict[str, Tensor]) -> Tensor:
    """The inverse of `view_rows`: (N, *shape) by name -> (N, P), zero in the gaps."""
    pieces: list[Tensor] = []
    for name, shape in zip(stack.names, stack.shapes, strict=True):
        flat = parts[name].reshape(parts[name].shape[0], -1)
        pieces.append(flat)
        if gap := -shape.numel() % _ALIGN:
            pieces.append(flat.new_zeros(flat.shape[0], gap))
    return torch.cat(pieces, dim=1)


def _changing_buffers(model: nn.Module) -> list[str]:
    """Names of buffers that a training step changes: the running statistics of norms in training mode."""
    names = []
    for prefix, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.training and module.track_running_stats:
            names += [f"{prefix}.{name}" if prefix else name for name, _ in module.named_buffers(recurse=False)]
    return names


def _settings(model: nn.Module) -> dict[str, Any]:
    """The types and settings of modules beside their tensors: one program, of the first model, runs all of them."""
    plain = (bool, int, float, str, tuple, type(None), PosteriorFamily)
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():
        found[f"the type of {prefix or 'the model'}"] = type(module)
        for name, value in vars(module).items():
            if name != "training" and not name.startswith("_") and isinstance(value, plain):
                found[f"{prefix}.{name}" if prefix else name] = repr(value)
    return found


def require_one_shape(models: Sequence[nn.Module]) -> None:
    """Refuse models that cannot be stacked, naming the first difference."""

    def signature(model: nn.Module) -> dict[str, Any]:
        parts = {name: (tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()}
        return {**_settings(model), **parts, **{name: tuple(b.shape) for name, b in model.named_buffers()}}

    expected = signature(models[0])
    for index, model in enumerate(models[1:], start=1):
        found = signature(model)
        odd = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if odd:
            raise ValueError(
                f"models of a population must have one shape: model {index} differs from model 0 in {odd[0]!r}, "
                f"{found.get(odd[0])} against {expected.get(odd[0])}"
            )
