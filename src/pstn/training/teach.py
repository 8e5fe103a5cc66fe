"""Teaching the pose: aligned inputs are warped at random, and the layer learns what undoes it."""

from __future__ import annotations

import math
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from pstn.distributions import ThetaDistribution
from pstn.nn.classifier import TransformerModel

if TYPE_CHECKING:  # `import pstn` is to load this and not the data
    from pstn.data.augment import RandomTransform
    from pstn.nn.layer import SpatialTransformer


# By how many nats a loss must be below that of an even density to say that something was learned.
_LEARNED = 0.1


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
