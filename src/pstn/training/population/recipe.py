"""What training takes: a recipe that all models share, what sets each of them apart, and how inputs are changed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from pstn._checks import require_choice, require_nonnegative_number, require_positive_int, require_positive_number
from pstn._deprecation import renamed
from pstn.defaults import LR, WEIGHT_DECAY, default_batch_size, default_epochs
from pstn.distributions import ThetaDistribution
from pstn.nn.classifier import TransformerModel
from pstn.objective import LossFunction, TrainingLoss
from pstn.transforms import Similarity
from pstn.warping import warp

if TYPE_CHECKING:  # `import pstn` is to load this and not the data
    from pstn.data.augment import RandomTransform
    from pstn.nn.layer import SpatialTransformer

Precision = Literal["float32", "tf32", "bf16"]
# By how many nats a loss must be below that of an even density to say that something was learned.
_LEARNED = 0.1
KLWeight = float | Callable[[float], float]
"""A number, or a schedule: a function of the progress of training, from 0 to 1."""
LRSchedule = Callable[[float], float]
"""What learning rates are multiplied with, as a function of the progress of training, from 0 to 1."""


def one_cycle(progress: float, *, warm_up: float = 0.25, start: float = 0.04) -> float:
    """A learning rate that rises from `start` to 1 and falls to 0, each along half a cosine.

    Args:
        progress: of training, from 0 to 1.
        warm_up: the share of training in which it rises; 0 for a cosine that only falls.
        start: what it is at first.

    Example:
        >>> [round(one_cycle(progress), 3) for progress in (0.0, 0.25, 0.625, 1.0)]
        [0.04, 1.0, 0.5, 0.0]
    """
    if progress < warm_up:
        return start + (1 - start) * (1 - math.cos(math.pi * progress / warm_up)) / 2
    return (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up))) / 2


def kl_weight_at(kl_weight: KLWeight | None, progress: float) -> float:
    """The weight of the KL term at some point of training.

    Args:
        kl_weight: a number or a schedule; None for a loss that takes none.
        progress: from 0 at the first step to 1 at the last.

    Example:
        >>> kl_weight_at(lambda progress: 1e-3 * progress, 0.5)
        0.0005
    """
    if kl_weight is None:
        return 0.0
    return require_nonnegative_number("kl_weight", kl_weight(progress) if callable(kl_weight) else kl_weight)


def progress_at(epoch: int, batch: int, epochs: int, batches: float) -> float:
    """How far training has come: 0 at the first batch of the first epoch, 1 at the last one of the last.

    Args:
        epoch: counted from 0.
        batch: likewise.
        epochs: how many there are.
        batches: in one epoch; infinite where that is not known, and then epochs alone count.

    Example:
        >>> [progress_at(epoch, batch, 2, 2) for epoch in range(2) for batch in range(2)]
        [0.0, 0.3333333333333333, 0.6666666666666666, 1.0]
    """
    if batches == float("inf"):
        return min(1.0, epoch / max(1, epochs - 1))
    return min(1.0, (epoch * batches + batch) / max(1, epochs * batches - 1))


@dataclass(frozen=True)
class Recipe:
    """How a population is trained: the same for all of its models.

    Args:
        epochs: passes over each model's data; chosen by their number when None, see `pstn.defaults`.
        batch_size: examples in one micro-batch; likewise.
        accumulate: micro-batches whose gradients are averaged before a step of the optimiser.
        steps_per_epoch: steps in one epoch; what the smallest subset allows when None. The last incomplete batch of
            an epoch is left out.
        samples: S in training; the model's own `train_samples` when None.
        betas: Adam's decay rates.
        eps: Adam's epsilon.
        clip_norm: largest norm of a model's gradient; None does not clip.
        lr_step: epochs after which learning rates are multiplied with `lr_gamma`, again and again; None for never.
        lr_gamma: that factor.
        lr_schedule: what learning rates are multiplied with, as a function of the progress of training from 0 to 1,
            such as `pstn.training.one_cycle`; instead of `lr_step`.
        precision: "float32"; "tf32", float32 with matrix products rounded to ten bits (CUDA only); or "bf16",
            autocast; None takes torch's own switches for TF32. Theta and grids are float32 in any case.
        patience: stop a model whose validation loss has not improved for this many validations; None never does.
        validate_every: epochs between validations; None validates only where `patience` asks for it, every epoch.
        loss_limit: a loss above it counts as exploded, and stops the model.
        augment: a random change of the inputs, drawn afresh at each access.
        loss: what to minimise, (prediction, y) -> a scalar or a `pstn.Loss`; the negative ELBO when None. A function
            with a parameter `kl_weight` is given each model's own, and one with a parameter `weights` those of the
            examples, (B,) or None. To train in processes of their own it must be a function of a module.
        teach: a random transform by which the inputs, which are aligned, are warped afresh at each access; the models
            learn the posterior of what undoes it. No labels are used, and only the layer learns, at the rate `lr`
            itself, without the `localizer_factor`.
        teach_weight: learn from labels too: what that loss is multiplied with before it is added to `loss`.

    Example:
        >>> Recipe(epochs=100, batch_size=64, lr_step=10).lr_factor(250, steps_per_epoch=10)
        0.010000000000000002
    """

    # None is resolved by `for_examples`, which every population calls first: all that reads a recipe finds numbers.
    epochs: int = None  # type: ignore[assignment]
    batch_size: int = None  # type: ignore[assignment]
    accumulate: int = 1
    steps_per_epoch: int | None = None
    samples: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float | None = None
    lr_step: int | None = None
    lr_gamma: float = 0.1
    lr_schedule: LRSchedule | None = None
    precision: Precision | None = "float32"
    patience: int | None = None
    validate_every: int | None = None
    loss_limit: float = 1e4
    augment: Augmentation | None = None
    loss: LossFunction | None = None
    teach: RandomTransform | None = None
    teach_weight: float | None = None

    def __post_init__(self) -> None:
        require_positive_int("accumulate", self.accumulate)
        for name in ("epochs", "batch_size", "steps_per_epoch", "samples", "lr_step", "patience", "validate_every"):
            if getattr(self, name) is not None:
                require_positive_int(name, getattr(self, name))
        for name in ("eps", "lr_gamma", "loss_limit"):
            require_positive_number(name, getattr(self, name))
        if self.clip_norm is not None:
            require_positive_number("clip_norm", self.clip_norm)
        require_choice("precision", self.precision, ("float32", "tf32", "bf16", None))
        if self.lr_schedule is not None and (not callable(self.lr_schedule) or self.lr_step is not None):
            raise ValueError(f"lr_schedule must be a function, and lr_step left out, got {self.lr_schedule!r}")
        if self.teach is not None:
            require_teach(self.teach)
            if self.augment is not None:
                raise ValueError("augment must be left out where teach is given: the inputs must be aligned")
        self.training_loss()  # refuses what is no function

    def training_loss(self) -> TrainingLoss:
        """The loss, as trainers call it."""
        return TrainingLoss(self.loss, teaches=self.teach is not None, teach_weight=self.teach_weight)

    def for_examples(self, examples: int | None, size: Sequence[int] = (), *, pretrained: bool = False) -> Recipe:
        """The recipe with its epochs and batch size, where they are not given, chosen for so many examples.

        Args:
            examples: how many there are to train on; None where that is not known.
            size: their spatial size, such as (H, W); empty where that is not known.
            pretrained: whether images are read by a pretrained network.

        Example:
            >>> recipe = Recipe().for_examples(100)
            >>> recipe.epochs, recipe.batch_size
            (120, 8)
        """
        batch_size = self.batch_size or default_batch_size(examples, size)
        epochs = self.epochs or default_epochs(examples, batch_size * self.accumulate, pretrained=pretrained)
        return replace(self, epochs=epochs, batch_size=batch_size)

    def as_seen(self, x: Tensor) -> Tensor:
        """Inputs (B, C, *size) as the models are given them, changed with noise of 0: for their shape."""
        change = self.augment if self.teach is None else RandomWarp(self.teach)
        return x if change is None else change(x, torch.zeros(len(x), change.width, device=x.device))

    @property
    def noise_width(self) -> int:
        """How many uniform numbers the random change of an input takes."""
        change = self.augment or self.teach
        return 0 if change is None else change.width

    @property
    def validates(self) -> bool:
        """Whether models are validated while they train."""
        return self.patience is not None or self.validate_every is not None

    def lr_factor(self, step: int, steps_per_epoch: int) -> float:
        """What the schedule multiplies learning rates with at `step`, counted from 0."""
        if self.lr_schedule is not None:
            return float(self.lr_schedule(progress_at(0, step, self.epochs, steps_per_epoch)))
        return 1.0 if self.lr_step is None else self.lr_gamma ** (step // steps_per_epoch // self.lr_step)


@dataclass(frozen=True, eq=False)
class Member:
    """What sets one model of a population apart.

    Args:
        seed: of all its noise: batch order, posterior samples, dropout, augmentation.
        lr: learning rate of the classifier.
        localizer_factor: what `lr` is multiplied with for the localizer and its heads; None as in `pstn.fit`.
        kl_weight: w, the weight of the KL term, or a schedule: a function of the progress of training, from 0 to 1;
            chosen by the number of its examples when None.
        weight_decay: Adam's L2 term, not AdamW's.
        train: indices of the examples it trains on; all when None.
        valid: indices of the examples it is validated on.

    Example:
        >>> Member(seed=3, kl_weight=1e-3).seed
        3
    """

    seed: int = 0
    lr: float = LR
    localizer_factor: float | None = None
    kl_weight: KLWeight | None = None
    weight_decay: float = WEIGHT_DECAY
    train: Tensor | None = None
    valid: Tensor | None = None

    def __post_init__(self) -> None:
        require_positive_number("lr", self.lr)
        if self.localizer_factor is not None:
            require_positive_number("localizer_factor", self.localizer_factor)
        if self.kl_weight is not None:
            kl_weight_at(self.kl_weight, 0.0)
        require_nonnegative_number("weight_decay", self.weight_decay)
        for name in ("train", "valid"):
            subset = getattr(self, name)
            if subset is not None and (subset.dim() != 1 or subset.dtype != torch.int64 or len(subset) == 0):
                raise ValueError(f"{name} must hold int64 indices of shape (n,), got {subset.dtype}, {subset.shape}")


Member.__init__ = renamed(localizer_lr="localizer_factor")(Member.__init__)  # type: ignore[method-assign]


@renamed(localizer_lr="localizer_factor")
def make_members(count: int, **values: Any) -> list[Member]:
    """`count` members; a list gives each its own value, anything else is shared.

    Seeds are 0, 1, 2, ... unless given.

    Example:
        >>> [m.kl_weight for m in make_members(2, kl_weight=[1e-3, 3e-4], lr=1e-4)]
        [0.001, 0.0003]
    """
    known = [f.name for f in fields(Member)]
    for name, value in values.items():
        require_choice("the name of a member's value", name, known)
        if isinstance(value, list) and len(value) != count:
            raise ValueError(f"{name} must hold one value for each of {count} models, got {len(value)}")
    seeds = values.pop("seed", list(range(count)))
    values["seed"] = seeds
    return [Member(**{k: v[i] if isinstance(v, list) else v for k, v in values.items()}) for i in range(count)]


class Augmentation(ABC):
    """A random change of inputs, as a function of the inputs and of uniform noise."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many uniform numbers each example needs."""

    @abstractmethod
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Change `x` (B, C, *size) with `u` (B, width) in [0, 1)."""

    in_use: ClassVar[bool] = True
    """Whether inputs are changed like this in use too: validation examples are then changed as well."""


@final
@dataclass(frozen=True)
class Jitter(Augmentation):
    """Images that are turned, scaled, shifted, mirrored and re-coloured a little in training, and not in use.

    Args:
        angle: the largest angle, in radians.
        scale: the largest logarithm of the scale.
        shift: the largest shift along each axis, in coordinates: 1 is half of the image.
        colour: the largest change of brightness, in standard deviations, and of the logarithm of the contrast.
        flip: mirror every other image, left to right.
        fill: what lies outside the image, one number or one per channel; None repeats the border.

    Example:
        >>> jitter = Jitter(flip=True)
        >>> jitter(torch.rand(2, 3, 32, 32), torch.rand(2, jitter.width)).shape
        torch.Size([2, 3, 32, 32])
    """

    angle: float = 0.1
    scale: float = 0.1
    shift: float = 0.1
    colour: float = 0.1
    flip: bool = False
    fill: float | tuple[float, ...] | None = None
    in_use: ClassVar[bool] = False

    @property
    def width(self) -> int:
        """Seven: angle, scale, two shifts, brightness, contrast and mirroring."""
        return 7

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """(B, C, H, W), (B, 7) -> (B, C, H, W)."""
        angle, scale, right, down, brightness, contrast, mirrored = (2 * u - 1).unbind(-1)
        theta = torch.stack([self.angle * angle, self.scale * scale, self.shift * right, self.shift * down], -1)
        grid = _POSE.grid(theta, x.shape[2:])
        if self.flip:
            side = torch.where(mirrored < 0, -1.0, 1.0).to(grid.dtype)
            grid = torch.stack([grid[..., 0] * side[:, None, None], grid[..., 1]], -1)
        padding: Any = {"padding_mode": "border"} if self.fill is None else {"fill": self.fill}
        warped = warp(x, grid, **padding)
        gain, offset = (self.colour * contrast).exp(), self.colour * brightness
        return warped * gain[:, None, None, None] + offset[:, None, None, None]


_POSE = Similarity("log")


@final
@dataclass(frozen=True, repr=False)
class RandomWarp(Augmentation):
    """Images warped as a generated set warps its own: training then sees what such a set is tested on.

    Args:
        random_transform: `pstn.data.RandomRotation()`, `pstn.data.RandomPlacement()`, or one of your own.
        fill: what lies outside the image, one number or one per channel.

    Example:
        >>> augment = RandomWarp(pstn.data.RandomPlacement(canvas=96, size=28), fill=-0.42)
        >>> augment(torch.rand(2, 1, 28, 28), torch.rand(2, augment.width)).shape
        torch.Size([2, 1, 96, 96])
    """

    random_transform: RandomTransform
    fill: float | tuple[float, ...] = 0.0

    @property
    def width(self) -> int:
        """How many uniform numbers the transform takes."""
        return self.random_transform.width

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Warp: (B, C, H, W), (B, width) -> what the transform makes."""
        return self.random_transform.make(x, self.random_transform.theta(u), fill=self.fill)

    def __repr__(self) -> str:
        # One call, as result files have it.
        return f"{repr(self.random_transform).removesuffix(')')}, fill={self.fill})"


RandomWarp.__init__ = renamed(maker="random_transform")(RandomWarp.__init__)  # type: ignore[method-assign]


@final
class Localizing(nn.Module):
    """A model's layer without the rest: x (B, C, *in) -> the posterior. Its parameters have the names of the model's.

    Args:
        model: a PSTN, an STN or another `TransformerModel`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layer: SpatialTransformer = _layer_of(model)
        self.train(model.training)

    def forward(self, x: Tensor) -> ThetaDistribution:
        """(B, C, *in) -> the posterior of each input."""
        return self.layer.localize(x)


@final
class Teaching:
    """Random poses for a model, each with the theta that undoes it.

    Of images, the second half of a batch is read by bicubic interpolation, which hardly blurs: a localizer that has
    seen nothing but bilinear interpolation takes images that were never warped for others.

    Args:
        random_transform: what warps the inputs.
        model: whose family is to undo it; what lies outside the inputs is as for its layer.

    Example:
        >>> teaching = Teaching(pstn.data.RandomRotation(), pstn.nn.mnist_pstn())
        >>> warped, theta = teaching(torch.rand(2, 1, 28, 28), torch.rand(2, teaching.width))
        >>> warped.shape, theta.shape
        (torch.Size([2, 1, 28, 28]), torch.Size([2, 4]))
    """

    def __init__(self, random_transform: RandomTransform, model: nn.Module) -> None:
        require_teach(random_transform)
        self.random_transform, self.layer = random_transform, _layer_of(model)
        self.width = random_transform.width
        # A transform of the user's need not know of ways to interpolate.
        known = "mode" in signature(random_transform.make).parameters
        self.mixes = known and random_transform.transform.ndim == 2
        fill = self.layer.fill
        self.fills: list[float] = fill.tolist() if isinstance(fill, Tensor) else [fill]

    def check(self, x: Tensor) -> None:
        """Refuse a random transform that does not warp inputs such as x (B, C, *size), or cannot be undone."""
        if x.dim() != self.random_transform.transform.ndim + 2:
            raise ValueError(f"teach must warp inputs of {x.dim() - 2} spatial axes, got {self.random_transform}")
        theta = self.random_transform.theta(x.new_full((1, self.width), 0.5))
        size = self.random_transform.make(x[:1], theta).shape[2:]
        self.random_transform.require_undo(self.layer.transform, tuple(size))

    def judge(self, loss: float) -> str | None:
        """What is to be said of a loss of the pose that is not finite, or that of an even density over all poses."""
        text, even = f"The pose was not learned: the loss is {loss:.3f}", math.inf
        with suppress(ValueError):  # not every transform has a density
            if self.layer.probabilistic and self.layer.transform.dim == self.width:
                even = -self.random_transform.log_density()
                text += f", that of an even density {even:.3f}"
        if math.isfinite(loss) and loss <= even - _LEARNED:
            return None
        hint = "var_init=0.0 in the posterior, a smaller lr, a pstn.Mixture, a larger localizer, or more steps"
        return f"{text}. Try {hint}."

    def make(self, x: Tensor, theta: Tensor) -> Tensor:
        """Inputs (B, C, *size) warped by theta (B, D) of the random transform, as they are taught."""
        # A transform of the user's need not know of other paddings than that with `fill`.
        padding: Any = {} if self.layer.padding_mode == "zeros" else {"padding_mode": self.layer.padding_mode}
        options, make = {"fill": self.layer.fill, **padding}, self.random_transform.make
        half = len(x) // 2 if self.mixes else 0
        if not half:
            return make(x, theta, **options)
        # Bicubic interpolation goes beyond the values of the image: of each its own, whatever else is in the batch.
        low, high = x[half:].amin((1, 2, 3), keepdim=True), x[half:].amax((1, 2, 3), keepdim=True)
        sharp = make(x[half:], theta[half:], mode="bicubic", **options)
        sharp = sharp.clamp(low.clamp(max=min(self.fills)), high.clamp(min=max(self.fills)))
        return torch.cat([make(x[:half], theta[:half], **options), sharp])

    def __call__(self, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, C, *size) warped by uniform noise u (B, width), and what undoes it, (B, D)."""
        theta = self.random_transform.theta(u)
        warped = self.make(x, theta)
        return warped, self.random_transform.undo(theta, self.layer.transform, aspect=tuple(warped.shape[:1:-1]))


def require_teach(teach: Any) -> None:
    """Refuse what is no random transform."""
    from pstn.data.augment import RandomTransform

    if not isinstance(teach, RandomTransform):
        raise TypeError(f"teach must be a random transform such as pstn.data.RandomRotation(), got {teach!r}")


def _layer_of(model: nn.Module) -> SpatialTransformer:
    if not isinstance(model, TransformerModel):
        raise TypeError(f"teach needs a model with a spatial transformer layer, got {type(model).__name__}")
    return model.layer
