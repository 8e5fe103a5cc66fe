"""Random transforms, and data sets generated with them whose transformation is known."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pstn import _checks
from pstn._deprecation import renamed
from pstn.data.split import Split, Splits
from pstn.transforms import CPAB, MatrixTransform, SmoothPrior, Transform, make_transform
from pstn.transforms.affine import Affine, Crop, Rotation, Similarity, Translation
from pstn.transforms.base import invert_matrix
from pstn.transforms.coordinates import corner_points
from pstn.warping import Fill, InterpolationMode, PaddingMode, warp

__all__ = [
    "Cropped", "Generated", "RandomAffine", "RandomCPAB", "RandomCrop", "RandomPlacement", "RandomRotation",
    "RandomSimilarity", "RandomTransform", "RandomTranslation", "generate", "make_random_transform",
]  # fmt: skip


_SIMILARITY = Similarity()
# Draws by which a random transform is tried out, and how far a point may be from where it was.
_TRIALS, _TOLERANCE = 512, 1e-3


class RandomTransform(ABC):
    """A random warp of examples: uniform noise becomes theta, and theta warps.

    `generate` draws the noise of test sets and fresh batches; `pstn.training.RandomWarp` takes that of a population;
    `pstn.fit(model, aligned, teach=...)` teaches a model the theta that undoes it. One of your own says how many
    uniform numbers an example takes, and what theta they make.

    Convention:
        theta (B, D) is what the example was warped by, and a grid maps output to input. So warping the example by the
        inverse gives the original back: `undo` returns that, which is what a localizer should find.
    """

    @property
    @abstractmethod
    def width(self) -> int:
        """How many uniform numbers each example takes."""

    @property
    @abstractmethod
    def transform(self) -> Transform:
        """The family that theta belongs to."""

    @abstractmethod
    def theta(self, u: Tensor) -> Tensor:
        """Theta (B, D) from uniform numbers `u` (B, width) in [0, 1)."""

    def grid(self, theta: Tensor, size: Sequence[int]) -> Tensor:
        """The coordinates in the original that an example of `size` reads, (B, *size, ndim)."""
        return self.transform.grid(theta, size)

    def make(
        self,
        x: Tensor,
        theta: Tensor,
        *,
        fill: Fill = 0.0,
        padding_mode: PaddingMode = "zeros",
        mode: InterpolationMode = "bilinear",
    ) -> Tensor:
        """Warp x (B, C, *size) by theta (B, D); what comes into view is `fill`, or as `padding_mode` says."""
        originals, grid = self._reading(x, theta)
        return warp(originals, grid, fill=fill, padding_mode=padding_mode, mode=mode)

    def _reading(self, x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """What is read, and where: x (B, C, *size), and the coordinates (B, *size, ndim)."""
        return x, self.grid(theta, x.shape[2:])

    def undo(self, theta: Tensor, transform: Transform, *, aspect: Sequence[float] | None = None) -> Tensor:
        """The theta of a model's family, (B, D'), that undoes a random theta.

        Args:
            theta: (B, D), of this transform.
            transform: the model's family. Affine families go by their matrices, so that a smaller one fits in a larger
                one; any other must be this transform's own.
            aspect: extents of the warped examples along (x, y, z); square when not given.

        Example:
            >>> RandomRotation().undo(torch.tensor([[0.5]]), pstn.Similarity())[:, :2]
            tensor([[-0.5000,  1.0000]])
        """
        own = self.transform
        if isinstance(own, MatrixTransform) and isinstance(transform, MatrixTransform) and own.ndim == transform.ndim:
            matrix = own.matrix(theta, aspect=aspect)
            return transform.from_matrix(invert_matrix(matrix), aspect=aspect)
        if type(own) is not type(transform) or own.dim != transform.dim:
            raise ValueError(f"teach must be a random transform that {transform} can undo, got {self}")
        return own.inverse(theta, aspect=aspect)

    def require_undo(self, transform: Transform, size: Sequence[int]) -> None:
        """Refuse a model's family that cannot undo what this transform does to examples of the spatial `size`.

        Args:
            transform: the model's family.
            size: of the warped examples.

        Raises:
            ValueError: points that were mapped there and back are not where they were.

        Example:
            >>> RandomRotation().require_undo(pstn.Similarity(), (28, 28))
        """
        theta, aspect = self.theta(_trial_noise(self.width)), tuple(size)[::-1]
        points = corner_points(transform.ndim, dtype=torch.float64) / 2
        undo = self.undo(theta, transform, aspect=aspect)
        there = copy.deepcopy(transform).cpu().apply(undo, points, aspect=aspect)
        if not bool(((self.transform.apply(theta, there, aspect=aspect) - points).abs() < _TOLERANCE).all()):
            raise ValueError(f"teach must be a random transform that {transform} can undo, got {self}")

    def log_density(self) -> float:
        """The logarithm of the density of theta at the identity: what `pstn.Gated(log_density=...)` takes."""
        raise ValueError(f"{self} has no density at the identity")

    def draw(self, count: int, *, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Draw theta, (count, D), where `generator` lives: one of the CPU gives every device the same."""
        place = device if generator is None else generator.device
        return self.theta(torch.rand(count, self.width, generator=generator, device=place))


def _trial_noise(width: int) -> Tensor:
    return torch.rand(_TRIALS, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class _Uniform(RandomTransform):
    """Parameters that are independent and uniform within limits around the identity."""

    @abstractmethod
    def _family(self) -> tuple[Transform, Sequence[float]]:
        """The family, and how far each of its parameters is from the identity at most."""

    def __post_init__(self) -> None:
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]  # subclasses are dataclasses
        for name in names:
            if name != "ndim":
                _checks.require_nonnegative_number(name, getattr(self, name))
        if not any(self._made[1]):  # which refuses an ndim that there is not
            raise ValueError(f"{names[0]} must be above 0, got {self}")

    @cached_property
    def _made(self) -> tuple[Transform, tuple[float, ...], tuple[float, ...]]:
        """The family, the limits and the identity; no tensors, which a compiled or captured step could not read."""
        transform, limits = self._family()
        return transform, tuple(limits), tuple(transform.identity().tolist())

    @property
    def width(self) -> int:
        """D."""
        return self.transform.dim

    @property
    def transform(self) -> Transform:
        """The family that theta belongs to, of a scale that is a logarithm and shifts in coordinates."""
        return self._made[0]

    def theta(self, u: Tensor) -> Tensor:
        """Theta, (B, D), from u (B, D)."""
        _, limits, identity = self._made
        columns = zip(u.unbind(-1), identity, limits, strict=True)
        return torch.stack([centre + limit * (2 * column - 1) for column, centre, limit in columns], dim=-1)

    def log_density(self) -> float:
        """At the identity, over the parameters whose limits are above 0. A turn is complete at an angle of pi."""
        transform, limits, _ = self._made
        kinds = zip(limits, transform.circular, strict=True)
        widths = [2 * min(limit, math.pi if angle else limit) for limit, angle in kinds if limit]
        return -sum(map(math.log, widths))


@final
@dataclass(frozen=True)
class RandomRotation(_Uniform):
    """Images turned about their centre by an angle uniform on (-limit, limit); theta is that of `pstn.Rotation`.

    Args:
        limit: the largest angle, in radians; the paper's is pi.

    Example:
        >>> random_transform = RandomRotation()
        >>> theta = random_transform.draw(2, generator=torch.Generator().manual_seed(0))
        >>> random_transform.make(torch.zeros(2, 1, 28, 28), theta).shape
        torch.Size([2, 1, 28, 28])
    """

    limit: float = math.pi

    def _family(self) -> tuple[Transform, Sequence[float]]:
        return Rotation(), [self.limit]


@final
@dataclass(frozen=True)
class RandomTranslation(_Uniform):
    """Series, images or volumes shifted along each axis; theta is that of `pstn.Translation(scale=1)`.

    Args:
        shift: the largest shift, in coordinates: 1 is half of the input.
        ndim: 1, 2 or 3.

    Example:
        >>> RandomTranslation(0.5, ndim=1).draw(3).shape
        torch.Size([3, 1])
    """

    shift: float = 0.3
    ndim: int = 2

    def _family(self) -> tuple[Transform, Sequence[float]]:
        return Translation(1.0, self.ndim), [self.shift] * self.ndim


@final
@dataclass(frozen=True)
class RandomCrop(_Uniform):
    """Series, images or volumes scaled and shifted; theta is that of `pstn.Crop(scale="log")`.

    Args:
        scale: the largest logarithm of the scale, which is between exp(-scale) and exp(scale).
        shift: the largest shift along each axis, in coordinates: 1 is half of the input.
        ndim: 1, 2 or 3.

    Example:
        >>> RandomCrop(ndim=3).draw(2).shape
        torch.Size([2, 4])
    """

    scale: float = 0.3
    shift: float = 0.3
    ndim: int = 2

    def _family(self) -> tuple[Transform, Sequence[float]]:
        return Crop("log", self.ndim), [self.scale, *[self.shift] * self.ndim]


@final
@dataclass(frozen=True)
class RandomSimilarity(_Uniform):
    """Images turned, scaled and shifted; theta is that of `pstn.Similarity(scale="log")`.

    Args:
        angle: the largest angle, in radians.
        scale: the largest logarithm of the scale, which is between exp(-scale) and exp(scale).
        shift: the largest shift along each axis, in coordinates: 1 is half of the input.

    Example:
        >>> RandomSimilarity(scale=0.3, shift=0.3).draw(2).shape
        torch.Size([2, 4])
    """

    angle: float = math.pi
    scale: float = 0.3
    shift: float = 0.3

    def _family(self) -> tuple[Transform, Sequence[float]]:
        return Similarity("log"), [self.angle, self.scale, self.shift, self.shift]


@final
@dataclass(frozen=True)
class RandomAffine(_Uniform):
    """Images or volumes under an affine map near the identity; theta is that of `pstn.Affine`.

    Args:
        linear: how far each entry of the matrix A is from the identity's at most.
        shift: the largest shift along each axis, in coordinates: 1 is half of the input.
        ndim: 2 or 3.

    Example:
        >>> RandomAffine(0.2, 0.1, ndim=3).draw(2).shape
        torch.Size([2, 12])
    """

    linear: float = 0.2
    shift: float = 0.2
    ndim: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.linear * self.ndim >= 1:  # then A is diagonally dominant, and so has an inverse
            raise ValueError(f"linear must be below 1 / {self.ndim}, or a map may have no inverse, got {self.linear}")

    def _family(self) -> tuple[Transform, Sequence[float]]:
        return Affine(self.ndim), [*[self.linear] * self.ndim, self.shift] * self.ndim


@final
@dataclass(frozen=True)
class RandomCPAB(RandomTransform):
    """Series or images under smooth warps from `pstn.SmoothPrior`; theta is that of the family given.

    Args:
        cpab: the family, which must be the model's too for a model to be taught.
        scale: as for the prior: how strong the warps are.
        length: likewise: how slowly their velocities vary.

    Example:
        >>> RandomCPAB(pstn.CPAB(tess=10)).draw(2).shape
        torch.Size([2, 9])
    """

    cpab: CPAB
    scale: float = 0.5
    length: float = 0.2

    def __post_init__(self) -> None:
        _ = self._prior  # refuses what cannot be

    @cached_property
    def _prior(self) -> SmoothPrior:
        return SmoothPrior(self.cpab, self.scale, self.length)

    @property
    def width(self) -> int:
        """D."""
        return self.cpab.dim

    @property
    def transform(self) -> Transform:
        """The family given."""
        return self.cpab

    def theta(self, u: Tensor) -> Tensor:
        """Theta, (B, D), from u (B, D)."""
        normal = torch.special.ndtri(u.clamp_min(2.0**-25))  # u = 0 would be infinitely far out
        return _moved(self._prior, u.device).sample(noise=normal).to(u.dtype)

    def grid(self, theta: Tensor, size: Sequence[int]) -> Tensor:
        """The coordinates in the original that an example of `size` reads, (B, *size, ndim)."""
        return _moved(self.cpab, theta.device).grid(theta, size)

    def log_density(self) -> float:
        """At the identity."""
        scaled = 2 * math.pi * self._prior.covariance.double()
        return -float(torch.linalg.slogdet(scaled).logabsdet) / 2


Module = TypeVar("Module", bound=nn.Module)


@lru_cache(maxsize=16)
def _moved(module: Module, device: torch.device) -> Module:
    """`module` on a device; the same each time, as a captured graph refers to its tensors."""
    return copy.deepcopy(module).to(device)


@final
@dataclass(frozen=True)
class Cropped(RandomTransform):
    """Another random transform, read from within the original, so that nothing outside of it comes into view.

    Filled corners give away by how much an image was turned: a localizer taught on them finds nothing else, and fails
    on images without. An example is `crop` times as large as its original, at the same resolution; theta is in its own
    coordinates. Every example, even one that is not moved, is read by one interpolation.

    Args:
        random_transform: what moves the examples.
        crop: the share of each side that is kept, below 1; for any angle on a square at most 0.707.

    Example:
        >>> cropped = Cropped(RandomRotation(), 0.7)
        >>> made = cropped.make(torch.ones(2, 1, 40, 40), cropped.draw(2))
        >>> made.shape, bool((made > 0.99).all())
        (torch.Size([2, 1, 28, 28]), True)
    """

    random_transform: RandomTransform
    crop: float = 0.7

    def __post_init__(self) -> None:
        inner = self.random_transform
        if not isinstance(inner, RandomTransform) or isinstance(inner, RandomPlacement):
            raise TypeError(f"random_transform must be one that keeps the size of examples, got {inner}")
        if not 0 < _checks.require_positive_number("crop", self.crop) < 1:
            raise ValueError(f"crop must be below 1, got {self.crop}")

    @property
    def width(self) -> int:
        """That of the random transform."""
        return self.random_transform.width

    @property
    def transform(self) -> Transform:
        """That of the random transform."""
        return self.random_transform.transform

    def theta(self, u: Tensor) -> Tensor:
        """That of the random transform."""
        return self.random_transform.theta(u)

    def _reading(self, x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The middle of what the random transform reads."""
        size = [max(1, round(self.crop * extent)) for extent in x.shape[2:]]
        grid = self.random_transform.grid(theta, size)
        shares = [part / whole for part, whole in zip(size[::-1], x.shape[:1:-1], strict=True)]
        kept = torch.stack([axis * share for axis, share in zip(grid.unbind(-1), shares, strict=True)], dim=-1)
        return x, kept

    def require_undo(self, transform: Transform, size: Sequence[int]) -> None:
        """Refuse a family that cannot undo it, and a `crop` that lets something outside of the originals be seen."""
        super().require_undo(transform, size)
        extents = torch.tensor(tuple(size)[::-1], dtype=torch.float64)
        outermost = corner_points(transform.ndim, dtype=torch.float64) * (1 - 1 / extents)
        read = self.transform.apply(self.theta(_trial_noise(self.width)), outermost, aspect=tuple(size)[::-1]).abs()
        # Beyond the centres of the outermost pixels of the original, what is outside has a part in the interpolation.
        most = float((1 / (read + 1 / extents)).min())
        if self.crop > most:
            raise ValueError(f"crop must be at most {most:.3f} to show nothing outside, got {self.crop}")

    def log_density(self) -> float:
        """That of the random transform."""
        return self.random_transform.log_density()


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
        _checks.require_positive_int("canvas", self.canvas)
        _checks.require_positive_int("size", self.size)
        most = self.canvas - self.size + 1
        if most < 1:
            raise ValueError(f"size must be at most the canvas, {self.canvas}, got {self.size}")
        if self.corners is not None and not 1 <= _checks.require_positive_int("corners", self.corners) <= most:
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

    def _reading(self, x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Images of `size`, and canvases around them."""
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return x, self.grid(theta, (self.canvas, self.canvas))


_NAMED: dict[str, type[Any]] = {
    "rotation": RandomRotation, "translation": RandomTranslation, "crop": RandomCrop, "similarity": RandomSimilarity,
    "affine": RandomAffine, "cpab": RandomCPAB, "placement": RandomPlacement,
}  # fmt: skip


def make_random_transform(text: str | RandomTransform, ndim: int = 2) -> RandomTransform:
    """The random transform that a text describes, for command lines and estimators; any other is returned unchanged.

    Args:
        text: a name and the ranges of that transform, in their order or by name, such as "rotation=3.14",
            "similarity=3.14,0.3,0.3" or "crop=shift=0.2"; without any, the defaults. A range `keep=0.7` at the end
            makes it a `Cropped` one.
        ndim: how many spatial axes the examples have.

    Example:
        >>> make_random_transform("similarity=3.14,shift=0.1,keep=0.5")
        Cropped(random_transform=RandomSimilarity(angle=3.14, scale=0.3, shift=0.1), crop=0.5)
    """
    if isinstance(text, RandomTransform):
        return text
    if not isinstance(text, str):
        raise TypeError(f"teach must be a random transform such as pstn.data.RandomRotation(), got {text!r}")
    name, _, rest = text.partition("=")
    _checks.require_choice("the name of a random transform", name, tuple(_NAMED))
    cls, options = _NAMED[name], dict[str, Any]()
    names = [field.name for field in dataclasses.fields(cls) if field.name not in ("ndim", "cpab")]
    for place, part in enumerate(rest.split(",") if rest else ()):
        key, _, number = part.rpartition("=")
        key = key or (names[place] if place < len(names) else "")
        if key not in (*names, "keep"):
            raise ValueError(f"{name} takes the ranges {', '.join(names)} and keep, got {text!r}")
        try:
            options[key] = int(number) if name == "placement" else float(number)
        except ValueError:
            raise ValueError(f"{key} of {name} must be a number, got {number!r}") from None
    keep = options.pop("keep", None)
    if name == "placement" and options:
        options.setdefault("corners", None)
    if name == "cpab":
        options["cpab"] = make_transform("cpab", ndim)
    elif "ndim" in cls.__dataclass_fields__:
        options["ndim"] = ndim
    made: RandomTransform = cls(**options)
    return made if keep is None else Cropped(made, keep)


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
        _checks.require_floating("base.x", self.base.x)
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
