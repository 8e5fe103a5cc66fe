"""The pictures of the guide, drawn afresh with `python docs/make_guide_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import pstn
from pstn.data import load_digits
from pstn.files import write_atomically

IMAGES = Path(__file__).parent / "images"
INK, WARM, COOL, GOLD, PALE = "#1b2a41", "#d1495b", "#00798c", "#edae49", "#c9d3dc"


def save(figure: Figure, name: str) -> None:
    """Write a picture and say so."""
    with write_atomically(IMAGES / name) as draft:
        figure.savefig(draft, dpi=130, facecolor="white", format="png")
    print(IMAGES / name)


def show(axes: Axes, image: Tensor) -> None:
    """A digit over the whole of [-1, 1], with y downwards, as coordinates are."""
    axes.imshow(image, cmap="gray", extent=(-1, 1, 1, -1), vmin=0, vmax=1)


def outline(axes: Axes, corners: Tensor, colour: str, width: float) -> None:
    """A closed box."""
    closed = torch.cat([corners, corners[:1]])
    axes.plot(closed[:, 0], closed[:, 1], color=colour, lw=width)


def coordinates_picture(digit: Tensor) -> None:
    """What a grid means: where the output reads the input."""
    family = pstn.Similarity()
    theta = torch.tensor([0.6, 0.75, 0.0, 0.0])
    digit = pstn.warp(digit[None, None], pstn.Rotation().grid(torch.tensor([[-0.6]]), (28, 28)))[0, 0]
    figure = Figure(figsize=(8.4, 4.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    show(left, digit)
    corners = family.corners(theta)
    outline(left, corners, WARM, 2.2)
    points = family.grid(theta, (7, 7)).reshape(-1, 2)
    left.plot(points[:, 0], points[:, 1], "o", color=WARM, ms=3)
    for corner, name in zip(corners, "abcd", strict=True):
        left.annotate(
            name, corner.tolist(), color=GOLD, fontsize=13, weight="bold", xytext=(4, 4), textcoords="offset points"
        )
    left.set(xlim=(-1.15, 1.15), ylim=(1.15, -1.15), xlabel="x", ylabel="y")
    left.set_title("the input, and where theta = (0.6, 0.75, 0, 0) looks", color=INK, fontsize=10)
    show(right, pstn.warp(digit[None, None], family.grid(theta[None], (56, 56)))[0, 0])
    outline(right, family.corners(family.identity()), WARM, 4.0)
    for corner, name, shift in zip(
        family.corners(family.identity()), "abcd", ((6, -16), (-16, -16), (-16, 8), (6, 8)), strict=True
    ):
        right.annotate(
            name, corner.tolist(), color=GOLD, fontsize=13, weight="bold", xytext=shift, textcoords="offset points"
        )
    right.set_title("the output: what was in the box, upright and larger", color=INK, fontsize=10)
    for axes in (left, right):
        axes.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        axes.set_facecolor("0.9")
    save(figure, "coordinates.png")


def posterior_picture() -> None:
    """The distribution of one parameter for three betas, and the KL that holds beta up."""
    figure = Figure(figsize=(8.4, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    at = torch.linspace(-2.5, 2.5, 600)
    for beta, colour in ((0.05, WARM), (0.3, GOLD), (1.0, COOL)):
        scale = beta**0.5
        density = torch.distributions.StudentT(2.0, 0.0, scale).log_prob(at).exp()
        left.plot(at, density, color=colour, lw=2, label=f"β = {beta}" + (", the prior's" if beta == 1 else ""))
    left.set(xlabel="theta − μ(x)", ylabel="density", title="q(theta): Student-t, scale √β, heavy tails")
    left.legend(frameon=False)
    betas = torch.logspace(-3, 1, 200)
    kl = pstn.Posterior(torch.zeros(200, 1), betas[:, None]).kl()[:, 0]
    right.loglog(betas, kl.clamp_min(1e-4), color=INK, lw=2)
    right.axvline(1, color=PALE, lw=1)
    right.set(xlabel="β", ylim=(1e-2, 1e3), title="the KL to the prior: a wall at β = 0, none at β = 1")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    save(figure, "posterior.png")


def families_picture(digit: Tensor) -> None:
    """One digit under three samples of each family."""
    torch.manual_seed(5)
    families: dict[str, pstn.Transform] = {
        "Rotation": pstn.Rotation(), "Crop": pstn.Crop(), "Similarity": pstn.Similarity(), "Affine": pstn.Affine(),
        "CPAB": pstn.CPAB(tess=(3, 3)),
    }  # fmt: skip
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    panels = figure.subplots(3, 5)
    for column, (name, family) in enumerate(families.items()):
        if isinstance(family, pstn.CPAB):
            thetas = pstn.SmoothPrior(family, scale=0.6, length=0.3).sample(3)
        elif isinstance(family, pstn.Rotation):
            thetas = torch.tensor([[-0.7], [0.4], [1.0]])
        else:
            thetas = family.identity() + 0.2 * torch.randn(3, family.dim)
        warped = pstn.warp(digit[None, None].expand(3, -1, -1, -1), family.grid(thetas, (28, 28)))
        for row, image in enumerate(warped[:, 0]):
            show(panels[row, column], image)
            panels[row, column].set(xticks=(), yticks=())
        panels[0, column].set_title(f"{name}, D = {family.dim}", color=INK, fontsize=10)
    save(figure, "families.png")


if __name__ == "__main__":
    digits = load_digits("test")
    five = digits.x[digits.y == 5][8, 0]
    coordinates_picture(five)
    posterior_picture()
    families_picture(five)
