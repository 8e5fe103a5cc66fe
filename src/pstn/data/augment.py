"""Random transforms, and data sets generated with them whose transformation is known."""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from pstn._checks import require_floating, require_positive_int, require_positive_number
from pstn._deprecation import renamed
from pstn.data.split import Split, Splits
from pstn.transforms import Rotation, Similarity, Transform
from pstn.warp import warp

__all__ = ["Generated", "RandomPlacement", "RandomRotation", "RandomTransform", "generate"]


_ROTATION, _SIMILARITY = Rotation(), Similarity()


class RandomTransform(ABC):
    """A random warp of examples: uniform noise becomes theta, and theta warps.

    `generate` draws the noise of test sets and fresh batches, `pstn.training.RandomWarp` takes that of a population.
    One of your own says how many uniform numbers an example takes, what theta they make, and what theta does.
    """

    width: int
    """How many uniform numbers each example takes."""

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """The family that theta belongs to."""

    @abstractmethod
    def theta(self, u: Tensor) -> Tensor:
        """Theta (B, D) from uniform numbers `u` (B, width) in [0, 1)."""

    @abstractmethod
    def make(self, x: Tensor, theta: Tensor, *, fill: float | Sequence[float] = 0.0) -> Tensor:
        """Warp x (B, C, H, W) by theta (B, D)."""

    def draw(self, count: int, *, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Draw theta, (count, D), where `generator` lives: one of the CPU gives every device the same."""
        place = device if generator is None else generator.device
        return self.theta(torch.rand(count, self.width, generator=generator, device=place))


@final
@dataclass(frozen=True)
class RandomRotation(RandomTransform):
    """Images turned about their centre by an angle uniform on (-limit, limit).

    Convention:
        theta (B, 1) is the angle of `pstn.Rotation` with which the example was warped; a grid maps output to input. So
        warping the example by `Rotation().inverse(theta)`, the opposite angle, gives the original back: that is what a
        localizer should find.

    Args:
        limit: the largest angle, in radians; the paper's is pi.

    Example:
        >>> random_transform = RandomRotation()
        >>> theta = random_transform.draw(2, generator=torch.Generator().manual_seed(0))
        >>> random_transform.make(torch.zeros(2, 1, 28, 28), theta).shape
        torch.Size([2, 1, 28, 28])
    """

    limit: float = math.pi
    width = 1

    def __post_init__(self) -> None:
        require_positive_number("limit", self.limit)

    @property
    def transform(self) -> Transform:
        """`pstn.Rotation`."""
        return _ROTATION

    def theta(self, u: Tensor) -> Tensor:
        """Angles, (B, 1), from u (B, 1)."""
        return self.limit * (2 * u - 1)

    def make(self, x: Tensor, theta: Tensor, *, fill: float | Sequence[float] = 0.0) -> Tensor:
        """Rotated images, of the size of `x` (B, C, H, W); the corners that come into view are `fill`."""
        return warp(x, self.transform.grid(theta, (x.shape[-2], x.shape[-1])), fill=fill)


@final
@dataclass(frozen=True)
class RandomPlacement(RandomTransform):
    """Images pasted somewhere on an empty canvas.

    Convention:
        theta (B, 4) is the `pstn.Similarity` with which the example was warped, (0, canvas / size, tx, ty): a grid
        maps the canvas to the image. So warping the canvas by `Similarity().inverse(theta)` at the image's size gives
        the image back; that inverse, (0, size / canvas, ...), is what a localizer should find.

    Args:
        canvas: side of the canvas in pixels.
        size: side of the pasted image in pixels; the original is resized to it, averaging where it shrinks.
        corners: the upper left corner is uniform on the whole numbers 0..corners-1, in x and y; None for all that fit.

    The defaults are those of the authors' code: 28 pixels on a canvas of 96, with corners on 0..63. The paper's text
    instead shrinks the image to 50%, with a theta of scale 0.5, which is `RandomPlacement.as_in_text()`.

    Example:
        >>> random_transform = RandomPlacement()
        >>> theta = random_transform.draw(2)
        >>> random_transform.make(torch.zeros(2, 1, 28, 28), theta).shape
        torch.Size([2, 1, 96, 96])
    """

    canvas: int = 96
    size: int = 28
    corners: int | None = 64
    width = 2

    def __post_init__(self) -> None:
        require_positive_int("canvas", self.canvas)
        require_positive_int("size", self.size)
        most = self.canvas - self.size + 1
        if most < 1:
            raise ValueError(f"size must be at most the canvas, {self.canvas}, got {self.size}")
        if self.corners is not None and not 1 <= require_positive_int("corners", self.corners) <= most:
            raise ValueError(f"corners must be from 1 to {most} so that the image fits, got {self.corners}")

    @classmethod
    def as_in_text(cls) -> RandomPlacement:
        """The paper's text: the 28-pixel image at 50% on a canvas of its own size, so that the undoing scale is 0.5."""
        return cls(canvas=28, size=14, corners=None)

    @property
    def transform(self) -> Transform:
        """`pstn.Similarity`."""
        return _SIMILARITY

    def theta(self, u: Tensor) -> Tensor:
        """Placements, (B, 4), from u (B, 2): of the corner's x, then of its y."""
        corners = self.corners or self.canvas - self.size + 1
        corner = (u * corners).floor().clamp(max=corners - 1)
        shift = (self.canvas - 2 * corner) / self.size - 1
        angle = torch.zeros_like(shift[:, :1])
        return torch.cat([angle, torch.full_like(angle, self.canvas / self.size), shift], dim=1)

    def make(self, x: Tensor, theta: Tensor, *, fill: float | Sequence[float] = 0.0) -> Tensor:
        """Canvases (B, C, canvas, canvas) with the images `x` (B, C, H, W) on them and `fill` around."""
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return warp(x, self.transform.grid(theta, (self.canvas, self.canvas)), fill=fill)


@final
@dataclass(frozen=True)
class Generated:
    """A set whose examples are made from `base` when they are asked for, a whole batch at once, where `base` is.

    Without `theta` every access draws anew, which is what training wants. With `theta` the draw is fixed, example by
    example, whatever the batches: that is a test set. `generate` makes either.

    Attributes:
        base: the originals, float32.
        random_transform: how to warp them.
        theta: (N, D) or None.
        generator: where fresh draws come from; torch's global seed where it is None. A generator on the device of
            `base` keeps everything there.

    Example:
        >>> base = Split(torch.rand(8, 1, 28, 28), torch.arange(8), tuple("01234567"))
        >>> test = generate(base, RandomRotation(), seed=0)
        >>> batch = test.batch([2, 5])
        >>> batch.x.shape, batch.theta.shape
        (torch.Size([2, 1, 28, 28]), torch.Size([2, 1]))
    """

    base: Split
    random_transform: RandomTransform
    theta: Tensor | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        require_floating("base.x", self.base.x)
        if self.theta is not None and self.theta.shape[0] != len(self.base):
            raise ValueError(f"theta must have one row per example, {len(self.base)}, got {self.theta.shape[0]}")

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One example and its class, as a DataLoader asks for them; `pstn.data.batches` makes whole batches at once."""
        one = self.batch([index])
        return one.x[0], one.y[0]

    @property
    def maker(self) -> RandomTransform:
        """The old name of `random_transform`."""
        warnings.warn("maker is now called random_transform", FutureWarning, stacklevel=2)
        return self.random_transform

    @property
    def y(self) -> Tensor:
        """(N,) int64, positions in `classes`."""
        return self.base.y

    @property
    def name(self) -> str:
        """What this is."""
        return self.base.name

    @property
    def device(self) -> torch.device:
        """Where the originals are, and where examples are made."""
        return self.base.device

    @property
    def ndim(self) -> int:
        """How many spatial axes an example has."""
        return self.base.ndim

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.base.classes

    @property
    def fill(self) -> float | tuple[float, ...]:
        """The background's value."""
        return self.base.fill

    @property
    def transform(self) -> Transform:
        """The family that theta belongs to."""
        return self.random_transform.transform

    def counts(self) -> Tensor:
        """How many examples each class has, (K,)."""
        return self.base.counts()

    def take(self, index: Tensor | Sequence[int]) -> Generated:
        """The set made from the originals at `index` (B,): drawn anew on every access, or by the fixed draw."""
        at = torch.as_tensor(index, device=self.device)
        theta = None if self.theta is None else self.theta[at]
        return dataclasses.replace(self, base=self.base.take(at), theta=theta)

    def to(self, device: torch.device | str) -> Generated:
        """The same set on `device`; a fixed draw stays what it was."""
        theta = None if self.theta is None else self.theta.to(device)
        return dataclasses.replace(self, base=self.base.to(device), theta=theta)

    def batch(self, index: Tensor | Sequence[int]) -> Split:
        """Make the examples at `index` (B,): a `Split` whose theta says how each was made."""
        at = torch.as_tensor(index, device=self.base.device)
        originals = self.base.take(at)
        if self.theta is None:
            theta = self.random_transform.draw(len(originals), generator=self.generator, device=self.base.device)
            theta = theta.to(self.base.device)
        else:
            theta = self.theta[at]
        x = self.random_transform.make(originals.x, theta, fill=self.fill)
        return dataclasses.replace(originals, x=x, theta=theta)

    def all(self) -> Split:
        """Make every example at once."""
        return self.batch(torch.arange(len(self), device=self.base.device))


@renamed(maker="random_transform")
def generate(
    base: Split, random_transform: RandomTransform, *, seed: int | None = None, generator: torch.Generator | None = None
) -> Generated:
    """A set of warped examples: drawn anew on every access, or once from a seed.

    Args:
        base: the originals, float32; its `fill` is the background of what is made.
        random_transform: `RandomRotation()`, `RandomPlacement()`, or one of your own.
        seed: fixes the draw. It is made on the CPU, so that every device gets the same test set.
        generator: for fresh draws, without a seed.

    Example:
        >>> import pstn
        >>> base = pstn.data.load("digits", normalise=False).test
        >>> batch = generate(base, RandomRotation(), seed=0).batch(range(64))
        >>> undo = pstn.Rotation().inverse(batch.theta)
        >>> upright = pstn.warp(batch.x, pstn.Rotation().grid(undo, (28, 28)), fill=batch.fill)
    """
    if seed is None:
        return Generated(base, random_transform, None, generator)
    if generator is not None:
        raise ValueError("generator is for fresh draws, seed for a fixed one: give one of them")
    theta = random_transform.draw(len(base), generator=torch.Generator().manual_seed(seed)).to(base.device)
    return Generated(base, random_transform, theta)


def generate_all(
    base: Splits[Split], random_transform: RandomTransform, *, seed: int = 0, generator: torch.Generator | None = None
) -> Splits[Generated]:
    """All parts of a data set: training examples drawn anew on every access, the others once, by `seed`."""
    # Validation and test get draws of their own: one seed for both would turn the n-th image of each alike.
    validation = None if base.validation is None else generate(base.validation, random_transform, seed=2 * seed + 1)
    test = None if base.test is None else generate(base.test, random_transform, seed=2 * seed)
    return Splits(generate(base.train, random_transform, generator=generator), validation, test)
