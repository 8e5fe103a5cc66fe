"""Sets made on the device from others, with the transformation of every example known."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pstn._checks import require_floating
from pstn.data.download import Progress
from pstn.data.makers import Maker, RandomPlacement, RandomRotation
from pstn.data.mnist import load_mnist
from pstn.data.split import Split, Splits
from pstn.transforms import Transform

__all__ = ["Generated", "generate", "generate_all", "load_placed_fashion", "load_rotated_mnist"]


@final
@dataclass(frozen=True)
class Generated:
    """A set whose examples are made from `base` when they are asked for, a whole batch at once, where `base` is.

    Without `theta` every access draws anew, which is what training wants. With `theta` the draw is fixed, example by
    example, whatever the batches: that is a test set. `generate` makes either.

    Attributes:
        base: the originals, float32.
        maker: how to warp them.
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
    maker: Maker
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
        return self.maker.transform

    def counts(self) -> Tensor:
        """How many examples each class has, (K,)."""
        return self.base.counts()

    def take(self, index: Tensor | Sequence[int]) -> Generated:
        """The set made from the originals at `index` (B,): afresh on every access, or by the draw that is fixed."""
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
            theta = self.maker.draw(len(originals), generator=self.generator, device=self.base.device)
            theta = theta.to(self.base.device)
        else:
            theta = self.theta[at]
        x = self.maker.make(originals.x, theta, fill=self.fill)
        return dataclasses.replace(originals, x=x, theta=theta)

    def all(self) -> Split:
        """Make every example at once."""
        return self.batch(torch.arange(len(self), device=self.base.device))


def generate(
    base: Split, maker: Maker, *, seed: int | None = None, generator: torch.Generator | None = None
) -> Generated:
    """A set of warped examples: drawn afresh on every access, or once and for all from a seed.

    Args:
        base: the originals, float32; its `fill` is the background of what is made.
        maker: `RandomRotation()`, `RandomPlacement()`, or one of your own.
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
        return Generated(base, maker, None, generator)
    if generator is not None:
        raise ValueError("generator is for fresh draws, seed for a fixed one: give one of them")
    theta = maker.draw(len(base), generator=torch.Generator().manual_seed(seed)).to(base.device)
    return Generated(base, maker, theta)


def load_rotated_mnist(
    *,
    normalise: bool = False,
    seed: int = 0,
    generator: torch.Generator | None = None,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Splits[Generated]:
    """MNIST with every image turned by an angle uniform on (-pi, pi): the paper's rotated MNIST.

    Training images are turned afresh on every access; validation and test images once, by `seed`.

    Args:
        normalise: as in `load_mnist`; the paper's experiment does not.
        seed: of the fixed draws.
        generator: of the fresh draws.
        root: as in `load_mnist`.
        fetch: as in `load_mnist`.
        progress: as in `load_mnist`.

    Example:
        >>> batch = load_rotated_mnist().test.batch(range(64))  # doctest: +SKIP
        >>> batch.x.shape, batch.theta.shape  # doctest: +SKIP
        (torch.Size([64, 1, 28, 28]), torch.Size([64, 1]))
    """
    base = load_mnist("mnist", normalise=normalise, root=root, fetch=fetch, progress=progress)
    return generate_all(base, RandomRotation(), seed=seed, generator=generator)


def load_placed_fashion(
    *,
    maker: RandomPlacement | None = None,
    normalise: bool = True,
    seed: int = 0,
    generator: torch.Generator | None = None,
    root: str | os.PathLike[str] | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
) -> Splits[Generated]:
    """FashionMNIST with every image pasted at random on a canvas of 96 x 96: the paper's random placement.

    Training images are placed afresh on every access; validation and test images once, by `seed`.

    Args:
        maker: the authors' placement where None; `RandomPlacement.as_in_text()` for the paper's text.
        normalise: (x - 0.1307) / 0.3081, as the authors do; the canvas is then at `fill`, not at 0.
        seed: of the fixed draws.
        generator: of the fresh draws.
        root: as in `load_mnist`.
        fetch: as in `load_mnist`.
        progress: as in `load_mnist`.

    Example:
        >>> batch = load_placed_fashion().test.batch(range(64))  # doctest: +SKIP
        >>> batch.x.shape, batch.theta.shape  # doctest: +SKIP
        (torch.Size([64, 1, 96, 96]), torch.Size([64, 4]))
    """
    base = load_mnist("fashion-mnist", normalise=normalise, root=root, fetch=fetch, progress=progress)
    return generate_all(base, maker or RandomPlacement(), seed=seed, generator=generator)


def generate_all(
    base: Splits[Split], maker: Maker, *, seed: int = 0, generator: torch.Generator | None = None
) -> Splits[Generated]:
    """All parts of a data set: training examples drawn afresh on every access, the others once, by `seed`."""
    # Validation and test get draws of their own: one seed for both would turn the n-th image of each alike.
    validation = None if base.validation is None else generate(base.validation, maker, seed=2 * seed + 1)
    test = None if base.test is None else generate(base.test, maker, seed=2 * seed)
    return Splits(generate(base.train, maker, generator=generator), validation, test)
